"""The definition of a task, and the reader of its tab-separated files."""

from __future__ import annotations

import codecs
import dataclasses
import math
import os
from typing import Iterator, List, Mapping, Optional, Tuple, Union

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings


class InputExample:
    """A text or a pair of texts (not tokenized), with its class or number. The guid is unique in its split."""

    def __init__(
        self, guid: str, text_a: str, text_b: Optional[str] = None, label: Optional[Union[str, float]] = None
    ) -> None:
        self.guid = guid
        self.text_a = text_a
        self.text_b = text_b
        self.label = label


@dataclasses.dataclass(frozen=True)
class Split:
    """The file of one split and its columns. Columns count from 0; -1 is the last.

    Attributes:
      file: path relative to the task's data folder.
      text_a: column of the first text.
      text_b: column of the second text, for a task on pairs.
      label: column of the label; None if the split has no labels.
      header: whether the first line contains column names.
      only: keep only rows with this text in this column, e.g. (0, "zh").
      skip_short_rows: skip rows with too few columns and warn, instead of raising an error. For published files that
        contain such rows.
    """

    file: str
    text_a: int
    text_b: Optional[int] = None
    label: Optional[int] = None
    header: bool = True
    only: Optional[Tuple[int, str]] = None
    skip_short_rows: bool = False

    def columns_needed(self) -> int:
        """Return the minimum number of columns of a row; column -1 comes after all others."""
        used = [self.text_a, self.text_b, self.label, self.only[0] if self.only else None]
        columns = [column for column in used if column is not None]
        return max(columns) + 1 + (1 if -1 in columns else 0)


@dataclasses.dataclass(frozen=True)
class Task:
    """Predict a class or a number for a text or a pair of texts.

    Attributes:
      name: name on the command line (case-insensitive).
      labels: the classes in order. Empty for a regression task.
      metrics: names in `evaluation.metrics.METRICS`; the first is the primary metric.
      train, dev, test: the splits; None if there is no such split, or for custom data.
      aliases: other names on the command line.
      spellings: label in the files -> label of the task, where they differ.
      label_range: smallest and largest value of a regression label; predictions are clipped to it.
      submission: name of the file (without .tsv) that the benchmark's server expects; defaults to the task's name.
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
        """Whether the task predicts a number."""
        return not self.labels

    @property
    def primary_metric(self) -> str:
        """The metric that models of this task are compared by."""
        return self.metrics[0]

    def split(self, name: str) -> Split:
        """Return the split `train`, `dev` or `test`; raise a `UserError` if the task does not have it."""
        split = {"train": self.train, "dev": self.dev, "test": self.test}[name]
        if split is None:
            raise errors.UserError(f"{self.name} has no {name} split.")
        return split


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line ends and without a byte order mark.

    Only LF and CRLF end a line, as texts may contain other Unicode line breaks. The file is read in blocks.

    Raises:
      errors.UserError: the file is missing or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line_start = ""
    for block in encodings.read_blocks(path):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError:
            # Decode the whole file for an error message with the line number.
            text = encodings.decode_utf8(encodings.read_bytes(path), path)
        *lines, line_start = (line_start + text).split("\n")
        for line in lines:
            yield line[:-1] if line.endswith("\r") else line
    if line_start:
        yield line_start[:-1] if line_start.endswith("\r") else line_start


def read_rows(path: str) -> Iterator[Tuple[int, List[str]]]:
    """Yield (line number from 1, cells) of a tab-separated file. Quotes are text; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line and not line.isspace():
            yield number, line.split("\t")


def read_examples(task: Task, data_dir: str, split_name: str, quiet: bool = False) -> Iterator[InputExample]:
    """Yield the examples of a split while reading its file; unless `quiet`, warn about skipped rows.

    Examples of a split without labels get the first label, as in the original scripts, or 0.0.

    Raises:
      errors.UserError: a missing file, a row with too few columns, an unknown label, or no examples.
    """
    split = task.split(split_name)
    path = os.path.join(data_dir, split.file)
    read_label = _read_number if task.is_regression else _read_class
    label: Union[str, float] = 0.0 if task.is_regression else task.labels[0]
    columns_needed = split.columns_needed()
    count = 0
    skipped: List[int] = []
    for number, row in read_rows(path):
        if split.header and number == 1:
            continue
        if len(row) < columns_needed:
            if not split.skip_short_rows:
                start = "\t".join(row)[:60]
                raise errors.UserError(
                    f"{path}, line {number}: expected at least {columns_needed} tab-separated columns, found "
                    f"{len(row)}: {start!r}."
                )
            skipped.append(number)
            continue
        if split.only and row[split.only[0]] != split.only[1]:
            continue
        count += 1
        if split.label is not None:
            label = read_label(task, row[split.label], f"{path}, line {number}")
        text_b = None if split.text_b is None else row[split.text_b]
        yield InputExample(f"{split_name}-{number - 1}", row[split.text_a], text_b, label)
    if skipped and not quiet:
        rows = f"{len(skipped)} of {len(skipped) + count} rows"
        tf.logging.warning("%s: skipped %s with too few columns, first in line %d.", path, rows, skipped[0])
    if not count:
        raise errors.UserError(f"{path} contains no examples of {task.name}.")


def _read_class(task: Task, cell: str, place: str) -> str:
    label = cell.strip()
    label = task.spellings.get(label, label)
    if label not in task.labels:
        raise errors.UserError(f"{place}: unknown label '{cell}'; {task.name} has the labels {', '.join(task.labels)}.")
    return label


def _read_number(task: Task, cell: str, place: str) -> float:
    least, most = task.label_range or (float("-inf"), float("inf"))
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        limits = f" from {least:g} to {most:g}" if task.label_range else ""
        raise errors.UserError(f"{place}: {task.name} expects a finite number{limits} as label, found '{cell}'.")
    return value
