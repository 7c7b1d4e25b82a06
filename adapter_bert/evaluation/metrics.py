"""Metrics over a whole data set, by scikit-learn and SciPy. Of each of them, more is better."""

from __future__ import annotations

import collections
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from adapter_bert.common import errors
from adapter_bert.tasks.task import Task

# Predicted numbers within this part of their size are one number: some ten roundings of a 32-bit float.
ONE_NUMBER = 1e-6

Metric = Callable[[np.ndarray, np.ndarray], float]


def _is_constant(values: np.ndarray, tolerance: float = 0.0) -> bool:
    return bool(np.ptp(values) <= tolerance * np.abs(values).max())


def _are_finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all())


# SciPy and scikit-learn take a second or two to import: that waits until something is scored.


def _correlation(name: str) -> Metric:
    """A correlation by SciPy, with 0 where it is not defined: predictions that say nothing about the labels."""

    def metric(labels: np.ndarray, numbers: np.ndarray) -> float:
        from scipy import stats

        if not _are_finite(numbers) or _is_constant(numbers, ONE_NUMBER) or _is_constant(labels):
            return 0.0
        return getattr(stats, name)(labels.astype(np.float64), numbers.astype(np.float64))[0]

    return metric


def _by_sklearn(name: str, **options: Any) -> Metric:
    """A metric of scikit-learn."""

    def metric(labels: np.ndarray, classes: np.ndarray) -> float:
        from sklearn import metrics

        return getattr(metrics, name)(labels, classes, **options)

    return metric


_f1 = _by_sklearn("f1_score", zero_division=0)
_matthews = _by_sklearn("matthews_corrcoef")


# Name -> function of (labels, predicted classes). F1 is that of class 1, as GLUE has it.
CLASS_METRICS: Dict[str, Metric] = {
    "accuracy": _by_sklearn("accuracy_score"),
    "matthews": lambda labels, classes: (
        0.0 if _is_constant(labels) or _is_constant(classes) else _matthews(labels, classes)
    ),
    "f1": lambda labels, classes: _f1(labels == 1, classes == 1),
    "macro_f1": _by_sklearn("f1_score", average="macro", zero_division=0),
}
# Name -> function of (labels, predicted numbers).
NUMBER_METRICS: Dict[str, Metric] = {
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}
METRICS: Dict[str, Metric] = {**CLASS_METRICS, **NUMBER_METRICS}


def score(metric_names: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> Dict[str, float]:
    """Computes metrics.

    Args:
      metric_names: keys of `METRICS`.
      labels: int or float [examples], the true classes or numbers.
      predictions: int or float [examples], the predicted ones.

    Returns:
      Name -> value, in the order of the names. Each is a finite number.

    Raises:
      errors.UserError: there is no such metric, or it takes classes and the labels are numbers.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if not labels.size or labels.shape != predictions.shape:
        raise ValueError(f"{labels.shape} labels and {predictions.shape} predictions cannot be compared.")
    scores = collections.OrderedDict()
    for name in metric_names:
        if name not in METRICS:
            raise errors.unknown("metric", name, METRICS)
        if name in CLASS_METRICS and labels.dtype.kind == "f":
            raise errors.UserError(
                "The metric {} compares classes, but the labels are numbers; use {}.".format(
                    name, " or ".join(NUMBER_METRICS)
                )
            )
        scores[name] = float(METRICS[name](labels, predictions))
    return scores


def with_primary(name: str, task: Task) -> Tuple[str, ...]:
    """A task's metrics with another primary one.

    Args:
      name: the metric that is to decide.
      task: the task.

    Returns:
      That metric, and behind it the others that the task has.

    Raises:
      errors.UserError: there is no such metric, or it does not suit the task.
    """
    if name not in METRICS:
        raise errors.unknown("metric", name, METRICS)
    # Of three classes, class 1 is not the one to look for.
    suited = [metric for metric in CLASS_METRICS if metric != "f1" or len(task.labels) == 2]
    if task.is_regression:
        suited = list(NUMBER_METRICS)
    if name not in suited:
        predicted = "numbers" if task.is_regression else f"{len(task.labels)} classes"
        raise errors.UserError(
            "The metric {} does not suit {}, which has {}; use one of: {}.".format(
                name, task.name, predicted, ", ".join(suited)
            )
        )
    return (name,) + tuple(other for other in task.metrics if other != name)


def majority_class_score(metric_names: Sequence[str], labels: np.ndarray) -> Dict[str, float]:
    """What one prediction for every example would score: the most frequent class, or the mean of numbers."""
    labels = np.asarray(labels)
    constant = labels.mean() if labels.dtype.kind == "f" else np.bincount(labels).argmax()
    return score(metric_names, labels, np.full_like(labels, constant))


def is_collapsed(predictions: np.ndarray, labels: np.ndarray) -> bool:
    """Whether a model gives every example the same class or number, or no number at all, while the labels differ."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    tolerance = ONE_NUMBER if predictions.dtype.kind == "f" else 0.0
    return not _is_constant(labels) and (not _are_finite(predictions) or _is_constant(predictions, tolerance))
