"""Predictions while tasks are added, replaced and removed by other threads."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adapter_bert.common.errors import UserError
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.weights import bases
from tests.helpers import make_pack
from tests.serving.test_task_predictor import ADAPTER, random_texts, values

TEXTS = random_texts(20)


def version_of(base, number):
    """Return a pack; different numbers differ in weights, and in number of classes or size."""
    labels = [str(label) for label in range(2 + number % 3)]
    return make_pack(base, seed=number, labels=labels, adapter={**ADAPTER, "size": (4, 12)[number % 2]})


class Changes:
    """Adds, replaces and removes tasks, and knows which versions a call may use."""

    def __init__(self, predictor, packs, names):
        self.predictor, self.packs, self.names = predictor, packs, names
        # Name -> numbers of the packs that the name has meant, in order; None while there is no such task.
        self.history = {name: [None] for name in names}
        self.lock = threading.Lock()
        self.failures = []

    def change(self, random):
        with self.lock:  # one change at a time, so that the history has their order; calls do not wait
            name, number = self.names[random.randint(len(self.names))], random.randint(len(self.packs))
            history = self.history[name]
            if history[-1] is not None and random.randint(12) == 0:
                history.append(None)  # before the change: from now on, both are possible
                self.predictor.remove(name)
            else:
                history.append(number)
                self.predictor.add(name, self.packs[number], replace=history[-2] is not None)

    def possible(self, name, start):
        """Return the versions that a call may have used that began when the history had `start` entries."""
        return set(self.history[name][max(start - 1, 0) :])


def run_calls(changes, expected, calls, seed):
    """Make calls, each of several examples of several tasks; return the number of examples that were answered."""
    random, answered = np.random.RandomState(seed), 0
    for _ in range(calls):
        names = [changes.names[index] for index in random.randint(len(changes.names), size=random.randint(1, 12))]
        texts = random.randint(len(TEXTS), size=len(names))
        # A change that has been recorded may not have happened yet, so the version before it is possible too.
        starts = {name: len(changes.history[name]) - 1 for name in names}
        try:
            found = changes.predictor.predict([(name, TEXTS[text]) for name, text in zip(names, texts)])
        except UserError as error:
            assert "Unknown task" in str(error)
            assert any(None in changes.possible(name, starts[name]) for name in names)
            continue
        assert len(found) == len(names)
        used = {}
        for name, text, prediction in zip(names, texts, found):
            matches = {
                number
                for number in changes.possible(name, starts[name]) - {None}
                if len(expected[number][text]) == len(values(prediction))
                and np.abs(np.subtract(expected[number][text], values(prediction))).max() < 1e-5
            }
            assert matches, f"{name}: {prediction} is of no version in {changes.possible(name, starts[name])}"
            used.setdefault(name, matches).intersection_update(matches)
            assert used[name], f"a call has used two versions of {name}"
        answered += len(found)
    return answered


def check(base, num_packs, num_tasks, threads, calls, changes_per_thread, first_tasks=0):
    packs = [version_of(base, number) for number in range(num_packs)]
    with TaskPredictor(base, threads=1) as predictor:
        expected = []
        for number, pack in enumerate(packs):
            predictor.add("alone", pack, replace=number > 0)
            expected.append([values(predictor.predict([("alone", text)])[0]) for text in TEXTS])
        predictor.remove("alone")
        changes = Changes(predictor, packs, [f"task{number}" for number in range(num_tasks)])
        random = np.random.RandomState(0)
        for _ in range(first_tasks):
            changes.change(random)
        stop = threading.Event()

        def keep_changing(seed):
            own = np.random.RandomState(seed)
            for _ in range(changes_per_thread):
                if stop.is_set():
                    return
                changes.change(own)
                stop.wait(0.002)

        with ThreadPoolExecutor(threads + 2) as pool:
            changing = [pool.submit(keep_changing, 1000 + number) for number in range(2)]
            calling = [pool.submit(run_calls, changes, expected, calls, number) for number in range(threads)]
            answered = sum(future.result() for future in calling)
            stop.set()
            for future in changing:
                future.result()
        return answered, sum(len(history) - 1 for history in changes.history.values())


@pytest.fixture(scope="module")
def base(tiny_bert):
    return bases.Base.find(tiny_bert)


def test_calls_see_one_version_of_each_task(base):
    answered, changed = check(base, 6, 5, threads=3, calls=30, changes_per_thread=200, first_tasks=10)
    assert answered > 50 and changed > 20


@pytest.mark.long
def test_10000_mixed_requests_while_50_tasks_change(base):
    answered, changed = check(base, 60, 50, threads=4, calls=2500, changes_per_thread=10**6, first_tasks=400)
    assert answered > 10_000 and changed > 1000


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_memory_after_1000_changes_is_as_before(base):
    large = [make_pack(base, seed=seed, adapter={**ADAPTER, "size": 4096}) for seed in range(3)]  # 2 MB each
    with TaskPredictor(base, threads=1) as predictor:

        def cycle(count):
            for number in range(count):
                predictor.add("kept", large[number % 3], replace=True)
                predictor.add("removed", large[(number + 1) % 3])
                predictor.predict([("kept", TEXTS[0]), ("removed", TEXTS[1])])
                predictor.remove("removed")

        predictor.add("kept", large[0])
        cycle(100)
        before, capacity = resident_bytes(), predictor._engine._graph.capacity
        cycle(1000)
        assert predictor._engine._graph.capacity == capacity == 4
        assert resident_bytes() - before < 30e6
