"""Parameters are counted before a weight exists, and the counts are those of the paper."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model import parameters, tuning_modes
from adapter_bert.model.heads import ClassificationHead, RegressionHead, SpanHead
from adapter_bert.model.spec import ModelSpec
from adapter_layers import AdapterConfig
from tests import reference_model
from tests.helpers import TINY, assert_mentions, tiny_config

BASE = modeling.BertConfig(vocab_size=30522, type_vocab_size=2).to_dict()
LARGE = dict(BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
LAYER = 7084800  # 4 · (768² + 768) + 2 · 768 · 3072 + 3072 + 768, without LayerNorms
TWO_CLASSES = ClassificationHead(2)


@pytest.fixture(scope="module")
def adapted() -> ModelSpec:
    """BERT-base with adapters of size 64 and two classes."""
    return ModelSpec(modeling.BertConfig.from_dict(BASE), TWO_CLASSES, AdapterConfig())


@pytest.mark.parametrize(
    "head, adapter",
    [
        (ClassificationHead(3), None),
        (RegressionHead(), AdapterConfig(size=1)),
        (SpanHead(), AdapterConfig(size=8, placement="attention")),
        (TWO_CLASSES, AdapterConfig(size=8, placement="feedforward", layers=(1,))),
        (TWO_CLASSES, AdapterConfig(layers=(0,))),
    ],
)
def test_a_model_has_the_variables_of_the_paper_and_of_googles_checkpoints(head, adapter):
    labels = [str(number) for number in range(getattr(head, "num_labels", 0))]
    # An activation may be a function.
    assert parameters.model_shapes(tiny_config(hidden_act=tf.sin), head, adapter) == {
        **reference_model.bert_shapes(TINY),
        **(reference_model.adapter_shapes(TINY, vars(adapter)) if adapter else {}),
        **reference_model.head_shapes(TINY, head.kind, labels),
    }


def test_bert_base_and_large_have_the_published_counts(adapted):
    plain = dataclasses.replace(adapted, adapter=None, tuning_mode="top_layers", top_layers=2)
    assert parameters.count(adapted.shapes) == 111863042
    assert parameters.count(adapted.shapes, adapted.trained_names) == 2379264 + 38400 + 1538 == 2419202
    assert parameters.count(adapted.shapes, adapted.base_names) == 109482240
    assert parameters.count(plain.shapes) - 1538 == 109482240
    assert parameters.count(plain.trained_shapes) == 2 * LAYER + 2 * 3072 + 590592 + 1538
    norms = tuning_modes.trainable_names(list(plain.shapes), "layer_norm")
    assert parameters.count(plain.shapes, norms) == 39938
    large = dataclasses.replace(adapted, config=modeling.BertConfig.from_dict(LARGE))
    assert parameters.count(large.shapes, large.base_names) == 335141888
    assert parameters.count(large.trained_shapes) == 6343680 + 100352 + 2050


def test_counting_takes_no_memory_and_leaves_the_default_graph_alone():
    """No machine has the 16 terabytes that these weights would take."""
    config = tiny_config(vocab_size=2**24, hidden_size=2**18, num_hidden_layers=1)
    with tf.Graph().as_default() as graph:
        shapes = parameters.model_shapes(config, TWO_CLASSES, None)
        assert graph.get_operations() == []
    assert shapes["bert/embeddings/word_embeddings"] == (2**24, 2**18)
    assert parameters.count(shapes) > 4 * 10**12


@pytest.mark.parametrize("head", [TWO_CLASSES, RegressionHead(), SpanHead()])
@pytest.mark.parametrize(
    "adapter",
    [
        None,
        "feedforward_adapter",
        AdapterConfig(size=4),
        AdapterConfig(4, placement="attention", layers=(1,)),
        tf.identity,
    ],
)
def test_shapes_and_their_order_are_those_of_the_graph(head, adapter):
    spec = ModelSpec(tiny_config(), head, adapter)
    with tf.Graph().as_default():
        ids = tf.zeros([3, 9], tf.int32)
        model = modeling.BertModel(spec.config, True, ids, scope="bert", adapter_fn=spec.adapter)
        head.build(model, {name: tf.zeros([3], tf.int32) for name in head.label_types}, True)
        expected = [(variable.op.name, tuple(variable.shape.as_list())) for variable in tf.trainable_variables()]
    assert list(spec.shapes.items()) == expected


def test_the_shapes_of_a_model_are_found_without_its_graph(monkeypatch):
    """A graph takes 0.2 s per layer, and a pack from elsewhere may claim any number of layers."""
    monkeypatch.setattr(modeling, "BertModel", None)
    shapes = parameters.model_shapes(tiny_config(num_hidden_layers=64), TWO_CLASSES, AdapterConfig(size=4))
    assert len(shapes) == 5 + 64 * (16 + 8) + 2 + 2


# ------------------------------------------------------------------------------------------- table


def table_rows(lines: list) -> list:
    """Return the rows of a table as (group, tensors, parameters, state, per cent), without the totals."""
    rows = [line.split() for line in lines[1:-2]]
    return [(group, int(n), int(count.replace(",", "")), state, float(share)) for group, n, count, state, share in rows]


def test_the_table_shows_each_group_and_the_totals(adapted):
    lines = parameters.parameter_table(adapted.shapes, adapted.trained_names)
    assert lines[0].split() == ["group", "tensors", "parameters", "per", "cent"]
    rows = table_rows(lines)
    assert [row[:4] for row in rows] == [
        ("embeddings", 3, 23835648, "frozen"),
        ("encoder", 12 * 12, 12 * LAYER, "frozen"),
        ("adapters", 12 * 8, 2379264, "trained"),
        ("LayerNorm", 12 * 4 + 2, 38400, "trained"),
        ("pooler", 2, 590592, "frozen"),
        ("head", 2, 1538, "trained"),
    ]
    assert [row[4] for row in rows] == pytest.approx([100 * row[2] / 111863042 for row in rows], abs=5e-4)
    totals = ["***** Total Parameters = 111863042 *****", "***** Total Trainable Parameters = 2419202 *****"]
    assert lines[-2:] == totals
    assert len({len(line) for line in lines[:-2]}) == 1, "columns are aligned"


def test_variables_of_no_known_group_are_counted_and_a_partly_trained_group_has_two_rows():
    shapes = {"bert/embeddings/word_embeddings": (10, 2), "my/own/kernel": (5, 5), "my/own/scale": ()}
    lines = parameters.parameter_table(shapes, ["my/own/kernel"])
    assert [row[:4] for row in table_rows(lines)] == [
        ("embeddings", 1, 20, "frozen"),
        ("other", 1, 25, "trained"),
        ("other", 1, 1, "frozen"),
    ]
    assert lines[-2:] == ["***** Total Parameters = 46 *****", "***** Total Trainable Parameters = 25 *****"]


# -------------------------------------------------------------------------------------- mismatches

FIVE = {name: [1] for name in "abcde"}


@pytest.mark.parametrize(
    "expected, found, facts",
    [
        ({"a": [1], "b": [1]}, {"b": [1]}, ["1 of 2 variables", "1 missing (a)"]),
        (FIVE, {}, ["0 of 5 variables", "5 missing", "a, b, c", "2 more"]),
        ({"a": [768, 64], "b": [4]}, {"a": (768, 8), "b": (4,)}, ["1 of 2 variables", "a is [768, 8]", "[768, 64]"]),
        ({"a": [1], "b": [2], "c": [3]}, {"b": [5], "c": [3]}, ["1 of 3 variables", "1 missing (a)", "b is [5]"]),
    ],
)
def test_variables_that_do_not_match_are_counted_and_named(expected, found, facts):
    assert_mentions(parameters.describe_mismatch(expected, found), *facts)


def test_additional_variables_are_not_a_mismatch():
    assert parameters.describe_mismatch({"a": [2, 3]}, {"a": (2, 3), "global_step": ()}) is None
