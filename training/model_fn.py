"""The one `model_fn`: BERT, a head, an optimizer, for every entry point and notebook."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from training import compat


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


def build_model_fn(
    config: modeling.BertConfig,
    head: Any,
    adapter_fn: adapter_layers.AdapterFn,
    init_checkpoint: Optional[str],
    schedule: Optional[Schedule],
    tuning_mode: str = "adapter",
    top_layers: Optional[int] = None,
    use_tpu: bool = False,
    use_one_hot_embeddings: bool = False,
    init_names: Optional[Sequence[str]] = None,
    training_hooks: Callable[[tf.Tensor], List[tf.train.SessionRunHook]] = lambda loss: [],
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
      training_hooks: makes hooks from the loss tensor; not used on a TPU.
    """

    def initialise() -> None:
        if init_checkpoint:
            names = init_names
            if names is None:
                names = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), init_checkpoint)[0]
            tf.train.init_from_checkpoint(init_checkpoint, {name: name for name in names})

    def scaffold_fn() -> tf.train.Scaffold:
        initialise()
        return tf.train.Scaffold()

    def model_fn(features: Mapping[str, tf.Tensor], labels: Any, mode: str, params: Mapping[str, Any]):
        del labels, params  # they are in `features`; the estimator wants the arguments
        is_training = mode == compat.ModeKeys.TRAIN
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
        output = head.build(model, features, is_training)
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
            spec["training_hooks"] = [] if use_tpu else training_hooks(output.loss)
        elif mode == compat.ModeKeys.EVAL:
            spec["loss"] = output.loss
            spec["eval_metrics"] = head.eval_metrics(output, features)
        else:
            spec["predictions"] = head.predictions(output, features)
        return compat.TPUEstimatorSpec(**spec)

    return model_fn
