"""How far long work is, and how long it will take."""

from __future__ import annotations

import time
from typing import Iterable, Iterator, TypeVar

import tensorflow.compat.v1 as tf

Item = TypeVar("Item")

# Seconds between two lines; what is done earlier needs none.
EVERY_SECONDS = 10.0


def format_seconds(seconds: float) -> str:
    """Hours, minutes and seconds, e.g. `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def with_progress(items: Iterable[Item], total: int, action: str, unit: str) -> Iterator[Item]:
    """Passes items on; where that takes long, logs a line now and then.

    Args:
      items: the items.
      total: how many there are.
      action: what is being made of them, e.g. `features`.
      unit: what they are, e.g. `examples`.
    """
    started = shown = time.perf_counter()
    for done, item in enumerate(items):
        now = time.perf_counter()
        if done and now - shown >= EVERY_SECONDS:
            shown = now
            speed = done / (now - started)
            left = format_seconds(max(total - done, 0) / speed)
            tf.logging.info("%s %d/%d  %.1f %s/s  %s left", action, done, total, speed, unit, left)
        yield item
