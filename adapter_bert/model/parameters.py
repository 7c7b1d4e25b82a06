"""The variables of a model: shapes, groups and counts, without a session."""

from __future__ import annotations

import collections
import functools
import json
from typing import Any, Collection, DefaultDict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization

# A variable belongs to the first group that matches.
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


def model_shapes(config: modeling.BertConfig, head: Any, adapter_fn: adapter_layers.AdapterFn) -> Shapes:
    """Return name -> shape of every variable of a model, in the order of the graph.

    The graph is built but not run, so weights take no memory. Equal models share one graph.
    """
    return _model_shapes(config.to_json_string(), head, adapter_fn)


@functools.lru_cache(maxsize=32)
def _model_shapes(config_json: str, head: Any, adapter_fn: adapter_layers.AdapterFn) -> Shapes:
    config = modeling.BertConfig.from_dict(json.loads(config_json))
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int32, [1, 1])
        model = modeling.BertModel(config, is_training=False, input_ids=ids, scope="bert", adapter_fn=adapter_fn)
        head.build(model, {name: tf.zeros([1], tf.int32) for name in head.label_types}, is_training=False)
        return collections.OrderedDict(
            (optimization.variable_name(variable), tuple(variable.shape.as_list()))
            for variable in tf.trainable_variables()
        )


def count(shapes: Shapes, names: Optional[Collection[str]] = None) -> int:
    """Return the number of parameters in these variables, by default in all of them."""
    return int(sum(np.prod(shapes[name], dtype=np.int64) for name in (shapes if names is None else names)))


def group_of(name: str) -> str:
    """Return the group of a variable."""
    return next((group for group, pattern in GROUPS if pattern.search(name)), "other")


def parameter_table(shapes: Shapes, trained: Collection[str]) -> List[str]:
    """Return the lines of a table of groups (tensors, parameters, trained or frozen, percentage) and the two totals.

    A partly trained group has two rows.
    """
    trained = set(trained)
    members: DefaultDict[Tuple[str, bool], List[str]] = collections.defaultdict(list)
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


def describe_mismatch(
    expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]], named: int = 3
) -> Optional[str]:
    """Describe in one sentence why variables do not match; return None if they do.

    Args:
      expected: name -> shape of the required variables.
      found: name -> shape of the available variables; extra ones are ignored.
      named: maximum number of variables to list by name.
    """
    missing = [name for name in expected if name not in found]
    other = [name for name in expected if name in found and list(found[name]) != list(expected[name])]
    if not missing and not other:
        return None
    parts = []
    if missing:
        more = ", …" if len(missing) > named else ""
        parts.append("{} missing ({}{})".format(len(missing), ", ".join(missing[:named]), more))
    if other:
        shapes = [f"{name} is {list(found[name])} where the model has {list(expected[name])}" for name in other[:named]]
        parts.append(
            "{} of another shape ({}{})".format(len(other), "; ".join(shapes), "; …" if len(other) > named else "")
        )
    fitting = len(expected) - len(missing) - len(other)
    return "{} of {} variables match; {}.".format(fitting, len(expected), ", ".join(parts))
