"""Threads that compute the batches of a queue, and the coroutine that waits for a result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

from adapter_bert.serving.engine import Prepared
from adapter_bert.serving.server.fair_queue import FairQueue, Job, QueueLimits
from adapter_bert.serving.server.metrics import Metrics
from adapter_bert.serving.task_predictor import TaskPredictor

# Added to the niceness of threads that compute large batches. Others get three times their share of a busy core.
_NICE = 5
LOGGER = logging.getLogger("adapter_bert.server")


class Computer:
    """Computes the examples of all requests together."""

    def __init__(self, predictor: TaskPredictor, limits: QueueLimits, metrics: Metrics) -> None:
        """Start the threads; one more than `limits.threads` for small requests, see `fair_queue`."""
        self.queue = FairQueue(limits)
        self.capacity = limits.capacity
        self._predictor = predictor
        self._metrics = metrics
        metrics.observe_queue(lambda: len(self.queue))
        self._threads = [
            threading.Thread(target=self._work, args=(is_express,), name="compute", daemon=True)
            for is_express in [False] * limits.threads + [True]
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Compute what is in the queue, then end the threads."""
        self.queue.close()
        for thread in self._threads:
            thread.join()

    def submit(
        self,
        tenant: str,
        share: float,
        examples: Sequence[Prepared],
        release: Callable[[], None],
    ) -> Tuple[Job, asyncio.Future[List[Any]]]:
        """Queue the examples of a request; return its job, and a future of the results, in the order of the examples.

        `release` is called in any thread when nothing of the job is left, also if it was cancelled.

        Raises:
          QueueFullError: too many rows of the tenant are waiting.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[List[Any]] = loop.create_future()

        def on_done(job: Job) -> None:
            release()
            results, error = None, job.error
            if not error and not job.is_cancelled:
                try:
                    results = _results(examples, job.outputs)
                except Exception as failure:  # reported by the request, and in the log
                    error = failure
            loop.call_soon_threadsafe(_resolve, future, results, error)

        job = Job(tenant, [row for example in examples for row in example.rows], on_done, share)
        if job.rows:
            self.queue.put(job)
        else:  # e.g. a question about an empty paragraph
            on_done(job)
        return job, future

    def _work(self, is_express: bool) -> None:
        if not is_express:
            _lower_priority()
        while True:
            batch = self.queue.take(is_express)
            if batch is None:
                return
            rows = [entry.row for entry in batch]
            outputs: Optional[Sequence[Any]] = None
            error: Optional[BaseException] = None
            try:
                outputs = self._predictor.compute_batch(rows)
            except Exception as failure:  # the thread must go on
                LOGGER.exception("A batch failed.")
                error = failure
            try:
                self._metrics.count_batch(len(rows), sum(row.length for row in rows), max(row.length for row in rows))
                self.queue.finish(batch, outputs, error, is_express)
            except Exception:
                LOGGER.exception("The results of a batch were lost.")


def _lower_priority() -> None:
    """Let the other threads of this process, e.g. the one that answers requests, go first on busy cores (Linux)."""
    with contextlib.suppress(OSError, AttributeError):  # another system, or Python before 3.8
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(os.getpriority(os.PRIO_PROCESS, own) + _NICE, 19))


def _results(examples: Sequence[Prepared], outputs: Sequence[Any]) -> List[Any]:
    found, start = [], 0
    for rows, finish in examples:
        found.append(finish(outputs[start : start + len(rows)]))
        start += len(rows)
    return found


def _resolve(future: asyncio.Future[List[Any]], results: Optional[List[Any]], error: Optional[BaseException]) -> None:
    if future.done():  # cancelled by the request
        return
    if error is not None:
        future.set_exception(error)
    elif results is not None:
        future.set_result(results)
    else:
        future.cancel()
