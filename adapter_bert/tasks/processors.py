"""The data processors of the original `run_classifier.py`, which notebooks import, as thin views on tasks."""

from __future__ import annotations

from typing import List, Optional

from adapter_bert import tasks
from adapter_bert.tasks.task import InputExample, Task, read_rows


class DataProcessor:
    """Base class of data processors. Notebooks subclass it and override the methods that they need."""

    task_name: Optional[str] = None

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Return the training examples."""
        return list(tasks.read_examples(self._task(), data_dir, "train"))

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Return the dev examples."""
        return list(tasks.read_examples(self._task(), data_dir, "dev"))

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Return the test examples."""
        return list(tasks.read_examples(self._task(), data_dir, "test"))

    def get_labels(self) -> List[str]:
        """Return the classes in order."""
        return list(self._task().labels)

    def _task(self) -> Task:
        if self.task_name is None:
            raise NotImplementedError()
        return tasks.get(self.task_name)

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: Optional[str] = None) -> List[List[str]]:
        """Return the rows of a tab-separated file. Quotes are text: `quotechar` must be None."""
        if quotechar is not None:
            raise ValueError(f"Quoting is not supported, found quotechar {quotechar!r}.")
        return [row for _, row in read_rows(input_file)]


class ColaProcessor(DataProcessor):
    """CoLA."""

    task_name = "CoLA"


class MrpcProcessor(DataProcessor):
    """MRPC."""

    task_name = "MRPC"


class MnliProcessor(DataProcessor):
    """MNLI, matched."""

    task_name = "MNLI"


class XnliProcessor(DataProcessor):
    """XNLI in Chinese; set `language` for another language."""

    language = "zh"

    @property
    def task_name(self) -> str:  # type: ignore[override]
        """Name of the task in the current language."""
        return "XNLI-" + self.language
