"""Adapters: formula, near-identity initialisation and placement."""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, Set

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_layers import AdapterConfig
from tests.helpers import assert_mentions, message_of

IDS = np.array([[2, 7, 9, 3, 11, 3], [2, 31, 3, 0, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], np.int32)


def small_bert(adapter_fn: object, layers: int) -> modeling.BertModel:
    config = modeling.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        type_vocab_size=2,
        initializer_range=0.3,
    )
    ids, mask = tf.constant(IDS), tf.constant(MASK)
    return modeling.BertModel(config, False, ids, mask, scope="bert", adapter_fn=adapter_fn)


def set_random_values(session: tf.Session) -> Dict[str, np.ndarray]:
    """Set every variable to random values and return them by the last part of their names."""
    random = np.random.RandomState(4)
    variables = {variable.op.name.split("/")[-1]: variable for variable in tf.global_variables()}
    values = {
        name: random.standard_normal(variable.shape.as_list()).astype(np.float32)
        for name, variable in variables.items()
    }
    session.run([tf.assign(variables[name], value).op for name, value in values.items()])
    return values


def sharing_variables() -> tf.variable_scope:
    """Networks built in this scope use the same variables."""
    return tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE)


def exact_gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def tanh_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


CLOSED_FORMS = {
    "gelu": tanh_gelu,
    "gelu_erf": exact_gelu,
    "relu": lambda x: max(x, 0.0),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "linear": lambda x: x,
}


# --------------------------------------------------------------------------------------------- the formula


@pytest.mark.parametrize("width, size", [(768, 64), (16, 1), (3, 7)])
def test_an_adapter_has_2md_plus_d_plus_m_parameters(width, size):
    with tf.Graph().as_default():
        adapter_layers.feedforward_adapter(tf.zeros([2, width]), size)
        shapes = {variable.op.name: variable.shape.as_list() for variable in tf.trainable_variables()}
    assert shapes == {
        "adapters/weights1": [width, size],
        "adapters/biases1": [1, size],
        "adapters/weights2": [size, width],
        "adapters/biases2": [1, width],
    }
    assert sum(np.prod(shape) for shape in shapes.values()) == 2 * size * width + width + size


@pytest.mark.parametrize("activation", sorted(adapter_layers.ACTIVATIONS))
def test_an_adapter_computes_its_formula(activation):
    x = np.random.RandomState(3).standard_normal([5, 6]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        output = adapter_layers.feedforward_adapter(tf.constant(x), 4, activation=activation)
        values = set_random_values(session)
        found = session.run(output)
    inner = x.astype(np.float64) @ values["weights1"] + values["biases1"]
    expected = x + np.vectorize(CLOSED_FORMS[activation])(inner) @ values["weights2"] + values["biases2"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [[2, 5, 6], [None, None, 6], [None, 5, 6]])
def test_three_axes_give_the_same_result_as_two(shape):
    x = np.random.RandomState(3).standard_normal([2, 5, 6]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        cube = tf.placeholder(tf.float32, shape)
        of_cube = adapter_layers.feedforward_adapter(cube, 4)
        of_rows = adapter_layers.feedforward_adapter(tf.constant(x.reshape([10, 6])), 4)
        set_random_values(session)
        found, expected = session.run([of_cube, of_rows], {cube: x})
    np.testing.assert_allclose(found, expected.reshape([2, 5, 6]), rtol=1e-6, atol=1e-6)


# --------------------------------------------------------------------------------------------- initialisation


@pytest.mark.parametrize("scale", [1e-2, 1e-3])
def test_new_weights_come_from_a_normal_truncated_at_two_deviations(scale):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        adapter_layers.feedforward_adapter(tf.zeros([1, 400]), 100, init_scale=scale)
        session.run(tf.global_variables_initializer())
        values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    for name in ("adapters/weights1", "adapters/weights2"):
        assert np.abs(values[name]).max() <= 2 * scale
        assert np.abs(values[name]).max() > 1.95 * scale
        assert abs(values[name].mean()) < 0.02 * scale
        # A standard normal truncated at two has the standard deviation sqrt(1 - 4·φ(2) / (2·Φ(2) - 1)) = 0.8796.
        assert values[name].std() == pytest.approx(0.8796 * scale, rel=0.02)
    assert not values["adapters/biases1"].any() and not values["adapters/biases2"].any()


def test_the_papers_scale_is_the_default():
    assert AdapterConfig() == AdapterConfig(size=64, activation="gelu", init_scale=1e-2, layers=None, placement="both")


def distance_from_plain_bert(init_scale: float, seed: int) -> float:
    """Return the largest difference that new adapters make to outputs of real tokens or to the pooled output."""
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        tf.set_random_seed(seed)
        adapted, plain = small_bert(AdapterConfig(init_scale=init_scale), 2), small_bert(None, 2)
        session.run(tf.global_variables_initializer())
        sequences = session.run([adapted.get_sequence_output(), plain.get_sequence_output()])
        pooled = session.run([adapted.get_pooled_output(), plain.get_pooled_output()])
    apart = np.abs(sequences[0] - sequences[1])[MASK.astype(bool)].max()
    return float(max(apart, np.abs(pooled[0] - pooled[1]).max()))


@pytest.mark.parametrize("seed", [1, 2])
def test_new_adapters_of_scale_1e_7_change_the_network_by_at_most_1e_6(seed):
    assert distance_from_plain_bert(1e-7, seed) <= 1e-6


def test_the_larger_the_scale_the_further_from_the_identity():
    distances = [distance_from_plain_bert(scale, seed=1) for scale in (0.0, 1e-2, 1.0)]
    assert distances[0] == 0
    assert 1e-6 < distances[1] < 0.1 < distances[2]


# ------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    "changes, facts",
    [({"size": size}, ["size", "at least 1", repr(size)]) for size in (0, -1, 2.5, "64", True, None)]
    + [
        ({"init_scale": scale}, ["scale", "at least 0", repr(scale)])
        for scale in (-1e-3, math.inf, math.nan, "0.01", None)
    ]
    + [({"layers": layers}, ["layers", "distinct", list(layers)]) for layers in ((), (-1, 0), (2, 2))]
    + [
        ({"activation": "gellu"}, ["activation", "'gellu'", "Did you mean 'gelu'?"]),
        ({"placement": "feedforwards"}, ["placement", "'feedforwards'", "Did you mean 'feedforward'?"]),
    ],
)
def test_an_invalid_config_is_an_error(changes, facts):
    assert_mentions(message_of(AdapterConfig, **changes), *facts)


def test_an_unknown_adapter_function_is_an_error_with_a_suggestion():
    message = message_of(adapter_layers.get_adapter, "feed_forward_adapter")
    assert_mentions(message, "'feed_forward_adapter'", "Did you mean 'feedforward_adapter'?")


def test_layers_are_sorted():
    assert AdapterConfig(layers=[2, 0]).layers == (0, 2)
    assert AdapterConfig(layers=[2, 0]) == AdapterConfig(layers=(0, 2))


def test_layers_beyond_the_network_are_an_error():
    AdapterConfig(layers=(0, 11)).check_fits(12)
    AdapterConfig().check_fits(1)
    assert_mentions(message_of(AdapterConfig(layers=(0, 11)).check_fits, 6), "11", "6 layers", "0 to 5")


def test_a_config_cannot_be_changed():
    config = AdapterConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.size = 8
    assert dataclasses.replace(config, size=8).size == 8


# ---------------------------------------------------------------------------------------- placement


def adapter_places(adapter_fn: object) -> Set[str]:
    """Return the scopes of a three-layer BERT with an adapter."""
    with tf.Graph().as_default():
        small_bert(adapter_fn, 3)
        names = [variable.op.name for variable in tf.global_variables() if "/adapters/" in variable.op.name]
    return {name[len("bert/encoder/") :].rsplit("/adapters/", 1)[0] for name in names}


@pytest.mark.parametrize(
    "config, places",
    [
        (AdapterConfig(layers=(1,)), {"layer_1/attention/output", "layer_1/output"}),
        (
            AdapterConfig(layers=(0, 2), placement="attention"),
            {"layer_0/attention/output", "layer_2/attention/output"},
        ),
        (AdapterConfig(placement="feedforward"), {"layer_0/output", "layer_1/output", "layer_2/output"}),
        (AdapterConfig(layers=(1,), placement="attention"), {"layer_1/attention/output"}),
        (None, set()),
    ],
)
def test_adapters_are_only_in_the_selected_places(config, places):
    assert adapter_places(config) == places


def test_the_name_gives_every_layer_two_adapters_of_size_64():
    assert len(adapter_places("feedforward_adapter")) == 6
    with tf.Graph().as_default():
        adapter_layers.get_adapter("feedforward_adapter")(tf.zeros([2, 16]), 0, "attention")
        assert tf.global_variables()[0].shape.as_list() == [16, 64]


def test_covers_tells_which_sublayers_have_an_adapter():
    config = AdapterConfig(layers=(1,), placement="attention")
    assert config.covers(1, "attention")
    assert not config.covers(1, "feedforward") and not config.covers(0, "attention")
    assert all(AdapterConfig().covers(7, sublayer) for sublayer in adapter_layers.SUBLAYERS)


def test_without_an_adapter_the_tensor_is_returned_unchanged():
    with tf.Graph().as_default():
        x = tf.zeros([2, 4])
        assert adapter_layers.get_adapter(None)(x, 0, "attention") is x
        assert adapter_layers.get_adapter(AdapterConfig(layers=(3,)))(x, 0, "attention") is x
        assert not tf.global_variables()


def test_a_custom_function_is_applied_everywhere():
    adapt = adapter_layers.get_adapter(lambda x: x + 1)
    places = [(0, "attention"), (0, "feedforward"), (5, "attention"), (5, "feedforward")]
    assert [adapt(1, *place) for place in places] == [2, 2, 2, 2]
