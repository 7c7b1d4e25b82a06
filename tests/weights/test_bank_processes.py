"""A bank stays valid however many processes write to it at once or are killed."""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from typing import Any, List

import pytest

from adapter_bert.common import errors
from adapter_bert.weights import bases
from adapter_bert.weights.bank import BASE, Bank
from tests.helpers import make_pack
from tests.kill import ForkServer
from tests.weights.test_bank import other_files, problems

ADDED, EXISTS = "added", "exists"
barrier: Any = None  # of the processes of `in_parallel`


def set_barrier(value: Any) -> None:
    globals()["barrier"] = value


def in_parallel(function: Any, arguments: List[tuple]) -> list:
    """Call a function once in each of several processes, which may wait for each other at `barrier`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that TensorFlow is imported once
    shared = context.Barrier(len(arguments))
    with context.Pool(len(arguments), set_barrier, (shared,)) as pool:
        return pool.starmap(function, arguments, chunksize=1)


def no_links(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


def slowly(step: Any, *paths: str) -> None:
    time.sleep(0.02)
    step(*paths)


def outcome_of(function: Any, *args: Any) -> str:
    try:
        function(*args)
    except errors.UserError:
        return EXISTS
    return ADDED


def add_own_and_shared_names(folder: str, seed: int, has_links: bool) -> List[str]:
    """Add four packs under unique names and four under shared ones, on a slow file system."""
    bank = Bank.open(folder)
    pack = make_pack(bank.base, seed)
    os.link = functools.partial(slowly, os.link if has_links else no_links)
    os.rename = functools.partial(slowly, os.rename)
    barrier.wait()
    for index in range(4):
        bank.add(pack, f"own-{seed}-{index}")
    outcomes = []
    for index in range(4):
        barrier.wait()
        outcomes.append(outcome_of(bank.add, pack, f"same-{index}"))
    return outcomes


@pytest.mark.parametrize("has_links", [True, False])
def test_twenty_concurrent_additions_succeed_and_a_shared_name_is_taken_once(bank, has_links):
    outcomes = in_parallel(add_own_and_shared_names, [(bank.folder, seed, has_links) for seed in range(5)])
    for index, results in enumerate(zip(*outcomes)):
        assert sorted(results) == [ADDED] + [EXISTS] * 4
        assert bank.read(f"same-{index}").config.seed == results.index(ADDED)
    own = [f"own-{seed}-{index}" for seed in range(5) for index in range(4)]
    assert bank.names() == own + [f"same-{index}" for index in range(4)]
    assert problems(bank) == {}
    assert other_files(bank) == []


def create_at_once(folder: str, base_folder: str) -> str:
    base = bases.Base.find(base_folder)
    barrier.wait()
    return outcome_of(Bank.create, folder, base)


def test_one_of_several_processes_that_create_the_same_bank_succeeds(base, tmp_path):
    outcomes = in_parallel(create_at_once, [(str(tmp_path / "bank"), base.folder)] * 4)
    assert sorted(outcomes) == [ADDED] + [EXISTS] * 3
    assert list(Bank.open(str(tmp_path / "bank")).verify()) == [(BASE, None)]
    assert os.listdir(tmp_path) == ["bank"]


@pytest.fixture(scope="module")
def server():
    with ForkServer(__name__) as started:
        yield started


def add_and_die(tell: Any, folder: str, name: str, place: str, step: str) -> None:
    """Add a pack over or beside the pack `old`, and die before or after a step."""
    original = getattr(os, step)

    def die(*args: Any, **kwargs: Any) -> None:
        if place == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), 9)

    bank = Bank.open(folder)
    pack = make_pack(bank.base, 2)
    setattr(os, step, die)
    bank.add(pack, name, replace=name == "old")


@pytest.mark.parametrize(
    "name, place, step, seeds, num_leftovers",
    [
        ("new", "before", "fsync", {"old": 1}, 1),
        ("new", "after", "fsync", {"old": 1}, 1),
        ("new", "after", "link", {"new": 2, "old": 1}, 1),
        ("new", "after", "mkdir", {"old": 1}, 1),
        ("new", "after", "rmdir", {"new": 2, "old": 1}, 0),
        ("old", "before", "fsync", {"old": 1}, 1),
        ("old", "before", "replace", {"old": 1}, 1),
        ("old", "after", "replace", {"old": 2}, 1),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(server, bank, name, place, step, seeds, num_leftovers):
    bank.add(make_pack(bank.base, 1), "old")
    server.kill("add_and_die", bank.folder, name, place, step)
    assert problems(bank) == {}
    assert {each: bank.read(each).config.seed for each in bank.names()} == seeds
    assert len(other_files(bank)) == num_leftovers
    bank.add(make_pack(bank.base, 3), "other")
    assert other_files(bank) == [], "the next writer removes what a killed one left"
