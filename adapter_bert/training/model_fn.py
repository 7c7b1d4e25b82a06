"""The `model_fn` of all entry points and notebooks: BERT, a head and an optimizer."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.common import errors
from adapter_bert.devices import collective, compat, estimators
from adapter_bert.devices.cluster import Cluster
from adapter_bert.devices.device import Device
from adapter_bert.model import batch_norm, batch_splitting, dropout, fused_ops, parameters
from adapter_bert.model.heads import Head, HeadOutput
from adapter_bert.model.loss_scale import LossScale
from adapter_bert.model.precision import FLOAT16
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline.frozen_states import STATES
from adapter_bert.training import run_values
from adapter_bert.training.run_values import Schedule
from adapter_bert.weights import checkpoints, loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.loading import Assignment, WeightRequest, Weights
from adapter_layers import AdapterConfig

Features = Mapping[str, tf.Tensor]
CPU_OR_GPU = Device()
ALONE = Cluster()
# Graph collection with the `StopTensors`.
_STOP = "stop"


class StopTensors(NamedTuple):
    """How workers agree to stop after the same step."""

    request: tf.Tensor  # float32 scalar to feed: 1 if this worker was asked to stop
    count: tf.Tensor  # float32 scalar: how many were


@dataclasses.dataclass(frozen=True)
class TrainingTensors:
    """The tensors and operations that hooks use."""

    loss: tf.Tensor  # scalar
    learning_rate: tf.Tensor  # scalar, the rate of this step
    width: tf.Tensor  # scalar, tokens per sequence in this batch, including padding
    saver: Any = None  # saves checkpoints
    dev_start: Optional[tf.Operation] = None  # rewinds the dev set; None if there is none
    dev_batch: Optional[Features] = None  # predictions for the next batch of the dev set with the current weights
    dev_iterator: Any = None  # over the dev set; `dev_start` initializes it
    stop: Optional[StopTensors] = None  # None without other workers


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """How to train a model."""

    schedule: Schedule
    # Creates the hooks; not called on a TPU.
    make_hooks: Callable[[TrainingTensors], List[tf.train.SessionRunHook]] = lambda tensors: []
    # Creates the batches of a dev set that a hook evaluates in the training graph; not called on a TPU.
    dev_data: Optional[Callable[[], tf.data.Dataset]] = None
    # `whole`: checkpoints contain every variable; `trained`: see `checkpoints.TrainedSaver`; None: up to the estimator.
    checkpoint_kind: Optional[str] = None
    gradient_checkpointing: bool = False  # see `modeling.BertModel`
    accumulation_steps: int = 1  # parts in which a batch is computed, see `batch_splitting.accumulate`
    adam_bias_correction: bool = False  # see `optimization.AdamWeightDecayOptimizer`
    use_xla: Optional[bool] = None  # see `fused_ops.compiling`; a TPU compiles everything anyway
    cluster: Cluster = ALONE  # of workers that compute equal shares of each batch
    worker_timeout: float = 0.0  # seconds in which they must finish a step; 0 for any time


# For evaluation and prediction.
NO_TRAINING = TrainingPlan(Schedule(0.0, 0, 0))


@dataclasses.dataclass(frozen=True, repr=False)  # estimators log the name, and weights are large
class ModelFn:
    """The `model_fn` of a TPUEstimator."""

    spec: ModelSpec
    weights: Optional[Weights] = None  # initial values; None for random ones
    plan: TrainingPlan = NO_TRAINING
    device: Device = CPU_OR_GPU
    # Used if `weights` is None: initializes all variables that it contains, matched by name.
    init_checkpoint: Optional[str] = None

    def __call__(self, features: Features, labels: Any, mode: str, params: Any) -> estimators.TPUEstimatorSpec:
        """Build the graph; labels are in `features`."""
        assigner = self.make_assigner(mode == estimators.ModeKeys.TRAIN)
        with assigner.creating_variables():
            if mode == estimators.ModeKeys.TRAIN:
                return self._training_spec(features, assigner)
            with fused_ops.compiling(False):
                output = self.forward(features, is_training=False)
        scaffold_fn = assigner.scaffold
        if mode == estimators.ModeKeys.EVAL:
            metrics = self.spec.head.eval_metrics(output, features)
            return estimators.TPUEstimatorSpec(mode, loss=output.loss, eval_metrics=metrics, scaffold_fn=scaffold_fn)
        predictions = self.spec.head.predictions(output, features)
        return estimators.TPUEstimatorSpec(mode, predictions=predictions, scaffold_fn=scaffold_fn)

    def forward(self, features: Features, is_training: bool) -> HeadOutput:
        """Build the network for a batch."""
        build = functools.partial(self._network, is_training=is_training)
        needs_whole = is_training and adapter_layers.has_batch_norm(self.spec.adapter)
        if not self.device.splits_batches or needs_whole:
            return build(features)
        return batch_splitting.run_in_two(build, dict(features))

    def _network(self, features: Features, is_training: bool) -> HeadOutput:
        model = modeling.BertModel(
            self.spec.config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            self.spec.use_one_hot_embeddings,
            scope="bert",
            adapter_fn=self.spec.adapter,
            gradient_checkpointing=is_training and self.plan.gradient_checkpointing,
            share_layers=self.device.splits_batches,
            precision=self.spec.precision,
            frozen_layers=self.spec.cached_layers,
            frozen_output=features.get(STATES),
        )
        return self.spec.head.build(model, features, is_training)

    def _training_spec(self, features: Features, assigner: WeightAssigner) -> estimators.TPUEstimatorSpec:
        with fused_ops.compiling(fused_ops.WHOLE_GRAPH if self.device.use_tpu else self.plan.use_xla):
            loss, train_op = self.train_step(features)
        saver, hooks, feed = None, [], None
        if self.device.supports_hooks:
            saver, feed = self.make_saver(assigner), run_values.feed(self.plan.schedule)
            tensors = self.training_tensors(features, loss, saver)
            hooks = [run_values.FeedHook(feed), *self.plan.make_hooks(tensors)]

        def scaffold_fn() -> tf.train.Scaffold:
            # On a TPU, a saver cannot be created above, inside the replicated step.
            return assigner.scaffold(saver or self.make_saver(assigner), feed)

        return estimators.TPUEstimatorSpec(
            estimators.ModeKeys.TRAIN, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn, training_hooks=hooks
        )

    def train_step(self, features: Features) -> Tuple[tf.Tensor, tf.Operation]:
        """Build the loss and the operation that updates the weights."""
        schedule: Any = self.plan.schedule
        if self.device.supports_hooks:
            schedule = run_values.placeholders(schedule)
        scale = LossScale() if self.spec.precision == FLOAT16 else None
        with dropout.of_worker(self.plan.cluster.rank):
            loss, gradients, variables = batch_splitting.accumulate(
                lambda part: self.forward(part, is_training=True).loss,
                features,
                self.plan.accumulation_steps,
                self._trained_variables,
                scale.factor if scale else None,
            )
        correction = None
        if self.plan.cluster.count > 1:
            loss, gradients, correction = self._mean_over_workers(loss, gradients)
        rate, steps, warmup = schedule.learning_rate, schedule.num_train_steps, schedule.num_warmup_steps
        # Computing the loss updates the statistics; computing the gradients does not.
        with tf.control_dependencies([loss] if tf.get_collection(batch_norm.UPDATES) else []):
            corrected = self.plan.adam_bias_correction
            step = optimization.train_step(
                gradients, variables, rate, steps, warmup, self.device.use_tpu, corrected, scale, correction
            )
        return loss, step

    def _mean_over_workers(
        self, loss: tf.Tensor, gradients: Sequence[Optional[tf.Tensor]]
    ) -> Tuple[tf.Tensor, List[Optional[tf.Tensor]], tf.Tensor]:
        """Return loss, gradients and the correction of their norm, and add the `StopTensors` to the graph."""
        request = tf.placeholder_with_default(tf.zeros([]), [], "stop_request")
        reduced = collective.mean_over_workers(self.plan.cluster, loss, gradients, request, self.plan.worker_timeout)
        tf.add_to_collection(_STOP, StopTensors(request, reduced.stops))
        return reduced.loss, reduced.grads, reduced.square_correction

    def _trained_variables(self) -> List[tf.Variable]:
        return optimization.trainable_variables(self.spec.tuning_mode, self.spec.top_layers, self.spec.frozen_norms)

    def training_tensors(self, features: Features, loss: tf.Tensor, saver: Optional[tf.train.Saver]) -> TrainingTensors:
        """Build the tensors that hooks use; with dev data, also the network that evaluates it."""
        rate = tf.get_collection(optimization.LEARNING_RATE)[-1]
        width = self.width(features)
        stop = next(iter(tf.get_collection(_STOP)), None)
        if self.plan.dev_data is None:
            return TrainingTensors(loss, rate, width, saver, stop=stop)
        dev = self.plan.dev_data()
        batches = iterator_like(dev)
        dev_features = batches.get_next()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True), fused_ops.compiling(False):
            output = self.forward(dev_features, is_training=False)
        predictions = self.spec.head.predictions(output, dev_features)
        start = compat.start_iterator(batches, dev)
        return TrainingTensors(loss, rate, width, saver, start, predictions, batches, stop)

    def width(self, features: Features) -> tf.Tensor:
        """Return the number of tokens per sequence in a batch, including padding."""
        return tf.shape(features["input_ids"])[1]

    def make_saver(self, assigner: WeightAssigner) -> Optional[tf.train.Saver]:
        """Create the saver of the plan's checkpoints; None leaves them to the estimator."""
        if self.plan.checkpoint_kind is None:
            return None
        if self.plan.checkpoint_kind == "whole":
            return checkpoints.RunSaver()
        names = set(self.spec.trained_names)
        trained = [variable for variable in tf.global_variables() if optimization.variable_name(variable) in names]
        return checkpoints.TrainedSaver(trained, lambda session: assigner.load(session, skip=names))

    def make_assigner(self, trains: bool = False) -> WeightAssigner:
        """Return the assigner of the model's initial weights."""
        # A whole checkpoint is for other programs, so that all of its variables are float32.
        is_reduced = self.plan.checkpoint_kind != "whole"
        reduced = self.spec.reduced_names(trains) if is_reduced else []
        if self.weights is not None:
            return WeightAssigner(self.weights.assignments, reduced, self.spec.precision)
        if not self.init_checkpoint:
            return WeightAssigner([], reduced, self.spec.precision)
        found = checkpoints.read_shapes(self.init_checkpoint)
        expected = {name: shape for name, shape in self.spec.shapes.items() if name in found}
        problem = parameters.describe_mismatch(expected, found)
        if problem:
            raise errors.UserError(f"{self.init_checkpoint} belongs to another model: {problem}")
        return WeightAssigner([Assignment(self.init_checkpoint, tuple(expected))])


def iterator_like(dataset: tf.data.Dataset) -> tf.data.Iterator:
    """Return an iterator for any dataset with the same element type as this one."""
    types, shapes = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    return tf.data.Iterator.from_structure(types, shapes, output_classes=tf.data.get_output_classes(dataset))


def notebook_model_fn(
    head: Head,
    bert_config: modeling.BertConfig,
    init_checkpoint: Optional[str],
    learning_rate: float,
    num_train_steps: Optional[int],
    num_warmup_steps: Optional[int],
    use_tpu: bool,
    use_one_hot_embeddings: bool,
    adapter_fn: adapter_layers.AdapterFn = "feedforward_adapter",
    tuning_mode: str = "adapter",
    top_layers: Optional[int] = None,
    adapter_pack: Optional[str] = None,
) -> ModelFn:
    """Create a `model_fn` from the original's arguments and ours; `adapter_pack` is loaded on `init_checkpoint`."""
    spec = ModelSpec(bert_config, head, adapter_fn, tuning_mode, top_layers, use_one_hot_embeddings)
    weights = None
    if adapter_pack:
        weights = loading.resolve(spec, WeightRequest(init_checkpoint, adapter_pack), loading.TRAIN)
        adapter = AdapterConfig() if adapter_fn == "feedforward_adapter" else adapter_fn
        if weights and weights.pack:
            packs.check_adapter(weights.pack, adapter_pack, adapter if isinstance(adapter, AdapterConfig) else None)
    plan = TrainingPlan(Schedule(learning_rate, num_train_steps or 0, num_warmup_steps or 0))
    return ModelFn(spec, weights, plan, Device(use_tpu=use_tpu), init_checkpoint)
