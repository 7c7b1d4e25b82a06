"""A batch in two halves or in parts has the outputs and gradients of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.model import batch_splitting
from adapter_bert.model.dropout import dropout, dropout_stream
from adapter_bert.model.heads import ClassificationHead, HeadOutput, RegressionHead, SpanHead
from tests.tiny_networks import assert_same, loss_and_gradients, random_batch

pytestmark = pytest.mark.smoke

BATCH = random_batch(12)
WEIGHTED = ClassificationHead(3, (0.5, 1.0, 4.0))


@pytest.mark.parametrize(
    "head, size, static, mode",
    [
        (WEIGHTED, 1, True, "adapter"),
        (WEIGHTED, 1, False, "adapter"),
        (WEIGHTED, 2, True, "adapter"),
        (WEIGHTED, 7, False, "adapter"),
        (RegressionHead(), 7, True, "adapter"),
        (SpanHead(), 1, False, "adapter"),
        (SpanHead(), 7, True, "adapter"),
        (WEIGHTED, 6, True, "full"),
    ],
)
def test_halves_give_the_results_of_the_whole_batch(head, size, static, mode):
    batch = random_batch(size)
    whole = loss_and_gradients(batch, head, mode)
    halves = loss_and_gradients(batch, head, mode, in_two=True, static=static)
    assert set(whole) == set(halves)
    assert ("bert/embeddings/word_embeddings" in whole) == (mode == "full")
    assert_same(halves, whole)


@pytest.mark.parametrize("streams", [[0], [1, 0], ["loop", 0]])
def test_halves_drop_different_values(streams):
    """In the network and before the head; also in each part of a batch."""
    built: list = []

    def build(features: dict) -> HeadOutput:
        with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
            in_network = dropout(tf.ones([len(built) + 1, 1000]), 0.5)
        built.append(tf.concat([in_network[:1], dropout(tf.ones([1, 1000]), 0.5)], axis=0))
        return HeadOutput(None, None, features["input_ids"])

    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        for stream in streams:
            with dropout_stream(tf.constant(5) if stream == "loop" else stream):
                batch_splitting.run_in_two(build, {"input_ids": tf.zeros([4, 5], tf.int32)})
        rows = np.concatenate(session.run(built))
    assert len(rows) == 4 * len(streams)
    for index, row in enumerate(rows):
        for other in rows[:index]:
            assert 0.4 < (row != other).mean() < 0.6


@pytest.mark.parametrize(
    "mode, parts, changes",
    [
        ("adapter", 2, {}),
        ("adapter", 12, {}),
        ("full", 2, {}),
        ("adapter", 3, {"static": False, "gradient_checkpointing": True}),
    ],
)
def test_parts_have_the_gradient_of_the_whole_batch(mode, parts, changes):
    whole = loss_and_gradients(BATCH, mode=mode)
    in_parts = loss_and_gradients(BATCH, mode=mode, parts=parts, **changes)
    assert set(whole) == set(in_parts) | {"losses", "logits"}
    assert_same(in_parts, whole)
