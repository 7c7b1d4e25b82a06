"""A real SLURM with one node: this machine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from typing import Iterator

import pytest

from adapter_bert.devices import launcher
from tests.kill import wait_until

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
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
KillWait=5
RequeueExit=100
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

needs_slurm = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason="needs root and SLURM: apt-get install slurm-wlm",
)


@contextlib.contextmanager
def running_slurm(folder: pathlib.Path) -> Iterator[None]:
    """Start munge, the controller and one node; name their configuration in the environment."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, host = folder / "munge.key", socket.gethostname()
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for path in (folder, *folder.parents[:3]):
        path.chmod(0o755)
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(host=host, folder=folder, cpus=max(os.cpu_count() or 1, 2), ports=launcher.free_ports(2))
    )
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(config))
        try:
            for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
                with open(folder / f"{command[0]}.out", "wb") as output:
                    started.append(subprocess.Popen(command, stdout=output, stderr=output))
                time.sleep(1)
            wait_until(lambda: "idle" in output_of("sinfo", "-h"), 60, lambda: read_logs(folder, "*.out"))
            yield
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(30)


def read_logs(folder: pathlib.Path, pattern: str) -> str:
    """Return the ends of the logs in a folder."""
    return "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob(pattern))


def cancel_jobs() -> None:
    """Cancel what a test leaves behind, e.g. a requeued job, which would start minutes later."""
    subprocess.run(["scancel", "--user=root"], check=True)
    wait_until(lambda: not output_of("squeue", "-h").strip())


def state_of(job: str) -> str:
    """Return the state of a job, e.g. COMPLETED."""
    shown = subprocess.run(["scontrol", "show", "job", job], stdout=subprocess.PIPE, text=True, check=True).stdout
    return shown.partition("JobState=")[2].split()[0]


def output_of(*command: str) -> str:
    """Return what a command prints, even if it fails."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
