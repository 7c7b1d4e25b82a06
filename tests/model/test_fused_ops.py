"""Fused operations: values and gradients are those of the plain formulation, with and without XLA."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert.model import fused_ops
from tests.helpers import tiny_config
from tests.tiny_networks import assert_same, loss_and_gradients, random_batch

pytestmark = pytest.mark.smoke

BATCH = random_batch(4, 7)
CAN_COMPILE = fused_ops._can_compile()
XLA = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not CAN_COMPILE, reason="this TensorFlow compiles no functions")),
]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def evaluated(build, *arrays, xla=False, seed=5):
    """Return the result of a graph function; placeholders keep TensorFlow from folding it away."""
    with tf.Graph().as_default(), tf.Session() as session, fused_ops.compiling(xla):
        tf.set_random_seed(seed)
        places = [tf.placeholder(array.dtype, array.shape) for array in arrays]
        return session.run(build(*places), dict(zip(places, arrays)))


def value_and_gradients(function, *arrays, xla=False):
    """Return a function's value, and the gradients of a weighted sum of it."""

    def build(*inputs):
        y = function(*inputs)
        weights = np.cos(np.arange(np.prod(y.shape.as_list()))).reshape(y.shape.as_list()).astype(np.float32)
        return [y, *tf.gradients(y, inputs, tf.constant(weights))]

    return evaluated(build, *arrays, xla=xla)


def plain_gelu(x):
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * tf.pow(x, 3))))


def plain_gelu_erf(x):
    return x * 0.5 * (1.0 + tf.erf(x / math.sqrt(2.0)))


def plain_layer_norm(x, residual, gamma, beta, epsilon):
    x = x if residual is None else x + residual
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)


def plain_attention(query, key, value, bias, seed, rate):
    scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(query.shape.as_list()[-1]) + bias
    weights = tf.nn.softmax(scores)
    if rate:
        # What dropout multiplies by, as a constant: the result of dropping ones.
        weights = weights * tf.stop_gradient(fused_ops.dropout(tf.ones_like(weights), seed, rate))
    return tf.matmul(weights, value)


def normalised(layer_norm):
    return lambda x, gamma, beta, residual=None: layer_norm(x, residual, gamma, beta, 1e-12)


def attended(rate):
    bias = np.where(np.arange(10).reshape(2, 1, 1, 5) % 5 > 3, -10000.0, 0.0).astype(np.float32)
    return lambda attention: lambda q, k, v: attention(q, k, v, tf.constant(bias), tf.constant([7, 8]), rate)


POINTS = np.concatenate([numbers(300) * 3, [0.0, -30.0, 30.0, 1e-4]]).astype(np.float32)
ROWS = [numbers(9, 8, seed=1) * 2 + 3, numbers(8, seed=2), numbers(8, seed=3)]
HEADS = [numbers(2, 3, 5, 4, seed=seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize(
    "name, plain, applied, arrays",
    [
        ("gelu", plain_gelu, lambda gelu: gelu, [POINTS]),
        ("gelu_erf", plain_gelu_erf, lambda gelu: gelu, [POINTS]),
        ("layer_norm", plain_layer_norm, normalised, ROWS),
        ("layer_norm", plain_layer_norm, normalised, [*ROWS, numbers(9, 8, seed=4)]),
        ("attention", plain_attention, attended(0.0), HEADS),
        ("attention", plain_attention, attended(0.3), HEADS),
    ],
)
def test_values_and_gradients_are_those_of_the_plain_formula(name, plain, applied, arrays, xla):
    found = value_and_gradients(applied(getattr(fused_ops, name)), *arrays, xla=xla)
    expected = value_and_gradients(applied(plain), *arrays, xla=xla)
    assert len(found) == len(expected) == 1 + len(arrays)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(other).max()))


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.003])
def test_dropout_drops_at_its_rate_keeps_the_mean_and_drops_the_same_gradients(rate, xla):
    def drop(x):
        y = fused_ops.dropout(x, tf.constant([3, 4]), rate)
        return [y, *tf.gradients(y, [x])]

    ones = np.ones([1000, 501], np.float32)  # an odd number of values: numbers are drawn in pairs
    y, gradient = evaluated(drop, ones, xla=xla)
    np.testing.assert_array_equal(y, gradient)
    np.testing.assert_allclose(y[y > 0], 1.0 / (1.0 - rate), rtol=1e-6)
    assert abs((y == 0).mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / y.size)


@pytest.mark.parametrize("xla", XLA)
def test_dropped_values_look_random_along_rows_columns_and_seeds(xla):
    def dropped(seed):
        y = evaluated(lambda x: fused_ops.dropout(x, tf.constant(seed), 0.5), np.ones([400, 400], np.float32), xla=xla)
        return y == 0

    first = dropped([11, 12])
    others = [first[1:], first[:, 1:], dropped([11, 13]), dropped([12, 12]), dropped([12, 11])]
    for other, one in zip(others, [first[:-1], first[:, :-1], first, first, first]):
        # Two fair coins agree half the time; 160,000 throws.
        assert abs((one == other).mean() - 0.5) < 5 * 0.5 / math.sqrt(one.size)
    for axis in (0, 1):
        share = first.mean(axis=axis)
        assert abs(share.std() - 0.5 / math.sqrt(400)) < 0.006
    np.testing.assert_array_equal(first, dropped([11, 12]))


@pytest.mark.parametrize("xla", XLA)
def test_all_gradients_of_a_bert_are_those_of_the_plain_formulation(xla, monkeypatch):
    fused = loss_and_gradients(BATCH, mode="full", dropout=0.1, xla=xla)
    monkeypatch.setattr(fused_ops, "layer_norm", plain_layer_norm)
    monkeypatch.setattr(fused_ops, "attention", plain_attention)
    monkeypatch.setitem(adapter_layers.ACTIVATIONS, "gelu", plain_gelu)
    # Dropout stays, so that the same values are dropped.
    assert_same(fused, loss_and_gradients(BATCH, mode="full", dropout=0.1, xla=xla))
    assert any(np.abs(value).max() > 0.01 for name, value in fused.items() if "adapters" in name)
    monkeypatch.setitem(adapter_layers.ACTIVATIONS, "gelu", lambda x: 0.99 * plain_gelu(x))
    with pytest.raises(AssertionError):
        assert_same(fused, loss_and_gradients(BATCH, mode="full", dropout=0.1, xla=xla))


@pytest.mark.long
@pytest.mark.parametrize("xla", XLA)
def test_recomputed_layers_have_the_same_gradients(xla):
    kept, recomputed = (
        loss_and_gradients(BATCH, mode="full", dropout=0.1, xla=xla, layers=2, gradient_checkpointing=recompute)
        for recompute in (False, True)
    )
    assert set(kept) == set(recomputed)
    assert_same(recomputed, kept)


@pytest.mark.parametrize("has_seed", [True, False])
def test_recomputed_dropout_drops_the_same_values(has_seed):
    with tf.Graph().as_default(), tf.Session() as session:
        if has_seed:
            tf.set_random_seed(1)
            tf.train.create_global_step()
        x = tf.ones([50, 40])
        y = fused_ops.recomputed(lambda x: modeling.dropout(x, 0.5), x)
        [dx] = tf.gradients(y, [x])
        session.run(tf.global_variables_initializer())
        kept, gradient = session.run([y, dx])
        np.testing.assert_array_equal(kept, gradient)
        assert 0 < (kept == 0).mean() < 1


def test_networks_that_share_variables_drop_different_values():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        config, ids = tiny_config(hidden_dropout_prob=0.5), tf.ones([2, 6], tf.int32)
        first = modeling.BertModel(config, True, ids, scope="bert").get_sequence_output()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            second = modeling.BertModel(config, True, ids, scope="bert").get_sequence_output()
        session.run(tf.global_variables_initializer())
        one, other = session.run([first, second])
        assert np.abs(one - other).max() > 0.1
        np.testing.assert_array_equal(one, session.run(first))


def test_a_graph_that_xla_compiles_as_a_whole_draws_only_by_hashing():
    """TPUs do not support 16-bit integers."""
    with tf.Graph().as_default() as graph, fused_ops.compiling(fused_ops.WHOLE_GRAPH):
        fused_ops.dropout(tf.placeholder(tf.float32, [64, 64]), tf.constant([1, 2]), 0.1)
        types = {op.type for op in graph.get_operations()}
    assert "BitwiseXor" in types and not types & {"Bitcast", "PartitionedCall", "StatefulPartitionedCall"}


def test_a_graph_from_a_file_raises_an_error_that_explains_why_it_has_no_gradients():
    with tf.Graph().as_default() as graph:
        fused_ops.gelu(tf.placeholder(tf.float32, [3], name="x"))
        saved = tf.train.export_meta_graph()
        last = graph.get_operations()[-1].name
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(saved)
        with pytest.raises(RuntimeError, match="imported from a file"):
            tf.gradients(graph.get_tensor_by_name(last + ":0"), graph.get_tensor_by_name("x:0"))


def test_recomputation_waits_for_the_gradient_that_needs_it():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [3, 2], name="x")

        def layer(x):
            return tf.sin(tf.matmul(x, tf.get_variable("w", [2, 2])), name="sine")

        y = fused_ops.recomputed(layer, x)
        tf.gradients(tf.reduce_sum(y), [x])
        again = graph.get_operation_by_name("gradients/IdentityN_grad/sine").inputs[0].op.inputs[0].op
        assert again.control_inputs, "nothing makes it wait"
        assert again.inputs[0] is x


def test_graphs_with_custom_gradients_are_freed():
    graph = tf.Graph()
    with graph.as_default():
        fused_ops.gelu(tf.placeholder(tf.float32, [3]))
    reference = weakref.ref(graph)
    del graph
    gc.collect()
    assert reference() is None


@pytest.mark.skipif(not CAN_COMPILE, reason="this TensorFlow compiles no functions")
def test_xla_is_used_for_large_static_shapes_unless_overridden():
    def compiles(shape, use_xla=None):
        with tf.Graph().as_default() as graph, fused_ops.compiling(use_xla):
            fused_ops.gelu(tf.placeholder(tf.float32, shape))
            return any("PartitionedCall" in op.type for op in graph.get_operations())

    assert compiles([1024, 1024])
    assert not compiles([None, 1024])
    assert not compiles([64, 64])
    assert not compiles([1024, 1024], use_xla=False)
    assert compiles([None, 64], use_xla=True)
