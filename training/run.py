"""A run: one model with its settings in one output folder. What every entry point does the same way."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from typing import Any, Dict, Iterator, Optional

import numpy as np
import tensorflow.compat.v1 as tf

import errors
import modeling
import optimization
import tokenization
from pipeline import records
from training import checkpoints, compat, files, hooks, parameters
from training.model_fn import Schedule, build_model_fn
from training.settings import MODEL, TRAINING, Settings

SETTINGS_FILE = "settings.json"


class Run:
    """Checks everything when it is made and writes nothing; `claim_output_dir` is the first step that writes."""

    def __init__(self, settings: Settings, head: Any, num_train_examples: int = 0) -> None:
        """Reads and checks config, vocabulary, earlier settings and checkpoints.

        Args:
          settings: checked settings.
          head: see `training.heads`.
          num_train_examples: size of the training split; only needed for training.

        Raises:
          errors.UserError: something does not exist or does not fit.
        """
        self.settings = settings
        self.head = head
        self.config = modeling.BertConfig.from_json_file(settings.bert_config_file)
        self.tokenizer = load_tokenizer(settings, self.config)
        modeling.check_sequence_length(settings.max_seq_length, self.config)
        self.seed = self._check_earlier_settings()
        self.shapes = parameters.model_shapes(self.config, head, settings.adapter)
        self.trained = optimization.trainable_names(
            list(self.shapes), settings.tuning_mode, self.config.num_hidden_layers, settings.tune_top_layers
        )
        self._init = self._find_initial_values()
        self._schedule = self._make_schedule(num_train_examples) if settings.do_train else None
        self._cluster = None
        if settings.use_tpu and settings.tpu_name:
            self._cluster = compat.tpu_cluster(settings.tpu_name, settings.tpu_zone, settings.gcp_project)

    def _check_earlier_settings(self) -> int:
        """Compares with the run that the output folder holds, if any; returns the seed to use."""
        path = os.path.join(self.settings.output_dir, SETTINGS_FILE)
        seed = self.settings.seed
        drawn = random.SystemRandom().randrange(2**31) if seed is None else seed
        if not tf.gfile.Exists(path):
            return drawn
        try:
            with tf.gfile.GFile(path, "r") as reader:
                earlier = json.loads(reader.read())
            if not isinstance(earlier, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            raise errors.UserError(f"{path} is damaged ({error}): use another --output_dir.") from None
        now = self.settings.identity((MODEL, TRAINING) if self.settings.do_train else (MODEL,))
        if seed is None:
            now.pop("seed", None)
        # A setting that an older version did not know had its default then.
        unset = {field.name: field.default for field in dataclasses.fields(self.settings)}
        differing = [
            f"--{name} was {earlier.get(name, unset[name])}, is {value}"
            for name, value in now.items()
            if earlier.get(name, unset[name]) != value
        ]
        if differing:
            raise errors.UserError(
                "The output folder {} holds a run with other settings: {}. Use another --output_dir, or the same "
                "settings.".format(self.settings.output_dir, "; ".join(differing))
            )
        return earlier.get("seed", drawn) if seed is None else seed

    def _find_initial_values(self) -> Optional[checkpoints.Source]:
        settings = self.settings
        if not settings.do_train and settings.init_checkpoint and self._is_own(settings.init_checkpoint):
            # One of several checkpoints of this folder's run, named to be evaluated.
            return checkpoints.choose_source(self.shapes, settings.init_checkpoint, for_training=False)
        source = checkpoints.latest_of_run(self.shapes, settings.output_dir, self.trained if settings.do_train else ())
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
        tf.logging.warning("No --init_checkpoint: BERT itself starts from random weights.")
        return None

    def claim_output_dir(self) -> None:
        """Makes the output folder and, before training, records whose run it holds."""
        files.make_folder(self.settings.output_dir)
        if self.settings.do_train:
            values = dict(self.settings.identity((MODEL, TRAINING)), seed=self.seed)
            text = json.dumps(values, indent=2, sort_keys=True) + "\n"
            files.write_text(os.path.join(self.settings.output_dir, SETTINGS_FILE), text)

    def _make_schedule(self, num_examples: int) -> Schedule:
        """Steps and learning rate for a training split of this size."""
        settings = self.settings
        steps = int(num_examples / settings.train_batch_size * settings.num_train_epochs)
        if steps < 1:
            raise errors.UserError(
                f"{num_examples} examples in batches of {settings.train_batch_size} for {settings.num_train_epochs} "
                "epochs make less than one step: lower --train_batch_size or raise --num_train_epochs."
            )
        return Schedule(settings.learning_rate, steps, int(steps * settings.warmup_proportion))

    def train(self, record_file: str) -> None:
        """Trains to the last step of the schedule, from the newest checkpoint if there is one."""
        settings, schedule = self.settings, self._schedule
        for line in parameters.parameter_table(self.shapes, self.trained):
            tf.logging.info(line)
        start = self._init.step if self._continues() else 0
        tf.logging.info(
            "***** Training: steps %d to %d, batch size %d, seed %d *****",
            start,
            schedule.num_train_steps,
            settings.train_batch_size,
            self.seed,
        )
        input_fn = records.file_based_input_fn_builder(
            record_file,
            settings.max_seq_length,
            is_training=True,
            drop_remainder=True,
            seed=self.seed,
            skip_examples=start * settings.train_batch_size,
        )
        try:
            self._estimator().train(input_fn=input_fn, max_steps=schedule.num_train_steps)
        except tf.train.NanLossDuringTrainingError:
            raise errors.UserError(
                f"The loss became NaN: lower --learning_rate (it is {settings.learning_rate}) and use another "
                f"--output_dir. The last checkpoint is {tf.train.latest_checkpoint(settings.output_dir)}."
            ) from None
        except tf.errors.ResourceExhaustedError:
            raise errors.UserError(
                f"Out of memory: lower --train_batch_size (it is {settings.train_batch_size}) or --max_seq_length "
                f"(it is {settings.max_seq_length})."
            ) from None

    def predict(self, record_file: str, batch_size: int) -> Iterator[Dict[str, np.ndarray]]:
        """Yields the head's predictions for every record in the file's order, fillers left out."""
        input_fn = records.file_based_input_fn_builder(
            record_file, self.settings.max_seq_length, is_training=False, drop_remainder=self.settings.use_tpu
        )
        # A checkpoint without adapters or head (a BERT in the output folder) initialises; it cannot be restored whole.
        named = not self.settings.do_train and self._is_own(self._init.prefix) and not self._init.fresh
        predictions = self._estimator(predict_batch_size=batch_size).predict(
            input_fn=input_fn, yield_single_examples=True, checkpoint_path=self._init.prefix if named else None
        )
        for row in predictions:
            if row["is_real_example"]:
                yield row

    def step(self) -> int:
        """The training step of the weights that `predict` uses."""
        if not self.settings.do_train:
            return self._init.step
        return checkpoints.read_step(tf.train.latest_checkpoint(self.settings.output_dir))

    def _is_own(self, checkpoint: str) -> bool:
        """Whether a checkpoint lies in the output folder."""
        return os.path.realpath(os.path.dirname(checkpoint)) == os.path.realpath(self.settings.output_dir)

    def _continues(self) -> bool:
        """Whether the estimator finds a checkpoint in its own folder and needs no initial values."""
        return tf.train.latest_checkpoint(self.settings.output_dir) is not None

    def _estimator(self, predict_batch_size: int = 8) -> compat.TPUEstimator:
        settings, schedule = self.settings, self._schedule
        init = None if self._continues() else self._init
        model_fn = build_model_fn(
            self.config,
            self.head,
            settings.adapter,
            init_checkpoint=init.prefix if init else None,
            init_names=init.names if init else None,
            schedule=schedule,
            tuning_mode=settings.tuning_mode,
            top_layers=settings.tune_top_layers,
            use_tpu=settings.use_tpu,
            use_one_hot_embeddings=settings.use_tpu,
            training_hooks=lambda loss: [hooks.ProgressHook(loss, schedule.num_train_steps, settings.train_batch_size)],
        )
        return make_estimator(model_fn, settings, self.seed, self._cluster, predict_batch_size)


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
    model_fn: Any, settings: Settings, seed: int, cluster: Any, predict_batch_size: int
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
