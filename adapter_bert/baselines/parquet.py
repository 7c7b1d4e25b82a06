"""Read a column of texts from a Parquet file: one column, without nested or missing values.

Understands what the writers of Arrow use by default: Snappy or no compression, pages of dictionary entries and of
plain values. pyarrow would read it too, but is four times as large as TensorFlow's other dependencies together.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Tuple

_MAGIC = b"PAR1"
_DICTIONARY_PAGE, _DATA_PAGE = 2, 0
_PLAIN, _DICTIONARY_CODES = 0, (2, 8)
_SNAPPY, _UNCOMPRESSED = 1, 0
_MAX_BYTES = 2**28


def read_strings(data: bytes) -> List[str]:
    """Return the texts of the file's only column; raise a `ValueError` for files that this module cannot read."""
    if data[:4] != _MAGIC or data[-4:] != _MAGIC or len(data) < 12:
        raise ValueError("not a Parquet file")
    (size,) = struct.unpack("<I", data[-8:-4])
    metadata, _ = _struct(data, len(data) - 8 - size)
    found: List[str] = []
    for group in metadata[4]:
        if len(group[1]) != 1:
            raise ValueError(f"{len(group[1])} columns; expected one")
        found += _read_column(data, group[1][0][3])
    if len(found) != metadata[3]:
        raise ValueError(f"{len(found)} of {metadata[3]} rows")
    return found


def _read_column(data: bytes, column: Dict[int, Any]) -> List[str]:
    codec, count = column[4], column[5]
    place = min(offset for offset in (column.get(11), column[9]) if offset is not None)
    dictionary: List[str] = []
    values: List[str] = []
    while len(values) < count:
        header, place = _struct(data, place)
        page, place = data[place : place + header[3]], place + header[3]
        if codec not in (_SNAPPY, _UNCOMPRESSED) or header[2] > _MAX_BYTES:
            raise ValueError(f"compression {codec} or a page of {header[2]} bytes")
        page = unsnappy(page) if codec == _SNAPPY else page
        if header[1] == _DICTIONARY_PAGE:
            dictionary = _plain(page, header[7][1])
        elif header[1] == _DATA_PAGE:
            rows, encoding = header[5][1], header[5][2]
            (levels,) = struct.unpack_from("<I", page)  # all 1: no value is missing
            body = page[4 + levels :]
            if encoding == _PLAIN:
                values += _plain(body, rows)
            elif encoding in _DICTIONARY_CODES:
                values += [dictionary[code] for code in _codes(body[1:], body[0], rows)]
            else:
                raise ValueError(f"encoding {encoding}")
        else:
            raise ValueError(f"page type {header[1]}")
    return values


def _plain(page: bytes, count: int) -> List[str]:
    values, place = [], 0
    for _ in range(count):
        (size,) = struct.unpack_from("<I", page, place)
        values.append(page[place + 4 : place + 4 + size].decode("utf-8"))
        place += 4 + size
    return values


def _codes(data: bytes, width: int, count: int) -> List[int]:
    """Decode runs of equal numbers and groups of eight numbers of `width` bits."""
    codes: List[int] = []
    place, size = 0, (width + 7) // 8
    while len(codes) < count:
        header, place = _varint(data, place)
        if header & 1:
            length = (header >> 1) * width
            packed = int.from_bytes(data[place : place + length], "little")
            text = packed.to_bytes(length, "little")
            codes += _unpack(text, width, (header >> 1) * 8)
            place += length
        else:
            codes += [int.from_bytes(data[place : place + size], "little")] * (header >> 1)
            place += size
    return codes[:count]


def _unpack(data: bytes, width: int, count: int) -> List[int]:
    # Eight numbers take `width` bytes.
    mask, found = (1 << width) - 1, []
    for start in range(0, count // 8 * width, width):
        group = int.from_bytes(data[start : start + width], "little")
        found += [group >> width * index & mask for index in range(8)]
    return found


def unsnappy(data: bytes) -> bytes:
    """Decompress Snappy's block format."""
    size, place = _varint(data, 0)
    if size > _MAX_BYTES:
        raise ValueError(f"a page of {size} bytes")
    out = bytearray()
    while place < len(data):
        tag = data[place]
        place += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(data[place : place + extra], "little") + 1
                place += extra
            out += data[place : place + length]
            place += length
            continue
        if tag & 3 == 1:
            length, distance, extra = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[place], 1
        else:
            extra = 2 if tag & 3 == 2 else 4
            length, distance = (tag >> 2) + 1, int.from_bytes(data[place : place + extra], "little")
        place += extra
        if not 0 < distance <= len(out):
            raise ValueError("damaged Snappy data")
        start = len(out) - distance
        if distance >= length:
            out += out[start : start + length]
        else:  # the copy overlaps its source
            out += (out[start:] * (length // distance + 1))[:length]
    if len(out) != size:
        raise ValueError("damaged Snappy data")
    return bytes(out)


# --------------------------------------------------------------------------------------- Thrift's compact protocol


def _varint(data: bytes, place: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place


def _struct(data: bytes, place: int) -> Tuple[Dict[int, Any], int]:
    """Return field number -> value of a structure, and the place after it."""
    fields: Dict[int, Any] = {}
    number = 0
    while True:
        head, place = data[place], place + 1
        if not head:
            return fields, place
        if head >> 4:
            number += head >> 4
        else:
            zigzag, place = _varint(data, place)
            number = zigzag >> 1 ^ -(zigzag & 1)
        fields[number], place = _value(data, place, head & 15)


def _value(data: bytes, place: int, kind: int) -> Tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, place
    if kind == 3:
        return data[place], place + 1
    if kind in (4, 5, 6):
        zigzag, place = _varint(data, place)
        return zigzag >> 1 ^ -(zigzag & 1), place
    if kind == 7:
        return struct.unpack_from("<d", data, place)[0], place + 8
    if kind == 8:
        size, place = _varint(data, place)
        return data[place : place + size], place + size
    if kind in (9, 10):
        head, place = data[place], place + 1
        count = head >> 4
        if count == 15:
            count, place = _varint(data, place)
        items = []
        for _ in range(count):
            item, place = _value(data, place, head & 15) if head & 15 not in (1, 2) else (data[place] == 1, place + 1)
            items.append(item)
        return items, place
    if kind == 12:
        return _struct(data, place)
    raise ValueError(f"unknown type {kind} in the metadata")
