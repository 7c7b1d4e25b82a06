"""Heads: what turns BERT's output into a task's predictions and loss."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Mapping, Tuple

import tensorflow.compat.v1 as tf

import modeling

# The dropout in front of the head; fixed in the original scripts.
HEAD_DROPOUT = 0.1


@dataclasses.dataclass(frozen=True)
class HeadOutput:
    """What a head adds to the graph.

    Attributes:
      loss: scalar, the mean over the batch.
      per_example_loss: float [B].
      logits: float [B, classes].
      probabilities: float [B, classes].
    """

    loss: tf.Tensor
    per_example_loss: tf.Tensor
    logits: tf.Tensor
    probabilities: tf.Tensor


@dataclasses.dataclass(frozen=True)
class ClassificationHead:
    """A linear layer with softmax on the pooled output: variables `output_weights`, `output_bias`."""

    num_labels: int

    def build(self, model: modeling.BertModel, features: Mapping[str, tf.Tensor], is_training: bool) -> HeadOutput:
        """Adds the head to the graph; `features` holds the class indices `label_ids`."""
        pooled = modeling.dropout(model.get_pooled_output(), HEAD_DROPOUT if is_training else 0.0)
        weights = tf.get_variable(
            "output_weights",
            [self.num_labels, pooled.shape.as_list()[-1]],
            initializer=modeling.create_initializer(0.02),
        )
        bias = tf.get_variable("output_bias", [self.num_labels], initializer=tf.zeros_initializer())
        logits = tf.nn.bias_add(tf.matmul(pooled, weights, transpose_b=True), bias)
        per_example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=features["label_ids"], logits=logits)
        return HeadOutput(tf.reduce_mean(per_example_loss), per_example_loss, logits, tf.nn.softmax(logits))

    def predictions(self, output: HeadOutput, features: Mapping[str, tf.Tensor]) -> Dict[str, tf.Tensor]:
        """What `estimator.predict` yields for an example, labels included: scoring needs nothing else."""
        return {
            "probabilities": output.probabilities,
            "logits": output.logits,
            "loss": output.per_example_loss,
            "label_ids": features["label_ids"],
            "is_real_example": _real_examples(features),
        }

    def eval_metrics(self, output: HeadOutput, features: Mapping[str, tf.Tensor]) -> Tuple[Callable, list]:
        """What `estimator.evaluate` reports in notebooks, as the original: `eval_accuracy` and `eval_loss`."""

        def metric_fn(losses: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor, real: tf.Tensor) -> Dict[str, tuple]:
            classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return {
                "eval_accuracy": tf.metrics.accuracy(labels, classes, weights=real),
                "eval_loss": tf.metrics.mean(losses, weights=real),
            }

        real = tf.cast(_real_examples(features), tf.float32)
        return metric_fn, [output.per_example_loss, features["label_ids"], output.logits, real]


def _real_examples(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return features.get("is_real_example", tf.ones_like(features["label_ids"]))
