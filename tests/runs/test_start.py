"""A mistake in a command is told before TensorFlow is imported: in a fraction of a second, not after many."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.helpers import ROOT, message_of

from adapter_bert.model import adapter_config
import adapter_layers
from adapter_bert.settings.classifier import ClassifierSettings

SLOW = ("tensorflow", "sklearn", "scipy")
# Runs a script as `python script …` does, and says at the end what was imported.
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
    """Flags of a sound command, by script."""
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
    """What a command writes, its exit code, and which of the slow packages it imported."""
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
    "script, changes, told",
    [
        ("run_classifier.py", {"misspelt": "1"}, "Unknown command line flag 'misspelt'"),
        ("run_classifier.py", {"task_name": None}, "--task_name must have a value"),
        ("run_classifier.py", {"learning_rate": "fast"}, "--learning_rate=fast"),
        ("run_classifier.py", {"train_batch_size": "0"}, "error: --train_batch_size must be 1 or more, found 0."),
        ("run_classifier.py", {"do_train": "false"}, "error: Nothing to do"),
        ("run_classifier.py", {"adapter_activation": "glue"}, "Unknown activation 'glue'. Did you mean 'gelu'?"),
        ("run_classifier.py", {"task_name": "CoLa2"}, "error: Unknown task 'CoLa2'. Did you mean 'CoLA'?"),
        ("run_classifier.py", {"primary_metric": "f2"}, "error: Unknown --primary_metric 'f2'. Did you mean 'f1'?"),
        ("run_classifier.py", {"data_dir": None}, "error: No data"),
        ("run_classifier.py", {"vocab_file": "no.txt"}, "error: --vocab_file=no.txt: no such file"),
        ("run_classifier.py", {"data_dir": "nowhere"}, "error: --data_dir=nowhere: no such folder"),
        ("run_classifier.py", {"init_checkpoint": "no.ckpt"}, "--init_checkpoint=no.ckpt: no such checkpoint"),
        ("run_squad.py", {"doc_stride": "400"}, "error: --doc_stride=400 is too large"),
        ("run_squad.py", {"train_file": "no.json"}, "error: --train_file=no.json: no such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_mistake_is_told_without_tensorflow(command, script, changes, told):
    text, code, imported = run(script, dict(command[script], **changes))
    assert told in text and "Traceback" not in text
    assert (code, imported) == (1, [])


@pytest.mark.parametrize("script", ["run_classifier.py", "run_squad.py"])
def test_help_needs_no_tensorflow_and_lists_the_flags_of_the_script(script):
    text, code, imported = run(script, {"help": "true"})
    assert imported == [] and "--adapter_size" in text and "--train_file" in text
    assert "Trains, evaluates and applies BERT with adapters" in text


def test_a_path_that_only_tensorflow_can_look_at_is_left_to_it():
    ClassifierSettings(vocab_file="gs://bucket/vocab.txt").check_paths()


def test_what_a_finished_run_does_without_need_not_be_there(tmp_path):
    """Its checkpoints and packs hold what was trained; of a base that was moved, the run itself speaks."""
    gone = {"init_checkpoint": "no.ckpt", "output_dir": str(tmp_path)}
    ClassifierSettings(**gone).check_paths()
    assert "--init_checkpoint=no.ckpt" in message_of(ClassifierSettings(**dict(gone, output_dir="no")).check_paths)


def test_a_file_that_is_not_read_need_not_be_there():
    given = {"train_file": "no.csv", "dev_file": "no.csv", "do_train": False, "do_eval": False}
    ClassifierSettings(**given).check_paths()
    assert "--dev_file=no.csv" in message_of(ClassifierSettings(**dict(given, do_eval=True)).check_paths)


def test_the_names_that_settings_check_are_those_of_the_graph():
    assert tuple(sorted(adapter_layers.ACTIVATIONS)) == adapter_config.ACTIVATION_NAMES
