"""Reduced precision: what is stored and computed in bfloat16, and how far results are from float32."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.devices import compat
from adapter_bert.devices.device import Device
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model import fused_ops
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_layers import AdapterConfig
from tests.helpers import tiny_config
from tests.model.test_fused_ops import HEADS, POINTS, ROWS, XLA, attended, normalised, numbers, value_and_gradients

pytestmark = pytest.mark.skipif(compat.tensorflow_version() < (2, 0), reason="bfloat16 needs TensorFlow 2")

ADAPTERS = AdapterConfig(size=4)


def spec_of(mode: str = "adapter", kind: str = "bfloat16", adapter=ADAPTERS, top_layers=None) -> ModelSpec:
    adapter = adapter if mode == "adapter" else None
    return ModelSpec(tiny_config(), ClassificationHead(2), adapter, mode, top_layers, precision=kind)


def features(is_static: bool = True) -> dict:
    ids = np.random.RandomState(1).randint(5, 20, [4, 8]).astype(np.int32)
    arrays = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    arrays["label_ids"] = np.arange(4, dtype=np.int32) % 2
    shapes = {name: array.shape if is_static else [None] * array.ndim for name, array in arrays.items()}
    return {name: tf.placeholder_with_default(array, shapes[name]) for name, array in arrays.items()}


def trained(spec: ModelSpec, steps: int = 2, is_static: bool = True, **plan) -> tuple:
    """Train a tiny network; return the losses, the final weights and the types of the variables."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        tf.train.create_global_step()
        model_fn = ModelFn(spec, plan=TrainingPlan(Schedule(1e-2, 10, 0), **plan))
        built = model_fn(features(is_static), None, ModeKeys.TRAIN, {})
        variables = {optimization.variable_name(variable): variable for variable in tf.trainable_variables()}
        types = {name: variable.dtype.base_dtype.name for name, variable in variables.items()}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([built.loss, built.train_op])[0] for _ in range(steps)]
            return losses, {n: v.astype(np.float32) for n, v in session.run(variables).items()}, types


def reduced(types: dict) -> set:
    return {name for name, kind in types.items() if kind == "bfloat16"}


@pytest.mark.parametrize(
    "mode, top_layers, stored, trained_ones",
    [
        (
            "adapter",
            None,
            ["bert/embeddings/word_embeddings", "bert/encoder/layer_0/output/dense/kernel", "bert/pooler/dense/bias"],
            ["bert/encoder/layer_0/output/adapters/weights1", "bert/embeddings/LayerNorm/gamma", "output_weights"],
        ),
        (
            "top_layers",
            1,
            ["bert/encoder/layer_0/output/dense/kernel", "bert/embeddings/position_embeddings"],
            ["bert/encoder/layer_1/output/dense/kernel", "bert/pooler/dense/kernel"],
        ),
        ("full", None, [], ["bert/embeddings/word_embeddings", "bert/encoder/layer_0/output/dense/kernel"]),
    ],
)
def test_frozen_matrices_are_stored_in_bfloat16_and_what_trains_in_float32(mode, top_layers, stored, trained_ones):
    spec = spec_of(mode, top_layers=top_layers)
    found = set(spec.reduced_names(trains=True))
    assert set(stored) <= found and bool(stored) == bool(found)
    assert set(trained_ones) <= set(spec.trained_names) and not found & set(spec.trained_names)
    assert not any("LayerNorm" in name for name in found)
    assert not spec_of(mode, "float32", top_layers=top_layers).reduced_names(trains=True)


def test_nothing_but_layer_norms_and_head_is_float32_in_a_predictor():
    spec = spec_of()
    kept = set(spec.shapes) - set(spec.reduced_names(trains=False))
    assert kept == {name for name in spec.shapes if "LayerNorm" in name or name.startswith("output_")}


@pytest.mark.parametrize(
    "mode, top_layers, is_static",
    [
        ("adapter", None, False),
        pytest.param("adapter", None, True, marks=pytest.mark.long),
        pytest.param("top_layers", 1, False, marks=pytest.mark.long),
        pytest.param("full", None, False, marks=pytest.mark.long),
    ],
)
def test_losses_are_close_to_those_in_float32_but_not_equal(mode, top_layers, is_static):
    exact, _, types = trained(spec_of(mode, "float32", top_layers=top_layers), is_static=is_static)
    assert not reduced(types)
    spec = spec_of(mode, top_layers=top_layers)
    rounded, _, types = trained(spec, is_static=is_static)
    assert reduced(types) == set(spec.reduced_names(trains=True))
    np.testing.assert_allclose(rounded, exact, rtol=0.05)
    assert rounded != exact


def test_training_in_float16_scales_the_loss_and_stays_close_to_float32():
    """GPUs are not at hand; the CPU computes the same, but slowly."""
    spec = spec_of(kind="float16")
    exact, weights, _ = trained(spec_of(kind="float32"), steps=4, is_static=False)
    rounded, found, types = trained(spec, steps=4, is_static=False)
    assert {name for name, kind in types.items() if kind == "float16"} == set(spec.reduced_names(trains=True))
    np.testing.assert_allclose(rounded, exact, rtol=5e-3)
    assert rounded != exact
    adapters = [name for name in spec.trained_names if name.endswith("weights1")]
    assert adapters
    for name in adapters:  # each step moves a weight by about the learning rate, also for tiny gradients
        assert np.abs(found[name]).mean() > 5e-3
        assert np.mean(np.sign(found[name]) == np.sign(weights[name])) > 0.9


@pytest.mark.long
def test_weights_stored_in_float32_are_rounded_to_the_same_results():
    """A whole checkpoint is for other programs, so such a run stores everything in float32."""
    small, large = (trained(spec_of(), checkpoint_kind=kind) for kind in (None, "whole"))
    assert reduced(small[2]) and not reduced(large[2])
    table = "bert/embeddings/word_embeddings"
    assert not np.array_equal(small[1][table], large[1][table])
    np.testing.assert_allclose(small[0], large[0], rtol=2e-3)  # only the tables of embeddings differ


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [{"norm": "layer"}, {"norm": "batch"}, {"connection": "multiply"}, {"connection": "parallel"}, {"depth": 2}],
    ids=str,
)
def test_variants_of_adapters_train_too(change):
    adapter = AdapterConfig(size=4, **change)
    exact, rounded = (trained(spec_of(kind=kind, adapter=adapter))[0] for kind in ("float32", "bfloat16"))
    np.testing.assert_allclose(rounded, exact, rtol=0.05)


@pytest.mark.long
def test_gradient_checkpointing_and_accumulation_work():
    losses = [trained(spec_of(), gradient_checkpointing=True)[0], trained(spec_of(), accumulation_steps=2)[0]]
    np.testing.assert_allclose(losses, [trained(spec_of(kind="float32"))[0]] * 2, rtol=0.1)


@pytest.mark.long
def test_the_graph_for_a_tpu_builds_with_static_shapes():
    with tf.Graph().as_default() as graph:
        tf.train.create_global_step()
        model_fn = ModelFn(spec_of(), plan=TrainingPlan(Schedule(1e-2, 10, 0)), device=Device(use_tpu=True))
        with fused_ops.compiling(fused_ops.WHOLE_GRAPH):
            output = model_fn.forward(features(), is_training=True)
        grads = tf.gradients(output.loss, optimization.trainable_variables("adapter"))
        assert output.loss.dtype == tf.float32 and {grad.dtype for grad in grads} == {tf.float32}
        assert any(op.type == "MatMul" and op.outputs[0].dtype == tf.bfloat16 for op in graph.get_operations())


def test_outputs_of_bert_are_float32():
    with tf.Graph().as_default():
        model = modeling.BertModel(tiny_config(), False, tf.ones([2, 3], tf.int32), precision="bfloat16")
        assert model.get_pooled_output().dtype == model.get_sequence_output().dtype == tf.float32
        assert {layer.dtype for layer in model.get_all_encoder_layers()} == {tf.bfloat16}


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize(
    "function, arrays",
    [
        (fused_ops.gelu, [POINTS]),
        (fused_ops.gelu_erf, [POINTS]),
        (normalised(fused_ops.layer_norm), [*ROWS, numbers(9, 8, seed=4)]),
        (attended(0.0)(fused_ops.attention), HEADS),
        (attended(0.3)(fused_ops.attention), HEADS),
    ],
    ids=["gelu", "gelu_erf", "layer_norm", "attention", "attention with dropout"],
)
def test_fused_operations_compute_in_float32_and_round_the_result(function, arrays, xla):
    def rounded(*inputs):
        # The weights of LayerNorm, float32, are the only vectors besides the points.
        is_weight = [x.shape.ndims == 1 and len(inputs) > 1 for x in inputs]
        return tf.cast(
            function(*(x if weight else tf.cast(x, tf.bfloat16) for x, weight in zip(inputs, is_weight))), tf.float32
        )

    exact, found = (value_and_gradients(each, *arrays, xla=xla) for each in (function, rounded))
    assert len(exact) == len(found) == 1 + len(arrays)
    for one, other in zip(exact, found):
        np.testing.assert_allclose(other, one, atol=0.03 * np.abs(one).max())
        assert not np.array_equal(one, other)
