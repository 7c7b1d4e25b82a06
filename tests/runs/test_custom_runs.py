"""Regression and custom data from files to results, with a tiny BERT."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import shlex
import shutil

import numpy as np
import pytest
import scipy.stats
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.training import classification
from adapter_bert.weights import packs
from adapter_layers import AdapterConfig
from run_classifier import ClassifierSettings
from tests.helpers import (
    ROOT,
    SHARED,
    TINY,
    assert_mentions,
    base_flags,
    read_results,
    tiny_config,
    write_bert,
    write_file,
)
from tests.runs.helpers import error_of, pack_of, read_json, read_text, run
from tests.settings.test_flags import parse

STSB_HEADER = [
    "index",
    "genre",
    "filename",
    "year",
    "old_index",
    "source1",
    "source2",
    "sentence1",
    "sentence2",
    "score",
]


def stsb_rows(count, start=0):
    """Pairs with a score that a tiny frozen network can learn: 2.5 for a cat in the first, for `big` in the second."""
    rows = []
    for index in range(start, start + count):
        nouns = ["cat", "dog"][index % 2], ["cat", "dog"][index // 2 % 2]
        adjectives = ["big", "small"][index // 4 % 2], ["big", "small"][index // 8 % 2]
        score = 2.5 * (nouns[0] == "cat") + 2.5 * (adjectives[1] == "big")
        texts = [f"the {noun} is {adjective} ." for noun, adjective in zip(nouns, adjectives)]
        rows.append([str(index), "g", "f", "2012", "1", "n", "n"] + texts + [f"{score:.3f}"])
    return rows


@pytest.fixture
def stsb(tiny_bert, tmp_path):
    """STS-B in its layout; the test split is the dev split without its scores, so that predictions can be scored."""
    folder = tmp_path / "STS-B"
    folder.mkdir()
    for name, rows in (("train", stsb_rows(64)), ("dev", stsb_rows(30, 3)), ("test", stsb_rows(30, 3))):
        columns = len(STSB_HEADER) - (name == "test")
        lines = ["\t".join(row[:columns]) for row in [STSB_HEADER] + rows]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    flags = base_flags(tiny_bert, str(folder), str(tmp_path / "out"))
    return dict(flags, task_name="sts-b", learning_rate=1e-2, num_train_epochs=8.0)


class TestRegression:
    @pytest.mark.long
    def test_sts_b_is_trained_scored_and_predicted(self, stsb):
        run(stsb, do_train=True, do_eval=True, do_predict=True)
        truth = np.array([float(row[-1]) for row in stsb_rows(30, 3)])
        values = np.loadtxt(os.path.join(stsb["output_dir"], "test_results.tsv"))
        assert values.shape == truth.shape
        results = read_results(stsb["output_dir"])
        # The dev scores are those of the training graph, which rounds differently. Equal texts then have other ranks.
        assert results["eval_pearson"] == pytest.approx(scipy.stats.pearsonr(truth, values)[0], abs=1e-4)
        assert results["eval_spearman"] == pytest.approx(scipy.stats.spearmanr(truth, values)[0], abs=0.02)
        assert results["eval_loss"] == pytest.approx(np.mean((truth - values) ** 2), rel=1e-5)
        assert results["eval_spearman"] > 0.5, "it learns"
        assert "eval_accuracy" not in results
        assert read_json(stsb["output_dir"], "results.json")["primary_metric"] == "spearman"

    def test_its_submission_is_clipped_to_the_scale(self, stsb, tmp_path):
        def add_wide_head():
            shape = [1, TINY["hidden_size"]]
            tf.get_variable("output_weights", initializer=np.random.RandomState(1).normal(0, 10, shape).astype("f"))
            tf.get_variable("output_bias", initializer=np.array([2.5], np.float32))

        prefix = write_bert(str(tmp_path / "wide"), tiny_config(), AdapterConfig(size=4), extra=add_wide_head)
        run(stsb, do_predict=True, init_checkpoint=prefix)
        rows = [line.split("\t") for line in read_text(stsb["output_dir"], "STS-B.tsv").splitlines()]
        values = np.loadtxt(os.path.join(stsb["output_dir"], "test_results.tsv"))
        assert values.min() < 0 or values.max() > 5
        assert rows[0] == ["index", "prediction"]
        assert [row[0] for row in rows[1:]] == [str(index) for index in range(30)]
        np.testing.assert_allclose([float(row[1]) for row in rows[1:]], np.clip(values, 0, 5), atol=5e-4)

    def test_a_score_out_of_range_is_an_error_with_its_line(self, stsb):
        path = os.path.join(stsb["data_dir"], "train.tsv")
        lines = read_text(path).splitlines()
        lines[2] = lines[2].rpartition("\t")[0] + "\t7.500"
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        assert_mentions(error_of(stsb, do_train=True), "train.tsv, line 3", "0 to 5", "'7.500'")

    def test_a_regression_has_no_class_weights(self, stsb):
        assert_mentions(error_of(stsb, do_train=True, class_weights="balanced"), "--class_weights=balanced")


def write_reviews(path, count=48, delimiter=","):
    """Reviews with quoted newlines; `is` is good, `are` bad; a third class is rare."""
    with open(str(path), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "review", "verdict"])
        for index in range(count):
            word, verdict = [("is", "good"), ("are", "bad"), ("was", "so-so")][2 if index % 12 == 0 else index % 2]
            writer.writerow([index, f"the cat {word}\nbig, not small {index}", verdict])
    return str(path)


def reviews_flags(tiny_bert: str, folder) -> dict:
    flags = dict(base_flags(tiny_bert, None, str(folder / "out")), learning_rate=1e-2, num_train_epochs=6.0)
    path = write_reviews(folder / "reviews.csv")
    return dict(flags, task_name="Reviews", train_file=path, text_column="review", label_column="verdict")


@pytest.fixture
def reviews(tiny_bert, tmp_path):
    return reviews_flags(tiny_bert, tmp_path)


@pytest.fixture(scope="module")
def trained_reviews(tiny_bert, tmp_path_factory):
    """The flags of a run on a CSV file that is trained, evaluated and predicted. Read only."""
    folder = tmp_path_factory.mktemp("reviews")
    flags = reviews_flags(tiny_bert, folder)
    (folder / "new.csv").write_text("review\nthe cat is big\nthe cat are big\n")
    phases = {"do_train": True, "do_eval": True, "do_predict": True, "worst_mistakes": 2}
    run(flags, **phases, test_file=str(folder / "new.csv"))
    return flags


def read_csv(*parts):
    with open(os.path.join(*parts), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class TestCustomData:
    def test_a_csv_file_is_trained_evaluated_and_predicted(self, trained_reviews):
        folder = trained_reviews["output_dir"]
        results = read_json(folder, "results.json")
        assert results["metrics"]["accuracy"] >= results["majority"]["accuracy"]
        assert set(results["metrics"]) == {"accuracy", "macro_f1", "matthews"}
        assert results["data"]["train"]["examples"] + results["data"]["dev"]["examples"] == 48
        labels = ["bad", "good", "so-so"]
        assert read_json(folder, "settings.json")["facts"]["labels"] == labels
        header, *lines = read_text(folder, "test_results.tsv").splitlines()
        probabilities = np.loadtxt(lines)
        assert header == "bad\tgood\tso-so" and probabilities.shape == (2, 3)
        words = [labels[index] for index in probabilities.argmax(axis=1)]
        assert read_text(folder, "Reviews.tsv") == "index\tprediction\n0\t{}\n1\t{}\n".format(*words)

    def test_predictions_are_written_next_to_the_texts(self, trained_reviews):
        folder = trained_reviews["output_dir"]
        rows = read_csv(folder, "test_predictions.csv")
        assert [row["text"] for row in rows] == ["the cat is big", "the cat are big"] and "text_pair" not in rows[0]
        for row, line in zip(rows, read_text(folder, "test_results.tsv").splitlines()[1:]):
            values = [row[f"probability_{label}"] for label in ("bad", "good", "so-so")]
            assert list(map(float, values)) == list(map(float, line.split("\t")))
            assert row["probability"] == row[f"probability_{row['predicted_label']}"] == max(values, key=float)
        found = [line.split("\t")[1] for line in read_text(folder, "Reviews.tsv").splitlines()[1:]]
        assert [row["predicted_label"] for row in rows] == found

    def test_each_class_is_scored(self, trained_reviews):
        folder = trained_reviews["output_dir"]
        results = read_json(folder, "results.json")
        matrix = np.array(results["confusion_matrix"])
        assert list(results["per_class"]) == ["bad", "good", "so-so"] and matrix.shape == (3, 3)
        assert matrix.sum() == results["data"]["dev"]["examples"]
        assert matrix.trace() / matrix.sum() == pytest.approx(results["metrics"]["accuracy"])
        assert [scores["support"] for scores in results["per_class"].values()] == matrix.sum(axis=1).tolist()
        assert read_text(folder, "class_report.txt").count("so-so") == 3

    def test_the_worst_mistakes_are_written_with_their_texts(self, trained_reviews):
        folder, lines = trained_reviews["output_dir"], read_text(trained_reviews["train_file"])
        matrix = read_json(folder, "results.json")["confusion_matrix"]
        rows = read_csv(folder, "worst_mistakes.csv")
        assert 0 < len(rows) == min(2, np.sum(matrix) - np.trace(matrix))
        for row in rows:
            assert row["predicted_label"] != row["label"] and f'"{row["text"]}",{row["label"]}' in lines
            assert float(row["loss"]) == pytest.approx(-np.log(float(row[f"probability_{row['label']}"])), rel=1e-4)

    @pytest.mark.parametrize("is_elsewhere", [False, True])
    def test_labels_are_recorded(self, trained_reviews, tmp_path, is_elsewhere):
        test_file = write_file(tmp_path, "new.jsonl", '{"review": "the cat is big"}\n{"review": ""}\n')
        later = dict(trained_reviews, train_file=None, test_file=test_file, output_dir=str(tmp_path / "out"))
        if is_elsewhere:
            later["init_checkpoint"] = trained_reviews["output_dir"]
        else:
            shutil.copytree(trained_reviews["output_dir"], later["output_dir"])
        run(later, do_predict=True)
        header, first, second = read_text(later["output_dir"], "Reviews.tsv").splitlines()
        assert first == read_text(trained_reviews["output_dir"], "Reviews.tsv").splitlines()[1]
        assert second.split("\t")[1] in ("bad", "good", "so-so")

    def test_a_later_evaluation_scores_the_same_rows(self, trained_reviews, tmp_path):
        later = {"do_eval": True, "init_checkpoint": trained_reviews["output_dir"], "output_dir": str(tmp_path / "new")}
        run(trained_reviews, **later)
        assert read_results(later["output_dir"]) == read_results(trained_reviews["output_dir"])

    @pytest.mark.parametrize(
        "changes, fact",
        [
            ({"split_seed": 2}, "train_data was sha256"),
            ({"train_file": "CHANGED"}, "train_data was sha256"),
            ({"adapter_activation": "relu"}, "--adapter_activation was gelu, is relu"),
            ({"labels": "so-so,good,bad"}, "bad, good, so-so"),
        ],
    )
    @pytest.mark.parametrize("is_elsewhere", [False, True])
    def test_a_later_evaluation_needs_the_same_split_labels_and_model(
        self, trained_reviews, tmp_path, changes, fact, is_elsewhere
    ):
        if "train_file" in changes:
            content = read_text(trained_reviews["train_file"]) + "99,the dog is big,good\n"
            changes = {"train_file": write_file(tmp_path, "changed.csv", content)}
        if is_elsewhere:
            folders = {"init_checkpoint": trained_reviews["output_dir"], "output_dir": str(tmp_path / "new")}
            changes = dict(changes, **folders)
        assert_mentions(error_of(trained_reviews, do_eval=True, **changes), fact)

    def test_predictions_never_overwrite_the_data(self, reviews, tmp_path):
        path = write_reviews(tmp_path / "mine.tsv", delimiter="\t")
        changes = {"task_name": "mine", "test_file": path, "output_dir": str(tmp_path), "quoting": True}
        assert_mentions(error_of(reviews, do_train=True, do_predict=True, **changes), "overwrite", path)

    def test_a_test_file_without_header_keeps_its_first_row(self, reviews, tmp_path):
        rows = "".join(f"{'good' if i % 2 else 'bad'}\tthe cat {i}\n" for i in range(20))
        columns = {"text_column": "2", "label_column": "1", "num_train_epochs": 0.5}
        run(reviews, do_train=True, train_file=write_file(tmp_path, "train.tsv", rows), **columns)
        test = write_file(tmp_path, "test.tsv", "?\tthe cat is\n?\tthe dog is\n?\tit is\n")
        later = {"train_file": None, "test_file": test, "text_column": "2", "label_column": "label"}
        run(reviews, do_predict=True, **later)
        assert len(read_text(reviews["output_dir"], "Reviews.tsv").splitlines()) == 1 + 3

    def test_the_split_does_not_depend_on_the_run(self, reviews):
        settings = [ClassifierSettings(**dict(reviews, do_train=True, do_eval=True, seed=seed)) for seed in (1, 2)]
        facts = [classification.load_data(each).fingerprints() for each in settings]
        assert facts[0] == facts[1]
        other = dataclasses.replace(settings[0], split_seed=2)
        assert classification.load_data(other).fingerprints()["dev_data"] != facts[0]["dev_data"]

    @pytest.mark.long
    def test_balanced_weights_reach_the_loss(self, reviews, tmp_path):
        losses = []
        for weights in ("none", "balanced"):
            folder = str(tmp_path / weights)
            training = {"do_train": True, "do_eval": True, "num_train_epochs": 1.0}
            losses.append(run(reviews, class_weights=weights, output_dir=folder, **training).loss)
        assert losses[0] != losses[1]

    def test_a_warning_names_overlapping_texts_and_labels_that_differ_in_case(self, reviews, tmp_path, log):
        rows = [f"the cat {index},{'Good' if index % 3 else 'good'}\n" for index in range(30)]
        path = write_file(tmp_path, "case.csv", "review,verdict\n" + "".join(rows))
        flags = dict(reviews, train_file=path, dev_file=path, do_train=True, do_eval=True)
        classification.load_data(ClassifierSettings(**flags))
        assert any("Good" in line and "differ only in case" in line and "--label_map" in line for line in log)
        assert any("30 of 30 dev texts" in line for line in log)

    @pytest.mark.long
    def test_a_regression_on_custom_data(self, reviews, tmp_path):
        rows = [f"the cat {'is' if index % 2 else 'are'} big {index}\t{index % 2 * 3 - 1}.5" for index in range(40)]
        path = write_file(tmp_path, "stars.tsv", "review\tstars\n" + "\n".join(rows) + "\n")
        changes = {"train_file": path, "label_column": "stars", "task_type": "regression"}
        assert run(reviews, do_train=True, do_eval=True, **changes).metrics["pearson"] > 0.5
        config = packs.read_config(pack_of(reviews))
        assert (config.head, config.labels, config.task) == ("regression", [], "Reviews")

    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"text_column": "revue"}, ["--text_column", "Did you mean 'review'?"]),
            ({"primary_metric": "f1"}, ["f1", "macro_f1"]),
            ({"class_weights": "excellent=2"}, ["--class_weights", "excellent"]),
            ({"task_name": "test_results"}, ["overwrite", "test_results"]),
            ({"data_dir": "glue"}, ["--data_dir=glue", "known task"]),
            ({"init_checkpoint": None}, ["--tuning_mode=adapter", "--init_checkpoint"]),
            ({"train_file": None, "test_file": "x.csv", "do_train": False}, ["--dev_file"]),
            ({"test_file": "reviews.csv", "do_predict": True, "do_train": False, "do_eval": False}, ["trained head"]),
            ({"dev_file": "dev.csv"}, ["dev.csv, line 3", "splendid"]),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
    )
    def test_errors_come_before_anything_is_written(self, reviews, tmp_path, monkeypatch, changes, facts):
        monkeypatch.chdir(tmp_path)
        write_file(tmp_path, "dev.csv", "review,verdict\nthe cat is big,good\nthe dog is big,splendid\n")
        assert_mentions(error_of(dict(reviews, do_train=True, do_eval=True), **changes), *facts)


def documented_commands():
    blocks = re.findall(r"```bash\n(.*?)```", read_text(ROOT, "docs", "custom_data.md"), re.DOTALL)
    return [block.replace("\\\n", " ") for block in blocks]


TEXTS = os.path.join(SHARED, "data", "text")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(TEXTS), reason=f"needs {TEXTS}")
@pytest.mark.parametrize("command", documented_commands(), ids=lambda text: text.split("--output_dir=")[1].split()[0])
def test_the_documented_commands_train_on_the_real_files(command, tmp_path):
    """The commands of docs/custom_data.md, with a tiny BERT that has a real vocabulary, for a few steps."""
    real = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
    size = len(read_text(real).split("\n")) - 1
    bert = str(tmp_path / "bert")
    write_bert(bert, modeling.BertConfig(size, 16, 1, 2, 32, max_position_embeddings=512))
    shutil.copy(real, bert)
    words = shlex.split(command.replace("$BERT", bert).replace("$DATA", TEXTS))
    assert words[:2] == ["python", "run_classifier.py"]
    given = dataclasses.asdict(parse(ClassifierSettings, *words[2:]))
    given.update(output_dir=str(tmp_path / "out"), num_train_epochs=0.01, max_seq_length=16, eval_batch_size=64)
    run(given)
    assert tf.train.latest_checkpoint(given["output_dir"])
    assert read_json(given["output_dir"], "results.json")["training"]["steps_computed"] > 0
