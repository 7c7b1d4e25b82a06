"""The output folder of a search.

search.json         task, space and settings that all trials share
study.journal       Optuna's study, unless --storage names a server
trials/<n>/run      the run of trial n, see `RunFolder`; its weights are removed when it has finished
best/<n>/seed=<k>   the setting of trial n, the best one, trained again with another seed
best.json           the best trial and its settings
results.csv         the results of these runs, in the format of sweeps
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from adapter_bert.baselines import space as space_lib
from adapter_bert.baselines.settings import ROWS, BaselineSettings
from adapter_bert.common import errors, files, json_files, locks
from adapter_bert.experiments.work_folder import WorkFolder

VERSION = 1
SEARCH_FILE, JOURNAL_FILE, BEST_FILE, RESULTS_FILE = "search.json", "study.journal", "best.json", "results.csv"
_TYPES: Dict[str, Any] = {
    "version": int,
    "study": str,
    "space": Mapping[str, Any],
    "settings": Mapping[str, Any],
    "seed": int,
    "trials": int,
    "final_seeds": Sequence[int],
    "storage": Optional[str],
}
# May change when a search continues.
_CHANGEABLE = ("trials", "final_seeds", "version", "storage")
# Settings of a machine: another one may use others.
_LOCAL = ("output_dir", "feature_cache_dir", "data_dir", "train_file", "dev_file", "test_file")


@dataclasses.dataclass(frozen=True)
class Search:
    """A search: what its trials have in common."""

    study: str  # name in the storage
    space: Mapping[str, space_lib.Values]
    settings: Mapping[str, Any]  # of all runs, by flag
    seed: int
    trials: int  # in total
    final_seeds: Sequence[int]
    storage: Optional[str] = None  # without password; None for the journal

    def describe(self) -> Dict[str, Any]:
        """Return the content of `search.json`."""
        values = dataclasses.asdict(dataclasses.replace(self, space={}))
        return {"version": VERSION, **values, "space": space_lib.describe(self.space)}

    def identity(self) -> Dict[str, Any]:
        """Return what must be the same for all workers of a study, on all machines."""
        described = {name: value for name, value in self.describe().items() if name not in _CHANGEABLE}
        settings = {name: value for name, value in self.settings.items() if name not in _LOCAL}
        return json.loads(json.dumps(dict(described, settings=settings)))

    def run_settings(self, changes: Mapping[str, Any]) -> BaselineSettings:
        """Return the settings of a run."""
        return BaselineSettings(**{**self.settings, **changes})

    def trial_seed(self, number: int) -> int:
        """Return the seed of a trial, for its run and for the sampler."""
        return zlib.crc32(f"{self.seed}/{number}".encode()) & 0x7FFFFFFF


class SearchFolder(WorkFolder):
    """The files of a search.

    Attributes:
      path: path of the folder.
    """

    kind = "search"
    flags = "--output_dir or --search"

    def exists(self) -> bool:
        """Return whether the folder belongs to a search."""
        return os.path.exists(self.file(SEARCH_FILE))

    def start(self, search: Search) -> None:
        """Create the folder, or check that it belongs to this search; an error lists the differences."""
        if self.exists():
            check_same(self.search().identity(), search.identity(), self.path)
        elif os.path.isdir(self.path) and os.listdir(self.path):
            raise errors.UserError(f"{self.path} is not empty and not a search: use another --output_dir.")
        files.make_folder(self.path)
        files.write_json(self.file(SEARCH_FILE), search.describe())

    def search(self) -> Search:
        """Read the search of this folder."""
        path = self.file(SEARCH_FILE)
        content = json_files.read_object(path, "Use the output folder of a search.")
        json_files.check_types(content, _TYPES, path)
        if content["version"] != VERSION:
            raise errors.UserError(f"{path} has version {content['version']}; expected {VERSION}.")
        values = {name: value for name, value in content.items() if name in _TYPES and name != "version"}
        return Search(**dict(values, space=space_lib.from_description(content["space"])))

    def trial_run(self, number: int) -> str:
        """Return the path of a trial's run."""
        return self.file("trials", str(number), "run")

    def final_run(self, trial: int, seed: int) -> str:
        """Return the path of the run that trains the setting of the best trial with another seed."""
        return self.file("best", str(trial), f"seed={seed}", "run")

    def claim(self, *names: str) -> Optional[locks.Lock]:
        """Lock a trial or a final run for this process; return None if another process has it."""
        return self.claim_folder(self.file(*names))

    @contextlib.contextmanager
    def adding_trials(self) -> Iterator[None]:
        """Wait until no other process adds a trial."""
        with locks.held(self.file(".trials.lock")):
            yield


def check_same(recorded: Mapping[str, Any], described: Mapping[str, Any], place: str) -> None:
    """Raise a `UserError` that lists the differences between a recorded search and this one."""
    differences: List[str] = []
    for key in sorted({*recorded, *described}):
        before, now = recorded.get(key), described.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
            differences += [
                f"{name} was {before.get(name)}, is {now.get(name)}"
                for name in names
                if key != "settings" or name not in ROWS
            ]
        elif before != now:
            differences.append(f"{key} was {before}, is {now}")
    if differences:
        raise errors.UserError(
            f"{place} contains another search: {'; '.join(differences)}. Use another --output_dir (and --study), or "
            "the settings that it was started with."
        )
