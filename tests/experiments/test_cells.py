"""The CSV file of a sweep returns what was written, and damaged files are reported."""

from __future__ import annotations

import csv

import pytest

from adapter_bert.experiments import cells
from tests.experiments.sweeps import PATH, make_cell, sweep
from tests.helpers import assert_mentions, message_of, write_file


def test_cells_are_the_same_after_writing_and_reading(tmp_path):
    path = str(tmp_path / "sweep.csv")
    written = [
        make_cell(dev=None, seed=1, loss=None, majority=None, metrics={}),
        make_cell(dev=0.1 + 0.2, seed=2, test=0.5, collapsed=True, metrics={"f1": 0.3, "accuracy": 1e-7}),
        make_cell(task='with "quotes", commas\nand lines'),
    ]
    cells.write(path, written)
    assert cells.read(path) == written


@pytest.mark.parametrize("value", [3e-4, 64, 0, True, False, None, "both", "", "64", "null", "NaN", '"', "a,b", [1, 2]])
def test_settings_keep_their_value_and_type(tmp_path, value):
    path = str(tmp_path / "sweep.csv")
    cells.write(path, [make_cell(settings={"flag": value, "other": 1}), make_cell(seed=2, settings={})])
    first, second = cells.read(path)
    assert first.settings == {"flag": value, "other": 1}
    assert type(first.settings["flag"]) is type(value)
    assert second.settings == {}


def test_the_file_is_tidy():
    with open(PATH, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sweep()) > 100
    assert {row["version"] for row in rows} == {"1"}
    assert rows[0]["setting.learning_rate"] == "3e-05"
    assert rows[0]["setting.adapter_size"] == ""
    assert float(rows[0]["metrics.accuracy"]) == sweep()[0].metrics["accuracy"]


def test_a_file_without_cells_has_none(tmp_path):
    path = str(tmp_path / "sweep.csv")
    cells.write(path, [])
    assert cells.read(path) == []


def test_scores_are_in_percent_also_those_of_squad():
    assert make_cell(dev=0.8, test=0.75).percent() == 80
    assert make_cell(dev=0.8, test=0.75).percent("test") == 75
    assert make_cell(dev=88.5, metric="f1", metrics={"f1": 88.5, "exact_match": 81.0}).percent() == 88.5
    assert make_cell(dev=None).percent() is None
    assert make_cell(dev=float("nan")).percent() is None


def test_the_share_of_trained_parameters_is_that_of_a_bert_without_adapters():
    assert make_cell().trained_share == 2_419_202 / 109_443_840
    assert make_cell(kind="full", trained_params=100, total_params=100).trained_share == 1


def _changed(tmp_path, old: str, new: str) -> str:
    with open(PATH, encoding="utf-8") as file:
        text = file.read()
    assert old in text
    return write_file(tmp_path, "changed.csv", text.replace(old, new, 1))


@pytest.mark.parametrize(
    "old, new, facts",
    [
        ("fingerprint", "print", ["fingerprint"]),
        ("\n1,", "\n2,", ["row 1", "version 1", "2"]),
        (",109483778,801", ",many,801", ["row 1", "total_params", "int", "many"]),
        (",false,", ",perhaps,", ["row 1", "collapsed", "bool", "perhaps"]),
        (",0.585,,", ",high,,", ["row 1", "dev", "float", "high"]),
        (",0.585,0.8367", ",high,0.8367", ["row 1", "metrics.matthews", "float", "high"]),
        ("seed=2", "seed=1", ["seed=1"]),  # two cells of the same name
        (",CoLA,full", ",CoLA,more,full", ["row 1"]),
        (",CoLA,full,full", ",CoLA,full", ["row 1"]),
        ("version", '"version', []),
    ],
)
def test_damaged_files_are_reported(tmp_path, old, new, facts):
    path = _changed(tmp_path, old, new)
    assert_mentions(message_of(cells.read, path), path, *facts)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"text"])
def test_other_files_are_reported(tmp_path, content):
    path = write_file(tmp_path, "other.csv", content)
    assert_mentions(message_of(cells.read, path), path)


def test_missing_files_are_reported(tmp_path):
    assert_mentions(message_of(cells.read, str(tmp_path / "none.csv")), "none.csv")


def test_additional_columns_are_ignored(tmp_path):
    path = _changed(tmp_path, "version,", "version,")
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    extended = [lines[0] + ",note"] + [line + ",text" for line in lines[1:]]
    assert cells.read(write_file(tmp_path, "extended.csv", "\n".join(extended))) == sweep()
