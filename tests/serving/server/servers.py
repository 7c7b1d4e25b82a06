"""Real servers on 127.0.0.1 for tests, and requests to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Union

from adapter_bert.weights import bases
from adapter_bert.weights.bank import Bank
from tests.helpers import make_pack

ADAPTER = {"size": 12, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"}
# Name -> changes of the pack's configuration.
TASKS = {
    "one": {"seed": 1},
    "two": {"seed": 2},
    "three": {"seed": 3, "labels": ["bad", "so-so", "gut ✓"], "adapter": ADAPTER},
    "number": {"seed": 4, "head": "regression"},
    "squad": {
        "seed": 5,
        "head": "span",
        "task": "SQuAD",
        "max_seq_length": 32,
        "training": {"doc_stride": 9, "max_query_length": 8},
    },
}


def write_bank(folder: str, tiny_bert: str, tasks: Mapping[str, Mapping[str, Any]] = TASKS) -> Bank:
    """Create a bank with packs of random weights."""
    bank = Bank.create(folder, bases.Base.find(tiny_bert))
    for name, changes in tasks.items():
        bank.add(make_pack(bank.base, **changes), name)
    return bank


class Reply(NamedTuple):
    """An answer of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON."""
        return json.loads(self.body)


class Address(NamedTuple):
    """Where a server listens."""

    port: int
    bank: Optional[Bank] = None

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(
        self,
        path: str,
        body: Union[None, str, bytes, Mapping[str, Any]] = None,
        key: Optional[str] = None,
        method: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Reply:
        """Send a request, POST if it has a body, and return the answer."""
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        with contextlib.closing(self.connect()) as connection:
            connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def predict(self, task: str, *texts: str, **options: Any) -> Reply:
        """Request predictions from TensorFlow Serving's API."""
        return self.request(f"/v1/models/{task}:predict", {"instances": list(texts)}, **options)


@contextlib.contextmanager
def serving(bank: Bank, **settings: Any) -> Iterator[Address]:
    """Run a server in a thread of this process."""
    from adapter_bert.serving.server.run import ServerSettings, make_server

    server = make_server(ServerSettings(bank.folder, port=0, **{"poll_seconds": 0.1, "threads": 1, **settings}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Address(server.servers[0].sockets[0].getsockname()[1], bank)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def wait_until(condition, seconds: float = 60) -> None:
    """Wait for a condition; fail if it does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "This takes too long."
        time.sleep(0.02)
