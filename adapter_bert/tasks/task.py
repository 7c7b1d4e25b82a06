"""What a task is, and how the table files that hold its examples are read."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings


class InputExample:
    """One example as it stands in the data: a text or a pair of texts, and its label if known."""

    def __init__(
        self, guid: str, text_a: str, text_b: Optional[str] = None, label: Optional[Union[str, float]] = None
    ) -> None:
        """Takes the parts.

        Args:
          guid: a name for the example, unique in its split.
          text_a: the first text, not tokenised.
          text_b: the second text of a pair.
          label: the label as a word, or the number to predict in a regression; None or any where it is unknown.
        """
        self.guid = guid
        self.text_a = text_a
        self.text_b = text_b
        self.label = label


@dataclasses.dataclass(frozen=True)
class Split:
    """Where one split lies and which columns hold what. Columns count from 0; -1 is the last.

    Attributes:
      file: path below the task's data folder.
      text_a: column of the first text.
      text_b: column of the second text, if the task has pairs.
      label: column of the label; None for a split without labels.
      header: whether the first line names the columns.
      only: keep only rows with this text in this column, e.g. (0, "zh").
      skip_short_rows: rows with too few columns are left out and counted in a warning: for a published file that has
        such rows. Otherwise they are refused.
    """

    file: str
    text_a: int
    text_b: Optional[int] = None
    label: Optional[int] = None
    header: bool = True
    only: Optional[Tuple[int, str]] = None
    skip_short_rows: bool = False

    def columns_needed(self) -> int:
        """How many columns a row must have at least; a column -1 adds one of its own."""
        used = [self.text_a, self.text_b, self.label, self.only[0] if self.only else None]
        named = [column for column in used if column is not None]
        return max(named) + 1 + (1 if -1 in named else 0)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be learnt: a class, or a number, for a text or a pair of texts.

    Attributes:
      name: how it is called on the command line (any case).
      labels: the label words; their order is the order of the classes. Empty: the label is a number (regression).
      metrics: names in `evaluation.metrics.METRICS`; the first is the primary one, which decides.
      train, dev, test: its splits; None where the task has none, or where its files are not in a fixed layout.
      aliases: further names.
      spellings: label words of the files -> label words of the task, where they differ.
      label_range: least and greatest number that a prediction may be (regression); others are clipped.
      submission: name of the file (without .tsv) that the benchmark's server takes; the task's own name if None.
      test_rows: published number of rows of the test split.
    """

    name: str
    labels: Tuple[str, ...]
    metrics: Tuple[str, ...] = ("accuracy",)
    train: Optional[Split] = None
    dev: Optional[Split] = None
    test: Optional[Split] = None
    aliases: Tuple[str, ...] = ()
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    label_range: Optional[Tuple[float, float]] = None
    submission: Optional[str] = None
    test_rows: Optional[int] = None

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted, and not a class."""
        return not self.labels

    @property
    def primary_metric(self) -> str:
        """The metric by which two models of this task are compared."""
        return self.metrics[0]

    def split(self, name: str) -> Split:
        """The split of this name: train, dev or test.

        Raises:
          errors.UserError: the task has no such split.
        """
        split = {"train": self.train, "dev": self.dev, "test": self.test}[name]
        if split is None:
            raise errors.UserError(f"{self.name} has no {name} split.")
        return split


def read_lines(path: str) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their ends, read as they are needed; a byte order mark is dropped.

    Only line feeds (with or without a carriage return) end a line: texts may hold other Unicode line breaks.

    Raises:
      errors.UserError: the file is missing, or a byte in it is not UTF-8.
    """
    encoding = "utf-8-sig"
    for block in encodings.read_line_blocks(path):
        try:
            text = block.decode(encoding)
        except UnicodeDecodeError:
            # What it may be, and in which line, is to be told from the whole file.
            text = encodings.decode_utf8(encodings.read_bytes(path), path)
        encoding = "utf-8"
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        for line in lines:
            yield line[:-1] if line.endswith("\r") else line


def read_rows(path: str) -> Iterator[Tuple[int, List[str]]]:
    """Yields (line number from 1, cells) of a tab-separated file. Quotes are text; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line and not line.isspace():
            yield number, line.split("\t")


def split_path(task: Task, data_dir: str, split_name: str) -> str:
    """The file of a split."""
    return os.path.join(data_dir, task.split(split_name).file)


def read_examples(task: Task, data_dir: str, split_name: str, quiet: bool = False) -> Iterator[InputExample]:
    """Yields the examples of a split, read as they are needed.

    A split without a label column gives every example the first label, as the original scripts do, or the number 0.

    Args:
      task: the task.
      data_dir: its folder.
      split_name: train, dev or test.
      quiet: do not warn of rows that are left out.

    Raises:
      errors.UserError: a missing file, a row with too few columns, an unknown label, or no example at all.
    """
    split = task.split(split_name)
    path = split_path(task, data_dir, split_name)
    read_label = _number if task.is_regression else _label_word
    label = 0.0 if task.is_regression else task.labels[0]
    columns_needed = split.columns_needed()
    count, skipped, first_skipped = 0, 0, 0
    for number, row in read_rows(path):
        if split.header and number == 1:
            continue
        if len(row) < columns_needed:
            if not split.skip_short_rows:
                raise _too_short(row, split, path, number)
            skipped, first_skipped = skipped + 1, first_skipped or number
            continue
        if split.only and row[split.only[0]] != split.only[1]:
            continue
        count += 1
        if split.label is not None:
            label = read_label(task, row[split.label], path, number)
        text_b = None if split.text_b is None else row[split.text_b]
        yield InputExample(f"{split_name}-{number - 1}", row[split.text_a], text_b, label)
    if skipped and not quiet:
        tf.logging.warning(
            "%s: %d of %d rows have too few columns and are left out; the first is line %d.",
            path,
            skipped,
            skipped + count,
            first_skipped,
        )
    if not count:
        raise errors.UserError(f"{path} holds no example of {task.name}.")


def _label_word(task: Task, cell: str, path: str, number: int) -> str:
    word = cell.strip()
    word = task.spellings.get(word, word)
    if word not in task.labels:
        raise errors.UserError(
            "{}, line {}: unknown label '{}'; {} has the labels {}.".format(
                path, number, cell, task.name, ", ".join(task.labels)
            )
        )
    return word


def _number(task: Task, cell: str, path: str, number: int) -> float:
    least, most = task.label_range or (float("-inf"), float("inf"))
    place = f"{path}, line {number}"
    try:
        value = float(cell)
    except ValueError:
        raise errors.UserError(f"{place}: {task.name} expects a number as label, found '{cell}'.") from None
    if not math.isfinite(value) or not least <= value <= most:
        limits = f" from {least:g} to {most:g}" if task.label_range else ""
        raise errors.UserError(f"{place}: {task.name} expects a finite number{limits} as label, found '{cell}'.")
    return value


def _too_short(row: Sequence[str], split: Split, path: str, number: int) -> errors.UserError:
    return errors.UserError(
        "{}, line {}: found {} tab-separated column{}, expected at least {}: {!r}.".format(
            path,
            number,
            len(row),
            "" if len(row) == 1 else "s",
            split.columns_needed(),
            "\t".join(row)[:60],
        )
    )
