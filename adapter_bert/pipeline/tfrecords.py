"""Serialize features and write TFRecord files atomically.

A record is a `tf.train.Example`. This module encodes its bytes directly: building the message in Python takes several
times as long as tokenizing the text.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Union

import tensorflow.compat.v1 as tf

from adapter_bert.common import files

Files = Union[str, Sequence[str]]  # path of a TFRecord file, or of several in order
Values = Sequence[Union[int, float]]

RECORDS_PER_SHARD = 100000

# A field of a message is a tag (field number * 8 + 2 for bytes), the length and the bytes. The messages used here are
# Example {1: Features}, Features {1: entry, …}, entry {1: name, 2: Feature}, Feature {2: FloatList or 3: Int64List},
# and both lists {1: packed numbers}.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"


class _Varints(dict):
    """Integers -> their encoding: seven bits per byte, lowest first; the eighth bit is set if more bytes follow."""

    def __missing__(self, value: int) -> bytes:
        rest = value if value >= 0 else value + (1 << 64)
        encoded = bytearray()
        while rest > 127:
            encoded.append(rest & 127 | 128)
            rest >>= 7
        encoded.append(rest)
        if 0 <= value < 1 << 17:  # token ids and lengths; caching every example number would fill the memory
            self[value] = bytes(encoded)
        return bytes(encoded)


_varint = _Varints().__getitem__


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


@functools.lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return _field(_FIELD_1, name.encode("utf-8"))


def _entry(name: str, values: Values) -> bytes:
    """Encode a named feature as a field of `Features`."""
    if isinstance(values[0], float):
        tag, packed = _FIELD_2, struct.pack(f"<{len(values)}f", *values)
    else:
        tag, packed = _FIELD_3, _packed_integers(values)
    # Inlined instead of calling `_field`, because this runs for every feature of every example.
    numbers = _FIELD_1 + _varint(len(packed)) + packed
    feature = tag + _varint(len(numbers)) + numbers
    entry = _name(name) + _FIELD_2 + _varint(len(feature)) + feature
    return _FIELD_1 + _varint(len(entry)) + entry


def _packed_integers(values: Sequence[Any]) -> bytes:
    try:
        small = bytes(values)
    except ValueError:  # a value is below 0 or above 255
        return b"".join(map(_varint, values))
    return small if small.isascii() else b"".join(map(_varint, values))  # below 128, a number is its own encoding


@functools.lru_cache(maxsize=1024)
def _integer_entry(name: str, value: int) -> bytes:
    """Encode a feature of one integer. Cached, because class indices repeat."""
    return _entry(name, (value,))


def serialize(features: Mapping[str, Values]) -> bytes:
    """Return the record of an example's features: name -> integers, or floats; at least one."""
    entries = [
        _integer_entry(name, values[0]) if len(values) == 1 and type(values[0]) is int else _entry(name, values)
        for name, values in features.items()
    ]
    return _field(_FIELD_1, b"".join(entries))


def write_records(records: Iterable[bytes], path: str) -> int:
    """Write records to a file atomically; return their number."""
    with files.atomic_write(path) as temporary:
        return _write(records, temporary)


def write_shards(records: Iterable[bytes], stem: str) -> List[str]:
    """Write records to files of `RECORDS_PER_SHARD` each, under temporary names until all are complete.

    Returns:
      The paths in the order of their records, at least one: `<stem>-<index>-of-<total>-<records>-<bytes>.tf_record`.
    """
    records = iter(records)
    with contextlib.ExitStack() as stack:
        sizes: Dict[str, str] = {}  # temporary path -> number of records and bytes, as in the final name
        count = RECORDS_PER_SHARD
        while count == RECORDS_PER_SHARD:
            temporary = stack.enter_context(files.temporary_path(stem))
            count = _write(itertools.islice(records, RECORDS_PER_SHARD), temporary)
            if count or not sizes:
                sizes[temporary] = f"{count}-{files.size(temporary)}"
        paths = []
        for index, (temporary, size) in enumerate(sizes.items()):
            paths.append(f"{stem}-{index:05d}-of-{len(sizes):05d}-{size}.tf_record")
            files.rename(temporary, paths[-1])
    return paths


def _write(records: Iterable[bytes], path: str) -> int:
    count = 0
    with tf.python_io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
            count += 1
    return count
