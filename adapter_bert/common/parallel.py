"""A parallel map over forked processes, with ordered results and bounded memory."""

from __future__ import annotations

import collections
import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Iterable, Iterator, List, Optional, TypeVar

from adapter_bert.common import errors

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items per process that may be submitted before their results are consumed.
READ_AHEAD = 4

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_function: Callable[[Any], Any]  # in a worker: the function to apply to items


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_processes() -> int:
    """Return how many processes to start: one per core on Linux, and one where processes cannot be forked."""
    return num_cores() if sys.platform.startswith("linux") else 1


def chunks(items: Iterable[Item], size: int) -> Iterator[List[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(itertools.islice(items, size)), [])


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], processes: Optional[int] = None
) -> Iterator[Result]:
    """Apply a function to items in forked processes, or in this one if `processes` is 1; yield the results in order.

    Items are read when needed. Items and results must be picklable; each should take about 10 ms or more. The function
    need not be picklable, as the workers inherit it. It must not use TensorFlow's runtime, which may be in use in this
    process when the workers are forked.
    """
    processes = processes or num_processes()
    if processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    first = list(itertools.islice(items, processes * READ_AHEAD))
    executor = ProcessPoolExecutor(
        min(processes, len(first)) or 1,
        multiprocessing.get_context("fork"),
        initializer=_start_worker,
        initargs=(function, os.getpid()),
    )
    try:
        pending = collections.deque(_submit(executor, item) for item in first)
        while pending:
            result = _wait(pending.popleft())
            pending.extend(_submit(executor, item) for item in itertools.islice(items, 1))
            yield result
    except BrokenProcessPool:
        raise errors.UserError(
            "A worker process was killed, most likely because the machine ran out of memory. Free some memory, or let "
            "this process use fewer cores (taskset)."
        ) from None
    finally:
        # Wait for the few pending items: before Python 3.10, `shutdown` may hang if they are cancelled.
        executor.shutdown()


def _submit(executor: ProcessPoolExecutor, item: Any) -> Future:
    # The executor forks here. Workers inherit the signal mask: Ctrl-C, which a terminal sends to all processes, stops
    # this process only, and this process then ends the workers.
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return executor.submit(_apply, item)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _wait(future: Future) -> Any:
    try:
        return future.result()
    except RuntimeError as error:
        # Ctrl-C while Python releases the lock of the future: leaving its `with` block then fails.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _start_worker(function: Callable[[Any], Any], parent: int) -> None:
    """Initialize a worker that the kernel kills when its parent dies."""
    global _function
    _function = function
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(1)


def _apply(item: Any) -> Any:
    try:
        return _function(item)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
