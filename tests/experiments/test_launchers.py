"""SLURM without SLURM: options, and what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adapter_bert.experiments import launchers, sweep_runner
from adapter_bert.experiments.sweep_folder import SweepFolder
from tests.helpers import ROOT, assert_mentions, message_of, write_file


def test_options_of_a_scheduler_are_parsed():
    assert sweep_runner.parse_options("timeout_min=600,partition=cpu") == {"timeout_min": 600, "partition": "cpu"}
    assert_mentions(message_of(sweep_runner.parse_options, "fast"), "--slurm=fast", "fast")


@pytest.fixture
def srun(tmp_path, monkeypatch) -> None:
    """A program `srun`, by which submitit knows SLURM."""
    pytest.importorskip("submitit", reason="needs submitit")
    os.chmod(write_file(tmp_path, "bin/srun", "#!/bin/sh\n"), 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def test_options_of_slurm_need_no_prefix(srun, tmp_path):
    options = {"timeout_min": 60, "mem_gb": 8, "partition": "cpu", "slurm_qos": "high", "name": "mine"}
    executor = launchers.make_executor(SweepFolder(str(tmp_path / "out")), options)
    found = executor._executor.parameters
    assert (found["partition"], found["qos"], found["time"], found["mem"]) == ("cpu", "high", 60, "8GB")
    assert found["job_name"] == "mine" and not os.path.exists(str(tmp_path / "out"))


@pytest.mark.parametrize(
    "options, facts", [({"colour": "red"}, ["colour", "partition"]), ({"timeout_min": "long"}, ["timeout_min", "long"])]
)
def test_wrong_options_are_reported(srun, tmp_path, options, facts):
    message = message_of(launchers.make_executor, SweepFolder(str(tmp_path)), options)
    assert_mentions(message, "--slurm", *facts)


def test_a_rejected_job_and_a_missing_slurm_are_reported(srun, tmp_path, monkeypatch):
    folder = SweepFolder(str(tmp_path / "out"))
    os.chmod(write_file(tmp_path, "bin/sbatch", "#!/bin/sh\necho invalid partition >&2\nexit 1\n"), 0o755)
    executor = launchers.make_executor(folder, {"partition": "cpu"})
    assert_mentions(message_of(launchers.submit, folder, 1, executor), "invalid partition")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_mentions(message_of(launchers.make_executor, folder, {}), "srun")


def test_a_missing_submitit_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert_mentions(message_of(launchers.make_executor, SweepFolder(str(tmp_path)), {}), "submitit")


@pytest.mark.long
@pytest.mark.parametrize(
    "flags, facts",
    [
        (["--workers=99999"], ["--workers=99999"]),
        (["--known_results=nowhere.csv"], ["nowhere.csv"]),
        (["--slurm=timeout_min=60"], ["SLURM"]),
        (["--data_dir=nowhere"], ["--data_dir=nowhere"]),
        (["--tasks=cola,CoLA"], ["CoLA", "twice"]),
    ],
)
def test_a_rejected_command_leaves_no_folder_behind(tiny_bert, cola_dir, tmp_path, flags, facts):
    script = [sys.executable, os.path.join(ROOT, "scripts", "run_sweep.py"), "--preset=reproduction", "--tasks=CoLA"]
    inputs = [f"--bert_dir={tiny_bert}", f"--data_dir={cola_dir}", f"--output_dir={tmp_path}/out"]
    environment = {**os.environ, "PYTHONPATH": ROOT, "PATH": str(tmp_path)}  # without srun
    done = subprocess.run([*script, *inputs, *flags], env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert_mentions(last, "run_sweep.py: error:", *facts)
    assert not os.path.exists(str(tmp_path / "out"))
