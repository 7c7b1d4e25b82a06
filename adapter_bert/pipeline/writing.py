"""Features -> records -> TFRecord files that are whole or not there.

A record is a `tf.train.Example`. Its bytes are put together here: they are a few nested fields, and building the
message in Python takes several times as long as tokenising the text that is in it.
"""

from __future__ import annotations

import functools
import itertools
import struct
import uuid
import zlib
from typing import Any, Iterable, Iterator, List, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

Files = Union[str, Sequence[str]]  # the path of a TFRecord file, or several in their order

# Records of one file; of more, there are several files.
RECORDS_A_SHARD = 100000

# Fields of a message are a tag (number of the field * 8 + 2 for bytes), the length and the bytes. Written here are
# Example {1: Features}, Features {1: entry, …}, entry {1: name, 2: Feature}, Feature {2: FloatList or 3: Int64List},
# and both lists {1: the numbers, packed}.
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"


class _Varints(dict):
    """Integers -> their bytes in a message: seven bits in each, the lowest first, and the eighth if more follow."""

    def __missing__(self, value: int) -> bytes:
        rest = value if value >= 0 else value + (1 << 64)
        made = bytearray()
        while rest > 127:
            made.append(rest & 127 | 128)
            rest >>= 7
        made.append(rest)
        if 0 <= value < 1 << 17:  # ids of tokens and lengths; numbers that count examples would fill the memory
            self[value] = bytes(made)
        return bytes(made)


_VARINTS = _Varints()
_varint = _VARINTS.__getitem__


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


@functools.lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return _field(_FIRST, name.encode("utf-8"))


def _entry(name: str, values: Sequence[Union[int, float]]) -> bytes:
    """A feature under its name, as a field of `Features`."""
    if isinstance(values[0], float):
        tag, packed = _SECOND, struct.pack(f"<{len(values)}f", *values)
    else:
        tag, packed = _THIRD, _packed(values)
    numbers = _FIRST + _varint(len(packed)) + packed
    feature = tag + _varint(len(numbers)) + numbers
    entry = _name(name) + _SECOND + _varint(len(feature)) + feature
    return _FIRST + _varint(len(entry)) + entry


def _packed(values: Sequence[int]) -> bytes:
    try:
        small = bytes(values)
    except ValueError:  # some are below 0 or above 255
        return b"".join(map(_varint, values))
    return small if small.isascii() else b"".join(map(_varint, values))  # below 128, a number is its own byte


@functools.lru_cache(maxsize=1024)
def _integer(name: str, value: int) -> bytes:
    """The same for a single integer; classes come again and again."""
    return _entry(name, (value,))


def serialize(features: Any) -> bytes:
    """The record of an example's features, which have `as_lists`: name -> integers, or floats; not empty."""
    entries = [
        _integer(name, values[0]) if len(values) == 1 and type(values[0]) is int else _entry(name, values)
        for name, values in features.as_lists().items()
    ]
    return _field(_FIRST, b"".join(entries))


def write_serialized(records: Iterable[bytes], path: str) -> int:
    """Writes records as they come, under a temporary name, and renames the file when it is complete.

    Args:
      records: see `serialize`.
      path: where to.

    Returns:
      The number of records.
    """
    partial = _partial_name(path)
    try:
        count = _write(records, partial)
        tf.gfile.Rename(partial, path, overwrite=True)
    except BaseException:
        _remove([partial])
        raise
    return count


def write_records(features: Iterable[Any], path: str) -> int:
    """The same for features; returns their number."""
    return write_serialized(map(serialize, features), path)


def write_shards(records: Iterable[bytes], stem: str) -> List[str]:
    """Writes records as they come to files of `RECORDS_A_SHARD` each, under temporary names until all are complete.

    Args:
      records: see `serialize`.
      stem: what the paths start with.

    Returns:
      The files in the order of their records, one at least. A name tells which of how many files it is, the checksum of
      its bytes and the number of its records.
    """
    partials: List[str] = []
    counts: List[int] = []
    try:
        for shard in _shards(records):
            partials.append(_partial_name(stem))
            counts.append(_write(shard, partials[-1]))
        names = [
            f"{stem}-{index:05d}-of-{len(partials):05d}-{checksum(partial)}-{count}.tf_record"
            for index, (partial, count) in enumerate(zip(partials, counts))
        ]
        for partial, name in zip(partials, names):
            tf.gfile.Rename(partial, name, overwrite=True)
    except BaseException:
        _remove(partials)
        raise
    return names


def _shards(records: Iterable[bytes]) -> Iterator[Iterable[bytes]]:
    """Parts of the records, each to be used up before the next; the first may be empty."""
    records = iter(records)
    following: Tuple[bytes, ...] = tuple(itertools.islice(records, 1))
    while True:
        yield itertools.chain(following, itertools.islice(records, RECORDS_A_SHARD - len(following)))
        following = tuple(itertools.islice(records, 1))
        if not following:
            return


def checksum(path: str) -> str:
    """Eight digits that tell whether a file's bytes are those that were written."""
    value = 0
    with tf.gfile.GFile(path, "rb") as reader:
        for block in iter(lambda: reader.read(1 << 22), b""):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def _partial_name(path: str) -> str:
    return f"{path}.{uuid.uuid4().hex[:8]}.partial"


def _write(records: Iterable[bytes], path: str) -> int:
    count = 0
    with tf.python_io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
            count += 1
    return count


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        if tf.gfile.Exists(path):
            tf.gfile.Remove(path)
