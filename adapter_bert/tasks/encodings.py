"""Bytes of a file -> text: encodings found out or given, and what is no text refused."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from typing import Iterator, List, Optional, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.common.text import first_names

# Bytes that are read at a time of a file that is not held in memory.
BLOCK_SIZE = 1 << 20
LINE_END = re.compile(r"\r\n|\r|\n")
# UTF-32 comes first: its little-endian mark begins with that of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_FALLBACK_ENCODINGS = ("utf-8", "cp1252", "latin-1")
_ENCODING_NAMES = {"cp1252": "windows-1252 (cp1252)"}
_NO_TEXT = (
    (b"PK\x03\x04", "an Excel workbook (.xlsx) or another ZIP archive", "save the sheet as CSV, or unzip it"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel workbook (.xls)", "save the sheet as CSV"),
    (b"\x1f\x8b", "compressed with gzip", "decompress it (gunzip)"),
    (b"BZh91AY&SY", "compressed with bzip2", "decompress it (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed with xz", "decompress it (unxz)"),
    (b"%PDF-", "a PDF document", "export its table as CSV"),
    (b"PAR1", "a Parquet file", "export it as CSV or JSON lines"),
)


def read_bytes(path: str) -> bytes:
    """The contents of a file.

    Raises:
      errors.UserError: it cannot be read; says what lies in its folder.
    """
    with _opened(path) as reader:
        return reader.read()


def read_line_blocks(path: str) -> Iterator[bytes]:
    """Yields the contents of a file in blocks of whole lines: each but the last ends with a line feed.

    Raises:
      errors.UserError: it cannot be read; says what lies in its folder.
    """
    started: List[bytes] = []  # of a line whose end is yet to come
    with _opened(path) as reader:
        for block in iter(lambda: reader.read(BLOCK_SIZE), b""):
            lines, line_feed, rest = block.rpartition(b"\n")
            if line_feed:
                yield b"".join([*started, lines, line_feed])
                started = []
            started.append(rest)
    if any(started):
        yield b"".join(started)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tf.gfile.GFile]:
    try:
        with tf.gfile.GFile(path, "rb") as reader:
            yield reader
    except tf.errors.OpError as error:
        folder = os.path.dirname(path) or "."
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(f"The data folder {folder} does not exist.") from None
        names = sorted(tf.gfile.ListDirectory(folder))
        present = first_names(names, 10)
        reason = "does not exist" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise errors.UserError(f"The data file {path} {reason}; the folder holds: {present}.") from None


def decode_utf8(data: bytes, path: str) -> str:
    """The text of a file that is UTF-8 by its published layout; a byte order mark is dropped.

    Raises:
      errors.UserError: it is not; says where, and what it may be.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count in what was decoded: the data without its byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise errors.UserError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; if the file is "
            f"{_first_encoding(data)}, convert it: iconv -f {_first_encoding(data)} -t utf-8."
        ) from None


def decode(data: bytes, path: str, encoding: Optional[str]) -> Tuple[str, Optional[str]]:
    """The text, and a note on how it was read where it is not UTF-8 and no encoding was given."""
    _check_is_text(data, path)
    # Some programs write this mark in front of other encodings too; it is never part of the text.
    marked = data.startswith(codecs.BOM_UTF8)
    data = data[len(codecs.BOM_UTF8) :] if marked else data
    note = None
    if encoding:
        text = _decode_as(data, path, encoding)
    else:
        text, note = _decode_detected(data, path, marked)
    if "\0" in text:
        raise errors.UserError(_nul_message(data, path))
    return text[1:] if text.startswith("\ufeff") else text, note


def _decode_detected(data: bytes, path: str, marked: bool) -> Tuple[str, Optional[str]]:
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            note = f"line 1: byte 0x{data[0]:02x} is not UTF-8 but begins a byte order mark; read as {name}"
            return _decode_as(data, path, name), note
    if marked:
        return _decode_as(data, path, "utf-8"), None
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        taken = _first_encoding(data)
        name = _ENCODING_NAMES.get(taken, taken)
        line = _line_of(data, error.start, "utf-8")
        return data.decode(taken), f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; read as {name}"


def _decode_as(data: bytes, path: str, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except LookupError:
        raise errors.UserError(
            f"Unknown --encoding '{encoding}'. Names that Python knows are expected, e.g. utf-8, utf-16, cp1252, "
            "latin-1, mac-roman, shift_jis, gb18030."
        ) from None
    except UnicodeError as error:
        found = "its bytes are"
        if isinstance(error, UnicodeDecodeError):
            line = _line_of(data, error.start, encoding)
            found = f"byte 0x{data[error.start]:02x} is" if error.start < len(data) else "the file's end is"
            path = f"{path}, line {line}"
        raise errors.UserError(
            f"{path}: {found} not {encoding}; this encoding decodes the file: --encoding={_first_encoding(data)}."
        ) from None


def _first_encoding(data: bytes) -> str:
    """The first of the fallbacks that decodes the data; the last of them decodes anything."""
    for encoding in _FALLBACK_ENCODINGS:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(encoding)
            return encoding
    raise AssertionError("latin-1 has a character for every byte")


def _line_of(data: bytes, position: int, encoding: str) -> int:
    """The line, from 1, of a byte; line feeds, carriage returns and pairs of them end lines."""
    try:
        before = data[:position].decode(encoding, "replace")
    except UnicodeError:  # A few of Python's encodings cannot pass over what they do not know.
        before = data[:position].decode("latin-1")
    return line_in(before, len(before))


def _check_is_text(data: bytes, path: str) -> None:
    for beginning, kind, remedy in _NO_TEXT:
        if data.startswith(beginning):
            raise errors.UserError(f"{path} is no text: it seems to be {kind}; {remedy}.")


def _nul_message(data: bytes, path: str) -> str:
    start = data[:1000]
    # English in UTF-16 has a NUL in every other byte, on the side where the high bytes are.
    for name, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if len(zeros) and zeros.count(0) * 2 > len(zeros):
            return f"{path} has NUL bytes; it seems to be UTF-16 without a byte order mark: give --encoding={name}."
    line = _line_of(data, data.find(b"\0"), "latin-1")
    return f"{path}, line {line}: a NUL byte, so the file is no text (or damaged). Save it as CSV in UTF-8."


def line_in(text: str, position: int) -> int:
    """The line, from 1, of a character."""
    return len(LINE_END.findall(text, 0, position)) + 1
