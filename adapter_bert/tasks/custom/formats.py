"""Read a table from a CSV, TSV or JSON file, or from a folder or archive with one text file per example.

In folders and archives, the name of the folder that contains a file is the file's label.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from adapter_bert.common import errors, json_files, paths
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings
from adapter_bert.tasks.custom import archives
from adapter_bert.tasks.custom.table import LABEL_COLUMN, MISSING, TEXT_COLUMN, Table, TableRow, one_line

_KIND_BY_EXTENSION = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
# Other tables; the reader explains how to convert them.
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
_DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab"}
# If the first line ends like this, a lone CR is text, except at the end of the file.
_LF_OR_CRLF = re.compile(r"\r?\n|\r\Z")
# An archive, optionally with a folder in it: `news.tar.gz//train`.
_ARCHIVE = re.compile(r"(?P<file>.*\.(?:tar(?:\.(?:gz|bz2|xz))?|tgz))(?://(?P<folder>.*))?", re.IGNORECASE | re.DOTALL)
# Number of rows used to detect the delimiter.
_SNIFFED_ROWS = 50
# Number of JSON keys that are kept besides the needed ones, for suggestions in messages.
_KEPT_KEYS = 50


def read_table(
    path: str,
    columns: Sequence[str] = (),
    encoding: Optional[str] = None,
    header: Optional[bool] = None,
    quoting: Optional[bool] = None,
) -> Table:
    """Read a file, a folder, a tar archive or a folder in an archive (`news.tar.gz//train`).

    The needed columns help to detect the header and the delimiter. By default, the encoding is that of the byte order
    mark, else UTF-8, windows-1252 or latin-1; the first row contains column names, unless all needed columns are
    numbers; and double quotes enclose cells in CSV, but not in TSV.
    """
    archive = _ARCHIVE.fullmatch(path)
    if tf.gfile.IsDirectory(path):
        try:
            files = _folder_files(path.rstrip("/") + "/")
        except UnicodeDecodeError as error:
            raise errors.UserError(f"{path}: the file name {error.object!r} is not UTF-8. Rename the file.") from None
        return _files_table(path, files, encoding)
    if archive:
        return _files_table(path, _archive_files(*archive.groups("")), encoding)
    text, remark = encodings.decode(encodings.read_bytes(path), path, encoding)
    if remark:
        tf.logging.warning("%s, %s. Give --encoding if texts look wrong.", path, remark)
    kind = _kind(path, text)
    if kind == "json":
        table = _json_table(path, text, columns)
    else:
        if header is None:
            header = not columns or not all(column.strip().isdecimal() for column in columns)
        delimiter = "\t" if kind == "tsv" else _choose_delimiter(text, columns, header, quoting)
        table = _delimited_table(path, text, delimiter, _uses_quoting(delimiter, quoting), header)
    if not table.rows:
        raise errors.UserError(f"{path} ({table.layout}) contains no rows.")
    return table


def has_table_name(path: str) -> bool:
    """Return whether a file has the ending of a table, including those that must be converted first."""
    return os.path.splitext(path)[1].lower() in (*_KIND_BY_EXTENSION, *_SPREADSHEETS)


def _kind(path: str, text: str) -> str:
    extension = os.path.splitext(path)[1].lower()
    if extension in _KIND_BY_EXTENSION:
        return _KIND_BY_EXTENSION[extension]
    if text.lstrip().startswith("{"):
        return "json"
    first_line = encodings.LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
    return "tsv" if "\t" in first_line else "csv"


# -------------------------------------------------------------------------------------------- CSV and TSV


def _uses_quoting(delimiter: str, quoting: Optional[bool]) -> bool:
    return delimiter != "\t" if quoting is None else quoting


def _choose_delimiter(text: str, columns: Sequence[str], header: bool, quoting: Optional[bool]) -> str:
    """Return the delimiter that yields the needed columns, else rows of equal length, else the most cells."""

    def score(delimiter: str) -> Tuple[int, bool, int]:
        records = _records(text, delimiter, _uses_quoting(delimiter, quoting), strict=False)
        rows = [cells for _, cells in itertools.islice(records, _SNIFFED_ROWS)]
        names = [one_line(cell) for cell in rows[0]] if header and rows else []
        width = len(rows[0]) if rows else 0
        same_width = width > 1 and all(len(cells) == width for cells in rows)
        return sum(one_line(column) in names for column in columns), same_width, width

    return max(_DELIMITER_NAMES, key=score)


def _records(text: str, delimiter: str, quoting: bool, strict: bool = True) -> Iterator[Tuple[int, List[str]]]:
    """Yield (line in which the record starts, cells); skip blank lines. If strict, raise a csv.Error for bad quotes."""
    if not quoting:
        first_end = encodings.LINE_END.search(text)
        line_end = encodings.LINE_END if first_end and first_end.group() == "\r" else _LF_OR_CRLF
        for number, line in enumerate(line_end.split(text), start=1):
            if line.strip():
                yield number, line.split(delimiter)
        return
    earlier_limit = csv.field_size_limit()
    # The default is 128 kB; this is the largest that fits in a C long on every platform.
    csv.field_size_limit(2**31 - 1)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
        start = 1
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, cells
            start = reader.line_num + 1
    finally:
        csv.field_size_limit(earlier_limit)


def _delimited_table(path: str, text: str, delimiter: str, quoting: bool, header: bool) -> Table:
    layout = _DELIMITER_NAMES[delimiter] + "-separated"
    try:
        records = list(_records(text, delimiter, quoting))
    except csv.Error:
        raise _quote_error(path, text, delimiter) from None
    if not records:
        return Table(path, (), [], layout, "header")
    names = [str(number) for number in range(1, len(records[0][1]) + 1)]
    if header:
        number, cells = records.pop(0)
        names = [one_line(cell) for cell in cells]
        layout += f", header in line {number}"
    else:
        layout += ", no header"
    for number, cells in records:
        if any(cell.strip() for cell in cells[len(names) :]):
            remedy = "Put such cells in double quotes." if quoting else "If quotes enclose cells, give --quoting=true."
            raise errors.UserError(
                f"{path}, line {number}: expected {len(names)} cells ({layout}), found {len(cells)}. Probably a cell "
                f"contains a {_DELIMITER_NAMES[delimiter]}. {remedy}"
            )
    rows = [TableRow(number, cells, f"{path}, line {number}") for number, cells in records]
    return Table(path, tuple(names), rows, layout, "header" if header else "numbers")


def _quote_error(path: str, text: str, delimiter: str) -> errors.UserError:
    """Locate the first quoted cell that the csv module rejects, as it does not report where the cell starts."""
    quoted = re.compile(r'"[^"]*(?:""[^"]*)*"(?!")')
    plain = re.compile(f"[^{delimiter}\r\n]*")
    remedy = 'Double a quote inside a cell (""), or give --quoting=false if quotes are plain text.'
    position = 0
    while position < len(text):
        is_quoted = text[position] == '"'
        match = (quoted if is_quoted else plain).match(text, position)
        end = match.end() if match else len(text)
        if is_quoted and (not match or text[end : end + 1] not in ("", delimiter, "\r", "\n")):
            break
        position = end + 1
    start = f"{path}, line {encodings.line_of(text, position)}: a quoted cell starts here"
    if not match:
        return errors.UserError(f"{start} and never ends. {remedy}")
    return errors.UserError(
        f"{start}. Its closing quote in line {encodings.line_of(text, end)} is followed by {text[end : end + 20]!r}, "
        f"expected a {_DELIMITER_NAMES[delimiter]} or a line end. {remedy}"
    )


# --------------------------------------------------------------------------------------------------- JSON


def _json_table(path: str, text: str, columns: Sequence[str]) -> Table:
    """Return the needed columns and the first others. If all keys differ, a table of all has rows x keys cells."""
    is_array = text.lstrip().startswith("[")
    unit = "object" if is_array else "line"
    if is_array:
        values: Iterable[Tuple[int, Any]] = enumerate(_load(path, text), start=1)
    else:
        lines = enumerate(encodings.LINE_END.split(text), start=1)
        values = ((number, _load(f"{path}, line {number}", line)) for number, line in lines if line.strip())
    needed = {one_line(column) for column in columns}
    kept: Dict[str, None] = {}
    others: Set[str] = set()
    rows: List[TableRow] = []
    for number, value in values:
        if not isinstance(value, dict):
            found = json_files.describe(value)
            raise errors.UserError(f"{path}, {unit} {number}: expected a JSON object {{…}}, found {found}.")
        for key in value:
            if key in kept or key in others:
                continue
            # Names that differ only in white space are all needed, but two of them are an error anyway.
            is_needed = one_line(key) in needed and len(kept) < 2 * _KEPT_KEYS
            if is_needed or len(kept) < _KEPT_KEYS:
                kept[key] = None
            else:
                others.add(key)
        cells = [value.get(key, MISSING) for key in kept]
        rows.append(TableRow(number, cells, f"{path}, {unit} {number}"))
    return Table(path, tuple(kept), rows, "JSON array" if is_array else "JSON lines", "keys", len(others))


def _load(place: str, text: str) -> Any:
    found = text.strip()[:60]
    return json_files.parse(text, place, f"Expected a JSON array, or one JSON object per line; found {found!r}.")


# ------------------------------------------------------------------------------------ folders and archives


def _folder_files(root: str) -> Dict[str, Optional[bytes]]:
    content: Dict[str, Optional[bytes]] = {}
    for folder, _, names in tf.gfile.Walk(root):
        # The real paths of the folders that lead here, from `root` on. Remote folders are never links.
        parts = folder[len(root) :].strip("/").split("/")
        chain = [paths.real(os.path.join(root, *parts[:count])) for count in range(len(parts) + 1)]
        target = os.path.join(paths.real(folder), "")
        if folder != root and any(os.path.join(outer, "").startswith(target) for outer in chain[:-1]):
            raise errors.UserError(f"{folder} is a link to a folder that contains it: remove the link.")
        for name in names:
            if not name.startswith("."):
                path = os.path.join(folder, name)
                is_special = os.path.exists(path) and not os.path.isfile(path)
                content[path[len(root) :]] = None if is_special else encodings.read_bytes(path)
    return content


def _archive_files(path: str, folder: str) -> Dict[str, Optional[bytes]]:
    content = archives.read_files(encodings.read_bytes(path), path)
    folder = folder.strip("/")
    prefix = folder + "/" if folder else ""
    found = {name[len(prefix) :]: data for name, data in content.items() if name.startswith(prefix)}
    if not found:
        folders = sorted({name.split("/")[0] for name in content if "/" in name})
        raise errors.unknown(f"folder of {path}", folder, folders)
    return found


def _files_table(path: str, files: Mapping[str, Optional[bytes]], encoding: Optional[str]) -> Table:
    """Return one row per file, sorted by name. Skip hidden and special files and files outside the label folders."""
    rows: List[TableRow] = []
    loose, special, remarks = [], [], []
    for name, data in sorted(files.items()):
        parts = name.split("/")
        if any(part.startswith(".") for part in parts):
            continue
        if len(parts) < 2:
            loose.append(name)
            continue
        if data is None:
            special.append(name)
            continue
        place = f"{path}, file {name}"
        text, remark = encodings.decode(data, place, encoding)
        if remark:
            remarks.append(f"{name}, {remark}")
        rows.append(TableRow(len(rows) + 1, [text, parts[-2]], place))
    if not rows:
        raise errors.UserError(
            f"{path}: expected one folder per label with one text file per example, found no folder that contains "
            f"files. Other files: {errors.first_names(loose, 10)}."
        )
    if loose:
        tf.logging.warning("%s: skipped %d files outside the label folders, e.g. %s.", path, len(loose), loose[0])
    if special:
        message = "%s: skipped %d links, devices or other special files, e.g. %s. To include them, store their content."
        tf.logging.warning(message, path, len(special), special[0])
    if remarks:
        found = f"{len(remarks)} of {len(rows)} files are not UTF-8, first {remarks[0]}"
        tf.logging.warning("%s: %s. Give --encoding if texts look wrong.", path, found)
    return Table(path, (TEXT_COLUMN, LABEL_COLUMN), rows, "one file per row, folder = label", "files")
