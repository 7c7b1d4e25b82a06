"""Ctrl-C and `kill` end a training at the next step, with a checkpoint, and not in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the user has asked to stop."""

    is_set = False


@contextlib.contextmanager
def deferred(enabled: bool = True) -> Iterator[StopRequest]:
    """While this lasts, and if enabled, a first signal is noted; a second one acts as it always does."""
    request = StopRequest()
    # Only the main thread may set handlers: in a notebook's thread signals stay as they are.
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: object) -> None:
        request.is_set = True
        restore()

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
