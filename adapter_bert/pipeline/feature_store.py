"""Features are made once: files for each content, shared by every run that needs the same.

The names of the files hold a hash of all that their records depend on, the code that makes them included. They are
written under names of their own and renamed when complete, so that two processes may make the same at the same time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
from types import ModuleType
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common.progress import with_progress
from adapter_bert.pipeline import features, spans, writing
from adapter_bert.pipeline.features import PaddingInputExample
from adapter_bert.pipeline.writing import Files
from adapter_bert.tasks import squad
from adapter_bert.tasks.splits import fingerprint
from adapter_bert.tasks.task import InputExample

# The end of a file's name, see `writing.write_shards`: which of how many it is, checksum, number of records.
_ENDING = re.compile(r"-(?P<index>\d{5})-of-(?P<total>\d{5})-(?P<checksum>[0-9a-f]{8})-(?P<records>\d+)\.tf_record$")


def _code_fingerprint(modules: Sequence[ModuleType]) -> str:
    """A hash of the code that makes records: another version of it makes files of its own."""
    digest = hashlib.sha256()
    for module in modules:
        with open(module.__file__, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def feature_files(
    folder: str,
    name: str,
    examples: Collection[InputExample],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    tokenizer_key: str,
    pad_to: int = 1,
) -> List[str]:
    """The TFRecord files with the features of these examples, in their order; made if they are not there.

    Args:
      folder: of the cache.
      name: of the split; the names of the files start with it.
      examples: in their order; gone through once to make features, and never held all at once.
      label_list: see `features.convert_single_example`.
      max_seq_length: greatest number of tokens of a sequence.
      tokenizer: text to ids.
      tokenizer_key: tells tokenizers apart: one text for each that makes other ids.
      pad_to: batch size that fillers complete.
    """
    fillers = -len(examples) % pad_to

    def make() -> Iterator[bytes]:
        shown = with_progress(examples, len(examples), "features", "examples")
        padded = itertools.chain(shown, itertools.repeat(PaddingInputExample(), fillers))
        return features.iterate_records(padded, label_list, max_seq_length, tokenizer)

    parts = (fingerprint(examples), fillers, tuple(label_list), max_seq_length, tokenizer_key)
    return record_files(folder, name, parts, (tokenization, features, writing), make)


def span_files(
    folder: str,
    name: str,
    dataset: squad.Dataset,
    lengths: spans.WindowConfig,
    tokenizer: Any,
    tokenizer_key: str,
    pad_to: int = 1,
) -> List[str]:
    """The same for the windows of a SQuAD file.

    Args:
      folder, name, tokenizer, tokenizer_key: see `feature_files`.
      dataset: paragraphs and questions.
      lengths: how to cut them.
      pad_to: batch size that fillers complete.
    """

    def make() -> Iterator[bytes]:
        shown = with_progress(dataset.paragraphs, len(dataset.paragraphs), "features", "paragraphs")
        return spans.iterate_records(shown, tokenizer, lengths, pad_to)

    parts = (squad.fingerprint(dataset), dataclasses.astuple(lengths), tokenizer_key, pad_to)
    return record_files(folder, name, parts, (tokenization, squad, spans, writing), make)


def record_files(
    folder: str, name: str, parts: Sequence[Any], modules: Sequence[ModuleType], make: Callable[[], Iterator[bytes]]
) -> List[str]:
    """The TFRecord files of a content, in the order of their records; made if they are not there.

    Args:
      folder: of the cache.
      name: what the names of the files start with.
      parts: all that the records depend on, besides the code.
      modules: the code that makes them.
      make: makes the records.
    """
    key = repr((*parts, _code_fingerprint(modules))).encode("utf-8", "surrogatepass")
    stem = os.path.join(folder, f"{name}-{hashlib.sha256(key).hexdigest()[:20]}")
    files = _find(stem)
    if files:
        tf.logging.info("Features of %s (%d sequences): %s", name, num_records(files), _shown(files))
        return files
    tf.logging.info("Making features of %s: %s-*.tf_record", name, stem)
    return writing.write_shards(make(), stem)


def _find(stem: str) -> Optional[List[str]]:
    """The files whose paths start so, if they are there from the first to the last, and whole."""
    folder, beginning = os.path.split(stem)
    found: Dict[int, Dict[int, str]] = {}  # number of the files of a set -> index -> path
    for name in tf.gfile.ListDirectory(folder) if tf.gfile.Exists(folder) else ():
        ending = _ENDING.search(name)
        if ending and name[: ending.start()] == beginning:
            found.setdefault(int(ending["total"]), {})[int(ending["index"])] = os.path.join(folder, name)
    for total, by_index in found.items():
        if len(by_index) < total:
            continue
        files = [by_index[index] for index in sorted(by_index)]
        damaged = [path for path in files if writing.checksum(path) != _ENDING.search(path)["checksum"]]
        if not damaged:
            return files
        tf.logging.warning("The features %s are damaged; they are made again.", damaged[0])
    return None


def _shown(files: Sequence[str]) -> str:
    return files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def num_records(files: Files) -> int:
    """How many records files of this cache say that they hold."""
    return sum(int(_ENDING.search(path)["records"]) for path in ([files] if isinstance(files, str) else files))
