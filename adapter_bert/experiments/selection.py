"""Select the best settings of a sweep on the dev split.

Selection is idempotent. The functions for statistics, tables and figures select by themselves, so they also accept all
cells of a sweep.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from typing import Any, Callable, Dict, Hashable, Iterable, List, Sequence, Tuple, TypeVar

import numpy as np

from adapter_bert.common import errors
from adapter_bert.experiments.cells import CellResult

Item = TypeVar("Item")


def group(cells: Iterable[Item], key: Callable[[Item], Any]) -> Dict[Any, List[Item]]:
    """Return key -> cells, both in the order of the cells."""
    groups: Dict[Hashable, List[Item]] = collections.defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return dict(groups)


def by_task_and_method(cells: Iterable[CellResult]) -> Dict[Tuple[str, str], List[CellResult]]:
    """Return (task, method) -> cells."""
    return group(cells, lambda cell: (cell.task, cell.method))


def select_best(cells: Iterable[CellResult]) -> List[CellResult]:
    """Return the cells, for all seeds, of the best setting on dev for each task and method.

    The best setting has the highest mean over the seeds that all settings have; ties go to the lower mean loss. (After
    a grid search, only the best setting has all seeds.) Settings with a diverged run, which has no finite score, come
    last: ignoring such runs would favor unstable settings.

    Raises:
      UserError: the runs of a task have different metrics, see `with_common_metrics`.
    """
    best = []
    cells = list(cells)
    for task, runs in group(cells, lambda cell: cell.task).items():
        metrics = {cell.metric for cell in runs}
        if len(metrics) > 1:
            raise errors.UserError(f"The runs on {task} have different metrics: {', '.join(sorted(metrics))}.")
    for candidates in by_task_and_method(cells).values():
        settings = group(candidates, lambda cell: json.dumps(cell.settings, sort_keys=True))
        seeds = [{cell.seed for cell in runs} for runs in settings.values()]
        shared = set.intersection(*seeds) or set.union(*seeds)
        best += max(settings.values(), key=lambda runs: _rank([cell for cell in runs if cell.seed in shared]))
    return best


def _rank(cells: Sequence[CellResult]) -> Tuple[bool, float, float]:
    scores = [cell.percent() for cell in cells]
    finite = [score for score in scores if score is not None]
    losses = [math.inf if cell.loss is None else cell.loss for cell in cells]
    mean = round(float(np.mean(finite)), 9) if finite else -math.inf  # the same scores in another order are a tie
    return len(finite) == len(scores), mean, -float(np.mean(losses))


def best_of(cells: Iterable[CellResult], name: str) -> List[CellResult]:
    """Return the cells of each task's best method and setting, as one method with this name."""
    renamed = (
        dataclasses.replace(cell, method=name, settings={"method": cell.method, **cell.settings}) for cell in cells
    )
    return select_best(renamed)


def with_metric(cells: Iterable[CellResult], metric: str) -> List[CellResult]:
    """Return the cells that have this dev metric, with it as the primary one. Their test score is unknown.

    Diverged runs, which have no metrics, stay without a score.
    """
    return [
        dataclasses.replace(cell, metric=metric, dev=cell.metrics.get(metric), test=None, majority=None)
        for cell in cells
        if metric in cell.metrics or (cell.dev is None and not cell.metrics)
    ]


def with_common_metrics(cells: Iterable[CellResult]) -> List[CellResult]:
    """Return cells that can be compared: on a task with several primary metrics, use the first that all runs have.

    Sweeps may choose different metrics, e.g. accuracy on CoLA in one and Matthews correlation in another.
    """
    compared = []
    for task, runs in group(cells, lambda cell: cell.task).items():
        primary = dict.fromkeys(cell.metric for cell in runs)
        if len(primary) == 1:
            compared += runs
            continue
        finished = [cell for cell in runs if cell.metrics]
        common = [metric for metric in primary if all(metric in cell.metrics for cell in finished)]
        if not common:
            raise errors.UserError(
                f"The runs on {task} have different metrics ({', '.join(primary)}), and none that all of them have. "
                "Report on the sweeps separately."
            )
        compared += with_metric(runs, common[0])
    return compared
