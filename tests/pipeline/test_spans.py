"""Windows and positions are those of Google's run_squad, and from the right positions come the right answers."""

from __future__ import annotations

import dataclasses
import functools
import glob
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from typing import List, NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.evaluation.scores import rows_of
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline import feature_store, records, spans, writing
from adapter_bert.pipeline.spans import WindowConfig
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad.dataset import Dataset, GoldAnswer, Paragraph, Question
from tests.helpers import DAMAGES, ROOT, SHARED, damage, message_of
from tests.test_tokenization import SHARED_SPM, SHARED_VOCAB, SPECIALS, train_sentencepiece, write

SQUAD_V1 = os.path.join(SHARED, "data", "squad", "dev-v1.1.rebuilt.json")
SQUAD_V2 = os.path.join(SHARED, "data", "squad", "dev-v2.0.rebuilt.json")
PIECES = ["golden", "gate", "##s", "##en", "gold", "19", "##th", "un", "##want", "##ed", "cafe", "who", "?", "日", "本"]
# What a paragraph is made of; the last word is unknown.
WORDS = [
    "Golden",
    "gates",
    "(1895-1943)",
    "well-known,",
    "Caf\xe9",
    "cafe\u0301",
    "U.S.'s",
    "19th",
    "1919",
    "“unwanted”",
]
WORDS += ["日本", "$3.5bn", "a-a-a", "ca\xadfe", "ß"]
SPACES = [" ", " ", " ", "  ", "\n", "\t", "\u202f", "\xa0"]
SMALL = WindowConfig(max_seq_length=40, doc_stride=8, max_query_length=6)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    characters = "abcdefghijklmnopqrstuvwxyz0123456789(-),.'$“”;"
    pieces = [prefix + character for prefix in ("", "##") for character in characters]
    return write(tmp_path_factory.mktemp("vocab") / "vocab.txt", "\n".join(SPECIALS + PIECES + pieces) + "\n")


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return tokenization.FullTokenizer(vocab_file)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    model = train_sentencepiece(tmp_path_factory.mktemp("spm"), ["[CLS]", "[SEP]", "9,", "8,"])
    return tokenization.SentencePieceTokenizer(model)


def needed(path):
    if not os.path.exists(path):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {path}")
    return path


@pytest.fixture(scope="module")
def real_tokenizer():
    return tokenization.FullTokenizer(needed(SHARED_VOCAB))


@pytest.fixture(scope="module")
def real():
    """SQuAD's development set of version 1.1."""
    return squad.read(needed(SQUAD_V1))


def sample(dataset: Dataset, every: int, first: int = 0) -> Dataset:
    return dataclasses.replace(dataset, paragraphs=dataset.paragraphs[first::every])


# ------------------------------------------------------------------------------------------ made-up questions


def dataset_of(*paragraphs: Paragraph) -> Dataset:
    return Dataset("made-up.json", paragraphs, says_impossible=True)


def asked(context: str, *answers: str, text: str = "Who?", **more) -> Paragraph:
    """A paragraph with one question; its answers stand where they are first found."""
    found = tuple(GoldAnswer(answer, context.find(answer) if answer in context else None) for answer in answers)
    return Paragraph(context, (Question("q", text, found, more.get("is_impossible", not answers)),))


def made_up_context(generator: random.Random, count: int) -> str:
    return "".join(generator.choice(WORDS) + generator.choice(SPACES) for _ in range(count))


def made_up_answer(generator: random.Random, context: str, tokenizer) -> GoldAnswer:
    """A stretch of a few tokens; with `tokenizer=None`, of any characters, with something to see at both ends."""
    if tokenizer is None:
        visible = [index for index, char in enumerate(context) if not char.isspace()]
        first = generator.randrange(len(visible))
        last = min(first + generator.randrange(20), len(visible) - 1)
        return GoldAnswer(context[visible[first] : visible[last] + 1], visible[first])
    document = spans.tokenize_document(context, tokenizer)
    first = generator.randrange(len(document.ids))
    last = min(first + generator.randrange(4), len(document.ids) - 1)
    start = int(document.starts[first])
    return GoldAnswer(context[start : int(document.ends[last])], start)


def made_up(seed: int, tokenizer=None, paragraphs: int = 6, unanswerable: float = 0.0) -> Dataset:
    """Paragraphs of one word to some windows, three questions on each."""
    generator = random.Random(seed)
    made = []
    for number in range(paragraphs):
        context = made_up_context(generator, generator.choice([1, 4, 20, 60]))
        questions = []
        for index in range(3):
            text = made_up_context(generator, generator.randrange(8))
            is_impossible = generator.random() < unanswerable
            answers = () if is_impossible else (made_up_answer(generator, context, tokenizer),)
            questions.append(Question(f"{number}.{index}", text, answers, is_impossible))
        made.append(Paragraph(context, tuple(questions)))
    return dataset_of(*made)


def features_of(dataset: Dataset, tokenizer, lengths: WindowConfig) -> List[spans.SpanFeatures]:
    made, number = [], 0
    for paragraph in dataset.paragraphs:
        made.extend(spans.paragraph_features(paragraph, number, tokenizer, lengths))
        number += len(paragraph.questions)
    return made


# ---------------------------------------------------------------------------------------------------- windows


def windows_by_rule(count: int, room: int, stride: int):
    """As many windows as are needed to reach the last token, each a step behind the one before."""
    step = min(room, stride)
    needed_steps = max(0, math.ceil((count - room) / step)) if count else -1
    return [(number * step, min(number * step + room, count)) for number in range(needed_steps + 1)]


def best_window_by_rule(token: int, windows):
    """Google's rule for one token: the shorter side, and a hundredth of the window's length; the first of equal."""
    showing = [number for number, (begin, end) in enumerate(windows) if begin <= token < end]
    return max(
        showing,
        key=lambda number: (
            min(token - windows[number][0], windows[number][1] - 1 - token)
            + 0.01 * (windows[number][1] - windows[number][0])
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_windows_and_their_context_are_those_of_googles_rules(seed):
    generator = random.Random(seed)
    for _ in range(100):
        room = generator.choice([1, 2, 3, 7, 30, 100, 381])
        stride = generator.randint(1, room + 3)
        count = generator.randrange(0, min(4 * room, 900) + 3)
        found = spans.cut(count, room, stride)
        assert found == windows_by_rule(count, room, stride)
        best = [best_window_by_rule(token, found) for token in range(count)]
        assert spans.max_context_windows(count, found).tolist() == best


def test_a_paragraph_without_tokens_has_no_window():
    assert spans.cut(0, 10, 5) == []
    assert spans.max_context_windows(0, []).tolist() == []


def test_windows_know_their_tokens_and_characters(tokenizer):
    context = "a b c d e f g h i j"
    document = spans.tokenize_document(context, tokenizer)
    # Beside a question of two tokens, five of the paragraph fit in.
    windows = spans.make_windows(document, 2, WindowConfig(max_seq_length=10, doc_stride=3, max_query_length=3))
    assert [window.begin for window in windows] == [0, 3, 6]
    assert [window.first for window in windows] == [4, 4, 4], "[CLS], two tokens, [SEP]"
    texts = ["".join(context[s:e] for s, e in zip(window.starts, window.ends)) for window in windows]
    assert texts == ["abcde", "defgh", "ghij"]
    shown_best = ["".join(np.array(list(text))[window.has_max_context]) for text, window in zip(texts, windows)]
    # `e` has nothing behind it in the first window, one token before it in the second.
    assert shown_best == ["abcd", "efg", "hij"]


@pytest.mark.parametrize("lengths", [WindowConfig(), WindowConfig(40, 32, 4), WindowConfig(8, 1, 3)])
def test_lengths_that_leave_room_pass(lengths):
    lengths.check()


def test_lengths_without_room_for_the_paragraph_are_refused():
    WindowConfig(max_seq_length=69, doc_stride=1).check()
    message = message_of(WindowConfig(max_seq_length=66, doc_stride=1).check)
    assert "--max_seq_length=66 and --max_query_length=64 leave no room for the paragraph" in message
    assert "must be at least 68" in message
    assert WindowConfig(max_seq_length=68).context_length(64) == 1


def test_windows_that_would_not_overlap_are_refused():
    lengths = WindowConfig(max_seq_length=128, doc_stride=61)
    message = message_of(lengths.check)
    assert "--doc_stride=61 is too far" in message
    assert "leave 61 tokens of a window for the paragraph" in message
    assert "Take a --doc_stride below 61" in message
    dataclasses.replace(lengths, doc_stride=60).check()


# ---------------------------------------------------------------------- features, against those of Google's way


class Words(NamedTuple):
    """A paragraph as Google's script has it.

    Attributes:
      begins: the character each word starts with.
      tokens: of all words, one word tokenised after the other.
      bounds: number of the first token of each word; then the number of all tokens.
    """

    begins: List[int]
    tokens: List[str]
    bounds: List[int]


@functools.lru_cache(maxsize=None)
def words_of(context: str, tokenizer) -> Words:
    found = list(re.finditer("[^ \t\r\n\u202f]+", context))
    pieces = [tokenizer.tokenize(word.group()) for word in found]
    bounds = [0, *itertools.accumulate(map(len, pieces))]
    return Words([word.start() for word in found], list(itertools.chain(*pieces)), bounds)


def original_span(words: Words, answer: GoldAnswer, tokenizer):
    """The tokens of an answer: of its words those that are the annotation's own tokens, else all of its words."""
    first, last = (
        sum(begin <= character for begin in words.begins) - 1
        for character in (answer.start, answer.start + len(answer.text) - 1)
    )
    begin, end = words.bounds[first], words.bounds[last + 1]
    own = tokenizer.tokenize(answer.text)
    # The original tries all stretches, from the leftmost start and the rightmost end on; equal ones are equally long.
    places = [at for at in range(begin, end - len(own) + 1) if words.tokens[at : at + len(own)] == own and own]
    return (places[0], places[0] + len(own) - 1) if places else (begin, end - 1)


def original_features(context: str, question: Question, tokenizer, lengths: WindowConfig):
    """(ids, mask, segments, positions) of each window."""
    words = words_of(context, tokenizer)
    query = tokenizer.tokenize(question.text)[: lengths.max_query_length]
    room = lengths.max_seq_length - len(query) - 3
    answer = original_span(words, question.answers[0], tokenizer) if question.answers else (-1, -1)
    made = []
    for begin, end in windows_by_rule(len(words.tokens), room, lengths.doc_stride):
        before = ["[CLS]"] + query + ["[SEP]"]
        tokens = before + words.tokens[begin:end] + ["[SEP]"]
        row = np.zeros((3, lengths.max_seq_length), int)
        row[0, : len(tokens)] = tokenizer.convert_tokens_to_ids(tokens)
        row[1, : len(tokens)] = 1
        row[2, len(before) : len(tokens)] = 1
        is_inside = set(answer) <= set(range(begin, end))
        made.append((row.tolist(), tuple(at - begin + len(before) if is_inside else 0 for at in answer)))
    return made


def is_cut(context: str, answer: GoldAnswer) -> bool:
    """Whether an annotation begins or ends inside a word: letters or digits on both sides of its border."""
    borders = (answer.start, answer.start + len(answer.text))
    return any(re.fullmatch(r"\w\w", context[max(at - 1, 0) : at + 1]) for at in borders)


def padded(features: spans.SpanFeatures, lengths: WindowConfig):
    """Ids, mask and segments as Google's script has them: all of one length."""
    assert len(features.input_ids) == len(features.segment_ids)
    rows = (features.input_ids, [1] * len(features.input_ids), features.segment_ids)
    return [list(row) + [0] * (lengths.max_seq_length - len(row)) for row in rows]


def questions_that_differ(dataset: Dataset, tokenizer, lengths: WindowConfig):
    """(context, answer, own tokens first found elsewhere) where positions are not Google's; all else must be equal."""
    different = []
    made = itertools.groupby(features_of(dataset, tokenizer, lengths), key=lambda features: features.question_id)
    windows = {number: list(group) for number, group in made}
    asked_about = ((paragraph, question) for paragraph in dataset.paragraphs for question in paragraph.questions)
    for number, (paragraph, question) in enumerate(asked_about):
        expected = original_features(paragraph.context, question, tokenizer, lengths)
        found = windows.get(number, [])
        assert [window.window_id for window in found] == list(range(len(expected)))
        assert [padded(window, lengths) for window in found] == [row for row, _ in expected]
        assert all(window.is_real_example for window in found)
        if [(window.start_position, window.end_position) for window in found] != [span for _, span in expected]:
            different.append((paragraph.context, question.answers[0]))
    return different


def test_features_of_real_questions_are_googles(real, real_tokenizer):
    """Of 1,511 questions three have other positions: annotated is part of a word that is one token.

    `gold` in `"golden`, `Israel` in `Israelis),` and `equality` in `inequality.`: where the annotation's tokens are not
    to be found, Google takes all between two spaces, quotation marks, brackets and full stops included. Here it is
    that token alone.
    """
    questions = sample(real, 7)
    assert questions.num_questions == 1511
    different = questions_that_differ(questions, real_tokenizer, WindowConfig())
    assert [answer.text for _, answer in different] == ["gold", "Israel", "equality"]
    assert all(is_cut(context, answer) for context, answer in different)


def test_features_of_real_questions_in_small_windows_are_googles(real, real_tokenizer):
    questions = sample(real, 40, first=20)
    lengths = WindowConfig(max_seq_length=64, doc_stride=20, max_query_length=10)
    assert len(features_of(questions, real_tokenizer, lengths)) > 6 * questions.num_questions
    assert [answer.text for _, answer in questions_that_differ(questions, real_tokenizer, lengths)] == []


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_features_of_made_up_questions_are_googles(vocab_file, do_lower_case):
    """But where the annotation begins or ends inside a word, or its tokens stand earlier in the same word: `a-a`."""
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


def test_an_annotation_of_any_characters_gets_all_tokens_that_it_touches(tokenizer):
    """Whatever is annotated: no token of the answer is outside of it, and none of its visible characters is lost."""
    for seed in range(40):
        for paragraph in made_up(seed).paragraphs:
            document = spans.tokenize_document(paragraph.context, tokenizer)
            for question in paragraph.questions:
                answer = question.answers[0]
                first, last = document.find(answer)
                end = answer.start + len(answer.text)
                touched = [
                    n for n, (s, e) in enumerate(zip(document.starts, document.ends)) if s < end and e > answer.start
                ]
                assert touched == list(range(first, last + 1))


def huggingface_features(library, question: Question, context: str, lengths: WindowConfig):
    answer = question.found
    example = library.SquadExample(question.id, question.text, context, answer.text, answer.start, "title")
    return library.squad_convert_example_to_features(
        example, lengths.max_seq_length, lengths.doc_stride, lengths.max_query_length, "max_length", is_training=True
    )


@pytest.mark.parametrize("lengths", [WindowConfig(), WindowConfig(96, 24, 12)])
def test_features_are_those_of_transformers(real, real_tokenizer, lengths):
    """Which takes Google's way to the answer: `gold` in `"golden` is the difference that the test above explains."""
    library = pytest.importorskip("transformers.data.processors.squad")
    transformers = pytest.importorskip("transformers")
    library.squad_convert_example_to_features_init(transformers.BertTokenizer(SHARED_VOCAB, do_lower_case=True))
    questions = sample(real, 60)
    made = iter(features_of(questions, real_tokenizer, lengths))
    different, count = set(), 0
    for paragraph in questions.paragraphs:
        for question in paragraph.questions:
            query = spans.tokenize_query(question.text, real_tokenizer, lengths)
            document = spans.tokenize_document(paragraph.context, real_tokenizer)
            windows = spans.make_windows(document, len(query), lengths)
            theirs = huggingface_features(library, question, paragraph.context, lengths)
            assert len(theirs) == len(windows)
            for window, other in zip(windows, theirs):
                own = next(made)
                assert padded(own, lengths) == [other.input_ids, other.attention_mask, other.token_type_ids]
                if (own.start_position, own.end_position) != (other.start_position, other.end_position):
                    different.add(question.found.text)
                best = {window.first + at: bool(value) for at, value in enumerate(window.has_max_context)}
                assert best == other.token_is_max_context
                count += 1
    assert next(made, None) is None
    assert different == {"gold"}
    assert count >= questions.num_questions > 150


# -------------------------------------------------------------------------------------------------- positions


def positions(paragraph: Paragraph, tokenizer, lengths: WindowConfig = SMALL):
    made = spans.paragraph_features(paragraph, 0, tokenizer, lengths)
    return [(features.start_position, features.end_position) for features in made]


def test_positions_are_those_in_the_sequence(tokenizer):
    # [CLS] who ? [SEP] a b c d e
    assert positions(asked("a b c d e", "b c"), tokenizer) == [(5, 6)]
    assert positions(asked("a b c d e", "a"), tokenizer) == [(4, 4)]
    assert positions(asked("a b c d e", "e"), tokenizer) == [(8, 8)]


def test_a_question_without_an_answer_points_to_the_first_token(tokenizer):
    assert positions(asked("a b c", is_impossible=True), tokenizer) == [(0, 0)]
    assert positions(asked("a b c", "b", is_impossible=True), tokenizer) == [(0, 0)]
    assert positions(asked("a b c", is_impossible=False), tokenizer) == [(0, 0)], "a test file"
    assert positions(asked("a b c", "not there"), tokenizer) == [(0, 0)]


def test_an_answer_must_be_in_the_window_whole(tokenizer):
    # Windows of four tokens: abcd, cdef, efgh.
    lengths = WindowConfig(max_seq_length=9, doc_stride=2, max_query_length=2)
    context = "a b c d e f g h"
    assert positions(asked(context, "c d"), tokenizer, lengths) == [(6, 7), (4, 5), (0, 0)]
    assert positions(asked(context, "d e"), tokenizer, lengths) == [(0, 0), (5, 6), (0, 0)]
    assert positions(asked(context, "b c d e"), tokenizer, lengths) == [(0, 0)] * 3
    assert positions(asked(context, "a b c d e f g h"), tokenizer, lengths) == [(0, 0)] * 3


def test_of_several_answers_the_first_that_stands_in_the_paragraph_counts(tokenizer):
    assert positions(asked("a b c d", "x", "c", "a"), tokenizer) == [(6, 6)]


@pytest.mark.parametrize(
    "annotated, covered",
    [
        ("1895", "1895"),
        ("(1895", "(1895"),
        ("895-19", "895-19"),
        ("gold", "golden"),
        ("old", "golden"),
        ("gates", "gates"),
        ("gate", "gate"),
        ("cafe", "cafe\u0301"),
        ("\u0301", "cafe\u0301"),
        (" golden ", "golden"),
    ],
)
def test_an_answer_has_as_few_tokens_as_cover_it(tokenizer, annotated, covered):
    context = "(1895-1943) golden gates, cafe\u0301."
    document = spans.tokenize_document(context, tokenizer)
    first, last = document.find(GoldAnswer(annotated, context.index(annotated)))
    assert context[document.starts[first] : document.ends[last]] == covered


def test_what_no_token_stands_for_is_not_found(tokenizer):
    document = spans.tokenize_document("a \u200b b", tokenizer)
    assert document.find(GoldAnswer("\u200b", 2)) is None
    assert document.find(GoldAnswer("x", None)) is None
    assert document.find(None) is None


def test_a_long_question_is_cut(tokenizer):
    lengths = WindowConfig(max_seq_length=12, doc_stride=1, max_query_length=3)
    [features] = spans.paragraph_features(asked("y z", "z", text="a b c d e f"), 0, tokenizer, lengths)
    tokens = tokenizer.convert_ids_to_tokens(features.input_ids)
    assert tokens == ["[CLS]", "a", "b", "c", "[SEP]", "y", "z", "[SEP]"]
    assert features.segment_ids == [0] * 5 + [1] * 3
    assert (features.start_position, features.end_position) == (6, 6)


def test_a_question_may_have_no_token(tokenizer):
    [features] = spans.paragraph_features(asked("y z", "z", text=" \u200b"), 0, tokenizer, SMALL)
    assert tokenizer.convert_ids_to_tokens(features.input_ids[:5]) == ["[CLS]", "[SEP]", "y", "z", "[SEP]"]
    assert features.start_position == 3


# ---------------------------------------------------------------------------------------- records and the cache


def read_back(path: str, batch_size: int, seq_length: int, drop_remainder: bool = False):
    """The batches that a network would get."""
    input_fn = records.file_based_input_fn_builder(
        path, seq_length, False, drop_remainder, label_types=SpanHead.label_types
    )
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(input_fn({"batch_size": batch_size})).get_next()
        assert {tensor.dtype for tensor in batch.values()} == {tf.int32}
        batches = []
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return batches


@pytest.mark.parametrize("processes", [1, 2])
def test_records_hold_what_the_network_reads(tokenizer, tmp_path, processes):
    dataset = made_up(3, tokenizer, paragraphs=20, unanswerable=0.3)
    made = features_of(dataset, tokenizer, SMALL)
    path = str(tmp_path / "records")
    serialized = list(spans.iterate_records(dataset.paragraphs, tokenizer, SMALL, pad_to=8, processes=processes))
    records.write_serialized(serialized, path)
    batches = read_back(path, 8, SMALL.max_seq_length, drop_remainder=True)
    assert sum(len(batch["input_ids"]) for batch in batches) == len(serialized) == -(-len(made) // 8) * 8
    rows = [row for batch in batches for row in rows_of(batch)]
    assert len(rows) == len(made) and len(made) % 8 != 0, "fillers are left out, and there are some"
    for row, features in zip(rows, made):
        expected = {name: values[0] for name, values in features.as_lists().items()}
        expected["input_ids"], expected["input_mask"], expected["segment_ids"] = padded(features, SMALL)
        assert {name: values.tolist() for name, values in row.items()} == expected


def test_names_of_records_are_those_of_the_head():
    for features in (spans.SpanFeatures([1, 2, 3], [0, 0, 1], 7, 0, 3, 4), spans.filler()):
        values = features.as_lists()
        assert list(values) == ["input_ids", "segment_ids", *SpanHead.label_types, "is_real_example"]
        assert {type(number) for numbers in values.values() for number in numbers} == {int}
    assert set(SpanHead.label_types.values()) == {tf.int64}


@pytest.fixture
def make(vocab_file, tmp_path):
    """Asks the cache for features; what is not said is the same each time."""

    def make(dataset=None, lengths=SMALL, key="vocabulary 1", pad_to=1, name="train"):
        tokenizer = tokenization.FullTokenizer(vocab_file)
        dataset = dataset or made_up(5, tokenizer)
        return feature_store.span_files(str(tmp_path), name, dataset, lengths, tokenizer, key, pad_to)

    return make


def parsed(serialized):
    """What records say; the order of the names in their bytes is left to chance."""
    examples = (tf.train.Example.FromString(record).features.feature for record in serialized)
    return [{name: list(values.int64_list.value) for name, values in example.items()} for example in examples]


def content_of(paths):
    return parsed(itertools.chain.from_iterable(map(tf.python_io.tf_record_iterator, paths)))


def test_the_same_content_is_made_once(make, monkeypatch):
    paths = make()
    monkeypatch.setattr(writing, "write_shards", lambda *_: pytest.fail("features were made again"))
    assert make() == paths
    assert feature_store.num_records(paths) == len(content_of(paths))


def changed(dataset: Dataset, **changes) -> Dataset:
    """The same, but for one thing about its first question."""
    first, *others = dataset.paragraphs
    question = dataclasses.replace(first.questions[0], **changes)
    return dataclasses.replace(
        dataset, paragraphs=(Paragraph(first.context, (question, *first.questions[1:])), *others)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": dataclasses.replace(SMALL, max_seq_length=41)},
        {"lengths": dataclasses.replace(SMALL, doc_stride=9)},
        {"lengths": dataclasses.replace(SMALL, max_query_length=5)},
        {"key": "vocabulary 2"},
        {"pad_to": 8},
        {"name": "dev"},
        {"dataset": {"answers": (GoldAnswer("G", 0),)}},
        {"dataset": {"answers": (), "is_impossible": True}},
        {"dataset": {"text": "Another?"}},
    ],
)
def test_other_content_has_a_file_of_its_own(make, tokenizer, change):
    first = make()
    if "dataset" in change:
        change = {"dataset": changed(made_up(5, tokenizer), **change["dataset"])}
    other = make(**change)
    assert other != first
    assert all(map(os.path.exists, first + other))


def test_names_of_questions_do_not_matter(make, tokenizer):
    assert make(changed(made_up(5, tokenizer), id="another")) == make()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_made_again(make, how):
    paths = make()
    whole = content_of(paths)
    damage(paths[0], how)
    assert make() == paths
    assert content_of(paths) == whole


KILLED = """
import os, sys, time
sys.path.insert(0, {root!r})
import tokenization
from adapter_bert.pipeline import feature_store, spans, writing
from tests.pipeline import test_spans

def slowly(features, serialize=writing.serialize):
    time.sleep(0.05)
    os.write(1, b"made\\n")
    return serialize(features)

writing.serialize = slowly
tokenizer = tokenization.FullTokenizer({vocabulary!r})
examples = test_spans.made_up(5, tokenizer, 60)
feature_store.span_files({folder!r}, "train", examples, test_spans.SMALL, tokenizer, "vocabulary 1")
"""


def test_a_kill_in_the_middle_leaves_nothing_that_is_taken_for_whole(make, tokenizer, vocab_file, tmp_path):
    values = {"root": ROOT, "folder": str(tmp_path), "vocabulary": vocab_file}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(**values)], stdout=subprocess.PIPE, start_new_session=True
    )
    for _ in range(15):
        assert process.stdout.readline() == b"made\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.communicate(timeout=60)  # the line ends when the processes that it started have ended
    assert not glob.glob(str(tmp_path / "*.tf_record"))
    dataset = made_up(5, tokenizer, 60)
    paths = make(dataset)
    expected = spans.iterate_records(dataset.paragraphs, tokenizer, SMALL, processes=1)
    assert content_of(paths) == parsed(expected)


# ------------------------------------------------------------------------- from the right positions to the answers


def rows_for(dataset: Dataset, tokenizer, lengths: WindowConfig, logits_of):
    """What a network would predict that gives each window these logits."""
    return [
        {
            "question_ids": np.int32(features.question_id),
            "window_ids": np.int32(features.window_id),
            "logits": logits_of(features),
            "loss": np.float32(0.5),
        }
        for features in features_of(dataset, tokenizer, lengths)
    ]


def oracle(features: spans.SpanFeatures) -> np.ndarray:
    """10 at the right positions, 0 elsewhere."""
    logits = np.zeros((2, len(features.input_ids)), np.float32)
    logits[[0, 1], [features.start_position, features.end_position]] = 10.0
    return logits


def check_oracle(dataset: Dataset, tokenizer, lengths: WindowConfig, version_2: bool = False):
    """Scores of the right positions; every answer must be the annotated text, to the last character."""
    answerer = AnswerDecoder(dataset, tokenizer, lengths, AnswerRules(version_2=version_2))
    rows = rows_for(dataset, tokenizer, lengths, oracle)
    answers = answerer.answer(rows)
    assert {name: answer.text for name, answer in answers.items()} == {
        question.id: question.answers[0].text if question.answers else "" for question in dataset.questions()
    }
    return answerer.score(rows)


@pytest.mark.parametrize("seed", range(5))
def test_right_positions_give_right_answers(tokenizer, seed):
    assert check_oracle(made_up(seed, tokenizer), tokenizer, SMALL).metrics["exact_match"] == 100.0
    dataset = made_up(seed, tokenizer, unanswerable=0.4)
    assert check_oracle(dataset, tokenizer, SMALL, version_2=True).metrics["exact"] == 100.0


def test_right_positions_give_right_answers_with_sentence_pieces(sentencepiece):
    context = 'The  quick brown fox said "no" 1928,9 times,\nthe LAZY do\u0301g.\t' * 4
    for seed in range(20):
        generator = random.Random(seed)
        answers = []
        while len(answers) < 5:
            answer = made_up_answer(generator, context, sentencepiece)
            if answer.text and answer.text == answer.text.strip():  # a word start alone stands for no character
                answers.append(answer)
        questions = tuple(Question(str(n), "Quick fox?", (answer,), False) for n, answer in enumerate(answers))
        scores = check_oracle(dataset_of(Paragraph(context, questions)), sentencepiece, SMALL)
        assert scores.metrics["exact_match"] == 100.0


def test_right_positions_give_the_right_answers_to_real_questions(real, real_tokenizer):
    """99.43 of 100: what is missing are answers of over 30 tokens, and annotations that end inside a word."""
    answerer = AnswerDecoder(real, real_tokenizer, WindowConfig(), AnswerRules())
    scores = answerer.score(rows_for(real, real_tokenizer, WindowConfig(), oracle))
    assert round(scores.metrics["exact_match"], 2) == 99.43
    assert round(scores.metrics["f1"], 2) == 99.50


def test_right_positions_in_sentence_pieces_give_the_right_answers_to_real_questions(real):
    pytest.importorskip("sentencepiece")
    tokenizer = tokenization.SentencePieceTokenizer(needed(SHARED_SPM))
    questions = sample(real, 20)
    answerer = AnswerDecoder(questions, tokenizer, WindowConfig(), AnswerRules())
    scores = answerer.score(rows_for(questions, tokenizer, WindowConfig(), oracle))
    assert scores.metrics["exact_match"] >= 97.0


def test_right_positions_score_real_unanswerable_questions(real_tokenizer):
    questions = sample(squad.read(needed(SQUAD_V2)), 6)
    answerer = AnswerDecoder(questions, real_tokenizer, WindowConfig(), AnswerRules(version_2=True))
    scores = answerer.score(rows_for(questions, real_tokenizer, WindowConfig(), oracle))
    assert scores.metrics["exact"] >= 97.0
    assert scores.details["NoAns_exact"] == 100.0


@pytest.mark.parametrize("version_2", [False, True])
def test_a_paragraph_with_nothing_to_see_has_no_window_and_no_answer(tokenizer, version_2):
    dataset = dataset_of(
        *(
            Paragraph(context, (Question(name, "Who?", (GoldAnswer(text, start),), False),))
            for name, context, text, start in [
                ("before", "a b", "b", 2),
                ("empty", "", "b", None),
                ("invisible", "\u200b \n\xad", "b", None),
                ("behind", "c d", "d", 2),
            ]
        )
    )
    rows = rows_for(dataset, tokenizer, SMALL, oracle)
    assert [int(row["question_ids"]) for row in rows] == [0, 3], "questions keep their numbers"
    answerer = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=version_2))
    answers = {name: answer.text for name, answer in answerer.answer(rows).items()}
    assert answers == {"before": "b", "empty": "", "invisible": "", "behind": "d"}
    assert answerer.score(rows).metrics["f1"] == 50.0


def test_without_any_window_there_are_scores_still(tokenizer):
    dataset = dataset_of(asked(" ", "b"))
    assert features_of(dataset, tokenizer, SMALL) == []
    scores = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=True)).score([])
    assert scores.metrics["f1"] == 0.0
    assert math.isnan(scores.loss)


# --------------------------------------------------------------------------------------------- scores and threshold


def random_rows(dataset: Dataset, tokenizer, seed: int, scale: float = 1.0, null: float = 0.0):
    """Logits with some truth in them; `null` is added to those of no answer."""
    generator = np.random.RandomState(seed)

    def logits_of(features):
        noise = generator.normal(0.0, 4.0, (2, len(features.input_ids)))
        noise[:, 0] += null
        return ((noise + oracle(features) * generator.uniform(0, 1)) * scale).astype(np.float32)

    return rows_for(dataset, tokenizer, SMALL, logits_of)


def scores_of(dataset: Dataset, tokenizer, rows, **rules):
    return AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=True, **rules)).score(rows)


@pytest.mark.parametrize("version_2", [False, True])
def test_the_order_of_rows_does_not_matter(tokenizer, version_2):
    for seed in range(5):
        dataset = made_up(seed, tokenizer, unanswerable=0.5 * version_2)
        rows = random_rows(dataset, tokenizer, seed)
        answerer = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=version_2))
        expected, answers = answerer.score(rows), answerer.answer(rows)
        random.Random(seed).shuffle(rows)
        assert answerer.score(rows) == expected
        shuffled = answerer.answer(rows)
        assert shuffled == answers and list(shuffled) == list(answers)


def plain_words(seed: int, tokenizer) -> Dataset:
    """Questions whose answers all are of words that a comparison of texts keeps."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(generator.randrange(2, 12)):
        context = " ".join(generator.choice("bcdefghijklmnopqrstuvwxyz") for _ in range(generator.randrange(1, 30)))
        is_impossible = generator.random() < 0.5
        answers = () if is_impossible else (made_up_answer(generator, context, tokenizer),)
        paragraphs.append(Paragraph(context, (Question(str(number), "Who?", answers, is_impossible),)))
    return dataset_of(*paragraphs)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e30])
def test_a_fitted_threshold_gives_the_scores_that_it_was_fitted_for(tokenizer, scale):
    """Sums are formed in another order there, so that F1 may differ in its last digits; exact matches are counted."""
    silent = some = 0
    for seed in range(80):
        dataset = plain_words(seed, tokenizer)
        rows = random_rows(dataset, tokenizer, seed, scale, null=seed % 4 * 4.0)
        fitted = scores_of(dataset, tokenizer, rows, null_threshold=random.Random(seed).uniform(-9, 9))
        again = scores_of(dataset, tokenizer, rows, null_threshold=fitted.metrics["best_f1_thresh"])
        assert again.metrics["f1"] == pytest.approx(fitted.metrics["best_f1"], rel=1e-13), seed
        exact = scores_of(dataset, tokenizer, rows, null_threshold=fitted.details["best_exact_thresh"])
        assert exact.metrics["exact"] == fitted.details["best_exact"], seed
        for name in ("best_f1", "best_f1_thresh"):
            assert again.metrics[name] == fitted.metrics[name], "what is fitted does not depend on the threshold in use"
        assert fitted.metrics["best_f1"] >= max(fitted.metrics["f1"], exact.metrics["f1"]) - 1e-9
        nothing = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=True)).no_answer_score()
        answers = AnswerDecoder(
            dataset, tokenizer, SMALL, AnswerRules(version_2=True, null_threshold=fitted.metrics["best_f1_thresh"])
        ).answer(rows)
        if not any(answer.text for answer in answers.values()):
            silent += 1
            assert again.metrics["f1"] == nothing["f1"]
        else:
            some += 1
            assert again.metrics["f1"] > nothing["f1"]
    assert silent > 3 and some > 3, (silent, some)


def test_no_threshold_is_better_than_the_fitted_one(tokenizer):
    for seed in range(20):
        dataset = plain_words(seed, tokenizer)
        rows = random_rows(dataset, tokenizer, seed, null=seed % 4 * 4.0)
        best = scores_of(dataset, tokenizer, rows).metrics["best_f1"]
        tried = [scores_of(dataset, tokenizer, rows, null_threshold=t).metrics["f1"] for t in np.arange(-40, 40, 2.5)]
        assert max(tried) <= best + 1e-9


def test_the_threshold_survives_the_way_through_a_flag(tokenizer):
    dataset = plain_words(1, tokenizer)
    fitted = scores_of(dataset, tokenizer, random_rows(dataset, tokenizer, 1)).metrics["best_f1_thresh"]
    assert float(f"{fitted}") == fitted == json.loads(json.dumps(fitted))
