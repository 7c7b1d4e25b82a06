"""Metrics over a whole data set. For each of them, higher is better.

Class metrics follow from the confusion matrix. scikit-learn has them too, but importing it takes seconds, as long as
everything else between the last training step and the end of a run. Tests compare both.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Sequence, Tuple

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


def confusion_matrix(labels: np.ndarray, classes: np.ndarray, num_classes: int = 0) -> np.ndarray:
    """Count examples by true and predicted class: int [classes, classes], at least `num_classes` of them."""
    size = max(num_classes, labels.max() + 1, classes.max() + 1)
    return np.bincount(labels * size + classes, minlength=size * size).reshape(size, size)


def f1_per_class(matrix: np.ndarray) -> np.ndarray:
    """Return the F1 of each class of a confusion matrix; 0 for a class that neither occurs nor is predicted."""
    occurrences = matrix.sum(axis=0) + matrix.sum(axis=1)
    return 2 * matrix.diagonal() / np.maximum(occurrences, 1)


def _accuracy(matrix: np.ndarray) -> float:
    return matrix.trace() / matrix.sum()


def _matthews(matrix: np.ndarray) -> float:
    """Return Matthews' correlation for any number of classes; 0 if labels or predictions are constant."""
    predicted, actual, total = matrix.sum(axis=0), matrix.sum(axis=1), matrix.sum()
    covariance = matrix.trace() * total - actual @ predicted
    variances = float(total**2 - predicted @ predicted) * float(total**2 - actual @ actual)
    return covariance / np.sqrt(variances) if variances else 0.0


def _f1(matrix: np.ndarray) -> float:
    """Return the F1 of class 1, as GLUE does."""
    return f1_per_class(matrix)[1]


def _macro_f1(matrix: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur or are predicted."""
    return f1_per_class(matrix)[matrix.any(axis=0) | matrix.any(axis=1)].mean()


def _of_classes(function: Callable[[np.ndarray], float]) -> Metric:
    return lambda labels, classes: function(confusion_matrix(labels, classes, num_classes=2))


def _scipy(correlation: str, labels: np.ndarray, numbers: np.ndarray) -> float:
    """Return a SciPy correlation, or 0 if it is undefined: such predictions carry no information."""
    from scipy import stats  # imported here: takes seconds

    if _is_uninformative(numbers, RELATIVE_TOLERANCE) or _is_uninformative(labels):
        return 0.0
    return getattr(stats, correlation)(labels.astype(np.float64), numbers.astype(np.float64))[0]


CLASS_METRICS: Dict[str, Metric] = {
    "accuracy": _of_classes(_accuracy),
    "matthews": _of_classes(_matthews),
    "f1": _of_classes(_f1),
    "macro_f1": _of_classes(_macro_f1),
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
