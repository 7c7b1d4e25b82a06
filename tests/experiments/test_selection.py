"""The best setting is selected on dev, with all its seeds."""

from __future__ import annotations

import numpy as np

from adapter_bert.experiments.selection import best_of, select_best, with_common_metrics, with_metric
from tests.experiments.sweeps import make_cell, sweep
from tests.helpers import assert_mentions, message_of


def _runs(rate, scores, **changes):
    return [make_cell(dev, seed, settings={"learning_rate": rate}, **changes) for seed, dev in enumerate(scores, 1)]


def test_the_highest_mean_over_the_seeds_wins_not_the_highest_run():
    lucky, steady = _runs(1e-3, [0.9, 0.1, 0.8]), _runs(3e-4, [0.7, 0.8, 0.75])
    assert select_best(lucky + steady) == steady


def test_settings_are_compared_on_the_seeds_that_all_of_them_have():
    selected, other = _runs(1e-4, [0.4, 0.33, 0.34]), _runs(3e-4, [0.38])  # after a grid search with one seed
    assert select_best(selected + other) == selected
    assert select_best(other + selected) == selected
    later = [make_cell(0.9, seed=4, settings={"learning_rate": 1e-3})]
    assert select_best(selected + later) == later, "no seed in common"


def test_ties_go_to_the_lower_loss():
    first, second = _runs(1e-3, [0.1, 0.2, 0.3], loss=0.5), _runs(3e-4, [0.3, 0.2, 0.1], loss=0.4)
    assert select_best(first + second) == second
    assert select_best(second + first) == second
    assert select_best(first + _runs(3e-4, [0.3, 0.2, 0.1], loss=None)) == first


def test_settings_with_a_diverged_run_come_last():
    diverged, steady = _runs(1e-3, [0.9, None, 0.9]), _runs(3e-4, [0.7, 0.7])
    assert select_best(diverged + steady) == steady
    assert select_best(diverged) == diverged
    assert select_best(_runs(1e-4, [None]) + diverged) == diverged


def test_tasks_and_methods_are_selected_separately():
    selected = select_best(sweep())
    groups = {(cell.task, cell.method) for cell in sweep()}
    assert {(cell.task, cell.method) for cell in selected} == groups
    assert len(groups) > 40
    for task, method in groups:
        runs = [cell for cell in sweep() if (cell.task, cell.method) == (task, method)]
        means = {}
        for rate in {cell.settings["learning_rate"] for cell in runs}:
            scores = [cell.dev for cell in runs if cell.settings["learning_rate"] == rate]
            means[rate] = -1 if None in scores else np.mean(scores)
        rates = {cell.settings["learning_rate"] for cell in selected if (cell.task, cell.method) == (task, method)}
        assert rates == {max(means, key=means.get)}


def test_selection_is_idempotent():
    assert select_best(select_best(sweep())) == select_best(sweep())
    assert select_best([]) == []


def test_different_metrics_of_a_task_are_reported():
    message = message_of(select_best, [make_cell(), make_cell(seed=2, metric="f1")])
    assert_mentions(message, "CoLA", "accuracy", "f1")
    other = make_cell(method="full", kind="full", metric="f1")
    assert_mentions(message_of(select_best, [make_cell(), other]), "CoLA", "accuracy", "f1")


def test_a_task_with_several_metrics_is_compared_on_one_that_all_runs_have():
    one = make_cell(0.6, metric="matthews", metrics={"matthews": 0.6, "accuracy": 0.8})
    other, diverged = make_cell(0.7), make_cell(None, 2, metric="matthews", metrics={})
    elsewhere = make_cell(0.5, task="RTE", metric="f1")
    compared = with_common_metrics([one, other, diverged, elsewhere])
    assert [(cell.task, cell.metric, cell.dev) for cell in compared] == [
        ("CoLA", "accuracy", 0.8),
        ("CoLA", "accuracy", 0.7),
        ("CoLA", "accuracy", None),
        ("RTE", "f1", 0.5),
    ]
    message = message_of(with_common_metrics, [other, make_cell(metric="f1", metrics={"f1": 0.7})])
    assert_mentions(message, "CoLA", "accuracy", "f1")


def test_best_of_methods_is_one_method():
    small = [make_cell(0.7, seed, method="adapters 8") for seed in (1, 2)]
    large = [make_cell(0.8, seed, method="adapters 256", task=task) for seed in (1, 2) for task in ("CoLA", "RTE")]
    best = best_of(small + large, "best")
    assert [(cell.task, cell.method, cell.settings["method"]) for cell in best] == [
        ("CoLA", "best", "adapters 256"),
        ("CoLA", "best", "adapters 256"),
        ("RTE", "best", "adapters 256"),
        ("RTE", "best", "adapters 256"),
    ]


def test_another_metric_becomes_the_primary_one():
    cells = [
        make_cell(0.6, metric="matthews", test=0.5, metrics={"matthews": 0.6, "accuracy": 0.8}),
        make_cell(metrics={}),
    ]
    (changed,) = with_metric(cells, "accuracy")
    assert (changed.metric, changed.dev, changed.test, changed.majority) == ("accuracy", 0.8, None, None)


def test_diverged_runs_count_in_every_metric():
    diverged = [make_cell(0.9, settings={"learning_rate": 1e-3})]
    diverged.append(make_cell(None, 2, settings={"learning_rate": 1e-3}, metrics={}))
    steady = _runs(3e-4, [0.7, 0.7])
    assert select_best(with_metric(diverged + steady, "accuracy")) == with_metric(steady, "accuracy")
