"""A batch in two halves, each by half of the cores.

A product of a few hundred rows is too small to be divided among cores: they wait for each other longer than it takes.
Two networks of half the rows have nothing to wait for but the sum of their gradients. Always two, so that the same seed
drops the same values on every machine.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model.heads import HeadOutput

Features = Dict[str, tf.Tensor]


def run_in_two(build: Callable[[Features], HeadOutput], features: Features) -> HeadOutput:
    """What `build` returns for a batch, from one network for each half of its examples.

    Args:
      build: adds a network with its head to the graph.
      features: the batch, [B, …] each, one example or more; B may be known only when the graph runs.
    """
    size = modeling.get_shape_list(features["input_ids"])[0]
    if isinstance(size, int) and size < 2:
        return build(features)
    middle = size // 2
    # The only example of a batch is in both halves then: a network cannot be run for none.
    end = middle if isinstance(size, int) else tf.maximum(middle, 1)
    with modeling.dropout_stream(0):
        first = build({name: values[:end] for name, values in features.items()})
    with modeling.dropout_stream(1), tf.variable_scope(tf.get_variable_scope(), reuse=True):
        second = build({name: values[middle:] for name, values in features.items()})
    joined = {}
    for field in dataclasses.fields(HeadOutput):
        one, other = getattr(first, field.name), getattr(second, field.name)
        joined[field.name] = None if one is None else tf.concat([one[:middle], other], axis=0)
    return HeadOutput(**joined)
