"""Texts become rows of ids worked out by hand, and training sees every one of them as often as it should."""

from __future__ import annotations

import itertools
import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common import parallel
from adapter_bert.pipeline import features as features_module
from adapter_bert.pipeline import records
from adapter_bert.pipeline.features import (
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
    iterate_records,
    truncate_seq_pair,
)
from adapter_bert.pipeline.records import (
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
    input_fn_builder,
    write_records,
)
from adapter_bert.tasks import InputExample
from tests.helpers import VOCABULARY, run_batches

LABELS = ["bad", "good"]
PAD, CLS, SEP = 0, 2, 3
NAMES = ["input_ids", "input_mask", "segment_ids", "label_ids", "is_real_example"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return tokenization.FullTokenizer(str(path))


def ids(text: str) -> list:
    """Positions in the vocabulary, looked up without the tokenizer."""
    return [VOCABULARY.index(token) for token in text.split()]


def convert(tokenizer, text_a, text_b=None, length=10, label="good"):
    return convert_single_example(9, InputExample("guid", text_a, text_b, label), LABELS, length, tokenizer)


# ---------------------------------------------------------------------------------------- features


def test_a_single_text_stands_between_cls_and_sep_with_padding_behind(tokenizer):
    features = convert(tokenizer, "The cat sees it.", length=10)
    assert features.input_ids == ids("[CLS] the cat sees it . [SEP] [PAD] [PAD] [PAD]")
    assert features.input_mask == [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    assert features.segment_ids == [0] * 10
    assert features.label_id == 1
    assert features.is_real_example is True


def test_a_pair_is_told_apart_by_its_segments(tokenizer):
    features = convert(tokenizer, "the cat runs", "it sees", length=12)
    assert features.input_ids == ids("[CLS] the cat runs [SEP] it sees [SEP] [PAD] [PAD] [PAD] [PAD]")
    assert features.input_mask == [1] * 8 + [0] * 4
    assert features.segment_ids == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0]


def test_a_text_that_fits_exactly_has_no_padding(tokenizer):
    assert convert(tokenizer, "the cat runs", length=5).input_ids == ids("[CLS] the cat runs [SEP]")
    pair = convert(tokenizer, "the cat", "it runs", length=7)
    assert pair.input_ids == ids("[CLS] the cat [SEP] it runs [SEP]")
    assert pair.segment_ids == [0, 0, 0, 0, 1, 1, 1]


def test_a_long_text_is_cut_at_its_end(tokenizer):
    features = convert(tokenizer, "the big cat sees the small dog", length=5)
    assert features.input_ids == ids("[CLS] the big cat [SEP]")
    assert features.input_mask == [1] * 5


def test_word_pieces_count_and_not_words(tokenizer):
    # "seeing" is two pieces, "see ##ing": the second one is cut.
    assert convert(tokenizer, "seeing cats", length=10).input_ids[:5] == ids("[CLS] see ##ing cats [SEP]")
    assert convert(tokenizer, "seeing cats", length=3).input_ids == ids("[CLS] see [SEP]")


@pytest.mark.parametrize(
    "a, b, length, expected",
    [
        # Room for 4: b is longer (5), then as long (3), and loses again at a tie.
        ("the cat runs", "she sees the big dog", 7, "[CLS] the cat [SEP] she sees [SEP]"),
        # Only a is too long: b stays whole.
        ("she sees the big dog", "it", 7, "[CLS] she sees the [SEP] it [SEP]"),
        # Only b is too long: a stays whole.
        ("it", "she sees the big dog", 7, "[CLS] it [SEP] she sees the [SEP]"),
        # A tie with odd room: b is the shorter one in the end.
        ("the cat runs", "the dog sees", 8, "[CLS] the cat runs [SEP] the dog [SEP]"),
        # No room for any text at all.
        ("the cat", "the dog", 3, "[CLS] [SEP] [SEP]"),
    ],
)
def test_a_long_pair_loses_tokens_from_the_end_of_the_longer_text(tokenizer, a, b, length, expected):
    features = convert(tokenizer, a, b, length)
    assert features.input_ids == ids(expected)
    assert features.input_mask == [1] * length
    first_sep = features.input_ids.index(SEP)
    assert features.segment_ids == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)


def test_truncation_of_a_pair_works_in_place():
    a, b = list("abcdef"), list("xyz")
    truncate_seq_pair(a, b, 5)
    assert ("".join(a), "".join(b)) == ("abc", "xy")
    truncate_seq_pair(a, b, 5)
    assert ("".join(a), "".join(b)) == ("abc", "xy")


def test_truncation_of_a_pair_takes_the_last_token_of_the_longer_one_again_and_again():
    for long_a, long_b, room in itertools.product(range(9), range(9), range(12)):
        a, b = list(range(long_a)), list(range(long_b))
        expected_a, expected_b = list(a), list(b)
        while len(expected_a) + len(expected_b) > room:
            (expected_a if len(expected_a) > len(expected_b) else expected_b).pop()
        truncate_seq_pair(a, b, room)
        assert (a, b) == (expected_a, expected_b), (long_a, long_b, room)


def test_a_length_without_room_for_the_special_tokens_is_refused(tokenizer):
    with pytest.raises(ValueError, match="must be 3 at least.*received 2"):
        convert(tokenizer, "it", length=2)


def test_a_tokenizer_of_tokens_alone_will_do(tokenizer):
    """As other libraries have them; none of their further methods is called."""

    class Foreign:
        tokenize = staticmethod(tokenizer.tokenize)
        convert_tokens_to_ids = staticmethod(tokenizer.convert_tokens_to_ids)

    assert (
        convert(Foreign(), "Seeing the cat", "it").as_lists() == convert(tokenizer, "Seeing the cat", "it").as_lists()
    )


def test_an_empty_text_leaves_the_special_tokens(tokenizer):
    assert convert(tokenizer, "", length=4).input_ids == [CLS, SEP, PAD, PAD]


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_second_text_counts_as_none_as_in_the_original(tokenizer, nothing):
    assert convert(tokenizer, "the cat", nothing, length=6).input_ids == ids("[CLS] the cat [SEP] [PAD] [PAD]")


def test_labels_become_their_place_in_the_list(tokenizer):
    assert convert(tokenizer, "it", label="bad").label_id == 0
    assert convert(tokenizer, "it", label="good").label_id == 1
    assert convert(tokenizer, "it", label=None).label_id == 0


def test_an_unknown_label_is_named_with_its_example_and_the_labels(tokenizer):
    with pytest.raises(ValueError, match="The example guid has the label 'ugly'; the labels are bad, good."):
        convert(tokenizer, "it", label="ugly")


def test_a_padding_example_is_all_zero_and_not_real(tokenizer):
    features = convert_single_example(0, PaddingInputExample(), LABELS, 6, tokenizer)
    assert features.input_ids == features.input_mask == features.segment_ids == [0] * 6
    assert features.label_id == 0
    assert features.is_real_example is False


def test_features_are_listed_under_the_names_of_the_network():
    features = InputFeatures([2, 3], [1, 1], [0, 1], label_id=4, is_real_example=False)
    assert dict(features.as_lists()) == {
        "input_ids": [2, 3],
        "input_mask": [1, 1],
        "segment_ids": [0, 1],
        "label_ids": [4],
        "is_real_example": [0],
    }
    assert set(features.as_lists()) == set(records.feature_spec(2))


def test_of_a_label_that_is_listed_twice_the_first_counts(tokenizer):
    features = convert_single_example(9, InputExample("guid", "it", None, "x"), ["x", "y", "x"], 8, tokenizer)
    assert features.label_id == 0


def test_the_first_example_is_shown(tokenizer, log):
    examples = [InputExample("first", "the cat", None, "good"), InputExample("second", "it", None, "bad")]
    for make in (convert_examples_to_features, iterate_records):
        del log[:]
        list(make(examples, LABELS, 8, tokenizer))
        assert "guid: first" in log and "tokens: [CLS] the cat [SEP]" in log and "label: good (id = 1)" in log
        assert "guid: second" not in log


# ----------------------------------------------------------------------------------------- records


def many(count: int) -> list:
    nouns = ["cat", "dog", "cats", "dogs"]
    return [
        InputExample(str(i), "the " * (i % 5) + nouns[i % 4], "it" if i % 3 else None, LABELS[i % 2])
        for i in range(count)
    ]


def test_records_are_as_long_as_their_sequences(tokenizer):
    [record, filler] = iterate_records([many(6)[4], PaddingInputExample()], LABELS, 20, tokenizer)
    found = tf.train.Example.FromString(record).features.feature
    values = {name: list(feature.int64_list.value) for name, feature in found.items()}
    assert values == {
        "input_ids": ids("[CLS] the the the the cat [SEP] it [SEP]"),
        "segment_ids": [0] * 7 + [1] * 2,
        "label_ids": [0],
        "is_real_example": [1],
    }
    found = tf.train.Example.FromString(filler).features.feature
    assert {name: list(feature.int64_list.value) for name, feature in found.items()} == {
        "input_ids": [0], "segment_ids": [0], "label_ids": [0], "is_real_example": [0]
    }  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2, None])
def test_records_are_the_same_and_in_order_however_many_processes_make_them(tokenizer, monkeypatch, processes):
    expected = list(iterate_records(many(100), LABELS, 20, tokenizer, processes=1))
    monkeypatch.setattr(features_module, "EXAMPLES_PER_CHUNK", 7)
    monkeypatch.setattr(features_module, "EXAMPLES_FOR_PROCESSES", 10)
    monkeypatch.setattr(parallel, "num_processes", lambda: 3)
    assert list(iterate_records(iter(many(100)), LABELS, 20, tokenizer, processes)) == expected


def test_few_examples_start_no_process(tokenizer, monkeypatch):
    monkeypatch.setattr(parallel, "num_processes", lambda: pytest.fail("processes were wanted"))
    assert len(list(iterate_records(many(100), LABELS, 20, tokenizer))) == 100


def test_an_unknown_label_is_named_by_another_process_too(tokenizer):
    examples = many(2000) + [InputExample("guid", "it", None, "ugly")]
    with pytest.raises(ValueError, match="The example guid has the label 'ugly'; the labels are bad, good."):
        list(iterate_records(examples, LABELS, 20, tokenizer, processes=2))


def numbered(count: int, length: int = 4) -> list:
    """Features that carry their number, so that an order can be read off."""
    return [InputFeatures([index] * length, [1] * length, [0] * length, index % 2) for index in range(count)]


def order(input_fn, examples: int, batch_size: int = 1) -> list:
    """The numbers of the first examples of a training order."""
    assert examples % batch_size == 0
    found = run_batches(input_fn, batch_size, examples // batch_size)
    return [int(row[0]) for batch in found for row in batch["input_ids"]]


@pytest.fixture(scope="module")
def numbered_file(tmp_path_factory) -> str:
    """A file of twenty numbered examples."""
    path = str(tmp_path_factory.mktemp("records") / "numbered.tf_record")
    assert write_records(numbered(20), path) == 20
    return path


def training_fn(path: str, seed: int = 5, skip: int = 0, drop_remainder: bool = True):
    return file_based_input_fn_builder(path, 4, True, drop_remainder, seed=seed, skip_examples=skip)


def test_what_is_written_is_read_back(tokenizer, tmp_path):
    examples = [
        InputExample("a", "the cat sees it", None, "good"),
        InputExample("b", "the dog", "it runs", "bad"),
        InputExample("c", "she sees the big cats and the small dogs .", "they run", "good"),
        PaddingInputExample(),
    ]
    path = str(tmp_path / "eval.tf_record")
    file_based_convert_examples_to_features(examples, LABELS, 8, tokenizer, path)
    features = convert_examples_to_features(examples, LABELS, 8, tokenizer)
    (batch,) = run_batches(file_based_input_fn_builder(path, 8, False, False), 4)
    assert set(batch) == set(NAMES)
    for name in NAMES:
        expected = [values[0] if len(values) == 1 else values for values in (f.as_lists()[name] for f in features)]
        real = slice(None) if name != "input_mask" else slice(3)  # a filler is one token: none would be no sequence
        np.testing.assert_array_equal(batch[name][real], expected[real])
        assert batch[name].dtype == np.int32
    assert batch["label_ids"].shape == (4,)
    assert batch["is_real_example"].tolist() == [1, 1, 1, 0]


def test_records_of_the_published_function_have_one_length_as_googles_reader_wants(tokenizer, tmp_path):
    path = str(tmp_path / "eval.tf_record")
    examples = [InputExample("a", "the cat sees it", None, "good"), InputExample("b", "the", "it", "bad")]
    file_based_convert_examples_to_features(examples, LABELS, 8, tokenizer, path)
    for record in tf.python_io.tf_record_iterator(path):
        found = tf.train.Example.FromString(record).features.feature
        lengths = {name: len(found[name].int64_list.value) for name in found}
        assert lengths == {"input_ids": 8, "input_mask": 8, "segment_ids": 8, "label_ids": 1, "is_real_example": 1}


def test_evaluation_keeps_the_order_and_ends_with_a_short_batch(numbered_file):
    found = run_batches(file_based_input_fn_builder(numbered_file, 4, False, False), 8)
    assert [len(batch["label_ids"]) for batch in found] == [8, 8, 4]
    assert [int(row[0]) for batch in found for row in batch["input_ids"]] == list(range(20))


def test_a_last_short_batch_can_be_left_out_and_its_size_is_known_then(numbered_file):
    input_fn = file_based_input_fn_builder(numbered_file, 4, False, True)
    assert [len(batch["label_ids"]) for batch in run_batches(input_fn, 8)] == [8, 8]
    with tf.Graph().as_default():
        shapes = tf.data.get_output_shapes(input_fn({"batch_size": 8}))
    assert shapes["input_ids"].as_list() == [8, 4]
    assert shapes["label_ids"].as_list() == [8]


def test_training_shows_every_example_once_an_epoch_in_another_order_each_time(numbered_file):
    seen = order(training_fn(numbered_file), 60, batch_size=5)
    epochs = [seen[start : start + 20] for start in (0, 20, 40)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(20))
        assert epoch != list(range(20))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_epochs_stay_whole_where_batches_do_not_divide_them(numbered_file):
    seen = order(training_fn(numbered_file), 42, batch_size=6)
    assert sorted(seen[:20]) == list(range(20))
    assert sorted(seen[20:40]) == list(range(20))


def test_the_same_seed_gives_the_same_order_and_another_seed_another(numbered_file):
    first = order(training_fn(numbered_file, seed=5), 40)
    assert order(training_fn(numbered_file, seed=5), 40) == first
    assert order(training_fn(numbered_file, seed=6), 40) != first


@pytest.mark.parametrize("skip", [1, 7, 20, 33])
def test_a_continued_run_goes_on_where_the_order_left_off(numbered_file, skip):
    whole = order(training_fn(numbered_file), 60)
    assert order(training_fn(numbered_file, skip=skip), 60 - skip) == whole[skip:]


def test_a_continued_run_gets_the_batches_that_were_left(numbered_file):
    whole = run_batches(training_fn(numbered_file), 6, 8)
    rest = run_batches(training_fn(numbered_file, skip=3 * 6), 6, 5)
    for expected, found in zip(whole[3:], rest):
        np.testing.assert_array_equal(found["input_ids"], expected["input_ids"])


def test_all_this_holds_where_the_file_is_larger_than_the_shuffling_buffer(numbered_file, monkeypatch):
    monkeypatch.setattr(records, "SHUFFLE_BUFFER", 6)
    whole = order(training_fn(numbered_file), 60)
    for start in (0, 20, 40):
        assert sorted(whole[start : start + 20]) == list(range(20))
    assert whole[:20] != whole[20:40]
    assert order(training_fn(numbered_file, skip=27), 33) == whole[27:]


def test_nothing_is_skipped_in_evaluation(numbered_file):
    input_fn = file_based_input_fn_builder(numbered_file, 4, False, False, seed=1, skip_examples=7)
    assert order(input_fn, 20) == list(range(20))


@pytest.mark.parametrize("is_training", [False, True])
def test_features_in_memory_give_the_same_batches_as_a_file(numbered_file, is_training):
    from_file = file_based_input_fn_builder(numbered_file, 4, is_training, False, seed=5)
    in_memory = input_fn_builder(numbered(20), 4, is_training, False, seed=5)
    steps = 7 if is_training else None
    expected, found = run_batches(from_file, 8, steps), run_batches(in_memory, 8, steps)
    assert len(found) == len(expected) == (7 if is_training else 3)
    for one, other in zip(expected, found):
        assert set(one) == set(other) == set(NAMES)
        for name in NAMES:
            np.testing.assert_array_equal(one[name], other[name])
            assert one[name].dtype == other[name].dtype


def test_the_original_four_arguments_are_enough(numbered_file):
    for input_fn in (
        file_based_input_fn_builder(input_file=numbered_file, seq_length=4, is_training=True, drop_remainder=True),
        input_fn_builder(features=numbered(20), seq_length=4, is_training=True, drop_remainder=True),
    ):
        assert sorted(order(input_fn, 20, batch_size=4)) == list(range(20))


# ----------------------------------------------------------------------------------- failed writing


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no ordinary exception."""


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_a_failed_write_leaves_nothing_behind(tmp_path, error):
    def failing():
        yield from numbered(3)
        raise error("half way")

    with pytest.raises(error, match="half way"):
        write_records(failing(), str(tmp_path / "train.tf_record"))
    assert os.listdir(str(tmp_path)) == []


def test_a_failed_write_leaves_an_earlier_file_as_it_was(tmp_path, tokenizer):
    path = tmp_path / "train.tf_record"
    write_records(numbered(3), str(path))
    before = path.read_bytes()
    examples = [InputExample("a", "it", None, "good"), InputExample("b", "it", None, "ugly")]
    with pytest.raises(ValueError, match="ugly"):
        file_based_convert_examples_to_features(examples, LABELS, 8, tokenizer, str(path))
    assert path.read_bytes() == before
    assert os.listdir(str(tmp_path)) == ["train.tf_record"]


def test_a_write_that_cannot_take_its_final_name_leaves_no_partial_file(tmp_path):
    (tmp_path / "train.tf_record").mkdir()
    with pytest.raises(tf.errors.OpError):
        write_records(numbered(3), str(tmp_path / "train.tf_record"))
    assert os.listdir(str(tmp_path)) == ["train.tf_record"]


def test_while_writing_the_final_name_is_not_taken(tmp_path):
    present = []

    def watching():
        for feature in numbered(2):
            present.append(os.listdir(str(tmp_path)))
            yield feature

    write_records(watching(), str(tmp_path / "train.tf_record"))
    assert all(re.match(r"train\.tf_record\.\w+\.partial$", name) for names in present for name in names)
    assert os.listdir(str(tmp_path)) == ["train.tf_record"]


def test_a_finished_write_replaces_an_earlier_file(tmp_path):
    path = str(tmp_path / "train.tf_record")
    write_records(numbered(3), path)
    assert write_records(numbered(5), path) == 5
    assert order(file_based_input_fn_builder(path, 4, False, False), 5) == [0, 1, 2, 3, 4]
