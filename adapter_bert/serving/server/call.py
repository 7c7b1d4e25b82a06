"""One request: who sends it, what it asks for, and its results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from starlette.requests import Request
from starlette.responses import Response

from adapter_bert.common import errors
from adapter_bert.serving.engine import LoadedTask, Prepared, prepare_question, prepare_text
from adapter_bert.serving.server.computer import Computer
from adapter_bert.serving.server.examples import Example
from adapter_bert.serving.server.fair_queue import QueueFullError
from adapter_bert.serving.server.metrics import Metrics
from adapter_bert.serving.server.request_body import CLOSE, RETRY, RequestError, RequestLimits, read_body
from adapter_bert.serving.server.served_bank import ServedBank
from adapter_bert.serving.server.tenants import ANYONE, Tenant, Tenants

# The name, in the ASGI scope of a request, of what is logged about it.
FACTS = "adapter_bert.facts"
# Texts with more characters are tokenized in a thread, so that other requests do not wait for it.
_INLINE_CHARACTERS = 2000


@dataclasses.dataclass
class Server:
    """What the requests of a server share."""

    bank: ServedBank
    computer: Computer
    metrics: Metrics
    limits: RequestLimits
    tenants: Tenants  # replaced when the file of the tenants changes
    encoders: concurrent.futures.Executor  # threads that tokenize long texts


class Answer(NamedTuple):
    """Results of a request, and the version of the task that computed them."""

    task: LoadedTask
    version: int
    results: List[Any]


class Call:
    """One request: its tenant, its parts, and what is logged about it."""

    def __init__(self, server: Server, request: Request) -> None:
        self.server, self.request = server, request
        self.facts: Dict[str, Any] = request.scope[FACTS]
        self.tenant: Tenant = ANYONE
        self._held = 0  # bytes of the body

    def authenticate(self) -> None:
        """Find the tenant of the key; raise a `RequestError` if there is none."""
        tenant = self.server.tenants.find(self.request.headers.get("authorization"))
        if tenant is None:
            raise RequestError(
                401, "Give a valid API key: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer", **CLOSE}
            )
        self.tenant = tenant
        self.facts["tenant"] = tenant.name

    @property
    def name(self) -> str:
        """The task in the path."""
        return self.request.path_params["name"]

    async def body(self) -> bytes:
        """Return the body, see `read_body`."""
        body = await read_body(self.request, self.server.limits, self.server.metrics)
        self._held += len(body)
        return body

    def close(self) -> None:
        """Note that the body is no longer in memory."""
        self.server.metrics.held_bytes -= self._held

    def acquire(self) -> LoadedTask:
        """Return the task in the path, to be released; tasks that the tenant may not use do not exist for it."""
        version = self.request.path_params.get("version")
        missing = f"{self.name}, {version}" if version else self.name
        error = RequestError(
            404, f"Servable not found for request: {'Specific' if version else 'Latest'}({missing:.200})"
        )
        if not self.tenant.may_use(self.name):
            raise error
        try:
            task = self.server.bank.acquire(self.name)
        except errors.UserError:
            raise error from None
        self.facts["task"] = self.name
        if version and version != str(self.server.bank.version(task)):
            self.server.bank.release(task)
            raise error
        return task

    @contextlib.contextmanager
    def task(self) -> Iterator[Tuple[LoadedTask, int]]:
        """Yield the task and its version, for an answer that needs no computing."""
        task = self.acquire()
        try:
            yield task, self.server.bank.version(task)
        finally:
            self.server.bank.release(task)

    async def compute(
        self, parse: Callable[[LoadedTask], Sequence[Example]], seconds: Callable[[], Optional[float]] = lambda: None
    ) -> Answer:
        """Parse examples for the task in the path and return their results.

        Raises:
          RequestError: the examples are invalid or too long, the queue is full, or the time is over.
        """
        server, limits = self.server, self.server.limits
        task = self.acquire()
        is_queued = False
        try:
            examples = parse(task)
            prepared = await self._prepare(task, examples)
            tokens = sum(row.length for each in prepared for row in each.rows)
            rows = sum(len(each.rows) for each in prepared)
            self.facts.update(texts=len(examples), tokens=tokens)
            if tokens > limits.tokens or rows > server.computer.capacity:
                raise RequestError(
                    413,
                    f"The request has {tokens} tokens in {rows} sequences; the maxima are {limits.tokens} and "
                    f"{server.computer.capacity}.",
                )
            given = seconds()
            timeout = limits.seconds if given is None else min(given, limits.seconds)
            version = server.bank.version(task)
            try:
                job, future = server.computer.submit(
                    self.tenant.name, self.tenant.share, prepared, lambda: server.bank.release(task)
                )
            except QueueFullError:
                raise RequestError(429, "Too many texts are waiting. Try again.", RETRY) from None
            is_queued = True
        finally:
            if not is_queued:
                server.bank.release(task)
        try:
            results = await self._wait(future, timeout)
        finally:
            if not future.done() or future.cancelled():
                server.computer.queue.cancel(job)
        self.facts["queued_ms"] = round(1e3 * (job.start - job.arrival), 2)
        server.metrics.count_texts(self.name, self.tenant.name, len(examples))
        return Answer(task, version, results)

    async def _disconnected(self) -> None:
        """Wait until the client closes the connection."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def _prepare(self, task: LoadedTask, examples: Sequence[Example]) -> List[Prepared]:
        def prepare() -> List[Prepared]:
            if task.pack_config.head == "span":
                return [prepare_question(task, question, context or "") for question, context in examples]
            return [prepare_text(task, example) for example in examples]

        if sum(len(first) + len(second or "") for first, second in examples) <= _INLINE_CHARACTERS:
            return prepare()
        return await asyncio.get_running_loop().run_in_executor(self.server.encoders, prepare)

    async def _wait(self, future: asyncio.Future[List[Any]], timeout: float) -> List[Any]:
        """Return the results; raise a `RequestError` if time is over or the client has gone."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(self._disconnected())
        try:
            waiting: List[asyncio.Future[Any]] = [future, gone]
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if gone.done():
                raise RequestError(499, "The client has closed the connection.")
            raise RequestError(504, f"There was no result within {timeout:g} s.", RETRY)
        finally:
            gone.cancel()
            future.cancel()


def json_response(
    content: Mapping[str, Any], status: int = 200, headers: Optional[Mapping[str, str]] = None
) -> Response:
    """Return an answer in JSON."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, dict(headers or {}), "application/json")
