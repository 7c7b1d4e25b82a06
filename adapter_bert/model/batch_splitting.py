"""Compute a batch in two halves, in parallel, to save time; or in parts, one after another, to save memory."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, List, Optional, Tuple, Union

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model import batch_norm
from adapter_bert.model.dropout import dropout_stream
from adapter_bert.model.heads import Features, HeadOutput


def run_in_two(build: Callable[[Features], HeadOutput], features: Features) -> HeadOutput:
    """Build a network with its head for both halves of a batch and concatenate the outputs.

    A matrix product of a few hundred rows is too small to be divided among cores: synchronization takes longer than the
    product. Two networks with half the rows each synchronize only when their gradients are added. There are always two,
    so that a seed gives the same dropout masks on every machine. The features are [B, …] each; B may be dynamic and is
    at least 1.
    """
    size = modeling.get_shape_list(features["input_ids"])[0]
    if isinstance(size, int) and size < 2:
        return build(features)
    middle = size // 2
    # A single example goes into both halves: a network cannot run on an empty batch.
    end = middle if isinstance(size, int) else tf.maximum(middle, 1)
    with dropout_stream(0):
        first = build({name: values[:end] for name, values in features.items()})
    with dropout_stream(1), tf.variable_scope(tf.get_variable_scope(), reuse=True):
        second = build({name: values[middle:] for name, values in features.items()})
    joined = {}
    for field in dataclasses.fields(HeadOutput):
        one, other = getattr(first, field.name), getattr(second, field.name)
        joined[field.name] = None if one is None else tf.concat([one[:middle], other], axis=0)
    return HeadOutput(**joined)


def _split(features: Features, parts: int) -> Dict[str, tf.Tensor]:
    """Reshape every feature from [B, ...] to [parts, B / parts, ...]."""
    split = {}
    for name, values in features.items():
        size, *rest = values.shape.as_list()
        split[name] = tf.reshape(values, tf.concat([[parts, -1], tf.shape(values)[1:]], axis=0))
        split[name].set_shape([parts, size and size // parts, *rest])
    return split


def _with_updates(loss_of: Callable[[Features], tf.Tensor], features: Features) -> tf.Tensor:
    """Return a loss whose computation also updates the statistics of batch normalization."""
    earlier = len(tf.get_collection(batch_norm.UPDATES))
    loss = loss_of(features)
    updates = tf.get_collection(batch_norm.UPDATES)[earlier:]
    if not updates:
        return loss
    with tf.control_dependencies(updates):
        return tf.identity(loss)


def accumulate(
    loss_of: Callable[[Features], tf.Tensor],
    features: Features,
    parts: int,
    get_variables: Callable[[], List[tf.Variable]],
    factor: Optional[tf.Tensor] = None,
) -> Tuple[tf.Tensor, List[Optional[tf.Tensor]], List[tf.Variable]]:
    """Compute the gradient of a batch's mean loss, one part at a time.

    The first part creates the variables; a loop computes the others. Each part has its own dropout masks.

    Args:
      loss_of: builds the network for a part and returns the mean loss of its examples.
      features: the batch; its size must be a multiple of `parts`.
      parts: number of parts, at least 1.
      get_variables: returns the trainable variables once the network exists.
      factor: scalar by which the gradients, but not the loss, are multiplied.

    Return the loss, a gradient for each variable (None if the loss does not depend on it), and the variables. Computing
    the loss also updates the statistics of batch normalization, one part after another.
    """
    if parts == 1:
        loss, variables = _with_updates(loss_of, features), get_variables()
        return loss, tf.gradients(loss, variables, factor), variables
    split = _split(features, parts)

    def part_loss(part: Union[int, tf.Tensor]) -> tf.Tensor:
        with dropout_stream(part):
            return _with_updates(loss_of, {name: values[part] for name, values in split.items()})

    first = part_loss(0)
    variables = get_variables()
    first_grads = tf.gradients(first, variables, factor)
    used = [variable for variable, grad in zip(variables, first_grads) if grad is not None]

    def add(part: tf.Tensor, *sums: tf.Tensor) -> List[tf.Tensor]:
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            loss = part_loss(part)
        values = [loss, *tf.gradients(loss, used, factor)]
        return [part + 1] + [total + tf.convert_to_tensor(value) for total, value in zip(sums, values)]

    start = [tf.convert_to_tensor(grad) for grad in first_grads if grad is not None]
    with tf.control_dependencies(tf.get_collection(batch_norm.UPDATES)):
        second = tf.constant(1)
    loop = [second, first, *start]
    # back_prop=False: intermediate results of a part are not kept.
    loop = tf.while_loop(lambda part, *sums: part < parts, add, loop, parallel_iterations=1, back_prop=False)
    loss, *sums = [total / parts for total in loop[1:]]
    by_name = {variable.name: grad for variable, grad in zip(used, sums)}
    return loss, [by_name.get(variable.name) for variable in variables], variables
