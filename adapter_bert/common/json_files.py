"""Read JSON that may be damaged or hostile: one reader and one kind of error.

read_object               a file with a JSON object
parse                     JSON text from elsewhere
check_type, check_types   values of the expected types
"""

from __future__ import annotations

import collections.abc
import json
import re
import sys
from typing import Any, Dict, Mapping, Union

from adapter_bert.common import errors, files

# More than any real file has. Values within these limits can be copied, printed and converted without failures.
MAX_DEPTH = 64
MAX_DIGITS = 100
# Parsing takes up to 25 times this much memory.
MAX_BYTES, MAX_DATA_BYTES = 2**26, 2**32
MAX_INT = 2**63 - 1

_ADVICE = "Restore the file, or use another folder."
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object"}
_CONTAINERS = {tuple: list, collections.abc.Sequence: list, collections.abc.Mapping: dict}


def read_object(path: str, advice: str = _ADVICE, is_data: bool = False) -> Dict[str, Any]:
    """Read a JSON object; raise a `UserError` that ends with `advice` if the file contains anything else.

    `is_data` is for data sets, which may be large and contain lone surrogates.
    """
    data = files.read_bytes(path, f"Cannot read {path}", MAX_DATA_BYTES if is_data else MAX_BYTES)
    content = parse(data, path, advice)
    if not isinstance(content, dict):
        raise errors.UserError(f"{path} is damaged: expected a JSON object, found {describe(content)}. {advice}")
    if not is_data and _SURROGATE.search(data):
        check_unicode(content, path)
    return content


def parse(text: Union[str, bytes], where: str, advice: str = _ADVICE) -> Any:
    """Parse JSON from the place `where`, e.g. `data.jsonl, line 3`; raise a `UserError` that ends with `advice`."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        content = _DECODER.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(content)
    except (ValueError, RecursionError) as error:
        raise errors.UserError(f"{where} is damaged, or not JSON ({errors.reason(error)}). {advice}".strip()) from None
    return content


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; the maximum is {MAX_DIGITS}")
    return int(text)


_DECODER = json.JSONDecoder(parse_int=_parse_int)


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH):
        containers = [value.values() if isinstance(value, dict) else value for value in level]
        level = [item for items in containers for item in items if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"more than {MAX_DEPTH} nested lists and objects")


def check_unicode(content: Any, where: str) -> None:
    """Raise a `UserError` for lone surrogates, which cannot be printed or written to a file."""
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.UserError(f"{where} is damaged: a string is not Unicode text ({errors.reason(error)}).") from None


def check_types(content: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    """Check that each key of `hints`, e.g. those of a dataclass, has a value of that type; a missing key is None."""
    for name, hint in hints.items():
        check_type(content.get(name), hint, f"{where}: {name}")


def check_type(value: Any, hint: Any, where: str) -> None:
    """Raise a `UserError` that starts with `where` unless a value from JSON has the type `hint`, at every level.

    Types are e.g. `int`, `Optional[str]` and `Mapping[str, Sequence[float]]`. Numbers must be finite, integers must
    fit in 64 bits.
    """
    args: Any = getattr(hint, "__args__", None) or ()
    if type(None) in args:  # Optional[…]
        if value is not None:
            check_type(value, args[0], where)
        return
    if hint is Any:
        return
    kind = getattr(hint, "__origin__", hint)
    kind = _CONTAINERS.get(kind, kind)
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind in (int, float) and not abs(value) <= (MAX_INT if kind is int else sys.float_info.max)):
        raise errors.UserError(f"{where} is {describe(value)}; expected {_NAMES.get(kind, 'a list')}.")
    items = value.items() if kind is dict else enumerate(value) if kind is list else ()
    for key, item in items:
        check_type(item, args[1 if kind is dict else 0], f"{where}, {describe(key)}")


def describe(value: Any) -> str:
    """Return a value as JSON, shortened to fit in a one-line message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"
