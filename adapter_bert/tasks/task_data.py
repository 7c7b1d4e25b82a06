"""The data of a run: the requested splits with their fingerprints."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Collection, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

from adapter_bert.common.cached_property import cached_property
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import squad
from adapter_bert.tasks.task import InputExample, Task, read_examples


class StreamedSplit:
    """The examples of a split of a registered task, read from its file in each iteration.

    The constructor reads the file once, to hash it and to find errors. Its arguments are those of `read_examples`.
    """

    def __init__(self, task: Task, data_dir: str, split_name: str) -> None:
        self._source = (task, data_dir, split_name)
        self.fingerprint, self._count = _hash_and_count(read_examples(*self._source))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InputExample]:
        return read_examples(*self._source, quiet=True)


def fingerprint(examples: Iterable[InputExample]) -> str:
    """Return a hash of the texts and labels in order, independent of guids. Runs store it: it must never change."""
    return examples.fingerprint if isinstance(examples, StreamedSplit) else _hash_and_count(examples)[0]


def _hash_and_count(examples: Iterable[InputExample]) -> Tuple[str, int]:
    digest, count = hashlib.sha256(), 0
    for example in examples:
        line = repr((example.text_a, example.text_b, example.label)) + "\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
        count += 1
    return "sha256:" + digest.hexdigest()[:16], count


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task and the examples of the requested splits, some of `train`, `dev` and `test`.

    Examples of a known task are read from their file in each iteration. Custom data is in memory, because labels and
    dev split are derived from it.
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
            hashes = self.split_fingerprints.items()
            found.update({f"{name}_data": value for name, value in hashes if name != "test"})
        return found

    def sizes(self) -> Dict[str, Dict[str, Any]]:
        """Return size and fingerprint of each split, for results."""
        return {
            name: {"examples": len(examples), "fingerprint": self.split_fingerprints[name]}
            for name, examples in self.splits.items()
        }

    def warn_of_overlap(self) -> None:
        """Log a warning if texts of the dev split are also in the training split."""
        train, dev = ([(row.text_a, row.text_b) for row in self.splits.get(name, ())] for name in ("train", "dev"))
        _warn_of_overlap(train, dev, "texts")


@dataclasses.dataclass(frozen=True)
class SquadData:
    """The questions to train on and those to answer; `is_scored` if dev is evaluated during training."""

    train: Optional[squad.Dataset] = None
    dev: Optional[squad.Dataset] = None
    is_scored: bool = False

    @property
    def splits(self) -> Dict[str, squad.Dataset]:
        """The files that were read."""
        return {name: dataset for name, dataset in (("train", self.train), ("dev", self.dev)) if dataset}

    def fingerprints(self) -> Dict[str, str]:
        """Return hashes that must not change while a run continues."""
        splits = self.splits.items()
        return {f"{name}_data": dataset.fingerprint for name, dataset in splits if name == "train" or self.is_scored}

    def sizes(self) -> Dict[str, Dict[str, Any]]:
        """Return counts and fingerprint of each file, for results."""
        return {name: dict(dataset.counts(), fingerprint=dataset.fingerprint) for name, dataset in self.splits.items()}

    def log_summary(self) -> None:
        """Log the content of the files, and a warning if dev paragraphs are also in the training file."""
        for dataset in self.splits.values():
            counts = [f"{count} {name.replace('_', ' ')}" for name, count in dataset.counts().items() if count]
            tf.logging.info("%s: %s", dataset.path, ", ".join(counts))
        if self.train and self.dev and self.dev.has_answers:
            train, dev = ([page.context for page in dataset.paragraphs] for dataset in (self.train, self.dev))
            _warn_of_overlap(train, dev, "paragraphs")


def _warn_of_overlap(train: Sequence[Any], dev: Sequence[Any], kind: str) -> None:
    trained = set(train)
    both = sum(item in trained for item in dev)
    if both:
        message = "%d of %d dev %s also appear in the training set; dev scores will be optimistic."
        tf.logging.warning(message, both, len(dev), kind)
