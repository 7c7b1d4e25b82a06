"""The reader classes that notebooks know from the original `run_classifier.py`: thin views on tasks."""

from __future__ import annotations

from typing import List, Optional

from adapter_bert import tasks
from adapter_bert.tasks.task import InputExample, read_rows


class DataProcessor:
    """Base of readers: what a notebook's own reader overrides."""

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """The training examples."""
        raise NotImplementedError()

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """The development examples."""
        raise NotImplementedError()

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """The test examples."""
        raise NotImplementedError()

    def get_labels(self) -> List[str]:
        """The label words, in the order of the classes."""
        raise NotImplementedError()

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: Optional[str] = None) -> List[List[str]]:
        """The rows of a tab-separated file. Quotes are text: `quotechar` is accepted and must stay None."""
        if quotechar is not None:
            raise ValueError(f"Quoting is not supported, found quotechar {quotechar!r}.")
        return [row for _, row in read_rows(input_file)]


class TaskProcessor(DataProcessor):
    """Reads a registered task."""

    def __init__(self, task_name: str) -> None:
        self._task_name = task_name

    @property
    def task(self) -> tasks.Task:
        """The task behind this reader."""
        return tasks.get(self._task_name)

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """The training examples."""
        return list(tasks.read_examples(self.task, data_dir, "train"))

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """The development examples."""
        return list(tasks.read_examples(self.task, data_dir, "dev"))

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """The test examples."""
        return list(tasks.read_examples(self.task, data_dir, "test"))

    def get_labels(self) -> List[str]:
        """The label words, in the order of the classes."""
        return list(self.task.labels)


class ColaProcessor(TaskProcessor):
    """CoLA."""

    def __init__(self) -> None:
        super().__init__("CoLA")


class MrpcProcessor(TaskProcessor):
    """MRPC."""

    def __init__(self) -> None:
        super().__init__("MRPC")


class MnliProcessor(TaskProcessor):
    """MNLI, matched."""

    def __init__(self) -> None:
        super().__init__("MNLI")


class XnliProcessor(TaskProcessor):
    """XNLI; set `language` for another one than Chinese."""

    def __init__(self) -> None:
        super().__init__("XNLI")
        self.language = "zh"

    @property
    def task(self) -> tasks.Task:
        """The task of the language that is set now."""
        return tasks.get("XNLI-" + self.language)
