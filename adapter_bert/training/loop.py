"""The training loop: checkpoints, evaluations, early stopping, interruption and failures."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import FrozenSet, Iterator, List, Optional

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors, files, signals
from adapter_bert.devices import estimators
from adapter_bert.model import parameters
from adapter_bert.pipeline import feature_store
from adapter_bert.pipeline.records import Share
from adapter_bert.training import distributed
from adapter_bert.training.distributed import AgreedStopHook, WaitHook
from adapter_bert.training.evaluator import DevSet, Evaluator, epoch_ends, multiples
from adapter_bert.training.hooks import CheckpointHook, ProgressHook, SummaryHook
from adapter_bert.training.model_fn import Schedule, TrainingPlan, TrainingTensors
from adapter_bert.training.trainer import SplitFeatures, Trainer
from adapter_bert.weights import loading

# In messages of TensorFlow's writers. The type of such an error depends on the version.
_FILE_SYSTEM_ERROR = re.compile(
    "No space left|Read-only file|Permission denied|File too large|quota exceeded|Failed to flush"
)


class TrainingLoop:
    """Trains to the last step, starting from the newest checkpoint if there is one."""

    def __init__(
        self, trainer: Trainer, schedule: Schedule, features: SplitFeatures, dev: Optional[DevSet] = None
    ) -> None:
        """Prepare a training run; `dev` is evaluated during training, to select the best weights and to stop early."""
        self.history = trainer.folder.history()  # evaluations and step times
        self._trainer = trainer
        self._settings = trainer.settings
        self._folder = trainer.folder
        self._schedule = schedule
        self._features = features
        self._workers = trainer.workers
        self._due_steps = self._find_due_steps() if dev else frozenset()  # of evaluations
        self._evaluator = self._make_evaluator(dev) if dev and self._workers.is_first else None
        self._progress: Optional[ProgressHook] = None

    def _find_due_steps(self) -> FrozenSet[int]:
        settings, schedule = self._settings, self._schedule
        if settings.eval_every_steps:
            return multiples(settings.eval_every_steps, schedule.num_train_steps)
        return epoch_ends(schedule.num_examples, settings.train_batch_size, schedule.num_train_steps)

    def _make_evaluator(self, dev: DevSet) -> Evaluator:
        patience = self._settings.early_stopping_patience
        return Evaluator(dev, self._due_steps, patience, self.history, self._trainer.best_pack)

    def run(self) -> None:
        """Train, then let the trainer use the best weights."""
        spec, start = self._trainer.spec, self._folder.latest_step()
        for line in parameters.parameter_table(spec.shapes, spec.trained_names):
            tf.logging.info(line)
        # The run may have been killed between a checkpoint and its evaluation.
        if self._workers.exchange(self._evaluate_newest(start))[0]:
            tf.logging.info("Training stopped early at step %d; nothing is left to do.", start)
        else:
            tf.logging.info(
                "***** Training: steps %d to %d, batch size %d, seed %d *****",
                start,
                self._schedule.num_train_steps,
                self._settings.train_batch_size,
                self._trainer.record.seed,
            )
            if self._settings.device.supports_hooks:
                self._train_to(self._schedule.num_train_steps, self._evaluator)
            else:
                self.run_in_pieces()
            if self._workers.is_first:
                self.history.write()
                self._trainer.best_pack.save_last()
        self._workers.leave()
        if not self._workers.is_first:
            return
        self._trainer.trained_weights = self._trainer.find_weights(loading.USE_TRAINED)
        if self._evaluator and self._evaluator.best_rows is not None:
            self._trainer.known_predictions[self._evaluator.dev.features] = self._evaluator.best_rows

    def run_in_pieces(self) -> None:
        """Alternate between training and evaluation: a TPU graph cannot contain a second model."""
        for step in sorted(self._evaluator.due_steps if self._evaluator else [self._schedule.num_train_steps]):
            if step > self._folder.latest_step():
                self._train_to(step)
                if self._evaluate_newest(step):
                    return

    def _evaluate_newest(self, step: int) -> bool:
        """Evaluate the newest checkpoint, written at `step`, if an evaluation is due; return whether to stop."""
        if self._evaluator is None:
            return False
        if self._evaluator.is_due(step):
            newest = self._trainer.find_weights(loading.TRAIN)
            for _, rows in self._trainer.predict([self._evaluator.dev.features], newest):
                self._evaluator.evaluate(step, rows, newest.path)
        return self._evaluator.should_stop

    def _train_to(self, step: int, evaluator: Optional[Evaluator] = None) -> None:
        """Train up to a step, and evaluate in the same session if there is an evaluator."""
        settings = self._settings
        # On a TPU no hook would see the request, so signals end the process immediately.
        with signals.deferred(settings.device.supports_hooks) as request:
            stop = signals.StopRequest() if self._workers.count > 1 else request
            label_types, seed = self._trainer.spec.head.label_types, self._trainer.record.seed
            total, start = self._schedule.num_train_steps, self._folder.latest_step()
            share = Share(self._workers.rank, self._workers.count)
            input_fn = self._features.training_input_fn(settings, label_types, total, seed, start, share)
            with self._user_errors(), distributed.translated_errors(self._workers, settings.worker_timeout):
                self._make_estimator(request, stop, evaluator).train(input_fn=input_fn, max_steps=step)
        if stop.is_set:
            if self._workers.is_first:
                self.history.write()
            self._workers.exchange()  # the first has saved: a scheduler may kill all others once one has ended
            step = self._folder.latest_step()
            raise errors.StoppedError(f"interrupted at step {step}; the same command continues from there.")

    def _make_estimator(
        self, request: signals.StopRequest, stop: signals.StopRequest, evaluator: Optional[Evaluator]
    ) -> estimators.TPUEstimator:
        """Return an estimator that stops when `stop` is set: by `request` or, with other workers, if all agree."""
        settings, trainer = self._settings, self._trainer
        dev_data = None
        if evaluator:
            dev = evaluator.dev.features
            dev_input_fn = dev.scoring_input_fn(settings, trainer.spec.head.label_types)
            dev_data = functools.partial(dev_input_fn, {"batch_size": dev.batch_size})
        plan = TrainingPlan(
            self._schedule,
            functools.partial(self._make_hooks, request, stop, evaluator),
            dev_data,
            "whole" if settings.save_full_checkpoint else "trained",
            settings.gradient_checkpointing,
            settings.gradient_accumulation_steps,
            settings.adam_bias_correction,
            settings.use_xla,
            self._workers.cluster,
            settings.worker_timeout,
        )
        config = estimators.run_config(
            settings.device,
            self._folder.path,
            trainer.record.seed,
            settings.save_checkpoints_steps,
            self._workers.cluster,
        )
        self._workers.exchange()  # all servers run now
        model_fn = trainer.make_model_fn(trainer.initial_weights, plan)
        return trainer.engine.make_estimator(model_fn, settings.device, config, settings.train_batch_size)

    def _make_hooks(
        self,
        request: signals.StopRequest,
        stop: signals.StopRequest,
        evaluator: Optional[Evaluator],
        tensors: TrainingTensors,
    ) -> List[tf.train.SessionRunHook]:
        steps, batch_size = self._schedule.num_train_steps, self._features.batch_size
        self._progress = ProgressHook(tensors, steps, batch_size, self.history, stop)
        # The progress hook comes before the others, so that it does not count evaluation time.
        hooks = [self._progress, *(self._writing_hooks(evaluator, tensors) if self._workers.is_first else ())]
        if tensors.stop is None:
            return hooks
        agreeing = AgreedStopHook(self._workers, tensors.stop, request, stop, self._settings.worker_timeout)
        return [agreeing, *hooks, WaitHook(self._workers, self._due_steps, evaluator)]

    def _writing_hooks(self, evaluator: Optional[Evaluator], tensors: TrainingTensors) -> List[tf.train.SessionRunHook]:
        steps = self._schedule.num_train_steps
        saving = CheckpointHook(tensors, self._folder.path, self._settings.save_checkpoints_steps, evaluator)
        # Create the writer in an empty graph: it first writes the current graph, which is larger than the weights.
        with tf.Graph().as_default():
            writer = tf.summary.FileWriterCache.get(self._folder.path)
        # About fifty points on TensorBoard's curves, or one every 100 steps.
        summaries = SummaryHook(tensors, writer, max(1, min(100, steps // 50)))
        return [summaries, saving]

    @contextlib.contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Raise `errors.UserError` for a loss that is not finite, damaged features, a full disk or lack of memory."""
        settings = self._settings
        read = [*self._features.record_files, *(self._evaluator.dev.features.record_files if self._evaluator else ())]
        try:
            with feature_store.damage_errors(read):
                yield
        except (tf.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error, tf.errors.InvalidArgumentError) and optimization.NOT_FINITE not in str(error):
                raise
            step = self._progress.step + 1 if self._progress else 0
            failed_at = f" at step {step}" if step else ""
            saved = [tf.train.latest_checkpoint(self._folder.path)]
            saved += [self._folder.pack_path] if self._folder.has_pack() else []
            good = ", ".join(path for path in saved if path) or "none were saved yet"
            raise errors.DivergedError(
                f"The loss became NaN or infinite{failed_at}: lower --learning_rate (it is {settings.learning_rate}) "
                f"and use another --output_dir. Last good weights: {good}.",
                step,
                self._trainer.spec.parameter_counts(),
            ) from None
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            if isinstance(error, OSError) or _FILE_SYSTEM_ERROR.search(str(error)):
                with files.user_errors(f"Cannot write to {self._folder.path}"):
                    # The summary writer raises a RuntimeError.
                    raise (OSError(str(error)) if isinstance(error, RuntimeError) else error) from None
            if not isinstance(error, tf.errors.ResourceExhaustedError):
                raise
            raise errors.UserError(
                "Out of memory: set --gradient_checkpointing=true, raise --gradient_accumulation_steps (it is "
                f"{settings.gradient_accumulation_steps}), or lower --train_batch_size (it is "
                f"{settings.train_batch_size}) or --max_seq_length (it is {settings.max_seq_length})."
            ) from None
        finally:
            if self._progress:
                self._progress.close()
