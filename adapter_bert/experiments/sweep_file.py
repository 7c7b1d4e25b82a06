"""Sweep files: tasks × methods × settings × seeds.

A sweep file is a TOML file:

    tasks = ["CoLA", "MRPC"]
    seeds = [1, 2, 3]
    grid_seeds = [1]                  # optional: seeds of the grid search; the best setting then runs with all seeds

    [flags]                           # flags of run_classifier.py, or of `program`, for all cells
    data_dir = "glue_data/{task}"     # {task} is replaced by the name of the task
    bert_dir = "minilm"

    [task.CoLA]                       # flags of one task
    max_seq_length = 64

    [method.adapters]                 # all keys but each and grid are flags of this method
    tuning_mode = "adapter"
    each.adapter_size = [8, 64]       # one method for each value
    grid.learning_rate = [3e-4, 3e-3] # the best value for each task and method is selected on the dev set
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
import re
import sys
import typing
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple, Type

from adapter_bert import tasks
from adapter_bert.common import errors, files, json_files
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import from_values
from adapter_bert.settings.groups import Settings
from adapter_bert.settings.squad import SquadSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESETS = os.path.join(os.path.dirname(__file__), "presets")
PROGRAMS: Dict[str, Type[Any]] = {"run_classifier.py": ClassifierSettings, "run_squad.py": SquadSettings}
_KEYS = ("program", "description", "tasks", "seeds", "grid_seeds", "flags", "task", "method")
# Set by the sweep for each cell; the last three are not for cells, each of which runs in one process.
_OWN_FLAGS: Tuple[str, ...] = ("output_dir", "feature_cache_dir", "seed", "do_train", "do_eval", "task_name")
_OWN_FLAGS += ("distribution_strategy", "workers", "worker_timeout")
_MAX_CELLS = 100_000
# Task -> name of its data folder, if it differs.
_FOLDERS = {"MNLI-mm": "MNLI"}


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the results: flags, and a grid of settings from which the best is selected."""

    name: str
    flags: Mapping[str, Any]
    swept: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # this method's values of `each`
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    @property
    def num_settings(self) -> int:
        """The number of points of the grid."""
        return _num_points(self.grid)

    def settings(self) -> Iterator[Dict[str, Any]]:
        """Yield the swept flags of each point of the grid."""
        for values in itertools.product(*self.grid.values()):
            yield {**self.swept, **dict(zip(self.grid, values))}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    task: str
    method: str
    swept: Mapping[str, Any]  # the flags that differ between the cells of a task
    seed: int
    flags: Mapping[str, Any]  # all flags, except those that the sweep sets

    @property
    def setting(self) -> str:
        """The swept flags as text; empty if there are none."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.swept.items()))

    @property
    def name(self) -> str:
        """A name that is unique in the sweep and is also the path of the cell's folder."""
        parts = [self.task, self.method, self.setting, f"seed={self.seed}"]
        return "/".join(re.sub(r"[^\w.,=+ -]", "_", part) for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    path: str
    program: str
    tasks: Tuple[str, ...]
    seeds: Tuple[int, ...]
    grid_seeds: Tuple[int, ...]
    flags: Mapping[str, Any]
    task_flags: Mapping[str, Mapping[str, Any]]
    methods: Tuple[Method, ...]

    def grid_cells(self) -> List[Cell]:
        """Return the cells of the grid, which do not depend on results."""
        return [
            self.cell(task, method, swept, seed)
            for method in self.methods  # outer loop: cells of one method can share a graph
            for task in self.tasks
            for swept in method.settings()
            for seed in self._seeds_of_grid(method)
        ]

    def _seeds_of_grid(self, method: Method) -> Tuple[int, ...]:
        """Return the seeds of the grid search, or all seeds if there is nothing to select."""
        return self.grid_seeds if method.num_settings > 1 else self.seeds

    def more_seeds(self, task: str, method: Method, swept: Mapping[str, Any]) -> List[Cell]:
        """Return the cells of the selected setting that the grid does not contain."""
        done = self._seeds_of_grid(method)
        return [self.cell(task, method, swept, seed) for seed in self.seeds if seed not in done]

    def cell(self, task: str, method: Method, swept: Mapping[str, Any], seed: int) -> Cell:
        """Return a cell with its flags."""
        merged = {**self.flags, **self.task_flags.get(task, {}), **method.flags, **swept}
        flags = {
            name: value.replace("{task}", _FOLDERS.get(task, task)) if isinstance(value, str) else value
            for name, value in merged.items()
        }
        return Cell(task, method.name, swept, seed, flags)

    @property
    def num_cells(self) -> int:
        """The number of cells if all of them run."""
        return len(self.tasks) * sum(self.num_cells_of(method) for method in self.methods)

    def num_cells_of(self, method: Method) -> int:
        """Return the number of cells of a method on one task."""
        # The grid, and the other seeds of the selected setting.
        return (method.num_settings - 1) * len(self._seeds_of_grid(method)) + len(self.seeds)

    def settings(self, cell: Cell, output_dir: str, feature_cache_dir: str) -> Settings:
        """Return the settings of a cell's run; raise a `UserError` if they are invalid."""
        given: Dict[str, Any] = {"do_train": True, "do_eval": True, "seed": cell.seed, "task_name": cell.task}
        if self.program == "run_classifier.py" and tasks.is_known(cell.task):
            given["do_predict"] = tasks.get(cell.task).scores_test
        given.update(cell.flags, output_dir=output_dir, feature_cache_dir=feature_cache_dir)
        settings = from_values(PROGRAMS[self.program], given, ["output_dir"])
        settings.validate()
        return settings

    def describe(self) -> Dict[str, Any]:
        """Return everything that determines the cells, as JSON-compatible values."""
        values = dataclasses.asdict(self)
        del values["path"]
        return values


def from_description(path: str, described: Mapping[str, Any]) -> Sweep:
    """Rebuild a sweep from the output of `Sweep.describe`, as read from the file `path`; see also `check_cells`."""
    hints = {**typing.get_type_hints(Sweep), "path": Any, "methods": Sequence[Mapping[str, Any]]}
    json_files.check_types(described, hints, path)
    values = {name: described[name] for name in hints if name != "path"}
    for name in ("tasks", "seeds", "grid_seeds"):
        values[name] = tuple(values[name])
    hints = typing.get_type_hints(Method)
    for method in values["methods"]:
        json_files.check_types(method, hints, f"{path}: methods")
    values["methods"] = tuple(Method(**{name: method[name] for name in hints}) for method in values["methods"])
    return Sweep(path, **values)


def preset_path(name: str) -> str:
    """Return the path of a preset; raise a `UserError` that lists all presets if there is none."""
    names = sorted(os.path.splitext(file)[0] for file in os.listdir(PRESETS) if file.endswith(".toml"))
    if name not in names:
        raise errors.unknown("preset", name, names)
    return os.path.join(PRESETS, f"{name}.toml")


def read(path: str, changes: Mapping[str, Any]) -> Sweep:
    """Read a sweep file. `changes` override its general flags; `seeds` and `tasks` override the keys of these names."""
    data = files.read_bytes(path, f"Cannot read the sweep file {path}")
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise errors.UserError(f"{path} is not a TOML file: {errors.reason(error)}.") from None
    try:
        return _parse(path, content, changes)
    except errors.UserError as error:
        raise errors.UserError(f"{path}: {error}") from None


def _parse(path: str, content: Dict[str, Any], changes: Mapping[str, Any]) -> Sweep:
    _check_keys(content, _KEYS, "key")
    program = content.get("program", "run_classifier.py")
    lists = {**content, **{key: changes[key] for key in ("tasks", "seeds") if changes.get(key)}}
    names, seeds = _list(lists, "tasks", str), _list(lists, "seeds", int)
    grid_seeds = _list(content, "grid_seeds", int) if "grid_seeds" in content else seeds
    for seed in set(grid_seeds) - set(seeds):
        raise errors.UserError(f"grid_seeds contains {seed}, which is not one of the seeds {list(seeds)}.")
    tables = _table(content, "task")
    described = {
        "program": program,
        "tasks": names,
        "flags": {**_table(content, "flags"), **{name: changes[name] for name in changes if name not in _KEYS}},
        "task_flags": {name: _table(tables, name) for name in tables},
    }
    # Flags of tasks that are in the file, but not in `changes`, are valid and have no effect.
    own = with_registered_names({**described, "tasks": _list({**lists, **content}, "tasks", str)})
    described = with_registered_names(described)
    _check_keys(described["task_flags"], [*own["tasks"], *described["tasks"]], "task")
    for name in described["tasks"]:
        if not _is_custom(name, described):
            tasks.get(name)
    names = _list(described, "tasks", str)
    sweep = Sweep(
        path,
        program,
        tuple(names),
        tuple(seeds),
        tuple(grid_seeds),
        described["flags"],
        {name: flags for name, flags in described["task_flags"].items() if name in names},
        tuple(each for name, table in _table(content, "method").items() for each in _methods(name, table)),
    )
    check_cells(sweep)
    return sweep


def with_registered_names(described: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the description of a sweep with the registered names of its tasks: `MNLI` for `MNLI-m`."""

    def registered(name: str) -> str:
        return tasks.get(name).name if tasks.is_known(name) and not _is_custom(name, described) else name

    return {
        **described,
        "tasks": [registered(name) for name in described["tasks"]],
        "task_flags": {registered(name): flags for name, flags in described["task_flags"].items()},
    }


def _is_custom(name: str, described: Mapping[str, Any]) -> bool:
    """Return whether the data of a task is custom, so that its name is free."""
    flags = {**described["flags"], **described["task_flags"].get(name, {})}
    return described["program"] != "run_classifier.py" or bool(flags.get("train_file"))


def _methods(name: str, table: Any) -> Iterator[Method]:
    """Yield one method for each combination of the values of `each`."""
    if not isinstance(table, dict):
        raise errors.UserError(f"[method.{name}] must be a table of flags, found {table!r:.60}.")
    grids = {key: _table(table, key) for key in ("each", "grid")}
    for key, grid in grids.items():
        for flag in grid:
            _list(grid, flag, object, f"[method.{name}] {key}.{flag}")
    num_methods, num_settings = map(_num_points, grids.values())
    _check_size(num_methods * num_settings)
    flags = {key: value for key, value in table.items() if key not in grids}
    each = grids["each"]
    for values in itertools.product(*each.values()):
        swept = dict(zip(each, values))
        label = " ".join([name, *(str(value) for value in values)])
        yield Method(label, {**flags, **swept}, swept, grids["grid"])


def check_cells(sweep: Sweep) -> None:
    """Raise a `UserError` if the cells have invalid names or flags, or if there are none or too many."""
    if sweep.program not in list(PROGRAMS):
        raise errors.unknown("program", sweep.program, PROGRAMS)
    if not sweep.methods:
        raise errors.UserError("there is no method; expected e.g. [method.adapters].")
    for name, count in collections.Counter(method.name for method in sweep.methods).items():
        if count > 1:
            raise errors.UserError(f"two methods have the name '{name}': rename one of them.")
    _check_size(sweep.num_cells)
    known: Set[str] = set()
    checked: Set[Tuple[str, str, str]] = set()
    kind = PROGRAMS[sweep.program]
    valid = [field.name for field in dataclasses.fields(kind) if field.name not in _OWN_FLAGS]
    for cell in sweep.grid_cells():
        if cell.name in known:
            raise errors.UserError(f"two cells have the name '{cell.name}': rename a method or remove a value.")
        if {".", ".."} & set(cell.name.split("/")):
            raise errors.UserError(f"'{cell.name}' cannot be the path of a folder: rename the task or the method.")
        known.add(cell.name)
        setting = (cell.task, cell.method, cell.setting)
        if setting in checked:  # with another seed
            continue
        checked.add(setting)
        for name in cell.flags:
            if name in _OWN_FLAGS and not (name == "task_name" and sweep.program == "run_squad.py"):
                raise errors.UserError(f"the flag '{name}' cannot be set in a sweep.")
            if name not in valid:
                raise errors.unknown("flag", name, valid)
        sweep.settings(cell, "cell", "features")


def _num_points(grid: Mapping[str, Sequence[Any]]) -> int:
    return functools.reduce(lambda product, values: product * len(values), grid.values(), 1)


def _check_size(num_cells: int) -> None:
    if num_cells > _MAX_CELLS:
        raise errors.UserError(f"the grid has {num_cells} cells; the maximum is {_MAX_CELLS}.")


def _check_keys(content: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    for key in content:
        if key not in known:
            raise errors.unknown(kind, key, known)


def _table(content: Mapping[str, Any], key: str) -> Dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise errors.UserError(f"'{key}' must be a table, found {table!r:.60}.")
    return table


def _list(content: Mapping[str, Any], key: str, kind: Any, where: str = "") -> List[Any]:
    """Return a list of distinct values of a type."""
    values = content.get(key)
    where = where or f"'{key}'"
    if not isinstance(values, list) or not values:
        raise errors.UserError(f"{where} must be a list with at least one value, found {values!r:.60}.")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, (list, dict)) or (kind is int and isinstance(value, bool)):
            raise errors.UserError(f"{where} contains {value!r:.60}; expected {getattr(kind, '__name__', 'value')}.")
    if len(set(map(str, values))) < len(values):
        raise errors.UserError(f"{where} contains a value twice: {values}.")
    return values
