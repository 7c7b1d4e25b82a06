"""Statistics for batch normalization: those of the batch in training, moving averages otherwise."""

from __future__ import annotations

from typing import Optional, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.model import fused_ops

# Graph collection of the operations that update moving averages. They are also in TensorFlow's `UPDATE_OPS`.
UPDATES = "batch_norm_updates"
# Low, because fine-tuning may take only a hundred steps: only 0.9^100 = 3e-5 of the initial values then remains.
DECAY = 0.9


def statistics(x: tf.Tensor, real_rows: Optional[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance, float [D] each, to normalize float [rows, D]. Create variables in the current scope.

    In training, pass `real_rows`, float [rows, 1]: 1 for real tokens, 0 for padding, which the statistics exclude. An
    operation in `UPDATES` then updates the moving averages. Without `real_rows`, return the moving averages.
    """
    shape, options = x.shape.as_list()[-1:], {"trainable": False, "collections": [tf.GraphKeys.GLOBAL_VARIABLES]}
    moving = (
        tf.get_variable("moving_mean", shape, initializer=tf.zeros_initializer(), **options),
        tf.get_variable("moving_variance", shape, initializer=tf.ones_initializer(), **options),
    )
    if real_rows is None:
        return tf.convert_to_tensor(moving[0]), tf.convert_to_tensor(moving[1])
    count = tf.maximum(tf.reduce_sum(real_rows), 1.0)

    def average(values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.matmul(real_rows, values, transpose_a=True), shape) / count

    mean = average(x)
    variance = average(tf.square(x - mean))

    def update() -> tf.Tensor:
        pairs = zip(moving, (mean, variance))
        updates = [tf.assign_sub(variable, (1.0 - DECAY) * (variable - value)) for variable, value in pairs]
        tf.add_to_collections([UPDATES, tf.GraphKeys.UPDATE_OPS], tf.group(*updates))
        return mean

    # Once per step, even if the gradient recomputes the layer.
    fused_ops.drawn_once(tf.get_variable_scope().name, update)
    return mean, variance
