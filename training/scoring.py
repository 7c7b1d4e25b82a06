"""Metrics over a whole data set, by scikit-learn."""

from __future__ import annotations

import collections
from typing import Callable, Dict, Sequence

import numpy as np
from sklearn import metrics as sklearn_metrics

# Name -> function of (labels, predicted classes). F1 is that of class 1, as GLUE has it.
METRICS: Dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "matthews": sklearn_metrics.matthews_corrcoef,
    "f1": lambda labels, classes: sklearn_metrics.f1_score(labels, classes, zero_division=0),
}


def score(metric_names: Sequence[str], labels: np.ndarray, classes: np.ndarray) -> Dict[str, float]:
    """Computes metrics.

    Args:
      metric_names: keys of `METRICS`.
      labels: int [examples], the true classes.
      classes: int [examples], the predicted ones.

    Returns:
      Name -> value, in the order of the names.
    """
    return collections.OrderedDict((name, float(METRICS[name](labels, classes))) for name in metric_names)


def majority_class_score(metric_names: Sequence[str], labels: np.ndarray) -> Dict[str, float]:
    """What predicting the most frequent label for every example would score."""
    return score(metric_names, labels, np.full_like(labels, np.bincount(labels).argmax()))
