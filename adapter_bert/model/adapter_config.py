"""Adapter configuration, re-exported by `adapter_layers`. Imports no TensorFlow, so that flags are checked quickly."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Optional, Tuple

from adapter_bert.common import errors

PAPER_SIZE = 64
# The paper uses a standard deviation of 1e-2; Google's released code uses 1e-3.
PAPER_INIT_SCALE = 1e-2

# More than any real network has. Shapes within this limit can be computed and compared.
MAX_SIZE = 2**24

# More hidden layers than any adapter needs.
MAX_DEPTH = 16

PLACEMENTS = ("both", "attention", "feedforward")
# `serial` reads the output of the sub-layer. `parallel` and `multiply` read its input and change its output.
CONNECTIONS = ("serial", "parallel", "multiply")
# Kind of normalization -> its variables in the scope of an adapter.
NORMS: Dict[str, Tuple[str, ...]] = {
    "none": (),
    "layer": ("LayerNorm/beta", "LayerNorm/gamma"),
    "batch": ("BatchNorm/beta", "BatchNorm/gamma", "BatchNorm/moving_mean", "BatchNorm/moving_variance"),
}
# Fields of the variants in section 3.6 of the paper, and later fields, with the values that the paper recommends. Packs
# and run settings that lack these fields default to these values.
VARIANT_DEFAULTS: Dict[str, Any] = {"norm": "none", "depth": 1, "connection": "serial", "freeze_below": False}
# The keys of `adapter_layers.ACTIVATIONS`.
ACTIVATION_NAMES = ("gelu", "gelu_erf", "linear", "relu", "swish", "tanh")


def check_activation(name: Any) -> None:
    """Raise `errors.UserError` if the name is unknown. Case is ignored; empty and None mean no activation."""
    if not isinstance(name, (str, type(None))) or (name and name.lower() not in ACTIVATION_NAMES):
        raise errors.unknown("activation", name, ACTIVATION_NAMES)


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """The adapters of a network, validated on construction."""

    size: int = PAPER_SIZE  # of the bottleneck (m in the paper)
    activation: str = "gelu"  # one of `ACTIVATION_NAMES`
    init_scale: float = PAPER_INIT_SCALE  # standard deviation of the initial weights
    layers: Optional[Tuple[int, ...]] = None  # indices of the encoder layers with adapters, from 0; None for all
    placement: str = "both"  # sub-layers with an adapter: one of `PLACEMENTS`
    norm: str = "none"  # normalization of the adapter's input: one of `NORMS`
    depth: int = 1  # number of hidden layers of width `size`
    connection: str = "serial"  # how the adapter is connected to its sub-layer: one of `CONNECTIONS`
    freeze_below: bool = False  # whether LayerNorms below the lowest layer with adapters are frozen

    def __post_init__(self) -> None:
        errors.check_int("The adapter size", self.size, maximum=MAX_SIZE)
        if not isinstance(self.init_scale, (int, float)) or not 0 <= self.init_scale < math.inf:
            raise errors.UserError(
                f"The adapter init scale must be a finite number of at least 0, found {self.init_scale!r}."
            )
        check_activation(self.activation)
        object.__setattr__(self, "activation", "" if self.activation is None else self.activation.lower())
        errors.check_int("The adapter depth", self.depth, maximum=MAX_DEPTH)
        for name, choices in (("placement", PLACEMENTS), ("norm", tuple(NORMS)), ("connection", CONNECTIONS)):
            if getattr(self, name) not in choices:
                raise errors.unknown(f"adapter {name}", getattr(self, name), choices)
        if self.layers is not None:
            layers = tuple(self.layers) if isinstance(self.layers, (list, tuple, range)) else (self.layers,)
            whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers)
            if not layers or not whole or min(layers) < 0 or len(set(layers)) != len(layers):
                raise errors.UserError(
                    f"The adapter layers must be one or more distinct indices of at least 0, found {list(layers)}."
                )
            object.__setattr__(self, "layers", tuple(sorted(layers)))
        if not isinstance(self.freeze_below, bool):
            raise errors.UserError(f"The adapter freeze_below must be true or false, found {self.freeze_below!r}.")
        if self.freeze_below and not self.frozen_layers:
            raise errors.UserError(
                "The adapter freeze_below needs adapter layers above layer 0, e.g. 6-11; found "
                f"{'all' if self.layers is None else list(self.layers)}."
            )

    def check_fits(self, num_hidden_layers: int) -> None:
        """Raise `errors.UserError` if `layers` names a layer that a network of this depth does not have."""
        if self.layers is not None and self.layers[-1] >= num_hidden_layers:
            raise errors.UserError(
                f"The adapter layers include {self.layers[-1]}, but the network has {num_hidden_layers} layers "
                f"(0 to {num_hidden_layers - 1})."
            )

    @property
    def frozen_layers(self) -> int:
        """The number of lowest layers without trained LayerNorms."""
        return self.layers[0] if self.freeze_below and self.layers else 0

    @property
    def variant(self) -> Dict[str, Any]:
        """The fields that differ from `VARIANT_DEFAULTS`; empty for the adapter that the paper recommends."""
        values = {name: getattr(self, name) for name in VARIANT_DEFAULTS}
        return {name: value for name, value in values.items() if value != VARIANT_DEFAULTS[name]}

    def shapes(self, width: int) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables in the scope of one adapter, for states of this width."""
        shapes: Dict[str, Tuple[int, ...]] = dict.fromkeys(NORMS[self.norm], (width,))
        sizes = [width, *[self.size] * self.depth, width]
        for number in range(1, len(sizes)):
            shapes[f"weights{number}"] = (sizes[number - 1], sizes[number])
            shapes[f"biases{number}"] = (1, sizes[number])
        return shapes

    def covers(self, layer: int, sublayer: str) -> bool:
        """Return whether this sub-layer of this layer has an adapter."""
        in_layer = self.layers is None or layer in self.layers
        return in_layer and self.placement in ("both", sublayer)
