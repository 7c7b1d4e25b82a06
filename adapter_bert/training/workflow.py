"""Steps that both workflows share: check a run and claim its folder before it starts, and report its evaluation."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import optimization
import tokenization
from adapter_bert.common import errors
from adapter_bert.devices import compat, estimators, precision
from adapter_bert.devices.workers import Workers
from adapter_bert.evaluation.class_report import MATRIX_CLASSES, ClassReport
from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Row, Scores
from adapter_bert.model.heads import Head
from adapter_bert.model.spec import ModelSpec
from adapter_bert.settings.groups import RunSettings, Settings
from adapter_bert.training import advice, distributed, frozen_cache
from adapter_bert.training.engine import Engine
from adapter_bert.training.model_fn import Schedule
from adapter_bert.training.trainer import Trainer
from adapter_bert.weights import fingerprints, loading, packs
from adapter_bert.weights.bases import Base
from adapter_bert.weights.exchange import known_bases
from adapter_bert.weights.loading import WeightRequest, Weights
from adapter_bert.weights.run_folder import CLASS_REPORT_FILE, BestPack, RunFolder, RunRecord


def load_base(settings: Settings, engine: Engine) -> Base:
    """Read the base of a run; download it first if `settings.bert_dir` is the name of a known base."""
    if settings.bert_dir:
        known_bases.provide(settings.bert_dir)
    return engine.load_base(settings)


def prepare(
    settings: Settings,
    folder: RunFolder,
    base: Base,
    head: Head,
    data_fingerprints: Mapping[str, Any],
    engine: Engine,
    workers: Optional[Workers] = None,
) -> Trainer:
    """Check a run, then claim its folder, which is the first write; return the trainer of its model.

    All `workers` must agree on the run. Only the first one writes.
    """
    workers = workers or Workers()
    precision.check(settings.precision, settings.device)
    spec = ModelSpec(
        base.config,
        head,
        settings.adapter,
        settings.tuning_mode,
        settings.tune_top_layers,
        settings.device.uses_one_hot_embeddings,
        settings.precision,
    )
    spec = frozen_cache.with_cached_layers(spec, settings)
    record = folder.check_same_run(settings, data_fingerprints)
    request = WeightRequest(settings.init_checkpoint, settings.adapter_pack, settings.save_full_checkpoint)
    purpose = loading.TRAIN if settings.do_train else loading.EVALUATE
    weights = loading.resolve(spec, request, purpose, folder, engine.known_file(settings))
    engine.remember(settings, weights)
    _check_run(folder, record, base, weights)
    unusual = advice.describe_unusual_rate(settings.tuning_mode, settings.learning_rate)
    if settings.do_train and unusual:
        tf.logging.warning(unusual)
    is_continued = folder.latest_checkpoint() is not None
    origin = record.fingerprints.get("base") if is_continued else _fingerprint(weights, spec.base_names)
    facts = {"base": origin, "frozen": _fingerprint(weights, spec.frozen_names)}
    if workers.count > 1:
        record = _agree(workers, folder, record, weights, {**data_fingerprints, **facts})
    record = folder.claim(record, facts, writes=workers.is_first)
    best_pack = _make_best_pack(folder, record, spec, base)
    return Trainer(spec, folder, record, request, weights, best_pack, engine, workers)


def _agree(
    workers: Workers, folder: RunFolder, record: RunRecord, weights: Optional[Weights], facts: Mapping[str, Any]
) -> RunRecord:
    """Check that all workers train the same run; return its record with the seed of the first worker."""
    all_weights = fingerprints.combine(weights.digests) if weights else None
    facts = {**facts, "weights": all_weights, "checkpoint": folder.latest_step()}
    return dataclasses.replace(record, seed=distributed.agree(workers, record.settings, facts, record.seed))


def make_schedule(settings: Settings, num_examples: int) -> Schedule:
    """Return steps and learning rate for a training split of this size."""
    steps = int(num_examples / settings.train_batch_size * settings.num_train_epochs)
    if settings.do_train and steps < 1:
        raise errors.UserError(
            f"{num_examples} examples in batches of {settings.train_batch_size} for {settings.num_train_epochs} epochs "
            "give less than one step: lower --train_batch_size or raise --num_train_epochs."
        )
    return Schedule(settings.learning_rate, steps, int(steps * settings.warmup_proportion), num_examples)


def _check_run(folder: RunFolder, record: RunRecord, base: Base, weights: Optional[Weights]) -> None:
    """Check the TPU; check that weights match tokenizer, case and labels, and can predict if required."""
    settings = record.settings
    estimators.tpu_cluster(settings.device)
    if weights is None:
        return
    if settings.init_checkpoint and not folder.contains(weights.path):
        tokenization.validate_case_matches_checkpoint(settings.do_lower_case, settings.init_checkpoint)
    if weights.pack:
        _check_pack(weights.pack, weights.path, base, record)
    is_untrained = not settings.do_train and any(optimization.HEAD.search(name) for name in weights.fresh)
    if is_untrained and not settings.allow_untrained_head:
        raise errors.UserError(
            f"{weights.path} contains no trained head, so its predictions would be random: add --do_train=true, or "
            "pass the --output_dir, --init_checkpoint or --adapter_pack of a training run. To compare with random "
            "predictions, add --allow_untrained_head=true."
        )


def _check_pack(pack: packs.Pack, path: str, base: Base, record: RunRecord) -> None:
    """Check that a pack predicts the same here as where it was trained."""
    settings, config = record.settings, pack.config
    packs.check_architecture(pack, path, base.config.to_dict(), settings.bert_config_file or "")
    packs.check_adapter(pack, path, settings.adapter)
    if config.tokenizer != base.tokenizer_description:
        raise errors.UserError(
            f"The pack {path} was trained with another tokenizer: {config.tokenizer}; this one is "
            f"{base.tokenizer_description}."
        )
    labels = record.fingerprints.get("labels", config.labels)
    if not settings.do_train and list(config.labels) != list(labels):
        raise errors.UserError(
            f"The pack {path} has the labels {list(config.labels)}, in this order; the task has {labels}."
        )
    if not settings.do_train and config.task != settings.task_name:
        tf.logging.warning("The pack %s was trained for the task %s.", path, config.task)
    if config.max_seq_length != settings.max_seq_length:
        trained = f"--max_seq_length={config.max_seq_length}"
        tf.logging.warning("The pack %s was trained with %s; it is %d now.", path, trained, settings.max_seq_length)


def _fingerprint(weights: Optional[Weights], names: Sequence[str]) -> Optional[str]:
    return weights.fingerprint(names) if weights else None  # None: random weights


def _make_best_pack(folder: RunFolder, record: RunRecord, spec: ModelSpec, base: Base) -> BestPack:
    settings = record.settings
    config = packs.PackConfig(
        task=settings.task_name or "",
        architecture=base.config.to_dict(),
        tuning_mode=settings.tuning_mode,
        head=spec.head.kind,
        labels=list(record.fingerprints.get("labels", ())),
        tokenizer=base.tokenizer_description,
        max_seq_length=settings.max_seq_length,
        base=record.fingerprints.get("frozen"),
        created="",
        adapter=packs.describe_adapter(settings.adapter),
        tune_top_layers=settings.tune_top_layers,
        seed=record.seed,
        training=settings.training_values(),
    )
    return BestPack(folder, config, spec.trained_names)


def report(
    trainer: Trainer,
    scores: Scores,
    majority: Mapping[str, float],
    data: Mapping[str, Any],
    rows: Sequence[Row],
    classes: Optional[ClassReport] = None,
) -> EvalResults:
    """Log the results of the dev split, write both result files, and add the scores to the pack of a training run.

    `majority` are the scores of a constant prediction: the most frequent class, the mean, or no answer. `data` has size
    and fingerprint of each split. The logits of `rows` are hashed, to compare runs. `classes` has the scores of each
    class.
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
        parameters=spec.parameter_counts(),
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
        **(classes or ClassReport())._asdict(),
    )
    _log(results, record.settings, trainer.folder.history())
    _log_classes(results.class_report, trainer.folder, results.task)
    if record.settings.do_train:
        trainer.best_pack.add_scores(scores)
    trainer.folder.write_results(results)
    return results


def report_test(
    trainer: Trainer,
    scores: Scores,
    majority: Mapping[str, float],
    size: Mapping[str, Any],
    results: Optional[EvalResults],
) -> Optional[EvalResults]:
    """Log the scores of a test split, write `test_eval_results.txt`, and add them to `results.json`.

    If this command has evaluated the dev split, `results` are its results; return them with the test scores added.
    Otherwise, extend `results.json` if it has the results of the same weights.
    """
    folder, task, weights = trainer.folder, trainer.record.settings.task_name or "", trainer.weights
    test = {"metrics": dict(scores.metrics), "loss": scores.loss, "majority": dict(majority), **size}
    values = {f"test_{name}": value for name, value in scores.metrics.items()}
    values.update({f"majority_{name}": value for name, value in majority.items()})
    values.update(test_loss=scores.loss, test_examples=size["examples"], global_step=weights.step)
    tf.logging.info("***** Test results *****")
    for key, value in sorted(values.items()):
        tf.logging.info("  %s = %s", key, round(value, 4))
    folder.write_test_scores(task, "".join(f"{key} = {value}\n" for key, value in sorted(values.items())))
    known = results or folder.results_of(task, weights.fingerprint(trainer.spec.trained_names))
    if known:
        known = dataclasses.replace(known, test=test)
        folder.write_results(known)
    return known if results else None


def _log(results: EvalResults, settings: RunSettings, history: History) -> None:
    tf.logging.info("***** Eval results *****")
    for line in results.as_text(digits=4).splitlines():
        tf.logging.info("  %s", line)
    if results.collapsed:
        advised = "Check that these weights belong to this task."
        if settings.do_train and isinstance(settings, Settings):
            advised = advice.after_collapse(settings.tuning_mode, settings.learning_rate, history.losses)
        elif settings.do_train:
            advised = "Try lower or higher learning rates, or train longer."
        if not results.step:
            advised = "The weights are untrained: add --do_train=true, or pass the --output_dir of a training run."
        tf.logging.warning("***** Collapsed: all predictions are the same. %s *****", advised)
    elif _is_below_majority(results):
        tf.logging.warning(
            "***** %s is %.4f, below that of a constant prediction, %.4f. *****",
            results.primary_metric,
            results.primary,
            results.majority[results.primary_metric],
        )


def _is_below_majority(results: EvalResults) -> bool:
    """Return whether the most frequent class, the mean or no answer scores better than the model."""
    score, constant = results.primary, results.majority.get(results.primary_metric)
    return score is not None and constant is not None and score < constant


def _log_classes(classes: ClassReport, folder: RunFolder, task: str) -> None:
    if not classes:
        return
    for line in classes.as_text(for_screen=True).splitlines():
        tf.logging.info("  %s", line)
    count = len(classes.per_class)
    if count > MATRIX_CLASSES:
        tf.logging.info("The confusion matrix of %d classes: %s", count, folder.result_file(CLASS_REPORT_FILE, task))
