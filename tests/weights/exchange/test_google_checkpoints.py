"""Fine-tuned checkpoints of Google's adapter-bert and BERT become packs."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import ImportedTask, google_checkpoints
from adapter_layers import AdapterConfig
from tests.helpers import TINY, assert_mentions, make_pack, message_of, tiny_config, write_bert, write_file

GOOGLE_ADAPTER = AdapterConfig(size=4, init_scale=1e-3)


def write_trained(folder, adapter_fn=None, mode="adapter", labels=2, heads=("output",)) -> str:
    """Write a checkpoint as Google's scripts do: all of BERT, a head, Adam's slots, the step."""

    def add() -> None:
        for head in heads:
            tf.get_variable(f"{head}_weights", [labels, TINY["hidden_size"]])
            tf.get_variable(f"{head}_bias", [labels])
        variables = {variable.op.name: variable for variable in tf.trainable_variables()}
        for name in optimization.trainable_names(list(variables), mode):
            for slot in ("adam_m", "adam_v"):
                tf.get_variable(f"{name}/{slot}", variables[name].shape.as_list(), trainable=False)
        step = tf.constant_initializer(1340)
        tf.get_variable("global_step", [], tf.int64, initializer=step, trainable=False)

    return write_bert(str(folder), tiny_config(), adapter_fn, extra=add)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a checkpoint with `write_trained`, each kind once; return its prefix. Read only."""
    known = {}

    def write(**kind) -> str:
        key = str(sorted(kind.items()))
        if key not in known:
            known[key] = write_trained(tmp_path_factory.mktemp("trained"), **kind)
        return known[key]

    return write


@pytest.fixture
def take(tmp_path):
    """Read a checkpoint for a base with these changes of the configuration."""

    def read(prefix, labels=("0", "1"), **config) -> packs.Pack:
        config_file = write_file(tmp_path, "bert_config.json", tiny_config(**config).to_json_string())
        base = bases.Base(config_file, prefix, os.path.join(os.path.dirname(prefix), "vocab.txt"))
        return google_checkpoints.read(prefix, base, ImportedTask("CoLA", labels, 16, "2024-05-06T07:08:09Z"))

    return read


def assert_has_values_of(pack: packs.Pack, prefix: str) -> None:
    reader = tf.train.load_checkpoint(prefix)
    assert pack.tensors
    for name, value in pack.tensors.items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))


@pytest.mark.parametrize(
    "adapter",
    [
        GOOGLE_ADAPTER,
        AdapterConfig(size=7, init_scale=1e-3, layers=(1,), placement="attention"),
        AdapterConfig(size=4, init_scale=1e-3, placement="feedforward"),
    ],
)
def test_a_checkpoint_with_adapters_becomes_a_pack_for_its_own_base(written, take, tmp_path, adapter):
    prefix = written(adapter_fn=adapter)
    pack = take(prefix)
    assert (pack.config.tuning_mode, pack.config.adapter_config) == ("adapter", adapter)
    assert (pack.config.step, pack.config.labels) == (1340, ["0", "1"])
    assert_has_values_of(pack, prefix)
    # The checkpoint contains all of BERT, so it is also a base, with the same frozen weights.
    packs.check_base(pack, "pack", bases.Base.find(os.path.dirname(prefix)).digests, "base")
    packs.write(str(tmp_path / "pack.safetensors"), pack)
    assert packs.read(str(tmp_path / "pack.safetensors")).fingerprint == pack.fingerprint


def test_adapters_that_google_does_not_have_are_not_exported(tmp_path):
    """A parallel adapter has the variables of the default one: Google's code would compute something else."""
    pack = make_pack(adapter={"size": 4, "connection": "parallel"})
    message = message_of(google_checkpoints.export, pack, {}, str(tmp_path / "model.ckpt"))
    assert_mentions(message, "CoLA", "{'connection': 'parallel'}", "--format=pack")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("labels", [(), ("only",)])
def test_a_checkpoint_without_adapters_becomes_a_full_pack(written, take, labels):
    pack = take(written(mode="full", labels=1), labels)
    assert (pack.config.tuning_mode, pack.config.adapter, pack.config.base) == ("full", None, None)
    assert pack.config.head == ("classification" if labels else "regression")
    assert len(pack.tensors) == 39 + 2


@pytest.mark.parametrize("adapter", [GOOGLE_ADAPTER, None], ids=["adapters", "full"])
def test_the_variables_of_a_squad_head_are_recognized(written, take, adapter):
    mode = "adapter" if adapter else "full"
    prefix = written(adapter_fn=adapter, mode=mode, heads=("cls/squad/output",))
    pack = take(prefix, None)
    assert (pack.config.head, pack.config.labels) == ("span", [])
    assert (pack.config.tuning_mode, pack.config.adapter_config) == (mode, adapter)
    assert pack.tensors["cls/squad/output_weights"].shape == (2, TINY["hidden_size"])
    assert_has_values_of(pack, prefix)


@pytest.mark.parametrize(
    ("kind", "asked", "facts"),
    [
        ({}, {"labels": ["a", "b", "c"]}, ["2 classes", "3 labels", "a, b, c"]),
        ({}, {"labels": None}, ["CoLA", "--labels=a,b"]),
        ({"heads": ("cls/squad/output",)}, {}, ["cls/squad/output_weights", "2 labels", "0, 1"]),
        ({"heads": ("cls/seq_relationship/output",)}, {}, ["cls/squad/output_weights", "cls/seq_relationship/output"]),
        ({"heads": ()}, {}, ["output_weights", "not fine-tuned"]),
        ({"heads": ("output", "cls/squad/output")}, {}, ["one head", "output_weights, cls/squad/output_weights"]),
        ({"heads": ("cls/squad/output",), "labels": 3}, {"labels": ()}, ["[3, 16]", "[2, 16]"]),
        ({"mode": "full"}, {}, ["adapters, LayerNorms and head", "bert/embeddings/word_embeddings"]),
        ({}, {"num_hidden_layers": 1}, ["1 layers"]),
        ({"adapter_fn": None, "mode": "full"}, {"num_hidden_layers": 1}, ["bert/encoder/layer_1/"]),
        ({}, {"intermediate_size": 64}, ["intermediate/dense/kernel", "[16, 64]"]),
    ],
)
def test_a_checkpoint_that_does_not_match_is_rejected(written, take, kind, asked, facts):
    prefix = written(**dict({"adapter_fn": GOOGLE_ADAPTER}, **kind))
    assert_mentions(message_of(take, prefix, **asked), *facts)


@pytest.mark.parametrize("shape", [[], [2], [10**6, 0], [2, 15], [2, 16, 1]], ids=str)
def test_a_head_of_another_shape_is_rejected_before_labels_are_made(take, tmp_path, shape):
    prefix = write_bert(str(tmp_path / "bert"), tiny_config(), extra=lambda: tf.get_variable("output_weights", shape))
    assert_mentions(message_of(take, prefix), prefix, f"output_weights is {shape}")
