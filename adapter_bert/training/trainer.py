"""The model of a run, with its weights and its output folder, and the features that it reads."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import uuid
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.devices import estimators
from adapter_bert.devices.workers import Workers
from adapter_bert.evaluation.scores import Row, predicted_rows
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline import batches, feature_store, records
from adapter_bert.pipeline.frozen_states import FrozenStates
from adapter_bert.pipeline.records import WHOLE, Share
from adapter_bert.settings.groups import Settings
from adapter_bert.training.engine import Engine
from adapter_bert.training.model_fn import NO_TRAINING, ModelFn, TrainingPlan
from adapter_bert.weights import loading
from adapter_bert.weights.loading import WeightRequest, Weights
from adapter_bert.weights.run_folder import BestPack, RunFolder, RunRecord

Predictions = Iterator[Tuple[str, Sequence[Row]]]
LabelTypes = Mapping[str, tf.DType]


class SplitFeatures(NamedTuple):
    """The features of a split: its name, its TFRecord files, the batch size and the cached output of frozen layers."""

    name: str
    record_files: Tuple[str, ...]
    batch_size: int
    states: Optional[FrozenStates] = None

    @property
    def num_examples(self) -> int:
        """Number of examples, including padding examples."""
        return feature_store.num_records(self.record_files)

    def training_input_fn(
        self, settings: Settings, label_types: LabelTypes, total: int, seed: int, start: int, share: Share = WHOLE
    ) -> records.InputFn:
        """Return the input function for training from step `start` to `total`.

        The order of the examples depends on `seed`; `share` is the part of each batch to return.
        """
        paths, length = self.record_files, settings.max_seq_length
        if self.states:
            uncached = self._replace(states=None)
            types = self.states.label_types(label_types)
            return self.states.input_fn(uncached.training_input_fn(settings, types, total, seed, start, share))
        if settings.pads_all:
            skipped = start * self.batch_size
            return records.file_based_input_fn_builder(paths, length, True, True, seed, skipped, label_types, share)
        return batches.training_input_fn(paths, length, self.num_examples, total, seed, start, label_types, share)

    def scoring_input_fn(self, settings: Settings, label_types: LabelTypes) -> records.InputFn:
        """Return the input function of one pass over the split."""
        paths, length = self.record_files, settings.max_seq_length
        if self.states:
            uncached = self._replace(states=None)
            return self.states.input_fn(uncached.scoring_input_fn(settings, self.states.label_types(label_types)))
        if settings.pads_all:
            drops = settings.device.needs_static_shapes
            return records.file_based_input_fn_builder(paths, length, False, drops, label_types=label_types)
        return batches.scoring_input_fn(paths, length, label_types)


@dataclasses.dataclass
class Trainer:
    """A model with its weights, in the output folder of a run. `loop.TrainingLoop` trains it."""

    spec: ModelSpec
    folder: RunFolder
    record: RunRecord  # settings, fingerprints and seed of the run
    request: WeightRequest  # the weights that the user requests
    initial_weights: Optional[Weights]  # to start training from, or to predict with; None for random ones
    best_pack: BestPack  # saves the best weights of a training run
    engine: Engine = dataclasses.field(default_factory=Engine)
    workers: Workers = dataclasses.field(default_factory=Workers)  # that train together; by default, this process alone
    trained_weights: Optional[Weights] = None  # the weights that training has selected, once it has finished
    # Splits that were already predicted with these weights, during training.
    known_predictions: Dict[SplitFeatures, Sequence[Row]] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        return self.record.settings

    @property
    def weights(self) -> Weights:
        """The weights that `predict` uses: the run's pack after training, otherwise the weights to evaluate."""
        weights = self.trained_weights or self.initial_weights
        assert weights, "training from random weights has not finished yet"
        return weights

    def find_weights(self, purpose: str) -> Weights:
        """Return weights that this run has written; the base is not read again."""
        base = self.initial_weights.files[0] if self.initial_weights else None
        weights = loading.resolve(self.spec, self.request, purpose, self.folder, base)
        assert weights, "the run has not written any weights"
        return weights

    def make_model_fn(self, weights: Optional[Weights], plan: TrainingPlan = NO_TRAINING) -> ModelFn:
        """Return the `model_fn` with these initial weights."""
        return ModelFn(self.spec, weights, plan, self.settings.device)

    def predict(self, splits: Sequence[SplitFeatures], weights: Optional[Weights] = None) -> Predictions:
        """Yield each split's name and predictions, in the order of its files, without padding examples.

        Successive splits with the same batch size share a graph, because creating it and loading the weights takes
        seconds. `weights` are used instead of `self.weights` if they are given.
        """
        known = self.known_predictions if weights is None else {}
        for (is_known, batch_size), group in itertools.groupby(
            splits, key=lambda split: (split in known, split.batch_size)
        ):
            if is_known:
                yield from ((split.name, known[split]) for split in group)
            else:
                yield from self._predict(list(group), batch_size, weights or self.weights)

    def _predict(self, splits: Sequence[SplitFeatures], batch_size: int, weights: Weights) -> Predictions:
        settings, label_types = self.settings, self.spec.head.label_types

        def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
            parts = [split.scoring_input_fn(settings, label_types)(params) for split in splits]
            return functools.reduce(lambda first, second: first.concatenate(second), parts)

        # All values come from `weights`, so the estimator must not find a checkpoint. It does not create this folder.
        config = estimators.run_config(settings.device, self.folder.file(uuid.uuid4().hex), self.record.seed)
        model_fn = self.make_model_fn(weights)
        estimator = self.engine.make_estimator(model_fn, settings.device, config, batch_size)
        predicted = estimator.predict(input_fn=input_fn, yield_single_examples=False)
        with feature_store.damage_errors([path for split in splits for path in split.record_files]):
            for split in splits:
                own = itertools.islice(predicted, math.ceil(split.num_examples / batch_size))
                yield split.name, list(predicted_rows(own, split.num_examples, "predictions"))
        next(predicted, None)  # lets the estimator close its session
