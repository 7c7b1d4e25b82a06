"""Files with predictions next to texts, for made-up predictions."""

from __future__ import annotations

import csv

import numpy as np

from adapter_bert.tasks import InputExample, Task
from adapter_bert.training import prediction_files
from adapter_bert.weights.run_folder import RunFolder
from tests.helpers import assert_mentions

NUMBERS = Task("Numbers", (), metrics=("pearson",))
CLASSES = Task("Classes", ("no", "yes"))


def read(path):
    with open(str(path), newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_mistakes_are_in_the_given_order_with_pairs_and_numbers(tmp_path, log):
    examples = [InputExample(f"dev-{n}", f"text {n}", f"other\n{n}", float(n)) for n in range(4)]
    rows = [{"loss": np.float32(n / 10), "logits": np.array([n + 0.1], np.float32)} for n in range(4)]
    prediction_files.write_mistakes(RunFolder(str(tmp_path)), NUMBERS, examples, rows, [0.0] * 4, [3, 1])
    assert read(tmp_path / "worst_mistakes.csv") == [
        ["example", "text", "text_pair", "label", "loss", "prediction"],
        ["dev-3", "text 3", "other\n3", "3.0", "0.3", "3.1"],
        ["dev-1", "text 1", "other\n1", "1.0", "0.1", "1.1"],
    ]
    assert_mentions(log[0], "2", tmp_path / "worst_mistakes.csv")
    assert_mentions(log[1], "3.0", "3.1000", "text 3 | other 3")


def test_no_mistakes_leave_a_table_without_rows(tmp_path):
    prediction_files.write_mistakes(RunFolder(str(tmp_path)), CLASSES, [], [], [], [])
    assert [row[:2] for row in read(tmp_path / "worst_mistakes.csv")] == [["example", "text"]]


def test_predictions_follow_the_texts(tmp_path):
    examples = [InputExample("test-1", 'a, "b"', None, "no"), InputExample("test-2", "", None, "no")]
    rows = [{"probabilities": np.array([0.25, 0.75], np.float32)}, {"probabilities": np.array([0.5, 0.5], np.float32)}]
    path = prediction_files.write_predictions(RunFolder(str(tmp_path)), CLASSES, examples, rows, [1, 0])
    assert read(path) == [
        ["text", "predicted_label", "probability", "probability_no", "probability_yes"],
        ['a, "b"', "yes", "0.75", "0.25", "0.75"],
        ["", "no", "0.5", "0.5", "0.5"],
    ]
