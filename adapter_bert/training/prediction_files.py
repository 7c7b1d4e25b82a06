"""Files with predictions next to their texts."""

from __future__ import annotations

from typing import Collection, Iterable, List, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.evaluation import prediction_table
from adapter_bert.evaluation.scores import Row
from adapter_bert.tasks import InputExample, Task
from adapter_bert.tasks.custom import table_writer
from adapter_bert.tasks.custom.table import one_line
from adapter_bert.weights.run_folder import TEST_PREDICTIONS_FILE, WORST_MISTAKES_FILE, RunFolder

# Of the mistakes in the log.
_SHOWN, _TEXT_LENGTH = 3, 100

Predictions = Sequence[Union[int, float]]  # the predicted classes or numbers


def write_predictions(
    folder: RunFolder, task: Task, examples: Collection[InputExample], rows: Sequence[Row], predictions: Predictions
) -> str:
    """Write texts and predictions of the test split, in the order of its file; return the path."""
    has_pairs = _has_pairs(examples)
    columns = [*_text_columns(has_pairs), *prediction_table.columns(task.labels)]
    cells = (
        [*_texts(example, has_pairs), *_cells(task, row, predicted)]
        for example, row, predicted in zip(examples, rows, predictions)
    )
    path = folder.result_file(TEST_PREDICTIONS_FILE, task.name)
    table_writer.write_table(path, columns, cells)
    return path


def write_mistakes(
    folder: RunFolder,
    task: Task,
    examples: Collection[InputExample],
    rows: Sequence[Row],
    predictions: Predictions,
    worst: Sequence[int],
) -> None:
    """Write the dev examples with the indices `worst`, in this order, and log the first ones."""
    chosen = _choose(examples, worst)
    has_pairs = _has_pairs(chosen)
    columns = ["example", *_text_columns(has_pairs), "label", "loss", *prediction_table.columns(task.labels)]
    cells = [
        [
            example.guid,
            *_texts(example, has_pairs),
            example.label,
            float(str(np.float32(rows[index]["loss"]))),
            *_cells(task, rows[index], predictions[index]),
        ]
        for index, example in zip(worst, chosen)
    ]
    path = folder.result_file(WORST_MISTAKES_FILE, task.name)
    table_writer.write_table(path, columns, cells)
    tf.logging.info("***** %d worst mistakes: %s *****", len(worst), path)
    for index, example in list(zip(worst, chosen))[:_SHOWN]:
        predicted = _cells(task, rows[index], predictions[index])[: 2 if task.labels else 1]
        found = " ".join(cell if isinstance(cell, str) else f"{cell:.4f}" for cell in predicted)
        text = one_line(" | ".join(filter(None, (example.text_a, example.text_b))))[:_TEXT_LENGTH]
        tf.logging.info("  %s, predicted %s: %s", example.label, found, text)


def _choose(examples: Iterable[InputExample], indices: Sequence[int]) -> List[InputExample]:
    """Return some examples of a split, which is read once."""
    wanted = set(indices)
    found = {index: example for index, example in enumerate(examples) if index in wanted}
    return [found[index] for index in indices]


def _has_pairs(examples: Iterable[InputExample]) -> bool:
    first = next(iter(examples), None)
    return first is not None and first.text_b is not None


def _text_columns(has_pairs: bool) -> Tuple[str, ...]:
    return prediction_table.TEXT_COLUMNS[: 2 if has_pairs else 1]


def _texts(example: InputExample, has_pairs: bool) -> List[str]:
    return [example.text_a, example.text_b or ""] if has_pairs else [example.text_a]


def _cells(task: Task, row: Row, predicted: float) -> List[object]:
    values = row["logits" if task.is_regression else "probabilities"]
    return prediction_table.cells(task.labels, values.tolist(), 0 if task.is_regression else int(predicted))
