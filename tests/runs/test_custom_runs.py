"""Regression and custom data from files to results, with a tiny BERT."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import shlex

import numpy as np
import pytest
import scipy.stats
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

import modeling
from adapter_bert.settings import flags as settings_lib
from adapter_bert.training import classification
from adapter_layers import AdapterConfig
from run_classifier import ClassifierSettings
from tests.helpers import ROOT, SHARED, TINY, base_flags, read_results, tiny_config, write_bert
from tests.runs.helpers import error_of, read_json, run

STSB_HEADER = ["index", "genre", "filename", "year", "old_index", "source1", "source2"] + [
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
        assert results["eval_pearson"] == pytest.approx(scipy.stats.pearsonr(truth, values)[0], abs=1e-6)
        assert results["eval_spearman"] == pytest.approx(scipy.stats.spearmanr(truth, values)[0], abs=1e-6)
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
        with open(os.path.join(stsb["output_dir"], "STS-B.tsv")) as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        values = np.loadtxt(os.path.join(stsb["output_dir"], "test_results.tsv"))
        assert values.min() < 0 or values.max() > 5
        assert rows[0] == ["index", "prediction"]
        assert [row[0] for row in rows[1:]] == [str(index) for index in range(30)]
        np.testing.assert_allclose([float(row[1]) for row in rows[1:]], np.clip(values, 0, 5), atol=5e-4)

    def test_a_score_out_of_range_is_an_error_with_its_line(self, stsb):
        path = os.path.join(stsb["data_dir"], "train.tsv")
        with open(path) as file:
            lines = file.read().replace("2.500\n", "7.500\n", 1)
        with open(path, "w") as file:
            file.write(lines)
        assert re.search(r"train.tsv, line \d+: STS-B expects a finite number from 0 to 5 .*'7.500'",
                         error_of(stsb, do_train=True))  # fmt: skip

    def test_a_regression_has_no_class_weights(self, stsb):
        assert "--class_weights=balanced" in error_of(stsb, do_train=True, class_weights="balanced")


def write_reviews(path, count=48, delimiter=","):
    """Reviews with quoted newlines; `is` is good, `are` bad; a third class is rare."""
    with open(str(path), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "review", "verdict"])
        for index in range(count):
            word, verdict = [("is", "good"), ("are", "bad"), ("was", "so-so")][2 if index % 12 == 0 else index % 2]
            writer.writerow([index, f"the cat {word}\nbig, not small {index}", verdict])
    return str(path)


@pytest.fixture
def reviews(tiny_bert, tmp_path):
    flags = base_flags(tiny_bert, None, str(tmp_path / "out"))
    return dict(
        flags,
        task_name="Reviews",
        train_file=write_reviews(tmp_path / "reviews.csv"),
        text_column="review",
        label_column="verdict",
        learning_rate=1e-2,
        num_train_epochs=6.0,
    )


class TestCustomData:
    def test_a_csv_file_is_trained_evaluated_and_predicted(self, reviews, tmp_path):
        test_file = tmp_path / "new.csv"
        test_file.write_text("review\nthe cat is big\nthe cat are big\n")
        run(reviews, do_train=True, do_eval=True, do_predict=True, test_file=str(test_file))
        results = read_json(reviews["output_dir"], "results.json")
        assert results["metrics"]["accuracy"] >= results["majority"]["accuracy"]
        assert set(results["metrics"]) == {"accuracy", "macro_f1", "matthews"}
        assert results["data"]["train"]["examples"] + results["data"]["dev"]["examples"] == 48
        assert read_json(reviews["output_dir"], "settings.json")["facts"]["labels"] == ["bad", "good", "so-so"]
        with open(os.path.join(reviews["output_dir"], "test_results.tsv")) as file:
            assert file.readline() == "bad\tgood\tso-so\n"
            probabilities = np.loadtxt(file)
        words = [["bad", "good", "so-so"][index] for index in probabilities.argmax(axis=1)]
        assert probabilities.shape == (2, 3)
        with open(os.path.join(reviews["output_dir"], "Reviews.tsv")) as file:
            assert file.read() == "index\tprediction\n0\t{}\n1\t{}\n".format(*words)

    @pytest.mark.long
    def test_labels_are_recorded(self, reviews, tmp_path):
        run(reviews, do_train=True)
        test_file = tmp_path / "new.jsonl"
        test_file.write_text('{"review": "the cat is big"}\n{"review": ""}\n')
        later = dict(reviews, train_file=None, test_file=str(test_file), do_predict=True)
        run(later)
        run(later, output_dir=str(tmp_path / "elsewhere"), init_checkpoint=reviews["output_dir"])
        texts = []
        for folder in (reviews["output_dir"], str(tmp_path / "elsewhere")):
            with open(os.path.join(folder, "Reviews.tsv")) as file:
                texts.append(file.read())
        assert texts[0] == texts[1]
        assert len(texts[0].split("\n")) == 4

    @pytest.mark.long
    def test_a_later_evaluation_scores_the_same_rows_and_rejects_a_changed_file(self, reviews):
        run(reviews, do_train=True, do_eval=True)
        first = read_results(reviews["output_dir"])
        run(reviews, do_eval=True)
        assert read_results(reviews["output_dir"]) == first
        with open(reviews["train_file"], "a") as file:
            file.write("99,the dog is big,good\n")
        assert "train_data was sha256" in error_of(reviews, do_eval=True)

    @pytest.mark.long
    def test_trained_rows_are_not_scored_from_another_folder_either(self, reviews, tmp_path):
        run(reviews, do_train=True, num_train_epochs=0.3)
        later = {"do_eval": True, "init_checkpoint": reviews["output_dir"], "output_dir": str(tmp_path / "new")}
        run(reviews, **later)
        later["output_dir"] = str(tmp_path / "newer")
        assert "train_data was sha256" in error_of(reviews, split_seed=2, **later)
        assert "--adapter_activation was gelu, is relu" in error_of(reviews, adapter_activation="relu", **later)

    def test_predictions_never_overwrite_the_data(self, reviews, tmp_path):
        path = write_reviews(tmp_path / "mine.tsv", delimiter="\t")
        changes = {"task_name": "mine", "test_file": path, "output_dir": str(tmp_path), "quoting": True}
        assert "would overwrite" in error_of(reviews, do_train=True, do_predict=True, **changes)

    def test_a_test_file_without_header_keeps_its_first_row(self, reviews, tmp_path):
        train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
        train.write_text("".join(f"{'good' if i % 2 else 'bad'}\tthe cat {i}\n" for i in range(20)))
        test.write_text("?\tthe cat is\n?\tthe dog is\n?\tit is\n")
        columns = {"train_file": str(train), "text_column": "2", "label_column": "1", "num_train_epochs": 0.5}
        run(reviews, do_train=True, **columns)
        later = {"train_file": None, "test_file": str(test), "text_column": "2", "label_column": "label"}
        run(reviews, do_predict=True, **later)
        with open(os.path.join(reviews["output_dir"], "Reviews.tsv")) as file:
            assert len(file.read().strip().split("\n")) == 1 + 3

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
            folder = str(tmp_path / weights[:3])
            run(reviews, do_train=True, do_eval=True, class_weights=weights, output_dir=folder, num_train_epochs=1.0)
            losses.append(read_results(folder)["eval_loss"])
        assert losses[0] != losses[1]

    def test_an_untrained_head_does_not_predict(self, reviews):
        message = error_of(reviews, do_predict=True, test_file=reviews["train_file"])
        assert "no trained head" in message

    def test_a_warning_names_overlapping_texts_and_labels_that_differ_in_case(self, reviews, tmp_path, monkeypatch):
        warnings = []
        monkeypatch.setattr(tf.logging, "warning", lambda message, *values: warnings.append(message % values))
        path = tmp_path / "case.csv"
        rows = [f"the cat {index},{'Good' if index % 3 else 'good'}\n" for index in range(30)]
        path.write_text("review,verdict\n" + "".join(rows))
        settings = ClassifierSettings(
            **dict(reviews, train_file=str(path), dev_file=str(path), do_train=True, do_eval=True)
        )
        classification.load_data(settings)
        assert any("Good" in line and "differ only in case" in line and "--label_map" in line for line in warnings)
        assert "30 of 30 dev texts also appear in the training set; dev scores will be optimistic." in warnings

    @pytest.mark.long
    def test_a_regression_on_custom_data(self, reviews, tmp_path):
        path = tmp_path / "stars.tsv"
        rows = [f"the cat {'is' if index % 2 else 'are'} big {index}\t{index % 2 * 3 - 1}.5" for index in range(40)]
        path.write_text("review\tstars\n" + "\n".join(rows) + "\n")
        changes = {"train_file": str(path), "label_column": "stars", "task_type": "regression"}
        run(reviews, do_train=True, do_eval=True, **changes)
        assert read_json(reviews["output_dir"], "results.json")["metrics"]["pearson"] > 0.5

    @pytest.mark.parametrize(
        "changes, expected",
        [
            ({"train_file": None}, "No data: set --data_dir to the folder of a known task (CoLA, SST-2"),
            ({"text_column": "revue"}, "Did you mean 'review'?"),
            ({"label_column": "id"}, "48 different values in 48"),
            ({"task_type": "ranking"}, "Unknown --task_type 'ranking'"),
            ({"primary_metric": "f1"}, "macro_f1"),
            ({"class_weights": "heavy"}, "--class_weights"),
            ({"class_weights": "excellent=2"}, "excellent"),
            ({"dev_fraction": 1.5}, "--dev_fraction"),
            ({"task_name": "test_results"}, "would overwrite"),
            ({"data_dir": "glue"}, "--data_dir=glue is the folder of a known task"),
            ({"eval_every_steps": 5, "do_eval": False}, "--eval_every_steps needs evaluations"),
            ({"init_checkpoint": None}, "--tuning_mode=adapter keeps BERT frozen, and without --init_checkpoint"),
            ({"train_file": None, "test_file": "x.csv", "do_train": False}, "Evaluation needs --dev_file, or"),
        ],
    )
    def test_errors_come_before_anything_is_written(self, reviews, changes, expected):
        assert expected in error_of(reviews, **dict({"do_train": True, "do_eval": True}, **changes))

    def test_a_label_unknown_to_the_training_is_an_error_with_its_line(self, reviews, tmp_path):
        dev_file = tmp_path / "dev.csv"
        dev_file.write_text("review,verdict\nthe cat is big,good\nthe dog is big,splendid\n")
        message = error_of(reviews, do_train=True, do_eval=True, dev_file=str(dev_file))
        assert "dev.csv, line 3" in message and "splendid" in message

    def test_an_undecodable_byte_is_an_error_with_its_line_and_a_remedy(self, reviews):
        with open(reviews["train_file"], "ab") as file:
            file.write(b"99,caf\xe9,good\n")
        message = error_of(reviews, do_train=True, encoding="utf-8")
        # 48 reviews of two lines each, and the header.
        assert "reviews.csv, line 98" in message and "0xe9" in message and "cp1252" in message


def documented_commands():
    with open(os.path.join(ROOT, "docs", "custom_data.md"), encoding="utf-8") as file:
        blocks = re.findall(r"```bash\n(.*?)```", file.read(), re.DOTALL)
    return [block.replace("\\\n", " ") for block in blocks]


TEXTS = os.path.join(SHARED, "data", "text")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(TEXTS), reason=f"needs {TEXTS}")
@pytest.mark.parametrize("command", documented_commands(), ids=lambda text: text.split("--output_dir=")[1].split()[0])
def test_the_documented_commands_train_on_the_real_files(command, tmp_path):
    """The commands of docs/custom_data.md, with a tiny BERT that has a real vocabulary, for a few steps."""
    real = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
    with open(real, encoding="utf-8") as file:
        size = len(file.read().split("\n")) - 1
    config = modeling.BertConfig(size, 16, 1, 2, 32, max_position_embeddings=512)
    bert = str(tmp_path / "bert")
    write_bert(bert, config)
    with open(real, "rb") as source, open(os.path.join(bert, "vocab.txt"), "wb") as target:
        target.write(source.read())
    words = shlex.split(command.replace("$BERT", bert).replace("$DATA", TEXTS))
    assert words[:2] == ["python", "run_classifier.py"]
    values = absl_flags.FlagValues()
    settings_lib.define_flags(ClassifierSettings, values)
    assert values(words[1:]) == ["run_classifier.py"]
    given = settings_lib.from_flags(ClassifierSettings, values)
    given = {name: getattr(given, name) for name in given.__dataclass_fields__}
    given.update(output_dir=str(tmp_path / "out"), num_train_epochs=0.01, max_seq_length=16, eval_batch_size=64)
    run(given)
    assert tf.train.latest_checkpoint(given["output_dir"])
    assert read_json(given["output_dir"], "results.json")["training"]["steps_computed"] > 0
