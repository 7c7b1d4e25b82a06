"""What trains in each mode, and what one training step does to it; arithmetic is redone in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common.errors import UserError
from adapter_bert.model.heads import ClassificationHead
from adapter_layers import AdapterConfig
from optimization import trainable_names
from tests.helpers import assert_mentions, message_of, tiny_config

EMBEDDINGS = [
    "bert/embeddings/word_embeddings",
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/position_embeddings",
]
EMBEDDING_NORM = ["bert/embeddings/LayerNorm/beta", "bert/embeddings/LayerNorm/gamma"]
POOLER = ["bert/pooler/dense/kernel", "bert/pooler/dense/bias"]
HEAD = ["output_weights", "output_bias"]


def projections(layer: int) -> list:
    return [
        f"bert/encoder/layer_{layer}/{part}"
        for part in (
            "attention/self/query/kernel",
            "attention/self/query/bias",
            "attention/self/key/kernel",
            "attention/self/key/bias",
            "attention/self/value/kernel",
            "attention/self/value/bias",
            "attention/output/dense/kernel",
            "attention/output/dense/bias",
            "intermediate/dense/kernel",
            "intermediate/dense/bias",
            "output/dense/kernel",
            "output/dense/bias",
        )
    ]


def adapters(layer: int) -> list:
    return [
        f"bert/encoder/layer_{layer}/{part}"
        for part in (
            "attention/output/adapters/weights1",
            "attention/output/adapters/biases1",
            "attention/output/adapters/weights2",
            "attention/output/adapters/biases2",
            "output/adapters/weights1",
            "output/adapters/biases1",
            "output/adapters/weights2",
            "output/adapters/biases2",
        )
    ]


def norms(layer: int) -> list:
    return [
        f"bert/encoder/layer_{layer}/{part}"
        for part in (
            "attention/output/LayerNorm/beta",
            "attention/output/LayerNorm/gamma",
            "output/LayerNorm/beta",
            "output/LayerNorm/gamma",
        )
    ]


def model_names(layers: int, with_adapters: bool) -> list:
    names = EMBEDDINGS + EMBEDDING_NORM
    for layer in range(layers):
        names = names + projections(layer) + (adapters(layer) if with_adapters else []) + norms(layer)
    return names + POOLER + HEAD


def in_layers(names: list, layers: list) -> list:
    return [name for name in names if any(name.startswith(f"bert/encoder/layer_{layer}/") for layer in layers)]


# ------------------------------------------------------------------------------------- what trains


def test_adapter_mode_trains_adapters_layer_norms_and_head_and_nothing_else():
    names = model_names(2, with_adapters=True)
    trained = trainable_names(names, "adapter")
    expected = EMBEDDING_NORM + adapters(0) + norms(0) + adapters(1) + norms(1) + HEAD
    assert sorted(trained) == sorted(expected)
    assert len(trained) == 2 + 2 * 8 + 2 * 4 + 2


def test_the_order_of_the_names_is_kept():
    names = model_names(2, with_adapters=True)
    for mode in ("adapter", "full", "layer_norm", "head"):
        trained = trainable_names(names, mode)
        assert trained == [name for name in names if name in set(trained)]
        assert trainable_names(names[::-1], mode) == trained[::-1]


@pytest.mark.parametrize("mode", ["adapter", "layer_norm", "head"])
@pytest.mark.parametrize(
    "frozen",
    [
        "bert/encoder/layer_0/attention/output/dense/kernel",
        "bert/encoder/layer_0/attention/output/dense/bias",
        "bert/encoder/layer_1/output/dense/kernel",
        "bert/encoder/layer_1/output/dense/bias",
        "bert/pooler/dense/kernel",
        "bert/embeddings/word_embeddings",
        "cls/predictions/transform/dense/kernel",
        "bert/my_output_weights",
        "output_weights_of_another_task",
        "bert/output_bias/kernel",
        "bert/LayerNormalisation/gamma",
    ],
)
def test_a_frozen_weight_stays_frozen_whatever_its_name_resembles(frozen, mode):
    names = model_names(2, with_adapters=True) + [frozen]
    assert frozen not in trainable_names(names, mode)


@pytest.mark.parametrize("mode", ["adapter", "full", "layer_norm", "head"])
def test_the_span_head_of_squad_trains_in_every_mode(mode):
    names = model_names(2, with_adapters=True)[:-2] + ["cls/squad/output_weights", "cls/squad/output_bias"]
    assert trainable_names(names, mode)[-2:] == ["cls/squad/output_weights", "cls/squad/output_bias"]
    assert trainable_names(names, "top_layers", top_layers=1)[-2:] == names[-2:]


def test_numbered_layer_norms_of_a_notebook_train_as_well():
    names = model_names(1, with_adapters=True) + ["bert/encoder/layer_0/LayerNorm_1/gamma"]
    assert "bert/encoder/layer_0/LayerNorm_1/gamma" in trainable_names(names, "layer_norm")


@pytest.mark.parametrize("slot", ["adam_m", "adam_v"])
@pytest.mark.parametrize("mode", ["adapter", "layer_norm", "head"])
def test_optimizer_slots_are_not_taken_for_what_they_belong_to(slot, mode):
    names = model_names(2, with_adapters=True)
    slots = [f"{name}/{slot}" for name in names]
    assert not set(slots) & set(trainable_names(names + slots, mode))


def test_full_mode_trains_everything_with_or_without_adapters():
    for with_adapters in (True, False):
        names = model_names(2, with_adapters)
        assert trainable_names(names, "full") == names


def test_layer_norm_mode_trains_layer_norms_and_head():
    expected = EMBEDDING_NORM + norms(0) + norms(1) + HEAD
    assert sorted(trainable_names(model_names(2, True), "layer_norm")) == sorted(expected)
    assert sorted(trainable_names(model_names(2, False), "layer_norm")) == sorted(expected)


def test_head_mode_trains_the_head_alone():
    assert trainable_names(model_names(3, False), "head") == HEAD


@pytest.mark.parametrize("count, layers", [(1, [2]), (2, [1, 2])])
def test_top_layers_trains_the_upper_layers_whole_with_pooler_and_head(count, layers):
    names = model_names(3, with_adapters=False)
    trained = trainable_names(names, "top_layers", top_layers=count)
    assert trained == in_layers(names, layers) + POOLER + HEAD
    assert len(trained) == count * 16 + 4


def test_all_top_layers_means_everything_embeddings_included():
    names = model_names(3, with_adapters=False)
    assert trainable_names(names, "top_layers", top_layers=3) == names


@pytest.mark.parametrize(
    "mode, arguments, facts",
    [
        ("top_layers", {"top_layers": 4}, ["4", "3"]),
        ("top_layers", {"num_layers": 12, "top_layers": 13}, ["13", "12"]),
        ("top_layers", {}, ["'top_layers'", "at least 1", "None"]),
        ("top_layers", {"top_layers": 0}, ["'top_layers'", "at least 1", "0"]),
        ("top_layers", {"top_layers": -1}, ["'top_layers'", "at least 1", "-1"]),
        ("full", {"top_layers": 2}, ["'top_layers'", "(2)", "'full'"]),
        ("adapter", {}, ["no adapters", "full, top_layers, layer_norm, head"]),
        ("adapters", {}, ["'adapters'", "Did you mean 'adapter'?", "adapter, full, top_layers, layer_norm, head"]),
        ("FULL", {}, ["'FULL'", "Did you mean 'full'?"]),
        ("layernorm", {}, ["'layernorm'", "Did you mean 'layer_norm'?"]),
    ],
)
def test_a_mode_that_does_not_fit_is_an_error(mode, arguments, facts):
    names = model_names(3, with_adapters=False)
    assert_mentions(message_of(trainable_names, names, mode, **arguments), *facts)


def test_layer_10_is_not_taken_for_layer_1():
    names = model_names(12, with_adapters=False)
    trained = trainable_names(names, "top_layers", top_layers=2)
    assert trained == in_layers(names, [10, 11]) + POOLER + HEAD
    assert optimization.layer_index("bert/encoder/layer_10/output/dense/bias") == 10
    assert optimization.layer_index("bert/encoder/layer_1/output/dense/bias") == 1
    assert optimization.layer_index("bert/pooler/dense/bias") is None


def test_layers_are_counted_in_any_order_of_names():
    names = model_names(12, with_adapters=False)
    assert optimization.count_layers(names) == optimization.count_layers(names[::-1]) == 12
    assert optimization.count_layers(HEAD) == 0


# ------------------------------------------------------------------------------------------- Adam


class NumpyAdam:
    """BERT's Adam written down a second time, in double precision."""

    def __init__(self, values: dict, decayed: set) -> None:
        self.values = {name: np.array(value, np.float64) for name, value in values.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.decayed = decayed

    def step(self, gradients: dict, rate: float, decay: float = 0.01, clip_norm: float = None) -> None:
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        scale = 1.0 if clip_norm is None else min(1.0, clip_norm / norm)
        for name, gradient in gradients.items():
            gradient = gradient * scale
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            self.v[name] = 0.999 * self.v[name] + 0.001 * gradient**2
            update = self.m[name] / (np.sqrt(self.v[name]) + 1e-6)
            if name in self.decayed:
                update = update + decay * self.values[name]
            self.values[name] = self.values[name] - rate * update


DECAYED = {
    "bert/encoder/layer_0/output/dense/kernel",
    "bert/encoder/layer_0/output/adapters/weights1",
    "bert/encoder/layer_0/output/adapters/weights2",
    "output_weights",
}
NOT_DECAYED = {
    "bert/encoder/layer_0/output/LayerNorm/beta",
    "bert/encoder/layer_0/output/LayerNorm/gamma",
    "bert/encoder/layer_0/output/dense/bias",
    "bert/encoder/layer_0/output/adapters/biases1",
    "bert/encoder/layer_0/output/adapters/biases2",
    "output_bias",
}
SHAPE = [3, 2]


def start_values() -> dict:
    generator = np.random.RandomState(3)
    # Far from zero, so that decay, where it applies, shows.
    return {name: 5.0 + generator.rand(*SHAPE) for name in sorted(DECAYED | NOT_DECAYED)}


def make_variables(values: dict) -> dict:
    return {name: tf.get_variable(name, initializer=tf.constant(value, tf.float32)) for name, value in values.items()}


def test_adam_agrees_with_numpy_over_several_steps():
    values = start_values()
    reference = NumpyAdam(values, DECAYED)
    generator = np.random.RandomState(4)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = make_variables(values)
        fed = {name: tf.placeholder(tf.float32, SHAPE) for name in values}
        optimizer = optimization.AdamWeightDecayOptimizer(
            learning_rate=0.1,
            weight_decay_rate=0.01,
            exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        )
        step = optimizer.apply_gradients([(fed[name], variables[name]) for name in values])
        slots = {name: [slot_named(name, slot) for slot in ("adam_m", "adam_v")] for name in values}
        session.run(tf.global_variables_initializer())
        for _ in range(6):
            gradients = {name: generator.randn(*SHAPE) * 10.0 ** generator.randint(-3, 2) for name in values}
            session.run(step, {fed[name]: gradients[name] for name in values})
            reference.step(gradients, rate=0.1)
            for name in values:
                np.testing.assert_allclose(session.run(variables[name]), reference.values[name], rtol=2e-6)
        for name in values:
            m, v = session.run(slots[name])
            np.testing.assert_allclose(m, reference.m[name], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(v, reference.v[name], rtol=1e-4, atol=1e-9)


def slot_named(name: str, slot: str) -> tf.Variable:
    (found,) = (variable for variable in tf.global_variables() if variable.name == f"{name}/{slot}:0")
    return found


def test_the_first_update_is_not_corrected_for_bias():
    # With bias correction the first update would be the learning rate; without, 0.1 / sqrt(0.001) times that.
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", initializer=[0.0])
        step = optimization.AdamWeightDecayOptimizer(0.001).apply_gradients([(tf.constant([4.0]), variable)])
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(variable), [-0.001 * 0.4 / (np.sqrt(0.016) + 1e-6)], rtol=1e-5)


def test_decay_shrinks_a_weight_without_touching_the_moments():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("kernel", initializer=[8.0])
        bias = tf.get_variable("bias", initializer=[8.0])
        optimizer = optimization.AdamWeightDecayOptimizer(
            0.5, weight_decay_rate=0.01, exclude_from_weight_decay=["bias"]
        )
        step = optimizer.apply_gradients([(tf.zeros([1]), weight), (tf.zeros([1]), bias)])
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(weight), [8.0 - 0.5 * 0.01 * 8.0], rtol=1e-6)
        np.testing.assert_array_equal(session.run(bias), [8.0])
        for slot in ("adam_m", "adam_v"):
            np.testing.assert_array_equal(session.run(slot_named("kernel", slot)), [0.0])


def test_training_decays_weights_but_no_layer_norm_and_no_bias():
    """With a gradient of zero, decay is all that moves a variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = make_variables({name: np.full(SHAPE, 8.0) for name in DECAYED | NOT_DECAYED})
        loss = 0.0 * sum(tf.reduce_sum(variable) for variable in variables.values())
        step = optimization.create_optimizer(loss, 0.5, 10, 0, False, "full")
        session.run(tf.global_variables_initializer())
        session.run(step)
        values = session.run(variables)
    for name in DECAYED:
        np.testing.assert_allclose(values[name], np.full(SHAPE, 8.0 - 0.5 * 0.01 * 8.0), rtol=1e-6)
    for name in NOT_DECAYED:
        np.testing.assert_array_equal(values[name], np.full(SHAPE, 8.0))


def test_a_variable_without_a_gradient_is_left_alone_and_gets_no_slots():
    with tf.Graph().as_default(), tf.Session() as session:
        used = tf.get_variable("used", initializer=[1.0])
        unused = tf.get_variable("unused", initializer=[1.0])
        optimizer = optimization.AdamWeightDecayOptimizer(0.1, weight_decay_rate=0.01)
        step = optimizer.apply_gradients([(tf.ones([1]), used), (None, unused)])
        session.run(tf.global_variables_initializer())
        session.run(step)
        assert session.run(used)[0] < 1.0
        assert session.run(unused)[0] == 1.0
        assert not [variable.name for variable in tf.global_variables() if variable.name.startswith("unused/")]


# ------------------------------------------------------------------------------------ learning rate


@pytest.mark.parametrize(
    "warmup, expected",
    [
        # Hand-computed for a peak of 0.2 over 10 steps: step -> rate.
        (4, {0: 0.0, 1: 0.05, 2: 0.1, 3: 0.15, 4: 0.12, 5: 0.1, 9: 0.02, 10: 0.0, 11: 0.0}),
        (1, {0: 0.0, 1: 0.18, 5: 0.1, 10: 0.0}),
        (0, {0: 0.2, 1: 0.18, 5: 0.1, 9: 0.02, 10: 0.0, 50: 0.0}),
        (None, {0: 0.2, 1: 0.18, 5: 0.1, 10: 0.0}),
    ],
)
def test_the_learning_rate_rises_over_the_warm_up_and_falls_to_zero(warmup, expected):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = optimization.learning_rate_schedule(step, 0.2, 10, warmup)
        found = {at: session.run(rate, {step: at}) for at in expected}
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-6, atol=1e-8)


def test_a_step_uses_the_rate_of_the_steps_before_it():
    """Steps 0, 1, 2 of a run: rates 0, peak/2, then the falling line; one weight, a constant gradient."""
    with tf.Graph().as_default(), tf.Session() as session:
        bias = tf.get_variable("output_bias", initializer=[1.0])
        step = optimization.create_optimizer(tf.reduce_sum(bias) * 0.5, 0.2, 10, 2, False, "head")
        session.run(tf.global_variables_initializer())
        reference = NumpyAdam({"output_bias": [1.0]}, set())
        for rate in (0.0, 0.1, 0.16, 0.14):
            session.run(step)
            reference.step({"output_bias": np.array([0.5])}, rate)
            np.testing.assert_allclose(session.run(bias), reference.values["output_bias"], rtol=1e-5)


def test_the_step_is_counted_only_after_its_rate_was_used():
    """Counted beside the update, a step would now and then use the rate of the next one: runs could not be repeated."""
    with tf.Graph().as_default(), tf.Session() as session:
        bias = tf.get_variable("output_bias", initializer=[0.0])
        # Something to compute beside it, so that the order of operations is not always the same.
        noise = tf.random_normal([100, 100])
        loss = 0.1 * tf.reduce_sum(bias) + 0.0 * tf.reduce_sum(tf.matmul(noise, noise))
        step = optimization.create_optimizer(loss, 1.0, 400, 0, False, "head")
        session.run(tf.global_variables_initializer())
        reference = NumpyAdam({"output_bias": [0.0]}, set())
        found, expected = [], []
        for index in range(200):
            session.run(step)
            found.append(session.run(bias)[0])
            reference.step({"output_bias": np.array([0.1])}, rate=1.0 - index / 400)
            expected.append(reference.values["output_bias"][0])
    # One step too far on the falling line makes a difference of 1/400 or more.
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-3)


# ---------------------------------------------------------------------------------------- clipping


def test_gradients_are_clipped_to_a_global_norm_of_one():
    """Two variables share the norm; huge gradients are scaled together, small ones are left as they are."""
    values = {"output_weights": np.ones([2, 2]), "output_bias": np.ones([2])}
    reference = NumpyAdam(values, {"output_weights"})
    steps = [
        {"output_weights": np.array([[3e6, -4e6], [0.0, 1e3]]), "output_bias": np.array([12e6, 5e5])},
        {"output_weights": np.array([[0.1, 0.2], [0.3, -0.4]]), "output_bias": np.array([0.2, 0.1])},
        {"output_weights": np.array([[6.0, 0.0], [0.0, 0.0]]), "output_bias": np.array([0.0, 8.0])},
    ]
    with tf.Graph().as_default(), tf.Session() as session:
        variables = make_variables(values)
        fed = {name: tf.placeholder(tf.float32, value.shape) for name, value in values.items()}
        loss = sum(tf.reduce_sum(variables[name] * fed[name]) for name in values)
        step = optimization.create_optimizer(loss, 0.01, 4, None, False, "head")
        session.run(tf.global_variables_initializer())
        for index, gradients in enumerate(steps):
            session.run(step, {fed[name]: gradients[name] for name in values})
            reference.step(gradients, rate=0.01 * (1 - index / 4), clip_norm=1.0)
            for name in values:
                m, v = session.run([slot_named(name, slot) for slot in ("adam_m", "adam_v")])
                np.testing.assert_allclose(m, reference.m[name], rtol=1e-5, atol=1e-8)
                np.testing.assert_allclose(v, reference.v[name], rtol=1e-5, atol=1e-10)
                np.testing.assert_allclose(session.run(variables[name]), reference.values[name], rtol=1e-5)


def test_the_norm_that_clips_is_that_of_trained_variables_only():
    """A frozen weight with a huge gradient must not shrink the step of the head."""
    with tf.Graph().as_default(), tf.Session() as session:
        frozen = tf.get_variable("bert/pooler/dense/kernel", initializer=[1.0])
        head = tf.get_variable("output_weights", initializer=[1.0])
        loss = 1e6 * tf.reduce_sum(frozen) + 0.5 * tf.reduce_sum(head)
        step = optimization.create_optimizer(loss, 0.01, 4, None, False, "head")
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(slot_named("output_weights", "adam_m")), [0.05], rtol=1e-6)
        assert session.run(frozen)[0] == 1.0


# ------------------------------------------------------------------------- a tiny BERT in each mode

MODES = [
    ("adapter", None),
    ("full", None),
    ("top_layers", 1),
    ("layer_norm", None),
    ("head", None),
]
IDS = [[2, 5, 7, 7, 9, 3], [2, 6, 6, 6, 8, 3], [2, 5, 5, 10, 3, 0]]
MASK = [[1] * 6, [1] * 6, [1] * 5 + [0]]
SEGMENTS = [[0, 0, 0, 1, 1, 1], [0] * 6, [0, 0, 1, 1, 1, 0]]


def build_classifier(adapter_fn, one_hot=False, layers=1, is_training=True) -> tf.Tensor:
    """The loss of a classifier with two labels on a fixed batch."""
    model = modeling.BertModel(
        tiny_config(num_hidden_layers=layers),
        is_training,
        tf.constant(IDS),
        tf.constant(MASK),
        tf.constant(SEGMENTS),
        one_hot,
        scope="bert",
        adapter_fn=adapter_fn,
    )
    return ClassificationHead(2).build(model, {"label_ids": tf.constant([0, 1, 1])}, is_training).loss


def values_of_all(session: tf.Session) -> dict:
    variables = {variable.name[:-2]: variable for variable in tf.global_variables()}
    return session.run(variables)


@pytest.mark.parametrize("mode, top_layers", MODES)
def test_training_moves_what_trains_and_leaves_the_rest_bit_identical(mode, top_layers):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        loss = build_classifier(AdapterConfig(size=4) if mode == "adapter" else None, layers=2)
        model = {variable.name[:-2] for variable in tf.trainable_variables()}
        step = optimization.create_optimizer(loss, 1e-2, 20, 0, False, mode, top_layers)
        session.run(tf.global_variables_initializer())
        before = values_of_all(session)
        for _ in range(3):
            session.run(step)
        after = values_of_all(session)

    expected = {
        "adapter": EMBEDDING_NORM + adapters(0) + adapters(1) + norms(0) + norms(1) + HEAD,
        "full": model_names(2, False),
        "top_layers": projections(1) + norms(1) + POOLER + HEAD,
        "layer_norm": EMBEDDING_NORM + norms(0) + norms(1) + HEAD,
        "head": HEAD,
    }[mode]
    assert model == set(model_names(2, mode == "adapter"))
    moved = {name for name in model if before[name].tobytes() != after[name].tobytes()}
    # Softmax does not see the key's bias (it adds the same to all scores of a query): its gradient is rounding noise.
    noise = {name for name in model if name.endswith("/key/bias")}
    assert moved - noise == set(expected) - noise
    assert moved <= set(expected)
    slots = {f"{name}/{slot}" for name in expected for slot in ("adam_m", "adam_v")}
    assert set(after) == model | slots | {"global_step"}
    assert before["global_step"] == 0
    assert after["global_step"] == 3
    for name in expected:
        assert after[f"{name}/adam_m"].shape == after[name].shape


def test_the_original_five_arguments_train_adapters():
    with tf.Graph().as_default(), tf.Session() as session:
        loss = build_classifier("feedforward_adapter")
        step = optimization.create_optimizer(loss, 1e-2, 20, 2, False)
        session.run(tf.global_variables_initializer())
        before = values_of_all(session)
        for _ in range(3):
            session.run(step)
        after = values_of_all(session)
    moved = {name for name in before if not name.endswith(("/adam_m", "/adam_v", "global_step"))}
    moved = {name for name in moved if before[name].tobytes() != after[name].tobytes()}
    assert moved == set(EMBEDDING_NORM + adapters(0) + norms(0) + HEAD)
    assert before["bert/encoder/layer_0/output/adapters/weights1"].shape == (16, 64)


def test_plain_bert_with_the_five_original_arguments_is_an_error():
    with tf.Graph().as_default():
        loss = build_classifier(None)
        with pytest.raises(UserError, match="the model has no adapters"):
            optimization.create_optimizer(loss, 1e-2, 20, 2, False)


def test_training_lowers_the_loss():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        loss = build_classifier(AdapterConfig(size=4), is_training=False)
        step = optimization.create_optimizer(loss, 3e-2, 60, 6, False)
        session.run(tf.global_variables_initializer())
        first = session.run(loss)
        for _ in range(60):
            session.run(step)
        assert session.run(loss) < 0.1 * first


def test_word_embeddings_train_alike_whether_gathered_or_multiplied():
    """A gather's gradient is a list of rows, some named twice; a matrix product's is a full table."""
    table = "bert/embeddings/word_embeddings"
    slots = []
    for one_hot in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            # A small loss, so that nothing is clipped: rows named twice count twice in the norm of a list of rows.
            loss = 1e-2 * build_classifier(None, one_hot, is_training=False)
            gradient = tf.gradients(loss, [v for v in tf.trainable_variables() if v.name == table + ":0"])[0]
            assert isinstance(gradient, tf.IndexedSlices) != one_hot
            step = optimization.create_optimizer(loss, 1e-3, 20, 0, False, "full")
            session.run(tf.global_variables_initializer())
            generator = np.random.RandomState(5)
            session.run([v.assign(generator.randn(*v.shape.as_list()) * 0.1) for v in tf.trainable_variables()])
            session.run(step)
            slots.append(session.run(slot_named(table, "adam_m")))
    gathered, multiplied = slots
    np.testing.assert_allclose(gathered, multiplied, rtol=1e-3, atol=1e-9)
    assert set(np.flatnonzero(np.abs(gathered).max(axis=1))) <= set(np.ravel(IDS))
    assert np.abs(gathered[7]).max() > 0
