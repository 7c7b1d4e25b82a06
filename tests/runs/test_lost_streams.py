"""Training whose terminal or log is lost, or whose disk is full: it completes, or ends with one line."""

from __future__ import annotations

import os
import pty
import resource
import subprocess

import pytest

from tests.helpers import assert_mentions, command_line, read_results


def train(flags: dict, shell: str = "", **options) -> subprocess.CompletedProcess:
    """Train and evaluate in a process whose streams a shell redirects."""
    command = command_line(dict(flags, do_train="true", do_eval="true"))
    return subprocess.run(["bash", "-o", "pipefail", "-c", f'"$0" "$@" {shell}', *command], timeout=300, **options)


def assert_finished(flags: dict, trained: dict) -> None:
    assert read_results(flags["output_dir"]) == read_results(trained["output_dir"])


def test_training_without_standard_streams_completes(given, trained):
    assert train(given, "<&- >&- 2>&-").returncode == 0
    assert_finished(given, trained)
    # The next files that it opened did not get the descriptors, and so the text, of the streams.
    for name in os.listdir(given["output_dir"]):
        path = os.path.join(given["output_dir"], name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                assert b"INFO" not in file.read()


@pytest.mark.long
def test_training_whose_terminal_is_closed_completes(given, trained):
    ours, theirs = pty.openpty()
    command = command_line(dict(given, do_train="true", do_eval="true"))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(os.environ, COLUMNS="1"))
    os.close(theirs)
    shown = b""
    while b"%|" not in shown:  # the progress bar
        shown += os.read(ours, 1000)
    os.close(ours)
    assert process.wait(timeout=300) == 0
    assert_finished(given, trained)


def assert_one_error(process: subprocess.CompletedProcess, *facts: object) -> None:
    text = process.stderr.decode("utf-8")
    assert process.returncode == 1 and "Traceback" not in text
    assert_mentions(text.rstrip("\n").split("\n")[-1], "run_classifier.py: error: ", *facts)


def test_a_file_that_the_system_refuses_is_named_with_the_reason(given, trained):
    largest = os.path.join(trained["output_dir"], "optimizer.ckpt-16.data-00000-of-00001")
    limit = os.path.getsize(largest) - 1
    # Features exist, so the checkpoint is the first file that is too large.
    given["feature_cache_dir"] = os.path.join(os.path.dirname(trained["output_dir"]), "features")
    process = train(
        given,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert_one_error(process, os.path.join(given["output_dir"], "optimizer.ckpt-8.data"), "step 8", "File too large")
