"""The output folder of a sweep.

sweep.json                  definition of the sweep that the folder belongs to
cells/<name>/run            the run of a cell, see `RunFolder`
cells/<name>/result.json    its result, written when it has finished
cells/<name>/failure.json   why it failed, if it did
cells/<name>/log.txt        its log
features                    features, shared by all cells
results.csv, timings.csv    all finished cells
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from adapter_bert.common import errors, files, json_files, locks
from adapter_bert.experiments import cells, selection, sweep_file
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.work_folder import MAX_CRASHES, WorkFolder

VERSION = 1
RESULTS_FILE, TIMINGS_FILE = "results.csv", "timings.csv"
SWEEP_FILE, RESULT_FILE, FAILURE_FILE, LOG_FILE = "sweep.json", "result.json", "failure.json", "log.txt"
_CRASHES_FILE = "crashes.json"
_LOG_LINES = 20


class Times(NamedTuple):
    """Times of a cell in seconds; None if they are not known. A column of `timings.csv` for each."""

    seconds: Optional[float] = None  # spent on training steps, by all processes
    wall_seconds: Optional[float] = None  # of the whole cell, in the process that finished it


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a sweep."""

    results: Mapping[str, CellResult]  # by name of the cell
    failures: Mapping[str, str]  # name of the cell -> error
    remaining: Tuple[Cell, ...]  # cells known so far that have not finished, in order
    total: int


class SweepFolder(WorkFolder):
    """The files of a sweep.

    Attributes:
      path: path of the folder.
    """

    kind = "sweep"
    flags = "--output_dir or --sweep"

    # ------------------------------------------------------------------------------------------- the sweep

    def exists(self) -> bool:
        """Return whether the folder belongs to a sweep."""
        return os.path.exists(self.file(SWEEP_FILE))

    def start(self, sweep: Sweep) -> Sweep:
        """Create the folder, or check that it belongs to this sweep; an error lists the differences.

        Returns the sweep, with the tasks named as they were when the folder was created.
        """
        # In the form that is read back from the file.
        described = json.loads(json.dumps(sweep.describe()))
        if self.exists():
            recorded = self._read_sweep()
            before = sweep_file.with_registered_names({**described, **recorded})
            changed = [key for key in described if described[key] != before.get(key)]
            if changed:
                differences = "; ".join(_difference(key, before.get(key), described[key]) for key in changed)
                raise errors.UserError(
                    f"{self.path} belongs to another sweep: {differences}. Use another --output_dir, or the sweep file "
                    "that it was started with."
                )
            return sweep if recorded == described else self.sweep()
        if os.path.isdir(self.path) and os.listdir(self.path):
            raise errors.UserError(f"{self.path} is not empty and not a sweep: use another --output_dir.")
        files.make_folder(self.path)
        files.write_json(self.file(SWEEP_FILE), {"version": VERSION, "sweep": described})
        return sweep

    def _read_sweep(self) -> Dict[str, Any]:
        path = self.file(SWEEP_FILE)
        content = json_files.read_object(path, "Use the output folder of a sweep.")
        if content.get("version") != VERSION:
            raise errors.UserError(f"{path} has version {content.get('version')!r:.60}; expected {VERSION}.")
        json_files.check_types(content, {"sweep": Mapping[str, Any]}, path)
        return dict(content["sweep"])

    def recorded_sweep(self) -> Sweep:
        """Return the sweep of this folder. It may be invalid, e.g. have flags that this release does not know."""
        return sweep_file.from_description(self.file(SWEEP_FILE), self._read_sweep())

    def sweep(self) -> Sweep:
        """Return the sweep of this folder; raise a `UserError` if it is invalid."""
        sweep = self.recorded_sweep()
        sweep_file.check_cells(sweep)
        return sweep

    # --------------------------------------------------------------------------------------------- a cell

    def cell_file(self, cell: Cell, name: str = "") -> str:
        """Return the path of a file of a cell, or of its folder."""
        return os.path.join(self.path, "cells", *cell.name.split("/"), name)

    def run_path(self, cell: Cell) -> str:
        """Return the path of a cell's run folder."""
        return self.cell_file(cell, "run")

    def settings(self, sweep: Sweep, cell: Cell) -> Any:
        """Return the settings of a cell's run."""
        return sweep.settings(cell, self.run_path(cell), self.file("features"))

    def claim(self, cell: Cell) -> Optional[locks.Lock]:
        """Lock a cell; return None if another worker runs it."""
        return self.claim_folder(self.cell_file(cell))

    def result(self, cell: Cell) -> Optional[CellResult]:
        """Read the result of a cell; None if it has not finished."""
        path = self.cell_file(cell, RESULT_FILE)
        if not os.path.exists(path):
            return None
        content = json_files.read_object(path, "Delete it to run the cell again.")
        if content.get("version") != cells.VERSION:
            raise errors.UserError(
                f"{path} has version {content.get('version')!r:.60}; expected {cells.VERSION}. Delete it to run the "
                "cell again."
            )
        json_files.check_types(content, cells.TYPES, path)
        return CellResult(**{name: content[name] for name in cells.TYPES})

    def failure(self, cell: Cell) -> Optional[str]:
        """Return why a cell has failed; None if it has not."""
        path = self.cell_file(cell, FAILURE_FILE)
        return str(json_files.read_object(path).get("error")) if os.path.exists(path) else None

    def write_result(self, cell: Cell, result: CellResult, times: Times) -> None:
        """Record that a cell has finished."""
        os.makedirs(self.cell_file(cell), exist_ok=True)
        content = {"version": cells.VERSION, **dataclasses.asdict(result), **times._asdict()}
        files.write_json(self.cell_file(cell, RESULT_FILE), content)

    def write_failure(self, cell: Cell, error: str) -> None:
        """Record that a cell has failed, with the end of its log."""
        log = self.cell_file(cell, LOG_FILE)
        lines: List[str] = []
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as file:
                lines = list(collections.deque((line.rstrip("\n") for line in file), _LOG_LINES))
        files.write_json(self.cell_file(cell, FAILURE_FILE), {"error": error, "log": lines})

    def add_known(self, sweep: Sweep, known: Mapping[str, CellResult], times: Mapping[str, Times]) -> int:
        """Import the results and times of unfinished cells, both by name of the cell; return the number of results."""
        count = 0
        while True:  # results of the grid determine which cells run with further seeds
            added = [cell for cell in self.status(sweep).remaining if cell.name in known]
            if not added:
                return count
            for cell in added:
                self.write_result(cell, known[cell.name], times.get(cell.name, Times()))
            count += len(added)

    def forget_failures(self, sweep: Sweep) -> None:
        """Let failed cells run again."""
        for cell in all_cells(sweep, self.result, self.failure):
            for name in (FAILURE_FILE, _CRASHES_FILE):
                if os.path.exists(self.cell_file(cell, name)):
                    os.remove(self.cell_file(cell, name))

    def add_crash(self, cell: Cell) -> None:
        """Record that a cell has killed its worker. After `MAX_CRASHES` times, it counts as failed."""
        count = self.count_crash(self.cell_file(cell))
        if count >= MAX_CRASHES:
            self.write_failure(cell, f"its worker died {count} times, perhaps for lack of memory")

    # ------------------------------------------------------------------------------------------ all cells

    def status(self, sweep: Sweep) -> Status:
        """Read the state of all cells."""
        results, failures, remaining = {}, {}, []
        for cell in all_cells(sweep, self.result, self.failure):
            result, failure = self.result(cell), self.failure(cell)
            if result:
                results[cell.name] = result
            elif failure:
                failures[cell.name] = failure
            else:
                remaining.append(cell)
        return Status(results, failures, tuple(remaining), sweep.num_cells)

    def write_results(self, sweep: Sweep) -> List[CellResult]:
        """Write `results.csv`, which does not depend on times or the order of the cells, and `timings.csv`."""
        results = [result for _, result in sorted(self.status(sweep).results.items())]
        cells.write(self.file(RESULTS_FILE), results)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", *Times._fields])
        writer.writerows([result.name, *self.times(result.name)] for result in results)
        files.write_text(self.file(TIMINGS_FILE), text.getvalue())
        return results

    def times(self, name: str) -> Times:
        """Return the times of a finished cell."""
        content = json_files.read_object(os.path.join(self.path, "cells", *name.split("/"), RESULT_FILE))
        return Times(*(content.get(field) for field in Times._fields))


def read_times(path: str) -> Dict[str, Times]:
    """Return the times of cells in a `timings.csv`, by name; none if the file does not exist."""
    if not os.path.exists(path):
        return {}
    content = files.read_bytes(path, f"Cannot read the times {path}")
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
        texts = {row["name"]: [row.get(field) for field in Times._fields] for row in rows}
        return {name: Times(*(float(text) if text else None for text in found)) for name, found in texts.items()}
    except (ValueError, KeyError, csv.Error) as error:
        raise errors.UserError(f"{path} does not contain the times of a sweep: {errors.reason(error)}.") from None


def all_cells(sweep: Sweep, result: Callable[[Cell], Any], failure: Callable[[Cell], Any]) -> Iterator[Cell]:
    """Yield all cells that are known so far: the grid, and the further seeds of settings that are already selected."""
    grid = sweep.grid_cells()
    yield from grid
    methods = {method.name: method for method in sweep.methods}
    for (task, name), group in selection.group(grid, lambda cell: (cell.task, cell.method)).items():
        results = {cell.name: result(cell) for cell in group}
        found = [each for each in results.values() if each]
        if not found or not all(results[cell.name] or failure(cell) for cell in group):
            continue
        best = selection.select_best(found)[0].name
        swept = next(cell.swept for cell in group if cell.name == best)
        yield from sweep.more_seeds(task, methods[name], swept)


def _difference(key: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        key, before, now = next(
            (f"{key}.{name}", before.get(name), now.get(name))
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        )
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        key, before, now = next(
            (f"{key}[{index}]", one, other) for index, (one, other) in enumerate(zip(before, now)) if one != other
        )
        if isinstance(before, dict) and isinstance(now, dict):
            return _difference(key, before, now)
    return f"{key} was {json.dumps(before):.200}, is {json.dumps(now):.200}"
