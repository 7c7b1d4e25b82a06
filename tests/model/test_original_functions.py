"""The functions of Google's `modeling.py`, called with the original's arguments, build the network of `BertModel`."""

from __future__ import annotations

import inspect
from typing import List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from tests.helpers import tiny_config
from tests.tiny_networks import set_random_values, sharing_variables

pytestmark = pytest.mark.smoke

IDS = np.array([[2, 7, 9, 3, 11, 3, 0], [2, 31, 3, 0, 0, 0, 0], [2, 5, 6, 7, 8, 9, 3]], np.int32)
MASK = (IDS > 0).astype(np.int32)
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]], np.int32)

SIGNATURES = {
    "assert_rank": "tensor expected_rank name",
    "attention_layer": "from_tensor to_tensor attention_mask num_attention_heads size_per_head query_act key_act "
    "value_act attention_probs_dropout_prob initializer_range do_return_2d_tensor batch_size from_seq_length "
    "to_seq_length",
    "create_attention_mask_from_input_mask": "from_tensor to_mask",
    "create_initializer": "initializer_range",
    "dropout": "input_tensor dropout_prob",
    "embedding_lookup": "input_ids vocab_size embedding_size initializer_range word_embedding_name "
    "use_one_hot_embeddings",
    "embedding_postprocessor": "input_tensor use_token_type token_type_ids token_type_vocab_size "
    "token_type_embedding_name use_position_embeddings position_embedding_name initializer_range "
    "max_position_embeddings dropout_prob",
    "feedforward_adapter": "input_tensor hidden_size init_scale",
    "gelu": "x",
    "get_activation": "activation_string",
    "get_adapter": "function_string",
    "get_shape_list": "tensor expected_rank name",
    "layer_norm": "input_tensor name",
    "layer_norm_and_dropout": "input_tensor dropout_prob name",
    "reshape_from_matrix": "output_tensor orig_shape_list",
    "reshape_to_matrix": "input_tensor",
    "transformer_model": "input_tensor attention_mask hidden_size num_hidden_layers num_attention_heads "
    "intermediate_size intermediate_act_fn hidden_dropout_prob attention_probs_dropout_prob initializer_range "
    "do_return_all_layers adapter_fn",
}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_arguments_are_those_of_the_original(name):
    assert list(inspect.signature(getattr(modeling, name)).parameters) == SIGNATURES[name].split()


def network_of_functions(config: modeling.BertConfig, ids: tf.Tensor, adapter_fn: object) -> List[tf.Tensor]:
    """Build BERT as old code does that calls the functions itself; return embeddings and the output of each layer."""
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            words, _ = modeling.embedding_lookup(
                input_ids=ids, vocab_size=config.vocab_size, embedding_size=config.hidden_size,
                initializer_range=config.initializer_range, word_embedding_name="word_embeddings",
                use_one_hot_embeddings=False,
            )  # fmt: skip
            embeddings = modeling.embedding_postprocessor(
                input_tensor=words, use_token_type=True, token_type_ids=tf.constant(SEGMENTS),
                token_type_vocab_size=config.type_vocab_size, token_type_embedding_name="token_type_embeddings",
                use_position_embeddings=True, position_embedding_name="position_embeddings",
                initializer_range=config.initializer_range, max_position_embeddings=config.max_position_embeddings,
                dropout_prob=0.0,
            )  # fmt: skip
        with tf.variable_scope("encoder"):
            layers = modeling.transformer_model(
                input_tensor=embeddings,
                attention_mask=modeling.create_attention_mask_from_input_mask(ids, tf.constant(MASK)),
                hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers,
                num_attention_heads=config.num_attention_heads, intermediate_size=config.intermediate_size,
                intermediate_act_fn=modeling.get_activation(config.hidden_act), hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, initializer_range=config.initializer_range,
                do_return_all_layers=True, adapter_fn=modeling.get_adapter(adapter_fn),
            )  # fmt: skip
    return [embeddings, *layers]


@pytest.mark.parametrize("shape", [[3, 7], [None, None]], ids=["static", "dynamic"])
@pytest.mark.parametrize("adapter_fn", [None, "feedforward_adapter"])
def test_a_network_of_the_functions_has_the_variables_and_the_values_of_bert_model(adapter_fn, shape):
    config = tiny_config()
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, shape)
        model = modeling.BertModel(
            config, False, ids, tf.constant(MASK), tf.constant(SEGMENTS), scope="bert", adapter_fn=adapter_fn
        )
        variables = {variable.name for variable in tf.global_variables()}
        with sharing_variables():
            built = network_of_functions(config, ids, adapter_fn)
        assert {variable.name for variable in tf.global_variables()} == variables
        set_random_values(session)
        found, expected = session.run(
            [built, [model.get_embedding_output(), *model.get_all_encoder_layers()]], {ids: IDS}
        )
    assert len(found) == 1 + config.num_hidden_layers
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_attention_follows_its_formula_between_sequences_of_different_lengths():
    generator = np.random.RandomState(1)
    queries, states = generator.randn(2, 3, 6), generator.randn(2, 5, 6)
    mask = np.array([[[1, 1, 1, 0, 1]] * 3, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]])
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(x, tf.float32) for x in (queries, states)]
        arguments = {"num_attention_heads": 2, "size_per_head": 4, "value_act": tf.tanh}
        three_axes = modeling.attention_layer(*inputs, attention_mask=tf.constant(mask), **arguments)
        matrices = [modeling.reshape_to_matrix(x) for x in inputs]
        sizes = {"batch_size": 2, "from_seq_length": 3, "to_seq_length": 5}
        with sharing_variables():
            two_axes = modeling.attention_layer(
                *matrices, tf.constant(mask), do_return_2d_tensor=True, **arguments, **sizes
            )
            unmasked = modeling.attention_layer(*inputs, None, **arguments)
            all_ones = modeling.attention_layer(*inputs, tf.ones([2, 3, 5]), **arguments)
            with pytest.raises(ValueError, match="batch_size"):
                modeling.attention_layer(*matrices, **arguments)
            with pytest.raises(ValueError, match="rank"):
                modeling.attention_layer(inputs[0], matrices[1], **arguments)
        values = set_random_values(session)
        found, flat, without, with_ones = session.run([three_axes, two_axes, unmasked, all_ones])

    def projected(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ values[f"{name}/kernel"] + values[f"{name}/bias"]
        return y.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3)

    scores = projected(queries, "query") @ projected(states, "key").transpose(0, 1, 3, 2) / 2.0
    weights = np.exp(scores) * mask[:, np.newaxis]
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = (weights @ np.tanh(projected(states, "value"))).transpose(0, 2, 1, 3).reshape(2, 3, 8)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(flat, found.reshape(6, 8), atol=1e-6)
    np.testing.assert_allclose(without, with_ones, atol=1e-6)


def test_a_transformer_returns_its_last_layer_and_needs_inputs_of_its_width():
    with tf.Graph().as_default():
        inputs = tf.placeholder(tf.float32, [None, 5, 8])
        sizes = {"num_attention_heads": 2, "intermediate_size": 4}
        last = modeling.transformer_model(inputs, hidden_size=8, num_hidden_layers=2, **sizes)
        assert last.shape.as_list() == [None, 5, 8]
        for width in (7, 16):
            with pytest.raises(ValueError, match=str(width)):
                modeling.transformer_model(inputs, hidden_size=width, **sizes)


@pytest.mark.parametrize("shape", [[2, 3, 4], [6, 4]])
def test_layer_norm_normalizes_the_last_axis_and_every_call_has_its_own_variables(shape):
    x = np.random.RandomState(2).randn(*shape).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = [
            modeling.layer_norm(tf.constant(x)),
            modeling.layer_norm_and_dropout(tf.constant(x), 0.0),
            modeling.layer_norm(input_tensor=tf.constant(x), name="own"),
        ]
        scopes = [variable.op.name for variable in tf.get_collection("layer_norm")]
        session.run(tf.global_variables_initializer())
        found = session.run(outputs)
    assert scopes == [f"{scope}/{name}" for scope in ("LayerNorm", "LayerNorm_1", "own") for name in ("beta", "gamma")]
    expected = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)
    for output in found:
        np.testing.assert_allclose(output, expected, atol=1e-4)


def test_two_dropouts_in_one_scope_drop_different_elements():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        outputs = [modeling.dropout(input_tensor=tf.ones([100, 10]), dropout_prob=0.5) for _ in range(2)]
        assert modeling.dropout(outputs[0], None) is modeling.dropout(outputs[0], 0.0) is outputs[0]
        session.run(tf.global_variables_initializer())
        one, other = session.run(outputs)
    assert set(np.unique(one)) == set(np.unique(other)) == {0.0, 2.0}
    assert np.mean(one == other) == pytest.approx(0.5, abs=0.1)


def test_embeddings_of_several_ids_for_a_position_are_concatenated():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.constant([[[1, 2], [3, 0]]])
        output, table = modeling.embedding_lookup(ids, 4, 3)
        with sharing_variables():
            one_hot, _ = modeling.embedding_lookup(ids, 4, 3, use_one_hot_embeddings=True)
        session.run(tf.global_variables_initializer())
        found, multiplied, values = session.run([output, one_hot, table])
    np.testing.assert_array_equal(found, [[[*values[1], *values[2]], [*values[3], *values[0]]]])
    np.testing.assert_allclose(multiplied, found)


def test_shapes_and_ranks_are_checked_by_name():
    with tf.Graph().as_default():
        tensor = tf.placeholder(tf.float32, [None, 3], name="found")
        assert modeling.get_shape_list(tensor, expected_rank=[2, 3], name="x")[1] == 3
        modeling.assert_rank(tensor, 2)
        for arguments, fact in (([3], "found"), ([[3, 4]], "3 or 4"), ([1, "given"], "given")):
            with pytest.raises(ValueError, match=fact):
                modeling.assert_rank(tensor, *arguments)
        with pytest.raises(ValueError, match="two axes"):
            modeling.reshape_to_matrix(tf.constant([1.0]))
        cube = tf.placeholder(tf.float32, [2, None, 3])
        matrix = modeling.reshape_to_matrix(cube)
        assert matrix.shape.as_list() == [None, 3] and modeling.reshape_to_matrix(matrix) is matrix
        again = modeling.reshape_from_matrix(matrix, modeling.get_shape_list(cube))
        assert again.shape.as_list() == [2, None, 3]
        assert modeling.reshape_from_matrix(matrix, [6, 3]) is matrix


def test_an_adapter_is_found_by_name_and_starts_with_the_scale_of_googles_code():
    function = modeling.get_adapter("Feedforward_Adapter")
    assert function is modeling.feedforward_adapter
    assert inspect.signature(function).parameters["init_scale"].default == 1e-3
    assert modeling.get_adapter(None) is modeling.get_adapter("") is None
    assert modeling.get_adapter(tf.tanh) is tf.tanh
    with pytest.raises(ValueError, match="feedforward_adapter"):
        modeling.get_adapter("conv_adapter")
    with tf.Graph().as_default(), tf.Session() as session:
        output = function(tf.ones([2, 50]), hidden_size=40)
        variables = tf.get_collection(adapter_layers.COLLECTION)
        assert [variable.op.name for variable in variables] == [
            f"adapters/{name}" for name in ("weights1", "biases1", "weights2", "biases2")
        ]
        session.run(tf.global_variables_initializer())
        assert np.std(session.run(variables[0])) == pytest.approx(0.88e-3, rel=0.1)  # truncated at two deviations
        np.testing.assert_allclose(session.run(output), 1.0, atol=1e-3)
