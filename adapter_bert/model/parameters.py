"""The variables of a model: shapes, groups and counts, without a session."""

from __future__ import annotations

import collections
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tabulate
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.common import errors
from adapter_bert.model import tuning_modes

# A variable belongs to the first group that matches.
GROUPS = {
    "adapters": tuning_modes.ADAPTER,
    "LayerNorm": tuning_modes.LAYER_NORM,
    "head": tuning_modes.HEAD,
    "embeddings": tuning_modes.EMBEDDINGS,
    "encoder": tuning_modes.ENCODER_LAYER,
    "pooler": tuning_modes.POOLER,
}
ORDER = ("embeddings", "encoder", "adapters", "LayerNorm", "pooler", "head", "other")

Shapes = Mapping[str, Tuple[int, ...]]


def bert_shapes(config: modeling.BertConfig, adapter: Optional[adapter_layers.AdapterConfig] = None) -> Shapes:
    """Return name -> shape of every variable of BERT itself, and of its adapters, in the order of the graph."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: Dict[str, Tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (config.vocab_size, hidden),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
        "bert/embeddings/position_embeddings": (config.max_position_embeddings, hidden),
    }

    def add_layer_norm(scope: str) -> None:
        shapes[f"{scope}/LayerNorm/beta"] = shapes[f"{scope}/LayerNorm/gamma"] = (hidden,)

    def add_dense(scope: str, inputs: int = hidden, outputs: int = hidden) -> None:
        shapes[f"{scope}/kernel"], shapes[f"{scope}/bias"] = (inputs, outputs), (outputs,)

    def add_output(scope: str, inputs: int, layer: int, sublayer: str) -> None:
        add_dense(f"{scope}/dense", inputs)
        if adapter and adapter.covers(layer, sublayer):
            shapes.update({f"{scope}/adapters/{name}": shape for name, shape in adapter.shapes(hidden).items()})
        add_layer_norm(scope)

    add_layer_norm("bert/embeddings")
    for layer in range(config.num_hidden_layers):
        scope = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            add_dense(f"{scope}/attention/self/{part}")
        add_output(f"{scope}/attention/output", hidden, layer, "attention")
        add_dense(f"{scope}/intermediate/dense", hidden, inner)
        add_output(f"{scope}/output", inner, layer, "feedforward")
    add_dense("bert/pooler/dense")
    return shapes


def model_shapes(config: modeling.BertConfig, head: Any, adapter_fn: adapter_layers.AdapterFn) -> Shapes:
    """Return name -> shape of every variable of a model, in the order of the graph.

    Only if `adapter_fn` is a function, whose variables are unknown, the graph is built; it takes 0.2 s per layer.
    """
    config.check()
    adapter: Any = adapter_layers.AdapterConfig() if adapter_fn == "feedforward_adapter" else adapter_fn
    if adapter is not None and not isinstance(adapter, adapter_layers.AdapterConfig):
        return _graph_shapes(config, head, adapter)
    if adapter:
        adapter.check_fits(config.num_hidden_layers)
    return {**bert_shapes(config, adapter), **head.shapes(config.hidden_size)}


def _graph_shapes(config: modeling.BertConfig, head: Any, adapter_fn: adapter_layers.AdapterFn) -> Shapes:
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int32, [1, 1])
        model = modeling.BertModel(config, is_training=False, input_ids=ids, scope="bert", adapter_fn=adapter_fn)
        head.build(model, {name: tf.zeros([1], tf.int32) for name in head.label_types}, is_training=False)
        return {
            optimization.variable_name(variable): tuple(variable.shape.as_list())
            for variable in tf.trainable_variables()
        }


def count(shapes: Shapes, names: Optional[Collection[str]] = None) -> int:
    """Return the number of parameters in these variables, by default in all of them."""
    return int(sum(np.prod(shapes[name], dtype=np.int64) for name in (shapes if names is None else names)))


def group_of(name: str) -> str:
    """Return the group of a variable."""
    return next((group for group, pattern in GROUPS.items() if pattern.search(name)), "other")


def parameter_table(shapes: Shapes, trained: Collection[str]) -> List[str]:
    """Return the lines of a table of groups (tensors, parameters, trained or frozen, percentage) and the two totals.

    A partly trained group has two rows.
    """
    total, trained_names = count(shapes), set(trained)
    members = collections.defaultdict(list)
    for name in shapes:
        members[group_of(name), name in trained_names].append(name)
    rows = []
    for group in ORDER:
        for is_trained in (True, False):
            names = members[group, is_trained]
            if names:
                parameters, state = count(shapes, names), "trained" if is_trained else "frozen"
                rows.append([group, len(names), f"{parameters:,}", state, f"{100.0 * parameters / total:.3f}"])
    headers = ["group", "tensors", "parameters", "", "per cent"]
    align = ("left", "right", "right", "left", "right")
    table = tabulate.tabulate(rows, headers, "plain", colalign=align, disable_numparse=True)
    totals = {"Total Parameters": total, "Total Trainable Parameters": count(shapes, trained)}
    return table.split("\n") + [f"***** {title} = {number} *****" for title, number in totals.items()]


def describe_mismatch(expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]]) -> Optional[str]:
    """Describe in one sentence why variables do not match; return None if they do.

    Both arguments are name -> shape; variables in `found` that are not in `expected` are ignored.
    """
    missing = [name for name in expected if name not in found]
    misshapen = [
        f"{name} is {list(found[name])} where the model has {list(shape)}"
        for name, shape in expected.items()
        if name in found and list(found[name]) != list(shape)
    ]
    problems = [
        f"{len(items)} {problem} ({errors.first_names(items, 3)})"
        for items, problem in ((missing, "missing"), (misshapen, "of another shape"))
        if items
    ]
    if not problems:
        return None
    matching = len(expected) - len(missing) - len(misshapen)
    return f"{matching} of {len(expected)} variables match; {', '.join(problems)}."
