"""The trainable variables of each tuning mode, by name."""

from __future__ import annotations

import pytest

from adapter_bert.model.tuning_modes import layer_index, names_in_bert, notebook_names, trainable_names
from tests import reference_model
from tests.helpers import TINY, assert_mentions, message_of

ADAPTER = {"size": 4}
HEAD = reference_model.head_shapes(TINY, "classification", ["0", "1"])
# Twelve layers: layer_1 must not match layer_10.
DEEP = dict(TINY, num_hidden_layers=12)


def model_names(architecture=TINY, with_adapters=True, head=HEAD) -> list:
    adapters = reference_model.adapter_shapes(architecture, ADAPTER) if with_adapters else {}
    return [*reference_model.bert_shapes(architecture), *adapters, *head]


@pytest.mark.parametrize("kind", ["classification", "regression", "span"])
@pytest.mark.parametrize(
    "mode, top_layers", [("adapter", None), ("full", None), ("layer_norm", None), ("head", None)]
    + [("top_layers", count) for count in (1, 2, 11, 12)],
)  # fmt: skip
def test_a_mode_trains_its_variables_in_the_given_order(mode, top_layers, kind):
    head = reference_model.head_shapes(DEEP, kind, ["0", "1"])
    names = model_names(DEEP, mode == "adapter", head)
    trained = trainable_names(names, mode, top_layers=top_layers)
    assert set(trained) == set(reference_model.trained_shapes(DEEP, mode, head, ADAPTER, top_layers))
    assert trained == [name for name in names if name in trained]
    assert trainable_names(names[::-1], mode, top_layers=top_layers) == trained[::-1]


def test_layer_norm_and_head_modes_freeze_adapters_and_full_mode_trains_them():
    names = model_names()
    for mode in ("layer_norm", "head"):
        assert trainable_names(names, mode) == trainable_names(model_names(with_adapters=False), mode)
    assert trainable_names(names, "full") == names


def test_layer_norms_below_the_adapters_can_be_frozen():
    names = [name for name in model_names(DEEP) if "adapters" not in name or layer_index(name) >= 10]
    trained = trainable_names(names, "adapter", frozen_layers=10)
    frozen = set(trainable_names(names, "adapter")) - set(trained)
    assert len(frozen) == 2 + 10 * 4 and {layer_index(name) for name in frozen} == {None, *range(10)}
    assert all("LayerNorm" in name for name in frozen)
    for mode in ("layer_norm", "head", "full"):
        assert trainable_names(names, mode, frozen_layers=10) == trainable_names(names, mode)


@pytest.mark.parametrize("mode", ["adapter", "layer_norm", "head"])
@pytest.mark.parametrize(
    "frozen",
    [
        "cls/predictions/transform/dense/kernel",
        "bert/my_output_weights",
        "output_weights_of_another_task",
        "bert/output_bias/kernel",
        "bert/LayerNormalisation/gamma",
        # Slots of the optimizer.
        "bert/encoder/layer_0/output/adapters/weights1/adam_m",
        "bert/encoder/layer_0/output/LayerNorm/gamma/adam_v",
        "output_weights/adam_m",
    ],
)
def test_a_variable_with_a_similar_name_stays_frozen(frozen, mode):
    assert frozen not in trainable_names([*model_names(), frozen], mode)


def test_numbered_layer_norms_of_a_notebook_are_trained():
    numbered = "bert/encoder/layer_0/LayerNorm_1/gamma"
    assert numbered in trainable_names([*model_names(), numbered], "layer_norm")


@pytest.mark.parametrize(
    "mode, arguments, facts",
    [
        ("top_layers", {"top_layers": 3}, ["3", "2"]),
        ("top_layers", {}, ["'top_layers'", "at least 1", "None"]),
        ("top_layers", {"top_layers": 0}, ["'top_layers'", "at least 1", "0"]),
        ("full", {"top_layers": 2}, ["'top_layers'", "(2)", "'full'"]),
        ("adapter", {}, ["no adapters", "full, top_layers, layer_norm, head"]),
        ("adapters", {}, ["'adapters'", "Did you mean 'adapter'?", "adapter, full, top_layers, layer_norm, head"]),
        ("FULL", {}, ["'FULL'", "Did you mean 'full'?"]),
    ],
)
def test_an_invalid_mode_is_an_error(mode, arguments, facts):
    names = model_names(with_adapters=False)
    assert_mentions(message_of(trainable_names, names, mode, **arguments), *facts)


# --------------------------------------------------------------------------------- networks of notebooks


@pytest.mark.parametrize("scope", ["bert", "", "my_encoder", "module/bert", "tower_0/text"])
def test_bert_is_found_in_any_scope_and_nothing_else_is(scope):
    bert = [name.replace("bert", scope, 1).lstrip("/") for name in model_names(head=())]
    others = [
        "output_weights",
        "dense/kernel",
        "top/encoder/layer_0/attention/self/query/kernel",
        "my/pooler/dense/kernel",
        "cls/predictions/transform/LayerNorm/beta",
        f"{scope}/crf/transitions".lstrip("/"),
    ]
    assert names_in_bert([*bert, *others]) == bert


@pytest.mark.parametrize(
    "mode, top_layers", [("adapter", None), ("layer_norm", None), ("head", None), ("top_layers", 1)]
)
def test_everything_outside_bert_trains_and_inside_the_mode_decides(mode, top_layers):
    names = [*model_names(with_adapters=mode == "adapter"), "dense/kernel", "crf/transitions"]
    found = notebook_names(names, names_in_bert(names), mode, top_layers)
    assert found == [*trainable_names(names[:-2], mode, top_layers), "dense/kernel", "crf/transitions"]


def test_declared_variables_of_bert_train():
    names, own = model_names(), "bert/encoder/layer_0/output/my_adapter/kernel"
    assert notebook_names([own, *names], names_in_bert([own, *names]), "adapter") == trainable_names(names, "adapter")
    assert own in notebook_names([own, *names], names_in_bert([own, *names]), "adapter", declared=[own])
