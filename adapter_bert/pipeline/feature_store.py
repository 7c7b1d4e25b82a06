"""The feature store: TFRecord files of features, built once and shared by all runs that need them.

A file name contains the number of records and a hash of everything that determines them, including the code that
creates them. Files are renamed when complete, so several processes may build the same ones concurrently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
from types import ModuleType
from typing import Any, Collection, Dict, Iterable, Iterator, List, Optional, Sequence

import tensorflow.compat.v1 as tf
from google.protobuf import message

import tokenization
from adapter_bert.common import errors, files
from adapter_bert.common.progress import with_progress
from adapter_bert.pipeline import features, spans, tfrecords, windows
from adapter_bert.tasks import squad
from adapter_bert.tasks.task import InputExample
from adapter_bert.tasks.task_data import fingerprint

# End of a file name, see `tfrecords.write_shards`.
_ENDING = re.compile(r"-(?P<index>\d{5})-of-(?P<total>\d{5})-\d+-(?P<bytes>\d+)\.tf_record$")


class FeatureStore:
    """Builds features with one tokenizer, or finds those that an earlier run built."""

    def __init__(self, folders: Sequence[str], tokenizer: Any, tokenizer_key: str) -> None:
        """Use the first writable folder. `tokenizer_key` must be equal only for tokenizers that produce equal ids."""
        self._folder = files.writable_folder(*folders)
        self._tokenizer = tokenizer
        self._tokenizer_key = tokenizer_key

    def example_files(
        self,
        name: str,
        examples: Collection[InputExample],
        labels: Sequence[str],
        max_seq_length: int,
        pad_to: int = 1,
    ) -> List[str]:
        """Return the TFRecord files with the features of these examples, in order. Their names start with `name`.

        Examples are read once to build features, and never held in memory all at once. Padding examples fill the last
        batch of size `pad_to`.
        """
        padding = -len(examples) % pad_to
        shown = with_progress(examples, len(examples), "features", "examples")
        padded: Iterator[features.Example] = itertools.chain(shown, [features.PaddingInputExample()] * padding)
        records = features.iterate_records(padded, features.Encoder(labels, max_seq_length, self._tokenizer))
        parts = (fingerprint(examples), padding, tuple(labels), max_seq_length, self._tokenizer_key)
        return self._find_or_build(name, records, parts, (tokenization, features, tfrecords))

    def span_files(self, name: str, dataset: squad.Dataset, config: windows.WindowConfig, pad_to: int = 1) -> List[str]:
        """Return the TFRecord files with the features of all windows of a SQuAD file, see `example_files`."""
        shown = with_progress(dataset.paragraphs, len(dataset.paragraphs), "features", "paragraphs")
        records = spans.iterate_records(shown, self._tokenizer, config, pad_to)
        parts = (dataset.fingerprint, dataclasses.astuple(config), self._tokenizer_key, pad_to)
        return self._find_or_build(name, records, parts, (tokenization, squad, spans, windows, tfrecords))

    def _find_or_build(
        self, name: str, records: Iterator[bytes], parts: Sequence[Any], modules: Iterable[ModuleType]
    ) -> List[str]:
        """Return the files of these records. `parts` and the code of `modules` determine the records."""
        key = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass"))
        for module in modules:
            key.update(pathlib.Path(str(module.__file__)).read_bytes())
        stem = os.path.join(self._folder, f"{name}-{key.hexdigest()[:20]}")
        paths = find(stem)
        if paths is None:
            tf.logging.info("Building features: %s-*.tf_record", stem)
            with contextlib.closing(records):  # type: ignore[type-var]  # If this fails, end the worker processes.
                return tfrecords.write_shards(records, stem)
        tf.logging.info("Features (%d sequences): %s", num_records(paths), errors.first_names(paths, 1))
        return paths


def num_records(paths: Iterable[str]) -> int:
    """Return the number of records, from the file names."""
    return sum(int(path.split("-")[-2]) for path in paths)


@contextlib.contextmanager
def damage_errors(paths: Iterable[str]) -> Iterator[None]:
    """Raise a `UserError` that names the damaged file if TensorFlow finds one while the block reads these files."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        damaged = next((path for path in paths if not _is_intact(path)), None)
        if damaged is None:
            raise
        raise errors.UserError(
            f"The feature file {damaged} is damaged ({errors.reason(error)}). Delete it and run again: it will be "
            "rebuilt."
        ) from None


def _is_intact(path: str) -> bool:
    """Return whether all records of a file have their checksums and contain features."""
    try:
        for record in tf.python_io.tf_record_iterator(path):
            if "input_ids" not in tf.train.Example.FromString(record).features.feature:
                return False
    except (tf.errors.DataLossError, message.DecodeError):
        return False
    return True


def find(stem: str) -> Optional[List[str]]:
    """Return the files whose paths start with `stem` if all of them exist and have the right size."""
    folder, beginning = os.path.split(stem)
    found: Dict[int, Dict[int, str]] = {}  # number of files in a set -> index -> path
    for name in tf.gfile.ListDirectory(folder):
        ending = _ENDING.search(name)
        if ending and name[: ending.start()] == beginning:
            path = os.path.join(folder, name)
            if _has_size(path, int(ending["bytes"])):
                found.setdefault(int(ending["total"]), {})[int(ending["index"])] = path
            else:
                tf.logging.warning("The feature file %s is incomplete; rebuilding it.", path)
    complete = [by_index for total, by_index in found.items() if len(by_index) == total]
    return [path for _, path in sorted(complete[0].items())] if complete else None


def _has_size(path: str, size: int) -> bool:
    """Return whether a path is a regular file of this size, and not, for example, a FIFO or a broken link."""
    try:
        files.check_regular_file(path)
        return files.size(path) == size
    except errors.UserError:
        return False
