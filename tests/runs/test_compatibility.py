"""Files written by an earlier commit can be read, evaluated and continued (tests/data/c32a6ab).

The tests use only command lines, so that they do not depend on internals. Other processors round differently; set
ADAPTER_BERT_BIT_IDENTICAL=1 to require identical results on the kind of machine that created the data.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

pytestmark = pytest.mark.long

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
OLD = ROOT / "tests" / "data" / "c32a6ab"
IS_EXACT = os.environ.get("ADAPTER_BERT_BIT_IDENTICAL") == "1"
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
TEXTS = ("*.tsv", "eval_results.txt", "*predictions.json")
WEIGHTS = ("*.safetensors", "*.ckpt-*")
RUNS = ("cola", "custom", "squad", "full")


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def old(tmp_path) -> Path:
    """Return a copy of the old files with their paths adjusted."""
    folder = tmp_path.resolve() / "old"
    shutil.copytree(str(OLD), str(folder))
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("@ROOT@", str(folder)), encoding="utf-8")
    return folder


def command(old: Path, script: str, *words: str, text: str = "") -> str:
    """Run a script in the folder of the old files and return its standard output."""
    environment = dict({"TF_ENABLE_ONEDNN_OPTS": "1"}, **os.environ)  # as for the old files
    environment["PYTHONPATH"] = str(ROOT)
    line = [sys.executable, str(ROOT / script), *words]
    done = subprocess.run(line, cwd=str(old), env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repeat(old: Path, name: str, **changes) -> None:
    """Repeat the command of a run with changed flags; None omits a flag."""
    known = read_json(OLD / "commands.json")[name]
    flags = dict(known["flags"], **changes)
    command(old, known["script"], *(f"--{key}={value}" for key, value in flags.items() if value is not None))


def contents(folder: Path, patterns) -> dict:
    """Return path -> bytes of the matching files in a folder."""
    paths = {path for pattern in patterns for path in folder.rglob(pattern)}
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def tensors(path: Path) -> dict:
    with safe_open(str(path), "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)


def check_text(found: str, expected: str, tolerance: float = 1e-6) -> None:
    if IS_EXACT:
        assert found == expected
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    numbers = [np.array(NUMBER.findall(text), np.float64) for text in (found, expected)]
    np.testing.assert_allclose(*numbers, rtol=tolerance, atol=tolerance)


def check_outputs(found: Path, expected: Path, tolerance: float = 1e-6) -> None:
    """Compare scores and predictions."""
    wanted = contents(expected, TEXTS)
    assert len(wanted) >= 2
    for name, content in wanted.items():
        check_text((found / name).read_text(encoding="utf-8"), content.decode(), tolerance)


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_can_be_evaluated_and_predicts(old, name):
    """The base comes from the run's settings."""
    for path in contents(old / "runs" / name, TEXTS):
        (old / "runs" / name / path).unlink()
    repeat(old, name, do_train=False, init_checkpoint=None)
    check_outputs(old / "runs" / name, OLD / "runs" / name)


@pytest.mark.parametrize("name", RUNS)
def test_repeating_a_finished_run_trains_nothing(old, name):
    repeat(old, name)
    assert contents(old / "runs" / name, WEIGHTS) == contents(OLD / "runs" / name, WEIGHTS)
    check_outputs(old / "runs" / name, OLD / "runs" / name)


def test_a_killed_run_continues_to_the_same_weights(old):
    found, expected = old / "runs" / "unfinished", OLD / "runs" / "unfinished_expected"
    begun = (found / "model.ckpt-6.index").stat().st_mtime_ns
    repeat(old, "unfinished")
    assert (found / "model.ckpt-6.index").stat().st_mtime_ns == begun, "the run started again instead of continuing"
    weights, wanted = (tensors(folder / "adapter_pack.safetensors") for folder in (found, expected))
    assert set(weights) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=0 if IS_EXACT else 1e-5, err_msg=name)
    check_outputs(found, expected, tolerance=1e-5)


@pytest.mark.parametrize(
    "name, flag, value, expected",
    [
        ("cola", "adapter_pack", "bank/packs/cola.safetensors", "cola"),
        ("custom", "adapter_pack", "bank/packs/reviews.safetensors", "custom"),
        ("squad", "adapter_pack", "bank/packs/squad-v1.1.safetensors", "squad"),
        ("cola", "init_checkpoint", "runs/cola", "cola"),
        ("cola", "init_checkpoint", "runs/cola/model.ckpt-8", "cola_8_expected"),
        ("full", "init_checkpoint", "runs/full/model.ckpt-8", "full"),
    ],
)
def test_weights_give_the_same_results_in_a_new_folder(old, name, flag, value, expected):
    repeat(old, name, do_train=False, output_dir="new", **{flag: value})
    check_outputs(old / "new", OLD / "runs" / expected)


@pytest.mark.parametrize("name, pack", [("cola", None), ("custom", "reviews")])
def test_a_run_or_a_pack_on_its_base_predicts_sentences(old, name, pack):
    expected, words = read_json(OLD / "expected.json"), [f"--run=runs/{name}"]
    if pack:
        (old / "alone").mkdir()
        shutil.copy(str(old / "bank/packs" / f"{pack}.safetensors"), str(old / "alone/adapter_pack.safetensors"))
        words = ["--run=alone", "--init_checkpoint=base/bert_model.ckpt"]
    lines = "".join(sentence + "\n" for sentence in expected["sentences"])
    found = command(old, "scripts/predict.py", "--threads=1", *words, text=lines)
    check_text(found, "\n".join(expected["predictions"][name]["predict_script"]) + "\n")


def test_the_bank_is_valid(old):
    assert "6 of 6" in command(old, "scripts/bank.py", "verify", "--bank=bank")


@pytest.mark.parametrize(
    "form, path, name", [("adapterhub", "exports/adapterhub", "cola"), ("checkpoint", "runs/full/model.ckpt-8", "full")]
)
def test_exported_formats_are_imported_as_the_same_pack(old, form, path, name):
    options = ["--task_name=CoLA", "--max_seq_length=16", "--name=back"]
    command(old, "scripts/bank.py", "import", "--bank=bank", path, f"--format={form}", *options)
    found, expected = old / "bank/packs/back.safetensors", OLD / "runs" / name / "adapter_pack.safetensors"
    np.testing.assert_equal(tensors(found), tensors(expected))


def test_a_stream_continues_and_trains_nothing_twice(old):
    repeat(old, "stream")
    assert contents(old / "stream/out/runs", WEIGHTS) == contents(OLD / "stream/out/runs", WEIGHTS)
    found, expected = (read_json(folder / "stream/out/stream.json") for folder in (old, OLD))
    assert found["equal"] == found["comparisons"] == 1
    for report in (found, expected):
        for entry in (entry for row in report["table"].values() for entry in row.values()):
            if not IS_EXACT:
                del entry["predictions"]  # a hash
    check_text(json.dumps(found), json.dumps(expected))
