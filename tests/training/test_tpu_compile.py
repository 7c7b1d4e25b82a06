"""The programs of a TPU's core: XLA compiles them, here for a CPU, and they compute what plain TensorFlow computes."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model import heads
from adapter_bert.model.heads import ClassificationHead, RegressionHead, SpanHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training.model_fn import ModelFn
from adapter_layers import AdapterConfig
from scripts import check_tpu_compile
from tests.helpers import ROOT, assert_mentions, message_of, tiny_config
from tests.model.test_fused_ops import CAN_COMPILE

pytestmark = pytest.mark.skipif(not CAN_COMPILE, reason="this TensorFlow compiles no functions")

SIZE = (4, 8)
COMPILER = os.environ.get("TPU_COMPILER", os.path.join(ROOT, ".venv-tpu", "bin", "python"))


def make_config(**changes) -> modeling.BertConfig:
    return tiny_config(num_hidden_layers=1, **changes)


SPEC = ModelSpec(make_config(), ClassificationHead(2), AdapterConfig(size=4), use_one_hot_embeddings=True)
FULL = dataclasses.replace(SPEC, adapter=None, tuning_mode="full", head=RegressionHead())


def make_inputs():
    ids = np.random.RandomState(1).randint(5, 20, SIZE).astype(np.int32)
    mask = np.arange(SIZE[1])[None, :] < np.array([[8], [5], [3], [8]])
    return [each.astype(np.int32) for each in (ids, mask, np.zeros(SIZE), np.arange(4) % 2)]


def run_core(spec: ModelSpec, mode: str, use_xla: bool, steps: int = 3) -> list:
    """Return the results of some steps of a TPU's core, each with the weights that the one before has left."""
    step = check_tpu_compile.make_step(spec, mode, *SIZE)
    run = tf2.function(lambda *inputs: step(*inputs), autograph=False, jit_compile=use_xla)
    return [tf2.nest.map_structure(np.asarray, run(*map(tf2.constant, make_inputs()))) for _ in range(steps)]


def run_cpu(spec: ModelSpec, mode: str, steps: int = 3) -> list:
    """Return the results of some steps on a CPU, with the same initial weights."""
    spec = dataclasses.replace(spec, use_one_hot_embeddings=False)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        names = ("input_ids", "input_mask", "segment_ids", "label_ids")
        features = {name: tf.constant(values) for name, values in zip(names, make_inputs())}
        built = ModelFn(spec, plan=check_tpu_compile.PLAN)(features, None, mode, {})
        fetched = {ModeKeys.TRAIN: [built.loss, built.train_op], ModeKeys.PREDICT: [built.predictions, ()]}
        if mode == ModeKeys.EVAL:
            fetched[mode] = [built.eval_metrics[1], ()]
        session.run(tf.global_variables_initializer())
        return [session.run(fetched[mode])[0] for _ in range(steps)]


def assert_close(found, expected, tolerance: float = 1e-4):
    flat = tf2.nest.flatten(expected)
    assert flat
    for one, other in zip(tf2.nest.flatten(found), flat):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("spec", [SPEC, pytest.param(FULL, marks=pytest.mark.long)], ids=["adapters", "full"])
def test_compiled_training_has_the_losses_of_plain_tensorflow(spec):
    losses = run_core(spec, ModeKeys.TRAIN, use_xla=True)
    assert_close(losses, run_core(spec, ModeKeys.TRAIN, use_xla=False))
    assert losses[2] != losses[0]


def test_without_dropout_compiled_training_has_the_losses_of_a_cpu(monkeypatch):
    monkeypatch.setattr(heads, "HEAD_DROPOUT", 0.0)
    spec = dataclasses.replace(SPEC, config=make_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    assert_close(run_core(spec, ModeKeys.TRAIN, use_xla=True), run_cpu(spec, ModeKeys.TRAIN))


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, pytest.param(ModeKeys.PREDICT, marks=pytest.mark.long)])
def test_compiled_bfloat16_has_the_results_of_plain_tensorflow(mode):
    reduced = dataclasses.replace(SPEC, precision="bfloat16")
    found, expected = (run_core(reduced, mode, use_xla) for use_xla in (True, False))
    assert_close(found, expected, tolerance=0.01)  # XLA keeps some intermediate results in float32
    with pytest.raises(AssertionError):
        assert_close(found, run_core(SPEC, mode, use_xla=True), tolerance=1e-6)


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_compiled_predictions_are_those_of_a_cpu(mode):
    assert_close(run_core(SPEC, mode, use_xla=True, steps=1), run_cpu(SPEC, mode, steps=1))


@pytest.mark.parametrize("mode", list(check_tpu_compile.MODES.values()))
def test_xla_supports_all_operations_of_span_extraction(mode):
    step = check_tpu_compile.make_step(dataclasses.replace(SPEC, head=SpanHead()), mode, *SIZE)
    assert len(check_tpu_compile.to_hlo(step, *SIZE)) > 10_000


def test_an_operation_that_xla_does_not_support_is_an_error():
    def adapter(x: tf.Tensor, **unused) -> tf.Tensor:
        return x + tf.reshape(tf.string_to_number(tf.as_string(tf.reshape(x, [-1]))), tf.shape(x))

    spec = dataclasses.replace(SPEC, adapter=adapter)
    step = check_tpu_compile.make_step(spec, ModeKeys.PREDICT, *SIZE)
    with pytest.raises((ValueError, tf.errors.OpError), match="AsString"):
        check_tpu_compile.to_hlo(step, *SIZE)


def test_without_the_tpu_compiler_an_error_says_how_to_install_it():
    assert_mentions(message_of(check_tpu_compile.Compiler, "no/python"), "no/python", "requirements-tpu.txt")


def test_the_largest_batch_is_confirmed_by_compiling_it(tmp_path):
    class Fake(check_tpu_compile.Compiler):
        """Needs 1 GB and 10 MB for each example, and 15 MB above 100 examples."""

        def _run(self, tpus, program):
            batch = program["batch"]
            used = 2**30 + batch * 10 * 2**20 + max(0, batch - 600) * 5 * 2**20
            return iter([{**program, "tpu": tpu, "bytes": used} for tpu in tpus])

    path = str(tmp_path / "memory.json")
    program = {"model": "base", "tuning": "full", "precision": "float32", "mode": "train", "length": 128}
    assert check_tpu_compile.largest_batch(Fake(os.__file__, path), "v2", (8, 16), **program) == 672
    rows = check_tpu_compile.Compiler(os.__file__, path).rows
    assert {row["batch"] for row in rows} == {8, 16, 672, 680, 688, 696, 704, 712}
    assert "1.08" in check_tpu_compile.show(rows, ["v2"])


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["adapter", "full"])
@pytest.mark.parametrize("precision", check_tpu_compile.PRECISIONS)
def test_google_s_compiler_accepts_every_mode_for_every_tpu(tuning, precision):
    if not os.path.exists(COMPILER):
        pytest.skip(f"needs libtpu in {COMPILER} (requirements-tpu.txt), or in the environment of $TPU_COMPILER")
    compiler = check_tpu_compile.Compiler(COMPILER)
    for mode in check_tpu_compile.MODES:
        program = {"model": "tiny", "tuning": tuning, "precision": precision, "mode": mode, "length": 32, "batch": 8}
        rows = compiler.compile(list(check_tpu_compile.CAPACITY), **program)
        assert [row["tpu"] for row in rows] == list(check_tpu_compile.CAPACITY)
        assert all(0 < row["bytes"] < 2**30 for row in rows)
