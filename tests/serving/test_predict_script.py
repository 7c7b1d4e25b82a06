"""scripts/predict.py: every kind of model, of input and of output."""

from __future__ import annotations

import csv
import io
import json
import os
import sys

import numpy as np
import pytest

from adapter_bert.common import progress
from adapter_bert.serving import batch
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from scripts import predict as predict_script
from tests.helpers import assert_mentions, make_pack, tiny_config, write_bert, write_file
from tests.serving.helpers import probabilities, write_pack

COLUMNS = ["predicted_label", "probability", "probability_0", "probability_1"]


@pytest.fixture(scope="module")
def bank(trained, tiny_bert, tmp_path_factory):
    """Return the folder of a bank with the pack of `trained` and a random one."""
    folder = str(tmp_path_factory.mktemp("bank") / "bank")
    made = Bank.create(folder, bases.Base.find(tiny_bert))
    made.add(packs.read(packs.find(trained)), "cola")
    made.add(make_pack(made.base, training={"text_column": "review", "text_pair_column": None}), "reviews")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs the script and returns the lines on stdout."""

    def run_script(*words, given=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given) if isinstance(given, str) else given)
        predict_script.main(list(words))
        return capsys.readouterr().out.splitlines()

    return run_script


def error_of(*words) -> str:
    with pytest.raises(SystemExit) as caught:
        predict_script.main(list(words))
    message = str(caught.value)
    assert "error: " in message and "\n" not in message
    return message


class TestLines:
    def test_each_line_gets_one_line_of_output(self, run, trained, predictor, sentences):
        lines = run("--run=" + trained, given="\n".join(sentences) + "\n")
        assert lines[0] == "label\t0\t1"
        expected = predictor.predict(sentences)
        rows = [line.split("\t") for line in lines[1:]]
        assert [row[0] for row in rows] == [prediction.label for prediction in expected]
        found = [[float(value) for value in row[1:]] for row in rows]
        np.testing.assert_allclose(found, probabilities(expected), atol=1e-5)

    def test_pairs_from_a_file_line_by_line(self, run, trained, predictor, tmp_path):
        (tmp_path / "pairs.tsv").write_text("the cat is\tbig .\nthe dog\n")
        lines = run("--run=" + trained, "--pairs", "--line_by_line", "--input=" + str(tmp_path / "pairs.tsv"))
        expected = predictor.predict([("the cat is", "big ."), "the dog"])
        assert [line.split("\t")[0] for line in lines[1:]] == [prediction.label for prediction in expected]

    def test_lines_become_a_table_with_their_texts(self, run, trained, tmp_path):
        path = write_file(tmp_path, "texts.txt", b"\xef\xbb\xbfthe cat\nthe, dog")
        run("--run=" + trained, "--input=" + path, f"--output={tmp_path}/new/out.csv")
        rows = list(csv.reader((tmp_path / "new" / "out.csv").read_text().splitlines()))
        assert rows[0] == ["text", *COLUMNS] and [row[0] for row in rows[1:]] == ["the cat", "the, dog"]

    def test_a_terminal_is_answered_line_by_line(self, monkeypatch, capsys, trained, sentences, predictor):
        terminal, end = os.openpty()
        os.write(terminal, f"{sentences[0]}\n\n{sentences[1]}\n\x04".encode())
        with open(end) as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            predict_script.main(["--run=" + trained])
        os.close(terminal)
        shown = capsys.readouterr()
        expected = [prediction.label for prediction in predictor.predict(sentences[:2])]
        assert [line.split("\t")[0] for line in shown.out.splitlines()] == ["label", *expected]
        assert shown.err.count("> ") == 4

    def test_progress_has_the_number_of_lines_and_the_time_left(self, run, trained, monkeypatch, tmp_path, log):
        monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
        monkeypatch.setattr(batch, "CHUNK", 2)
        path = write_file(tmp_path, "texts", "the cat\nthe dog\nthe cats")
        with open(path) as stream:
            assert len(run("--run=" + trained, given=stream)) == 4
        assert any("2/3" in line and line.endswith("left") for line in log)
        run("--run=" + trained, given="the cat\nthe dog\n")
        assert any("predictions 2 " in line and "left" not in line for line in log)

    def test_a_header_in_a_stream_is_reported(self, run, trained, log):
        assert len(run("--run=" + trained, given='id,"text",label\n1,the cat,0\n')) == 3
        assert any('id,"text",label' in line and "--input" in line for line in log)

    def test_input_that_cannot_be_read_is_reported(self, monkeypatch, trained):
        with open(os.open(os.devnull, os.O_WRONLY)) as closed:
            monkeypatch.setattr(sys, "stdin", closed)
            assert_mentions(error_of("--run=" + trained), "input", "Bad file descriptor")


class TestModels:
    def test_run_pack_and_bank_give_the_same_predictions(self, run, trained, bank, tiny_bert, sentences):
        pack = "--adapter_pack=" + packs.find(trained)
        expected = run("--run=" + trained, *sentences[:2])
        assert len(expected) == 3
        for words in (
            [pack, "--bert_dir=" + tiny_bert],
            [pack, f"--init_checkpoint={tiny_bert}/bert_model.ckpt"],
            ["--bank=" + bank, "--task=cola"],
            ["--run=" + trained, "--bert_dir=" + tiny_bert],
        ):
            assert run(*words, *sentences[:2]) == expected

    def test_models_that_cannot_be_loaded_are_reported(self, trained, bank, tmp_path):
        other = str(tmp_path / "other")
        write_bert(other, tiny_config(), seed=8)
        pack = "--adapter_pack=" + packs.find(trained)
        assert_mentions(error_of("--run=nowhere", "a"), "--run=nowhere")
        assert_mentions(error_of(pack, "a"), packs.find(trained), "bert_dir")
        assert_mentions(error_of(pack, "--bert_dir=" + other, "a"), "another base", other)
        assert_mentions(error_of(pack, "--bert_dir=nowhere", "a"), "nowhere")
        assert_mentions(error_of("--adapter_pack=nowhere", "--bert_dir=" + other, "a"), "nowhere")
        assert_mentions(error_of("--bank=" + bank, "--task=kola", "a"), "kola", "'cola'", "cola, reviews")
        assert_mentions(error_of("--bank=" + bank, "a"), "task")
        assert_mentions(error_of("--bank=" + bank, "--task=cola", "--bert_dir=" + other, "a"), bank, "bert_dir")
        assert_mentions(error_of("--bank=" + str(tmp_path), "--task=cola", "a"), "bank.json")


class TestTables:
    CONTENT = {
        "in.csv": 'id;text\n1;"the cat ""is""; big"\n2;"the\ndog"\n3;\n',
        "in.tsv": 'id\ttext\n1\tthe "cat" is\n2\tthe dog\n3\t\n',
        "in.jsonl": '{"id": 1, "text": "the cat"}\n{"id": 2, "text": "the dog", "x": [1]}\n{"id": 3, "text": null}\n',
    }

    @pytest.mark.parametrize(
        "name, output",
        [(name, None) for name in CONTENT]
        + [("in.csv", "out.tsv"), ("in.csv", "out.jsonl"), ("in.tsv", "out.csv"), ("in.jsonl", "out.csv")],
    )
    def test_predictions_follow_the_columns(self, run, bank, predictor, tmp_path, monkeypatch, name, output):
        monkeypatch.setattr(batch, "CHUNK", 2)
        path = write_file(tmp_path, name, self.CONTENT[name])
        words = ["--bank=" + bank, "--task=cola", "--input=" + path]
        lines = run(*words, *([f"--output={tmp_path / output}"] if output else []))
        if output:
            assert lines == []
            lines = (tmp_path / output).read_text().splitlines(keepends=True)
        ending = (output or name).partition(".")[2]
        if ending == "jsonl":
            rows = [json.loads(line) for line in lines]
        elif ending == "csv":
            rows = list(csv.DictReader(lines if output else [line + "\n" for line in lines]))
        else:
            header, *others = (line.rstrip("\n").split("\t") for line in lines)
            rows = [dict(zip(header, cells)) for cells in others]
        texts = {"in.csv": ['the cat "is"; big', "the\ndog", ""], "in.tsv": ['the "cat" is', "the dog", ""]}
        expected = predictor.predict(texts.get(name, ["the cat", "the dog", ""]))
        assert [str(row["id"]) for row in rows] == ["1", "2", "3"]
        assert [row["predicted_label"] for row in rows] == [prediction.label for prediction in expected]
        found = [[float(row[column]) for column in COLUMNS[2:]] for row in rows]
        np.testing.assert_allclose(found, probabilities(expected), atol=1e-5)
        assert [float(row["probability"]) for row in rows] == [max(values) for values in found]
        assert list(rows[1])[-4:] == COLUMNS and list(rows[1])[:2] == ["id", "text"]
        if name == "in.jsonl" and ending == "jsonl":
            assert rows[1]["x"] == [1] and "x" not in rows[0] and rows[2]["text"] is None

    def test_the_text_column_is_that_of_the_training_unless_it_is_given(self, run, bank, tmp_path):
        path = write_file(tmp_path, "in.csv", "review,other\nthe cat is big,the dog\n")
        words = ["--bank=" + bank, "--task=reviews"]
        by_column = {}
        for column, more in (("review", []), ("other", ["--text_column=other"])):
            by_column[column] = run(*words, "--input=" + path, *more)[1].split(",")[-2:]
        texts = [line.split("\t")[1:] for line in run(*words, "the cat is big", "the dog")[1:]]
        for found, expected in zip(by_column.values(), texts):
            np.testing.assert_allclose([list(map(float, found))], [list(map(float, expected))], atol=1e-5)
        assert by_column["review"] != by_column["other"]

    def test_columns_by_number_mean_no_header(self, run, trained, tmp_path, log):
        path = write_file(tmp_path, "in.csv", "id,sentence\n1,the cat\n")
        without = run("--run=" + trained, "--input=" + path, "--text_column=2")
        assert without[0].startswith("1,2,predicted_label") and len(without) == 3
        assert any(path in line and "no header" in line for line in log)
        with_header = run("--run=" + trained, "--input=" + path, "--text_column=2", "--header=true")
        assert with_header[0].startswith("id,sentence,predicted_label") and with_header[1] == without[2]

    def test_pairs_come_from_two_columns(self, run, trained, predictor, tmp_path):
        path = write_file(tmp_path, "in.csv", "text,b\nthe cat is,big .\n")
        lines = run("--run=" + trained, "--input=" + path, "--text_pair_column=b")
        expected = probabilities(predictor.predict([("the cat is", "big .")]))
        np.testing.assert_allclose([list(map(float, lines[1].split(",")[-2:]))], expected, atol=1e-5)

    def test_regression_adds_one_column_and_names_stay_unique(self, run, tiny_bert, tmp_path):
        pack = write_pack(tmp_path, tiny_bert, head="regression")
        path = write_file(tmp_path, "in.csv", "prediction,text\nold,the cat\n")
        lines = run("--adapter_pack=" + pack, "--bert_dir=" + tiny_bert, "--input=" + path)
        assert lines[0] == "prediction,text,prediction_2" and lines[1].startswith("old,the cat,")

    def test_a_file_is_replaced_only_on_request(self, run, trained, tmp_path):
        path = write_file(tmp_path, "out.csv", "mine")
        words = ["--run=" + trained, "the cat", "--output=" + path]
        assert_mentions(error_of(*words), path, "--overwrite")
        assert (tmp_path / "out.csv").read_text() == "mine"
        run(*words, "--overwrite")
        assert (tmp_path / "out.csv").read_text().startswith("text,predicted_label")

    def test_wrong_input_is_reported(self, trained, tmp_path):
        words = ["--run=" + trained]
        table = "--input=" + write_file(tmp_path, "in.csv", "id,sentence\n1,the cat\n")
        lines = "--input=" + write_file(tmp_path, "in.txt", "the cat\n")
        assert_mentions(error_of(*words, table), "--text_column", "'text'", "id, sentence")
        assert_mentions(error_of(*words, "--input=nowhere.csv"), "--input=nowhere.csv")
        assert_mentions(error_of(*words, table, "the cat"), table)
        assert_mentions(error_of(*words, lines, "--text_column=text"), "--text_column", ".csv")
        assert_mentions(
            error_of(*words, table, "--text_column=2", f"--output={tmp_path}/in.csv", "--overwrite"), "in.csv"
        )
        assert_mentions(error_of(*words, table, "--text_column=2", "--output=out.xlsx"), "out.xlsx", ".csv")
        assert_mentions(error_of(*words, "--input=" + str(tmp_path)), tmp_path, "directory")

    @pytest.mark.parametrize("name", ["in.xlsx", "in.csv", "in.txt"])
    def test_an_excel_file_is_explained(self, trained, tmp_path, name):
        path = write_file(tmp_path, name, b"PK\x03\x04\x14\x00")
        assert_mentions(error_of("--run=" + trained, "--input=" + path), path, "Excel", "CSV")
