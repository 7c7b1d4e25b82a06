"""Exact match and F1 of SQuAD answers, equal to those of the two official scripts to the last digit.

Both scripts compare texts without case, punctuation and articles, and use the gold text that scores best. They differ:

                                  evaluate-v1.1.py            evaluate-v2.0.py
    question without gold text    not supported               correct if the prediction is empty
    gold text without tokens      F1 is always 0              ignored
    missing prediction            counts 0                    KeyError (here: question is ignored)

Sums are computed in the order of the questions, as in these scripts, since another order may change the last digit. The
Python version may also change it, both here and there: since 3.12, `sum` of floats is more accurate.
"""

from __future__ import annotations

import collections
import re
import string
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors

# Question id -> gold texts, in the order of the data set. In version 2.0, no text means that there is no answer.
Golds = Mapping[str, Sequence[str]]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize(text: str) -> str:
    """Return the text in lower case without ASCII punctuation and English articles, tokens one space apart."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def score_v1(golds: Golds, predictions: Mapping[str, str]) -> Dict[str, float]:
    """Score like evaluate-v1.1.py.

    Args:
      golds: gold texts, at least one for each question.
      predictions: question id -> predicted text. A question without a prediction counts 0.

    Returns:
      `exact_match` and `f1`, in per cent.

    Raises:
      errors.UserError: there are no questions, or a question has no gold text.
    """
    if not golds:
        raise errors.UserError("There are no questions to score.")
    exact_sum, f1_sum = 0, 0.0
    for question, texts in golds.items():
        if not texts:
            raise errors.UserError(
                f"Question '{question}' has no answer, but version 1.1 expects one for every question; score with "
                "version 2.0."
            )
        if question in predictions:
            is_exact, f1 = _score_question(normalize(predictions[question]), map(normalize, texts), f1_of_empty=0)
            exact_sum += is_exact
            f1_sum += f1
    return {"exact_match": 100.0 * exact_sum / len(golds), "f1": 100.0 * f1_sum / len(golds)}


def score_v2(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Optional[Mapping[str, float]] = None,
    threshold: float = 1.0,
    none_threshold: float = 0.0,
) -> Dict[str, float]:
    """Score like evaluate-v2.0.py.

    Args:
      golds: gold texts.
      predictions: question id -> predicted text, empty for no answer. Questions without a prediction are ignored.
      null_odds: question id -> probability or log-odds of no answer.
      threshold: null odds above it turn the prediction into no answer.
      none_threshold: the threshold to report if answering no question scores best. The official 0.0 suits
        probabilities; otherwise pass a number below all null odds.

    Returns:
      `exact` and `f1` in per cent, and `total`, the number of questions; the same for questions with an answer
      (`HasAns_`) and without (`NoAns_`), if there are any. With null odds also the best scores of any threshold, and
      these thresholds (`best_exact`, `best_exact_thresh`, `best_f1`, `best_f1_thresh`).

    Raises:
      errors.UserError: no question has a prediction, or one that has a prediction has no null odds.
    """
    questions = [question for question in golds if question in predictions]
    if not questions:
        raise errors.UserError(f"None of the {len(golds)} questions has a prediction.")
    exacts: Dict[str, float] = {}
    f1s: Dict[str, float] = {}
    for question in questions:
        texts = [text for text in map(normalize, golds[question]) if text] or [""]
        exacts[question], f1s[question] = _score_question(normalize(predictions[question]), texts, f1_of_empty=1)
    # Integers stay integers, as in the official script: from Python 3.12 on, `sum` rounds 1 and 1.0 differently.
    final_exacts, final_f1s = exacts, f1s
    if null_odds is not None:
        missing = [question for question in questions if question not in null_odds]
        if missing:
            raise errors.UserError(
                f"{len(missing)} questions have a prediction but no null odds, the first: '{missing[0]}'; use "
                "predictions and null odds of the same model."
            )
        no_answers = {q: float(not golds[q]) for q in questions if null_odds[q] > threshold}
        final_exacts, final_f1s = {**exacts, **no_answers}, {**f1s, **no_answers}
    scores = _means(final_exacts, final_f1s, questions)
    groups = {"HasAns_": [q for q in questions if golds[q]], "NoAns_": [q for q in questions if not golds[q]]}
    for prefix, group in groups.items():
        if group:
            means = _means(final_exacts, final_f1s, group)
            scores.update({prefix + name: value for name, value in means.items()})
    if null_odds is not None:
        for name, raw in (("best_exact", exacts), ("best_f1", f1s)):
            best = _best_threshold(raw, golds, predictions, null_odds, none_threshold)
            scores[name], scores[name + "_thresh"] = best
    return scores


def _score_question(prediction: str, golds: Iterable[str], f1_of_empty: int) -> Tuple[int, float]:
    """Return exact match and F1, each with the gold text that is best for it; all texts are normalized."""
    distinct = list(dict.fromkeys(golds))  # annotators often agree
    return int(prediction in distinct), max(_token_f1(prediction, gold, f1_of_empty) for gold in distinct)


def _token_f1(prediction: str, gold: str, f1_of_empty: int) -> float:
    """Return the F1 of the bags of tokens of two normalized texts; `f1_of_empty` if both are empty."""
    predicted, expected = prediction.split(), gold.split()
    num_common = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if not num_common:
        return f1_of_empty if prediction == gold else 0
    precision, recall = num_common / len(predicted), num_common / len(expected)
    return 2 * precision * recall / (precision + recall)


def _means(exacts: Mapping[str, float], f1s: Mapping[str, float], questions: List[str]) -> Dict[str, float]:
    """Return the scores of some questions, in per cent, and the number of questions."""
    total = len(questions)
    return {
        "exact": 100.0 * sum(exacts[question] for question in questions) / total,
        "f1": 100.0 * sum(f1s[question] for question in questions) / total,
        "total": total,
    }


def _best_threshold(
    raw_scores: Mapping[str, float],
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    none_threshold: float,
) -> Tuple[float, float]:
    """Return the best score of any threshold, in per cent, and that threshold.

    Starts with no question answered, which is correct for those without an answer, then answers one question after
    another in the order of rising null odds. Equal null odds are taken in the order of `null_odds`, and
    the best score may lie between two of them, as in the official script.
    """
    score: float = sum(not golds[question] for question in raw_scores)
    best, threshold = score, none_threshold
    for question in sorted(null_odds, key=lambda question: null_odds[question]):
        if question not in raw_scores:
            continue
        if golds[question]:
            score += raw_scores[question]
        elif predictions[question]:
            score -= 1
        if score > best:
            best, threshold = score, null_odds[question]
    return 100.0 * best / len(raw_scores), threshold
