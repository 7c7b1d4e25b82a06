"""Read a public data set from its published file, and split it into train, dev and test as the paper does."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import random
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks.custom.formats import read_table
from adapter_bert.tasks.custom.table import LabelledRow, Table
from adapter_bert.tasks.task import InputExample, Task

SPLITS = ("train", "dev", "test")
GUIDE = "docs/additional_tasks.md"
# Seed of the split. Another value would change the examples of every split.
_SEED = 1


class File(NamedTuple):
    """A published file, folder or archive, and the columns (names; numbers if it has no header) that a task reads."""

    name: str
    text: str = "text"
    label: str = "label"


class Epochs(NamedTuple):
    """Numbers of training epochs that the paper selected."""

    full: int
    adapter: int


@dataclasses.dataclass(frozen=True, eq=False)
class PublishedTask:
    """A task on a data set that is published as one file without splits."""

    name: str
    files: Tuple[File, ...]  # alternative names and layouts of the same data; the first one found is read
    num_examples: int  # in the paper, all splits together
    labels: Optional[Tuple[str, ...]]  # None: all labels that the file contains
    epochs: Epochs
    excluded: Tuple[str, ...] = ()  # labels in the file whose rows the paper leaves out
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # label in the file -> label, if different
    label_end: Optional[str] = None  # the label in the file is a sentence; the part before this is the label

    @property
    def task(self) -> Task:
        """The definition for the registry."""
        find_labels = None if self.labels else self.find_labels
        return Task(self.name, self.labels or (), reader=self.read, find_labels=find_labels, has_test_labels=True)

    def read(self, data_dir: str, split: str) -> List[InputExample]:
        """Return the examples of a split."""
        return self._splits(data_dir)[split]

    def find_labels(self, data_dir: str) -> Tuple[str, ...]:
        """Return the sorted labels in the file."""
        examples = self._splits(data_dir).values()
        return tuple(sorted({str(example.label) for split in examples for example in split}))

    def find_file(self, data_dir: str) -> Tuple[str, File]:
        """Return the path of the published file and its columns; raise a `UserError` if it does not exist."""
        names = [file.name for file in self.files]
        if not data_dir:
            raise errors.UserError(f"{self.name} needs --data_dir, the folder that contains {names[0]}; see {GUIDE}.")
        for file in self.files:
            path = os.path.join(data_dir, file.name)
            if tf.gfile.Exists(path):
                return path, file
        if not tf.gfile.IsDirectory(data_dir):
            raise errors.UserError(f"--data_dir={data_dir} is not a folder; expected one that contains {names[0]}.")
        present = errors.first_names(sorted(tf.gfile.ListDirectory(data_dir)), 10)
        raise errors.UserError(
            f"{data_dir} contains no file of {self.name}: looked for {', '.join(names)}; found: {present}. Download "
            f"the file or correct --data_dir; see {GUIDE}."
        )

    def _splits(self, data_dir: str) -> Dict[str, List[InputExample]]:
        path, file = self.find_file(data_dir)
        stat = tf.gfile.Stat(path)
        return _read_splits(self, path, file, (stat.length, stat.mtime_nsec))

    def read_rows(self, path: str, file: File) -> List[LabelledRow]:
        """Return the rows with text and label, except those with excluded labels; raise a `UserError` for others."""
        table = read_table(path, [file.text, file.label])
        _check_columns(table, file, self.name)
        rows = table.labelled_rows({"--text_column": file.text, "--label_column": file.label})
        used: List[LabelledRow] = []
        skipped: Dict[str, int] = collections.defaultdict(int)
        for row in rows:
            label = self._label(row)
            if label and not row.is_blank:
                used.append(row._replace(label=label))
            else:
                skipped["without text" if row.is_blank else row.label or "without label"] += 1
        if skipped:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items()))
            tf.logging.info("%s: excluded %d of %d rows: %s.", path, len(rows) - len(used), len(rows), reasons)
        if not used:
            raise errors.UserError(f"{path}: none of the {len(rows)} rows has a text and a label of {self.name}.")
        return used

    def _label(self, row: LabelledRow) -> Optional[str]:
        """Return the label of a row, None if it is excluded."""
        if not row.label or row.label in self.excluded:
            return None
        label = row.label.partition(self.label_end)[0].strip() if self.label_end else row.label
        label = self.spellings.get(label, label)
        if self.labels and label not in self.labels:
            known = ", ".join([*self.spellings, *self.labels])
            excluded = f" (or {', '.join(self.excluded)}, which are excluded)" if self.excluded else ""
            raise errors.UserError(
                f"{row.place}: unknown label '{row.label[:60]}'; expected one of the published labels of {self.name}: "
                f"{known}{excluded}. Correct the row, or download the file again; see {GUIDE}."
            )
        return label


def _check_columns(table: Table, file: File, name: str) -> None:
    missing = [column for column in (file.text, file.label) if column not in table.columns]
    if missing:
        raise errors.UserError(
            f"{table.path} ({table.layout}) is not the published file of {name}: expected the columns '{file.text}' "
            f"(text) and '{file.label}' (label), found: {errors.first_names(table.columns, 30)}; see {GUIDE}."
        )


# Cached, because a run requests one split after the other. `version` is the file's size and modification time.
@functools.lru_cache(maxsize=1)
def _read_splits(
    published: PublishedTask, path: str, file: File, version: Tuple[int, int]
) -> Dict[str, List[InputExample]]:
    rows = published.read_rows(path, file)
    indices = split_indices([row.label for row in rows])
    sizes = ", ".join(f"{len(indices[split])} {split}" for split in SPLITS)
    if len(rows) == published.num_examples:
        tf.logging.info("%s: %s (as in the paper).", published.name, sizes)
    else:
        message = "%s: %s has %d examples, %+d compared to the paper's %d. Split in the same proportions: %s."
        difference = len(rows) - published.num_examples
        tf.logging.warning(message, published.name, path, len(rows), difference, published.num_examples, sizes)
    return {split: _examples(split, rows, indices[split]) for split in SPLITS}


def _examples(split: str, rows: Sequence[LabelledRow], indices: Iterable[int]) -> List[InputExample]:
    return [InputExample(f"{split}-{rows[i].number}", rows[i].text_a, None, rows[i].label) for i in indices]


def split_sizes(count: int) -> Tuple[int, int, int]:
    """Return the sizes of train, dev and test: 80 %, 10 % and 10 %, rounded as in all rows of the paper's Table 3."""
    train = count * 8 // 10
    dev = (count - train) // 2
    return train, dev, count - train - dev


def split_indices(labels: Sequence[str]) -> Dict[str, List[int]]:
    """Return the indices of each split, in ascending order. The split is random, but the same for the same labels.

    The split is stratified: examples are sorted by label, shuffled within a label, and assigned at regular intervals,
    so the number of examples of a label in a split is exact to within one.
    """
    generator = random.Random(_SEED)
    # Only `random()` is guaranteed to return the same numbers in every version of Python.
    order = sorted(range(len(labels)), key=lambda index: (labels[index], generator.random()))
    train, dev, test = split_sizes(len(labels))
    held_out = _spread(order, dev + test)
    in_dev = _spread(held_out, dev)
    parts: Sequence[Collection[int]] = (set(order).difference(held_out), in_dev, set(held_out).difference(in_dev))
    return {split: sorted(part) for split, part in zip(SPLITS, parts)}


def _spread(items: Sequence[int], count: int) -> List[int]:
    """Return `count` of the items at regular intervals."""
    total = len(items)
    return [item for place, item in enumerate(items) if (place + 1) * count // total > place * count // total]
