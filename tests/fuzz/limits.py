"""Limits on time and memory for one call."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import time
from typing import Any, Callable, Iterator

CPU_SECONDS = 1.0
GIGABYTE = 1 << 30


class LimitError(AssertionError):
    """A call took too long."""


def _status(key: str) -> int:
    """Return a size of this process in bytes: `VmSize`, `VmRSS`, or `VmHWM`, the largest `VmRSS` so far."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key + ":"))


class Meter:
    """Calls a function and measures the largest CPU time of a call, and by how much all calls raised the memory."""

    def __init__(self) -> None:
        self.seconds = 0.0
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets VmHWM
        self._before = _status("VmHWM")

    @property
    def memory(self) -> int:
        """By how many bytes the calls raised the memory."""
        return _status("VmHWM") - self._before

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function. Raise a `LimitError` if it takes longer than `CPU_SECONDS` of CPU time."""
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            function(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            spent = time.process_time() - started
            self.seconds = max(self.seconds, spent)
            if spent > CPU_SECONDS:
                raise LimitError(f"took {spent:.2f} s of CPU time")


@contextlib.contextmanager
def limited() -> Iterator[Meter]:
    """Yield a meter. In the block, the process cannot allocate more than another gigabyte."""

    def stop(*unused: Any) -> None:
        raise LimitError(f"takes more than {CPU_SECONDS} s of CPU time")

    # Collecting the garbage among TensorFlow's objects takes half a second, and would count for a random call.
    gc.collect()
    gc.freeze()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + GIGABYTE, hard))
    try:
        yield Meter()
    finally:
        gc.unfreeze()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, handler)
