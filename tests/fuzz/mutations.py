"""Hypothesis strategies for damaged and hostile files: valid files with a few changes, and arbitrary bytes."""

from __future__ import annotations

import copy
import json
import re
from typing import Any, Callable, List, Sequence, Tuple

from hypothesis import strategies as st

# Parts of the formats that are read, and text that has broken readers before.
TOKENS = [
    *(b"", b"\0", b"\xff", b"\n", b"\r", b"\r\n", b"\t", b'"', b"'", b",", b":", b"{", b"}", b"[", b"]", b"\\"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\\ud800", b"\\u0000", b"\x1b[31m"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-1", b"0", b"1e9", b"9" * 400, b"9" * 5000),
    *(b"[" * 3000, b'{"a":' * 3000, b"{" * 3000, b"," * 3000, b'"' * 3001, b"\t" * 3000, b"a" * 100000),
    *(b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"BZh9", b"\xfd7zXZ\x00", b"ustar\x0000", b"%PDF-", b"\x80\x04."),
    *(b"../", b"/etc/passwd", b"__metadata__", b"data_offsets", b"label", b"text", b"[UNK]", b"##"),
]
NUMBERS = [0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
# JSON texts that replace a value; Python would not write some of them.
JSON_TEXTS = [
    *("null", "true", "false", "0", "1", "-1", "2", "0.5", "-0.0", "1e9", "1000000000", "1e400", "-1e400", "NaN"),
    *("Infinity", "-Infinity", "9" * 400, "-" + "9" * 400, "9" * 5000, "1e-400", str(2**31), str(2**63), str(2**64)),
    *('""', '"5"', '"0"', '"a\\nb"', '"\\u001b[31m"', '"\\ud800"', '"\\u0000"', '"../x"', '"é"', '"LABEL_0"'),
    *("[]", "{}", "[[]]", "[null]", "[1]", '["a"]', '["a", "a"]', "[0, 1, 2, 3]", '{"a": 1}', '{"0": 0}', '{"": null}'),
    *("[" * 500 + "]" * 500, "[" * 20000 + "]" * 20000, '{"a":' * 20000 + "1" + "}" * 20000, '"' + "a" * 100000 + '"'),
    *("[" + "0," * 20000 + "0]", '{"a": 1, "a": 2}', "", ",", "}"),
]
KEYS = ["", "a", "0", "__class__", "to_dict", "vocab_size", "\ud800"]
Draw = Callable[[st.SearchStrategy], Any]
_DIGITS = re.compile(rb"\d+")


def _slice(draw: Draw, data: bytes, longest: int = 600) -> Tuple[int, int]:
    start = draw(st.integers(0, len(data)))
    return start, min(len(data), start + draw(st.integers(0, longest)))


def _flip(draw: Draw, data: bytes) -> bytes:
    place = draw(st.integers(0, len(data) - 1)) if data else 0
    return (
        data[:place]
        + bytes(each ^ (1 << draw(st.integers(0, 7))) for each in data[place : place + 1])
        + data[place + 1 :]
    )


def _overwrite(draw: Draw, data: bytes) -> bytes:
    start, _ = _slice(draw, data)
    new = draw(st.binary(min_size=1, max_size=8))
    return data[:start] + new + data[start + len(new) :]


def _overwrite_number(draw: Draw, data: bytes) -> bytes:
    start, size = _slice(draw, data)[0], draw(st.sampled_from([1, 2, 4, 8]))
    number = draw(st.sampled_from(NUMBERS)) % 2 ** (8 * size)
    return data[:start] + number.to_bytes(size, draw(st.sampled_from(["little", "big"]))) + data[start + size :]


def _replace_digits(draw: Draw, data: bytes) -> bytes:
    found = list(_DIGITS.finditer(data))
    if not found:
        return data
    match = found[draw(st.integers(0, len(found) - 1))]
    number = draw(st.sampled_from([*(str(each).encode() for each in NUMBERS), b"", b"1e400", b"9" * 400, b"x"]))
    return data[: match.start()] + number + data[match.end() :]


def _truncate(draw: Draw, data: bytes) -> bytes:
    return data[: _slice(draw, data)[0]]


def _remove(draw: Draw, data: bytes) -> bytes:
    start, end = _slice(draw, data)
    return data[:start] + data[end:]


def _repeat(draw: Draw, data: bytes) -> bytes:
    start, end = _slice(draw, data)
    return data[:end] + data[start:end] * draw(st.sampled_from([1, 1, 2, 100])) + data[end:]


def _insert(draw: Draw, data: bytes) -> bytes:
    start, _ = _slice(draw, data)
    return data[:start] + draw(st.sampled_from(TOKENS)) + data[start:]


def _replace(draw: Draw, data: bytes) -> bytes:
    start, end = _slice(draw, data, 20)
    return data[:start] + draw(st.sampled_from(TOKENS)) + data[end:]


def _move(draw: Draw, data: bytes) -> bytes:
    start, end = _slice(draw, data)
    place = draw(st.integers(0, len(data)))
    return data[:place] + data[start:end] + data[place:]


_CHANGES = (
    *(_flip, _overwrite, _overwrite_number, _replace_digits, _truncate),
    *(_remove, _repeat, _insert, _replace, _move),
)


@st.composite
def changed_bytes(draw: Draw, seeds: Sequence[bytes]) -> bytes:
    """Change one to four places of a valid file, or splice two files."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        data = draw(st.sampled_from(_CHANGES))(draw, data)
    if draw(st.integers(0, 9)) == 0:
        data += draw(st.sampled_from(seeds))[draw(st.integers(0, 2000)) :]
    return data


def _places(value: Any) -> List[Tuple[Any, Any]]:
    """Return (container, key) of every value in a JSON document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


@st.composite
def changed_json(draw: Draw, seeds: Sequence[bytes]) -> bytes:
    """Change one to three values or keys of a valid JSON document."""
    top = [json.loads(draw(st.sampled_from(seeds)).decode("utf-8"))]
    texts: List[str] = []
    for _ in range(draw(st.integers(1, 3))):
        places = _places(top)
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        change = draw(st.sampled_from(["text", "text", "text", "value", "remove", "copy", "key"]))
        if change == "text":
            texts.append(draw(st.sampled_from(JSON_TEXTS)))
            container[key] = f"@{len(texts) - 1}@"
        elif change == "value":
            container[key] = draw(_json_values)
        elif change == "copy":
            other, other_key = places[draw(st.integers(0, len(places) - 1))]
            container[key] = copy.deepcopy(other[other_key])
        elif change == "remove" and container is not top:
            del container[key]
        elif change == "key" and isinstance(container, dict):
            container[draw(st.sampled_from(["", "a", "0", "__class__", "to_dict", "vocab_size", "\ud800"]))] = (
                container[key]
            )
    data = json.dumps(top[0] if top else None, ensure_ascii=draw(st.booleans()))
    for number, text in enumerate(texts):
        data = data.replace(f'"@{number}@"', text, 1)
    return data.encode("utf-8", "surrogatepass")


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=10), children, max_size=4),
    max_leaves=8,
)


def inputs(seeds: Sequence[bytes], is_json: bool) -> st.SearchStrategy[bytes]:
    """Return a strategy for inputs of a reader whose valid inputs are `seeds`: mostly nearly valid ones."""
    if not is_json:
        return st.integers(0, 19).flatmap(lambda n: st.binary(max_size=300) if n == 0 else changed_bytes(seeds))
    arbitrary = _json_values.map(lambda value: json.dumps(value).encode())
    return st.integers(0, 19).flatmap(
        lambda n: arbitrary if n == 0 else changed_json(seeds) if n < 13 else changed_bytes(seeds)
    )
