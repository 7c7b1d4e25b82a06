"""Helpers for tests that build networks: random weights, shared variables, activations in closed form, gradients."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.model import batch_splitting, fused_ops, heads
from adapter_layers import AdapterConfig
from tests.helpers import tiny_config

TWO_CLASSES = heads.ClassificationHead(2)
CLOSED_FORMS = {
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(x, 0.0),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "linear": lambda x: x,
}


def sharing_variables() -> tf.variable_scope:
    """Networks built in this scope use the same variables."""
    return tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE)


def set_random_values(session: tf.Session, seed: int = 1, scale: float = 0.4) -> Dict[str, np.ndarray]:
    """Initialize all variables, set the trainable ones to random values, and return these by name."""
    session.run(tf.global_variables_initializer())
    random, values = np.random.RandomState(seed), {}
    for variable in sorted(tf.trainable_variables(), key=lambda variable: variable.op.name):
        fresh = scale * random.standard_normal(variable.shape.as_list())
        values[variable.op.name] = (fresh + variable.op.name.endswith("gamma")).astype(np.float32)
        variable.load(values[variable.op.name], session)
    return values


def random_batch(size: int, length: int = 5) -> Dict[str, np.ndarray]:
    """Return the features of a batch with padding, for every kind of head."""
    random = np.random.RandomState(1)
    batch = {
        "input_ids": random.randint(1, 30, [size, length]),
        "input_mask": np.arange(size * length).reshape(size, length) % 7 > 0,
        "label_ids": random.randint(0, 2, [size]),
        "start_positions": random.randint(0, length, [size]),
        "end_positions": random.randint(0, length, [size]),
    }
    return {name: values.astype(np.int32) for name, values in batch.items()}


def loss_and_gradients(
    batch: Dict[str, np.ndarray],
    head: heads.Head = TWO_CLASSES,
    mode: str = "adapter",
    dropout: float = 0.0,
    parts: int = 1,
    in_two: bool = False,
    static: bool = True,
    xla: Optional[bool] = False,
    layers: int = 1,
    **changes: Any,
) -> Dict[str, np.ndarray]:
    """Return `loss`, the gradient of each trained variable and, if the batch is not in parts, `losses` and `logits`.

    The network is a tiny BERT with adapters and random weights; `changes` are arguments of `BertModel`.
    """
    config = tiny_config(num_hidden_layers=layers, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    adapter = AdapterConfig(size=3, init_scale=0.2)
    outputs = []

    def build(features: dict) -> heads.HeadOutput:
        ids, mask = features["input_ids"], features["input_mask"]
        model = modeling.BertModel(config, True, ids, mask, scope="bert", adapter_fn=adapter, **changes)
        return head.build(model, features, is_training=True)

    def loss_of(features: dict) -> tf.Tensor:
        outputs.append(batch_splitting.run_in_two(build, features) if in_two else build(features))
        return outputs[-1].loss

    with tf.Graph().as_default(), tf.Session() as session, fused_ops.compiling(xla):
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        shapes = {name: values.shape if static else [None] * values.ndim for name, values in batch.items()}
        fed = {name: tf.placeholder(tf.int32, shape) for name, shape in shapes.items()}
        with mock.patch.object(heads, "HEAD_DROPOUT", dropout):
            loss, grads, variables = batch_splitting.accumulate(
                loss_of, fed, parts, lambda: optimization.trainable_variables(mode)
            )
        pairs = zip(variables, grads)
        wanted = {variable.op.name: tf.convert_to_tensor(grad) for variable, grad in pairs if grad is not None}
        wanted["loss"] = loss
        if parts == 1:
            wanted.update(losses=outputs[0].per_example_loss, logits=outputs[0].logits)
        set_random_values(session, scale=0.2)
        return session.run(wanted, {fed[name]: batch[name] for name in fed})


def assert_same(got: Dict[str, np.ndarray], expected: Dict[str, np.ndarray]) -> None:
    """Compare two results of `loss_and_gradients`, up to rounding."""
    assert expected and set(got) <= set(expected)
    for name in got:
        # The gradient of a key's bias is zero except for rounding.
        scale = max(np.abs(expected[name]).max(), 0.1)
        np.testing.assert_allclose(got[name] / scale, expected[name] / scale, atol=1e-5, err_msg=name)
