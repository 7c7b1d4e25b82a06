"""Encode protocol buffers whose message classes are not installed."""

from __future__ import annotations

_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """Encode an integer, 7 bits to a byte, the lowest first; the highest bit marks that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found + bytes([value]))


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field with a string, bytes or a message."""
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(len(value)) + value
