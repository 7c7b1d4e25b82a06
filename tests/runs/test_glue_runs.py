"""Every GLUE task from its published files to its scores and its submission file, on a tiny BERT. Marked slow."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from adapter_bert import tasks
from adapter_bert.evaluation import glue_submission
from run_classifier import ClassifierSettings, run_task
from tests.helpers import base_flags
from tests.tasks.test_glue import LAYOUTS

pytestmark = pytest.mark.slow


@pytest.fixture
def given(tiny_bert, tmp_path):
    return dict(base_flags(tiny_bert, None, str(tmp_path / "out")), train_batch_size=2, num_train_epochs=2.0)


def write_task(folder, name) -> str:
    folder = folder / name
    folder.mkdir()
    for file, (content, _) in LAYOUTS[name].items():
        (folder / file).write_bytes(content.encode("utf-8"))
    return str(folder)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "AX"])
def test_a_task_is_trained_scored_and_predicted(given, tmp_path, name):
    run_task(
        ClassifierSettings(
            **dict(given, task_name=name, data_dir=write_task(tmp_path, name)),
            do_train=True,
            do_eval=True,
            do_predict=True,
        )
    )
    check_outputs(given["output_dir"], tasks.get(name), len(LAYOUTS[name][tasks.get(name).dev.file][1]))


def test_ax_is_scored_and_predicted_by_a_model_of_mnli_in_its_folder(given, tmp_path):
    run_task(ClassifierSettings(**dict(given, task_name="MNLI", data_dir=write_task(tmp_path, "MNLI")), do_train=True))
    ax = dict(given, task_name="AX", data_dir=write_task(tmp_path, "AX"))
    run_task(ClassifierSettings(**ax, do_eval=True, do_predict=True))
    check_outputs(given["output_dir"], tasks.get("AX"), 3)


def check_outputs(folder, task, dev_rows):
    with open(os.path.join(folder, "results.json")) as file:
        results = json.load(file)
    assert (results["task"], results["primary_metric"]) == (task.name, task.primary_metric)
    assert set(task.metrics) <= set(results["metrics"])
    assert all(np.isfinite(value) for value in results["metrics"].values())
    assert results["data"]["dev"]["examples"] == dev_rows
    path = os.path.join(folder, task.submission + ".tsv")
    with open(path) as file:
        lines = file.read().split("\n")
    assert lines[0] == glue_submission.HEADER
    assert len(lines) == 1 + 1 + 1  # header, one test example, the end
    word = lines[1].split("\t")[1]
    assert 0 <= float(word) <= 5 if task.is_regression else word in task.labels
