"""Runs of networks without BERT, from the command line to the results."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

from adapter_bert.baselines import training
from adapter_bert.baselines.features import Memory
from adapter_bert.baselines.settings import with_preset
from adapter_bert.baselines.weights import BaselineFolder
from tests.baselines.helpers import command_flags, tiny_settings, write_module
from tests.helpers import assert_mentions, message_of, read_results, run_command


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> str:
    return write_module(str(tmp_path_factory.mktemp("hub") / "module"))


def run(settings):
    settings.validate()
    return training.run(settings)


def test_the_command_trains_evaluates_and_predicts(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module, do_predict=True, num_train_samples=400, eval_every_steps=10)
    result = run_command(command_flags(settings), "scripts/run_baseline.py")
    assert result.returncode == 0, result.stdout
    results = BaselineFolder(settings.output_dir).read_results()
    assert results.primary_metric == "matthews" and results.training["evaluations"]
    assert results.parameters["trained"] == results.parameters["total"]
    assert read_results(settings.output_dir)["eval_matthews"] == results.primary
    with open(os.path.join(settings.output_dir, "test_results.tsv")) as file:
        rows = [list(map(float, line.split("\t"))) for line in file]
    assert len(rows) == 10 and np.allclose(np.sum(rows, axis=1), 1)
    assert os.path.exists(os.path.join(settings.output_dir, "CoLA.tsv"))


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("fine_tunes", [False, True])
def test_a_later_command_evaluates_the_trained_network(tmp_path, module, convolves, fine_tunes):
    settings = tiny_settings(
        str(tmp_path / "run"), module, use_convolution=convolves, fine_tune_module=fine_tunes, conv_batch_norm=True
    )
    trained = run(settings)
    again = run(dataclasses.replace(settings, do_train=False))
    assert again.metrics == trained.metrics
    assert again.fingerprints["predictions"] == trained.fingerprints["predictions"]


def test_the_seed_determines_a_run(tmp_path, module):
    def prints(name: str, **changes) -> dict:
        return run(tiny_settings(str(tmp_path / name), module, use_convolution=True, **changes)).fingerprints

    first, again, other = prints("a"), prints("b"), prints("c", seed=2)
    assert first["pack"] == again["pack"] != other["pack"]
    assert first["frozen"] == other["frozen"]


def test_an_interrupted_run_continues_to_the_same_result(tmp_path, module, monkeypatch):
    def settings(name: str):
        return tiny_settings(
            str(tmp_path / name), module, use_convolution=True, num_train_samples=160, eval_every_steps=5,
            fine_tune_module=True,
        )  # fmt: skip

    whole = run(settings("whole"))

    class KilledError(Exception):
        pass

    def die(step, scores):
        if step == 10:
            raise KilledError

    with pytest.raises(KilledError):
        training.run(settings("killed"), observer=die)
    assert BaselineFolder(str(tmp_path / "killed")).latest_step() == 10
    resumed = run(settings("killed"))
    assert resumed.fingerprints["pack"] == whole.fingerprints["pack"]
    assert [each["step"] for each in resumed.training["evaluations"]] == [5, 10, 15, 20]


def test_early_stopping_is_that_of_other_runs(tmp_path, module):
    settings = tiny_settings(
        str(tmp_path / "run"), module, num_train_samples=8000, eval_every_steps=2, early_stopping_patience=2
    )
    steps = [each["step"] for each in run(settings).training["evaluations"]]
    assert 3 <= len(steps) < 500


def test_runs_share_data_words_and_vectors(tmp_path, module):
    memory = Memory()
    results = [
        training.run(tiny_settings(str(tmp_path / name), module, seed=seed), memory)
        for name, seed in (("a", 1), ("b", 2), ("c", 1))
    ]
    assert results[0].fingerprints == results[2].fingerprints != results[1].fingerprints
    names = os.listdir(tmp_path / "features")
    assert sorted(name.split("-")[0] for name in names if name.endswith(".npy")) == ["texts"] * 2


def test_flags_override_a_preset(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module, preset="sms_spam_collection", hidden_size=7)
    found = with_preset(settings, {"hub_module": 1, "hidden_size": 1})
    assert (found.hub_module, found.hidden_size, found.hidden_norm, found.wide_l2) == (module, 7, "batch", 0.01)


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"hub_module": None}, ["--hub_module"]),
        ({"learning_rate": 1e-3}, ["--learning_rate", "--deep_learning_rate"]),
        ({"use_tpu": True, "tpu_name": "local"}, ["--use_tpu"]),
        ({"conv_activation": "gelu"}, ["--conv_activation", "gelu", "leaky_relu"]),
        ({"conv_dropout": 1.0}, ["--conv_dropout", "0.95"]),
        ({"num_train_samples": 4}, ["--num_train_samples", "--train_batch_size"]),
        ({"hub_module": "no/such/module"}, ["--hub_module", "no/such/module"]),
        ({"do_train": False}, ["no trained network"]),
    ],
)
def test_wrong_settings_are_reported(tmp_path, module, changes, facts):
    assert_mentions(message_of(run, tiny_settings(str(tmp_path / "run"), module, **changes)), *facts)


def test_a_folder_with_another_network_is_not_continued(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module)
    run(settings)
    message = message_of(run, dataclasses.replace(settings, hidden_size=9))
    assert_mentions(message, "--hidden_size was 8, is 9", settings.output_dir)


def test_a_damaged_network_is_reported(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module)
    run(settings)
    path = BaselineFolder(settings.output_dir).pack_path
    with open(path, "r+b") as file:
        file.truncate(100)
    assert_mentions(message_of(run, dataclasses.replace(settings, do_train=False)), path, "damaged")


def test_the_settings_record_the_module(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module)
    run(settings)
    with open(os.path.join(settings.output_dir, "settings.json")) as file:
        assert json.load(file)["facts"]["module"].startswith("sha256:")
