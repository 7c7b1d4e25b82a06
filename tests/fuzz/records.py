"""TFRecord files: repair checksums, and read many files with one graph."""

from __future__ import annotations

import struct

import tensorflow.compat.v1 as tf

from adapter_bert.pipeline import batches, records


def _table() -> list:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> bytes:
    """Return the checksum of TFRecord files: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def sign(data: bytes) -> bytes:
    """Correct the checksums of a file; what does not look like a record stays as it is."""
    signed, position = b"", 0
    while position + 12 <= len(data):
        header = data[position : position + 8]
        end = position + 12 + struct.unpack("<Q", header)[0]
        if end + 4 > len(data):
            break
        content = data[position + 12 : end]
        signed += header + masked_crc(header) + content + masked_crc(content)
        position = end + 4
    return signed + data[position:]


class Pipeline:
    """Parses the records of a file as the input pipeline does, with one graph for all files.

    Starting the pipeline itself takes 0.1 s, because TensorFlow optimizes it each time.
    """

    def __init__(self, seq_length: int) -> None:
        with tf.Graph().as_default() as graph:
            serialized = tf.placeholder(tf.string, [None])
            widths = batches.bucket_widths(seq_length)
            parsed = [records.parser(widths, records.CLASS_LABEL)(serialized), records.read_lengths(serialized)]
            # Unlike `Session.run`, a callable does not add a stack trace to an error, which takes 0.1 s, too.
            self._parse = tf.Session(graph=graph).make_callable(parsed, [serialized])

    def read(self, path: str) -> None:
        """Read all records, in one batch."""
        self._parse(list(tf.python_io.tf_record_iterator(path)))
