"""Features are made once: a file for each content, shared by every run that needs the same.

The name of a file is a hash of all that its records depend on, the code that makes them included. It is written under
a name of its own and renamed when complete, so that two processes may make the same one at the same time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import time
from types import ModuleType
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, TypeVar, Union

import tensorflow.compat.v1 as tf

import tokenization
from pipeline import features, records, spans
from pipeline.features import PaddingInputExample
from tasks import squad
from tasks.table import InputExample

Examples = Sequence[Union[InputExample, PaddingInputExample]]
Item = TypeVar("Item")


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
        shown = with_progress(examples, "examples")
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
        return spans.iterate_records(with_progress(dataset.paragraphs, "paragraphs"), tokenizer, lengths, pad_to)

    parts = (squad.fingerprint(dataset), dataclasses.astuple(lengths), tokenizer_key, pad_to)
    return record_file(folder, name, parts, (tokenization, spans, records), make)


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
    pattern = re.compile(re.escape(stem) + r"-(\d+)\.tf_record")
    for found in tf.gfile.ListDirectory(folder) if tf.gfile.Exists(folder) else ():
        match, path = pattern.fullmatch(found), os.path.join(folder, found)
        if match and count_records(path) == int(match[1]):
            tf.logging.info("Features of %s (%s sequences): %s", name, match[1], path)
            return path
        if match:
            tf.logging.warning("The features %s are damaged; they are made again.", path)
    path = os.path.join(folder, stem)
    tf.logging.info("Making features of %s: %s-*.tf_record", name, path)
    count = records.write_serialized(make(), path, lambda count: f"{path}-{count}.tf_record")
    return f"{path}-{count}.tf_record"


def with_progress(items: Sequence[Item], what: str, every_seconds: float = 10.0) -> Iterator[Item]:
    """Passes items on; where that takes long, logs how far it is and how long it will take."""
    started = shown = time.perf_counter()
    for done, item in enumerate(items):
        now = time.perf_counter()
        if now - shown >= every_seconds:
            shown = now
            left = (len(items) - done) * (now - started) / done
            tf.logging.info(
                "features %d/%d  %.0f %s/s  %.0f s left", done, len(items), done / (now - started), what, left
            )
        yield item


def count_records(path: str) -> Optional[int]:
    """How many records a TFRecord file holds; None where it is damaged (each has a checksum)."""
    try:
        return sum(1 for _ in tf.python_io.tf_record_iterator(path))
    except tf.errors.OpError:
        return None
