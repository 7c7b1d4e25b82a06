"""The statistics of a sweep equal independent computations with NumPy and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from adapter_bert.experiments import summaries
from adapter_bert.experiments.summaries import compare, expected_maximum, macro_average, summarize, trade_off
from tests.experiments.sweeps import make_cell, sweep
from tests.helpers import assert_mentions, message_of


def scores_of(task, method, rate, split="dev", scale=100):
    cells = [cell for cell in sweep() if (cell.task, cell.method) == (task, method)]
    return np.array([scale * getattr(cell, split) for cell in cells if cell.settings["learning_rate"] == rate])


def summary_of(task, method, split="dev"):
    (found,) = [each for each in summarize(sweep(), split) if (each.task, each.method) == (task, method)]
    return found


@pytest.mark.parametrize(
    "task, method, rate, split, scale",
    [
        ("CoLA", "full", 3e-5, "dev", 100),
        ("MRPC", "adapters 64", 3e-4, "dev", 100),
        ("SQuAD", "adapters 2", 3e-4, "dev", 1),
        ("sms_spam_collection", "full", 3e-5, "test", 100),
    ],
)
def test_summaries_equal_numpy(task, method, rate, split, scale):
    scores, summary = scores_of(task, method, rate, split, scale), summary_of(task, method, split)
    assert summary.n == len(scores) == 3
    assert summary.scores == pytest.approx(tuple(scores))
    assert summary.mean == pytest.approx(scores.mean())
    assert summary.sem == pytest.approx(scores.std(ddof=1) / np.sqrt(3))
    assert (summary.minimum, summary.maximum) == pytest.approx((scores.min(), scores.max()))


def bca(scores):
    """BCa interval of the mean from all n^n resamples, after Efron (1987)."""
    n, mean = len(scores), np.mean(scores)
    means = np.mean(list(itertools.product(scores, repeat=n)), axis=1)
    below = (np.mean(means < mean - 1e-9) + np.mean(means <= mean + 1e-9)) / 2
    bias = stats.norm.ppf(below)
    left_out = [np.mean(np.delete(scores, index)) for index in range(n)]
    deviations = np.mean(left_out) - left_out
    acceleration = np.sum(deviations**3) / (6 * np.sum(deviations**2) ** 1.5)
    ends = bias + stats.norm.ppf([0.025, 0.975])
    levels = stats.norm.cdf(bias + ends / (1 - acceleration * ends))
    return np.percentile(means, 100 * levels)


def test_intervals_equal_those_of_all_resamples():
    scores = [81.0, 83.5, 84.0, 84.2, 86.9, 83.3]
    assert summaries.bootstrap_interval(scores) == pytest.approx(bca(scores), abs=0.1)
    assert summaries.bootstrap_interval(scores) == summaries.bootstrap_interval(scores)


def test_few_and_constant_scores_have_their_intervals():
    assert summaries.bootstrap_interval([]) is None
    assert summaries.bootstrap_interval([80.0]) is None
    assert summaries.bootstrap_interval([80.0, 80.0, 80.0]) == (80.0, 80.0)
    low, high = summaries.bootstrap_interval([80.0, 82.0])
    assert 80 <= low < high <= 82
    (single,) = summarize([make_cell(0.5)])
    assert (single.n, single.mean, single.sem, single.interval) == (1, 50.0, None, None)


def test_collapsed_runs_count_and_failed_ones_have_no_score():
    rte = summary_of("RTE", "full")
    assert (rte.n, rte.collapsed, rte.diverged) == (2, 1, 0)
    assert rte.minimum == pytest.approx(52.7)
    (all_failed,) = summarize([make_cell(None), make_cell(None, 2)])
    assert (all_failed.n, all_failed.mean, all_failed.minimum, all_failed.diverged) == (0, None, None, 2)
    (unlabelled,) = summarize([make_cell(0.5)], "test")
    assert (unlabelled.n, unlabelled.diverged) == (0, 0)


def test_two_runs_of_a_seed_are_reported():
    message = message_of(summarize, [make_cell(), make_cell(0.9)])
    assert_mentions(message, make_cell().name)


def test_comparisons_are_paired_by_seed():
    (cola,) = [each for each in compare(sweep(), "adapters 64", "full") if each.task == "CoLA"]
    adapters, full = scores_of("CoLA", "adapters 64", 3e-4), scores_of("CoLA", "full", 3e-5)
    assert cola.differences == pytest.approx(tuple(adapters - full))
    interval = stats.ttest_rel(adapters, full).confidence_interval(0.95)
    assert cola.interval == pytest.approx((interval.low, interval.high))
    assert cola.mean == pytest.approx((adapters - full).mean())


def test_only_common_seeds_and_tasks_are_compared():
    cells = [make_cell(0.5, seed) for seed in (3, 1, 2)] + [make_cell(0.4, seed, method="full") for seed in (2, 3, 4)]
    (only,) = compare(cells + [make_cell(task="RTE")], "adapters 64", "full")
    assert only.differences == pytest.approx((10, 10))
    assert only.interval == pytest.approx((10, 10))
    assert only.detectable == pytest.approx(0)
    (single,) = compare(cells[2:4], "adapters 64", "full")
    assert (len(single.differences), single.interval, single.detectable) == (1, None, None)
    assert compare(cells, "adapters 64", "none") == []


def test_comparisons_over_tasks_pair_the_means_of_each_seed():
    tasks = ["CoLA", "MRPC", "RTE"]
    cells = [cell for cell in sweep() if cell.task in tasks]
    over = summaries.compare_over_tasks(cells, "adapters 64", "full")
    single = {each.task: each.differences for each in compare(cells, "adapters 64", "full")}
    numbers = [min(map(len, single.values()))]
    means = np.mean([single[task][: numbers[0]] for task in tasks], axis=0)
    assert over.differences[: numbers[0]] == pytest.approx(tuple(means))
    assert over.interval == pytest.approx(tuple(stats.ttest_1samp(over.differences, 0).confidence_interval(0.95)))
    assert "3 tasks" in over.task
    assert summaries.compare_over_tasks([cell for cell in cells if cell.task == "RTE"], "adapters 64", "full") is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_the_detectable_difference_is_found_in_80_percent_of_simulations(seeds):
    rng = np.random.default_rng(0)
    differences = rng.normal(size=seeds)
    effect = summaries.detectable_difference(differences) / np.std(differences, ddof=1)
    samples = rng.normal(effect, 1, size=(40_000, seeds))
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_macro_averages_weight_tasks_equally():
    tasks = ["CoLA", "RTE"]
    average = macro_average(sweep(), "adapters 64", tasks)
    means = [summary_of(task, "adapters 64").mean for task in tasks]
    assert average.mean == pytest.approx(np.mean(means))
    cola, rte = scores_of("CoLA", "adapters 64", 3e-4), scores_of("RTE", "adapters 64", 3e-4)
    resampled = [np.mean(list(itertools.product(scores, repeat=len(scores))), axis=1) for scores in (cola, rte)]
    exact = np.percentile(np.add.outer(*resampled) / 2, [2.5, 97.5])
    assert average.interval == pytest.approx(exact, abs=0.05)


def test_macro_averages_need_all_tasks():
    assert macro_average(sweep(), "adapters 64", ["CoLA", "WNLI"]) is None
    assert macro_average(sweep(), "adapters 64", []) is None


def test_macro_averages_of_tasks_with_one_seed():
    single = [make_cell(0.5), make_cell(0.7, task="RTE")]
    average = macro_average(single, "adapters 64", ["CoLA", "RTE"])
    assert average.mean == pytest.approx(60)
    assert average.interval is None
    low, high = macro_average([*single, make_cell(0.9, 2, task="RTE")], "adapters 64", ["CoLA", "RTE"]).interval
    assert (low, high) == pytest.approx((60, 70))


def test_the_expected_maximum_is_that_of_all_draws():
    scores = [70.0, 82.5, 64.0, 82.5]
    expected = [np.mean([max(draw) for draw in itertools.product(scores, repeat=trials)]) for trials in (1, 2, 3, 4)]
    assert expected_maximum(scores) == pytest.approx(expected)
    assert expected_maximum([]) == []


def test_the_trade_off_is_relative_to_full_fine_tuning():
    tasks = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI-mm", "QNLI", "RTE"]
    points = trade_off([cell for cell in sweep() if cell.task in tasks])
    by_method = {point.method: point for point in points}
    changes = [summary_of(task, "adapters 64").mean - summary_of(task, "full").mean for task in tasks]
    assert by_method["adapters 64"].percentiles == pytest.approx(np.percentile(changes, [20, 50, 80]))
    assert by_method["adapters 64"].trained_params == 2_419_202
    assert (by_method["adapters 64"].tasks, by_method["adapters 2"].tasks) == (9, 2)
    assert by_method["full"].percentiles == (0, 0, 0)
    assert [point.trained_params for point in points] == sorted(point.trained_params for point in points)
    assert trade_off([make_cell()]) == []
