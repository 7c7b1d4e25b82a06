"""Which variables train: a pure function of their names and the tuning mode. Needs no TensorFlow.

`optimization` has all of these names too.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from adapter_bert.common import errors

# An optimizer's slot of an adapter (…/adapters/weights1/adam_m) is none itself.
ADAPTER = re.compile(r"(^|/)adapters/(?!.*/adam_[mv]$)")
LAYER_NORM = re.compile(r"(^|/)LayerNorm(_\d+)?/(beta|gamma)$")
# Whole names: frozen weights have "output" in theirs too, e.g. attention/output/dense/kernel.
HEAD = re.compile(r"(^|/)output_(weights|bias)$")
POOLER = re.compile(r"(^|/)pooler/")
EMBEDDINGS = re.compile(r"(^|/)embeddings/")
ENCODER_LAYER = re.compile(r"(^|/)encoder/layer_(\d+)/")

MODES = ("adapter", "full", "top_layers", "layer_norm", "head")


def check_mode(mode: str, top_layers: Optional[int] = None) -> None:
    """Raises `errors.UserError` for an unknown tuning mode, or a number of top layers that does not go with it."""
    if mode not in MODES:
        raise errors.unknown("tuning mode", mode, MODES)
    if mode == "top_layers" and (top_layers is None or top_layers < 1):
        raise errors.UserError(
            f"The tuning mode 'top_layers' needs the number of layers to train, 1 or more; found {top_layers}."
        )
    if mode != "top_layers" and top_layers is not None:
        raise errors.UserError(
            f"A number of top layers ({top_layers}) goes with the tuning mode 'top_layers' only; found mode '{mode}'."
        )


def layer_index(name: str) -> Optional[int]:
    """The encoder layer that a variable belongs to, from 0; None if it is outside of the encoder."""
    match = ENCODER_LAYER.search(name)
    return int(match.group(2)) if match else None


def count_layers(names: Sequence[str]) -> int:
    """The number of encoder layers that these variable names speak of."""
    return 1 + max((layer_index(name) for name in names if layer_index(name) is not None), default=-1)


def trainable_names(
    names: Sequence[str], mode: str, num_layers: Optional[int] = None, top_layers: Optional[int] = None
) -> List[str]:
    """Filters variable names down to those that train, in their order.

    Args:
      names: the names of all variables of the model, without `:0`.
      mode: `adapter` (adapters, LayerNorms, head), `full` (everything), `top_layers` (the top n encoder layers,
        pooler, head; all layers means everything), `layer_norm` (LayerNorms, head) or `head`.
      num_layers: encoder layers of the model; counted in the names by default.
      top_layers: n, in mode `top_layers` only.

    Returns:
      The names to train.

    Raises:
      errors.UserError: more top layers than there are, or mode `adapter` without an adapter in the model.
    """
    check_mode(mode, top_layers)
    num_layers = count_layers(names) if num_layers is None else num_layers
    if mode == "adapter" and not any(ADAPTER.search(name) for name in names):
        raise errors.UserError(
            "The tuning mode is 'adapter', but the model has no adapters: build it with an adapter_fn, or choose "
            "another mode ({}).".format(", ".join(MODES[1:]))
        )
    if mode == "top_layers" and top_layers > num_layers:
        raise errors.UserError(f"The top {top_layers} layers were to be trained, but the model has {num_layers}.")
    if mode == "full" or (mode == "top_layers" and top_layers == num_layers):
        return list(names)
    if mode == "top_layers":
        lowest = num_layers - top_layers
        return [
            name
            for name in names
            if (layer_index(name) is not None and layer_index(name) >= lowest)
            or POOLER.search(name)
            or HEAD.search(name)
        ]
    patterns = {"adapter": (ADAPTER, LAYER_NORM, HEAD), "layer_norm": (LAYER_NORM, HEAD), "head": (HEAD,)}[mode]
    return [name for name in names if any(pattern.search(name) for pattern in patterns)]
