"""A run: one model with its settings in one output folder. What every entry point does the same way."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import optimization
import tokenization
from adapter_bert.common import errors, files, signals
from adapter_bert.devices import estimators
from adapter_bert.evaluation import scores as evaluation
from adapter_bert.evaluation.scores import Evaluator, History
from adapter_bert.model import parameters
from adapter_bert.model.heads import Head
from adapter_bert.pipeline import batches, feature_store, records
from adapter_bert.pipeline.tfrecords import Files
from adapter_bert.settings.groups import Settings
from adapter_bert.training import hooks
from adapter_bert.training.model_fn import Schedule, TrainingTensors, build_model_fn
from adapter_bert.weights import bases, checkpoints, fingerprints, loading, packs, record
from adapter_bert.weights.best_pack import BestPack
from adapter_bert.weights.record import RunRecord


@dataclasses.dataclass(frozen=True)
class DevSet:
    """What is scored along a training.

    Attributes:
      record_files: its features.
      score: predictions -> scores.
    """

    record_files: Files
    score: evaluation.Scorer

    @property
    def num_examples(self) -> int:
        """How many there are."""
        return feature_store.num_records(self.record_files)


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
          head: see `model.heads`.
          num_train_examples: size of the training split; only needed for training.
          facts: what else makes the run what it is and must be the same when it goes on, e.g. a hash of the data.

        Raises:
          errors.UserError: something does not exist or does not fit.
        """
        self.settings = settings
        self.head = head
        self.config = modeling.BertConfig.from_json_file(settings.bert_config_file)
        self.tokenizer = load_tokenizer(settings, self.config)
        self._tokenizer_facts = bases.describe_tokenizer(self.tokenizer)
        modeling.check_sequence_length(settings.max_seq_length, self.config)
        self.record = RunRecord(settings, facts or {})
        self.seed = self.record.seed
        self.shapes = parameters.model_shapes(self.config, head, settings.adapter)
        self.trained = optimization.trainable_names(
            list(self.shapes), settings.tuning_mode, self.config.num_hidden_layers, settings.tune_top_layers
        )
        trained = set(self.trained)
        self.frozen = [name for name in self.shapes if name not in trained]
        self._init = self._find_initial_values()
        self._check_initial_values()
        self._result: Optional[loading.Source] = None
        self._num_train_examples = num_train_examples
        self._schedule = self._make_schedule() if settings.do_train else None
        estimators.tpu_cluster(settings.device)

    def _find_initial_values(self) -> Optional[loading.Source]:
        settings = self.settings
        choose = functools.partial(
            loading.choose_source,
            self.shapes,
            settings.init_checkpoint,
            settings.do_train,
            settings.adapter_pack,
            self.head.kind,
            self.config,
        )
        if not settings.do_train and self._names_own_weights():
            # One of several checkpoints of this folder's run, named to be evaluated.
            return choose()
        if not settings.do_train and settings.adapter_pack and record.holds_run(settings.output_dir):
            raise errors.UserError(
                f"The folder {settings.output_dir} holds a run of its own: to evaluate --adapter_pack="
                f"{settings.adapter_pack}, use another --output_dir."
            )
        source = self._own_run().find(to_continue=settings.do_train)
        if source:
            tf.logging.info("Continuing from %s (step %d)", source, source.step)
            return source
        if settings.init_checkpoint:
            tokenization.validate_case_matches_checkpoint(settings.do_lower_case, settings.init_checkpoint)
            source = choose()
            tf.logging.info(
                "Initial values: %d variables from %s, %d fresh", len(source.names), source, len(source.fresh)
            )
            return source
        if not settings.do_train:
            raise errors.UserError(
                f"There is nothing to evaluate: {settings.output_dir} holds no checkpoint, and no --init_checkpoint "
                "is given."
            )
        if settings.tuning_mode != "full":
            raise errors.UserError(
                f"--tuning_mode={settings.tuning_mode} keeps BERT as it is, and without --init_checkpoint it would be "
                "random: give the checkpoint of a pre-trained BERT."
            )
        tf.logging.warning("No --init_checkpoint: BERT itself starts from random weights.")
        return None

    def _own_run(self) -> loading.OwnRun:
        """The run of the output folder, to be looked for."""
        settings = self.settings
        base = None if self._names_own_weights() else settings.init_checkpoint
        return loading.OwnRun(
            settings.output_dir,
            self.shapes,
            self.trained,
            base,
            settings.adapter_pack if base else None,
            settings.save_full_checkpoint,
        )

    def _names_own_weights(self) -> bool:
        """Whether what is named as initial belongs to the run of the output folder."""
        own = os.path.realpath(self.settings.output_dir)
        named = self.settings.adapter_pack or self.settings.init_checkpoint
        return bool(named) and own in (os.path.realpath(named), os.path.realpath(checkpoints.folder_of(named)))

    def _check_initial_values(self) -> None:
        """Refuses weights that are for other texts, or for nothing.

        An untrained head can be scored, to compare with; nobody wants its predictions.
        """
        settings, source = self.settings, self._init
        if source is None:
            return
        if source.pack:
            self._check_pack(source.pack, source.path)
        predicts_only = settings.do_predict and not settings.do_train and not settings.do_eval
        if predicts_only and any(optimization.HEAD.search(name) for name in source.fresh):
            raise errors.UserError(
                f"{source.path} holds no trained head, so there is nothing to predict with: give the --output_dir, the "
                "--init_checkpoint or the --adapter_pack of a training."
            )

    def _check_pack(self, pack: packs.Pack, path: str) -> None:
        """Refuses a pack that would compute something else here than where it was trained."""
        packs.check_architecture(pack, path, self.config.to_dict(), self.settings.bert_config_file)
        packs.check_adapter(pack, path, self.settings.adapter)
        if pack.config.tokenizer != self._tokenizer_facts:
            raise errors.UserError(
                f"The pack {path} was trained with another tokenizer: {pack.config.tokenizer}; this one is "
                f"{self._tokenizer_facts}."
            )
        labels = self.record.facts.get("labels", pack.config.labels)
        if not self.settings.do_train and list(pack.config.labels) != list(labels):
            raise errors.UserError(
                f"The pack {path} has the labels {list(pack.config.labels)}, in this order; the task has {labels}."
            )
        if not self.settings.do_train and pack.config.task != self.settings.task_name:
            tf.logging.warning("The pack %s was trained for %s.", path, pack.config.task)
        if pack.config.max_seq_length != self.settings.max_seq_length:
            tf.logging.warning(
                "The pack %s was trained with --max_seq_length=%d; it is %d now.",
                path,
                pack.config.max_seq_length,
                self.settings.max_seq_length,
            )

    def claim_output_dir(self) -> None:
        """Makes the output folder and, before training, records whose run it holds."""
        files.make_folder(self.settings.output_dir)
        if self.settings.do_train:
            checkpoints.remove_leftovers(self.settings.output_dir)
            self.record.write(**self._base_facts())

    def _base_facts(self) -> Dict[str, Optional[str]]:
        """Fingerprints of the BERT that this run began with, and of what stays frozen of it; None where random."""
        if self._init is None:
            return {"base": None, "frozen": None}
        digests, base = self._init.digests, self.record.facts.get("base")
        if not self._continues():
            base = fingerprints.combine(digests, loading.base_names(self.shapes))
        return {"base": base, "frozen": fingerprints.combine(digests, self.frozen) if self.frozen else None}

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

    def train(self, record_files: Files, dev: Optional[DevSet] = None) -> None:
        """Trains to the last step of the schedule, from the newest checkpoint if there is one.

        Args:
          record_files: features of the training split.
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
        if evaluator and evaluator.should_stop:
            tf.logging.info("Training stopped early at step %d before; nothing is left to do.", start)
            return
        tf.logging.info(
            "***** Training: steps %d to %d, batch size %d, seed %d *****",
            start,
            total,
            settings.train_batch_size,
            self.seed,
        )
        if not settings.device.supports_hooks:
            self._train_in_pieces(record_files, history, dev, evaluator)
        else:
            self._train_to(total, record_files, history, dev, evaluator)
        history.write()
        self._keeper.complete()

    def _make_evaluator(self, dev: DevSet, history: History, start: int) -> Evaluator:
        settings, total = self.settings, self._schedule.num_train_steps
        if settings.eval_every_steps:
            due = evaluation.multiples(settings.eval_every_steps, total)
        else:
            due = evaluation.epoch_ends(self._num_train_examples, settings.train_batch_size, total)
        kept = self._keeper.kept()
        return Evaluator(
            settings.output_dir,
            history,
            start,
            dev.score,
            due,
            self._keeper.keep,
            settings.early_stopping_patience,
            kept.step if kept else None,
        )

    @property
    def _keeper(self) -> BestPack:
        """What keeps the run's pack."""
        return BestPack(self.settings, self.record, self.config, self.head.kind, self._tokenizer_facts, self.trained)

    def note_scores(self, scores: evaluation.Scores) -> None:
        """Adds scores to the pack of a training that was not scored along the way."""
        if self.settings.do_train:
            self._keeper.note_scores(scores)

    def _evaluate_newest(self, evaluator: Evaluator, dev: DevSet, step: int) -> None:
        """Scores the newest checkpoint, which is of this step, if that is due."""
        if evaluator.is_due(step):
            newest = self._own_run().find(to_continue=True)
            rows = list(self._predict(dev.record_files, self.settings.eval_batch_size, newest))
            evaluator.evaluate(step, rows, newest.path)

    def _train_to(
        self,
        step: int,
        record_files: Files,
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
            # Behind the progress: what the others take is not time of a step.
            saving = hooks.CheckpointHook(tensors.saver, settings.output_dir, settings.save_checkpoints_steps)
            scoring = [hooks.EvaluationHook(tensors, evaluator, saving, dev.num_examples)] if evaluator else []
            return [progress, saving, *scoring]

        input_fn = self._training_input_fn(record_files, start)
        dev_data = None
        if dev:
            dev_fn = self._scoring_input_fn(dev.record_files)
            dev_data = lambda: dev_fn({"batch_size": settings.eval_batch_size})  # noqa: E731
        # Summaries go to the writer of this folder. Made here, it does not begin with the graph, which takes more room
        # than the weights.
        with tf.Graph().as_default():
            tf.summary.FileWriterCache.get(settings.output_dir)
        estimator = self._estimator(self._init, training_hooks=make_hooks, dev_data=dev_data)
        # A TPU's loop has no hook that would see the request: there signals act at once.
        with self._translate_failures(watching), signals.deferred(settings.device.supports_hooks) as stop:
            estimator.train(input_fn=input_fn, max_steps=step)
        if watching and watching[-1].mean_width and not settings.pads_all:
            width = watching[-1].mean_width
            tf.logging.info("Batches had %.1f tokens on average (--max_seq_length=%d).", width, settings.max_seq_length)
        if stop.is_set:
            history.write()
            raise errors.StoppedError(
                f"interrupted at step {self._latest_step()}; the same command continues from there."
            )

    @contextlib.contextmanager
    def _translate_failures(self, watching: Sequence[hooks.ProgressHook]) -> Iterator[None]:
        """Turns what can go wrong in a training into a `UserError`, and closes the progress shown by these hooks."""
        settings = self.settings
        try:
            yield
        except (tf.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error, tf.errors.InvalidArgumentError) and optimization.NOT_FINITE not in str(error):
                raise
            failed = f" at step {watching[-1].step + 1}" if watching else ""
            kept = [tf.train.latest_checkpoint(settings.output_dir), self._keeper.kept() and self._keeper.path]
            good = ", ".join(path for path in kept if path) or "none were saved yet"
            raise errors.UserError(
                f"The loss became NaN or infinite{failed}: lower --learning_rate (it is {settings.learning_rate}) and "
                f"use another --output_dir. Weights of before are good: {good}."
            ) from None
        except tf.errors.ResourceExhaustedError as error:
            if "No space left" in str(error):
                raise errors.UserError(f"The disk is full: {errors.reason(error)}.") from None
            raise errors.UserError(
                "Out of memory: set --gradient_checkpointing=true, raise --gradient_accumulation_steps (it is "
                f"{settings.gradient_accumulation_steps}), or lower --train_batch_size (it is "
                f"{settings.train_batch_size}) or --max_seq_length (it is {settings.max_seq_length})."
            ) from None
        finally:
            for hook in watching:
                hook.close()

    def _train_in_pieces(
        self, record_files: Files, history: History, dev: Optional[DevSet], evaluator: Optional[Evaluator]
    ) -> None:
        """Trains with stops for evaluation: a TPU's graph has no room for a second model."""
        total = self._schedule.num_train_steps
        for step in sorted(evaluator.due_steps if evaluator else [total]):
            if step <= self._latest_step():
                continue
            self._train_to(step, record_files, history)
            if evaluator:
                self._evaluate_newest(evaluator, dev, step)
                if evaluator.should_stop:
                    return

    def predict(self, record_files: Files, batch_size: int) -> Iterator[Dict[str, np.ndarray]]:
        """Yields the head's predictions for every record in the file's order, fillers left out."""
        return self._predict(record_files, batch_size, self.source())

    def _predict(
        self, record_files: Files, batch_size: int, source: Optional[loading.Source]
    ) -> Iterator[Dict[str, np.ndarray]]:
        predicted = self._estimator(source, predict_batch_size=batch_size).predict(
            input_fn=self._scoring_input_fn(record_files), yield_single_examples=False
        )
        yield from evaluation.predicted_rows(predicted, feature_store.num_records(record_files), "predictions")

    def _training_input_fn(self, record_files: Files, start: int) -> records.InputFn:
        """The batches of the training from a step on."""
        settings = self.settings
        if not settings.pads_all:
            return batches.training_input_fn(
                record_files,
                settings.max_seq_length,
                epoch_size=feature_store.num_records(record_files),
                total_steps=self._schedule.num_train_steps,
                seed=self.seed,
                skip_steps=start,
                label_types=self.head.label_types,
            )
        return records.file_based_input_fn_builder(
            record_files,
            settings.max_seq_length,
            is_training=True,
            drop_remainder=True,
            seed=self.seed,
            skip_examples=start * settings.train_batch_size,
            label_types=self.head.label_types,
        )

    def _scoring_input_fn(self, record_files: Files) -> records.InputFn:
        """One pass over records, for scoring."""
        if not self.settings.pads_all:
            return batches.scoring_input_fn(record_files, self.settings.max_seq_length, self.head.label_types)
        return records.file_based_input_fn_builder(
            record_files,
            self.settings.max_seq_length,
            is_training=False,
            drop_remainder=self.settings.device.needs_static_shapes,
            label_types=self.head.label_types,
        )

    def source(self) -> loading.Source:
        """The weights that `predict` uses: the run's pack on its base, or what is given to be evaluated."""
        if not self.settings.do_train:
            return self._init
        if self._result is None:
            self._result = self._own_run().find(to_continue=False)
        return self._result

    def step(self) -> int:
        """The training step of those weights."""
        return self.source().step

    def pack_fingerprint(self) -> Optional[str]:
        """A hash of what was trained; None where nothing was."""
        return self._fingerprint(self.trained)

    def frozen_fingerprint(self) -> Optional[str]:
        """A hash of what stays frozen; None where nothing does."""
        return self._fingerprint(self.frozen)

    def _fingerprint(self, names: Sequence[str]) -> Optional[str]:
        digests = self.source().digests
        return fingerprints.combine(digests, names) if names and all(name in digests for name in names) else None

    def _continues(self) -> bool:
        """Whether the estimator finds a checkpoint in its own folder and needs no initial values."""
        return tf.train.latest_checkpoint(self.settings.output_dir) is not None

    def _latest_step(self) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        latest = tf.train.latest_checkpoint(self.settings.output_dir)
        return checkpoints.read_step(latest) if latest else 0

    def _estimator(
        self, source: Optional[loading.Source], predict_batch_size: int = 8, **training: Any
    ) -> estimators.TPUEstimator:
        settings = self.settings
        model_fn = build_model_fn(
            self.config,
            self.head,
            settings.adapter,
            init_checkpoint=None,
            source=source,
            checkpoint_kind="whole" if settings.save_full_checkpoint else "trained",
            schedule=self._schedule,
            tuning_mode=settings.tuning_mode,
            top_layers=settings.tune_top_layers,
            use_tpu=settings.use_tpu,
            use_one_hot_embeddings=settings.device.uses_one_hot_embeddings,
            gradient_checkpointing=settings.gradient_checkpointing,
            accumulation_steps=settings.gradient_accumulation_steps,
            use_xla=settings.use_xla,
            **training,
        )
        # Some fifty points on TensorBoard's curves, and more where a run is long.
        steps = self._schedule.num_train_steps if self._schedule else 0
        summary_steps = max(1, min(100, steps // 50))
        # Where nothing is trained, the estimator must not find a checkpoint: all values come from the source. It writes
        # nothing then, so that this folder never exists.
        folder = settings.output_dir if training else os.path.join(settings.output_dir, uuid.uuid4().hex)
        config = estimators.run_config(
            settings.device, folder, self.seed, settings.save_checkpoints_steps, summary_steps
        )
        return estimators.make_estimator(
            model_fn, settings.device, config, settings.train_batch_size, predict_batch_size
        )


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
