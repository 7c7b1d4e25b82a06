"""Checkpoints of Google's adapter-bert and BERT (TensorFlow 1), fine-tuned for a task -> adapter packs.

Such a checkpoint holds all of BERT, the head, the adapters if there are any, and what the optimizer remembers. Which
adapters it has, and whether its head is that of SQuAD, is read from names and shapes; what it does not say has to be
told.
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
from adapter_layers import AdapterConfig

# The initial weights' standard deviation in Google's released code; the paper has 1e-2.
GOOGLE_INIT_SCALE = 1e-3

_ADAPTER = re.compile(r"^bert/encoder/layer_(\d+)/(attention/)?output/adapters/weights1$")
_SLOT = re.compile(r"/adam_[mv]$")
# Of run_classifier.py, and of run_squad.py.
_HEAD, _SPAN_HEAD = "output_weights", "cls/squad/output_weights"


def pack_from_checkpoint(
    prefix: str,
    architecture: modeling.BertConfig,
    task: str,
    labels: Sequence[str],
    tokenizer: Mapping[str, Any],
    max_seq_length: int,
    created: str,
    base: Optional[bases.Base] = None,
    activation: str = "gelu",
) -> packs.Pack:
    """Takes what a task has trained out of a whole checkpoint.

    A checkpoint with adapters becomes a pack of the mode `adapter`, for the base that its frozen weights are. One
    without becomes a pack of the mode `full`: which of its weights were trained cannot be seen.

    Args:
      prefix: of the checkpoint.
      architecture: its `bert_config.json`.
      task: name of the task.
      labels: of the classes, in the head's order; empty for a regression and for SQuAD.
      tokenizer: see `bases.describe_tokenizer`.
      max_seq_length: tokens of a sequence in training.
      created: the pack's date.
      base: what it was trained on, to be checked; by default, nothing is compared.
      activation: of the adapters; Google's code has no other.

    Raises:
      errors.UserError: the checkpoint is not fine-tuned, does not fit the architecture or the labels, or belongs to
        another base.
    """
    prefix = checkpoints.find_prefix(prefix)
    shapes = checkpoints.read_shapes(prefix)
    head = _find_head(prefix, shapes)
    _check_labels(prefix, head, shapes[head][0], task, labels)
    adapter = find_adapters(shapes, architecture.num_hidden_layers, activation)
    config = packs.PackConfig(
        task=task,
        architecture=architecture.to_dict(),
        tuning_mode="adapter" if adapter else "full",
        head="span" if head == _SPAN_HEAD else "classification" if labels else "regression",
        labels=list(labels),
        tokenizer=tokenizer,
        max_seq_length=max_seq_length,
        base=None,
        created=created,
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
        packs.check_base(pack, prefix, base.digests(), base.folder)
    return pack


def find_adapters(shapes: parameters.Shapes, num_layers: int, activation: str) -> Optional[AdapterConfig]:
    """What the adapters in a checkpoint are by their names and shapes; None where there are none.

    Args:
      shapes: name -> shape of the checkpoint's variables.
      num_layers: of the network; adapters in all of them need no list.
      activation: of the adapters.
    """
    found = {name: match for name, match in ((name, _ADAPTER.match(name)) for name in shapes) if match}
    if not found:
        return None
    layers = sorted({int(match.group(1)) for match in found.values()})
    behind_attention = {bool(match.group(2)) for match in found.values()}
    return AdapterConfig(
        size=shapes[next(iter(found))][-1],
        activation=activation,
        init_scale=GOOGLE_INIT_SCALE,
        layers=None if layers == list(range(num_layers)) else tuple(layers),
        placement="both" if len(behind_attention) > 1 else "attention" if True in behind_attention else "feedforward",
    )


def has_span_head(prefix: str) -> bool:
    """Whether a checkpoint is one of SQuAD, whose head has no labels; otherwise they have to be told.

    Raises:
      errors.UserError: there is no such checkpoint, or it is not fine-tuned.
    """
    prefix = checkpoints.find_prefix(prefix)
    return _find_head(prefix, checkpoints.read_shapes(prefix)) == _SPAN_HEAD


def _find_head(prefix: str, shapes: parameters.Shapes) -> str:
    """The weights of the one head."""
    known = [name for name in (_HEAD, _SPAN_HEAD) if name in shapes]
    if not known:
        found = [name for name in shapes if name.endswith(_HEAD) or name.startswith("cls/")]
        what = f"only {first_names(sorted(found))}" if found else "none"
        raise errors.UserError(
            f"The checkpoint {prefix} has no head for a task: expected {_HEAD} (classification, regression) or "
            f"{_SPAN_HEAD} (SQuAD), found {what}. A pre-trained BERT is no task."
        )
    if len(known) > 1:
        raise errors.UserError(
            f"The checkpoint {prefix} has two heads, {_HEAD} and {_SPAN_HEAD}: expected one, that of the task. Which "
            "of them the rest was trained for cannot be seen."
        )
    return known[0]


def _check_labels(prefix: str, head: str, units: int, task: str, labels: Sequence[str]) -> None:
    given = f"{len(labels)} labels were given: {first_names(list(labels))}" if labels else "no labels were"
    if head == _SPAN_HEAD:
        if labels:
            raise errors.UserError(
                f"The head in {prefix} is that of SQuAD ({_SPAN_HEAD}), which has no labels, but for {task} {given}."
            )
    elif units != (len(labels) or 1):
        raise errors.UserError(f"The head in {prefix} has {units} units, but {given}.")


def _check_variables(prefix: str, shapes: parameters.Shapes, config: packs.PackConfig, frozen: Sequence[str]) -> None:
    """Refuses a checkpoint of another network, or one whose frozen weights were trained."""
    model = parameters.model_shapes(config.bert_config, config.make_head(), config.adapter_config)
    misfit = modeling.describe_mismatch(model, shapes)
    if misfit:
        raise errors.UserError(f"The checkpoint {prefix} does not fit the architecture that was given: {misfit}")
    surplus = [name for name in shapes if name.startswith("bert/") and name not in model and not _SLOT.search(name)]
    if surplus:
        raise errors.UserError(
            f"The checkpoint {prefix} holds variables of a larger or other network than the architecture that was "
            f"given: {first_names(sorted(surplus))}."
        )
    trained = [name for name in frozen if f"{name}/adam_m" in shapes]
    if trained:
        raise errors.UserError(
            f"The checkpoint {prefix} has adapters, but more was trained than adapters, LayerNorms and head: its "
            f"optimizer has worked on {first_names(trained)}. A pack cannot hold that."
        )
