"""A mistake on the command line is reported before TensorFlow is imported: in a fraction of a second."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT, assert_mentions

pytestmark = pytest.mark.smoke
SLOW = ("tensorflow", "sklearn", "scipy")
# Run a script as `python script …` does, and print at the end which slow packages were imported.
PROBE = """
import atexit, os, runpy, sys
atexit.register(lambda: print("imported:", *[name for name in {slow} if name in sys.modules]))
script = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture
def command(tiny_bert, cola_dir, tmp_path):
    """The flags of a valid command for each script."""
    base = {
        "bert_config_file": os.path.join(tiny_bert, "bert_config.json"),
        "vocab_file": os.path.join(tiny_bert, "vocab.txt"),
        "init_checkpoint": os.path.join(tiny_bert, "bert_model.ckpt"),
        "output_dir": str(tmp_path / "out"),
        "do_train": "true",
    }
    return {
        "run_classifier.py": dict(base, task_name="CoLA", data_dir=cola_dir),
        "run_squad.py": dict(base, train_file=os.path.join(cola_dir, "train.tsv")),
    }


def run(script, given):
    """Return a command's output, its exit code, and the slow packages that it imported."""
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    process = subprocess.run(
        [sys.executable, "-c", PROBE.format(slow=SLOW), os.path.join(ROOT, script)] + words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text, _, imported = process.stdout.rpartition("imported:")
    return text, process.returncode, imported.split()


@pytest.mark.parametrize(
    "script, changes, facts",
    [
        ("run_classifier.py", {"misspelt": "1"}, ["Unknown command line flag 'misspelt'"]),
        ("run_classifier.py", {"task_name": None}, ["--task_name must have a value"]),
        ("run_classifier.py", {"learning_rate": "fast"}, ["--learning_rate=fast"]),
        ("run_classifier.py", {"train_batch_size": "0"}, ["error: --train_batch_size", "1 or more", "found 0"]),
        ("run_classifier.py", {"do_train": "false"}, ["error:", "--do_train"]),
        ("run_classifier.py", {"adapter_activation": "glue"}, ["error:", "'glue'", "Did you mean 'gelu'?"]),
        ("run_classifier.py", {"task_name": "CoLa2"}, ["error:", "'CoLa2'", "Did you mean 'CoLA'?"]),
        ("run_classifier.py", {"vocab_file": "no.txt"}, ["error: --vocab_file=no.txt", "file", os.getcwd()]),
        ("run_classifier.py", {"data_dir": "nowhere"}, ["error: --data_dir=nowhere", "folder"]),
        ("run_classifier.py", {"init_checkpoint": "no.ckpt"}, ["error: --init_checkpoint=no.ckpt", "checkpoint"]),
        ("run_classifier.py", {"bert_dir": "minilmm"}, ["error:", "minilmm", "minilm"]),
        ("run_squad.py", {"bert_config_file": None}, ["error:", "--bert_dir", "--bert_config_file"]),
        ("run_squad.py", {"doc_stride": "400"}, ["error: --doc_stride=400"]),
        ("run_squad.py", {"train_file": "no.json"}, ["error: --train_file=no.json", "file"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_reported_without_tensorflow(command, script, changes, facts):
    text, code, imported = run(script, dict(command[script], **changes))
    assert_mentions(text, *facts)
    assert "Traceback" not in text
    assert (code, imported) == (1, [])
    assert not os.path.exists(command[script]["output_dir"])


@pytest.mark.parametrize("script", ["run_classifier.py", "run_squad.py"])
def test_help_needs_no_tensorflow_and_lists_the_flags_of_the_script(script):
    text, _, imported = run(script, {"help": "true"})
    assert_mentions(text, "--adapter_size", "--train_file", "gradient_checkpointing", "recompute", "BERT with adapters")
    assert imported == []


def test_help_is_printed_on_the_narrowest_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1")
    text, _, _ = run("run_classifier.py", {"help": "true"})
    assert_mentions(text, "--adapter_size")
    assert "Traceback" not in text


@pytest.mark.skipif(sys.version_info[:2] == (3, 13), reason="Python 3.13.0 cannot even import `socket` there")
def test_a_relative_path_in_a_deleted_working_directory_is_reported(command, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    text, code, _ = run("run_squad.py", dict(command["run_squad.py"], vocab_file="vocab.txt"))
    assert_mentions(text, "run_squad.py: error:", "working directory")
    assert code == 1 and "Traceback" not in text
