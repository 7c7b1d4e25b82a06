"""A pack holds exactly what a task trained; a damaged, foreign or inconsistent one is refused in one sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.weights import bases, fingerprints, packs
from tests.helpers import ROOT, message_of, tiny_config, write_bert

MODES = ("adapter", "full", "top_layers", "layer_norm", "head")
BASE = tiny_config(
    vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
).to_dict()
LARGE = dict(BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
# So small that reading one takes about a millisecond: what thousands of damaged copies are made of.
SMALLEST = tiny_config(
    vocab_size=5, hidden_size=4, num_hidden_layers=1, intermediate_size=4, max_position_embeddings=4
).to_dict()
ZEROS = "0" * 64


# ------------------------------------------------------------- what a pack should hold, worked out anew


def bert_shapes(architecture) -> dict:
    """Name -> shape of BERT's variables, as Google's checkpoints have them."""
    d, inner = architecture["hidden_size"], architecture["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (architecture["vocab_size"], d),
        "bert/embeddings/token_type_embeddings": (architecture["type_vocab_size"], d),
        "bert/embeddings/position_embeddings": (architecture["max_position_embeddings"], d),
    }
    dense = {"bert/pooler/dense": (d, d)}
    norms = ["bert/embeddings"]
    for layer in (f"bert/encoder/layer_{number}" for number in range(architecture["num_hidden_layers"])):
        dense.update({f"{layer}/attention/self/{part}": (d, d) for part in ("query", "key", "value")})
        dense[f"{layer}/attention/output/dense"] = (d, d)
        dense[f"{layer}/intermediate/dense"] = (d, inner)
        dense[f"{layer}/output/dense"] = (inner, d)
        norms += [f"{layer}/attention/output", f"{layer}/output"]
    for name, shape in dense.items():
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = shape, shape[1:]
    for name in norms:
        shapes[f"{name}/LayerNorm/beta"] = shapes[f"{name}/LayerNorm/gamma"] = (d,)
    return shapes


def adapter_shapes(architecture, adapter) -> dict:
    d, m = architecture["hidden_size"], adapter["size"]
    layers = adapter.get("layers")
    layers = range(architecture["num_hidden_layers"]) if layers is None else np.atleast_1d(layers)
    places = {"attention": ["attention/output"], "feedforward": ["output"], "both": ["attention/output", "output"]}
    return {
        f"bert/encoder/layer_{layer}/{place}/adapters/{name}": shape
        for layer in layers
        for place in places[adapter.get("placement", "both")]
        for name, shape in {"weights1": (d, m), "biases1": (1, m), "weights2": (m, d), "biases2": (1, d)}.items()
    }


def trained_shapes(config: packs.PackConfig) -> dict:
    """Name -> shape of what a pack should hold: the paper's rules in the test's own words."""
    architecture = dict(tiny_config().to_dict(), **config.architecture)
    units = {"classification": len(config.labels), "regression": 1, "span": 2}[config.head]
    scope = "cls/squad/" if config.head == "span" else ""
    bert = bert_shapes(architecture)
    head = {f"{scope}output_weights": (units, architecture["hidden_size"]), f"{scope}output_bias": (units,)}
    norms = {name: shape for name, shape in bert.items() if "/LayerNorm/" in name}
    if config.tuning_mode == "head":
        return head
    if config.tuning_mode == "layer_norm":
        return dict(norms, **head)
    if config.tuning_mode == "adapter":
        return dict(norms, **head, **adapter_shapes(architecture, config.adapter))
    depth = architecture["num_hidden_layers"]
    if config.tuning_mode == "full" or config.tune_top_layers == depth:
        return dict(bert, **head)
    parts = [f"bert/encoder/layer_{depth - 1 - number}/" for number in range(config.tune_top_layers)] + ["bert/pooler/"]
    return dict({name: shape for name, shape in bert.items() if name.startswith(tuple(parts))}, **head)


def frozen(config: packs.PackConfig) -> list:
    trained = trained_shapes(config)
    return [name for name in bert_shapes(config.architecture) if name not in trained]


def make_config(mode: str = "adapter", **changes) -> packs.PackConfig:
    """A configuration with something in every field that the mode allows."""
    values = {
        "task": "CoLA",
        "architecture": tiny_config().to_dict(),
        "tuning_mode": mode,
        "head": "classification",
        "labels": ["0", "1"],
        "tokenizer": {"type": "wordpiece", "do_lower_case": True, "entries": 2},
        "max_seq_length": 16,
        "base": None if mode == "full" else "sha256:0123456789abcdef",
        "created": "2024-05-06T07:08:09Z",
        "adapter": {"size": 4, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"},
        "tune_top_layers": 1 if mode == "top_layers" else None,
        "metrics": {"matthews": 0.5, "accuracy": 0.75},
        "loss": 0.625,
        "collapsed": False,
        "seed": 3,
        "step": 120,
        "training": {"learning_rate": 3e-4, "train_batch_size": 32},
        "versions": {"tensorflow": "1.15.0"},
        "origin": {"note": "test"},
    }
    if mode != "adapter":
        values["adapter"] = None
    return packs.PackConfig(**dict(values, **changes))


def make_pack(config: packs.PackConfig, seed: int = 1) -> packs.Pack:
    generator = np.random.RandomState(seed)
    shapes = trained_shapes(config)
    return packs.Pack(config, {name: generator.randn(*shape).astype(np.float32) for name, shape in shapes.items()})


def smallest(**changes) -> packs.Pack:
    return make_pack(
        make_config(architecture=SMALLEST, max_seq_length=4, adapter={"size": 2, "layers": [0]}, **changes)
    )


VARIANTS = {
    "adapter": make_config(),
    "adapter in the upper layer": make_config(adapter={"size": 3, "layers": [1]}),
    "adapter behind attention": make_config(adapter={"size": 3, "placement": "attention"}),
    "adapter behind feedforward in the lower layer": make_config(
        adapter={"size": 1, "layers": [0], "placement": "feedforward", "activation": "relu", "init_scale": 0.0}
    ),
    "full": make_config("full"),
    "top layer": make_config("top_layers"),
    "all layers as top layers": make_config("top_layers", tune_top_layers=2, base=None),
    "layer_norm": make_config("layer_norm"),
    "head": make_config("head"),
    "regression": make_config(head="regression", labels=[]),
    "full regression": make_config("full", head="regression", labels=[]),
    "spans": make_config(head="span", labels=[]),
    "full spans": make_config("full", head="span", labels=[]),
    "three classes": make_config("head", labels=["entailment", "neutral", "contradiction"]),
    "nothing known": make_config(
        metrics={}, loss=None, collapsed=None, seed=None, step=0, training={}, versions={}, origin=None
    ),
}
variants = pytest.mark.parametrize("config", list(VARIANTS.values()), ids=[key.replace(" ", "_") for key in VARIANTS])


def assert_same(found: packs.Pack, expected: packs.Pack) -> None:
    assert found.config == expected.config
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == np.float32
        assert found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes(), name


# ------------------------------------------------------------------ packs as another tool would make them


def taken_apart(data: bytes):
    """The three parts of a pack's file: its configuration, the header's entries of tensors, the numbers."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size].decode("utf-8"))
    values = json.loads(header.pop("__metadata__")[packs.METADATA_KEY])
    return values, header, data[8 + size :]


def signed(header: bytes, numbers: bytes) -> bytes:
    """The bytes of a safetensors file with this header, the checksum in it put right."""
    header += b" " * (-len(header) % 8)
    data = struct.pack("<Q", len(header)) + header + numbers
    return data.replace(ZEROS.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def put_together(values, entries, numbers: bytes) -> bytes:
    """The opposite of `taken_apart`, with a valid checksum whatever the parts are."""
    text = json.dumps(dict(values, checksum=ZEROS))
    return signed(json.dumps(dict({"__metadata__": {packs.METADATA_KEY: text}}, **entries)).encode("utf-8"), numbers)


def of_tensors(values, tensors) -> bytes:
    """A file with a valid checksum that holds these tensors, whatever their types."""
    kinds = {"float16": "F16", "float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "bool": "BOOL"}
    entries, numbers = {}, b""
    # The widest first: some readers refuse tensors that are not aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        offsets = [len(numbers), len(numbers) + tensor.nbytes]
        entries[name] = {"dtype": kinds[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
        numbers += tensor.tobytes()
    return put_together(values, entries, numbers)


def changed(data: bytes, **changes) -> bytes:
    """The pack with other values in its configuration and a valid checksum."""
    values, entries, numbers = taken_apart(data)
    return put_together(dict(values, **changes), entries, numbers)


@pytest.fixture(scope="module")
def pack() -> packs.Pack:
    return smallest()


@pytest.fixture(scope="module")
def content(pack) -> bytes:
    """The bytes of a small sound pack."""
    return packs.serialise(pack)


@pytest.fixture
def refusal(tmp_path):
    """A function: why a file of these bytes is refused."""
    path = tmp_path / "pack.safetensors"

    def refusal_of(data: bytes) -> str:
        path.write_bytes(data)
        message = message_of(packs.read, str(path))
        assert str(path) in message
        return message

    return refusal_of


# ------------------------------------------------------------------------------------------ the round trip


@variants
def test_what_is_written_is_what_is_read(tmp_path, config):
    path = str(tmp_path / "pack.safetensors")
    pack = make_pack(config)
    packs.write(path, pack)
    assert_same(packs.read(path), pack)
    assert packs.read_config(path) == config
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]


@variants
def test_the_same_pack_has_the_same_bytes_however_its_tensors_lie(config):
    pack = make_pack(config)
    backwards = {name: np.asfortranarray(pack.tensors[name]) for name in reversed(list(pack.tensors))}
    strided = {name: np.stack([tensor, tensor], axis=-1)[..., 0] for name, tensor in pack.tensors.items()}
    data = packs.serialise(pack)
    assert packs.serialise(packs.Pack(config, backwards)) == data
    assert packs.serialise(packs.Pack(config, strided)) == data


def test_a_pack_that_was_read_is_written_as_it_was(tmp_path, pack, content):
    path = tmp_path / "pack.safetensors"
    path.write_bytes(content)
    packs.write(str(path), packs.read(str(path)))
    assert path.read_bytes() == content


def test_any_other_number_gives_other_bytes_and_another_fingerprint(pack, content):
    for name in pack.tensors:
        other = {key: tensor.copy() for key, tensor in pack.tensors.items()}
        other[name].flat[0] = np.nextafter(other[name].flat[0], np.float32(9))
        other = packs.Pack(pack.config, other)
        assert packs.serialise(other) != content
        assert other.fingerprint != pack.fingerprint


def test_the_fingerprint_is_of_the_weights_alone(pack):
    renamed = dataclasses.replace(pack, config=dataclasses.replace(pack.config, task="RTE", seed=9))
    assert renamed.fingerprint == pack.fingerprint
    assert renamed.fingerprint.startswith("sha256:")


@pytest.mark.parametrize(
    "words",
    [
        ["gut", "schlecht"],
        ["好", "坏"],
        ["👍🏽", "👎"],
        ["", " "],
        ['"', "\\"],
        ["\n", "\0"],
        ["é", "e\u0301"],
        [ZEROS, "f" * 64],
        [packs.METADATA_KEY, "__metadata__"],
    ],
    ids=["latin", "chinese", "emoji", "empty", "quotes", "control", "accents", "like_checksums", "like_keys"],
)
def test_labels_and_names_of_any_script_survive(tmp_path, words):
    path = str(tmp_path / "pack.safetensors")
    pack = smallest(task=f"Aufgabe {words[0]}", labels=words, training={"data_dir": words[1]}, metrics={words[0]: 1.0})
    packs.write(path, pack)
    assert_same(packs.read(path), pack)
    assert packs.read_config(path) == pack.config


def test_the_numbers_that_json_has_no_word_for_are_read_as_unknown(tmp_path):
    path = str(tmp_path / "pack.safetensors")
    packs.write(path, smallest(loss=float("nan"), metrics={"f1": float("inf"), "accuracy": 0.5}))
    config = packs.read_config(path)
    assert config.loss is None
    assert config.metrics == {"f1": None, "accuracy": 0.5}


def test_the_order_of_metrics_is_kept_since_the_first_decides(tmp_path):
    path = str(tmp_path / "pack.safetensors")
    packs.write(path, smallest(metrics={"z": 0.1, "a": 0.9}))
    assert packs.read_config(path).primary_metric == "z"
    assert make_config(metrics={}).primary_metric is None


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -3.4028234e38], ids=["zero", "minus_zero", "least", "greatest"])
def test_extreme_numbers_keep_every_bit(tmp_path, pack, value):
    path = str(tmp_path / "pack.safetensors")
    extreme = {name: np.full_like(tensor, value) for name, tensor in pack.tensors.items()}
    packs.write(path, packs.Pack(pack.config, extreme))
    assert_same(packs.read(path), packs.Pack(pack.config, extreme))


@variants
def test_a_config_gives_back_the_parts_of_its_model(config):
    assert config.bert_config.to_dict() == config.architecture
    assert config.make_head().kind == config.head
    if config.adapter is None:
        assert config.adapter_config is None
    else:
        assert config.adapter_config.size == config.adapter["size"]


# ---------------------------------------------------------------------------------------- the file format


@variants
def test_any_safetensors_reader_reads_a_pack(tmp_path, config):
    path = str(tmp_path / "pack.safetensors")
    pack = make_pack(config)
    packs.write(path, pack)
    with safetensors.safe_open(path, framework="np") as reader:
        assert list(reader.metadata()) == ["adapter_config.json"]
        values = json.loads(reader.metadata()["adapter_config.json"])
        assert set(reader.keys()) == set(pack.tensors)
        for name, tensor in pack.tensors.items():
            assert reader.get_tensor(name).tobytes() == tensor.tobytes()
    assert values["format"] == "adapter-bert pack 1"
    assert values["task"] == config.task
    assert set(values) == {field.name for field in dataclasses.fields(config)} | {"format", "checksum"}


@variants
def test_a_pack_has_no_byte_beside_its_json_and_its_numbers(config):
    """So there is no place for anything pickled."""
    pack = make_pack(config)
    values, entries, numbers = taken_apart(packs.serialise(pack))
    assert set(entries) == set(pack.tensors)
    assert {entry["dtype"] for entry in entries.values()} == {"F32"}
    assert len(numbers) == 4 * pack.num_parameters
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        assert numbers[start:end] == pack.tensors[name].tobytes()


def test_the_checksum_is_the_hash_of_the_file_with_zeros_in_its_place(content):
    checksum = taken_apart(content)[0]["checksum"]
    assert hashlib.sha256(content.replace(checksum.encode(), ZEROS.encode())).hexdigest() == checksum


def test_a_pack_of_another_tool_with_a_valid_checksum_is_read(tmp_path, pack, content):
    """What the tests below change is refused for the change, and not for who wrote it."""
    path = tmp_path / "pack.safetensors"
    for data in (changed(content), of_tensors(taken_apart(content)[0], pack.tensors)):
        assert data != content
        path.write_bytes(data)
        assert_same(packs.read(str(path)), pack)


# ------------------------------------------------------------------------------------------------- sizes


def count(config: packs.PackConfig) -> int:
    return make_pack(config).num_parameters


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"max_seq_length": 0}, {"max_seq_length": 33}, {"metrics": {"f1": "high"}}, {"task": "\udcff"}],
    ids=["step", "length", "long", "metrics", "task"],
)
def test_values_that_mean_nothing_are_not_written(tmp_path, change):
    path = str(tmp_path / "pack.safetensors")
    with pytest.raises(UserError, match="has an impossible adapter_config.json"):
        packs.write(path, make_pack(make_config(**change)))
    assert not os.path.exists(path)


@pytest.mark.parametrize("change", [{"num_attention_heads": 4}, {"hidden_act": "relu"}])
def test_an_architecture_that_does_not_show_in_the_weights_is_told(change):
    pack = make_pack(make_config())
    packs.check_architecture(pack, "mine", dict(pack.config.architecture, hidden_dropout_prob=0.3), "base")
    (name,) = change
    with pytest.raises(UserError, match=f"pack mine .* {name} is .* in the pack and {change[name]} in base"):
        packs.check_architecture(pack, "mine", dict(pack.config.architecture, **change), "base")


def test_adapters_with_another_activation_are_told_and_another_start_is_not():
    pack = make_pack(make_config())
    own = pack.config.adapter_config
    packs.check_adapter(pack, "mine", dataclasses.replace(own, init_scale=0.5))
    for other in (dataclasses.replace(own, activation="relu"), None):
        with pytest.raises(UserError, match="pack mine has other adapters than this model"):
            packs.check_adapter(pack, "mine", other)
    packs.check_adapter(make_pack(make_config("head")), "mine", own)  # it has none, and the model's may start fresh


def test_a_pack_for_bert_base_has_the_paper_s_size(tmp_path):
    path = str(tmp_path / "pack.safetensors")
    config = make_config(architecture=dict(BASE, max_position_embeddings=512), adapter={"size": 64}, max_seq_length=128)
    pack = make_pack(config)
    packs.write(path, pack)
    assert packs.read(path).num_parameters == 2419202
    assert 4 * 2419202 < os.path.getsize(path) <= 9800000


def test_a_pack_for_bert_large_has_the_size_of_the_formula(tmp_path):
    path = str(tmp_path / "pack.safetensors")
    layers, d, m, classes = 24, 1024, 64, 3
    expected = 2 * layers * (2 * m * d + d + m) + (2 * layers + 1) * 2 * d + classes * (d + 1)
    config = make_config(architecture=LARGE, adapter={"size": m}, labels=["a", "b", "c"])
    packs.write(path, make_pack(config))
    assert packs.read(path).num_parameters == expected == 6447107
    assert 4 * expected < os.path.getsize(path) < 4 * expected + 60000


D, INNER, CLASSES = 16, 32, 2
NORM, HEAD, DENSE = 2 * D, CLASSES * D + CLASSES, D * D + D
EMBEDDINGS = (tiny_config().vocab_size + 2 + 32) * D
LAYER = 4 * DENSE + (D * INNER + INNER) + (INNER * D + D) + 2 * NORM


def bottleneck(m: int) -> int:
    return 2 * m * D + D + m


@pytest.mark.parametrize(
    "variant, expected",
    [
        ("adapter", 4 * bottleneck(4) + 5 * NORM + HEAD),
        ("adapter in the upper layer", 2 * bottleneck(3) + 5 * NORM + HEAD),
        ("adapter behind attention", 2 * bottleneck(3) + 5 * NORM + HEAD),
        ("adapter behind feedforward in the lower layer", bottleneck(1) + 5 * NORM + HEAD),
        ("full", EMBEDDINGS + NORM + 2 * LAYER + DENSE + HEAD),
        ("top layer", LAYER + DENSE + HEAD),
        ("all layers as top layers", EMBEDDINGS + NORM + 2 * LAYER + DENSE + HEAD),
        ("layer_norm", 5 * NORM + HEAD),
        ("head", HEAD),
        ("regression", 4 * bottleneck(4) + 5 * NORM + D + 1),
        ("full regression", EMBEDDINGS + NORM + 2 * LAYER + DENSE + D + 1),
        ("spans", 4 * bottleneck(4) + 5 * NORM + 2 * (D + 1)),
        ("full spans", EMBEDDINGS + NORM + 2 * LAYER + DENSE + 2 * (D + 1)),
        ("three classes", 3 * (D + 1)),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_each_mode_holds_the_parameters_of_its_formula(variant, expected):
    shapes = VARIANTS[variant].trained_shapes()
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == expected
    assert make_pack(VARIANTS[variant]).num_parameters == expected


@variants
def test_what_a_pack_holds_and_what_it_leaves_to_the_base_make_the_model(config):
    assert {name: tuple(shape) for name, shape in config.trained_shapes().items()} == trained_shapes(config)
    assert sorted(config.frozen_names()) == sorted(frozen(config))


# ----------------------------------------------------------------------------- files that are no packs


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "nothing.safetensors")
    for function in (packs.read, packs.read_config, packs.find):
        assert f"There is no adapter pack {path}" in message_of(function, path)


def test_a_folder_is_no_pack(tmp_path):
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    for function in (packs.read, packs.read_config, packs.find):
        message_of(function, str(folder))


def test_a_folder_of_a_run_means_the_pack_in_it(tmp_path, pack):
    inside = str(tmp_path / "adapter_pack.safetensors")
    assert "expected a file *.safetensors, or the output folder" in message_of(packs.find, str(tmp_path))
    packs.write(inside, pack)
    assert packs.find(str(tmp_path)) == packs.find(inside) == inside


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"1234567", b"12345678", b"<html>404 Not found</html>\n" * 9, "Grüße\n".encode("utf-16"), b"\0" * 4096]
    + [b"\xff" * 64, b"PK\x03\x04" * 50, b"\x80\x04\x95" * 50],
    ids=["empty", "one_byte", "seven_bytes", "eight_bytes", "html", "utf16", "zeros", "ones", "zip", "pickle"],
)
def test_another_kind_of_file_is_no_pack(refusal, tmp_path, data):
    assert "is damaged or no adapter pack" in refusal(data)
    message_of(packs.read_config, str(tmp_path / "pack.safetensors"))


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"adapter_config.json": ""}])
def test_another_safetensors_file_is_no_pack(refusal, pack, metadata):
    assert "its header has no adapter_config.json" in refusal(safetensors.numpy.save(dict(pack.tensors), metadata))


@pytest.mark.parametrize("text", ["[]", "3", "null", '"a"', "{", "[" * 100000, "NaN"], ids=range(7))
def test_a_configuration_that_is_no_json_object_is_refused(refusal, text):
    header = json.dumps({"__metadata__": {packs.METADATA_KEY: text}}).encode()
    assert "its header has no adapter_config.json" in refusal(signed(header, b""))


@pytest.mark.parametrize(
    "header",
    [b"", b"{}", b"[]", b"null", b"{" * 100000, b"[" * 100000, b'{"__metadata__": []}', b'{"__metadata__": 3}']
    + [b'{"__metadata__": {"adapter_config.json": 3}}', b'{"__metadata__": {"adapter_config.json": {}}}', b"\xff\xfe"],
    ids=["none", "empty", "list", "null", "deep", "deep_list", "list_inside", "number", "int", "object", "no_utf8"],
)
def test_a_header_of_another_form_is_refused(refusal, header):
    assert "its header has no adapter_config.json" in refusal(signed(header, b""))


@pytest.mark.parametrize("size", [0, 1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_length_is_refused(refusal, tmp_path, content, size):
    assert "is damaged or no adapter pack" in refusal(struct.pack("<Q", size) + content[8:])
    message_of(packs.read_config, str(tmp_path / "pack.safetensors"))


@pytest.mark.parametrize("garbage", [b"\n", b"\0" * 8, b"more"], ids=["newline", "zeros", "word"])
def test_a_file_with_something_behind_its_end_is_refused(refusal, content, garbage):
    expected = f"it has {len(content) + len(garbage)} bytes where {len(content)} are expected"
    assert expected in refusal(content + garbage)


def test_a_file_that_is_cut_off_is_told_by_its_lengths(refusal, content):
    header = struct.unpack("<Q", content[:8])[0]
    assert f"its header should have {header} bytes and has 92" in refusal(content[:100])
    assert f"it has {len(content) - 1} bytes where {len(content)} are expected" in refusal(content[:-1])


def test_a_pack_that_is_not_sound_is_not_written(tmp_path, pack):
    path = tmp_path / "pack.safetensors"
    path.write_bytes(b"older")
    bad = dict(pack.tensors, output_bias=np.array([1, np.nan], np.float32))
    assert "The pack to be written: 1 of 2 values in output_bias are NaN" in message_of(
        packs.write, str(path), packs.Pack(pack.config, bad)
    )
    assert path.read_bytes() == b"older"
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]


def test_a_pack_cannot_be_written_into_a_folder_that_is_not_there(tmp_path, pack):
    assert "File system error" in message_of(packs.write, str(tmp_path / "no" / "pack.safetensors"), pack)


# ------------------------------------------------------------------------- valid checksum, wrong content


@pytest.mark.parametrize(
    "version", [None, "", 1, "adapter-bert pack 2", "ADAPTER-BERT PACK 1", ["adapter-bert pack 1"]]
)
def test_another_format_is_refused_with_both_names(refusal, content, version):
    assert f"has the format {version!r}; this version reads 'adapter-bert pack 1'" in refusal(
        changed(content, format=version)
    )


@pytest.mark.parametrize("key", ["licence", "Task", "", "__class__", "self"])
def test_an_unknown_key_is_named(refusal, content, key):
    assert f"has unknown keys [{key}] and lacks []" in refusal(changed(content, **{key: "x"}))


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(packs.PackConfig)])
def test_a_missing_key_is_named(refusal, content, key):
    values, entries, numbers = taken_apart(content)
    del values[key]
    assert f"has unknown keys [] and lacks [{key}]" in refusal(put_together(values, entries, numbers))


@pytest.mark.parametrize(
    "key, value",
    [
        ("task", 3),
        ("task", None),
        ("architecture", None),
        ("architecture", "bert-base"),
        ("architecture", [["hidden_size", 4]]),
        ("tuning_mode", ["adapter"]),
        ("head", None),
        ("labels", None),
        ("labels", "01"),
        ("labels", {"0": 0}),
        ("tokenizer", None),
        ("max_seq_length", "4"),
        ("max_seq_length", 4.0),
        ("max_seq_length", True),
        ("max_seq_length", None),
        ("base", 5),
        ("created", 2024),
        ("adapter", 2),
        ("tune_top_layers", True),
        ("metrics", None),
        ("metrics", [0.5]),
        ("loss", "0.5"),
        ("loss", True),
        ("collapsed", 0),
        ("seed", 1.5),
        ("seed", False),
        ("step", None),
        ("training", []),
        ("versions", "1.15"),
        ("origin", "here"),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, str) else value,
)
def test_a_value_of_another_type_is_named(refusal, content, key, value):
    assert f": {key} in its adapter_config.json cannot be {value!r}." in refusal(changed(content, **{key: value}))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, found 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be an integer of at least 1, found -1"),
        ({"num_hidden_layers": 1.0}, "num_hidden_layers must be an integer of at least 1, found 1.0"),
        ({"num_hidden_layers": 10**9}, "has 1000000000 layers"),
        ({"num_hidden_layers": 7**100}, f"has {7**100} layers"),
        ({"num_hidden_layers": 2}, "16 of 20 variables match; 4 missing (bert/encoder/layer_1/"),
        ({"hidden_size": 0}, "hidden_size must be an integer of at least 1, found 0"),
        ({"hidden_size": 5}, "hidden_size 5 is not a multiple of num_attention_heads 2"),
        ({"hidden_size": 8}, "is [4] where the model has [8]"),
        ({"hidden_size": 10**30}, ""),
        ({"vocab_size": None}, "vocab_size must be an integer of at least 1, found None"),
        ({"vocab_size": 10**30}, ""),
        ({"hidden_act": "sine"}, "Unknown activation 'sine'"),
        ({"hidden_dropout_prob": 1}, "hidden_dropout_prob must be a number from 0 to below 1, found 1"),
        ({"initializer_range": float("nan")}, "initializer_range must be a number from 0 to below 1, found nan"),
        ({"check": 3}, ""),
        ({"__class__": "dict"}, ""),
        ({"__dict__": {}}, ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else "_".join(f"{k}_{v}"[:40] for k, v in value.items()),
)
def test_an_impossible_architecture_is_refused_at_once(refusal, content, changes, reason):
    start = time.time()
    message = refusal(changed(content, architecture=dict(SMALLEST, **changes)))
    assert reason in message
    assert "adapter_config.json" in message
    assert time.time() - start < 20


@pytest.mark.parametrize(
    "adapter, reason",
    [
        (None, "the tuning mode is adapter and the adapter is None"),
        ({}, "is [1, 2] where the model has [1, 64]"),
        ({"size": 0}, "The adapter size must be an integer of at least 1, found 0"),
        ({"size": "2"}, "The adapter size must be an integer of at least 1, found '2'"),
        ({"size": 3}, "is [1, 2] where the model has [1, 3]"),
        ({"size": 10**30}, ""),
        ({"size": 2, "kind": "houlsby"}, "kind"),
        ({"size": 2, "layers": []}, "must be different indices from 0 on, at least one; found []"),
        ({"size": 2, "layers": [0, 0]}, "must be different indices from 0 on, at least one; found [0, 0]"),
        ({"size": 2, "layers": [1]}, "Adapters were asked for in layer 1, but the network has 1 layers"),
        ({"size": 2, "layers": "all"}, "must be different indices"),
        ({"size": 2, "placement": "pfeiffer"}, "Unknown adapter placement 'pfeiffer'"),
        ({"size": 2, "placement": "attention"}, "holds 4 tensors that do not belong to it"),
        ({"size": 2, "activation": "sine"}, "Unknown activation 'sine'"),
        ({"size": 2, "activation": None}, ""),
        ({"size": 2, "activation": []}, ""),
        ({"size": 2, "init_scale": -1}, "must be a finite number from 0 on, found -1"),
        ({"size": 2, "init_scale": None}, "must be a finite number from 0 on, found None"),
    ],
    ids=lambda value: "" if isinstance(value, str) else json.dumps(value).replace(" ", "")[:40],
)
def test_impossible_or_other_adapters_are_refused(refusal, content, adapter, reason):
    message = refusal(changed(content, adapter=adapter))
    assert reason in message
    assert "adapter_config.json" in message or "do not belong" in message


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"tuning_mode": "lora"}, "the tuning mode is lora and the adapter is {"),
        ({"tuning_mode": "lora", "adapter": None}, "Unknown tuning mode 'lora'"),
        ({"tuning_mode": "head"}, "the tuning mode is head and the adapter is {"),
        ({"tuning_mode": "head", "adapter": None}, "14 tensors that do not belong to it, e.g. bert/embeddings/Layer"),
        ({"tuning_mode": "layer_norm", "adapter": None}, "in the mode layer_norm there are 8"),
        ({"tuning_mode": "full", "adapter": None}, "8 of 25 variables match; 17 missing"),
        ({"tune_top_layers": 1}, "A number of top layers (1) goes with the tuning mode 'top_layers' only"),
        ({"tuning_mode": "top_layers", "adapter": None}, "needs the number of layers to train"),
        ({"tuning_mode": "top_layers", "adapter": None, "tune_top_layers": 2}, "but the model has 1"),
        ({"tuning_mode": "top_layers", "adapter": None, "tune_top_layers": 0}, "1 or more; found 0"),
        ({"head": "tagging"}, "Unknown type of head 'tagging'"),
        ({"head": "span"}, "A head for span does not go with 2 labels"),
        ({"head": "span", "labels": []}, "2 missing (cls/squad/output_weights, cls/squad/output_bias)"),
        ({"head": "regression"}, "A head for regression does not go with 2 labels"),
        ({"head": "regression", "labels": []}, "output_weights is [2, 4] where the model has [1, 4]"),
        ({"labels": []}, "A head for classification does not go with 0 labels"),
        ({"labels": ["0"]}, "output_weights is [2, 4] where the model has [1, 4]"),
        ({"labels": ["0", "1", "2"]}, "output_weights is [2, 4] where the model has [3, 4]"),
        ({"labels": ["0", "0"]}, "its labels are not different words: ['0', '0']"),
        ({"labels": [0, 1]}, "its labels are not different words: [0, 1]"),
        ({"labels": ["0", None]}, "its labels are not different words: ['0', None]"),
        ({"labels": [["0"], {}]}, "its labels are not different words"),
    ],
    ids=lambda value: "" if isinstance(value, str) else json.dumps(value).replace(" ", "")[:70],
)
def test_modes_heads_and_labels_that_do_not_go_with_the_tensors_are_refused(refusal, content, changes, reason):
    assert reason in refusal(changed(content, **changes))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"], ids=["first_half", "second_half"])
@pytest.mark.parametrize("key", ["task", "created", "checksum", "format", "base"])
def test_half_a_character_is_refused_since_no_file_or_terminal_takes_it(refusal, content, tmp_path, key, text):
    values, entries, numbers = taken_apart(content)
    metadata = json.dumps(dict(dict(values, checksum=ZEROS), **{key: text}))
    header = json.dumps(dict({"__metadata__": {packs.METADATA_KEY: metadata}}, **entries)).encode()
    assert "damaged" in refusal(signed(header, numbers))
    message_of(packs.read_config, str(tmp_path / "pack.safetensors"))


@pytest.mark.parametrize("checksum", [None, 0, "", "0", "0" * 63, ZEROS, "f" * 64, "F" * 64, [], {}], ids=repr)
def test_a_wrong_checksum_is_damage(refusal, content, checksum):
    values, entries, numbers = taken_apart(content)
    metadata = json.dumps(dict(values, checksum=checksum))
    header = json.dumps(dict({"__metadata__": {packs.METADATA_KEY: metadata}}, **entries)).encode()
    data = struct.pack("<Q", len(header)) + header + numbers
    assert "its checksum does not fit its content" in refusal(data)


def test_a_checksum_in_capitals_or_none_at_all_is_damage(refusal, content):
    values, entries, numbers = taken_apart(content)
    checksum = values.pop("checksum")
    assert "its checksum does not fit" in refusal(content.replace(checksum.encode(), checksum.upper().encode()))
    header = json.dumps(dict({"__metadata__": {packs.METADATA_KEY: json.dumps(values)}}, **entries)).encode()
    assert "its checksum does not fit" in refusal(struct.pack("<Q", len(header)) + header + numbers)


def test_every_missing_tensor_is_named(refusal, pack, content):
    values = taken_apart(content)[0]
    for missing in pack.tensors:
        tensors = {name: tensor for name, tensor in pack.tensors.items() if name != missing}
        assert f"15 of 16 variables match; 1 missing ({missing})" in refusal(of_tensors(values, tensors))
    assert "0 of 16 variables match; 16 missing" in refusal(of_tensors(values, {}))


@pytest.mark.parametrize(
    "name", ["surplus", "", "bert/pooler/dense/bias", "output_weights/adam_m", "global_step", "zz\u00e9"]
)
def test_a_surplus_tensor_is_named(refusal, pack, content, name):
    tensors = dict(pack.tensors, **{name: np.zeros([4], np.float32)})
    message = refusal(of_tensors(taken_apart(content)[0], tensors))
    assert f"holds 1 tensors that do not belong to it, e.g. {name}: in the mode adapter there are 16" in message


def test_every_tensor_of_another_shape_is_named_with_both(refusal, pack, content):
    values = taken_apart(content)[0]
    for name, tensor in pack.tensors.items():
        shape = list(tensor.shape)
        for other in (tensor[..., None], tensor[..., :-1], np.concatenate([tensor, tensor]), tensor[:0]):
            message = refusal(of_tensors(values, dict(pack.tensors, **{name: np.ascontiguousarray(other)})))
            assert f"{name} is {list(other.shape)} where the model has {shape}" in message


def test_a_transposed_tensor_is_refused(refusal, pack, content):
    name = "bert/encoder/layer_0/output/adapters/weights1"
    other = dict(pack.tensors, **{name: np.ascontiguousarray(pack.tensors[name].T)})
    assert f"{name} is [2, 4] where the model has [4, 2]" in refusal(of_tensors(taken_apart(content)[0], other))


@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "int64", "bool"])
def test_numbers_of_another_type_are_refused(refusal, pack, content, kind):
    values = taken_apart(content)[0]
    for name, tensor in pack.tensors.items():
        message = refusal(of_tensors(values, dict(pack.tensors, **{name: tensor.astype(kind)})))
        assert f"{name} is {kind}; expected float32" in message
    assert f"is {kind}; expected float32" in refusal(
        of_tensors(values, {name: tensor.astype(kind) for name, tensor in pack.tensors.items()})
    )


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "U32", "f32", "", None, 3], ids=str)
def test_numbers_of_a_type_that_numpy_may_not_have_are_refused(refusal, content, kind):
    values, entries, numbers = taken_apart(content)
    entries = {name: dict(entry, dtype=kind) for name, entry in entries.items()}
    refusal(put_together(values, entries, numbers))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_nan_and_infinity_are_refused_with_their_place(refusal, pack, content, value):
    values = taken_apart(content)[0]
    for name, tensor in pack.tensors.items():
        bad = tensor.copy()
        bad.flat[-1] = value
        message = refusal(of_tensors(values, dict(pack.tensors, **{name: bad})))
        assert f"1 of {tensor.size} values in {name} are NaN or infinite" in message


# ------------------------------------------------------------------------------------- thousands of others


def is_refused(path: str) -> None:
    """The check for damage under the old checksum: refused in one sentence, and nothing else."""
    try:
        packs.read(path)
    except UserError as error:
        assert path in str(error)
        return
    pytest.fail("a damaged pack was loaded")


def is_refused_or_consistent(path: str) -> bool:
    """The check for changes with a valid checksum: what loads is exactly what its configuration asks for."""
    try:
        found = packs.read(path)
    except UserError as error:
        assert path in str(error)
        return False
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == trained_shapes(found.config)
    assert all(tensor.dtype == np.float32 and np.isfinite(tensor).all() for tensor in found.tensors.values())
    assert found.num_parameters == sum(int(np.prod(shape)) for shape in trained_shapes(found.config).values())
    assert repr(packs.read_config(path)) == repr(found.config)  # NaN is no equal of itself
    assert set(taken_apart(packs.serialise(found))[1]) == set(found.tensors)
    return True


def describes_itself_or_is_refused(path: str) -> None:
    """The check for `read_config`, which looks at the header alone."""
    try:
        assert isinstance(packs.read_config(path), packs.PackConfig)
    except UserError as error:
        assert path in str(error)


def flips(data: bytes, generator: random.Random):
    """Every byte of the file, one at a time: every other one by a single bit."""
    for place in range(len(data)):
        other = data[place] ^ (1 << generator.randrange(8) if place % 2 else generator.randrange(1, 256))
        yield data[:place] + bytes([other]) + data[place + 1 :]


def noise(data: bytes, generator: random.Random):
    """Several wrong bytes, together or all over the file."""
    for _ in range(300):
        damaged = bytearray(data)
        start, length = generator.randrange(len(data)), generator.choice([2, 3, 8, 64, 512])
        together = generator.random() < 0.5
        for number in range(length):
            damaged[(start + number) % len(data) if together else generator.randrange(len(data))] = generator.choice(
                [0, 255, 32, generator.randrange(256)]
            )
        yield bytes(damaged)


def cuts(data: bytes, generator: random.Random):
    """The file up to a byte, from a byte on, and without a span inside."""
    for length in sorted(set(range(0, len(data), 7)) | set(range(16)) | {len(data) - n for n in range(1, 16)}):
        yield data[:length]
    for _ in range(150):
        start = generator.randrange(len(data))
        yield data[start + 1 :]
        yield data[:start] + data[start + generator.choice([1, 2, 8, 100]) :]


def insertions(data: bytes, generator: random.Random):
    for _ in range(300):
        start = generator.randrange(len(data) + 1)
        extra = bytes(
            generator.choice([0, 32, 125, generator.randrange(256)]) for _ in range(generator.choice([1, 4, 9]))
        )
        yield data[:start] + extra + data[start:]


def repetitions(data: bytes, generator: random.Random):
    """A span that stands there twice, or over its neighbour."""
    for _ in range(150):
        length = generator.choice([1, 4, 8, 64, 700])
        start = generator.randrange(len(data) - length)
        span = data[start : start + length]
        yield data[: start + length] + span + data[start + length :]
        yield data[: start + length] + span + data[start + 2 * length :]


def exchanges(data: bytes, generator: random.Random):
    """Two spans in each other's place."""
    for _ in range(300):
        length = generator.choice([1, 4, 8, 64, 700])
        first, second = sorted(generator.randrange(len(data) - length) for _ in range(2))
        second = max(second, first + length)
        damaged = bytearray(data)
        damaged[first : first + length], damaged[second : second + length] = (
            data[second : second + length],
            data[first : first + length],
        )
        yield bytes(damaged)


# Kind -> how many variants it makes at least.
DAMAGES = {flips: 3000, noise: 290, cuts: 700, insertions: 300, repetitions: 280, exchanges: 280}


@pytest.mark.parametrize("kind", list(DAMAGES), ids=lambda kind: kind.__name__)
def test_no_damage_goes_unnoticed(tmp_path, content, kind):
    path = tmp_path / "pack.safetensors"
    tried = 0
    for damaged in kind(content, random.Random(f"packs {kind.__name__}")):
        if damaged == content:
            continue
        path.write_bytes(damaged)
        is_refused(str(path))
        describes_itself_or_is_refused(str(path))
        tried += 1
    assert tried >= DAMAGES[kind]


DEEP: list = []
for _ in range(50):
    DEEP = [DEEP]
ODD = [None, True, False, 0, 1, 2, -1, 3.5, 10**9, 10**30, -(10**30), float("nan"), float("inf"), "", "0", "\ud800"]
ODD += ["relu", "adapter", [], [0], [None], ["a", "b"], {}, {"a": 1}, {"size": 2}, DEEP]


def places_in(values) -> list:
    """The paths to all values in a configuration, but for its checksum and the texts that are free."""
    paths = []
    for key, value in values.items():
        if key == "checksum":
            continue
        paths.append((key,))
        if key in ("architecture", "adapter", "tokenizer", "metrics", "labels"):
            paths += [(key, inner) for inner in (value if isinstance(value, dict) else range(len(value)))]
    return paths


def edited(values, place, odd=None, delete: bool = False):
    values = json.loads(json.dumps(values))
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    if delete:
        del inner[place[-1]]
    else:
        inner[place[-1]] = odd
    return values


def tried_on(path, variants_of_pack) -> list:
    """Whether each variant was loaded; fails where one is neither refused nor consistent."""
    outcomes = []
    for data in variants_of_pack:
        path.write_bytes(data)
        outcomes.append(is_refused_or_consistent(str(path)))
        describes_itself_or_is_refused(str(path))
    return outcomes


@pytest.mark.long
@pytest.mark.parametrize("part", ["architecture", "adapter", "all_else"])
def test_an_edited_configuration_is_refused_or_says_what_the_tensors_are(tmp_path, content, part):
    values, entries, numbers = taken_apart(content)
    values["adapter"] = dict({"activation": "gelu", "init_scale": 0.01, "placement": "both"}, **values["adapter"])
    parts = {place: place[0] if place[0] in ("architecture", "adapter") else "all_else" for place in places_in(values)}
    places = [place for place in parts if parts[place] == part]
    edits = [edited(values, place, delete=True) for place in places]
    edits += [edited(values, place, odd) for place in places for odd in ODD]
    outcomes = tried_on(tmp_path / "pack.safetensors", (put_together(values, entries, numbers) for values in edits))
    assert len(outcomes) == (len(ODD) + 1) * len(places) > 150
    assert any(outcomes)
    assert not all(outcomes)


def test_an_edited_header_is_refused_or_says_what_the_tensors_are(tmp_path, content):
    values, entries, numbers = taken_apart(content)
    generator = random.Random("packs header")
    names = sorted(entries)
    shaped = {name: tuple(entry["shape"]) for name, entry in entries.items()}

    def headers():
        for name in names:
            for key in ("dtype", "shape", "data_offsets"):
                yield edited(entries, (name, key), delete=True)
                for odd in (None, 0, -1, "", "F16", [], [0], [-4, 4], [4, 0], [0, 2**63], [0.5, 16.5], ["0", "8"], {}):
                    yield edited(entries, (name, key), odd)
            yield edited(entries, (name,), delete=True)
            yield edited(entries, (name, "note"), "more")
            yield {(key + "x" if key == name else key): entry for key, entry in entries.items()}
        for _ in range(150):
            first, second = generator.sample(names, 2)
            key = generator.choice(["shape", "data_offsets"])
            swapped = edited(entries, (first, key), entries[second][key])
            yield edited(swapped, (second, key), entries[first][key])
            yield dict(entries, **{first: entries[second], second: entries[first]})

    def files_with_those():
        for header in headers():
            yield put_together(values, header, numbers)
        for name in names:  # twice the same tensor in one header
            data = put_together(values, dict(entries, twice=entries[name]), numbers)
            size = struct.unpack("<Q", data[:8])[0]
            header = data[8 : 8 + size].replace(b'"twice"', json.dumps(name).encode())
            checksum = taken_apart(data)[0]["checksum"].encode()
            yield signed(header.replace(checksum, ZEROS.encode()), numbers)

    assert len(set(shaped.values())) < len(names)  # tensors of one shape may change places
    outcomes = tried_on(tmp_path / "pack.safetensors", files_with_those())
    assert len(outcomes) > 900
    assert any(outcomes)
    assert not all(outcomes)


def test_damage_that_was_signed_again_is_refused_or_consistent(tmp_path, content):
    """As if a tool had read a damaged file and written it back."""
    generator = random.Random("packs signed")
    checksum = taken_apart(content)[0]["checksum"].encode()
    plain = content.replace(checksum, ZEROS.encode())
    size = struct.unpack("<Q", content[:8])[0]

    def damaged():
        for _ in range(400):
            place = generator.randrange(8, len(plain))
            data = plain[:place] + bytes([generator.randrange(256)]) + plain[place + 1 :]
            yield signed(data[8 : 8 + size], data[8 + size :])

    outcomes = tried_on(tmp_path / "pack.safetensors", damaged())
    assert len(outcomes) == 400
    assert any(outcomes)
    assert not all(outcomes)


# ------------------------------------------------------------------------------------------------- bases


@pytest.fixture(scope="module")
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


@pytest.fixture(scope="module")
def base_tensors(base) -> dict:
    return base.tensors()


def config_on(tensors, mode: str) -> packs.PackConfig:
    """The configuration of a pack that was trained on a base with these weights."""
    config = make_config(mode)
    names = frozen(config)
    digests = fingerprints.of_tensors(tensors)
    return dataclasses.replace(config, base=fingerprints.combine(digests, names) if names else None)


def pack_on(tensors, mode: str) -> packs.Pack:
    return make_pack(config_on(tensors, mode))


def nudged(tensors, name: str) -> dict:
    """The weights with the least change that one number can have."""
    tensor = tensors[name].copy()
    tensor.flat[tensor.size // 2] = np.nextafter(tensor.flat[tensor.size // 2], np.float32(9))
    return dict(tensors, **{name: tensor})


modes = pytest.mark.parametrize("mode", MODES)


def test_a_base_is_read_with_all_its_variables(base, base_tensors):
    assert {name: tensor.shape for name, tensor in base_tensors.items()} == bert_shapes(base.config().to_dict())
    assert base.digests() == fingerprints.of_tensors(base_tensors)


@modes
def test_a_pack_goes_with_the_base_that_it_was_trained_on(base, base_tensors, mode):
    packs.check_base(pack_on(base_tensors, mode), "p", base.digests(), "b")


@modes
def test_one_changed_number_in_any_frozen_variable_makes_another_base(base_tensors, mode):
    pack = pack_on(base_tensors, mode)
    for name in frozen(pack.config):
        digests = fingerprints.of_tensors(nudged(base_tensors, name))
        message = message_of(packs.check_base, pack, "cola.safetensors", digests, "other/base")
        assert "The pack cola.safetensors (task CoLA) belongs to another base" in message
        assert f"the fingerprint {pack.config.base}, those of other/base have sha256:" in message


@modes
def test_variables_that_a_pack_brings_itself_may_differ_in_the_base(base_tensors, mode):
    pack = pack_on(base_tensors, mode)
    brought = [name for name in base_tensors if name in trained_shapes(pack.config)]
    if mode == "adapter":
        assert len(brought) == 10
        assert all("LayerNorm" in name for name in brought)
    for name in brought:
        packs.check_base(pack, "p", fingerprints.of_tensors(nudged(base_tensors, name)), "b")


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "full"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_base_of_another_depth_is_refused_even_where_the_weights_agree(base_tensors, mode, layers):
    pack = pack_on(base_tensors, mode)
    tensors = {}
    for name, shape in bert_shapes(dict(pack.config.architecture, num_hidden_layers=layers)).items():
        tensors[name] = base_tensors.get(name, np.zeros(shape, np.float32))
    message = message_of(packs.check_base, pack, "p", fingerprints.of_tensors(tensors), "other/base")
    assert f"The pack p belongs to a base with 2 layers; other/base has {layers}" in message


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "full"])
def test_a_base_without_a_frozen_variable_is_refused_by_its_name(base_tensors, mode):
    pack = pack_on(base_tensors, mode)
    name = "bert/embeddings/word_embeddings"
    digests = {key: digest for key, digest in fingerprints.of_tensors(base_tensors).items() if key != name}
    assert f"that has no {name}" in message_of(packs.check_base, pack, "p", digests, "b")


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "full"])
def test_a_base_of_another_width_or_vocabulary_is_refused(base_tensors, mode):
    pack = pack_on(base_tensors, mode)
    for changes in ({"hidden_size": 8}, {"vocab_size": 99}, {"max_position_embeddings": 64}):
        shapes = bert_shapes(dict(pack.config.architecture, **changes))
        digests = fingerprints.of_tensors({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
        assert "belongs to another base" in message_of(packs.check_base, pack, "p", digests, "b")


def test_a_pack_that_holds_everything_needs_no_base(base_tensors):
    packs.check_base(pack_on(base_tensors, "full"), "p", {}, "nothing")


@pytest.mark.parametrize("claimed", [None, "", "sha256:0123456789abcdef"], ids=["none", "empty", "another"])
def test_a_pack_that_names_no_base_or_another_goes_with_none(base, base_tensors, claimed):
    pack = make_pack(dataclasses.replace(config_on(base_tensors, "adapter"), base=claimed))
    assert "belongs to another base" in message_of(packs.check_base, pack, "p", base.digests(), "b")


def test_a_pack_that_holds_everything_and_still_names_a_base_is_refused(base, base_tensors):
    pack = make_pack(dataclasses.replace(config_on(base_tensors, "full"), base="sha256:0123456789abcdef"))
    assert "belongs to another base" in message_of(packs.check_base, pack, "p", base.digests(), "b")


def test_the_same_base_in_another_folder_is_the_same_base(tmp_path, base, base_tensors):
    write_bert(str(tmp_path), tiny_config())  # the seed of the fixture
    copy = bases.Base.find(str(tmp_path))
    assert copy.digests() == base.digests()
    packs.check_base(pack_on(base_tensors, "adapter"), "p", copy.digests(), "copy")


def test_a_fingerprint_tells_name_type_shape_and_value_but_not_order():
    ones = np.ones([2, 3], np.float32)
    others = [ones.astype(np.float64), ones.T, ones.reshape(6), ones[:1], ones * 2, np.zeros([2, 3], np.float32)]
    assert fingerprints.of_tensor(ones) == fingerprints.of_tensor(np.asfortranarray(ones))
    assert len({fingerprints.of_tensor(tensor) for tensor in [ones] + others}) == 1 + len(others)
    assert fingerprints.combine({"a": "1", "b": "2"}) == fingerprints.combine({"b": "2", "a": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}) != fingerprints.combine({"a": "2", "b": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}, ["a"]) == fingerprints.combine({"a": "1"})


# ----------------------------------------------------------------------------------------- killed writers

# Loads TensorFlow once; then, for each line (a moment, a tab, a path), starts a writer that never ends and kills it.
# The moment is in seconds from its first finished pack; or `rename`, where all is written and not yet renamed.
WRITERS = """
import os, signal, sys, time
from adapter_bert.common import files
from adapter_bert.weights import packs

both = [packs.read(path) for path in sys.argv[1:3]]

def kill_at_rename(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    moment, target = line.rstrip("\\n").split("\\t")
    started, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if moment == "rename":
                files.tf.gfile.Rename = kill_at_rename
            while True:
                for pack in both:
                    packs.write(target, pack)
                    os.write(tell, b"1")
        finally:
            os._exit(3)
    os.close(tell)
    if moment != "rename":
        os.read(started, 1)
        time.sleep(float(moment))
        os.kill(pid, signal.SIGKILL)
    os.close(started)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """Two packs, and a function that lets a process write them over one path, in turn, and be killed."""
    folder = tmp_path_factory.mktemp("writers")
    config = make_config(architecture=tiny_config(hidden_size=64).to_dict(), adapter={"size": 128})
    both = [make_pack(dataclasses.replace(config, seed=seed), seed) for seed in (1, 2)]
    sources = [str(folder / f"{number}.safetensors") for number in (1, 2)]
    for source, pack in zip(sources, both):
        packs.write(source, pack)
        assert os.path.getsize(source) > 250000
    process = subprocess.Popen(
        [sys.executable, "-c", WRITERS] + sources,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        universal_newlines=True,
    )

    def kill(moment: object, target: str) -> None:
        process.stdin.write(f"{moment}\t{target}\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "9"

    try:
        assert process.stdout.readline().strip() == "ready"
        yield both, kill
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def partials_in(folder: str) -> list:
    """What killed writers left beside the pack."""
    names = [name for name in os.listdir(folder) if name != packs.FILE_NAME]
    assert all(name.endswith(".partial") for name in names)
    return [os.path.join(folder, name) for name in names]


def test_a_killed_writer_leaves_one_whole_pack(writers, tmp_path):
    both, kill = writers
    target = str(tmp_path / packs.FILE_NAME)
    contents = [packs.serialise(pack) for pack in both]
    generator = random.Random("packs killed")
    seen = set()
    for _ in range(30):
        kill(generator.uniform(0, 0.03), target)
        found = packs.read(target)
        assert_same(found, both[found.config.seed - 1])
        with open(target, "rb") as file:
            seen.add(contents.index(file.read()))
    assert seen == {0, 1}
    for path in partials_in(str(tmp_path)):
        assert not packs.is_pack(path)
        with open(path, "rb") as file:
            if file.read() not in contents:
                assert "is damaged" in message_of(packs.read, path)
    assert packs.find(str(tmp_path)) == target


def test_a_writer_killed_before_the_new_pack_has_its_name_leaves_the_old_one(writers, tmp_path):
    both, kill = writers
    folder, target = str(tmp_path), str(tmp_path / packs.FILE_NAME)
    kill("rename", target)
    assert len(partials_in(folder)) == 1
    assert "There is no adapter pack" in message_of(packs.find, folder)
    packs.write(target, both[1])
    kill("rename", target)
    assert_same(packs.read(target), both[1])
    assert len(partials_in(folder)) == 2
    assert not any(packs.is_pack(path) for path in partials_in(folder))


def test_a_writer_that_fails_leaves_no_partial_file(tmp_path, pack, monkeypatch):
    def no_rename(*args, **kwargs):
        raise files.tf.errors.ResourceExhaustedError(None, None, "no space left on device")

    path = str(tmp_path / "pack.safetensors")
    monkeypatch.setattr(files.tf.gfile, "Rename", no_rename)
    assert "File system error: no space left on device" in message_of(packs.write, path, pack)
    assert os.listdir(str(tmp_path)) == []
