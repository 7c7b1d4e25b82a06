"""The texts and labels of a table."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional

from adapter_bert.common import errors
from adapter_bert.tasks.custom.table import Table

# Numbers of different values of a column that may contain labels.
_LABEL_COUNTS = range(2, 51)


class LabelledRow(NamedTuple):
    """One row; its label is empty if there is no label column. `place` is path and line, for messages."""

    number: int
    place: str
    text_a: str
    text_b: Optional[str]
    label: str

    @property
    def is_blank(self) -> bool:
        """Whether the row has no text."""
        return not self.text_a.strip() and not (self.text_b or "").strip()


class LabelledSource:
    """A table and the indices of its columns in use, given as flag -> column for the flags that are set."""

    def __init__(self, table: Table, columns: Mapping[str, str]) -> None:
        """Find the columns; raise a `UserError` if one is missing or blank."""
        self.table = table
        self._indices = {flag: self._find(column, flag) for flag, column in columns.items()}

    def _find(self, column: str, flag: str) -> int:
        index = self.table.find(column, flag)
        # Rows without the cell raise an error when they are read.
        if all(len(row.cells) > index for row in self.table.rows) and not self.table.nonblank(index):
            filled = [name for number, name in enumerate(self.table.columns) if self.table.nonblank(number)]
            raise errors.UserError(
                f"{self.table.path}: the column '{column}' ({flag}) is empty in all {len(self.table.rows)} rows; "
                f"columns with content: {', '.join(filled) or 'none'}."
            )
        return index

    def _texts(self, flag: str) -> List[Any]:
        if flag not in self._indices:
            return [None] * len(self.table.rows)
        return [self.table.text(row, self._indices[flag]) for row in self.table.rows]

    def rows(self) -> List[LabelledRow]:
        """Return all rows, with stripped labels."""
        columns = zip(self._texts("--text_column"), self._texts("--text_pair_column"), self._texts("--label_column"))
        return [
            LabelledRow(row.number, self.table.place(row), text_a, text_b, (label or "").strip())
            for row, (text_a, text_b, label) in zip(self.table.rows, columns)
        ]

    def label_values(self) -> List[str]:
        """Return the nonblank cells of the label column, stripped."""
        return [value.strip() for value in self.table.nonblank(self._indices["--label_column"])]

    def label_like_columns(self) -> List[str]:
        """Return unused columns with few different values, most of them repeated."""
        found = []
        for index, name in enumerate(self.table.columns):
            values = self.table.nonblank(index)
            distinct = len({value.strip() for value in values})
            if index not in self._indices.values() and distinct in _LABEL_COUNTS and 2 * distinct <= len(values):
                found.append(name)
        return found
