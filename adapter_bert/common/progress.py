"""Log the progress of long-running work, with the time left."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Iterable, Iterator, Optional, TypeVar

import tensorflow.compat.v1 as tf
from tqdm import tqdm

Item = TypeVar("Item")

# Seconds between log lines; shorter work logs nothing.
LOG_SECONDS = 10.0


def format_seconds(seconds: float) -> str:
    """Return hours, minutes and seconds, e.g. `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_notebook() -> bool:
    """Return whether this code runs in a notebook, which shows bars although it is not a terminal."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def with_bar(items: Iterable[Item], total: Optional[int], action: str, unit: str) -> Iterator[Item]:
    """Yield the items; show a bar on a terminal, otherwise log lines as `with_progress` does."""
    if not (sys.stderr.isatty() or in_notebook()):
        return with_progress(items, total, action, unit)
    # tqdm draws nothing if the terminal does not report its size.
    columns, rows = shutil.get_terminal_size()
    return iter(tqdm(items, action, total, unit=" " + unit, ncols=columns, nrows=rows))


def with_progress(items: Iterable[Item], total: Optional[int], action: str, unit: str) -> Iterator[Item]:
    """Yield the items; log lines such as `features 500/2000  50.0 examples/s  0:30 left`.

    If the total is not known, the lines do not have it and the time left. The clock starts with the first item,
    because building a graph for it may take long.
    """
    started = logged = 0.0
    for done, item in enumerate(items):
        now = time.perf_counter()
        if not done:
            started = logged = now
        elif now - logged >= LOG_SECONDS:
            logged = now
            speed = done / (now - started)
            if total is None:
                tf.logging.info("%s %d  %.1f %s/s", action, done, speed, unit)
            else:
                left = format_seconds(max(total - done, 0) / speed)
                tf.logging.info("%s %d/%d  %.1f %s/s  %s left", action, done, total, speed, unit, left)
        yield item
