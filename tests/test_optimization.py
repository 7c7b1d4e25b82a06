"""The training step: Adam, learning rate, clipping, and the variables each mode changes; arithmetic redone in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.devices import compat
from adapter_bert.model.heads import ClassificationHead
from tests import reference_model
from tests.helpers import TINY, assert_mentions, message_of, recorded_log, tiny_config
from tests.tiny_networks import set_random_values


class NumpyAdam:
    """BERT's Adam in double precision: no bias correction, weight decay apart from the moments."""

    def __init__(self, values: dict, decayed: set, corrected: bool = False) -> None:
        self.values = {name: np.array(value, np.float64) for name, value in values.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.decayed = decayed
        self.corrected, self.count = corrected, 0

    def step(self, gradients: dict, rate: float, clip_norm: float = np.inf) -> None:
        self.count += 1
        powers = [1 - beta**self.count if self.corrected else 1.0 for beta in (0.9, 0.999)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient if norm <= clip_norm else gradient * (clip_norm / norm)
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            self.v[name] = 0.999 * self.v[name] + 0.001 * gradient**2
            update = self.m[name] / powers[0] / (np.sqrt(self.v[name] / powers[1]) + 1e-6 / np.sqrt(powers[1]))
            if name in self.decayed:
                update = update + 0.01 * self.values[name]
            self.values[name] = self.values[name] - rate * update


DECAYED = {"dense/kernel", "adapters/weights1", "adapters/weights2", "output_weights"}
NOT_DECAYED = {"LayerNorm/beta", "LayerNorm/gamma", "dense/bias", "adapters/biases1", "adapters/biases2", "output_bias"}
SHAPE = [3, 2]


def slot_named(name: str, slot: str) -> tf.Variable:
    (found,) = (variable for variable in tf.global_variables() if variable.name == f"{name}/{slot}:0")
    return found


@pytest.mark.parametrize("corrected", [False, True], ids=["", "corrected"])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-3, 0.0])
def test_a_step_clips_gradients_applies_adam_and_decays_weights_except_layer_norms_and_biases(scale, corrected):
    """Large gradients are scaled together to a norm of 1; with a gradient of zero, only decay moves a variable."""
    generator = np.random.RandomState(3)
    # Far from zero, so that decay, where it applies, shows.
    reference = NumpyAdam(
        {name: 5.0 + generator.rand(*SHAPE) for name in sorted(DECAYED | NOT_DECAYED)}, DECAYED, corrected
    )
    with tf.Graph().as_default(), tf.Session() as session:
        start = {name: tf.constant(value, tf.float32) for name, value in reference.values.items()}
        variables = {name: tf.get_variable(name, initializer=value) for name, value in start.items()}
        fed = {name: tf.placeholder(tf.float32, SHAPE) for name in variables}
        loss = sum(tf.reduce_sum(variables[name] * fed[name]) for name in variables)
        step = optimization.create_optimizer(loss, 0.1, 10, None, False, "full", bias_correction=corrected)
        slots = [{name: slot_named(name, slot) for name in variables} for slot in ("adam_m", "adam_v")]
        session.run(tf.global_variables_initializer())
        for index in range(6):
            gradients = {name: scale * generator.randn(*SHAPE) * 10.0 ** generator.randint(-3, 2) for name in variables}
            session.run(step, {fed[name]: gradients[name] for name in variables})
            reference.step(gradients, rate=0.1 * (1 - index / 10), clip_norm=1.0)
            values, (m, v) = session.run([variables, slots])
            for name in variables:
                np.testing.assert_allclose(values[name], reference.values[name], rtol=1e-5)
                np.testing.assert_allclose(m[name], reference.m[name], rtol=1e-4, atol=1e-7)
                np.testing.assert_allclose(v[name], reference.v[name], rtol=1e-4, atol=1e-9)


def test_a_variable_without_a_gradient_is_left_alone_and_a_frozen_one_does_not_count_in_the_norm():
    with tf.Graph().as_default(), tf.Session() as session:
        used = tf.get_variable("output_bias", initializer=[1.0])
        unused = tf.get_variable("output_weights", initializer=[1.0])
        frozen = tf.get_variable("bert/pooler/dense/kernel", initializer=[1.0])
        loss = tf.reduce_sum(0.5 * used + 1e6 * frozen)
        step = optimization.create_optimizer(loss, 0.1, 10, 0, False, "head")
        session.run(tf.global_variables_initializer())
        session.run(step)
        assert session.run(slot_named("output_bias", "adam_m"))[0] == pytest.approx(0.1 * 0.5), "not clipped"
        assert session.run(used)[0] < session.run(unused)[0] == session.run(frozen)[0] == 1.0
        assert {variable.op.name for variable in tf.global_variables()} == {
            "output_bias", "output_bias/adam_m", "output_bias/adam_v",
            "output_weights", "bert/pooler/dense/kernel", "global_step",
        }  # fmt: skip


def test_the_optimizer_uses_the_given_decays_and_exclusions():
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=[2.0]) for name in ("kept", "decayed", "adapters/weights1")]
        optimizer = optimization.AdamWeightDecayOptimizer(
            0.5, 0.1, exclude_from_weight_decay=["^kept"], adapter_weight_decay_rate=0.2
        )
        step = optimizer.apply_gradients([(tf.zeros([1]), variable) for variable in variables])
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(variables), [[2.0], [2.0 - 0.5 * 0.1 * 2.0], [2.0 - 0.5 * 0.2 * 2.0]])


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


def test_a_step_reads_its_rate_before_the_step_is_counted():
    """If the step were counted in parallel with the update, a step could use the next rate: runs would differ."""
    with tf.Graph().as_default(), tf.Session() as session:
        bias = tf.get_variable("output_bias", initializer=[0.0])
        # Other work in the same step, so that the order of operations varies.
        noise = tf.random_normal([100, 100])
        loss = 0.1 * tf.reduce_sum(bias) + 0.0 * tf.reduce_sum(tf.matmul(noise, noise))
        step = optimization.create_optimizer(loss, 1.0, 400, 2, False, "head")
        session.run(tf.global_variables_initializer())
        reference = NumpyAdam({"output_bias": [0.0]}, set())
        found, expected = [], []
        for index in range(200):
            session.run(step)
            found.append(session.run(bias)[0])
            reference.step({"output_bias": np.array([0.1])}, rate=index / 2 if index < 2 else 1.0 - index / 400)
            expected.append(reference.values["output_bias"][0])
    assert found[0] == 0.0, "the first rate of a warm-up is 0"
    # The next rate of the linear decay differs by 1/400 or more.
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-3)


# ------------------------------------------------------------------------- a tiny BERT in each mode

IDS = [[2, 5, 7, 7, 9, 3], [2, 6, 6, 6, 8, 3], [2, 5, 5, 10, 3, 0]]
MASK = [[1] * 6, [1] * 6, [1] * 5 + [0]]
SEGMENTS = [[0, 0, 0, 1, 1, 1], [0] * 6, [0, 0, 1, 1, 1, 0]]
HEAD = reference_model.head_shapes(TINY, "classification", ["0", "1"])


def build_classifier(adapter_fn, one_hot=False, is_training=True) -> tf.Tensor:
    """Return the loss of a classifier with two labels on a fixed batch."""
    inputs = map(tf.constant, (IDS, MASK, SEGMENTS))
    model = modeling.BertModel(tiny_config(), is_training, *inputs, one_hot, scope="bert", adapter_fn=adapter_fn)
    return ClassificationHead(2).build(model, {"label_ids": tf.constant([0, 1, 1])}, is_training).loss


@pytest.mark.parametrize(
    "arguments, mode, top_layers",
    [
        # The original's arguments alone train adapters of size 64.
        ((), "adapter", None),
        (("full",), "full", None),
        (("top_layers", 1), "top_layers", 1),
        (("layer_norm",), "layer_norm", None),
        (("head",), "head", None),
    ],
)
def test_training_changes_trainable_variables_and_leaves_the_rest_bit_identical(arguments, mode, top_layers):
    adapter = {"size": 64} if mode == "adapter" else None
    expected = reference_model.trained_shapes(TINY, mode, HEAD, adapter, top_layers)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        loss = build_classifier("feedforward_adapter" if adapter else None)
        model = {variable.op.name for variable in tf.trainable_variables()}
        step = optimization.create_optimizer(loss, 1e-2, 20, 0, False, *arguments)
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        before = session.run(variables)
        for _ in range(3):
            session.run(step)
        after = session.run(variables)
    assert model >= set(expected)
    moved = {name for name in model if before[name].tobytes() != after[name].tobytes()}
    assert moved <= set(expected)
    # The gradient of a key's bias is rounding noise: softmax ignores what all scores of a query have in common.
    assert all(name.endswith("/key/bias") for name in set(expected) - moved)
    slots = {f"{name}/{slot}": shape for name, shape in expected.items() for slot in ("adam_m", "adam_v")}
    assert set(after) == model | set(slots) | {"global_step"}
    assert {name: after[name].shape for name in [*expected, *slots]} == {**expected, **slots}
    assert (before["global_step"], after["global_step"]) == (0, 3)


def test_word_embeddings_train_alike_whether_gathered_or_multiplied():
    """The gradient of a gather is a list of rows, possibly repeated; that of a matrix product is a whole table."""
    table = "bert/embeddings/word_embeddings"
    slots = []
    for one_hot in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            # A small loss, so that nothing is clipped: repeated rows count twice in the norm of a list of rows.
            loss = 1e-2 * build_classifier(None, one_hot, is_training=False)
            gradient = tf.gradients(loss, [v for v in tf.trainable_variables() if v.op.name == table])[0]
            assert isinstance(gradient, tf.IndexedSlices) != one_hot
            step = optimization.create_optimizer(loss, 1e-3, 20, 0, False, "full")
            set_random_values(session, scale=0.1)
            session.run(step)
            slots.append(session.run(slot_named(table, "adam_m")))
    gathered, multiplied = slots
    np.testing.assert_allclose(gathered, multiplied, rtol=1e-3, atol=1e-9)
    assert set(np.flatnonzero(np.abs(gathered).max(axis=1))) <= set(np.ravel(IDS))
    assert np.abs(gathered[7]).max() > 0


# ------------------------------------------------------------------------------- networks of notebooks


def bert_output(scope="bert", adapter_fn="feedforward_adapter") -> tf.Tensor:
    inputs = map(tf.constant, (IDS, MASK, SEGMENTS))
    return modeling.BertModel(tiny_config(), True, *inputs, scope=scope, adapter_fn=adapter_fn).get_pooled_output()


def moved_in(loss: tf.Tensor, steps: int, *arguments) -> set:
    """Train with `create_optimizer`; return the names of the model's variables that changed."""
    model = {variable.op.name: variable for variable in tf.global_variables()}
    step = optimization.create_optimizer(loss, 1e-2, 100, 0, False, *arguments)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(model)
        for _ in range(steps):
            session.run(step)
        after = session.run(model)
    return {name for name in model if before[name].tobytes() != after[name].tobytes()}


@pytest.mark.smoke
@pytest.mark.parametrize("scope", ["bert", "my_encoder"])
def test_heads_of_any_name_train_with_the_adapters_and_bert_stays_frozen(scope):
    """A custom name, `tf.layers.dense`, the scope of a CRF, and adapter-bert's collection."""
    with tf.Graph().as_default(), recorded_log() as lines:
        tf.set_random_seed(1)
        pooled = bert_output(scope)
        frozen = {
            name for name in reference_model.bert_shapes(TINY) if "LayerNorm" not in name and "key/bias" not in name
        }
        own = tf.get_variable("my_head", [16, 4])
        if compat.tensorflow_version() < (2, 16):
            dense = tf.layers.dense(pooled @ own, 2, use_bias=False)
        else:  # Keras 3 has no tf.layers
            dense = pooled @ own @ tf.get_variable("dense/kernel", [4, 2])
        with tf.variable_scope(f"{scope}_crf"):
            transitions = tf.get_variable("transitions", [2, 2])
        collections = ["head", tf.GraphKeys.GLOBAL_VARIABLES]
        declared = tf.get_variable("declared", [2, 2], collections=collections, trainable=False)
        untrained = tf.get_variable("untrained", [2, 2], trainable=False)
        logits = dense @ transitions @ declared @ (untrained + tf.eye(2))
        loss = tf.losses.sparse_softmax_cross_entropy([0, 1, 1], logits)
        moved = moved_in(loss, 20)
    heads = {"my_head", "dense/kernel", f"{scope}_crf/transitions", "declared"}
    assert heads <= moved and "untrained" not in moved
    assert len(frozen) > 20 and not moved & {name.replace("bert", scope, 1) for name in frozen}
    assert {name.split("/")[-2] for name in moved - heads} == {"adapters", "LayerNorm"}
    (outside,) = [line for line in lines if "outside BERT" in line]
    # 16 * 4 + 4 * 2 + 2 * 2 + 2 * 2 parameters.
    assert_mentions(outside, "4 with 80 parameters", *heads)
    # Two adapters of four tensors and two LayerNorms in each of two layers; frozen: 12 in each, pooler and embeddings.
    assert_mentions("\n".join(lines), "adapters: 16 with 8,512", "LayerNorm: 10 with 160", "frozen: 29 with")


def test_a_custom_adapter_trains_whatever_its_variables_are_called():
    def adapter(tensor: tf.Tensor) -> tf.Tensor:
        with tf.variable_scope("mine", reuse=tf.AUTO_REUSE):
            return tensor * tf.get_variable("scale", [16], initializer=tf.ones_initializer())

    with tf.Graph().as_default():
        pooled = bert_output(adapter_fn=adapter)
        moved = moved_in(tf.reduce_sum((pooled @ tf.get_variable("w", [16, 2])) ** 2), 2)
        assert {variable.op.name for variable in tf.get_collection(adapter_layers.COLLECTION)} == {
            name for name in moved if name.endswith("mine/scale")
        }
    assert len([name for name in moved if name.endswith("mine/scale")]) == 4
    assert {name.split("/")[-2] for name in moved - {"w"}} == {"mine", "LayerNorm"}


def test_a_model_without_adapters_trains_as_a_whole_and_says_so():
    with tf.Graph().as_default(), recorded_log() as lines:
        pooled = bert_output("module/bert", None)
        moved = moved_in(tf.reduce_sum((pooled @ tf.get_variable("w", [16, 2])) ** 2), 2)
    assert {"w", "module/bert/embeddings/word_embeddings", "module/bert/pooler/dense/kernel"} <= moved
    assert_mentions("\n".join(lines), "no adapters", "other weights of BERT", "outside BERT: 1 with 32 parameters: w")


@pytest.mark.parametrize("adapter_fn", [None, "feedforward_adapter"])
def test_a_network_without_a_trainable_head_is_an_error_unless_everything_trains(adapter_fn):
    with tf.Graph().as_default():
        pooled = bert_output(adapter_fn=adapter_fn)
        tf.get_variable("unused_head", [16, 2])
        loss = tf.reduce_sum((pooled @ tf.get_variable("w", [16, 2], trainable=False)) ** 2)
        assert_mentions(message_of(moved_in, loss, 1), "outside BERT", "trainable", "tuning_mode='full'")
        assert "bert/pooler/dense/kernel" in moved_in(loss, 1, "full")
