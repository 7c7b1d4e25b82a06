"""A sweep on a real SLURM, see `tests.slurm`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from adapter_bert.experiments import launchers, sweep_file
from adapter_bert.experiments.sweep_folder import SweepFolder
from tests import slurm
from tests.helpers import ROOT
from tests.kill import wait_until

pytestmark = [pytest.mark.long, slurm.needs_slurm]


@pytest.fixture(autouse=True)
def needs_submitit(slurm_jobs):
    pytest.importorskip("submitit", reason="needs submitit")


@pytest.fixture
def sweep_path(tiny_bert, cola_dir, tmp_path) -> str:
    text = f"""
tasks = ["CoLA"]
seeds = [1, 2]
[flags]
data_dir = "{cola_dir}"
bert_dir = "{tiny_bert}"
max_seq_length = 16
train_batch_size = 8
num_train_epochs = 20
save_checkpoints_steps = 4
adapter_size = 4
[method.adapters]
learning_rate = 1e-2
"""
    (tmp_path / "sweep.toml").write_text(text)
    return str(tmp_path / "sweep.toml")


def wait_for(folder: SweepFolder, sweep: sweep_file.Sweep, is_done) -> None:
    logs = pathlib.Path(folder.path, "slurm")
    wait_until(lambda: is_done(folder.status(sweep)), describe=lambda: slurm.read_logs(logs, "*.err"))


def test_workers_run_as_an_array_of_jobs_and_a_job_at_its_time_limit_is_queued_again(sweep_path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)
    sweep, folder = sweep_file.read(sweep_path, {}), SweepFolder(str(tmp_path / "out"))
    script = [sys.executable, os.path.join(ROOT, "scripts", "run_sweep.py"), f"--sweep={sweep_path}"]
    command = [*script, f"--output_dir={folder.path}", "--workers=2", "--slurm=timeout_min=60,cpus_per_task=1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "Submitted 2 workers" in done.stdout
    first = done.stdout.partition(":")[2].split(",")[0].split(".")[0].strip()
    # The signal that SLURM sends before the time limit.
    wait_for(folder, sweep, lambda status: any(pathlib.Path(folder.path).rglob("model.ckpt-4.index")))
    subprocess.run(["scancel", "--signal=USR2", first], check=True)
    wait_for(folder, sweep, lambda status: not status.remaining)
    status = folder.status(sweep)
    assert len(status.results) == 2 and not status.failures
    outputs = [path.read_text(errors="replace") for path in pathlib.Path(folder.path, "slurm").glob("*.err")]
    assert any("requeue" in text.lower() for text in outputs), outputs


def test_a_cancelled_job_of_the_array_does_not_stop_the_others(sweep_path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)
    sweep, folder = sweep_file.read(sweep_path, {}), SweepFolder(str(tmp_path / "out"))
    folder.start(sweep)
    options = {"timeout_min": 60, "cpus_per_task": 1, "partition": "all"}
    first, second = launchers.submit(folder, 2, launchers.make_executor(folder, options))
    wait_for(folder, sweep, lambda status: any(pathlib.Path(folder.path).rglob("model.ckpt-4.index")))
    subprocess.run(["scancel", first], check=True)
    wait_for(folder, sweep, lambda status: not status.remaining)
    status = folder.status(sweep)
    assert len(status.results) == 2 and not status.failures
    wait_until(lambda: slurm.state_of(second) == "COMPLETED", 60, lambda: slurm.state_of(second))
    assert slurm.state_of(first) == "CANCELLED"
