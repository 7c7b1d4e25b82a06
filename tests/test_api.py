"""The Python API, and its documentation as written."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys

import pytest

import adapter_bert
from tests.helpers import (
    ROOT,
    assert_mentions,
    base_flags,
    message_of,
    tiny_config,
    write_bert,
    write_file,
    write_squad,
)


def test_importing_the_package_does_not_import_tensorflow():
    code = "import adapter_bert, sys; assert 'tensorflow' not in sys.modules; adapter_bert.missing"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert found.stderr.splitlines()[-1].startswith("AttributeError") and "'missing'" in found.stderr


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"lerning_rate": 1.0}, ["lerning_rate", "'learning_rate'"]),
        ({"learning_rate": "1e-3"}, ["learning_rate", "float", "'1e-3'"]),
        ({"do_eval": "false"}, ["do_eval", "bool", "'false'"]),
        ({"seed": True}, ["seed", "int", "True"]),
        ({"learning_rate": None}, ["learning_rate", "None"]),
        ({"task_name": None}, ["task_name"]),
        ({"output_dir": None}, ["output_dir"]),
        ({"train_file": "nowhere.csv"}, ["--train_file=nowhere.csv"]),
        ({"train_batch_size": 0}, ["--train_batch_size", "0"]),
    ],
)
def test_wrong_arguments_are_user_errors(tiny_bert, cola_dir, tmp_path, changes, facts):
    flags = dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "out")), **changes)
    assert_mentions(message_of(adapter_bert.train, **flags), *facts)
    assert not (tmp_path / "out").exists()


def test_paths_are_accepted_and_without_evaluation_there_are_no_results(tiny_bert, cola_dir, tmp_path):
    flags = dict(base_flags(tiny_bert, cola_dir, None), output_dir=tmp_path / "out", learning_rate=1e-2)
    run = adapter_bert.train(**flags, num_train_epochs=0.5, do_eval=False)
    assert run == (str(tmp_path / "out"), str(tmp_path / "out" / "adapter_pack.safetensors"), None)
    with adapter_bert.load(adapter_pack=pathlib.Path(run.pack), bert_dir=pathlib.Path(tiny_bert)) as predictor:
        assert predictor.predict(["the cat"])[0].label in ("0", "1")


def code_blocks() -> list:
    with open(os.path.join(ROOT, "docs", "python_api.md"), encoding="utf-8") as file:
        text = file.read()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.long
def test_the_documentation_works_as_written(tmp_path, monkeypatch):
    write_bert(str(tmp_path / "bert"), tiny_config(max_position_embeddings=64))
    rows = [
        f"the cat {'is' if number % 2 else 'are'} {number},{'good' if number % 2 else 'bad'}" for number in range(64)
    ]
    write_file(tmp_path, "reviews.csv", "text,label\n" + "\n".join(rows) + "\n")
    write_squad(str(tmp_path / "train.json"), 32)
    write_squad(str(tmp_path / "dev.json"), 4, 32)
    monkeypatch.chdir(tmp_path)
    blocks, names, shown, squad = code_blocks(), {}, io.StringIO(), None
    assert len(blocks) == 8
    with contextlib.redirect_stdout(shown):
        for block in [*blocks, blocks[0]]:
            exec(compile(block, "python_api.md", "exec"), names)
            squad = squad if "squad" not in block else names["run"]
    assert names["results"].metrics == names["run"].results.metrics, "the run was trained again"
    assert squad.results.primary_metric == "f1"
    assert_mentions(shown.getvalue(), "gold \\ predicted", "adapter_pack.safetensors", "Did you mean 'learning_rate'?")
    assert sorted(os.listdir("bank/packs")) == ["reviews.safetensors"]
