"""The network: its variables, its towers, and what they are trained with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.baselines import presets
from adapter_bert.baselines.network import (
    OTHER_WORDS,
    TRAINED_WORDS,
    VECTORS,
    WORDS,
    NetworkSpec,
    Sizes,
    tower_of,
    train_op,
)
from adapter_bert.baselines.settings import ACTIVATIONS, NORMS, NetworkSettings
from adapter_bert.model.heads import ClassificationHead, RegressionHead

SIZES = Sizes(train_words=5, other_words=3, width=4)
IDS = np.array([[1, 2, 0], [8, 5, 3], [0, 0, 0]], np.int32)


def make_spec(**changes) -> NetworkSpec:
    values = {"hub_module": "m", "hidden_size": 6, "conv_filters": 3, **changes}
    return NetworkSpec(NetworkSettings(**values), ClassificationHead(2), SIZES)


def run(spec: NetworkSpec, features: dict, steps: int = 0, seed: int = 1):
    """Return the logits after some training steps, and the variables before and after."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(seed)
        tf.train.create_global_step()
        fed = {name: tf.constant(value) for name, value in features.items()}
        labels = {"label_ids": tf.zeros([len(features[WORDS])], tf.int64)}
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            loss = spec.forward({**fed, **labels}, is_training=True).loss
            logits = spec.logits(fed, is_training=False)
        op = train_op(spec.network, loss)
        variables = {each.op.name: each for each in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        rows = np.random.RandomState(0).normal(size=[8, 4]).astype(np.float32)
        for name, value in ((TRAINED_WORDS, rows[:5]), (OTHER_WORDS, rows[5:])):
            if name in variables:
                session.run(variables[name].assign(value))
        before = session.run(variables)
        for _ in range(steps):
            session.run(op)
        return session.run(logits), before, session.run(variables)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_builds(name):
    network = dataclasses.replace(NetworkSettings(**presets.get(name)), conv_filters=5)
    trains_all = network.fine_tune_module and not network.use_convolution
    spec = NetworkSpec(network, ClassificationHead(3), SIZES)
    names = list(spec.shapes)
    assert ("wide/weights" in names) and ("deep/kernel" in names)
    assert any("ngrams_3" in each for each in names) == (network.use_convolution and network.conv_max_ngram == 3)
    assert (TRAINED_WORDS in names) == (network.use_convolution or trains_all)
    assert sum(each.endswith("/kernel") and "hidden" in each for each in names) == network.hidden_layers


@pytest.mark.parametrize("fine_tunes", [False, True])
@pytest.mark.parametrize("convolves", [False, True])
def test_training_changes_exactly_the_trained_variables(fine_tunes, convolves):
    spec = make_spec(
        fine_tune_module=fine_tunes, use_convolution=convolves, conv_batch_norm=True, hidden_norm="batch", deep_l2=0.01
    )
    features = {WORDS: IDS, VECTORS: np.ones([3, 4], np.float32)}
    _, before, after = run(spec, features, steps=3)
    changed = {name for name in spec.shapes if not np.array_equal(before[name], after[name])}
    assert changed <= set(spec.trained_names)
    assert (TRAINED_WORDS in changed) == fine_tunes
    assert {"deep/kernel", "deep/bias", "wide/weights"} <= changed
    slots = set(after) - set(spec.shapes) - {"global_step"}
    assert slots == set(spec.slot_shapes)
    assert after["global_step"] == 3


def test_each_tower_has_its_own_learning_rate():
    features = {WORDS: IDS, VECTORS: np.ones([3, 4], np.float32)}
    _, _, usual = run(make_spec(), features, steps=1)
    _, _, faster = run(make_spec(wide_learning_rate=0.5), features, steps=1)
    same = {name for name in usual if np.array_equal(usual[name], faster[name])}
    assert "wide/weights" not in same
    assert {name for name in make_spec().shapes if tower_of(name) == "deep"} <= same


@pytest.mark.parametrize("tower", ["deep", "wide"])
def test_regularization_shrinks_the_weights_of_its_tower(tower):
    features = {WORDS: IDS, VECTORS: np.ones([3, 4], np.float32)}
    _, _, usual = run(make_spec(), features, steps=20)
    _, _, small = run(make_spec(**{f"{tower}_l2": 0.5}), features, steps=20)
    name = {"deep": "deep/hidden_0/kernel", "wide": "wide/weights"}[tower]
    assert np.linalg.norm(small[name]) < np.linalg.norm(usual[name])


@pytest.mark.parametrize("changes", [{"use_convolution": True}, {"fine_tune_module": True}])
def test_padding_does_not_change_the_logits(changes):
    # Dropout masks depend on the shape.
    rates = dict.fromkeys(("conv_embedding_dropout", "conv_dropout", "hidden_dropout"), 0.0)
    spec = make_spec(conv_activation="sigmoid", conv_batch_norm=True, **rates, **changes)
    logits, _, _ = run(spec, {WORDS: IDS}, steps=2)
    wider, _, _ = run(spec, {WORDS: np.pad(IDS, [(0, 0), (0, 4)])}, steps=2)
    np.testing.assert_allclose(wider, logits, atol=1e-5)
    assert np.isfinite(logits).all() and not np.allclose(logits[0], logits[1])


def test_a_text_without_convolution_is_the_sum_of_its_words_over_their_root_count():
    spec = make_spec(fine_tune_module=True, hidden_layers=0)
    with_words, _, after = run(spec, {WORDS: IDS})
    table = np.concatenate([after[TRAINED_WORDS], after[OTHER_WORDS]])
    summed = np.stack([table[[0, 1]].sum(0) / np.sqrt(2), table[[7, 4, 2]].sum(0) / np.sqrt(3), np.zeros(4)])
    expected = summed.astype(np.float32) @ after["deep/kernel"] + after["deep/bias"]
    np.testing.assert_allclose(with_words, expected, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_all_activations_and_normalizations_give_finite_logits(activation, norm):
    spec = make_spec(hidden_activation=activation, conv_activation=activation, hidden_norm=norm, use_convolution=True)
    logits, _, _ = run(spec, {WORDS: IDS}, steps=1)
    assert logits.shape == (3, 2) and np.isfinite(logits).all()


def test_regression_has_one_output():
    spec = NetworkSpec(NetworkSettings(hub_module="m", hidden_size=6), RegressionHead(), SIZES)
    assert spec.shapes["deep/bias"] == (1,) and spec.shapes["wide/weights"] == (6, 1)


def test_counts_are_those_of_the_variables():
    counts = make_spec(hidden_layers=1).parameter_counts()
    assert counts == {"total": 4 * 6 + 6 + 6 * 2 + 2 + 6 * 2, "trained": 4 * 6 + 6 + 6 * 2 + 2 + 6 * 2}
