"""Questions on paragraphs -> windows of tokens -> features, and the way back from tokens to characters.

A window is a pure function of the texts and the lengths. Features are made from it, and answers are read from it, so
that nothing but token ids has to be kept in records.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import parallel
from adapter_bert.pipeline import writing
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks.squad.dataset import GoldAnswer, Paragraph

# Paragraphs that a process takes at a time: some five questions each, a millisecond or two a question.
PARAGRAPHS_A_CHUNK = 8


class Document(NamedTuple):
    """A tokenised paragraph.

    Attributes:
      ids: of the tokens.
      starts, ends: int [tokens], the characters of the paragraph that each token stands for.
    """

    ids: List[int]
    starts: np.ndarray
    ends: np.ndarray

    def find(self, answer: Optional[GoldAnswer]) -> Optional[Tuple[int, int]]:
        """The first and the last token of an answer: as few as cover the annotated characters. None if there are none.

        A word of the text may hold more than the annotation, e.g. `(1895-1943)` where `1895` is annotated; its tokens
        are smaller, so that nothing but the annotation is covered wherever a token ends with it.
        """
        if answer is None or answer.start is None:
            return None
        first = int(np.searchsorted(self.ends, answer.start, side="right"))
        last = int(np.searchsorted(self.starts, answer.start + len(answer.text), side="left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """A part of a paragraph, as the network sees it beside a question.

    Attributes:
      begin: number of its first token in the paragraph.
      first: position of that token in the sequence.
      starts, ends: int [tokens], the characters of the paragraph that each token stands for.
      has_max_context: bool [tokens], whether no other window shows the token with more context around it.
    """

    begin: int
    first: int
    starts: np.ndarray
    ends: np.ndarray
    has_max_context: np.ndarray


class SpanFeatures(NamedTuple):
    """A window as records hold it, without padding; for the names see `model.heads.SpanHead`."""

    input_ids: Sequence[int]
    segment_ids: Sequence[int]
    question_id: int
    window_id: int
    start_position: int
    end_position: int
    is_real_example: bool = True

    def as_lists(self) -> Dict[str, Sequence[int]]:
        """The values under the names that TFRecords and the network's graph use."""
        return {
            "input_ids": self.input_ids,
            "segment_ids": self.segment_ids,
            "question_ids": [self.question_id],
            "window_ids": [self.window_id],
            "start_positions": [self.start_position],
            "end_positions": [self.end_position],
            "is_real_example": [int(self.is_real_example)],
        }


def tokenize_document(context: str, tokenizer: Any) -> Document:
    """Tokenises a paragraph, once for all questions on it."""
    tokens, offsets = tokenizer.tokenize_with_offsets(context)
    spans = np.array(offsets, np.int32).reshape(-1, 2)
    return Document(tokenizer.convert_tokens_to_ids(tokens), spans[:, 0], spans[:, 1])


def tokenize_query(text: str, tokenizer: Any, lengths: WindowConfig) -> List[int]:
    """The ids of a question, cut to the greatest length."""
    return tokenizer.token_ids(text)[: lengths.max_query_length]


def cut(num_tokens: int, room: int, stride: int) -> List[Tuple[int, int]]:
    """First token and end of each window; the last window ends with the last token."""
    spans: List[Tuple[int, int]] = []
    begin = 0
    while begin < num_tokens:
        end = min(begin + room, num_tokens)
        spans.append((begin, end))
        if end == num_tokens:
            break
        begin += min(stride, room)
    return spans


def max_context_windows(num_tokens: int, spans: Sequence[Tuple[int, int]]) -> np.ndarray:
    """int [tokens]: the window that shows each token with most context, the first of several.

    What counts is the shorter of the two sides; of equal ones, the longer window.
    """
    best = np.full(num_tokens, -1.0)
    chosen = np.zeros(num_tokens, np.int32)
    for number, (begin, end) in enumerate(spans):
        position = np.arange(end - begin)
        context = np.minimum(position, position[::-1]) + 0.01 * (end - begin)
        is_better = context > best[begin:end]
        best[begin:end][is_better] = context[is_better]
        chosen[begin:end][is_better] = number
    return chosen


def make_windows(document: Document, query_length: int, lengths: WindowConfig) -> List[Window]:
    """The windows of a paragraph beside a question; none of a paragraph without a token."""
    spans = cut(len(document.ids), lengths.context_length(query_length), lengths.doc_stride)
    chosen = max_context_windows(len(document.ids), spans)
    return [
        Window(
            begin,
            query_length + 2,
            document.starts[begin:end],
            document.ends[begin:end],
            chosen[begin:end] == number,
        )
        for number, (begin, end) in enumerate(spans)
    ]


def paragraph_features(
    paragraph: Paragraph, first_question: int, tokenizer: Any, lengths: WindowConfig
) -> Iterator[SpanFeatures]:
    """Features of the windows of all questions on a paragraph.

    Args:
      paragraph: with its questions.
      first_question: number of the first of them in the file.
      tokenizer: text to ids.
      lengths: how to cut.
    """
    special = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    document = tokenize_document(paragraph.context, tokenizer)
    for question_id, question in enumerate(paragraph.questions, first_question):
        query = tokenize_query(question.text, tokenizer, lengths)
        # The first of several annotations, as the original has one in training.
        answer = None if question.is_impossible else document.find(question.found)
        for window_id, window in enumerate(make_windows(document, len(query), lengths)):
            size = len(window.starts)
            ids = [special[0], *query, special[1], *document.ids[window.begin : window.begin + size], special[1]]
            start, end = 0, 0
            if answer and window.begin <= answer[0] and answer[1] < window.begin + size:
                start, end = (window.first + token - window.begin for token in answer)
            yield SpanFeatures(
                input_ids=ids,
                segment_ids=[0] * window.first + [1] * (size + 1),
                question_id=question_id,
                window_id=window_id,
                start_position=start,
                end_position=end,
            )


def filler() -> SpanFeatures:
    """Completes the last batch where batches must have one size (TPUs). Never scored; one token, not to be empty."""
    return SpanFeatures([0], [0], 0, 0, 0, 0, is_real_example=False)


def iterate_records(
    paragraphs: Iterable[Paragraph],
    tokenizer: Any,
    lengths: WindowConfig,
    pad_to: int = 1,
    processes: Optional[int] = None,
) -> Iterator[bytes]:
    """Records of the windows of all paragraphs in their order, made in several processes as they are asked for.

    Args:
      paragraphs: with their questions.
      tokenizer: text to ids.
      lengths: how to cut.
      pad_to: batch size that fillers complete.
      processes: see `parallel.map_in_order`.
    """

    def numbered() -> Iterator[Tuple[int, Paragraph]]:
        number = 0
        for paragraph in paragraphs:
            yield number, paragraph
            number += len(paragraph.questions)

    def make(chunk: Sequence[Tuple[int, Paragraph]]) -> List[bytes]:
        return [
            writing.serialize(features)
            for number, paragraph in chunk
            for features in paragraph_features(paragraph, number, tokenizer, lengths)
        ]

    count = 0
    for made in parallel.map_in_order(make, parallel.chunks(numbered(), PARAGRAPHS_A_CHUNK), processes):
        count += len(made)
        yield from made
    for _ in range(-count % pad_to):
        yield writing.serialize(filler())


def all_windows(paragraphs: Iterable[Paragraph], tokenizer: Any, lengths: WindowConfig) -> Iterator[List[Window]]:
    """The windows of each question, in the order of the file: where predictions are turned into answers."""
    for paragraph in paragraphs:
        document = tokenize_document(paragraph.context, tokenizer)
        for question in paragraph.questions:
            yield make_windows(document, len(tokenize_query(question.text, tokenizer, lengths)), lengths)
