"""A table read from a user's file: rows of cells in named or numbered columns, some of them texts and labels."""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import errors, json_files

TEXT_COLUMN = "text"
LABEL_COLUMN = "label"

# Numbers of distinct values in columns that may contain labels.
_LABEL_COUNTS = range(2, 51)
# Columns that are searched and listed for suggestions in messages.
_SUGGESTED_COLUMNS = 100
# The cell of a key that a JSON object does not have.
MISSING = object()


class TableRow(NamedTuple):
    """The line (or index) of a row from 1, its cells (strings; in JSON any value), and path and line for messages."""

    number: int
    cells: Sequence[object]
    place: str


class LabelledRow(NamedTuple):
    """One row; its label is empty if there is no label column. `place` is that of the `TableRow`."""

    number: int
    place: str
    text_a: str
    text_b: Optional[str]
    label: str

    @property
    def is_blank(self) -> bool:
        """Whether the row has no text."""
        return not self.text_a.strip() and not (self.text_b or "").strip()


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, without the header."""

    path: str
    columns: Tuple[str, ...]  # names; without a header, numbers from 1
    rows: List[TableRow]
    layout: str  # how the file was read, for messages
    kind: str  # source of the column names: `header`, `numbers` (no header), `keys` (JSON) or `files`
    num_dropped: int = 0  # JSON keys without a column, because they are not needed and there are many

    def labelled_rows(self, columns: Mapping[str, str]) -> List[LabelledRow]:
        """Return texts and stripped labels, given the columns by flag; raise a `UserError` if some are missing."""
        indices = {flag: self.find(column, flag) for flag, column in columns.items()}
        cells: Dict[str, List[Any]] = {
            flag: [self.text(row, index) for row in self.rows] for flag, index in indices.items()
        }
        none = [None] * len(self.rows)
        pairs, labels = cells.get("--text_pair_column", none), cells.get("--label_column", none)
        return [
            LabelledRow(row.number, row.place, text_a, text_b, (label or "").strip())
            for row, text_a, text_b, label in zip(self.rows, cells["--text_column"], pairs, labels)
        ]

    def find(self, column: str, flag: str = "column") -> int:
        """Return the index, from 0, of the column with this name, or else with this number from 1.

        Raise a `UserError` that names the flag if there is no such column, or more than one, or if it is blank.
        """
        name = one_line(column)
        indices = [index for index, each in enumerate(self.columns) if one_line(each) == name]
        if len(indices) > 1:
            numbers = " and ".join(str(index + 1) for index in indices)
            raise errors.UserError(
                f"{self.path} ({self.layout}): {flag} is ambiguous: {len(indices)} columns are named '{name}', "
                f"numbers {numbers}. Rename one, or give its number and --header=true."
            )
        if not indices and self.kind == "header" and name.isdecimal() and len(name) <= 9:
            indices = [int(name) - 1] if 1 <= int(name) <= len(self.columns) else []
        if not indices:
            hint = {
                "numbers": " If the first line contains column names, give --header=true.",
                "header": " If the file has no header, give column numbers, counted from 1.",
                "keys": f" {self.num_dropped} other keys are not listed." if self.num_dropped else "",
            }.get(self.kind, "")
            unknown = errors.unknown(flag, name, [each or "(no name)" for each in self.columns])
            raise errors.UserError(f"{self.path} ({self.layout}): {unknown}{hint}")
        # Rows without the cell raise an error when they are read.
        if all(len(row.cells) > indices[0] for row in self.rows) and not self._nonblank(indices[0]):
            searched = self.columns[:_SUGGESTED_COLUMNS]
            filled = [each for index, each in enumerate(searched) if self._nonblank(index)]
            raise errors.UserError(
                f"{self.path}: the column '{column}' ({flag}) is empty in all {len(self.rows)} rows; "
                f"columns with content: {errors.first_names(filled, _SUGGESTED_COLUMNS)}."
            )
        return indices[0]

    def label_like_columns(self, used: Collection[str]) -> List[str]:
        """Return columns that are not in use and have few distinct values, most of them repeated."""
        used_indices = [self.find(column) for column in used]
        found = []
        for index, name in enumerate(self.columns[:_SUGGESTED_COLUMNS]):
            values = self._nonblank(index)
            distinct = len({value.strip() for value in values})
            if index not in used_indices and distinct in _LABEL_COUNTS and 2 * distinct <= len(values):
                found.append(name)
        return found

    def text(self, row: TableRow, index: int) -> str:
        """Return a cell as text; raise a `UserError` if the cell is missing, or a list or an object."""
        value = row.cells[index] if index < len(row.cells) else MISSING
        if value is MISSING:
            raise errors.UserError(f"{row.place}: {self._describe_missing(row, self.columns[index])}")
        try:
            return cell_text(value)
        except ValueError as error:
            raise errors.UserError(f"{row.place}, '{self.columns[index]}': {error}") from None

    def _describe_missing(self, row: TableRow, column: str) -> str:
        if self.kind == "keys":
            keys = [name for name, cell in zip(self.columns, row.cells) if cell is not MISSING]
            found = errors.first_names(keys + ["…"] * bool(self.num_dropped), _SUGGESTED_COLUMNS)
            return f"no key '{column}'; found the keys: {found}. Write null for a missing value."
        hint = ""
        if "tab" in self.layout and any(str(cell).startswith('"') for cell in row.cells):
            hint = " If quotes enclose cells with line breaks in this file, give --quoting=true."
        return (
            f"the cell of column '{column}' is missing: expected {len(self.columns)} cells, found {len(row.cells)} "
            f"({self.layout}).{hint}"
        )

    def _nonblank(self, index: int) -> List[str]:
        """Return the cells of a column that are not blank; skip rows without a usable cell."""
        cells = (row.cells[index] for row in self.rows if index < len(row.cells))
        texts = (cell_text(cell) for cell in cells if cell is not MISSING and not isinstance(cell, (list, dict)))
        return [text for text in texts if text.strip()]


def cell_text(value: object) -> str:
    """Return the text of a JSON scalar; raise a ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"expected a string, a number, true, false or null, found {json_files.describe(value)}.")
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def one_line(text: str) -> str:
    """Collapse white space. Column names in spreadsheets may contain line breaks, which flags cannot."""
    return " ".join(text.split())
