"""A worker of a sweep. It runs cells one after another in one process, with shared bases, graphs and sessions.

    python -m adapter_bert.experiments.worker SWEEP_FOLDER [cores]

Any number of workers may run at the same time. Each claims cells by locking them, and ends when no cell is left.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, Optional

from adapter_bert.common import system

if __name__ == "__main__":
    if len(sys.argv) > 2:
        system.use_cores([int(core) for core in sys.argv[2].split(",")])
    system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, locks, logs
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.sweep_folder import LOG_FILE, SweepFolder, Times
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.groups import Settings
from adapter_bert.training import classification, span_extraction
from adapter_bert.training.engine import Engine, WarmEngine
from adapter_bert.weights.run_folder import RunFolder

WORKFLOWS: Dict[str, Callable[[Any, Engine], Optional[EvalResults]]] = {
    "run_classifier.py": classification.run,
    "run_squad.py": span_extraction.run,
}
# Tuning modes whose packs are small enough to keep.
MODES_WITH_PACKS = ("adapter", "layer_norm", "head")
_POLL_SECONDS = 2.0
# Exit code of a worker that found the disk full.
DISK_FULL = 74
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


def work(folder: SweepFolder, engine: Engine) -> None:
    """Run cells until none is left, including cells that are added by the results of other workers."""
    sweep = folder.sweep()
    while True:
        remaining = folder.status(sweep).remaining
        if not remaining:
            return
        if not any(_run_if_free(folder, sweep, cell, engine) for cell in remaining):
            time.sleep(_POLL_SECONDS)  # other workers run them


def _run_if_free(folder: SweepFolder, sweep: Sweep, cell: Cell, engine: Engine) -> bool:
    """Run a cell unless it is done or another worker runs it; return whether it ran."""
    lock = folder.claim(cell)
    if lock is None:
        return False
    try:
        if folder.result(cell) or folder.failure(cell):
            return False
        _announce(cell)
        _run(folder, sweep, cell, engine)
        return True
    finally:
        _release(lock)


def _release(lock: locks.Lock) -> None:
    lock.release()
    _announce(None)


def _announce(cell: Optional[Cell]) -> None:
    """Tell the launcher which cell runs, in case the cell kills this process."""
    print(json.dumps({"cell": cell.name if cell else None}), flush=True)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error says that the disk is full, or a quota used up. TensorFlow's have only the message."""
    code, text = getattr(error, "errno", None), str(error)
    return code in _DISK_FULL_ERRORS or any(os.strerror(each) in text for each in _DISK_FULL_ERRORS)


def _run(folder: SweepFolder, sweep: Sweep, cell: Cell, engine: Engine) -> None:
    """Run a cell, and record its result or why it failed; raise an error if the disk is full."""
    started = time.monotonic()
    try:
        with _logged_to(folder.cell_file(cell, LOG_FILE)):
            settings = folder.settings(sweep, cell)
            settings.check_paths()
            results = WORKFLOWS[sweep.program](settings, engine)
            assert results is not None, "a cell evaluates the dev split"
            result = summarize(cell, settings, results)
    except errors.StoppedError:
        raise
    except errors.DivergedError as error:
        tf.logging.warning("%s: %s", cell.name, error)
        result = _diverged(cell, settings, error)
    except Exception as error:  # must not stop the other cells
        if is_disk_full(error):
            raise
        text = str(error) if isinstance(error, errors.UserError) else errors.reason(error)
        if not isinstance(error, (errors.UserError, OSError)):
            with open(folder.cell_file(cell, LOG_FILE), "a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        folder.write_failure(cell, text)
        return
    run = RunFolder(folder.run_path(cell))
    times = Times(round(run.history().seconds, 1), round(time.monotonic() - started, 1))
    folder.write_result(cell, result, times)
    run.remove_weights(keep_pack=settings.tuning_mode in MODES_WITH_PACKS)


def _describe(cell: Cell, settings: Settings) -> Dict[str, Any]:
    """Return the fields of a result that do not depend on the run."""
    swept = dict(cell.swept)
    if settings.tuning_mode == "adapter":
        swept.setdefault("adapter_size", settings.adapter_size)
    fields = {name: getattr(cell, name) for name in ("name", "task", "method", "seed")}
    return {**fields, "kind": settings.tuning_mode, "settings": swept}


def _diverged(cell: Cell, settings: Settings, error: errors.DivergedError) -> CellResult:
    """Return the result of a cell whose loss is not finite: it counts as a run without a score."""
    return CellResult(
        **_describe(cell, settings),
        metric=_primary_metric(settings),
        dev=None,
        test=None,
        metrics={},
        majority=None,
        collapsed=False,
        loss=None,
        trained_params=error.parameters["trained"],
        total_params=error.parameters["total"],
        steps=error.step,
        fingerprint="",
    )


def _primary_metric(settings: Settings) -> str:
    if not isinstance(settings, ClassifierSettings):
        return "f1"
    if settings.has_custom_data:
        return settings.primary_metric or settings.custom_data.metrics[0]
    return settings.primary_metric or settings.known_task().primary_metric


def summarize(cell: Cell, settings: Settings, results: EvalResults) -> CellResult:
    """Return the result of a cell."""
    metric = results.primary_metric
    return CellResult(
        **_describe(cell, settings),
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


@contextlib.contextmanager
def _logged_to(path: str) -> Iterator[None]:
    """Append the log of this block to a file."""
    logger = logging.getLogger("tensorflow")
    handler = logging.FileHandler(path, encoding="utf-8")
    handlers = list(logger.handlers)
    handler.setFormatter(handlers[0].formatter if handlers else None)
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        handler.close()


@errors.exits_on_user_error
def main() -> None:
    """Work on the sweep in the folder given on the command line."""
    system.end_with_parent()
    logs.show_progress()
    tf.logging.info("Worker of the sweep %s", sys.argv[1])
    try:
        work(SweepFolder(sys.argv[1]), WarmEngine())
    except Exception as error:
        if not is_disk_full(error):
            raise
        tf.logging.error("%s", error)
        sys.exit(DISK_FULL)


if __name__ == "__main__":
    main()
