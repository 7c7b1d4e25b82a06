"""scripts/convert_hf_checkpoint.py reports what it did, and ends in one line for any error."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from scripts import convert_hf_checkpoint
from tests.helpers import assert_mentions, write_file
from tests.weights.exchange.test_huggingface import BODY, tokenizer_json, weights, write_folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


@pytest.fixture
def run_script(monkeypatch, capsys):
    def run(*flags) -> str:
        monkeypatch.setattr(sys, "argv", ["convert_hf_checkpoint.py", *map(str, flags)])
        convert_hf_checkpoint.main()
        return capsys.readouterr().out

    return run


def test_the_script_reports_what_it_did_and_what_to_run_next(tmp_path, out, run_script):
    tensors = {name: value for name, value in weights().items() if not name.startswith("pooler")}
    tensors["cls.predictions.bias"] = np.zeros(8, np.float32)
    folder = write_folder(tmp_path / "hf", tensors)
    write_file(folder, "tokenizer.json", json.dumps(tokenizer_json()))
    parameters = sum(int(np.prod(shape)) for shape, _ in BODY.values())
    assert_mentions(
        run_script("--hf_dir", folder, "--output_dir", out),
        f"39 tensors, {parameters:,} parameters",
        "Skipped: cls.predictions.bias\n",
        "no pooler",
        f"--init_checkpoint={out}/bert_model.ckpt",
        "--do_lower_case=false --max_seq_length=7",
    )


@pytest.mark.parametrize(
    ("settings", "facts", "warns"),
    [
        ({"do_lower_case": True}, ["lower-cases", "--do_lower_case=true"], False),
        ({"do_lower_case": True, "strip_accents": False}, ["--do_lower_case=true"], True),
        ({}, ["do not say", "--do_lower_case=true"], False),
    ],
)
def test_the_script_says_whether_to_lower_case(tmp_path, out, run_script, settings, facts, warns):
    folder = write_folder(tmp_path / "hf")
    write_file(folder, "tokenizer_config.json", json.dumps(settings))
    report = run_script("--hf_dir", folder, "--output_dir", out)
    assert_mentions(report, *facts)
    assert ("strip_accents = false" in report) == warns


def test_the_script_converts_back(base, tmp_path, run_script):
    flags = ["--base_dir", base.folder, "--output_dir", tmp_path / "hf"]
    with pytest.raises(SystemExit, match="--do_lower_case"):
        run_script(*flags)
    assert_mentions(run_script(*flags, "--do_lower_case", "false"), "39 tensors", tmp_path / "hf")
    settings = tmp_path / "hf" / "tokenizer_config.json"
    assert json.loads(settings.read_text(encoding="utf-8"))["do_lower_case"] is False
    with pytest.raises(SystemExit, match="config.json"):
        run_script(*flags, "--do_lower_case", "true")
    run_script(*flags, "--do_lower_case", "true", "--overwrite")
    assert json.loads(settings.read_text(encoding="utf-8"))["do_lower_case"] is True


def test_errors_of_the_script_are_one_line(tmp_path, out, run_script):
    with pytest.raises(SystemExit, match=r"^convert_hf_checkpoint.py: error: .*nowhere"):
        run_script("--hf_dir", tmp_path / "nowhere", "--output_dir", out)
    with pytest.raises(SystemExit, match="gs://bucket/base"):
        run_script("--hf_dir", tmp_path, "--output_dir", "gs://bucket/base")
