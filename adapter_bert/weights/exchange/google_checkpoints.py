"""Convert fine-tuned checkpoints of Google's adapter-bert and BERT (TensorFlow 1) to adapter packs.

Such a checkpoint contains all of BERT, the head, the adapters if there are any, and the optimizer's slots. Names and
shapes show which adapters it has and whether its head is for SQuAD. The caller provides everything else.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Mapping, Optional, Sequence

import modeling
from adapter_bert.common import errors
from adapter_bert.common.text import first_names
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.exchange import ImportedTask
from adapter_layers import AdapterConfig

# Standard deviation of initial weights in Google's released code; 1e-2 in the paper.
GOOGLE_INIT_SCALE = 1e-3

_ADAPTER = re.compile(r"^bert/encoder/layer_(\d+)/(attention/)?output/adapters/weights1$")
_SLOT = re.compile(r"/adam_[mv]$")
# Heads of run_classifier.py and run_squad.py.
_HEAD, _SPAN_HEAD = "output_weights", "cls/squad/output_weights"


def pack_from_checkpoint(
    prefix: str,
    architecture: modeling.BertConfig,
    task: ImportedTask,
    tokenizer: Mapping[str, Any],
    base: Optional[bases.Base] = None,
    activation: str = "gelu",
) -> packs.Pack:
    """Extract a pack from a checkpoint.

    A checkpoint with adapters becomes a pack of the mode `adapter`, for the base that its frozen weights form. Without
    adapters it becomes a pack of the mode `full`, because it does not record which weights were trained.

    Args:
      prefix: prefix of the checkpoint.
      architecture: its `bert_config.json`.
      task: everything else about it; labels must be given, as checkpoints do not contain them.
      tokenizer: see `bases.describe_tokenizer`.
      base: the base to compare the frozen weights with; None to compare nothing.
      activation: activation of the adapters; Google's code has only this one.

    Raises:
      errors.UserError: the checkpoint is not fine-tuned, or does not match the architecture, the labels or the base.
    """
    prefix = checkpoints.find_prefix(prefix)
    shapes = checkpoints.read_shapes(prefix)
    head, labels = _find_head(prefix, shapes), list(task.labels or ())
    _check_labels(prefix, head, shapes[head][0], labels)
    adapter = find_adapters(shapes, architecture.num_hidden_layers, activation)
    config = packs.PackConfig(
        task=task.name,
        architecture=architecture.to_dict(),
        tuning_mode="adapter" if adapter else "full",
        head="span" if head == _SPAN_HEAD else "classification" if labels else "regression",
        labels=labels,
        tokenizer=tokenizer,
        max_seq_length=task.max_seq_length,
        base=None,
        created=task.created,
        adapter=packs.describe_adapter(adapter),
        step=checkpoints.read_step(prefix),
        origin={"checkpoint": os.path.basename(prefix)},
    )
    frozen = config.frozen_names()
    _check_variables(prefix, shapes, config, frozen)
    if frozen:
        digests = fingerprints.of_tensors(checkpoints.read_tensors(prefix, frozen))
        config = dataclasses.replace(config, base=fingerprints.combine(digests))
    pack = packs.Pack(config, checkpoints.read_tensors(prefix, list(config.trained_shapes())))
    packs.check(pack, f"The checkpoint {prefix}")
    if base is not None:
        packs.check_base(pack, prefix, base.digests, base.folder)
    return pack


def find_adapters(shapes: parameters.Shapes, num_layers: int, activation: str) -> Optional[AdapterConfig]:
    """Return the adapters in a checkpoint with these variables, or None if there are none."""
    found = {name: match for name, match in ((name, _ADAPTER.match(name)) for name in shapes) if match}
    if not found:
        return None
    layers = sorted({int(match.group(1)) for match in found.values()})
    after_attention = {bool(match.group(2)) for match in found.values()}
    return AdapterConfig(
        size=shapes[next(iter(found))][-1],
        activation=activation,
        init_scale=GOOGLE_INIT_SCALE,
        layers=None if layers == list(range(num_layers)) else tuple(layers),
        placement="both" if len(after_attention) > 1 else "attention" if True in after_attention else "feedforward",
    )


def has_span_head(prefix: str) -> bool:
    """Return whether a fine-tuned checkpoint is for SQuAD, whose head has no labels."""
    prefix = checkpoints.find_prefix(prefix)
    return _find_head(prefix, checkpoints.read_shapes(prefix)) == _SPAN_HEAD


def _find_head(prefix: str, shapes: parameters.Shapes) -> str:
    """Return the name of the weights of the only head."""
    known = [name for name in (_HEAD, _SPAN_HEAD) if name in shapes]
    if len(known) == 1:
        return known[0]
    others = [name for name in shapes if name.endswith(_HEAD) or name.startswith("cls/")]
    hint = "is not fine-tuned" if not known else "does not tell for which of them it was trained"
    raise errors.UserError(
        f"The checkpoint {prefix} must have one head: {_HEAD} (classification, regression) or {_SPAN_HEAD} (SQuAD); "
        f"found {first_names(known or sorted(others))}. It {hint}."
    )


def _check_labels(prefix: str, head: str, units: int, labels: Sequence[str]) -> None:
    given = f"{len(labels)} labels were given: {first_names(labels)}"
    if head == _SPAN_HEAD and labels:
        raise errors.UserError(f"The head in {prefix} is for SQuAD ({_SPAN_HEAD}), which has no labels; {given}.")
    if head == _HEAD and units != (len(labels) or 1):
        raise errors.UserError(f"The head in {prefix} has {units} units; {given}.")


def _check_variables(prefix: str, shapes: parameters.Shapes, config: packs.PackConfig, frozen: Sequence[str]) -> None:
    """Raise a `UserError` for another architecture, or if weights were trained that should be frozen."""
    model = config.spec.shapes
    mismatch = parameters.describe_mismatch(model, shapes)
    if mismatch:
        raise errors.UserError(f"The checkpoint {prefix} does not match the given architecture: {mismatch}")
    others = [name for name in shapes if name.startswith("bert/") and name not in model and not _SLOT.search(name)]
    if others:
        raise errors.UserError(
            f"The checkpoint {prefix} has variables that the given architecture does not have: "
            f"{first_names(sorted(others))}."
        )
    trained = [name for name in frozen if f"{name}/adam_m" in shapes]
    if trained:
        raise errors.UserError(
            f"The checkpoint {prefix} has adapters, but not only adapters, LayerNorms and head were trained. The "
            f"optimizer also has slots for {first_names(trained)}, which a pack cannot contain."
        )
