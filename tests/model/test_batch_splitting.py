"""A batch in two halves gives what the whole batch gives."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.model import batch_splitting, heads
from adapter_bert.model.dropout import dropout_stream
from adapter_bert.model.heads import ClassificationHead, HeadOutput, RegressionHead, SpanHead
from tests.helpers import tiny_config

pytestmark = pytest.mark.smoke

WEIGHTED = ClassificationHead(3, (0.5, 1.0, 4.0))
HEADS = {"classification": WEIGHTED, "regression": RegressionHead(), "span": SpanHead()}


def batch_of(size: int) -> dict:
    draw = np.random.RandomState(1)
    return {
        "input_ids": draw.randint(1, 30, [size, 5]).astype(np.int32),
        "input_mask": (np.arange(size * 5).reshape(size, 5) % 7 > 0).astype(np.int32),
        "label_ids": draw.randint(0, 3, [size]).astype(np.int32),
        "start_positions": draw.randint(0, 5, [size]).astype(np.int32),
        "end_positions": draw.randint(0, 5, [size]).astype(np.int32),
    }


@pytest.fixture(autouse=True)
def without_dropout_of_heads(monkeypatch):
    monkeypatch.setattr(heads, "HEAD_DROPOUT", 0.0)


def outputs(head, batch: dict, divided: bool, static: bool = True, mode: str = "adapter") -> dict:
    """What the head gives, and the gradients of what trains, in a tiny BERT without dropout."""
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    adapter = adapter_layers.AdapterConfig(size=3, init_scale=0.2) if mode == "adapter" else None

    def build(features: dict) -> HeadOutput:
        ids, mask = features["input_ids"], features["input_mask"]
        model = modeling.BertModel(config, True, ids, mask, scope="bert", adapter_fn=adapter)
        return head.build(model, features, is_training=True)

    with tf.Graph().as_default(), tf.Session() as session:
        shapes = {name: values.shape if static else [None] * values.ndim for name, values in batch.items()}
        places = {name: tf.placeholder(tf.int32, shape) for name, shape in shapes.items()}
        output = batch_splitting.run_in_two(build, places) if divided else build(places)
        variables = optimization.trainable_variables(mode)
        grads = zip(variables, tf.gradients(output.loss, variables))
        wanted = {variable.name: tf.convert_to_tensor(grad) for variable, grad in grads if grad is not None}
        wanted.update(loss=output.loss, losses=output.per_example_loss, logits=output.logits)
        session.run(tf.global_variables_initializer())
        for index, variable in enumerate(tf.trainable_variables()):
            fresh = np.random.RandomState(index).randn(*variable.shape.as_list())
            variable.load((0.2 * fresh + ("gamma" in variable.name)).astype(np.float32), session)
        return session.run(wanted, {places[name]: batch[name] for name in places})


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("kind", HEADS)
def test_halves_give_what_the_whole_gives(kind, size, static):
    whole = outputs(HEADS[kind], batch_of(size), divided=False)
    divided = outputs(HEADS[kind], batch_of(size), divided=True, static=static)
    assert list(whole) == list(divided)
    for name in whole:
        assert np.isfinite(whole[name]).all()
        np.testing.assert_allclose(divided[name], whole[name], atol=1e-6, rtol=1e-5, err_msg=name)


def test_all_variables_get_the_gradient_of_both_halves():
    whole, divided = (outputs(WEIGHTED, batch_of(6), divided=divided, mode="full") for divided in (False, True))
    assert "bert/embeddings/word_embeddings:0" in whole
    for name in whole:
        np.testing.assert_allclose(divided[name], whole[name], atol=1e-6, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("repeated", [None, 0, 1, "loop"])
def test_halves_drop_other_values(repeated):
    """In the network and in front of the head; also within parts of a batch, each in its own way."""

    def build(features: dict) -> HeadOutput:
        with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
            dropped = modeling.dropout(tf.ones([len(built) + 1, 1000]), 0.5)
        built.append(tf.concat([dropped[:1], modeling.dropout(tf.ones([1, 1000]), 0.5)], axis=0))
        return HeadOutput(None, None, features["input_ids"])

    def drop(number) -> np.ndarray:
        with dropout_stream(number):
            batch_splitting.run_in_two(build, {"input_ids": tf.zeros([4, 5], tf.int32)})
        return np.concatenate(session.run(built[-2:]))

    built: list = []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        values = drop(tf.constant(5) if repeated == "loop" else repeated or 0)
        if repeated:
            values = np.concatenate([values, drop(0)])
    for i, row in enumerate(values):
        for other in values[:i]:
            assert 0.4 < (row != other).mean() < 0.6
