"""The application: what happens around each request (keys, errors, headers, log, metrics)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Dict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter_bert.serving.server.call import FACTS, Call, Server, json_response
from adapter_bert.serving.server.endpoints import ENDPOINTS, Endpoint
from adapter_bert.serving.server.metrics import Metrics
from adapter_bert.serving.server.request_body import RequestError

LOGGER = logging.getLogger("adapter_bert.server")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]


def _function(server: Server, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        call = Call(server, request)
        call.facts["endpoint"] = endpoint.handler.__name__
        try:
            if endpoint.needs_key:
                call.authenticate()
            return await endpoint.handler(call)
        finally:
            call.close()

    return answer


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return json_response({"error": str(error)}, error.status, error.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"Malformed request: {request.method} {request.url.path:.200}" if error.status_code == 404 else error.detail
    return json_response({"error": text}, error.status_code, error.headers)


async def _answer_failure(request: Request, error: Exception) -> Response:
    return json_response({"error": "Internal error; see the server's log."}, 500)


class Around:
    """Wraps an application: logs and counts requests, and adds headers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection or the lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        facts: Dict[str, Any] = {}
        scope[FACTS] = facts

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].extend(_ENCODED_HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except Exception:
            LOGGER.exception("A request failed.")
            if not status:
                await json_response({"error": "Internal error; see the server's log."}, 500)(
                    scope, receive, send_safely
                )
        finally:
            seconds = time.perf_counter() - start
            endpoint = facts.get("endpoint", "none")
            self._metrics.requests.labels(endpoint, facts.get("tenant", ""), status).inc()
            self._metrics.seconds.labels(endpoint).observe(seconds)
            line = {"method": scope["method"], "status": status, "ms": round(1e3 * seconds, 2), **facts}
            LOGGER.info("request", extra={"facts": line})


def make_app(server: Server, close: Callable[[], None]) -> ASGIApp:
    """Return the application; `close` is called in a thread when all requests are answered."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, close)

    routes = [Route(each.path, _function(server, each), methods=[each.method]) for each in ENDPOINTS]
    handlers: Any = {RequestError: _answer_error, HTTPException: _answer_http_error, Exception: _answer_failure}
    return Around(Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan), server.metrics)
