"""What a model is made of: its variables, counted and shown before training starts."""

from __future__ import annotations

import collections
from typing import Collection, List, Mapping, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization

# The first that matches is a variable's group.
GROUPS = (
    ("adapters", optimization.ADAPTER),
    ("LayerNorm", optimization.LAYER_NORM),
    ("head", optimization.HEAD),
    ("embeddings", optimization.EMBEDDINGS),
    ("encoder", optimization.ENCODER_LAYER),
    ("pooler", optimization.POOLER),
)
ORDER = ("embeddings", "encoder", "adapters", "LayerNorm", "pooler", "head", "other")

Shapes = Mapping[str, Tuple[int, ...]]


def model_shapes(config: modeling.BertConfig, head, adapter_fn: adapter_layers.AdapterFn) -> Shapes:
    """Name -> shape of every variable of a model, in the order of the graph.

    The graph is built but never run: no weight takes up memory.
    """
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int32, [1, 1])
        model = modeling.BertModel(config, is_training=False, input_ids=ids, scope="bert", adapter_fn=adapter_fn)
        head.build(model, {name: tf.zeros([1], tf.int32) for name in head.label_types}, is_training=False)
        return collections.OrderedDict(
            (optimization.variable_name(variable), tuple(variable.shape.as_list()))
            for variable in tf.trainable_variables()
        )


def count(shapes: Shapes, names: Collection[str] = None) -> int:
    """Parameters in these variables; in all of them by default."""
    return int(sum(np.prod(shapes[name], dtype=np.int64) for name in (shapes if names is None else names)))


def group_of(name: str) -> str:
    """The part of the model that a variable belongs to."""
    return next((group for group, pattern in GROUPS if pattern.search(name)), "other")


def parameter_table(shapes: Shapes, trained: Collection[str]) -> List[str]:
    """The lines of a table: group, tensors, parameters, trained or frozen, per cent; then the two totals.

    A group that is trained in part has two rows.
    """
    trained = set(trained)
    members = collections.defaultdict(list)
    for name in shapes:
        members[group_of(name), name in trained].append(name)
    total = count(shapes)
    lines = ["{:<12}{:>8}{:>14}  {:<8}{:>8}".format("group", "tensors", "parameters", "", "per cent")]
    for group in ORDER:
        for is_trained in (True, False):
            names = members.get((group, is_trained))
            if names:
                parameters = count(shapes, names)
                lines.append(
                    "{:<12}{:>8}{:>14,}  {:<8}{:>8.3f}".format(
                        group,
                        len(names),
                        parameters,
                        "trained" if is_trained else "frozen",
                        100.0 * parameters / total,
                    )
                )
    lines.append(f"***** Total Parameters = {total} *****")
    lines.append(f"***** Total Trainable Parameters = {count(shapes, trained)} *****")
    return lines
