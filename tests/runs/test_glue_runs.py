"""GLUE: every task from its published files to its submission, on a tiny BERT; and a real BERT on real data."""

from __future__ import annotations

import os

import numpy as np
import pytest

from adapter_bert import tasks
from adapter_bert.evaluation import glue_submission
from tests.helpers import SHARED, base_flags, write_file
from tests.runs.helpers import read_json, read_text, run
from tests.tasks.test_glue import LAYOUTS

pytestmark = pytest.mark.slow


@pytest.fixture
def given(tiny_bert, tmp_path):
    return dict(base_flags(tiny_bert, None, str(tmp_path / "out")), train_batch_size=2, num_train_epochs=2.0)


def write_task(folder, name) -> str:
    for file, (content, _) in LAYOUTS[name].items():
        write_file(folder, f"{name}/{file}", content)
    return str(folder / name)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "AX"])
def test_a_task_is_trained_scored_and_predicted(given, tmp_path, name):
    data = {"task_name": name, "data_dir": write_task(tmp_path, name)}
    run(given, do_train=True, do_eval=True, do_predict=True, **data)
    check_outputs(given["output_dir"], tasks.get(name), len(LAYOUTS[name][tasks.get(name).dev.file][1]))


def test_ax_is_scored_and_predicted_by_a_model_of_mnli_in_its_folder(given, tmp_path):
    run(given, do_train=True, task_name="MNLI", data_dir=write_task(tmp_path, "MNLI"))
    run(given, do_eval=True, do_predict=True, task_name="AX", data_dir=write_task(tmp_path, "AX"))
    check_outputs(given["output_dir"], tasks.get("AX"), 3, "results_AX.json")


def check_outputs(folder, task, dev_rows, name="results.json"):
    results = read_json(folder, name)
    assert (results["task"], results["primary_metric"]) == (task.name, task.primary_metric)
    assert set(task.metrics) <= set(results["metrics"])
    assert all(np.isfinite(value) for value in results["metrics"].values())
    assert results["data"]["dev"]["examples"] == dev_rows
    header, row = read_text(folder, task.submission + ".tsv").splitlines()
    assert header == glue_submission.HEADER
    word = row.split("\t")[1]
    assert 0 <= float(word) <= 5 if task.is_regression else word in task.labels


BASE = os.path.join(SHARED, "weights", "e5-small")
COLA = os.path.join(SHARED, "data", "glue_data", "CoLA")


@pytest.mark.skipif(not os.path.isdir(BASE) or not os.path.isdir(COLA), reason=f"needs {BASE} and {COLA}")
def test_adapters_on_a_real_bert_learn_cola(tmp_path):
    """Two epochs in small batches: the score leaves the majority class (0) far behind."""
    flags = base_flags(BASE, COLA, str(tmp_path / "run"))
    del flags["adapter_size"]
    sizes = {"max_seq_length": 20, "eval_batch_size": 64, "learning_rate": 2e-4, "num_train_epochs": 2.0}
    assert run(flags, do_train=True, do_eval=True, **sizes).metrics["matthews"] > 0.15
