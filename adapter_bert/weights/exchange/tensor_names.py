"""Names, shapes and activations of BERT and its adapters here, in Hugging Face's BERT and in AdapterHub."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

import modeling
from adapter_bert.model import parameters
from adapter_bert.weights import bases
from adapter_layers import AdapterConfig

# (theirs, ours). Hugging Face's "gelu" is the exact one, Google's "gelu" the tanh approximation. If two of their names
# correspond to one of ours, exports use the first.
ACTIVATIONS = (
    ("gelu", "gelu_erf"),
    ("gelu_new", "gelu"),
    ("gelu_pytorch_tanh", "gelu"),
    ("relu", "relu"),
    ("swish", "swish"),
    ("silu", "swish"),
    ("tanh", "tanh"),
)
_SUFFIXES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
_OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_SUBLAYERS = {"attention": "attention/output", "feedforward": "output"}


class TensorRow(NamedTuple):
    """The names and shape of one tensor in both libraries."""

    hf: str  # without the prefix `bert.`
    google: str
    shape: Tuple[int, ...]  # in Google's layout
    transposed: bool = False

    @property
    def hf_shape(self) -> Tuple[int, ...]:
        """Shape in Hugging Face's layout; adapter biases are [1, n] here and [n] there."""
        if self.transposed:
            return self.shape[::-1]
        return self.shape[1:] if "/adapters/biases" in self.google else self.shape

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        """Convert a value from Google's layout."""
        return np.ascontiguousarray((value.T if self.transposed else value).reshape(self.hf_shape))

    def to_google(self, value: np.ndarray) -> np.ndarray:
        """Convert a value to Google's layout."""
        return np.ascontiguousarray((value.T if self.transposed else value).reshape(self.shape))


def our_to_their_activations(pairs: Tuple[Tuple[str, str], ...] = ACTIVATIONS) -> Dict[str, str]:
    """Return the name that exports use for each of our activations."""
    return {ours: theirs for theirs, ours in reversed(pairs)}


def bert_rows(config: modeling.BertConfig) -> List[TensorRow]:
    """Return every tensor of a BERT in the order of the network; the two of the pooler come last."""
    rows = []
    for google, shape in bases.bert_shapes(config).items():
        scope, _, suffix = _hf_scope(google).rpartition(".")
        name = f"{scope}.{_SUFFIXES[suffix]}" if suffix in _SUFFIXES else f"{scope}.{suffix}.weight"
        rows.append(TensorRow(name, google, shape, transposed=suffix == "kernel"))
    return rows


def norm_rows(config: modeling.BertConfig) -> List[TensorRow]:
    """Return the tensors of all LayerNorms."""
    return [row for row in bert_rows(config) if parameters.group_of(row.google) == "LayerNorm"]


def adapter_rows(config: modeling.BertConfig, adapter: AdapterConfig, name: str) -> List[TensorRow]:
    """Return the tensors of the adapters; `name` is the name of the adapter in AdapterHub."""
    hidden, size, rows = config.hidden_size, adapter.size, []
    for layer in range(config.num_hidden_layers):
        for placement, scope in _SUBLAYERS.items():
            if adapter.covers(layer, placement):
                google = f"bert/encoder/layer_{layer}/{scope}/adapters"
                hf = f"{_hf_scope(google)}.{name}"
                rows += [
                    TensorRow(f"{hf}.adapter_down.0.weight", f"{google}/weights1", (hidden, size), transposed=True),
                    TensorRow(f"{hf}.adapter_down.0.bias", f"{google}/biases1", (1, size)),
                    TensorRow(f"{hf}.adapter_up.weight", f"{google}/weights2", (size, hidden), transposed=True),
                    TensorRow(f"{hf}.adapter_up.bias", f"{google}/biases2", (1, hidden)),
                ]
    return rows


def head_rows(prefix: str, units: int, config: modeling.BertConfig, scope: str = "") -> List[TensorRow]:
    """Return the tensors of a head: the linear layer `prefix` there, variables in `scope` here."""
    return [
        TensorRow(f"{prefix}.weight", f"{scope}output_weights", (units, config.hidden_size)),
        TensorRow(f"{prefix}.bias", f"{scope}output_bias", (units,)),
    ]


def canonical_name(name: str) -> str:
    """Return a stored name as `TensorRow.hf` spells it: without `bert.`, and with new names of LayerNorm tensors."""
    name = name[len("bert.") :] if name.startswith("bert.") else name
    for old, new in _OLD_SUFFIXES.items():
        if name.endswith(old):
            return name[: -len(old)] + new
    return name


def _hf_scope(google: str) -> str:
    return google[len("bert/") :].replace("/layer_", "/layer/").replace("/", ".")
