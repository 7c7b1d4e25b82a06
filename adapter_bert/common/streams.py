"""Standard streams that cannot stop a program or corrupt its files, and text that is safe to print.

A training run must survive its terminal: a closed pipe, a full disk under its log, a character that the terminal cannot
show. And names from foreign files must not reach the terminal as commands (escape codes, line breaks).
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import re
import shutil
import sys
from typing import Any, Match, Optional

# Control characters, line separators, changes of the writing direction, and surrogates, which cannot be encoded.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE_IN_TEXT = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_NAME = re.compile(f"[{_UNSAFE}\t\n]")
_SHORT_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
# Help texts cannot be wrapped to fewer columns.
_MIN_COLUMNS = 40


def printable(value: object) -> str:
    r"""Return a name or message on one line, with e.g. `\n` and `\u202e` in place of unsafe characters."""
    return _UNSAFE_IN_NAME.sub(_escape, str(value))


def _escape(match: Match[str]) -> str:
    character = match.group()
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04x}"  # also valid inside a JSON string


class _SafeStream(io.TextIOWrapper):
    """Standard output or error. Text that cannot be written is lost; the first error is kept in `failure`."""

    failure: Optional[OSError] = None
    replaced: Any = None  # the stream that had this buffer, which it would close if it were deleted

    def write(self, text: str) -> int:
        start = 1 if text.startswith("\r") else 0  # as progress bars do
        try:
            super().write(text[:start] + _UNSAFE_IN_TEXT.sub(_escape, text[start:]))
        except OSError as error:
            self.failure = self.failure or error
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.failure = self.failure or error

    def drain(self) -> None:
        """Flush for the last time. Discard what cannot be written, or the interpreter would complain at exit."""
        self.flush()
        if self.failure:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            self.flush()


def open_descriptors() -> None:
    """Open the descriptors of standard streams that are closed, or the next file would get the text meant for them.

    Reading from and writing to them fails, as it would with a closed descriptor; only log messages are discarded.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # gets the lowest free number, which is this one


def protect() -> None:
    """Make the standard streams of this process safe, unless they were replaced, e.g. by a notebook or a test."""
    open_descriptors()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and not isinstance(stream, _SafeStream):
            stream = stream or open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            if number:
                stream = _replace(stream, line_buffering=stream.line_buffering or number == 2)
            elif (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968"):
                stream.reconfigure(encoding="utf-8")  # which includes ASCII
            setattr(sys, name, stream)
    width = shutil.get_terminal_size().columns
    if "COLUMNS" in os.environ or width < _MIN_COLUMNS:
        os.environ["COLUMNS"] = str(max(width, _MIN_COLUMNS))
    logging.getLogger("tensorflow").addFilter(_escape_names)


def _replace(stream: Any, line_buffering: bool) -> _SafeStream:
    with contextlib.suppress(OSError):
        stream.flush()
    encoding, through = stream.encoding, stream.write_through
    safe = _SafeStream(stream.buffer, encoding, "backslashreplace", None, line_buffering, through)
    safe.replaced = stream
    atexit.register(safe.drain)
    return safe


def _escape_names(record: logging.LogRecord) -> bool:
    """Log names, which are arguments of a message, on one line. Used as a filter that accepts all records."""
    if isinstance(record.args, tuple):
        record.args = tuple(printable(value) if isinstance(value, str) else value for value in record.args)
    return True
