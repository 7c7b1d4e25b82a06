"""Start the server, and end it on SIGTERM when all requests are answered."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, Optional, Tuple

import uvicorn

from adapter_bert.common import errors, parallel
from adapter_bert.model import precision
from adapter_bert.serving.server.app import Server, make_app
from adapter_bert.serving.server.computer import Computer
from adapter_bert.serving.server.fair_queue import QueueLimits
from adapter_bert.serving.server.metrics import Metrics
from adapter_bert.serving.server.protocol import limit_protocol
from adapter_bert.serving.server.request_body import RequestLimits
from adapter_bert.serving.server.served_bank import ServedBank
from adapter_bert.serving.server.tenants import Tenants
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.weights.bank import Bank

LOGGER = logging.getLogger("adapter_bert.server")
_LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Flags of `scripts/serve.py`."""

    bank: str
    host: str = "127.0.0.1"
    port: int = 8501
    tenants: Optional[str] = None  # file with API keys
    tls_cert: Optional[str] = None
    tls_key: Optional[str] = None
    precision: str = precision.FLOAT32
    threads: int = 0  # 0: one for each core
    batch_size: int = 32
    batch_tokens: int = 1024
    batch_delay_ms: float = 1.0
    max_queue: int = 1024  # rows of each tenant
    max_body_kb: int = 1024
    max_texts: int = 256
    max_tokens: int = 16_384
    timeout: float = 10.0  # seconds for an answer, for a body, and for the headers
    max_connections: int = 4096
    poll_seconds: float = 2.0
    drain_seconds: float = 30.0

    def check(self) -> None:
        """Raise a `UserError` for values outside their limits."""
        for name, minimum, maximum in (
            ("port", 0, 65535),
            ("threads", 0, 1024),
            ("batch_size", 1, 4096),
            ("batch_tokens", 1, 2**20),
            ("max_queue", 1, 2**20),
            ("max_body_kb", 1, 2**20),
            ("max_texts", 1, 2**20),
            ("max_tokens", 1, 2**30),
            ("max_connections", 1, 2**20),
        ):
            errors.check_int(f"--{name}", getattr(self, name), minimum, maximum)
        for name, low in (("batch_delay_ms", 0.0), ("timeout", 0.01), ("poll_seconds", 0.05), ("drain_seconds", 0.0)):
            if not low <= getattr(self, name) <= 1e6:
                raise errors.UserError(f"--{name} must be at least {low:g}, found {getattr(self, name)}.")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise errors.UserError("--tls_cert and --tls_key belong together: give both or none.")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path and not os.path.isfile(path):
                raise errors.UserError(f"--{name}={path}: no such file; expected a PEM file.")
        if self.max_texts > self.max_queue:
            raise errors.UserError(f"--max_texts={self.max_texts} exceeds --max_queue={self.max_queue}.")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. Nothing of a request's texts is ever logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logs() -> None:
    """Write the logs of the server, and warnings of uvicorn, to stderr as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in (("adapter_bert.server", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(level)


def build(settings: ServerSettings) -> Tuple[Any, Metrics]:
    """Load the bank and return the application, and its metrics."""
    tenants = Tenants.read(settings.tenants) if settings.tenants else Tenants()
    if not tenants.has_keys and settings.host not in _LOCAL:
        LOGGER.warning("Everyone who can reach %s may use and unload all tasks: there is no --tenants.", settings.host)
    metrics, started = Metrics(), time.monotonic()
    predictor = TaskPredictor(Bank.open(settings.bank).base, 1, settings.precision)
    bank = ServedBank(settings.bank, predictor, metrics)
    bank.poll()
    LOGGER.info("%d tasks loaded in %.1f s.", len(predictor.names()), time.monotonic() - started)
    queue = QueueLimits(
        settings.max_queue,
        settings.batch_size,
        settings.batch_tokens,
        settings.batch_delay_ms / 1e3,
        settings.threads or parallel.num_cores(),
    )
    limits = RequestLimits(
        body_bytes=settings.max_body_kb * 1024,
        texts=settings.max_texts,
        tokens=settings.max_tokens,
        bodies_bytes=64 * settings.max_body_kb * 1024,
        body_seconds=settings.timeout,
        seconds=settings.timeout,
    )
    computer = Computer(predictor, queue, metrics)
    encoders = concurrent.futures.ThreadPoolExecutor(2, "encode")
    server = Server(bank, computer, metrics, limits, tenants, encoders)

    def close() -> None:
        bank.close()
        computer.close()
        encoders.shutdown()
        predictor.close()

    bank.watch(settings.poll_seconds, TenantsFile(settings.tenants, server).poll if settings.tenants else lambda: None)
    return make_app(server, close), metrics


class TenantsFile:
    """Reads the file of the tenants again when it changes."""

    def __init__(self, path: str, server: Server) -> None:
        self._path, self._server, self._state = path, server, self._read_state(path)

    @staticmethod
    def _read_state(path: str) -> Optional[Tuple[int, int, int]]:
        try:
            state = os.stat(path)
            return state.st_mtime_ns, state.st_size, state.st_ino
        except OSError:
            return None

    def poll(self) -> None:
        """Use the new tenants if the file has changed and is valid; otherwise keep the old ones."""
        state = self._read_state(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._server.tenants = Tenants.read(self._path)
            LOGGER.info("The tenants were read again.")
        except errors.UserError as error:
            LOGGER.error("The tenants stay as they were: %s", error)


def _raise_file_limit(wanted: int) -> None:
    """Allow so many open files, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def make_server(settings: ServerSettings) -> uvicorn.Server:
    """Load the bank and return a server; its method `run` serves until it gets a signal, or `should_exit` is set."""
    settings.check()
    app, metrics = build(settings)
    max_bytes = 8 * 1024 * settings.max_body_kb + 2**16  # small chunks of a body have as many bytes around them
    return _ReportingServer(
        uvicorn.Config(
            app,
            settings.host,
            settings.port,
            http=limit_protocol(settings.timeout, settings.max_connections, max_bytes, metrics),
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(settings.timeout)),
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for an address, which does not listen yet; raise a `UserError` if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise errors.UserError(f"Cannot listen at --host={host} --port={port}: {errors.reason(error)}.") from None
    return made


def serve(settings: ServerSettings) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what was accepted, and return."""
    settings.check()
    configure_logs()
    _raise_file_limit(settings.max_connections + 256)
    with contextlib.closing(bind(settings.host, settings.port)) as address:  # before the bank is loaded
        server = make_server(settings)
        # uvicorn raises the signal again after the last answer; the exit code shall be 0.
        earlier = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run([address])
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
    LOGGER.info("The server has ended.")


class _ReportingServer(uvicorn.Server):
    """Logs its address, which others wait for, when it accepts connections."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            scheme = "https" if self.config.ssl_certfile else "http"
            address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            LOGGER.info("Serving at %s", address, extra={"facts": {"address": address}})
