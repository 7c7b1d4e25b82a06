"""Start the workers of `--distribution_strategy=mirrored`: this command again, once for each GPU or `--workers` times.

Imports no TensorFlow: the launcher only waits. The first worker has its terminal.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Dict, Iterator, List, Optional, Sequence

from adapter_bert.common import errors, parallel, system
from adapter_bert.devices import cluster
from adapter_bert.devices.cluster import Cluster

# Environment variable of the workers that a launcher has started.
LAUNCHED = "ADAPTER_BERT_LAUNCHED"
# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(12000, 32000)
_POLL_SECONDS = 0.2
# Seconds for the other workers to end by themselves after one has ended, and then to end after SIGTERM.
_END_SECONDS, _KILL_SECONDS = 30.0, 10.0


@errors.exits_on_user_error
def start_if_requested(settings: Any) -> None:
    """Start the workers that the settings of a command request, and exit when they have ended; else do nothing.

    A command that does not train, or has only one worker, continues in this process.
    """
    if settings.distribution_strategy != cluster.MIRRORED or LAUNCHED in os.environ or not settings.do_train:
        return
    gpus = system.gpus()
    count = settings.workers or len(gpus)
    if not count:
        raise errors.UserError(
            f"--distribution_strategy={cluster.MIRRORED} starts one process per GPU, but there is no GPU: set "
            "--workers to the number of processes."
        )
    if gpus and count > len(gpus):
        raise errors.UserError(f"--workers={count} needs as many GPUs; found {len(gpus)}: {', '.join(gpus)}.")
    cluster.check_batch_size(settings.train_batch_size, settings.gradient_accumulation_steps, count)
    sys.exit(run([sys.executable, *sys.argv], count, gpus)) if count > 1 else None


def run(command: Sequence[str], count: int, gpus: Sequence[str]) -> int:
    """Run a command as this many workers; return the exit code of the first one that fails, or 0."""
    addresses = tuple(f"localhost:{port}" for port in free_ports(count))
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, count)]
        started: List[subprocess.Popen] = []
        stack.callback(_end, started)
        stopped = stack.enter_context(_forwarded_signals(started))
        for rank, cores in enumerate(_cores(count)):
            environment = {**cluster.tf_config(Cluster(addresses, rank)), LAUNCHED: "1"}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[rank]
            started.append(_start(command, environment, cores, logs[rank - 1] if rank else None))
        while all(process.poll() in (None, 0) for process in started) and any(p.poll() is None for p in started):
            time.sleep(_POLL_SECONDS)
        failed = next((rank for rank, process in enumerate(started) if process.poll()), None)
        if failed is None:
            return 0
        _wait(started, _END_SECONDS)
        _explain(started, failed, logs, bool(stopped))
        return _exit_code(started, failed)


def _start(
    command: Sequence[str], environment: Dict[str, str], cores: Sequence[int], log: Optional[IO[bytes]]
) -> subprocess.Popen:
    """Start a worker that ends with this process. Only the first one has its streams."""

    def prepare() -> None:
        system.end_with_parent()
        system.use_cores(cores)

    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C reaches the launcher, which passes it on
        preexec_fn=prepare,
    )


def free_ports(count: int) -> List[int]:
    """Return ports of this machine that no program listens on."""
    found: List[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise errors.UserError(f"There are no {count} free ports from {_PORTS[0]} to {_PORTS[-1]}.")


def _cores(count: int) -> List[List[int]]:
    """Divide the cores of this process among workers; empty lists leave all to each, if there are too few to divide."""
    size = parallel.num_cores() // count
    if not size or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    return [cores[rank * size : (rank + 1) * size] for rank in range(count)]


@contextlib.contextmanager
def _forwarded_signals(started: Sequence[subprocess.Popen]) -> Iterator[List[int]]:
    """Pass on SIGINT and SIGTERM to all workers, which then save a checkpoint; yield the signals that were received."""
    received: List[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for process in started:
            process.send_signal(number)  # does nothing if it has ended

    earlier = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _wait(started: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.01))


def _end(started: Sequence[subprocess.Popen]) -> None:
    """End the workers that are still running."""
    for send in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in started:
            send(process)
        _wait(started, _KILL_SECONDS)


def _explain(started: Sequence[subprocess.Popen], failed: int, logs: Sequence[IO[bytes]], was_stopped: bool) -> None:
    """Report how the first worker that failed has ended, unless the first one, whose messages are visible, did so."""
    codes = [process.poll() for process in started]
    killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
    program = os.path.basename(sys.argv[0])
    for rank in killed:
        name = signal.Signals(-(codes[rank] or 0)).name
        sys.stderr.write(f"{program}: error: Worker {rank} was ended by {name}; the same command continues.\n")
    if not killed and not was_stopped and failed and not codes[0]:
        logs[failed - 1].seek(0)
        lines = logs[failed - 1].read().decode("utf-8", "replace").strip().splitlines() or ["it wrote no message"]
        sys.stderr.write(f"{program}: error: Worker {failed} failed: {lines[-1]}\n")


def _exit_code(started: Sequence[subprocess.Popen], failed: int) -> int:
    """Return the exit code of a worker that ended by itself, preferably the first one, else 1."""
    codes = [started[rank].poll() or 0 for rank in (0, failed)]
    return next((code for code in codes if code > 0), 1)
