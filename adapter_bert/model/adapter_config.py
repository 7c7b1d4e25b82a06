"""Which adapters a network carries: sizes and names, checked without TensorFlow, whose import takes seconds.

What they compute is in `adapter_layers`, which has all of these names too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Tuple

from adapter_bert.common import errors

PAPER_SIZE = 64
# The paper draws from a normal with stddev 1e-2; Google's released code uses 1e-3.
PAPER_INIT_SCALE = 1e-2

SUBLAYERS = ("attention", "feedforward")
PLACEMENTS = ("both",) + SUBLAYERS

# The keys of `adapter_layers.ACTIVATIONS`.
ACTIVATION_NAMES = ("gelu", "gelu_erf", "linear", "relu", "swish", "tanh")


def check_activation(name: Any) -> None:
    """Raises `errors.UserError` for a name, in any case, that no activation has; empty and None mean none."""
    if name and str(name).lower() not in ACTIVATION_NAMES:
        raise errors.unknown("activation", name, ACTIVATION_NAMES)


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Which adapters a network carries. Checked when it is made; cannot be changed afterwards.

    Attributes:
      size: units of the bottleneck (the paper's m).
      activation: one of `ACTIVATION_NAMES`.
      init_scale: standard deviation of the initial weights.
      layers: indices (from 0, the lowest) of the encoder layers with adapters; None for all.
      placement: the sub-layers they stand behind: `attention`, `feedforward` or `both`.
    """

    size: int = PAPER_SIZE
    activation: str = "gelu"
    init_scale: float = PAPER_INIT_SCALE
    layers: Optional[Tuple[int, ...]] = None
    placement: str = "both"

    def __post_init__(self) -> None:
        errors.check_int("The adapter size", self.size)
        if not isinstance(self.init_scale, (int, float)) or not 0 <= self.init_scale < math.inf:
            raise errors.UserError(
                f"The adapters' initial scale must be a finite number from 0 on, found {self.init_scale!r}."
            )
        check_activation(self.activation)
        object.__setattr__(self, "activation", self.activation.lower())
        if self.placement not in PLACEMENTS:
            raise errors.unknown("adapter placement", self.placement, PLACEMENTS)
        if self.layers is not None:
            layers = tuple(self.layers) if isinstance(self.layers, (list, tuple, range)) else (self.layers,)
            whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers)
            if not layers or not whole or min(layers) < 0 or len(set(layers)) != len(layers):
                raise errors.UserError(
                    f"The layers with adapters must be different indices from 0 on, at least one; found {list(layers)}."
                )
            object.__setattr__(self, "layers", tuple(sorted(layers)))

    def check_fits(self, num_hidden_layers: int) -> None:
        """Raises `errors.UserError` if a layer is named that a network of this depth does not have."""
        if self.layers is not None and self.layers[-1] >= num_hidden_layers:
            raise errors.UserError(
                f"Adapters were asked for in layer {self.layers[-1]}, but the network has {num_hidden_layers} layers "
                f"(0 to {num_hidden_layers - 1})."
            )

    def covers(self, layer: int, sublayer: str) -> bool:
        """Whether an adapter stands behind this sub-layer of this layer."""
        in_layer = self.layers is None or layer in self.layers
        return in_layer and self.placement in ("both", sublayer)

    def __call__(self, tensor: Any, layer: int, sublayer: str) -> Any:
        """The tensor behind its adapter, or the tensor itself where there is none."""
        if not self.covers(layer, sublayer):
            return tensor
        from adapter_layers import feedforward_adapter  # not before: it needs TensorFlow

        return feedforward_adapter(tensor, self.size, self.init_scale, self.activation)
