"""A user's file -> rows of named or numbered columns.

Taken are CSV, TSV, JSON lines, and a folder or tar archive with one text file per example, whose label is the name of
the folder it lies in. Nothing is known here about tasks; nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import re
import tarfile
import zlib
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.common.text import first_names
from adapter_bert.tasks import encodings

TEXT_COLUMN = "text"
LABEL_COLUMN = "label"

_KIND_BY_EXTENSION = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
_DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab"}
_ARCHIVE = re.compile(r"(?P<file>.*\.(?:tar|tar\.gz|tgz|tar\.bz2))(?://(?P<part>.*))?", re.IGNORECASE | re.DOTALL)
_SNIFFED_ROWS = 50


@dataclasses.dataclass(frozen=True)
class TableFormat:
    """How a file is to be read, where that shall not be found out.

    Attributes:
      encoding: name of the encoding; None: by its byte order mark, else UTF-8, windows-1252 or latin-1.
      header: whether the first row names the columns; None: yes, unless all chosen columns are numbers.
      quoting: whether double quotes enclose cells; None: in CSV they do, in TSV they are text.
    """

    encoding: Optional[str] = None
    header: Optional[bool] = None
    quoting: Optional[bool] = None


class TableRow(NamedTuple):
    """One row.

    Attributes:
      number: its line, or where it has none its place in the order of rows; from 1.
      cells: strings; in JSON any value. There may be fewer of them than columns.
      file: name of the file that the row is, in a folder or archive.
    """

    number: int
    cells: Sequence[object]
    file: Optional[str] = None


class _Absent:
    """The type of a cell whose key an object does not have."""


_ABSENT = _Absent()


@dataclasses.dataclass(frozen=True)
class Table:
    """A file's rows.

    Attributes:
      path: the file.
      columns: their names; where there is no header, their numbers from 1.
      rows: the rows in the file's order, without the header.
      layout: how the file was read, in words, for messages.
      kind: where the columns' names come from: `header`, `numbers` (no header), `keys` (JSON) or `files`.
      unit: what a row is, e.g. `line`.
    """

    path: str
    columns: Tuple[str, ...]
    rows: List[TableRow]
    layout: str
    kind: str
    unit: str = "line"

    def place(self, row: TableRow) -> str:
        """Where a row lies, for messages."""
        return f"{self.path}, {self.unit} {row.file or row.number}"

    def find(self, column: str, purpose: str = "column") -> int:
        """The position, from 0, of a column.

        Args:
          column: its name, or its number from 1. A name goes before a number.
          purpose: what asks for it, for messages, e.g. `--text_column`.

        Raises:
          errors.UserError: there is no such column, or more than one of this name.
        """
        column = one_line(column)
        positions = [position for position, name in enumerate(self.columns) if one_line(name) == column]
        if len(positions) == 1:
            return positions[0]
        if positions:
            numbers = " and ".join(str(position + 1) for position in positions)
            raise errors.UserError(
                f"{self.path} ({self.layout}): {len(positions)} columns are named '{column}', numbers {numbers}; "
                f"{purpose} cannot tell them apart. Rename one, or give the number with --header=true."
            )
        if self.kind == "header" and column.isdecimal() and 1 <= int(column) <= len(self.columns):
            return int(column) - 1
        hint = {
            "numbers": " If the first line names the columns, give --header=true.",
            "header": " If the file has no header, give the columns' numbers, counted from 1.",
        }.get(self.kind, "")
        unknown = errors.unknown(purpose, column, [name or "(no name)" for name in self.columns])
        raise errors.UserError(f"{self.path} ({self.layout}): {unknown}{hint}")

    def text(self, row: TableRow, position: int) -> str:
        """A cell as text.

        Raises:
          errors.UserError: the row has no such cell, or it holds a list or an object.
        """
        value = row.cells[position] if position < len(row.cells) else _ABSENT
        column = self.columns[position]
        if value is _ABSENT and self.kind != "keys":
            raise errors.UserError(
                f"{self.place(row)}: found {_count(len(row.cells), 'cell')} ({self.layout}), expected "
                f"{len(self.columns)}: the cell of column '{column}' is missing.{self._quoting_hint(row)}"
            )
        if value is _ABSENT:
            keys = ", ".join(name for name, cell in zip(self.columns, row.cells) if cell is not _ABSENT) or "none"
            raise errors.UserError(
                f"{self.place(row)}: no key '{column}'; the object's keys: {keys}. Write null for what is missing."
            )
        if isinstance(value, (list, dict)):
            raise errors.UserError(
                f"{self.place(row)}: expected a text, a number, true, false or null under '{column}', found "
                f"{json.dumps(value)[:60]}."
            )
        return cell_text(value)

    def _quoting_hint(self, row: TableRow) -> str:
        if "tab" in self.layout and any(str(cell).startswith('"') for cell in row.cells):
            return " If quotes enclose cells in this file, and line ends in them, give --quoting=true."
        return ""

    def filled(self, position: int) -> List[str]:
        """The cells of a column that hold anything but blanks; rows without a usable cell are passed over."""
        cells = (row.cells[position] for row in self.rows if position < len(row.cells))
        texts = (cell_text(cell) for cell in cells if not isinstance(cell, (list, dict, _Absent)))
        return [text for text in texts if text.strip()]


def cell_text(value: object) -> str:
    """A JSON value, other than a list or an object, as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def one_line(text: str) -> str:
    """A text without blanks around it, and with one blank for each run of blanks and line ends in it.

    Spreadsheets let a column's name run over lines, which nobody can type on a command line.
    """
    return " ".join(text.split())


def read_table(path: str, columns: Sequence[str] = (), table_format: Optional[TableFormat] = None) -> Table:
    """Reads a file, a folder, or a tar archive or a folder inside one (`news.tar.gz//train`).

    Args:
      path: where it lies; anything that `tf.gfile` opens.
      columns: those that will be asked for: they help to tell whether there is a header and what separates cells.
      table_format: what is known about the file.

    Raises:
      errors.UserError: it is missing, no text, in another encoding than told, or no table.
    """
    table_format = table_format or TableFormat()
    archive = _ARCHIVE.fullmatch(path)
    if tf.gfile.IsDirectory(path):
        table = _files_table(path, _folder_files(path), table_format.encoding)
    elif archive:
        part = (archive.group("part") or "").strip("/")
        table = _files_table(path, _archive_files(archive.group("file"), part), table_format.encoding)
    else:
        text, note = encodings.decode(encodings.read_bytes(path), path, table_format.encoding)
        if note:
            tf.logging.warning("%s, %s; --encoding chooses another.", path, note)
        table = _text_table(path, text, columns, table_format)
    if not table.rows:
        raise errors.UserError(f"{path} ({table.layout}) holds no row.")
    return table


def _text_table(path: str, text: str, columns: Sequence[str], table_format: TableFormat) -> Table:
    if not text.strip():
        raise errors.UserError(f"{path} is empty: there is no row in it.")
    kind = _KIND_BY_EXTENSION.get(os.path.splitext(path)[1].lower())
    if kind is None:
        first_line = encodings.LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
        kind = "json" if text.lstrip().startswith("{") else "tsv" if "\t" in first_line else "csv"
    if kind == "json":
        return _json_table(path, text)
    header = table_format.header
    if header is None:
        header = not columns or not all(column.strip().isdecimal() for column in columns)
    delimiter = "\t" if kind == "tsv" else _choose_delimiter(text, columns, header, table_format.quoting)
    quoting = _quotes_enclose(delimiter, table_format.quoting)
    return _delimited_table(path, text, delimiter, quoting, header)


# -------------------------------------------------------------------------------------------- CSV and TSV


def _quotes_enclose(delimiter: str, quoting: Optional[bool]) -> bool:
    return delimiter != "\t" if quoting is None else quoting


def _choose_delimiter(text: str, columns: Sequence[str], header: bool, quoting: Optional[bool]) -> str:
    """Comma, semicolon or tab: the one that gives the chosen columns, else rows of one width, else more cells."""

    def merit(delimiter: str) -> Tuple[int, bool, int]:
        rows = _records(text, delimiter, _quotes_enclose(delimiter, quoting), strict=False)
        head = [cells for _, cells in itertools.islice(rows, _SNIFFED_ROWS)]
        names = [one_line(cell) for cell in head[0]] if header and head else []
        widths = {len(cells) for cells in head}
        width = len(head[0]) if head else 0
        return sum(one_line(column) in names for column in columns), len(widths) == 1 and width > 1, width

    return max(_DELIMITER_NAMES, key=merit)


def _records(text: str, delimiter: str, quoting: bool, strict: bool = True) -> Iterator[Tuple[int, List[str]]]:
    """Yields (line that the record starts in, cells); blank lines are passed over.

    Raises:
      csv.Error: a quote that does not close, or closes inside a cell; if strict.
    """
    if not quoting:
        for number, line in enumerate(_plain_lines(text), start=1):
            if line.strip():
                yield number, line.split(delimiter)
        return
    with _field_limit(len(text)):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
        start = 1
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, cells
            start = reader.line_num + 1


def _plain_lines(text: str) -> List[str]:
    """Lines where no quotes protect line ends: after a first line feed, a lone carriage return is text."""
    first = encodings.LINE_END.search(text)
    if first and first.group() == "\r":
        return encodings.LINE_END.split(text)
    return [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]


@contextlib.contextmanager
def _field_limit(size: int) -> Iterator[None]:
    """Lets the csv module take cells of any size, within what a C long holds everywhere; it is a global."""
    earlier = csv.field_size_limit()
    csv.field_size_limit(min(max(size, earlier), 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(earlier)


def _delimited_table(path: str, text: str, delimiter: str, quoting: bool, header: bool) -> Table:
    layout = _DELIMITER_NAMES[delimiter] + "-separated"
    try:
        records = list(_records(text, delimiter, quoting))
    except csv.Error:
        raise _quote_error(path, text, delimiter) from None
    if not records:
        raise errors.UserError(f"{path} ({layout}) holds no row.")
    names = [str(number) for number in range(1, len(records[0][1]) + 1)]
    if header:
        number, cells = records.pop(0)
        names = [one_line(cell) for cell in cells]
        layout += f", header in line {number}"
    else:
        layout += ", no header"
    for number, cells in records:
        if any(cell.strip() for cell in cells[len(names) :]):
            quoted, unquoted = "Put such cells in double quotes.", "Where quotes enclose cells, give --quoting=true."
            remedy = quoted if quoting else unquoted
            raise errors.UserError(
                f"{path}, line {number}: found {_count(len(cells), 'cell')} ({layout}), expected {len(names)}; most "
                f"likely a {_DELIMITER_NAMES[delimiter]} inside a cell. {remedy}"
            )
    rows = [TableRow(number, cells) for number, cells in records]
    return Table(path, tuple(names), rows, layout, "header" if header else "numbers")


def _quote_error(path: str, text: str, delimiter: str) -> errors.UserError:
    """What is wrong with the first quoted cell that csv refuses."""
    quoted = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')
    plain = re.compile(f"[^{delimiter}\r\n]*")
    remedy = 'Write a quote inside a cell twice (""); where quotes are plain text, give --quoting=false.'
    position = 0
    while position < len(text):
        is_quoted = text[position] == '"'
        match = (quoted if is_quoted else plain).match(text, position)
        end = match.end() if match else len(text)
        if is_quoted and (not match or text[end : end + 1] not in ("", delimiter, "\r", "\n")):
            break
        position = end + 1
    opens = f"{path}, line {encodings.line_in(text, position)}: a quoted cell opens here"
    if not match:
        return errors.UserError(f"{opens} and never ends. {remedy}")
    closes = encodings.line_in(text, end)
    return errors.UserError(
        f"{opens}, and behind the quote that closes it in line {closes} stands {text[end : end + 20]!r}, "
        f"where a {_DELIMITER_NAMES[delimiter]} or a line end is expected. {remedy}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# --------------------------------------------------------------------------------------------------- JSON


def _json_table(path: str, text: str) -> Table:
    is_array = text.lstrip().startswith("[")
    unit = "object" if is_array else "line"
    values = _json_array(path, text) if is_array else _json_lines(path, text)
    objects: List[Tuple[int, Dict[str, object]]] = []
    for number, value in values:
        if not isinstance(value, dict):
            found = json.dumps(value)[:60]
            raise errors.UserError(f"{path}, {unit} {number}: expected a JSON object {{…}}, found {found}.")
        objects.append((number, value))
    columns = tuple(dict.fromkeys(itertools.chain.from_iterable(value for _, value in objects)))
    rows = [TableRow(number, [value.get(column, _ABSENT) for column in columns]) for number, value in objects]
    return Table(path, columns, rows, "JSON array" if is_array else "JSON lines", "keys", unit)


def _json_lines(path: str, text: str) -> Iterator[Tuple[int, object]]:
    for number, line in enumerate(encodings.LINE_END.split(text), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise errors.UserError(
                    f"{path}, line {number}: expected one JSON object per line, found {line.strip()[:60]!r} "
                    f"({errors.reason(error)})."
                ) from None


def _json_array(path: str, text: str) -> Iterator[Tuple[int, object]]:
    try:
        return enumerate(json.loads(text), start=1)
    except (ValueError, RecursionError) as error:
        raise errors.UserError(f"{path} is no JSON array: {errors.reason(error)}.") from None


# ------------------------------------------------------------------------------------ folders and archives


def _files_table(path: str, files: Iterable[Tuple[str, bytes]], encoding: Optional[str]) -> Table:
    """One row per file, in the order of their names; hidden files and those beside the label folders are left out."""
    rows, loose, notes = [], [], []
    for name, data in sorted(files):
        parts = name.split("/")
        if any(part.startswith(".") for part in parts):
            continue
        if len(parts) < 2:
            loose.append(name)
            continue
        text, note = encodings.decode(data, f"{path}, file {name}", encoding)
        if note:
            notes.append(f"{name}, {note}")
        rows.append(TableRow(len(rows) + 1, [text, parts[-2]], name))
    if not rows:
        found = first_names(loose, 10)
        raise errors.UserError(
            f"{path} has no folder with files in it, expected one folder per label with one text file per example; "
            f"found beside: {found}."
        )
    if loose:
        tf.logging.warning("%s: left out %s outside the label folders, e.g. %s.", path, len(loose), loose[0])
    if notes:
        tf.logging.warning(
            "%s: %d of %d files are not UTF-8, the first: %s; --encoding chooses another.",
            path,
            len(notes),
            len(rows),
            notes[0],
        )
    return Table(path, (TEXT_COLUMN, LABEL_COLUMN), rows, "one file per row, folder = label", "files", "file")


def _folder_files(path: str) -> Iterator[Tuple[str, bytes]]:
    root = path.rstrip("/") + "/"
    for folder, _, names in tf.gfile.Walk(root):
        for name in names:
            full_name = os.path.join(folder, name)
            if not name.startswith("."):
                yield full_name[len(root) :], encodings.read_bytes(full_name)


def _archive_files(path: str, part: str) -> Iterator[Tuple[str, bytes]]:
    """(Name below the part, contents) of each regular file. A name that occurs twice counts as its later contents."""
    data = io.BytesIO(encodings.read_bytes(path))
    files: Dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=data, mode="r:*") as archive:
            for member in archive:
                if member.isfile():
                    name = member.name[2:] if member.name.startswith("./") else member.name.lstrip("/")
                    files[name] = archive.extractfile(member).read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise errors.UserError(f"{path} is no tar archive, or a damaged one: {errors.reason(error)}.") from None
    front = part + "/" if part else ""
    found = [(name[len(front) :], contents) for name, contents in files.items() if name.startswith(front)]
    if not found:
        folders = sorted({name.split("/")[0] for name in files if "/" in name})
        raise errors.unknown(f"folder of {path}", part, folders)
    return iter(found)
