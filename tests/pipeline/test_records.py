"""TFRecord files and features in memory give the same batches, and a training sees every example once per epoch."""

from __future__ import annotations

import os
from unittest import mock

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


def order(input_fn, examples: int, batch_size: int = 1) -> list:
    """The numbers of the first examples of a training order."""
    assert examples % batch_size == 0
    found = run_batches(input_fn, batch_size, examples // batch_size)
    return [int(row[0]) for batch in found for row in batch["input_ids"]]


@pytest.fixture(scope="module")
def numbered_file(tmp_path_factory) -> str:
    """A file of twenty numbered examples."""
    path = str(tmp_path_factory.mktemp("records") / "numbered.tf_record")
    assert tfrecords.write_records((tfrecords.serialize(each.as_lists()) for each in numbered(20)), path) == 20
    return path


def training_fn(path: str, seed: int = 5, skip: int = 0):
    return file_based_input_fn_builder(path, 4, is_training=True, drop_remainder=True, seed=seed, skip_examples=skip)


def test_files_give_the_features_that_were_written(tokenizer, tmp_path):
    examples = [
        InputExample("a", "the cat sees it", None, "good"),
        InputExample("b", "she runs", "it runs", "bad"),
        PaddingInputExample(),
    ]
    path = str(tmp_path / "eval.tf_record")
    file_based_convert_examples_to_features(examples, LABELS, 8, tokenizer, path)
    features = convert_examples_to_features(examples, LABELS, 8, tokenizer)
    found = [tf.train.Example.FromString(record).features.feature for record in tf.python_io.tf_record_iterator(path)]
    lengths = dict(dict.fromkeys(NAMES, 8), label_ids=1, is_real_example=1)  # as Google's reader expects
    assert [{name: len(each[name].int64_list.value) for name in each} for each in found] == [lengths] * 3
    (batch,) = run_batches(file_based_input_fn_builder(path, 8, False, False), 3)
    assert set(batch) == set(NAMES)
    for name in NAMES:
        expected = [values[0] if len(values) == 1 else values for values in (f.as_lists()[name] for f in features)]
        real = slice(None) if name != "input_mask" else slice(2)  # a padding example has one token in the graph
        np.testing.assert_array_equal(batch[name][real], expected[real])
        assert batch[name].dtype == np.int32
    assert batch["is_real_example"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("drop_remainder, size, sizes", [(False, None, [8, 8, 4]), (True, 8, [8, 8])])
def test_evaluation_keeps_the_order_and_may_drop_a_short_last_batch(numbered_file, drop_remainder, size, sizes):
    """If it does, shapes are static. It never skips the examples of an earlier training."""
    input_fn = file_based_input_fn_builder(numbered_file, 4, False, drop_remainder, seed=1, skip_examples=7)
    found = run_batches(input_fn, 8)
    assert [len(batch["label_ids"]) for batch in found] == sizes
    assert [int(row[0]) for batch in found for row in batch["input_ids"]] == list(range(sum(sizes)))
    with tf.Graph().as_default():
        shapes = tf.data.get_output_shapes(input_fn({"batch_size": 8}))
    assert (shapes["input_ids"].as_list(), shapes["label_ids"].as_list()) == ([size, 4], [size])


@pytest.mark.parametrize("buffer, batch_size", [(100000, 5), (100000, 6), (6, 5)])
def test_training_uses_every_example_once_per_epoch_in_a_new_order(numbered_file, monkeypatch, buffer, batch_size):
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


def test_each_host_of_a_tpu_reads_its_share_of_every_epoch_and_resumes_in_it(numbered_file):
    def of_host(host: int, steps: int, skip: int = 0) -> list:
        context = mock.Mock(num_hosts=4, current_host=host)
        input_fn = training_fn(numbered_file, skip=skip)
        found = run_batches(lambda params: input_fn(dict(params, context=context)), 1, steps)
        return [int(batch["input_ids"][0][0]) for batch in found]

    epochs = [of_host(host, 10) for host in range(4)]
    for start in (0, 5):
        assert sorted(number for epoch in epochs for number in epoch[start : start + 5]) == list(range(20))
    # Three batches of one example on each host are twelve examples.
    assert of_host(2, 7, skip=12) == epochs[2][3:]


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
