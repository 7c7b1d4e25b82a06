"""The scores of each class equal scikit-learn's, and the text fits on a screen."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from adapter_bert.evaluation import prediction_table
from adapter_bert.evaluation.class_report import ClassReport, class_report, worst_mistakes

LABELS = ("bad", "good", "never predicted", "never true")


@pytest.fixture(scope="module")
def classes():
    generator = np.random.RandomState(1)
    return generator.choice([0, 1, 2], 50), generator.choice([0, 1, 3], 50)


def test_scores_and_matrix_equal_those_of_scikit_learn(classes):
    report = class_report(LABELS, *classes)
    expected = metrics.precision_recall_fscore_support(*classes, labels=range(4), zero_division=0)
    found = [[of[name] for name in ("precision", "recall", "f1", "support")] for of in report.per_class.values()]
    np.testing.assert_array_equal(np.transpose(found), expected)
    np.testing.assert_array_equal(report.confusion_matrix, metrics.confusion_matrix(*classes, labels=range(4)))
    assert list(report.per_class) == list(LABELS)
    assert report.per_class["never predicted"]["recall"] == report.per_class["never true"]["support"] == 0


def test_the_text_has_a_row_for_each_class_and_four_digits(classes):
    report = class_report(LABELS, *classes)
    table, matrix = report.as_text(for_screen=True).split("\n\n")
    assert table.splitlines()[0].split() == ["class", "precision", "recall", "f1", "support"]
    good = report.per_class["good"]
    assert table.splitlines()[2].split() == ["good", *(f"{good[key]:.4f}" for key in good if key != "support"), str(good["support"])]  # fmt: skip  # noqa: E501
    assert [line.split()[-4:] for line in matrix.splitlines()[1:]] == [list(map(str, row)) for row in report.confusion_matrix]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("count, rows, has_matrix", [(12, 12, True), (13, 13, False), (60, 50, False)])
def test_many_classes_are_complete_only_in_the_file(count, rows, has_matrix):
    labels = [f"class{number}" for number in range(count)]
    report = class_report(labels, np.arange(count), np.arange(count))
    text = report.as_text(for_screen=True)
    table = text.split("\n\n")[0]
    assert sum(line.startswith("class") for line in table.splitlines()[1:]) == rows
    assert ("\n\n" in text) == has_matrix
    assert sum(line.startswith("class") for line in report.as_text().splitlines()) == 1 + 2 * count


def test_no_classes_no_report():
    assert not ClassReport()


def test_the_worst_mistakes_are_wrong_and_have_the_highest_loss():
    losses, is_wrong = np.array([0.1, 3.0, 2.0, 2.0, 9.0]), np.array([False, True, True, True, False])
    assert worst_mistakes(losses, is_wrong, 2) == [1, 2]
    assert worst_mistakes(losses, is_wrong, 9) == [1, 2, 3]


def test_probabilities_have_the_digits_of_a_32_bit_float():
    values = np.array([0.1, 0.9], np.float32).tolist()
    assert prediction_table.cells(["a", "b"], values, 1) == ["b", 0.9, 0.1, 0.9]
    assert prediction_table.columns(["a", "b"])[2:] == ["probability_a", "probability_b"]
    assert prediction_table.cells([], [2.5]) == [2.5] and prediction_table.columns([]) == ["prediction"]
