"""`run_squad.py`: the flags of the original, checkpoints, packs, scores, files and errors."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from safetensors import safe_open

import run_classifier
import run_squad
from adapter_bert.common import errors
from adapter_bert.devices import estimators
from adapter_bert.evaluation.squad_metrics import normalize
from adapter_bert.model.heads import SpanHead
from adapter_bert.settings import flags as settings
from adapter_bert.training import span_extraction
from adapter_bert.weights import fingerprints
from tests.helpers import (
    ROOT,
    base_flags,
    command_line,
    message_of,
    read_results,
    run_command,
    squad_paragraphs,
    tiny_config,
    write_bert,
    write_squad,
)
from tests.kill import Program
from tests.runs.helpers import read_json

pytestmark = pytest.mark.smoke

SCRIPT = "run_squad.py"
JSON_FILE = "results.json"
HEAD = ("cls/squad/output_bias", "cls/squad/output_weights")
OUTPUTS = ("predictions.json", "nbest_predictions.json")

# Names and defaults of the original script.
ORIGINAL_FLAGS = {
    "bert_config_file": None,
    "vocab_file": None,
    "output_dir": None,
    "train_file": None,
    "predict_file": None,
    "init_checkpoint": None,
    "do_lower_case": True,
    "max_seq_length": 384,
    "doc_stride": 128,
    "max_query_length": 64,
    "do_train": False,
    "do_predict": False,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "iterations_per_loop": 1000,
    "n_best_size": 20,
    "max_answer_length": 30,
    "use_tpu": False,
    "tpu_name": None,
    "tpu_zone": None,
    "gcp_project": None,
    "master": None,
    "num_tpu_cores": 8,
    "verbose_logging": False,
    "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
}


def test_every_flag_of_the_original_is_there_with_its_default():
    defaults = {field.name: field.default for field in dataclasses.fields(run_squad.SquadSettings)}
    assert {name: defaults.get(name, "missing") for name in ORIGINAL_FLAGS} == ORIGINAL_FLAGS
    assert "data_dir" not in defaults, "a flag of the other entry point"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with small files in SQuAD's form. Read only."""
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


def run_task(**flags) -> None:
    run_squad.run_task(run_squad.SquadSettings(**flags))


@pytest.fixture(scope="module")
def trained(tiny_bert, data, tmp_path_factory):
    """A finished run by an old command line: training and prediction, nothing else."""
    output_dir = str(tmp_path_factory.mktemp("runs") / "squad")
    flags = flags_for(tiny_bert, data, output_dir)
    return flags, run_command(dict(flags, do_train=True, do_predict=True), SCRIPT)


def test_an_old_command_line_trains_answers_and_is_scored(trained, data):
    flags, process = trained
    assert process.returncode == 0, process.stdout
    folder = flags["output_dir"]
    predictions = read_json(folder, "predictions.json")
    assert list(predictions) == [paragraph["qas"][0]["id"] for paragraph in squad_paragraphs(30, 200)]
    scores = read_results(folder)
    assert scores["eval_exact_match"] > 95 and scores["eval_f1"] >= scores["eval_exact_match"]
    assert {"Big", "small"} <= set(predictions.values()), "as written, not lower-cased"
    assert scores["global_step"] == 96 * 12 // 8, "steps count questions, as in the original, not windows"
    assert not os.path.exists(os.path.join(folder, "null_odds.json"))
    results = read_json(folder, JSON_FILE)
    assert results["task"] == "SQuAD-v1.1" and results["primary_metric"] == "f1"
    assert results["data"]["dev"]["questions"] == 30
    assert results["fingerprints"]["base"] and results["fingerprints"]["pack"]


def test_the_n_best_list_has_the_form_of_the_original(trained):
    folder = trained[0]["output_dir"]
    predictions = read_json(folder, "predictions.json")
    n_best = read_json(folder, "nbest_predictions.json")
    assert list(n_best) == list(predictions) and len(n_best) == 30
    for name, entries in n_best.items():
        assert {tuple(sorted(entry)) for entry in entries} == {("end_logit", "probability", "start_logit", "text")}
        assert 1 <= len(entries) <= 20 and entries[0]["text"] == predictions[name]
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1.0)


def test_the_scorer_in_scripts_gives_the_same_scores(trained):
    flags, _ = trained
    command = [sys.executable, os.path.join(ROOT, "scripts", "score_squad.py"), flags["predict_file"]]
    command.append(os.path.join(flags["output_dir"], "predictions.json"))
    scores = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode())
    results = read_results(flags["output_dir"])
    assert scores == {"exact_match": results["eval_exact_match"], "f1": results["eval_f1"]}


def test_a_run_keeps_a_pack_with_the_names_of_googles_checkpoints(trained):
    with safe_open(os.path.join(trained[0]["output_dir"], "adapter_pack.safetensors"), "np") as pack:
        names = set(pack.keys())
        config = json.loads(pack.metadata()["adapter_config.json"])
    assert set(HEAD) <= names
    assert not any(name.startswith("bert/pooler") or name == "output_weights" for name in names)
    assert config["head"] == "span" and config["labels"] == [] and config["task"] == "SQuAD-v1.1"
    assert config["training"]["doc_stride"] == 9 and config["metrics"]["f1"] > 95


def test_the_pack_on_its_base_gives_the_same_answers_elsewhere(trained, tmp_path):
    flags, _ = trained
    elsewhere = dict(flags, output_dir=str(tmp_path / "elsewhere"), adapter_pack=flags["output_dir"])
    del elsewhere["train_file"]
    run_task(**elsewhere, do_predict=True)
    for name in OUTPUTS:
        assert read_json(elsewhere["output_dir"], name) == read_json(flags["output_dir"], name)
    assert read_results(elsewhere["output_dir"]) == read_results(flags["output_dir"])


def test_the_output_folder_alone_answers_again(trained, data, tmp_path):
    """Without --init_checkpoint, the base comes from the run's settings."""
    flags, _ = trained
    before = read_json(flags["output_dir"], "predictions.json")
    again = {name: value for name, value in flags.items() if name not in ("init_checkpoint", "train_file")}
    run_task(**again, do_eval=True)
    assert read_json(flags["output_dir"], "predictions.json") == before


@pytest.mark.long
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(trained, tmp_path):
    flags, _ = trained
    killed = dict(flags, output_dir=str(tmp_path / "killed"), save_checkpoints_steps=10)
    program = Program(command_line(dict(killed, do_train=True), SCRIPT))
    program.wait_until(lambda: tf.train.latest_checkpoint(killed["output_dir"]) is not None).kill()
    run_task(**killed, do_train=True, do_predict=True)
    packs = [os.path.join(folder, "adapter_pack.safetensors") for folder in (killed["output_dir"], flags["output_dir"])]
    with safe_open(packs[0], "np") as one, safe_open(packs[1], "np") as other:
        names = list(one.keys())
        assert names == list(other.keys())
        assert [name for name in names if not np.array_equal(one.get_tensor(name), other.get_tensor(name))] == []


@pytest.fixture(scope="module")
def trained_2(tiny_bert, data, tmp_path_factory):
    """A run on SQuAD 2.0 that is scored along the way."""
    output_dir = str(tmp_path_factory.mktemp("runs") / "squad2")
    flags = flags_for(tiny_bert, data, output_dir, "v2.0", eval_every_steps=48)
    run_task(**flags, do_train=True, do_eval=True)
    return flags


def test_unanswerable_questions_are_learnt(trained_2):
    folder = trained_2["output_dir"]
    predictions, odds = read_json(folder, "predictions.json"), read_json(folder, "null_odds.json")
    assert list(odds) == list(predictions)
    assert all((text == "") == (odds[name] > 0.0) for name, text in predictions.items())
    scores = read_results(folder)
    assert scores["eval_best_f1"] > 90 and scores["eval_HasAns_total"] == 20
    assert scores["majority_f1"] == pytest.approx(100 / 3)
    results = read_json(folder, JSON_FILE)
    assert results["task"] == "SQuAD-v2.0" and results["primary_metric"] == "best_f1"
    assert [entry["step"] for entry in results["training"]["evaluations"]] == [48, 96, 144]
    config = read_json_of_pack(folder)
    assert config["metrics"]["best_f1"] == scores["eval_best_f1"]
    assert config["metrics"]["best_f1_thresh"] == scores["eval_best_f1_thresh"]


def read_json_of_pack(folder: str) -> dict:
    with safe_open(os.path.join(folder, "adapter_pack.safetensors"), "np") as pack:
        return json.loads(pack.metadata()["adapter_config.json"])


@pytest.mark.parametrize("step", [48, 144])
def test_predicting_with_the_fitted_threshold_gives_the_score_that_was_promised(trained_2, tmp_path, step):
    """Of a good model and of one that is not."""
    checkpoint = os.path.join(trained_2["output_dir"], f"model.ckpt-{step}")
    flags = dict(trained_2, init_checkpoint=checkpoint, output_dir=str(tmp_path / "fitted"))
    run_task(**flags, do_eval=True)
    promised = read_results(flags["output_dir"])
    run_task(**flags, do_eval=True, null_score_diff_threshold=promised["eval_best_f1_thresh"])
    scores = read_results(flags["output_dir"])
    predictions, odds = (read_json(flags["output_dir"], name) for name in ("predictions.json", "null_odds.json"))
    assert odds and list(odds) == list(predictions)
    # A comma as the answer to a question that has none: the official score takes it for none, what is promised for a
    # threshold does not count on that.
    paragraphs = [p for article in read_json(flags["predict_file"])["data"] for p in article["paragraphs"]]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    unanswerable = [predictions[question["id"]] for question in questions if not question["answers"]]
    extra = [text for text in unanswerable if text and not normalize(text)]
    expected = promised["eval_best_f1"] + 100.0 * len(extra) / len(questions)
    assert scores["eval_f1"] == pytest.approx(expected, rel=1e-12), "summed in another order"
    assert all((predictions[name] == "") == (odds[name] > promised["eval_best_f1_thresh"]) for name in odds)


def test_a_file_without_answers_is_answered_and_not_scored(trained, tmp_path):
    flags, _ = trained
    content = read_json(flags["predict_file"])
    for paragraph in content["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            del question["answers"]
    path = tmp_path / "test.json"
    path.write_text(json.dumps(content))
    elsewhere = dict(flags, output_dir=str(tmp_path / "out"), adapter_pack=flags["output_dir"], predict_file=str(path))
    assert "has no answers to compare with" in message_of(run_task, **elsewhere, do_eval=True)
    run_task(**elsewhere, do_predict=True)
    assert read_json(str(tmp_path / "out"), "predictions.json") == read_json(flags["output_dir"], "predictions.json")
    assert sorted(os.listdir(str(tmp_path / "out"))) == sorted(OUTPUTS)


def test_a_warning_names_scores_of_earlier_answers(trained, tmp_path, log):
    flags, _ = trained
    content = read_json(flags["predict_file"])
    for paragraph in content["data"][0]["paragraphs"]:
        paragraph["qas"][0]["answers"] = []
    path = tmp_path / "test.json"
    path.write_text(json.dumps(content))
    folder = tmp_path / "out"
    elsewhere = dict(flags, output_dir=str(folder), adapter_pack=flags["output_dir"])
    run_task(**elsewhere, do_predict=True)
    (folder / "null_odds.json").write_text("{}")
    run_task(**dict(elsewhere, predict_file=str(path)), do_predict=True)
    assert "eval_results.txt and results.json in" in "\n".join(log)
    assert not (folder / "null_odds.json").exists()


@pytest.mark.long
def test_a_run_keeps_its_task_name(tiny_bert, data, tmp_path):
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), num_train_epochs=0.1)
    run_task(**flags, do_train=True, task_name="handbook")
    run_task(**flags, do_eval=True)
    assert read_json(flags["output_dir"], JSON_FILE)["task"] == "handbook"
    elsewhere = dict(flags, output_dir=str(tmp_path / "elsewhere"), adapter_pack=flags["output_dir"])
    run_task(**elsewhere, do_eval=True)
    assert read_json(elsewhere["output_dir"], JSON_FILE)["task"] == "handbook"


def test_the_log_names_the_version_and_threshold_of_the_training(trained_2, data, tmp_path, log):
    """Where the file has no answers, nothing else could tell."""
    content = read_json(trained_2["predict_file"])
    for paragraph in content["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"], paragraph["qas"][0]["is_impossible"]
    path = tmp_path / "test.json"
    path.write_text(json.dumps(content))
    flags = dict(trained_2, output_dir=str(tmp_path / "out"), adapter_pack=trained_2["output_dir"])
    flags.update(predict_file=str(path))
    run_task(**flags, do_predict=True)
    fitted = read_results(trained_2["output_dir"])["eval_best_f1_thresh"]
    assert (
        f"Used --null_score_diff_threshold=0.0; the value fitted on the dev file of the training is {fitted}"
        in "\n".join(log)
    )
    assert "The weights were trained with" not in "\n".join(log)
    run_task(**dict(flags, version_2_with_negative=False), do_predict=True)
    assert "The weights were trained with --version_2_with_negative=True; it is False now." in "\n".join(log)


def test_answers_below_the_threshold_are_not_a_collapse(trained_2, tmp_path, log):
    flags = dict(trained_2, output_dir=str(tmp_path / "out"), adapter_pack=trained_2["output_dir"])
    run_task(**flags, do_eval=True, null_score_diff_threshold=-1e6)
    assert "No question was answered" in "\n".join(log)
    assert set(read_json(flags["output_dir"], "predictions.json").values()) == {""}
    results = read_json(flags["output_dir"], JSON_FILE)
    assert not results["collapsed"] and results["metrics"]["best_f1"] > 90


def test_a_question_on_an_empty_paragraph_gets_no_answer_and_no_crash(trained, tmp_path):
    flags, _ = trained
    content = read_json(flags["predict_file"])
    paragraphs = content["data"][0]["paragraphs"][:3]
    paragraphs[1]["context"] = " \u200b "
    content["data"][0]["paragraphs"] = paragraphs
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(content))
    elsewhere = dict(flags, output_dir=str(tmp_path / "out"), adapter_pack=flags["output_dir"], predict_file=str(path))
    run_task(**elsewhere, do_predict=True)
    answers = read_json(str(tmp_path / "out"), "predictions.json")
    assert answers["q201"] == "" and answers["q200"] and answers["q202"]
    assert read_results(str(tmp_path / "out"))["eval_exact_match"] == pytest.approx(200 / 3), "kept in scoring"


@pytest.mark.parametrize("mode", ["full", "top_layers", "layer_norm", "head"])
def test_every_mode_trains_the_head(tiny_bert, data, tmp_path, mode):
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), num_train_epochs=0.1, tuning_mode=mode)
    flags["tune_top_layers"] = 1 if mode == "top_layers" else None
    run_task(**flags, do_train=True, do_predict=True)
    with safe_open(str(tmp_path / "out" / "adapter_pack.safetensors"), "np") as pack:
        names = set(pack.keys())
    assert set(HEAD) <= names
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
    run_task(**flags, do_eval=True)
    assert len(read_json(str(tmp_path / "out"), "predictions.json")) == 30


@pytest.mark.long
def test_adapters_of_a_classification_are_a_start_but_no_answer(tiny_bert, cola_dir, data, tmp_path):
    classifier = dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "cola")), num_train_epochs=0.2, do_train=True)
    run_classifier.run_task(run_classifier.ClassifierSettings(**classifier))
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), adapter_pack=str(tmp_path / "cola"))
    assert "its type is classification, this task's is span" in message_of(run_task, **flags, do_predict=True)
    run_task(**dict(flags, num_train_epochs=0.2), do_train=True)
    assert set(HEAD) <= set(safe_open(str(tmp_path / "out" / "adapter_pack.safetensors"), "np").keys())


BAD_COMMANDS = {
    "no file to train on": ({"train_file": None}, "--do_train needs --train_file"),
    "no file to answer": ({"predict_file": None}, "needs --predict_file"),
    "windows that do not overlap": ({"doc_stride": 21}, "--doc_stride=21 is too large.*leave 21 tokens.*below 21"),
    "windows far apart": ({"doc_stride": 128}, "--doc_stride=128 is too large"),
    "no room for a paragraph": ({"max_query_length": 29}, "leave no room for the paragraph.*at least 33"),
    "an odd number": ({"n_best_size": 0}, "--n_best_size must be 1 or more, found 0"),
    "an answer of no tokens": ({"max_answer_length": 0}, "--max_answer_length must be 1 or more, found 0"),
    "v2.0 without the flag": ({"train_file": "train-v2.0.json"}, "32 of 96 questions have no answer.*add --version_2"),
    "v2.0 to answer without the flag": ({"predict_file": "dev-v2.0.json"}, "10 of 30 questions have no answer"),
    "v1.1 with the flag": (
        {"version_2_with_negative": True},
        "This is SQuAD 1.1: remove --version_2_with_negative",
    ),
    "no such file": ({"train_file": "nothing.json"}, "nothing.json"),
    "a threshold that is none": ({"null_score_diff_threshold": float("nan")}, "--null_score_diff_threshold must be"),
    "too long for the model": ({"max_seq_length": 64}, "64.*32"),
}


@pytest.mark.parametrize("case", list(BAD_COMMANDS))
def test_errors_come_before_anything_is_written(tiny_bert, data, tmp_path, case):
    changes, expected = BAD_COMMANDS[case]
    changes = {
        name: os.path.join(data, value) if name.endswith("_file") and value else value
        for name, value in changes.items()
    }
    flags = flags_for(tiny_bert, data, str(tmp_path / "out"), **changes)
    with pytest.raises(errors.UserError, match=expected):
        run_task(**flags, do_train=True, do_eval=True)
    assert os.listdir(str(tmp_path)) == []


def test_answers_never_overwrite_the_questions(tiny_bert, data, tmp_path):
    path = write_squad(str(tmp_path / "predictions.json"), 3)
    flags = flags_for(tiny_bert, data, str(tmp_path), predict_file=path)
    assert "would overwrite" in message_of(run_task, **flags, do_predict=True)


def test_a_run_does_not_continue_with_other_data(trained, data, tmp_path):
    flags, _ = trained
    other = write_squad(str(tmp_path / "train.json"), 95)
    message = message_of(run_task, **dict(flags, train_file=other), do_train=True)
    assert "train_data was" in message and "--train_file was" in message
    assert "--doc_stride was 9, is 8" in message_of(run_task, **dict(flags, doc_stride=8), do_train=True)


def test_verbose_logging_names_questions_not_used_for_training(tiny_bert, tmp_path, log):
    content = {"data": [{"paragraphs": squad_paragraphs(12)}]}
    content["data"][0]["paragraphs"][5]["qas"][0]["answers"][0]["text"] = "purple"
    path = tmp_path / "train.json"
    path.write_text(json.dumps(content))
    flags = flags_for(tiny_bert, "", str(tmp_path / "out"), train_file=str(path), num_train_epochs=1)
    run_task(**flags, do_train=True, verbose_logging=True)
    assert "whose answers do not occur in the context: 1 (" in "\n".join(log)
    assert "Not used for training: q5" in "\n".join(log)


def test_the_log_summarizes_files_and_warns_of_overlap(tiny_bert, data, tmp_path, log):
    path = write_squad(str(tmp_path / "dev.json"), 12, 90)
    settings_ = run_squad.SquadSettings(
        **flags_for(tiny_bert, data, "out", predict_file=path), do_train=True, do_eval=True
    )
    span_extraction.load_data(settings_)
    assert f"{path}: 12 paragraphs, 12 questions, 12 answers" in "\n".join(log)
    assert "of 12 dev paragraphs also appear in the training set" in "\n".join(log)


def test_flags_are_those_of_the_settings():
    values = run_squad.flags.FlagValues()
    settings.define_flags(run_squad.SquadSettings, values)
    values(["run_squad.py", "--version_2_with_negative", "--doc_stride=64"])
    parsed = settings.from_flags(run_squad.SquadSettings, values)
    assert parsed.version_2_with_negative and parsed.doc_stride == 64 and parsed.max_seq_length == 384


@pytest.mark.long
def test_notebooks_build_and_train_with_the_arguments_of_the_original(tiny_bert, tmp_path):
    config = tiny_config()
    prefix = os.path.join(tiny_bert, "bert_model.ckpt")
    model_fn = run_squad.model_fn_builder(config, prefix, 1e-3, 4, 1, False, False)
    estimator = estimators.TPUEstimator(
        use_tpu=False,
        model_fn=model_fn,
        config=estimators.RunConfig(model_dir=str(tmp_path / "notebook")),
        train_batch_size=2,
        predict_batch_size=2,
    )

    def input_fn(params):
        features = {name: tf.ones([2, 12], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
        features.update({name: tf.ones([2], tf.int32) for name in SpanHead().label_types})
        return tf.data.Dataset.from_tensors(features).repeat(4)

    def as_the_original(params):
        features = {name: tf.ones([2, 12], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
        return tf.data.Dataset.from_tensors(dict(features, unique_ids=tf.constant([1000000000, 1000000001])))

    estimator.train(input_fn, max_steps=4)
    rows = list(estimator.predict(as_the_original))
    assert [int(row["unique_ids"]) for row in rows] == [1000000000, 1000000001]
    assert rows[0]["start_logits"].shape == rows[0]["end_logits"].shape == (12,)
    names = estimator.get_variable_names()
    assert "bert/encoder/layer_0/output/adapters/weights1" in names and set(HEAD) <= set(names)
    with tf.Graph().as_default():
        ids = tf.ones([2, 12], tf.int32)
        start, end = run_squad.create_model(config, False, ids, ids, ids, False)
        assert start.shape.as_list() == end.shape.as_list() == [2, 12]


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 4), (7,)])
def test_the_hash_of_rows_is_that_of_the_tensor_they_would_be(shape):
    tensor = np.random.RandomState(1).normal(size=shape).astype(np.float32)
    assert fingerprints.of_rows(list(tensor)) == fingerprints.of_tensor(tensor)
    assert fingerprints.of_rows(list(tensor[::-1])) != fingerprints.of_tensor(tensor) or len(tensor) == 1
    assert fingerprints.of_rows([]) == fingerprints.of_tensor(np.array([]))
