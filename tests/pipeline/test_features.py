"""Texts become ids that are easy to check by hand, and records are the same however many processes make them."""

from __future__ import annotations

import itertools
import os

import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common import parallel
from adapter_bert.pipeline import features as features_module
from adapter_bert.pipeline.features import (
    Encoder,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
    iterate_records,
    truncate_seq_pair,
)
from adapter_bert.tasks import InputExample
from tests.helpers import VOCABULARY, assert_mentions, message_of

LABELS = ["bad", "good"]


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))


def ids(text: str) -> list:
    """Indices in the vocabulary, looked up without the tokenizer."""
    return [VOCABULARY.index(token) for token in text.split()]


def convert(tokenizer, text_a, text_b=None, length=10, label="good", labels=LABELS):
    return convert_single_example(9, InputExample("guid", text_a, text_b, label), labels, length, tokenizer)


@pytest.mark.parametrize(
    "a, b, length, tokens",
    [
        ("The cat sees it.", None, 10, "[CLS] the cat sees it . [SEP]"),
        ("the cat", "it runs", 7, "[CLS] the cat [SEP] it runs [SEP]"),
        # A long text loses its end; word pieces count, not words.
        ("seeing cats", None, 10, "[CLS] see ##ing cats [SEP]"),
        ("seeing cats", None, 3, "[CLS] see [SEP]"),
        # Room for 4: b is longer (5), then as long (3), and loses again at a tie.
        ("the cat runs", "she sees the big dog", 7, "[CLS] the cat [SEP] she sees [SEP]"),
        # No room for any text.
        ("the cat", "the dog", 3, "[CLS] [SEP] [SEP]"),
        ("", None, 4, "[CLS] [SEP]"),
        # A second text without tokens counts as absent, as in the original.
        ("the cat", "  ", 6, "[CLS] the cat [SEP]"),
    ],
)
def test_an_example_becomes_ids_segments_and_a_mask(tokenizer, a, b, length, tokens):
    features = convert(tokenizer, a, b, length)
    expected = ids(tokens)
    padding = [0] * (length - len(expected))
    second = tokens.split()[tokens.split().index("[SEP]") + 1 :]
    assert features.input_ids == expected + padding
    assert features.input_mask == [1] * len(expected) + padding
    assert features.segment_ids == [0] * (len(expected) - len(second)) + [1] * len(second) + padding
    assert (features.label_id, features.is_real_example) == (1, True)


def test_truncating_a_pair_repeatedly_removes_the_last_token_of_the_longer_text():
    for long_a, long_b, room in itertools.product(range(9), range(9), range(12)):
        a, b = list(range(long_a)), list(range(long_b))
        expected_a, expected_b = list(a), list(b)
        while len(expected_a) + len(expected_b) > room:
            (expected_a if len(expected_a) > len(expected_b) else expected_b).pop()
        truncate_seq_pair(a, b, room)
        assert (a, b) == (expected_a, expected_b), (long_a, long_b, room)


def test_a_tokenizer_of_another_library_needs_two_methods(tokenizer):
    class Foreign:
        tokenize = staticmethod(tokenizer.tokenize)
        convert_tokens_to_ids = staticmethod(tokenizer.convert_tokens_to_ids)

    texts = ("Seeing the cat", "it")
    assert convert(Foreign(), *texts).as_lists() == convert(tokenizer, *texts).as_lists()


@pytest.mark.parametrize(
    "label, labels, label_id",
    [("bad", LABELS, 0), ("good", LABELS, 1), (None, LABELS, 0), ("x", ["x", "y", "x"], 0), (2.5, [], 2.5)],
)
def test_a_label_becomes_its_first_index_in_the_list_or_a_number(tokenizer, label, labels, label_id):
    assert convert(tokenizer, "it", label=label, labels=labels).label_id == label_id


def test_wrong_lengths_and_labels_are_reported(tokenizer):
    assert_mentions(message_of(convert, tokenizer, "it", length=2), "max_seq_length", 3, 2)
    assert_mentions(message_of(convert, tokenizer, "it", label="ugly"), "guid", "'ugly'", "bad, good")
    examples = many(2000) + [InputExample("guid", "it", None, "ugly")]
    records_of_two_processes = iterate_records(examples, Encoder(LABELS, 20, tokenizer), processes=2)
    assert_mentions(message_of(list, records_of_two_processes), "guid", "'ugly'", "bad, good")


def test_features_are_listed_under_the_names_of_the_graph(tokenizer):
    features = convert_single_example(0, PaddingInputExample(), LABELS, 3, tokenizer)
    assert (features.label_id, features.is_real_example) == (0, False)
    zeros = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), [0, 0, 0])
    assert features.as_lists() == dict(zeros, label_ids=[0], is_real_example=[0])


def test_the_first_example_is_logged_on_request(tokenizer, log):
    tf.logging.set_verbosity(tf.logging.DEBUG)  # the fixture restores it
    examples = [InputExample("first", "the cat", None, "good"), InputExample("second", "it", None, "bad")]
    for convert_all in (
        lambda: convert_examples_to_features(examples, LABELS, 8, tokenizer),
        lambda: list(iterate_records(examples, Encoder(LABELS, 8, tokenizer))),
        lambda: [convert_single_example(index, each, LABELS, 8, tokenizer) for index, each in enumerate(examples)],
    ):
        del log[:]
        convert_all()
        assert "guid: first" in log and "tokens: [CLS] the cat [SEP]" in log and "label: good (id = 1)" in log
        assert "guid: second" not in log


def many(count: int) -> list:
    nouns = ["cat", "dog", "cats", "dogs"]
    return [
        InputExample(str(i), "the " * (i % 5) + nouns[i % 4], "it" if i % 3 else None, LABELS[i % 2])
        for i in range(count)
    ]


def test_records_have_no_padding(tokenizer):
    encoded = list(iterate_records([many(6)[4], PaddingInputExample()], Encoder(LABELS, 20, tokenizer)))
    found = [tf.train.Example.FromString(record).features.feature for record in encoded]
    values = [{name: list(feature.int64_list.value) for name, feature in each.items()} for each in found]
    tokens = ids("[CLS] the the the the cat [SEP] it [SEP]")
    assert values == [
        {"input_ids": tokens, "segment_ids": [0] * 7 + [1] * 2, "label_ids": [0], "is_real_example": [1]},
        {"input_ids": [0], "segment_ids": [0], "label_ids": [0], "is_real_example": [0]},
    ]


@pytest.mark.parametrize("processes", [1, 2, None])
def test_records_are_the_same_and_in_order_with_any_number_of_processes(tokenizer, monkeypatch, processes):
    encoder = Encoder(LABELS, 20, tokenizer)
    expected = list(iterate_records(many(100), encoder, processes=1))
    assert len(expected) == 100
    monkeypatch.setattr(features_module, "EXAMPLES_PER_CHUNK", 7)
    monkeypatch.setattr(features_module, "EXAMPLES_FOR_PROCESSES", 10)
    monkeypatch.setattr(parallel, "num_processes", lambda: 3)
    assert list(iterate_records(iter(many(100)), encoder, processes)) == expected


def test_few_examples_start_no_process(tokenizer, monkeypatch):
    monkeypatch.setattr(parallel, "num_processes", lambda: pytest.fail("processes were started"))
    assert len(list(iterate_records(many(100), Encoder(LABELS, 20, tokenizer)))) == 100
