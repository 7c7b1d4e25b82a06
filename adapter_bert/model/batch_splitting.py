"""Split each batch in two and compute both halves in parallel.

A matrix product of a few hundred rows is too small to be divided among cores: synchronisation takes longer than the
product. Two networks with half the rows each synchronise only when their gradients are added. There are always two, so
that a seed gives the same dropout masks on every machine.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model.dropout import dropout_stream
from adapter_bert.model.heads import Features, HeadOutput


def run_in_two(build: Callable[[Features], HeadOutput], features: Features) -> HeadOutput:
    """Build a network with its head for both halves of a batch and concatenate the outputs.

    The features are [B, …] each; B may be dynamic and is at least 1.
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
