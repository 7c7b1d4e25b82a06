"""Loss scaling for training in float16, in which small gradients would become zero and large ones infinite."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.model.precision import FLOAT16

# All factors are powers of two, so that scaling and its inverse do not round.
INITIAL, LOWEST, HIGHEST = 2.0**15, 1.0, 2.0**24
# Steps without an infinite gradient after which the factor is doubled.
GROWTH_STEPS = 2000
# Variables: the factor, and the number of such steps so far.
NAMES = ("loss_scale/factor", "loss_scale/steps")


def state_shapes(precision: str) -> Dict[str, Tuple[int, ...]]:
    """Return name -> shape of the variables that training in this precision needs."""
    return dict.fromkeys(NAMES, ()) if precision == FLOAT16 else {}


class LossScale:
    """A factor of the loss: halved if the gradient is infinite or NaN, doubled after `GROWTH_STEPS` other steps.

    Attributes:
      factor: the factor in this step, a float32 scalar.
    """

    def __init__(self) -> None:
        """Create the variables in the default graph."""
        initial = (tf.constant_initializer(INITIAL), tf.zeros_initializer())
        self._variables = [
            tf.get_variable(name, [], dtype, initializer, trainable=False, use_resource=True)
            for name, dtype, initializer in zip(NAMES, (tf.float32, tf.int32), initial)
        ]
        self.factor = tf.convert_to_tensor(self._variables[0])

    def unscaled(self, grads: Sequence[Optional[tf.Tensor]]) -> Tuple[List[Optional[tf.Tensor]], tf.Tensor]:
        """Return the gradients divided by the factor, and whether all are finite. If not, they are zeros.

        With the lowest factor, they are not replaced by zeros: the loss itself has diverged.
        """
        exact = [None if grad is None else tf.convert_to_tensor(grad) / self.factor for grad in grads]
        is_finite = tf.math.is_finite(tf.global_norm(exact))
        kept = tf.cast(is_finite | (self.factor <= LOWEST), tf.float32)
        return [None if grad is None else tf.math.multiply_no_nan(grad, kept) for grad in exact], is_finite

    def update(self, is_finite: tf.Tensor) -> List[tf.Operation]:
        """Return the operations that update the variables, given whether the gradient of this step is finite."""
        factor, steps = self._variables
        count = tf.where(is_finite, tf.convert_to_tensor(steps) + 1, 0)
        grows = count >= GROWTH_STEPS
        changed = tf.where(is_finite, tf.where(grows, 2.0 * self.factor, self.factor), 0.5 * self.factor)
        changed = tf.clip_by_value(changed, LOWEST, HIGHEST)
        return [factor.assign(changed).op, steps.assign(tf.where(grows, 0, count)).op]
