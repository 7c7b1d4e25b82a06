"""Splits that are read from their files each time, and fingerprints of examples."""

from __future__ import annotations

import hashlib
from typing import Iterable, Iterator

from adapter_bert.tasks.task import InputExample, Task, read_examples


class StreamedSplit:
    """The examples of a split of a registered task, read from its file in each iteration.

    The constructor reads the file once and raises errors in it; arguments and errors are those of `read_examples`.

    Attributes:
      fingerprint: see `fingerprint`.
    """

    def __init__(self, task: Task, data_dir: str, split_name: str) -> None:
        self._source = (task, data_dir, split_name)
        self._count = 0
        self.fingerprint = fingerprint(self._counted(read_examples(*self._source)))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InputExample]:
        return read_examples(*self._source, quiet=True)

    def _counted(self, examples: Iterable[InputExample]) -> Iterator[InputExample]:
        for example in examples:
            self._count += 1
            yield example


def fingerprint(examples: Iterable[InputExample]) -> str:
    """Return a hash of the texts and labels in order, independent of guids. Runs store it: it must never change."""
    if isinstance(examples, StreamedSplit):
        return examples.fingerprint
    digest = hashlib.sha256()
    for example in examples:
        line = repr((example.text_a, example.text_b, example.label)) + "\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
    return "sha256:" + digest.hexdigest()[:16]
