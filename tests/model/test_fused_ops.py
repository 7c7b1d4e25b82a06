"""The element-wise parts: their values and gradients are those of the plain formulation, with XLA and without."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scipy import special

import adapter_layers
import modeling
import optimization
from adapter_bert.model import fused_ops
from adapter_bert.model.heads import ClassificationHead
from tests.helpers import tiny_config

pytestmark = pytest.mark.smoke

CAN_COMPILE = fused_ops._can_compile()
XLA = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not CAN_COMPILE, reason="this TensorFlow compiles no functions")),
]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def evaluated(build, *arrays, xla=False, seed=5):
    """What a graph function makes of arrays; placeholders keep TensorFlow from folding it away."""
    with tf.Graph().as_default(), tf.Session() as session, fused_ops.compiling(xla):
        tf.set_random_seed(seed)
        places = [tf.placeholder(array.dtype, array.shape) for array in arrays]
        return session.run(build(*places), dict(zip(places, arrays)))


def value_and_gradients(function, *arrays, xla=False):
    """A function's value, and the gradients of a weighted sum of it."""

    def build(*inputs):
        y = function(*inputs)
        weights = np.cos(np.arange(np.prod(y.shape.as_list()))).reshape(y.shape.as_list()).astype(np.float32)
        return [y, *tf.gradients(y, inputs, tf.constant(weights))]

    return evaluated(build, *arrays, xla=xla)


def assert_equal(got, expected, tolerance=1e-5):
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max()))


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
        weights = weights * mask_of(weights, seed, rate)
    return tf.matmul(weights, value)


def mask_of(x, seed, rate):
    """What dropout multiplies by, as a constant: found out by dropping ones."""
    return tf.stop_gradient(fused_ops.dropout(tf.ones_like(x), seed, rate))


def plain_dropout(x, seed, rate):
    return x * mask_of(x, seed, rate)


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("name", ["gelu", "gelu_erf"])
def test_gelu_and_its_gradient_are_those_of_the_plain_formula(name, xla):
    plain = {"gelu": plain_gelu, "gelu_erf": plain_gelu_erf}[name]
    x = np.concatenate([numbers(300) * 3, [0.0, -30.0, 30.0, 1e-4]]).astype(np.float32)
    assert_equal(value_and_gradients(getattr(fused_ops, name), x, xla=xla), value_and_gradients(plain, x))


def test_the_exact_gelu_is_that_of_scipy():
    x = numbers(1000) * 4
    y = evaluated(fused_ops.gelu_erf, x)
    np.testing.assert_allclose(y, x * special.ndtr(x.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("has_residual", [True, False])
def test_layer_norm_and_its_gradients_are_those_of_the_plain_formula(has_residual, xla):
    arrays = [numbers(9, 8, seed=1) * 2 + 3, numbers(8, seed=2), numbers(8, seed=3)]
    arrays += [numbers(9, 8, seed=4)] if has_residual else []

    def normalised(layer_norm):
        return lambda x, gamma, beta, residual=None: layer_norm(x, residual, gamma, beta, 1e-12)

    got = value_and_gradients(normalised(fused_ops.layer_norm), *arrays, xla=xla)
    assert_equal(got, value_and_gradients(normalised(plain_layer_norm), *arrays))


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention_and_its_gradients_are_those_of_the_plain_formula(rate, xla):
    arrays = [numbers(2, 3, 5, 4, seed=seed) for seed in (1, 2, 3)]
    bias = np.where(np.arange(10).reshape(2, 1, 1, 5) % 5 > 3, -10000.0, 0.0).astype(np.float32)

    def attended(attention):
        return lambda q, k, v: attention(q, k, v, tf.constant(bias), tf.constant([7, 8]), rate)

    got = value_and_gradients(attended(fused_ops.attention), *arrays, xla=xla)
    assert_equal(got, value_and_gradients(attended(plain_attention), *arrays, xla=xla))


@pytest.mark.parametrize("xla", XLA)
def test_the_gradient_of_dropout_drops_what_the_value_drops(xla):
    got = value_and_gradients(lambda x: fused_ops.dropout(x, tf.constant([1, 2]), 0.4), numbers(50, 20) + 9, xla=xla)
    np.testing.assert_array_equal(got[0] == 0, got[1] == 0)
    assert 0.2 < (got[0] == 0).mean() < 0.6


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.003])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate, xla):
    ones = np.ones([1000, 501], np.float32)  # an odd number of values: numbers are drawn in pairs
    y = evaluated(lambda x: fused_ops.dropout(x, tf.constant([3, 4]), rate), ones, xla=xla)
    np.testing.assert_allclose(y[y > 0], 1.0 / (1.0 - rate), rtol=1e-6)
    assert abs((y == 0).mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / y.size)


@pytest.mark.parametrize("xla", XLA)
def test_what_is_dropped_looks_random_along_rows_columns_and_seeds(xla):
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


def model_gradients(xla=False, recompute=False, rate=0.1):
    """The loss and every variable's gradient of a tiny BERT with adapters."""
    ids = np.random.RandomState(3).randint(1, 30, [4, 7])
    with tf.Graph().as_default(), fused_ops.compiling(xla), tf.Session() as session:
        tf.set_random_seed(4)
        tf.train.get_or_create_global_step()
        config = tiny_config(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
        mask = tf.constant((np.arange(28).reshape(4, 7) % 7 < 5).astype(np.int32))
        adapter = adapter_layers.AdapterConfig(size=5, init_scale=0.2)
        model = modeling.BertModel(
            config, True, tf.constant(ids), mask, scope="bert", adapter_fn=adapter, gradient_checkpointing=recompute
        )
        loss = ClassificationHead(2).build(model, {"label_ids": tf.constant([0, 1, 1, 0])}, True).loss
        variables = tf.trainable_variables()
        grads = tf.gradients(loss, variables)
        session.run(tf.global_variables_initializer())
        # Not those of a fresh network: its LayerNorms do nothing, and TensorFlow versions start it differently.
        for index, variable in enumerate(variables):
            variable.load(0.2 * numbers(*variable.shape.as_list(), seed=index) + ("gamma" in variable.name), session)
        values = session.run([loss] + [tf.convert_to_tensor(grad) for grad in grads])
        return dict(zip(["loss"] + [optimization.variable_name(variable) for variable in variables], values))


def assert_same_gradients(got, expected):
    assert set(got) == set(expected)
    for name in expected:
        # The gradient of a key's bias is zero but for rounding.
        scale = max(np.abs(expected[name]).max(), 0.1)
        np.testing.assert_allclose(got[name] / scale, expected[name] / scale, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("xla", XLA)
def test_all_gradients_of_a_bert_are_those_of_the_plain_formulation(xla, monkeypatch):
    lean = model_gradients(xla)
    for name, plain in (("layer_norm", plain_layer_norm), ("attention", plain_attention)):
        monkeypatch.setattr(fused_ops, name, plain)
    monkeypatch.setitem(adapter_layers.ACTIVATIONS, "gelu", plain_gelu)
    # Dropout stays, so that the same values are dropped; its gradient has a test of its own.
    assert_same_gradients(lean, model_gradients(xla))
    assert any(np.abs(value).max() > 0.01 for name, value in lean.items() if "adapters" in name)


def test_a_wrong_gradient_would_be_found(monkeypatch):
    lean = model_gradients()
    monkeypatch.setattr(fused_ops, "_gelu_grad", lambda x, dy: dy * 0.99)
    with pytest.raises(AssertionError):
        assert_same_gradients(model_gradients(), lean)


@pytest.mark.long
@pytest.mark.parametrize("xla", XLA)
def test_recomputed_layers_have_the_same_gradients(xla):
    assert_same_gradients(model_gradients(xla, recompute=True), model_gradients(xla))


@pytest.mark.parametrize("has_seed", [True, False])
def test_recomputed_dropout_drops_what_was_dropped(has_seed):
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


def test_networks_that_share_their_variables_drop_other_values():
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


def test_a_graph_that_xla_compiles_as_a_whole_draws_by_hashing_alone():
    """A TPU knows no 16-bit numbers."""
    with tf.Graph().as_default() as graph, fused_ops.compiling(fused_ops.WHOLE_GRAPH):
        fused_ops.dropout(tf.placeholder(tf.float32, [64, 64]), tf.constant([1, 2]), 0.1)
        types = {op.type for op in graph.get_operations()}
    assert "BitwiseXor" in types and not types & {"Bitcast", "PartitionedCall", "StatefulPartitionedCall"}


def test_a_graph_from_a_file_says_why_it_has_no_gradients():
    with tf.Graph().as_default() as graph:
        fused_ops.gelu(tf.placeholder(tf.float32, [3], name="x"))
        saved = tf.train.export_meta_graph()
        last = graph.get_operations()[-1].name
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(saved)
        with pytest.raises(RuntimeError, match="imported from a file"):
            tf.gradients(graph.get_tensor_by_name(last + ":0"), graph.get_tensor_by_name("x:0"))


def test_recomputed_layers_are_worked_out_behind_the_gradient_that_needs_them():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [3, 2], name="x")

        def layer(x):
            return tf.sin(tf.matmul(x, tf.get_variable("w", [2, 2])), name="sine")

        y = fused_ops.recomputed(layer, x)
        tf.gradients(tf.reduce_sum(y), [x])
        again = graph.get_operation_by_name("gradients/IdentityN_grad/sine").inputs[0].op.inputs[0].op
        assert again.control_inputs, "nothing makes it wait"
        assert again.inputs[0] is x


def test_graphs_with_own_gradients_are_freed():
    graph = tf.Graph()
    with graph.as_default():
        fused_ops.gelu(tf.placeholder(tf.float32, [3]))
    reference = weakref.ref(graph)
    del graph
    gc.collect()
    assert reference() is None


@pytest.mark.skipif(not CAN_COMPILE, reason="this TensorFlow compiles no functions")
def test_xla_is_used_where_shapes_are_fixed_and_large_unless_said_otherwise():
    def compiles(shape, use_xla=None):
        with tf.Graph().as_default() as graph, fused_ops.compiling(use_xla):
            fused_ops.gelu(tf.placeholder(tf.float32, shape))
            return any("PartitionedCall" in op.type for op in graph.get_operations())

    assert compiles([1024, 1024])
    assert not compiles([None, 1024])
    assert not compiles([64, 64])
    assert not compiles([1024, 1024], use_xla=False)
    assert compiles([None, 64], use_xla=True)
