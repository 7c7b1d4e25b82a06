"""scripts/split_squad.py splits a file by articles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adapter_bert.tasks import squad
from scripts import split_squad
from tests.helpers import ROOT, assert_mentions, write_file
from tests.tasks.test_squad import paragraph, qa, write


def articles(count: int) -> dict:
    pages = [{"title": f"T{i}", "paragraphs": [paragraph(qa(str(i), ("cat", 4)))], "more": i} for i in range(count)]
    return {"version": "v2.0", "data": pages, "licence": "CC é"}


def split(folder, source: str, *options: str, out: str = "") -> list:
    """Run the script; return the content of the two files."""
    paths = [str(folder / f"{part}{out}.json") for part in ("train", "dev")]
    split_squad.main([source, f"--train_out={paths[0]}", f"--dev_out={paths[1]}", *options])
    return [squad.load(path) for path in paths]


def titles(part: dict) -> list:
    return [article["title"] for article in part["data"]]


def test_the_script_runs_in_any_folder_and_its_split_is_complete_and_disjoint_and_keeps_order_and_other_keys(tmp_path):
    whole = articles(10)
    command = [sys.executable, os.path.join(ROOT, "scripts", "split_squad.py"), write(tmp_path, whole)]
    command += ["--dev_articles=3", "--train_out=new/train.json", "--dev_out=dev.json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert sorted(os.listdir(str(tmp_path))) == ["dev.json", "new", "squad.json"]
    train, dev = (squad.load(str(tmp_path / name)) for name in ("new/train.json", "dev.json"))
    assert (len(train["data"]), len(dev["data"])) == (7, 3)
    by_title = {article["title"]: article for article in train["data"] + dev["data"]}
    assert [by_title[article["title"]] for article in whole["data"]] == whole["data"]
    for part in (train, dev):
        assert dict(part, data=[]) == dict(whole, data=[])
        assert titles(part) == sorted(titles(part))
    assert_mentions(done.stdout, "new/train.json: 7 articles, 7 questions", "dev.json: 3", ", ".join(titles(dev)))


def test_a_split_depends_only_on_the_seed(tmp_path):
    source = write(tmp_path, articles(20))
    first, again, other = (split(tmp_path, source, f"--seed={s}", out=str(i)) for i, s in enumerate([1, 1, 2]))
    assert first == again != other
    assert [len(part["data"]) for part in first] == [16, 4]
    larger = split(tmp_path, source, "--dev_fraction=0.5", out="larger")
    assert set(titles(first[1])) < set(titles(larger[1]))
    # The same in all versions of Python, or results could not be compared.
    assert titles(first[1]) == ["T5", "T11", "T17", "T19"]


def test_articles_with_the_same_title_stay_together(tmp_path):
    whole = articles(6)
    for number, title in enumerate(["Same", None, None, "Same", "Other", "Same"]):
        whole["data"][number]["title"] = title
    del whole["data"][1]["title"]
    for seed in range(8):
        train, dev = split(tmp_path, write(tmp_path, whole), "--dev_articles=1", f"--seed={seed}", "--overwrite")
        assert len(dev["data"]) in (1, 3) and len(train["data"] + dev["data"]) == 6
        assert sum(article.get("title") == "Same" for article in dev["data"]) in (0, 3)


@pytest.mark.parametrize(
    "count, options, facts",
    [
        (1, [], ["1 article"]),
        (5, ["--dev_articles=5"], ["--dev_articles=5", "1 to 4", "5 articles"]),
        (5, ["--dev_articles=0"], ["--dev_articles=0", "1 to 4"]),
        (5, ["--dev_fraction=1"], ["--dev_fraction=1", "between 0 and 1"]),
        (5, ["--dev_fraction=nan"], ["--dev_fraction=nan", "between 0 and 1"]),
        (5, ["--dev_out=sub"], ["--dev_out=sub", "folder"]),
        (5, ["--dev_out=train.json"], ["three different files"]),
        (5, ["--dev_out=./squad.json", "--overwrite"], ["three different files"]),
        (5, ["--dev_out=old.json"], ["old.json", "--dev_out", "--overwrite"]),
        (5, ["--dev_out=settings.json", "--overwrite"], ["SQuAD", "--dev_out=settings.json", "--overwrite"]),
        (5, ["--dev_out=old.json", "--overwrite"], ["old.json"]),
    ],
)
def test_an_impossible_split_is_reported_and_writes_nothing(tmp_path, monkeypatch, count, options, facts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write_file(tmp_path, "old.json", "old")
    write_file(tmp_path, "settings.json", "{}")
    write(tmp_path, articles(count))
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        split_squad.main(["squad.json", "--train_out=train.json", "--dev_out=dev.json", *options])
    assert_mentions(str(stopped.value), *facts)
    assert {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_part_without_questions_is_reported_and_lone_surrogates_are_kept(tmp_path):
    whole = articles(2)
    for article in whole["data"]:
        article["paragraphs"][0]["context"] = "\ud800"
    train, _ = split(tmp_path, write(tmp_path, whole))
    assert train["data"][0]["paragraphs"][0]["context"] == "\ud800"
    whole["data"][0]["paragraphs"] = []
    with pytest.raises(SystemExit, match="no questions"):
        split(tmp_path, write(tmp_path, whole), out="-2")
