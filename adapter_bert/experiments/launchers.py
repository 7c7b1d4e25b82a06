"""Start the workers of a sweep: on this machine, or as SLURM jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from adapter_bert.common import errors, parallel
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.sweep_folder import SweepFolder

_POLL_SECONDS = 1.0
_STOP_SECONDS = 120.0


def worker_command(folder: SweepFolder, cores: Sequence[int] = ()) -> List[str]:
    """Return the command line of a worker."""
    command = [sys.executable, "-m", "adapter_bert.experiments.worker", folder.path]
    return [*command, ",".join(map(str, cores))] if cores else command


def core_groups(workers: int) -> List[List[int]]:
    """Divide the cores of this process among workers; empty groups leave all cores to every worker."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(workers)]
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // workers
    if not size:
        raise errors.UserError(f"--workers={workers} is more than the {len(cores)} cores of this machine.")
    return [cores[index * size : (index + 1) * size] for index in range(workers)]


class _Worker:
    """A worker process and the cells that it announces."""

    def __init__(self, folder: SweepFolder, index: int, cores: Sequence[int]) -> None:
        os.makedirs(folder.file("workers"), exist_ok=True)
        self._log = folder.file("workers", f"worker-{index}.log")
        self._announced = folder.file("workers", f"worker-{index}.jsonl")
        self._command = worker_command(folder, cores)
        self.process: subprocess.Popen = self.start()

    def start(self) -> subprocess.Popen:
        """Start the process, or restart it after it has ended."""
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        with open(self._announced, "wb") as output, open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=dict(os.environ, PYTHONPATH=path),
                start_new_session=True,  # Ctrl-C reaches the launcher, which stops the workers
            )
        return self.process

    def current(self) -> Optional[str]:
        """Return the name of the cell that the worker runs, or ran when it ended."""
        with open(self._announced, encoding="utf-8") as file:
            lines = file.read().splitlines()
        return json.loads(lines[-1])["cell"] if lines else None

    def last_lines(self) -> str:
        """Return the end of the worker's log."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-5:]).strip()


def run_locally(folder: SweepFolder, sweep: Sweep, workers: int, report: Callable[[int], None]) -> None:
    """Run the sweep with this many processes, which share the cores; call `report` with the number of busy ones.

    A worker that is killed is replaced, and its cell continues from its checkpoint.
    """
    started = [_Worker(folder, index, cores) for index, cores in enumerate(core_groups(workers))]
    try:
        while started:
            time.sleep(_POLL_SECONDS)
            started = [worker for worker in started if _is_needed(worker, folder, sweep)]
            report(sum(worker.current() is not None for worker in started))
    finally:
        _stop(started)


def _is_needed(worker: _Worker, folder: SweepFolder, sweep: Sweep) -> bool:
    """Return whether a worker is still needed; restart it if it was killed."""
    code = worker.process.poll()
    if code is None:
        return True
    if code == 0:
        return False
    name = worker.current()
    if name is None:
        raise errors.UserError(f"A worker ended with exit code {code}: {worker.last_lines() or 'it wrote no message'}")
    cells: Dict[str, Cell] = {cell.name: cell for cell in folder.status(sweep).remaining}
    if name in cells:
        folder.add_crash(cells[name])
    worker.start()
    return True


def _stop(workers: Sequence[_Worker]) -> None:
    """Let workers save a checkpoint and end; kill those that take too long."""
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(deadline - time.monotonic(), 0.1))
        worker.process.kill()


class SlurmWorker:
    """A worker as a `submitit` job. A job that reaches its time limit is requeued."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> None:
        """Run the worker; raise an error if it fails."""
        done = subprocess.run(worker_command(SweepFolder(self._path)), stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"the worker ended with exit code {done.returncode}")

    def checkpoint(self) -> Any:
        """Return the job that continues this one."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(folder: SweepFolder, workers: int, options: Dict[str, Any]) -> List[str]:
    """Submit the workers of a sweep to SLURM as one job array; return the job ids."""
    try:
        import submitit
    except ImportError:
        raise errors.UserError("SLURM needs the package submitit: pip install 'submitit>=1.5'.") from None
    executor = submitit.AutoExecutor(folder=folder.file("slurm"), cluster="slurm")
    executor.update_parameters(name="adapter-bert-sweep", **options)
    with executor.batch():
        jobs = [executor.submit(SlurmWorker(os.path.abspath(folder.path))) for _ in range(workers)]
    return [job.job_id for job in jobs]


def default_workers() -> int:
    """Return the number of workers for this machine: one per core, which is most efficient for small networks."""
    return parallel.num_cores()
