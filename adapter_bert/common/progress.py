"""Log the progress of long-running work, with the time left."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Iterable, Iterator, Optional, Sequence, TypeVar

import tensorflow.compat.v1 as tf
from tqdm import tqdm

Item = TypeVar("Item")

# Seconds between log lines; shorter work logs nothing.
LOG_SECONDS = 10.0
# Seconds between two states of a bar in a notebook, which stores each of them until the cell is run again.
_NOTEBOOK_SECONDS = 1.0


def format_seconds(seconds: float) -> str:
    """Return hours, minutes and seconds, e.g. `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_notebook() -> bool:
    """Return whether this code runs in a notebook, which shows bars although it is not a terminal."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def shows_bar() -> bool:
    """Return whether standard error is a terminal, or this code runs in a notebook."""
    return sys.stderr.isatty() or in_notebook()


def make_bar(total: Optional[int], **look: Any) -> tqdm:
    """Return a progress bar; `look` are arguments of `tqdm`.

    In a notebook it is drawn on standard output, like TensorFlow's log: the two streams are shown in separate blocks,
    and each log line would start a new bar.
    """
    if in_notebook():
        look.update(file=sys.stdout, mininterval=_NOTEBOOK_SECONDS)
    # tqdm draws nothing if the terminal does not report its size.
    columns, rows = shutil.get_terminal_size()
    return tqdm(total=total, ncols=columns, nrows=rows, **look)


def with_progress(items: Iterable[Item], total: int, action: str, unit: str) -> Iterator[Item]:
    """Yield the items; log lines such as `features 500/2000  50.0 examples/s  0:30 left`.

    The clock starts with the first item, because building a graph for it may take long.
    """
    started = logged = 0.0
    for done, item in enumerate(items):
        now = time.perf_counter()
        if not done:
            started = logged = now
        elif now - logged >= LOG_SECONDS:
            logged = now
            _log(action, done, total, done / (now - started), unit)
        yield item


def with_bar(chunks: Iterable[Sequence[Item]], total: Optional[int], action: str, unit: str) -> Iterator[Item]:
    """Yield the items of chunks that take long to compute, and count each chunk when it is there.

    Show a bar on a terminal or in a notebook, otherwise log lines; without the time left if the total is not known.
    """
    has_bar = shows_bar()
    started = logged = time.perf_counter()
    done = 0
    with make_bar(total, desc=action, unit=" " + unit, disable=not has_bar) as bar:
        for chunk in chunks:
            done += len(chunk)
            bar.update(len(chunk))
            now = time.perf_counter()
            if not has_bar and now - logged >= LOG_SECONDS:
                logged = now
                _log(action, done, total, done / (now - started), unit)
            yield from chunk


def _log(action: str, done: int, total: Optional[int], speed: float, unit: str) -> None:
    if total is None:
        tf.logging.info("%s %d  %.1f %s/s", action, done, speed, unit)
    else:
        left = format_seconds(max(total - done, 0) / speed)
        tf.logging.info("%s %d/%d  %.1f %s/s  %s left", action, done, total, speed, unit, left)
