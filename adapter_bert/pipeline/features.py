"""Examples -> features: texts become ids."""

from __future__ import annotations

import collections
import itertools
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common import parallel
from adapter_bert.pipeline import writing
from adapter_bert.tasks.task import InputExample

LOGGED_EXAMPLES = 1

# Examples that a process takes at a time: some 10 ms of work, and little memory.
EXAMPLES_PER_CHUNK = 500
# Fewer are made sooner than processes have started.
EXAMPLES_FOR_PROCESSES = 10000


class PaddingInputExample:
    """A filler that completes the last batch where batches must have one size (TPUs). Never scored."""


Example = Union[InputExample, PaddingInputExample]


class InputFeatures:
    """One example as the network takes it, padded to one length for all."""

    def __init__(
        self,
        input_ids: Sequence[int],
        input_mask: Sequence[int],
        segment_ids: Sequence[int],
        label_id: Union[int, float],
        is_real_example: bool = True,
    ) -> None:
        """Takes the ids, all of one length, and the class index (a float: the number to predict)."""
        self.input_ids = input_ids
        self.input_mask = input_mask
        self.segment_ids = segment_ids
        self.label_id = label_id
        self.is_real_example = is_real_example

    def as_lists(self) -> collections.OrderedDict[str, list]:
        """The values under the names that the network's graph uses."""
        return collections.OrderedDict(
            input_ids=list(self.input_ids),
            input_mask=list(self.input_mask),
            segment_ids=list(self.segment_ids),
            label_ids=[self.label_id],
            is_real_example=[int(self.is_real_example)],
        )


class SequenceFeatures(NamedTuple):
    """One example as records hold it: as long as its sequence."""

    input_ids: List[int]
    segment_ids: List[int]
    label_id: Union[int, float]
    is_real_example: bool = True

    def as_lists(self) -> Dict[str, list]:
        """The values under the names that TFRecords use."""
        return {
            "input_ids": self.input_ids,
            "segment_ids": self.segment_ids,
            "label_ids": [self.label_id],
            "is_real_example": [int(self.is_real_example)],
        }


def truncate_seq_pair(tokens_a: List[Any], tokens_b: List[Any], max_length: int) -> None:
    """Shortens a pair in place to a total length: as if the longer one lost its last token, again and again."""
    # The second one gives way first, so it keeps the smaller half, or what the first one leaves.
    kept = min(len(tokens_b), max(max_length - len(tokens_a), max_length // 2))
    del tokens_b[kept:]
    del tokens_a[max_length - kept :]


class Encoder:
    """Examples -> features, for one task and one tokenizer."""

    def __init__(self, label_list: Sequence[str], max_seq_length: int, tokenizer: Any) -> None:
        """Takes what all examples share.

        Args:
          label_list: label words in the order of the classes; empty where the label is a number.
          max_seq_length: greatest number of tokens of a sequence.
          tokenizer: text to ids; one without `token_ids` is asked for tokens and their ids.

        Raises:
          ValueError: a pair has no room for its three special tokens.
        """
        if max_seq_length < 3:
            raise ValueError(f"max_seq_length must be 3 at least, for [CLS] [SEP] [SEP]; received {max_seq_length}.")
        self.max_seq_length = max_seq_length
        self.tokenizer = tokenizer
        # Of a label that is there twice, the first counts.
        self._label_ids = {label: index for index, label in reversed(list(enumerate(label_list)))}
        self._token_ids = getattr(tokenizer, "token_ids", self._token_ids_by_tokens)
        self._cls, self._sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])

    def encode(self, example: Example) -> SequenceFeatures:
        """Makes features of `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

        A filler is one token: there are no sequences of none.

        Raises:
          ValueError: the label is not in the list.
        """
        if isinstance(example, PaddingInputExample):
            return SequenceFeatures([0], [0], 0 if self._label_ids else 0.0, is_real_example=False)
        ids = self._token_ids(example.text_a)
        # A second text without a token counts as none, as in the original.
        second = self._token_ids(example.text_b) if example.text_b else []
        if second:
            truncate_seq_pair(ids, second, self.max_seq_length - 3)
            second.append(self._sep)
        else:
            del ids[self.max_seq_length - 2 :]
        ids.insert(0, self._cls)
        ids.append(self._sep)
        segment_ids = [0] * len(ids) + [1] * len(second)
        return SequenceFeatures(ids + second, segment_ids, self._label_id(example))

    def log(self, example: Example) -> None:
        """Shows what becomes of an example."""
        if isinstance(example, PaddingInputExample):
            return
        features = self.encode(example)
        tokens = self.tokenizer.convert_ids_to_tokens(features.input_ids)
        tf.logging.info("*** Example ***")
        tf.logging.info("guid: %s", example.guid)
        tf.logging.info("tokens: %s", " ".join(tokenization.printable_text(token) for token in tokens))
        tf.logging.info("input_ids: %s", " ".join(map(str, features.input_ids)))
        tf.logging.info("label: %s (id = %s)", example.label, features.label_id)

    def _token_ids_by_tokens(self, text: str) -> List[int]:
        return list(self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(text)))

    def _label_id(self, example: InputExample) -> Union[int, float]:
        if not self._label_ids:
            return float(example.label or 0.0)
        if example.label is None:
            return 0
        if example.label not in self._label_ids:
            raise ValueError(
                "The example {} has the label '{}'; the labels are {}.".format(
                    example.guid, example.label, ", ".join(map(str, reversed(list(self._label_ids))))
                )
            )
        return self._label_ids[example.label]


def _padded(features: SequenceFeatures, length: int) -> InputFeatures:
    tokens = len(features.input_ids) if features.is_real_example else 0
    padding = [0] * (length - len(features.input_ids))
    return InputFeatures(
        features.input_ids + padding,
        [1] * tokens + [0] * (length - tokens),
        features.segment_ids + padding,
        features.label_id,
        features.is_real_example,
    )


def convert_single_example(
    ex_index: int,
    example: Example,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> InputFeatures:
    """Tokenises an example: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, padded with zeros.

    Args:
      ex_index: its index; the first few are logged.
      example: the example.
      label_list: label words in the order of the classes; empty where the label is a number.
      max_seq_length: length of the result.
      tokenizer: text to ids.

    Raises:
      ValueError: the label is not in the list.
    """
    encoder = Encoder(label_list, max_seq_length, tokenizer)
    if ex_index < LOGGED_EXAMPLES:
        encoder.log(example)
    return _padded(encoder.encode(example), max_seq_length)


def convert_examples_to_features(
    examples: Iterable[Example],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> List[InputFeatures]:
    """Tokenises examples into a list; for the arguments see `convert_single_example`."""
    return list(padded_features(examples, label_list, max_seq_length, tokenizer))


def padded_features(
    examples: Iterable[Example],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> Iterator[InputFeatures]:
    """The same one by one."""
    encoder = Encoder(label_list, max_seq_length, tokenizer)
    return (_padded(encoder.encode(example), max_seq_length) for example in _logged(examples, encoder))


def iterate_records(
    examples: Iterable[Example],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    processes: Optional[int] = None,
) -> Iterator[bytes]:
    """Records of examples in their order, made as they are asked for; of many, in several processes.

    Args:
      examples: read as they are needed.
      label_list, max_seq_length, tokenizer: see `convert_single_example`.
      processes: see `parallel.map_in_order`; by default one where examples are few.
    """
    encoder = Encoder(label_list, max_seq_length, tokenizer)

    def make(chunk: Sequence[Example]) -> List[bytes]:
        return [writing.serialize(encoder.encode(example)) for example in chunk]

    examples = _logged(examples, encoder)
    if processes is None:
        first = list(itertools.islice(examples, EXAMPLES_FOR_PROCESSES))
        processes = 1 if len(first) < EXAMPLES_FOR_PROCESSES else parallel.num_processes()
        examples = itertools.chain(first, examples)
    for made in parallel.map_in_order(make, parallel.chunks(examples, EXAMPLES_PER_CHUNK), processes):
        yield from made


def _logged(examples: Iterable[Example], encoder: Encoder) -> Iterator[Example]:
    for index, example in enumerate(examples):
        if index < LOGGED_EXAMPLES:
            encoder.log(example)
        yield example
