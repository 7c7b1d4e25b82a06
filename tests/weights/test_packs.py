"""A pack holds exactly what a task trained, is written atomically, and belongs to one base."""

from __future__ import annotations

import dataclasses
import json
import os

import hypothesis
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import strategies as st

from adapter_bert.weights import fingerprints, packs
from adapter_layers import AdapterConfig
from tests import reference_model
from tests.helpers import assert_mentions, make_pack, message_of, tiny_config
from tests.reference_model import MODES
from tests.weights.pack_files import (
    FUZZ,
    ZEROS,
    assert_same,
    nudged,
    reference_shapes,
    smallest,
    split,
    with_config,
    with_tensors,
    write_file,
)

pytestmark = pytest.mark.smoke

UNKNOWN = {"metrics": {}, "loss": None, "collapsed": None, "seed": None, "step": 0, "training": {}, "versions": {}}
# Changes of the configuration.
VARIANTS = {
    "adapter": {},
    "adapter_upper_layer": {"adapter": {"size": 3, "layers": [1]}},
    "adapter_attention": {"adapter": {"size": 3, "placement": "attention"}},
    "adapter_feedforward_lower_layer": {
        "adapter": {"size": 1, "layers": [0], "placement": "feedforward", "activation": "relu", "init_scale": 0.0}
    },
    "adapter_layer_norm_deep": {"adapter": {"size": 3, "norm": "layer", "depth": 2, "connection": "multiply"}},
    "adapter_batch_norm": {"adapter": {"size": 3, "norm": "batch", "connection": "parallel"}},
    "full": {"mode": "full"},
    "top_layer": {"mode": "top_layers"},
    "all_top_layers": {"mode": "top_layers", "tune_top_layers": 2},
    "layer_norm": {"mode": "layer_norm"},
    "head": {"mode": "head"},
    "regression": {"head": "regression"},
    "spans": {"head": "span"},
    "three_classes": {"mode": "head", "labels": ["entailment", "neutral", "contradiction"]},
    "unknown_training": dict(UNKNOWN, origin={"note": "test"}),
}


# ------------------------------------------------------------------------------------------- round trip, format


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_pack_is_read_as_it_was_written_and_holds_the_variables_of_its_mode(path, tmp_path, variant):
    pack = make_pack(**VARIANTS[variant])
    packs.write(path, pack)
    assert_same(packs.read(path), pack)
    assert packs.read_config(path) == pack.config
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]
    with open(path, "rb") as file:
        assert packs.serialise(packs.read(path)) == file.read()
    assert pack.shapes() == reference_shapes(pack.config)
    base = reference_model.bert_shapes(pack.config.architecture)
    assert sorted(pack.config.frozen_names()) == sorted(set(base) - set(pack.tensors))
    assert pack.config.make_head().kind == pack.config.head
    assert (pack.config.adapter_config is None) == (pack.config.adapter is None)


def test_the_bytes_of_a_pack_do_not_depend_on_the_layout_in_memory(pack, content):
    backwards = {name: np.asfortranarray(pack.tensors[name]) for name in reversed(list(pack.tensors))}
    strided = {name: np.stack([tensor, tensor], axis=-1)[..., 0] for name, tensor in pack.tensors.items()}
    for tensors in (backwards, strided):
        assert packs.serialise(packs.Pack(pack.config, tensors)) == content


def test_any_safetensors_reader_reads_a_pack_of_json_and_numbers_only(path, pack, content):
    packs.write(path, pack)
    with safetensors.safe_open(path, framework="np") as reader:
        assert list(reader.metadata()) == ["adapter_config.json"]
        values = json.loads(reader.metadata()["adapter_config.json"])
        found = {name: reader.get_tensor(name) for name in list(reader.keys())}
    assert_same(packs.Pack(pack.config, found), pack)
    assert (values["format"], values["task"]) == ("adapter-bert pack 1", pack.config.task)
    assert set(values) == {field.name for field in dataclasses.fields(pack.config)} | {"format", "checksum"}
    assert len(split(content)[2]) == 4 * pack.num_parameters


def test_any_change_of_a_number_changes_bytes_and_fingerprint(pack, content):
    assert pack.tensors
    for name in pack.tensors:
        other = packs.Pack(pack.config, nudged(pack.tensors, name))
        assert packs.serialise(other) != content
        assert other.fingerprint != pack.fingerprint
    renamed = dataclasses.replace(pack, config=dataclasses.replace(pack.config, task="RTE", seed=9))
    assert renamed.fingerprint == pack.fingerprint


TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)


@FUZZ
@hypothesis.example(["", " "])
@hypothesis.example([ZEROS, "f" * 64])
@hypothesis.example([packs.METADATA_KEY, "__metadata__"])
@hypothesis.example(["é", "e\u0301"])
@hypothesis.given(st.lists(TEXTS, min_size=2, max_size=3, unique=True))
def test_labels_and_names_of_any_script_survive(path, words):
    pack = smallest(task=f"Aufgabe {words[0]}", labels=words, training={"data_dir": words[1]}, metrics={words[0]: 1.0})
    packs.write(path, pack)
    assert_same(packs.read(path), pack)


def test_non_finite_scores_are_read_as_none_and_the_order_of_metrics_is_kept(path):
    packs.write(path, smallest(loss=float("nan"), metrics={"f1": float("inf"), "accuracy": 0.5}))
    config = packs.read_config(path)
    assert (config.loss, config.metrics, config.primary_metric) == (None, {"f1": None, "accuracy": 0.5}, "f1")
    assert smallest(metrics={}).config.primary_metric is None


def test_a_pack_written_by_another_tool_is_read_with_every_bit(path, pack, content):
    extremes = [0.0, -0.0, 1e-45, -3.4028234e38]
    extreme = {name: np.resize(np.float32(extremes), tensor.shape) for name, tensor in pack.tensors.items()}
    for data, tensors in ((with_config(content), pack.tensors), (with_tensors(content, extreme), extreme)):
        assert data != content
        write_file(path, data)
        assert_same(packs.read(path), packs.Pack(pack.config, tensors))


def test_a_pack_for_bert_base_has_the_size_of_the_paper(path):
    layers, d, m = 12, 768, 64
    expected = 2 * layers * (2 * m * d + d + m) + (2 * layers + 1) * 2 * d + 2 * (d + 1)
    architecture = tiny_config(
        vocab_size=30522, hidden_size=d, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=4 * d
    ).to_dict()
    packs.write(path, make_pack(architecture=architecture, adapter={"size": m}))
    assert packs.read(path).num_parameters == expected == 2419202
    assert 4 * expected < os.path.getsize(path) < 4 * expected + 130000


# ------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"step": -1}, ["step", -1]),
        ({"max_seq_length": 0}, ["max_seq_length", "[1, 32]"]),
        ({"max_seq_length": 33}, ["max_seq_length", 33]),
        ({"metrics": {"f1": "high"}}, ["metrics", "high"]),
        ({"loss": "low"}, ["loss", "low"]),
        ({"task": "\udcff"}, ["utf-8"]),
    ],
    ids=str,
)
def test_an_invalid_configuration_is_not_written(path, changes, facts):
    assert_mentions(message_of(packs.write, path, make_pack(**changes)), packs.METADATA_KEY, *facts)
    assert not os.path.exists(path)


def test_an_invalid_pack_does_not_replace_another(path, tmp_path, pack):
    write_file(path, b"older")
    bad = dict(pack.tensors, output_bias=np.array([1, np.nan], np.float32))
    assert_mentions(message_of(packs.write, path, packs.Pack(pack.config, bad)), "1 of 2 values", "output_bias")
    with open(path, "rb") as file:
        assert file.read() == b"older"
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]


def test_a_pack_is_found_by_its_path_or_the_folder_of_its_run(tmp_path, pack):
    inside = str(tmp_path / packs.FILE_NAME)
    assert_mentions(message_of(packs.find, str(tmp_path)), tmp_path, packs.FILE_NAME)
    packs.write(inside, pack)
    assert packs.find(str(tmp_path)) == packs.find(inside) == inside
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    for missing in (str(tmp_path / "nothing.safetensors"), str(folder)):
        for function in (packs.read, packs.read_config, packs.find):
            message_of(function, missing)


# ------------------------------------------------------------------------------------------- other models and bases


def test_adapters_are_compared_except_for_their_initialisation():
    pack = make_pack()
    own = pack.config.adapter_config
    packs.check_adapter(pack, "mine", dataclasses.replace(own, init_scale=0.5))
    for changes in ({"activation": "relu"}, {"norm": "layer"}, {"depth": 2}, {"connection": "parallel"}):
        message = message_of(packs.check_adapter, pack, "mine", dataclasses.replace(own, **changes))
        assert_mentions(message, "mine", *[f"{name!r}: {value!r}" for name, value in changes.items()])
    assert_mentions(message_of(packs.check_adapter, pack, "mine", None), "mine", "gelu")
    packs.check_adapter(make_pack(mode="head"), "mine", own)  # it has no adapters; those of the model may be new


def test_a_description_has_fields_of_variants_only_where_they_matter():
    """Earlier versions read packs of the default adapter, and their packs are read."""
    fields = {"size": 64, "activation": "gelu", "init_scale": 1e-2, "layers": None, "placement": "both"}
    assert list(packs.describe_adapter(AdapterConfig()).items()) == list(fields.items())
    assert AdapterConfig(**fields) == AdapterConfig()
    variant = AdapterConfig(norm="batch", depth=2, layers=(0, 1))
    described = packs.describe_adapter(variant)
    assert described == dict(fields, layers=[0, 1], norm="batch", depth=2)
    assert AdapterConfig(**described) == variant


@pytest.fixture(scope="module")
def base_tensors(base) -> dict:
    return base.tensors()


@pytest.mark.parametrize("mode, num_replaced", zip(MODES, (10, 39, 18, 10, 0)))
def test_a_pack_belongs_to_any_base_with_its_frozen_variables(base, base_tensors, mode, num_replaced):
    pack = make_pack(base, mode=mode)
    replaced = [name for name in base_tensors if name in reference_shapes(pack.config)]
    assert len(replaced) == num_replaced and len(base_tensors) == 39
    packs.check_base(pack, "p", base.digests, "b")
    for name in base_tensors:
        other = dict(base.digests, **{name: fingerprints.of_tensor(nudged(base_tensors, name)[name])})
        if name in replaced:
            packs.check_base(pack, "p", other, "b")
        else:
            message = message_of(packs.check_base, pack, "cola.safetensors", other, "other/base")
            assert_mentions(message, "cola.safetensors", "CoLA", "other/base", pack.config.base)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "full"])
def test_a_base_with_fewer_or_more_variables_is_rejected(base, mode):
    name, new = "bert/embeddings/word_embeddings", "bert/encoder/layer_2/output/dense/bias"
    incomplete = {key: digest for key, digest in base.digests.items() if key != name}
    shallow = {key: digest for key, digest in base.digests.items() if "layer_1" not in key}
    deep = dict(base.digests, **{new: "sha256:0"})
    for digests, *facts in ((incomplete, name), (shallow, "2 layers", 1), (deep, "2 layers", 3)):
        assert_mentions(message_of(packs.check_base, make_pack(base, mode=mode), "p", digests, "other"), *facts)


def test_only_a_pack_without_frozen_variables_needs_no_base(base):
    packs.check_base(make_pack(base, mode="full"), "p", {}, "nothing")
    for mode, claimed in (("adapter", None), ("adapter", ""), ("adapter", "sha256:0"), ("full", "sha256:0")):
        pack = make_pack(base, mode=mode, base=claimed)
        assert "another base" in message_of(packs.check_base, pack, "p", base.digests, "b")


def test_a_fingerprint_depends_on_name_type_shape_and_value_but_not_on_order():
    ones = np.ones([2, 3], np.float32)
    others = [ones.astype(np.float64), ones.T, ones.reshape(6), ones[:1], ones * 2, np.zeros([2, 3], np.float32)]
    assert fingerprints.of_tensor(ones) == fingerprints.of_tensor(np.asfortranarray(ones))
    assert fingerprints.of_tensor(ones) == fingerprints.of_rows(list(ones))
    assert len({fingerprints.of_tensor(tensor) for tensor in [ones] + others}) == 1 + len(others)
    assert fingerprints.combine({"a": "1", "b": "2"}) == fingerprints.combine({"b": "2", "a": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}) != fingerprints.combine({"a": "2", "b": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}, ["a"]) == fingerprints.combine({"a": "1"})
