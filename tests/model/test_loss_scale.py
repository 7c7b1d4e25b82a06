"""Training in float16: the loss is scaled, and steps whose gradient is not finite change no weights."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.devices import compat
from adapter_bert.model import loss_scale
from adapter_bert.model.loss_scale import LossScale
from tests.helpers import assert_mentions

pytestmark = pytest.mark.skipif(compat.tensorflow_version() < (2, 0), reason="float16 needs TensorFlow 2")


class Trained:
    """One trained weight, whose gradient each step sets."""

    def __init__(self, factor: float = loss_scale.INITIAL, steps: int = 0) -> None:
        """Start from a state of the scale."""
        with tf.Graph().as_default() as graph:
            self._gradient = tf.placeholder(tf.float32, [])
            weight = tf.get_variable("kernel", [3], initializer=tf.ones_initializer())
            self._scale = LossScale()
            gradients = tf.gradients(self._gradient * tf.reduce_sum(weight), [weight], self._scale.factor)
            self._step = optimization.train_step(gradients, [weight], 0.1, 100, 0, False, scale=self._scale)
            self._values = {optimization.variable_name(each): each for each in tf.global_variables()}
            self._session = tf.Session(graph=graph)
            self._session.run(tf.global_variables_initializer())
            self._session.run([self._values[name].assign(v) for name, v in zip(loss_scale.NAMES, (factor, steps))])

    def step(self, gradient: float) -> dict:
        """Run a step; return all variables."""
        self._session.run(self._step, {self._gradient: gradient})
        return self._session.run(self._values)


def weights_and_slots(values: dict) -> list:
    return [values[name] for name in ("kernel", "kernel/adam_m", "kernel/adam_v")]


def test_the_update_does_not_depend_on_the_factor():
    one, other = (Trained(factor).step(0.3) for factor in (1.0, 2.0**20))
    assert not np.array_equal(one["kernel"], np.ones(3))
    assert all(map(np.array_equal, weights_and_slots(one), weights_and_slots(other)))


@pytest.mark.parametrize("gradient", [float("inf"), float("nan")])
def test_a_step_without_a_finite_gradient_changes_only_the_step_and_halves_the_factor(gradient):
    trained = Trained(1024.0, steps=7)
    before, after = trained.step(0.3), trained.step(gradient)
    assert all(map(np.array_equal, weights_and_slots(before), weights_and_slots(after)))
    assert [after[name] for name in loss_scale.NAMES] == [512.0, 0] and before["loss_scale/steps"] == 8
    assert after["global_step"] == before["global_step"] + 1
    assert not np.array_equal(trained.step(0.3)["kernel"], after["kernel"])


def test_the_factor_grows_after_many_finite_steps_up_to_a_limit():
    last = loss_scale.GROWTH_STEPS - 1
    assert [Trained(8.0, last).step(1.0)[name] for name in loss_scale.NAMES] == [16.0, 0]
    assert [Trained(8.0, last - 1).step(1.0)[name] for name in loss_scale.NAMES] == [8.0, last]
    assert Trained(loss_scale.HIGHEST, last).step(1.0)["loss_scale/factor"] == loss_scale.HIGHEST


def test_with_the_lowest_factor_a_gradient_that_is_not_finite_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError) as found:
        Trained(loss_scale.LOWEST).step(float("inf"))
    assert_mentions(str(found.value), optimization.NOT_FINITE)
