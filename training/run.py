"""A run: one model with its settings in one output folder. What every entry point does the same way."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import errors
import modeling
import optimization
import tokenization
from pipeline import records
from training import checkpoints, compat, evaluation, files, hooks, interrupts, parameters
from training.evaluation import Evaluator, History
from training.heads import Head
from training.model_fn import Schedule, TrainingTensors, build_model_fn
from training.record import RunRecord
from training.settings import Settings


@dataclasses.dataclass(frozen=True)
class DevSet:
    """What is scored along a training.

    Attributes:
      record_file: its features.
      score: predictions -> scores.
    """

    record_file: str
    score: evaluation.Scorer


class Run:
    """Checks everything when it is made and writes nothing; `claim_output_dir` is the first step that writes."""

    def __init__(
        self,
        settings: Settings,
        head: Head,
        num_train_examples: int = 0,
        facts: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Reads and checks config, vocabulary, earlier settings and checkpoints.

        Args:
          settings: checked settings.
          head: see `training.heads`.
          num_train_examples: size of the training split; only needed for training.
          facts: what else makes the run what it is and must be the same when it goes on, e.g. a hash of the data.

        Raises:
          errors.UserError: something does not exist or does not fit.
        """
        self.settings = settings
        self.head = head
        self.config = modeling.BertConfig.from_json_file(settings.bert_config_file)
        self.tokenizer = load_tokenizer(settings, self.config)
        modeling.check_sequence_length(settings.max_seq_length, self.config)
        self.record = RunRecord(settings, facts or {})
        self.seed = self.record.seed
        self.shapes = parameters.model_shapes(self.config, head, settings.adapter)
        self.trained = optimization.trainable_names(
            list(self.shapes), settings.tuning_mode, self.config.num_hidden_layers, settings.tune_top_layers
        )
        self._init = self._find_initial_values()
        self._check_head_for_prediction()
        self._num_train_examples = num_train_examples
        self._schedule = self._make_schedule() if settings.do_train else None
        self._cluster = None
        if settings.use_tpu and settings.tpu_name:
            self._cluster = compat.tpu_cluster(settings.tpu_name, settings.tpu_zone, settings.gcp_project)

    def _find_initial_values(self) -> Optional[checkpoints.Source]:
        settings = self.settings
        if not settings.do_train and settings.init_checkpoint and self._is_own(settings.init_checkpoint):
            # One of several checkpoints of this folder's run, named to be evaluated.
            return checkpoints.choose_source(self.shapes, settings.init_checkpoint, for_training=False)
        source = checkpoints.find_own(self.shapes, settings.output_dir, self.trained if settings.do_train else ())
        if source:
            tf.logging.info("Continuing from %s (step %d)", source.prefix, source.step)
            return source
        if self.settings.init_checkpoint:
            tokenization.validate_case_matches_checkpoint(self.settings.do_lower_case, self.settings.init_checkpoint)
            source = checkpoints.choose_source(self.shapes, self.settings.init_checkpoint, self.settings.do_train)
            tf.logging.info(
                "Initial values: %d variables from %s, %d fresh",
                len(source.names),
                source.prefix,
                len(source.fresh),
            )
            return source
        if not self.settings.do_train:
            raise errors.UserError(
                f"There is nothing to evaluate: {self.settings.output_dir} holds no checkpoint, and no "
                "--init_checkpoint is given."
            )
        if settings.tuning_mode != "full":
            raise errors.UserError(
                f"--tuning_mode={settings.tuning_mode} keeps BERT as it is, and without --init_checkpoint it would be "
                "random: give the checkpoint of a pre-trained BERT."
            )
        tf.logging.warning("No --init_checkpoint: BERT itself starts from random weights.")
        return None

    def _check_head_for_prediction(self) -> None:
        """An untrained head can be scored, to compare with; nobody wants its predictions."""
        settings = self.settings
        predicts_only = settings.do_predict and not settings.do_train and not settings.do_eval
        if predicts_only and any(optimization.HEAD.search(name) for name in self._init.fresh):
            raise errors.UserError(
                f"{self._init.prefix} holds no trained head, so there is nothing to predict with: give the "
                "--output_dir or the --init_checkpoint of a training."
            )

    def base_fingerprint(self) -> Optional[str]:
        """A hash of the BERT that this run began with; None where that was random."""
        if self.record.is_known or "base" in self.record.facts:
            return self.record.facts.get("base")
        return self._init and checkpoints.fingerprint(self._init.prefix, checkpoints.base_names(self.shapes))

    def claim_output_dir(self) -> None:
        """Makes the output folder and, before training, records whose run it holds."""
        files.make_folder(self.settings.output_dir)
        if self.settings.do_train:
            self.record.write(base=self.base_fingerprint())

    def _make_schedule(self) -> Schedule:
        """Steps and learning rate for the training split."""
        settings, num_examples = self.settings, self._num_train_examples
        steps = int(num_examples / settings.train_batch_size * settings.num_train_epochs)
        if steps < 1:
            raise errors.UserError(
                f"{num_examples} examples in batches of {settings.train_batch_size} for {settings.num_train_epochs} "
                "epochs make less than one step: lower --train_batch_size or raise --num_train_epochs."
            )
        return Schedule(settings.learning_rate, steps, int(steps * settings.warmup_proportion))

    def train(self, record_file: str, dev: Optional[DevSet] = None) -> None:
        """Trains to the last step of the schedule, from the newest checkpoint if there is one.

        Args:
          record_file: features of the training split.
          dev: scored along the way; decides on the best weights and on stopping early.
        """
        settings, total = self.settings, self._schedule.num_train_steps
        for line in parameters.parameter_table(self.shapes, self.trained):
            tf.logging.info(line)
        start = self._init.step if self._continues() else 0
        history = History(settings.output_dir)
        evaluator = self._make_evaluator(dev, history, start) if dev else None
        if evaluator:
            # Killed between a checkpoint and its scores.
            self._evaluate_newest(evaluator, dev, start)
        if evaluator and evaluator.is_over:
            tf.logging.info("Training stopped early at step %d before; nothing is left to do.", start)
            return
        tf.logging.info(
            "***** Training: steps %d to %d, batch size %d, seed %d *****",
            start,
            total,
            settings.train_batch_size,
            self.seed,
        )
        if settings.use_tpu:
            self._train_in_pieces(record_file, history, dev, evaluator)
        else:
            self._train_to(total, record_file, history, dev, evaluator)
        history.write()

    def _make_evaluator(self, dev: DevSet, history: History, start: int) -> Evaluator:
        settings, total = self.settings, self._schedule.num_train_steps
        if settings.eval_every_steps:
            due = evaluation.multiples(settings.eval_every_steps, total)
        else:
            due = evaluation.epoch_ends(self._num_train_examples, settings.train_batch_size, total)
        return Evaluator(settings.output_dir, history, start, dev.score, due, settings.early_stopping_patience)

    def _evaluate_newest(self, evaluator: Evaluator, dev: DevSet, step: int) -> None:
        """Scores the newest checkpoint, which is of this step, if that is due."""
        if evaluator.is_due(step):
            latest = checkpoints.find_latest(self.settings.output_dir)
            rows = list(self._predict(dev.record_file, self.settings.eval_batch_size, latest))
            evaluator.evaluate(step, rows, functools.partial(checkpoints.copy, latest))

    def _train_to(
        self,
        step: int,
        record_file: str,
        history: History,
        dev: Optional[DevSet] = None,
        evaluator: Optional[Evaluator] = None,
    ) -> None:
        """Trains up to a step; scores the dev set in the same session, where one is given."""
        settings = self.settings
        start = self._latest_step()
        watching: List[hooks.ProgressHook] = []

        def make_hooks(tensors: TrainingTensors) -> List[tf.train.SessionRunHook]:
            total = self._schedule.num_train_steps
            progress = hooks.ProgressHook(tensors, total, settings.train_batch_size, history, stop)
            watching.append(progress)
            # Behind the progress: what evaluation takes is not time of a step.
            return [progress] + ([hooks.EvaluationHook(tensors, evaluator, settings.output_dir)] if evaluator else [])

        input_fn = records.file_based_input_fn_builder(
            record_file,
            settings.max_seq_length,
            is_training=True,
            drop_remainder=True,
            seed=self.seed,
            skip_examples=start * settings.train_batch_size,
            label_type=self.head.label_type,
        )
        dev_data = None
        if dev:
            dev_fn = self._input_fn(dev.record_file)
            dev_data = lambda: dev_fn({"batch_size": settings.eval_batch_size})  # noqa: E731
        estimator = self._estimator(training_hooks=make_hooks, dev_data=dev_data)
        # A TPU's loop has no hook that would see the request: there signals act at once.
        with self._failures_told(watching), interrupts.deferred(not settings.use_tpu) as stop:
            estimator.train(input_fn=input_fn, max_steps=step)
        if stop.is_set:
            history.write()
            raise errors.StoppedError(
                f"interrupted at step {self._latest_step()}; the same command continues from there."
            )

    @contextlib.contextmanager
    def _failures_told(self, watching: Sequence[hooks.ProgressHook]) -> Iterator[None]:
        """Turns what can go wrong in a training into a `UserError`, and closes the progress shown by these hooks."""
        settings = self.settings
        try:
            yield
        except (tf.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error, tf.errors.InvalidArgumentError) and optimization.NOT_FINITE not in str(error):
                raise
            failed = f" at step {watching[-1].step + 1}" if watching else ""
            kept = [f"the last checkpoint is {tf.train.latest_checkpoint(settings.output_dir)}"]
            best = checkpoints.find_best(settings.output_dir)
            if best:
                kept.append(f"the best is {best}")
            raise errors.UserError(
                f"The loss became NaN or infinite{failed}: lower --learning_rate (it is {settings.learning_rate}) and "
                "use another --output_dir. The weights of before are good: {}.".format(", ".join(kept))
            ) from None
        except tf.errors.ResourceExhaustedError as error:
            if "No space left" in str(error):
                raise errors.UserError(f"The disk is full: {errors.reason(error)}.") from None
            raise errors.UserError(
                f"Out of memory: lower --train_batch_size (it is {settings.train_batch_size}) or --max_seq_length "
                f"(it is {settings.max_seq_length})."
            ) from None
        finally:
            for hook in watching:
                hook.close()

    def _train_in_pieces(
        self, record_file: str, history: History, dev: Optional[DevSet], evaluator: Optional[Evaluator]
    ) -> None:
        """Trains with stops for evaluation: a TPU's graph has no room for a second model."""
        total = self._schedule.num_train_steps
        for step in sorted(evaluator.due_steps if evaluator else [total]):
            if step <= self._latest_step():
                continue
            self._train_to(step, record_file, history)
            if evaluator:
                self._evaluate_newest(evaluator, dev, step)
                if evaluator.is_over:
                    return

    def predict(self, record_file: str, batch_size: int) -> Iterator[Dict[str, np.ndarray]]:
        """Yields the head's predictions for every record in the file's order, fillers left out."""
        return self._predict(record_file, batch_size, self.checkpoint())

    def _predict(self, record_file: str, batch_size: int, checkpoint: Optional[str]) -> Iterator[Dict[str, np.ndarray]]:
        batches = self._estimator(predict_batch_size=batch_size).predict(
            input_fn=self._input_fn(record_file), yield_single_examples=False, checkpoint_path=checkpoint
        )
        for batch in batches:
            yield from evaluation.rows_of(batch)

    def _input_fn(self, record_file: str) -> records.InputFn:
        """One pass over records, for scoring."""
        return records.file_based_input_fn_builder(
            record_file,
            self.settings.max_seq_length,
            is_training=False,
            drop_remainder=self.settings.use_tpu,
            label_type=self.head.label_type,
        )

    def checkpoint(self) -> Optional[str]:
        """The checkpoint of this run that `predict` uses: the best, or else the newest.

        None where weights of another folder are evaluated, or a BERT without adapters or head in this one: those
        initialise a model, they cannot be restored whole.
        """
        if self.settings.do_train:
            return checkpoints.find_best(self.settings.output_dir) or checkpoints.find_latest(self.settings.output_dir)
        return self._init.prefix if self._is_own(self._init.prefix) and not self._init.fresh else None

    def step(self) -> int:
        """The training step of the weights that `predict` uses."""
        return checkpoints.read_step(self.checkpoint()) if self.settings.do_train else self._init.step

    def _is_own(self, checkpoint: str) -> bool:
        """Whether a checkpoint belongs to the run of the output folder."""
        return os.path.realpath(checkpoints.run_folder(checkpoint)) == os.path.realpath(self.settings.output_dir)

    def _continues(self) -> bool:
        """Whether the estimator finds a checkpoint in its own folder and needs no initial values."""
        return tf.train.latest_checkpoint(self.settings.output_dir) is not None

    def _latest_step(self) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        latest = tf.train.latest_checkpoint(self.settings.output_dir)
        return checkpoints.read_step(latest) if latest else 0

    def _estimator(self, predict_batch_size: int = 8, **training: Any) -> compat.TPUEstimator:
        settings = self.settings
        init = None if self._continues() else self._init
        model_fn = build_model_fn(
            self.config,
            self.head,
            settings.adapter,
            init_checkpoint=init.prefix if init else None,
            init_names=init.names if init else None,
            schedule=self._schedule,
            tuning_mode=settings.tuning_mode,
            top_layers=settings.tune_top_layers,
            use_tpu=settings.use_tpu,
            use_one_hot_embeddings=settings.use_tpu,
            **training,
        )
        # Some fifty points on TensorBoard's curves, and more where a run is long.
        steps = self._schedule.num_train_steps if self._schedule else 0
        summary_steps = max(1, min(100, steps // 50))
        return make_estimator(model_fn, settings, self.seed, self._cluster, predict_batch_size, summary_steps)


def load_tokenizer(settings: Settings, config: modeling.BertConfig) -> Any:
    """The tokenizer of the settings, checked against the model's vocabulary size and its case."""
    tokenizer = tokenization.create_tokenizer(settings.vocab_file, settings.spm_model_file, settings.do_lower_case)
    source = settings.vocab_file or settings.spm_model_file
    if len(tokenizer.vocab) != config.vocab_size:
        raise errors.UserError(
            f"The vocabulary {source} has {len(tokenizer.vocab)} entries, but {settings.bert_config_file} says "
            f"vocab_size {config.vocab_size}: they belong to different models (where a table was padded on purpose, "
            "append lines [unused…] to the vocabulary)."
        )
    if settings.vocab_file:
        tokenization.check_case_matches_vocabulary(settings.do_lower_case, tokenizer.vocab)
    return tokenizer


def make_estimator(
    model_fn: Any, settings: Settings, seed: int, cluster: Any, predict_batch_size: int, save_summary_steps: int
) -> compat.TPUEstimator:
    """The one estimator factory; it is a TPUEstimator on CPUs and GPUs too."""
    config = compat.RunConfig(
        cluster=cluster,
        master=settings.master,
        model_dir=settings.output_dir,
        tf_random_seed=seed,
        # On a TPU the estimator brings its own.
        session_config=None if settings.use_tpu else compat.session_config(),
        save_checkpoints_steps=settings.save_checkpoints_steps,
        save_summary_steps=save_summary_steps,
        tpu_config=compat.TPUConfig(
            iterations_per_loop=settings.iterations_per_loop,
            num_shards=settings.num_tpu_cores,
            per_host_input_for_training=compat.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    return compat.TPUEstimator(
        use_tpu=settings.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=settings.train_batch_size,
        eval_batch_size=settings.eval_batch_size,
        predict_batch_size=predict_batch_size,
    )
