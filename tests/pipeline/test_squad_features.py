"""The examples and features that `run_squad.py` of Google's BERT offers to other code."""

from __future__ import annotations

import os
import random
from typing import List, NamedTuple

import pytest

import tokenization
from adapter_bert.pipeline import squad_features
from adapter_bert.pipeline.squad_features import FeatureWriter, SquadExample, SquadFeatures
from tests.helpers import assert_mentions, message_of, run_batches
from tests.pipeline.squad_data import write_vocabulary
from tests.tasks.test_squad import content, paragraph, qa, write

pytestmark = pytest.mark.smoke
CONTEXT = "Golden  gates\n(1895-1943)\u202fwho?"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> tokenization.FullTokenizer:
    return tokenization.FullTokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def read(tmp_path, *questions: dict, context: str = CONTEXT, training: bool = True, version_2: bool = False) -> list:
    path = write(tmp_path, content(paragraph(*questions, context=context)))
    return squad_features.read_squad_examples(path, training, version_2)


def features_of(tokenizer, example: SquadExample, lengths=(13, 3, 2), training: bool = True) -> List[SquadFeatures]:
    features: List[SquadFeatures] = []
    squad_features.convert_examples_to_features([example], tokenizer, *lengths, training, features.append)
    return features


def test_examples_have_words_and_the_words_of_the_answer(tmp_path):
    inside, words = read(tmp_path, qa("q", ("1895", 15)), qa("r", ("gates\n(1895-1943)", 8)))
    assert inside.doc_tokens == ["Golden", "gates", "(1895-1943)", "who?"]
    assert (inside.qas_id, inside.question_text, inside.orig_answer_text) == ("q", "Who is q?", "1895")
    assert (inside.start_position, inside.end_position, inside.is_impossible) == (2, 2, False)
    assert (words.start_position, words.end_position) == (1, 2)


def test_without_training_answers_are_not_read(tmp_path):
    [example] = read(tmp_path, qa("q", ("1895", 15)), training=False)
    assert (example.orig_answer_text, example.start_position, example.end_position) == (None, None, None)


def test_an_unanswerable_question_of_version_2_has_position_minus_one(tmp_path):
    questions = qa("q", is_impossible=True), qa("r", ("who", 26), is_impossible=False)
    found = read(tmp_path, *questions, version_2=True)
    positions = [(each.is_impossible, each.start_position, each.end_position, each.orig_answer_text) for each in found]
    assert positions == [(True, -1, -1, ""), (False, 3, 3, "who")]
    message = message_of(read, tmp_path, *questions, version_2=False)
    assert_mentions(message, "--version_2_with_negative", "1 of 2")


def test_a_moved_answer_is_found_and_one_outside_the_paragraph_is_skipped(tmp_path):
    found = read(tmp_path, qa("q", ("who", 3)), qa("r", ("nowhere", 3)))
    assert [(each.qas_id, each.start_position) for each in found] == [("q", 3)]


def test_an_answer_whose_space_does_not_separate_words_is_skipped_as_in_the_original(tmp_path, log):
    found = read(tmp_path, qa("q", ("19\xa0who", 0)), qa("r", ("who", 3)), context="19\xa0who")
    assert [each.qas_id for each in found] == ["r"]
    assert any("'19\xa0who'" in line and "'19 who'" in line for line in log)


def test_features_of_overlapping_windows(tokenizer):
    """Eight tokens of the paragraph fit in a sequence of 13 after the question; the next window starts three later."""
    example = SquadExample("q", "who? who?", ["Golden", "gates", "(1895-1943)", "who?"], "1895", 2, 2)
    windows = features_of(tokenizer, example)
    tokens = ["golden", "gate", "##s", "(", "1", "##8", "##9", "##5", "-", "19", "##4", "##3", ")", "who", "?"]
    expected = [["[CLS]", "who", "?", "[SEP]", *tokens[start : start + 8], "[SEP]"] for start in (0, 3, 6, 9)]
    assert [window.tokens for window in windows] == expected
    assert [window.unique_id for window in windows] == [1000000000, 1000000001, 1000000002, 1000000003]
    assert [(window.example_index, window.doc_span_index) for window in windows] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    # The answer is complete in the first two windows.
    assert [(window.start_position, window.end_position) for window in windows] == [(8, 11), (5, 8), (0, 0), (0, 0)]
    assert windows[0].token_to_orig_map == {4: 0, 5: 1, 6: 1, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2}
    # Each token has its maximum context in one window.
    best = [position + 3 * number for number, window in enumerate(windows)
            for position, is_best in window.token_is_max_context.items() if is_best]  # fmt: skip
    assert best == list(range(4, 4 + len(tokens)))
    last = windows[-1]
    assert (last.input_mask, last.segment_ids) == ([1] * 11 + [0, 0], [0] * 4 + [1] * 7 + [0, 0])
    assert last.input_ids == tokenizer.convert_tokens_to_ids(last.tokens) + [0, 0]


def test_features_without_training_have_no_positions(tokenizer):
    [window] = features_of(tokenizer, SquadExample("q", "who?", ["who?"]), training=False)
    assert (window.start_position, window.end_position, window.is_impossible) == (None, None, False)


@pytest.mark.parametrize(
    "answer, expected", [("(1895-1943)", (3, 12)), ("1895", (4, 7)), ("1943", (9, 11)), ("golden", (3, 12))]
)
def test_the_answer_span_is_improved_if_the_answer_is_a_part_of_its_words(tokenizer, answer, expected):
    tokens = tokenizer.tokenize("golden gates (1895-1943) who?")
    assert squad_features.improve_answer_span(tokens, 3, 12, tokenizer, answer) == expected


class Span(NamedTuple):
    start: int
    length: int


def test_a_token_has_its_maximum_context_where_its_shorter_side_is_longest():
    generator = random.Random(1)
    for _ in range(200):
        windows = [Span(generator.randrange(20), generator.randrange(1, 12)) for _ in range(generator.randrange(1, 6))]
        for position in range(32):
            scores = {
                number: min(position - window.start, window.start + window.length - 1 - position) + 0.01 * window.length
                for number, window in enumerate(windows)
                if window.start <= position < window.start + window.length
            }
            best = max(scores, key=scores.__getitem__) if scores else None
            found = [squad_features.check_is_max_context(windows, number, position) for number in range(len(windows))]
            assert found == [number == best for number in range(len(windows))]


@pytest.mark.parametrize("training", [True, False])
def test_written_features_are_read_by_the_input_function(tokenizer, tmp_path, training):
    example = SquadExample("q", "who?", ["Golden", "gates", "(1895-1943)", "who?"], "1895", 2, 2)
    windows = features_of(tokenizer, example, training=training)
    path = str(tmp_path / "features.tf_record")
    writer = FeatureWriter(filename=path, is_training=training)
    for window in windows:
        writer.process_feature(window)
    assert (writer.num_features, os.path.exists(path)) == (len(windows), False)
    writer.close()
    assert os.listdir(tmp_path) == ["features.tf_record"]
    input_fn = squad_features.input_fn_builder(path, seq_length=13, is_training=training, drop_remainder=training)
    batches = run_batches(input_fn, 2, steps=2)
    by_id = {window.unique_id: window for window in windows}
    found = [{name: values[row] for name, values in batch.items()} for batch in batches for row in range(2)]
    assert sorted(row["unique_ids"] for row in found) == sorted(by_id)  # an epoch, in random order if training
    for row in found:
        window = by_id[row["unique_ids"]]
        assert row["input_ids"].tolist() == window.input_ids and row["input_mask"].tolist() == window.input_mask
        assert row["segment_ids"].tolist() == window.segment_ids
        assert (row.get("start_positions"), row.get("end_positions")) == (window.start_position, window.end_position)
