"""A damaged, foreign or inconsistent pack is rejected with a reason."""

from __future__ import annotations

import dataclasses
import json
import struct

import hypothesis
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import strategies as st

from adapter_bert.common.errors import UserError
from adapter_bert.weights import packs
from tests.helpers import assert_mentions, message_of
from tests.weights.pack_files import (
    FUZZ,
    SMALLEST,
    ZEROS,
    join,
    reference_shapes,
    sign,
    split,
    with_config,
    with_tensors,
    write_file,
)

pytestmark = pytest.mark.smoke


@pytest.fixture
def rejection(path):
    """A function that returns the reason why a file with these bytes is rejected."""

    def message(data: bytes) -> str:
        write_file(path, data)
        found = message_of(packs.read, path)
        assert_mentions(found, path)
        return found

    return message


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
def test_a_key_that_is_missing_or_has_another_type_is_named(rejection, content, key):
    values, entries, numbers = split(content)
    wrong = 3 if isinstance(values[key], str) else "x"
    assert_mentions(rejection(with_config(content, **{key: wrong})), key, json.dumps(wrong))
    del values[key]
    assert_mentions(rejection(join(values, entries, numbers)), repr(key))


WRONG_TYPES = {"task": None, "max_seq_length": 4.0, "loss": True, "collapsed": 0, "seed": False, "metrics": [0.5]}
ARCHITECTURES = [
    ({"num_hidden_layers": 0}, ["num_hidden_layers", 0]),
    ({"num_hidden_layers": 7**100}, [7**100]),
    ({"num_hidden_layers": 2}, ["16 of 20", "bert/encoder/layer_1/"]),
    ({"hidden_size": 8}, ["[4]", "[8]"]),
    ({"hidden_size": 10**30}, [packs.METADATA_KEY]),
    ({"vocab_size": None}, ["vocab_size", None]),
    ({"check": 3}, [packs.METADATA_KEY]),
    ({"__dict__": {}}, [packs.METADATA_KEY]),
]
ADAPTERS = [
    (None, ["adapter", None]),
    ({}, ["[1, 2]", "[1, 64]"]),
    ({"size": 10**30}, [packs.METADATA_KEY]),
    ({"size": 2, "kind": "houlsby"}, ["kind"]),
    ({"size": 2, "layers": [1]}, ["layers", "1 layers"]),
    ({"size": 2, "placement": "attention"}, ["4 tensors"]),
    ({"size": 2, "activation": []}, [packs.METADATA_KEY]),
]


@pytest.mark.parametrize(
    "changes, facts",
    [({"format": version}, [repr(version), "adapter-bert pack 1"]) for version in (None, 1, "adapter-bert pack 2", [])]
    + [({key: "x"}, [repr(key)]) for key in ("licence", "Task", "", "__class__", "self")]
    + [({key: value}, [key, json.dumps(value)]) for key, value in WRONG_TYPES.items()]
    + [({"architecture": dict(SMALLEST, **changes)}, facts) for changes, facts in ARCHITECTURES]
    + [({"adapter": adapter}, facts) for adapter, facts in ADAPTERS]
    + [
        ({"tuning_mode": "lora", "adapter": None}, ["lora"]),
        ({"tuning_mode": "head"}, ["head", "adapter"]),
        ({"tuning_mode": "head", "adapter": None}, ["14 tensors", "bert/embeddings/LayerNorm"]),
        ({"tuning_mode": "layer_norm", "adapter": None}, ["8 tensors", "8 of mode layer_norm"]),
        ({"tuning_mode": "full", "adapter": None}, ["8 of 25", "17 missing"]),
        ({"tune_top_layers": 1}, ["top_layers", 1]),
        ({"tuning_mode": "top_layers", "adapter": None, "tune_top_layers": 2}, [2, 1]),
        ({"head": "tagging"}, ["tagging"]),
        ({"head": "span"}, ["span", "2 labels"]),
        ({"head": "span", "labels": []}, ["2 missing", "cls/squad/output_weights"]),
        ({"head": "regression", "labels": []}, ["output_weights", "[2, 4]", "[1, 4]"]),
        ({"labels": []}, ["classification", "0 labels"]),
        ({"labels": ["0", "1", "2"]}, ["output_weights", "[2, 4]", "[3, 4]"]),
        ({"labels": ["0", "0"]}, ["labels", "['0', '0']"]),
        ({"labels": [["0"], {}]}, ["labels", '["0"]']),
        # No terminal prints lone surrogates.
        ({"task": "a\udfffb"}, ["damaged"]),
        ({"format": "\ud800"}, ["damaged"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else json.dumps(value)[:70],
)
def test_a_configuration_that_is_invalid_or_does_not_match_the_tensors_is_rejected(rejection, content, changes, facts):
    assert_mentions(rejection(with_config(content, **changes)), *facts)


def with_last(tensor: np.ndarray, value: float) -> np.ndarray:
    changed = tensor.copy()
    changed.flat[-1] = value
    return changed


def test_a_tensor_that_is_missing_or_invalid_is_named(rejection, pack, content):
    assert len(pack.tensors) == 16
    for name, old in pack.tensors.items():
        others = {other: tensor for other, tensor in pack.tensors.items() if other != name}
        assert_mentions(rejection(with_tensors(content, others)), "15 of 16", name)
        for new, *facts in (
            (old[..., None], list(old.shape), [*old.shape, 1]),
            (old[..., :-1], list(old.shape)),
            (np.concatenate([old, old]), list(old.shape)),
            (old.astype(np.float16), "float16", "float32"),
            (old.astype(np.float64), "float64", "float32"),
            (old.astype(np.int32), "int32", "float32"),
            (with_last(old, np.nan), f"1 of {old.size}"),
            (with_last(old, -np.inf), f"1 of {old.size}"),
        ):
            tensors = dict(others, **{name: np.ascontiguousarray(new)})
            assert_mentions(rejection(with_tensors(content, tensors)), name, *facts)


@pytest.mark.parametrize("name", ["surplus", "", "bert/pooler/dense/bias", "global_step", "zé"])
def test_an_unknown_tensor_is_named(rejection, pack, content, name):
    tensors = dict(pack.tensors, **{name: np.zeros([4], np.float32)})
    assert_mentions(rejection(with_tensors(content, tensors)), "1 tensors", f"{name}:", 16)


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "U32", "f32", "", None, 3], ids=str)
def test_types_that_numpy_may_not_have_are_rejected(rejection, content, kind):
    values, entries, numbers = split(content)
    rejection(join(values, {name: dict(entry, dtype=kind) for name, entry in entries.items()}, numbers))


def assert_rejected_or_consistent(path: str, data: bytes) -> None:
    """Check that a file with a valid checksum is rejected, or holds exactly what its configuration requires."""
    write_file(path, data)
    try:
        found = packs.read(path)
    except UserError as error:
        assert path in str(error)
        return
    assert found.shapes() == reference_shapes(found.config)
    assert all(tensor.dtype == np.float32 and np.isfinite(tensor).all() for tensor in found.tensors.values())
    assert repr(packs.read_config(path)) == repr(found.config)  # NaN does not equal itself


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


def test_a_name_that_occurs_twice_is_rejected_or_consistent(path, content):
    values, entries, numbers = split(content)
    name = next(iter(entries))
    data = join(values, dict(entries, twice=entries[name]), numbers)
    (size,) = struct.unpack("<Q", data[:8])
    checksum = split(data)[0]["checksum"].encode()
    header = data[8 : 8 + size].replace(b'"twice"', json.dumps(name).encode())
    assert_rejected_or_consistent(path, sign(header.replace(checksum, ZEROS.encode()), numbers))
