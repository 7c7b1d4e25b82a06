"""Read files and decode their bytes to text. Detects encodings and files that are not text."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from typing import Iterator, Optional, Tuple

from adapter_bert.common import errors, files
from adapter_bert.common.lazy_tensorflow import tf

BLOCK_SIZE = 1 << 20
LINE_END = re.compile(r"\r\n|\r|\n")
# UTF-32 comes first: its little-endian mark starts with that of UTF-16.
_BYTE_ORDER_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_BINARY_FORMATS = (
    (b"PK\x03\x04", "an Excel workbook (.xlsx) or another ZIP archive", "Save the sheet as CSV, or unzip the archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel workbook (.xls)", "Save the sheet as CSV"),
    (b"\x1f\x8b", "compressed with gzip", "Decompress it (gunzip)"),
    (b"BZh91AY&SY", "compressed with bzip2", "Decompress it (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed with xz", "Decompress it (unxz)"),
    (b"%PDF-", "a PDF document", "Export the table as CSV"),
    (b"PAR1", "a Parquet file", "Export it as CSV or JSON lines"),
)


def read_blocks(path: str) -> Iterator[bytes]:
    """Yield the content of a file in blocks; if that fails, raise a `UserError` that lists the folder's content."""
    if os.path.exists(path) and not os.path.isdir(path):
        files.check_regular_file(path)
    try:
        with tf.gfile.GFile(path, "rb") as reader:
            yield from iter(lambda: reader.read(BLOCK_SIZE), b"")
    except tf.errors.OpError as error:
        folder = os.path.dirname(path) or "."
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(f"The data folder {folder} does not exist.") from None
        present = "names that are not UTF-8"
        with contextlib.suppress(UnicodeDecodeError):
            present = errors.first_names(sorted(tf.gfile.ListDirectory(folder)), 10)
        reason = "does not exist" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise errors.UserError(f"The data file {path} {reason}; the folder contains: {present}.") from None


def read_bytes(path: str) -> bytes:
    """Return the content of a file; raise a `UserError` if it cannot be read."""
    return b"".join(read_blocks(path))


def decode_utf8(data: bytes, path: str) -> str:
    """Decode UTF-8 and drop a byte order mark; raise a `UserError` with the line of a byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.object` is the data without the byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        guess = _guess_encoding(data)
        raise errors.UserError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8. If the file is {guess}, "
            f"convert it: iconv -f {guess} -t utf-8."
        ) from None


def decode(data: bytes, path: str, encoding: Optional[str]) -> Tuple[str, Optional[str]]:
    """Decode the content of a file, by default in the encoding detected; raise a `UserError` if that is impossible.

    Returns the text without a byte order mark, and a remark for a warning if the encoding was guessed.
    """
    check_is_text(data, path)
    # Some programs write UTF-8's mark before other encodings too.
    has_mark = data.startswith(codecs.BOM_UTF8)
    data = data[len(codecs.BOM_UTF8) :] if has_mark else data
    remark = None
    if encoding or has_mark:
        text = _decode_as(data, path, encoding or "utf-8")
    else:
        text, remark = _decode_detected(data, path)
    if "\0" in text:
        raise errors.UserError(_nul_message(data, path))
    return text[1:] if text.startswith("\ufeff") else text, remark


def check_is_text(data: bytes, path: str) -> None:
    """Raise a `UserError` if the first bytes of a file are those of a format that is not text, e.g. Excel's."""
    for signature, kind, remedy in _BINARY_FORMATS:
        if data.startswith(signature):
            raise errors.UserError(f"{path} is not a text file: it seems to be {kind}. {remedy}.")


def _decode_detected(data: bytes, path: str) -> Tuple[str, Optional[str]]:
    for name, marks in _BYTE_ORDER_MARKS.items():
        if data.startswith(marks):
            return _decode_as(data, path, name), f"line 1: found a byte order mark; read as {name}"
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        guess = _guess_encoding(data)
        line = _line_of_byte(data, error.start, "utf-8")
        return data.decode(guess), f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; read as {guess}"


def _decode_as(data: bytes, path: str, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except LookupError:
        raise errors.UserError(
            f"Unknown --encoding '{encoding}'. Expected a name that Python knows, e.g. utf-8, utf-16, cp1252, latin-1, "
            "mac-roman, shift_jis, gb18030."
        ) from None
    except UnicodeError as error:
        found = "its bytes are"
        if isinstance(error, UnicodeDecodeError):
            found = f"byte 0x{data[error.start]:02x} is" if error.start < len(data) else "the end of the file is"
            path = f"{path}, line {_line_of_byte(data, error.start, encoding)}"
        raise errors.UserError(f"{path}: {found} not {encoding}. Try --encoding={_guess_encoding(data)}.") from None


def _guess_encoding(data: bytes) -> str:
    """Return the first of three common encodings that decodes the data; latin-1 decodes any bytes."""
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(encoding)
            return encoding
    return "latin-1"


def _nul_message(data: bytes, path: str) -> str:
    # In UTF-16, every other byte of English text is zero.
    start = data[:1000] if data.strip(b"\0") else b""
    for name, high_bytes in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if high_bytes and high_bytes.count(0) * 2 > len(high_bytes):
            return f"{path} contains NUL bytes. It seems to be UTF-16 without a byte order mark: try --encoding={name}."
    line = _line_of_byte(data, data.find(b"\0"), "latin-1")
    return f"{path}, line {line}: found a NUL byte, so the file is damaged or not text. Save it as CSV in UTF-8."


def _line_of_byte(data: bytes, position: int, encoding: str) -> int:
    """Return the line number, from 1, of a byte."""
    try:
        before = data[:position].decode(encoding, "replace")
    except UnicodeError:  # Some of Python's encodings cannot skip bytes that they do not know.
        before = data[:position].decode("latin-1")
    return line_of(before, len(before))


def line_of(text: str, position: int) -> int:
    """Return the line number, from 1, of a character."""
    return len(LINE_END.findall(text, 0, position)) + 1
