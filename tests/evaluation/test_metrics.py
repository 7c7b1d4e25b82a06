"""Metrics are those of scikit-learn, SciPy and of pencil and paper; none is ever undefined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from adapter_bert import tasks
from adapter_bert.common.errors import UserError
from adapter_bert.evaluation import metrics as scoring

CLASS_METRICS = ("accuracy", "matthews", "f1", "macro_f1")
NUMBER_METRICS = ("pearson", "spearman")

# True positives 4, false positives 1, false negatives 2, true negatives 3.
LABELS = np.array([1, 1, 1, 1, 0, 1, 1, 0, 0, 0])
CLASSES = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# ------------------------------------------------------------------------------------------ classes


def test_class_metrics_are_those_of_the_confusion_matrix():
    tp, fp, fn, tn = 4, 1, 2, 3
    scores = scoring.score(("matthews", "f1", "accuracy", "macro_f1"), LABELS, CLASSES)
    assert list(scores) == ["matthews", "f1", "accuracy", "macro_f1"]
    assert all(type(value) is float for value in scores.values())
    assert scores["accuracy"] == pytest.approx(0.7)
    root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert scores["matthews"] == pytest.approx((tp * tn - fp * fn) / root) == pytest.approx(0.40824829)
    f1_of_one, f1_of_zero = 2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fn + fp)
    assert scores["f1"] == pytest.approx(f1_of_one) == pytest.approx(8 / 11)
    assert scores["macro_f1"] == pytest.approx((f1_of_one + f1_of_zero) / 2) == pytest.approx(46 / 66)


def test_f1_is_that_of_class_1_and_not_symmetrical():
    flipped = scoring.score(("f1", "macro_f1", "matthews"), 1 - LABELS, 1 - CLASSES)
    assert flipped["f1"] == pytest.approx(2 * 3 / (2 * 3 + 2 + 1))
    assert flipped["macro_f1"] == pytest.approx(46 / 66)
    assert flipped["matthews"] == pytest.approx(0.40824829)


@pytest.mark.parametrize("seed", range(5))
def test_class_metrics_are_those_of_scikit_learn(seed):
    generator = np.random.RandomState(seed)
    labels, classes = generator.randint(0, 2, 50), generator.randint(0, 2, 50)
    assert scoring.score(CLASS_METRICS, labels, classes) == {
        "accuracy": sklearn.metrics.accuracy_score(labels, classes),
        "matthews": sklearn.metrics.matthews_corrcoef(labels, classes),
        "f1": sklearn.metrics.f1_score(labels, classes),
        "macro_f1": sklearn.metrics.f1_score(labels, classes, average="macro"),
    }


def test_three_classes_are_scored_too():
    labels, classes = np.array([0, 1, 2, 2, 1, 0]), np.array([0, 2, 2, 2, 1, 1])
    scores = scoring.score(CLASS_METRICS, labels, classes)
    assert scores["accuracy"] == pytest.approx(4 / 6)
    # Gorodkin's formula: (c·s - Σ p·t) / sqrt((s² - Σ p²)(s² - Σ t²)), with c = 4 right of s = 6, and of each class
    # p = 1, 2, 3 predicted and t = 2, 2, 2 true.
    assert scores["matthews"] == pytest.approx((4 * 6 - 12) / ((36 - 14) * (36 - 12)) ** 0.5)
    # Right 1, 1, 2 of each class: F1 is 2·right / (predicted + true).
    assert scores["f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 2 / 4 + 4 / 5) / 3)


@pytest.mark.parametrize("constant, f1, macro_f1", [(0, 0.0, 4 / 14), (1, 0.75, 0.375)])
def test_one_class_for_everything_has_no_correlation(constant, f1, macro_f1):
    labels = np.array([1, 1, 1, 0, 0])
    scores = scoring.score(("matthews", "f1", "macro_f1"), labels, np.full_like(labels, constant))
    assert scores == {"matthews": 0.0, "f1": pytest.approx(f1), "macro_f1": pytest.approx(macro_f1)}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("predicted", [0, 1])
def test_labels_of_one_class_only_are_scored_without_a_warning(count, predicted):
    labels = np.ones(count, np.int64)
    right = float(predicted)
    expected = {"accuracy": right, "matthews": 0.0, "f1": right, "macro_f1": right}
    assert scoring.score(CLASS_METRICS, labels, np.full(count, predicted)) == expected


# ------------------------------------------------------------------------------------------ numbers


def test_pearson_is_covariance_over_the_spreads():
    labels, numbers = np.array([0.0, 1.0, 2.0, 5.0]), np.array([1.0, 1.0, 4.0, 4.0])
    # Means 2 and 2.5: Σ xy = 3 + 1.5 + 0 + 4.5 = 9, Σ x² = 4 + 1 + 0 + 9 = 14, Σ y² = 4 · 2.25 = 9.
    pearson = scoring.score(["pearson"], labels, numbers)["pearson"]
    assert pearson == pytest.approx(9 / (14 * 9) ** 0.5)
    assert pearson == pytest.approx(np.corrcoef(labels, numbers)[0, 1])


def test_spearman_is_pearson_of_ranks_and_equals_share_theirs():
    labels, numbers = np.array([0.0, 2.5, 2.5, 5.0]), np.array([1.0, 1.0, 40.0, 3.0])
    ranks = np.array([1, 2.5, 2.5, 4]), np.array([1.5, 1.5, 4, 3])
    # Around the mean rank 2.5: Σ xy = 1.5 + 0 + 0 + 0.75, Σ x² = 4.5, Σ y² = 1 + 1 + 2.25 + 0.25.
    spearman = scoring.score(["spearman"], labels, numbers)["spearman"]
    assert spearman == pytest.approx(2.25 / (4.5 * 4.5) ** 0.5) == pytest.approx(0.5)
    assert spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_number_metrics_are_those_of_scipy(seed, dtype):
    generator = np.random.RandomState(seed)
    labels = np.round(generator.uniform(0, 5, 60), 1).astype(dtype)
    numbers = (labels + generator.normal(0, 1, 60)).astype(dtype)
    assert scoring.score(NUMBER_METRICS, labels, numbers) == {
        "pearson": pytest.approx(stats.pearsonr(labels, numbers)[0], abs=1e-6),
        "spearman": pytest.approx(stats.spearmanr(labels, numbers)[0], abs=1e-6),
    }


def test_more_is_better_of_every_number_metric():
    labels = np.array([0.0, 1.0, 3.0, 5.0])
    assert scoring.score(NUMBER_METRICS, labels, 2 * labels - 7) == {
        "pearson": pytest.approx(1),
        "spearman": pytest.approx(1),
    }
    assert scoring.score(NUMBER_METRICS, labels, -labels) == {
        "pearson": pytest.approx(-1),
        "spearman": pytest.approx(-1),
    }
    assert scoring.score(["spearman"], labels, np.exp(labels))["spearman"] == pytest.approx(1)


# Rounding as of a network whose output does not depend on its input.
NEARLY_CONSTANT = np.array([2.7, 2.7000003, 2.6999998, 2.7], np.float32)


@pytest.mark.parametrize(
    "numbers",
    [np.full(4, 2.7), np.zeros(4), NEARLY_CONSTANT, np.array([1, np.nan, 2, 3]), np.array([1, np.inf, 2, 3])],
    ids=["constant", "zero", "constant but for rounding", "nan", "infinite"],
)
def test_numbers_that_say_nothing_score_0_and_never_nan(numbers):
    labels = np.array([0.0, 1.0, 3.0, 5.0])
    assert scoring.score(NUMBER_METRICS, labels, numbers) == {"pearson": 0.0, "spearman": 0.0}


@pytest.mark.parametrize("count", [1, 4])
def test_labels_that_are_all_one_number_score_0(count):
    numbers = np.arange(count, dtype=np.float64)
    assert scoring.score(NUMBER_METRICS, np.full(count, 2.5), numbers) == {"pearson": 0.0, "spearman": 0.0}


def test_small_differences_of_small_numbers_count():
    """A young regressor predicts numbers close to 0: they are told apart by their own size, not by 1e-6."""
    labels = np.array([0.0, 1.0, 3.0, 5.0])
    assert scoring.score(["pearson"], labels, labels * 1e-9)["pearson"] == pytest.approx(1)
    assert not scoring.is_collapsed(labels * 1e-9, labels)


# ----------------------------------------------------------------------------- the mark to beat


def test_the_majority_class_sets_the_mark_to_beat():
    labels = np.array([1, 1, 1, 0, 0])
    scores = scoring.majority_class_score(("accuracy", "f1", "matthews"), labels)
    assert scores == {"accuracy": pytest.approx(0.6), "f1": pytest.approx(0.75), "matthews": 0.0}
    assert scoring.majority_class_score(("accuracy",), np.array([2, 0, 2, 1])) == {"accuracy": 0.5}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_for_every_example_sets_the_mark_0_of_a_regression(dtype):
    labels = np.array([0.1, 3.7, 4.9, 0.3], dtype)
    assert scoring.majority_class_score(NUMBER_METRICS, labels) == {"pearson": 0.0, "spearman": 0.0}


# ------------------------------------------------------------------------------------------ collapse


@pytest.mark.parametrize(
    "predictions, labels, collapsed",
    [
        ([1, 1, 1], [1, 0, 1], True),
        ([0, 0, 0], [1, 0, 1], True),
        ([1, 0, 1], [1, 0, 1], False),
        ([0, 2, 0], [1, 0, 1], False),
        ([1, 1, 1], [1, 1, 1], False),
        ([1.5, 1.5, 1.5], [0.0, 2.0, 5.0], True),
        ([0.0, 0.0, 0.0], [0.0, 2.0, 5.0], True),
        ([1.5, 1.5000001, 1.5], [0.0, 2.0, 5.0], True),
        ([-1.5, -1.5000001, -1.5], [0.0, 2.0, 5.0], True),
        ([1.5, 1.501, 1.5], [0.0, 2.0, 5.0], False),
        ([float("nan")] * 3, [0.0, 2.0, 5.0], True),
        ([1.5, 1.5, 1.5], [2.0, 2.0, 2.0], False),
    ],
)
def test_a_model_is_collapsed_when_it_says_one_thing_of_different_examples(predictions, labels, collapsed):
    assert scoring.is_collapsed(np.array(predictions), np.array(labels)) is collapsed


# ---------------------------------------------------------------------------- another primary metric


@pytest.mark.parametrize(
    "name, task_name, metrics",
    [
        ("accuracy", "CoLA", ("accuracy", "matthews")),
        ("matthews", "CoLA", ("matthews", "accuracy")),
        ("f1", "CoLA", ("f1", "matthews", "accuracy")),
        ("macro_f1", "MNLI", ("macro_f1", "accuracy")),
        ("pearson", "STS-B", ("pearson", "spearman")),
    ],
)
def test_another_metric_comes_first_and_the_task_s_own_stay(name, task_name, metrics):
    assert scoring.with_primary(name, tasks.get(task_name)) == metrics


@pytest.mark.parametrize(
    "name, task_name, message",
    [
        ("acuracy", "CoLA", "Unknown metric 'acuracy'. Did you mean 'accuracy'? Available: "),
        (
            "pearson",
            "CoLA",
            "The metric pearson does not suit CoLA, which has 2 classes; use one of: accuracy, matthews,",
        ),
        (
            "accuracy",
            "STS-B",
            "The metric accuracy does not suit STS-B, which has numbers; use one of: pearson, spearman.",
        ),
        (
            "f1",
            "MNLI",
            "The metric f1 does not suit MNLI, which has 3 classes; use one of: accuracy, matthews, macro_f1.",
        ),
    ],
)
def test_a_metric_that_does_not_suit_the_task_is_refused(name, task_name, message):
    with pytest.raises(UserError) as caught:
        scoring.with_primary(name, tasks.get(task_name))
    assert str(caught.value).startswith(message)


# ------------------------------------------------------------------------------------------ errors


def test_an_unknown_metric_suggests_the_nearest_and_lists_all():
    with pytest.raises(UserError, match="Unknown metric 'mathews'. Did you mean 'matthews'\\? Available: accuracy, "):
        scoring.score(("accuracy", "mathews"), LABELS, CLASSES)


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_a_metric_of_classes_is_refused_for_numbers(name):
    with pytest.raises(UserError, match=f"metric {name} compares classes, but the labels are numbers; use pearson or"):
        scoring.score([name], np.array([0.5, 2.0]), np.array([0.5, 2.0]))


@pytest.mark.parametrize("labels, classes", [([], []), ([0, 1], [0])])
def test_nothing_cannot_be_scored(labels, classes):
    with pytest.raises(ValueError, match="cannot be compared"):
        scoring.score(["accuracy"], np.array(labels, np.int64), np.array(classes, np.int64))
