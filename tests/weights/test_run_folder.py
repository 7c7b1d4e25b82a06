"""An output folder: which run it contains, and whether a command belongs to that run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import socket

import pytest

from adapter_bert.evaluation.results import EvalResults
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import MODEL
from adapter_bert.weights import packs
from adapter_bert.weights.run_folder import RunFolder
from tests.helpers import assert_mentions, base_flags, message_of, write_file

FINGERPRINTS = {"labels": ["0", "1"], "train_data": "sha256:1"}


@pytest.fixture
def flags(tiny_bert, cola_dir, tmp_path) -> dict:
    return dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "out")), do_train=True)


@pytest.fixture
def folder(flags) -> RunFolder:
    """The folder of a run that has written a pack."""
    with RunFolder(flags["output_dir"]) as folder:
        claim(folder, ClassifierSettings(**flags))
    with open(folder.pack_path, "w"):
        pass
    return folder


def claim(folder: RunFolder, settings: ClassifierSettings) -> None:
    folder.claim(folder.check_same_run(settings, FINGERPRINTS), {"base": "sha256:2", "frozen": None})


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


@pytest.mark.parametrize("mode", ["adapter", "layer_norm"])
def test_a_run_from_before_the_variants_of_adapters_continues_with_the_default(flags, tmp_path, mode):
    flags = dict(flags, tuning_mode=mode)
    with RunFolder(flags["output_dir"]) as folder:
        claim(folder, ClassifierSettings(**flags))
    with open(folder.pack_path, "w"):
        pass
    new = {"adapter_norm", "adapter_depth", "adapter_connection", "adapter_freeze_below"}
    older = {name: value for name, value in folder.read_settings().items() if name not in new}
    write_file(tmp_path, "out/settings.json", json.dumps(older))
    assert new <= flags_of_model(flags) and folder.check_same_run(ClassifierSettings(**flags), FINGERPRINTS).recorded
    changed = ClassifierSettings(**dict(flags, adapter_depth=2))
    if mode == "adapter":
        message = message_of(folder.check_same_run, changed, FINGERPRINTS)
        assert_mentions(message, "--adapter_depth was 1, is 2")
    else:
        folder.check_same_run(changed, FINGERPRINTS)


def flags_of_model(flags: dict) -> set:
    return set(ClassifierSettings(**flags).comparable_values((MODEL,)))


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


def test_results_of_another_task_do_not_replace_those_of_the_folders_own(folder, flags, tmp_path):
    own, other = (dataclasses.replace(RESULTS, task=task) for task in ("CoLA", "a/b"))
    for results in (other, own, other):
        folder.write_results(results)
    assert folder.read_results() == own
    assert EvalResults.read(folder.file("results_a_b.json")) == other
    assert folder.result_file("test_results.tsv", "AX") == folder.file("test_results_AX.tsv")
    evaluated = RunFolder(str(tmp_path / "evaluated"))  # nothing is trained here: it belongs to the first task
    os.mkdir(evaluated.path)
    for results in (other, own):
        evaluated.write_results(results)
    names = ["eval_results.txt", "eval_results_CoLA.txt", "results.json", "results_CoLA.json"]
    assert sorted(os.listdir(evaluated.path)) == names
    path = write_file(tmp_path, "out/results_AX.json", "{}")
    settings = ClassifierSettings(**dict(flags, task_name="AX", bert_config_file=path))
    assert_mentions(message_of(folder.check_outputs, settings), "--bert_config_file", path)


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


class TestLock:
    def test_a_second_training_is_told_who_holds_the_folder_and_since_when(self, flags):
        settings = ClassifierSettings(**flags)
        with RunFolder(flags["output_dir"]) as first:
            claim(first, settings)
            message = message_of(claim, RunFolder(flags["output_dir"]), settings)
            today = datetime.date.today().isoformat()
            assert_mentions(message, flags["output_dir"], f"process {os.getpid()} on {socket.gethostname()}", today)
            assert_mentions(message, "--output_dir")
        assert ".lock" not in os.listdir(flags["output_dir"])
        with RunFolder(flags["output_dir"]) as next_one:
            claim(next_one, settings)

    def test_a_training_that_was_checked_before_another_one_finished_is_rejected(self, flags):
        folder, settings = RunFolder(flags["output_dir"]), ClassifierSettings(**flags)
        record = folder.check_same_run(settings, FINGERPRINTS)
        with RunFolder(flags["output_dir"]) as other:
            claim(other, dataclasses.replace(settings, seed=2))
            with open(other.pack_path, "w"):
                pass
        assert_mentions(message_of(folder.claim, record, {}), flags["output_dir"], "again")
        assert folder.read_settings()["seed"] == 2

    def test_an_evaluation_needs_no_lock(self, folder, flags):
        with RunFolder(flags["output_dir"]) as training:
            claim(training, ClassifierSettings(**flags))
            claim(folder, ClassifierSettings(**dict(flags, do_train=False, do_eval=True)))


@pytest.mark.parametrize(
    "flag, name",
    [
        ("train_file", "settings.json"),
        ("train_file", "results.json"),
        ("dev_file", "eval_results.txt"),
        ("test_file", "mine.tsv"),
        ("test_file", "nbest_predictions.json"),
        ("vocab_file", "checkpoint"),
        ("bert_config_file", "training.json"),
        ("init_checkpoint", "model.ckpt-20"),
        ("adapter_pack", "adapter_pack.safetensors"),
    ],
)
def test_a_run_never_overwrites_its_inputs(flags, tmp_path, flag, name):
    own = tmp_path / "out"
    own.mkdir()
    (own / (name + ".index" if flag == "init_checkpoint" else name)).write_text("precious")
    os.symlink(own, tmp_path / "link")
    settings = ClassifierSettings(**dict(flags, **{flag: str(tmp_path / "link" / name)}))
    message = message_of(RunFolder(flags["output_dir"]).check_outputs, settings, "mine.tsv")
    assert_mentions(message, f"--{flag}={tmp_path}/link/{name}", "--output_dir")
    elsewhere = dataclasses.replace(settings, output_dir=str(tmp_path / "other"))
    RunFolder(str(elsewhere.output_dir)).check_outputs(elsewhere, "mine.tsv")


@pytest.mark.parametrize("name", ["settings.json", "results.json"])
def test_files_that_no_run_has_written_are_not_replaced(flags, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"text": "my data"}')
    message = message_of(RunFolder(flags["output_dir"]).check_outputs, ClassifierSettings(**flags))
    assert_mentions(message, tmp_path / "out" / name)


def test_a_run_is_not_written_into_a_bank(flags, tmp_path):
    (tmp_path / "bank" / "base").mkdir(parents=True)
    (tmp_path / "bank" / "bank.json").write_text("{}")
    for folder in (tmp_path / "bank", tmp_path / "bank" / "packs" / "new"):
        settings = ClassifierSettings(**dict(flags, output_dir=str(folder)))
        assert_mentions(message_of(RunFolder(str(folder)).check_outputs, settings), "--output_dir", tmp_path / "bank")


def test_a_continued_run_may_name_its_own_weights(folder, flags):
    own = {"init_checkpoint": folder.path, "adapter_pack": folder.pack_path}
    folder.check_outputs(ClassifierSettings(**dict(flags, **own)))


@pytest.mark.parametrize(
    "changes",
    [
        {"task": 3},
        {"metrics": {"f1": "0.5"}},
        {"metrics": [0.5]},
        {"primary_metric": ["f1"]},
        {"loss": "1.5"},
        {"fingerprints": {"pack": 1}},
        {"parameters": {"total": 10**20}},
        {"step": None},
    ],
    ids=str,
)
def test_results_of_other_types_are_errors_that_name_the_key(tmp_path, changes):
    path = write_file(tmp_path, "results.json", json.dumps({**RESULTS.as_dict(), **changes}))
    assert_mentions(message_of(EvalResults.read, path), path, *changes)


@pytest.mark.parametrize(
    "changes, fact",
    [
        ({"facts": [1]}, "facts"),
        ({"facts": None}, "facts"),
        ({"facts": {"labels": "01"}}, "labels"),
        ({"facts": {"labels": ["0", 1]}}, "labels"),
        ({"seed": "1"}, "seed"),
        ({"seed": 10**400}, "401 digits"),
        ({"init_checkpoint": 3}, "init_checkpoint"),
        ({"adapter_pack": ["a"]}, "adapter_pack"),
        ({"x": json.loads("[" * 70 + "]" * 70)}, "nested"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_settings_of_other_types_are_errors_that_name_the_key(folder, flags, changes, fact):
    path = folder.file("settings.json")
    with open(path, "w") as file:
        json.dump(changes, file)
    assert_mentions(message_of(folder.check_same_run, ClassifierSettings(**flags), {}), path, fact)


EVALUATION = {"step": 4, "loss": 1.5, "metrics": {"f1": 0.5}, "collapsed": False}


@pytest.mark.parametrize(
    "changes, fact",
    [
        ({"evaluations": {"step": 1}}, "evaluations"),
        ({"evaluations": [3]}, "evaluations"),
        ({"evaluations": [dict(EVALUATION, step="4")]}, "step"),
        ({"evaluations": [dict(EVALUATION, loss=[])]}, "loss"),
        ({"evaluations": [dict(EVALUATION, metrics={"f1": True})]}, "f1"),
        ({"seconds": "1"}, "seconds"),
        ({"steps": 1.5}, "steps"),
        ({"examples": 10**400}, "401 digits"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_history_of_other_types_is_an_error_that_names_the_key(tmp_path, changes, fact):
    content = {"evaluations": [EVALUATION], "seconds": 1, "steps": 4, "examples": 8}
    path = write_file(tmp_path, "training.json", json.dumps(content))
    assert RunFolder(str(tmp_path)).history().evaluations == [EVALUATION]
    write_file(tmp_path, "training.json", json.dumps({**content, **changes}))
    assert_mentions(message_of(RunFolder(str(tmp_path)).history), path, fact)


@pytest.mark.parametrize("name", ["settings.json", "training.json", "results.json"])
def test_a_fifo_in_a_run_folder_is_never_opened(tmp_path, deadline, name):
    os.mkfifo(str(tmp_path / name))
    folder = RunFolder(str(tmp_path))
    read = {"settings.json": folder.read_settings, "training.json": folder.history, "results.json": folder.read_results}
    assert_mentions(message_of(read[name]), tmp_path / name, "FIFO")
