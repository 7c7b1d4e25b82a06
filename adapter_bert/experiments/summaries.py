"""Statistics over the seeds of a sweep. All scores are in percent.

Collapsed runs, which predict a constant, are counted and included in all statistics. Runs without a finite score are
only counted.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from scipy import optimize, stats

from adapter_bert.common import errors
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.selection import by_task_and_method, select_best

Interval = Tuple[float, float]

CONFIDENCE = 0.95
POWER = 0.8
PERCENTILES = (20, 50, 80)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Scores of one method on one task with its best setting. Values that need more runs are None."""

    task: str
    method: str
    kind: str
    metric: str
    split: str
    scores: Tuple[float, ...]  # finite ones, by seed
    mean: Optional[float]
    sem: Optional[float]
    collapsed: int
    diverged: int  # runs without a finite score on dev
    trained_params: int
    trained_share: float

    @property
    def n(self) -> int:
        """Number of finite scores."""
        return len(self.scores)

    @property
    def minimum(self) -> Optional[float]:
        """Lowest score."""
        return min(self.scores, default=None)

    @property
    def maximum(self) -> Optional[float]:
        """Highest score."""
        return max(self.scores, default=None)

    @property
    def interval(self) -> Optional[Interval]:
        """95 % BCa bootstrap interval of the mean."""
        return bootstrap_interval(self.scores)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Differences between a method and a baseline, paired by seed."""

    task: str
    method: str
    baseline: str
    metric: str
    split: str
    differences: Tuple[float, ...]
    mean: float
    interval: Optional[Interval]  # 95 % interval of the paired t-test
    detectable: Optional[float]  # smallest difference that this many seeds detect with a power of 80 %


@dataclasses.dataclass(frozen=True)
class MacroAverage:
    """Unweighted mean over tasks of the mean over seeds."""

    method: str
    split: str
    tasks: Tuple[str, ...]
    mean: float
    interval: Optional[Interval]  # 95 % bootstrap interval over the seeds of each task


@dataclasses.dataclass(frozen=True)
class TradeOffPoint:
    """The score of one method minus that of full fine-tuning, over tasks."""

    method: str
    kind: str
    trained_params: float  # median over tasks
    percentiles: Tuple[float, ...]  # 20th, 50th and 80th
    tasks: int


def summarize(cells: Iterable[CellResult], split: str = "dev") -> List[Summary]:
    """Return a summary for each task and method, with the best setting on dev."""
    return [_summarize(runs, split) for runs in by_task_and_method(select_best(cells)).values()]


def _summarize(runs: Sequence[CellResult], split: str) -> Summary:
    first = runs[0]
    scores = tuple(_by_seed(runs, split).values())
    return Summary(
        task=first.task,
        method=first.method,
        kind=first.kind,
        metric=first.metric,
        split=split,
        scores=scores,
        mean=float(np.mean(scores)) if scores else None,
        sem=float(stats.sem(scores)) if len(scores) > 1 else None,
        collapsed=sum(cell.collapsed for cell in runs),
        diverged=sum(cell.percent() is None for cell in runs),
        trained_params=first.trained_params,
        trained_share=first.trained_share,
    )


def _by_seed(runs: Sequence[CellResult], split: str) -> Dict[int, float]:
    seeds = [cell.seed for cell in runs]
    if len(set(seeds)) < len(seeds):
        raise errors.UserError(f"{runs[0].name}: another run has the same task, method, settings and seed. Remove one.")
    scores = {cell.seed: cell.percent(split) for cell in sorted(runs, key=lambda cell: cell.seed)}
    return {seed: score for seed, score in scores.items() if score is not None}


def bootstrap_interval(scores: Sequence[float]) -> Optional[Interval]:
    """Return the 95 % BCa bootstrap interval of the mean; None for fewer than two scores.

    Like all bootstrap intervals, it is too narrow for three to five seeds: read it together with the number of seeds.
    """
    if len(scores) < 2:
        return None
    if np.ptp(scores) == 0:  # BCa is undefined
        return (float(scores[0]), float(scores[0]))
    return _bootstrap([np.asarray(scores)], "BCa")


def _bootstrap(samples: List[np.ndarray], method: str) -> Interval:
    """Return the interval of the mean of the samples' means, with the same random numbers every time."""
    result = stats.bootstrap(
        samples,
        lambda *drawn, axis: sum(each.mean(axis=axis) for each in drawn) / len(drawn),
        vectorized=True,
        confidence_level=CONFIDENCE,
        method=method,
        random_state=np.random.default_rng(0),
    )
    return (float(result.confidence_interval.low), float(result.confidence_interval.high))


def compare(cells: Iterable[CellResult], method: str, baseline: str, split: str = "dev") -> List[Comparison]:
    """Compare two methods on each task that has both, with their best settings and the seeds that both have."""
    best = by_task_and_method(select_best(cells))
    comparisons = []
    for task in dict.fromkeys(task for task, _ in best):
        runs = best.get((task, method), [])
        one, other = _by_seed(runs, split), _by_seed(best.get((task, baseline), []), split)
        differences = tuple(one[seed] - other[seed] for seed in one if seed in other)
        if differences:
            comparisons.append(_comparison(task, method, baseline, runs[0].metric, split, differences))
    return comparisons


def compare_over_tasks(
    cells: Iterable[CellResult], method: str, baseline: str, split: str = "dev"
) -> Optional[Comparison]:
    """Compare two methods by the mean of their scores over all tasks that have both, paired by seed.

    Return None with fewer than two such tasks, or without a seed that all of them have.
    """
    cells = list(cells)
    best = by_task_and_method(select_best(cells))
    tasks = [task for task, name in best if name == method and (task, baseline) in best]
    by_seed = [(_by_seed(best[task, method], split), _by_seed(best[task, baseline], split)) for task in tasks]
    seeds = set.intersection(*({*one} & {*other} for one, other in by_seed)) if by_seed else set()
    if len(tasks) < 2 or not seeds:
        return None
    differences = tuple(float(np.mean([one[seed] - other[seed] for one, other in by_seed])) for seed in sorted(seeds))
    metrics = dict.fromkeys(best[task, method][0].metric for task in tasks)
    return _comparison(f"mean of {len(tasks)} tasks", method, baseline, ", ".join(metrics), split, differences)


def _comparison(
    task: str, method: str, baseline: str, metric: str, split: str, differences: Tuple[float, ...]
) -> Comparison:
    mean, interval = float(np.mean(differences)), _paired_interval(differences)
    return Comparison(
        task, method, baseline, metric, split, differences, mean, interval, detectable_difference(differences)
    )


def _paired_interval(differences: Sequence[float]) -> Optional[Interval]:
    if len(differences) < 2:
        return None
    margin = stats.sem(differences) * stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)
    mean = np.mean(differences)
    return (float(mean - margin), float(mean + margin))


def detectable_difference(differences: Sequence[float]) -> Optional[float]:
    """Return the smallest mean difference that a paired t-test detects; None for fewer than two pairs.

    The test is two-sided, at a level of 5 % and with a power of 80 %; the standard deviation is that of `differences`.
    """
    if len(differences) < 2:
        return None
    freedom = len(differences) - 1
    critical = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)

    def missing_power(shift: float) -> float:
        return POWER - stats.nct.sf(critical, freedom, shift)  # significance on the wrong side: below 1e-5

    # The shift is 16.3 for two pairs, and falls with their number.
    return float(optimize.brentq(missing_power, 0.1, 20.0) * stats.sem(differences))


def macro_average(
    cells: Iterable[CellResult], method: str, tasks: Sequence[str], split: str = "dev"
) -> Optional[MacroAverage]:
    """Return the mean over these tasks; None if one has no score.

    The bootstrap resamples the seeds of each task. A task with one seed is kept as it is, so the interval covers only
    the variation of the other tasks. There is no interval if every task has one seed.
    """
    summaries = {each.task: each for each in summarize(cells, split) if each.method == method and each.n}
    if not tasks or any(task not in summaries for task in tasks):
        return None
    samples = [np.asarray(summaries[task].scores) for task in tasks]
    interval = None
    if any(len(sample) > 1 for sample in samples):
        # SciPy needs two observations. A repeated score is the same in every draw.
        samples = [np.repeat(sample, 2) if len(sample) == 1 else sample for sample in samples]
        interval = _bootstrap(samples, "percentile")  # BCa supports several samples only in later versions of SciPy
    return MacroAverage(method, split, tuple(tasks), float(np.mean([each.mean() for each in samples])), interval)


def expected_maximum(scores: Sequence[float]) -> List[float]:
    """Return the expected best score of 1, 2, …, n trials, drawn from n scores with replacement.

    This is the expected validation performance of Dodge et al. (2019), "Show Your Work", for scores of single runs with
    different settings.
    """
    ranks = np.arange(len(scores) + 1) / max(len(scores), 1)
    return [float(np.diff(ranks**trials) @ np.sort(scores)) for trials in range(1, len(scores) + 1)]


def trade_off(cells: Iterable[CellResult], split: str = "dev") -> List[TradeOffPoint]:
    """Return each method's score relative to full fine-tuning over all tasks, by number of trained parameters.

    Tasks without a run of full fine-tuning are excluded.
    """
    summaries = [each for each in summarize(cells, split) if each.n]
    full = {each.task: np.mean(each.scores) for each in summaries if each.kind == "full"}
    points = []
    for method in dict.fromkeys(each.method for each in summaries):
        compared = [each for each in summaries if each.method == method and each.task in full]
        if compared:
            changes = [np.mean(each.scores) - full[each.task] for each in compared]
            percentiles = tuple(float(value) for value in np.percentile(changes, PERCENTILES))
            trained = float(np.median([each.trained_params for each in compared]))
            points.append(TradeOffPoint(method, compared[0].kind, trained, percentiles, len(compared)))
    return sorted(points, key=lambda point: point.trained_params)
