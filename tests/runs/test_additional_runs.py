"""Runs of the paper's additional tasks: their test split has labels, so its predictions are scored."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.helpers import base_flags, cola_rows, message_of, write_file
from tests.runs.helpers import read_json, read_text, run

SCORES = "test_eval_results.txt"


@pytest.fixture(scope="session")
def sms(tiny_bert, tmp_path_factory) -> dict:
    """The flags of a run that was trained, but neither evaluated nor used to predict. Read only."""
    folder = tmp_path_factory.mktemp("sms")
    rows = [row.split("\t") for row in cola_rows(100)]
    labels = {"0": "spam", "1": "ham"}
    write_file(folder, "data/SMSSpamCollection", "".join(f"{labels[row[1]]}\t{row[3]}\n" for row in rows))
    flags = base_flags(tiny_bert, str(folder / "data"), str(folder / "out"))
    flags.update(task_name="sms_spam_collection", learning_rate=1e-2, num_train_epochs=1.0)
    run(flags, do_train=True)
    return flags


@pytest.fixture
def trained_sms(sms, tmp_path) -> dict:
    return dict(sms, output_dir=shutil.copytree(sms["output_dir"], str(tmp_path / "out")))


def test_predictions_of_a_labelled_test_split_are_scored(trained_sms, log):
    results = run(trained_sms, do_eval=True, do_predict=True)
    folder = trained_sms["output_dir"]
    stored = read_json(folder, "results.json")
    assert stored["test"] == results.test and stored["metrics"] == results.metrics
    assert stored["test"]["examples"] == stored["data"]["test"]["examples"] == stored["data"]["dev"]["examples"] == 10
    accuracy = stored["test"]["metrics"]["accuracy"]
    assert 0 <= accuracy <= 1 and stored["test"]["majority"]["accuracy"] >= 0.5
    lines = read_text(folder, SCORES).splitlines()
    assert lines == sorted(lines)
    assert {f"test_accuracy = {accuracy}", "test_examples = 10", f"global_step = {stored['step']}"} <= set(lines)
    assert any("test_accuracy = " in line for line in log)
    predicted = [line.split("\t")[1] for line in read_text(folder, "sms_spam_collection.tsv").splitlines()[1:]]
    assert len(predicted) == 10 and set(predicted) <= {"ham", "spam"}


def test_later_predictions_add_their_scores_to_the_results_of_the_same_weights(trained_sms):
    folder = trained_sms["output_dir"]
    assert run(trained_sms, do_predict=True) is None
    assert os.path.exists(os.path.join(folder, SCORES)) and not os.path.exists(os.path.join(folder, "results.json"))
    run(trained_sms, do_eval=True)
    before = read_json(folder, "results.json")
    assert "test" not in before
    assert run(trained_sms, do_predict=True) is None
    after = read_json(folder, "results.json")
    assert after.pop("test")["metrics"]["accuracy"] == float(
        read_text(folder, SCORES).split("test_accuracy = ")[1].split()[0]
    )
    assert after == before


def test_predictions_of_a_test_split_without_labels_are_not_scored(trained_run):
    folder = trained_run.flags["output_dir"]
    assert os.path.exists(os.path.join(folder, "CoLA.tsv")) and not os.path.exists(os.path.join(folder, SCORES))
    assert "test" not in read_json(folder, "results.json") and trained_run.results.test == {}


def test_a_task_whose_file_defines_its_classes_is_trained_and_scored(tiny_bert, tmp_path):
    rows = "".join(
        f"{row[3]},{'Loan' if row[1] == '1' else 'Credit'}\n" for row in (r.split("\t") for r in cola_rows(40))
    )
    write_file(tmp_path, "data/consumer_complaints.csv", "consumer_complaint_narrative,issue\n" + rows)
    flags = base_flags(tiny_bert, str(tmp_path / "data"), str(tmp_path / "out"))
    flags.update(task_name="customer_complaint_database", num_train_epochs=1.0)
    results = run(flags, do_train=True, do_eval=True, do_predict=True)
    assert list(results.per_class) == ["Credit", "Loan"] and results.test["examples"] == 4
    assert read_json(str(tmp_path / "out"), "settings.json")["facts"]["labels"] == ["Credit", "Loan"]


def test_a_run_without_a_data_folder_names_the_file_that_it_needs(tiny_bert, tmp_path):
    flags = dict(base_flags(tiny_bert, None, str(tmp_path / "out")), task_name="crowdflower_airline")
    message = message_of(run, flags, do_train=True)
    assert "--data_dir" in message and "Tweets.csv" in message
