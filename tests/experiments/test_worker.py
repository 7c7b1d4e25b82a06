"""A worker of a sweep whose disk is full: the sweep ends with one sentence, and the same command continues it."""

from __future__ import annotations

import errno
import os
import sys

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.experiments import launchers, sweep_file, sweep_runner, worker
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.training.engine import Engine
from tests.helpers import assert_mentions, message_of, write_file

TEXT = """
tasks = ["CoLA"]
seeds = [1, 2]
[flags]
data_dir = "{data}"
bert_dir = "{bert}"
max_seq_length = 16
[method.adapters]
"""
# Announces a cell, and ends like a worker that found the disk full.
ENDS = "import json, sys; print(json.dumps({'cell': 'CoLA/adapters/seed=1'})); sys.exit(74)"


@pytest.fixture
def sweep(tiny_bert, cola_dir, tmp_path) -> sweep_file.Sweep:
    text = TEXT.replace("{data}", cola_dir).replace("{bert}", tiny_bert)
    return sweep_file.read(write_file(tmp_path, "sweep.toml", text), {})


@pytest.fixture
def folder(sweep, tmp_path) -> SweepFolder:
    folder = SweepFolder(str(tmp_path / "out"))
    folder.start(sweep)
    return folder


def user_error(error: Exception) -> errors.UserError:
    """Return the error that a file operation becomes."""
    with pytest.raises(errors.UserError) as caught, files.user_errors("Cannot write"):
        raise error
    return caught.value


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.ckpt")
NO_SPACE_IN_TENSORFLOW = tf.errors.ResourceExhaustedError(None, None, "model.ckpt; No space left on device")


@pytest.mark.parametrize(
    "error", [NO_SPACE, NO_SPACE_IN_TENSORFLOW, user_error(NO_SPACE), user_error(NO_SPACE_IN_TENSORFLOW)]
)
def test_a_full_disk_ends_the_worker_and_is_no_failure_of_the_cell(sweep, folder, monkeypatch, error):
    def run(*unused: object) -> None:
        raise error

    monkeypatch.setitem(worker.WORKFLOWS, "run_classifier.py", run)
    monkeypatch.setattr(sys, "argv", ["worker", folder.path])
    monkeypatch.setattr(worker.system, "end_with_parent", lambda: None)
    with pytest.raises(SystemExit) as caught:
        worker.main()
    assert caught.value.code == worker.DISK_FULL
    status = folder.status(sweep)
    assert not status.failures and len(status.remaining) == 2


def test_other_errors_are_failures_of_the_cell(sweep, folder, monkeypatch):
    def run(*unused: object) -> None:
        raise OSError(errno.EACCES, "Permission denied", "model.ckpt")

    monkeypatch.setitem(worker.WORKFLOWS, "run_classifier.py", run)
    worker.work(folder, Engine())
    assert len(folder.status(sweep).failures) == 2


def test_the_sweep_ends_with_the_reason_even_if_no_results_can_be_written(sweep, folder, monkeypatch):
    def write_results(*unused: object) -> None:
        raise user_error(NO_SPACE)

    monkeypatch.setattr(launchers, "worker_command", lambda *args: [sys.executable, "-c", ENDS])
    monkeypatch.setattr(folder, "write_results", write_results)
    assert_mentions(message_of(sweep_runner.run, sweep, folder, 1), "No space", folder.path, "repeat the command")
    assert not folder.status(sweep).failures and not os.path.exists(folder.cell_file(sweep.grid_cells()[0]))


def test_a_progress_line_has_the_time_left(sweep, folder, log, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(sweep_runner.time, "monotonic", lambda: clock[0])
    shown = sweep_runner._Progress(sweep, folder)
    shown.show(1)
    first, second = sweep.grid_cells()
    for cell in (first, second):
        folder.claim(cell).release()
    folder.write_failure(first, "no data")
    clock[0] += 90
    shown.show(1)
    assert_mentions(log[0], "0 of 2 runs done", "1 running", "0 failed")
    assert "left" not in log[0]
    assert_mentions(log[1], first.name, "no data")
    assert_mentions(log[2], "1 failed", "1:30 left")
    clock[0] += 1
    folder.write_failure(second, "no data")
    shown.show(0)  # too early for another line
    assert len(log) == 3
