"""Selection of the trainable variables by name and tuning mode. Imports no TensorFlow; `optimization` re-exports it."""

from __future__ import annotations

import re
from typing import Collection, Dict, List, NamedTuple, Optional, Sequence

from adapter_bert.common import errors

# Excludes optimizer slots such as …/adapters/weights1/adam_m.
ADAPTER = re.compile(r"(^|/)adapters/(?!.*/adam_[mv]$)")
# Moving statistics of batch normalization in adapters. They belong to a task, but are not trained by gradients.
STATISTICS = re.compile(r"(^|/)adapters/(.*/)?moving_(mean|variance)$")
# LayerNorms of BERT, not of adapters.
LAYER_NORM = re.compile(r"(^|/)(?<!\badapters/)LayerNorm(_\d+)?/(beta|gamma)$")
# Full names: frozen weights such as attention/output/dense/kernel contain "output" too.
HEAD = re.compile(r"(^|/)output_(weights|bias)$")
POOLER = re.compile(r"(^|/)pooler/")
EMBEDDINGS = re.compile(r"(^|/)embeddings/")
ENCODER_LAYER = re.compile(r"(^|/)encoder/layer_(\d+)/")

# The scope of a BERT is known by its word embeddings, or by its usual name.
_WORD_EMBEDDINGS = re.compile(r"(.*/)?embeddings/word_embeddings$")
_USUAL_SCOPE = re.compile(r"((?:.*/)?bert/)(?:embeddings|encoder|pooler)/")

MODES = ("adapter", "full", "top_layers", "layer_norm", "head")


class LearningRates(NamedTuple):
    """Peak learning rates with which a tuning mode usually learns: the range, and the one to try first."""

    low: float
    first: float
    high: float


# The fewer parameters are trained, the higher they are; docs/learning_rates.md has measurements. For adapters, the
# paper sweeps 3e-5 to 3e-3, but the lower end takes many epochs.
LEARNING_RATES: Dict[str, LearningRates] = {
    "adapter": LearningRates(1e-4, 3e-4, 3e-3),
    "full": LearningRates(5e-6, 3e-5, 2e-4),
    "top_layers": LearningRates(1e-5, 1e-4, 1e-3),
    "layer_norm": LearningRates(1e-3, 3e-3, 5e-3),
    "head": LearningRates(1e-3, 1e-2, 1e-1),
}


def check_mode(mode: str, top_layers: Optional[int] = None) -> None:
    """Raise `errors.UserError` if the mode is unknown or does not match the number of top layers."""
    if mode not in MODES:
        raise errors.unknown("tuning mode", mode, MODES)
    if mode == "top_layers" and (top_layers is None or top_layers < 1):
        raise errors.UserError(
            f"The tuning mode 'top_layers' needs a number of layers of at least 1, found {top_layers}."
        )
    if mode != "top_layers" and top_layers is not None:
        raise errors.UserError(
            f"A number of top layers ({top_layers}) requires the tuning mode 'top_layers', found mode '{mode}'."
        )


def layer_index(name: str) -> Optional[int]:
    """Return the index of a variable's encoder layer; None outside the encoder."""
    match = ENCODER_LAYER.search(name)
    return int(match.group(2)) if match else None


def count_layers(names: Sequence[str]) -> int:
    """Return the number of encoder layers in these variable names."""
    indices = (layer_index(name) for name in names)
    return 1 + max((index for index in indices if index is not None), default=-1)


def trainable_names(
    names: Sequence[str], mode: str, top_layers: Optional[int] = None, frozen_layers: int = 0
) -> List[str]:
    """Return the names of the trainable variables, in the given order.

    Args:
      names: names of all variables of the model, without `:0`.
      mode: `adapter` (adapters, LayerNorms, head), `full` (everything), `top_layers` (the top n encoder layers,
        pooler, head; everything if n is the number of layers), `layer_norm` (LayerNorms, head) or `head`.
      top_layers: n, only in mode `top_layers`.
      frozen_layers: if above 0, mode `adapter` does not train the LayerNorms of the embeddings and of this number of
        lowest layers, see `AdapterConfig.freeze_below`.

    Raise `errors.UserError` if there are fewer than n layers, or the mode is `adapter` and the model has no adapters.
    """
    check_mode(mode, top_layers)
    num_layers = count_layers(names)
    if mode == "adapter" and not any(ADAPTER.search(name) for name in names):
        raise errors.UserError(
            "The tuning mode is 'adapter', but the model has no adapters. Build it with an adapter_fn, or use another "
            "mode ({}).".format(", ".join(MODES[1:]))
        )
    if top_layers is not None and top_layers > num_layers:
        raise errors.UserError(f"Cannot train the top {top_layers} layers: the model has {num_layers}.")
    if mode == "full" or top_layers == num_layers:
        return list(names)
    if top_layers is not None:
        trained = set(range(num_layers - top_layers, num_layers))
        return [name for name in names if layer_index(name) in trained or POOLER.search(name) or HEAD.search(name)]
    patterns = {"adapter": (ADAPTER, LAYER_NORM, HEAD), "layer_norm": (LAYER_NORM, HEAD), "head": (HEAD,)}[mode]
    trainable = [name for name in names if any(pattern.search(name) for pattern in patterns)]
    return [name for name in trainable if mode != "adapter" or depth_of(name, num_layers) >= frozen_layers]


def depth_of(name: str, num_layers: int) -> int:
    """Return the number of encoder layers below a variable: 0 for embeddings, `num_layers` for pooler and head."""
    index = 0 if EMBEDDINGS.search(name) else layer_index(name)
    return num_layers if index is None else index


def names_in_bert(names: Sequence[str]) -> List[str]:
    """Return the names of the variables of a BERT, including its adapters, in any scope: `module/bert/pooler/…`."""
    matches = (pattern.match(name) for name in names for pattern in (_WORD_EMBEDDINGS, _USUAL_SCOPE))
    scopes = {match.group(1) or "" for match in matches if match}
    parts = tuple(scope + part for scope in scopes for part in ("embeddings/", "encoder/", "pooler/"))
    return [name for name in names if name.startswith(parts)]


def notebook_names(
    names: Sequence[str],
    in_bert: Collection[str],
    mode: str,
    top_layers: Optional[int] = None,
    declared: Collection[str] = (),
) -> List[str]:
    """Return the names of the trainable variables of a network whose head is unknown, in the given order.

    Everything but the variables `in_bert` is trainable, whatever its name. Inside BERT, `mode` decides, as in
    `trainable_names`, and `declared` names more trainable variables, e.g. of adapters with other names.
    """
    inside = [name for name in names if name in in_bert]
    # Unlike `trainable_names`, accept a BERT without adapters of the usual name.
    trained = set(trainable_names(inside, "layer_norm" if mode == "adapter" else mode, top_layers)).union(declared)
    if mode == "adapter":
        trained.update(name for name in inside if ADAPTER.search(name))
    frozen = set(inside) - trained
    return [name for name in names if name not in frozen]
