"""Convert examples to features: texts to token ids."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common import errors, parallel
from adapter_bert.pipeline import tfrecords
from adapter_bert.tasks.task import InputExample

# Examples per work item of a process: about 10 ms of work, and little memory.
EXAMPLES_PER_CHUNK = 500
# With fewer examples, starting processes costs more time than it saves.
EXAMPLES_FOR_PROCESSES = 10000


class PaddingInputExample:
    """A padding example. It fills the last batch if all batches must have the same size (TPUs); never scored."""


Example = Union[InputExample, PaddingInputExample]


@dataclasses.dataclass(eq=False)
class InputFeatures:
    """Features of one example, padded to a fixed length; the label is a class index, or a float in regression."""

    input_ids: Sequence[int]
    input_mask: Sequence[int]
    segment_ids: Sequence[int]
    label_id: Union[int, float]
    is_real_example: bool = True

    def as_lists(self) -> Dict[str, list]:
        """Return the values under their names in records and in the graph."""
        return {
            "input_ids": list(self.input_ids),
            "input_mask": list(self.input_mask),
            "segment_ids": list(self.segment_ids),
            "label_ids": [self.label_id],
            "is_real_example": [int(self.is_real_example)],
        }


def truncate_seq_pair(tokens_a: List[Any], tokens_b: List[Any], max_length: int) -> None:
    """Truncate a pair in place to a total length, as if repeatedly removing the last token of the longer list."""
    # Of two lists of equal length, the second loses a token first: it keeps the smaller half, or all remaining space.
    kept = min(len(tokens_b), max(max_length - len(tokens_a), max_length // 2))
    del tokens_b[kept:]
    del tokens_a[max_length - kept :]


class Encoder:
    """Encodes the examples of one task with one tokenizer."""

    def __init__(self, label_list: Sequence[str], max_seq_length: int, tokenizer: Any) -> None:
        """Create an encoder; `label_list` is in the order of the classes, and empty for regression.

        The tokenizer has `token_ids`, or else `tokenize` and `convert_tokens_to_ids`.
        """
        if max_seq_length < 3:
            raise errors.UserError(f"max_seq_length must be at least 3, for [CLS] [SEP] [SEP], found {max_seq_length}.")
        self.max_seq_length = max_seq_length
        self.tokenizer = tokenizer
        # If a label occurs twice, its first index is used.
        self._label_ids = {label: index for index, label in reversed(list(enumerate(label_list)))}
        self._token_ids = getattr(tokenizer, "token_ids", self._token_ids_by_tokens)
        self._cls, self._sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])

    def encode(self, example: Example) -> Dict[str, list]:
        """Return the features of `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` by name, without padding."""
        if isinstance(example, PaddingInputExample):
            label = 0 if self._label_ids else 0.0
            return {"input_ids": [0], "segment_ids": [0], "label_ids": [label], "is_real_example": [0]}
        ids = self._token_ids(example.text_a)
        # A second text without tokens counts as absent, as in the original.
        second = self._token_ids(example.text_b) if example.text_b else []
        if second:
            truncate_seq_pair(ids, second, self.max_seq_length - 3)
            second.append(self._sep)
        else:
            del ids[self.max_seq_length - 2 :]
        ids.insert(0, self._cls)
        ids.append(self._sep)
        return {
            "input_ids": ids + second,
            "segment_ids": [0] * len(ids) + [1] * len(second),
            "label_ids": [self._label_id(example)],
            "is_real_example": [1],
        }

    def encode_padded(self, example: Example) -> InputFeatures:
        """Return the features padded with zeros to `max_seq_length`; the mask of a padding example is all zeros."""
        features = self.encode(example)
        ids, [is_real] = features["input_ids"], features["is_real_example"]
        padding = [0] * (self.max_seq_length - len(ids))
        return InputFeatures(
            ids + padding,
            [is_real] * len(ids) + padding,
            features["segment_ids"] + padding,
            features["label_ids"][0],
            bool(is_real),
        )

    def log_first(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples; log the features of the first."""
        examples = iter(examples)
        for first in itertools.islice(examples, 1):
            self.log(first)
            yield first
        yield from examples

    def log(self, example: Example) -> None:
        """Log the features of an example."""
        if isinstance(example, PaddingInputExample):
            return
        features = self.encode(example)
        tokens = self.tokenizer.convert_ids_to_tokens(features["input_ids"])
        tf.logging.debug("*** Example ***")
        tf.logging.debug("guid: %s", example.guid)
        tf.logging.debug("tokens: %s", " ".join(tokenization.printable_text(token) for token in tokens))
        tf.logging.debug("input_ids: %s", " ".join(map(str, features["input_ids"])))
        tf.logging.debug("label: %s (id = %s)", example.label, features["label_ids"][0])

    def _token_ids_by_tokens(self, text: str) -> List[int]:
        return list(self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(text)))

    def _label_id(self, example: InputExample) -> Union[int, float]:
        if not self._label_ids:
            return float(example.label or 0.0)
        if example.label is None:
            return 0
        if example.label not in self._label_ids:
            labels = ", ".join(map(str, reversed(list(self._label_ids))))
            raise errors.UserError(f"Example {example.guid} has the label '{example.label}'; expected one of {labels}.")
        return self._label_ids[example.label]


def convert_single_example(
    ex_index: int,
    example: Example,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> InputFeatures:
    """Convert an example to features of length `max_seq_length`; log the example with index 0. See `Encoder`."""
    # A pair, max_seq_length = 12:
    #   tokens:      [CLS] is this big ? [SEP] no , it ##s [SEP] [PAD]
    #   segment_ids:   0    0   0   0  0   0    1 1  1  1    1     0
    #   input_mask:    1    1   1   1  1   1    1 1  1  1    1     0
    # A single text:
    #   tokens:      [CLS] the dog sees it . [SEP] [PAD] [PAD] [PAD] [PAD] [PAD]
    #   segment_ids:   0    0   0   0    0 0   0     0     0     0     0     0
    # The segment ids (0: first text, 1: second) select a learned vector that is added to each token's embedding. [SEP]
    # ends a text. Classification reads the final state of [CLS].
    encoder = Encoder(label_list, max_seq_length, tokenizer)
    if ex_index == 0:
        encoder.log(example)
    return encoder.encode_padded(example)


def convert_examples_to_features(
    examples: Iterable[Example],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> List[InputFeatures]:
    """Convert examples to features, see `convert_single_example`."""
    encoder = Encoder(label_list, max_seq_length, tokenizer)
    return [encoder.encode_padded(example) for example in encoder.log_first(examples)]


def iterate_records(examples: Iterable[Example], encoder: Encoder, processes: Optional[int] = None) -> Iterator[bytes]:
    """Yield a record per example, without padding; examples are read when needed.

    By default, small data sets are encoded in this process, large ones in several, see `parallel.map_in_order`.
    """

    def encode_chunk(chunk: Sequence[Example]) -> List[bytes]:
        return [tfrecords.serialize(encoder.encode(example)) for example in chunk]

    examples = encoder.log_first(examples)
    if processes is None:
        first = list(itertools.islice(examples, EXAMPLES_FOR_PROCESSES))
        processes = 1 if len(first) < EXAMPLES_FOR_PROCESSES else parallel.num_processes()
        examples = itertools.chain(first, examples)
    for records in parallel.map_in_order(encode_chunk, parallel.chunks(examples, EXAMPLES_PER_CHUNK), processes):
        yield from records
