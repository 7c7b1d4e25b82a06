"""Heads: turn BERT's output into the predictions and the loss of a task."""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable, Dict, Mapping, Optional, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.model.dropout import dropout

# Dropout rate before the head; fixed in the original scripts.
HEAD_DROPOUT = 0.1
# Name of the feature and of the prediction that hold the position of an example in its files.
ROW = "row_numbers"

Features = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class HeadOutput:
    """The tensors of a head."""

    # float [B]: the training loss of each example and the reported one; None without labels.
    minimised: Optional[tf.Tensor]
    per_example_loss: Optional[tf.Tensor]
    # float [B, classes] in classification; [B, 1], the predicted number, in regression; [B, 2, S], for the first and
    # the last token of the answer, in span extraction.
    logits: tf.Tensor
    # float [B, classes]; only in classification.
    probabilities: Optional[tf.Tensor] = None

    @property
    def loss(self) -> Optional[tf.Tensor]:
        """Return the mean loss of the batch, a scalar; None without labels."""
        return None if self.minimised is None else tf.reduce_mean(self.minimised)


class Head(abc.ABC):
    """The task-specific part of the network."""

    # The name in adapter packs, one of `TYPES`.
    kind: str
    # Features of a record besides its tokens: name -> type.
    label_types: Mapping[str, tf.DType]
    # Whether it reads the last layer's output for all tokens, or only the pooled output.
    reads_all_tokens = False

    @abc.abstractmethod
    def build(self, model: modeling.BertModel, features: Features, is_training: bool) -> HeadOutput:
        """Add the head to the graph; `features` contains the labels under the names of `label_types`."""

    @abc.abstractmethod
    def shapes(self, hidden: int) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables of the head of a network of this hidden size."""

    def predictions(self, output: HeadOutput, features: Features) -> Dict[str, tf.Tensor]:
        """Return the predictions, including everything that scoring needs: labels and row numbers."""
        values = {
            "probabilities": output.probabilities,
            "logits": output.logits,
            "loss": output.per_example_loss,
            "is_real_example": real_examples(features),
            **{name: features[name] for name in (*self.label_types, ROW) if name in features},
        }
        return {name: value for name, value in values.items() if value is not None}

    def eval_metrics(self, output: HeadOutput, features: Features) -> Tuple[Callable, list]:
        """Return the metrics that `estimator.evaluate` reports in notebooks: at least `eval_loss`."""

        def metric_fn(losses: tf.Tensor, real: tf.Tensor) -> Dict[str, tuple]:
            return {"eval_loss": tf.metrics.mean(losses, weights=real)}

        return metric_fn, [output.per_example_loss, tf.cast(real_examples(features), tf.float32)]


class LabelHead(Head):
    """A head that predicts one class or one number for a text or a pair of texts."""

    label_types = {"label_ids": tf.int64}

    @abc.abstractmethod
    def output(self, logits: tf.Tensor, features: Features, is_training: bool) -> HeadOutput:
        """Return the loss and the predictions for these logits, e.g. of a network without BERT."""

    def build(self, model: modeling.BertModel, features: Features, is_training: bool) -> HeadOutput:
        """Add the head to the graph; `label_ids` are class indices or, in regression, the numbers to predict."""
        return self.output(_linear(model, self, is_training), features, is_training)

    @abc.abstractmethod
    def decode(self, row: Mapping[str, np.ndarray]) -> Union[int, float]:
        """Return the predicted class or number of one row of predictions."""


@dataclasses.dataclass(frozen=True)
class ClassificationHead(LabelHead):
    """A linear layer with softmax on the pooled output: variables `output_weights`, `output_bias`."""

    kind = "classification"

    num_labels: int
    # Weight of each class in the training loss; None for 1. Reported losses are not weighted.
    class_weights: Optional[Tuple[float, ...]] = None

    def shapes(self, hidden: int) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables."""
        return _shapes(self.num_labels, hidden)

    def output(self, logits: tf.Tensor, features: Features, is_training: bool) -> HeadOutput:
        """Return the cross entropy and the probabilities; the logits are float [B, classes]."""
        labels = features["label_ids"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        weighted = losses
        if self.class_weights is not None and is_training:
            weighted = losses * tf.gather(tf.constant(self.class_weights, tf.float32), labels)
        return HeadOutput(weighted, losses, logits, tf.nn.softmax(logits))

    def decode(self, row: Mapping[str, np.ndarray]) -> int:
        """Return the class with the largest logit."""
        return int(row["logits"].argmax())

    def eval_metrics(self, output: HeadOutput, features: Features) -> Tuple[Callable, list]:
        """Return `eval_accuracy` and `eval_loss`, as in the original."""
        mean_loss, tensors = super().eval_metrics(output, features)

        def metric_fn(losses: tf.Tensor, real: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> Dict[str, tuple]:
            classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
            accuracy = tf.metrics.accuracy(labels, classes, weights=real)
            return {"eval_accuracy": accuracy, **mean_loss(losses, real)}

        return metric_fn, [*tensors, features["label_ids"], output.logits]


@dataclasses.dataclass(frozen=True)
class RegressionHead(LabelHead):
    """A linear unit on the pooled output with squared error; the variables are named as in classification."""

    kind = "regression"
    label_types = {"label_ids": tf.float32}

    def shapes(self, hidden: int) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables."""
        return _shapes(1, hidden)

    def output(self, logits: tf.Tensor, features: Features, is_training: bool) -> HeadOutput:
        """Return the squared error; the logits are float [B, 1]."""
        losses = tf.square(logits[:, 0] - tf.cast(features["label_ids"], tf.float32))
        return HeadOutput(losses, losses, logits)

    def decode(self, row: Mapping[str, np.ndarray]) -> float:
        """Return the predicted number."""
        return float(row["logits"][0])


@dataclasses.dataclass(frozen=True)
class SpanHead(Head):
    """Scores every token as start and end of the answer: `cls/squad/output_weights`, `cls/squad/output_bias`.

    If an example has no answer, or none in this window, the target is token 0, `[CLS]`.
    """

    kind = "span"
    reads_all_tokens = True
    label_types = dict.fromkeys(["question_ids", "window_ids", "start_positions", "end_positions"], tf.int64)

    def shapes(self, hidden: int) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables."""
        return _shapes(2, hidden, "cls/squad/")

    def build(self, model: modeling.BertModel, features: Features, is_training: bool) -> HeadOutput:
        """Add the head to the graph; `start_positions` and `end_positions` are token indices."""
        logits = self.logits(model)
        if "start_positions" not in features:
            return HeadOutput(None, None, logits)
        positions = tf.stack([features["start_positions"], features["end_positions"]], axis=1)
        both = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=logits)
        losses = tf.reduce_mean(both, axis=1)
        return HeadOutput(losses, losses, logits)

    def predictions(self, output: HeadOutput, features: Features) -> Dict[str, tf.Tensor]:
        """Return the predictions; with `unique_ids`, also under the names that the original's notebooks read."""
        values = super().predictions(output, features)
        if "unique_ids" in features:
            start, end = tf.unstack(output.logits, axis=1)
            values.update(unique_ids=features["unique_ids"], start_logits=start, end_logits=end)
        return values

    def logits(self, model: modeling.BertModel) -> tf.Tensor:
        """Return float [B, 2, S]: scores of each token as start and as end of the answer."""
        tokens = model.get_sequence_output()  # [B, S, H]
        weights, bias = _variables(self.shapes(tokens.shape.as_list()[-1]))
        per_token = tf.einsum("bsh,uh->bus", tokens, weights)
        return per_token + tf.reshape(bias, [1, 2, 1])


def _shapes(units: int, hidden: int, scope: str = "") -> Dict[str, Tuple[int, ...]]:
    return {scope + "output_weights": (units, hidden), scope + "output_bias": (units,)}


def _variables(shapes: Mapping[str, Tuple[int, ...]]) -> Tuple[tf.Variable, tf.Variable]:
    """Return weights and biases of a head."""
    (weights, weights_shape), (bias, bias_shape) = shapes.items()
    initializer = modeling.create_initializer(0.02)
    collections = ["head", tf.GraphKeys.GLOBAL_VARIABLES]  # as in Google's adapter-bert
    return (
        tf.get_variable(weights, weights_shape, initializer=initializer, collections=collections),
        tf.get_variable(bias, bias_shape, initializer=tf.zeros_initializer(), collections=collections),
    )


def _linear(model: modeling.BertModel, head: Head, is_training: bool) -> tf.Tensor:
    """Apply a linear layer to the pooled output: float [B, units]."""
    pooled = dropout(model.get_pooled_output(), HEAD_DROPOUT if is_training else 0.0)
    weights, bias = _variables(head.shapes(pooled.shape.as_list()[-1]))
    return tf.nn.bias_add(tf.matmul(pooled, weights, transpose_b=True), bias)


def real_examples(features: Features) -> tf.Tensor:
    """Return int32 [B]: 0 for padding examples, 1 for real ones."""
    any_feature = next(iter(features.values()))
    return features.get("is_real_example", tf.ones(tf.shape(any_feature)[:1], tf.int32))


# Names in adapter packs.
TYPES = ("classification", "regression", "span")


def make(kind: str, num_labels: int) -> Head:
    """Return the head with this name, e.g. for a pack."""
    if kind not in TYPES:
        raise errors.unknown("head type", kind, TYPES)
    if (kind == "classification") != (num_labels > 0):
        raise errors.UserError(f"A {kind} head cannot have {num_labels} labels.")
    if kind == "classification":
        return ClassificationHead(num_labels)
    return RegressionHead() if kind == "regression" else SpanHead()
