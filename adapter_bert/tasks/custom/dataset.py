"""Turn a user's files into a task and its examples. The classes are the labels of the training file."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks.custom.formats import read_table
from adapter_bert.tasks.custom.labels import check_unicode, check_unique, shorten
from adapter_bert.tasks.custom.table import LABEL_COLUMN, TEXT_COLUMN, LabelledRow, Table
from adapter_bert.tasks.task import InputExample, Task, parse_finite

SPLITS = ("train", "dev", "test")
TASK_TYPES = ("classification", "regression")
CLASSIFICATION_METRICS = ("accuracy", "macro_f1", "matthews")
REGRESSION_METRICS = ("spearman", "pearson")

# Python does not convert numbers with thousands of digits.
_INTEGER = re.compile(r"[-+]?[0-9]{1,1000}")
# A small file may have nearly as many labels as rows: with up to this many labels, that is not an error.
_FEW_LABELS = 5
# More distinct fractional numbers than this are treated as measurements, not classes.
_MANY_FRACTIONS = 20
_SHOWN_LABELS = 20


@dataclasses.dataclass(frozen=True)
class CustomData:
    """Files of custom data and how to read them. Each attribute is the flag of the same name, see its help."""

    train_file: Optional[str] = None
    dev_file: Optional[str] = None
    test_file: Optional[str] = None
    text_column: str = TEXT_COLUMN
    text_pair_column: Optional[str] = None
    label_column: str = LABEL_COLUMN
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
            raise errors.UserError(f"--dev_fraction must be at least 0 and less than 1, found {self.dev_fraction}.")
        if not 0 <= self.split_seed < 2**32:
            raise errors.UserError(f"--split_seed must be from 0 to {2**32 - 1}, found {self.split_seed}.")
        for label in self.label_map.values():
            check_unicode(label, "--label_map")
        if self.labels is None:
            return
        if self.is_regression:
            raise errors.UserError("--labels lists classes; with --task_type=regression, labels are numbers.")
        if len(self.labels) < 2:
            raise errors.UserError(f"--labels needs at least two labels, found {len(self.labels)}.")
        check_unique(self.labels, "--labels")
        for label in self.labels:
            check_unicode(label, "--labels")

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.task_type == "regression"

    @property
    def metrics(self) -> Tuple[str, ...]:
        """Names of the metrics, the primary one first."""
        return REGRESSION_METRICS if self.is_regression else CLASSIFICATION_METRICS

    @property
    def splits_off_dev(self) -> bool:
        """Whether the dev split is a part of the training file."""
        return not self.dev_file and self.dev_fraction > 0

    def file(self, split: str) -> str:
        """Return the path of a split's file; raise a `UserError` if it was not given."""
        path = getattr(self, f"{split}_file")
        if not path:
            raise errors.UserError(f"The {split} split needs --{split}_file.")
        return path

    def columns(self, split: str) -> Dict[str, str]:
        """Return the columns that a split needs, by flag; the test split needs no labels."""
        columns = {
            "--text_column": self.text_column,
            "--text_pair_column": self.text_pair_column,
            "--label_column": None if split == "test" else self.label_column,
        }
        return {flag: column for flag, column in columns.items() if column}

    def read_table(self, split: str) -> Table:
        """Read the file of a split."""
        needed = list(self.columns(split).values())
        return read_table(self.file(split), needed, self.encoding, self.header, self.quoting)


def read(
    name: str, data: CustomData, wanted: Collection[str], stored_labels: Optional[Sequence[str]] = None
) -> Tuple[Task, Dict[str, List[InputExample]]]:
    """Return the task, and the examples of the requested splits in the order of the files.

    Without a dev file, the dev rows are held out in every call, whether or not `dev` is requested, so that a later
    evaluation never scores rows that were trained on. `stored_labels` are the classes, in order, of the training run
    that this call continues; empty for regression.
    """
    for split in {"train", "test"} & set(wanted):
        data.file(split)
    if "dev" in wanted and not data.dev_file and not (data.train_file and data.dev_fraction):
        raise errors.UserError("Evaluation needs --dev_file, or --train_file and a --dev_fraction above 0.")
    rows: Dict[str, List[LabelledRow]] = {}
    known_labels = () if data.is_regression else data.labels or stored_labels
    needs_rows = "train" in wanted or ("dev" in wanted and not data.dev_file)
    if needs_rows or (known_labels is None and data.train_file):
        training_rows, labels = _read_training_file(data)
        rows["train"], rows["dev"] = _hold_out_dev(training_rows, data)
    elif known_labels is not None:
        labels = tuple(known_labels)
    else:
        raise errors.UserError(
            "The labels are unknown: give the --output_dir of the training (or the folder of the --init_checkpoint it "
            "wrote), the --train_file, or --labels in the order of the training."
        )
    labels = _match_stored_labels(labels, stored_labels, data)
    if "dev" in wanted and data.dev_file:
        rows["dev"] = _read_dev_file(data, labels)
    if "test" in wanted:
        rows["test"] = _read_test_file(data)
    if "dev" in wanted and not rows["dev"]:
        raise errors.UserError(f"{data.train_file} has too few rows per label to hold out a dev set: give --dev_file.")
    task = Task(name, labels, data.metrics)
    examples = {split: [_example(task, split, row) for row in rows[split]] for split in SPLITS if split in wanted}
    for split, found in examples.items():
        tf.logging.info("%s: %d %s rows%s", name, len(found), split, _label_summary(task, split, found))
    return task, examples


# -------------------------------------------------------------------------------------------------- files


def _read_training_file(data: CustomData) -> Tuple[List[LabelledRow], Tuple[str, ...]]:
    table = data.read_table("train")
    all_rows = table.labelled_rows(data.columns("train"))
    rows = _usable_rows(all_rows, data, table.path)
    unseen = set(data.label_map) - {row.label for row in all_rows}
    if unseen:
        tf.logging.warning("%s: no row has these labels of --label_map: %s.", table.path, _names(sorted(unseen)))
    counts = collections.Counter(row.label for row in rows)
    _check_first_row(table, rows, counts, data)
    if data.is_regression:
        return rows, ()
    if data.labels:
        for label in data.labels:
            if not counts[label]:
                found = _frequencies(counts)
                raise errors.UserError(f"--labels: no row of {table.path} has '{shorten(label)}'; found: {found}.")
        return _select_labels(rows, data.labels), data.labels
    _check_labels(table, counts, data)
    _warn_about_case(counts, table.path)
    return rows, _sort_labels(counts)


def _read_dev_file(data: CustomData, labels: Tuple[str, ...]) -> List[LabelledRow]:
    path = data.file("dev")
    rows = _usable_rows(data.read_table("dev").labelled_rows(data.columns("dev")), data, path)
    if data.is_regression:
        return rows
    if data.labels:
        rows = _select_labels(rows, data.labels)
    unknown = [row for row in rows if row.label not in labels]
    if unknown:
        raise errors.UserError(
            f"{unknown[0].place}: the label '{shorten(unknown[0].label)}' does not occur in the training data "
            f"({_names(labels)}); {len(unknown)} of {len(rows)} rows have such labels. Exclude them with --labels=…, "
            "or map them with --label_map=…."
        )
    if not rows:
        raise errors.UserError(f"{path} has no row with one of the labels {_names(labels)}.")
    return rows


def _read_test_file(data: CustomData) -> List[LabelledRow]:
    """Return all rows in order: the n-th prediction is that of the n-th row."""
    rows = data.read_table("test").labelled_rows(data.columns("test"))
    blank = [row for row in rows if row.is_blank]
    if blank:
        tf.logging.warning("%s: no text in %d of %d test rows; they are kept.", blank[0].place, len(blank), len(rows))
    return rows


def _usable_rows(rows: Sequence[LabelledRow], data: CustomData, path: str) -> List[LabelledRow]:
    """Return the rows with text and label, with mapped labels; warn about the others."""
    unlabelled = [row for row in rows if not row.label]
    blank = [row for row in rows if row.label and row.is_blank]
    for skipped, lack in ((unlabelled, "label"), (blank, "text")):
        if skipped:
            found = f"{len(skipped)} of {len(rows)}"
            tf.logging.warning("%s: skipped this row and others without a %s, %s.", skipped[0].place, lack, found)
    usable = [row for row in rows if row.label and not row.is_blank]
    if not usable:
        raise errors.UserError(f"{path}: none of the {len(rows)} rows has both a text and a label.")
    usable = [row._replace(label=data.label_map.get(row.label, row.label)) for row in usable]
    for row in usable:
        check_unicode(row.label, row.place)
    return usable


def _select_labels(rows: Sequence[LabelledRow], labels: Sequence[str]) -> List[LabelledRow]:
    others = collections.Counter(row.label for row in rows if row.label not in labels)
    if others:
        count = sum(others.values())
        tf.logging.info("Excluded %d rows with labels that are not in --labels: %s.", count, _frequencies(others))
    return [row for row in rows if row.label in labels]


# ------------------------------------------------------------------------------------------------- labels


def _check_first_row(table: Table, rows: Sequence[LabelledRow], counts: Mapping[str, int], data: CustomData) -> None:
    """Raise a `UserError` if columns are given by number and the first row looks like a header."""
    header_is_assumed = data.header is None and table.kind == "numbers"
    if not header_is_assumed or rows[0].number != table.rows[0].number:
        return
    first = rows[0].label
    if data.is_regression:
        is_odd = parse_finite(first) is None
    else:
        others = [count for label, count in counts.items() if label != first]
        is_odd = counts[first] == 1 and len(rows) >= 10 and min(others, default=0) > 1
    if is_odd:
        raise errors.UserError(
            f"{rows[0].place}: only this line has the label '{shorten(first)}', so it may be a header. Give "
            "--header=true if it is, or --header=false."
        )


def _check_labels(table: Table, counts: Mapping[str, int], data: CustomData) -> None:
    """Raise a `UserError` if all labels are the same, or nearly all are different."""
    total = sum(counts.values())
    column = f"{data.train_file}: the label column '{data.label_column}'"
    if len(counts) == 1:
        label = shorten(next(iter(counts)))
        raise errors.UserError(f"{column} has the label '{label}' in all {total} rows, expected at least two labels.")
    are_numbers = all(parse_finite(label) is not None for label in counts)
    are_fractions = are_numbers and not all(_INTEGER.fullmatch(label) for label in counts)
    are_unique = len(counts) > _FEW_LABELS and 2 * len(counts) > total
    if not are_unique and not (are_fractions and len(counts) > _MANY_FRACTIONS):
        return
    hints = ["To predict numbers, give --task_type=regression."] if are_numbers else []
    candidates = table.label_like_columns(data.columns("train").values())
    if candidates:
        hints.append(f"Columns that look like labels: {errors.first_names(candidates, _SHOWN_LABELS)}.")
    hints.append("If these are classes after all, list them with --labels.")
    raise errors.UserError(f"{column} has {len(counts)} different values in {total} rows. {' '.join(hints)}")


def _warn_about_case(counts: Mapping[str, int], path: str) -> None:
    by_folded = collections.defaultdict(list)
    for label in counts:
        by_folded[label.casefold()].append(label)
    for labels in by_folded.values():
        if len(labels) > 1:
            remedy = f"--label_map={labels[1]}={labels[0]} merges them"
            tf.logging.warning("%s: different labels differ only in case: %s; %s.", path, _names(labels), remedy)


def _sort_labels(labels: Collection[str]) -> Tuple[str, ...]:
    """Sort numerically if all labels are integers, so that the classes do not depend on the order of the rows."""
    are_integers = all(_INTEGER.fullmatch(label) for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if are_integers else 0, label)))


def _match_stored_labels(labels: Tuple[str, ...], stored: Optional[Sequence[str]], data: CustomData) -> Tuple[str, ...]:
    """Return the labels in the stored order; raise a `UserError` if they differ, or --labels has another order."""
    if stored is None or tuple(stored) == labels:
        return labels
    if data.labels is None and sorted(stored) == sorted(labels):
        return tuple(stored)
    raise errors.UserError(
        f"The earlier training had the labels {_names(stored)}; now they are {_names(labels)}. Use the same "
        "--train_file, --labels and --label_map as before, or another --output_dir."
    )


# --------------------------------------------------------------------------------------- dev split, examples


def _hold_out_dev(rows: List[LabelledRow], data: CustomData) -> Tuple[List[LabelledRow], List[LabelledRow]]:
    """Split into training and dev rows in the file's order. Depends only on the rows, the fraction and the seed."""
    if not data.splits_off_dev:
        return rows, []
    # Rows with the same text stay together, or dev scores would be optimistic.
    by_text: Dict[Tuple[str, Optional[str]], List[int]] = {}
    for index, row in enumerate(rows):
        by_text.setdefault((row.text_a, row.text_b), []).append(index)
    groups = list(by_text.values())
    labels = ["" if data.is_regression else rows[indices[0]].label for indices in groups]
    counts = collections.Counter(labels)
    # The only example of a class is needed for training.
    eligible = [group for group, label in enumerate(labels) if counts[label] > 1]
    classes = len({labels[group] for group in eligible})
    if not classes:
        return rows, []
    from sklearn.model_selection import train_test_split  # slow to import

    # Each of these classes needs an example in both parts.
    size = min(max(round(len(groups) * data.dev_fraction), classes), len(eligible) - classes)
    _, dev = train_test_split(
        eligible, test_size=size, random_state=data.split_seed, stratify=[labels[group] for group in eligible]
    )
    # A large fraction can take all examples of a small class: its first example goes back.
    in_dev = collections.Counter(labels[group] for group in dev)
    put_back = {labels.index(label) for label, count in in_dev.items() if count == counts[label]}
    chosen = {index for group in set(dev) - put_back for index in groups[group]}
    return [row for index, row in enumerate(rows) if index not in chosen], [rows[index] for index in sorted(chosen)]


def _example(task: Task, split: str, row: LabelledRow) -> InputExample:
    if split == "test":
        # A label that is ignored, as in the original scripts.
        label: Any = 0.0 if task.is_regression else task.labels[0]
    else:
        label = parse_finite(row.label) if task.is_regression else row.label
    if label is None:
        raise errors.UserError(
            f"{row.place}: expected a finite number as label (--task_type=regression), found '{shorten(row.label)}'."
        )
    return InputExample(f"{split}-{row.number}", row.text_a, row.text_b, label)


def _label_summary(task: Task, split: str, examples: Sequence[InputExample]) -> str:
    values: List[Any] = [example.label for example in examples]
    if split == "test":
        return ""
    if task.is_regression:
        return f", labels from {min(values):g} to {max(values):g}, mean {sum(values) / len(values):.4g}"
    return f": {_frequencies(collections.Counter(values))}"


def _frequencies(counts: Mapping[str, int]) -> str:
    """Return labels with their counts, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return errors.first_names([f"{shorten(label)} {count}" for label, count in ordered], _SHOWN_LABELS)


def _names(labels: Sequence[str]) -> str:
    return errors.first_names([shorten(label) for label in labels], _SHOWN_LABELS) if labels else "(numbers)"
