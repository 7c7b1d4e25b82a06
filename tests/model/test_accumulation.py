"""A batch in parts has the gradient of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.model import accumulation
from adapter_bert.model.dropout import dropout_stream
from adapter_bert.model.heads import ClassificationHead
from tests.helpers import tiny_config

pytestmark = pytest.mark.smoke

FEATURES = {
    "input_ids": np.random.RandomState(1).randint(1, 30, [12, 5]).astype(np.int32),
    "input_mask": (np.arange(60).reshape(12, 5) % 7 > 0).astype(np.int32),
    "label_ids": (np.arange(12) % 2).astype(np.int32),
}


def gradients(parts: int, mode: str = "adapter", rate: float = 0.0, static: bool = True, recompute: bool = False):
    """The loss, the gradients and the dropped shares of what trains in a tiny BERT."""
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    adapter = adapter_layers.AdapterConfig(size=3, init_scale=0.2) if mode == "adapter" else None

    def loss_of(features):
        ids, mask = features["input_ids"], features["input_mask"]
        model = modeling.BertModel(
            config, True, ids, mask, scope="bert", adapter_fn=adapter, gradient_checkpointing=recompute
        )
        # The head drops values at its fixed rate; without it, dropout is what `rate` says.
        return ClassificationHead(2).build(model, features, is_training=bool(rate)).loss

    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        shapes = {name: values.shape if static else [None] * values.ndim for name, values in FEATURES.items()}
        places = {name: tf.placeholder(tf.int32, shape) for name, shape in shapes.items()}
        loss, grads, variables = accumulation.accumulate(
            loss_of, places, parts, lambda: optimization.trainable_variables(mode)
        )
        session.run(tf.global_variables_initializer())
        for index, variable in enumerate(tf.trainable_variables()):
            fresh = np.random.RandomState(index).randn(*variable.shape.as_list())
            variable.load((0.2 * fresh + ("gamma" in variable.name)).astype(np.float32), session)
        values = session.run(
            [loss] + [tf.convert_to_tensor(grad) for grad in grads if grad is not None],
            {places[name]: FEATURES[name] for name in places},
        )
        names = [optimization.variable_name(v) for v, grad in zip(variables, grads) if grad is not None]
        return dict(zip(["loss", *names], values))


@pytest.mark.parametrize("mode", ["adapter", "full"])
@pytest.mark.parametrize("parts", [2, 12])
def test_parts_have_the_gradient_of_the_whole(parts, mode):
    whole, in_parts = gradients(1, mode), gradients(parts, mode)
    assert list(whole) == list(in_parts)
    for name in whole:
        np.testing.assert_allclose(in_parts[name], whole[name], atol=1e-6, err_msg=name)


def test_lengths_may_come_at_run_time_and_layers_be_recomputed():
    whole, in_parts = gradients(1), gradients(3, static=False, recompute=True)
    for name in whole:
        np.testing.assert_allclose(in_parts[name], whole[name], atol=1e-6, err_msg=name)


def test_the_same_seed_drops_the_same_in_every_part():
    first, second = gradients(3, rate=0.3), gradients(3, rate=0.3)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_parts_drop_other_values():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        dropped = []
        for part in (0, 1, tf.constant(1)):
            with dropout_stream(part):
                dropped.append(session.run(modeling.dropout(tf.ones([1000]), 0.5)))
        assert (dropped[0] != dropped[1]).mean() > 0.3
        np.testing.assert_array_equal(dropped[1], dropped[2])
