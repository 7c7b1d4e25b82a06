"""Metrics for Prometheus. Labels are names of endpoints, tenants and served tasks, never text of a request."""

from __future__ import annotations

import collections
from typing import Any, Callable, Dict, Set

import prometheus_client

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.held_bytes = 0  # of request bodies, in the thread of the event loop
        self._tenants: Dict[str, Set[str]] = collections.defaultdict(set)  # of each task in `texts`
        self.registry = prometheus_client.CollectorRegistry()
        options: Dict[str, Any] = {"namespace": "adapter_bert", "registry": self.registry}
        make = prometheus_client
        self.requests = make.Counter("requests", "Answered requests.", ["endpoint", "tenant", "status"], **options)
        self.seconds = make.Histogram(
            "request_seconds", "From the headers of a request to its answer.", ["endpoint"], buckets=_SECONDS, **options
        )
        self.texts = make.Counter("texts", "Computed texts and questions.", ["task", "tenant"], **options)
        self.batch_rows = make.Histogram("batch_rows", "Rows in a batch.", buckets=_ROWS, **options)
        self.tokens = make.Counter("tokens", "Computed tokens, without padding.", **options)
        self.padding = make.Counter("padding_tokens", "Computed padding.", **options)
        self.tasks = make.Gauge("tasks", "Served tasks.", **options)
        self.problems = make.Gauge("bank_problems", "Packs of the bank that could not be loaded.", **options)
        make.Gauge("body_bytes", "Bytes of request bodies in memory.", **options).set_function(lambda: self.held_bytes)
        self.connections = make.Gauge("connections", "Open connections.", **options)
        self.queue_rows = make.Gauge("queue_rows", "Rows that wait to be computed.", **options)

    def count_texts(self, task: str, tenant: str, count: int) -> None:
        """Count computed texts of a task."""
        self._tenants[task].add(tenant)
        self.texts.labels(task, tenant).inc(count)

    def forget(self, task: str) -> None:
        """Remove what was counted for a task that is no longer served."""
        for tenant in self._tenants.pop(task, set()):
            self.texts.remove(task, tenant)

    def observe_queue(self, length: Callable[[], int]) -> None:
        """Read the length of the queue when the metrics are read."""
        self.queue_rows.set_function(length)

    def count_batch(self, rows: int, tokens: int, longest: int) -> None:
        """Count a computed batch."""
        self.batch_rows.observe(rows)
        self.tokens.inc(tokens)
        self.padding.inc(rows * longest - tokens)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)
