"""Split paragraphs into windows, create their features, and map tokens back to characters.

A window is a pure function of the texts and a `WindowConfig`. It is computed again to decode answers, so records
contain only token ids.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import parallel
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline import tfrecords
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks.squad import GoldAnswer, Paragraph

# Paragraphs per work item of a process: about five questions each, a millisecond or two per question.
PARAGRAPHS_PER_CHUNK = 8


class Document(NamedTuple):
    """A tokenized paragraph."""

    ids: List[int]
    starts: np.ndarray  # int [tokens], where each token starts in the text
    ends: np.ndarray

    def find(self, answer: Optional[GoldAnswer]) -> Optional[Tuple[int, int]]:
        """Return the first and last token that cover the annotated characters, or None if there are none.

        Tokens are smaller than words: for `1895` in `(1895-1943)`, they cover exactly the annotation.
        """
        if answer is None or answer.start is None:
            return None
        first = int(np.searchsorted(self.ends, answer.start, side="right"))
        last = int(np.searchsorted(self.starts, answer.start + len(answer.text), side="left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """Part of a paragraph, as the network sees it together with a question."""

    begin: int  # index of its first token in the paragraph
    first: int  # position of that token in the sequence
    starts: np.ndarray  # int [tokens], see `Document`
    ends: np.ndarray
    has_max_context: np.ndarray  # bool [tokens], whether no other window has more context around the token


# Features of a window without padding, under their names in records and in the graph, see `SpanHead`.
SpanFeatures = Dict[str, List[int]]

# Fills the last batch if all batches must have the same size (TPUs); never scored.
PADDING_WINDOW: SpanFeatures = dict.fromkeys(
    ("input_ids", "segment_ids", *SpanHead.label_types, "is_real_example"), [0]
)


def tokenize_document(context: str, tokenizer: Any) -> Document:
    """Tokenize a paragraph, once for all its questions."""
    tokens, offsets = tokenizer.tokenize_with_offsets(context)
    spans = np.array(offsets, np.int32).reshape(-1, 2)
    return Document(tokenizer.convert_tokens_to_ids(tokens), spans[:, 0], spans[:, 1])


def tokenize_query(text: str, tokenizer: Any, config: WindowConfig) -> List[int]:
    """Return the ids of a question, truncated to the maximum length."""
    return tokenizer.token_ids(text)[: config.max_query_length]


def window_ranges(num_tokens: int, length: int, stride: int) -> List[Tuple[int, int]]:
    """Return the token range of each window; the last one ends with the last token."""
    step = min(stride, length)
    # A window starts only if the one before it ends before the last token.
    begins = range(0, max(num_tokens - length, 0) + step, step) if num_tokens else range(0)
    return [(begin, min(begin + length, num_tokens)) for begin in begins]


def max_context_windows(num_tokens: int, ranges: Sequence[Tuple[int, int]]) -> np.ndarray:
    """Return the index of the window with the most context around each token, int [tokens].

    The score is the number of tokens on the shorter side plus 0.01 times the length of the window, as in the original.
    If scores are equal, the first window is used.
    """
    best = np.full(num_tokens, -1.0)
    chosen = np.zeros(num_tokens, np.int32)
    for number, (begin, end) in enumerate(ranges):
        position = np.arange(end - begin)
        context = np.minimum(position, position[::-1]) + 0.01 * (end - begin)
        is_better = context > best[begin:end]
        best[begin:end][is_better] = context[is_better]
        chosen[begin:end][is_better] = number
    return chosen


def make_windows(document: Document, query_length: int, config: WindowConfig) -> List[Window]:
    """Return the windows of a paragraph for a question; none for a paragraph without tokens."""
    ranges = window_ranges(len(document.ids), config.context_length(query_length), config.doc_stride)
    chosen = max_context_windows(len(document.ids), ranges)
    first = query_length + 2  # after [CLS] question [SEP]
    return [
        Window(begin, first, document.starts[begin:end], document.ends[begin:end], chosen[begin:end] == number)
        for number, (begin, end) in enumerate(ranges)
    ]


def all_windows(paragraphs: Iterable[Paragraph], tokenizer: Any, config: WindowConfig) -> Iterator[List[Window]]:
    """Yield the windows of each question in order, to turn predictions into answers."""
    for paragraph in paragraphs:
        document = tokenize_document(paragraph.context, tokenizer)
        for question in paragraph.questions:
            yield make_windows(document, len(tokenize_query(question.text, tokenizer, config)), config)


def paragraph_features(
    paragraph: Paragraph, first_question: int, tokenizer: Any, config: WindowConfig
) -> Iterator[SpanFeatures]:
    """Yield the features of the windows of all questions on a paragraph; the first question has this number."""
    cls, sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    document = tokenize_document(paragraph.context, tokenizer)
    for question_id, question in enumerate(paragraph.questions, first_question):
        query = tokenize_query(question.text, tokenizer, config)
        # Use the first annotation: in training, the original supports only one.
        answer = None if question.is_impossible else document.find(question.found)
        for window_id, window in enumerate(make_windows(document, len(query), config)):
            size = len(window.starts)
            start, end = 0, 0
            if answer and window.begin <= answer[0] and answer[1] < window.begin + size:
                start, end = (window.first + token - window.begin for token in answer)
            yield {
                "input_ids": [cls, *query, sep, *document.ids[window.begin : window.begin + size], sep],
                "segment_ids": [0] * window.first + [1] * (size + 1),
                "question_ids": [question_id],
                "window_ids": [window_id],
                "start_positions": [start],
                "end_positions": [end],
                "is_real_example": [1],
            }


def iterate_records(
    paragraphs: Iterable[Paragraph],
    tokenizer: Any,
    config: WindowConfig,
    pad_to: int = 1,
    processes: Optional[int] = None,
) -> Iterator[bytes]:
    """Yield a record per window, in order, and padding windows up to a multiple of the batch size `pad_to`."""

    def numbered() -> Iterator[Tuple[int, Paragraph]]:
        number = 0
        for paragraph in paragraphs:
            yield number, paragraph
            number += len(paragraph.questions)

    def encode_chunk(chunk: Sequence[Tuple[int, Paragraph]]) -> List[bytes]:
        return [
            tfrecords.serialize(features)
            for number, paragraph in chunk
            for features in paragraph_features(paragraph, number, tokenizer, config)
        ]

    count = 0
    for records in parallel.map_in_order(encode_chunk, parallel.chunks(numbered(), PARAGRAPHS_PER_CHUNK), processes):
        count += len(records)
        yield from records
    yield from [tfrecords.serialize(PADDING_WINDOW)] * (-count % pad_to)
