"""A bounded queue of rows that makes batches of similar length and divides the time between tenants.

Each tenant has a counter of the tokens computed for it. The waiting tenant with the lowest counter comes first, and
each tenant contributes the same number of rows to a batch (weighted fair queueing). A tenant that was idle starts at
the counter of the tenant served last, so that idle time gives no advantage.

Example: A has 1,000 rows waiting, B sends one. The next batch is [B1, A1], so that B does not wait for a batch of 32.
If all threads are computing long batches for A, an additional thread computes B1 at once ("express"). That thread
also takes a few rows that arrive when nothing else waits, without delay.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Set

import numpy as np

from adapter_bert.serving.engine import Row

# Rows of each tenant, from its oldest, among which those of similar length are looked for.
_WINDOW = 256
# A batch of its own costs about as much as this much padding: less padding than that is worth it.
_PADDING = 16
# Largest batch of the additional thread.
_EXPRESS_ROWS, _EXPRESS_TOKENS = 4, 256


class QueueFullError(Exception):
    """There is no place for a job."""


@dataclasses.dataclass(eq=False)
class Job:
    """Rows that a request waits for."""

    tenant: str
    rows: Sequence[Row]  # at least one
    on_done: Callable[[Job], None]  # called once, in any thread, when no row is waiting or being computed
    share: float = 1.0  # of the computing time, relative to other tenants
    outputs: List[Any] = dataclasses.field(default_factory=list)  # of the rows
    error: Optional[BaseException] = None
    arrival: float = 0.0
    start: float = 0.0  # when its first row was taken; 0 before
    left: int = 0  # rows that wait or are being computed
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.rows)
        self.left = len(self.rows)


class Entry(NamedTuple):
    """A row of a job."""

    job: Job
    position: int  # of the row in the job

    @property
    def row(self) -> Row:
        """Return the row."""
        return self.job.rows[self.position]


@dataclasses.dataclass(frozen=True)
class QueueLimits:
    """Sizes and times of a queue."""

    capacity: int = 1024  # waiting rows of each tenant
    batch_size: int = 32  # rows
    batch_tokens: int = 1024  # with padding, unless a single row is longer
    delay: float = 0.001  # seconds that a row may wait for others to share its batch
    threads: int = 1  # that call `take(is_express=False)`


class FairQueue:
    """See the module. All methods may be called from any thread."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._condition = threading.Condition()
        self._waiting: Dict[str, Deque[Entry]] = {}  # tenants without rows are absent
        self._served: Dict[str, float] = collections.defaultdict(float)  # tokens divided by the share
        self._clock = 0.0  # `_served` of the tenant that was served last
        self._running: Dict[str, int] = collections.Counter()  # rows of each tenant
        self._busy = 0  # threads that compute a batch, without the express one
        self._is_closed = False

    def __len__(self) -> int:
        with self._condition:
            return self._count()

    def _count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, job: Job) -> None:
        """Add a job; raise `QueueFullError` if its tenant has too many waiting rows, or after `close`."""
        with self._condition:
            waiting = self._waiting.get(job.tenant, collections.deque())
            if self._is_closed or len(waiting) + len(job.rows) > self._limits.capacity:
                raise QueueFullError
            job.arrival = time.monotonic()
            if not waiting:
                self._served[job.tenant] = max(self._served[job.tenant], self._clock)
                self._waiting[job.tenant] = waiting
            waiting.extend(Entry(job, position) for position in range(len(job.rows)))
            self._condition.notify_all()

    def cancel(self, job: Job) -> None:
        """Remove the rows of a job that have not been taken."""
        with self._condition:
            job.is_cancelled = True
            waiting = self._waiting.get(job.tenant, ())
            kept = collections.deque(entry for entry in waiting if entry.job is not job)
            self._replace(job.tenant, kept)
            removed = len(waiting) - len(kept)
            job.left -= removed
            is_done = removed > 0 and not job.left
        if is_done:
            job.on_done(job)

    def close(self) -> None:
        """Take no more jobs; threads get None after the last batch."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def take(self, is_express: bool = False) -> Optional[List[Entry]]:
        """Wait for the next batch; None after `close`, when no row waits. Call `finish` for the batch afterwards."""
        with self._condition:
            while True:
                if self._is_closed and not self._waiting:
                    return None
                pause: Optional[float] = None
                if is_express:
                    tenants = [name for name in self._waiting if not self._running[name]]
                    if tenants and (self._busy >= self._limits.threads or self._count() <= _EXPRESS_ROWS):
                        return self._take(tenants, _EXPRESS_ROWS, _EXPRESS_TOKENS)
                elif self._waiting:
                    pause = self._seconds_to_wait()
                    if pause <= 0:
                        self._busy += 1
                        return self._take(list(self._waiting), self._limits.batch_size, self._limits.batch_tokens)
                self._condition.wait(pause)

    def _seconds_to_wait(self) -> float:
        """Return how long rows may wait for others that share their batch."""
        if self._is_closed or self._count() >= self._limits.batch_size:
            return 0.0
        oldest = min(entries[0].job.arrival for entries in self._waiting.values())
        return oldest + self._limits.delay - time.monotonic()

    def _take(self, tenants: List[str], rows: int, tokens: int) -> List[Entry]:
        tenants.sort(key=lambda name: self._served[name])
        self._clock = self._served[tenants[0]]
        batch = choose(self._waiting, tenants, rows, tokens)
        now, chosen = time.monotonic(), set(batch)
        for tenant in {entry.job.tenant for entry in batch}:
            self._replace(tenant, collections.deque(e for e in self._waiting[tenant] if e not in chosen))
        for entry in batch:
            job = entry.job
            job.start = job.start or now
            self._running[job.tenant] += 1
            self._served[job.tenant] += entry.row.length / job.share
        self._condition.notify_all()
        return batch

    def _replace(self, tenant: str, entries: Deque[Entry]) -> None:
        if entries:
            self._waiting[tenant] = entries
        else:
            self._waiting.pop(tenant, None)

    def finish(
        self,
        batch: Sequence[Entry],
        outputs: Optional[Sequence[np.ndarray]],
        error: Optional[BaseException] = None,
        is_express: bool = False,
    ) -> None:
        """Store the outputs of a batch, or why there are none."""
        done: Set[Job] = set()
        with self._condition:
            self._busy -= not is_express
            for index, (job, position) in enumerate(batch):
                self._running[job.tenant] -= 1
                job.left -= 1
                if outputs is not None:
                    job.outputs[position] = outputs[index]
                job.error = job.error or error
                if not job.left:
                    done.add(job)
            self._condition.notify_all()
        for job in done:
            job.on_done(job)


def choose(waiting: Dict[str, Deque[Entry]], tenants: Sequence[str], max_rows: int, max_tokens: int) -> List[Entry]:
    """Return the rows of the next batch: the oldest of the first tenant, and rows of similar length.

    Each tenant contributes the same number of rows, as far as they fit. All rows are of one family.
    """
    first = waiting[tenants[0]][0].row
    suitable = [_by_length(waiting[tenant], first) for tenant in tenants]
    batch: List[Entry] = []
    longest = 0
    for entry in itertools.chain.from_iterable(zip(*filter(None, suitable))):
        count, length = len(batch), entry.row.length
        longer = max(longest, length)
        if batch and (count == max_rows or (count + 1) * longer > max_tokens):
            break
        if not batch or (count + 1) * longer - count * longest - length <= _PADDING:
            batch.append(entry)
            longest = longer
    return batch


def _by_length(entries: Deque[Entry], first: Row) -> List[Entry]:
    """Return the entries of the same family as a row, those of similar length first."""
    found = [entry for entry in itertools.islice(entries, _WINDOW) if entry.row.family == first.family]
    return sorted(found, key=lambda entry: abs(entry.row.length - first.length))
