"""On Ctrl-C or `kill`, stop training after the current step and save a checkpoint."""

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
    """Turn the first signal inside the block into a stop request; a second one acts as usual."""
    request = StopRequest()
    # Only the main thread may set handlers; in another thread, e.g. of a notebook, signals act as usual.
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        request.is_set = True
        restore()

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        restore()
