"""Answers follow SQuAD's rules: by hand, and compared with the transformers library."""

from __future__ import annotations

import json
import math
import re
import types
import warnings

import numpy as np
import pytest

from adapter_bert.evaluation.answers import AnswerRules, Candidate, PredictedAnswer, find_answer
from adapter_bert.pipeline.spans import Window
from tests.helpers import assert_mentions, message_of

pytestmark = pytest.mark.filterwarnings("error")

CONTEXT = "Ada wrote notes in London."
LOW = -5.0
NOTHING = Candidate("", 1.0, 0.0, 0.0)


def token_spans(context):
    """Return the character spans of the words; a full stop is a word."""
    return [match.span() for match in re.finditer(r"[^\s.]+|\.", context)]


def window_of_spans(first, *spans, has_max_context=None):
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    has_max_context = [True] * len(spans) if has_max_context is None else has_max_context
    return Window(0, first, starts, ends, np.array(has_max_context, bool))


def make_window(context=CONTEXT, first=3, tokens=slice(None), has_max_context=None):
    return window_of_spans(first, *token_spans(context)[tokens], has_max_context=has_max_context)


def make_logits(values, length=12):
    """Return logits that are low except at the given positions."""
    return np.array([values.get(position, LOW) for position in range(length)], np.float32)


def answer_of(start, end, n_best_size=2, windows=None, context=CONTEXT, **rules):
    """Return the answer for one window with given logits, or for several windows with a list of logits each."""
    if windows is None:
        windows, start, end = [make_window(context)], [start], [end]
    start, end = ([row if isinstance(row, np.ndarray) else make_logits(row) for row in rows] for rows in (start, end))
    return find_answer(context, windows, start, end, AnswerRules(n_best_size, **rules))


def texts_of(answer):
    return [candidate.text for candidate in answer.candidates]


# Positions: Ada = 3, wrote = 4, notes = 5, in = 6, London = 7, . = 8. Before them is the question, after them padding.


def test_the_highest_sum_of_start_and_end_logit_is_the_answer():
    answer = answer_of({3: 2.0, 5: 3.0}, {3: 1.0, 5: 1.5})
    # The sums: notes 4.5, Ada ... notes 3.5, Ada 3.0 is third; notes ... Ada is not valid.
    assert answer.text == answer.best_text == "notes" and answer.null_odds is None
    share = math.e / (math.e + 1)
    assert answer.candidates == (
        ("notes", pytest.approx(share), 3.0, 1.5),
        ("Ada wrote notes", pytest.approx(1 - share), 2.0, 1.5),
    )


@pytest.mark.parametrize(
    "start, end, rules, text",
    [
        # Only the best starts and ends of a window are paired: here the end that fits the start ranks third.
        ({7: 9.0}, {3: 9.0, 4: 8.5, 7: 8.0}, {"n_best_size": 2}, ""),
        ({7: 9.0}, {3: 9.0, 4: 8.5, 7: 8.0}, {"n_best_size": 3}, "London"),
        # Question and padding are ranked too.
        ({1: 9.0, 11: 8.0, 4: 7.0}, {4: 9.0}, {"n_best_size": 2}, ""),
        ({1: 9.0, 11: 8.0, 4: 7.0}, {4: 9.0}, {"n_best_size": 3}, "wrote"),
        # Spans outside of the paragraph are not valid.
        *[({position: 9.0}, {8: 9.0}, {"n_best_size": 1}, "") for position in (0, 2, 9, 11)],
        *[({3: 9.0}, {position: 9.0}, {"n_best_size": 1}, "") for position in (0, 2, 9, 11)],
        ({3: 9.0}, {8: 9.0}, {"n_best_size": 1}, CONTEXT),
        # The end must not precede the start.
        ({5: 9.0}, {4: 9.0}, {"n_best_size": 1}, ""),
        # The length is limited.
        ({3: 9.0}, {5: 9.0}, {"n_best_size": 1, "max_answer_length": 2}, ""),
        ({3: 9.0}, {5: 9.0}, {"n_best_size": 1, "max_answer_length": 3}, "Ada wrote notes"),
        # NaN counts as the lowest logit.
        ({3: np.nan, 4: 1.0, 5: 0.5}, {5: 1.0}, {}, "wrote notes"),
        ({3: -np.inf, 4: 1.0, 5: 0.5}, {5: 1.0}, {}, "wrote notes"),
        ({3: np.inf, 4: 1.0, 5: 0.5}, {5: 1.0}, {}, "Ada wrote notes"),
    ],
)
def test_which_spans_are_valid(start, end, rules, text):
    assert answer_of(start, end, **rules).text == text


FRENCH = "Où  est l'ÉCOLE\tNormale ?"
HALF = window_of_spans(3, (0, 1), (0, 1))
NOT_WROTE = make_window(has_max_context=[True, False, True, True, True, True])
TWO_PARTS = [make_window(first=3, tokens=slice(0, 3)), make_window(first=5, tokens=slice(2, 6))]
EMPTY = window_of_spans(3)
FALLING = {3: 4, 4: 3, 5: 2, 6: 1}


@pytest.mark.parametrize(
    "context, windows, start, end, n_best_size, texts",
    [
        # One character may become two tokens.
        ("½", [HALF], [{4: 9.0}], [{3: 9.0}], 1, [""]),
        ("½", [HALF], [{3: 9.0}], [{3: 9.0}], 1, ["½"]),
        # The start must be in the window that shows it with most context; the end may be in any.
        (CONTEXT, [NOT_WROTE], [{4: 9.0}], [{5: 9.0}], 1, [""]),
        (CONTEXT, [NOT_WROTE], [{3: 9.0}], [{4: 9.0}], 1, ["Ada wrote"]),
        # Every window has its own first position.
        (CONTEXT, TWO_PARTS, [{3: 1.0}, {7: 4.0}], [{3: 1.0}, {7: 4.0}], 1, ["London"]),
        # An answer may start within a word, and is a slice of the paragraph.
        ("unaffordable", [window_of_spans(2, (0, 2), (2, 8), (8, 12))], [{3: 9.0}], [{4: 9.0}], 1, ["affordable"]),
        (FRENCH, [make_window(FRENCH)], [{4: 9.0}], [{6: 9.0}], 1, ["est l'ÉCOLE\tNormale"]),
        # Windows and spans may be empty.
        (CONTEXT, [EMPTY], [{3: 9.0}], [{3: 9.0}], 1, [""]),
        (CONTEXT, [EMPTY, make_window()], [{3: 9.0}, {3: 1.0}], [{3: 9.0}, {3: 1.0}], 1, ["Ada"]),
        ("ab cd", [window_of_spans(1, (0, 0), (3, 5))], [{1: 9.0, 2: 1.0}], [{1: 9.0, 2: 1.0}], 2, ["ab cd", "cd"]),
        # Equal logits rank by position; of equal sums, the better start comes first, then the earlier window.
        (CONTEXT, [make_window()], [np.zeros(12)], [np.zeros(12)], 4, ["Ada"]),
        (CONTEXT, [make_window()], [np.zeros(12)], [np.zeros(12)], 5, ["Ada", "Ada wrote", "wrote"]),
        (CONTEXT, [make_window()], [{3: 1.0, 4: 2.0}], [{3: 4.0, 4: 3.0}], 2, ["wrote", "Ada"]),
        (CONTEXT, [make_window()] * 2, [{4: 2.0}, {3: 3.0}], [{4: 2.0}, {3: 1.0}], 2, ["wrote", "Ada"]),
        # A text is listed once. The sums: a 8, a a 7, [a 6], a a a 6, [a a 5], a ... b 5.
        ("a a a b", [make_window("a a a b")], [FALLING], [FALLING], 4, ["a", "a a", "a a a", "a a a b"]),
        # Position 0 is a candidate only in version 2.0.
        (CONTEXT, [make_window()], [{0: 9.0, 3: 3.0}], [{0: 9.0, 3: 1.0}], 2, ["Ada"]),
        # A sequence may be shorter than the list.
        ("Ada", [make_window("Ada")], [make_logits({3: 2.0}, 4)], [make_logits({3: 2.0}, 4)], 20, ["Ada"]),
    ],
)
def test_candidates_of_windows(context, windows, start, end, n_best_size, texts):
    assert texts_of(answer_of(start, end, n_best_size, windows, context)) == texts


def test_sums_are_compared_in_64_bits():
    answer = answer_of({3: 2.0**24, 4: 2.0**24}, {3: 0.25, 4: 0.5})  # in 32 bits both sums are 16777216
    assert answer.candidates[0].end_logit == 0.5
    highest = float(np.finfo(np.float32).max)
    assert answer_of({3: highest}, {3: highest}, 1).candidates == (Candidate("Ada", 1.0, highest, highest),)


ABOVE = ({0: 4.0, 3: 3.0}, {0: 2.0, 3: 1.0})


@pytest.mark.parametrize(
    "logits, n_best_size, threshold, text, null_odds, texts",
    [
        # No answer is predicted if its score is higher by more than the threshold.
        *[(ABOVE, 2, threshold, "", 2.0, ["", "Ada"]) for threshold in (0.0, 1.9)],
        *[(ABOVE, 2, threshold, "Ada", 2.0, ["", "Ada"]) for threshold in (2.0, math.inf)],
        # It is appended if it is not among the best.
        (({0: -7.0, 3: 3.0, 4: 2.0}, {0: -6.0, 3: 1.0, 4: 2.0}), 2, 0.0, "Ada wrote", -18.0, ["Ada wrote", "Ada", ""]),
        (({0: 2.0, 3: 3.0}, {0: 2.0, 3: 3.0}), 1, -4.0, "", -2.0, ["Ada", ""]),
        # Of equal scores, a text comes first.
        (({0: 2.0, 3: 3.0}, {0: 2.0, 3: 1.0}), 2, 0.0, "Ada", 0.0, ["Ada", ""]),
    ],
)
def test_no_answer_is_a_candidate_in_version_2(logits, n_best_size, threshold, text, null_odds, texts):
    answer = answer_of(*logits, n_best_size, version_2=True, null_threshold=threshold)
    assert (answer.text, answer.null_odds, texts_of(answer)) == (text, null_odds, texts)
    assert answer.best_text == next(filter(None, texts))
    assert sum(candidate.probability for candidate in answer.candidates) == pytest.approx(1)


def test_no_answer_has_the_lowest_score_of_all_windows():
    start = [{0: 5.0}, {0: 1.0}, {0: 0.5}, {0: 4.0, 3: 3.0}]
    end = [{0: 5.0}, {0: 0.5}, {0: 1.0}, {0: 4.0, 3: 3.0}]
    answer = answer_of(start, end, 2, [make_window()] * 4, version_2=True)
    assert answer.null_odds == 1.5 - 6.0
    [null] = [candidate for candidate in answer.candidates if candidate.text == ""]
    assert (null.start_logit, null.end_logit) == (1.0, 0.5), "of equal scores, that of the first window"


def test_without_a_valid_span_the_answer_is_empty():
    assert answer_of({1: 9.0}, {2: 9.0}, 1) == PredictedAnswer("", (NOTHING,), None, "")
    for threshold in (-100.0, 0.0, 100.0):
        answer = answer_of({0: 2.0, 1: 9.0}, {0: 1.0, 2: 9.0}, 1, version_2=True, null_threshold=threshold)
        assert answer == PredictedAnswer("", (Candidate("", 1.0, 2.0, 1.0),), 3.0, "")
    for version_2, null_odds in ((False, None), (True, 0.0)):
        rules = AnswerRules(version_2=version_2, null_threshold=-1.0)
        assert find_answer("", [], [], [], rules) == PredictedAnswer("", (NOTHING,), null_odds, "")


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, -1e300])
def test_non_finite_logits_give_finite_numbers(bad, version_2):
    everywhere, fine = np.full(12, bad), make_logits({3: 2.0})
    for start, end in [(everywhere, everywhere), (everywhere, fine), (fine, everywhere)]:
        answer = answer_of(start, end, 3, version_2=version_2)
        json.dumps([answer.candidates, answer.null_odds], allow_nan=False)


def random_case(seed):
    """Return a paragraph with overlapping windows, and logits with many ties (odd seeds) or none."""
    generator = np.random.RandomState(seed)
    count = generator.randint(1, 40)
    context = " ".join(generator.choice(["a", "b", "Émile", "a", "the", "The"], count))
    size, stride = generator.randint(4, 16), generator.randint(1, 6)
    offsets = list(range(0, max(count - size, 0) + stride, stride))
    # Each token has most context in one of the windows that show it; for this test it may be any of them.
    owner = [generator.choice([w for w, o in enumerate(offsets) if o <= k < o + size] or [0]) for k in range(count)]
    windows, start_logits, end_logits = [], [], []
    for w, offset in enumerate(offsets):
        tokens = slice(offset, offset + size)
        has_max_context = [owner[k] == w for k in range(count)[tokens]]
        first = generator.randint(2, 6)
        windows.append(make_window(context, first, tokens, has_max_context))
        length = first + size + generator.randint(1, 6)
        for logits in (start_logits, end_logits):
            values = generator.normal(0, 3, length)
            logits.append((np.round(values) if seed % 2 else values).astype(np.float32))
    rules = AnswerRules(
        n_best_size=int(generator.choice([1, 2, 3, 5, 20])),
        max_answer_length=int(generator.choice([1, 3, 30])),
        version_2=bool(generator.randint(2)),
        null_threshold=float(generator.choice([-20.0, -2.0, 0.0, 1.5])),
    )
    return context, windows, start_logits, end_logits, rules


def transformers_answer(library, folder, case):
    """Return the prediction, n-best entries and null odds that transformers writes for a case."""
    context, windows, start_logits, end_logits, rules = case
    words, ends = context.split(), [end for _, end in token_spans(context)]
    features, results = [], []
    for number, (window, starts, lasts) in enumerate(zip(windows, start_logits, end_logits)):
        places = {window.first + k: ends.index(end) for k, end in enumerate(window.ends)}
        feature = types.SimpleNamespace(
            example_index=0,
            unique_id=number,
            tokens=[words[places[p]] if p in places else "?" for p in range(len(starts))],
            token_to_orig_map=places,
            token_is_max_context={window.first + k: bool(value) for k, value in enumerate(window.has_max_context)},
        )
        features.append(feature)
        results.append(types.SimpleNamespace(unique_id=number, start_logits=starts.tolist(), end_logits=lasts.tolist()))
    names = ("predictions.json", "nbest.json", "odds.json")
    library.compute_predictions_logits(
        [types.SimpleNamespace(qas_id="q", doc_tokens=words)], features, results, rules.n_best_size,
        rules.max_answer_length, True, *[str(folder / name) for name in names], False, rules.version_2,
        rules.null_threshold, types.SimpleNamespace(convert_tokens_to_string=" ".join),
    )  # fmt: skip
    written = names if rules.version_2 else names[:2]
    contents = [json.loads((folder / name).read_text())["q"] for name in written]
    return contents if rules.version_2 else [*contents, None]


def test_answers_are_those_of_transformers(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("transformers.data.metrics.squad_metrics")
    predictions = []
    for seed in range(400):
        case = random_case(seed)
        answer = find_answer(*case)
        prediction, nbest, odds = transformers_answer(library, tmp_path, case)
        if nbest[0]["text"] == "empty":  # where our answer is ""
            continue
        assert (answer.text, answer.null_odds) == (prediction, odds), seed
        assert answer.best_text == next(entry["text"] for entry in nbest if entry["text"])
        entries = [candidate._asdict() for candidate in answer.candidates]
        assert [list(entry) for entry in entries] == [list(entry) for entry in nbest]
        for entry, expected in zip(entries, nbest):
            assert entry == dict(expected, probability=pytest.approx(expected["probability"]))
            assert all(type(value) is float for name, value in entry.items() if name != "text")
        predictions.append((len(case[1]) > 2, odds is None, prediction == ""))
    # The cases are varied: many windows; version 1.1; no answer.
    for kind in ((True, True, False), (True, False, False), (True, False, True), (False, False, False)):
        assert predictions.count(kind) > 10, kind


@pytest.mark.parametrize("name, value", [("n_best_size", 0), ("max_answer_length", -1), ("null_threshold", math.nan)])
def test_invalid_rules_are_an_error(name, value):
    assert_mentions(message_of(AnswerRules, **{name: value}), name, value)


def test_missing_logits_are_an_error():
    with pytest.raises(ValueError, match="1 windows, found 0 rows of start logits and 0 of end logits"):
        find_answer(CONTEXT, [make_window()], [], [], AnswerRules())
