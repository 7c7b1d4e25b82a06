"""Read requests within limits, and name what is wrong with them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional

import anyio
import starlette.requests

from adapter_bert.common import errors, json_files
from adapter_bert.serving.server.metrics import Metrics

# Headers of answers: the connection cannot be used again, because the body was not read; the request may be repeated.
CLOSE, RETRY = {"Connection": "close"}, {"Retry-After": "1"}


class RequestError(Exception):
    """A request that cannot be answered.

    Attributes:
      status: the HTTP status.
      headers: additional headers of the answer.
    """

    def __init__(self, status: int, text: str, headers: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, dict(headers or {})


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """What a request may contain."""

    body_bytes: int = 2**20
    texts: int = 256
    characters: int = 100_000  # of one text
    tokens: int = 16_384  # of a request, after each text is truncated to its task's length
    bodies_bytes: int = 2**26  # of all bodies in memory
    body_seconds: float = 10.0  # for receiving a body
    seconds: float = 10.0  # for computing an answer


async def read_body(request: starlette.requests.Request, limits: RequestLimits, metrics: Metrics) -> bytes:
    """Return the body; raise a `RequestError` before it takes more memory or time than allowed.

    The caller subtracts its size from `metrics.held_bytes` when the request is answered.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise _too_large(limits)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(415, "Compressed bodies are not supported.", CLOSE)
    parts: List[bytes] = []
    size, is_complete = 0, False
    try:
        with anyio.fail_after(limits.body_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(499, "The client has closed the connection.")
                part = message.get("body", b"")
                size += len(part)
                metrics.held_bytes += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                if metrics.held_bytes > limits.bodies_bytes:
                    raise RequestError(503, "The server holds too many requests. Try again.", {**CLOSE, **RETRY})
                parts.append(part)
                if not message.get("more_body", False):
                    is_complete = True
                    return b"".join(parts)
    except TimeoutError:
        raise RequestError(408, f"The body did not arrive in {limits.body_seconds:g} s.", CLOSE) from None
    finally:
        if not is_complete:
            metrics.held_bytes -= size


def _too_large(limits: RequestLimits) -> RequestError:
    return RequestError(413, f"The body is larger than {limits.body_bytes:,} bytes. Send fewer texts.", CLOSE)


def parse_object(body: bytes) -> Dict[str, Any]:
    """Return a JSON object."""
    try:
        content = json_files.parse(body, "The body", "")
    except errors.UserError as error:
        raise RequestError(400, f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(400, f"Expected a JSON object, found {json_files.describe(content)}.")
    return content
