"""Train a model in its output folder, and predict with it."""

from __future__ import annotations

import dataclasses
import functools
import os
import uuid
from typing import Any, Generic, Iterator, List, Mapping, NamedTuple, Optional, TypeVar

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, signals
from adapter_bert.devices import estimators
from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.scores import Row, Scorer, Scores, predicted_rows
from adapter_bert.model import parameters
from adapter_bert.model.heads import Head
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline import feature_store
from adapter_bert.pipeline.tfrecords import Files
from adapter_bert.settings.groups import Settings
from adapter_bert.training import hooks, inputs, preparation
from adapter_bert.training.evaluator import EvaluationPlan, Evaluator, epoch_ends, multiples
from adapter_bert.training.failures import translate_failures
from adapter_bert.training.model_fn import NO_TRAINING, ModelFn, TrainingPlan, TrainingTensors
from adapter_bert.weights import loading
from adapter_bert.weights.bases import Base
from adapter_bert.weights.best_pack import BestPack
from adapter_bert.weights.loading import WeightRequest, Weights
from adapter_bert.weights.run_folder import EVAL_SUMMARIES, RunFolder


@dataclasses.dataclass(frozen=True)
class DevSet:
    """A data set that is evaluated during training.

    Attributes:
      record_files: its features.
      score: computes scores from predictions.
    """

    record_files: Files
    score: Scorer


class DevEvaluation(NamedTuple):
    """A dev set with the evaluator that scores it."""

    dev: DevSet
    evaluator: Evaluator


SettingsType = TypeVar("SettingsType", bound=Settings)


def _paths(record_files: Files) -> List[str]:
    return [record_files] if isinstance(record_files, str) else list(record_files)


class Trainer(Generic[SettingsType]):
    """One run: a model with its settings and its output folder.

    Attributes:
      settings: settings of the run.
      spec: the model.
      folder: the output folder.
      record: settings, fingerprints and seed of the run.
      bert: config and tokenizer.
    """

    def __init__(
        self,
        settings: SettingsType,
        bert: Base,
        head: Head,
        folder: RunFolder,
        fingerprints: Mapping[str, Any],
        num_train_examples: int = 0,
    ) -> None:
        """Check everything, then claim the output folder, which is the first write.

        Args:
          settings: validated settings.
          bert: config and tokenizer.
          head: the task's head.
          folder: the output folder.
          fingerprints: labels and hashes of the data, which must not change while a run continues.
          num_train_examples: size of the training split; needed for training only.

        Raises:
          errors.UserError: a file is missing, or files and settings do not match.
        """
        self.settings = settings
        self.bert = bert
        self.folder = folder
        self.spec = ModelSpec(
            bert.config,
            head,
            settings.adapter,
            settings.tuning_mode,
            settings.tune_top_layers,
            settings.device.uses_one_hot_embeddings,
        )
        record = folder.check_same_run(settings, fingerprints)
        self._weights = self._resolve(loading.TRAIN if settings.do_train else loading.EVALUATE)
        preparation.check_weights(self._weights, settings, bert, record, folder)
        self._num_train_examples = num_train_examples
        self._schedule = NO_TRAINING.schedule
        if settings.do_train:
            self._schedule = preparation.make_schedule(settings, num_train_examples)
        estimators.tpu_cluster(settings.device)
        is_continued = folder.latest_checkpoint() is not None
        base_fingerprints = preparation.base_fingerprints(self.spec, self._weights, record, is_continued)
        self.record = folder.claim(record, base_fingerprints)
        description = preparation.describe_pack(settings, self.spec, bert, self.record)
        self._best_pack = BestPack(folder, description, self.spec.trained_names)

    @property
    def weights(self) -> Weights:
        """The weights that `predict` uses: the run's pack after training, otherwise the weights to evaluate."""
        assert self._weights is not None, "training from random weights has not started yet"
        return self._weights

    def _resolve(self, purpose: str, base: Optional[loading.WeightFile] = None) -> Optional[Weights]:
        settings = self.settings
        request = WeightRequest(settings.init_checkpoint, settings.adapter_pack, settings.save_full_checkpoint)
        return loading.resolve(self.spec, request, purpose, self.folder, base)

    def _own_weights(self, purpose: str) -> Weights:
        """Return weights that this run has written; the base is not read again."""
        weights = self._resolve(purpose, self._weights.files[0] if self._weights else None)
        assert weights is not None
        return weights

    # ---------------------------------------------------------------------------------------------- training

    def train(self, record_files: Files, dev: Optional[DevSet] = None) -> None:
        """Train to the last step, starting from the newest checkpoint if there is one; then select the best weights.

        Args:
          record_files: features of the training split.
          dev: evaluated during training, to select the best weights and to stop early.
        """
        settings, total, start = self.settings, self._schedule.num_train_steps, self.folder.latest_step()
        for line in parameters.parameter_table(self.spec.shapes, self.spec.trained_names):
            tf.logging.info(line)
        history = self.folder.history()
        evaluation = DevEvaluation(dev, self._make_evaluator(dev, history, start)) if dev else None
        if evaluation:
            # The run may have been killed between a checkpoint and its evaluation.
            self._evaluate_newest(evaluation, start)
        if evaluation and evaluation.evaluator.should_stop:
            tf.logging.info("Training stopped early at step %d; nothing is left to do.", start)
        else:
            tf.logging.info(
                "***** Training: steps %d to %d, batch size %d, seed %d *****",
                start,
                total,
                settings.train_batch_size,
                self.record.seed,
            )
            if settings.device.supports_hooks:
                self._train_to(total, record_files, history, evaluation)
            else:
                self._train_in_pieces(record_files, history, evaluation)
            history.write()
            self._best_pack.save_last()
        self._weights = self._own_weights(loading.USE_TRAINED)

    def _make_evaluator(self, dev: DevSet, history: History, start: int) -> Evaluator:
        settings, total = self.settings, self._schedule.num_train_steps
        if settings.eval_every_steps:
            due = multiples(settings.eval_every_steps, total)
        else:
            due = epoch_ends(self._num_train_examples, settings.train_batch_size, total)
        summaries = self.folder.file(EVAL_SUMMARIES)
        plan = EvaluationPlan(dev.score, due, settings.early_stopping_patience, summaries)
        saved = self._best_pack.saved()
        return Evaluator(plan, history, self._best_pack.save, start, saved.step if saved else None)

    def _evaluate_newest(self, evaluation: DevEvaluation, step: int) -> None:
        """Evaluate the newest checkpoint, written at `step`, if an evaluation is due."""
        if evaluation.evaluator.is_due(step):
            newest = self._own_weights(loading.TRAIN)
            rows = list(self._predict(evaluation.dev.record_files, self.settings.eval_batch_size, newest))
            evaluation.evaluator.evaluate(step, rows, newest.path)

    def _train_in_pieces(self, record_files: Files, history: History, evaluation: Optional[DevEvaluation]) -> None:
        """Alternate between training and evaluation: a TPU graph cannot contain a second model."""
        total = self._schedule.num_train_steps
        for step in sorted(evaluation.evaluator.plan.due_steps if evaluation else [total]):
            if step <= self.folder.latest_step():
                continue
            self._train_to(step, record_files, history, None)
            if evaluation:
                self._evaluate_newest(evaluation, step)
                if evaluation.evaluator.should_stop:
                    return

    def _train_to(
        self,
        step: int,
        record_files: Files,
        history: History,
        evaluation: Optional[DevEvaluation],
    ) -> None:
        """Train up to a step, and evaluate in the same session if requested."""
        settings = self.settings
        progress: List[hooks.ProgressHook] = []
        # On a TPU no hook would see the request, so signals end the process immediately.
        with signals.deferred(settings.device.supports_hooks) as stop:
            make_hooks = functools.partial(self._make_hooks, progress, history, stop, evaluation)
            estimator = self._training_estimator(make_hooks, evaluation.dev if evaluation else None)
            input_fn = inputs.training_input_fn(
                record_files,
                settings,
                self.spec.head.label_types,
                self._schedule.num_train_steps,
                self.record.seed,
                self.folder.latest_step(),
            )
            read = _paths(record_files) + (_paths(evaluation.dev.record_files) if evaluation else [])
            with translate_failures(settings, self.folder, progress), feature_store.damage_errors(read):
                estimator.train(input_fn=input_fn, max_steps=step)
        if progress and progress[-1].mean_width and not settings.pads_all:
            tf.logging.info(
                "Batches had %.1f tokens on average (--max_seq_length=%d).",
                progress[-1].mean_width,
                settings.max_seq_length,
            )
        if stop.is_set:
            history.write()
            raise errors.StoppedError(
                f"interrupted at step {self.folder.latest_step()}; the same command continues from there."
            )

    def _make_hooks(
        self,
        progress: List[hooks.ProgressHook],
        history: History,
        stop: signals.StopRequest,
        evaluation: Optional[DevEvaluation],
        tensors: TrainingTensors,
    ) -> List[tf.train.SessionRunHook]:
        settings = self.settings
        total = self._schedule.num_train_steps
        progress.append(hooks.ProgressHook(tensors, total, settings.train_batch_size, history, stop))
        # After the progress hook, which does not count the time that the others take.
        saving = hooks.CheckpointHook(tensors.saver, self.folder.path, settings.save_checkpoints_steps)
        made: List[tf.train.SessionRunHook] = [progress[-1], saving]
        if evaluation:
            num_examples = feature_store.num_records(evaluation.dev.record_files)
            made.append(hooks.EvaluationHook(tensors, evaluation.evaluator, saving, num_examples))
        return made

    def _training_estimator(self, make_hooks: Any, dev: Optional[DevSet]) -> estimators.TPUEstimator:
        settings, steps = self.settings, self._schedule.num_train_steps
        dev_data = None
        if dev:
            dev_input_fn = inputs.scoring_input_fn(dev.record_files, settings, self.spec.head.label_types)
            dev_data = functools.partial(dev_input_fn, {"batch_size": settings.eval_batch_size})
        plan = TrainingPlan(
            self._schedule,
            make_hooks,
            dev_data,
            "whole" if settings.save_full_checkpoint else "trained",
            settings.gradient_checkpointing,
            settings.gradient_accumulation_steps,
            settings.use_xla,
        )
        # Create the summary writer here: the estimator's own would first write the graph, which is larger than the
        # weights.
        with tf.Graph().as_default():
            tf.summary.FileWriterCache.get(self.folder.path)
        # About fifty points on TensorBoard's curves, or one every 100 steps.
        summary_steps = max(1, min(100, steps // 50))
        config = self._run_config(self.folder.path, summary_steps)
        model_fn = ModelFn(self.spec, self._weights, plan, settings.device)
        return estimators.make_estimator(model_fn, settings.device, config, settings.train_batch_size, 8)

    def _run_config(self, model_dir: str, summary_steps: int) -> Any:
        settings = self.settings
        return estimators.run_config(
            settings.device, model_dir, self.record.seed, settings.save_checkpoints_steps, summary_steps
        )

    # -------------------------------------------------------------------------------------------- prediction

    def predict(self, record_files: Files, batch_size: int) -> Iterator[Row]:
        """Yield the head's predictions for every record, in the order of the files, without padding examples."""
        return self._predict(record_files, batch_size, self.weights)

    def _predict(self, record_files: Files, batch_size: int, weights: Weights) -> Iterator[Row]:
        settings = self.settings
        # All values come from `weights`, so the estimator must not find a checkpoint. It does not create this folder.
        config = self._run_config(os.path.join(self.folder.path, uuid.uuid4().hex), summary_steps=1)
        model_fn = ModelFn(self.spec, weights, device=settings.device)
        estimator = estimators.make_estimator(model_fn, settings.device, config, settings.train_batch_size, batch_size)
        input_fn = inputs.scoring_input_fn(record_files, settings, self.spec.head.label_types)
        predicted = estimator.predict(input_fn=input_fn, yield_single_examples=False)
        with feature_store.damage_errors(record_files):
            yield from predicted_rows(predicted, feature_store.num_records(record_files), "predictions")

    def add_scores(self, scores: Scores) -> None:
        """Add scores to the pack of a run that was not evaluated during training."""
        if self.settings.do_train:
            self._best_pack.add_scores(scores)
