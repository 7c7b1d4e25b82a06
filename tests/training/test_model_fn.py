"""The `model_fn`: what it builds for training, evaluation and prediction."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_bert.weights import checkpoints
from adapter_bert.weights.assigner import WeightAssigner
from adapter_layers import AdapterConfig
from tests.helpers import tiny_config

SPEC = ModelSpec(tiny_config(), ClassificationHead(2), AdapterConfig(size=4))
SCHEDULE = Schedule(1e-2, 10, 0)


def make_features(rows: int = 4) -> dict:
    ids = np.random.RandomState(1).randint(5, 20, [rows, 8]).astype(np.int32)
    features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    return {name: tf.constant(value) for name, value in dict(features, label_ids=np.arange(rows) % 2).items()}


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        yield graph


def test_a_spec_knows_which_variables_are_trained():
    assert set(SPEC.trained_names) | set(SPEC.frozen_names) == set(SPEC.shapes)
    assert not set(SPEC.trained_names) & set(SPEC.frozen_names)
    assert list(SPEC.trained_shapes) == SPEC.trained_names
    assert "output_weights" in SPEC.trained_names and "bert/pooler/dense/kernel" in SPEC.frozen_names
    assert not {"output_weights", "bert/encoder/layer_0/output/adapters/weights1"} & set(SPEC.base_names)


def test_a_training_step_changes_only_the_trained_variables():
    model_fn = ModelFn(SPEC, plan=TrainingPlan(SCHEDULE))
    _, train_op = model_fn.train_step(make_features())
    variables = {optimization.variable_name(variable): variable for variable in tf.trainable_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(variables)
        session.run(train_op)
        after = session.run(variables)
    changed = {name for name in variables if not np.array_equal(before[name], after[name])}
    assert changed and changed <= set(SPEC.trained_names)


def test_predictions_contain_probabilities_and_labels():
    spec = ModelFn(SPEC)(make_features(), None, ModeKeys.PREDICT, {})
    assert {"probabilities", "logits", "label_ids", "loss", "is_real_example"} <= set(spec.predictions)
    assert spec.train_op is None


def test_evaluation_has_a_loss_and_the_metrics_of_the_original():
    spec = ModelFn(SPEC)(make_features(), None, ModeKeys.EVAL, {})
    metric_fn, tensors = spec.eval_metrics
    assert set(metric_fn(*tensors)) == {"eval_accuracy", "eval_loss"}
    assert spec.loss is not None


def test_hooks_get_the_dev_set_and_share_the_training_weights():
    seen = []
    dev = tf.data.Dataset.from_tensors(
        {name: np.ones([3, 8], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    )
    dev = dev.map(lambda features: dict(features, label_ids=tf.zeros([3], tf.int64)))
    plan = TrainingPlan(SCHEDULE, make_hooks=lambda tensors: seen.append(tensors) or [], dev_data=lambda: dev)
    ModelFn(SPEC, plan=plan)(make_features(), None, ModeKeys.TRAIN, {})
    assert len(seen) == 1
    assert sorted(optimization.variable_name(v) for v in tf.trainable_variables()) == sorted(SPEC.shapes)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(seen[0].dev_start)
        assert session.run(seen[0].dev_batch)["logits"].shape == (3, 2)
        assert session.run(seen[0].width) == 8


@pytest.mark.parametrize("kind", [None, "whole", "trained"])
def test_the_plan_decides_what_checkpoints_contain(kind, tmp_path):
    model_fn = ModelFn(SPEC, plan=TrainingPlan(SCHEDULE, checkpoint_kind=kind))
    model_fn.train_step(make_features())
    saver = model_fn.make_saver(WeightAssigner([]))
    if kind is None:
        assert saver is None
        return
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "model.ckpt"), global_step=3)
    names = set(checkpoints.read_shapes(str(tmp_path / "model.ckpt-3")))
    slots = set(checkpoints.slot_shapes(SPEC.trained_shapes))
    expected = set(SPEC.shapes) | slots if kind == "whole" else set(SPEC.trained_names)
    assert names == expected | {"global_step"}
