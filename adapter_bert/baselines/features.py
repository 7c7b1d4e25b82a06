"""Words and vectors of the texts of a task: computed once, shared by all networks that read them in the same way."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import os
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.network import VECTORS, WORDS
from adapter_bert.baselines.texts import normalize, split_words
from adapter_bert.common import files
from adapter_bert.pipeline.records import WHOLE, InputFn, Share
from adapter_bert.tasks.task import InputExample
from adapter_bert.tasks.task_data import TaskData

_VERSION = 1
_PREFETCHED = 4
# Data sets, vocabularies and vectors in the memory of a process, the least recently used ones are dropped.
_KEPT = 16


class Reading(NamedTuple):
    """How texts are read."""

    lowercase: bool
    alphanumeric: bool
    max_words: int


class SplitWords(NamedTuple):
    """The words of the texts of a split: those of text i are `ids[starts[i]:starts[i + 1]]`, numbered from 1."""

    ids: np.ndarray
    starts: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class TaskWords:
    """The words of a task: first those of the training split, sorted, then all others."""

    train_words: Tuple[str, ...]
    other_words: Tuple[str, ...]
    splits: Mapping[str, SplitWords]


def _text(example: InputExample) -> str:
    return example.text_a if example.text_b is None else f"{example.text_a} {example.text_b}"


def find_words(data: TaskData, reading: Reading, train_words: Optional[Sequence[str]] = None) -> TaskWords:
    """Return the words of a task's splits; `train_words` are those of a training split that was not read."""
    splits = {
        name: [split_words(normalize(_text(example), reading.lowercase, reading.alphanumeric))[: reading.max_words]
               for example in examples]
        for name, examples in data.splits.items()
    }  # fmt: skip
    if train_words is None:
        train_words = sorted({word for words in splits.get("train", ()) for word in words})
    known = set(train_words)
    others = sorted({word for texts in splits.values() for words in texts for word in words if word not in known})
    number = {word: index for index, word in enumerate([*train_words, *others], 1)}
    found = {}
    for name, texts in splits.items():
        ids = np.array([number[word] for words in texts for word in words], np.int32)
        found[name] = SplitWords(ids, np.cumsum([0] + [len(words) for words in texts]))
    return TaskWords(tuple(train_words), tuple(others), found)


class VectorCache:
    """Vectors of words and texts, in files that all processes map into memory."""

    def __init__(self, folder: str, module: TextModule) -> None:
        self._folder, self._module = folder, module

    def of_words(self, words: Sequence[str]) -> np.ndarray:
        """Return float32 [words, width]."""
        return self._find_or_compute("words", words, self._module.word_vectors)

    def of_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, width]."""
        return self._find_or_compute("texts", texts, self._module.text_vectors)

    def _find_or_compute(
        self, kind: str, texts: Sequence[str], compute: Callable[[Sequence[str]], np.ndarray]
    ) -> np.ndarray:
        key = hashlib.sha256(f"{_VERSION} {kind} {self._module.fingerprint}\n".encode())
        for text in texts:
            key.update((text + "\n").encode("utf-8", "surrogatepass"))
        path = os.path.join(self._folder, f"{kind}-{key.hexdigest()[:20]}.npy")
        if not os.path.exists(path):
            values = np.ascontiguousarray(compute(texts), np.float32)
            content = io.BytesIO()
            np.lib.format.write_array(content, values, allow_pickle=False)
            files.write_bytes(path, content.getvalue())
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if values.shape != (len(texts), self._module.width):
            os.remove(path)  # damaged; it is computed again
            return self._find_or_compute(kind, texts, compute)
        return values


class Memory:
    """What a process keeps for later runs: modules, data sets, words and their vectors."""

    def __init__(self) -> None:
        self._kept: Dict[Any, Any] = {}

    def get(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return the value of a key, computed at most once while it is kept."""
        value = self._kept.pop(key) if key in self._kept else compute()
        self._kept[key] = value  # the most recent one
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept)))
        return value


@dataclasses.dataclass(frozen=True, eq=False)
class TextFeatures:
    """The features of a split; has the attributes of `SplitFeatures` that the training code reads."""

    name: str
    batch_size: int
    words: SplitWords
    labels: np.ndarray
    vectors: Optional[np.ndarray] = None  # of the texts
    texts: Optional[Sequence[str]] = None  # for a module that is fine-tuned as a whole
    encode: Optional[Callable[[Sequence[str]], Dict[str, np.ndarray]]] = None  # texts -> features of such a module

    record_files = ()

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(self.labels)

    def training_input_fn(
        self,
        settings: Any,
        label_types: Mapping[str, tf.DType],
        total: int,
        seed: int,
        start: int,
        share: Share = WHOLE,
    ) -> InputFn:
        """Return the input function for training from step `start` to `total`; the order depends on `seed`."""
        return self._input_fn(label_types, lambda: self._shuffled(total, seed, start))

    def scoring_input_fn(self, settings: Any, label_types: Mapping[str, tf.DType]) -> InputFn:
        """Return the input function of one pass over the split."""
        size = self.batch_size
        return self._input_fn(
            label_types,
            lambda: (
                np.arange(first, min(first + size, len(self.labels))) for first in range(0, len(self.labels), size)
            ),
        )

    def _shuffled(self, total: int, seed: int, start: int) -> Iterator[np.ndarray]:
        """Yield the rows of each batch. Batches may span two epochs; each epoch has its own order."""
        size, count = self.batch_size, len(self.labels)

        @functools.lru_cache(maxsize=2)
        def order(epoch: int) -> np.ndarray:
            return np.random.RandomState([seed, epoch]).permutation(count)

        for step in range(start, total):
            places = np.arange(step * size, (step + 1) * size)
            yield np.concatenate([order(epoch)[places[places // count == epoch] % count]
                                  for epoch in range(places[0] // count, places[-1] // count + 1)])  # fmt: skip

    def _input_fn(self, label_types: Mapping[str, tf.DType], rows: Callable[[], Iterator[np.ndarray]]) -> InputFn:
        types: Dict[str, Any] = {WORDS: tf.int32, "is_real_example": tf.int32, **label_types}
        shapes: Dict[str, List[Optional[int]]] = {
            WORDS: [None, None],
            "is_real_example": [None],
            **{name: [None] for name in label_types},
        }
        if self.vectors is not None:
            types[VECTORS], shapes[VECTORS] = tf.float32, [None, self.vectors.shape[1]]
        if self.encode is not None:
            for name, value in self.encode([""]).items():
                types[name], shapes[name] = tf.as_dtype(value.dtype), [None] * value.ndim
        (label,) = label_types

        def generate() -> Iterator[Dict[str, np.ndarray]]:
            for batch in rows():
                features = {WORDS: self._padded(batch), label: self.labels[batch]}
                features["is_real_example"] = np.ones(len(batch), np.int32)
                if self.vectors is not None:
                    features[VECTORS] = self.vectors[batch]
                if self.encode is not None and self.texts is not None:
                    features.update(self.encode([self.texts[row] for row in batch]))
                yield features

        def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
            shape = {name: tf.TensorShape(sizes) for name, sizes in shapes.items()}
            return tf.data.Dataset.from_generator(generate, types, shape).prefetch(_PREFETCHED)

        return input_fn

    def _padded(self, batch: np.ndarray) -> np.ndarray:
        starts, ends = self.words.starts[batch], self.words.starts[batch + 1]
        padded = np.zeros([len(batch), max(1, int((ends - starts).max()))], np.int32)
        for row, (start, end) in enumerate(zip(starts, ends)):
            padded[row, : end - start] = self.words.ids[start:end]
        return padded


def label_array(examples: Collection[InputExample], labels: Sequence[str]) -> np.ndarray:
    """Return the classes of the examples as indices, or their numbers in regression; 0 where there is no label."""
    if not labels:
        return np.array([float(example.label or 0.0) for example in examples], np.float32)
    number = {label: index for index, label in enumerate(labels)}
    return np.array([number[str(each.label)] if each.label is not None else 0 for each in examples], np.int64)


def texts_of(examples: Collection[InputExample], reading: Reading) -> List[str]:
    """Return the normalized texts, for modules that split them themselves."""
    return [normalize(_text(example), reading.lowercase, reading.alphanumeric) for example in examples]
