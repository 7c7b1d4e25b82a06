"""A part of the sweep (tests/faults/sweep.py): enough to notice that a command no longer survives."""

from __future__ import annotations

import pytest

from tests.faults import sweep
from tests.faults.cases import Case, Trial, Workshop
from tests.faults.commands import COMMANDS
from tests.faults.harness import FaultServer


@pytest.fixture(scope="module")
def server():
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(str(tmp_path_factory.mktemp("faults")))


@pytest.fixture(scope="module")
def trial(workshop, server):
    return Trial(workshop, server, "root")


@pytest.mark.parametrize(
    "name, kind",
    [
        pytest.param("bank create", "kill", marks=pytest.mark.long),
        ("bank add", "kill"),
        ("bank add", "full"),
        ("bank add", "read only"),
        ("bank add", "two starts"),
        pytest.param("bank add, replace", "kill", marks=pytest.mark.long),
    ],
)
def test_a_bank_survives_at_every_operation(trial, workshop, server, name, kind):
    cases = sweep.cases_of(name, kind, workshop.expected(server, name).outcome.operations)
    assert len(cases) >= 3
    assert {case: trial.run(case) for case in cases} == dict.fromkeys(cases, [])


@pytest.mark.long
def test_a_killed_training_continues_to_the_same_weights(trial, workshop, server):
    operations = workshop.expected(server, "train").outcome.operations
    # TensorFlow has written the first checkpoint, but not recorded it.
    at = 1 + operations.index("rename /run/checkpoint")
    assert trial.run(Case("train", "kill", at)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["/run/events.out", "/run/eval/events.out", "/optimizer.ckpt-2.data"])
def test_a_training_on_a_full_disk_ends_with_one_line_and_continues(trial, workshop, server, name):
    operations = workshop.expected(server, "train").outcome.operations
    at = next(number for number, line in enumerate(operations, 1) if line.startswith("fwrite ") and name in line)
    assert trial.run(Case("train", "full", at)) == []


@pytest.mark.long
def test_snapshots_show_what_kills_leave(trial, workshop, server):
    """The full sweep derives the kills of slow commands from them."""
    name = "bank create"
    states = workshop.snapshots(server, name)
    count = len(workshop.expected(server, name).outcome.operations)
    assert sorted(number for numbers in states.values() for number in numbers) == list(range(1, count + 1))
    for state, numbers in states.items():
        assert trial.left_by_kill(name, numbers[0]) == trial.left_by_snapshot(state)


@pytest.mark.faults
@pytest.mark.parametrize("name", COMMANDS)
def test_every_case_of_a_command_holds(tmp_path, name):
    results, left = sweep.run(str(tmp_path), [name], list(sweep.KINDS), processes=2)
    assert left == 0 and results.problems
    assert results.failures() == ""
