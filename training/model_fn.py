"""The one `model_fn`: BERT, a head, an optimizer, for every entry point and notebook."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from training import compat
from training.heads import Head, HeadOutput

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
      dev_start: the operation that goes to the start of the dev set; None where there is none.
      dev_batch: the head's predictions for the next batch of it, by the weights of the moment.
    """

    loss: tf.Tensor
    learning_rate: tf.Tensor
    dev_start: Optional[tf.Operation] = None
    dev_batch: Optional[Features] = None


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
    init_names: Optional[Sequence[str]] = None,
    training_hooks: Callable[[TrainingTensors], List[tf.train.SessionRunHook]] = lambda tensors: [],
    dev_data: Optional[Callable[[], tf.data.Dataset]] = None,
) -> Callable:
    """Makes the `model_fn` of a TPUEstimator.

    Args:
      config: BERT's architecture.
      head: see `training.heads`.
      adapter_fn: see `adapter_layers.get_adapter`.
      init_checkpoint: prefix of the checkpoint with initial values; None for random ones.
      schedule: needed for training only.
      tuning_mode: what trains, see `optimization.trainable_names`.
      top_layers: how many layers, in mode `top_layers`.
      use_tpu: whether the model runs on a TPU.
      use_one_hot_embeddings: look words up by a matrix product.
      init_names: the variables to take from the checkpoint; by default all that have a name in it.
      training_hooks: makes the hooks of a training; not used on a TPU.
      dev_data: makes the batches of a dev set that a hook scores on the graph of the training; not used on a TPU.
    """

    def forward(features: Features, is_training: bool) -> HeadOutput:
        model = modeling.BertModel(
            config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            use_one_hot_embeddings,
            scope="bert",
            adapter_fn=adapter_fn,
        )
        return head.build(model, features, is_training)

    def watched(loss: tf.Tensor) -> TrainingTensors:
        rate = tf.get_collection(optimization.LEARNING_RATE)[-1]
        tf.summary.scalar("learning_rate", rate)
        if dev_data is None:
            return TrainingTensors(loss, rate)
        batches = tf.data.make_initializable_iterator(dev_data())
        features = batches.get_next()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            output = forward(features, is_training=False)
        return TrainingTensors(loss, rate, batches.initializer, head.predictions(output, features))

    def initialise() -> None:
        if init_checkpoint:
            names = init_names
            if names is None:
                names = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), init_checkpoint)[0]
            tf.train.init_from_checkpoint(init_checkpoint, {name: name for name in names})

    def scaffold_fn() -> tf.train.Scaffold:
        initialise()
        return tf.train.Scaffold()

    def model_fn(features: Features, labels: Any, mode: str, params: Mapping[str, Any]):
        del labels, params  # they are in `features`; the estimator wants the arguments
        is_training = mode == compat.ModeKeys.TRAIN
        output = forward(features, is_training)
        if not use_tpu:
            initialise()
        spec = {"mode": mode, "scaffold_fn": scaffold_fn if use_tpu else None}
        if is_training:
            spec["loss"] = output.loss
            spec["train_op"] = optimization.create_optimizer(
                output.loss,
                schedule.learning_rate,
                schedule.num_train_steps,
                schedule.num_warmup_steps,
                use_tpu,
                tuning_mode,
                top_layers,
            )
            spec["training_hooks"] = [] if use_tpu else training_hooks(watched(output.loss))
        elif mode == compat.ModeKeys.EVAL:
            spec["loss"] = output.loss
            spec["eval_metrics"] = head.eval_metrics(output, features)
        else:
            spec["predictions"] = head.predictions(output, features)
        return compat.TPUEstimatorSpec(**spec)

    return model_fn
