"""A table read from a user's file: rows of cells in named or numbered columns."""

from __future__ import annotations

import dataclasses
import json
from typing import List, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import errors

TEXT_COLUMN = "text"
LABEL_COLUMN = "label"


# The cell of a key that a JSON object does not have.
MISSING = object()


class TableRow(NamedTuple):
    """The line (or index) of a row from 1, its cells (strings; in JSON any value), and its file in an archive."""

    number: int
    cells: Sequence[object]
    file: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file.

    Attributes:
      path: the file.
      columns: their names; without a header, their numbers from 1.
      rows: the rows in order, without the header.
      layout: how the file was read, for messages.
      kind: source of the column names: `header`, `numbers` (no header), `keys` (JSON) or `files`.
      unit: what a row is, e.g. `line`.
    """

    path: str
    columns: Tuple[str, ...]
    rows: List[TableRow]
    layout: str
    kind: str
    unit: str = "line"

    def place(self, row: TableRow) -> str:
        """Return path and line of a row, for messages."""
        return f"{self.path}, {self.unit} {row.file or row.number}"

    def find(self, column: str, flag: str = "column") -> int:
        """Return the index, from 0, of the column with this name, or else with this number from 1.

        Raises:
          errors.UserError: there is no such column, or more than one; it names the flag.
        """
        column = one_line(column)
        indices = [index for index, name in enumerate(self.columns) if one_line(name) == column]
        if len(indices) == 1:
            return indices[0]
        if indices:
            numbers = " and ".join(str(index + 1) for index in indices)
            raise errors.UserError(
                f"{self.path} ({self.layout}): {flag} is ambiguous: {len(indices)} columns are named '{column}', "
                f"numbers {numbers}. Rename one, or give its number and --header=true."
            )
        if self.kind == "header" and column.isdecimal() and 1 <= int(column) <= len(self.columns):
            return int(column) - 1
        hint = {
            "numbers": " If the first line contains column names, give --header=true.",
            "header": " If the file has no header, give column numbers, counted from 1.",
        }.get(self.kind, "")
        unknown = errors.unknown(flag, column, [name or "(no name)" for name in self.columns])
        raise errors.UserError(f"{self.path} ({self.layout}): {unknown}{hint}")

    def text(self, row: TableRow, index: int) -> str:
        """Return a cell as text; raise a `UserError` if the cell is missing, or a list or an object."""
        value = row.cells[index] if index < len(row.cells) else MISSING
        if value is MISSING:
            raise errors.UserError(f"{self.place(row)}: {self._describe_missing(row, self.columns[index])}")
        try:
            return cell_text(value)
        except ValueError as error:
            raise errors.UserError(f"{self.place(row)}, '{self.columns[index]}': {error}") from None

    def _describe_missing(self, row: TableRow, column: str) -> str:
        if self.kind == "keys":
            keys = ", ".join(name for name, cell in zip(self.columns, row.cells) if cell is not MISSING) or "none"
            return f"no key '{column}'; found the keys: {keys}. Write null for a missing value."
        hint = ""
        if "tab" in self.layout and any(str(cell).startswith('"') for cell in row.cells):
            hint = " If quotes enclose cells with line breaks in this file, give --quoting=true."
        return (
            f"the cell of column '{column}' is missing: expected {len(self.columns)} cells, found {len(row.cells)} "
            f"({self.layout}).{hint}"
        )

    def nonblank(self, index: int) -> List[str]:
        """Return the cells of a column that are not blank; skip rows without a usable cell."""
        cells = (row.cells[index] for row in self.rows if index < len(row.cells))
        texts = (cell_text(cell) for cell in cells if cell is not MISSING and not isinstance(cell, (list, dict)))
        return [text for text in texts if text.strip()]


def cell_text(value: object) -> str:
    """Return the text of a JSON scalar; raise a ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"expected a string, a number, true, false or null, found {json.dumps(value)[:60]}.")
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def one_line(text: str) -> str:
    """Collapse white space. Column names in spreadsheets may contain line breaks, which flags cannot."""
    return " ".join(text.split())
