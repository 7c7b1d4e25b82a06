"""SQuAD scores are those of the official scripts: by hand, and to the last digit compared with another program."""

from __future__ import annotations

import json
import os
import types
from typing import Dict, List, Mapping, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.evaluation.squad_metrics import Golds, normalize, score_v1, score_v2
from adapter_bert.tasks import squad
from tests.helpers import SHARED, assert_mentions, message_of


@pytest.mark.parametrize(
    "text, normalized",
    [
        ("The Cat's-eye, a  U.S.\ttheatre!", "catseye us theatre"),
        ("an  apple\u00a0a day\n", "apple day"),
        (" ?! the", ""),
        # "a." is an article once its full stop is removed; "a1" and "Athens" are not.
        ("A. a1 Athens", "a1 athens"),
        # Only ASCII punctuation is removed, but other punctuation delimits articles.
        ("1914–1918", "1914–1918"),
        ("l’a été", "l’ été"),
        ("“The End”", "“ end”"),
        ("ΝΊΚΗ İ", "νίκη i̇"),
    ],
)
def test_texts_are_compared_without_case_punctuation_articles_and_spacing(text, normalized):
    assert normalize(text) == normalized
    assert score_v1({"q": [text]}, {"q": normalized})["exact_match"] == 100.0


@pytest.mark.parametrize(
    "prediction, gold, f1",
    [
        ("Denver", "Denver Broncos", 2 / 3),
        ("in the city of Denver", "Denver", 2 / 5),
        ("big big cat", "big cat cat", 2 / 3),  # bags, not sets
        ("cat big", "big cat", 1),
    ],
)
def test_f1_is_that_of_the_common_tokens(prediction, gold, f1):
    for one, other in ((prediction, gold), (gold, prediction)):
        assert score_v1({"q": [one]}, {"q": other})["f1"] == pytest.approx(100 * f1)
        assert score_v2({"q": [one]}, {"q": other})["f1"] == pytest.approx(100 * f1)


@pytest.mark.parametrize("prediction", ["", "the", "?"])
@pytest.mark.parametrize("gold", ["", "a", "!"])
def test_two_texts_without_tokens_have_f1_only_in_version_2(prediction, gold):
    assert score_v1({"q": [gold]}, {"q": prediction}) == {"exact_match": 100.0, "f1": 0.0}
    assert score_v2({"q": [gold]}, {"q": prediction})["f1"] == 100.0
    assert score_v1({"q": ["Denver"]}, {"q": prediction})["f1"] == 0.0
    assert score_v2({"q": ["Denver"]}, {"q": prediction})["f1"] == 0.0


def test_version_1_uses_the_best_gold_and_counts_a_missing_prediction_as_wrong():
    golds = {"q1": ["Denver", "Denver Broncos"], "q2": ["1996"], "q3": ["the blue", "light blue"], "q4": ["ten"]}
    predictions = {"q3": "the dark blue", "q1": "Broncos", "q2": "1996.", "elsewhere": "ten"}
    # F1: q1 2/3 with the second gold, q2 1, q3 2/3 with "blue" against 1/2, q4 0.
    scores = score_v1(golds, predictions)
    assert list(scores.items()) == [("exact_match", 25.0), ("f1", pytest.approx(100 * (2 / 3 + 1 + 2 / 3 + 0) / 4))]
    assert score_v1(golds, {}) == {"exact_match": 0.0, "f1": 0.0}


GOLDS = {"q1": ["Denver", "Denver Broncos"], "n1": [], "q2": ["1996"], "n2": [], "q3": ["!", "the"]}
PREDICTIONS = {"q1": "Broncos", "n1": "", "q2": "1996", "n2": "a blue one", "q3": ""}
ODDS = {"q1": -1.0, "n1": 0.5, "q2": -2.0, "n2": 2.0, "q3": 3.0}


def test_version_2_distinguishes_questions_with_and_without_an_answer():
    scores = score_v2(GOLDS, PREDICTIONS)
    # The answers to q3 have no tokens: an empty prediction is correct.
    assert list(scores.items()) == [
        ("exact", 60.0),
        ("f1", pytest.approx(100 * (2 / 3 + 1 + 1 + 0 + 1) / 5)),
        ("total", 5),
        ("HasAns_exact", pytest.approx(200 / 3)),
        ("HasAns_f1", pytest.approx(100 * (2 / 3 + 1 + 1) / 3)),
        ("HasAns_total", 3),
        ("NoAns_exact", 50.0),
        ("NoAns_f1", 50.0),
        ("NoAns_total", 2),
    ]
    assert all(type(value) is (int if name.endswith("total") else float) for name, value in scores.items())
    for questions, prefix in ((("q1", "q2"), "HasAns_"), (("n1", "n2"), "NoAns_")):
        scores = score_v2({question: GOLDS[question] for question in questions}, PREDICTIONS)
        assert list(scores) == ["exact", "f1", "total"] + [prefix + name for name in ("exact", "f1", "total")]


def test_version_2_ignores_questions_without_a_prediction():
    predicted = {question: PREDICTIONS[question] for question in ("q2", "n2", "q1")}
    golds = {question: GOLDS[question] for question in ("q1", "q2", "n2")}
    assert score_v2(golds, predicted)["total"] == 3
    for odds in (None, ODDS):
        assert score_v2(GOLDS, predicted, odds) == score_v2(golds, predicted, odds)


@pytest.mark.parametrize(
    "threshold, num_correct",
    [
        (9.0, 3),  # n1, q2, q3
        (2.0, 2),  # q3 has an answer, so no answer is wrong. n2, at the threshold, keeps its prediction.
        (1.0, 3),  # n1, q2, n2
        (-9.0, 2),  # n1, n2
    ],
)
def test_null_odds_above_the_threshold_turn_a_prediction_into_no_answer(threshold, num_correct):
    scores = score_v2(GOLDS, PREDICTIONS, ODDS, threshold)
    assert scores["exact"] == pytest.approx(100 * num_correct / 5)
    assert score_v2(GOLDS, PREDICTIONS, ODDS, 1.0) == score_v2(GOLDS, PREDICTIONS, ODDS)


def test_the_best_threshold_answers_questions_by_rising_null_odds():
    scores = score_v2(GOLDS, PREDICTIONS, ODDS)
    # n1 and n2 are correct without answers. Then in the order of the odds, exact: q2 +1, q1 +0, n1 +0 (it is empty),
    # n2 -1, q3 +1; F1 is the same except q1 +2/3. Of two thresholds with three correct, the first is kept.
    assert list(scores.items())[-4:] == [
        ("best_exact", 60.0),
        ("best_exact_thresh", -2.0),
        ("best_f1", pytest.approx(100 * (2 + 1 + 2 / 3) / 5)),
        ("best_f1_thresh", -1.0),
    ]
    other = score_v2(GOLDS, PREDICTIONS, ODDS, threshold=-9.0)
    assert list(other.items())[-4:] == list(scores.items())[-4:], "independent of the threshold in use"


def test_where_no_answer_is_best_the_caller_sets_the_threshold():
    wrong = dict.fromkeys(GOLDS, "x")
    odds = {"q1": -5.0, "n1": -4.0, "q2": -2.0, "n2": -2.0, "q3": -3.0}
    scores = score_v2(GOLDS, wrong, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (40.0, 0.0)
    scores = score_v2(GOLDS, wrong, odds, none_threshold=-6.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (40.0, -6.0)
    assert score_v2(GOLDS, wrong, odds, threshold=-6.0)["f1"] == 40.0


def test_equal_null_odds_are_taken_in_their_order():
    """The best score may lie between questions that no threshold separates, as in the official script."""
    golds, predictions = {"n": [], "q": ["yes"]}, {"n": "no", "q": "yes"}
    assert score_v2(golds, predictions, {"q": 0.5, "n": 0.5})["best_exact"] == 100.0
    assert score_v2(golds, predictions, {"n": 0.5, "q": 0.5})["best_exact"] == 50.0


@pytest.mark.parametrize(
    "function, args, facts",
    [
        (score_v1, [{}, {}], ["no questions"]),
        (score_v1, [{"q": ["x"], "n": []}, {}], ["'n'", "1.1", "2.0"]),
        (score_v2, [GOLDS, {"x": ""}], ["5 questions"]),
        (score_v2, [GOLDS, PREDICTIONS, {"q1": 0.0, "n1": 0.0, "q2": 0.0}], ["2 questions", "'n2'", "null odds"]),
    ],
)
def test_scoring_errors(function, args, facts):
    assert_mentions(message_of(function, *args), *facts)


# Comparison with another program.


@pytest.fixture(scope="module")
def hugging_face():
    """Hugging Face's copy of evaluate-v2.0.py."""
    return pytest.importorskip("transformers.data.metrics.squad_metrics")


def check_version_1(golds: Golds, predictions: Mapping[str, str], library) -> None:
    """Compare to the last digit with Hugging Face's functions for version 2.0, but F1 0 for texts without tokens."""

    def f1(gold: str, text: str) -> float:
        return library.compute_f1(gold, text) if library.get_tokens(gold) and library.get_tokens(text) else 0

    exact = f1_sum = 0
    for question, texts in golds.items():
        if question in predictions:
            exact += max(library.compute_exact(gold, predictions[question]) for gold in texts)
            f1_sum += max(f1(gold, predictions[question]) for gold in texts)
    expected = {"exact_match": 100.0 * exact / len(golds), "f1": 100.0 * f1_sum / len(golds)}
    assert json.dumps(score_v1(golds, predictions)) == json.dumps(expected)


def check_version_2(
    golds: Golds, predictions: Mapping[str, str], odds: Optional[Mapping[str, float]], threshold: float, library
) -> None:
    """Compare to the last digit, including keys and their order."""
    examples = [
        types.SimpleNamespace(qas_id=question, answers=[{"text": text} for text in texts])
        for question, texts in golds.items()
        if question in predictions
    ]
    expected = library.squad_evaluate(examples, predictions, odds, threshold)
    if odds is None:  # Hugging Face fits a threshold anyway; the official script does not
        expected = {name: value for name, value in expected.items() if not name.startswith("best_")}
    assert json.dumps(score_v2(golds, predictions, odds, threshold), indent=2) == json.dumps(expected, indent=2)


WORDS = ["the", "A", "an", "cat", "Cat's", "1914–1918", "U.S.", "$3.5", "l’eau", "été", "ΝΊΚΗ", "—", "?", "of", "sea"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
# (gold texts, prediction or None, ten times the null odds).
QUESTIONS = st.lists(
    st.tuples(st.lists(TEXTS, max_size=4), st.none() | TEXTS, st.integers(-20, 20)), min_size=1, max_size=30
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(questions=QUESTIONS)
def test_random_questions_score_as_in_another_program(hugging_face, questions):
    golds = {f"q{number}": texts for number, (texts, _, _) in enumerate(questions)}
    # In another order than the questions.
    reverse = list(reversed(list(enumerate(questions))))
    predictions = {f"q{number}": text for number, (_, text, _) in reverse if text is not None}
    odds = {"unknown": 0.0, **{f"q{number}": tenths / 10 for number, (_, _, tenths) in reverse}}
    answerable = {question: texts or ["sea"] for question, texts in golds.items()}
    check_version_1(answerable, predictions, hugging_face)
    if predictions:
        for given_odds, threshold in ((None, 1.0), (odds, 1.0), (odds, -0.5)):
            check_version_2(golds, predictions, given_odds, threshold, hugging_face)


@pytest.fixture(scope="module")
def real_golds() -> List[Dict[str, List[str]]]:
    """Gold texts of the dev files of versions 1.1 and 2.0."""
    paths = [os.path.join(SHARED, "data", "squad", f"dev-v{version}.rebuilt.json") for version in ("1.1", "2.0")]
    if not all(map(os.path.exists, paths)):
        pytest.skip(f"{' or '.join(paths)} does not exist")
    return [squad.read(path).golds() for path in paths]


def make_predictions(golds: Golds) -> Dict[str, str]:
    """Return predictions for nine of ten questions: variants of a gold text, another question's, or no answer."""
    predictions, other = {}, "Denver"
    for number, (question, texts) in enumerate(golds.items()):
        text = texts[-1] if texts else ""
        words = text.split()
        variants = [text, " ".join(words[1:]), f"{text} and {other}", f"The {text}, a {text}", text.swapcase() + "!?"]
        variants += ["-".join(words), "  \u00a0".join(words) + "\t\n", other, "", f"“{text} – l’a” é\u0301ß"]
        if number % 11:
            predictions[question] = variants[number % 10] if texts or number % 3 else ""
        other = text or other
    return dict(reversed(list(predictions.items())))


def test_the_real_files_score_as_in_another_program(real_golds, hugging_face):
    golds_v1, golds_v2 = real_golds
    predictions = make_predictions(golds_v1)
    scores = score_v1(golds_v1, predictions)
    assert 5 < scores["exact_match"] < scores["f1"] < 95
    check_version_1(golds_v1, predictions, hugging_face)
    predictions = make_predictions(golds_v2)
    odds = {question: len(text) * 7 % 41 / 10 - 2 + (not golds_v2[question]) for question, text in predictions.items()}
    for given_odds, threshold in ((None, 1.0), (odds, 1.0), (odds, 0.1)):
        check_version_2(golds_v2, predictions, given_odds, threshold, hugging_face)


def test_gold_texts_and_no_answers_on_the_real_files(real_golds):
    golds_v1, golds_v2 = real_golds
    golden = {question: texts[0] for question, texts in golds_v1.items()}
    assert score_v1(golds_v1, golden) == {"exact_match": 100.0, "f1": 100.0}
    golden = {question: texts[0] if texts else "" for question, texts in golds_v2.items()}
    scores = score_v2(golds_v2, golden)
    assert scores["exact"] == scores["f1"] == scores["HasAns_f1"] == scores["NoAns_exact"] == 100.0
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (11873, 5928, 5945)
    scores = score_v2(golds_v2, dict.fromkeys(golds_v2, ""))
    assert scores["exact"] == scores["f1"] == 100.0 * 5945 / 11873 == 50.07159100480081
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (0.0, 100.0)
