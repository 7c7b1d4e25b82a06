"""scripts/score_squad.py prints what the official scripts print; invalid files and options are short errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest

from adapter_bert.evaluation.squad_metrics import Golds, score_v2
from scripts import score_squad
from tests.evaluation.test_squad_metrics import GOLDS, ODDS, PREDICTIONS
from tests.helpers import ROOT, assert_mentions

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


def test_scores_are_printed_as_by_the_official_scripts_and_can_be_written_to_a_file(paths, capsys):
    expected = '{"exact_match": 66.66666666666667, "f1": 55.55555555555555}\n'
    assert printed(capsys, paths.v1, paths.predictions) == expected
    expected = json.dumps(score_v2(GOLDS, PREDICTIONS), indent=2) + "\n"
    output = paths.folder / "new" / "scores.json"
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
    "content, facts",
    [
        (b"", ["question id -> text"]),
        (b'{"q1": "Bron', ["line 1 column 8", "question id -> text"]),
        (b'{"q1": "\xe9t\xe9"}', ["utf-8", "question id -> text"]),
        (["q1"], ["question id -> text"]),
        ({"q1": "x", "q2": 1996}, ["'q2'", "1996", "question id -> text"]),
        # An n-best file.
        ({"q1": [{"text": "x", "probability": 0.25, "start_logit": 1.5}]}, ["'q1'", '[{"text": "x"']),
        ({"x": "y"}, ["1 predictions", "v2.json"]),
        ({}, ["0 predictions", "v2.json"]),
    ],
)
def test_invalid_predictions_are_an_error_and_nothing_is_written(paths, capsys, content, facts):
    path, output = write(paths.folder / "bad.json", content), paths.folder / "scores.json"
    assert_mentions(error_of(paths.v2, path, f"--output={output}"), path, *facts)
    assert capsys.readouterr().out == "" and not output.exists()


@pytest.mark.parametrize("value", ['"0.5"', "true", "NaN", "null"])
def test_invalid_null_odds_are_an_error(paths, value):
    path = write(paths.folder / "bad.json", f'{{"q1": 1, "n1": {value}}}'.encode())
    message = error_of(paths.v2, paths.predictions, f"--null_odds={path}")
    assert_mentions(message, path, "'n1'", value, "question id -> number")


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


def test_the_script_prints_only_scores_to_stdout(paths):
    predictions = write(paths.folder / "some.json", {"q1": "Denver", "x": "y"})
    command = [sys.executable, os.path.join(ROOT, "scripts", "score_squad.py"), paths.v2, predictions]
    process = subprocess.run(command, capture_output=True, text=True, cwd=str(paths.folder))
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["exact"] == 100.0
    assert_mentions(process.stderr, "score_squad.py: warning: 4 of 5 questions")
