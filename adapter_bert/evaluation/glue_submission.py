"""Predictions of a test split in the form that GLUE's server takes: `index<TAB>prediction`, a line for each example."""

from __future__ import annotations

import math
import os
import re
from typing import List, Optional, Sequence, Union

from adapter_bert.common import errors, files
from adapter_bert.tasks.task import Task

HEADER = "index\tprediction"


def file_name(task: Task) -> str:
    """The name of a task's file, e.g. `CoLA.tsv`: the server's, or the task's own made safe for a file."""
    # A first dot would hide the file or, with a second one, name a folder.
    safe = re.sub(r"^\.+|[^\w.-]", "_", task.submission or task.name)
    return (safe or "predictions") + ".tsv"


def lines(task: Task, predictions: Sequence[Union[int, float]]) -> List[str]:
    """The lines of a task's file, without their ends.

    Args:
      task: the task.
      predictions: for each example in the order of the test split, its class (an index of `task.labels`) or number.

    Returns:
      The header and a line for each prediction. Numbers are clipped to `task.label_range`, if it has one.

    Raises:
      errors.UserError: a predicted number is not finite.
      ValueError: a class does not exist.
    """
    cell = _number_cell if task.is_regression else _class_cell
    return [HEADER] + [f"{index}\t{cell(task, value, index)}" for index, value in enumerate(predictions)]


def write(task: Task, predictions: Sequence[Union[int, float]], folder: str) -> str:
    """Writes a task's file to a folder; returns its path. Any number of predictions will do, see `mismatch`."""
    path = os.path.join(folder, file_name(task))
    files.write_text(path, "\n".join(lines(task, predictions)) + "\n")
    return path


def mismatch(task: Task, rows: int) -> Optional[str]:
    """What is wrong with a number of predictions, as a sentence; None if the server takes as many.

    Test files of one's own in a task's layout have other numbers of rows: they are predicted all the same.
    """
    if task.test_rows in (None, rows):
        return None
    return f"{task.name} has {task.test_rows} test examples as published, found {rows} predictions"


def check(task: Task, text: str, source: str) -> None:
    """Checks that a file is what the server takes.

    Args:
      task: the task.
      text: what the file holds.
      source: its name, for the message.

    Raises:
      errors.UserError: names the file, the line, what was found there and what was expected.
    """
    found = text.split("\n")
    if found[-1] == "":
        found.pop()
    if not found or found[0] != HEADER:
        first = found[0][:60] if found else ""
        raise errors.UserError(f"{source}, line 1: expected the header {HEADER!r}, found {first!r}.")
    problem = mismatch(task, len(found) - 1)
    if problem:
        raise errors.UserError(f"{source}: {problem}; predict the published test split.")
    for index, line in enumerate(found[1:]):
        problem = _problem(task, index, line.split("\t"))
        if problem:
            raise errors.UserError(f"{source}, line {index + 2}: {problem}, found {line[:60]!r}.")


def _class_cell(task: Task, value: Union[int, float], index: int) -> str:
    if not 0 <= value < len(task.labels):
        raise ValueError(f"Prediction {index} is class {value}; {task.name} has the classes {task.labels}.")
    return task.labels[int(value)]


def _number_cell(task: Task, value: Union[int, float], index: int) -> str:
    value = float(value)
    if not math.isfinite(value):
        raise errors.UserError(
            f"The model predicts {value} for test example {index} of {task.name}: its training has diverged. "
            "Train it again with a smaller --learning_rate."
        )
    if task.label_range is None:
        return f"{value:.6g}"
    least, most = task.label_range
    # The sum turns a negative zero into zero.
    return f"{min(max(value, least), most) + 0.0:.3f}"


def _problem(task: Task, index: int, cells: Sequence[str]) -> Optional[str]:
    """What is wrong with the line of an example, as the beginning of a sentence; None if nothing is."""
    if len(cells) != 2:
        return "expected two tab-separated columns"
    if cells[0] != str(index):
        return f"expected the index {index}"
    if not task.is_regression:
        return None if cells[1] in task.labels else "expected one of the labels {}".format(", ".join(task.labels))
    least, most = task.label_range or (float("-inf"), float("inf"))
    try:
        value = float(cells[1])
    except ValueError:
        value = float("nan")
    if math.isfinite(value) and least <= value <= most:
        return None
    return f"expected a number from {least:g} to {most:g}" if task.label_range else "expected a finite number"
