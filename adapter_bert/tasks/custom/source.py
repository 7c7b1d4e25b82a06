"""The texts and labels of a table."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from adapter_bert.common import errors
from adapter_bert.tasks.custom.formats import TableFormat, read_table

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
    """A table and the indices of its columns in use.

    Attributes:
      table: the table.
      header_is_assumed: whether columns are given by number, so that the first row is taken as data.
    """

    def __init__(self, path: str, columns: Dict[str, str], table_format: TableFormat) -> None:
        """Read the table.

        Args:
          path: see `read_table`.
          columns: flag -> column, for the flags --text_column, --text_pair_column and --label_column that are set.
          table_format: what is known about the file.

        Raises:
          errors.UserError: the file is unusable, or a column is missing or blank.
        """
        self.table = read_table(path, list(columns.values()), table_format)
        self._indices = {flag: self._find(column, flag) for flag, column in columns.items()}
        self.header_is_assumed = table_format.header is None and self.table.kind == "numbers"

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
