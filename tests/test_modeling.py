"""BERT's graph: variable names and shapes, and values compared with NumPy."""

from __future__ import annotations

import json
import math
import re
from typing import Callable, Dict, List, Sequence

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_layers import AdapterConfig
from tests import reference_model
from tests.helpers import TINY, assert_mentions, message_of, tiny_config, write_file
from tests.tiny_networks import CLOSED_FORMS, set_random_values, sharing_variables

IDS = np.array([[2, 7, 9, 3, 11, 3, 0], [2, 31, 3, 0, 0, 0, 0], [2, 5, 6, 7, 8, 9, 3]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]], np.int32)
REAL = MASK.astype(bool)
ADAPTERS = AdapterConfig(size=5, activation="gelu")
WIDTH = TINY["hidden_size"]


def tiny_model(
    adapter_fn: object = ADAPTERS,
    ids: object = IDS,
    mask: object = MASK,
    segments: object = SEGMENTS,
    one_hot: bool = False,
    **changes: object,
) -> modeling.BertModel:
    """Build a BertModel without dropout on the batch above; arrays become constants, None stays None."""
    ids, mask, segments = (tf.constant(x) if isinstance(x, np.ndarray) else x for x in (ids, mask, segments))
    return modeling.BertModel(
        tiny_config(**changes), False, ids, mask, segments, one_hot, scope="bert", adapter_fn=adapter_fn
    )


def all_outputs(model: modeling.BertModel) -> List[tf.Tensor]:
    return [model.get_embedding_output(), *model.get_all_encoder_layers(), model.get_pooled_output()]


def variable_shapes() -> Dict[str, tuple]:
    return {variable.op.name: tuple(variable.shape.as_list()) for variable in tf.global_variables()}


# ---------------------------------------------------------------------------------------------- the config


def test_a_config_survives_a_file_with_the_keys_of_other_tools(tmp_path):
    config = modeling.BertConfig.from_dict(dict(TINY, hidden_act="relu", hidden_dropout_prob=0.2, directions=["bidi"]))
    read = modeling.BertConfig.from_json_file(write_file(tmp_path, "bert_config.json", config.to_json_string()))
    assert read.to_dict() == config.to_dict() == modeling.BertConfig.from_dict(config.to_dict()).to_dict()
    assert (read.hidden_act, read.directions) == ("relu", ["bidi"])
    read.to_dict()["directions"].append("a change to a copy")
    assert read.directions == ["bidi"]


def test_a_config_has_the_sizes_of_bert_base_by_default():
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


@pytest.mark.parametrize(
    "content, facts",
    [(None, ["no file"]), ('{"vocab_size":', ["not JSON", "line 1 column 15"]), ("[1, 2]", ["JSON object"])],
)
def test_a_missing_or_invalid_config_file_is_an_error_that_names_it(tmp_path, content, facts):
    path = write_file(tmp_path, "bert_config.json", content) if content else str(tmp_path / "nowhere.json")
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
        ({"initializer_range": "0.02"}, ["initializer_range", "number", "'0.02'"]),
        ({"num_attention_heads": 5}, ["hidden_size 16", "num_attention_heads 5"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "at most 64", 10**9]),
        ({"hidden_size": 10**9, "num_attention_heads": 10**9}, ["hidden_size", "at most 16777216", 10**9]),
        ({"vocab_size": 10**99}, ["vocab_size", "at most 16777216", 10**99]),
        ({"hidden_act": []}, ["activation", "[]"]),
        ({"hidden_act": "gelu_erv"}, ["'gelu_erv'", "Did you mean 'gelu_erf'?"]),
    ],
)
def test_an_invalid_value_is_an_error_in_a_file_and_in_a_model(tmp_path, changes, facts):
    path = write_file(tmp_path, "bert_config.json", json.dumps(dict(TINY, **changes)))
    assert_mentions(message_of(modeling.BertConfig.from_json_file, path), path, *facts)
    with tf.Graph().as_default():
        assert_mentions(message_of(tiny_model, **changes), *facts)


@pytest.mark.parametrize("key", ["check", "to_dict", "from_dict", "__class__", "__dict__"])
def test_a_key_that_would_hide_a_method_is_an_error(tmp_path, key):
    path = write_file(tmp_path, "bert_config.json", json.dumps(dict(TINY, **{key: 1})))
    assert_mentions(message_of(modeling.BertConfig.from_json_file, path), path, repr(key))


# ---------------------------------------------------------------------------------------- names and shapes


def test_the_original_arguments_alone_build_trainable_adapters_of_size_64():
    with tf.Graph().as_default():
        modeling.BertModel(config=tiny_config(), is_training=True, input_ids=tf.constant(IDS))
        assert variable_shapes() == {
            **reference_model.bert_shapes(TINY),
            **reference_model.adapter_shapes(TINY, {"size": 64}),
        }
        assert tf.trainable_variables() == tf.global_variables()
        modeling.BertModel(tiny_config(), False, tf.constant(IDS), scope="teacher")
        assert {name.split("/")[0] for name in variable_shapes()} == {"bert", "teacher"}


def test_a_custom_adapter_function_is_called_after_every_projection():
    calls = []

    def adapter(tensor: tf.Tensor) -> tf.Tensor:
        calls.append((tf.get_variable_scope().name, tensor.shape.as_list()))
        return tensor

    with tf.Graph().as_default():
        tiny_model(adapter)
    assert calls == [
        ("bert/encoder/layer_0/attention/output", [21, WIDTH]),
        ("bert/encoder/layer_0/output", [21, WIDTH]),
        ("bert/encoder/layer_1/attention/output", [21, WIDTH]),
        ("bert/encoder/layer_1/output", [21, WIDTH]),
        # The last layer again, for the first tokens alone.
        ("bert/encoder/layer_1/attention/output", [3, WIDTH]),
        ("bert/encoder/layer_1/output", [3, WIDTH]),
    ]


@pytest.mark.parametrize(
    "arguments, facts",
    [
        ({"adapter_fn": AdapterConfig(layers=(1, 2))}, ["2 layers", "0 to 1"]),
        ({"ids": np.ones([1, 33], np.int32), "mask": None, "segments": None}, [33, 32, "max_position_embeddings"]),
    ],
)
def test_a_layer_or_position_beyond_the_network_is_an_error(arguments, facts):
    with tf.Graph().as_default():
        assert_mentions(message_of(tiny_model, **arguments), *facts)


def test_a_tensor_of_the_wrong_rank_is_named():
    with tf.Graph().as_default():
        flat = tf.placeholder(tf.int32, [7], name="flat_ids")
        with pytest.raises(ValueError, match=r"flat_ids:0 has rank 1 \(shape \(7,\)\); expected rank 2"):
            tiny_model(ids=flat)


@pytest.mark.parametrize(
    "shape, one_hot", [([None, None], False), ([3, None], True), ([None, 7], False), ([3, 7], True)]
)
def test_dynamic_shapes_and_one_hot_embeddings_give_the_same_values(shape, one_hot):
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        feeds = [tf.placeholder(tf.int32, shape) for _ in range(3)]
        dynamic, static = tiny_model(ADAPTERS, *feeds, one_hot=one_hot), tiny_model()
        found = [output.shape.as_list() for output in all_outputs(dynamic)]
        assert found == [shape + [WIDTH]] * 3 + [shape[:1] + [WIDTH]]
        assert dynamic.get_sequence_output() is dynamic.get_all_encoder_layers()[-1]
        assert dynamic.get_embedding_table().shape.as_list() == [TINY["vocab_size"], WIDTH]
        set_random_values(session)
        expected = session.run(all_outputs(static))
        found = session.run(all_outputs(dynamic), dict(zip(feeds, (IDS, MASK, SEGMENTS))))
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_dynamic_length_may_reach_but_not_exceed_the_positions():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None, None])
        outputs = all_outputs(tiny_model(ids=ids, mask=None, segments=None))
        set_random_values(session)
        assert session.run(outputs, {ids: np.ones([2, 32], np.int32)})[0].shape == (2, 32, WIDTH)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(outputs, {ids: np.ones([1, 33], np.int32)})


# -------------------------------------------------------------------------------------------------- values


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
    heads, size = TINY["num_attention_heads"], TINY["hidden_size"] // TINY["num_attention_heads"]
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
        for number in range(TINY["num_hidden_layers"]):
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
    "hidden_act, closed_form, adapter_fn",
    [
        ("gelu", "gelu", None),
        ("gelu", "gelu", AdapterConfig(size=5)),
        ("gelu_erf", "gelu_erf", AdapterConfig(size=5, activation="relu")),
        ("relu", "relu", AdapterConfig(size=3, activation="gelu_erf", layers=(1,))),
        (tf.tanh, "tanh", AdapterConfig(size=5, activation="tanh", placement="feedforward")),
        ("gelu", "gelu", AdapterConfig(size=20, placement="attention")),
    ],
)
def test_the_network_computes_the_papers_formulas(hidden_act, closed_form, adapter_fn):
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = all_outputs(tiny_model(adapter_fn, hidden_act=hidden_act))
        values = set_random_values(session)
        found = session.run(outputs)
    expected = numpy_bert(values, closed_form, adapter_fn.activation if adapter_fn else "linear")
    assert len(found) == len(expected) == 4
    for one, other in zip(found[:-1], expected[:-1]):
        np.testing.assert_allclose(one[REAL], other[REAL], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-5, atol=1e-5)


def test_no_mask_means_no_padding_and_no_segments_mean_the_first():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        default = tiny_model(mask=None, segments=None)
        explicit = tiny_model(mask=np.ones_like(IDS), segments=np.zeros_like(IDS))
        set_random_values(session)
        found = session.run([default.get_sequence_output(), explicit.get_sequence_output()])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_neither_the_content_nor_the_length_of_padding_changes_real_tokens():
    batch = (IDS, MASK, SEGMENTS)
    changed = (np.where(REAL, IDS, 17), MASK, np.where(REAL, SEGMENTS, 1))
    longer = [np.pad(array, [(0, 0), (0, 9)], "constant") for array in batch]
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = [tf.placeholder(tf.int32, [None, None]) for _ in range(3)]
        outputs = all_outputs(tiny_model(ADAPTERS, *feeds))
        set_random_values(session)
        expected, *others = (session.run(outputs, dict(zip(feeds, arrays))) for arrays in (batch, changed, longer))
    assert np.abs(others[0][-2] - expected[-2])[~REAL].max() > 0.1  # the change did reach the network
    for found in others:
        for one, other in zip(found[:-1], expected[:-1]):
            np.testing.assert_allclose(one[:, :7][REAL], other[REAL], atol=1e-5)
        np.testing.assert_allclose(found[-1], expected[-1], atol=1e-5)


def test_dropout_is_applied_only_in_training():
    with tf.Graph().as_default(), tf.Session() as session, sharing_variables():
        config = tiny_config()
        trained, tested = (
            modeling.BertModel(config, is_training, tf.constant(IDS), scope="bert", adapter_fn=None).get_pooled_output()
            for is_training in (True, False)
        )
        set_random_values(session)
        assert np.abs(session.run(trained) - session.run(trained)).max() > 1e-3
        np.testing.assert_array_equal(session.run(tested), session.run(tested))
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)


# ----------------------------------------------------------------------------------------------- dead ops


def needed_nodes(outputs: Sequence[tf.Tensor]) -> list:
    graph = tf.get_default_graph().as_graph_def()
    return tf.graph_util.extract_sub_graph(graph, [tensor.op.name for tensor in outputs]).node


@pytest.mark.parametrize(
    "shape, adapter_fn, one_hot, with_masks",
    [
        ([3, 7], ADAPTERS, False, True),
        ([3, 7], ADAPTERS, True, False),
        ([3, 7], None, False, False),
        ([None, None], ADAPTERS, False, True),
        ([None, None], ADAPTERS, False, False),
    ],
)
def test_every_op_of_the_inference_graph_is_reachable_from_the_outputs(shape, adapter_fn, one_hot, with_masks):
    with tf.Graph().as_default() as graph:
        ids = tf.placeholder(tf.int32, shape)
        masks = (tf.ones_like(ids), tf.zeros_like(ids)) if with_masks else (None, None)
        model = tiny_model(adapter_fn, ids, *masks, one_hot=one_hot)
        outputs = [*all_outputs(model), model.get_embedding_table()]
        tf.zeros([2], name="forgotten")
        needed = {node.name for node in needed_nodes(outputs)}
        # Except for ops that initialize and read out variables.
        of_variables = tuple(variable.op.name + "/" for variable in tf.global_variables())
        unneeded = {op.name for op in graph.get_operations()} - needed
        assert [name for name in unneeded if not name.startswith(of_variables)] == ["forgotten"]


def test_a_graph_of_the_pooled_output_does_not_run_the_last_layer_for_other_tokens():
    with tf.Graph().as_default() as graph:
        needed = needed_nodes([tiny_model().get_pooled_output()])
        whole = {op.name for op in graph.get_operations() if re.search("layer_1.*/intermediate/.*MatMul$", op.name)}
        assert len(whole) == 2
        assert len(whole & {node.name for node in needed}) == 1


# --------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_of_plain_bert_loads_into_a_network_with_adapters(tmp_path):
    path = str(tmp_path / "bert_model.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tiny_model(None)
        tf.get_variable("cls/predictions/output_bias", [32])
        values = set_random_values(session, seed=5)
        tf.train.Saver().save(session, path)
    with tf.Graph().as_default(), tf.Session() as session:
        tiny_model()
        tf.get_variable("output_weights", [2, WIDTH])
        assignment_map, initialized = modeling.get_assignment_map_from_checkpoint(tf.trainable_variables(), path)
        tf.train.init_from_checkpoint(path, assignment_map)
        session.run(tf.global_variables_initializer())
        found = session.run({variable.op.name: variable for variable in tf.trainable_variables()})
    shared = list(reference_model.bert_shapes(TINY))
    assert assignment_map == {name: name for name in shared}
    assert initialized == {name + ending: 1 for name in shared for ending in ("", ":0")}
    for name in shared:
        np.testing.assert_array_equal(found[name], values[name])
    fresh = found["bert/encoder/layer_0/output/adapters/weights1"]
    assert 0 < np.abs(fresh).max() <= 0.02
