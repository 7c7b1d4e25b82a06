"""Data sets in code: registered processors, and the scripts of docs/custom_data.md as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import List

import pytest

from adapter_bert import tasks
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.tasks import InputExample, processors
from adapter_bert.tasks import task as registry
from tests.helpers import ROOT, as_tuples, assert_mentions, base_flags, cola_rows, message_of, write_file
from tests.runs.helpers import error_of, read_json, read_text, run
from tests.tasks.test_custom_docs import documentation


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))


@pytest.fixture
def reviews(tiny_bert, tmp_path) -> dict:
    """The flags of a run on reviews."""
    for name, rows in (("train", cola_rows(32)), ("dev", cola_rows(24, 3))):
        cells = [row.split("\t") for row in rows]
        write_file(tmp_path, f"reviews/{name}.tsv", "".join(f"{['bad', 'good'][int(c[1])]}\t{c[3]}\n" for c in cells))
    flags = base_flags(tiny_bert, str(tmp_path / "reviews"), str(tmp_path / "out"))
    return dict(flags, task_name="Reviews", num_train_epochs=2.0, learning_rate=1e-2)


def scripts() -> List[str]:
    section = documentation().partition("## A data set in code")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_both_documented_ways_give_the_same_run(reviews, tmp_path):
    results = []
    for number, (script, name) in enumerate(zip(scripts(), ("Reviews", "ReviewFiles"))):
        exec(script, {"__name__": "script"})
        flags = dict(reviews, task_name=name, output_dir=str(tmp_path / f"out{number}"))
        run(flags, do_train=True, do_eval=True)
        results.append(read_json(flags["output_dir"], "results.json"))
        assert results[-1]["task"] == name
    first, second = results
    assert first["fingerprints"] == second["fingerprints"]
    assert first["data"] == second["data"] and first["data"]["train"]["examples"] == 32
    assert first["metrics"]["accuracy"] == second["metrics"]["accuracy"] > 0.6


@pytest.mark.long
def test_a_documented_script_is_a_command(reviews, tmp_path):
    path = write_file(tmp_path, "reviews.py", scripts()[0])
    words = [f"--{name}={value}" for name, value in dict(reviews, do_train="true", do_eval="true").items()]
    environment = dict(os.environ, PYTHONPATH=ROOT)
    subprocess.run([sys.executable, path, *words], env=environment, check=True)
    assert read_json(reviews["output_dir"], "results.json")["task"] == "Reviews"
    words.append("--learning_rate=-1")
    failed = subprocess.run([sys.executable, path, *words], env=environment, stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1
    assert_mentions(failed.stderr.splitlines()[-1], "reviews.py: error:", "--learning_rate")


class Texts(processors.DataProcessor):
    """A processor without files, whose labels are integers."""

    word = "cat"

    def get_train_examples(self, data_dir):
        return [
            InputExample(str(i), f"the {self.word} is {'big' if i % 2 else 'small'}", label=i % 2) for i in range(16)
        ]

    def get_test_examples(self, data_dir):
        return [InputExample("a", "the dog is big"), InputExample("b", b"a cat", b"is small")]

    def get_labels(self):
        return [0, 1]


def test_a_processor_needs_no_folder_and_trains_predicts_and_continues(reviews):
    processors.register_processor("Texts", Texts)
    flags = dict(reviews, task_name="texts", data_dir=None)
    run(flags, do_train=True, do_predict=True)
    assert read_text(flags["output_dir"], "Texts.tsv").splitlines()[0] == "index\tprediction"
    assert len(read_text(flags["output_dir"], "test_results.tsv").splitlines()) == 2
    assert read_json(flags["output_dir"], "settings.json")["task_name"] == "Texts"
    assert_mentions(error_of(flags, do_eval=True), "Texts", "no dev split")
    other = type("Other", (Texts,), {"word": "dog"})
    processors.register_processor("Texts", other)
    assert_mentions(error_of(flags, do_train=True), "train_data")


def test_examples_of_a_processor_have_the_types_of_a_task():
    task = processors.register_processor("Texts", Texts())
    assert (task.labels, task.is_regression, task.primary_metric) == (("0", "1"), False, "accuracy")
    assert as_tuples(tasks.read_examples(task, "", "train"))[1] == ("1", "the cat is big", None, "1")
    assert as_tuples(tasks.read_examples(task, "", "test"))[1] == ("b", "a cat", "is small", "0")


def test_a_processor_without_labels_is_a_regression():
    class Numbers(Texts):
        def get_dev_examples(self, data_dir):
            return [InputExample("a", "x", label="2.5")]

        def get_labels(self):
            return []

    task = processors.register_processor("Numbers", Numbers, metrics=("pearson",))
    assert (task.is_regression, task.metrics) == (True, ("pearson",))
    assert [example.label for example in tasks.read_examples(task, "", "dev")] == [2.5]


@pytest.mark.parametrize("label, facts", [("maybe", ["'maybe'", "example a", "0, 1"]), (None, None)])
def test_a_wrong_label_of_a_processor_is_reported_with_its_example(label, facts):
    made = {"get_train_examples": lambda self, folder: [InputExample("a", "x", label=label)][: 1 if label else 0]}
    task = processors.register_processor("Wrong", type("Wrong", (Texts,), made))
    message = message_of(lambda: list(tasks.read_examples(task, "", "train")))
    assert_mentions(message, "train split of Wrong", *(facts or ["no examples"]))


def test_names_of_other_tasks_are_taken():
    with pytest.raises(ValueError, match="is taken by CoLA"):
        processors.register_processor("cola", Texts)
    assert_mentions(message_of(ClassifierSettings(task_name="CoLA", do_train=True).validate), "--data_dir")
