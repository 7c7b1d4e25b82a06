"""Checks before a run writes its first file."""

from __future__ import annotations

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

import optimization
import tokenization
from adapter_bert.common import errors
from adapter_bert.model.spec import ModelSpec
from adapter_bert.settings.groups import Settings
from adapter_bert.training.model_fn import Schedule
from adapter_bert.weights import packs
from adapter_bert.weights.bases import Base
from adapter_bert.weights.loading import Weights
from adapter_bert.weights.run_folder import RunFolder, RunRecord


def make_schedule(settings: Settings, num_examples: int) -> Schedule:
    """Return steps and learning rate for a training split of this size."""
    steps = int(num_examples / settings.train_batch_size * settings.num_train_epochs)
    if steps < 1:
        raise errors.UserError(
            f"{num_examples} examples in batches of {settings.train_batch_size} for {settings.num_train_epochs} epochs "
            "give less than one step: lower --train_batch_size or raise --num_train_epochs."
        )
    return Schedule(settings.learning_rate, steps, int(steps * settings.warmup_proportion))


def check_weights(
    weights: Optional[Weights], settings: Settings, bert: Base, record: RunRecord, folder: RunFolder
) -> None:
    """Check that weights match the tokenizer, its case and the labels, and have a trained head if they must predict."""
    if weights is None:
        return
    if settings.init_checkpoint and not folder.contains(weights.path):
        tokenization.validate_case_matches_checkpoint(settings.do_lower_case, settings.init_checkpoint)
    if weights.pack:
        _check_pack(weights.pack, weights.path, settings, bert, record)
    # An untrained head may be evaluated for comparison, but its predictions are useless.
    only_predicts = settings.do_predict and not settings.do_train and not settings.do_eval
    if only_predicts and any(optimization.HEAD.search(name) for name in weights.fresh):
        raise errors.UserError(
            f"{weights.path} contains no trained head, so it cannot predict: pass the --output_dir, "
            "--init_checkpoint or --adapter_pack of a training run."
        )


def _check_pack(pack: packs.Pack, path: str, settings: Settings, bert: Base, record: RunRecord) -> None:
    """Check that a pack predicts the same here as where it was trained."""
    packs.check_architecture(pack, path, bert.config.to_dict(), settings.bert_config_file or "")
    packs.check_adapter(pack, path, settings.adapter)
    if pack.config.tokenizer != bert.tokenizer_description:
        raise errors.UserError(
            f"The pack {path} was trained with another tokenizer: {pack.config.tokenizer}; this one is "
            f"{bert.tokenizer_description}."
        )
    labels = record.fingerprints.get("labels", pack.config.labels)
    if not settings.do_train and list(pack.config.labels) != list(labels):
        raise errors.UserError(
            f"The pack {path} has the labels {list(pack.config.labels)}, in this order; the task has {labels}."
        )
    if not settings.do_train and pack.config.task != settings.task_name:
        tf.logging.warning("The pack %s was trained for the task %s.", path, pack.config.task)
    if pack.config.max_seq_length != settings.max_seq_length:
        tf.logging.warning(
            "The pack %s was trained with --max_seq_length=%d; it is %d now.",
            path,
            pack.config.max_seq_length,
            settings.max_seq_length,
        )


def base_fingerprints(
    spec: ModelSpec, weights: Optional[Weights], record: RunRecord, is_continued: bool
) -> Dict[str, Optional[str]]:
    """Return hashes of the BERT that a run started from and of its frozen variables; None if they are random."""
    if weights is None:
        return {"base": None, "frozen": None}
    base = record.fingerprints.get("base") if is_continued else weights.fingerprint(spec.base_names)
    return {"base": base, "frozen": weights.fingerprint(spec.frozen_names)}


def describe_pack(settings: Settings, spec: ModelSpec, bert: Base, record: RunRecord) -> packs.PackConfig:
    """Describe the packs of a run, except for values that change during training."""
    fingerprints: Dict[str, Any] = dict(record.fingerprints)
    return packs.PackConfig(
        task=settings.task_name or "",
        architecture=bert.config.to_dict(),
        tuning_mode=settings.tuning_mode,
        head=spec.head.kind,
        labels=list(fingerprints.get("labels", ())),
        tokenizer=bert.tokenizer_description,
        max_seq_length=settings.max_seq_length,
        base=fingerprints.get("frozen"),
        created="",
        adapter=packs.describe_adapter(settings.adapter),
        tune_top_layers=settings.tune_top_layers,
        seed=record.seed,
        training=settings.training_values(),
    )
