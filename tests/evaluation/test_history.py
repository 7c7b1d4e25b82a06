"""The history of a training run: the curve of its training loss."""

from __future__ import annotations

import json

import pytest

from adapter_bert.evaluation.history import History


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "training.json")


def add(history: History, losses: dict, total: int) -> None:
    for step, loss in losses.items():
        history.add_loss(step, total, loss)
    history.write()


def test_the_curve_has_the_mean_loss_of_each_fiftieth_of_the_steps(path):
    add(History(path), {step: float(step) for step in range(1, 101)}, total=100)
    losses = History(path).losses
    assert (len(losses), losses[:2], losses[-1]) == (50, [1.5, 3.5], 99.5)


def test_a_short_run_has_gaps(path):
    add(History(path), {1: 0.7, 2: 0.6, 3: 0.5}, total=3)
    assert [loss for loss in History(path).losses if loss is not None] == [0.7, 0.6, 0.5]


def test_a_resumed_run_continues_the_curve_and_replaces_what_it_repeats(path):
    add(History(path), dict.fromkeys(range(1, 61), 1.0), total=100)
    add(History(path), dict.fromkeys(range(42, 101), 2.0), total=100)
    assert History(path).losses == [1.0] * 20 + [2.0] * 30


def test_a_history_of_an_older_version_has_no_curve(path):
    with open(path, "w") as file:
        json.dump({"evaluations": [], "seconds": 1.0, "steps": 2, "examples": 16}, file)
    assert History(path).losses == [None] * 50
