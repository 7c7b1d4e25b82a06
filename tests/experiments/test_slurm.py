"""A sweep on a real SLURM: one node on this machine, started by the test."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest

from adapter_bert.experiments import launchers, sweep_file
from adapter_bert.experiments.sweep_folder import SweepFolder
from tests.helpers import ROOT

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort=27817
SlurmdPort=27818
KillWait=5
RequeueExit=100
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason="needs root and SLURM: apt-get install slurm-wlm",
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Start munge, the controller and one node; name their configuration in the environment."""
    pytest.importorskip("submitit", reason="needs submitit")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, host = folder / "munge.key", socket.gethostname()
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for path in (folder, *folder.parents[:3]):
        path.chmod(0o755)
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, folder=folder, cpus=os.cpu_count()))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(config)
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started = []
    try:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with open(folder / f"{command[0]}.out", "wb") as output:
                started.append(subprocess.Popen(command, stdout=output, stderr=output))
            time.sleep(1)
        deadline = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h"], stdout=subprocess.PIPE, text=True).stdout:
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.out"))
            assert time.monotonic() < deadline, f"SLURM did not start: {logs}"
            time.sleep(0.5)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)
        os.environ.pop("SLURM_CONF")
        if before:
            os.environ["SLURM_CONF"] = before


@pytest.fixture(autouse=True)
def no_jobs_left(slurm):
    """Cancel what a test leaves behind, e.g. a requeued job, which would start minutes later."""
    yield
    subprocess.run(["scancel", "--user=root"], check=True)
    deadline = time.monotonic() + 60
    while subprocess.run(["squeue", "-h"], stdout=subprocess.PIPE, text=True).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(0.5)


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


def wait_for(folder: SweepFolder, sweep: sweep_file.Sweep, is_done, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done(folder.status(sweep)):
        logs = [path.read_text(errors="replace")[-1000:] for path in pathlib.Path(folder.path, "slurm").glob("*.err")]
        assert time.monotonic() < deadline, f"the jobs did not finish: {logs}"
        time.sleep(0.1)  # a finished run removes its checkpoints


def test_workers_run_as_an_array_of_jobs_and_a_job_at_its_time_limit_is_queued_again(
    slurm, sweep_path, tmp_path, monkeypatch
):
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


def test_a_cancelled_job_of_the_array_does_not_stop_the_others(slurm, sweep_path, tmp_path, monkeypatch):
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
    deadline = time.monotonic() + 60
    while state_of(second) != "COMPLETED":
        assert time.monotonic() < deadline, state_of(second)
        time.sleep(1)
    assert state_of(first) == "CANCELLED"


def state_of(job: str) -> str:
    shown = subprocess.run(["scontrol", "show", "job", job], stdout=subprocess.PIPE, text=True, check=True).stdout
    return shown.partition("JobState=")[2].split()[0]
