"""Heads: losses and predictions, redone in NumPy and by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model.heads import ClassificationHead, RegressionHead
from tests.helpers import tiny_config

IDS = np.array([[2, 5, 7, 3], [2, 6, 8, 3], [2, 9, 10, 3]])


def build(head, labels, is_training=False, dropout=0.0):
    """The values of a head on a tiny BERT with random weights (dropout only where asked for)."""
    config = tiny_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        model = modeling.BertModel(config, is_training, tf.constant(IDS, tf.int32), scope="bert")
        features = {"label_ids": tf.constant(labels)}
        output = head.build(model, features, is_training)
        predictions = head.predictions(output, features)
        session.run(tf.global_variables_initializer())
        return session.run([output.loss, output.per_example_loss, predictions])


def test_the_loss_of_a_regression_is_the_squared_error():
    labels = np.array([0.5, -2.0, 4.0], np.float32)
    loss, losses, rows = build(RegressionHead(), labels)
    values = rows["logits"][:, 0]
    np.testing.assert_allclose(losses, (values - labels) ** 2, rtol=1e-5)
    assert loss == pytest.approx(sklearn.metrics.mean_squared_error(labels, values), rel=1e-5)
    assert "probabilities" not in rows and RegressionHead().decode({"logits": rows["logits"][0]}) == values[0]
    assert rows["is_real_example"].tolist() == [1, 1, 1], "unmarked examples are real"


def test_the_loss_of_a_classification_is_the_mean_cross_entropy():
    labels = np.array([0, 1, 1], np.int32)
    loss, losses, rows = build(ClassificationHead(2), labels)
    probabilities = rows["probabilities"].astype(np.float64)
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # scikit-learn wants sums of 1 to more digits
    assert loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities), rel=1e-5)
    np.testing.assert_allclose(losses, -np.log(rows["probabilities"][np.arange(3), labels]), rtol=1e-5)
    decoded = [ClassificationHead(2).decode({"logits": row}) for row in rows["logits"]]
    assert decoded == list(probabilities.argmax(axis=1))


def test_class_weights_affect_only_the_training_loss():
    labels = np.array([0, 1, 1], np.int32)
    weights = (3.0, 0.5)
    plain_loss, plain, _ = build(ClassificationHead(2), labels)
    loss, losses, _ = build(ClassificationHead(2, weights), labels)
    assert loss == plain_loss, "an evaluation is not weighted"
    np.testing.assert_array_equal(losses, plain)
    # The head's own dropout is on in training: compare with the losses of the same call.
    loss, losses, _ = build(ClassificationHead(2, weights), labels, is_training=True)
    assert loss == pytest.approx(np.mean(losses * np.array(weights)[labels]), rel=1e-5)
    assert loss != pytest.approx(np.mean(losses), rel=1e-2)
