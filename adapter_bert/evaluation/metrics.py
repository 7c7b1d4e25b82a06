"""Metrics over a whole data set, computed by scikit-learn and SciPy. For each of them, higher is better."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from adapter_bert.common import errors
from adapter_bert.tasks.task import Task

# Relative tolerance for equal predicted numbers: about ten rounding errors of a 32-bit float.
RELATIVE_TOLERANCE = 1e-6

# A function of (labels, predictions).
Metric = Callable[[np.ndarray, np.ndarray], float]


def _is_uninformative(values: np.ndarray, tolerance: float = 0.0) -> bool:
    """Return whether all values are equal, or some are not finite."""
    return not np.isfinite(values).all() or bool(np.ptp(values) <= tolerance * np.abs(values).max())


# SciPy and scikit-learn are imported where they are used: importing them takes a second or two.


def _scipy(correlation: str, labels: np.ndarray, numbers: np.ndarray) -> float:
    """Return a SciPy correlation, or 0 if it is undefined: such predictions carry no information."""
    from scipy import stats

    if _is_uninformative(numbers, RELATIVE_TOLERANCE) or _is_uninformative(labels):
        return 0.0
    return getattr(stats, correlation)(labels.astype(np.float64), numbers.astype(np.float64))[0]


def _sklearn(metric: str, labels: np.ndarray, classes: np.ndarray, **options: Any) -> float:
    from sklearn import metrics

    return getattr(metrics, metric)(labels, classes, **options)


def _matthews(labels: np.ndarray, classes: np.ndarray) -> float:
    """Return Matthews' correlation without scikit-learn's warning if it is undefined."""
    if _is_uninformative(labels) or _is_uninformative(classes):
        return 0.0
    return _sklearn("matthews_corrcoef", labels, classes)


def _f1(labels: np.ndarray, classes: np.ndarray) -> float:
    """Return the F1 of class 1, as GLUE does."""
    return _sklearn("f1_score", labels == 1, classes == 1, zero_division=0)


CLASS_METRICS: Dict[str, Metric] = {
    "accuracy": functools.partial(_sklearn, "accuracy_score"),
    "matthews": _matthews,
    "f1": _f1,
    "macro_f1": functools.partial(_sklearn, "f1_score", average="macro", zero_division=0),
}
NUMBER_METRICS: Dict[str, Metric] = {
    "pearson": functools.partial(_scipy, "pearsonr"),
    "spearman": functools.partial(_scipy, "spearmanr"),
}
METRICS: Dict[str, Metric] = {**CLASS_METRICS, **NUMBER_METRICS}


def score(metric_names: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> Dict[str, float]:
    """Compute metrics of true and predicted classes (int) or numbers (float) [examples]; all values are finite."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if not labels.size or labels.shape != predictions.shape:
        raise ValueError(f"Cannot compare labels of shape {labels.shape} with predictions of {predictions.shape}.")
    for name in metric_names:
        if name not in METRICS:
            raise errors.unknown("metric", name, METRICS)
        if name in CLASS_METRICS and labels.dtype.kind == "f":
            usable = " or ".join(NUMBER_METRICS)
            raise errors.UserError(f"The metric {name} compares classes, but the labels are numbers; use {usable}.")
    return {name: float(METRICS[name](labels, predictions)) for name in metric_names}


def with_primary(name: str, task: Task) -> Tuple[str, ...]:
    """Return a task's metrics with the given one first; raise a `UserError` if it does not suit the task."""
    if name not in METRICS:
        raise errors.unknown("metric", name, METRICS)
    if task.is_regression:
        suitable, predicted = list(NUMBER_METRICS), "numbers"
    else:
        # F1 is that of class 1, which is meaningful only for two classes.
        suitable = [metric for metric in CLASS_METRICS if metric != "f1" or len(task.labels) == 2]
        predicted = f"{len(task.labels)} classes"
    if name not in suitable:
        raise errors.UserError(
            f"The metric {name} does not suit {task.name}, which has {predicted}; use one of: {', '.join(suitable)}."
        )
    return (name, *(other for other in task.metrics if other != name))


def majority_class_score(metric_names: Sequence[str], labels: np.ndarray) -> Dict[str, float]:
    """Score a constant prediction: the most frequent class, or the mean of the numbers."""
    labels = np.asarray(labels)
    constant = labels.mean() if labels.dtype.kind == "f" else np.bincount(labels).argmax()
    return score(metric_names, labels, np.full_like(labels, constant))


def is_collapsed(predictions: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether all predictions are equal, or some are not finite, although the labels differ."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    tolerance = RELATIVE_TOLERANCE if predictions.dtype.kind == "f" else 0.0
    return not _is_uninformative(labels) and _is_uninformative(predictions, tolerance)
