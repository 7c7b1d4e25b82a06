"""Tests of the reader of JSON."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence, Tuple

import pytest

from adapter_bert.common import files, json_files
from tests.helpers import assert_mentions, message_of, write_file


def test_json_objects_are_written_and_read_with_null_for_numbers_that_are_not_finite(tmp_path):
    path = str(tmp_path / "a.json")
    files.write_json(path, {"a": float("nan"), "b": [1.5, float("inf"), "ü"]})
    assert json_files.read_object(path) == {"a": None, "b": [1.5, None, "ü"]}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff{}"])
def test_a_missing_file_or_other_content_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "a.json"
    assert_mentions(message_of(json_files.read_object, str(path)), path)
    path.write_bytes(content)
    assert_mentions(message_of(json_files.read_object, str(path), "Ask again."), path, "is damaged", "Ask again.")


HOSTILE = {
    "nested lists": ("[" * 100_000 + "]" * 100_000, "nest"),
    "nested objects": ('{"a":' * 70 + "1" + "}" * 70, "64 nested"),
    "an integer of 400 digits": ("[" + "9" * 400 + "]", "400 digits"),
    "an integer of a million digits": ("9" * 1_000_000, "1000000 digits"),
    "two values": ("{} {}", "Extra data"),
    "a single quote": ("{'a': 1}", "line 1 column 2"),
}


@pytest.mark.parametrize("text, fact", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_text_is_an_error_that_names_its_place(tmp_path, text, fact):
    message = message_of(json_files.parse, text, "data.jsonl, line 3", "Ask again.")
    assert_mentions(message, "data.jsonl, line 3", "Ask again.")
    assert fact in message or "recursion" in message
    path = write_file(tmp_path, "a.json", '{"key": ' + text + "}")
    assert_mentions(message_of(json_files.read_object, path), path)


def test_values_within_the_limits_are_unchanged():
    content = {
        "deep": json.loads("[" * 60 + "]" * 60),
        "wide": [[1]] * 1000,
        "long": 10**99,
        "text": "ü[{",
        "none": None,
    }
    assert json_files.parse(json.dumps(content), "here") == content
    assert json_files.parse(b"\xef\xbb\xbf[1, 2.5]", "here") == [1, 2.5]


def test_lone_surrogates_are_errors_except_in_data(tmp_path):
    path = write_file(tmp_path, "a.json", r'{"label": "\ud83d"}')
    assert_mentions(message_of(json_files.read_object, path), path, "not Unicode text")
    assert json_files.read_object(path, is_data=True) == {"label": "\ud83d"}
    pair = write_file(tmp_path, "b.json", r'{"label": "\ud83d\ude00"}')
    assert json_files.read_object(pair) == {"label": "\U0001f600"}


def test_a_file_that_is_too_large_is_not_parsed(tmp_path):
    path = tmp_path / "a.json"
    with open(path, "wb") as file:
        file.truncate(json_files.MAX_BYTES + 1)  # sparse
    assert_mentions(message_of(json_files.read_object, str(path)), path, f"{json_files.MAX_BYTES:,}")


TYPES = {
    "count": int,
    "rate": float,
    "name": Optional[str],
    "flag": bool,
    "labels": Sequence[str],
    "layers": Optional[Tuple[int, ...]],
    "scores": Mapping[str, Optional[float]],
    "other": Any,
}


@pytest.mark.parametrize(
    "name, values",
    {
        "count": [1.0, "1", True, None, [1], {}, 10**20, -(10**20)],
        "rate": ["0.5", True, None, float("inf"), float("nan"), 10**99 * 10**99 * 10**99 * 10**99],
        "name": [1, True, ["a"], {"a": 1}],
        "flag": [0, 1, "true", None],
        "labels": ["abc", {"a": 1}, None, ["a", 1], ["a", None]],
        "layers": [3, "0", [0, 1.0], [True]],
        "scores": [[], None, {"f1": "0.5"}, {"f1": [0.5]}],
    }.items(),
)
def test_a_value_of_another_type_is_an_error_that_names_the_key(name, values):
    for value in values:
        message = message_of(json_files.check_types, {name: value}, {name: TYPES[name]}, "a.json")
        assert_mentions(message, f"a.json: {name}", "expected")


def test_values_of_the_right_types_are_accepted():
    values = {"count": 2**63 - 1, "rate": 1, "name": "a", "flag": True, "labels": ["a"], "layers": [0, 1], "other": [1]}
    json_files.check_types({**values, "scores": {"f1": None, "em": 1}, "unknown": 1}, TYPES, "a.json")
    json_files.check_types({}, {"name": Optional[str], "layers": Optional[Tuple[int, ...]], "other": Any}, "a.json")


def test_long_values_are_shortened_in_messages():
    message = message_of(json_files.check_type, ["x" * 1000] * 1000, int, "a.json: count")
    assert_mentions(message, "a.json: count", "expected an integer")
    assert len(message) < 150
