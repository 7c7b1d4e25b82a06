"""Run a search on this machine: check it, start its workers, show progress, and write its results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.baselines import registry_packages, space, training
from adapter_bert.baselines.search_folder import BEST_FILE, RESULTS_FILE, Search, SearchFolder
from adapter_bert.baselines.study import STORAGE_VARIABLE, Study, check_storage, without_password
from adapter_bert.baselines.weights import BaselineFolder
from adapter_bert.baselines.worker import final_settings
from adapter_bert.common import errors, files, progress
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.experiments import cells, launchers
from adapter_bert.experiments.cells import CellResult

WORKER = "adapter_bert.baselines.worker"
# Method and kind of the runs in reports.
METHOD, KIND = "no BERT", "baseline"


def make(settings: Any, changed: Mapping[str, Any], options: Mapping[str, Any]) -> Search:
    """Return the search that flags describe.

    Args:
      settings: a `BaselineSettings`, shared by all trials.
      changed: flags of the network on the command line; each fixes a row of the space.
      options: `space` (a file), `study`, `trials`, `final_seeds`, `storage`.
    """
    found = space.read(options.get("space"), changed)
    check_storage(options.get("storage"))
    values = {**dataclasses.asdict(settings), **{"do_train": True, "do_eval": True, "do_predict": False}}
    first = {name: (value.low if isinstance(value, space.Range) else value[0]) for name, value in found.items()}
    checked = dataclasses.replace(settings, **first, do_train=True, do_eval=True, do_predict=False)
    checked.validate()
    checked.check_paths()
    if not checked.evaluates_in_training:
        raise errors.UserError("A search needs evaluations during training: leave out --eval_every_steps=0.")
    seed = settings.seed if settings.seed is not None else 1
    kept = {name: value for name, value in values.items() if name not in (*space.TABLE, "seed", "output_dir", "preset")}
    study = options.get("study") or settings.task_name
    seeds = list(options.get("final_seeds") or ())
    return Search(study, found, kept, seed, int(options["trials"]), seeds, without_password(options.get("storage")))


def check_inputs(search: Search) -> None:
    """Read the data and open every module, so that mistakes end the search before its first trial."""
    found: Any = search.run_settings({"hub_module": "x", "output_dir": "x"})
    training.classification.load_data(found)
    for name in search.space["hub_module"]:
        registry_packages.open_module(str(name))


def run(folder: SearchFolder, search: Search, workers: int, storage: Optional[str]) -> None:
    """Run all trials and the final runs, and write the results."""
    if storage:
        os.environ[STORAGE_VARIABLE] = storage  # the workers read it; their command lines are public
    study = Study(folder, search, storage)
    shown = _Progress(study)

    def crashed(name: str) -> None:
        if name.isdigit():
            folder.count_crash(folder.file("trials", name))

    try:
        launchers.run_workers(folder, WORKER, workers, shown.show, crashed)
    except KeyboardInterrupt:
        raise errors.StoppedError("interrupted; the same command continues the search.") from None
    finally:
        with contextlib.suppress(errors.UserError, OSError):
            write_results(study)
    shown.show(0, last=True)


class _Progress:
    """Logs how many trials have finished, and the best score so far."""

    def __init__(self, study: Study) -> None:
        self._study, self._started = study, time.monotonic()
        self._before = self._finished(study.counts())
        self._shown: Tuple[Any, ...] = ()

    @staticmethod
    def _finished(counts: Mapping[str, int]) -> int:
        return sum(counts[name] for name in ("COMPLETE", "PRUNED", "FAIL"))

    def show(self, running: int, last: bool = False) -> None:
        """Log a line if something has changed."""
        counts, best = self._study.counts(), self._study.best()
        done = self._finished(counts)
        if (done,) == self._shown and not last:
            return
        self._shown = (done,)
        rate = (done - self._before) / (time.monotonic() - self._started) * 3600
        left = ""
        if rate and done < self._study.search.trials:
            left = f", {progress.format_seconds((self._study.search.trials - done) / rate * 3600)} left"
        tf.logging.info(
            "%d of %d trials done (%d pruned, %d failed), best %s%s",
            done,
            self._study.search.trials,
            counts["PRUNED"],
            counts["FAIL"],
            f"{best.value:.4f} (trial {best.number})" if best else "none yet",
            left,
        )


def write_results(study: Study) -> List[CellResult]:
    """Write `best.json` and `results.csv`, the final runs in the format of sweeps; return these results."""
    best = study.best()
    if best is None:
        return []
    record = {"trial": best.number, "score": best.value, "settings": best.params, "counts": study.counts()}
    files.write_json(study.folder.file(BEST_FILE), record)
    found = []
    for seed in study.search.final_seeds:
        run_folder = BaselineFolder(final_settings(study, seed).output_dir)
        if run_folder.result_files():
            found.append(_cell(study.search, best.params, seed, run_folder.read_results()))
    cells.write(study.folder.file(RESULTS_FILE), found)
    return found


def _cell(search: Search, chosen: Dict[str, Any], seed: int, results: EvalResults) -> CellResult:
    metric = results.primary_metric
    swept = {name: chosen[name] for name in space.names(search.space)}
    return CellResult(
        name=f"{results.task}/{METHOD}/seed={seed}",
        task=results.task,
        method=METHOD,
        kind=KIND,
        settings=swept,
        seed=seed,
        metric=metric,
        dev=results.primary,
        test=results.test.get("metrics", {}).get(metric),
        metrics={name: value for name, value in results.metrics.items() if value is not None},
        majority=results.majority.get(metric),
        collapsed=results.collapsed,
        loss=results.loss,
        trained_params=results.parameters["trained"],
        total_params=results.parameters["total"],
        steps=results.step,
        fingerprint=results.fingerprints.get("predictions") or "",
    )
