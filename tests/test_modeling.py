"""BERT's graph on networks of a few units: its names, its shapes, and its numbers against NumPy."""

from __future__ import annotations

import json
import math
import re
from typing import Callable, Dict, List, Sequence, Set

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.model import parameters
from adapter_layers import AdapterConfig
from tests.helpers import assert_mentions, message_of

SIZES = {
    "vocab_size": 32,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}
IDS = np.array([[2, 7, 9, 3, 11, 3, 0], [2, 31, 3, 0, 0, 0, 0], [2, 5, 6, 7, 8, 9, 3]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]], np.int32)
REAL = MASK.astype(bool)
ADAPTERS = AdapterConfig(size=5, activation="gelu")

EMBEDDING_SHAPES = {
    "bert/embeddings/word_embeddings": [32, 12],
    "bert/embeddings/token_type_embeddings": [2, 12],
    "bert/embeddings/position_embeddings": [16, 12],
    "bert/embeddings/LayerNorm/beta": [12],
    "bert/embeddings/LayerNorm/gamma": [12],
}
LAYER_SHAPES = {
    "attention/self/query/kernel": [12, 12],
    "attention/self/query/bias": [12],
    "attention/self/key/kernel": [12, 12],
    "attention/self/key/bias": [12],
    "attention/self/value/kernel": [12, 12],
    "attention/self/value/bias": [12],
    "attention/output/dense/kernel": [12, 12],
    "attention/output/dense/bias": [12],
    "attention/output/LayerNorm/beta": [12],
    "attention/output/LayerNorm/gamma": [12],
    "intermediate/dense/kernel": [12, 20],
    "intermediate/dense/bias": [20],
    "output/dense/kernel": [20, 12],
    "output/dense/bias": [12],
    "output/LayerNorm/beta": [12],
    "output/LayerNorm/gamma": [12],
}
ADAPTER_SHAPES = {
    "attention/output/adapters/weights1": [12, 5],
    "attention/output/adapters/biases1": [1, 5],
    "attention/output/adapters/weights2": [5, 12],
    "attention/output/adapters/biases2": [1, 12],
    "output/adapters/weights1": [12, 5],
    "output/adapters/biases1": [1, 5],
    "output/adapters/weights2": [5, 12],
    "output/adapters/biases2": [1, 12],
}
POOLER_SHAPES = {"bert/pooler/dense/kernel": [12, 12], "bert/pooler/dense/bias": [12]}


def tiny_config(**changes: object) -> modeling.BertConfig:
    return modeling.BertConfig.from_dict(dict(SIZES, **changes))


def tiny_model(
    adapter_fn: object = ADAPTERS,
    ids: object = IDS,
    mask: object = MASK,
    segments: object = SEGMENTS,
    one_hot: bool = False,
    **changes: object,
) -> modeling.BertModel:
    """A BertModel without dropout on the batch above; arrays become constants, None stays None."""
    ids, mask, segments = (tf.constant(x) if isinstance(x, np.ndarray) else x for x in (ids, mask, segments))
    return modeling.BertModel(
        tiny_config(**changes), False, ids, mask, segments, one_hot, scope="bert", adapter_fn=adapter_fn
    )


def variable_shapes() -> Dict[str, List[int]]:
    return {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}


def shapes_by_hand(with_adapters: bool) -> Dict[str, List[int]]:
    shapes = {**EMBEDDING_SHAPES, **POOLER_SHAPES}
    for number in range(2):
        for name, shape in {**LAYER_SHAPES, **(ADAPTER_SHAPES if with_adapters else {})}.items():
            shapes[f"bert/encoder/layer_{number}/{name}"] = shape
    return shapes


def set_random_values(session: tf.Session, seed: int = 1) -> Dict[str, np.ndarray]:
    """Gives every variable random values, biases and LayerNorms too, and returns them by name."""
    random = np.random.RandomState(seed)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    values = {}
    for name in sorted(variables):
        values[name] = (0.4 * random.standard_normal(variables[name].shape.as_list())).astype(np.float32)
        if name.endswith("gamma"):
            values[name] += 1
    session.run([tf.assign(variables[name], value).op for name, value in values.items()])
    return values


def sharing_variables() -> tf.variable_scope:
    """Networks built in this scope use the same variables."""
    return tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE)


# ---------------------------------------------------------------------------------------------- the config


def write_config(tmp_path, content: str) -> str:
    path = tmp_path / "bert_config.json"
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_a_config_survives_the_way_to_a_dictionary_and_back():
    config = tiny_config(hidden_act="relu", hidden_dropout_prob=0.2)
    assert modeling.BertConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert config.to_dict()["hidden_act"] == "relu"


def test_a_config_survives_the_way_to_a_file_and_back(tmp_path):
    config = tiny_config(attention_probs_dropout_prob=0.3)
    read = modeling.BertConfig.from_json_file(write_config(tmp_path, config.to_json_string()))
    assert read.to_dict() == config.to_dict()


def test_a_config_has_bert_bases_sizes_by_default():
    assert modeling.BertConfig(vocab_size=30522).to_dict() == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        "initializer_range": 0.02,
    }


def test_a_config_keeps_the_keys_of_other_tools(tmp_path):
    path = write_config(tmp_path, json.dumps(dict(SIZES, pooler_fc_size=768, directionality="bidi")))
    config = modeling.BertConfig.from_json_file(path)
    assert config.directionality == "bidi"
    assert json.loads(config.to_json_string())["pooler_fc_size"] == 768


def test_a_configs_dictionary_is_a_copy():
    config = tiny_config(layers_with_a_list=[1, 2])
    config.to_dict()["layers_with_a_list"].append(3)
    assert config.layers_with_a_list == [1, 2]


@pytest.mark.parametrize(
    "text, facts",
    [
        (None, ["No such file"]),
        ('{"vocab_size":', ["not JSON", "line 1 column 15"]),
        ("[1, 2]", ["not a JSON object"]),
        (json.dumps({key: value for key, value in SIZES.items() if key != "vocab_size"}), ["vocab_size", "None"]),
    ],
)
def test_an_unreadable_config_file_is_an_error_that_names_it(tmp_path, text, facts):
    path = write_config(tmp_path, text) if text else str(tmp_path / "nowhere.json")
    assert_mentions(message_of(modeling.BertConfig.from_json_file, path), path, *facts)


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"vocab_size": None}, ["vocab_size", "at least 1", "None"]),
        ({"hidden_size": "12"}, ["hidden_size", "at least 1", "'12'"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "at least 1", "0"]),
        ({"type_vocab_size": True}, ["type_vocab_size", "at least 1", "True"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "below 1", "1.0"]),
        ({"attention_probs_dropout_prob": -0.1}, ["attention_probs_dropout_prob", "at least 0", "-0.1"]),
        ({"num_attention_heads": 5}, ["hidden_size 12", "num_attention_heads 5"]),
        ({"hidden_act": "gelu_erv"}, ["'gelu_erv'", "Did you mean 'gelu_erf'?"]),
    ],
)
def test_an_invalid_value_is_an_error_in_a_file_and_in_a_model(tmp_path, changes, facts):
    path = write_config(tmp_path, json.dumps(dict(SIZES, **changes)))
    assert_mentions(message_of(modeling.BertConfig.from_json_file, path), path, *facts)
    with tf.Graph().as_default():
        assert_mentions(message_of(tiny_model, **changes), *facts)


# ---------------------------------------------------------------------------------------- names and shapes


@pytest.mark.parametrize("adapter_fn", [None, ADAPTERS])
def test_variables_have_the_names_and_shapes_of_googles_checkpoints(adapter_fn):
    with tf.Graph().as_default():
        tiny_model(adapter_fn)
        assert variable_shapes() == shapes_by_hand(with_adapters=adapter_fn is not None)
        assert tf.trainable_variables() == tf.global_variables()


def test_the_original_arguments_alone_build_adapters_of_size_64():
    with tf.Graph().as_default():
        modeling.BertModel(config=tiny_config(), is_training=True, input_ids=tf.constant(IDS))
        shapes = variable_shapes()
    assert shapes["bert/encoder/layer_0/attention/output/adapters/weights1"] == [12, 64]
    assert shapes["bert/encoder/layer_1/output/adapters/biases1"] == [1, 64]


def test_the_scope_can_be_chosen():
    with tf.Graph().as_default():
        modeling.BertModel(tiny_config(), False, tf.constant(IDS), scope="teacher")
        assert {name.split("/")[0] for name in variable_shapes()} == {"teacher"}


def test_an_adapter_in_a_missing_layer_is_an_error():
    with tf.Graph().as_default():
        assert_mentions(message_of(tiny_model, AdapterConfig(layers=(1, 2))), "2 layers", "0 to 1")


def test_a_function_of_ones_own_stands_behind_every_projection():
    calls = []

    def adapter(tensor: tf.Tensor) -> tf.Tensor:
        calls.append((tf.get_variable_scope().name, tensor.shape.as_list()))
        return tensor

    with tf.Graph().as_default():
        tiny_model(adapter)
    assert calls == [
        ("bert/encoder/layer_0/attention/output", [21, 12]),
        ("bert/encoder/layer_0/output", [21, 12]),
        ("bert/encoder/layer_1/attention/output", [21, 12]),
        ("bert/encoder/layer_1/output", [21, 12]),
        # The last layer once more, for the first tokens alone.
        ("bert/encoder/layer_1/attention/output", [3, 12]),
        ("bert/encoder/layer_1/output", [3, 12]),
    ]


def test_a_tensor_of_the_wrong_rank_is_named():
    with tf.Graph().as_default():
        flat = tf.placeholder(tf.int32, [7], name="flat_ids")
        with pytest.raises(ValueError, match=r"flat_ids:0 has rank 1 \(shape \(7,\)\); expected rank 2"):
            tiny_model(ids=flat)


def test_getters_have_static_shapes_where_they_are_known():
    with tf.Graph().as_default():
        model = tiny_model()
        assert model.get_embedding_table().shape.as_list() == [32, 12]
        assert model.get_embedding_output().shape.as_list() == [3, 7, 12]
        assert [layer.shape.as_list() for layer in model.get_all_encoder_layers()] == [[3, 7, 12]] * 2
        assert model.get_sequence_output() is model.get_all_encoder_layers()[-1]
        assert model.get_pooled_output().shape.as_list() == [3, 12]


def all_outputs(model: modeling.BertModel) -> List[tf.Tensor]:
    return [model.get_embedding_output(), *model.get_all_encoder_layers(), model.get_pooled_output()]


@pytest.mark.parametrize("shape, one_hot", [([None, None], False), ([3, None], True), ([None, 7], False)])
def test_shapes_known_only_at_run_time_give_the_same_values(shape, one_hot):
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        feeds = [tf.placeholder(tf.int32, shape) for _ in range(3)]
        dynamic = tiny_model(ADAPTERS, *feeds, one_hot=one_hot)
        static = tiny_model(one_hot=one_hot)
        assert dynamic.get_sequence_output().shape.as_list() == shape + [12]
        assert dynamic.get_pooled_output().shape.as_list() == shape[:1] + [12]
        set_random_values(session)
        expected = session.run(all_outputs(static))
        found = session.run(all_outputs(dynamic), dict(zip(feeds, (IDS, MASK, SEGMENTS))))
    for mine, theirs in zip(found, expected):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_one_graph_takes_batches_of_any_size_and_length():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None, None])
        model = tiny_model(ids=ids, mask=None, segments=None)
        set_random_values(session)
        for size, length in ((1, 1), (2, 16), (5, 3)):
            outputs = [model.get_sequence_output(), model.get_pooled_output()]
            found = session.run(outputs, {ids: np.ones([size, length], np.int32)})
            assert [output.shape for output in found] == [(size, length, 12), (size, 12)]


def test_a_sequence_longer_than_the_positions_is_an_error():
    with tf.Graph().as_default():
        message = message_of(tiny_model, ids=np.ones([1, 17], np.int32), mask=None, segments=None)
    assert_mentions(message, "17", "16", "max_position_embeddings")


def test_sequences_longer_than_the_positions_fail_when_their_length_comes_at_run_time():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None, None])
        model = tiny_model(ids=ids, mask=None, segments=None)
        set_random_values(session)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(model.get_pooled_output(), {ids: np.ones([1, 17], np.int32)})


# -------------------------------------------------------------------------------------------------- values


def tanh_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def relu(x: float) -> float:
    return max(x, 0.0)


CLOSED_FORMS = {"gelu": tanh_gelu, "gelu_erf": exact_gelu, "relu": relu, "tanh": math.tanh}


@pytest.mark.parametrize("name", sorted(CLOSED_FORMS))
def test_activations_follow_their_closed_forms(name):
    points = [-30.0, -5.0, -2.5, -1.0, -0.3, -1e-3, 0.0, 1e-4, 0.5, 1.0, 3.0, 20.0]
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(modeling.get_activation(name)(tf.constant(points)))
    np.testing.assert_allclose(found, [CLOSED_FORMS[name](point) for point in points], atol=2e-6)


def test_the_two_gelus_are_not_the_same():
    assert abs(tanh_gelu(-2.3) - exact_gelu(-2.3)) > 1e-4
    assert modeling.get_activation("gelu") is modeling.gelu
    assert modeling.get_activation("gelu_erf") is modeling.gelu_erf


def test_activations_are_found_in_any_case_and_functions_are_taken_as_they_are():
    assert modeling.get_activation("GELU") is modeling.gelu
    assert modeling.get_activation(tf.sigmoid) is tf.sigmoid
    assert [modeling.get_activation(name) for name in ("linear", "", None)] == [None, None, None]


def test_an_unknown_activation_suggests_the_nearest():
    with pytest.raises(errors.UserError, match=r"'ReLu6'\. Did you mean 'relu'\? Available: gelu, gelu_erf"):
        modeling.get_activation("ReLu6")


def numpy_dense(values: Dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]


def numpy_layer_norm(values: Dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / deviation * values[f"{name}/LayerNorm/gamma"] + values[f"{name}/LayerNorm/beta"]


def numpy_adapter(values: Dict[str, np.ndarray], name: str, x: np.ndarray, act: Callable) -> np.ndarray:
    if f"{name}/adapters/weights1" not in values:
        return x
    w1, b1 = values[f"{name}/adapters/weights1"], values[f"{name}/adapters/biases1"]
    w2, b2 = values[f"{name}/adapters/weights2"], values[f"{name}/adapters/biases2"]
    return x + act(x @ w1 + b1) @ w2 + b2


def numpy_attention(values: Dict[str, np.ndarray], name: str, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One sequence [S, D]: head by head, and over the real tokens only, so that no bias is needed."""
    query, key, value = (numpy_dense(values, f"{name}/{part}", x) for part in ("query", "key", "value"))
    heads, size = SIZES["num_attention_heads"], SIZES["hidden_size"] // SIZES["num_attention_heads"]
    real = mask.astype(bool)
    outputs = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        weights = np.exp(query[:, own] @ key[real, own].T / math.sqrt(size))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ value[real, own])
    return np.concatenate(outputs, -1)


def numpy_bert(values: Dict[str, np.ndarray], hidden_act: str, adapter_act: str) -> List[np.ndarray]:
    """The whole forward pass, sequence by sequence in float64: embeddings, layers, pooled output."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    act, adapter = np.vectorize(CLOSED_FORMS[hidden_act]), np.vectorize(CLOSED_FORMS[adapter_act])
    sequences = []
    for ids, mask, segments in zip(IDS, MASK, SEGMENTS):
        words = values["bert/embeddings/word_embeddings"][ids]
        kinds = values["bert/embeddings/token_type_embeddings"][segments]
        places = values["bert/embeddings/position_embeddings"][: len(ids)]
        states = [numpy_layer_norm(values, "bert/embeddings", words + kinds + places)]
        for number in range(SIZES["num_hidden_layers"]):
            layer = f"bert/encoder/layer_{number}"
            heads = numpy_attention(values, f"{layer}/attention/self", states[-1], mask)
            projected = numpy_dense(values, f"{layer}/attention/output/dense", heads)
            projected = numpy_adapter(values, f"{layer}/attention/output", projected, adapter)
            attended = numpy_layer_norm(values, f"{layer}/attention/output", states[-1] + projected)
            wide = act(numpy_dense(values, f"{layer}/intermediate/dense", attended))
            projected = numpy_dense(values, f"{layer}/output/dense", wide)
            projected = numpy_adapter(values, f"{layer}/output", projected, adapter)
            states.append(numpy_layer_norm(values, f"{layer}/output", attended + projected))
        sequences.append([*states, np.tanh(numpy_dense(values, "bert/pooler/dense", states[-1][0]))])
    return [np.stack(output) for output in zip(*sequences)]


@pytest.mark.parametrize(
    "hidden_act, adapter_fn",
    [
        ("gelu", None),
        ("gelu", AdapterConfig(size=5)),
        ("gelu_erf", AdapterConfig(size=5, activation="relu")),
        ("relu", AdapterConfig(size=3, activation="gelu_erf", layers=(1,))),
        ("tanh", AdapterConfig(size=5, activation="tanh", placement="feedforward")),
        ("gelu", AdapterConfig(size=20, placement="attention")),
    ],
)
def test_the_whole_network_computes_what_numpy_computes_from_the_papers_formulas(hidden_act, adapter_fn):
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = all_outputs(tiny_model(adapter_fn, hidden_act=hidden_act))
        values = set_random_values(session)
        found = session.run(outputs)
    expected = numpy_bert(values, hidden_act, adapter_fn.activation if adapter_fn else "relu")
    assert len(found) == len(expected) == 4
    for mine, theirs in zip(found[:-1], expected[:-1]):
        np.testing.assert_allclose(mine[REAL], theirs[REAL], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-5, atol=1e-5)


def test_adapters_change_the_output_once_their_weights_are_not_small():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        with_adapters, without = tiny_model(), tiny_model(None)
        set_random_values(session)
        mine, plain = session.run([with_adapters.get_sequence_output(), without.get_sequence_output()])
    assert np.abs(mine - plain)[REAL].max() > 0.5


def test_one_hot_and_gathered_embeddings_are_equal():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        gathered, one_hot = tiny_model(one_hot=False), tiny_model(one_hot=True)
        set_random_values(session)
        found = session.run([gathered.get_embedding_output(), one_hot.get_embedding_output()])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_no_mask_means_no_padding_and_no_segments_mean_the_first():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        silent = tiny_model(mask=None, segments=None)
        spoken = tiny_model(mask=np.ones_like(IDS), segments=np.zeros_like(IDS))
        set_random_values(session)
        found = session.run([silent.get_sequence_output(), spoken.get_sequence_output()])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def run_batches(*batches: Sequence[np.ndarray]) -> List[List[np.ndarray]]:
    """Runs batches of (ids, mask, segments) through one network and returns all outputs for each."""
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = [tf.placeholder(tf.int32, [None, None]) for _ in range(3)]
        outputs = all_outputs(tiny_model(ADAPTERS, *feeds))
        set_random_values(session)
        return [session.run(outputs, dict(zip(feeds, batch))) for batch in batches]


def test_what_stands_in_padding_does_not_change_real_tokens():
    changed = (np.where(REAL, IDS, 17), MASK, np.where(REAL, SEGMENTS, 1))
    expected, found = run_batches((IDS, MASK, SEGMENTS), changed)
    assert np.abs(found[-2] - expected[-2])[~REAL].max() > 0.1  # the change did reach the network
    for mine, theirs in zip(found[:-1], expected[:-1]):
        np.testing.assert_allclose(mine[REAL], theirs[REAL], atol=1e-5)
    np.testing.assert_allclose(found[-1], expected[-1], atol=1e-5)


def test_longer_padding_does_not_change_real_tokens():
    batch = (IDS, MASK, SEGMENTS)
    expected, found = run_batches(batch, [np.pad(array, [(0, 0), (0, 9)], "constant") for array in batch])
    for mine, theirs in zip(found[:-1], expected[:-1]):
        assert mine.shape == (3, 16, 12)
        np.testing.assert_allclose(mine[:, :7][REAL], theirs[REAL], atol=1e-5)
    np.testing.assert_allclose(found[-1], expected[-1], atol=1e-5)


def test_real_tokens_do_change_each_other():
    other = IDS.copy()
    other[:, 1] = 20
    expected, found = run_batches((IDS, MASK, SEGMENTS), (other, MASK, SEGMENTS))
    assert (np.abs(found[-2] - expected[-2]).max(-1)[REAL] > 1e-3).all()


def test_dropout_is_there_in_training_only():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        config = tiny_config()
        ids = tf.constant(IDS)
        trained = modeling.BertModel(config, True, ids, scope="bert", adapter_fn=None).get_pooled_output()
        tested = modeling.BertModel(config, False, ids, scope="bert", adapter_fn=None).get_pooled_output()
        set_random_values(session)
        assert np.abs(session.run(trained) - session.run(trained)).max() > 1e-3
        np.testing.assert_array_equal(session.run(tested), session.run(tested))
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)


# ------------------------------------------------------------------------------------------------ dead ops


def unreachable_ops(outputs: Sequence[tf.Tensor]) -> Set[str]:
    """Operations that the outputs do not need, but for those that initialise and read out variables."""
    waiting = [tensor.op for tensor in outputs]
    reached = set()
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting.extend([tensor.op for tensor in op.inputs] + list(op.control_inputs))
    belongs_to_variable = tuple(variable.op.name + "/" for variable in tf.global_variables())
    return {
        op.name
        for op in tf.get_default_graph().get_operations()
        if op not in reached and not op.name.startswith(belongs_to_variable)
    }


@pytest.mark.parametrize(
    "adapter_fn, one_hot, given", [(ADAPTERS, False, True), (ADAPTERS, True, False), (None, False, False)]
)
def test_every_op_of_the_inference_graph_is_reachable_from_the_outputs(adapter_fn, one_hot, given):
    with tf.Graph().as_default():
        inputs = (MASK, SEGMENTS) if given else (None, None)
        model = tiny_model(adapter_fn, IDS, *inputs, one_hot=one_hot)
        assert unreachable_ops([*all_outputs(model), model.get_embedding_table()]) == set()


def test_every_op_is_reachable_where_shapes_come_at_run_time():
    for given in (True, False):
        with tf.Graph().as_default():
            ids = tf.placeholder(tf.int32, [None, None])
            mask, segments = (tf.ones_like(ids), tf.zeros_like(ids)) if given else (None, None)
            model = tiny_model(ADAPTERS, ids, mask, segments)
            assert unreachable_ops([*all_outputs(model), model.get_embedding_table()]) == set()


def test_an_op_that_leads_nowhere_would_be_found():
    with tf.Graph().as_default():
        model = tiny_model()
        tf.zeros([2], name="forgotten")
        assert unreachable_ops(all_outputs(model)) == {"forgotten"}


# --------------------------------------------------------------------------------------------- checkpoints


def write_plain_checkpoint(folder) -> Dict[str, np.ndarray]:
    """Writes a plain BERT with a variable that no model has, and returns its values."""
    with tf.Graph().as_default(), tf.Session() as session:
        tiny_model(None)
        tf.get_variable("cls/predictions/output_bias", [32])
        values = set_random_values(session, seed=5)
        tf.train.Saver().save(session, str(folder / "bert_model.ckpt"))
    return values


def test_the_assignment_map_holds_what_model_and_checkpoint_share(tmp_path):
    write_plain_checkpoint(tmp_path)
    with tf.Graph().as_default():
        tiny_model()
        tf.get_variable("output_weights", [2, 12])
        assignment_map, initialized = modeling.get_assignment_map_from_checkpoint(
            tf.trainable_variables(), str(tmp_path / "bert_model.ckpt")
        )
    shared = set(shapes_by_hand(with_adapters=False))
    assert assignment_map == {name: name for name in shared}
    assert initialized == {name + ending: 1 for name in shared for ending in ("", ":0")}


def test_a_checkpoint_of_plain_bert_loads_into_a_network_with_adapters(tmp_path):
    values = write_plain_checkpoint(tmp_path)
    path = str(tmp_path / "bert_model.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tiny_model()
        assignment_map, _ = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), path)
        tf.train.init_from_checkpoint(path, assignment_map)
        session.run(tf.global_variables_initializer())
        found = session.run({variable.op.name: variable for variable in tf.trainable_variables()})
    for name in assignment_map:
        np.testing.assert_array_equal(found[name], values[name])
    fresh = found["bert/encoder/layer_0/output/adapters/weights1"]
    assert 0 < np.abs(fresh).max() <= 0.02


def test_a_checkpoint_fits_that_holds_all_and_more():
    assert parameters.describe_mismatch({"a": [2, 3]}, {"a": (2, 3), "global_step": ()}) is None


def test_what_a_checkpoint_lacks_is_counted_and_named():
    one = parameters.describe_mismatch({"a": [1], "b": [1]}, {"b": [1]})
    assert one == "1 of 2 variables match; 1 missing (a)."
    expected = {name: [1] for name in "abcde"}
    assert parameters.describe_mismatch(expected, {}) == "0 of 5 variables match; 5 missing (a, b, c, …)."
    assert parameters.describe_mismatch(expected, {}, named=1) == "0 of 5 variables match; 5 missing (a, …)."


def test_other_shapes_are_said_on_both_sides():
    assert parameters.describe_mismatch({"a": [768, 64], "b": [4]}, {"a": (768, 8), "b": (4,)}) == (
        "1 of 2 variables match; 1 of another shape (a is [768, 8] where the model has [768, 64])."
    )
    both = parameters.describe_mismatch({"a": [1], "b": [2], "c": [3]}, {"b": [5], "c": [3]}, named=1)
    assert both == ("1 of 3 variables match; 1 missing (a), 1 of another shape (b is [5] where the model has [2]).")


def test_the_pooled_output_is_that_of_the_first_state_of_the_last_layer():
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_model(ADAPTERS, IDS, MASK, SEGMENTS)
        session.run(tf.global_variables_initializer())
        with tf.variable_scope("bert/pooler", reuse=True):
            from_sequence = modeling.dense(model.get_sequence_output()[:, 0], 12, "dense", tiny_config(), tf.tanh)
        pooled, expected = session.run([model.get_pooled_output(), from_sequence])
        np.testing.assert_allclose(pooled, expected, atol=1e-6)
        assert np.abs(pooled).max() > 0.01, "random weights of a small deviation"


def test_a_graph_of_the_pooled_output_does_not_run_the_last_layer_for_other_tokens():
    with tf.Graph().as_default() as graph:
        model = tiny_model(ADAPTERS, IDS, MASK, SEGMENTS)
        needed = tf.graph_util.extract_sub_graph(graph.as_graph_def(), [model.get_pooled_output().op.name])
        whole = {op.name for op in graph.get_operations() if re.search("layer_1.*/intermediate/.*MatMul$", op.name)}
        assert len(whole) == 2
        assert len(whole & {node.name for node in needed.node}) == 1
