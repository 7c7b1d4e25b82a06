"""Public data sets are read whole, by the commands in docs/custom_data.md. Files that are missing are skipped."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import shlex

import pytest

from adapter_bert.tasks import custom
from adapter_bert.tasks.custom import CustomData
from adapter_bert.tasks.custom.formats import read_table
from tests.helpers import ROOT, SHARED

pytestmark = pytest.mark.smoke
TEXT_DATA = os.path.join(SHARED, "data", "text")
Q1 = (
    "q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_of_the_"
    "tweeter_towards_the_target"
)
Q2 = "q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet"
NEWS = "news_aggregator_subset_nlp100"
POLITICS = "Political-media-DFE.csv"
# Name -> settings, number of labels, rows of the training file, rows of the dev file.
REAL = {
    "spam": ({"train_file": "SMSSpamCollection", "text_column": "2", "label_column": "1"}, 2, 5574, None),
    "airline": ({"train_file": "Tweets.csv", "label_column": "airline_sentiment"}, 3, 14640, None),
    "corporate": ({"train_file": "Corporate-messaging-DFE.csv", "label_column": "category"}, 4, 3118, None),
    "emotion": (
        {"train_file": "text_emotion.csv", "text_column": "content", "label_column": "sentiment"}, 13, 40000, None,
    ),
    "warming": (
        {
            "train_file": "1377884570_tweet_global_warming.csv", "text_column": "tweet", "label_column": "existence",
            "label_map": {"Y": "Yes", "N": "No"}, "labels": ("Yes", "No"),
        },
        2, 4225, None,
    ),
    "audience": ({"train_file": POLITICS, "label_column": "audience"}, 2, 5000, None),
    "bias": ({"train_file": POLITICS, "label_column": "bias"}, 2, 5000, None),
    "message": ({"train_file": POLITICS, "label_column": "message"}, 9, 5000, None),
    "plutchik": (
        {"train_file": "primary-plutchik-wheel-DFE.csv", "text_column": "sentence", "label_column": "emotion"},
        18, 2524, None,
    ),
    "stance": (
        {
            "train_file": "progressive-tweet-sentiment.csv", "text_column": "tweet", "text_pair_column": "target",
            "label_column": Q1,
        },
        4, 1159, None,
    ),
    "opinion": (
        {
            "train_file": "progressive-tweet-sentiment.csv", "text_column": "tweet", "text_pair_column": "target",
            "label_column": Q2,
        },
        3, 1159, None,
    ),
    "economy": (
        {
            "train_file": "us-economic-newspaper.trimmed.csv", "label_column": "positivity", "task_type": "regression",
        },
        0, 5015 - 2116, None,
    ),
    "news": (
        {
            "train_file": f"{NEWS}/train.txt", "dev_file": f"{NEWS}/valid.txt", "test_file": f"{NEWS}/test.txt",
            "text_column": "2", "label_column": "5",
        },
        4, 8878, 1109,
    ),
    "20news": (
        {
            "train_file": "20news-bydate.tar.gz//20news-bydate-train",
            "dev_file": "20news-bydate.tar.gz//20news-bydate-test",
        },
        20, 11314, 7532,
    ),
}  # fmt: skip


def real_data(name: str) -> CustomData:
    settings = dict(REAL[name][0])
    for key in ("train_file", "dev_file", "test_file"):
        if key in settings:
            settings[key] = os.path.join(TEXT_DATA, settings[key])
    path = settings["train_file"].split("//")[0]
    if not os.path.exists(path):
        pytest.skip(f"a real file is missing: {path}")
    return CustomData(**settings)


@pytest.mark.parametrize("name", list(REAL))
def test_real_files_have_their_published_numbers_of_rows(name):
    _, labels, rows, dev_rows = REAL[name]
    task, examples = custom.read(name, real_data(name), ("train", "dev"))
    assert len(task.labels) == labels
    assert len(examples["train"]) + (0 if dev_rows else len(examples["dev"])) == rows
    share = len(examples["dev"]) / rows
    assert len(examples["dev"]) == dev_rows if dev_rows else share == pytest.approx(0.1, abs=0.02)
    assert all(example.text_a.strip() for split in examples.values() for example in split)


def test_the_test_split_of_the_real_news_has_all_rows():
    assert len(custom.read("news", real_data("news"), ("test",))[1]["test"]) == 1109


def test_cells_of_a_real_file_are_those_of_the_csv_module():
    path = real_data("message").train_file
    with open(path, encoding="latin-1", newline="") as file:
        expected = [(row["text"], row["message"]) for row in csv.DictReader(file)]
    table = read_table(path, ["text", "message"])
    columns = [table.find("text"), table.find("message")]
    assert [tuple(table.text(row, column) for column in columns) for row in table.rows] == expected


def test_the_documentation_describes_every_flag_and_the_commands_tested_here():
    with open(os.path.join(ROOT, "docs", "custom_data.md"), encoding="utf-8") as file:
        documentation = file.read()
    names = [field.name for field in dataclasses.fields(CustomData)]
    assert [name for name in names if f"| `--{name}` |" not in documentation] == []
    found = []
    for block in re.findall(r"```bash\n(.*?)\n```", documentation, re.DOTALL):
        assert all(line.endswith(" \\") for line in block.split("\n")[:-1])
        python, script, *words = shlex.split(block.replace("\\\n", ""))
        assert (python, script) == ("python", "run_classifier.py")
        flags = dict(word[2:].split("=", 1) for word in words)
        settings = {name: flags[name] for name in names if name in flags}
        for name, parse in (("labels", custom.parse_list), ("label_map", custom.parse_map)):
            if name in settings:
                settings[name] = parse(settings[name])
        found.append(CustomData(**settings))
    expected = []
    for settings, *_ in REAL.values():
        files = {key: "$DATA/" + value for key, value in settings.items() if key.endswith("_file")}
        expected.append(CustomData(**dict(settings, **files)))
    assert len(found) == len(expected) > 0
    assert all(data in found for data in expected)
