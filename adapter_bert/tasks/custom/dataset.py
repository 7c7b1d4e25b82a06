"""A user's own data -> a task and its examples. Labels are learnt from the training file."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.common.text import first_names
from adapter_bert.tasks.custom import tables
from adapter_bert.tasks.custom.labels import finite, short
from adapter_bert.tasks.task import InputExample, Task

SPLITS = ("train", "dev", "test")
TASK_TYPES = ("classification", "regression")
CLASSIFICATION_METRICS = ("accuracy", "macro_f1", "matthews")
REGRESSION_METRICS = ("spearman", "pearson")

_INTEGER = re.compile(r"[-+]?[0-9]+")
# Up to so many labels, a file may have nearly as many labels as rows: it is a first try, not a mistaken column.
_FEW_LABELS = 5
# More fractional numbers than this are measurements, not names of classes.
_MANY_FRACTIONS = 20
_LABEL_LIKE = range(2, 51)


@dataclasses.dataclass(frozen=True)
class CustomData:
    """Where a user's data lies and how it is to be read. Each attribute is the flag of its name.

    Attributes:
      train_file, dev_file, test_file: see `formats`. Without a dev file, a share of train_file is split off.
      text_column, text_pair_column, label_column: names, or numbers from 1 in a file without a header.
      task_type: `classification` or `regression`.
      encoding, header, quoting: see `tasks.custom.tables.TableFormat`.
      labels: keep only rows with these labels; their order is the order of the classes.
      label_map: spelling in the files -> label. Applied before `labels`.
      dev_fraction: share of the training file's rows that is split off; 0: none.
      split_seed: seed of that split, and of nothing else.
    """

    train_file: Optional[str] = None
    dev_file: Optional[str] = None
    test_file: Optional[str] = None
    text_column: str = tables.TEXT_COLUMN
    text_pair_column: Optional[str] = None
    label_column: str = tables.LABEL_COLUMN
    task_type: str = "classification"
    encoding: Optional[str] = None
    header: Optional[bool] = None
    quoting: Optional[bool] = None
    labels: Optional[Tuple[str, ...]] = None
    label_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dev_fraction: float = 0.1
    split_seed: int = 1

    def __post_init__(self) -> None:
        if self.task_type not in TASK_TYPES:
            raise errors.unknown("--task_type", self.task_type, TASK_TYPES)
        if not 0 <= self.dev_fraction < 1:
            raise errors.UserError(f"--dev_fraction must be 0 or more and less than 1, found {self.dev_fraction}.")
        if not 0 <= self.split_seed < 2**32:
            raise errors.UserError(f"--split_seed must be from 0 to {2**32 - 1}, found {self.split_seed}.")
        if self.labels is not None and self.is_regression:
            raise errors.UserError("--labels names classes; with --task_type=regression the labels are numbers.")
        if self.labels is not None and len(self.labels) < 2:
            raise errors.UserError(f"--labels needs two labels or more, found {len(self.labels)}.")
        twice = [label for label, count in collections.Counter(self.labels or ()).items() if count > 1]
        if twice:
            raise errors.UserError(f"--labels names '{twice[0]}' twice.")

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers to predict, and not classes."""
        return self.task_type == "regression"

    @property
    def splits_off_dev(self) -> bool:
        """Whether the dev split is a share of the training file."""
        return not self.dev_file and self.dev_fraction > 0


class _LabelledRow(NamedTuple):
    number: int
    place: str
    text_a: str
    text_b: Optional[str]
    label: str


class _Source:
    """A table with the positions of the columns in use."""

    def __init__(self, path: str, data: CustomData, with_label: bool) -> None:
        named = [data.text_column, data.text_pair_column, data.label_column if with_label else None]
        chosen = [column for column in named if column]
        table_format = tables.TableFormat(data.encoding, data.header, data.quoting)
        self.table = tables.read_table(path, chosen, table_format)
        self.text_a = self._find(data.text_column, "--text_column")
        self.text_b = self._find(data.text_pair_column, "--text_pair_column") if data.text_pair_column else None
        self.label = self._find(data.label_column, "--label_column") if with_label else None
        self.header_is_assumed = data.header is None and self.table.kind == "numbers"

    def _find(self, column: str, flag: str) -> int:
        """A column's position; one without any content is refused, as no row could be used."""
        position = self.table.find(column, flag)
        # Rows that lack the cell are reported as such when they are read.
        if all(len(row.cells) > position for row in self.table.rows) and not self.table.filled(position):
            filled = [name for index, name in enumerate(self.table.columns) if self.table.filled(index)]
            raise errors.UserError(
                "{}: the column '{}' ({}) is empty in all {} rows; columns with content: {}.".format(
                    self.table.path, column, flag, len(self.table.rows), ", ".join(filled) or "none"
                )
            )
        return position

    def rows(self) -> List[_LabelledRow]:
        """All rows; labels without blanks around them, empty where there is no label column."""
        table = self.table
        return [
            _LabelledRow(
                row.number,
                table.place(row),
                table.text(row, self.text_a),
                None if self.text_b is None else table.text(row, self.text_b),
                "" if self.label is None else table.text(row, self.label).strip(),
            )
            for row in table.rows
        ]

    def label_like_columns(self) -> List[str]:
        """Columns other than those in use that have few different values, most of them more than once."""
        found = []
        for position, name in enumerate(self.table.columns):
            values = self.table.filled(position)
            distinct = len({value.strip() for value in values})
            is_free = position not in (self.text_a, self.text_b, self.label)
            if is_free and distinct in _LABEL_LIKE and 2 * distinct <= len(values):
                found.append(name)
        return found


def read(
    name: str, data: CustomData, wanted: Collection[str], stored_labels: Optional[Sequence[str]] = None
) -> Tuple[Task, Dict[str, List[InputExample]]]:
    """Reads the splits that are wanted, and what the task is.

    Without a dev file, the dev rows are taken out of the training rows in every call, whether they are wanted or not:
    a later evaluation never scores what was trained on.

    Args:
      name: of the task.
      data: the files.
      wanted: of `train`, `dev`, `test`.
      stored_labels: the classes, in order, of an earlier training that this call goes on with; empty in regression.

    Returns:
      The task, and the examples of each wanted split in its file's order.

    Raises:
      errors.UserError: files that are missing or cannot be used as they are; labels that do not fit.
      ValueError: `wanted` names another split.
    """
    if not set(wanted) <= set(SPLITS):
        raise ValueError(f"Splits are {SPLITS}, found {sorted(wanted)}.")
    _check_files(data, wanted)
    rows: Dict[str, List[_LabelledRow]] = {}
    if _needs_training_file(data, wanted, stored_labels):
        trained, labels = _read_training_file(data)
        labels = _matched_with_stored(labels, stored_labels, data)
        rows["train"], rows["dev"] = _split_off_dev(trained, data)
    else:
        labels = _known_labels(data, stored_labels)
    if "dev" in wanted and data.dev_file:
        rows["dev"] = _read_dev_file(data, labels)
    if "test" in wanted:
        rows["test"] = _read_test_file(data)
    metrics = REGRESSION_METRICS if data.is_regression else CLASSIFICATION_METRICS
    task = Task(name=name, labels=labels, metrics=metrics)
    splits = [split for split in SPLITS if split in wanted]
    if "dev" in splits and not rows["dev"]:
        raise errors.UserError(f"{data.train_file} has too few rows per label to split off a dev set: give --dev_file.")
    examples = {split: [_example(task, split, row) for row in rows[split]] for split in splits}
    for split in splits:
        tf.logging.info("%s", _summary(task, split, examples[split]))
    return task, examples


# -------------------------------------------------------------------------------------------------- files


def _check_files(data: CustomData, wanted: Collection[str]) -> None:
    if "train" in wanted and not data.train_file:
        raise errors.UserError("Training needs --train_file.")
    if "test" in wanted and not data.test_file:
        raise errors.UserError("Prediction needs --test_file.")
    if "dev" in wanted and not data.dev_file:
        if not data.train_file:
            raise errors.UserError("Evaluation needs --dev_file, or --train_file to split a dev set off.")
        if not data.dev_fraction:
            raise errors.UserError(
                "Evaluation needs --dev_file, or a --dev_fraction above 0 to split a dev set off; found neither."
            )


def _needs_training_file(data: CustomData, wanted: Collection[str], stored_labels: Optional[Sequence[str]]) -> bool:
    if "train" in wanted or ("dev" in wanted and not data.dev_file):
        return True
    labels_are_known = data.is_regression or stored_labels is not None or data.labels is not None
    return bool(data.train_file) and not labels_are_known


def _read_training_file(data: CustomData) -> Tuple[List[_LabelledRow], Tuple[str, ...]]:
    source = _Source(data.train_file, data, with_label=True)
    rows = _usable_rows(source, data)
    spellings = {spelling.strip() for spelling in source.table.filled(source.label)}
    unseen = [spelling for spelling in data.label_map if spelling not in spellings]
    if unseen:
        tf.logging.warning("%s: no row has these labels of --label_map: %s.", data.train_file, _names(unseen))
    counts = collections.Counter(row.label for row in rows)
    _check_first_row(source, rows, counts, data)
    if data.is_regression:
        return rows, ()
    if data.labels:
        rows = _only_chosen(rows, data)
        for label in data.labels:
            if not counts[label]:
                raise errors.UserError(
                    f"--labels names '{short(label)}', which no row of {data.train_file} has; found: {_table(counts)}."
                )
        return rows, tuple(data.labels)
    _check_labels(source, counts, data)
    _warn_of_spellings(counts, data.train_file)
    return rows, _sorted_labels(counts)


def _warn_of_spellings(counts: Mapping[str, int], path: str) -> None:
    """Labels that differ in case only are most likely one."""
    by_folded = collections.defaultdict(list)
    for label in counts:
        by_folded[label.casefold()].append(label)
    for labels in by_folded.values():
        if len(labels) > 1:
            tf.logging.warning(
                "%s: the labels %s differ in case only and are classes of their own; --label_map=%s=%s makes them one.",
                path,
                _names(labels),
                labels[1],
                labels[0],
            )


def _read_dev_file(data: CustomData, labels: Tuple[str, ...]) -> List[_LabelledRow]:
    rows = _usable_rows(_Source(data.dev_file, data, with_label=True), data)
    if data.is_regression:
        return rows
    if data.labels:
        rows = _only_chosen(rows, data)
    unknown = [row for row in rows if row.label not in labels]
    if unknown:
        first = unknown[0]
        raise errors.UserError(
            f"{first.place}: the label '{short(first.label)}' is not among those of the training "
            f"({_names(labels)}); {len(unknown)} of {len(rows)} rows have such labels. Leave them out with "
            "--labels=…, or map them with --label_map=…."
        )
    if not rows:
        raise errors.UserError(f"{data.dev_file} has no row with one of the labels {_names(labels)}.")
    return rows


def _read_test_file(data: CustomData) -> List[_LabelledRow]:
    """All rows in order, so that the n-th prediction is that of the n-th row."""
    rows = _Source(data.test_file, data, with_label=False).rows()
    empty = [row for row in rows if _has_no_text(row)]
    if empty:
        tf.logging.warning(
            "%s: no text; %d of %d test rows are like this, and are kept.", empty[0].place, len(empty), len(rows)
        )
    return rows


def _usable_rows(source: _Source, data: CustomData) -> List[_LabelledRow]:
    """The rows with a text and a label, their labels mapped; says what is left out."""
    rows = source.rows()
    unlabelled = [row for row in rows if not row.label]
    without_text = [row for row in rows if row.label and _has_no_text(row)]
    for left_out, lack in ((unlabelled, "label"), (without_text, "text")):
        if left_out:
            tf.logging.warning(
                "%s: no %s; %d of %d rows are left out for that, this is the first.",
                left_out[0].place,
                lack,
                len(left_out),
                len(rows),
            )
    usable = [row for row in rows if row.label and not _has_no_text(row)]
    if not usable:
        raise errors.UserError(f"{source.table.path}: none of the {len(rows)} rows has both a text and a label.")
    return [row._replace(label=data.label_map.get(row.label, row.label)) for row in usable]


def _has_no_text(row: _LabelledRow) -> bool:
    return not row.text_a.strip() and not (row.text_b or "").strip()


def _only_chosen(rows: Sequence[_LabelledRow], data: CustomData) -> List[_LabelledRow]:
    chosen = [row for row in rows if row.label in data.labels]
    others = collections.Counter(row.label for row in rows if row.label not in data.labels)
    if others:
        tf.logging.info(
            "%d rows with other labels than --labels are left out: %s.", sum(others.values()), _table(others)
        )
    return chosen


# ------------------------------------------------------------------------------------------------- labels


def _check_first_row(
    source: _Source, rows: Sequence[_LabelledRow], counts: Mapping[str, int], data: CustomData
) -> None:
    """Asks about a first row that looks like a header where columns are given by number."""
    if not source.header_is_assumed or rows[0].number != source.table.rows[0].number:
        return
    first = rows[0].label
    if data.is_regression:
        is_odd = finite(first) is None
    else:
        others = [count for label, count in counts.items() if label != first]
        is_odd = counts[first] == 1 and len(rows) >= 10 and min(others, default=0) > 1
    if is_odd:
        raise errors.UserError(
            f"{rows[0].place}: '{short(first)}' stands in the label column in this line only, so the line may be a "
            "header. Give --header=true if it is, --header=false if it is not."
        )


def _check_labels(source: _Source, counts: Mapping[str, int], data: CustomData) -> None:
    """Refuses label columns that hold one value, or hardly a value twice."""
    total = sum(counts.values())
    column = f"{data.train_file}: the label column '{data.label_column}'"
    if len(counts) == 1:
        raise errors.UserError(
            f"{column} has the label '{short(next(iter(counts)))}' in all {total} rows, expected two."
        )
    are_numbers = all(finite(label) is not None for label in counts)
    are_fractions = are_numbers and not all(_INTEGER.fullmatch(label) for label in counts)
    are_unique = len(counts) > _FEW_LABELS and 2 * len(counts) > total
    if not are_unique and not (are_fractions and len(counts) > _MANY_FRACTIONS):
        return
    hints = []
    if are_numbers:
        hints.append("If they are numbers to predict, give --task_type=regression.")
    candidates = source.label_like_columns()
    if candidates:
        hints.append("Columns that look like labels: {}.".format(", ".join(candidates)))
    hints.append("If they are classes all the same, name those to learn with --labels.")
    raise errors.UserError(f"{column} has {len(counts)} different values in {total} rows. {' '.join(hints)}")


def _sorted_labels(labels: Collection[str]) -> Tuple[str, ...]:
    """By number where all are integers, else by text: the same classes whatever the order of the rows."""
    if all(_INTEGER.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _matched_with_stored(
    labels: Tuple[str, ...], stored_labels: Optional[Sequence[str]], data: CustomData
) -> Tuple[str, ...]:
    """The labels, in the stored order unless --labels gives one."""
    if stored_labels is None or tuple(stored_labels) == labels:
        return labels
    if data.labels is None and sorted(stored_labels) == sorted(labels):
        return tuple(stored_labels)
    raise errors.UserError(
        f"The earlier training had the labels {_names(stored_labels)}; now they are "
        f"{_names(labels)}. Use the same --train_file, --labels and --label_map as then, or another --output_dir."
    )


def _known_labels(data: CustomData, stored_labels: Optional[Sequence[str]]) -> Tuple[str, ...]:
    """The labels where the training file is not read."""
    labels = () if data.is_regression else data.labels
    if labels is None and stored_labels is None:
        raise errors.UserError(
            "The labels are unknown: give the --output_dir of the training (or the folder of the --init_checkpoint it "
            "wrote), the --train_file, or --labels in the order of the training."
        )
    if labels is None:
        labels = tuple(stored_labels)
    return _matched_with_stored(tuple(labels), stored_labels, data)


# --------------------------------------------------------------------------------------------- split, examples


def _split_off_dev(rows: List[_LabelledRow], data: CustomData) -> Tuple[List[_LabelledRow], List[_LabelledRow]]:
    """Training and dev rows, both in the file's order: a pure function of the rows, the share and the seed."""
    if not data.splits_off_dev:
        return rows, []
    # Rows with the same text stay together: a dev set that was trained on would flatter.
    groups: Dict[Tuple[str, Optional[str]], List[int]] = collections.OrderedDict()
    for index, row in enumerate(rows):
        groups.setdefault((row.text_a, row.text_b), []).append(index)
    members = list(groups.values())
    labels = ["" if data.is_regression else rows[indices[0]].label for indices in members]
    counts = collections.Counter(labels)
    # A class with one example has none to spare.
    eligible = [group for group, label in enumerate(labels) if counts[label] > 1]
    classes = len({labels[group] for group in eligible})
    if not classes:
        return rows, []
    from sklearn.model_selection import train_test_split  # slow to import, and seldom needed

    # Each of these classes needs an example on both sides.
    size = min(max(round(len(members) * data.dev_fraction), classes), len(eligible) - classes)
    _, dev = train_test_split(
        eligible, test_size=size, random_state=data.split_seed, stratify=[labels[group] for group in eligible]
    )
    in_dev = collections.Counter(labels[group] for group in dev)
    taken_whole = {label for label, count in in_dev.items() if count == counts[label]}
    # Large shares can take all of a small class: its first example goes back.
    chosen = {index for group in set(dev) - {labels.index(label) for label in taken_whole} for index in members[group]}
    train_rows = [row for index, row in enumerate(rows) if index not in chosen]
    return train_rows, [rows[index] for index in sorted(chosen)]


def _example(task: Task, split: str, row: _LabelledRow) -> InputExample:
    guid = f"{split}-{row.number}"
    if split == "test":
        # As in the original scripts: a label that nothing looks at.
        return InputExample(guid, row.text_a, row.text_b, 0.0 if task.is_regression else task.labels[0])
    label: Union[str, float, None] = row.label
    if task.is_regression:
        label = finite(row.label)
        if label is None:
            raise errors.UserError(
                f"{row.place}: expected a finite number as label (--task_type=regression), found '{short(row.label)}'."
            )
    return InputExample(guid, row.text_a, row.text_b, label)


def _summary(task: Task, split: str, examples: Sequence[InputExample]) -> str:
    """One line on a split: how many rows, and of what."""
    beginning = f"{task.name}: {len(examples)} {split} rows"
    if split == "test":
        return beginning
    if task.is_regression:
        values = [example.label for example in examples]
        return f"{beginning}, labels from {min(values):g} to {max(values):g}, mean {np.mean(values):.4g}"
    return f"{beginning}: {_table(collections.Counter(example.label for example in examples))}"


def _table(counts: Mapping[str, int], most: int = 20) -> str:
    """Labels with their counts, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{short(label)} {count}" for label, count in ordered]
    return first_names(shown, most)


def _names(labels: Sequence[str], most: int = 20) -> str:
    return first_names(map(short, labels), most) if labels else "(numbers)"
