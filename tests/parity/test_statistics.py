"""Intervals of averages over tasks equal those of rliable, which also resamples the seeds of each task."""

from __future__ import annotations

from typing import Dict

import numpy as np
import pytest

from adapter_bert.experiments import summaries
from tests.experiments.sweeps import make_cell

pytestmark = pytest.mark.parity

TASKS = ("CoLA", "MRPC", "SST-2")


@pytest.fixture(scope="module")
def rliable():
    return pytest.importorskip("rliable.library", reason="pip install rliable==1.2.0")


def scores_of(seeds: int) -> Dict[str, np.ndarray]:
    """Return scores by task, with means and deviations that differ between tasks."""
    random = np.random.default_rng(seeds)
    return {task: random.normal(0.6 + 0.1 * i, 0.01 * (i + 1), seeds) for i, task in enumerate(TASKS)}


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_the_interval_of_a_macro_average_equals_rliables(rliable, seeds):
    scores = scores_of(seeds)
    runs = [
        make_cell(scores[task][seed], seed, task=task, method="full", kind="full")
        for task in TASKS
        for seed in range(seeds)
    ]
    average = summaries.macro_average(runs, "full", TASKS)
    matrix = {"full": 100 * np.stack([scores[task] for task in TASKS], axis=1)}  # [seeds, tasks]
    random = np.random.RandomState(1)
    points, intervals = rliable.get_interval_estimates(
        matrix, lambda drawn: np.array([drawn.mean()]), reps=20000, random_state=random
    )
    assert average is not None and average.interval is not None
    assert average.mean == pytest.approx(points["full"][0], abs=1e-9)
    low, high = intervals["full"][:, 0]
    # Both draw at random: 20,000 and 9,999 times.
    assert average.interval == pytest.approx((low, high), abs=0.05 * (high - low))
