"""A pack holds exactly what a task trained; a damaged, foreign or inconsistent file is rejected with a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import struct

import hypothesis
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import strategies as st

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.weights import bases, fingerprints, packs
from tests import reference_model
from tests.helpers import assert_mentions, make_pack, message_of, tiny_config, write_bert
from tests.kill import ForkServer
from tests.reference_model import MODES

pytestmark = pytest.mark.smoke

# So small that reading a pack takes about a millisecond.
SMALLEST = tiny_config(
    vocab_size=5, hidden_size=4, num_hidden_layers=1, intermediate_size=4, max_position_embeddings=4
).to_dict()
ZEROS = "0" * 64
FUZZ = hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


def smallest(**changes) -> packs.Pack:
    return make_pack(
        **dict({"architecture": SMALLEST, "max_seq_length": 4, "adapter": {"size": 2, "layers": [0]}}, **changes)
    )


def reference_shapes(config: packs.PackConfig) -> dict:
    """The variables that a pack should hold."""
    architecture = dict(tiny_config().to_dict(), **config.architecture)
    head = reference_model.head_shapes(architecture, config.head, config.labels)
    return reference_model.trained_shapes(
        architecture, config.tuning_mode, head, config.adapter, config.tune_top_layers
    )


def frozen(config: packs.PackConfig) -> list:
    trained = reference_shapes(config)
    return [name for name in reference_model.bert_shapes(config.architecture) if name not in trained]


UNKNOWN = {"metrics": {}, "loss": None, "collapsed": None, "seed": None, "step": 0, "training": {}, "versions": {}}
# Changes of the configuration.
VARIANTS = {
    "adapter": {},
    "adapter_upper_layer": {"adapter": {"size": 3, "layers": [1]}},
    "adapter_attention": {"adapter": {"size": 3, "placement": "attention"}},
    "adapter_feedforward_lower_layer": {
        "adapter": {"size": 1, "layers": [0], "placement": "feedforward", "activation": "relu", "init_scale": 0.0}
    },
    "full": {"mode": "full"},
    "top_layer": {"mode": "top_layers"},
    "all_top_layers": {"mode": "top_layers", "tune_top_layers": 2},
    "layer_norm": {"mode": "layer_norm"},
    "head": {"mode": "head"},
    "regression": {"head": "regression"},
    "full_regression": {"mode": "full", "head": "regression"},
    "spans": {"head": "span"},
    "full_spans": {"mode": "full", "head": "span"},
    "three_classes": {"mode": "head", "labels": ["entailment", "neutral", "contradiction"]},
    "unknown_training": dict(UNKNOWN, origin={"note": "test"}),
}
variants = pytest.mark.parametrize("variant", list(VARIANTS))


def assert_same(found: packs.Pack, expected: packs.Pack) -> None:
    assert found.config == expected.config
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == np.float32
        assert found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes(), name


# --------------------------------------------------------------------- packs as another tool would write them


def split(data: bytes):
    """Return the three parts of a pack's file: configuration, header entries of the tensors, numbers."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size].decode("utf-8"))
    values = json.loads(header.pop("__metadata__")[packs.METADATA_KEY])
    return values, header, data[8 + size :]


def sign(header: bytes, numbers: bytes = b"") -> bytes:
    """Return a safetensors file with this header, in which 64 zeros become the right checksum."""
    header += b" " * (-len(header) % 8)
    data = struct.pack("<Q", len(header)) + header + numbers
    return data.replace(ZEROS.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def join(values, entries, numbers: bytes, checksum=ZEROS) -> bytes:
    """Invert `split`, with a valid checksum whatever the parts are."""
    text = json.dumps(dict(values, checksum=checksum))
    return sign(json.dumps(dict({"__metadata__": {packs.METADATA_KEY: text}}, **entries)).encode("utf-8"), numbers)


def with_tensors(content: bytes, tensors) -> bytes:
    """Return the pack with other tensors, whatever their types, and a valid checksum."""
    kinds = {"float16": "F16", "float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "bool": "BOOL"}
    entries, numbers = {}, b""
    # The widest first: some readers require alignment.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        offsets = [len(numbers), len(numbers) + tensor.nbytes]
        entries[name] = {"dtype": kinds[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
        numbers += tensor.tobytes()
    return join(split(content)[0], entries, numbers)


def with_config(content: bytes, **changes) -> bytes:
    """Return the pack with other values in its configuration and a valid checksum."""
    values, entries, numbers = split(content)
    return join(dict(values, **changes), entries, numbers)


@pytest.fixture(scope="module")
def pack() -> packs.Pack:
    return smallest()


@pytest.fixture(scope="module")
def content(pack) -> bytes:
    return packs.serialise(pack)


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "pack.safetensors")


@pytest.fixture
def rejection(path):
    """A function that returns the reason why a file with these bytes is rejected."""

    def message(data: bytes) -> str:
        write_file(path, data)
        found = message_of(packs.read, path)
        assert_mentions(found, path)
        return found

    return message


def write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


# ------------------------------------------------------------------------------------------- round trip, format


@variants
def test_a_pack_is_read_as_it_was_written(path, tmp_path, variant):
    pack = make_pack(**VARIANTS[variant])
    packs.write(path, pack)
    assert_same(packs.read(path), pack)
    assert packs.read_config(path) == pack.config
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]
    with open(path, "rb") as file:
        assert packs.serialise(packs.read(path)) == file.read()


@variants
def test_a_pack_holds_the_variables_of_its_mode(variant):
    pack = make_pack(**VARIANTS[variant])
    assert pack.shapes() == reference_shapes(pack.config)
    assert sorted(pack.config.frozen_names()) == sorted(frozen(pack.config))
    assert pack.num_parameters == sum(int(np.prod(shape)) for shape in reference_shapes(pack.config).values())
    assert pack.config.bert_config.to_dict() == pack.config.architecture
    assert pack.config.make_head().kind == pack.config.head
    assert (pack.config.adapter_config is None) == (pack.config.adapter is None)


@variants
def test_the_bytes_of_a_pack_do_not_depend_on_the_layout_in_memory(variant):
    pack = make_pack(**VARIANTS[variant])
    backwards = {name: np.asfortranarray(pack.tensors[name]) for name in reversed(list(pack.tensors))}
    strided = {name: np.stack([tensor, tensor], axis=-1)[..., 0] for name, tensor in pack.tensors.items()}
    for tensors in (backwards, strided):
        assert packs.serialise(packs.Pack(pack.config, tensors)) == packs.serialise(pack)


@variants
def test_any_safetensors_reader_reads_a_pack_of_json_and_numbers_only(path, variant):
    pack = make_pack(**VARIANTS[variant])
    packs.write(path, pack)
    with safetensors.safe_open(path, framework="np") as reader:
        assert list(reader.metadata()) == ["adapter_config.json"]
        values = json.loads(reader.metadata()["adapter_config.json"])
        found = {name: reader.get_tensor(name) for name in list(reader.keys())}
    assert_same(packs.Pack(pack.config, found), pack)
    assert (values["format"], values["task"]) == ("adapter-bert pack 1", pack.config.task)
    assert set(values) == {field.name for field in dataclasses.fields(pack.config)} | {"format", "checksum"}
    _, entries, numbers = split(packs.serialise(pack))
    assert {entry["dtype"] for entry in entries.values()} == {"F32"}
    assert len(numbers) == 4 * pack.num_parameters


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


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -3.4028234e38])
def test_extreme_numbers_keep_every_bit(path, pack, value):
    extreme = packs.Pack(pack.config, {name: np.full_like(tensor, value) for name, tensor in pack.tensors.items()})
    packs.write(path, extreme)
    assert_same(packs.read(path), extreme)


def test_the_checksum_is_the_hash_of_the_file_with_zeros_in_its_place(content):
    checksum = split(content)[0]["checksum"]
    assert hashlib.sha256(content.replace(checksum.encode(), ZEROS.encode())).hexdigest() == checksum


def test_a_pack_written_by_another_tool_is_read(path, pack, content):
    for data in (with_config(content), with_tensors(content, pack.tensors)):
        assert data != content
        write_file(path, data)
        assert_same(packs.read(path), pack)


@pytest.mark.parametrize(
    "changes, labels, expected",
    [
        ({"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}, 2, 2419202),
        ({"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}, 3, 6447107),
    ],
    ids=["base", "large"],
)
def test_packs_for_bert_base_and_large_have_the_size_of_the_paper(path, changes, labels, expected):
    layers, d, m = changes["num_hidden_layers"], changes["hidden_size"], 64
    assert expected == 2 * layers * (2 * m * d + d + m) + (2 * layers + 1) * 2 * d + labels * (d + 1)
    architecture = tiny_config(vocab_size=30522, intermediate_size=4 * d, **changes).to_dict()
    packs.write(path, make_pack(architecture=architecture, adapter={"size": m}, labels=list("abc")[:labels]))
    assert packs.read(path).num_parameters == expected
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


def test_a_pack_with_nan_is_not_written(path, tmp_path, pack):
    write_file(path, b"older")
    bad = dict(pack.tensors, output_bias=np.array([1, np.nan], np.float32))
    assert_mentions(message_of(packs.write, path, packs.Pack(pack.config, bad)), "1 of 2 values", "output_bias")
    with open(path, "rb") as file:
        assert file.read() == b"older"
    assert os.listdir(str(tmp_path)) == ["pack.safetensors"]


def test_a_write_that_fails_leaves_no_temporary_file(path, tmp_path, pack, monkeypatch):
    assert "pack.safetensors" in message_of(packs.write, str(tmp_path / "no" / "pack.safetensors"), pack)

    def no_space(*args, **kwargs):
        raise files.tf.errors.ResourceExhaustedError(None, None, "no space left on device")

    monkeypatch.setattr(files.tf.gfile, "Rename", no_space)
    assert "no space left on device" in message_of(packs.write, path, pack)
    assert os.listdir(str(tmp_path)) == []


def write_forever(tell, target: str) -> None:
    both = [packs.read(os.path.join(os.path.dirname(target), f"{seed}.safetensors")) for seed in (1, 2)]
    while True:
        for pack in both:
            packs.write(target, pack)
            tell()


def write_and_die(tell, target: str) -> None:
    def die(*args, **kwargs):
        os.kill(os.getpid(), 9)

    files.tf.gfile.Rename = die
    packs.write(target, smallest(seed=3))


@pytest.fixture(scope="module")
def server():
    with ForkServer(__name__) as started:
        yield started


def test_a_killed_writer_leaves_a_complete_pack(server, tmp_path):
    architecture = tiny_config(hidden_size=64).to_dict()
    both = [make_pack(seed=seed, architecture=architecture, adapter={"size": 128}) for seed in (1, 2)]
    for pack in both:
        packs.write(str(tmp_path / f"{pack.config.seed}.safetensors"), pack)
    target, generator = str(tmp_path / packs.FILE_NAME), random.Random("killed writers")
    for _ in range(15):
        server.kill("write_forever", target, seconds=generator.uniform(0, 0.03))
        found = packs.read(target)
        assert_same(found, both[found.config.seed - 1])
    assert packs.find(str(tmp_path)) == target


def test_a_writer_killed_before_the_rename_leaves_the_old_pack(server, tmp_path, pack):
    folder, target = str(tmp_path), str(tmp_path / packs.FILE_NAME)
    server.kill("write_and_die", target)
    assert folder in message_of(packs.find, folder)
    packs.write(target, pack)
    server.kill("write_and_die", target)
    assert_same(packs.read(target), pack)
    left = sorted(set(os.listdir(folder)) - {packs.FILE_NAME})
    assert len(left) == 2 and not any(packs.is_pack(name) for name in left)


# ------------------------------------------------------------------------------------------- foreign and damaged files


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


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"1234567", b"12345678", b"<html>404 Not found</html>\n" * 9, "Grüße\n".encode("utf-16"), b"\0" * 4096]
    + [b"\xff" * 64, b"PK\x03\x04" * 50, b"\x80\x04\x95" * 50]
    + [safetensors.numpy.save({"a": np.zeros(2)}, metadata) for metadata in (None, {"format": "pt"}, {"a": "b"})]
    + [sign(header) for header in (b"", b"{}", b"[]", b"null", b"{" * 100000, b"[" * 100000, b"\xff\xfe")]
    + [sign(json.dumps({"__metadata__": value}).encode()) for value in ([], 3, {packs.METADATA_KEY: 3})]
    + [
        sign(json.dumps({"__metadata__": {packs.METADATA_KEY: text}}).encode())
        for text in ("", "[]", "3", "null", "{", "[" * 100000, "NaN")
    ],
    ids=lambda data: str(data[:20]),
)
def test_a_file_of_another_kind_is_not_a_pack(rejection, path, data):
    assert "not an adapter pack" in rejection(data)
    message_of(packs.read_config, path)


@pytest.mark.parametrize("size", [0, 1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_wrong_length_of_the_header_is_detected(rejection, path, content, size):
    assert "not an adapter pack" in rejection(struct.pack("<Q", size) + content[8:])
    message_of(packs.read_config, path)


def test_a_file_that_is_cut_off_is_reported_with_its_length(rejection, content):
    (size,) = struct.unpack("<Q", content[:8])
    assert_mentions(rejection(content[:100]), 8 + size, 100)
    assert_mentions(rejection(content[:-1]), len(content) - 1, "incomplete")
    assert_mentions(rejection(content + b"\n"), len(content) + 1)


@pytest.mark.parametrize("checksum", [None, 0, "", "0", "0" * 63, "f" * 64, "F" * 64, [], {}], ids=repr)
def test_a_wrong_checksum_is_detected(rejection, content, checksum):
    assert "checksum" in rejection(join(*split(content), checksum=checksum))
    right = split(content)[0]["checksum"]
    assert "checksum" in rejection(content.replace(right.encode(), right.upper().encode()))


def assert_rejected(path: str, data: bytes) -> None:
    """Check that a file is rejected; its header alone may still be readable."""
    write_file(path, data)
    assert_mentions(message_of(packs.read, path), path)
    try:
        assert isinstance(packs.read_config(path), packs.PackConfig)
    except UserError as error:
        assert path in str(error)


def test_a_change_of_any_byte_is_detected(path, content):
    assert len(content) > 3000
    for place in range(len(content)):
        mask = 1 << place % 8 if place % 2 else 1 + place % 255
        assert_rejected(path, content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :])


@FUZZ
@hypothesis.given(st.data())
def test_any_other_damage_is_detected(path, content, data):
    """Bytes are removed, inserted, overwritten, repeated or moved."""
    places = st.integers(0, len(content))
    start, end, other = (data.draw(places) for _ in range(3))
    new = data.draw(st.binary(max_size=40) | st.just(content[min(start, other) : max(start, other)]))
    damaged = content[:start] + new + content[end:]
    hypothesis.assume(damaged != content)
    assert_rejected(path, damaged)


# ---------------------------------------------------------------------------- a valid checksum and wrong content

FIELDS = [field.name for field in dataclasses.fields(packs.PackConfig)]


@pytest.mark.parametrize("key", FIELDS)
def test_a_missing_key_is_named(rejection, content, key):
    values, entries, numbers = split(content)
    del values[key]
    assert_mentions(rejection(join(values, entries, numbers)), repr(key))


@pytest.mark.parametrize(
    "changes, facts",
    [({"format": version}, [repr(version), "adapter-bert pack 1"]) for version in (None, 1, "adapter-bert pack 2", [])]
    + [({key: "x"}, [repr(key)]) for key in ("licence", "Task", "", "__class__", "self")]
    + [
        ({key: value}, [key, repr(value)])
        for key, values in {
            "task": [3, None],
            "architecture": [None, "bert-base", [["hidden_size", 4]]],
            "tuning_mode": [["adapter"]],
            "head": [None],
            "labels": [None, "01", {"0": 0}],
            "tokenizer": [None],
            "max_seq_length": ["4", 4.0, True, None],
            "base": [5],
            "created": [2024],
            "adapter": [2],
            "tune_top_layers": [True],
            "metrics": [None, [0.5]],
            "loss": ["0.5", True],
            "collapsed": [0],
            "seed": [1.5, False],
            "step": [None],
            "training": [[]],
            "versions": ["1.15"],
            "origin": ["here"],
        }.items()
        for value in values
    ]
    + [
        ({"architecture": dict(SMALLEST, **changes)}, facts)
        for changes, facts in (
            ({"num_hidden_layers": 0}, ["num_hidden_layers", 0]),
            ({"num_hidden_layers": -1}, ["num_hidden_layers", -1]),
            ({"num_hidden_layers": 1.0}, ["num_hidden_layers", 1.0]),
            ({"num_hidden_layers": 10**9}, [10**9]),
            ({"num_hidden_layers": 7**100}, [7**100]),
            ({"num_hidden_layers": 2}, ["16 of 20", "bert/encoder/layer_1/"]),
            ({"hidden_size": 0}, ["hidden_size", 0]),
            ({"hidden_size": 5}, ["hidden_size 5", "num_attention_heads 2"]),
            ({"hidden_size": 8}, ["[4]", "[8]"]),
            ({"hidden_size": 10**30}, [packs.METADATA_KEY]),
            ({"vocab_size": None}, ["vocab_size", None]),
            ({"vocab_size": 10**30}, [packs.METADATA_KEY]),
            ({"hidden_act": "sine"}, ["sine"]),
            ({"hidden_dropout_prob": 1}, ["hidden_dropout_prob"]),
            ({"initializer_range": float("nan")}, ["initializer_range", "nan"]),
            ({"check": 3}, [packs.METADATA_KEY]),
            ({"__class__": "dict"}, [packs.METADATA_KEY]),
            ({"__dict__": {}}, [packs.METADATA_KEY]),
        )
    ]
    + [
        ({"adapter": adapter}, facts)
        for adapter, facts in (
            (None, ["adapter", None]),
            ({}, ["[1, 2]", "[1, 64]"]),
            ({"size": 0}, ["size", 0]),
            ({"size": "2"}, ["size", "'2'"]),
            ({"size": 3}, ["[1, 2]", "[1, 3]"]),
            ({"size": 10**30}, [packs.METADATA_KEY]),
            ({"size": 2, "kind": "houlsby"}, ["kind"]),
            ({"size": 2, "layers": []}, ["layers", "[]"]),
            ({"size": 2, "layers": [0, 0]}, ["layers", "[0, 0]"]),
            ({"size": 2, "layers": [1]}, ["layer 1"]),
            ({"size": 2, "layers": "all"}, ["layers"]),
            ({"size": 2, "placement": "pfeiffer"}, ["pfeiffer"]),
            ({"size": 2, "placement": "attention"}, ["4 tensors"]),
            ({"size": 2, "activation": "sine"}, ["sine"]),
            ({"size": 2, "activation": None}, [packs.METADATA_KEY]),
            ({"size": 2, "activation": []}, [packs.METADATA_KEY]),
            ({"size": 2, "init_scale": -1}, [-1]),
            ({"size": 2, "init_scale": None}, [None]),
        )
    ]
    + [
        ({"tuning_mode": "lora"}, ["lora"]),
        ({"tuning_mode": "lora", "adapter": None}, ["lora"]),
        ({"tuning_mode": "head"}, ["head", "adapter"]),
        ({"tuning_mode": "head", "adapter": None}, ["14 tensors", "bert/embeddings/LayerNorm"]),
        ({"tuning_mode": "layer_norm", "adapter": None}, ["8 tensors", "8 of mode layer_norm"]),
        ({"tuning_mode": "full", "adapter": None}, ["8 of 25", "17 missing"]),
        ({"tune_top_layers": 1}, ["top_layers", 1]),
        ({"tuning_mode": "top_layers", "adapter": None}, ["top_layers"]),
        ({"tuning_mode": "top_layers", "adapter": None, "tune_top_layers": 2}, [2, 1]),
        ({"tuning_mode": "top_layers", "adapter": None, "tune_top_layers": 0}, [0]),
        ({"head": "tagging"}, ["tagging"]),
        ({"head": "span"}, ["span", "2 labels"]),
        ({"head": "span", "labels": []}, ["2 missing", "cls/squad/output_weights"]),
        ({"head": "regression"}, ["regression", "2 labels"]),
        ({"head": "regression", "labels": []}, ["output_weights", "[2, 4]", "[1, 4]"]),
        ({"labels": []}, ["classification", "0 labels"]),
        ({"labels": ["0"]}, ["output_weights", "[2, 4]", "[1, 4]"]),
        ({"labels": ["0", "1", "2"]}, ["output_weights", "[2, 4]", "[3, 4]"]),
        ({"labels": ["0", "0"]}, ["labels", "['0', '0']"]),
        ({"labels": [0, 1]}, ["labels", "[0, 1]"]),
        ({"labels": ["0", None]}, ["labels", "None"]),
        ({"labels": [["0"], {}]}, ["labels", "{}"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else json.dumps(value)[:70],
)
def test_a_configuration_that_is_invalid_or_does_not_match_the_tensors_is_rejected(rejection, content, changes, facts):
    assert_mentions(rejection(with_config(content, **changes)), *facts)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("key", ["task", "created", "format", "base"])
def test_lone_surrogates_are_rejected_since_no_terminal_prints_them(rejection, content, path, key, text):
    assert "damaged" in rejection(with_config(content, **{key: text}))
    message_of(packs.read_config, path)


def test_missing_tensors_are_named(rejection, pack, content):
    assert len(pack.tensors) == 16
    for missing in pack.tensors:
        tensors = {name: tensor for name, tensor in pack.tensors.items() if name != missing}
        assert_mentions(rejection(with_tensors(content, tensors)), "15 of 16", missing)
    assert "16 missing" in rejection(with_tensors(content, {}))


@pytest.mark.parametrize(
    "name", ["surplus", "", "bert/pooler/dense/bias", "output_weights/adam_m", "global_step", "zé"]
)
def test_an_unknown_tensor_is_named(rejection, pack, content, name):
    tensors = dict(pack.tensors, **{name: np.zeros([4], np.float32)})
    assert_mentions(rejection(with_tensors(content, tensors)), "1 tensors", f"{name}:", 16)


def test_tensors_of_another_shape_are_named_with_both_shapes(rejection, pack, content):
    assert pack.tensors
    for name, tensor in pack.tensors.items():
        for other in (tensor[..., None], tensor[..., :-1], np.concatenate([tensor, tensor]), tensor[:0]):
            message = rejection(with_tensors(content, dict(pack.tensors, **{name: np.ascontiguousarray(other)})))
            assert_mentions(message, name, list(other.shape), list(tensor.shape))
    name = "bert/encoder/layer_0/output/adapters/weights1"
    transposed = dict(pack.tensors, **{name: np.ascontiguousarray(pack.tensors[name].T)})
    assert_mentions(rejection(with_tensors(content, transposed)), name, [2, 4], [4, 2])


@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "int64", "bool"])
def test_tensors_of_another_type_are_named(rejection, pack, content, kind):
    for name in ("output_bias", "bert/encoder/layer_0/output/adapters/weights1"):
        message = rejection(with_tensors(content, dict(pack.tensors, **{name: pack.tensors[name].astype(kind)})))
        assert_mentions(message, name, kind, "float32")


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "U32", "f32", "", None, 3], ids=str)
def test_types_that_numpy_may_not_have_are_rejected(rejection, content, kind):
    values, entries, numbers = split(content)
    rejection(join(values, {name: dict(entry, dtype=kind) for name, entry in entries.items()}, numbers))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_nan_and_infinity_are_located(rejection, pack, content, value):
    assert pack.tensors
    for name, tensor in pack.tensors.items():
        bad = tensor.copy()
        bad.flat[-1] = value
        assert_mentions(
            rejection(with_tensors(content, dict(pack.tensors, **{name: bad}))), name, f"1 of {tensor.size}"
        )


def assert_rejected_or_consistent(path: str, data: bytes) -> bool:
    """Check that a file with a valid checksum is rejected, or holds exactly what its configuration requires."""
    write_file(path, data)
    try:
        found = packs.read(path)
    except UserError as error:
        assert path in str(error)
        return False
    assert found.shapes() == reference_shapes(found.config)
    assert all(tensor.dtype == np.float32 and np.isfinite(tensor).all() for tensor in found.tensors.values())
    assert repr(packs.read_config(path)) == repr(found.config)  # NaN does not equal itself
    return True


JSON_VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, -1, 3.5, 10**9, 10**30, float("nan"), float("inf")])
    | st.sampled_from(["", "0", "\ud800", "relu", "gelu", "adapter", "head", "F16"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "size"]), inner, max_size=2),
    max_leaves=4,
)


@FUZZ
@hypothesis.given(st.data())
def test_an_edited_configuration_is_rejected_or_matches_the_tensors(path, content, data):
    values, entries, numbers = split(content)
    values["adapter"] = dict({"activation": "gelu", "init_scale": 0.01, "placement": "both"}, **values["adapter"])
    edited = data.draw(st.sampled_from([values, values["architecture"], values["adapter"], values["metrics"]]))
    key = data.draw(st.sampled_from(sorted(edited)))
    edited[key] = data.draw(JSON_VALUES)
    if data.draw(st.booleans()):
        del edited[key]
    assert_rejected_or_consistent(path, join(values, entries, numbers))


@FUZZ
@hypothesis.given(st.data())
def test_an_edited_header_is_rejected_or_matches_the_tensors(path, content, data):
    values, entries, numbers = split(content)
    first, second = (data.draw(st.sampled_from(sorted(entries))) for _ in range(2))
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "note"]))
    entries[first], entries[second] = entries[second], entries[first]
    offsets = st.lists(st.sampled_from([0, 4, -4, 8, 2**63, 0.5, "0"]), min_size=1, max_size=2)
    entries[first][key] = data.draw(JSON_VALUES | offsets | st.just(entries[second].get(key)))
    assert_rejected_or_consistent(path, join(values, entries, numbers))


def test_tensors_of_the_same_shape_may_be_swapped_and_no_name_may_occur_twice(path, rejection, content):
    values, entries, numbers = split(content)
    one, other = (f"bert/embeddings/LayerNorm/{kind}" for kind in ("beta", "gamma"))
    swapped = dict(entries, **{one: entries[other], other: entries[one]})
    assert assert_rejected_or_consistent(path, join(values, swapped, numbers))
    data = join(values, dict(entries, twice=entries[one]), numbers)
    (size,) = struct.unpack("<Q", data[:8])
    checksum = split(data)[0]["checksum"].encode()
    header = data[8 : 8 + size].replace(b'"twice"', json.dumps(one).encode())
    assert_rejected_or_consistent(path, sign(header.replace(checksum, ZEROS.encode()), numbers))


@FUZZ
@hypothesis.given(place=st.integers(8, 10**6), byte=st.integers(0, 255))
def test_damage_with_a_new_checksum_is_rejected_or_consistent(path, content, place, byte):
    """As if a tool had read a damaged file and written it again."""
    checksum = split(content)[0]["checksum"].encode()
    plain = content.replace(checksum, ZEROS.encode())
    (size,) = struct.unpack("<Q", content[:8])
    place = 8 + place % (len(plain) - 8)
    data = plain[:place] + bytes([byte]) + plain[place + 1 :]
    assert_rejected_or_consistent(path, sign(data[8 : 8 + size], data[8 + size :]))


# ------------------------------------------------------------------------------------------- other models and bases


@pytest.mark.parametrize("change", [{"num_attention_heads": 4}, {"hidden_act": "relu"}])
def test_an_architecture_that_does_not_show_in_the_shapes_is_compared(change):
    pack = make_pack()
    packs.check_architecture(pack, "mine", dict(pack.config.architecture, hidden_dropout_prob=0.3), "base")
    message = message_of(packs.check_architecture, pack, "mine", dict(pack.config.architecture, **change), "other")
    assert_mentions(message, "mine", "other", *change, *change.values())


def test_adapters_are_compared_except_for_their_initialisation():
    pack = make_pack()
    own = pack.config.adapter_config
    packs.check_adapter(pack, "mine", dataclasses.replace(own, init_scale=0.5))
    for other in (dataclasses.replace(own, activation="relu"), None):
        assert_mentions(message_of(packs.check_adapter, pack, "mine", other), "mine", "gelu")
    packs.check_adapter(make_pack(mode="head"), "mine", own)  # it has no adapters; those of the model may be new


@pytest.fixture(scope="module")
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


@pytest.fixture(scope="module")
def base_tensors(base) -> dict:
    return base.tensors()


def nudged(tensors, name: str) -> dict:
    """Return the tensors with the least possible change of one number."""
    tensor = tensors[name].copy()
    tensor.flat[tensor.size // 2] = np.nextafter(tensor.flat[tensor.size // 2], np.float32(9))
    return dict(tensors, **{name: tensor})


FROZEN_MODES = [mode for mode in MODES if mode != "full"]


def test_a_base_is_read_with_all_its_variables(base, base_tensors):
    shapes = {name: tensor.shape for name, tensor in base_tensors.items()}
    assert shapes == base.shapes() == reference_model.bert_shapes(base.config().to_dict())
    assert base.digests() == fingerprints.of_tensors(base_tensors)


@pytest.mark.parametrize("mode", MODES)
def test_a_pack_belongs_to_the_base_that_it_was_trained_on(tmp_path, base, mode):
    pack = make_pack(base, mode=mode)
    packs.check_base(pack, "p", base.digests(), "b")
    write_bert(str(tmp_path), tiny_config())  # the seed of the fixture
    packs.check_base(pack, "p", bases.Base.find(str(tmp_path)).digests(), "copy")


@pytest.mark.parametrize("mode", FROZEN_MODES)
def test_a_change_of_any_frozen_variable_makes_another_base(base, base_tensors, mode):
    pack, digests = make_pack(base, mode=mode), base.digests()
    names = frozen(pack.config)
    assert names
    for name in names:
        other = dict(digests, **{name: fingerprints.of_tensor(nudged(base_tensors, name)[name])})
        message = message_of(packs.check_base, pack, "cola.safetensors", other, "other/base")
        assert_mentions(message, "cola.safetensors", "CoLA", "other/base", pack.config.base)


@pytest.mark.parametrize("mode, count", [("adapter", 10), ("layer_norm", 10), ("top_layers", 18), ("full", 39)])
def test_variables_that_a_pack_replaces_may_differ_in_the_base(base, base_tensors, mode, count):
    pack, digests = make_pack(base, mode=mode), base.digests()
    replaced = [name for name in base_tensors if name in reference_shapes(pack.config)]
    assert len(replaced) == count
    for name in replaced:
        other = dict(digests, **{name: fingerprints.of_tensor(nudged(base_tensors, name)[name])})
        packs.check_base(pack, "p", other, "b")


@pytest.mark.parametrize("mode", FROZEN_MODES)
def test_a_base_of_another_size_is_rejected_even_if_the_weights_agree(base, base_tensors, mode):
    pack = make_pack(base, mode=mode)
    name = "bert/embeddings/word_embeddings"
    digests = {key: digest for key, digest in base.digests().items() if key != name}
    assert name in message_of(packs.check_base, pack, "p", digests, "b")
    for changes, facts in (
        ({"num_hidden_layers": 1}, ["2 layers", 1]),
        ({"num_hidden_layers": 3}, ["2 layers", 3]),
        ({"hidden_size": 8}, [pack.config.base]),
        ({"vocab_size": 99}, [pack.config.base]),
        ({"max_position_embeddings": 64}, [pack.config.base]),
    ):
        shapes = reference_model.bert_shapes(dict(pack.config.architecture, **changes))
        tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        tensors.update({n: t for n, t in base_tensors.items() if shapes.get(n) == t.shape})
        assert_mentions(message_of(packs.check_base, pack, "p", fingerprints.of_tensors(tensors), "other"), *facts)


def test_only_a_pack_without_frozen_variables_needs_no_base(base):
    packs.check_base(make_pack(base, mode="full"), "p", {}, "nothing")
    for mode, claimed in (("adapter", None), ("adapter", ""), ("adapter", "sha256:0"), ("full", "sha256:0")):
        pack = make_pack(base, mode=mode, base=claimed)
        assert "another base" in message_of(packs.check_base, pack, "p", base.digests(), "b")


def test_a_fingerprint_depends_on_name_type_shape_and_value_but_not_on_order():
    ones = np.ones([2, 3], np.float32)
    others = [ones.astype(np.float64), ones.T, ones.reshape(6), ones[:1], ones * 2, np.zeros([2, 3], np.float32)]
    assert fingerprints.of_tensor(ones) == fingerprints.of_tensor(np.asfortranarray(ones))
    assert fingerprints.of_tensor(ones) == fingerprints.of_rows(list(ones))
    assert len({fingerprints.of_tensor(tensor) for tensor in [ones] + others}) == 1 + len(others)
    assert fingerprints.combine({"a": "1", "b": "2"}) == fingerprints.combine({"b": "2", "a": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}) != fingerprints.combine({"a": "2", "b": "1"})
    assert fingerprints.combine({"a": "1", "b": "2"}, ["a"]) == fingerprints.combine({"a": "1"})
