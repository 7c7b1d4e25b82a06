"""Searches: they are deterministic, can be resumed, and survive failing trials and wrong input."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from tests.baselines.helpers import write_module
from tests.baselines.searches import described, make_search, run
from tests.helpers import assert_mentions, message_of

from adapter_bert.baselines import report, search, training  # isort: skip
from adapter_bert.baselines.search_folder import SearchFolder
from adapter_bert.baselines.study import JOURNAL_FILE, Study, check_storage, without_password
from adapter_bert.common import errors
from adapter_bert.experiments import cells


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> str:
    return write_module(str(tmp_path_factory.mktemp("hub") / "module"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, module):
    """The folder of a search with five trials, and its study."""
    folder = str(tmp_path_factory.mktemp("search") / "out")
    return folder, run(folder, make_search(folder, module, trials=5))


def test_the_best_setting_is_trained_again_with_the_final_seeds(finished):
    folder, study = finished
    assert [trial.number for trial in study.trials()] == list(range(5))
    (cell,) = cells.read(os.path.join(folder, "results.csv"))
    assert (cell.method, cell.kind, cell.seed, cell.metric) == ("no BERT", "baseline", 1, "matthews")
    with open(os.path.join(folder, "best.json")) as file:
        best = json.load(file)
    values = [trial.value for trial in study.trials() if trial.value is not None]
    assert best["score"] == max(values) and best["settings"] == study.trials()[best["trial"]].params
    assert {name: cell.settings[name] for name in cell.settings} == {n: best["settings"][n] for n in cell.settings}


def test_trials_leave_results_but_no_weights(finished):
    names = os.listdir(os.path.join(finished[0], "trials", "0", "run"))
    assert "results.json" in names
    assert not [name for name in names if name.endswith(".safetensors") or ".ckpt" in name]


def test_a_search_that_is_continued_makes_the_same_choices(tmp_path, module, finished):
    folder = str(tmp_path / "out")
    first = run(folder, make_search(folder, module, trials=2)).best().number
    # With the task's data in the same place, as for the same command.
    study = run(folder, make_search(folder, module, trials=5))
    assert described(study) == described(finished[1])
    # Each best trial so far has been trained again.
    assert set(os.listdir(os.path.join(folder, "best"))) == {str(first), str(study.best().number)}


def test_another_seed_makes_other_choices(tmp_path, module, finished):
    folder = str(tmp_path / "out")
    other = dataclasses.replace(make_search(folder, module, trials=1), seed=9)
    assert described(run(folder, other))[0][2] != described(finished[1])[0][2]


def test_the_trial_of_a_killed_worker_continues_under_its_number(tmp_path, module, monkeypatch, finished):
    folder, real = str(tmp_path / "out"), training.run
    found = make_search(folder, module, trials=5)

    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    monkeypatch.setattr(training, "run", die)
    with pytest.raises(Killed):
        run(folder, found)
    assert [trial.state.name for trial in Study(SearchFolder(folder), found).trials()] == ["RUNNING"]
    monkeypatch.setattr(training, "run", real)
    assert described(run(folder, found)) == described(finished[1])


def test_a_failing_trial_is_recorded_and_the_search_continues(tmp_path, module, monkeypatch):
    folder, real = str(tmp_path / "out"), training.run

    def fail_once(settings, *args):
        if settings.output_dir.endswith(os.path.join("trials", "1", "run")):
            raise errors.UserError("no luck")
        return real(settings, *args)

    monkeypatch.setattr(training, "run", fail_once)
    study = run(folder, make_search(folder, module, trials=3))
    assert [trial.state.name for trial in study.trials()][1] == "FAIL"
    assert study.trials()[1].user_attrs["error"] == "no luck"
    assert study.counts()["FAIL"] == 1 and study.best().number != 1


def test_a_search_whose_trials_all_fail_says_why(tmp_path, module, monkeypatch):
    def fail(*unused):
        raise errors.UserError("no luck")

    monkeypatch.setattr(training, "run", fail)
    folder = str(tmp_path / "out")
    assert_mentions(message_of(run, folder, make_search(folder, module, trials=2)), "2 trials", "no luck")


def test_bad_trials_are_pruned(tmp_path, module, monkeypatch):
    folder = str(tmp_path / "out")

    def evaluate(settings, memory, observe):
        from adapter_bert.evaluation.scores import Scores

        number = int(settings.output_dir.split(os.sep)[-2]) if "trials" in settings.output_dir else 0
        for step in range(1, 6):
            observe(step, Scores({"matthews": -float(number)}, 1.0, False))
        return real(settings, memory)

    real = training.run
    monkeypatch.setattr(training, "run", evaluate)
    monkeypatch.setattr("adapter_bert.baselines.worker._run_best", lambda *unused: None)
    study = run(folder, make_search(folder, module, trials=12))
    states = [trial.state.name for trial in study.trials()]
    assert states[:10] == ["COMPLETE"] * 10 and states[10:] == ["PRUNED"] * 2
    assert study.trials()[11].user_attrs["step"] == 3  # after two evaluations that are never pruned


def test_another_search_in_the_same_folder_is_rejected(module, finished):
    folder = finished[0]
    other = make_search(folder, module, fixed={"hidden_size": 9})
    assert_mentions(message_of(SearchFolder(folder).start, other), folder, "hidden_size was [4], is [9]")
    other = dataclasses.replace(make_search(folder, module), settings={**finished[1].search.settings, "task_name": "X"})
    assert_mentions(message_of(SearchFolder(folder).start, other), "task_name was CoLA, is X")


def test_another_search_in_the_same_storage_is_rejected(tmp_path, module, finished):
    copy = SearchFolder(str(tmp_path))
    with open(os.path.join(finished[0], JOURNAL_FILE), "rb") as source, open(copy.file(JOURNAL_FILE), "wb") as target:
        target.write(source.read())
    other = make_search(finished[0], module, fixed={"hidden_size": 9})
    assert_mentions(message_of(Study, copy, other), "hidden_size was [4], is [9]", "CoLA")


def test_a_line_that_a_killed_process_left_incomplete_is_removed(tmp_path, module):
    folder = str(tmp_path / "out")
    found = make_search(folder, module, trials=1)
    run(folder, found)
    with open(os.path.join(folder, JOURNAL_FILE), "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    study = run(folder, dataclasses.replace(found, trials=2))
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE"] * 2


def test_only_storages_that_processes_can_share_are_accepted(tmp_path, module):
    assert_mentions(message_of(check_storage, "sqlite:///study.db"), "sqlite", "postgresql://")
    assert_mentions(message_of(make_search, str(tmp_path), module, storage="mysql://host/db"), "mysql")
    address = "postgresql://me:secret@host:1/db?sslmode=require"
    assert without_password(address) == "postgresql://host:1/db"
    check_storage(address)


def test_a_server_that_does_not_answer_is_reported_without_its_password(tmp_path, module):
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install -e .[search])")
    found = make_search(str(tmp_path), module)
    message = message_of(Study, SearchFolder(str(tmp_path)), found, "postgresql://me:secret@127.0.0.1:9/db")
    assert_mentions(message, "127.0.0.1:9/db")
    assert "secret" not in message


def test_the_report_has_tables_and_figures(tmp_path, finished):
    page = report.write([finished[0]], [], str(tmp_path))
    with open(page) as file:
        text = file.read()
    assert_mentions(text, "CoLA", "no BERT", "importance", "of 5")
    assert {"history.png", "expected.svg", "additional.md", "results.csv"} <= set(os.listdir(tmp_path))


def test_a_search_checks_its_modules_before_it_starts(tmp_path, module):
    found = make_search(str(tmp_path / "out"), module, fixed={"hub_module": "no/such"})
    assert_mentions(message_of(search.check_inputs, found), "no/such")
