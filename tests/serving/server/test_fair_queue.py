"""The queue makes batches of similar length and divides the time between tenants."""

from __future__ import annotations

import collections
import threading
from typing import NamedTuple

import pytest

from adapter_bert.serving.server.fair_queue import FairQueue, Job, QueueFullError, QueueLimits


class FakeRow(NamedTuple):
    """What the queue needs of a row."""

    length: int
    family: str = "labels"


def make_queue(**changes):
    return FairQueue(QueueLimits(**{"delay": 0.0, **changes}))


def add(queue, tenant, lengths, family="labels", share=1.0):
    """Add a job; return it and the list to which it is appended when it is done."""
    done = []
    job = Job(tenant, [FakeRow(length, family) for length in lengths], done.append, share)
    queue.put(job)
    return job, done


def take(queue, **options):
    """Take a batch without waiting; return it as (tenant, length)."""
    return shown(queue.take(**options))


def shown(batch):
    return [(entry.job.tenant, entry.row.length) for entry in batch]


def take_and_finish(queue):
    batch = queue.take()
    queue.finish(batch, [f"output {entry.row.length}" for entry in batch])
    return shown(batch)


def test_a_batch_has_rows_of_similar_length_beside_the_oldest():
    queue = make_queue(batch_size=3)
    add(queue, "a", [20, 90, 21, 5, 24, 60])
    assert take(queue) == [("a", 20), ("a", 21), ("a", 24)]
    assert take(queue) == [("a", 90)]  # 60 would need 30 tokens of padding
    assert take(queue) == [("a", 5)]
    assert take(queue) == [("a", 60)]
    assert len(queue) == 0


def test_a_batch_has_one_family_and_a_limited_number_of_tokens():
    queue = make_queue(batch_tokens=64)
    add(queue, "a", [20, 20])
    add(queue, "a", [20], "span")
    add(queue, "a", [20, 20, 200])
    assert take(queue) == [("a", 20)] * 3
    assert take(queue) == [("a", 20)]
    assert take(queue) == [("a", 20)]
    assert take(queue) == [("a", 200)]  # a row that is too long by itself is computed alone


def test_each_tenant_contributes_as_many_rows_to_a_batch():
    queue = make_queue(batch_size=8)
    add(queue, "burst", [10] * 100)
    add(queue, "one", [10])
    add(queue, "two", [10, 10])
    assert collections.Counter(take(queue)) == {("burst", 10): 1, ("one", 10): 1, ("two", 10): 1}
    assert collections.Counter(take(queue)) == {("burst", 10): 1, ("two", 10): 1}
    assert take(queue) == [("burst", 10)] * 8


def test_a_burst_does_not_delay_the_next_request_of_others():
    queue = make_queue(batch_size=4)
    add(queue, "burst", [10] * 400)
    for _ in range(20):
        take_and_finish(queue)
    add(queue, "late", [30])
    assert take_and_finish(queue)[0] == ("late", 30)


def test_time_is_divided_by_tokens_and_shares():
    queue = make_queue(batch_size=1, capacity=2000)
    add(queue, "long", [40] * 500)
    add(queue, "short", [10] * 500)
    add(queue, "large", [40] * 500, share=3.0)
    tokens = collections.Counter()
    for _ in range(500):
        ((tenant, length),) = take_and_finish(queue)
        tokens[tenant] += length
    assert tokens["long"] == pytest.approx(tokens["short"], abs=80)
    assert tokens["large"] == pytest.approx(3 * tokens["long"], rel=0.05)


def test_idle_time_gives_no_advantage():
    queue = make_queue(batch_size=1)
    add(queue, "a", [10] * 500)
    for _ in range(100):
        take_and_finish(queue)
    add(queue, "idle", [10] * 100)
    assert collections.Counter(take_and_finish(queue)[0][0] for _ in range(20)) == {"a": 10, "idle": 10}


def test_a_small_request_of_another_tenant_is_computed_while_all_threads_are_busy():
    queue = make_queue(threads=2, batch_size=4)
    add(queue, "burst", [10] * 100)
    batches = [queue.take(), queue.take()]
    add(queue, "late", [10] * 6)
    express = queue.take(is_express=True)
    assert shown(express) == [("late", 10)] * 4  # its largest batch
    found = []
    waiting = threading.Thread(target=lambda: found.append(queue.take(is_express=True)))
    waiting.start()  # rows of both tenants are being computed
    waiting.join(0.2)
    assert waiting.is_alive()
    queue.finish(express, [0] * 4, is_express=True)
    waiting.join(10)
    assert shown(found[0]) == [("late", 10)] * 2
    queue.finish(batches[0], [0] * 4)
    queue.finish(batches[1], [0] * 4)
    assert len(queue) == 92


def test_a_few_rows_that_arrive_alone_are_computed_at_once():
    queue = make_queue(delay=3600.0, batch_size=8)
    add(queue, "a", [10, 10])
    assert take(queue, is_express=True) == [("a", 10)] * 2
    found = []
    waiting = threading.Thread(target=lambda: found.append(queue.take(is_express=True)))
    add(queue, "b", [10] * 5)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()  # five are for a common batch
    queue.close()
    assert take(queue) == [("b", 10)] * 5
    waiting.join(10)
    assert found == [None]


def test_a_tenant_with_too_many_rows_is_refused_and_others_are_not():
    queue = make_queue(capacity=10)
    add(queue, "a", [10] * 9)
    with pytest.raises(QueueFullError):
        add(queue, "a", [10] * 2)
    add(queue, "a", [10])
    add(queue, "b", [10] * 10)
    assert len(queue) == 20


def test_outputs_are_those_of_the_rows_and_a_job_is_done_once():
    queue = make_queue(batch_size=2)
    job, done = add(queue, "a", [10, 50, 11])
    take_and_finish(queue)
    assert done == [] and job.outputs == ["output 10", None, "output 11"]
    take_and_finish(queue)
    assert done == [job] and job.outputs == ["output 10", "output 50", "output 11"] and job.error is None


def test_a_failed_batch_fails_its_jobs_only():
    queue = make_queue(batch_size=2)
    job, done = add(queue, "a", [10, 10, 10])
    other, other_done = add(queue, "b", [90])
    failure = ValueError("broken")
    queue.finish(queue.take(), None, failure)
    take_and_finish(queue)
    take_and_finish(queue)
    assert done == [job] and job.error is failure
    assert other_done == [other] and other.error is None


def test_cancelled_rows_are_not_computed_and_the_job_ends_after_those_being_computed():
    queue = make_queue(batch_size=2)
    job, done = add(queue, "a", [10] * 6)
    batch = queue.take()
    queue.cancel(job)
    assert len(queue) == 0 and done == []
    queue.finish(batch, [0, 0])
    assert done == [job]
    other, other_done = add(queue, "a", [10])
    queue.cancel(other)
    assert other_done == [other]


def test_a_lone_row_waits_for_others_and_a_full_batch_does_not():
    queue = make_queue(delay=3600.0, batch_size=2)
    found = []
    thread = threading.Thread(target=lambda: found.append(shown(queue.take())))
    add(queue, "a", [10])
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    add(queue, "b", [12])
    thread.join(10)
    assert found == [[("a", 10), ("b", 12)]]


def test_a_closed_queue_gives_what_it_has_and_takes_no_more():
    queue = make_queue(delay=3600.0)
    add(queue, "a", [10])
    queue.close()
    with pytest.raises(QueueFullError):
        add(queue, "b", [10])
    assert take(queue) == [("a", 10)]
    assert queue.take() is None and queue.take(is_express=True) is None
