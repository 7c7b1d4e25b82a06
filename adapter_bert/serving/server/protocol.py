"""HTTP/1.1 with limits for the clients of a server."""

from __future__ import annotations

import asyncio
from typing import Any, Dict, Optional

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adapter_bert.serving.server.metrics import Metrics

_MAX_HEADERS = 2**15


def limit_protocol(seconds: float, max_connections: int, max_bytes: int, metrics: Metrics) -> type:
    """Return a protocol that closes connections beyond a maximum, and those of clients that exceed its limits.

    Headers must arrive, and answers must be read, in time: uvicorn itself has a deadline only between requests. A
    message, including what follows its body, has at most `max_bytes`, and its headers at most 32 KB.
    """

    class LimitedProtocol(HttpToolsProtocol):
        """HTTP/1.1 with deadlines."""

        def connection_made(self, transport: Any) -> None:
            self._timers: Dict[str, asyncio.TimerHandle] = {}
            self._received = 0  # bytes of the current message
            super().connection_made(transport)
            metrics.connections.set(len(self.connections))
            if len(self.connections) > max_connections:
                transport.abort()
            else:
                self._abort_after("headers", seconds)

        def connection_lost(self, exc: Optional[Exception]) -> None:
            for name in list(self._timers):
                self._cancel(name)
            super().connection_lost(exc)
            metrics.connections.set(len(self.connections))

        def data_received(self, data: bytes) -> None:
            self._received += len(data)
            super().data_received(data)
            if self._received > (_MAX_HEADERS if "headers" in self._timers else max_bytes):
                self.transport.abort()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._received = 0
            self._abort_after("headers", seconds)

        def on_headers_complete(self) -> None:
            self._cancel("headers")
            super().on_headers_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._abort_after("reading", seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._cancel("reading")

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._abort_after("closing", seconds)  # the client may not read what is left

        def _abort_after(self, name: str, delay: float) -> None:
            self._cancel(name)
            self._timers[name] = self.loop.call_later(delay, self.transport.abort)

        def _cancel(self, name: str) -> None:
            timer = self._timers.pop(name, None)
            if timer:
                timer.cancel()

    return LimitedProtocol
