"""A batch in parts has the gradient of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.model.dropout import dropout, dropout_stream
from tests.tiny_networks import assert_same, loss_and_gradients, random_batch

pytestmark = pytest.mark.smoke

BATCH = random_batch(12)


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


def test_the_same_seed_drops_the_same_values_in_every_part():
    first, second = (loss_and_gradients(BATCH, parts=3, dropout=0.3) for _ in range(2))
    assert "output_weights" in first
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_parts_drop_different_values():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        dropped = []
        for part in (0, 1, tf.constant(1)):
            with dropout_stream(part):
                dropped.append(session.run(dropout(tf.ones([1000]), 0.5)))
    assert (dropped[0] != dropped[1]).mean() > 0.3
    np.testing.assert_array_equal(dropped[1], dropped[2])
