"""SQuAD scores are those of the official scripts: by hand, and to the last digit compared with another program.

`scripts/score_squad.py` prints them; invalid files and options are short errors.
"""

from __future__ import annotations

import json
import pathlib
import types
from typing import Mapping, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.evaluation.squad_metrics import Golds, normalize, score_v1, score_v2
from scripts import score_squad
from tests.helpers import assert_mentions, message_of


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


def test_version_1_uses_the_best_gold_and_counts_a_missing_prediction_as_wrong():
    golds = {"q1": ["Denver", "Denver Broncos"], "q2": ["1996"], "q3": ["the blue", "light blue"], "q4": ["ten"]}
    predictions = {"q3": "the dark blue", "q1": "Broncos", "q2": "1996.", "elsewhere": "ten"}
    # F1: q1 2/3 with the second gold, q2 1, q3 2/3 with "blue" against 1/2, q4 0.
    scores = score_v1(golds, predictions)
    assert list(scores.items()) == [("exact_match", 25.0), ("f1", pytest.approx(100 * (2 / 3 + 1 + 2 / 3 + 0) / 4))]
    assert score_v1(golds, {}) == {"exact_match": 0.0, "f1": 0.0}
    # Two texts without tokens are equal, but have F1 only in version 2.0.
    assert score_v1({"q": ["a"]}, {"q": "the"}) == {"exact_match": 100.0, "f1": 0.0}
    assert score_v2({"q": ["a"]}, {"q": "the"})["f1"] == 100.0


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
    # Questions without a prediction are ignored.
    some = {question: PREDICTIONS[question] for question in ("q2", "n2", "q1")}
    assert score_v2(GOLDS, some, ODDS) == score_v2({name: GOLDS[name] for name in ("q1", "q2", "n2")}, some, ODDS)
    for questions, prefix in ((("q1", "q2"), "HasAns_"), (("n1", "n2"), "NoAns_")):
        scores = score_v2({question: GOLDS[question] for question in questions}, PREDICTIONS)
        assert list(scores) == ["exact", "f1", "total"] + [prefix + name for name in ("exact", "f1", "total")]


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


def test_if_answering_nothing_is_best_the_threshold_is_zero_as_in_the_official_script():
    odds = {"q1": -5.0, "n1": -4.0, "q2": -2.0, "n2": -2.0, "q3": -3.0}
    scores = score_v2(GOLDS, dict.fromkeys(GOLDS, "x"), odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (40.0, 0.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (40.0, 0.0)
    assert score_v2(GOLDS, dict.fromkeys(GOLDS, "x"), odds, threshold=-6.0)["f1"] == 40.0
    silent = score_v2({"q": ["cat"], "n": []}, {"q": "", "n": ""}, {"q": -4.0, "n": 3.0})
    assert (silent["best_f1"], silent["best_f1_thresh"]) == (50.0, 0.0)
    unanswerable = score_v2({"n1": [], "n2": []}, {"n1": "", "n2": ""}, {"n1": -4.0, "n2": 3.0})
    assert (unanswerable["best_f1"], unanswerable["best_f1_thresh"]) == (100.0, 0.0)


def test_there_must_be_something_to_score():
    assert_mentions(message_of(score_v1, {}, {}), "no questions")
    assert_mentions(message_of(score_v2, GOLDS, {"x": ""}), "5 questions")


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
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=5).map(" ".join)
# (gold texts, prediction or None, ten times the null odds).
QUESTIONS = st.lists(
    st.tuples(st.lists(TEXTS, max_size=4), st.none() | TEXTS, st.integers(-20, 20)), min_size=1, max_size=30
)


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(questions=QUESTIONS)
def test_random_questions_score_as_in_another_program(hugging_face, questions):
    golds = {f"q{number}": texts for number, (texts, _, _) in enumerate(questions)}
    # In a different order from the questions.
    reverse = list(reversed(list(enumerate(questions))))
    predictions = {f"q{number}": text for number, (_, text, _) in reverse if text is not None}
    odds = {"unknown": 0.0, **{f"q{number}": tenths / 10 for number, (_, _, tenths) in reverse}}
    answerable = {question: texts or ["sea"] for question, texts in golds.items()}
    check_version_1(answerable, predictions, hugging_face)
    if predictions:
        for given_odds, threshold in ((None, 1.0), (odds, 1.0), (odds, -0.5)):
            check_version_2(golds, predictions, given_odds, threshold, hugging_face)


# scripts/score_squad.py.


ANSWERABLE = {question: texts for question, texts in GOLDS.items() if texts}


def write(path, content) -> str:
    """Write bytes, or anything else as JSON."""
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode("utf-8"))
    return str(path)


def write_dataset(path, golds: Golds, says_impossible: bool = True) -> str:
    questions = []
    for question, texts in golds.items():
        answers = [{"text": text, "answer_start": 0} for text in texts]
        impossible = {"is_impossible": not texts} if says_impossible else {}
        questions.append({"id": question, "question": "What?", "answers": answers, **impossible})
    context = " ".join(text for texts in golds.values() for text in texts) or "Nothing."
    return write(path, {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": questions}]}]})


@pytest.fixture
def paths(tmp_path) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        v1=write_dataset(tmp_path / "v1.json", ANSWERABLE, says_impossible=False),
        v2=write_dataset(tmp_path / "v2.json", GOLDS),
        v2_without_key=write_dataset(tmp_path / "v2_without_key.json", GOLDS, says_impossible=False),
        v2_answerable=write_dataset(tmp_path / "v2_answerable.json", ANSWERABLE),
        no_answers=write_dataset(tmp_path / "no_answers.json", {"q1": [], "q2": []}, says_impossible=False),
        predictions=write(tmp_path / "predictions.json", json.dumps(PREDICTIONS).encode("utf-8-sig")),
        odds=write(tmp_path / "odds.json", {**ODDS, "q2": -2}),
        some_odds=write(tmp_path / "some_odds.json", {"q1": 0.5}),
        absent=str(tmp_path / "absent.json"),
        folder=tmp_path,
    )


def printed(capsys, *args: str) -> str:
    score_squad.main(args)
    return capsys.readouterr().out


def error_of(*args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        score_squad.main(args)
    message = str(caught.value.code)
    assert ": error: " in message and "\n" not in message
    return message


def test_only_scores_are_replaced_by_scores(paths):
    for path in (paths.v2, paths.predictions):
        before = pathlib.Path(path).read_bytes()
        assert_mentions(error_of(paths.v2, paths.predictions, f"--output={path}"), f"--output={path}", "scores")
        assert pathlib.Path(path).read_bytes() == before


def test_scores_are_printed_as_by_the_official_scripts_and_can_be_written_to_a_file(paths, capsys):
    expected = '{"exact_match": 66.66666666666667, "f1": 55.55555555555555}\n'
    assert printed(capsys, paths.v1, paths.predictions) == expected
    expected = json.dumps(score_v2(GOLDS, PREDICTIONS), indent=2) + "\n"
    output = paths.folder / "new" / "scores.json"
    for _ in range(2):  # the second time, it replaces its scores
        assert printed(capsys, paths.v2, paths.predictions, f"--output={output}") == output.read_text() == expected
    for threshold, option in ((1.0, []), (1.0, ["--threshold=1"]), (2.5, ["--threshold=2.5"])):
        scores = {**score_v2(GOLDS, PREDICTIONS, ODDS, threshold), "best_exact_thresh": -2}  # int as in the file
        out = printed(capsys, paths.v2, paths.predictions, f"--null_odds={paths.odds}", *option)
        assert out == json.dumps(scores, indent=2) + "\n"


@pytest.mark.parametrize(
    "dataset, options, is_version_2",
    [
        ("v1", [], False),
        ("v2", [], True),
        ("v2_without_key", [], True),
        ("v2_answerable", [], True),
        ("v2_answerable", ["--version=1.1"], False),
        ("v1", ["--version=2.0"], True),
    ],
)
def test_the_version_is_given_or_derived_from_the_file(paths, capsys, dataset, options, is_version_2):
    scores = json.loads(printed(capsys, getattr(paths, dataset), paths.predictions, *options))
    assert ("total" in scores) is is_version_2


def test_warnings_count_missing_and_unknown_predictions(paths, capsys):
    predictions = write(paths.folder / "some.json", {"q2": "1996", "x1": "", "x2": ""})
    for dataset, missing, metric, value in (
        (paths.v1, "2 of 3 questions", "exact_match", 100 / 3),
        (paths.v2, "4 of 5 questions", "total", 1),
    ):
        score_squad.main([dataset, predictions])
        captured = capsys.readouterr()
        assert_mentions(captured.err, "warning: " + missing, "'q1'", "2 of 3 predictions", "'x1'")
        assert json.loads(captured.out)[metric] == pytest.approx(value)
    score_squad.main([paths.v2, paths.predictions])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "option, content, facts",
    [
        ("", b"", ["question id -> text"]),
        ("", b'{"q1": "Bron', ["line 1 column 8", "question id -> text"]),
        ("", b'{"q1": "\xe9t\xe9"}', ["utf-8", "question id -> text"]),
        ("", b'["q1"]', ["question id -> text"]),
        ("", b'{"q1": "x", "q2": 1996}', ["'q2'", "1996", "question id -> text"]),
        # An n-best file.
        ("", b'{"q1": [{"text": "x", "probability": 0.25, "start_logit": 1.5}]}', ["'q1'", '[{"text": "x"']),
        ("", b'{"x": "y"}', ["1 predictions", "v2.json"]),
        ("", b"{}", ["0 predictions", "v2.json"]),
        *[
            ("--null_odds=", b'{"q1": 1, "n1": %b}' % value, ["'n1'", value.decode(), "question id -> number"])
            for value in (b'"0.5"', b"true", b"NaN", b"null")
        ],
    ],
)
def test_an_invalid_file_is_an_error_and_nothing_is_written(paths, capsys, option, content, facts):
    path, output = write(paths.folder / "bad.json", content), paths.folder / "scores.json"
    files = [paths.predictions, option + path] if option else [path]
    assert_mentions(error_of(paths.v2, *files, f"--output={output}"), path, *facts)
    assert capsys.readouterr().out == "" and not output.exists()


@pytest.mark.parametrize(
    "args, facts",
    [
        (["{v2}", "{predictions}", "--threshold=0.5"], ["--threshold", "--null_odds"]),
        (["{v1}", "{predictions}", "--null_odds={odds}"], ["--null_odds", "1.1", "2.0"]),
        (["{v2}", "{predictions}", "--null_odds={some_odds}"], ["4 questions", "'n1'"]),
        (["{v2}", "{predictions}", "--version=1.1"], ["'n1'", "2.0"]),
        (["{no_answers}", "{predictions}"], ["{no_answers}", "no answers"]),
        (["{v2}", "{absent}"], ["absent.json"]),
        (["{absent}", "{predictions}"], ["absent.json"]),
    ],
)
def test_files_and_options_that_do_not_match_are_an_error(paths, args, facts):
    args, facts = ([text.format(**vars(paths)) for text in texts] for texts in (args, facts))
    assert_mentions(error_of(*args), *facts)
