"""Statistics and figures of the recorded study (docs/results) equal values computed from its CSV by other code."""

from __future__ import annotations

import collections
import csv
import os
from typing import Dict, List, Tuple

import numpy as np
import pytest
from scipy import stats

from adapter_bert.experiments import cells, figures, report
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.summaries import compare, compare_over_tasks, summarize, trade_off
from tests.helpers import ROOT

PATH = os.path.join(ROOT, "docs", "results", "study.csv")
METHODS = ("adapters 64", "adapters 8", "full", "layer_norm", "top_layers 1", "top_layers 2", "top_layers 4")
Scores = Dict[Tuple[str, str], Dict[int, float]]


@pytest.fixture(scope="module")
def recorded() -> List[CellResult]:
    return cells.read(PATH)


@pytest.fixture(scope="module")
def best() -> Scores:
    """(task, method) -> seed -> dev score in percent of the learning rate that is best with seed 1."""
    with open(PATH, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_rate: Dict[Tuple[str, str], Dict[str, Dict[int, float]]] = collections.defaultdict(dict)
    losses: Dict[Tuple[str, str, str], float] = {}
    for row in rows:
        key, rate = (row["task"], row["method"]), row["setting.learning_rate"]
        by_rate[key].setdefault(rate, {})[int(row["seed"])] = 100 * float(row["dev"])
        if row["seed"] == "1":
            losses[(*key, rate)] = float(row["loss"])
    return {
        key: rates[max(rates, key=lambda rate: (round(rates[rate][1], 6), -losses[(*key, rate)]))]
        for key, rates in by_rate.items()
    }


def test_the_study_is_complete(best):
    assert {method for _, method in best} == set(METHODS)
    assert len(best) == 4 * len(METHODS)
    assert all(sorted(scores) == [1, 2, 3] for scores in best.values())


def test_means_and_errors_equal_numpy(recorded, best):
    summaries = {(each.task, each.method): each for each in summarize(recorded)}
    assert summaries.keys() == best.keys()
    for key, scores in best.items():
        values = np.array([scores[seed] for seed in (1, 2, 3)])
        assert summaries[key].scores == pytest.approx(values)
        assert summaries[key].mean == pytest.approx(values.mean())
        assert summaries[key].sem == pytest.approx(values.std(ddof=1) / np.sqrt(3))


def test_differences_equal_scipy(recorded, best):
    tasks = sorted({task for task, _ in best})
    for method in set(METHODS) - {"full"}:
        found = {each.task: each for each in compare(recorded, method, "full")}
        assert sorted(found) == tasks
        means = []
        for task in tasks:
            one, other = (np.array([best[task, name][seed] for seed in (1, 2, 3)]) for name in (method, "full"))
            means.append(one - other)
            assert found[task].mean == pytest.approx((one - other).mean())
            if np.ptp(one - other) > 0:
                interval = stats.ttest_rel(one, other).confidence_interval(0.95)
                assert found[task].interval == pytest.approx((interval.low, interval.high))
        over_tasks = compare_over_tasks(recorded, method, "full")
        assert over_tasks.differences == pytest.approx(np.mean(means, axis=0))


def test_figure_3_shows_percentiles_over_the_tasks(recorded, best):
    tasks = sorted({task for task, _ in best})
    points = {point.method: point for point in trade_off(recorded)}
    assert set(points) == set(METHODS)
    for method, point in points.items():
        changes = [
            np.mean(list(best[task, method].values())) - np.mean(list(best[task, "full"].values())) for task in tasks
        ]
        assert point.percentiles == pytest.approx(np.percentile(changes, [20, 50, 80]))
    axes = figures.trade_off_figure({"All": recorded}).axes[0]
    drawn = {line.get_label(): line for line in axes.get_lines()}["Adapters"]
    expected = [points[f"adapters {size}"].percentiles[1] for size in (8, 64)]
    assert drawn.get_ydata() == pytest.approx(expected)


def test_tables_and_figures_of_the_study_apply(recorded):
    stems = {each.stem for each in report.tables_of(recorded)}
    assert {"comparison_dev", "comparison_test", "summary_dev", "glue", "additional"} <= stems
    assert "trade_off" in {each.stem for each in report.figures_of(recorded)}
