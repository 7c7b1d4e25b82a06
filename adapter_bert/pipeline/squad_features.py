"""SQuAD examples and features in the format of the original `run_squad.py`, for code that imports them from there.

Our own runs do not use these: `spans` works on characters instead of words. Differences from the original:

* In training, an answer that is not at its `answer_start` moves to the nearest occurrence, and of several answers the
  first is used. The original skips the former and rejects the latter.
* No example is logged.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import itertools
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import files
from adapter_bert.pipeline import records, spans, tfrecords
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks import squad

FIRST_UNIQUE_ID = 1000000000
# The original splits paragraphs at these characters only.
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclasses.dataclass(eq=False)
class SquadExample:
    """A question about a paragraph. Positions are indices of words; -1 if there is no answer, None if not training."""

    qas_id: str
    question_text: str
    doc_tokens: List[str]  # the words of the paragraph
    orig_answer_text: Optional[str] = None
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: bool = False


@dataclasses.dataclass(eq=False)
class SquadFeatures:
    """One window of a question's paragraph. Positions are indices of tokens; 0 if the answer is not in the window."""

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: List[str]
    token_to_orig_map: Dict[int, int]  # position of each token of the paragraph -> index of its word
    token_is_max_context: Dict[int, bool]
    input_ids: List[int]
    input_mask: List[int]
    segment_ids: List[int]
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: Optional[bool] = None


def read_squad_examples(input_file: str, is_training: bool, version_2_with_negative: bool) -> List[SquadExample]:
    """Read a SQuAD file; without training, answers are ignored and every question counts as answerable."""
    dataset = squad.read(input_file)
    if is_training:
        squad.check_version(dataset, version_2_with_negative)
        dataset = squad.for_training(dataset)
    examples = []
    for paragraph in dataset.paragraphs:
        words = list(_WORD.finditer(paragraph.context))
        doc_tokens, starts = [word.group() for word in words], [word.start() for word in words]
        for question in paragraph.questions:
            example = SquadExample(question.id, question.text, doc_tokens)
            if not is_training or _add_answer(example, question, starts):
                examples.append(example)
    return examples


def _add_answer(example: SquadExample, question: squad.Question, starts: Sequence[int]) -> bool:
    """Add the answer to an example, given where each word starts; return whether its words contain the answer."""
    answer = question.found
    if answer is None or answer.start is None:
        example.orig_answer_text, example.start_position, example.end_position = "", -1, -1
        example.is_impossible = True
        return True
    first, last = (bisect.bisect_right(starts, answer.start + more) - 1 for more in (0, len(answer.text) - 1))
    example.orig_answer_text, example.start_position, example.end_position = answer.text, first, last
    covered, expected = " ".join(example.doc_tokens[first : last + 1]), " ".join(answer.text.split())
    if expected not in covered:
        tf.logging.warning("Could not find answer: '%s' vs. '%s'", covered, expected)
    return expected in covered


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: Any,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[SquadFeatures], Any],
) -> None:
    """Convert examples to features, padded to `max_seq_length`; call `output_fn` with each."""
    config = WindowConfig(max_seq_length, doc_stride, max_query_length)
    tokenize = functools.lru_cache(maxsize=100000)(tokenizer.tokenize)
    unique_ids = itertools.count(FIRST_UNIQUE_ID)
    for index, example in enumerate(examples):
        pieces = [(piece, word) for word, text in enumerate(example.doc_tokens) for piece in tokenize(text)]
        answer = _answer_tokens(example, pieces, tokenizer) if is_training and not example.is_impossible else None
        for features, shift in _windows(example, pieces, tokenizer, config):
            features.unique_id, features.example_index = next(unique_ids), index
            if is_training:
                first, last = (token + shift for token in answer or (-shift, -shift))
                is_inside = first in features.token_to_orig_map and last in features.token_to_orig_map
                features.start_position, features.end_position = (first, last) if is_inside else (0, 0)
            output_fn(features)


def _windows(
    example: SquadExample, pieces: Sequence[Tuple[str, int]], tokenizer: Any, config: WindowConfig
) -> Iterator[Tuple[SquadFeatures, int]]:
    """Yield the features of each window, without ids and answer, and the shift from tokens to positions in it.

    `pieces` are the tokens of the paragraph with the index of their word.
    """
    query = tokenizer.tokenize(example.question_text)[: config.max_query_length]
    first = len(query) + 2  # after [CLS] question [SEP]
    ranges = spans.window_ranges(len(pieces), config.context_length(len(query)), config.doc_stride)
    chosen = spans.max_context_windows(len(pieces), ranges)
    for number, (begin, end) in enumerate(ranges):
        tokens = ["[CLS]", *query, "[SEP]", *(piece for piece, _ in pieces[begin:end]), "[SEP]"]
        padding = [0] * (config.max_seq_length - len(tokens))
        features = SquadFeatures(
            unique_id=0,
            example_index=0,
            doc_span_index=number,
            tokens=tokens,
            token_to_orig_map={first + token - begin: pieces[token][1] for token in range(begin, end)},
            token_is_max_context={first + token - begin: bool(chosen[token] == number) for token in range(begin, end)},
            input_ids=tokenizer.convert_tokens_to_ids(tokens) + padding,
            input_mask=[1] * len(tokens) + padding,
            segment_ids=[0] * first + [1] * (len(tokens) - first) + padding,
            is_impossible=example.is_impossible,
        )
        yield features, first - begin


def _answer_tokens(example: SquadExample, pieces: Sequence[Tuple[str, int]], tokenizer: Any) -> Tuple[int, int]:
    """Return the first and last token of an example's answer; `pieces` are the tokens with the index of their word."""
    words = [word for _, word in pieces]
    assert example.start_position is not None and example.end_position is not None
    first = bisect.bisect_left(words, example.start_position)
    last = bisect.bisect_right(words, example.end_position) - 1
    return improve_answer_span([piece for piece, _ in pieces], first, last, tokenizer, example.orig_answer_text)


def improve_answer_span(
    doc_tokens: Sequence[str], input_start: int, input_end: int, tokenizer: Any, orig_answer_text: Optional[str]
) -> Tuple[int, int]:
    """Return the part of a token range that is exactly the answer, e.g. `1895` of `( 1895 - 1943 )`; else the range."""
    answer = " ".join(tokenizer.tokenize(orig_answer_text or ""))
    for start in range(input_start, input_end + 1):
        for end in range(input_end, start - 1, -1):
            if " ".join(doc_tokens[start : end + 1]) == answer:
                return start, end
    return input_start, input_end


def check_is_max_context(doc_spans: Sequence[Any], cur_span_index: int, position: int) -> bool:
    """Return whether no other window has more context around a token; windows have `start` and `length`."""
    ranges = [(span.start, span.start + span.length) for span in doc_spans]
    begin, end = ranges[cur_span_index]
    chosen = spans.max_context_windows(max(end for _, end in ranges), ranges)
    return begin <= position < end and bool(chosen[position] == cur_span_index)


class FeatureWriter:
    """Writes features to a TFRecord file in the format of the original."""

    def __init__(self, filename: str, is_training: bool) -> None:
        self.filename = filename
        self.is_training = is_training
        self.num_features = 0
        self._stack = contextlib.ExitStack()
        temporary = self._stack.enter_context(files.atomic_write(filename))
        self._writer = self._stack.enter_context(tf.python_io.TFRecordWriter(temporary))

    def process_feature(self, feature: SquadFeatures) -> None:
        """Write the features of a window."""
        self.num_features += 1
        values: Dict[str, Any] = {
            "unique_ids": [feature.unique_id],
            "input_ids": feature.input_ids,
            "input_mask": feature.input_mask,
            "segment_ids": feature.segment_ids,
        }
        if self.is_training:
            values["start_positions"] = [feature.start_position]
            values["end_positions"] = [feature.end_position]
            values["is_impossible"] = [int(bool(feature.is_impossible))]
        self._writer.write(tfrecords.serialize(values))

    def close(self) -> None:
        """Complete the file, which does not exist before."""
        self._stack.close()


def input_fn_builder(input_file: str, seq_length: int, is_training: bool, drop_remainder: bool) -> records.InputFn:
    """Return an estimator's `input_fn` for a file of a `FeatureWriter`; training shuffles and repeats forever."""
    spec = {name: tf.FixedLenFeature([seq_length], tf.int64) for name in records.TOKEN_FEATURES}
    labels = ("unique_ids", "start_positions", "end_positions") if is_training else ("unique_ids",)
    spec.update({name: tf.FixedLenFeature([], tf.int64) for name in labels})

    @records.graph_function
    def parse(serialized: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return records.to_int32(tf.parse_example(serialized, spec))

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        dataset = tf.data.TFRecordDataset(input_file)
        if is_training:
            dataset = records.shuffled(dataset, seed=None)
        return records.prefetched(dataset.batch(params["batch_size"], drop_remainder=drop_remainder).map(parse))

    return input_fn
