"""Metrics agree with scikit-learn, SciPy and calculation by hand; none is ever undefined."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from adapter_bert import tasks
from adapter_bert.evaluation import metrics
from tests.helpers import assert_mentions, message_of

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("error")]

CLASS_METRICS = ("accuracy", "matthews", "f1", "macro_f1")
NUMBER_METRICS = ("pearson", "spearman")

# True positives 4, false positives 1, false negatives 2, true negatives 3.
LABELS = np.array([1, 1, 1, 1, 0, 1, 1, 0, 0, 0])
CLASSES = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
NUMBERS = np.array([0.0, 1.0, 3.0, 5.0])


def test_class_metrics_follow_from_the_confusion_matrix():
    scores = metrics.score(("matthews", "f1", "accuracy", "macro_f1"), LABELS, CLASSES)
    assert list(scores) == ["matthews", "f1", "accuracy", "macro_f1"]
    assert all(type(value) is float for value in scores.values())
    assert scores == {
        "accuracy": pytest.approx(0.7),
        "matthews": pytest.approx((4 * 3 - 1 * 2) / (5 * 6 * 4 * 5) ** 0.5),
        "f1": pytest.approx(8 / 11),  # 2 tp / (2 tp + fp + fn)
        "macro_f1": pytest.approx((8 / 11 + 6 / 9) / 2),
    }
    # Except for F1, which is that of class 1, the classes are interchangeable.
    flipped = metrics.score(CLASS_METRICS, 1 - LABELS, 1 - CLASSES)
    assert flipped == {name: pytest.approx(6 / 9 if name == "f1" else scores[name]) for name in CLASS_METRICS}


def test_metrics_are_those_of_scikit_learn_and_scipy():
    generator = np.random.RandomState(1)
    for num_classes in (2, 3):
        labels, classes = generator.randint(0, num_classes, (2, 50))
        assert metrics.score(CLASS_METRICS, labels, classes) == {
            "accuracy": sklearn.metrics.accuracy_score(labels, classes),
            "matthews": sklearn.metrics.matthews_corrcoef(labels, classes),
            "f1": sklearn.metrics.f1_score(labels == 1, classes == 1),  # of class 1
            "macro_f1": sklearn.metrics.f1_score(labels, classes, average="macro"),
        }
    labels = np.round(generator.uniform(0, 5, 60), 1)
    numbers = labels + generator.normal(0, 1, 60)
    for dtype in (np.float32, np.float64):
        assert metrics.score(NUMBER_METRICS, labels.astype(dtype), numbers.astype(dtype)) == {
            "pearson": pytest.approx(stats.pearsonr(labels, numbers)[0], abs=1e-6),
            "spearman": pytest.approx(stats.spearmanr(labels, numbers)[0], abs=1e-6),
        }


@pytest.mark.parametrize(
    "labels, predicted, expected",
    [
        ([1, 1, 1, 0, 0], 0, {"accuracy": 0.4, "matthews": 0.0, "f1": 0.0, "macro_f1": 4 / 14}),
        ([1, 1, 1, 0, 0], 1, {"accuracy": 0.6, "matthews": 0.0, "f1": 0.75, "macro_f1": 0.375}),
        ([1, 1, 1], 0, dict.fromkeys(CLASS_METRICS, 0.0)),
        ([1], 0, dict.fromkeys(CLASS_METRICS, 0.0)),
        ([1], 1, {"accuracy": 1.0, "matthews": 0.0, "f1": 1.0, "macro_f1": 1.0}),
    ],
)
def test_constant_labels_or_predictions_have_scores_without_warnings(labels, predicted, expected):
    assert metrics.score(CLASS_METRICS, np.array(labels), np.full(len(labels), predicted)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "labels, numbers, pearson, spearman",
    [
        (NUMBERS, 2 * NUMBERS - 7, 1, 1),
        (NUMBERS, -NUMBERS, -1, -1),
        (NUMBERS, np.exp(NUMBERS), stats.pearsonr(NUMBERS, np.exp(NUMBERS))[0], 1),
        # Around the means 2 and 2.5: Σ xy = 3 + 1.5 + 0 + 4.5 = 9, Σ x² = 4 + 1 + 0 + 9 = 14, Σ y² = 4 · 2.25 = 9.
        # Ranks 1, 2, 3, 4 and 1.5, 1.5, 3.5, 3.5; around 2.5: Σ xy = 4, Σ x² = 5, Σ y² = 4.
        (np.array([0.0, 1.0, 2.0, 5.0]), np.array([1.0, 1.0, 4.0, 4.0]), 9 / (14 * 9) ** 0.5, 4 / 20**0.5),
        # A regressor may start with tiny predictions: what counts are differences relative to their size.
        (NUMBERS, NUMBERS * 1e-9, 1, 1),
        (NUMBERS, np.full(4, 2.7), 0, 0),
        (NUMBERS, np.zeros(4), 0, 0),
        # Equal except for rounding: the output of a network that ignores its input.
        (NUMBERS, np.array([2.7, 2.7000003, 2.6999998, 2.7], np.float32), 0, 0),
        (NUMBERS, np.array([1, np.nan, 2, 3]), 0, 0),
        (NUMBERS, np.array([1, np.inf, 2, 3]), 0, 0),
        (np.full(4, 2.5), np.arange(4.0), 0, 0),
        (np.full(1, 2.5), np.arange(1.0), 0, 0),
    ],
)
def test_correlations_by_hand_and_0_where_they_are_undefined(labels, numbers, pearson, spearman):
    expected = {"pearson": pytest.approx(pearson), "spearman": pytest.approx(spearman)}
    assert metrics.score(NUMBER_METRICS, labels, numbers) == expected


@pytest.mark.parametrize(
    "names, labels, expected",
    [
        (("accuracy", "f1", "matthews"), np.array([1, 1, 1, 0, 0]), {"accuracy": 0.6, "f1": 0.75, "matthews": 0.0}),
        (("accuracy",), np.array([2, 0, 2, 1]), {"accuracy": 0.5}),
        (NUMBER_METRICS, np.array([0.1, 3.7, 4.9, 0.3], np.float32), {"pearson": 0.0, "spearman": 0.0}),
    ],
)
def test_the_majority_class_or_the_mean_is_the_baseline(names, labels, expected):
    assert metrics.majority_class_score(names, labels) == pytest.approx(expected)


@pytest.mark.parametrize(
    "predictions, labels, collapsed",
    [
        ([1, 1, 1], [1, 0, 1], True),
        ([1, 0, 1], [1, 0, 1], False),
        ([0, 2, 0], [1, 0, 1], False),
        ([1, 1, 1], [1, 1, 1], False),
        ([1.5, 1.5, 1.5], [0.0, 2.0, 5.0], True),
        ([1.5, 1.5000001, 1.5], [0.0, 2.0, 5.0], True),
        ([-1.5, -1.5000001, -1.5], [0.0, 2.0, 5.0], True),
        ([1.5, 1.501, 1.5], [0.0, 2.0, 5.0], False),
        ([0.0, 1e-9, 3e-9], [0.0, 2.0, 5.0], False),
        ([float("nan")] * 3, [0.0, 2.0, 5.0], True),
        ([1.5, 1.5, 1.5], [2.0, 2.0, 2.0], False),
    ],
)
def test_a_model_is_collapsed_if_it_predicts_the_same_for_different_labels(predictions, labels, collapsed):
    assert metrics.is_collapsed(np.array(predictions), np.array(labels)) is collapsed


@pytest.mark.parametrize(
    "name, task_name, expected",
    [
        ("accuracy", "CoLA", ("accuracy", "matthews")),
        ("f1", "CoLA", ("f1", "matthews", "accuracy")),
        ("macro_f1", "MNLI", ("macro_f1", "accuracy")),
        ("pearson", "STS-B", ("pearson", "spearman")),
    ],
)
def test_another_primary_metric_precedes_those_of_the_task(name, task_name, expected):
    assert metrics.with_primary(name, tasks.get(task_name)) == expected


@pytest.mark.parametrize(
    "name, task_name, facts",
    [
        ("acuracy", "CoLA", ["'acuracy'", "'accuracy'", "spearman"]),
        ("pearson", "CoLA", ["pearson", "CoLA", "2 classes", "accuracy, matthews, f1, macro_f1"]),
        ("accuracy", "STS-B", ["accuracy", "STS-B", "numbers", "pearson, spearman"]),
        ("f1", "MNLI", ["f1", "MNLI", "3 classes", "accuracy, matthews, macro_f1"]),
    ],
)
def test_a_metric_that_does_not_suit_the_task_is_an_error(name, task_name, facts):
    assert_mentions(message_of(metrics.with_primary, name, tasks.get(task_name)), *facts)


def test_scoring_errors():
    assert_mentions(message_of(metrics.score, ["accuracy", "mathews"], LABELS, CLASSES), "'mathews'", "'matthews'")
    for name in CLASS_METRICS:
        message = message_of(metrics.score, [name], np.array([0.5, 2.0]), np.array([0.5, 2.0]))
        assert_mentions(message, name, "pearson or spearman")
    for labels, classes in (np.zeros(0, int), np.zeros(0, int)), (np.array([0, 1]), np.array([0])):
        with pytest.raises(ValueError, match="Cannot compare"):
            metrics.score(["accuracy"], labels, classes)
