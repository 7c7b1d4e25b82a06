"""Report an evaluation: log it, write its files, and add its scores to the pack."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Row, Scores
from adapter_bert.model import parameters
from adapter_bert.training.trainer import Trainer
from adapter_bert.weights import fingerprints


def report(
    trainer: Trainer, scores: Scores, majority: Mapping[str, float], data: Mapping[str, Any], rows: Sequence[Row]
) -> EvalResults:
    """Log the results of the dev split, write both result files, and add the scores to the pack of a training.

    `majority` are the scores of a constant prediction: the most frequent class, the mean, or no answer. `data` has size
    and fingerprint of each split. The logits of `rows` are hashed, to compare runs.
    """
    spec, record, weights = trainer.spec, trainer.record, trainer.weights
    results = EvalResults(
        task=record.settings.task_name or "",
        primary_metric=next(iter(scores.metrics)),
        metrics=dict(scores.metrics),
        details=dict(scores.details),
        loss=scores.loss,
        majority=dict(majority),
        collapsed=scores.collapsed,
        step=weights.step,
        seed=record.seed,
        parameters={
            "total": parameters.count(spec.shapes),
            "trained": parameters.count(spec.shapes, spec.trained_names),
        },
        training=trainer.folder.history().summary(),
        fingerprints={
            "base": record.fingerprints.get("base"),
            "frozen": weights.fingerprint(spec.frozen_names),
            "train_data": record.fingerprints.get("train_data"),
            "pack": weights.fingerprint(spec.trained_names),
            "predictions": fingerprints.of_rows([row["logits"] for row in rows]),
        },
        data=dict(data),
        versions=compat.versions(),
        settings=record.training_settings(),
        command=dataclasses.asdict(record.settings),
    )
    _log(results, trained=record.settings.do_train)
    if record.settings.do_train:
        trainer.best_pack.add_scores(scores)
    trainer.folder.write_results(results)
    return results


def _log(results: EvalResults, trained: bool) -> None:
    tf.logging.info("***** Eval results *****")
    for line in results.as_text().splitlines():
        tf.logging.info("  %s", line)
    if results.collapsed:
        advice = "Check that these weights belong to this task."
        if trained:
            advice = "The run has learned nothing: try a lower --learning_rate, smaller batches or more epochs."
        if not results.step:
            advice = "The weights are untrained: add --do_train=true, or pass the --output_dir of a training run."
        tf.logging.warning("***** Collapsed: all predictions are the same. %s *****", advice)
