"""Answers are those that SQuAD's rules give by hand, by plain loops, and by the transformers library."""

from __future__ import annotations

import json
import math
import types
import warnings
from typing import NamedTuple

import numpy as np
import pytest

from adapter_bert.common.errors import UserError
from adapter_bert.evaluation import answers
from adapter_bert.evaluation.answers import AnswerRules, find_answer

CONTEXT = "Ada wrote notes in London."
LOW = -5.0


class Window(NamedTuple):
    first: int
    starts: np.ndarray
    ends: np.ndarray
    has_max_context: np.ndarray


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def token_spans(context):
    """The characters of the words, the full stop apart."""
    spans, start = [], 0
    for word in context.replace(".", " .").split():
        start = context.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


def window_of(context=CONTEXT, first=3, tokens=slice(None), has_max_context=None):
    spans = np.array(token_spans(context)[tokens], np.int64).reshape(-1, 2)
    if has_max_context is None:
        has_max_context = np.ones(len(spans), bool)
    return Window(first, spans[:, 0], spans[:, 1], np.asarray(has_max_context, bool))


def logits_of(values, length=12, dtype=np.float32):
    """Logits that are low but for given positions."""
    logits = np.full(length, LOW, dtype)
    for position, value in values.items():
        logits[position] = value
    return logits


def answer_of(start, end, rules=None, windows=None, context=CONTEXT):
    """The answer for one window with given logits; or for several windows, with a list of them each."""
    if windows is None:
        windows, start, end = [window_of(context)], [start], [end]
    start, end = ([row if isinstance(row, np.ndarray) else logits_of(row) for row in rows] for rows in (start, end))
    return find_answer(context, windows, start, end, rules or AnswerRules(n_best_size=2))


def texts_of(answer):
    return [candidate.text for candidate in answer.candidates]


# Ada = 3, wrote = 4, notes = 5, in = 6, London = 7, . = 8; the question is before, padding behind.
# -------------------------------------------------------------------------------------- which spans count


def test_the_greatest_sum_of_start_and_end_is_the_answer():
    answer = answer_of({3: 2.0, 5: 3.0}, {3: 1.0, 5: 1.5})
    assert answer.text == answer.best_text == "notes"
    assert answer.null_odds is None
    # The sums: notes 4.5, Ada ... notes 3.5; Ada 3.0 is third. notes ... Ada is none.
    assert texts_of(answer) == ["notes", "Ada wrote notes"]
    assert [(c.start_logit, c.end_logit) for c in answer.candidates] == [(3.0, 1.5), (2.0, 1.5)]


def test_probabilities_are_the_softmax_of_the_sums_listed():
    answer = answer_of({3: 2.0, 5: 3.0}, {3: 1.0, 5: 1.5})
    assert [c.probability for c in answer.candidates] == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)])


def test_only_the_best_starts_and_ends_of_a_window_are_paired():
    # Of the ends, that of the one good start is the third.
    start, end = {7: 9.0}, {3: 9.0, 4: 8.5, 7: 8.0}
    assert answer_of(start, end, AnswerRules(n_best_size=2)).text == ""
    assert answer_of(start, end, AnswerRules(n_best_size=3)).text == "London"


def test_the_question_and_padding_take_places_among_the_best():
    start, end = {1: 9.0, 11: 8.0, 4: 7.0}, {4: 9.0}
    assert answer_of(start, end, AnswerRules(n_best_size=2)).text == ""
    assert answer_of(start, end, AnswerRules(n_best_size=3)).text == "wrote"


@pytest.mark.parametrize("position", [0, 2, 9, 11])
def test_a_span_outside_of_the_paragraph_does_not_count(position):
    rules = AnswerRules(n_best_size=1)
    assert answer_of({position: 9.0}, {8: 9.0}, rules).text == ""
    assert answer_of({3: 9.0}, {position: 9.0}, rules).text == ""


def test_the_first_and_the_last_token_of_the_paragraph_count():
    assert answer_of({3: 9.0}, {8: 9.0}, AnswerRules(n_best_size=1)).text == CONTEXT


def test_an_end_before_its_start_does_not_count():
    rules = AnswerRules(n_best_size=1)
    assert answer_of({5: 9.0}, {4: 9.0}, rules).text == ""
    # One character may become two tokens.
    same = Window(3, np.array([0, 0]), np.array([1, 1]), np.ones(2, bool))
    assert answer_of([{4: 9.0}], [{3: 9.0}], rules, [same], "½").text == ""
    assert answer_of([{3: 9.0}], [{3: 9.0}], rules, [same], "½").text == "½"


@pytest.mark.parametrize("length, text", [(1, ""), (2, ""), (3, "Ada wrote notes"), (4, "Ada wrote notes")])
def test_an_answer_has_at_most_so_many_tokens(length, text):
    rules = AnswerRules(n_best_size=1, max_answer_length=length)
    assert answer_of({3: 9.0}, {5: 9.0}, rules).text == text


def test_the_start_must_be_where_its_window_shows_most_context():
    rules = AnswerRules(n_best_size=1)
    but_wrote = window_of(has_max_context=[True, False, True, True, True, True])
    assert answer_of([{4: 9.0}], [{5: 9.0}], rules, [but_wrote]).text == ""
    assert answer_of([{3: 9.0}], [{4: 9.0}], rules, [but_wrote]).text == "Ada wrote", "of the end it is not asked"


def test_positions_are_those_of_each_window():
    windows = [window_of(first=3, tokens=slice(0, 3)), window_of(first=5, tokens=slice(2, 6))]
    answer = answer_of([{3: 1.0}, {7: 4.0}], [{3: 1.0}, {7: 4.0}], AnswerRules(n_best_size=1), windows)
    assert answer.text == "London"


# --------------------------------------------------------------------------------------------- the order


def test_of_equal_logits_the_lower_position_is_looked_at_first():
    flat = np.zeros(12, np.float32)
    assert texts_of(answer_of(flat, flat, AnswerRules(n_best_size=4))) == ["Ada"]
    assert texts_of(answer_of(flat, flat, AnswerRules(n_best_size=5))) == ["Ada", "Ada wrote", "wrote"]


def test_of_equal_sums_the_better_start_goes_first_then_the_better_end():
    # Sums: Ada 1 + 4, wrote 2 + 3, Ada wrote 1 + 3.
    answer = answer_of({3: 1.0, 4: 2.0}, {3: 4.0, 4: 3.0})
    assert texts_of(answer) == ["wrote", "Ada"]


def test_of_equal_sums_the_earlier_window_goes_first():
    windows = [window_of(), window_of()]
    answer = answer_of([{4: 2.0}, {3: 3.0}], [{4: 2.0}, {3: 1.0}], AnswerRules(n_best_size=2), windows)
    assert texts_of(answer)[:2] == ["wrote", "Ada"]


def test_sums_are_compared_in_64_bits():
    # In 32 bits both sums are 16777216.
    start, end = {3: 2.0**24, 4: 2.0**24}, {3: 0.25, 4: 0.5}
    assert answer_of(start, end).text in ("Ada wrote", "wrote")
    assert answer_of(start, end).candidates[0].end_logit == 0.5


def test_a_text_is_listed_once_with_its_best_logits():
    context = "to be or not to be"
    answer = answer_of({3: 2.0, 7: 3.0}, {3: 2.0, 7: 3.0}, AnswerRules(n_best_size=3), context=context)
    assert texts_of(answer)[0] == "to"
    assert answer.candidates[0].start_logit == 3.0
    assert texts_of(answer).count("to") == 1


def test_texts_that_were_seen_take_no_place_in_the_list():
    context = "a a a b"
    answer = answer_of({3: 4, 4: 3, 5: 2, 6: 1}, {3: 4, 4: 3, 5: 2, 6: 1}, AnswerRules(n_best_size=4), context=context)
    # Sums: a 8, a a 7, [a 6], a a a 6, [a a 5], a ... b 5.
    assert texts_of(answer) == ["a", "a a", "a a a", "a a a b"]


def test_the_text_is_as_it_stands_in_the_paragraph():
    context = "Où  est l'ÉCOLE\tNormale ?"
    answer = answer_of({4: 9.0}, {6: 9.0}, AnswerRules(n_best_size=1), context=context)
    assert answer.text == "est l'ÉCOLE\tNormale"


def test_a_text_may_start_within_a_word():
    context = "unaffordable"
    pieces = Window(2, np.array([0, 2, 8]), np.array([2, 8, 12]), np.ones(3, bool))
    answer = answer_of([{3: 9.0}], [{4: 9.0}], AnswerRules(n_best_size=1), [pieces], context)
    assert answer.text == "affordable"


# --------------------------------------------------------------------------------------------- no answer


def test_null_is_the_prediction_where_it_is_better_by_more_than_the_threshold():
    # Null 6, Ada 4: odds 2.
    start, end = {0: 4.0, 3: 3.0}, {0: 2.0, 3: 1.0}
    for threshold, text in [(0.0, ""), (1.9, ""), (2.0, "Ada"), (3.0, "Ada"), (math.inf, "Ada")]:
        answer = answer_of(start, end, AnswerRules(2, version_2=True, null_threshold=threshold))
        assert answer.text == text
        assert answer.best_text == "Ada"
        assert answer.null_odds == 2.0
        assert texts_of(answer) == ["", "Ada"], "the threshold does not reorder the list"


def test_null_is_appended_where_it_is_not_among_the_best():
    start, end = {0: -7.0, 3: 3.0, 4: 2.0}, {0: -6.0, 3: 1.0, 4: 2.0}
    answer = answer_of(start, end, AnswerRules(2, version_2=True))
    assert texts_of(answer) == ["Ada wrote", "Ada", ""]
    assert answer.candidates[-1][2:] == (-7.0, -6.0)
    assert answer.null_odds == -13.0 - 5.0
    assert answer.text == "Ada wrote"
    assert sum(c.probability for c in answer.candidates) == pytest.approx(1)


def test_of_equal_scores_a_text_goes_before_null():
    answer = answer_of({0: 2.0, 3: 3.0}, {0: 2.0, 3: 1.0}, AnswerRules(2, version_2=True))
    assert texts_of(answer) == ["Ada", ""]
    assert answer.null_odds == 0.0
    assert answer.text == "Ada"


def test_null_has_the_least_score_of_the_windows():
    windows = [window_of()] * 4
    start = [{0: 5.0}, {0: 1.0}, {0: 0.5}, {0: 4.0, 3: 3.0}]
    end = [{0: 5.0}, {0: 0.5}, {0: 1.0}, {0: 4.0, 3: 3.0}]
    answer = answer_of(start, end, AnswerRules(2, version_2=True), windows)
    assert answer.null_odds == 1.5 - 6.0
    null = next(c for c in answer.candidates if c.text == "")
    assert (null.start_logit, null.end_logit) == (1.0, 0.5), "of equal scores, that of the first window"


def test_without_null_position_0_is_no_candidate():
    answer = answer_of({0: 9.0, 3: 3.0}, {0: 9.0, 3: 1.0})
    assert texts_of(answer) == ["Ada"]


def test_a_list_of_one_still_knows_the_best_text():
    answer = answer_of({0: 2.0, 3: 3.0}, {0: 2.0, 3: 3.0}, AnswerRules(1, version_2=True, null_threshold=-4.0))
    assert (answer.text, answer.best_text, answer.null_odds) == ("", "Ada", -2.0)
    assert texts_of(answer) == ["Ada", ""]


# -------------------------------------------------------------------------------------- nothing to choose


def test_without_a_span_the_answer_is_nothing():
    answer = answer_of({1: 9.0}, {2: 9.0}, AnswerRules(n_best_size=1))
    assert answer == answers.Answer("", (answers.Candidate("", 1.0, 0.0, 0.0),), None, "")


@pytest.mark.parametrize("threshold", [-100.0, 0.0, 100.0])
def test_without_a_span_null_is_compared_with_0_and_predicted_at_any_threshold(threshold):
    start, end = {0: 2.0, 1: 9.0}, {0: 1.0, 2: 9.0}
    answer = answer_of(start, end, AnswerRules(1, version_2=True, null_threshold=threshold))
    assert answer == answers.Answer("", (answers.Candidate("", 1.0, 2.0, 1.0),), 3.0, "")


@pytest.mark.parametrize("version_2, null_odds", [(False, None), (True, 0.0)])
def test_an_empty_paragraph_has_no_answer(version_2, null_odds):
    nothing = answers.Candidate("", 1.0, 0.0, 0.0)
    rules = AnswerRules(version_2=version_2, null_threshold=-1.0)
    assert find_answer("", [], [], [], rules) == answers.Answer("", (nothing,), null_odds, "")


def test_a_window_without_tokens_has_no_span():
    empty = Window(3, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool))
    assert answer_of([{3: 9.0}], [{3: 9.0}], AnswerRules(), [empty]).text == ""
    windows = [empty, window_of()]
    assert answer_of([{3: 9.0}, {3: 1.0}], [{3: 9.0}, {3: 1.0}], AnswerRules(), windows).text == "Ada"


def test_a_sequence_may_be_shorter_than_the_list():
    start, end = logits_of({3: 2.0}, length=4), logits_of({3: 2.0}, length=4)
    answer = answer_of([start], [end], AnswerRules(n_best_size=20), [window_of(tokens=slice(0, 1))])
    assert texts_of(answer) == ["Ada"]


def test_a_span_of_no_characters_is_not_listed():
    window = Window(1, np.array([0, 3]), np.array([0, 7]), np.ones(2, bool))
    answer = answer_of([{1: 9.0, 2: 1.0}], [{1: 9.0, 2: 1.0}], AnswerRules(2), [window], "ab cdef")
    assert texts_of(answer) == ["ab cdef", "cdef"]


# ------------------------------------------------------------------------------------- not finite logits


def numbers_of(answer):
    null_odds = [] if answer.null_odds is None else [answer.null_odds]
    return null_odds + [number for candidate in answer.candidates for number in candidate[1:]]


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, -1e300])
def test_logits_that_are_not_finite_give_finite_numbers(bad, version_2):
    rules = AnswerRules(3, version_2=version_2)
    everywhere, fine = np.full(12, bad), logits_of({3: 2.0})
    for start, end in [(everywhere, everywhere), (everywhere, fine), (fine, everywhere)]:
        answer = answer_of(start, end, rules)
        assert np.isfinite(numbers_of(answer)).all()
        json.dumps(answers.nbest_entries(answer), allow_nan=False)


def test_nan_counts_as_the_least_and_infinities_as_what_they_are():
    rules = AnswerRules(n_best_size=2)
    assert answer_of({3: np.nan, 4: 1.0, 5: 0.5}, {5: 1.0}, rules).text == "wrote notes"
    assert answer_of({3: -np.inf, 4: 1.0, 5: 0.5}, {5: 1.0}, rules).text == "wrote notes"
    assert answer_of({3: np.inf, 4: 1.0, 5: 0.5}, {5: 1.0}, rules).text == "Ada wrote notes"


def test_every_finite_32_bit_logit_is_kept():
    greatest = np.finfo(np.float32).max
    answer = answer_of({3: greatest}, {3: greatest}, AnswerRules(n_best_size=1))
    assert answer.candidates == (answers.Candidate("Ada", 1.0, float(greatest), float(greatest)),)


# --------------------------------------------------------------------------- against plain loops, at random

WORDS = ["a", "b", "Émile", "a", "the", "The"]


def plain_answer(context, windows, start_logits, end_logits, rules):
    """The rules once more, with loops and tuples: (text, [(text, sum, start logit, end logit)], odds)."""
    found, nulls, order = [], [], 0
    for window, starts, ends in zip(windows, start_logits, end_logits):
        starts, ends = [float(x) for x in starts], [float(x) for x in ends]
        nulls.append((starts[0] + ends[0], len(nulls), starts[0], ends[0]))
        at = {window.first + k: k for k in range(len(window.starts))}
        ranked = [sorted(range(len(x)), key=lambda i, x=x: (-x[i], i))[: rules.n_best_size] for x in (starts, ends)]
        for s in ranked[0]:
            for e in ranked[1]:
                order += 1
                fits = s in at and e in at and s <= e < s + rules.max_answer_length
                if fits and window.has_max_context[at[s]]:
                    text = context[int(window.starts[at[s]]) : int(window.ends[at[e]])]
                    found.append((-(starts[s] + ends[e]), order, text, starts[s], ends[e]))
    if rules.version_2:
        _, _, start, end = min(nulls)
        found.append((-(start + end), order + 1, "", start, end))
    found.sort()
    listed = []
    while found and len(listed) < rules.n_best_size:
        score, _, text, start, end = found.pop(0)
        if text not in [row[0] for row in listed]:
            listed.append((text, -score, start, end))
    if rules.version_2 and "" not in [row[0] for row in listed]:
        listed.append(("", min(nulls)[0], min(nulls)[2], min(nulls)[3]))
    listed = listed or [("", 0.0, 0.0, 0.0)]
    if not rules.version_2:
        return listed[0][0], listed, None
    real = [row for row in listed if row[0]] or [("", 0.0, 0.0, 0.0)]
    odds = min(nulls)[0] - real[0][1]
    return ("" if odds > rules.null_threshold else real[0][0]), listed, odds


def random_case(seed, distinct_words=False):
    """A paragraph with overlapping windows, and logits with many ties (odd seeds) or none."""
    generator = np.random.RandomState(seed)
    count = generator.randint(1, 40)
    words = [f"w{k}" for k in range(count)] if distinct_words else list(generator.choice(WORDS, count))
    context = " ".join(words)
    size, stride = generator.randint(4, 16), generator.randint(1, 6)
    offsets = list(range(0, max(count - size, 0) + stride, stride))
    # Each token has most context in one of the windows that show it; any choice will do here.
    owner = [generator.choice([w for w, o in enumerate(offsets) if o <= k < o + size] or [0]) for k in range(count)]
    windows, start_logits, end_logits = [], [], []
    for w, offset in enumerate(offsets):
        tokens = slice(offset, offset + size)
        context_here = [owner[k] == w for k in range(count)[tokens]]
        first = generator.randint(2, 6)
        windows.append(window_of(context, first, tokens, context_here))
        length = first + size + generator.randint(1, 6)
        for logits in (start_logits, end_logits):
            values = generator.normal(0, 3, length)
            logits.append((np.round(values) if seed % 2 else values).astype(np.float32))
    rules = AnswerRules(
        n_best_size=int(generator.choice([1, 2, 3, 5, 20])),
        max_answer_length=int(generator.choice([1, 3, 30])),
        version_2=bool(generator.randint(2)),
        null_threshold=float(generator.choice([-2.0, 0.0, 1.5])),
    )
    return context, windows, start_logits, end_logits, rules


@pytest.mark.parametrize("batch", range(10))
def test_answers_are_those_of_plain_loops(batch):
    for seed in range(50 * batch, 50 * batch + 50):
        case = random_case(seed)
        answer = find_answer(*case)
        text, listed, odds = plain_answer(*case)
        assert answer.text == text, seed
        assert [(c.text, c.start_logit, c.end_logit) for c in answer.candidates] == [(t, s, e) for t, _, s, e in listed]
        assert answer.null_odds == (odds if odds is None else pytest.approx(odds, abs=1e-12))
        assert answer.best_text == next((row[0] for row in listed if row[0]), "")
        powers = [math.exp(row[1]) for row in listed]
        assert [c.probability for c in answer.candidates] == pytest.approx([power / sum(powers) for power in powers])


def test_the_random_cases_have_all_that_matters():
    cases = [random_case(seed) for seed in range(500)]
    found = [find_answer(*case) for case in cases]
    assert sum(len(case[1]) > 2 for case in cases) > 100
    assert sum(answer.text == "" for answer in found if answer.null_odds is not None) > 20
    assert sum(answer.text != "" for answer in found if answer.null_odds is not None) > 20
    assert sum(answer.best_text == "" for answer in found) > 20
    assert sum(len(answer.candidates) > 10 for answer in found) > 20


# ---------------------------------------------------------------------------- against another implementation


def transformers_answer(library, folder, case):
    """What transformers writes for a case of lower-case words, one token each: n-best entries and the null odds."""
    context, windows, start_logits, end_logits, rules = case
    words, ends = context.split(), [end for _, end in token_spans(context)]
    features, results = [], []
    for number, (window, starts, lasts) in enumerate(zip(windows, start_logits, end_logits)):
        places = {window.first + k: ends.index(end) for k, end in enumerate(window.ends)}
        tokens = [words[places[p]] if p in places else "?" for p in range(len(starts))]
        has_context = {window.first + k: bool(value) for k, value in enumerate(window.has_max_context)}
        features.append(
            types.SimpleNamespace(
                example_index=0,
                unique_id=number,
                tokens=tokens,
                token_to_orig_map=places,
                token_is_max_context=has_context,
            )
        )
        results.append(types.SimpleNamespace(unique_id=number, start_logits=starts.tolist(), end_logits=lasts.tolist()))
    paths = [str(folder / name) for name in ("predictions.json", "nbest.json", "odds.json")]
    example = types.SimpleNamespace(qas_id="q", doc_tokens=words)
    tokenizer = types.SimpleNamespace(convert_tokens_to_string=" ".join)
    library.compute_predictions_logits(
        [example], features, results, rules.n_best_size, rules.max_answer_length, True, *paths, False, rules.version_2,
        rules.null_threshold, tokenizer,
    )  # fmt: skip
    predictions, nbest = (json.loads((folder / name).read_text())["q"] for name in ("predictions.json", "nbest.json"))
    odds = json.loads((folder / "odds.json").read_text())["q"] if rules.version_2 else None
    return predictions, nbest, odds


def test_answers_are_those_of_transformers(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("transformers.data.metrics.squad_metrics")
    compared = 0
    for seed in range(200):
        case = random_case(seed, distinct_words=True)
        answer = find_answer(*case)
        if not answer.best_text:  # it says "empty" there
            continue
        prediction, nbest, odds = transformers_answer(library, tmp_path, case)
        entries = answers.nbest_entries(answer)
        assert answer.text == prediction
        assert [list(entry) for entry in entries] == [list(entry) for entry in nbest]
        for entry, expected in zip(entries, nbest):
            assert entry == dict(expected, probability=pytest.approx(expected["probability"]))
        assert answer.null_odds == odds
        compared += 1
    assert compared > 100


# -------------------------------------------------------------------------------------- files and errors


def test_nbest_entries_are_plain_and_in_the_order_of_the_original():
    entries = answers.nbest_entries(answer_of({0: 1.0, 3: 2.5}, {0: 1.0, 3: 2.5}, AnswerRules(2, version_2=True)))
    assert [list(entry) for entry in entries] == [["text", "probability", "start_logit", "end_logit"]] * 2
    assert all(type(entry[key]) is float for entry in entries for key in list(entry)[1:])
    assert json.loads(json.dumps(entries)) == entries
    assert entries[0]["text"] == "Ada"


@pytest.mark.parametrize(
    "values, message",
    [
        ({"n_best_size": 0}, "n_best_size must be an integer of at least 1, found 0."),
        ({"max_answer_length": -1}, "max_answer_length must be an integer of at least 1, found -1."),
        ({"null_threshold": float("nan")}, "null_threshold must be a number, found nan."),
    ],
)
def test_rules_without_sense_are_refused(values, message):
    with pytest.raises(UserError) as caught:
        AnswerRules(**values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "start, end, message",
    [
        ([], [], "1 windows, 0 rows of start logits and 0 of end logits"),
        ([np.zeros(12)], [np.zeros(11)], r"6 tokens from position 3 on does not match \(12,\) start .* \(11,\) end"),
        ([np.zeros(8)], [np.zeros(8)], r"6 tokens from position 3 on does not match \(8,\) start"),
        ([np.zeros((12, 1))], [np.zeros((12, 1))], r"does not match \(12, 1\) start"),
    ],
)
def test_logits_of_other_windows_are_refused(start, end, message):
    with pytest.raises(ValueError, match=message):
        find_answer(CONTEXT, [window_of()], start, end, AnswerRules())
