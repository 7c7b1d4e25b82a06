"""Exact match and F1 of answers to SQuAD's questions, to the last digit those of the two official scripts.

Both scripts compare texts without case, punctuation and articles, and take a question's best gold text. They differ:

                                  evaluate-v1.1.py            evaluate-v2.0.py
    a question without a gold     is not foreseen             is right if the prediction is empty
    a gold of no tokens           has F1 0 with everything    is no gold
    a missing prediction          counts 0                    is left out

Sums are formed as there, in the order of the questions: another order may give another last digit. So may another
Python, here and there alike: from 3.12 on, `sum` rounds floats less.
"""

from __future__ import annotations

import collections
import re
import string
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize(text: str) -> str:
    """The text as it is compared: lower case, no ASCII punctuation, no English articles, tokens one space apart."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact(prediction: str, gold: str) -> int:
    """1 if the two are the same text once normalised, else 0."""
    return int(normalize(prediction) == normalize(gold))


def f1_v1(prediction: str, gold: str) -> float:
    """F1 of the tokens that two texts share, as of version 1.1: 0 where both texts have no tokens."""
    return _shared(normalize(prediction), normalize(gold))


def f1_v2(prediction: str, gold: str) -> float:
    """F1 of the tokens that two texts share, as of version 2.0: 1 where both texts have no tokens."""
    return _shared_or_none(normalize(prediction), normalize(gold))


def _shared(prediction: str, gold: str) -> float:
    """F1 of the bags of tokens of two normalised texts."""
    predicted, wanted = prediction.split(), gold.split()
    shared = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    if not shared:
        return 0
    precision, recall = shared / len(predicted), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _shared_or_none(prediction: str, gold: str) -> float:
    """The same; two texts without tokens agree."""
    return _shared(prediction, gold) if prediction and gold else int(prediction == gold)


def _best(prediction: str, golds: Iterable[str], f1: Callable[[str, str], float]) -> Tuple[int, float]:
    """Exact match and F1, each with the gold text that is best for it; all texts are normalised."""
    different = list(dict.fromkeys(golds))  # annotators mostly agree
    return int(prediction in different), max(f1(prediction, gold) for gold in different)


def score_v1(golds: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> Dict[str, float]:
    """Scores as evaluate-v1.1.py does.

    Args:
      golds: question id -> its gold texts, in the order of the data set.
      predictions: question id -> predicted text. A question without one counts 0.

    Returns:
      `exact_match` and `f1`, in per cent.

    Raises:
      errors.UserError: there is no question, or a question has no gold text.
    """
    if not golds:
        raise errors.UserError("There is no question to score.")
    exact_sum, f1_sum = 0, 0.0
    for question, texts in golds.items():
        if not texts:
            raise errors.UserError(
                f"Question '{question}' has no answer, and version 1.1 scores none but questions that have one; "
                "score with version 2.0."
            )
        if question in predictions:
            is_exact, f1 = _best(normalize(predictions[question]), map(normalize, texts), _shared)
            exact_sum += is_exact
            f1_sum += f1
    return {"exact_match": 100.0 * exact_sum / len(golds), "f1": 100.0 * f1_sum / len(golds)}


def score_v2(
    golds: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Optional[Mapping[str, float]] = None,
    threshold: float = 1.0,
    none_threshold: float = 0.0,
) -> Dict[str, float]:
    """Scores as evaluate-v2.0.py does.

    Args:
      golds: question id -> its gold texts, none if it cannot be answered; in the order of the data set.
      predictions: question id -> predicted text, empty for no answer. A question without a prediction is left out, as
        if it were not in the data set (where the official script ends in a KeyError).
      null_odds: question id -> how sure the model is that there is no answer: a probability or log-odds.
      threshold: a question with null odds above it is scored as if it were predicted to have no answer.
      none_threshold: what to report as best threshold where it is best to answer no question. The official 0.0 suits
        probabilities; give a number below all null odds.

    Returns:
      `exact` and `f1`, in per cent, and `total`, the number of questions; the same of questions with an answer
      (`HasAns_`) and without (`NoAns_`), where there are such; and with null odds, the best scores that a threshold
      gives, and those thresholds (`best_exact`, `best_exact_thresh`, `best_f1`, `best_f1_thresh`).

    Raises:
      errors.UserError: no question has a prediction, or one with a prediction has no null odds.
    """
    scored = [question for question in golds if question in predictions]
    if not scored:
        raise errors.UserError(f"None of the {len(golds)} questions has a prediction: there is nothing to score.")
    exacts, f1s = _raw_scores(golds, predictions, scored)
    # Whole numbers stay whole numbers, as there: from Python 3.12 on, `sum` rounds 1 and 1.0 differently.
    final_exacts, final_f1s = exacts, f1s
    if null_odds is not None:
        _check_null_odds(null_odds, scored)
        abstained = {q: float(not golds[q]) for q in scored if null_odds[q] > threshold}
        final_exacts, final_f1s = {**exacts, **abstained}, {**f1s, **abstained}
    scores = _means(final_exacts, final_f1s, scored)
    groups = {"HasAns_": [q for q in scored if golds[q]], "NoAns_": [q for q in scored if not golds[q]]}
    for prefix, questions in groups.items():
        if questions:
            scores.update((prefix + name, value) for name, value in _means(final_exacts, final_f1s, questions).items())
    if null_odds is not None:
        for name, raw in (("best_exact", exacts), ("best_f1", f1s)):
            best = _best_threshold(raw, golds, predictions, null_odds, none_threshold)
            scores[name], scores[name + "_thresh"] = best
    return scores


def _raw_scores(
    golds: Mapping[str, Sequence[str]], predictions: Mapping[str, str], questions: Iterable[str]
) -> Tuple[Dict[str, float], Dict[str, float]]:
    """Exact match and F1 of each question's prediction, whatever its null odds."""
    exacts: Dict[str, float] = {}
    f1s: Dict[str, float] = {}
    for question in questions:
        texts = [text for text in map(normalize, golds[question]) if text] or [""]
        exacts[question], f1s[question] = _best(normalize(predictions[question]), texts, _shared_or_none)
    return exacts, f1s


def _check_null_odds(null_odds: Mapping[str, float], questions: Iterable[str]) -> None:
    missing = [question for question in questions if question not in null_odds]
    if missing:
        raise errors.UserError(
            f"Question '{missing[0]}' has a prediction but no null odds ({len(missing)} such questions); give the "
            "null odds of the model that made the predictions."
        )


def _means(exacts: Mapping[str, float], f1s: Mapping[str, float], questions: List[str]) -> Dict[str, float]:
    """The scores of some questions, in per cent, and how many they are."""
    total = len(questions)
    return {
        "exact": 100.0 * sum(exacts[question] for question in questions) / total,
        "f1": 100.0 * sum(f1s[question] for question in questions) / total,
        "total": total,
    }


def _best_threshold(
    raw_scores: Mapping[str, float],
    golds: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    none_threshold: float,
) -> Tuple[float, float]:
    """Searches the null odds for the threshold with the best score; returns that, in per cent, and the threshold.

    Starts with no question answered, which is right for all that have no answer, and answers one after the other, the
    surest first. Equal null odds come in the order of `null_odds`, and the best may lie amidst them, as it may in the
    official script.
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
