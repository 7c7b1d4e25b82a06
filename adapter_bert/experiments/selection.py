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
    """
    best = []
    for (task, method), candidates in by_task_and_method(cells).items():
        metrics = {cell.metric for cell in candidates}
        if len(metrics) > 1:
            raise errors.UserError(
                f"The runs of '{method}' on {task} have different metrics: {', '.join(sorted(metrics))}. Repeat the "
                "sweep with one of them."
            )
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
    """Return the cells that have this dev metric, with it as the primary one. Their test score is unknown."""
    return [
        dataclasses.replace(cell, metric=metric, dev=cell.metrics[metric], test=None, majority=None)
        for cell in cells
        if metric in cell.metrics
    ]
