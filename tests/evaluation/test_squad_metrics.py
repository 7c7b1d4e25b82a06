"""Scores of SQuAD are those of the official scripts: by pencil and paper, and to the last digit by other programs."""

from __future__ import annotations

import collections
import fractions
import json
import os
import random
import re
import string
import subprocess
import sys
import types
from typing import Dict, List, Mapping, Optional, Sequence

import pytest

from adapter_bert.evaluation import squad_metrics
from adapter_bert.tasks import squad
from scripts import score_squad
from tests.helpers import ROOT, SHARED, message_of

Golds = Mapping[str, Sequence[str]]
REAL_V1 = os.path.join(SHARED, "data", "squad", "dev-v1.1.rebuilt.json")
REAL_V2 = os.path.join(SHARED, "data", "squad", "dev-v2.0.rebuilt.json")

# ---------------------------------------------------------------------------------------- pencil and paper


@pytest.mark.parametrize(
    "text, normalized",
    [
        ("The Cat's-eye, a  U.S.\ttheatre!", "catseye us theatre"),
        ("an  apple\u00a0a day\n", "apple day"),
        ("the", ""),
        (" ?! ", ""),
        ("", ""),
        # "a." is an article once its full stop is gone, "a1" and "Athens" are none.
        ("A. a1 Athens", "a1 athens"),
        # Only ASCII punctuation goes; but an article ends at what is left of it.
        ("1914–1918", "1914–1918"),
        ("l’a été", "l’ été"),
        ("“The End”", "“ end”"),
        ("$3.5 million (2.6%)", "35 million 26"),
        ("ΝΊΚΗ İ", "νίκη i̇"),
    ],
)
def test_texts_are_compared_without_case_punctuation_articles_and_spacing(text, normalized):
    assert squad_metrics.normalize(text) == normalized
    assert squad_metrics.exact(text, normalized) == 1


@pytest.mark.parametrize(
    "prediction, gold, f1",
    [
        ("Denver Broncos", "the denver broncos.", 1),
        ("Denver", "Denver Broncos", 2 / 3),
        ("in the city of Denver", "Denver", 2 / 5),
        ("Carolina", "Denver Broncos", 0),
        # Bags, not sets: two of three tokens on either side.
        ("big big cat", "big cat cat", 2 / 3),
        ("cat big", "big cat", 1),
        ("", "Denver", 0),
        ("the", "Denver", 0),
    ],
)
def test_f1_is_that_of_the_tokens_in_common(prediction, gold, f1):
    for one, other in ((prediction, gold), (gold, prediction)):
        assert squad_metrics.f1_v1(one, other) == pytest.approx(f1)
        assert squad_metrics.f1_v2(one, other) == pytest.approx(f1)


@pytest.mark.parametrize("prediction", ["", "the", "?"])
@pytest.mark.parametrize("gold", ["", "a", "!"])
def test_two_texts_without_tokens_agree_in_version_2_alone(prediction, gold):
    assert squad_metrics.exact(prediction, gold) == 1
    assert squad_metrics.f1_v1(prediction, gold) == 0
    assert squad_metrics.f1_v2(prediction, gold) == 1


def test_version_1_takes_the_best_gold_and_counts_a_missing_prediction_as_wrong():
    golds = {"q1": ["Denver", "Denver Broncos"], "q2": ["1996"], "q3": ["the blue", "light blue"], "q4": ["ten"]}
    predictions = {"q3": "the dark blue", "q1": "Broncos", "q2": "1996.", "elsewhere": "ten"}
    # F1: q1 2/3 with the second gold, q2 1, q3 2/3 with "blue" against 1/2, q4 0.
    assert squad_metrics.score_v1(golds, predictions) == {
        "exact_match": 25.0,
        "f1": pytest.approx(100 * (2 / 3 + 1 + 2 / 3 + 0) / 4),
    }
    assert list(squad_metrics.score_v1(golds, predictions)) == ["exact_match", "f1"]
    assert squad_metrics.score_v1(golds, {}) == {"exact_match": 0.0, "f1": 0.0}


def test_version_1_keeps_golds_without_tokens():
    """The exact match is one, and the F1 nevertheless 0: so it is in the official script."""
    assert squad_metrics.score_v1({"q": ["the"]}, {"q": "A"}) == {"exact_match": 100.0, "f1": 0.0}


GOLDS = {"q1": ["Denver", "Denver Broncos"], "n1": [], "q2": ["1996"], "n2": [], "q3": ["!", "the"]}
PREDICTIONS = {"q1": "Broncos", "n1": "", "q2": "1996", "n2": "a blue one", "q3": ""}


def test_version_2_tells_questions_with_and_without_an_answer_apart():
    scores = squad_metrics.score_v2(GOLDS, PREDICTIONS)
    # q3 has an answer, but none with a token: right is to say nothing.
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


def test_version_2_leaves_out_questions_without_a_prediction():
    predicted = {question: PREDICTIONS[question] for question in ("q2", "n2", "q1")}
    golds = {question: GOLDS[question] for question in ("q1", "q2", "n2")}
    odds = dict.fromkeys(GOLDS, 0.5)
    assert squad_metrics.score_v2(GOLDS, predicted) == squad_metrics.score_v2(golds, predicted)
    assert squad_metrics.score_v2(GOLDS, predicted, odds) == squad_metrics.score_v2(golds, predicted, odds)
    assert squad_metrics.score_v2(golds, predicted)["total"] == 3


@pytest.mark.parametrize("questions, prefix", [(("q1", "q2"), "HasAns_"), (("n1", "n2"), "NoAns_")])
def test_version_2_speaks_of_no_group_that_is_empty(questions, prefix):
    scores = squad_metrics.score_v2({question: GOLDS[question] for question in questions}, PREDICTIONS)
    assert list(scores) == ["exact", "f1", "total"] + [prefix + name for name in ("exact", "f1", "total")]


@pytest.mark.parametrize(
    "threshold, right",
    [
        (9.0, {"q1": 0, "n1": 1, "q2": 1, "n2": 0, "q3": 1}),
        # At the threshold itself the prediction counts; above it, silence does. Silence is wrong for q3 then: it has
        # an answer.
        (2.0, {"q1": 0, "n1": 1, "q2": 1, "n2": 0, "q3": 0}),
        (1.0, {"q1": 0, "n1": 1, "q2": 1, "n2": 1, "q3": 0}),
        (-9.0, {"q1": 0, "n1": 1, "q2": 0, "n2": 1, "q3": 0}),
    ],
)
def test_null_odds_above_the_threshold_make_a_prediction_empty(threshold, right):
    odds = {"q1": -1.0, "n1": 0.5, "q2": -2.0, "n2": 2.0, "q3": 3.0}
    scores = squad_metrics.score_v2(GOLDS, PREDICTIONS, odds, threshold)
    assert scores["exact"] == pytest.approx(100 * sum(right.values()) / 5)
    if threshold == 1.0:
        assert scores == squad_metrics.score_v2(GOLDS, PREDICTIONS, odds)


def test_the_best_threshold_is_searched_from_the_surest_answer_on():
    odds = {"q1": -1.0, "n1": 0.5, "q2": -2.0, "n2": 2.0, "q3": 3.0}
    scores = squad_metrics.score_v2(GOLDS, PREDICTIONS, odds)
    # Right by saying nothing: n1 and n2. Then in the order of the odds, exact: q2 +1, q1 +0, n1 +0 (it is empty),
    # n2 -1, q3 +1; F1 the same but q1 +2/3. Of the two thresholds with three right, the first is kept.
    assert list(scores)[-4:] == ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (60.0, -2.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * (2 + 1 + 2 / 3) / 5), -1.0)
    # What the threshold is now does not change the search.
    other = squad_metrics.score_v2(GOLDS, PREDICTIONS, odds, threshold=-9.0)
    assert list(other.items())[-4:] == list(scores.items())[-4:]


def test_where_silence_is_best_the_threshold_is_the_callers():
    wrong = {"q1": "x", "n1": "x", "q2": "x", "n2": "x", "q3": "x"}
    odds = {"q1": -5.0, "n1": -4.0, "q2": -2.0, "n2": -2.0, "q3": -3.0}
    scores = squad_metrics.score_v2(GOLDS, wrong, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (40.0, 0.0)
    scores = squad_metrics.score_v2(GOLDS, wrong, odds, none_threshold=-6.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (40.0, -6.0)
    assert squad_metrics.score_v2(GOLDS, wrong, odds, threshold=-6.0)["f1"] == 40.0


def test_equal_null_odds_are_taken_in_their_own_order():
    """The best may lie between questions that no threshold tells apart: so it is in the official script."""
    golds, predictions = {"n": [], "q": ["yes"]}, {"n": "no", "q": "yes"}
    assert squad_metrics.score_v2(golds, predictions, {"q": 0.5, "n": 0.5})["best_exact"] == 100.0
    assert squad_metrics.score_v2(golds, predictions, {"n": 0.5, "q": 0.5})["best_exact"] == 50.0


def test_what_cannot_be_scored_is_refused():
    assert message_of(squad_metrics.score_v1, {}, {}) == "There is no question to score."
    assert message_of(squad_metrics.score_v1, {"q": ["x"], "n": []}, {}) == (
        "Question 'n' has no answer, and version 1.1 scores none but questions that have one; score with version 2.0."
    )
    assert message_of(squad_metrics.score_v2, GOLDS, {"x": ""}) == (
        "None of the 5 questions has a prediction: there is nothing to score."
    )
    assert message_of(squad_metrics.score_v2, GOLDS, PREDICTIONS, {"q1": 0.0, "n1": 0.0, "q2": 0.0}) == (
        "Question 'n2' has a prediction but no null odds (2 such questions); give the null odds of the model that made "
        "the predictions."
    )


# ------------------------------------------------------------------------------------------ other programs


def perturbed(text: str, other: str, generator: random.Random) -> str:
    """A text near a gold one: what models predict, and worse."""
    words = text.split() or [""]
    cut = generator.randrange(len(words))
    kind = generator.randrange(14)
    if kind < 3:
        return text
    return [
        " ".join(words[: cut + 1]),
        " ".join(words[cut:]),
        f"{text} and {other}",
        f"The {text}, a {text}",
        text.upper(),
        text.swapcase() + "!?",
        "-".join(words),
        "  \u00a0".join(words) + "\t\n",
        " ".join(generator.sample(words, len(words))),
        other,
        "“" + text.replace(" ", " – l’a ") + "” é\u0301ß",
    ][kind - 3]


def make_predictions(golds: Golds, seed: int, part_missing: float = 0.0) -> Dict[str, str]:
    """A prediction for most questions: near a gold text, empty, of articles only, or of another question."""
    generator = random.Random(seed)
    all_texts = [text for texts in golds.values() for text in texts]
    predictions = {}
    for question, texts in golds.items():
        if generator.random() < part_missing:
            continue
        text, other = generator.choice(texts or [""]), generator.choice(all_texts)
        if texts and generator.random() < 0.9:
            predictions[question] = perturbed(text, other, generator)
        else:
            predictions[question] = generator.choice(["", "", "", "the", "?", other])
    questions = list(predictions)
    generator.shuffle(questions)  # whoever predicts, may do so in another order
    return {question: predictions[question] for question in questions}


def make_null_odds(questions: Sequence[str], golds: Golds, seed: int) -> Dict[str, float]:
    """Null odds that know something, with many ties; in an order of their own, and of some unknown questions."""
    generator = random.Random(seed)
    questions = [*questions, "unknown 1", "unknown 2"]
    generator.shuffle(questions)
    return {question: round(generator.gauss(0 if golds.get(question) else 1.5, 1.5), 1) for question in questions}


def synthetic_golds(seed: int, part_unanswerable: float = 0.0, count: int = 400) -> Dict[str, List[str]]:
    """Made-up questions with one to five gold texts, some of which have no tokens."""
    generator = random.Random(seed)
    words = [
        "the",
        "A",
        "an",
        "cat",
        "Cat's",
        "1914–1918",
        "U.S.",
        "$3.5",
        "l’eau",
        "été",
        "ΝΊΚΗ",
        "—",
        "?",
        "of",
        "sea",
    ]
    golds = {}
    for number in range(count):
        texts = [" ".join(generator.choice(words) for _ in range(generator.randint(1, 6))) for _ in range(5)]
        texts = [generator.choice(texts) for _ in range(generator.randint(1, 5))]
        golds[f"id{number}"] = [] if generator.random() < part_unanswerable else texts
    return golds


def real_golds(path: str) -> Dict[str, List[str]]:
    if not os.path.exists(path):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {path}")
    return squad.read(path).golds()


@pytest.fixture(scope="module")
def golds_v1() -> Dict[str, List[str]]:
    return real_golds(REAL_V1)


@pytest.fixture(scope="module")
def golds_v2() -> Dict[str, List[str]]:
    return real_golds(REAL_V2)


@pytest.fixture(scope="module")
def hugging_face():
    """Hugging Face's copy of evaluate-v2.0.py."""
    return pytest.importorskip("transformers.data.metrics.squad_metrics")


def tokens_otherwise(text: str) -> List[str]:
    """Tokens by one split at white space and articles, where ours replaces articles and then splits."""
    bare = re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower())
    return [token for token in re.split(r"\s+|\b(?:the|an?)\b", bare) if token]


def rational_f1(prediction: str, gold: str) -> fractions.Fraction:
    """Dice's coefficient of the bags, in whole numbers: F1 without precision and recall."""
    left, right = collections.Counter(tokens_otherwise(prediction)), collections.Counter(tokens_otherwise(gold))
    common = sum(min(count, right[token]) for token, count in left.items())
    return fractions.Fraction(2 * common, max(sum(left.values()) + sum(right.values()), 1))


def check_version_1_with_fractions(golds: Golds, predictions: Mapping[str, str]) -> None:
    pairs = [(predictions[question], texts) for question, texts in golds.items() if question in predictions]
    right = sum(any(tokens_otherwise(text) == tokens_otherwise(gold) for gold in texts) for text, texts in pairs)
    f1 = sum(max(rational_f1(text, gold) for gold in texts) for text, texts in pairs)
    scores = squad_metrics.score_v1(golds, predictions)
    assert scores["exact_match"] == 100.0 * right / len(golds)
    assert scores["f1"] == pytest.approx(float(100 * f1 / len(golds)), rel=1e-12)
    assert 5 < scores["exact_match"] < scores["f1"] < 95  # else this would say little


def check_version_1_with_hugging_face(golds: Golds, predictions: Mapping[str, str], hugging_face) -> None:
    """To the last digit, where texts have tokens; where they have none, version 1.1 has 0."""

    def f1(gold: str, text: str) -> float:
        has_tokens = hugging_face.get_tokens(gold) and hugging_face.get_tokens(text)
        return hugging_face.compute_f1(gold, text) if has_tokens else 0

    right = f1_sum = 0
    for question, texts in golds.items():
        if question in predictions:
            right += max(hugging_face.compute_exact(gold, predictions[question]) for gold in texts)
            f1_sum += max(f1(gold, predictions[question]) for gold in texts)
    expected = {"exact_match": 100.0 * right / len(golds), "f1": 100.0 * f1_sum / len(golds)}
    assert json.dumps(squad_metrics.score_v1(golds, predictions)) == json.dumps(expected)


def check_version_2(
    golds: Golds, predictions: Mapping[str, str], odds: Optional[Mapping[str, float]], threshold: float, hugging_face
) -> None:
    """To the last digit, keys and order included: what is printed is compared."""
    examples = [
        types.SimpleNamespace(qas_id=question, answers=[{"text": text} for text in texts])
        for question, texts in golds.items()
        if question in predictions
    ]
    expected = hugging_face.squad_evaluate(examples, predictions, odds, threshold)
    if odds is None:  # Hugging Face searches then too, the official script does not
        expected = {name: value for name, value in expected.items() if not name.startswith("best_")}
    scores = squad_metrics.score_v2(golds, predictions, odds, threshold)
    assert json.dumps(scores, indent=2) == json.dumps(expected, indent=2)


@pytest.mark.parametrize("seed", range(5))
def test_version_1_is_that_of_rational_numbers_on_made_up_questions(seed):
    golds = synthetic_golds(seed)
    golds = {
        question: [text for text in texts if tokens_otherwise(text)] or ["sea"] for question, texts in golds.items()
    }
    check_version_1_with_fractions(golds, make_predictions(golds, seed, part_missing=0.1))


@pytest.mark.parametrize("seed", range(5))
def test_made_up_questions_score_as_at_hugging_face(seed, hugging_face):
    golds = synthetic_golds(seed)
    check_version_1_with_hugging_face(golds, make_predictions(golds, seed, part_missing=0.1), hugging_face)
    golds = synthetic_golds(seed, part_unanswerable=0.5)
    predictions = make_predictions(golds, seed, part_missing=0.1)
    odds = make_null_odds(list(predictions), golds, seed)
    for given, threshold in ((None, 1.0), (odds, 1.0), (odds, -0.5)):
        check_version_2(golds, predictions, given, threshold, hugging_face)


@pytest.mark.parametrize("seed", range(2))
def test_version_1_is_that_of_rational_numbers_on_the_real_file(seed, golds_v1):
    check_version_1_with_fractions(golds_v1, make_predictions(golds_v1, seed, part_missing=0.02 * seed))


@pytest.mark.parametrize("seed", range(2))
def test_the_real_file_of_version_1_scores_as_at_hugging_face(seed, golds_v1, hugging_face):
    predictions = make_predictions(golds_v1, seed, part_missing=0.02 * seed)
    check_version_1_with_hugging_face(golds_v1, predictions, hugging_face)


@pytest.mark.parametrize("seed", range(2))
def test_the_real_file_of_version_2_scores_as_at_hugging_face(seed, golds_v2, hugging_face):
    predictions = make_predictions(golds_v2, seed, part_missing=0.02 * seed)
    odds = make_null_odds(list(predictions), golds_v2, seed)
    for given, threshold in ((None, 1.0), (odds, 1.0), (odds, 0.1)):
        check_version_2(golds_v2, predictions, given, threshold, hugging_face)


def test_gold_texts_as_predictions_are_right_on_the_real_files(golds_v1, golds_v2):
    best = {question: texts[0] for question, texts in golds_v1.items()}
    assert squad_metrics.score_v1(golds_v1, best) == {"exact_match": 100.0, "f1": 100.0}
    best = {question: texts[0] if texts else "" for question, texts in golds_v2.items()}
    scores = squad_metrics.score_v2(golds_v2, best)
    assert scores["exact"] == scores["f1"] == scores["HasAns_f1"] == scores["NoAns_exact"] == 100.0
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (11873, 5928, 5945)


def test_the_three_gold_texts_of_the_real_files_that_are_a_full_stop_follow_the_rules(golds_v1, golds_v2):
    """In version 1.1 such a text has F1 0 even with itself; in 2.0 it is no gold text at all."""
    for golds in (golds_v1, golds_v2):
        assert sum(not squad_metrics.normalize(text) for texts in golds.values() for text in texts) == 3
        assert sum("." in texts for texts in golds.values()) == 3
    stops = {question: "." if "." in texts else texts[0] for question, texts in golds_v1.items()}
    assert squad_metrics.score_v1(golds_v1, stops) == {"exact_match": 100.0, "f1": 100.0 * 10567 / 10570}
    stops = {question: "." for question, texts in golds_v2.items() if "." in texts}
    scores = squad_metrics.score_v2(golds_v2, stops)
    assert (scores["total"], scores["HasAns_exact"], scores["HasAns_f1"]) == (3, 0.0, 0.0)


def test_silence_scores_the_share_of_unanswerable_questions_on_the_real_file(golds_v2):
    """50.07: what the official script gives for empty predictions on dev-v2.0."""
    scores = squad_metrics.score_v2(golds_v2, dict.fromkeys(golds_v2, ""))
    assert scores["exact"] == scores["f1"] == 100.0 * 5945 / 11873 == 50.07159100480081
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (0.0, 100.0)


# ---------------------------------------------------------------------------------------------- the script


def write(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def write_dataset(path, golds: Golds, says_impossible: bool = True) -> str:
    questions = []
    for question, texts in golds.items():
        answers = [{"text": text, "answer_start": 0} for text in texts]
        questions.append({"id": question, "question": "What?", "answers": answers})
        if says_impossible:
            questions[-1]["is_impossible"] = not texts
    context = " ".join(text for texts in golds.values() for text in texts) or "Nothing."
    return write(
        path, {"version": "?", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


@pytest.fixture
def paths(tmp_path) -> types.SimpleNamespace:
    """Files of both versions: q1 and q2 have answers, n1 and n2 have none."""
    answerable = {question: texts for question, texts in GOLDS.items() if texts}
    return types.SimpleNamespace(
        v1=write_dataset(tmp_path / "v1.json", answerable, says_impossible=False),
        v2=write_dataset(tmp_path / "v2.json", GOLDS),
        predictions=write(tmp_path / "predictions.json", PREDICTIONS),
        odds=write(tmp_path / "odds.json", {"q1": -1.0, "n1": 0.5, "q2": -2, "n2": 2.0, "q3": 3.0}),
        folder=tmp_path,
    )


def printed(capsys, *args: str) -> str:
    """What the script prints on stdout."""
    score_squad.main(args)
    return capsys.readouterr().out


def refused(*args: str) -> str:
    """The sentence that the script ends with."""
    return message_of(lambda: score_squad.score(score_squad.make_parser().parse_args(args)))


def test_the_script_prints_one_line_of_json_for_version_1(paths, capsys):
    assert (
        printed(capsys, paths.v1, paths.predictions) == '{"exact_match": 66.66666666666667, "f1": 55.55555555555555}\n'
    )


def test_the_script_prints_indented_json_for_version_2(paths, capsys):
    scores = squad_metrics.score_v2(GOLDS, PREDICTIONS)
    assert printed(capsys, paths.v2, paths.predictions) == json.dumps(scores, indent=2) + "\n"
    odds = {"q1": -1.0, "n1": 0.5, "q2": -2, "n2": 2.0, "q3": 3.0}
    for threshold, option in ((1.0, []), (1.0, ["--threshold=1"]), (2.5, ["--threshold=2.5"])):
        scores = squad_metrics.score_v2(GOLDS, PREDICTIONS, odds, threshold)
        out = printed(capsys, paths.v2, paths.predictions, f"--null_odds={paths.odds}", *option)
        assert out == json.dumps(scores, indent=2) + "\n"
        assert '"best_exact_thresh": -2,\n' in out  # as the file has it


def test_the_version_is_told_from_the_file_or_given(paths, capsys):
    answerable = {question: texts for question, texts in GOLDS.items() if texts}
    without_key = write_dataset(paths.folder / "without_key.json", GOLDS, says_impossible=False)
    with_key = write_dataset(paths.folder / "with_key.json", answerable)
    for dataset, options, is_2 in (
        (paths.v1, [], False),
        (paths.v2, [], True),
        (without_key, [], True),
        (with_key, [], True),
        (with_key, ["--version=1.1"], False),
        (paths.v1, ["--version=2.0"], True),
    ):
        assert ("total" in json.loads(printed(capsys, dataset, paths.predictions, *options))) is is_2
    assert "Question 'n1' has no answer" in refused(paths.v2, paths.predictions, "--version=1.1")


def test_the_script_writes_what_it_prints(paths, capsys):
    output = paths.folder / "new" / "scores.json"
    out = printed(capsys, paths.v2, paths.predictions, f"--output={output}")
    assert output.read_text() == out


def test_missing_and_unknown_predictions_are_counted_in_warnings(paths, capsys):
    predictions = write(paths.folder / "some.json", {"q2": "1996", "x1": "", "x2": ""})
    score_squad.main([paths.v1, predictions])
    told = capsys.readouterr()
    assert "warning: 2 of 3 questions have no prediction and count 0, the first: 'q1'.\n" in told.err
    assert (
        "warning: 2 of 3 predictions are for no question of the data set and are ignored, the first: 'x1'." in told.err
    )
    assert json.loads(told.out)["exact_match"] == pytest.approx(100 / 3)
    score_squad.main([paths.v2, predictions])
    told = capsys.readouterr()
    assert "warning: 4 of 5 questions have no prediction and are left out, the first: 'q1'.\n" in told.err
    assert json.loads(told.out)["total"] == 1
    score_squad.main([paths.v2, paths.predictions])
    assert capsys.readouterr().err == ""


LAYOUT = "expected a JSON object of question id -> "


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is no JSON (Expecting value: line 1 column 1 (char 0)); " + LAYOUT + "text."),
        ('{"q1": "Bron', "is no JSON (Unterminated string starting at: line 1 column 8 (char 7)); " + LAYOUT + "text."),
        (["q1"], 'holds ["q1"]; ' + LAYOUT + "text."),
        ({"q1": "x", "q2": 1996}, ": the value of 'q2' is 1996; " + LAYOUT + "text."),
        ({"q1": None}, ": the value of 'q1' is null; " + LAYOUT + "text."),
        # An n-best file.
        (
            {"q1": [{"text": "x", "probability": 0.25, "start_logit": 1.5}]},
            ": the value of 'q1' is " + '[{"text": "x", "probability": 0.25, "sta…; ' + LAYOUT + "text.",
        ),
        (
            {"data": []},
            " seems to be a data set; " + LAYOUT + "text. The data set comes first, the predictions second.",
        ),
        ({"x": "y"}, " has 1 predictions, none of them for a question of "),
        ({}, " has 0 predictions, none of them for a question of "),
    ],
)
def test_predictions_that_are_none_are_refused(paths, content, message):
    path = write(paths.folder / "bad.json", content)
    told = refused(paths.v2, path)
    assert told.startswith(path) and message in told


@pytest.mark.parametrize("value, shown", [('"0.5"', '"0.5"'), ("true", "true"), ("NaN", "NaN"), ("null", "null")])
def test_null_odds_that_are_none_are_refused(paths, value, shown):
    path = write(paths.folder / "bad.json", f'{{"q1": 1, "n1": {value}}}')
    told = refused(paths.v2, paths.predictions, f"--null_odds={path}")
    assert told == f"{path}: the value of 'n1' is {shown}; {LAYOUT}number."


def test_files_and_options_that_do_not_go_together_are_refused(paths):
    assert "give them with --null_odds=FILE" in refused(paths.v2, paths.predictions, "--threshold=0.5")
    assert "--null_odds is for version 2.0" in refused(paths.v1, paths.predictions, f"--null_odds={paths.odds}")
    some = write(paths.folder / "some.json", {"q1": 0.5})
    assert "Question 'n1' has a prediction but no null odds (4 such" in refused(
        paths.v2, paths.predictions, f"--null_odds={some}"
    )
    hidden = write_dataset(paths.folder / "hidden.json", {"q1": [], "q2": []}, says_impossible=False)
    assert refused(hidden, paths.predictions) == f"{hidden} has no answers to compare with; give a file that has."
    assert "absent.json does not exist" in refused(paths.v2, str(paths.folder / "absent.json"))
    assert "absent.json" in refused(str(paths.folder / "absent.json"), paths.predictions)
    not_utf8 = paths.folder / "latin.json"
    not_utf8.write_bytes('{"q1": "été"}'.encode("latin-1"))
    assert "is not UTF-8" in refused(paths.v2, str(not_utf8))


def test_the_script_runs_from_anywhere_and_scores_alone_are_on_stdout(paths):
    predictions = write(paths.folder / "some.json", {"q1": "Denver", "x": "y"})
    command = [sys.executable, os.path.join(ROOT, "scripts", "score_squad.py"), paths.v2, predictions]
    process = subprocess.run(command, capture_output=True, text=True, cwd=str(paths.folder))
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["exact"] == 100.0
    assert "score_squad.py: warning: 4 of 5 questions" in process.stderr


def test_a_refusal_is_one_sentence_and_nothing_is_printed_or_written(paths, capsys):
    output = paths.folder / "scores.json"
    with pytest.raises(SystemExit) as caught:
        score_squad.main([paths.v2, write(paths.folder / "bad.json", {"q1": 1}), f"--output={output}"])
    assert ": error: " in str(caught.value) and "\n" not in str(caught.value)
    assert capsys.readouterr().out == "" and not output.exists()
