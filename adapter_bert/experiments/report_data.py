"""Read the output folder of a sweep for its report. Cells may be unfinished, failed or damaged."""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors, json_files
from adapter_bert.evaluation.history import History
from adapter_bert.experiments import cells
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.sweep_file import Sweep
from adapter_bert.experiments.sweep_folder import (
    FAILURE_FILE,
    LOG_FILE,
    RESULT_FILE,
    RESULTS_FILE,
    TIMINGS_FILE,
    SweepFolder,
    read_times,
)
from adapter_bert.weights.run_folder import RunFolder

DONE, FAILED, UNFINISHED = "done", "failed", "unfinished"
# Enough for the progress of a run, or for the traceback at its end.
_LOG_LINES = 200


@dataclasses.dataclass(frozen=True)
class CellRecord:
    """What a sweep's folder contains about one cell."""

    name: str
    state: str  # DONE, FAILED or UNFINISHED
    error: str  # why it failed, or why its files cannot be read
    result: Optional[CellResult]  # None if `results.csv` lacks it
    settings: Mapping[str, Any]  # of its run; empty if it has not started
    history: Optional[History]
    log: str  # its last lines


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    """The content of a sweep's folder."""

    name: str
    sweep: Sweep
    results: Tuple[CellResult, ...]
    cells: Tuple[CellRecord, ...]  # those that have started, by name
    training_seconds: float = 0.0  # of the finished cells whose times are known

    def count(self, state: str) -> int:
        """Return the number of cells in a state."""
        return sum(cell.state == state for cell in self.cells)

    @property
    def not_started(self) -> int:
        """Number of cells without any files."""
        return max(self.sweep.num_cells - len(self.cells), 0)


def read(folder: str) -> SweepRecord:
    """Read a sweep's folder; raise a `UserError` if it is not one, or if it is of another version."""
    sweep = SweepFolder(folder).recorded_sweep()
    path = os.path.join(folder, RESULTS_FILE)
    results = cells.read(path) if os.path.exists(path) else []
    by_name = {result.name: result for result in results}
    paths = {name: os.path.join(folder, "cells", *name.split("/")) for name in by_name}
    paths.update(_find_cells(os.path.join(folder, "cells")))
    records = [_read_cell(name, path, by_name.get(name)) for name, path in sorted(paths.items())]
    times = read_times(os.path.join(folder, TIMINGS_FILE)).values()
    training_seconds = sum(each.seconds or 0.0 for each in times)
    name = os.path.basename(os.path.realpath(folder))
    return SweepRecord(name, sweep, tuple(results), tuple(records), training_seconds)


def _find_cells(root: str) -> Iterator[Tuple[str, str]]:
    """Yield the name and the path of each folder with files of a cell."""
    for path, folders, names in os.walk(root):
        if {RESULT_FILE, FAILURE_FILE, LOG_FILE} & set(names):
            folders.clear()
            yield os.path.relpath(path, root).replace(os.sep, "/"), path


def _read_cell(name: str, path: str, result: Optional[CellResult]) -> CellRecord:
    state, error, log = UNFINISHED, "", _read_log(os.path.join(path, LOG_FILE))
    settings: Dict[str, Any] = {}
    history = None
    failure_path = os.path.join(path, FAILURE_FILE)
    if result or os.path.exists(os.path.join(path, RESULT_FILE)):
        state = DONE
    elif os.path.exists(failure_path):
        state = FAILED
    try:
        if state == FAILED:
            failure = json_files.read_object(failure_path)
            json_files.check_types(failure, {"error": str, "log": Optional[Sequence[str]]}, failure_path)
            error, log = failure["error"], log or "\n".join(failure.get("log") or [])
        run = RunFolder(os.path.join(path, "run"))
        settings, history = run.read_settings(), run.history()
    except errors.UserError as damage:
        error = error or str(damage)
    return CellRecord(name, state, error, result, settings, history, log)


def _read_log(path: str) -> str:
    """Return the last lines of a log; empty if there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines: List[str] = list(collections.deque(file, _LOG_LINES + 1))
    note = f"Last {_LOG_LINES} lines:\n" if len(lines) > _LOG_LINES else ""
    return note + "".join(lines[-_LOG_LINES:])
