"""Precision, recall and F1 of each class, the confusion matrix, and the largest mistakes of a classifier."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence

import numpy as np
import tabulate

from adapter_bert.evaluation import metrics
from adapter_bert.tasks.custom.labels import shorten

# Limits for the screen: a wider matrix or a longer table would not fit.
MATRIX_CLASSES, TABLE_CLASSES = 12, 50
_COLUMN_WIDTH = 12
_COLUMNS = ("precision", "recall", "f1")


class ClassReport(NamedTuple):
    """Scores of each class and the confusion matrix; both empty without classes."""

    per_class: Mapping[str, Mapping[str, float]] = {}  # label -> precision, recall, f1 and support
    confusion_matrix: Sequence[Sequence[int]] = ()  # [gold][predicted], in the same order

    def __bool__(self) -> bool:
        return bool(self.per_class)

    def as_text(self, for_screen: bool = False) -> str:
        """Return both as tables with four digits; `for_screen` leaves out what does not fit on a screen."""
        shown = list(self.per_class.items())[: TABLE_CLASSES if for_screen else None]
        rows = [[shorten(name), *(f"{of[key]:.4f}" for key in _COLUMNS), str(of["support"])] for name, of in shown]
        text = _table(rows, ["class", *_COLUMNS, "support"])
        if len(shown) < len(self.per_class):
            text += f"\n… and {len(self.per_class) - len(shown)} more classes"
        names = [shorten(name) for name in self.per_class]
        if for_screen and len(names) > MATRIX_CLASSES:
            return text
        matrix = [[name, *map(str, counts)] for name, counts in zip(names, self.confusion_matrix)]
        return text + "\n\n" + _table(matrix, ["gold \\ predicted", *(name[:_COLUMN_WIDTH] for name in names)])


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate.tabulate(rows, headers, "plain", colalign=align, disable_numparse=True)


def class_report(labels: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> ClassReport:
    """Compare true and predicted class indices [examples]; a score without examples to divide by is 0."""
    matrix = metrics.confusion_matrix(true, predicted, len(labels))
    support, chosen, correct = matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()
    columns = (correct / np.maximum(chosen, 1), correct / np.maximum(support, 1), metrics.f1_per_class(matrix), support)
    rows = zip(labels, *(column.tolist() for column in columns))
    per_class = {label: dict(zip((*_COLUMNS, "support"), scores)) for label, *scores in rows}
    return ClassReport(per_class, matrix.tolist())


def worst_mistakes(losses: np.ndarray, is_wrong: np.ndarray, count: int) -> List[int]:
    """Return the indices of wrong examples with the highest loss, the worst first; ties in the order of the file."""
    order = np.argsort(-np.asarray(losses), kind="stable")
    return [int(index) for index in order if is_wrong[index]][:count]
