"""The data processors of the original `run_classifier.py`, which notebooks import, as thin views on tasks."""

from __future__ import annotations

import csv
import os
from typing import Any, Iterable, List, Optional, Sequence, Type, Union

from adapter_bert.common import errors
from adapter_bert.tasks.custom.dataset import CLASSIFICATION_METRICS, REGRESSION_METRICS
from adapter_bert.tasks.task import (
    InputExample,
    Task,
    convert_rows,
    get,
    read_examples,
    read_lines,
    read_rows,
    register,
)


class DataProcessor:
    """Base class of data processors. Notebooks subclass it and override the methods that they need."""

    task_name: Optional[str] = None

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Return the training examples."""
        return list(read_examples(self._task(), data_dir, "train"))

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Return the dev examples."""
        return list(read_examples(self._task(), data_dir, "dev"))

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Return the test examples."""
        return list(read_examples(self._task(), data_dir, "test"))

    def get_labels(self) -> List[str]:
        """Return the classes in order."""
        return list(self._task().labels)

    def _task(self) -> Task:
        if self.task_name is None:
            raise NotImplementedError()
        return get(self.task_name)

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: Optional[str] = None) -> List[List[str]]:
        """Return the rows of a tab-separated file without blank ones; by default, quotes are text."""
        if quotechar is None:
            return [row for _, row in read_rows(input_file)]
        reader = csv.reader((line + "\n" for line in read_lines(input_file)), delimiter="\t", quotechar=quotechar)
        try:
            return [row for row in reader if row]
        except csv.Error as error:
            raise errors.UserError(f"{input_file}, line {reader.line_num}: {errors.reason(error)}.") from None


class _GlueProcessor(DataProcessor):
    """A processor in the original's two steps, which subclasses may override: read rows, then create examples."""

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Return the training examples."""
        return self._examples_of(data_dir, "train")

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Return the dev examples."""
        return self._examples_of(data_dir, "dev")

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Return the test examples."""
        return self._examples_of(data_dir, "test")

    def _examples_of(self, data_dir: str, split_name: str) -> List[InputExample]:
        path = os.path.join(data_dir, self._task().split(split_name).file)
        return self._create_examples(self._read_tsv(path), self._set_type(split_name))

    def _create_examples(self, lines: Iterable[Sequence[str]], set_type: str) -> List[InputExample]:
        """Return the examples of a file's rows, including its header; all sets but `test` have labels."""
        rows = [list(line) for line in lines]
        split_name = "test" if set_type == "test" else "train"
        examples = list(convert_rows(self._task(), split_name, enumerate(rows, start=1), set_type))
        for example in examples:
            index = int(example.guid.rpartition("-")[2])
            example.guid = f"{set_type}-{self._row_id(index, rows[index])}"
        return examples

    def _set_type(self, split_name: str) -> str:
        return split_name

    def _row_id(self, index: int, row: Sequence[str]) -> str:
        return str(index)


class ColaProcessor(_GlueProcessor):
    """CoLA."""

    task_name = "CoLA"


class MrpcProcessor(_GlueProcessor):
    """MRPC."""

    task_name = "MRPC"


class MnliProcessor(_GlueProcessor):
    """MNLI, matched."""

    task_name = "MNLI"

    def _set_type(self, split_name: str) -> str:
        return "dev_matched" if split_name == "dev" else split_name

    def _row_id(self, index: int, row: Sequence[str]) -> str:
        return row[0]


class XnliProcessor(DataProcessor):
    """XNLI in Chinese; set `language` for another language."""

    language = "zh"

    @property
    def task_name(self) -> str:  # type: ignore[override]
        """Name of the task in the current language."""
        return "XNLI-" + self.language


def register_processor(name: str, processor: Union[DataProcessor, Type[DataProcessor]], **more: Any) -> Task:
    """Register a task with the labels and examples of a data processor; without labels, it is a regression.

    `more` are other fields of the `Task`, e.g. `metrics=("macro_f1", "accuracy")`. A run calls only the methods of the
    splits that it needs, once. Registering a processor again under the same name replaces it.
    """
    made = processor() if isinstance(processor, type) else processor

    def read(data_dir: str, split_name: str) -> Iterable[InputExample]:
        try:
            return getattr(made, f"get_{split_name}_examples")(data_dir)
        except NotImplementedError:
            raise errors.UserError(f"{name} has no {split_name} split.") from None

    labels = tuple(str(label) for label in made.get_labels())
    metrics = CLASSIFICATION_METRICS if labels else REGRESSION_METRICS
    return register(Task(name, labels, reader=read, **{"metrics": metrics, **more}))
