"""The definition of a task, the registry of tasks, and the reader of their tab-separated files."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import math
import os
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import tokenization
from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings


@dataclasses.dataclass(eq=False)
class InputExample:
    """A text or a pair of texts (not tokenized), with its class or number. The guid is unique in its split."""

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Optional[Union[str, float]] = None


@dataclasses.dataclass(frozen=True)
class Split:
    """The file of one split, relative to the task's data folder, and its columns, from 0; -1 is the last one."""

    file: str
    text_a: int
    text_b: Optional[int] = None  # for a task on text pairs
    label: Optional[int] = None  # None if the split has no labels
    header: bool = True
    only: Optional[Tuple[int, str]] = None  # keep only rows with this text in this column, e.g. (0, "zh")
    skip_short_rows: bool = False  # and warn, instead of raising an error; for published files that contain such rows

    def columns_needed(self) -> int:
        """Return the minimum number of columns of a row; column -1 comes after all others."""
        used = [self.text_a, self.text_b, self.label, self.only[0] if self.only else None]
        columns = [column for column in used if column is not None]
        return max(columns) + 1 + (1 if -1 in columns else 0)


@dataclasses.dataclass(frozen=True)
class Task:
    """Predict a class or a number for a text or a pair of texts. Custom data has a task without splits."""

    name: str
    labels: Tuple[str, ...]  # the classes in order; empty for a regression task
    metrics: Tuple[str, ...] = ("accuracy",)  # names in `evaluation.metrics.METRICS`; the first is the primary metric
    train: Optional[Split] = None
    dev: Optional[Split] = None
    test: Optional[Split] = None
    aliases: Tuple[str, ...] = ()  # other names on the command line
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # label in the files -> label, if different
    label_range: Optional[Tuple[float, float]] = None  # of a regression task; predictions are clipped to it
    submission: Optional[str] = None  # name of the file that the benchmark's server expects, if not the task's name
    test_rows: Optional[int] = None  # published number of rows of the test split
    # Returns the examples of a split, given the data folder and the name of the split, instead of reading its file.
    reader: Optional[Callable[[str, str], Iterable[InputExample]]] = None
    # Returns the classes, given the data folder, if they are not known without the data; see `with_labels`.
    find_labels: Optional[Callable[[str], Tuple[str, ...]]] = None
    has_test_labels: bool = False  # whether the test split of the reader has labels, see `scores_test`

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a number."""
        return not self.labels and self.find_labels is None

    @property
    def scores_test(self) -> bool:
        """Whether the test split has labels, so that predictions for it can be scored."""
        return self.has_test_labels or (self.test is not None and self.test.label is not None)

    def with_labels(self, data_dir: str) -> Task:
        """Return the task with its classes, which are read from the data folder if they are not known without it."""
        if self.labels or self.find_labels is None:
            return self
        return dataclasses.replace(self, labels=self.find_labels(data_dir))

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


_TASKS: Dict[str, Task] = {}


def _key(name: str) -> str:
    """Return the key of a name in the registry: without case, hyphens, underscores and spaces."""
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


def register(task: Task) -> Task:
    """Add a task under its name and aliases; raise a ValueError if one of them is taken.

    The same task can be registered again, as when a notebook's cell is run twice; with a reader, a task of that name.
    """
    keys = {_key(name) for name in (task.name,) + task.aliases}
    for key in keys:
        other = _TASKS.get(key, task)
        if other != task and not (task.reader and other.reader and task.name == other.name):
            raise ValueError(f"The task name '{key}' is taken by {_TASKS[key].name}.")
    _TASKS.update(dict.fromkeys(keys, task))
    return task


def names() -> List[str]:
    """Return the names of all tasks in order of registration."""
    return list(dict.fromkeys(task.name for task in _TASKS.values()))


def is_known(name: Optional[str]) -> bool:
    """Return whether `get` finds a task with this name."""
    return _key(name or "") in _TASKS


def get(name: str) -> Task:
    """Return a task by name or alias; raise a `UserError` that lists all tasks if there is none."""
    if not is_known(name):
        raise errors.unknown("task", name, names())
    return _TASKS[_key(name)]


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line ends and byte order mark; raise a `UserError` if it is not UTF-8.

    Only LF and CRLF end a line, as texts may contain other Unicode line breaks. The file is read in blocks.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line_start = ""
    for block in itertools.chain(encodings.read_blocks(path), [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError:
            # Decode the whole file for an error message with the line number.
            text = encodings.decode_utf8(encodings.read_bytes(path), path)
        *lines, line_start = (line_start + text).split("\n")
        if line_start and not block:
            lines.append(line_start)
        for line in lines:
            yield line[:-1] if line.endswith("\r") else line


def read_rows(path: str) -> Iterator[Tuple[int, List[str]]]:
    """Yield (line number from 1, cells) of a tab-separated file. Quotes are text; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line and not line.isspace():
            yield number, line.split("\t")


def read_examples(task: Task, data_dir: str, split_name: str, quiet: bool = False) -> Iterator[InputExample]:
    """Yield the examples of a split while reading its file; unless `quiet`, warn about skipped rows.

    Examples of a split without labels get the first label, as in the original scripts, or 0.0.
    """
    task = task.with_labels(data_dir)
    if task.reader:
        place = f"the {split_name} split of {task.name}"
        examples: Iterable[InputExample] = (_checked(task, each, place) for each in task.reader(data_dir, split_name))
    else:
        place = os.path.join(data_dir, task.split(split_name).file)
        examples = convert_rows(task, split_name, read_rows(place), place, quiet)
    is_empty = True
    for example in examples:
        is_empty = False
        yield example
    if is_empty:
        raise errors.UserError(f"{place} contains no examples of {task.name}.")


def convert_rows(
    task: Task, split_name: str, rows: Iterable[Tuple[int, List[str]]], place: str, quiet: bool = False
) -> Iterator[InputExample]:
    """Yield the examples of numbered rows, see `read_rows`; messages name the place."""
    split = task.split(split_name)
    label = _unknown_label(task)
    columns_needed = split.columns_needed()
    count = 0
    skipped: List[int] = []
    for number, row in rows:
        if split.header and number == 1:
            continue
        if len(row) < columns_needed:
            if not split.skip_short_rows:
                start = "\t".join(row)[:60]
                raise errors.UserError(
                    f"{place}, line {number}: expected at least {columns_needed} tab-separated columns, found "
                    f"{len(row)}: {start!r}."
                )
            skipped.append(number)
            continue
        if split.only and row[split.only[0]] != split.only[1]:
            continue
        count += 1
        if split.label is not None:
            label = _read_label(task, row[split.label], f"{place}, line {number}")
        text_b = None if split.text_b is None else row[split.text_b]
        yield InputExample(f"{split_name}-{number - 1}", row[split.text_a], text_b, label)
    if skipped and not quiet:
        found = f"{len(skipped)} of {len(skipped) + count} rows"
        tf.logging.warning("%s: skipped %s with too few columns, first in line %d.", place, found, skipped[0])


def _unknown_label(task: Task) -> Union[str, float]:
    return 0.0 if task.is_regression else task.labels[0]


def _checked(task: Task, example: InputExample, place: str) -> InputExample:
    """Return an example that a user's code has created, with texts and label in the types that the project uses."""
    texts = [
        each if each is None else tokenization.convert_to_unicode(each) for each in (example.text_a, example.text_b)
    ]
    label: Union[str, float] = _unknown_label(task)
    if example.label is not None:
        text = str(example.label)
        label = text if text in task.labels else _read_label(task, text, f"{place}, example {example.guid}")
    return InputExample(str(example.guid), texts[0] or "", texts[1], label)


def _read_label(task: Task, cell: str, place: str) -> Union[str, float]:
    if not task.is_regression:
        label = task.spellings.get(cell.strip(), cell.strip())
        if label not in task.labels:
            known = ", ".join(task.labels)
            raise errors.UserError(f"{place}: unknown label '{cell[:60]}'; {task.name} has the labels {known}.")
        return label
    least, most = task.label_range or (-math.inf, math.inf)
    value = parse_finite(cell)
    if value is None or not least <= value <= most:
        limits = f" from {least:g} to {most:g}" if task.label_range else ""
        raise errors.UserError(f"{place}: {task.name} expects a finite number{limits} as label, found '{cell[:60]}'.")
    return value


def parse_finite(text: str) -> Optional[float]:
    """Return the number in a text; None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
