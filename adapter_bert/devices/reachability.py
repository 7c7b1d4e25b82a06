"""Check that a gRPC server answers before anything depends on it: TensorFlow would wait for it for hours."""

from __future__ import annotations

import re
import socket
import threading
from typing import Any, Callable, List

from adapter_bert.common import errors

# Seconds for each of: finding a TPU by its name, connecting to a server, and opening a session there.
TIMEOUT = 15.0
_ADDRESS = re.compile(r"grpc://(\[[^]]+\]|[^:/\[\]]+):(\d+)")
# How an HTTP/2 client starts (RFC 9113): the preface and empty settings. A server answers with a frame of settings; the
# fourth byte of a frame is its type.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 4


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """Return the result of a call; raise `TimeoutError` if it takes longer. The call then goes on in the background."""
    results: List[Any] = []
    failures: List[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)  # ends with the process
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return results[0]


def check_server(address: str, flag: str) -> None:
    """Raise a `UserError` that names `flag` unless a gRPC server answers at `grpc://host:port`."""
    match = _ADDRESS.fullmatch(address.rstrip("/"))
    if not match:
        raise errors.UserError(f"{flag} is not an address; expected grpc://host:port, e.g. grpc://10.0.0.2:8470.")
    host, port = match.group(1).strip("[]"), int(match.group(2))
    try:
        answer = within(TIMEOUT, lambda: _say_hello(host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        raise errors.UserError(f"No server answers at {flag}: {errors.reason(error)}. Check host and port.") from None
    if answer[3:4] != bytes([_SETTINGS]):
        raise errors.UserError(f"The server at {flag} does not speak gRPC. Check host and port.")


def _say_hello(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), timeout=TIMEOUT) as connection:
        connection.sendall(_HELLO)
        return connection.recv(9)
