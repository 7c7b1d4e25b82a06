"""The one `model_fn`: BERT, a head, an optimizer, for every entry point and notebook."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.devices import compat, estimators
from adapter_bert.model import accumulation, batch_splitting, fused_ops, parameters
from adapter_bert.model.heads import Head, HeadOutput
from adapter_bert.weights import checkpoints, loading, packs
from adapter_bert.weights.loading import Part, Source

Features = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
      learning_rate: the peak.
      num_train_steps: steps in all.
      num_warmup_steps: steps of linear warm-up.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int


@dataclasses.dataclass(frozen=True)
class TrainingTensors:
    """What hooks of a training may look at.

    Attributes:
      loss: scalar.
      learning_rate: scalar, of the step.
      width: scalar, tokens of a sequence of the step's batch, with padding.
      dev_start: the operation that goes to the start of the dev set; None where there is none.
      dev_batch: the head's predictions for the next batch of it, by the weights of the moment.
      saver: of the training's checkpoints.
    """

    loss: tf.Tensor
    learning_rate: tf.Tensor
    width: tf.Tensor
    dev_start: Optional[tf.Operation] = None
    dev_batch: Optional[Features] = None
    saver: Optional[tf.train.Saver] = None


class WeightAssigner:
    """Gives the variables of the default graph their initial values, when a session begins."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Takes files and what comes from them."""
        self._parts = parts
        self._variables = {optimization.variable_name(variable): variable for variable in tf.trainable_variables()}

    def scaffold(self, saver: Optional[tf.train.Saver] = None) -> tf.train.Scaffold:
        """The estimator's way to begin: from these values, unless the saver finds a checkpoint."""
        for part in self._parts:
            if part.values is None:
                tf.train.init_from_checkpoint(part.path, {name: name for name in part.names})
        return tf.train.Scaffold(saver=saver, init_fn=lambda scaffold, session: self._feed(session, ()))

    def load(self, session: tf.Session, but: Collection[str]) -> None:
        """Loads the values of all variables but some, outside of the estimator's own initialisation."""
        names = [name for part in self._parts if part.values is None for name in part.names if name not in but]
        session.run([self._variables[name].initializer for name in names])
        self._feed(session, but)

    def _feed(self, session: tf.Session, but: Collection[str]) -> None:
        """Loads what comes from packs. One by one: they need not fit into one message."""
        for part in self._parts:
            for name, value in (part.values or {}).items():
                if name not in but:
                    initializer = compat.initializer_op(self._variables[name])
                    session.run(initializer, {initializer.inputs[1]: value})


def _by_name(init_checkpoint: Optional[str]) -> List[Part]:
    """A checkpoint as the source of all variables of the default graph that have a name in it."""
    if not init_checkpoint:
        return []
    names = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), init_checkpoint)[0]
    return [Part(init_checkpoint, tuple(names))]


def build_model_fn(
    config: modeling.BertConfig,
    head: Head,
    adapter_fn: adapter_layers.AdapterFn,
    init_checkpoint: Optional[str],
    schedule: Optional[Schedule],
    tuning_mode: str = "adapter",
    top_layers: Optional[int] = None,
    use_tpu: bool = False,
    use_one_hot_embeddings: bool = False,
    source: Optional[Source] = None,
    checkpoint_kind: Optional[str] = None,
    training_hooks: Callable[[TrainingTensors], List[tf.train.SessionRunHook]] = lambda tensors: [],
    dev_data: Optional[Callable[[], tf.data.Dataset]] = None,
    gradient_checkpointing: bool = False,
    accumulation_steps: int = 1,
    use_xla: Optional[bool] = None,
) -> Callable:
    """Makes the `model_fn` of a TPUEstimator.

    Args:
      config: BERT's architecture.
      head: see `model.heads`.
      adapter_fn: see `adapter_layers.get_adapter`.
      init_checkpoint: prefix of the checkpoint with initial values; None for random ones.
      schedule: needed for training only.
      tuning_mode: what trains, see `optimization.trainable_names`.
      top_layers: how many layers, in mode `top_layers`.
      use_tpu: whether the model runs on a TPU.
      use_one_hot_embeddings: look words up by a matrix product.
      source: where initial values come from, in place of `init_checkpoint`.
      checkpoint_kind: what a training's checkpoints hold: `whole`, every variable, or `trained`, see
        `checkpoints.RunSaver`. None leaves them to the estimator.
      training_hooks: makes the hooks of a training; not used on a TPU.
      dev_data: makes the batches of a dev set that a hook scores on the graph of the training; not used on a TPU.
      gradient_checkpointing: see `modeling.BertModel`.
      accumulation_steps: parts in which a training batch is worked out, see `accumulation.accumulate`.
      use_xla: see `fused_ops.compiling`; on a TPU everything is compiled anyway.
    """

    # A TPU's cores divide batches themselves, and a GPU is fastest on whole ones.
    divided = not use_tpu and not compat.has_gpu()

    def network(features: Features, is_training: bool) -> HeadOutput:
        model = modeling.BertModel(
            config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            use_one_hot_embeddings,
            scope="bert",
            adapter_fn=adapter_fn,
            gradient_checkpointing=gradient_checkpointing and is_training,
        )
        return head.build(model, features, is_training)

    def forward(features: Features, is_training: bool) -> HeadOutput:
        build = functools.partial(network, is_training=is_training)
        return batch_splitting.run_in_two(build, features) if divided else build(features)

    def train(features: Features) -> Tuple[tf.Tensor, tf.Operation]:
        loss, grads, variables = accumulation.accumulate(
            lambda part: forward(part, is_training=True).loss,
            features,
            accumulation_steps,
            lambda: optimization.trainable_variables(tuning_mode, top_layers),
        )
        steps, warmup = schedule.num_train_steps, schedule.num_warmup_steps
        return loss, optimization.train_step(grads, variables, schedule.learning_rate, steps, warmup, use_tpu)

    def watched(features: Features, loss: tf.Tensor, saver: tf.train.Saver) -> TrainingTensors:
        rate = tf.get_collection(optimization.LEARNING_RATE)[-1]
        width = tf.shape(features["input_ids"])[1]
        tf.summary.scalar("learning_rate", rate)
        if dev_data is None:
            return TrainingTensors(loss, rate, width, saver=saver)
        batches = tf.data.make_initializable_iterator(dev_data())
        features = batches.get_next()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True), fused_ops.compiling(False):
            output = forward(features, is_training=False)
        return TrainingTensors(loss, rate, width, batches.initializer, head.predictions(output, features), saver)

    def initial_values() -> WeightAssigner:
        return WeightAssigner(source.parts if source else _by_name(init_checkpoint))

    def make_saver(values: WeightAssigner) -> Optional[tf.train.Saver]:
        if checkpoint_kind is None:
            return None
        if checkpoint_kind == "whole":
            return tf.train.Saver(max_to_keep=checkpoints.KEPT, save_relative_paths=True)
        trained = optimization.trainable_variables(tuning_mode, top_layers)
        names = {optimization.variable_name(variable) for variable in trained}
        return checkpoints.RunSaver(trained, lambda session: values.load(session, but=names))

    def model_fn(features: Features, labels: Any, mode: str, params: Mapping[str, Any]):
        del labels, params  # they are in `features`; the estimator wants the arguments
        spec: Dict[str, Any] = {"mode": mode}
        if mode == estimators.ModeKeys.TRAIN:
            with fused_ops.compiling(fused_ops.WHOLE_GRAPH if use_tpu else use_xla):
                spec["loss"], spec["train_op"] = train(features)
            values = initial_values()
            # On a TPU this is inside of the replicated step, where a saver cannot be built.
            saver = None if use_tpu else make_saver(values)
            spec["scaffold_fn"] = lambda: values.scaffold(saver or make_saver(values))
            spec["training_hooks"] = [] if use_tpu else training_hooks(watched(features, spec["loss"], saver))
            return estimators.TPUEstimatorSpec(**spec)
        with fused_ops.compiling(False):
            output = forward(features, is_training=False)
        values = initial_values()
        spec["scaffold_fn"] = values.scaffold
        if mode == estimators.ModeKeys.EVAL:
            spec["loss"] = output.loss
            spec["eval_metrics"] = head.eval_metrics(output, features)
        else:
            spec["predictions"] = head.predictions(output, features)
        return estimators.TPUEstimatorSpec(**spec)

    return model_fn


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
) -> Callable:
    """The same by the arguments of the original scripts, then ours; `adapter_pack` goes on top of `init_checkpoint`."""
    source = None
    if adapter_pack:
        shapes = parameters.model_shapes(bert_config, head, adapter_fn)
        source = loading.choose_source(shapes, init_checkpoint, True, adapter_pack, head.kind, bert_config)
        adapter = adapter_layers.get_adapter(adapter_fn)
        is_known = isinstance(adapter, adapter_layers.AdapterConfig)
        packs.check_adapter(source.pack, adapter_pack, adapter if is_known else None)
    return build_model_fn(
        bert_config,
        head,
        adapter_fn,
        init_checkpoint,
        Schedule(learning_rate, num_train_steps, num_warmup_steps),
        tuning_mode,
        top_layers,
        use_tpu,
        use_one_hot_embeddings,
        source,
    )
