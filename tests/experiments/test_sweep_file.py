"""Sweep files: the cells that they describe, and what is rejected."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
from typing import Any, Dict, List

import pytest

from adapter_bert import tasks
from adapter_bert.experiments import sweep_file
from adapter_bert.settings import base_files
from adapter_bert.tasks import additional
from tests.helpers import ROOT, assert_mentions, message_of

TEXT = """
tasks = ["CoLA", "MRPC"]
seeds = [1, 2]
grid_seeds = [1]

[flags]
data_dir = "glue/{task}"
bert_dir = "minilm"

[task.CoLA]
max_seq_length = 32

[method.adapters]
adapter_placement = "attention"
each.adapter_size = [8, 64]
grid.learning_rate = [3e-4, 1e-3, 3e-3]

[method.full]
tuning_mode = "full"
"""


def written(tmp_path, text: str = TEXT) -> str:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def sweep(tmp_path) -> sweep_file.Sweep:
    return sweep_file.read(written(tmp_path), {})


def test_a_sweep_is_the_product_of_tasks_methods_settings_and_seeds(sweep):
    assert [method.name for method in sweep.methods] == ["adapters 8", "adapters 64", "full"]
    cells = sweep.grid_cells()
    # Two sizes with three rates and one seed; full fine-tuning has nothing to select, so it gets all seeds.
    assert len(cells) == 2 * (2 * 3 * 1 + 1 * 2)
    assert sweep.num_cells == len(cells) + 2 * 2
    assert len({cell.name for cell in cells}) == len(cells)
    assert "CoLA/adapters 8/adapter_size=8,learning_rate=0.0003/seed=1" in {cell.name for cell in cells}


def test_flags_of_method_and_task_replace_general_ones(sweep):
    by_name = {cell.name: cell for cell in sweep.grid_cells()}
    cell = by_name["CoLA/adapters 64/adapter_size=64,learning_rate=0.003/seed=1"]
    settings = sweep.settings(cell, "out", "features")
    assert (settings.task_name, settings.data_dir, settings.output_dir) == ("CoLA", "glue/CoLA", "out")
    assert (settings.max_seq_length, settings.adapter_size, settings.learning_rate) == (32, 64, 3e-3)
    assert (settings.adapter_placement, settings.seed, settings.do_train, settings.do_eval) == (
        "attention", 1, True, True,
    )  # fmt: skip
    assert settings.bert_config_file == base_files.find("minilm").flags()["bert_config_file"]
    assert sweep.settings(by_name["MRPC/full/seed=2"], "out", "features").max_seq_length == 128


def test_the_selected_setting_gets_the_seeds_that_the_grid_does_not_have(sweep):
    adapters, _, full = sweep.methods
    assert [cell.seed for cell in sweep.more_seeds("CoLA", adapters, {"learning_rate": 1e-3})] == [2]
    assert sweep.more_seeds("CoLA", full, {}) == []


def test_the_command_line_replaces_flags_tasks_and_seeds(tmp_path):
    changes = {"data_dir": "elsewhere/{task}", "tasks": ["RTE"], "seeds": [1, 7]}
    cells = sweep_file.read(written(tmp_path), changes).grid_cells()
    assert {cell.task for cell in cells} == {"RTE"} and {cell.seed for cell in cells} == {1, 7}
    assert {cell.flags["data_dir"] for cell in cells} == {"elsewhere/RTE"}


def test_a_description_gives_the_same_sweep(sweep):
    again = sweep_file.from_description("sweep.json", json.loads(json.dumps(sweep.describe())))
    assert [cell.name for cell in again.grid_cells()] == [cell.name for cell in sweep.grid_cells()]
    assert again.grid_cells() == sweep.grid_cells()


@pytest.mark.parametrize(
    "old, new, facts",
    [
        ("tasks =", "task_names =", ["task_names", "tasks"]),
        ('"MRPC"', '"MRPD"', ["MRPD", "MRPC", "CoLA"]),
        ("max_seq_length = 32", "max_seq_len = 32", ["max_seq_len", "max_seq_length"]),
        ("[task.CoLA]", "[task.SST-2]", ["SST-2", "CoLA, MRPC"]),
        ("seeds = [1, 2]", "seeds = []", ["seeds", "[]"]),
        ("[3e-4, 1e-3, 3e-3]", "[]", ["grid.learning_rate", "[]"]),
        ("[8, 64]", "[8, 8]", ["each.adapter_size", "twice"]),
        ("grid_seeds = [1]", "grid_seeds = [3]", ["grid_seeds", "3", "[1, 2]"]),
        (
            "[method.full]",
            '[method."adapters 8"]\nadapter_size = 8\ngrid.learning_rate = [3e-4]',
            ["adapters 8", "two methods"],
        ),
        ('tuning_mode = "full"', 'tuning_mode = "ful"', ["ful"]),
        ('tuning_mode = "full"', "learning_rate = true", ["learning_rate", "float", "True"]),
        ('tuning_mode = "full"', "seed = 3", ["seed"]),
        ('tuning_mode = "full"', 'output_dir = "x"', ["output_dir"]),
        ('tuning_mode = "full"', "workers = 2", ["workers"]),
        ("[flags]", "[flags", ["TOML"]),
        ("[task.CoLA]\nmax_seq_length = 32", "[task]\nCoLA = 3", ["CoLA", "table", "3"]),
        ("tasks =", 'program = ["run_squad.py"]\ntasks =', ["program", "run_squad.py"]),
        ('"MRPC"', '"cola"', ["tasks", "CoLA", "twice"]),
        ("[method.full]", '[method.".."]', ["CoLA/..", "rename"]),
        ('tuning_mode = "full"', 'each.vocab_file = ["a/b", "a_b"]', ["two cells", "CoLA/full a_b", "rename"]),
    ],
)
def test_wrong_files_are_rejected_with_the_path_and_what_is_wrong(tmp_path, old, new, facts):
    assert old in TEXT
    path = written(tmp_path, TEXT.replace(old, new))
    assert_mentions(message_of(sweep_file.read, path, {}), path, *facts)


@pytest.mark.parametrize("key", ["each", "grid"])
def test_a_grid_that_is_too_large_is_rejected_at_once(tmp_path, key, deadline):
    many = "\n".join(f"{key}.{flag} = {[1 + each for each in range(1000)]}" for flag in ("adapter_size", "seed"))
    message = message_of(sweep_file.read, written(tmp_path, f"{TEXT}\n[method.many]\n{many}\n"), {})
    assert_mentions(message, "1000000 cells", "100000")


def test_aliases_of_tasks_stand_for_their_names(tmp_path):
    text = TEXT.replace('["CoLA", "MRPC"]', '["MNLI-m", "mnli mismatched", "cola"]')
    sweep = sweep_file.read(written(tmp_path, text), {})
    assert sweep.tasks == ("MNLI", "MNLI-mm", "CoLA")
    lengths = {cell.task: cell.flags.get("max_seq_length") for cell in sweep.grid_cells()}
    assert lengths == {"MNLI": None, "MNLI-mm": None, "CoLA": 32}
    assert {cell.flags["data_dir"] for cell in sweep.grid_cells()} == {"glue/MNLI", "glue/CoLA"}
    assert sweep_file.read(written(tmp_path), {"tasks": ["cola"]}).tasks == ("CoLA",)


def test_names_of_custom_data_stay_as_they_are(tmp_path):
    text = TEXT.replace("max_seq_length", 'train_file = "rows.csv"\nmax_seq_length').replace('"CoLA"', '"cola"')
    text = text.replace("[task.CoLA]", "[task.cola]").replace('data_dir = "glue/{task}"', "")
    with_data = text.replace("[method.adapters]", '[task.MRPC]\ndata_dir = "glue/MRPC"\n[method.adapters]')
    assert sweep_file.read(written(tmp_path, with_data), {}).tasks == ("cola", "MRPC")


def test_flags_of_tasks_that_the_command_line_leaves_out_have_no_effect(tmp_path):
    sweep = sweep_file.read(written(tmp_path), {"tasks": ["MRPC", "RTE"]})
    assert sweep.tasks == ("MRPC", "RTE") and not sweep.task_flags


def test_a_missing_file_and_an_unknown_preset_are_rejected():
    assert_mentions(message_of(sweep_file.read, "nowhere.toml", {}), "nowhere.toml")
    assert_mentions(message_of(sweep_file.preset_path, "glu"), "glu", "glue", "variable_finetuning")


PRESETS = sorted(name[:-5] for name in os.listdir(sweep_file.PRESETS))


def test_there_is_a_preset_for_each_experiment_of_the_paper():
    assert PRESETS == [
        "adapter_sizes", "additional", "glue", "init_scale", "layer_norm", "learning_rate", "reproduction", "squad",
        "variable_finetuning", "variants",
    ]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_document_result_and_command(name):
    path = sweep_file.preset_path(name)
    sweep = sweep_file.read(path, {"bert_dir": "minilm"})
    assert sweep.grid_cells()
    if sweep.program == "run_classifier.py":
        assert all(tasks.is_known(task) for task in sweep.tasks)
    with open(path) as file:
        comment = "".join(line for line in file if line.startswith("#"))
    assert f"--preset={name}" in comment
    assert name == "reproduction" or re.search(r"Paper\b.*:", comment)


STUDIES = os.path.join(ROOT, "docs", "results")
FILES = [os.path.join(sweep_file.PRESETS, f"{name}.toml") for name in PRESETS]
FILES += sorted(os.path.join(STUDIES, name) for name in os.listdir(STUDIES) if name.endswith(".toml"))


def commands_in(path: str) -> List[List[str]]:
    """Return the commands in the comments of a file."""
    lines = pathlib.Path(path).read_text().splitlines()
    comments = "\n".join(line[1:].strip() for line in lines if line.startswith("#")).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in comments.splitlines() if line.startswith("python ")]


def flags_in(command: List[str]) -> Dict[str, Any]:
    return dict(argument[2:].split("=", 1) for argument in command if argument.startswith("--"))


@pytest.mark.parametrize("path", FILES, ids=os.path.basename)
def test_commands_in_comments_work(path):
    folders = {flags_in(command).get("output_dir") for each in FILES for command in commands_in(each)}
    sweeps = [flags_in(command) for command in commands_in(path) if command[0] == "scripts/run_sweep.py"]
    assert sweeps
    for flags in sweeps:
        assert flags.pop("output_dir")
        source = (
            os.path.join(ROOT, flags.pop("sweep")) if "sweep" in flags else sweep_file.preset_path(flags.pop("preset"))
        )
        changes = {**flags, "bert_dir": "minilm"}
        if "tasks" in flags:
            changes["tasks"] = flags["tasks"].split(",")
        assert source == path and sweep_file.read(source, changes).grid_cells()
    for command in commands_in(path):
        if command[0] == "scripts/make_report.py":
            assert set(flags_in(command)["sweep"].split(",")) <= folders


def test_the_additional_tasks_have_the_grid_of_the_paper():
    sweep = sweep_file.read(sweep_file.preset_path("additional"), {})
    grid = {"learning_rate": [1e-5, 3e-5, 1e-4, 3e-3], "num_train_epochs": [20, 50, 100]}
    assert all(method.grid == grid for method in sweep.methods)
    assert {method.flags.get("tune_top_layers") for method in sweep.methods} == {None, 1, 2, 3, 5, 7, 9, 11, 12}
    selected = {epochs for task in additional.TASKS for epochs in task.epochs}  # Table 4
    assert selected == set(grid["num_train_epochs"])


def test_mismatched_mnli_is_in_the_folder_of_mnli():
    sweep = sweep_file.read(sweep_file.preset_path("glue"), {})
    folders = {cell.task: cell.flags["data_dir"] for cell in sweep.grid_cells()}
    assert folders["MNLI"] == folders["MNLI-mm"] == "glue_data/MNLI"
