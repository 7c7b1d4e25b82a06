"""Start the workers of a sweep: on this machine, or as SLURM jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from adapter_bert.common import errors, parallel, system
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.experiments.work_folder import WorkFolder
from adapter_bert.experiments.worker import DISK_FULL

# Module that a worker of a sweep runs.
SWEEP_WORKER = "adapter_bert.experiments.worker"
_POLL_SECONDS = 1.0
_STOP_SECONDS = 120.0
# A job is requeued at its time limit until the sweep is done; submitit's own default is three times.
_MAX_REQUEUES = 1000
# Options of all schedulers in submitit.
_SHARED_OPTIONS = (
    "name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
)  # fmt: skip


def worker_command(folder: WorkFolder, cores: Sequence[int] = (), module: str = SWEEP_WORKER) -> List[str]:
    """Return the command line of a worker."""
    command = [sys.executable, "-m", module, folder.path]
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

    def __init__(
        self, folder: WorkFolder, name: str, cores: Sequence[int], gpu: Optional[str], module: str = SWEEP_WORKER
    ) -> None:
        os.makedirs(folder.file("workers"), exist_ok=True)
        self._log = folder.file("workers", f"{name}.log")
        self._announced = folder.file("workers", f"{name}.jsonl")
        self._command = worker_command(folder, cores, module)
        self._device = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        self.process: subprocess.Popen = self.start()

    def start(self) -> subprocess.Popen:
        """Start the process, or restart it after it has ended."""
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._announced)  # a worker of an earlier launcher may still write to it
        with open(self._announced, "xb") as output, open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**os.environ, **self._device, "PYTHONPATH": path},
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


def run_locally(
    folder: SweepFolder, sweep: Sweep, workers: int, report: Callable[[int], None], name: str = "worker"
) -> None:
    """Run the sweep with this many processes, which share cores and GPUs; call `report` with the number of busy ones.

    A worker that is killed is replaced, and its cell continues from its checkpoint. `name` is that of their logs.
    """

    def crashed(cell: str) -> None:
        cells: Dict[str, Cell] = {each.name: each for each in folder.status(sweep).remaining}
        if cell in cells:
            folder.add_crash(cells[cell])

    run_workers(folder, SWEEP_WORKER, workers, report, crashed, name)


def run_workers(
    folder: WorkFolder,
    module: str,
    workers: int,
    report: Callable[[int], None],
    crashed: Callable[[str], None],
    name: str = "worker",
) -> None:
    """Run a module in this many processes; `crashed` is called with what a worker announced before it was killed."""
    gpus: Sequence[Optional[str]] = system.gpus() or [None]
    started = [
        _Worker(folder, f"{name}-{index}", cores, gpus[index % len(gpus)], module)
        for index, cores in enumerate(core_groups(workers))
    ]
    try:
        while started:
            time.sleep(_POLL_SECONDS)
            started = [worker for worker in started if _is_needed(worker, folder, crashed)]
            report(sum(worker.current() is not None for worker in started))
    finally:
        _stop(started)


def _is_needed(worker: _Worker, folder: WorkFolder, crashed: Callable[[str], None]) -> bool:
    """Return whether a worker is still needed; restart it if it was killed."""
    code = worker.process.poll()
    if code is None:
        return True
    if code == 0:
        return False
    if code == DISK_FULL:
        raise errors.UserError(
            f"No space is left on the disk of {folder.path}. Free some and repeat the command, which then continues."
        )
    name = worker.current()
    if name is None:
        raise errors.UserError(f"A worker ended with exit code {code}: {worker.last_lines() or 'it wrote no message'}")
    crashed(name)
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

    def __init__(self, path: str, index: int) -> None:
        self._path, self._index = path, index

    def __call__(self) -> None:
        """Run a worker with the cores and GPUs of the job."""
        folder = SweepFolder(self._path)
        run_locally(folder, folder.sweep(), 1, lambda _: None, f"slurm-{self._index}")

    def checkpoint(self) -> Any:
        """Return the job that continues this one."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def make_executor(folder: SweepFolder, options: Dict[str, Any]) -> Any:
    """Return the `submitit` executor for job options, without writing anything.

    Options that not all schedulers have may lack the prefix `slurm_`: `partition` is `slurm_partition`.
    """
    try:
        import submitit
    except ImportError:
        raise errors.UserError("SLURM needs the package submitit: pip install 'submitit>=1.5'.") from None
    named = {
        name if name in _SHARED_OPTIONS or name.startswith("slurm_") else f"slurm_{name}": value
        for name, value in options.items()
    }
    path = folder.file("slurm")
    with _scheduler_errors():
        executor = submitit.AutoExecutor(folder=path, cluster="slurm", slurm_max_num_timeout=_MAX_REQUEUES)
        executor.update_parameters(**{"name": "adapter-bert-sweep", **named})
    return executor


def submit(folder: SweepFolder, workers: int, executor: Any) -> List[str]:
    """Submit the workers of a sweep to SLURM as one job array; return the job ids."""
    with _scheduler_errors(), executor.batch():
        jobs = [executor.submit(SlurmWorker(os.path.abspath(folder.path), index)) for index in range(workers)]
    return [job.job_id for job in jobs]


@contextlib.contextmanager
def _scheduler_errors() -> Iterator[None]:
    """Turn errors of `submitit` (no SLURM, an unknown or wrong option, a rejected job) into a `UserError`."""
    try:
        yield
    except (RuntimeError, NameError, AssertionError) as error:
        raise errors.UserError(f"Cannot run the sweep on SLURM: {errors.reason(error)}. Check --slurm.") from None


def default_workers() -> int:
    """Return the number of workers for this machine: one per GPU, or one per core, best for small networks."""
    return len(system.gpus()) or parallel.num_cores()
