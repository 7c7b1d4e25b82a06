"""Parameters are counted before a weight exists, and the counts are those of the paper's arithmetic."""

from __future__ import annotations

import re

import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_layers import AdapterConfig
from tests.helpers import tiny_config

SIZES = {
    "base": {"layers": 12, "d": 768, "heads": 12, "ff": 3072},
    "large": {"layers": 24, "d": 1024, "heads": 16, "ff": 4096},
}
VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2


def config_of(size: str) -> modeling.BertConfig:
    sizes = SIZES[size]
    return modeling.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes["d"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ff"],
        max_position_embeddings=POSITIONS,
        type_vocab_size=SEGMENTS,
    )


@pytest.fixture(scope="module")
def shapes_of():
    """Shapes of BERT-base or -large with or without adapters of size 64; each size is built once."""
    built = {}

    def get(size: str, with_adapters: bool):
        if size not in built:
            built[size] = parameters.model_shapes(config_of(size), ClassificationHead(2), AdapterConfig(size=64))
        if with_adapters:
            return built[size]
        # A plain BERT is the same without its adapters, see test_adapters_change_nothing_else.
        return {name: shape for name, shape in built[size].items() if "/adapters/" not in name}

    return get


def closed_form(size: str, classes: int = 2, m: int = 64) -> dict:
    """The parameters of each part, from its formula."""
    layers, d, ff = SIZES[size]["layers"], SIZES[size]["d"], SIZES[size]["ff"]
    return {
        "embeddings": (VOCABULARY + POSITIONS + SEGMENTS) * d,
        "encoder layer": 4 * (d * d + d) + (d * ff + ff) + (ff * d + d),
        "adapters": layers * 2 * (2 * m * d + d + m),
        "LayerNorm": (2 * layers + 1) * 2 * d,
        "pooler": d * d + d,
        "head": classes * d + classes,
        "layers": layers,
        "layer's LayerNorms": 2 * 2 * d,
    }


def plain_total(part: dict) -> int:
    encoder = part["layers"] * part["encoder layer"]
    return part["embeddings"] + encoder + part["LayerNorm"] + part["pooler"] + part["head"]


def trained_count(shapes, mode: str, top_layers: int = None) -> int:
    return parameters.count(shapes, optimization.trainable_names(list(shapes), mode, top_layers=top_layers))


# ------------------------------------------------------------------------------------------ counts


def test_bert_base_with_adapters_of_64_has_the_known_counts(shapes_of):
    shapes = shapes_of("base", True)
    by_group = {}
    for name in shapes:
        group = parameters.group_of(name)
        by_group[group] = by_group.get(group, 0) + parameters.count(shapes, [name])
    assert parameters.count(shapes) == 111863042
    assert by_group["adapters"] == 2379264
    assert by_group["LayerNorm"] == 38400
    assert by_group["head"] == 1538
    assert "other" not in by_group
    assert trained_count(shapes, "adapter") == 2419202
    assert trained_count(shapes_of("base", False), "layer_norm") == 39938
    # What Google's release of BERT-base is known for, head left out.
    assert parameters.count(shapes_of("base", False)) - 1538 == 109482240


@pytest.mark.parametrize("size", ["base", "large"])
def test_counts_in_every_mode_follow_the_formulas(shapes_of, size):
    part = closed_form(size)
    adapted, plain = shapes_of(size, True), shapes_of(size, False)
    assert parameters.count(plain) == plain_total(part)
    assert parameters.count(adapted) == plain_total(part) + part["adapters"]
    assert trained_count(adapted, "adapter") == part["adapters"] + part["LayerNorm"] + part["head"]
    assert trained_count(plain, "full") == plain_total(part)
    assert trained_count(plain, "layer_norm") == part["LayerNorm"] + part["head"]
    assert trained_count(plain, "head") == part["head"]
    layer = part["encoder layer"] + part["layer's LayerNorms"]
    for count in (1, 5, part["layers"] - 1):
        assert trained_count(plain, "top_layers", count) == count * layer + part["pooler"] + part["head"]
    assert trained_count(plain, "top_layers", part["layers"]) == plain_total(part)


def test_bert_large_has_the_known_counts(shapes_of):
    assert parameters.count(shapes_of("large", False)) - (2 * 1024 + 2) == 335141888
    assert trained_count(shapes_of("large", True), "adapter") == 6343680 + 100352 + 2050


@pytest.mark.parametrize("m", [1, 8, 256])
@pytest.mark.parametrize("placement, per_layer", [("both", 2), ("attention", 1), ("feedforward", 1)])
def test_an_adapter_has_2md_plus_d_plus_m_parameters_wherever_it_stands(m, placement, per_layer):
    d = 16
    adapter_fn = AdapterConfig(size=m, placement=placement, layers=(1,))
    shapes = parameters.model_shapes(tiny_config(), ClassificationHead(3), adapter_fn)
    found = [name for name in shapes if parameters.group_of(name) == "adapters"]
    assert parameters.count(shapes, found) == per_layer * (2 * m * d + d + m)
    assert all("layer_1/" in name for name in found)
    assert shapes["output_weights"] == (3, 16)
    assert shapes["output_bias"] == (3,)


def test_adapters_change_nothing_else():
    adapted = parameters.model_shapes(tiny_config(), ClassificationHead(2), AdapterConfig(size=4))
    plain = parameters.model_shapes(tiny_config(), ClassificationHead(2), None)
    assert list(plain.items()) == [(name, shape) for name, shape in adapted.items() if "/adapters/" not in name]
    assert len(adapted) == len(plain) + 2 * 8


# ----------------------------------------------------------------------------------- without weights


def test_counting_takes_no_memory_for_the_weights():
    """No machine has the six terabytes that these weights would take."""
    config = tiny_config(vocab_size=2 * 10**9, hidden_size=768, num_hidden_layers=1)
    shapes = parameters.model_shapes(config, ClassificationHead(2), None)
    assert shapes["bert/embeddings/word_embeddings"] == (2 * 10**9, 768)
    assert parameters.count(shapes) > 1536 * 10**9


def test_counting_leaves_the_caller_s_graph_alone():
    with tf.Graph().as_default() as graph:
        parameters.model_shapes(tiny_config(), ClassificationHead(2), None)
        assert graph.get_operations() == []


def test_shapes_are_those_of_the_model_in_the_order_of_its_graph():
    shapes = parameters.model_shapes(tiny_config(), ClassificationHead(2), AdapterConfig(size=4))
    with tf.Graph().as_default():
        model = modeling.BertModel(
            tiny_config(), True, tf.zeros([3, 9], tf.int32), scope="bert", adapter_fn=AdapterConfig(size=4)
        )
        ClassificationHead(2).build(model, {"label_ids": tf.zeros([3], tf.int32)}, True)
        expected = [(variable.name[:-2], tuple(variable.shape.as_list())) for variable in tf.trainable_variables()]
    assert list(shapes.items()) == expected
    assert shapes["bert/encoder/layer_1/output/adapters/weights2"] == (4, 16)


# ------------------------------------------------------------------------------------------- table


def parse(lines: list) -> list:
    """The rows of a table: (group, tensors, parameters, state, per cent)."""
    rows = []
    for line in lines[1:-2]:
        group, tensors, count, state, per_cent = line.split()
        rows.append((group, int(tensors), int(count.replace(",", "")), state, float(per_cent)))
    return rows


def test_the_table_of_adapter_mode_shows_each_group_and_the_totals(shapes_of):
    shapes = shapes_of("base", True)
    lines = parameters.parameter_table(shapes, optimization.trainable_names(list(shapes), "adapter"))
    assert lines[0].split() == ["group", "tensors", "parameters", "per", "cent"]
    assert [row[:4] for row in parse(lines)] == [
        ("embeddings", 3, 23835648, "frozen"),
        ("encoder", 12 * 12, 85017600, "frozen"),
        ("adapters", 12 * 8, 2379264, "trained"),
        ("LayerNorm", 12 * 4 + 2, 38400, "trained"),
        ("pooler", 2, 590592, "frozen"),
        ("head", 2, 1538, "trained"),
    ]
    assert lines[-2:] == [
        "***** Total Parameters = 111863042 *****",
        "***** Total Trainable Parameters = 2419202 *****",
    ]
    per_cent = {row[0]: row[4] for row in parse(lines)}
    assert per_cent["adapters"] == pytest.approx(100 * 2379264 / 111863042, abs=5e-4)
    assert len({len(line) for line in lines[:-2]}) == 1


def test_a_group_that_is_trained_in_part_has_two_rows(shapes_of):
    shapes = shapes_of("base", False)
    trained = optimization.trainable_names(list(shapes), "top_layers", top_layers=2)
    rows = [row[:4] for row in parse(parameters.parameter_table(shapes, trained))]
    layer = 7084800  # 4 · (768² + 768) + 2 · 768 · 3072 + 3072 + 768
    assert rows == [
        ("embeddings", 3, 23835648, "frozen"),
        ("encoder", 24, 2 * layer, "trained"),
        ("encoder", 120, 10 * layer, "frozen"),
        ("LayerNorm", 8, 2 * 3072, "trained"),
        ("LayerNorm", 42, 38400 - 2 * 3072, "frozen"),
        ("pooler", 2, 590592, "trained"),
        ("head", 2, 1538, "trained"),
    ]


@pytest.mark.parametrize(
    "mode, top_layers",
    [("adapter", None), ("full", None), ("top_layers", 3), ("layer_norm", None), ("head", None)],
)
def test_the_rows_of_a_table_add_up(shapes_of, mode, top_layers):
    shapes = shapes_of("base", mode == "adapter")
    trained = optimization.trainable_names(list(shapes), mode, top_layers=top_layers)
    lines = parameters.parameter_table(shapes, trained)
    rows = parse(lines)
    assert sum(row[4] for row in rows) == pytest.approx(100.0, abs=0.01)
    assert sum(row[1] for row in rows) == len(shapes)
    total, total_trained = (int(re.match(r"\*{5} Total .* = (\d+) \*{5}$", line).group(1)) for line in lines[-2:])
    assert sum(row[2] for row in rows) == total
    assert sum(row[2] for row in rows if row[3] == "trained") == total_trained == parameters.count(shapes, trained)


def test_a_variable_of_no_known_part_is_shown_and_counted():
    shapes = {"bert/embeddings/word_embeddings": (10, 2), "my/own/kernel": (5, 5), "my/own/scale": ()}
    lines = parameters.parameter_table(shapes, ["my/own/kernel"])
    assert [row[:4] for row in parse(lines)] == [
        ("embeddings", 1, 20, "frozen"),
        ("other", 1, 25, "trained"),
        ("other", 1, 1, "frozen"),
    ]
    assert lines[-2:] == ["***** Total Parameters = 46 *****", "***** Total Trainable Parameters = 25 *****"]


@pytest.mark.parametrize(
    "name, group",
    [
        ("bert/embeddings/word_embeddings", "embeddings"),
        ("bert/embeddings/LayerNorm/gamma", "LayerNorm"),
        ("bert/encoder/layer_11/output/LayerNorm/beta", "LayerNorm"),
        ("bert/encoder/layer_0/attention/output/dense/kernel", "encoder"),
        ("bert/encoder/layer_0/attention/output/adapters/weights1", "adapters"),
        ("bert/pooler/dense/bias", "pooler"),
        ("output_bias", "head"),
        ("cls/squad/output_weights", "head"),
        ("cls/predictions/transform/dense/kernel", "other"),
    ],
)
def test_a_name_says_which_part_it_belongs_to(name, group):
    assert parameters.group_of(name) == group


def test_large_counts_do_not_overflow():
    assert parameters.count({"a": (70000, 70000), "b": (2,)}) == 4900000002
