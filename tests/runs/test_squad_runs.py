"""`run_squad.py`: the flags of the original, checkpoints, packs, scores, files and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import run_squad
from adapter_bert.model.heads import SpanHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.model.tuning_modes import MODES
from adapter_bert.training import span_extraction
from adapter_bert.weights import fingerprints, packs
from adapter_layers import AdapterConfig
from tests.helpers import (
    ROOT,
    assert_mentions,
    base_flags,
    command_line,
    read_results,
    run_command,
    squad_paragraphs,
    tiny_config,
    write_bert,
    write_squad,
)
from tests.kill import Program
from tests.runs.helpers import error_of, pack_of, read_json, run

pytestmark = pytest.mark.smoke

SCRIPT = "run_squad.py"
HEAD = {"cls/squad/output_bias", "cls/squad/output_weights"}
OUTPUTS = ("predictions.json", "nbest_predictions.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with small files in SQuAD's format. Read only."""
    folder = str(tmp_path_factory.mktemp("squad"))
    for version, is_2 in (("v1.1", False), ("v2.0", True)):
        write_squad(os.path.join(folder, f"train-{version}.json"), 96, 0, is_2)
        write_squad(os.path.join(folder, f"dev-{version}.json"), 30, 200, is_2)
    return folder


def flags_for(tiny_bert: str, data: str, output_dir: str, version: str = "v1.1", **changes) -> dict:
    flags = base_flags(tiny_bert, "", output_dir)
    del flags["task_name"], flags["data_dir"]
    flags.update(
        train_file=os.path.join(data, f"train-{version}.json"),
        predict_file=os.path.join(data, f"dev-{version}.json"),
        max_seq_length=32,
        max_query_length=8,
        doc_stride=9,
        learning_rate=2e-2,
        num_train_epochs=12,
        version_2_with_negative=version == "v2.0",
    )
    return dict(flags, **changes)


def elsewhere(flags: dict, tmp_path, change: Callable[[dict], Any] = lambda paragraph: None) -> dict:
    """Return the flags to use a run's pack in a new folder, on its predict file with changed paragraphs."""
    content = read_json(flags["predict_file"])
    paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    assert len(paragraphs) == 30
    for paragraph in paragraphs:
        change(paragraph)
    path = tmp_path / "test.json"
    path.write_text(json.dumps(content))
    changes = {"predict_file": str(path), "output_dir": str(tmp_path / "out"), "adapter_pack": flags["output_dir"]}
    return dict(flags, train_file=None, **changes)


@pytest.fixture(scope="module")
def trained(tiny_bert, data, tmp_path_factory):
    """The flags of a finished run by an old command line: training and prediction, nothing else."""
    flags = flags_for(tiny_bert, data, str(tmp_path_factory.mktemp("runs") / "squad"))
    process = run_command(dict(flags, do_train=True, do_predict=True), SCRIPT)
    assert process.returncode == 0, process.stdout
    return flags


def test_an_old_command_line_trains_answers_and_is_scored(trained):
    folder = trained["output_dir"]
    predictions = read_json(folder, "predictions.json")
    assert list(predictions) == [paragraph["qas"][0]["id"] for paragraph in squad_paragraphs(30, 200)]
    scores = read_results(folder)
    assert scores["eval_exact_match"] > 95 and scores["eval_f1"] >= scores["eval_exact_match"]
    assert {"Big", "small"} <= set(predictions.values()), "as written, not lower-cased"
    assert scores["global_step"] == 96 * 12 // 8, "steps count questions, as in the original, not windows"
    assert not os.path.exists(os.path.join(folder, "null_odds.json"))
    results = read_json(folder, "results.json")
    assert results["task"] == "SQuAD-v1.1" and results["primary_metric"] == "f1"
    assert results["data"]["dev"]["questions"] == 30
    assert results["fingerprints"]["base"] and results["fingerprints"]["pack"]
    n_best = read_json(folder, "nbest_predictions.json")
    assert list(n_best) == list(predictions)
    for name, entries in n_best.items():
        assert {tuple(sorted(entry)) for entry in entries} == {("end_logit", "probability", "start_logit", "text")}
        assert 1 <= len(entries) <= 20 and entries[0]["text"] == predictions[name]
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1.0)


def test_the_scorer_in_scripts_gives_the_same_scores(trained):
    command = [sys.executable, os.path.join(ROOT, "scripts", "score_squad.py"), trained["predict_file"]]
    command.append(os.path.join(trained["output_dir"], "predictions.json"))
    scores = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode())
    results = read_results(trained["output_dir"])
    assert scores == {"exact_match": results["eval_exact_match"], "f1": results["eval_f1"]}


def test_a_run_keeps_a_pack_with_the_names_of_googles_checkpoints(trained):
    pack = packs.read(pack_of(trained))
    assert set(pack.tensors) >= HEAD
    assert not any(name.startswith("bert/pooler") or name == "output_weights" for name in pack.tensors)
    assert (pack.config.head, pack.config.labels, pack.config.task) == ("span", [], "SQuAD-v1.1")
    assert pack.config.training["doc_stride"] == 9 and pack.config.metrics["f1"] > 95


def test_the_pack_on_its_base_gives_the_same_answers_elsewhere(trained, tmp_path):
    flags = elsewhere(trained, tmp_path)
    run(flags, do_predict=True)
    for name in OUTPUTS:
        assert read_json(flags["output_dir"], name) == read_json(trained["output_dir"], name)
    assert read_results(flags["output_dir"]) == read_results(trained["output_dir"])


def test_the_output_folder_is_enough_to_answer_again(trained):
    """Without --init_checkpoint, the base comes from the run's settings."""
    before = read_json(trained["output_dir"], "predictions.json")
    run(trained, init_checkpoint=None, train_file=None, do_eval=True)
    assert read_json(trained["output_dir"], "predictions.json") == before


@pytest.mark.long
def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(trained, tmp_path):
    killed = dict(trained, output_dir=str(tmp_path / "killed"), save_checkpoints_steps=10)
    program = Program(command_line(dict(killed, do_train=True), SCRIPT))
    program.wait_until(lambda: tf.train.latest_checkpoint(killed["output_dir"]) is not None).kill()
    run(killed, do_train=True, do_predict=True)
    assert packs.read(pack_of(killed)).fingerprint == packs.read(pack_of(trained)).fingerprint


@pytest.fixture(scope="module")
def trained_2(tiny_bert, data, tmp_path_factory):
    """The flags of a run on SQuAD 2.0 that is scored during training."""
    output_dir = str(tmp_path_factory.mktemp("runs") / "squad2")
    flags = flags_for(tiny_bert, data, output_dir, "v2.0", eval_every_steps=48)
    run(flags, do_train=True, do_eval=True)
    return flags


def test_unanswerable_questions_are_learned(trained_2):
    folder = trained_2["output_dir"]
    predictions, odds = read_json(folder, "predictions.json"), read_json(folder, "null_odds.json")
    assert odds and list(odds) == list(predictions)
    assert all((text == "") == (odds[name] > 0.0) for name, text in predictions.items())
    scores = read_results(folder)
    assert scores["eval_best_f1"] > 90 and scores["eval_HasAns_total"] == 20
    assert scores["majority_f1"] == pytest.approx(100 / 3)
    results = read_json(folder, "results.json")
    assert results["task"] == "SQuAD-v2.0" and results["primary_metric"] == "best_f1"
    assert [entry["step"] for entry in results["training"]["evaluations"]] == [48, 96, 144]
    metrics = packs.read_config(pack_of(trained_2)).metrics
    assert (metrics["best_f1"], metrics["best_f1_thresh"]) == (scores["eval_best_f1"], scores["eval_best_f1_thresh"])


def test_predicting_with_the_fitted_threshold_gives_the_reported_score(trained_2, tmp_path):
    flags = elsewhere(trained_2, tmp_path)
    promised = run(flags, do_eval=True).metrics
    scores = run(flags, do_eval=True, null_score_diff_threshold=promised["best_f1_thresh"]).metrics
    assert scores["f1"] == pytest.approx(promised["best_f1"], rel=1e-12), "summed in another order"
    predictions, odds = (read_json(flags["output_dir"], name) for name in ("predictions.json", "null_odds.json"))
    assert odds and all((predictions[name] == "") == (odds[name] > promised["best_f1_thresh"]) for name in odds)


def test_a_file_without_answers_is_answered_and_not_scored(trained, tmp_path):
    flags = elsewhere(trained, tmp_path, lambda paragraph: paragraph["qas"][0].pop("answers"))
    assert_mentions(error_of(flags, do_eval=True), flags["predict_file"], "answers")
    run(flags, do_predict=True)
    folder = flags["output_dir"]
    assert read_json(folder, "predictions.json") == read_json(trained["output_dir"], "predictions.json")
    assert sorted(os.listdir(folder)) == sorted(OUTPUTS)


def test_a_warning_names_scores_of_earlier_answers(trained, tmp_path, log):
    flags = elsewhere(trained, tmp_path, lambda paragraph: paragraph["qas"][0].update(answers=[]))
    run(flags, predict_file=trained["predict_file"], do_predict=True)
    odds = tmp_path / "out" / "null_odds.json"
    odds.write_text("{}")
    run(flags, do_predict=True)
    assert any("eval_results.txt" in line and "results.json" in line and flags["output_dir"] in line for line in log)
    assert not odds.exists()


@pytest.mark.long
def test_a_run_keeps_its_task_name(tiny_bert, data, tmp_path):
    flags = flags_for(tiny_bert, data, str(tmp_path / "named"), num_train_epochs=0.1)
    run(flags, do_train=True, task_name="handbook")
    assert run(flags, do_eval=True).task == "handbook"
    assert run(elsewhere(flags, tmp_path), do_eval=True).task == "handbook"


def test_the_log_names_the_version_and_threshold_used_in_training(trained_2, tmp_path, log):
    """Where the file has no answers, nothing else could tell."""

    def remove_answers(paragraph):
        del paragraph["qas"][0]["answers"], paragraph["qas"][0]["is_impossible"]

    flags = elsewhere(trained_2, tmp_path, remove_answers)
    run(flags, do_predict=True)
    fitted = read_results(trained_2["output_dir"])["eval_best_f1_thresh"]
    assert any("--null_score_diff_threshold=0.0;" in line and str(fitted) in line for line in log)
    assert not any("--version_2_with_negative" in line for line in log)
    run(flags, version_2_with_negative=False, do_predict=True)
    assert any("--version_2_with_negative=True" in line and "False now" in line for line in log)


def test_answers_below_the_threshold_are_not_a_collapse(trained_2, tmp_path, log):
    flags = elsewhere(trained_2, tmp_path)
    results = run(flags, do_eval=True, null_score_diff_threshold=-1e6)
    assert any("No question was answered" in line for line in log)
    assert set(read_json(flags["output_dir"], "predictions.json").values()) == {""}
    assert not results.collapsed and results.metrics["best_f1"] > 90


def test_a_question_on_an_empty_paragraph_gets_no_answer_and_no_crash(trained, tmp_path):
    def empty_one(paragraph):
        if paragraph["qas"][0]["id"] == "q201":
            paragraph["context"] = " \u200b "

    flags = elsewhere(trained, tmp_path, empty_one)
    results = run(flags, do_predict=True)
    answers, before = (read_json(each["output_dir"], "predictions.json") for each in (flags, trained))
    assert answers == dict(before, q201="")
    scores = read_results(trained["output_dir"])
    assert results.metrics["exact_match"] == pytest.approx(scores["eval_exact_match"] - 100 / 30), "kept in scoring"


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains_the_head(mode):
    adapter, top_layers = AdapterConfig(size=4) if mode == "adapter" else None, 1 if mode == "top_layers" else None
    names = set(ModelSpec(tiny_config(), SpanHead(), adapter, mode, top_layers).trained_names)
    assert names >= HEAD
    assert ("bert/encoder/layer_0/output/dense/kernel" in names) == (mode == "full")


def test_a_whole_checkpoint_with_googles_head_is_evaluated_as_it_is(tiny_bert, data, tmp_path):
    """Compute the logits from BERT's output: the head has the names of Google's checkpoints."""
    weights = np.random.RandomState(3).normal(size=[2, 16]).astype(np.float32)
    bias = np.array([0.5, -0.25], np.float32)

    def add_head():
        tf.get_variable("cls/squad/output_weights", initializer=tf.constant(weights))
        tf.get_variable("cls/squad/output_bias", initializer=tf.constant(bias))

    prefix = write_bert(str(tmp_path / "squad_bert"), tiny_config(), extra=add_head)
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.constant([[2, 7, 3, 8, 9, 3]])
        model = run_squad.modeling.BertModel(tiny_config(), False, ids, scope="bert", adapter_fn=None)
        positions = {name: tf.constant([1]) for name in SpanHead().label_types}
        output = SpanHead().build(model, positions, is_training=False)
        tf.train.Saver().restore(session, prefix)
        states, logits, loss = session.run([model.get_sequence_output(), output.logits, output.loss])
    expected = np.einsum("bsh,uh->bus", states, weights) + bias[None, :, None]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    log_share = expected[0] - np.log(np.exp(expected[0]).sum(axis=1, keepdims=True))
    assert loss == pytest.approx(-log_share[:, 1].mean(), rel=1e-4), "the mean of the losses of start and end"
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), init_checkpoint=prefix, tuning_mode="full")
    run(flags, do_eval=True)
    assert len(read_json(str(tmp_path / "out"), "predictions.json")) == 30


@pytest.mark.long
def test_classification_adapters_can_start_training_but_cannot_answer(tiny_bert, cola_dir, data, tmp_path):
    run(base_flags(tiny_bert, cola_dir, str(tmp_path / "cola")), num_train_epochs=0.2, do_train=True)
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), adapter_pack=str(tmp_path / "cola"))
    assert_mentions(error_of(flags, do_predict=True), "classification", "span")
    run(flags, num_train_epochs=0.2, do_train=True)
    assert set(packs.read(pack_of(flags)).tensors) >= HEAD


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"doc_stride": 21}, ["--doc_stride=21"]),
        ({"max_seq_length": 64}, [64, 32]),
        ({"train_file": "train-v2.0.json"}, ["32 of 96", "--version_2_with_negative"]),
        ({"predict_file": "dev-v2.0.json"}, ["10 of 30", "--version_2_with_negative"]),
        ({"version_2_with_negative": True}, ["SQuAD 1.1", "--version_2_with_negative"]),
        ({"train_file": "nothing.json"}, ["nothing.json"]),
    ],
)
def test_errors_come_before_anything_is_written(tiny_bert, data, tmp_path, monkeypatch, changes, facts):
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"))
    monkeypatch.chdir(data)
    assert_mentions(error_of(flags, do_train=True, do_eval=True, **changes), *facts)
    assert os.listdir(str(tmp_path)) == []


def test_answers_never_overwrite_the_questions(tiny_bert, data, tmp_path):
    path = write_squad(str(tmp_path / "predictions.json"), 3)
    flags = flags_for(tiny_bert, data, str(tmp_path), predict_file=path)
    assert_mentions(error_of(flags, do_predict=True), "overwrite", path)


def test_a_run_does_not_continue_with_other_data(trained, tmp_path):
    other = write_squad(str(tmp_path / "train.json"), 95)
    message = error_of(trained, train_file=other, doc_stride=8, do_train=True)
    assert_mentions(message, "train_data was", "--train_file was", "--doc_stride was 9, is 8")


def test_verbose_logging_names_questions_not_used_for_training(tiny_bert, tmp_path, log):
    content = {"data": [{"paragraphs": squad_paragraphs(12)}]}
    content["data"][0]["paragraphs"][5]["qas"][0]["answers"][0]["text"] = "purple"
    path = tmp_path / "train.json"
    path.write_text(json.dumps(content))
    flags = flags_for(tiny_bert, "", str(tmp_path / "out"), train_file=str(path), num_train_epochs=1)
    run(flags, do_train=True, verbose_logging=True)
    assert any("answers do not occur in the context: 1 (" in line for line in log)
    assert "Not used for training: q5" in "\n".join(log)


def test_the_log_summarizes_files_and_warns_of_overlap(tiny_bert, data, tmp_path, log):
    path = write_squad(str(tmp_path / "dev.json"), 12, 90)
    flags = flags_for(tiny_bert, data, "out", predict_file=path)
    span_extraction.load_data(run_squad.SquadSettings(**flags, do_train=True, do_eval=True))
    assert any(path in line and "12 paragraphs, 12 questions, 12 answers" in line for line in log)
    assert any("of 12 dev paragraphs" in line and "training set" in line for line in log)


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 4), (7,)])
def test_the_hash_of_rows_is_that_of_the_tensor_they_would_be(shape):
    tensor = np.random.RandomState(1).normal(size=shape).astype(np.float32)
    assert fingerprints.of_rows(list(tensor)) == fingerprints.of_tensor(tensor)
    assert fingerprints.of_rows(list(tensor[::-1])) != fingerprints.of_tensor(tensor) or len(tensor) == 1
    assert fingerprints.of_rows([]) == fingerprints.of_tensor(np.array([]))
