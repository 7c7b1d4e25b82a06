"""The data of a run: the requested splits with their fingerprints."""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Dict, Mapping, Optional

from adapter_bert.common.cached_property import cached_property
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import squad
from adapter_bert.tasks.splits import fingerprint
from adapter_bert.tasks.task import InputExample, Task

_OVERLAP = "%d of %d dev %s also appear in the training set; dev scores will be optimistic."


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task with the requested splits.

    Attributes:
      task: the task.
      splits: examples of `train`, `dev` and `test`. Those of a known task are read from their file on each iteration;
        custom data is in memory, because labels are collected from it and the dev split is taken from it.
    """

    task: Task
    splits: Mapping[str, Collection[InputExample]]

    @cached_property
    def split_fingerprints(self) -> Dict[str, str]:
        """Hash of each split."""
        return {name: fingerprint(examples) for name, examples in self.splits.items()}

    def fingerprints(self) -> Dict[str, Any]:
        """Return labels and hashes that must not change while a run continues."""
        found: Dict[str, Any] = {"labels": list(self.task.labels)}
        if "train" in self.splits:
            # The dev split selects the best weights.
            names = [name for name in ("train", "dev") if name in self.splits]
            found.update({f"{name}_data": self.split_fingerprints[name] for name in names})
        return found

    def sizes(self) -> Dict[str, Dict[str, Any]]:
        """Return size and fingerprint of each split, for results."""
        return {
            name: {"examples": len(examples), "fingerprint": self.split_fingerprints[name]}
            for name, examples in self.splits.items()
        }

    def warn_of_overlap(self) -> None:
        """Log a warning if texts of the dev split are also in the training split."""
        dev = self.splits.get("dev", ())
        trained = {(example.text_a, example.text_b) for example in self.splits.get("train", ())}
        both = sum((example.text_a, example.text_b) in trained for example in dev)
        if both:
            tf.logging.warning(_OVERLAP, both, len(dev), "texts")


@dataclasses.dataclass(frozen=True)
class SquadData:
    """The requested SQuAD files.

    Attributes:
      train: questions to train on.
      dev: questions to answer.
      is_scored: whether dev is evaluated during training.
    """

    train: Optional[squad.Dataset] = None
    dev: Optional[squad.Dataset] = None
    is_scored: bool = False

    @property
    def splits(self) -> Dict[str, squad.Dataset]:
        """The files that were read."""
        return {name: dataset for name, dataset in (("train", self.train), ("dev", self.dev)) if dataset}

    @cached_property
    def split_fingerprints(self) -> Dict[str, str]:
        """Hash of each file's content."""
        return {name: squad.fingerprint(dataset) for name, dataset in self.splits.items()}

    def fingerprints(self) -> Dict[str, str]:
        """Return hashes that must not change while a run continues."""
        names = ("train", "dev") if self.is_scored else ("train",)
        found = self.split_fingerprints
        return {f"{name}_data": found[name] for name in names if name in found}

    def sizes(self) -> Dict[str, Dict[str, Any]]:
        """Return counts and fingerprint of each file, for results."""
        return {
            name: dict(squad.describe(dataset), fingerprint=self.split_fingerprints[name])
            for name, dataset in self.splits.items()
        }

    def log_summary(self) -> None:
        """Log the content of the files, and a warning if dev paragraphs are also in the training file."""
        for dataset in self.splits.values():
            counts = [f"{count} {name.replace('_', ' ')}" for name, count in squad.describe(dataset).items() if count]
            tf.logging.info("%s: %s", dataset.path, ", ".join(counts))
        if self.train and self.dev and self.dev.has_answers:
            trained = {paragraph.context for paragraph in self.train.paragraphs}
            both = sum(paragraph.context in trained for paragraph in self.dev.paragraphs)
            if both:
                tf.logging.warning(_OVERLAP, both, len(self.dev.paragraphs), "paragraphs")
