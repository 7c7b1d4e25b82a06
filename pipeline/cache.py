"""Features are made once: a file for each content, shared by every run that needs the same.

The name of a file is a hash of all that its records depend on, the code that makes them included. It is written under
a name of its own and renamed when complete, so that two processes may make the same one at the same time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from types import ModuleType
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import tokenization
from pipeline import features, records, spans
from pipeline.features import PaddingInputExample
from pipeline.progress import with_progress
from tasks import squad
from tasks.table import InputExample

Examples = Sequence[Union[InputExample, PaddingInputExample]]

# The end of a file's name: the number of its records.
_NUMBERED = re.compile(r"-(\d+)\.tf_record$")


def fingerprint(examples: Iterable[Union[InputExample, PaddingInputExample]]) -> str:
    """A hash of texts and labels in their order; names of examples do not count."""
    digest = hashlib.sha256()
    for example in examples:
        filler = isinstance(example, PaddingInputExample)
        cells = ("filler",) if filler else (example.text_a, example.text_b, example.label)
        digest.update((repr(cells) + "\n").encode("utf-8", "surrogatepass"))
    return "sha256:" + digest.hexdigest()[:16]


def _code_fingerprint(modules: Sequence[ModuleType]) -> str:
    """A hash of the code that makes records: another version of it makes files of its own."""
    digest = hashlib.sha256()
    for module in modules:
        with open(module.__file__, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def feature_file(
    folder: str,
    name: str,
    examples: Examples,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    tokenizer_key: str,
) -> str:
    """The TFRecord file with the features of these examples; made if it is not there.

    Args:
      folder: of the cache.
      name: of the split; the file's name starts with it.
      examples: in their order.
      label_list: see `features.convert_single_example`.
      max_seq_length: tokens of a sequence.
      tokenizer: text to ids.
      tokenizer_key: tells tokenizers apart: one text for each that makes other ids.
    """

    def make() -> Iterator[bytes]:
        shown = with_progress(examples, len(examples), "features", "examples")
        return map(records.serialize, features.iterate_features(shown, label_list, max_seq_length, tokenizer))

    parts = (fingerprint(examples), tuple(label_list), max_seq_length, tokenizer_key)
    return record_file(folder, name, parts, (tokenization, features, records), make)


def span_file(
    folder: str,
    name: str,
    dataset: squad.Dataset,
    lengths: spans.Lengths,
    tokenizer: Any,
    tokenizer_key: str,
    pad_to: int = 1,
) -> str:
    """The same for the windows of a SQuAD file.

    Args:
      folder, name, tokenizer, tokenizer_key: see `feature_file`.
      dataset: paragraphs and questions.
      lengths: how to cut them.
      pad_to: batch size that fillers complete.
    """

    def make() -> Iterator[bytes]:
        shown = with_progress(dataset.paragraphs, len(dataset.paragraphs), "features", "paragraphs")
        return spans.iterate_records(shown, tokenizer, lengths, pad_to)

    parts = (squad.fingerprint(dataset), dataclasses.astuple(lengths), tokenizer_key, pad_to)
    return record_file(folder, name, parts, (tokenization, squad, spans, records), make)


def record_file(
    folder: str, name: str, parts: Sequence[Any], modules: Sequence[ModuleType], make: Callable[[], Iterator[bytes]]
) -> str:
    """The TFRecord file of a content; made if it is not there. Its name ends with the number of records.

    Args:
      folder: of the cache.
      name: what the file's name starts with.
      parts: all that the records depend on, besides the code.
      modules: the code that makes them.
      make: makes the records.
    """
    key = repr((*parts, _code_fingerprint(modules))).encode("utf-8", "surrogatepass")
    stem = f"{name}-{hashlib.sha256(key).hexdigest()[:20]}"
    for found in tf.gfile.ListDirectory(folder) if tf.gfile.Exists(folder) else ():
        path = os.path.join(folder, found)
        if not (found.startswith(stem) and _NUMBERED.search(found)):
            continue
        if count_records(path) == num_records(path):
            tf.logging.info("Features of %s (%d sequences): %s", name, num_records(path), path)
            return path
        tf.logging.warning("The features %s are damaged; they are made again.", path)
    path = os.path.join(folder, stem)
    tf.logging.info("Making features of %s: %s-*.tf_record", name, path)
    count = records.write_serialized(make(), path, lambda count: f"{path}-{count}.tf_record")
    return f"{path}-{count}.tf_record"


def num_records(path: str) -> int:
    """How many records a file of this cache says that it holds."""
    return int(_NUMBERED.search(path)[1])


def count_records(path: str) -> Optional[int]:
    """How many records a TFRecord file holds; None where it is damaged (each has a checksum)."""
    try:
        return sum(1 for _ in tf.python_io.tf_record_iterator(path))
    except tf.errors.OpError:
        return None
