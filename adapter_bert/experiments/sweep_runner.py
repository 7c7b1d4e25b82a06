"""Run a sweep on this machine: progress, and the table at the end."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Dict, Mapping, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, progress
from adapter_bert.experiments import launchers, selection, summaries, tables
from adapter_bert.experiments.sweep_file import Sweep
from adapter_bert.experiments.sweep_folder import FAILURE_FILE, RESULTS_FILE, SweepFolder

_LOG_SECONDS = 30.0


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
    started = time.monotonic()
    if folder.status(sweep).remaining:
        try:
            launchers.run_locally(folder, sweep, workers, _Progress(sweep, folder).show)
        except BaseException as error:
            with contextlib.suppress(errors.UserError, OSError):  # e.g. a full disk, which is what `error` says
                folder.write_results(sweep)
            if isinstance(error, KeyboardInterrupt):
                raise errors.StoppedError("interrupted; the same command continues the sweep.") from None
            raise
    results = folder.write_results(sweep)
    if results:
        print(tables.summary_table(summaries.summarize(results)).markdown())
    status = folder.status(sweep)
    _report_failures(folder, status.failures)
    training = sum(folder.times(result.name).seconds or 0.0 for result in results)
    steps = f" with {progress.format_seconds(training)} of training steps" if training else ""
    here = progress.format_seconds(time.monotonic() - started)
    path = folder.file(RESULTS_FILE)
    tf.logging.info("***** %d runs%s, %s in this command: %s *****", len(results), steps, here, path)
    return not status.failures


def _report_failures(folder: SweepFolder, failures: Mapping[str, str]) -> None:
    """Log each error once, with the cells that it stopped and the end of the first one's log."""
    for error, names in selection.group(failures, failures.__getitem__).items():
        tf.logging.warning("Failed: %s: %s", errors.first_names(names), error)
        with open(folder.file("cells", *names[0].split("/"), FAILURE_FILE), encoding="utf-8") as file:
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
