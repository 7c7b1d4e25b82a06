"""Work in several processes, with results in the order of the items and no more of them in memory than needed."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import multiprocessing
import os
import sys
from typing import Any, Callable, Deque, Iterable, Iterator, List, Optional, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Results that may wait for the reader, for each process.
WAITING = 4

# What the processes of a pool do; they inherit it when they are forked, so that it need not be pickled.
_function: Optional[Callable[[Any], Any]] = None


def _set_function(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function


def _call(item: Any) -> Any:
    return _function(item)


def num_processes() -> int:
    """Processes that are worth starting: the cores this process may use. One where processes cannot be forked."""
    if not sys.platform.startswith("linux"):
        return 1
    return len(os.sched_getaffinity(0))


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], processes: Optional[int] = None
) -> Iterator[Result]:
    """Applies a function to items in processes of their own.

    Items and results travel between processes and must be of use there (no sessions, no open files). The function must
    not call TensorFlow's runtime: the processes are forked from one that may be using it.

    Args:
      function: what to do with an item.
      items: read as they are needed; of a size that is worth the travel, some 10 ms of work each.
      processes: how many; `num_processes()` by default. With one, all is done here.

    Yields:
      The results in the order of the items.
    """
    processes = processes or num_processes()
    if processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=_set_function, initargs=(function,)
    )
    pending: Deque[concurrent.futures.Future] = collections.deque()
    try:
        pending.extend(pool.submit(_call, item) for item in itertools.islice(items, processes * WAITING))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(_call, item) for item in itertools.islice(items, 1))
            yield result
    finally:
        for future in pending:
            future.cancel()
        pool.shutdown()


def chunks(items: Iterable[Item], size: int) -> Iterator[List[Item]]:
    """Items in lists of this size; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(itertools.islice(items, size)), [])
