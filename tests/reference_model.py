"""The variables of a model, derived from the paper and Google's checkpoints independently of the code under test."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

Shapes = Dict[str, Tuple[int, ...]]
NORMS = {
    "layer": ["LayerNorm/beta", "LayerNorm/gamma"],
    "batch": ["BatchNorm/beta", "BatchNorm/gamma", "BatchNorm/moving_mean", "BatchNorm/moving_variance"],
}
MODES = ("adapter", "full", "top_layers", "layer_norm", "head")


def bert_shapes(architecture: Mapping[str, Any]) -> Shapes:
    """Return name -> shape of BERT's variables, as in Google's checkpoints."""
    d, inner = architecture["hidden_size"], architecture["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (architecture["vocab_size"], d),
        "bert/embeddings/token_type_embeddings": (architecture["type_vocab_size"], d),
        "bert/embeddings/position_embeddings": (architecture["max_position_embeddings"], d),
    }
    dense = {"bert/pooler/dense": (d, d)}
    norms = ["bert/embeddings"]
    for layer in (f"bert/encoder/layer_{number}" for number in range(architecture["num_hidden_layers"])):
        dense.update({f"{layer}/attention/self/{part}": (d, d) for part in ("query", "key", "value")})
        dense[f"{layer}/attention/output/dense"] = (d, d)
        dense[f"{layer}/intermediate/dense"] = (d, inner)
        dense[f"{layer}/output/dense"] = (inner, d)
        norms += [f"{layer}/attention/output", f"{layer}/output"]
    for name, shape in dense.items():
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = shape, shape[1:]
    for name in norms:
        shapes[f"{name}/LayerNorm/beta"] = shapes[f"{name}/LayerNorm/gamma"] = (d,)
    return shapes


def adapter_shapes(architecture: Mapping[str, Any], adapter: Mapping[str, Any]) -> Shapes:
    """Return name -> shape of the adapters; `adapter` has the fields of an `AdapterConfig`."""
    d, m = architecture["hidden_size"], adapter.get("size", 64)
    layers = adapter.get("layers")
    if layers is None:
        layers = range(architecture["num_hidden_layers"])
    places = {"attention": ["attention/output"], "feedforward": ["output"], "both": ["attention/output", "output"]}
    shapes = {"weights1": (d, m), "biases1": (1, m)}
    last = adapter.get("depth", 1) + 1
    for number in range(2, last):
        shapes.update({f"weights{number}": (m, m), f"biases{number}": (1, m)})
    shapes.update({f"weights{last}": (m, d), f"biases{last}": (1, d)})
    for norm, variables in NORMS.items():
        if norm == adapter.get("norm"):
            shapes.update(dict.fromkeys(variables, (d,)))
    return {
        f"bert/encoder/layer_{layer}/{place}/adapters/{name}": shape
        for layer in ([layers] if isinstance(layers, int) else layers)
        for place in places[adapter.get("placement", "both")]
        for name, shape in shapes.items()
    }


def head_shapes(architecture: Mapping[str, Any], head: str, labels: Sequence[str]) -> Shapes:
    units = {"classification": len(labels), "regression": 1, "span": 2}[head]
    scope = "cls/squad/" if head == "span" else ""
    return {f"{scope}output_weights": (units, architecture["hidden_size"]), f"{scope}output_bias": (units,)}


def trained_shapes(
    architecture: Mapping[str, Any],
    mode: str,
    head: Mapping[str, Tuple[int, ...]],
    adapter: Optional[Mapping[str, Any]] = None,
    top_layers: Optional[int] = None,
) -> Shapes:
    """Return name -> shape of the variables that a tuning mode trains."""
    bert, depth = bert_shapes(architecture), architecture["num_hidden_layers"]
    if mode == "head":
        return dict(head)
    if mode in ("layer_norm", "adapter"):
        norms = {name: shape for name, shape in bert.items() if "/LayerNorm/" in name}
        return dict(norms, **head, **(adapter_shapes(architecture, adapter) if mode == "adapter" else {}))
    if mode == "full" or top_layers == depth:
        return dict(bert, **head)
    top = [f"bert/encoder/layer_{depth - 1 - number}/" for number in range(top_layers)] + ["bert/pooler/"]
    return dict({name: shape for name, shape in bert.items() if name.startswith(tuple(top))}, **head)
