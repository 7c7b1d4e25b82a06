"""Score predictions and restore their order."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Iterable, Iterator, Mapping, Sequence

import numpy as np

from adapter_bert.common.progress import with_progress
from adapter_bert.evaluation import metrics as metrics_lib
from adapter_bert.model.heads import ROW, LabelHead

Row = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a set of predictions."""

    metrics: Mapping[str, float]  # the first is the primary metric, which selects the best weights: higher is better
    loss: float  # mean over the examples
    collapsed: bool  # whether all predictions are the same although the labels differ
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)  # written to files but not logged

    @property
    def primary(self) -> float:
        """The value of the primary metric."""
        return next(iter(self.metrics.values()))

    def __str__(self) -> str:
        values = [f"{name} {value:.4f}" for name, value in self.metrics.items()] + [f"loss {self.loss:.4f}"]
        return "  ".join(values) + ("  (collapsed: all predictions are the same)" if self.collapsed else "")


Scorer = Callable[[Sequence[Row]], Scores]


def in_file_order(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows in the order of their `ROW`, which is removed; rows without it are yielded unchanged.

    A row waits for those before it, so memory holds at most as many rows as were sorted together.
    """
    waiting: Dict[int, Row] = {}
    following = 0
    for row in rows:
        if ROW not in row:
            yield row
            continue
        waiting[int(row[ROW])] = {name: value for name, value in row.items() if name != ROW}
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    if waiting:
        raise ValueError(f"Row {following} is missing, but later rows exist.")


def predicted_rows(batches: Iterable[Row], num_examples: int, action: str) -> Iterator[Row]:
    """Yield the rows of all batches in the order of the file, without padding examples; log progress as `action`."""
    rows = (
        {name: values[index] for name, values in batch.items()}
        for batch in batches
        for index in range(len(batch["is_real_example"]))
    )
    # Count rows when they are predicted, not when they are yielded in order.
    ordered = in_file_order(with_progress(rows, num_examples, action, "examples"))
    return (row for row in ordered if row["is_real_example"])


def score_rows(metric_names: Sequence[str], head: LabelHead, rows: Sequence[Row]) -> Scores:
    """Score the predictions of a head for a whole split; the first metric is the primary one."""
    labels = np.array([row["label_ids"] for row in rows])
    predictions = np.array([head.decode(row) for row in rows])
    return Scores(
        metrics=metrics_lib.score(metric_names, labels, predictions),
        loss=float(np.mean([row["loss"] for row in rows], dtype=np.float64)),
        collapsed=metrics_lib.is_collapsed(predictions, labels),
    )
