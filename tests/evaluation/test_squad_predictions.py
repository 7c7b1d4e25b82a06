"""The predictions that `run_squad.py` of Google's BERT writes for other code."""

from __future__ import annotations

import os

import numpy as np
import pytest

import tokenization
from adapter_bert.evaluation import answer_decoding, squad_predictions
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.evaluation.squad_predictions import RawResult, get_final_text
from adapter_bert.pipeline import spans, squad_features
from adapter_bert.pipeline.squad_features import SquadExample
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks import squad
from tests.helpers import write_squad
from tests.runs.helpers import read_json

pytestmark = pytest.mark.smoke
LENGTHS = (16, 4, 5)


@pytest.mark.parametrize(
    "predicted, original, expected",
    [
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("1895", "(1895-1943).", "1895"),
        ("cafe", "Caf\xe9,", "Caf\xe9"),
        ("a b", "A  B!", "A  B"),
        # Cannot be aligned: not a part of the words, another number of characters, no text, a space at the start.
        ("smith steve", "Steve Smith's", "Steve Smith's"),
        ("cafe", "cafe\u0301,", "cafe\u0301,"),
        ("", "Steve", "Steve"),
        (" smith", "Steve Smith's", "Steve Smith's"),
    ],
)
def test_the_final_text_is_the_part_of_the_words_that_was_predicted(predicted, original, expected):
    assert get_final_text(predicted, original, True) == expected


def test_case_is_kept_if_the_model_is_cased():
    assert get_final_text("Steve", "Steve's", do_lower_case=False) == "Steve"
    assert get_final_text("steve", "Steve's", do_lower_case=False) == "Steve's"


@pytest.mark.parametrize("version_2", [False, True])
def test_predictions_are_those_of_our_own_runs_for_the_same_logits(tiny_bert, tmp_path, version_2):
    path = write_squad(str(tmp_path / "squad.json"), 16, version_2=version_2)
    tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))
    examples = squad_features.read_squad_examples(path, False, version_2)
    windows = []
    squad_features.convert_examples_to_features(examples, tokenizer, *LENGTHS, False, windows.append)
    assert len(windows) > len(examples)
    logits = np.random.RandomState(3).normal(size=(len(windows), 2, LENGTHS[0])).astype(np.float32)
    # Numbers that JSON cannot represent must not break the files either.
    logits[0, 0, 3], logits[1, 1, 2] = np.nan, np.inf
    results = [RawResult(window.unique_id, *map(list, logits[row])) for row, window in enumerate(windows)]
    rules = AnswerRules(5, 4, version_2, 1.5)
    outputs = [str(tmp_path / name) for name in ("predictions.json", "nbest.json", "null.json")]
    squad_predictions.write_predictions(examples, windows, results[::-1], rules, True, *outputs)

    decoder = answer_decoding.AnswerDecoder(squad.read(path), tokenizer, WindowConfig(*LENGTHS), rules)
    rows = [
        {"question_ids": window.example_index, "window_ids": window.doc_span_index, "logits": logits[row]}
        for row, window in enumerate(windows)
    ]
    answers = decoder.answer(rows)
    predictions, n_best = (read_json(name) for name in outputs[:2])
    assert predictions == {name: answer.text for name, answer in answers.items()}
    assert len(set(predictions.values())) > 3
    assert n_best == {name: [each._asdict() for each in answer.candidates] for name, answer in answers.items()}
    assert os.path.exists(outputs[2]) == version_2
    if version_2:
        assert read_json(outputs[2]) == {name: answer.null_odds for name, answer in answers.items()}


def test_a_question_without_windows_has_no_answer(tmp_path):
    outputs = [str(tmp_path / name) for name in ("predictions.json", "nbest.json", "null.json")]
    example = SquadExample("q", "who?", [])
    squad_predictions.write_predictions([example], [], [], AnswerRules(), True, *outputs)
    assert read_json(outputs[0]) == {"q": ""}


def test_windows_of_both_ways_have_the_same_tokens(tiny_bert, tmp_path):
    """Our own runs tokenize whole paragraphs, the original's functions word by word."""
    path = write_squad(str(tmp_path / "squad.json"), 16)
    tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))
    windows = []
    examples = squad_features.read_squad_examples(path, True, False)
    squad_features.convert_examples_to_features(examples, tokenizer, *LENGTHS, True, windows.append)
    ours = [
        features
        for number, page in enumerate(squad.read(path).paragraphs)
        for features in spans.paragraph_features(page, number, tokenizer, WindowConfig(*LENGTHS))
    ]
    assert [window.input_ids[: len(window.tokens)] for window in windows] == [each["input_ids"] for each in ours]
    found = [(window.start_position, window.end_position) for window in windows]
    assert found == [(each["start_positions"][0], each["end_positions"][0]) for each in ours]
