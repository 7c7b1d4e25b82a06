"""Predictions reach GLUE's server in the format that it accepts: labels, number of rows, the best seed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from adapter_bert import tasks
from adapter_bert.common.errors import UserError
from adapter_bert.evaluation import glue_submission
from adapter_bert.tasks import glue
from adapter_bert.tasks.task import Task
from tests.helpers import ROOT, assert_mentions, message_of

COLA, STSB, WNLI = tasks.get("CoLA"), tasks.get("STS-B"), tasks.get("WNLI")
NLI_LABELS = ["contradiction", "entailment", "neutral"]
PRICE = Task("Price", labels=(), metrics=("spearman",))
TOPIC = Task("My topics: A/B", labels=("sports", "press & politics"))


def full_text(task: Task, shift: int = 0) -> str:
    """Return a file with the published number of rows, a different one for each shift."""
    rows = range(shift, shift + task.test_rows)
    cells = [f"{row % 5}.000" if task.is_regression else task.labels[row % len(task.labels)] for row in rows]
    return "index\tprediction\n" + "".join(f"{index}\t{cell}\n" for index, cell in enumerate(cells))


# The file of a task.


@pytest.mark.parametrize(
    "task, predictions, cells",
    [
        *[(tasks.get(name), range(2), ["0", "1"]) for name in ("CoLA", "SST-2", "MRPC", "QQP", "WNLI")],
        *[(tasks.get(name), np.arange(3), NLI_LABELS) for name in ("MNLI", "MNLI-mm", "AX")],
        *[(tasks.get(name), np.arange(2), ["entailment", "not_entailment"]) for name in ("QNLI", "RTE")],
        # Numbers are rounded and clipped to the range of the task.
        (
            STSB,
            np.array([2.71828, -0.3, 5.2, 5.0, 0.0, -0.0, -1e-5, 4.99951], np.float32),
            ["2.718", "0.000", "5.000", "5.000", "0.000", "0.000", "0.000", "5.000"],
        ),
        (PRICE, [1234.5678, -0.000012345678, 2e9, 3], ["1234.57", "-1.23457e-05", "2e+09", "3"]),
    ],
)
def test_a_file_has_a_line_for_each_prediction(tmp_path, task, predictions, cells):
    path = glue_submission.write(task, predictions, str(tmp_path))
    assert path == str(tmp_path / glue_submission.file_name(task)) and len(os.listdir(tmp_path)) == 1
    with open(path, "rb") as file:
        text = file.read().decode("utf-8")
    assert text == "index\tprediction\n" + "".join(f"{index}\t{cell}\n" for index, cell in enumerate(cells))


@pytest.mark.parametrize("task, value", [(STSB, float("nan")), (PRICE, float("inf"))], ids=["STS-B", "custom"])
def test_a_prediction_that_is_not_finite_is_an_error(tmp_path, task, value):
    message = message_of(glue_submission.write, task, [1.0, value], str(tmp_path))
    assert_mentions(message, value, "example 1", task.name, "--learning_rate")


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_class_that_does_not_exist_is_a_programming_error(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"Prediction 1 is class {wrong}") as caught:
        glue_submission.write(COLA, [0, wrong], str(tmp_path))
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    "task, name",
    [
        *[(tasks.get(name), f"{name}.tsv") for name in ("CoLA", "SST-2", "STS-B", "MNLI-mm", "AX", "XNLI-de")],
        (tasks.get("MNLI"), "MNLI-m.tsv"),
        (TOPIC, "My_topics__A_B.tsv"),
        (dataclasses.replace(TOPIC, name="../../etc"), "__.._etc.tsv"),
        (dataclasses.replace(TOPIC, name=".."), "_.tsv"),
        (dataclasses.replace(TOPIC, name="Größe"), "Größe.tsv"),
    ],
)
def test_a_file_has_the_name_that_the_server_expects_or_a_safe_one(task, name):
    assert glue_submission.file_name(task) == name


def test_files_of_custom_tasks_may_have_any_number_of_rows_and_finite_numbers():
    glue_submission.check(TOPIC, "index\tprediction\n0\tsports\n1\tsports", "the last line needs no line feed")
    glue_submission.check(PRICE, "index\tprediction\n0\t-1e+09\n", "file")
    message = message_of(glue_submission.check, PRICE, "index\tprediction\n0\tinf\n", "Price.tsv")
    assert_mentions(message, "Price.tsv, line 2", "finite", r"'0\tinf'")
    assert glue_submission.mismatch(TOPIC, 10) is None is glue_submission.mismatch(COLA, 1063)
    assert_mentions(glue_submission.mismatch(COLA, 10), "CoLA", 1063, 10)


@pytest.mark.parametrize(
    "task, old, new, facts",
    [
        (WNLI, "index\tprediction\n", "", ["line 1", r"'index\tprediction'", r"'0\t0'"]),
        (WNLI, full_text(WNLI), "", ["line 1", r"'index\tprediction'"]),
        (WNLI, "\n7\t1", "", [146, 145]),
        (WNLI, "\n7\t1", "\n8\t1", ["line 9", "index 7", r"'8\t1'"]),
        (WNLI, "\n7\t1", "\n7 1", ["line 9", "two tab-separated columns", "'7 1'"]),
        (WNLI, "\n7\t1", "\n7\t2", ["line 9", "0, 1", r"'7\t2'"]),
        (WNLI, "\n7\t1", "\n7\t1\r", ["line 9", "0, 1", r"'7\t1\r'"]),
        (STSB, "\n3\t3.000", "\n3\t5.1", ["line 5", "0 to 5", r"'3\t5.1'"]),
        (STSB, "\n3\t3.000", "\n3\tnan", ["line 5", "0 to 5", r"'3\tnan'"]),
        (STSB, "\n3\t3.000", "\n3\thigh", ["line 5", "0 to 5", r"'3\thigh'"]),
    ],
)
def test_the_check_names_the_line_that_the_server_would_reject(task, old, new, facts):
    text = full_text(task)
    assert text.count(old) == 1
    message = message_of(glue_submission.check, task, text.replace(old, new), "some.tsv")
    assert_mentions(message, "some.tsv", *facts)


# The zip file.


def add_run(folder, predicted: Task, score=None, shift: int = 0, **results) -> str:
    """Create a run's folder with a task's predictions and, given a score, its results; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / glue_submission.file_name(predicted)).write_text(full_text(predicted, shift))
    if score is not None:
        metric = results.get("primary_metric", predicted.primary_metric)
        content = {"task": predicted.name, "primary_metric": metric, "metrics": {metric: score}}
        content.update({"loss": 0.5, "collapsed": False, **results})
        (folder / "results.json").write_text(json.dumps(content))
    return str(folder)


def collect_one(*folders) -> glue_submission.TaskFile:
    """Collect the file of the only task in these folders."""
    [task_file] = glue_submission.collect([str(folder) for folder in folders], allow_missing=True)
    return task_file


def read_zip(path) -> dict:
    with zipfile.ZipFile(str(path)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}


def test_the_zip_file_contains_the_files_of_all_eleven_tasks(tmp_path):
    for number, task in enumerate(glue.TASKS):
        add_run(tmp_path / "runs" / f"run-{number}", task, score=number / 20)
    output = tmp_path / "new" / "submission.zip"
    summary = glue_submission.make_submission([str(tmp_path / "runs")], str(output))
    found = read_zip(output)
    names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
    assert list(found) == [f"{name}.tsv" for name in names.split(" ")]
    assert found == {glue_submission.file_name(task): full_text(task) for task in glue.TASKS}
    assert os.listdir(output.parent) == ["submission.zip"]
    rows = [line.split() for line in summary.split("\n")]
    assert rows[0] == ["task", "run", "dev", "score", "rows"]
    assert rows[1] == ["CoLA", str(tmp_path / "runs" / "run-0"), "matthews", "0.0000", "1063"]
    assert rows[6] == ["MNLI-m", str(tmp_path / "runs" / "run-5"), "accuracy", "0.2500", "9796"]
    assert_mentions(summary, output, "11 of 11 tasks")


def test_the_same_predictions_give_the_same_bytes(tmp_path):
    separate = [add_run(tmp_path / "a", WNLI), add_run(tmp_path / "b", COLA)]
    together = [add_run(tmp_path / "c", COLA), add_run(tmp_path / "c", WNLI)]
    for number, runs in enumerate((separate, together)):
        glue_submission.make_submission(runs, str(tmp_path / f"{number}.zip"), allow_missing=True)
    assert (tmp_path / "0.zip").read_bytes() == (tmp_path / "1.zip").read_bytes()


def test_folders_are_searched_two_levels_deep_and_a_run_that_is_found_twice_counts_once(tmp_path):
    for place in ("runs", "runs/cola", "runs/cola/seed-1", "runs/cola/seed-1/old"):
        add_run(tmp_path / place, COLA)
    top, run = str(tmp_path / "runs"), str(tmp_path / "runs" / "cola")
    folders = [top, run + "/seed-1", run + "/seed-1/", os.path.join(top, "..", "runs", "cola", "seed-1")]
    deep = os.path.join(run, "seed-1", "old")
    assert glue_submission.find_runs([top]) == {"CoLA.tsv": [top, run, os.path.join(run, "seed-1")]}
    assert glue_submission.find_runs(folders) == {"CoLA.tsv": [top, run, os.path.join(run, "seed-1"), deep]}


@pytest.mark.parametrize("scores, best", [([0.51, -0.1, 0.58, 0.57, 0.0], 2), ([0.5, 0.5, 0.5], 0)])
def test_the_best_of_several_seeds_is_chosen_or_the_first_of_several_best(tmp_path, scores, best):
    for seed, score in enumerate(scores):
        add_run(tmp_path / f"seed-{seed}", WNLI, score, shift=seed % 2)
    run = str(tmp_path / f"seed-{best}")
    assert collect_one(tmp_path).table_row() == ("WNLI", run, f"accuracy {scores[best]:.4f}", 146)


@pytest.mark.parametrize(
    "score, results, shown",
    [
        (None, {}, "unknown"),
        # A collapsed run may well be the best: no model of that time beat the majority class of WNLI.
        (0.563, {"collapsed": True}, "accuracy 0.5630 (collapsed)"),
        # Results of another task say nothing about this one.
        (0.5, {"task": "CoLA"}, "unknown"),
    ],
)
def test_a_single_run_needs_no_results(tmp_path, score, results, shown):
    assert collect_one(add_run(tmp_path, WNLI, score, **results)).table_row()[2] == shown


@pytest.mark.parametrize(
    "score, results, facts",
    [
        (None, {}, ["{run}: no results.json", "--do_eval"]),
        (0.5, {"task": "CoLA"}, ["{run}: accuracy on CoLA"]),
        (0.5, {"primary_metric": "f1"}, ["{run}: f1 on WNLI", "{other}: accuracy on WNLI"]),
    ],
)
def test_several_runs_need_comparable_results(tmp_path, score, results, facts):
    run, other = add_run(tmp_path / "a", WNLI, score, **results), add_run(tmp_path / "b", WNLI, 0.6)
    message = message_of(collect_one, run, other)
    assert_mentions(message, "2 runs", "WNLI", *[fact.format(run=run, other=other) for fact in facts])


def test_all_tasks_of_an_mnli_model_are_chosen_by_its_score_on_mnli(tmp_path):
    """One model predicts MNLI-m, MNLI-mm and AX, and all three may be in one folder."""
    for seed, score in enumerate([0.80, 0.84]):
        for name in ("MNLI", "MNLI-mm", "AX"):
            add_run(tmp_path / str(seed), tasks.get(name), score, seed, task="MNLI", primary_metric="accuracy")
    found = glue_submission.collect([str(tmp_path)], allow_missing=True)
    assert [(each.task.name, each.run, each.table_row()[2]) for each in found] == [
        ("MNLI", str(tmp_path / "1"), "accuracy 0.8400"),
        ("MNLI-mm", str(tmp_path / "1"), "accuracy 0.8400 on MNLI"),
        ("AX", str(tmp_path / "1"), "accuracy 0.8400 on MNLI"),
    ]


@pytest.mark.parametrize("metrics", [{}, {"accuracy": "high"}, {"accuracy": None}, {"accuracy": float("nan")}])
def test_damaged_results_are_an_error(tmp_path, metrics):
    add_run(tmp_path, WNLI, score=0.5, metrics=metrics)
    assert_mentions(message_of(collect_one, tmp_path), tmp_path / "results.json")


@pytest.mark.parametrize(
    "arrange, options, facts",
    [
        (lambda run: add_run(run, WNLI), {}, ["CoLA.tsv", "AX.tsv", "--do_predict", "--allow_missing"]),
        (lambda run: run.mkdir(), {"allow_missing": True}, ["CoLA.tsv", "AX.tsv", "--do_predict"]),
        (lambda run: None, {}, ["{run}", "does not exist"]),
        (
            lambda run: run.mkdir() or glue_submission.write(COLA, [1, 0], str(run)),
            {"allow_missing": True},
            ["{run}/CoLA.tsv", 1063, "2 predictions"],
        ),
        (
            lambda run: run.mkdir() or (run / "CoLA.tsv").write_bytes(b"index\tprediction\n0\t\xff\n"),
            {"allow_missing": True},
            ["{run}/CoLA.tsv", "UTF-8"],
        ),
    ],
)
def test_an_invalid_submission_is_an_error_and_nothing_is_written(tmp_path, arrange, options, facts):
    run, output = tmp_path / "run", tmp_path / "submission.zip"
    arrange(run)
    message = message_of(glue_submission.make_submission, [str(run)], str(output), **options)
    assert_mentions(message, *[str(fact).format(run=run) for fact in facts])
    assert ("--allow_missing" in message) == ("--allow_missing" in facts)
    assert not output.exists()


def test_missing_tasks_can_be_allowed_and_an_existing_zip_file_replaced_on_request(tmp_path):
    run, output = add_run(tmp_path / "run", WNLI), tmp_path / "submission.zip"
    assert_mentions(message_of(glue_submission.make_submission, [], str(output)), "--runs")
    output.write_bytes(b"my notes")
    message = message_of(glue_submission.make_submission, [run], str(output), allow_missing=True, overwrite=True)
    assert_mentions(message, output, "submissions", "--output")
    assert output.read_bytes() == b"my notes"
    with zipfile.ZipFile(str(output), "w") as archive:
        archive.writestr("thesis.txt", "my thesis")
    assert message_of(glue_submission.make_submission, [run], str(output), overwrite=True) == message
    results = message_of(glue_submission.make_submission, [run], os.path.join(run, "results.json"))
    assert_mentions(results, "results.json", "zip", "--output")
    with zipfile.ZipFile(str(output), "w") as archive:
        archive.writestr("WNLI.tsv", "sent last week")
    before = output.read_bytes()
    message = message_of(glue_submission.make_submission, [run], str(output), allow_missing=True)
    assert_mentions(message, output, "--output", "--overwrite")
    assert output.read_bytes() == before
    summary = glue_submission.make_submission([run], str(output), allow_missing=True, overwrite=True)
    assert list(read_zip(output)) == ["WNLI.tsv"]
    assert_mentions(summary, "1 of 11 tasks", "CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, RTE, AX")


def test_the_script_takes_flags_and_folders_and_fails_with_one_line(tmp_path):
    first, second = add_run(tmp_path / "a", WNLI), add_run(tmp_path / "b", COLA)
    script, output = os.path.join(ROOT, "scripts", "make_submission.py"), str(tmp_path / "mine.zip")
    command = [sys.executable, script, f"--runs={first}", f"--output={output}", "--allow_missing", second]
    done = subprocess.run(command, capture_output=True, text=True, cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(read_zip(output)) == ["CoLA.tsv", "WNLI.tsv"]
    assert_mentions(done.stdout, output, "2 of 11 tasks")
    again = subprocess.run(command, capture_output=True, text=True, cwd=str(tmp_path))
    assert again.returncode == 1 and "Traceback" not in again.stderr
    assert_mentions(again.stderr.strip().split("\n")[-1], "make_submission.py: error:", output, "--overwrite")
