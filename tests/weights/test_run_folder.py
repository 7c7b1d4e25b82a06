"""An output folder: which run it contains, and whether a command belongs to that run."""

from __future__ import annotations

import os

import pytest

from adapter_bert.evaluation.results import EvalResults
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.weights import packs
from adapter_bert.weights.run_folder import RunFolder
from tests.helpers import assert_mentions, base_flags, message_of

FINGERPRINTS = {"labels": ["0", "1"], "train_data": "sha256:1"}


@pytest.fixture
def flags(tiny_bert, cola_dir, tmp_path) -> dict:
    return dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "out")), do_train=True)


@pytest.fixture
def folder(flags) -> RunFolder:
    """The folder of a run that has written a pack."""
    folder = RunFolder(flags["output_dir"])
    folder.claim(folder.check_same_run(ClassifierSettings(**flags), FINGERPRINTS), {"base": "sha256:2", "frozen": None})
    with open(folder.pack_path, "w"):
        pass
    return folder


def test_a_new_folder_contains_no_run(tmp_path):
    folder = RunFolder(str(tmp_path / "new"))
    assert not folder.holds_run() and not folder.has_pack()
    assert (folder.latest_checkpoint(), folder.latest_step(), folder.read_settings()) == (None, 0, {})
    assert folder.history().evaluations == [] and folder.result_files() == []


def test_training_records_settings_and_fingerprints_and_evaluation_records_nothing(folder, flags, tmp_path):
    recorded = folder.read_settings()
    assert recorded["facts"] == dict(FINGERPRINTS, base="sha256:2", frozen=None), "older versions read this key"
    assert (recorded["learning_rate"], recorded["seed"], recorded["task_name"]) == (5e-5, 1, "CoLA")
    assert list(recorded) == sorted(recorded)
    assert folder.labels(ClassifierSettings(**flags)) == ["0", "1"]
    other = RunFolder(str(tmp_path / "other"))
    settings = ClassifierSettings(**dict(flags, do_train=False, do_eval=True))
    other.claim(other.check_same_run(settings, {}), {})
    assert os.listdir(other.path) == []


@pytest.mark.parametrize(
    "changes, fingerprints, facts",
    [
        ({"learning_rate": 1e-3}, {}, ("--learning_rate was 5e-05, is 0.001",)),
        ({}, {"train_data": "sha256:9"}, ("train_data was sha256:1, is sha256:9",)),
        ({"seed": 2}, {"labels": ["a"]}, ("--seed was 1, is 2", "labels was ['0', '1'], is ['a']")),
    ],
)
def test_another_run_is_an_error_that_lists_the_differences(folder, flags, changes, fingerprints, facts):
    settings = ClassifierSettings(**dict(flags, **changes))
    message = message_of(folder.check_same_run, settings, dict(FINGERPRINTS, **fingerprints))
    assert_mentions(message, folder.path, "--output_dir", *facts)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"init_checkpoint": None},
        {"init_checkpoint": "/moved/bert_model.ckpt"},
        {"eval_batch_size": 3},
        {"do_train": False, "do_eval": True, "learning_rate": 1.0},
        {"seed": None},
    ],
)
def test_the_same_run_continues(folder, flags, changes):
    record = folder.check_same_run(ClassifierSettings(**dict(flags, **changes)), FINGERPRINTS)
    assert record.recorded and record.seed == 1
    assert record.fingerprints == dict(FINGERPRINTS, base="sha256:2", frozen=None)


def test_a_later_command_keeps_the_training_settings(folder, flags):
    evaluation = dict(flags, do_train=False, do_eval=True, learning_rate=1.0, init_checkpoint=None)
    values = folder.check_same_run(ClassifierSettings(**evaluation), {}).training_settings()
    assert (values["learning_rate"], values["do_eval"]) == (5e-5, True)
    folder.claim(folder.check_same_run(ClassifierSettings(**dict(flags, init_checkpoint=None)), {}), {})
    assert folder.read_settings()["init_checkpoint"] == os.path.realpath(flags["init_checkpoint"])


def test_a_seed_is_drawn_if_none_is_given(flags, tmp_path):
    settings = ClassifierSettings(**dict(flags, seed=None))
    seeds = {RunFolder(str(tmp_path / "new")).check_same_run(settings, {}).seed for _ in range(3)}
    assert len(seeds) == 3 and all(0 <= seed < 2**31 for seed in seeds)


def test_a_folder_contains_itself_its_checkpoints_and_its_pack(tmp_path):
    folder = RunFolder(str(tmp_path))
    for path in (folder.path, folder.path + "/", folder.file("model.ckpt-5"), folder.file(packs.FILE_NAME)):
        assert folder.contains(path)
    assert not folder.contains(str(tmp_path / "eval" / "model.ckpt-5"))


RESULTS = EvalResults(
    task="CoLA", primary_metric="f1", metrics={"f1": 0.5, "accuracy": 0.75}, details={}, loss=1.5, majority={"f1": 0.0},
    collapsed=False, step=8, seed=1, parameters={}, training={}, fingerprints={}, data={}, versions={}, settings={},
    command={},
)  # fmt: skip


def test_results_are_read_as_they_were_written(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.write_results(RESULTS)
    assert folder.read_results() == RESULTS and RESULTS.primary == 0.5
    assert folder.result_files() == ["eval_results.txt", "results.json"]
    with open(folder.file("eval_results.txt")) as file:
        lines = file.read().splitlines()
    assert lines == sorted(lines)
    assert {"eval_f1 = 0.5", "eval_loss = 1.5", "loss = 1.5", "global_step = 8", "majority_f1 = 0.0"} <= set(lines)


def test_results_of_earlier_versions_may_lack_keys(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"task": "CoLA", "primary_metric": "f1", "metrics": {"f1": 0.5}, "other": 1}')
    results = EvalResults.read(str(path))
    assert (results.primary, results.loss, results.collapsed, results.step) == (0.5, None, False, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"task": "x", "primary_metric": "f1", "metrics": {}}'])
def test_other_files_are_not_results(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    assert_mentions(message_of(EvalResults.read, str(path)), path)
