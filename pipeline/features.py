"""Examples -> features: texts become ids of one fixed length."""

from __future__ import annotations

import collections
from typing import Iterable, Iterator, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import tokenization
from tasks.table import InputExample

LOGGED_EXAMPLES = 1


class PaddingInputExample:
    """A filler that completes the last batch where batches must have one size (TPUs). Never scored."""


class InputFeatures:
    """One example as the network takes it."""

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
        """The values under the names that TFRecords and the network's graph use."""
        return collections.OrderedDict(
            input_ids=list(self.input_ids),
            input_mask=list(self.input_mask),
            segment_ids=list(self.segment_ids),
            label_ids=[self.label_id],
            is_real_example=[int(self.is_real_example)],
        )


def truncate_seq_pair(tokens_a: List[str], tokens_b: List[str], max_length: int) -> None:
    """Shortens a pair in place to a total length, a token at a time from the end of the longer one."""
    while len(tokens_a) + len(tokens_b) > max_length:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        longer.pop()


def convert_single_example(
    ex_index: int,
    example: Union[InputExample, PaddingInputExample],
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
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, zeros, zeros, label_id=0 if label_list else 0.0, is_real_example=False)

    tokens_a = tokenizer.tokenize(example.text_a)
    # A second text without a token counts as none, as in the original.
    tokens_b = tokenizer.tokenize(example.text_b) if example.text_b else []
    if not tokens_b:
        tokens = ["[CLS]"] + tokens_a[: max_seq_length - 2] + ["[SEP]"]
        segment_ids = [0] * len(tokens)
    else:
        truncate_seq_pair(tokens_a, tokens_b, max_seq_length - 3)
        tokens = ["[CLS]"] + tokens_a + ["[SEP]"] + tokens_b + ["[SEP]"]
        segment_ids = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)

    padding = [0] * (max_seq_length - len(tokens))
    features = InputFeatures(
        input_ids=tokenizer.convert_tokens_to_ids(tokens) + padding,
        input_mask=[1] * len(tokens) + padding,
        segment_ids=segment_ids + padding,
        label_id=_label_id(example, label_list),
    )
    if ex_index < LOGGED_EXAMPLES:
        _log_example(example, tokens, features)
    return features


def _label_id(example: InputExample, label_list: Sequence[str]) -> Union[int, float]:
    if not label_list:
        return float(example.label or 0.0)
    if example.label is None:
        return 0
    if example.label not in label_list:
        raise ValueError(
            "The example {} has the label '{}'; the labels are {}.".format(
                example.guid, example.label, ", ".join(map(str, label_list))
            )
        )
    return list(label_list).index(example.label)


def _log_example(example: InputExample, tokens: Sequence[str], features: InputFeatures) -> None:
    tf.logging.info("*** Example ***")
    tf.logging.info("guid: %s", example.guid)
    tf.logging.info("tokens: %s", " ".join(tokenization.printable_text(token) for token in tokens))
    tf.logging.info("input_ids: %s", " ".join(map(str, features.input_ids)))
    tf.logging.info("label: %s (id = %s)", example.label, features.label_id)


def iterate_features(
    examples: Iterable[Union[InputExample, PaddingInputExample]],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> Iterator[InputFeatures]:
    """Tokenises examples one by one; for the arguments see `convert_single_example`."""
    for index, example in enumerate(examples):
        yield convert_single_example(index, example, label_list, max_seq_length, tokenizer)


def convert_examples_to_features(
    examples: Sequence[Union[InputExample, PaddingInputExample]],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
) -> List[InputFeatures]:
    """Tokenises examples into a list; for the arguments see `convert_single_example`."""
    return list(iterate_features(examples, label_list, max_seq_length, tokenizer))


def pad_examples(examples: Sequence[InputExample], multiple: Optional[int]) -> List:
    """The examples followed by fillers up to a multiple of a batch size; None adds none."""
    missing = -len(examples) % multiple if multiple else 0
    return list(examples) + [PaddingInputExample() for _ in range(missing)]
