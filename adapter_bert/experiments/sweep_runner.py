"""Run a sweep on this machine: progress, estimates and the table at the end."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import tempfile
import time
from concurrent import futures
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, logs, progress, system
from adapter_bert.experiments import launchers, selection, summaries, tables
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.sweep_folder import RESULTS_FILE, SweepFolder
from adapter_bert.experiments.worker import WORKFLOWS
from adapter_bert.training import classification, span_extraction
from adapter_bert.training.engine import Engine
from adapter_bert.weights.run_folder import RunFolder

_LOG_SECONDS = 30.0
# For estimates: steps of the short run, and the time that a run takes outside its steps.
_PROBE_STEPS, _FIXED_SECONDS = 30, 4.0


class _Progress:
    """Logs how many cells are done, running and failed, and the time left."""

    def __init__(self, sweep: Sweep, folder: SweepFolder) -> None:
        self._sweep, self._folder = sweep, folder
        self._started, self._logged = time.monotonic(), -_LOG_SECONDS
        self._shown: Tuple[int, int] = (-1, -1)
        status = folder.status(sweep)
        self._done_before = len(status.results) + len(status.failures)
        self._failed = set(status.failures)

    def show(self, running: int) -> None:
        """Log a line if something has changed."""
        now = time.monotonic()
        if now - self._logged < _LOG_SECONDS:
            return
        self._logged = now
        status = self._folder.status(self._sweep)
        new = {name: status.failures[name] for name in sorted(set(status.failures) - self._failed)}
        for error, names in selection.group(new, new.__getitem__).items():
            tf.logging.warning("Failed: %s: %s", errors.first_names(names, 1), error)
        self._failed = set(status.failures)
        done = len(status.results) + len(status.failures)
        if (done, running) != self._shown:
            self._shown = done, running
            tf.logging.info(
                "%d of %d runs done, %d running, %d failed%s",
                len(status.results),
                status.total,
                running,
                len(status.failures),
                self._time_left(done, status.total),
            )

    def _time_left(self, done: int, total: int) -> str:
        here = done - self._done_before
        if not here:
            return ""
        seconds = (time.monotonic() - self._started) / here * (total - done)
        return f", {progress.format_seconds(seconds)} left"


def run(sweep: Sweep, folder: SweepFolder, workers: int) -> bool:
    """Run all cells that are not done, write the results and print a table; return whether all cells succeeded."""
    if folder.status(sweep).remaining:
        try:
            launchers.run_locally(folder, sweep, workers, _Progress(sweep, folder).show)
        except KeyboardInterrupt:
            raise errors.StoppedError("interrupted; the same command continues the sweep.") from None
        finally:
            results = folder.write_results(sweep)
    results = folder.write_results(sweep)
    if results:
        print(tables.summary_table(summaries.summarize(results)).markdown())
    status = folder.status(sweep)
    _report_failures(folder, status.failures)
    tf.logging.info("***** %d runs: %s *****", len(results), folder.file(RESULTS_FILE))
    return not status.failures


def _report_failures(folder: SweepFolder, failures: Mapping[str, str]) -> None:
    """Log each error once, with the cells that it stopped and the end of the first one's log."""
    for error, names in selection.group(failures, failures.__getitem__).items():
        tf.logging.warning("Failed: %s: %s", errors.first_names(names), error)
        with open(folder.file("cells", *names[0].split("/"), "failure.json"), encoding="utf-8") as file:
            for line in json.load(file)["log"]:
                tf.logging.warning("  %s", line)


def parse_options(text: str) -> Dict[str, Any]:
    """Parse scheduler options: `timeout_min=600,partition=cpu`. Numbers become integers."""
    options: Dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not (name and equals and value):
            raise errors.UserError(f"--slurm={text}: expected name=value, separated by commas, found {part!r:.60}.")
        options[name] = int(value) if value.isdigit() else value
    return options


# ------------------------------------------------------------------------------------------- estimates


def estimate(sweep: Sweep, folder: SweepFolder, workers: int) -> str:
    """Return the number of runs, and the time and disk space that they need. A short run measures the speed."""
    lines = [
        f"{sweep.num_cells} runs: {len(sweep.tasks)} tasks, {len(sweep.methods)} methods, {len(sweep.seeds)} seeds"
    ]
    done = len(folder.status(sweep).results) if os.path.exists(folder.file("sweep.json")) else 0
    if done:
        lines[0] += f"; {done} are done"
    by_task = selection.group(sweep.grid_cells(), lambda cell: cell.task)
    with tempfile.TemporaryDirectory() as scratch:
        probe = SweepFolder(scratch)
        examples: Dict[str, int] = {}
        for task, cells in by_task.items():
            try:
                examples[task] = _count_examples(sweep, probe.settings(sweep, cells[0]))
            except errors.UserError as error:
                lines.append(f"{task} cannot run: {error}")
        if not examples:
            return "\n".join(lines)
        first = by_task[next(iter(examples))][0]
        with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(system.use_cores, launchers.core_groups(workers)[0]).result()
            process.submit(logs.show_progress, -1).result()
            speed, size = process.submit(_measure, sweep, probe, first, examples[first.task]).result()
    mean_epochs = {task: np.mean([_epochs(sweep, folder, cell) for cell in by_task[task]]) for task in examples}
    seconds = np.mean([examples[task] * mean_epochs[task] / speed + _FIXED_SECONDS for task in examples])
    remaining = max(sweep.num_cells * len(examples) // len(sweep.tasks) - done, 0)
    total = float(seconds) * remaining / workers
    lines.append(f"About {progress.format_seconds(total)} with {workers} workers, at {speed:.0f} examples/s each")
    lines.append(f"About {size * remaining / 1e6:,.0f} MB of disk space for finished runs")
    return "\n".join(lines)


def _epochs(sweep: Sweep, folder: SweepFolder, cell: Cell) -> float:
    return float(folder.settings(sweep, cell).num_train_epochs)


def _count_examples(sweep: Sweep, settings: Any) -> int:
    settings.check_paths()
    if sweep.program == "run_squad.py":
        data = span_extraction.load_data(settings)
        return data.train.num_questions if data.train else 0
    return len(classification.load_data(settings).splits["train"])


def _measure(sweep: Sweep, folder: SweepFolder, cell: Cell, examples: int) -> Tuple[float, int]:
    """Run a few steps of a cell; return examples per second and the size of a finished run in bytes."""
    settings = folder.settings(sweep, cell)
    epochs = min(settings.num_train_epochs, (_PROBE_STEPS + 0.5) * settings.train_batch_size / examples)
    settings = dataclasses.replace(settings, num_train_epochs=epochs, do_eval=False, do_predict=False)
    WORKFLOWS[sweep.program](settings, Engine())
    run = RunFolder(settings.output_dir or "")
    run.remove_weights(keep_pack=True)
    history = run.history()
    return history.examples / history.seconds, sum(entry.stat().st_size for entry in os.scandir(run.path))
