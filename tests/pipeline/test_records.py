"""TFRecord files and features in memory give the same batches, and a training sees every example once per epoch."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.pipeline import records, tfrecords
from adapter_bert.pipeline.features import InputFeatures, PaddingInputExample, convert_examples_to_features
from adapter_bert.pipeline.records import (
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
    input_fn_builder,
)
from adapter_bert.tasks import InputExample
from tests.helpers import run_batches

LABELS = ["bad", "good"]
NAMES = ["input_ids", "input_mask", "segment_ids", "label_ids", "is_real_example"]


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))


def numbered(count: int, length: int = 4) -> list:
    """Features that carry their number, so that an order can be read off."""
    return [InputFeatures([index] * length, [1] * length, [0] * length, index % 2) for index in range(count)]


def write(features, path) -> int:
    return tfrecords.write_records((tfrecords.serialize(each.as_lists()) for each in features), str(path))


def order(input_fn, examples: int, batch_size: int = 1) -> list:
    """The numbers of the first examples of a training order."""
    assert examples % batch_size == 0
    found = run_batches(input_fn, batch_size, examples // batch_size)
    return [int(row[0]) for batch in found for row in batch["input_ids"]]


@pytest.fixture(scope="module")
def numbered_file(tmp_path_factory) -> str:
    """A file of twenty numbered examples."""
    path = str(tmp_path_factory.mktemp("records") / "numbered.tf_record")
    assert write(numbered(20), path) == 20
    return path


def training_fn(path: str, seed: int = 5, skip: int = 0):
    return file_based_input_fn_builder(path, 4, is_training=True, drop_remainder=True, seed=seed, skip_examples=skip)


def test_files_give_the_features_that_were_written(tokenizer, tmp_path):
    examples = [
        InputExample("a", "the cat sees it", None, "good"),
        InputExample("b", "she runs", "it runs", "bad"),
        InputExample("c", "the big dog", "the small cat", "good"),
        PaddingInputExample(),
    ]
    path = str(tmp_path / "eval.tf_record")
    file_based_convert_examples_to_features(examples, LABELS, 8, tokenizer, path)
    features = convert_examples_to_features(examples, LABELS, 8, tokenizer)
    found = [tf.train.Example.FromString(record).features.feature for record in tf.python_io.tf_record_iterator(path)]
    lengths = dict(dict.fromkeys(NAMES, 8), label_ids=1, is_real_example=1)  # as Google's reader expects
    assert [{name: len(each[name].int64_list.value) for name in each} for each in found] == [lengths] * 4
    (batch,) = run_batches(file_based_input_fn_builder(path, 8, False, False), 4)
    assert set(batch) == set(NAMES)
    for name in NAMES:
        expected = [values[0] if len(values) == 1 else values for values in (f.as_lists()[name] for f in features)]
        real = slice(None) if name != "input_mask" else slice(3)  # a padding example has one token in the graph
        np.testing.assert_array_equal(batch[name][real], expected[real])
        assert batch[name].dtype == np.int32
    assert batch["label_ids"].shape == (4,)
    assert batch["is_real_example"].tolist() == [1, 1, 1, 0]


def test_evaluation_keeps_the_order_and_skips_nothing(numbered_file):
    found = run_batches(file_based_input_fn_builder(numbered_file, 4, False, False, seed=1, skip_examples=7), 8)
    assert [len(batch["label_ids"]) for batch in found] == [8, 8, 4]
    assert [int(row[0]) for batch in found for row in batch["input_ids"]] == list(range(20))


def test_a_short_last_batch_can_be_dropped_and_shapes_are_static_then(numbered_file):
    input_fn = file_based_input_fn_builder(numbered_file, 4, False, True)
    assert [len(batch["label_ids"]) for batch in run_batches(input_fn, 8)] == [8, 8]
    with tf.Graph().as_default():
        shapes = tf.data.get_output_shapes(input_fn({"batch_size": 8}))
    assert shapes["input_ids"].as_list() == [8, 4]
    assert shapes["label_ids"].as_list() == [8]


@pytest.mark.parametrize("buffer, batch_size", [(100000, 5), (100000, 6), (6, 5)])
def test_a_training_has_every_example_once_per_epoch_in_a_new_order(numbered_file, monkeypatch, buffer, batch_size):
    monkeypatch.setattr(records, "SHUFFLE_BUFFER", buffer)
    seen = order(training_fn(numbered_file), 60, batch_size)
    epochs = [seen[start : start + 20] for start in (0, 20, 40)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(20))
        assert epoch != list(range(20))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for skip in (1, 20, 27):
        assert order(training_fn(numbered_file, skip=skip), 60 - skip) == seen[skip:], "a continued training"
    assert order(training_fn(numbered_file, seed=6), 60) != seen


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


def test_the_four_original_arguments_are_enough(numbered_file):
    for input_fn in (
        file_based_input_fn_builder(input_file=numbered_file, seq_length=4, is_training=True, drop_remainder=True),
        input_fn_builder(features=numbered(20), seq_length=4, is_training=True, drop_remainder=True),
    ):
        assert sorted(order(input_fn, 20, batch_size=4)) == list(range(20))


class Interrupted(BaseException):
    """Like KeyboardInterrupt: not an ordinary exception."""


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_a_failed_write_leaves_nothing_but_an_earlier_file(tmp_path, error):
    """See `test_files.py` for all ways in which a write may fail."""

    def failing():
        yield from numbered(3)
        raise error("half way")

    path = str(tmp_path / "train.tf_record")
    with pytest.raises(error, match="half way"):
        write(failing(), path)
    assert os.listdir(str(tmp_path)) == []
    assert write(numbered(5), path) == 5
    with pytest.raises(error, match="half way"):
        write(failing(), path)
    assert os.listdir(str(tmp_path)) == ["train.tf_record"]
    assert len(list(tf.python_io.tf_record_iterator(path))) == 5
