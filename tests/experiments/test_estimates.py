"""The estimate of a sweep's time and disk space, and the check of its data."""

from __future__ import annotations

import os

import pytest

from adapter_bert.experiments import estimates, sweep_file
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.weights import checkpoints
from tests.experiments.sweeps import make_cell
from tests.helpers import assert_mentions, message_of, write_cola, write_file

TEXT = """
tasks = ["CoLA", "SST-2"]
seeds = [1, 2]
grid_seeds = [1]

[flags]
data_dir = "{data}/{task}"
bert_dir = "{bert}"
max_seq_length = 16
train_batch_size = 8
num_train_epochs = 2

[method.adapters]
adapter_size = 4
grid.learning_rate = [1e-2, 1e-4]

[method.full]
tuning_mode = "full"

[method.head]
tuning_mode = "head"
cache_frozen_layers = true
"""


@pytest.fixture
def sweep(tiny_bert, tmp_path) -> sweep_file.Sweep:
    """A sweep of which one task has data."""
    write_cola(str(tmp_path / "data" / "CoLA"))
    text = TEXT.replace("{data}", str(tmp_path / "data")).replace("{bert}", tiny_bert)
    return sweep_file.read(write_file(tmp_path, "sweep.toml", text), {})


@pytest.mark.long
def test_a_dry_run_measures_each_kind_of_run_and_writes_nothing(sweep, tmp_path):
    text = estimates.estimate(sweep, SweepFolder(str(tmp_path / "out")), 1)
    assert_mentions(text, "14 runs", "--workers=1", "adapter, 16 tokens, batches of 8", "full, 16", "head, 16", "MB")
    assert_mentions(text, "SST-2 cannot run", "SST-2: no such folder")
    assert not os.path.exists(str(tmp_path / "out"))


def die(*unused: object) -> None:
    os._exit(1)


@pytest.mark.long
def test_a_measurement_that_is_killed_is_reported(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "_measure", die)
    assert_mentions(message_of(estimates.estimate, sweep, SweepFolder(str(tmp_path / "out")), 1), "killed", "memory")


def test_a_dry_run_names_tasks_without_data(sweep, tmp_path):
    sweep = sweep_file.read(sweep.path, {"data_dir": str(tmp_path / "nowhere")})
    assert_mentions(estimates.estimate(sweep, SweepFolder(str(tmp_path / "out")), 1), "CoLA", "SST-2", "nowhere")


def test_packs_count_with_their_trained_parameters_and_features_once(sweep, tmp_path):
    task = estimates._Task(1_000_000, 1_100_000, ClassificationHead(2))
    runs = list(estimates._runs(sweep, SweepFolder(str(tmp_path)), {"CoLA": task}, []))
    # Two rates with one seed stand for three runs; the others for two.
    assert [(run.cell.method, run.weight) for run in runs] == [
        ("adapters", 1.5), ("adapters", 1.5), ("full", 1.0), ("full", 1.0), ("head", 1.0), ("head", 1.0),
    ]  # fmt: skip
    many = [run._replace(weight=run.weight * 1e6) for run in runs]
    probes = dict.fromkeys({run.kind for run in runs}, estimates._Probe(100.0, 50.0, 10.0))
    kept, _ = estimates._describe_space(many, probes, workers=2)
    total = 2 * (16 * 2 + 2) + 3 * 786  # parameters of two heads, and of three networks with adapters
    states = 1.1e6 * (16 * 4 + 50)  # of first tokens, and the records
    assert_mentions(kept, f"packs {4 * total:,}.0", "features 55.0", f"frozen layers {states / 1e6:,.1f}")
    copies = 1 + checkpoints.KEPT + 4
    full = next(spec for run, spec in estimates._with_specs(runs) if run.cell.method == "full")
    parameters = full.parameter_counts()["trained"]
    (_, transient) = estimates._describe_space(runs, probes, workers=10**6)
    assert_mentions(transient, f"{4 * copies * parameters:,}.0 MB")


def test_finished_runs_are_not_estimated_again(sweep, tmp_path):
    task = estimates._Task(100, 110, ClassificationHead(2))
    done = [make_cell(task="CoLA", method="adapters", seed=1), make_cell(task="CoLA", method="full", seed=2)]
    runs = list(estimates._runs(sweep, SweepFolder(str(tmp_path)), {"CoLA": task}, done))
    assert [run.weight for run in runs] == [1, 1, 0.5, 0.5, 1, 1]


def test_a_sweep_without_data_or_base_is_rejected_before_its_folder_exists(sweep, tmp_path):
    folder = SweepFolder(str(tmp_path / "out"))
    estimates.check_data(sweep, folder, {})  # one task has data
    nowhere = sweep_file.read(sweep.path, {"data_dir": str(tmp_path / "nowhere")})
    assert_mentions(message_of(estimates.check_data, nowhere, folder, {}), "--data_dir", "nowhere")
    without_task = sweep_file.read(sweep.path, {"data_dir": str(tmp_path / "data")})
    assert_mentions(message_of(estimates.check_data, without_task, folder, {}), "train.tsv")
    preset = sweep_file.read(sweep_file.preset_path("glue"), {"data_dir": str(tmp_path / "data" / "{task}")})
    assert_mentions(message_of(estimates.check_data, preset, folder, {}), "--bert_dir")
    known = {cell.name: None for cell in nowhere.grid_cells()}
    estimates.check_data(nowhere, folder, known)  # nothing to run
    assert not os.path.exists(folder.path)
