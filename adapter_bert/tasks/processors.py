"""The data processors of the original `run_classifier.py`, which notebooks import, as thin views on tasks."""

from __future__ import annotations

from typing import List, Optional

from adapter_bert import tasks
from adapter_bert.tasks.task import InputExample, read_rows


class DataProcessor:
    """Base class of data processors, for notebooks to subclass."""

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Return the training examples."""
        raise NotImplementedError()

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Return the dev examples."""
        raise NotImplementedError()

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Return the test examples."""
        raise NotImplementedError()

    def get_labels(self) -> List[str]:
        """Return the classes in order."""
        raise NotImplementedError()

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: Optional[str] = None) -> List[List[str]]:
        """Return the rows of a tab-separated file. Quotes are text: `quotechar` must be None."""
        if quotechar is not None:
            raise ValueError(f"Quoting is not supported, found quotechar {quotechar!r}.")
        return [row for _, row in read_rows(input_file)]


class _TaskProcessor(DataProcessor):
    """Processor of a registered task."""

    task_name = ""

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        return self._examples(data_dir, "train")

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        return self._examples(data_dir, "dev")

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        return self._examples(data_dir, "test")

    def get_labels(self) -> List[str]:
        return list(tasks.get(self.task_name).labels)

    def _examples(self, data_dir: str, split_name: str) -> List[InputExample]:
        return list(tasks.read_examples(tasks.get(self.task_name), data_dir, split_name))


class ColaProcessor(_TaskProcessor):
    """CoLA."""

    task_name = "CoLA"


class MrpcProcessor(_TaskProcessor):
    """MRPC."""

    task_name = "MRPC"


class MnliProcessor(_TaskProcessor):
    """MNLI, matched."""

    task_name = "MNLI"


class XnliProcessor(_TaskProcessor):
    """XNLI in Chinese; set `language` for another language."""

    def __init__(self) -> None:
        self.language = "zh"

    @property
    def task_name(self) -> str:  # type: ignore[override]
        """Name of the task in the current language."""
        return "XNLI-" + self.language
