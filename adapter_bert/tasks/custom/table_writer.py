"""Write a table as CSV, TSV or JSON lines, so that `formats.read_table` reads the same cells."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from typing import Dict, Iterable, Iterator, List, Sequence

from adapter_bert.common import errors, files
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks.custom.table import MISSING

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# TSV has no quotes.
_TSV_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def format_of(path: str, flag: str = "--output") -> str:
    """Return `csv`, `tsv` or `jsonl`, by the ending of a path; raise a `UserError` that names the flag for others."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in _FORMATS:
        raise errors.UserError(f"{flag}={path}: expected a name that ends in {', '.join(_FORMATS)}.")
    return _FORMATS[ending]


def unique_names(names: Iterable[str]) -> List[str]:
    """Return the names, with `_2`, `_3` and so on after those that were there before."""
    found: Dict[str, None] = {}
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found[unique] = None
    return list(found)


def format_lines(kind: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    r"""Yield the lines of a table, with their line ends. Cells are strings, numbers or, from JSON, any value.

    In TSV, tabs and line breaks are written as `\t`, `\n` and `\r`.
    """
    if kind == "jsonl":
        for row in rows:
            content = {name: cell for name, cell in zip(columns, row) if cell is not MISSING}
            yield json.dumps(files.finite(content), ensure_ascii=False, allow_nan=False) + "\n"
        return
    yield _delimited_line(kind, columns)
    for row in rows:
        yield _delimited_line(kind, [_cell_text(cell) for cell in row])


def _delimited_line(kind: str, cells: Sequence[str]) -> str:
    if kind == "tsv":
        return "\t".join(cell.translate(_TSV_ESCAPES) for cell in cells) + "\n"
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerow(cells)  # quotes line feeds and carriage returns, because both end a row
    return buffer.getvalue()[: -len("\r\n")] + "\n"


def _cell_text(cell: object) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None or cell is MISSING:
        return ""
    return json.dumps(cell, ensure_ascii=False)


def write(path: str, lines: Iterable[str], replace: bool = True) -> None:
    """Write a file atomically, while its lines are computed; raise a `UserError` if it exists and is not replaced."""
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(files.user_errors())
            temporary = stack.enter_context(files.atomic_write(path, replace))
            writer = stack.enter_context(tf.gfile.GFile(temporary, "wb"))
            for line in lines:
                writer.write(line.encode("utf-8", "backslashreplace"))
    except FileExistsError:
        raise errors.UserError(f"{path} already exists; it was created by another process.") from None


def write_table(path: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically; its format follows from the path."""
    write(path, format_lines(format_of(path), columns, rows))
