"""The result of one cell of a sweep, i.e. of one run, and the CSV file of many results.

The file has one row per cell. Columns `setting.<flag>` contain JSON (`3e-4`, `true`, `null`) or, for strings that are
not valid JSON, plain text (`both`); they are empty for cells without the setting. Columns `metrics.<name>` contain
scores.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import typing
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from adapter_bert.common import errors, files

VERSION = 1
_SETTING, _METRIC = "setting.", "metrics."
# Only SQuAD's scores are already in percent.
_PERCENT_METRICS = ("exact_match", "exact")


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The result of one run of a sweep."""

    name: str  # unique, e.g. "CoLA/adapters/adapter_size=64,learning_rate=3e-4/seed=1"
    task: str
    method: str  # row of the tables, e.g. "adapters 64", "full", "top_layers 2", "layer_norm"
    kind: str  # a tuning mode: adapter, full, top_layers, layer_norm or head
    settings: Mapping[str, Any]  # the swept flags: learning_rate, num_train_epochs, adapter_size, …
    seed: int
    metric: str  # name of the primary metric
    dev: Optional[float]  # primary metric on dev; None: not finite
    test: Optional[float]  # on a labelled test split, if there is one
    metrics: Mapping[str, float]  # on dev
    majority: Optional[float]  # score of the constant prediction on dev
    collapsed: bool  # whether all predictions are the same
    loss: Optional[float]
    trained_params: int
    total_params: int  # of the whole model
    steps: int
    fingerprint: str  # of the predictions

    def percent(self, split: str = "dev") -> Optional[float]:
        """Return the primary metric on `dev` or `test` in percent; None if there is no finite score."""
        score = {"dev": self.dev, "test": self.test}[split]
        if score is None or not math.isfinite(score):
            return None
        return score if any(name in self.metrics for name in _PERCENT_METRICS) else 100 * score

    @property
    def trained_share(self) -> float:
        """Trained parameters as a fraction of a BERT without adapters.

        With adapters, the number of frozen weights is used as the size of that BERT. It lacks only the LayerNorms,
        0.03 % of BERT-base.
        """
        base = self.total_params - self.trained_params if self.kind == "adapter" else self.total_params
        return self.trained_params / base


TYPES = typing.get_type_hints(CellResult)
_PLAIN = [name for name in TYPES if name not in ("settings", "metrics")]


def write(path: str, cells: Sequence[CellResult]) -> None:
    """Write a CSV file atomically."""
    rows = [_to_row(cell) for cell in cells]
    columns = dict.fromkeys(["version", *_PLAIN])
    for prefix in (_METRIC, _SETTING):
        columns.update(dict.fromkeys(name for row in rows for name in row if name.startswith(prefix)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(path, text.getvalue())


def _to_row(cell: CellResult) -> Dict[str, Any]:
    row: Dict[str, Any] = {"version": VERSION, **{name: getattr(cell, name) for name in _PLAIN}}
    row["collapsed"] = json.dumps(cell.collapsed)
    row.update({_METRIC + name: score for name, score in cell.metrics.items()})
    row.update({_SETTING + flag: _to_text(value) for flag, value in cell.settings.items()})
    return row


def _to_text(value: Any) -> str:
    """Return a value as JSON, or as plain text if it is a non-empty string that is not valid JSON."""
    return value if isinstance(value, str) and value and _from_text(value) == value else json.dumps(value)


def _from_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read(path: str) -> List[CellResult]:
    """Read a file written by `write`; raise a `UserError` if it is damaged or of another version.

    Additional columns, e.g. those that spreadsheets and pandas add, are ignored.
    """
    try:
        text = files.read_bytes(path, f"Cannot read the results {path}").decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows, columns = list(reader), reader.fieldnames or []
    except (UnicodeDecodeError, csv.Error) as error:
        raise errors.UserError(f"{path} is not a CSV file: {errors.reason(error)}.") from None
    missing = [name for name in ("version", *_PLAIN) if name not in columns]
    if missing:
        raise errors.UserError(
            f"{path} lacks the columns {errors.first_names(missing, len(missing))}. Expected the results of a sweep."
        )
    cells = [_from_row(row, f"{path}, row {number}") for number, row in enumerate(rows, 1)]
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.UserError(f"{path} has two rows for the cell {twice}. Remove one.")
    return cells


def _from_row(row: Mapping[str, Any], where: str) -> CellResult:
    if row["version"] != str(VERSION):
        raise errors.UserError(
            f"{where}: expected version {VERSION}, found {row['version']!r:.100}. Write the file with this release."
        )
    if None in row or None in row.values():
        raise errors.UserError(f"{where}: the number of fields differs from the header's.")
    values: Dict[str, Any] = {name: _parse(row, name, _PARSERS[TYPES[name]], where) for name in _PLAIN}
    scores = [name for name in row if name.startswith(_METRIC) and row[name]]
    flags = [name for name in row if name.startswith(_SETTING) and row[name]]
    return CellResult(
        **values,
        metrics={name[len(_METRIC) :]: _parse(row, name, float, where) for name in scores},
        settings={name[len(_SETTING) :]: _from_text(row[name]) for name in flags},
    )


# Booleans are case-insensitive, because pandas writes `True`.
_PARSERS: Dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    Optional[float]: lambda text: float(text) if text else None,
}


def _parse(row: Mapping[str, str], name: str, parser: Callable[[str], Any], where: str) -> Any:
    try:
        return parser(row[name])
    except (ValueError, KeyError):
        expected = str(TYPES.get(name, float)).replace("typing.", "").replace("<class '", "").replace("'>", "")
        raise errors.UserError(f"{where}, column {name}: expected {expected}, found {row[name]!r:.100}.") from None
