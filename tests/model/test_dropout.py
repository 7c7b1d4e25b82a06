"""Dropout masks are a function of seed, step and place in the network."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model.dropout import dropout_stream, of_worker


def masks(seed=1, step=0, stream=0, count_steps=True, worker=0) -> list:
    """Return the outputs of two dropout layers for ones, in a first and a second run of the graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(seed)
        if count_steps:
            tf.train.create_global_step()
        ones = tf.ones([50, 40])
        outputs = []
        for place in ("layer_0", "layer_1"):
            number = tf.constant(1) if stream == "tensor" else stream
            with tf.variable_scope(place), of_worker(worker), dropout_stream(number):
                outputs.append(modeling.dropout(ones, 0.3))
        session.run(tf.global_variables_initializer())
        if count_steps:
            session.run(tf.train.get_global_step().assign(step))
        return session.run(outputs) + session.run(outputs)


def test_the_same_step_has_the_same_mask_in_another_process():
    first, second, again, _ = masks()
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, masks()[0])
    assert not np.array_equal(first, second), "another layer has another mask"


@pytest.mark.parametrize("changes", [{"step": 1}, {"seed": 2}, {"stream": 1}, {"worker": 1}])
def test_another_step_seed_part_of_a_batch_or_worker_has_an_independent_mask(changes):
    agreement = np.mean((masks()[0] == 0) == (masks(**changes)[0] == 0))
    assert agreement == pytest.approx(0.3**2 + 0.7**2, abs=0.05)


def test_the_number_of_a_part_may_be_a_tensor():
    np.testing.assert_array_equal(masks(stream=1)[0], masks(stream="tensor")[0])


def test_without_a_step_counter_every_run_has_a_different_mask():
    first, _, again, _ = masks(count_steps=False)
    assert not np.array_equal(first, again)
