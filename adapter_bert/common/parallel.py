"""Work in several processes, with results in the order of the items and no more of them in memory than needed."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Deque, Iterable, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from adapter_bert.common import errors

Item = TypeVar("Item")
Result = TypeVar("Result")
Connection = multiprocessing.connection.Connection

# Items that a process may have been given without its results having been taken.
WAITING = 4


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_processes() -> int:
    """Processes that are worth starting: one a core. One alone where processes cannot be forked."""
    return num_cores() if sys.platform.startswith("linux") else 1


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], processes: Optional[int] = None
) -> Iterator[Result]:
    """Applies a function to items in processes of their own.

    Items and results travel between processes and must be of use there (no sessions, no open files). The function must
    not call TensorFlow's runtime: the processes are forked from one that may be using it.

    Args:
      function: what to do with an item; the processes inherit it when they are forked, so that it need not be pickled.
      items: read as they are needed; of a size that is worth the travel, some 10 ms of work each.
      processes: how many; `num_processes()` by default. With one, all is done here.

    Yields:
      The results in the order of the items.

    Raises:
      errors.UserError: a process was killed.
    """
    processes = processes or num_processes()
    if processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    first = list(itertools.islice(items, processes * WAITING))
    workers: List[_Worker] = []
    pending: Deque[_Worker] = collections.deque()
    try:
        for _ in range(min(processes, len(first))):
            workers.append(_Worker(function, [worker.connection for worker in workers]))
        # In turn, so that the order is known, and each has a line of its own: it shares nothing that it could block.
        assignments = zip(itertools.chain(first, items), itertools.cycle(workers))

        def give(count: int) -> None:
            for item, worker in itertools.islice(assignments, count):
                worker.give(item)
                pending.append(worker)

        give(len(first))
        while pending:
            result = pending.popleft().take()
            give(1)
            yield result
    finally:
        for worker in workers:
            worker.end()


def chunks(items: Iterable[Item], size: int) -> Iterator[List[Item]]:
    """Items in lists of this size; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(itertools.islice(items, size)), [])


class _Reply(NamedTuple):
    """What comes of an item: a result; or an error, and where it arose."""

    result: Any = None
    error: Optional[BaseException] = None
    trace: str = ""


class _Worker:
    """A process that is given items and returns the results in the same order."""

    def __init__(self, function: Callable[[Any], Any], others: Sequence[Connection]) -> None:
        """Starts it.

        Args:
          function: what it does with an item.
          others: this side's ends of the lines to other processes.
        """
        context = multiprocessing.get_context("fork")
        self.connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(function, remote, [self.connection, *others]), daemon=True)
        with _without_interrupts():
            self._process.start()
        remote.close()  # so that the line ends with the process

    def give(self, item: Any) -> None:
        """Sends an item."""
        message = pickle.dumps(item)
        with self._reported():
            self.connection.send_bytes(message)

    def take(self) -> Any:
        """Waits for the result of the first item whose result was not taken; raises what the function raised."""
        with self._reported():
            message = self.connection.recv_bytes()
        reply: _Reply = pickle.loads(message)
        if reply.error is not None:
            raise reply.error from RuntimeError(f"in another process:\n{reply.trace}")
        return reply.result

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Says in words that the line has ended."""
        try:
            yield
        except (EOFError, OSError):
            self._process.join()
            raise errors.UserError(
                f"A process that did part of the work has ended with code {self._process.exitcode}. -9 is a kill, most "
                "often for want of memory: free some, or let this process use fewer cores (taskset)."
            ) from None

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(function: Callable[[Any], Any], connection: Connection, others: Sequence[Connection]) -> None:
    """What a process does: items in, results out. Ends when nobody is left who would give or take."""
    for other in others:  # inherited; as long as anyone has them open, their lines do not end
        other.close()
    # Items are taken off the line at once, lest both sides wait for the other to take something off.
    messages: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    try:
        while True:
            connection.send_bytes(_reply_to(function, messages.get()))
    except OSError:
        os._exit(0)


def _receive(connection: Connection, messages: queue.Queue[bytes]) -> None:
    try:
        while True:
            messages.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _reply_to(function: Callable[[Any], Any], message: bytes) -> bytes:
    """Does the work; returns a pickled `_Reply`."""
    try:
        return pickle.dumps(_Reply(function(pickle.loads(message))))
    except BaseException as caught:
        error, trace = caught, traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # not all of them can travel
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps(_Reply(error=error, trace=trace))


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of this, and never reaches processes that are started meanwhile.

    A terminal sends it to all of them; those that do part of the work end with the one that has started them.
    """
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
