"""Splits that are not held in memory, and what tells splits apart."""

from __future__ import annotations

import hashlib
import itertools
from typing import Iterable, Iterator, Optional, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks.task import InputExample, Task, read_examples, split_path

# Examples that are hashed at a time.
_HASHED = 256


class StreamedSplit:
    """The examples of a split of a known task, read from its file each time they are gone through.

    Made by reading it once, so that whatever is wrong with the file is told then.

    Attributes:
      fingerprint: see `fingerprint`.
    """

    def __init__(self, task: Task, data_dir: str, split_name: str) -> None:
        """Reads the file once; for the arguments and errors see `tasks.read_examples`."""
        self._source = (task, data_dir, split_name)
        self._path = split_path(task, data_dir, split_name)
        self._count = 0
        self._stamp = self._current_stamp()
        self.fingerprint = fingerprint(self._counted(read_examples(*self._source)))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InputExample]:
        """Yields the examples; `errors.UserError` where the file is no longer the one that was read at first."""
        yield from read_examples(*self._source, quiet=True)
        if self._current_stamp() != self._stamp:
            raise errors.UserError(f"{self._path} was changed while it was being used: run the command again.")

    def _counted(self, examples: Iterable[InputExample]) -> Iterator[InputExample]:
        for example in examples:
            self._count += 1
            yield example

    def _current_stamp(self) -> Optional[Tuple[int, int]]:
        if not tf.gfile.Exists(self._path):
            return None
        found = tf.gfile.Stat(self._path)
        return found.length, found.mtime_nsec


def fingerprint(examples: Iterable[InputExample]) -> str:
    """A hash of texts and labels in their order; names of examples do not count."""
    if isinstance(examples, StreamedSplit):
        return examples.fingerprint
    digest = hashlib.sha256()
    lines = (repr((example.text_a, example.text_b, example.label)) for example in examples)
    for some in iter(lambda: list(itertools.islice(lines, _HASHED)), []):
        digest.update(("\n".join(some) + "\n").encode("utf-8", "surrogatepass"))
    return "sha256:" + digest.hexdigest()[:16]
