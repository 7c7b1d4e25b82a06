"""Windows and positions are those of Google's run_squad, with differences that are explained here."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
from typing import List, NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenization
from adapter_bert.evaluation.scores import predicted_rows
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline import spans, tfrecords
from adapter_bert.pipeline.feature_store import FeatureStore, num_records
from adapter_bert.pipeline.records import file_based_input_fn_builder
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad import Dataset, GoldAnswer, Question
from tests.helpers import assert_mentions, message_of, run_batches
from tests.pipeline.squad_data import SMALL, SQUAD_V1, asked, features_of, made_up, needed, sample, write_vocabulary
from tests.test_tokenization import SHARED_VOCAB

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return tokenization.FullTokenizer(vocab_file)


@pytest.fixture(scope="module")
def real_tokenizer():
    return tokenization.FullTokenizer(needed(SHARED_VOCAB))


@pytest.fixture(scope="module")
def real():
    """SQuAD's development set of version 1.1."""
    return squad.read(needed(SQUAD_V1))


# ---------------------------------------------------------------------------------------------------- windows


def windows_by_rule(count: int, room: int, stride: int):
    """As many windows as needed to reach the last token, each one step further."""
    step = min(room, stride)
    needed_steps = max(0, math.ceil((count - room) / step)) if count else -1
    return [(number * step, min(number * step + room, count)) for number in range(needed_steps + 1)]


def best_window_by_rule(token: int, windows):
    """Google's rule for one token: the shorter side plus a hundredth of the window's length; the first of equals."""

    def context(number):
        begin, end = windows[number]
        return min(token - begin, end - 1 - token) + 0.01 * (end - begin)

    return max((number for number, (begin, end) in enumerate(windows) if begin <= token < end), key=context)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.data())
def test_windows_and_their_context_are_those_of_googles_rules(data):
    room = data.draw(st.sampled_from([1, 2, 3, 7, 30, 100]))
    stride = data.draw(st.integers(1, room + 3))
    count = data.draw(st.integers(0, 4 * room + 3))
    found = spans.window_ranges(count, room, stride)
    assert found == windows_by_rule(count, room, stride)
    best = [best_window_by_rule(token, found) for token in range(count)]
    assert spans.max_context_windows(count, found).tolist() == best


def test_windows_contain_their_tokens_and_characters(tokenizer):
    context = "a b c d e f g h i j"
    document = spans.tokenize_document(context, tokenizer)
    # Beside a question of two tokens there is room for five of the paragraph.
    windows = spans.make_windows(document, 2, WindowConfig(max_seq_length=10, doc_stride=3, max_query_length=3))
    assert [window.begin for window in windows] == [0, 3, 6]
    assert [window.first for window in windows] == [4, 4, 4], "[CLS], two tokens, [SEP]"
    texts = ["".join(context[s:e] for s, e in zip(window.starts, window.ends)) for window in windows]
    assert texts == ["abcde", "defgh", "ghij"]
    shown_best = ["".join(np.array(list(text))[window.has_max_context]) for text, window in zip(texts, windows)]
    # `e` has no token after it in the first window, and one before it in the second.
    assert shown_best == ["abcd", "efg", "hij"]


@pytest.mark.parametrize(
    "config, facts",
    [
        (WindowConfig(66, 1), ["--max_seq_length=66", "--max_query_length=64", "68"]),
        (WindowConfig(68, 1), ["--doc_stride=1", "leave 1 token"]),
        (WindowConfig(128, 61), ["--doc_stride=61", "--max_seq_length=128", "leave 61 tokens", "below 61"]),
    ],
)
def test_windows_that_do_not_fit_or_overlap_are_errors(config, facts):
    assert_mentions(message_of(config.check), *facts)
    for lengths in ((), (69, 1), (40, 32, 4)):
        WindowConfig(*lengths).check()


# ---------------------------------------------------------------------- comparison with Google's script


class Words(NamedTuple):
    """A paragraph in Google's script."""

    begins: List[int]  # index of the first character of each word
    tokens: List[str]  # tokens of all words, tokenized one by one
    bounds: List[int]  # index of the first token of each word, then the number of tokens


@functools.lru_cache(maxsize=None)
def words_of(context: str, tokenizer) -> Words:
    found = list(re.finditer("[^ \t\r\n\u202f]+", context))
    pieces = [tokenizer.tokenize(word.group()) for word in found]
    bounds = [0, *itertools.accumulate(map(len, pieces))]
    return Words([word.start() for word in found], list(itertools.chain(*pieces)), bounds)


def original_span(words: Words, answer: GoldAnswer, tokenizer):
    """The tokens of an answer: those of its words that equal the annotation's own tokens, or else all of its words."""
    first, last = (
        sum(begin <= character for begin in words.begins) - 1
        for character in (answer.start, answer.start + len(answer.text) - 1)
    )
    begin, end = words.bounds[first], words.bounds[last + 1]
    own = tokenizer.tokenize(answer.text)
    # The original tries all ranges, from the leftmost start and the rightmost end on; equal ones are equally long.
    places = [at for at in range(begin, end - len(own) + 1) if words.tokens[at : at + len(own)] == own and own]
    return (places[0], places[0] + len(own) - 1) if places else (begin, end - 1)


def original_features(context: str, question: Question, tokenizer, config: WindowConfig):
    """(ids, mask, segments, positions) of each window."""
    words = words_of(context, tokenizer)
    query = tokenizer.tokenize(question.text)[: config.max_query_length]
    room = config.max_seq_length - len(query) - 3
    answer = original_span(words, question.answers[0], tokenizer) if question.answers else (-1, -1)
    made = []
    for begin, end in windows_by_rule(len(words.tokens), room, config.doc_stride):
        before = ["[CLS]"] + query + ["[SEP]"]
        tokens = before + words.tokens[begin:end] + ["[SEP]"]
        row = np.zeros((3, config.max_seq_length), int)
        row[0, : len(tokens)] = tokenizer.convert_tokens_to_ids(tokens)
        row[1, : len(tokens)] = 1
        row[2, len(before) : len(tokens)] = 1
        is_inside = set(answer) <= set(range(begin, end))
        made.append((row.tolist(), tuple(at - begin + len(before) if is_inside else 0 for at in answer)))
    return made


def is_cut(context: str, answer: GoldAnswer) -> bool:
    """Whether an annotation begins or ends inside a word; BERT does not split off the signs of euro and pound."""
    borders = (answer.start, answer.start + len(answer.text))
    return any(re.fullmatch(r"[\w€£]\w", context[max(at - 1, 0) : at + 1]) for at in borders)


def positions_of(features: spans.SpanFeatures):
    return features["start_positions"][0], features["end_positions"][0]


def padded(features: spans.SpanFeatures, config: WindowConfig):
    """Ids, mask and segments padded to one length, as in Google's script."""
    ids, segments = features["input_ids"], features["segment_ids"]
    assert len(ids) == len(segments)
    rows = (ids, [1] * len(ids), segments)
    return [list(row) + [0] * (config.max_seq_length - len(row)) for row in rows]


def questions_that_differ(dataset: Dataset, tokenizer, config: WindowConfig):
    """(context, answer) where positions are not Google's; everything else must be equal."""
    different = []
    made = itertools.groupby(features_of(dataset, tokenizer, config), key=lambda features: features["question_ids"])
    windows = {number: list(group) for [number], group in made}
    asked_about = ((paragraph, question) for paragraph in dataset.paragraphs for question in paragraph.questions)
    for number, (paragraph, question) in enumerate(asked_about):
        expected = original_features(paragraph.context, question, tokenizer, config)
        found = windows.get(number, [])
        assert [window["window_ids"] for window in found] == [[index] for index in range(len(expected))]
        assert [padded(window, config) for window in found] == [row for row, _ in expected]
        assert all(window["is_real_example"] == [1] for window in found)
        if list(map(positions_of, found)) != [span for _, span in expected]:
            different.append((paragraph.context, question.answers[0]))
    return different


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_features_of_made_up_questions_equal_googles(vocab_file, do_lower_case):
    """Except if the annotation begins or ends inside a word, or its tokens occur earlier in the same word: `a-a`."""
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case)
    answered, different = 0, []
    for seed in range(40):
        dataset = made_up(seed, tokenizer, unanswerable=0.2)
        answered += sum(not question.is_impossible for question in dataset.questions())
        different += questions_that_differ(dataset, tokenizer, SMALL)
    for context, answer in different:
        words = words_of(context, tokenizer)
        first, last = original_span(words, answer, tokenizer)
        is_elsewhere = words.tokens[first : last + 1] == tokenizer.tokenize(answer.text)
        assert is_elsewhere or is_cut(context, answer), (context, answer)
    assert answered - len(different) > 350 and len(different) > 50, "single characters are tokens here"


@pytest.mark.parametrize("every, count", [(7, 3), pytest.param(1, 23, marks=pytest.mark.slow)])
def test_features_of_real_questions_equal_googles_except_for_answers_inside_a_word(real, real_tokenizer, every, count):
    different = questions_that_differ(sample(real, every), real_tokenizer, WindowConfig())
    assert len(different) == count
    assert all(is_cut(context, answer) for context, answer in different)


@pytest.mark.parametrize("config", [WindowConfig(), WindowConfig(96, 24, 12)])
def test_features_are_those_of_transformers(real, real_tokenizer, config):
    """Except for `gold` in `"golden`, part of a word that is one token.

    If the annotation's tokens are not found, the library, like Google's script, takes everything between two spaces,
    with quotation marks, brackets and full stops. Here the answer is that token only.
    """
    library = pytest.importorskip("transformers.data.processors.squad")
    bert_tokenizer = pytest.importorskip("transformers").BertTokenizer(SHARED_VOCAB, do_lower_case=True)
    library.squad_convert_example_to_features_init(bert_tokenizer)
    dataset, lengths = sample(real, 60), dataclasses.astuple(config)
    expected = []
    for paragraph in dataset.paragraphs:
        for question in paragraph.questions:
            answer = (question.found.text, question.found.start)
            example = library.SquadExample(question.id, question.text, paragraph.context, *answer, "title")
            expected += library.squad_convert_example_to_features(example, *lengths, "max_length", is_training=True)
    found = features_of(dataset, real_tokenizer, config)
    windows = list(itertools.chain(*spans.all_windows(dataset.paragraphs, real_tokenizer, config)))
    assert len(found) == len(windows) == len(expected) >= dataset.num_questions > 150
    questions, different = list(dataset.questions()), set()
    for own, window, other in zip(found, windows, expected):
        assert padded(own, config) == [other.input_ids, other.attention_mask, other.token_type_ids]
        best = {window.first + at: bool(value) for at, value in enumerate(window.has_max_context)}
        assert best == other.token_is_max_context
        if positions_of(own) != (other.start_position, other.end_position):
            different.add(questions[own["question_ids"][0]].found.text)
    assert different == {"gold"}


FOUR = WindowConfig(max_seq_length=9, doc_stride=2, max_query_length=2)  # windows of four tokens: abcd, cdef, efgh


@pytest.mark.parametrize(
    "paragraph, config, positions",
    [
        # [CLS] who ? [SEP] a b c d e
        (asked("a b c d e", "b c"), SMALL, [(5, 6)]),
        (asked("a b c d e", "e"), SMALL, [(8, 8)]),
        # Without an answer, positions are those of [CLS].
        (asked("a b c", "b", is_impossible=True), SMALL, [(0, 0)]),
        (asked("a b c", is_impossible=False), SMALL, [(0, 0)]),
        (asked("a b c", "not there"), SMALL, [(0, 0)]),
        # The first answer that occurs in the paragraph counts.
        (asked("a b c d", "x", "c", "a"), SMALL, [(6, 6)]),
        # An answer must be completely in the window.
        (asked("a b c d e f g h", "c d"), FOUR, [(6, 7), (4, 5), (0, 0)]),
        (asked("a b c d e f g h", "d e"), FOUR, [(0, 0), (5, 6), (0, 0)]),
        (asked("a b c d e f g h", "b c d e"), FOUR, [(0, 0)] * 3),
    ],
)
def test_positions_are_those_in_the_sequence(tokenizer, paragraph, config, positions):
    found = spans.paragraph_features(paragraph, 0, tokenizer, config)
    assert list(map(positions_of, found)) == positions


@pytest.mark.parametrize(
    "annotated, covered",
    [("895-19", "895-19"), ("old", "golden"), ("\u0301", "cafe\u0301"), (" golden ", "golden")],
)
def test_an_answer_has_the_fewest_tokens_that_cover_it(tokenizer, annotated, covered):
    context = "(1895-1943) golden gates, cafe\u0301."
    document = spans.tokenize_document(context, tokenizer)
    first, last = document.find(GoldAnswer(annotated, context.index(annotated)))
    assert context[document.starts[first] : document.ends[last]] == covered


@pytest.mark.parametrize("answer", [GoldAnswer("\u200b", 2), GoldAnswer("x", None), None])
def test_characters_without_a_token_are_not_found(tokenizer, answer):
    assert spans.tokenize_document("a \u200b b", tokenizer).find(answer) is None


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("a b c d e f", "[CLS] a b c [SEP] y z [SEP]"),
        ("Who?", "[CLS] who ? [SEP] y z [SEP]"),
        (" \u200b", "[CLS] [SEP] y z [SEP]"),
    ],
)
def test_a_question_is_truncated_and_may_have_no_tokens(tokenizer, text, tokens):
    config = WindowConfig(max_seq_length=12, doc_stride=1, max_query_length=3)
    [features] = spans.paragraph_features(asked("y z", "z", text=text), 0, tokenizer, config)
    count = len(tokens.split())
    assert tokenizer.convert_ids_to_tokens(features["input_ids"]) == tokens.split()
    assert features["segment_ids"] == [0] * (count - 3) + [1] * 3
    assert positions_of(features) == (count - 2, count - 2)


# ---------------------------------------------------------------------------------------- records and the feature store


@pytest.mark.parametrize("processes", [1, 2])
def test_records_contain_what_the_network_reads(tokenizer, tmp_path, processes):
    dataset = made_up(3, tokenizer, paragraphs=20, unanswerable=0.3)
    made = features_of(dataset, tokenizer, SMALL)
    path = str(tmp_path / "records")
    serialized = list(spans.iterate_records(dataset.paragraphs, tokenizer, SMALL, pad_to=8, processes=processes))
    tfrecords.write_records(serialized, path)
    input_fn = file_based_input_fn_builder(path, SMALL.max_seq_length, False, True, label_types=SpanHead.label_types)
    batches = run_batches(input_fn, 8)
    assert sum(len(batch["input_ids"]) for batch in batches) == len(serialized) == -(-len(made) // 8) * 8
    rows = list(predicted_rows(batches, len(serialized), "predictions"))
    assert len(rows) == len(made) and len(made) % 8 != 0, "padding windows are excluded, and there are some"
    for row, features in zip(rows, made):
        expected = {name: values[0] for name, values in features.items()}
        expected["input_ids"], expected["input_mask"], expected["segment_ids"] = padded(features, SMALL)
        assert {name: values.tolist() for name, values in row.items()} == expected


@pytest.fixture
def make(tokenizer, tmp_path):
    """Ask the feature store for features, by default always the same."""

    def make(seed=5, config=SMALL, key="vocabulary 1", pad_to=1, name="train"):
        store = FeatureStore([str(tmp_path)], tokenizer, key)
        return store.span_files(name, made_up(seed, tokenizer), config, pad_to)

    return make


def test_the_same_features_are_built_once(make, tokenizer, monkeypatch):
    paths = make()
    content = list(itertools.chain(*map(tf.python_io.tf_record_iterator, paths)))
    assert content == list(spans.iterate_records(made_up(5, tokenizer).paragraphs, tokenizer, SMALL))
    assert num_records(paths) == len(content) > 0
    monkeypatch.setattr(tfrecords, "write_shards", lambda *_: pytest.fail("features were built again"))
    assert make() == paths


@pytest.mark.parametrize(
    "change",
    [
        *({"config": config} for config in (WindowConfig(41, 8, 6), WindowConfig(40, 9, 6), WindowConfig(40, 8, 5))),
        {"key": "vocabulary 2"},
        {"pad_to": 8},
        {"name": "dev"},
        {"seed": 6},
    ],
)
def test_different_content_has_different_files(make, change):
    """See `test_squad.py` for everything that distinguishes two data sets."""
    first, other = make(), make(**change)
    assert set(first).isdisjoint(other)
    assert all(map(os.path.exists, first + other))
