"""Predictions reach GLUE's server as it takes them: the right words, the right number of rows, the best seed."""

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
from scripts import make_submission
from tests.helpers import ROOT

COLA, STSB, WNLI = tasks.get("CoLA"), tasks.get("STS-B"), tasks.get("WNLI")
PRICE = Task("Price", labels=(), metrics=("spearman",))
TOPIC = Task("My topics: A/B", labels=("sports", "press & politics"))


def as_text(task: Task, predictions) -> str:
    return "\n".join(glue_submission.lines(task, predictions)) + "\n"


def full_text(task: Task, shift: int = 0) -> str:
    """A file with as many rows as the server wants; another one for each shift."""
    rows = range(shift, shift + task.test_rows)
    return as_text(task, [row % 5 if task.is_regression else row % len(task.labels) for row in rows])


def message_of(function, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------ lines


@pytest.mark.parametrize(
    "task_name, words",
    [
        ("CoLA", ["0", "1"]),
        ("SST-2", ["0", "1"]),
        ("MRPC", ["0", "1"]),
        ("QQP", ["0", "1"]),
        ("MNLI", ["contradiction", "entailment", "neutral"]),
        ("MNLI-mm", ["contradiction", "entailment", "neutral"]),
        ("AX", ["contradiction", "entailment", "neutral"]),
        ("QNLI", ["entailment", "not_entailment"]),
        ("RTE", ["entailment", "not_entailment"]),
        ("WNLI", ["0", "1"]),
    ],
)
def test_classes_become_the_words_of_the_task(task_name, words):
    expected = ["index\tprediction"] + [f"{index}\t{word}" for index, word in enumerate(words)]
    assert glue_submission.lines(tasks.get(task_name), np.arange(len(words))) == expected
    assert glue_submission.lines(tasks.get(task_name), range(len(words))) == expected


def test_scores_of_sts_b_have_three_digits_and_are_clipped_to_0_and_5():
    predictions = np.array([2.71828, -0.3, 5.2, 5.0, 0.0, -0.0, -1e-5, 4.99951], np.float32)
    cells = [line.split("\t")[1] for line in glue_submission.lines(STSB, predictions)[1:]]
    assert cells == ["2.718", "0.000", "5.000", "5.000", "0.000", "0.000", "0.000", "5.000"]


def test_numbers_of_one_s_own_without_limits_keep_six_digits():
    cells = [line.split("\t")[1] for line in glue_submission.lines(PRICE, [1234.5678, -0.000012345678, 2e9, 3])[1:]]
    assert cells == ["1234.57", "-1.23457e-05", "2e+09", "3"]


@pytest.mark.parametrize("task", [STSB, PRICE], ids=["STS-B", "own"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_predicts_no_number_is_reported(task, value):
    message = message_of(glue_submission.lines, task, [1.0, value])
    assert message.startswith(f"The model predicts {value} for test example 1 of {task.name}: ")


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_class_that_does_not_exist_is_a_mistake_of_the_program(wrong):
    with pytest.raises(ValueError, match=f"Prediction 1 is class {wrong}; CoLA has the classes") as caught:
        glue_submission.lines(COLA, [0, wrong])
    assert not isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    "name, file",
    [
        ("CoLA", "CoLA.tsv"),
        ("SST-2", "SST-2.tsv"),
        ("STS-B", "STS-B.tsv"),
        ("MNLI", "MNLI-m.tsv"),
        ("MNLI-mm", "MNLI-mm.tsv"),
        ("AX", "AX.tsv"),
        ("XNLI-de", "XNLI-de.tsv"),
    ],
)
def test_a_file_has_the_server_s_name_or_the_task_s(name, file):
    assert glue_submission.file_name(tasks.get(name)) == file


@pytest.mark.parametrize(
    "name, file",
    [
        ("My topics: A/B", "My_topics__A_B.tsv"),
        ("../../etc", "__.._etc.tsv"),
        ("..", "_.tsv"),
        ("Größe", "Größe.tsv"),
    ],
)
def test_a_name_that_is_no_file_name_is_made_one(name, file):
    assert glue_submission.file_name(dataclasses.replace(TOPIC, name=name)) == file


def test_a_small_test_file_of_one_s_own_is_written_all_the_same(tmp_path):
    path = glue_submission.write(COLA, [1, 0], str(tmp_path))
    assert path == str(tmp_path / "CoLA.tsv")
    assert (tmp_path / "CoLA.tsv").read_bytes() == b"index\tprediction\n0\t1\n1\t0\n"
    assert os.listdir(tmp_path) == ["CoLA.tsv"]


def test_a_number_of_rows_that_the_server_would_refuse_is_put_into_words():
    assert glue_submission.mismatch(COLA, 10) == "CoLA has 1063 test examples as published, found 10 predictions"
    assert glue_submission.mismatch(COLA, 1063) is None
    assert glue_submission.mismatch(TOPIC, 10) is None


# ------------------------------------------------------------------------------------------ check


@pytest.mark.parametrize("task", glue.TASKS, ids=lambda task: task.name)
def test_what_is_written_passes_the_check(task):
    glue_submission.check(task, full_text(task), "file")
    glue_submission.check(task, full_text(task)[:-1], "file")


def test_tasks_of_one_s_own_pass_with_any_number_of_rows():
    glue_submission.check(TOPIC, as_text(TOPIC, [1, 0, 1]), "file")
    glue_submission.check(PRICE, as_text(PRICE, [-1e9, 0.25]), "file")


@pytest.mark.parametrize(
    "task, old, new, message",
    [
        (WNLI, "index\tprediction\n", "", "WNLI.tsv, line 1: expected the header 'index\\tprediction', found '0\\t0'"),
        (
            WNLI,
            "prediction",
            "label",
            "WNLI.tsv, line 1: expected the header 'index\\tprediction', found 'index\\tlabel'",
        ),
        (WNLI, "\n7\t1", "", "WNLI.tsv: WNLI has 146 test examples as published, found 145 predictions; predict the"),
        (WNLI, "\n7\t1", "\n7\t1\n7\t1", "WNLI.tsv: WNLI has 146 test examples as published, found 147 predictions"),
        (WNLI, "\n7\t1", "\n8\t1", "WNLI.tsv, line 9: expected the index 7, found '8\\t1'"),
        (WNLI, "\n7\t1", "\n7 1", "WNLI.tsv, line 9: expected two tab-separated columns, found '7 1'"),
        (WNLI, "\n7\t1", "\n7\t1\t1", "WNLI.tsv, line 9: expected two tab-separated columns, found '7\\t1\\t1'"),
        (WNLI, "\n7\t1", "\n7\t2", "WNLI.tsv, line 9: expected one of the labels 0, 1, found '7\\t2'"),
        (WNLI, "\n7\t1", "\n7\t1\r", "WNLI.tsv, line 9: expected one of the labels 0, 1, found '7\\t1\\r'"),
        (WNLI, "\n7\t1", "\n", "WNLI.tsv, line 9: expected two tab-separated columns, found ''"),
        (STSB, "\n3\t3.000", "\n3\t5.1", "STS-B.tsv, line 5: expected a number from 0 to 5, found '3\\t5.1'"),
        (STSB, "\n3\t3.000", "\n3\tnan", "STS-B.tsv, line 5: expected a number from 0 to 5, found '3\\tnan'"),
        (STSB, "\n3\t3.000", "\n3\thigh", "STS-B.tsv, line 5: expected a number from 0 to 5, found '3\\thigh'"),
        (STSB, "\n3\t3.000", "\n3\t", "STS-B.tsv, line 5: expected a number from 0 to 5, found '3\\t'"),
    ],
)
def test_a_file_that_the_server_would_refuse_is_refused_with_its_line(task, old, new, message):
    text = full_text(task)
    assert text.count(old) == 1
    found = message_of(glue_submission.check, task, text.replace(old, new), glue_submission.file_name(task))
    assert found.startswith(message)


def test_an_empty_file_is_refused():
    assert "CoLA.tsv, line 1: expected the header" in message_of(glue_submission.check, COLA, "", "CoLA.tsv")


def test_a_number_of_one_s_own_must_be_finite():
    message = message_of(glue_submission.check, PRICE, "index\tprediction\n0\tinf\n", "Price.tsv")
    assert message == "Price.tsv, line 2: expected a finite number, found '0\\tinf'."


# ------------------------------------------------------------------------------------------ zip


def add_run(folder, task: Task, score=None, shift: int = 0, of: str = "", metric: str = "", **results) -> str:
    """Makes a run's folder with a task's predictions and, with a score, its results; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / glue_submission.file_name(task)).write_text(full_text(task, shift))
    if score is not None:
        metric = metric or task.primary_metric
        content = dict({"task": of or task.name, "primary_metric": metric, "metrics": {metric: score}}, **results)
        (folder / "results.json").write_text(json.dumps(content))
    return str(folder)


def read_zip(path) -> dict:
    with zipfile.ZipFile(str(path)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory):
    """A run for each task of GLUE, MNLI's three in folders of their own."""
    folder = tmp_path_factory.mktemp("runs")
    for number, task in enumerate(glue.TASKS):
        add_run(folder / f"run-{number}", task, score=number / 20)
    return folder


def test_a_zip_holds_the_files_of_all_eleven_tasks_as_they_were_written(all_runs, tmp_path):
    output = tmp_path / "new" / "submission.zip"
    told = make_submission.make_submission([str(all_runs)], str(output))
    names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
    found = read_zip(output)
    assert list(found) == [f"{name}.tsv" for name in names.split(" ")]
    assert found == {glue_submission.file_name(task): full_text(task) for task in glue.TASKS}
    assert os.listdir(output.parent) == ["submission.zip"]
    rows = [line.split() for line in told.split("\n")]
    assert rows[0] == ["task", "run", "dev", "score", "rows"]
    assert rows[1] == ["CoLA", str(all_runs / "run-0"), "matthews", "0.0000", "1063"]
    assert rows[6] == ["MNLI-m", str(all_runs / "run-5"), "accuracy", "0.2500", "9796"]
    assert told.endswith(f"Wrote {output}: 11 of 11 tasks.")


def test_the_same_predictions_give_the_same_bytes_wherever_they_lie(tmp_path):
    first = make_submission.collect([add_run(tmp_path / "a", WNLI), add_run(tmp_path / "b", COLA)], allow_missing=True)
    second = make_submission.collect([add_run(tmp_path / "c", COLA), add_run(tmp_path / "c", WNLI)], allow_missing=True)
    assert make_submission.as_zip(first) == make_submission.as_zip(reversed(second))


@pytest.mark.parametrize("place", [".", "cola", "cola/seed-1"])
def test_runs_are_found_two_levels_deep(tmp_path, place):
    add_run(tmp_path / "runs" / place, COLA)
    found = make_submission.find_runs([str(tmp_path / "runs")])
    assert {name: [os.path.normpath(run) for run in runs] for name, runs in found.items()} == {
        "CoLA.tsv": [os.path.normpath(str(tmp_path / "runs" / place))]
    }


def test_runs_are_not_found_three_levels_deep(tmp_path):
    add_run(tmp_path / "runs" / "1" / "2" / "3", COLA)
    assert make_submission.find_runs([str(tmp_path / "runs")]) == {}


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    run = add_run(tmp_path / "runs" / "cola", COLA)
    folders = [str(tmp_path / "runs"), run, run + "/", os.path.join(run, "..", "cola")]
    assert make_submission.find_runs(folders) == {"CoLA.tsv": [run]}


def test_of_several_seeds_the_best_on_dev_is_taken(tmp_path):
    for seed, score in enumerate([0.51, -0.1, 0.58, 0.57, 0.0]):
        add_run(tmp_path / f"seed-{seed}", WNLI, score, shift=seed % 2)
    (entry,) = make_submission.collect([str(tmp_path)], allow_missing=True)
    assert entry.run == str(tmp_path / "seed-2")
    assert entry.cells() == ("WNLI", entry.run, "accuracy 0.5800", "146")


def test_the_first_of_equally_good_runs_is_taken(tmp_path):
    for name in ("b", "a", "c"):
        add_run(tmp_path / name, WNLI, 0.5)
    (entry,) = make_submission.collect([str(tmp_path)], allow_missing=True)
    assert entry.run == str(tmp_path / "a")


def test_a_collapsed_run_is_marked(tmp_path):
    """It may well be the best: no model of that time beat the majority class of WNLI."""
    add_run(tmp_path, WNLI, 0.563, collapsed=True)
    (entry,) = make_submission.collect([str(tmp_path)], allow_missing=True)
    assert entry.cells()[2] == "accuracy 0.5630 (collapsed)"


def test_one_run_needs_no_results(tmp_path):
    (entry,) = make_submission.collect([add_run(tmp_path, WNLI)], allow_missing=True)
    assert entry.cells()[2] == "unknown"


def test_several_runs_need_results_each(tmp_path):
    runs = [add_run(tmp_path / "a", WNLI, 0.5), add_run(tmp_path / "b", WNLI)]
    message = message_of(make_submission.collect, runs, allow_missing=True)
    assert message == (
        f"WNLI is predicted by 2 runs, the best one is to be chosen, but {runs[1]} has no results.json: evaluate it "
        f"with --do_eval=true, or give only one of {runs[0]}, {runs[1]}."
    )


def test_results_of_another_task_choose_nothing(tmp_path):
    one = add_run(tmp_path / "a", WNLI, 0.5, of="CoLA")
    (entry,) = make_submission.collect([one], allow_missing=True)
    assert entry.score is None
    runs = [one, add_run(tmp_path / "b", WNLI, 0.6)]
    message = message_of(make_submission.collect, runs, allow_missing=True)
    assert f"but {one}/results.json is of CoLA; leave this run out." in message


def test_scores_of_different_kinds_are_not_compared(tmp_path):
    runs = [add_run(tmp_path / "a", COLA, 0.5), add_run(tmp_path / "b", COLA, 0.8, metric="accuracy")]
    message = message_of(make_submission.collect, runs, allow_missing=True)
    assert "their scores are of different kinds: accuracy on CoLA, matthews on CoLA; evaluate all of" in message


def test_the_diagnostics_of_an_mnli_run_go_by_its_score_on_mnli(tmp_path):
    """One model answers MNLI-m, MNLI-mm and AX; the three may lie in one folder."""
    for seed, score in enumerate([0.80, 0.84]):
        for name in ("MNLI", "MNLI-mm", "AX"):
            add_run(tmp_path / str(seed), tasks.get(name), score, shift=seed, of="MNLI", metric="accuracy")
    entries = make_submission.collect([str(tmp_path)], allow_missing=True)
    assert [entry.task.name for entry in entries] == ["MNLI", "MNLI-mm", "AX"]
    assert {entry.run for entry in entries} == {str(tmp_path / "1")}
    assert [entry.cells()[2] for entry in entries] == ["accuracy 0.8400"] + ["accuracy 0.8400 on MNLI"] * 2


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"task": "WNLI", "primary_metric": "accuracy", "metrics": {}}',
        '{"task": "WNLI", "primary_metric": "accuracy", "metrics": {"accuracy": "high"}}',
        '{"task": "WNLI", "primary_metric": "accuracy", "metrics": {"accuracy": null}}',
        '{"task": "WNLI", "primary_metric": "accuracy", "metrics": {"accuracy": NaN}}',
    ],
)
def test_damaged_results_are_refused(tmp_path, content):
    add_run(tmp_path, WNLI)
    (tmp_path / "results.json").write_text(content)
    message = message_of(make_submission.collect, [str(tmp_path)], allow_missing=True)
    assert message.startswith(str(tmp_path / "results.json"))


def test_missing_tasks_are_listed_and_nothing_is_written(tmp_path):
    run, output = add_run(tmp_path / "run", WNLI), tmp_path / "submission.zip"
    message = message_of(make_submission.make_submission, [run], str(output))
    assert message == (
        "Found no CoLA.tsv, SST-2.tsv, MRPC.tsv, STS-B.tsv, QQP.tsv, MNLI-m.tsv, MNLI-mm.tsv, QNLI.tsv, RTE.tsv, "
        "AX.tsv; predict these tasks with --do_predict=true, or go without them with --allow_missing."
    )
    assert not output.exists()


def test_missing_tasks_can_be_allowed(tmp_path):
    run, output = add_run(tmp_path / "run", WNLI), tmp_path / "submission.zip"
    told = make_submission.make_submission([run], str(output), allow_missing=True)
    assert list(read_zip(output)) == ["WNLI.tsv"]
    assert "1 of 11 tasks." in told
    assert told.endswith("missing: CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, RTE, AX.")


def test_a_zip_of_nothing_is_never_made(tmp_path):
    (tmp_path / "run").mkdir()
    output = tmp_path / "submission.zip"
    message = message_of(make_submission.make_submission, [str(tmp_path / "run")], str(output), allow_missing=True)
    assert message.startswith("Found no CoLA.tsv, ")
    assert "--allow_missing" not in message
    assert not output.exists()


def test_a_file_with_a_wrong_number_of_rows_is_written_by_a_run_but_not_sent(tmp_path):
    path = glue_submission.write(COLA, [1, 0], str(tmp_path))
    message = message_of(make_submission.make_submission, [str(tmp_path)], str(tmp_path / "s.zip"), allow_missing=True)
    assert message.startswith(f"{path}: CoLA has 1063 test examples as published, found 2 predictions")
    assert not (tmp_path / "s.zip").exists()


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "CoLA.tsv").write_bytes(b"index\tprediction\n0\t\xff\n")
    message = message_of(make_submission.collect, [str(tmp_path)], allow_missing=True)
    assert message.startswith(f"{tmp_path}/CoLA.tsv is not a text file in UTF-8")


def test_a_zip_is_replaced_only_when_asked(tmp_path):
    run, output = add_run(tmp_path / "run", WNLI), tmp_path / "submission.zip"
    output.write_bytes(b"sent last week")
    message = message_of(make_submission.make_submission, [run], str(output), allow_missing=True)
    assert message == f"{output} already exists; give another --output, or --overwrite to replace it."
    assert output.read_bytes() == b"sent last week"
    make_submission.make_submission([run], str(output), allow_missing=True, overwrite=True)
    assert list(read_zip(output)) == ["WNLI.tsv"]


def test_folders_have_to_be_given_and_to_exist(tmp_path):
    output = str(tmp_path / "submission.zip")
    assert message_of(make_submission.make_submission, [], output).startswith("No run is given; ")
    nowhere = str(tmp_path / "nowhere")
    message = message_of(make_submission.make_submission, [nowhere], output)
    assert message == f"There is no folder {nowhere}; give the folders of the runs."


def test_the_script_takes_flags_and_folders_and_fails_with_one_line(tmp_path):
    first, second = add_run(tmp_path / "a", WNLI), add_run(tmp_path / "b", COLA)
    script, output = os.path.join(ROOT, "scripts", "make_submission.py"), str(tmp_path / "mine.zip")
    command = [sys.executable, script, f"--runs={first}", f"--output={output}", "--allow_missing", second]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": str(tmp_path)}
    done = subprocess.run(command, **pipes)
    assert done.returncode == 0, done.stderr
    assert list(read_zip(output)) == ["CoLA.tsv", "WNLI.tsv"]
    assert f"Wrote {output}: 2 of 11 tasks." in done.stdout
    again = subprocess.run(command, **pipes)
    assert again.returncode == 1
    assert again.stderr.strip().split("\n")[-1].startswith(f"make_submission.py: error: {output} already exists; ")
    assert "Traceback" not in again.stderr
