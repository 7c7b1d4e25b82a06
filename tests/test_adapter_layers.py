"""Adapters: activations, formula, near-identity initialization and configuration."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_layers import AdapterConfig
from tests.helpers import assert_mentions, message_of
from tests.tiny_networks import CLOSED_FORMS, set_random_values

# ---------------------------------------------------------------------------------------- activations


@pytest.mark.parametrize("name", sorted(adapter_layers.ACTIVATIONS))
def test_activations_follow_their_closed_forms(name):
    points = [-30.0, -5.0, -2.5, -1.0, -0.3, -1e-3, 0.0, 1e-4, 0.5, 1.0, 3.0, 20.0]
    with tf.Graph().as_default(), tf.Session() as session:
        activation = adapter_layers.get_activation(name) or tf.identity
        found = session.run(activation(tf.constant(points)))
    np.testing.assert_allclose(found, [CLOSED_FORMS[name](point) for point in points], atol=2e-6)


def test_activations_are_found_in_any_case_and_functions_are_used_as_they_are():
    assert adapter_layers.get_activation("GELU") is modeling.gelu
    assert modeling.get_activation(tf.sigmoid) is tf.sigmoid
    assert [modeling.get_activation(name) for name in ("linear", "", None)] == [None, None, None]
    assert_mentions(message_of(modeling.get_activation, "ReLu6"), "'ReLu6'", "Did you mean 'relu'?", "gelu, gelu_erf")


# --------------------------------------------------------------------------------------------- the formula


@pytest.mark.parametrize(
    "shape, activation",
    [([10, 6], "gelu"), ([10, 6], "swish"), ([10, 6], "linear"), ([2, 5, 6], "relu"), ([None, None, 6], "tanh")],
)
def test_an_adapter_computes_its_formula_for_any_number_of_axes(shape, activation):
    x = np.random.RandomState(3).standard_normal([10, 6] if len(shape) == 2 else [2, 5, 6]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32, shape)
        output = adapter_layers.feedforward_adapter(fed, 4, activation=activation)
        values = set_random_values(session, scale=1.0)
        found = session.run(output, {fed: x})
    w1, b1, w2, b2 = (values[f"adapters/{name}"] for name in ("weights1", "biases1", "weights2", "biases2"))
    inner = np.vectorize(CLOSED_FORMS[activation])(x.astype(np.float64) @ w1 + b1)
    np.testing.assert_allclose(found, x + inner @ w2 + b2, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------------------------- initialisation


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 0.0])
def test_a_new_adapter_is_near_the_identity_with_weights_from_a_normal_truncated_at_two_deviations(scale):
    x = np.random.RandomState(4).standard_normal([50, 400]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        output = adapter_layers.get_adapter(AdapterConfig(size=100, init_scale=scale))(tf.constant(x), 0, "attention")
        session.run(tf.global_variables_initializer())
        values = session.run({variable.op.name: variable for variable in tf.global_variables()})
        # About scale² · √400 · √100, times four standard deviations.
        assert np.abs(session.run(output) - x).max() <= 800 * scale**2
    for name in ("adapters/weights1", "adapters/weights2"):
        assert np.abs(values[name]).max() <= 2 * scale
        assert np.abs(values[name]).max() >= 1.95 * scale
        assert abs(values[name].mean()) <= 0.02 * scale
        # A standard normal truncated at two has the standard deviation sqrt(1 - 4·φ(2) / (2·Φ(2) - 1)) = 0.8796.
        assert values[name].std() == pytest.approx(0.8796 * scale, rel=0.02)
    assert not values["adapters/biases1"].any() and not values["adapters/biases2"].any()


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
        ({"norm": "batches"}, ["norm", "'batches'", "Did you mean 'batch'?"]),
        ({"norm": None}, ["norm", "none, layer, batch"]),
        ({"connection": "paralel"}, ["connection", "'paralel'", "Did you mean 'parallel'?"]),
        ({"depth": 0}, ["depth", "at least 1", 0]),
        ({"depth": 10**6}, ["depth", "16", 10**6]),
    ],
)
def test_an_invalid_config_is_an_error(changes, facts):
    assert_mentions(message_of(AdapterConfig, **changes), *facts)


def test_a_config_has_the_papers_values_sorts_its_layers_and_is_immutable():
    config = AdapterConfig()
    assert config == AdapterConfig(size=64, activation="gelu", init_scale=1e-2, layers=None, placement="both")
    assert AdapterConfig(activation=None) == AdapterConfig(activation="")
    assert AdapterConfig(layers=[2, 0]) == AdapterConfig(layers=(0, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.size = 8


def test_an_unknown_name_is_an_error_with_a_suggestion():
    message = message_of(adapter_layers.get_adapter, "feed_forward_adapter")
    assert_mentions(message, "'feed_forward_adapter'", "Did you mean 'feedforward_adapter'?")
