"""Sweeps over SQuAD, custom data and tasks with aliases, and the ablation of a cell."""

from __future__ import annotations

import json
import os

import pytest

from adapter_bert.experiments import ablation, cells, sweep_file, worker
from adapter_bert.experiments.ablation_network import spans
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.training.engine import WarmEngine
from scripts import ablate
from tests.helpers import assert_mentions, message_of, write_file, write_squad

TEXT = """
tasks = ["CoLA"]
seeds = [1]
[flags]
bert_dir = "{bert}"
data_dir = "{data}"
max_seq_length = 16
train_batch_size = 8
num_train_epochs = 2
learning_rate = 1e-2
adapter_size = 4
[method.adapters]
"""
SQUAD = """
program = "run_squad.py"
tasks = ["SQuAD-v1.1"]
seeds = [1]
[flags]
bert_dir = "{bert}"
train_file = "{data}/train.json"
predict_file = "{data}/dev.json"
max_seq_length = 32
doc_stride = 8
max_query_length = 8
train_batch_size = 8
num_train_epochs = 2
learning_rate = 1e-2
[method.adapters]
each.adapter_size = [2, 4]
[method.full]
tuning_mode = "full"
learning_rate = 1e-3
"""
CUSTOM = """
tasks = ["good", "bad"]
seeds = [1]
[flags]
bert_dir = "{bert}"
max_seq_length = 8
num_train_epochs = 2
train_batch_size = 8
[task.good]
train_file = "{data}/good.csv"
[task.bad]
train_file = "{data}/bad.csv"
[method.head]
tuning_mode = "head"
"""


def read(folder, bert: str, text: str, data: str = "") -> sweep_file.Sweep:
    text = text.replace("{bert}", bert).replace("{data}", data or str(folder))
    return sweep_file.read(write_file(folder, "sweep.toml", text), {})


def run(sweep: sweep_file.Sweep, path: str) -> SweepFolder:
    """Run all cells in this process."""
    folder = SweepFolder(path)
    folder.start(sweep)
    worker.work(folder, WarmEngine())
    return folder


@pytest.mark.long
def test_a_sweep_over_squad_has_f1_of_every_method(tiny_bert, tmp_path):
    write_squad(str(tmp_path / "train.json"), 64)
    write_squad(str(tmp_path / "dev.json"), 16, 200)
    sweep = read(tmp_path, tiny_bert, SQUAD)
    folder = run(sweep, str(tmp_path / "out"))
    assert not folder.status(sweep).failures
    folder.write_results(sweep)
    results = cells.read(folder.file("results.csv"))
    assert [result.method for result in results] == ["adapters 2", "adapters 4", "full"]
    assert {(result.task, result.metric) for result in results} == {("SQuAD-v1.1", "f1")}
    assert all(0 <= result.dev <= 100 and result.steps == 16 for result in results)
    assert results[0].trained_params < results[1].trained_params < results[2].trained_params
    by_method = {cell.method: os.listdir(folder.run_path(cell)) for cell in sweep.grid_cells()}
    packs = {method for method, names in by_method.items() if "adapter_pack.safetensors" in names}
    assert packs == {"adapters 2", "adapters 4"}
    assert not any("ckpt" in name for names in by_method.values() for name in names)


def test_a_file_without_the_expected_columns_fails_its_task_only(tiny_bert, tmp_path):
    rows = "\n".join(f"{'very ' * (number // 2)}{size},{size}" for number, size in enumerate(["big", "small"] * 20))
    write_file(tmp_path, "good.csv", f"text,label\n{rows}\n")
    write_file(tmp_path, "bad.csv", f"sentence,size\n{rows}\n")
    sweep = read(tmp_path, tiny_bert, CUSTOM)
    folder = run(sweep, str(tmp_path / "out"))
    status = folder.status(sweep)
    assert list(status.results) == ["good/head/seed=1"]
    ((name, failure),) = status.failures.items()
    assert name == "bad/head/seed=1"
    assert_mentions(failure, "bad.csv", "sentence", "text")


@pytest.mark.long
def test_a_cell_is_ablated_after_its_checkpoints_were_removed(tiny_bert, cola_dir, tmp_path):
    sweep = read(tmp_path, tiny_bert, TEXT, cola_dir)
    folder = run(sweep, str(tmp_path / "out"))
    (cell,) = sweep.grid_cells()
    path = folder.run_path(cell)
    assert not any("ckpt" in name for name in os.listdir(path))
    ablate.main([f"--run={path}", f"--output_dir={tmp_path}/ablation"])
    with open(str(tmp_path / "ablation" / "ablation.json")) as file:
        content = json.load(file)
    assert [(row["first"], row["last"]) for row in content["spans"]] == spans(2)
    (known,) = folder.status(sweep).results.values()
    assert (content["metric"], content["runs"][0]["score"]) == (known.metric, pytest.approx(known.dev))


@pytest.mark.long
def test_a_cell_without_a_pack_cannot_be_ablated(tiny_bert, cola_dir, tmp_path):
    sweep = read(
        tmp_path, tiny_bert, TEXT.replace("[method.adapters]", '[method.full]\ntuning_mode = "full"'), cola_dir
    )
    folder = run(sweep, str(tmp_path / "out"))
    (cell,) = sweep.grid_cells()
    path = folder.run_path(cell)
    assert_mentions(message_of(ablation.find_settings, path, {}), path, "adapter_pack.safetensors")


def test_a_folder_from_before_aliases_had_a_name_continues_with_its_cells(tiny_bert, cola_dir, tmp_path):
    text = TEXT.replace('"CoLA"', '"cola"').replace("max_seq", "[task.cola]\nmax_seq")
    sweep = read(tmp_path, tiny_bert, text, cola_dir)
    folder = SweepFolder(str(tmp_path / "out"))
    folder.start(sweep)
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    content["sweep"]["tasks"] = ["cola"]
    content["sweep"]["task_flags"] = {"cola": content["sweep"]["task_flags"].pop("CoLA")}
    (tmp_path / "out" / "sweep.json").write_text(json.dumps(content))
    continued = folder.start(sweep)
    assert sweep.tasks == ("CoLA",) and continued.tasks == ("cola",)
    assert [cell.name for cell in continued.grid_cells()] == ["cola/adapters/seed=1"]
    other = sweep_file.read(sweep.path, {"tasks": ["MRPC"]})
    assert_mentions(message_of(folder.start, other), folder.path, "MRPC", "CoLA")
