"""Features are made once: a file for each content, shared by every run that needs the same.

The name of a file is a hash of all that its records depend on, the code that makes them included. It is written under
a name of its own and renamed when complete, so that two processes may make the same one at the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Iterable, Iterator, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import tokenization
from pipeline import features, records
from pipeline.features import PaddingInputExample
from tasks.table import InputExample

Examples = Sequence[Union[InputExample, PaddingInputExample]]


def fingerprint(examples: Iterable[Union[InputExample, PaddingInputExample]]) -> str:
    """A hash of texts and labels in their order; names of examples do not count."""
    digest = hashlib.sha256()
    for example in examples:
        filler = isinstance(example, PaddingInputExample)
        cells = ("filler",) if filler else (example.text_a, example.text_b, example.label)
        digest.update((repr(cells) + "\n").encode("utf-8", "surrogatepass"))
    return "sha256:" + digest.hexdigest()[:16]


def _code_fingerprint() -> str:
    """A hash of the code that makes records: another version of it makes files of its own."""
    digest = hashlib.sha256()
    for module in (tokenization, features, records):
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
    parts = (fingerprint(examples), tuple(label_list), max_seq_length, tokenizer_key, _code_fingerprint())
    key = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:20]
    path = os.path.join(folder, f"{name}-{key}.tf_record")
    if tf.gfile.Exists(path):
        if count_records(path) == len(examples):
            tf.logging.info("Features of %d examples (%s): %s", len(examples), name, path)
            return path
        tf.logging.warning("The features %s are damaged; they are made again.", path)
    tf.logging.info("Making features of %d examples (%s): %s", len(examples), name, path)
    records.file_based_convert_examples_to_features(
        _with_progress(examples), label_list, max_seq_length, tokenizer, path
    )
    return path


def _with_progress(examples: Examples, every_seconds: float = 10.0) -> Iterator:
    """Passes examples on; where that takes long, logs how far it is and how long it will take."""
    started = shown = time.perf_counter()
    for done, example in enumerate(examples):
        now = time.perf_counter()
        if now - shown >= every_seconds:
            shown = now
            left = (len(examples) - done) * (now - started) / done
            tf.logging.info(
                "features %d/%d  %.0f examples/s  %.0f s left", done, len(examples), done / (now - started), left
            )
        yield example


def count_records(path: str) -> Optional[int]:
    """How many records a TFRecord file holds; None where it is damaged (each has a checksum)."""
    try:
        return sum(1 for _ in tf.python_io.tf_record_iterator(path))
    except tf.errors.OpError:
        return None
