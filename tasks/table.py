"""What a task is, and how the table files that hold its examples are read."""

from __future__ import annotations

import dataclasses
import os
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

import errors


class InputExample:
    """One example as it stands in the data: a text or a pair of texts, and its label if known."""

    def __init__(self, guid: str, text_a: str, text_b: Optional[str] = None, label: Optional[str] = None) -> None:
        """Takes the parts.

        Args:
          guid: a name for the example, unique in its split.
          text_a: the first text, not tokenised.
          text_b: the second text of a pair.
          label: the label as a word; None or any label where it is unknown.
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
    """

    file: str
    text_a: int
    text_b: Optional[int] = None
    label: Optional[int] = None
    header: bool = True
    only: Optional[Tuple[int, str]] = None

    def columns_needed(self) -> int:
        """How many columns a row must have at least; a column -1 adds one of its own."""
        used = [self.text_a, self.text_b, self.label, self.only[0] if self.only else None]
        named = [column for column in used if column is not None]
        return max(named) + 1 + (1 if -1 in named else 0)


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification task over table files.

    Attributes:
      name: how it is called on the command line (any case).
      train, dev, test: its splits.
      labels: the label words; their order is the order of the classes.
      metrics: names in `training.scoring.METRICS`; the first is the one that decides.
      aliases: further names.
      spellings: label words of the files -> label words of the task, where they differ.
    """

    name: str
    train: Split
    dev: Split
    test: Split
    labels: Tuple[str, ...]
    metrics: Tuple[str, ...] = ("accuracy",)
    aliases: Tuple[str, ...] = ()
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def split(self, name: str) -> Split:
        """The split of this name: train, dev or test."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[name]


def read_lines(path: str) -> List[str]:
    """The lines of a UTF-8 file without their ends; a byte order mark is dropped.

    Only line feeds (with or without a carriage return) end a line: texts may hold other Unicode line breaks.

    Raises:
      errors.UserError: the file is missing, or a byte in it is not UTF-8.
    """
    try:
        with tf.gfile.GFile(path, "rb") as reader:
            data = reader.read()
    except tf.errors.OpError as error:
        folder = os.path.dirname(path) or "."
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(f"The data folder {folder} does not exist.") from None
        present = ", ".join(sorted(tf.gfile.ListDirectory(folder))[:10]) or "nothing"
        reason = "does not exist" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise errors.UserError(f"The data file {path} {reason}; the folder holds: {present}.") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count in what was decoded: the data without its byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise errors.UserError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; convert the file to UTF-8."
        ) from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def read_rows(path: str) -> Iterator[Tuple[int, List[str]]]:
    """Yields (line number from 1, cells) of a tab-separated file. Quotes are text; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield number, line.split("\t")


def read_examples(task: Task, data_dir: str, split_name: str) -> Iterator[InputExample]:
    """Yields the examples of a split.

    A split without a label column gives every example the first label, as the original scripts do.

    Raises:
      errors.UserError: a missing file, a row with too few columns, an unknown label, or no example at all.
    """
    split = task.split(split_name)
    path = os.path.join(data_dir, split.file)
    label_of = _label_words(task)
    count = 0
    for number, row in read_rows(path):
        if split.header and number == 1:
            continue
        _check_width(row, split, path, number)
        if split.only and row[split.only[0]] != split.only[1]:
            continue
        count += 1
        label = task.labels[0]
        if split.label is not None:
            label = label_of.get(row[split.label].strip())
            if label is None:
                raise errors.UserError(
                    "{}, line {}: unknown label '{}'; {} has the labels {}.".format(
                        path, number, row[split.label], task.name, ", ".join(task.labels)
                    )
                )
        text_b = None if split.text_b is None else row[split.text_b]
        yield InputExample(f"{split_name}-{number - 1}", row[split.text_a], text_b, label)
    if not count:
        raise errors.UserError(f"{path} holds no example of {task.name}.")


def _label_words(task: Task) -> Dict[str, str]:
    words = {label: label for label in task.labels}
    words.update(task.spellings)
    return words


def _check_width(row: Sequence[str], split: Split, path: str, number: int) -> None:
    if len(row) < split.columns_needed():
        raise errors.UserError(
            "{}, line {}: found {} tab-separated column{}, expected at least {}: {!r}.".format(
                path,
                number,
                len(row),
                "" if len(row) == 1 else "s",
                split.columns_needed(),
                "\t".join(row)[:60],
            )
        )
