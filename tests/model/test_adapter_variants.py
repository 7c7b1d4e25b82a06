"""The variants of section 3.6 of the paper: formulas, start near the identity, variables and training."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import optimization
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model import batch_norm, batch_splitting, parameters, tuning_modes
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_bert.weights import checkpoints
from adapter_bert.weights.assigner import WeightAssigner
from adapter_layers import AdapterConfig
from tests import reference_model
from tests.helpers import TINY, assert_mentions, message_of, tiny_config
from tests.tiny_networks import CLOSED_FORMS, assert_same, random_batch, set_random_values, sharing_variables

VARIANTS = {
    "layer": AdapterConfig(size=4, norm="layer"),
    "batch": AdapterConfig(size=4, norm="batch"),
    "deep": AdapterConfig(size=4, depth=3),
    "tanh": AdapterConfig(size=4, activation="tanh"),
    "attention": AdapterConfig(size=4, placement="attention"),
    "parallel": AdapterConfig(size=4, connection="parallel"),
    "multiply": AdapterConfig(size=4, connection="multiply"),
    "layer_deep_parallel": AdapterConfig(size=4, norm="layer", depth=2, connection="parallel", layers=(0,)),
    "batch_deep_multiply_above": AdapterConfig(
        size=4, activation="relu", norm="batch", depth=2, connection="multiply", layers=(1,), placement="feedforward"
    ),
}
each_variant = pytest.mark.parametrize("config", list(VARIANTS.values()), ids=list(VARIANTS))
# Only batch normalization computes something else in training.
each_variant_and_phase = pytest.mark.parametrize(
    "config, in_training",
    [pytest.param(config, False, id=name) for name, config in VARIANTS.items()]
    + [
        pytest.param(config, True, id=f"{name}-training") for name, config in VARIANTS.items() if config.norm == "batch"
    ],
)
TWO_CLASSES = ClassificationHead(2)


def values_of(session: tf.Session) -> dict:
    return session.run({optimization.variable_name(variable): variable for variable in tf.global_variables()})


# --------------------------------------------------------------------------------------------- formulas


def expected_output(output: np.ndarray, source: np.ndarray, config: AdapterConfig, values: dict, mean, variance):
    """Compute an adapter in NumPy; `mean` and `variance` are those of batch normalization."""
    hidden = output if config.connection == "serial" else source
    if config.norm == "layer":
        mean, variance = hidden.mean(axis=1, keepdims=True), hidden.var(axis=1, keepdims=True)
    if config.norm != "none":
        scope = {"layer": "adapters/LayerNorm", "batch": "adapters/BatchNorm"}[config.norm]
        hidden = (hidden - mean) / np.sqrt(variance + 1e-5 * (config.norm == "batch"))
        hidden = hidden * values[f"{scope}/gamma"] + values[f"{scope}/beta"]
    for number in range(1, config.depth + 2):
        hidden = hidden @ values[f"adapters/weights{number}"] + values[f"adapters/biases{number}"]
        if number <= config.depth:
            hidden = np.vectorize(CLOSED_FORMS[config.activation])(hidden)
    return output * (1 + hidden) if config.connection == "multiply" else output + hidden


@each_variant_and_phase
def test_a_variant_computes_its_formula(config, in_training):
    random = np.random.RandomState(3)
    output, source = random.standard_normal([2, 10, 6]) * 3 + 1
    is_real = np.array([[1.0]] * 7 + [[0.0]] * 3)  # padding does not count in statistics
    with tf.Graph().as_default(), tf.Session() as session:
        fed = [tf.constant(value, tf.float32) for value in (output, source, is_real)]
        adapt = adapter_layers.get_adapter(config, fed[2] if in_training else None)
        found = adapt(fed[0], config.layers[0] if config.layers else 0, config.placement, fed[1])
        set_random_values(session, scale=0.7)
        moving = {name: value for name, value in values_of(session).items() if "moving" in name}
        for variable in tf.global_variables():
            if "moving" in variable.op.name:
                moving[variable.op.name] = np.float32(random.uniform(0.5, 2.0, [6]))
                variable.load(moving[variable.op.name], session)
        values = values_of(session)
        found, _ = session.run([found, tf.get_collection(batch_norm.UPDATES)])
        updated = values_of(session)
    real = (source if config.connection != "serial" else output)[:7]
    statistics = [real.mean(axis=0), real.var(axis=0)]
    before = list(moving.values())
    mean, variance = statistics if in_training else before or [None, None]
    expected = expected_output(output, source, config, values, mean, variance)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for name, old, batch in zip(moving, before, statistics):
        np.testing.assert_allclose(updated[name], 0.9 * old + 0.1 * batch if in_training else old, rtol=1e-5)
    assert len(moving) == (2 if config.norm == "batch" else 0)


def test_the_default_adapter_has_the_operations_that_it_always_had():
    with tf.Graph().as_default() as graph:
        fed = tf.placeholder(tf.float32, [None, 6], "x")
        adapter_layers.get_adapter(AdapterConfig(size=4, activation="relu"))(fed, 0, "attention", tf.identity(fed))
        built = [op.name for op in graph.get_operations() if op.type in ("MatMul", "BiasAdd", "Relu", "AddV2", "Add")]
        names = [variable.op.name for variable in tf.global_variables()]
    scope = "adapters/"
    assert [name for name in built if "Initializer" not in name] == [
        scope + name for name in ("MatMul", "BiasAdd", "Relu", "MatMul_1", "BiasAdd_1", "add")
    ]
    assert names == [scope + name for name in ("weights1", "biases1", "weights2", "biases2")]


# ------------------------------------------------------------------------------------ start near the identity


@each_variant_and_phase
def test_a_network_with_new_adapters_is_near_the_one_without(config, in_training):
    base = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = random_batch(4)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        outputs = []
        for adapter in (None, config):
            with sharing_variables():
                ids, mask = tf.constant(batch["input_ids"]), tf.constant(batch["input_mask"])
                model = modeling.BertModel(base, in_training, ids, mask, scope="bert", adapter_fn=adapter)
            outputs.append([model.get_sequence_output(), model.get_pooled_output()])
        session.run(tf.global_variables_initializer())
        plain, adapted = session.run(outputs)
    assert not np.array_equal(plain[0], adapted[0])
    for one, other in zip(plain, adapted):
        assert np.abs(one - other).max() <= 0.01 * np.abs(one).max()


# ------------------------------------------------------------------------------------------- variables


@each_variant
def test_shapes_and_their_order_are_those_of_the_graph_and_of_the_formula(config):
    spec = ModelSpec(tiny_config(), TWO_CLASSES, config)
    with tf.Graph().as_default():
        ids = tf.zeros([3, 9], tf.int32)
        model = modeling.BertModel(spec.config, True, ids, scope="bert", adapter_fn=config)
        spec.head.build(model, {"label_ids": tf.zeros([3], tf.int32)}, True)
        found = [(variable.op.name, tuple(variable.shape.as_list())) for variable in tf.global_variables()]
    assert list(spec.shapes.items()) == found
    adapters = reference_model.adapter_shapes(TINY, vars(config))
    assert {name: shape for name, shape in found if parameters.group_of(name) == "adapters"} == adapters
    assert set(adapters) <= set(spec.trained_names)
    for mode in ("layer_norm", "head"):
        assert not set(adapters) & set(tuning_modes.trainable_names(list(spec.shapes), mode))


# -------------------------------------------------------------------------------------------- training


def make_features(rows: int = 6) -> dict:
    batch = random_batch(rows, 8)
    batch["segment_ids"] = np.zeros_like(batch["input_ids"])
    return {name: tf.constant(values) for name, values in batch.items()}


@pytest.mark.long
@each_variant
def test_training_changes_the_adapters_the_layer_norms_the_head_and_nothing_else(config, tmp_path):
    spec = ModelSpec(tiny_config(), TWO_CLASSES, config)
    model_fn = ModelFn(spec, plan=TrainingPlan(Schedule(1e-2, 10, 0), checkpoint_kind="trained"))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        train_op = model_fn(make_features(), None, ModeKeys.TRAIN, {}).train_op
        updates = tf.get_collection(batch_norm.UPDATES)
        session.run(tf.global_variables_initializer())
        before = values_of(session)
        for _ in range(4):
            session.run(train_op)
        after = values_of(session)
        model_fn.make_saver(WeightAssigner([])).save(session, str(tmp_path / "model.ckpt"), global_step=4)
    changed = {name for name in spec.shapes if not np.array_equal(before[name], after[name])}
    assert changed == set(spec.trained_names)
    saved = checkpoints.read_tensors(str(tmp_path / "model.ckpt-4"), spec.trained_names)
    assert all(np.array_equal(saved[name], after[name]) for name in spec.trained_names)
    # One update for each adapter, from the whole batch.
    assert len(updates) == len([name for name in spec.shapes if name.endswith("moving_mean")])
    assert not [name for name in after if "moving" in name and "adam" in name]


class TestBatchNorm:
    CONFIG = AdapterConfig(size=4, norm="batch", init_scale=0.3)

    def results(self, batch: dict, parts: int = 1, **changes) -> dict:
        """Return loss, gradients and, after the step, the moving statistics of a network without dropout."""
        base = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

        def loss_of(features: dict) -> tf.Tensor:
            ids, mask = features["input_ids"], features["input_mask"]
            model = modeling.BertModel(base, True, ids, mask, scope="bert", adapter_fn=self.CONFIG, **changes)
            return TWO_CLASSES.build(model, features, is_training=False).loss

        with tf.Graph().as_default(), tf.Session() as session:
            features = {name: tf.constant(values) for name, values in batch.items()}
            loss, grads, variables = batch_splitting.accumulate(
                loss_of, features, parts, lambda: optimization.trainable_variables("adapter")
            )
            if parts == 1:
                assert len(tf.get_collection(batch_norm.UPDATES)) == 2, "one for each adapter"
            set_random_values(session, scale=0.3)
            fetched = {variable.op.name: grad for variable, grad in zip(variables, grads) if grad is not None}
            found = session.run(dict(fetched, loss=loss))
            found.update({name: value for name, value in values_of(session).items() if "moving" in name})
        assert len([name for name in found if "moving" in name]) == 4
        return found

    def test_padding_does_not_matter(self):
        batch = random_batch(4)
        padded = dict(batch, **{n: np.pad(batch[n], ((0, 0), (0, 3))) for n in ("input_ids", "input_mask")})
        assert_same(self.results(padded), self.results(batch))

    def test_recomputed_layers_update_once_and_shared_layers_are_built_separately(self):
        batch = random_batch(4)
        expected = self.results(batch)
        for changes in ({"gradient_checkpointing": True}, {"share_layers": True}):
            assert_same(self.results(batch, **changes), expected)

    def test_parts_update_the_statistics_one_after_another(self):
        batch = random_batch(2)
        twice = {name: np.concatenate([values, values]) for name, values in batch.items()}
        once, both = self.results(batch), self.results(twice, parts=2)
        for name in (name for name in once if "moving" in name):
            start = float(name.endswith("variance"))
            statistic = (once[name] - 0.9 * start) / 0.1
            np.testing.assert_allclose(both[name], 0.81 * start + 0.19 * statistic, rtol=1e-4, atol=1e-5)
        assert both["loss"] == pytest.approx(once["loss"], rel=1e-5)

    def test_notebooks_update_the_statistics_with_create_optimizer(self):
        batch = random_batch(4)
        with tf.Graph().as_default(), tf.Session() as session:
            ids = tf.constant(batch["input_ids"])
            model = modeling.BertModel(
                tiny_config(num_hidden_layers=1), True, ids, scope="bert", adapter_fn=self.CONFIG
            )
            features = {name: tf.constant(values) for name, values in batch.items()}
            loss = TWO_CLASSES.build(model, features, is_training=True).loss
            train_op = optimization.create_optimizer(loss, 1e-2, 10, 0, False)
            session.run(tf.global_variables_initializer())
            before = values_of(session)
            session.run(train_op)
            after = values_of(session)
        moving = [name for name in before if "moving" in name]
        assert len(moving) == 4 and not [name for name in after if "moving" in name and "adam" in name]
        assert not [name for name in moving if np.array_equal(before[name], after[name])]

    def test_a_function_that_does_not_know_whether_it_is_trained_rejects_it(self):
        with tf.Graph().as_default():
            message = message_of(modeling.transformer_model, tf.zeros([2, 3, 768]), adapter_fn=self.CONFIG)
        assert_mentions(message, "norm='batch'", "BertModel")
