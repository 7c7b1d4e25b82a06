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
import json
import math
import re
import string
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import errors, json_files
from adapter_bert.tasks import squad

# Question id -> gold texts, in the order of the data set. In version 2.0, no text means that there is no answer.
Golds = Mapping[str, Sequence[str]]

AUTO = "auto"
VERSIONS = ("1.1", "2.0")

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize(text: str) -> str:
    """Return the text in lower case without ASCII punctuation and English articles, tokens one space apart."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def score_v1(golds: Golds, predictions: Mapping[str, str]) -> Dict[str, float]:
    """Score like evaluate-v1.1.py: `exact_match` and `f1` in per cent. A question without a prediction counts 0."""
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
            is_exact, f1 = _score_question(predictions[question], map(normalize, texts), f1_of_empty=0)
            exact_sum += is_exact
            f1_sum += f1
    return {"exact_match": 100.0 * exact_sum / len(golds), "f1": 100.0 * f1_sum / len(golds)}


def score_v2(
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Optional[Mapping[str, float]] = None,
    threshold: float = 1.0,
) -> Dict[str, float]:
    """Score like evaluate-v2.0.py.

    Args:
      golds: gold texts.
      predictions: question id -> predicted text, empty for no answer. Questions without a prediction are ignored.
      null_odds: question id -> probability or log-odds of no answer, for all predicted questions.
      threshold: null odds above it turn the prediction into no answer.

    Returns:
      `exact` and `f1` in per cent, and `total`, the number of questions; the same for questions with an answer
      (`HasAns_`) and without (`NoAns_`), if there are any. With null odds also the best scores over all thresholds, and
      the thresholds that reach them (`best_exact`, `best_exact_thresh`, `best_f1`, `best_f1_thresh`). As in the
      official script, the threshold is 0.0 if answering no question scores best: that suits probabilities.
    """
    questions = [question for question in golds if question in predictions]
    if not questions:
        raise errors.UserError(f"None of the {len(golds)} questions has a prediction.")
    # Integers stay integers, as in the official script: from Python 3.12 on, `sum` rounds 1 and 1.0 differently.
    raw: Dict[str, Dict[str, float]] = {"exact": {}, "f1": {}}
    for question in questions:
        texts = [text for text in map(normalize, golds[question]) if text] or [""]
        raw["exact"][question], raw["f1"][question] = _score_question(predictions[question], texts, f1_of_empty=1)
    no_answers: Dict[str, float] = {}
    if null_odds is not None:
        missing = [question for question in questions if question not in null_odds]
        if missing:
            raise errors.UserError(
                f"{len(missing)} questions have a prediction but no null odds, the first: '{missing[0]}'; use "
                "predictions and null odds of the same model."
            )
        no_answers = {q: float(not golds[q]) for q in questions if null_odds[q] > threshold}
    scores: Dict[str, float] = {}
    with_answer, without = [q for q in questions if golds[q]], [q for q in questions if not golds[q]]
    for prefix, group in (("", questions), ("HasAns_", with_answer), ("NoAns_", without)):
        if group:
            for name, values in raw.items():
                scores[prefix + name] = 100.0 * sum(no_answers.get(q, values[q]) for q in group) / len(group)
            scores[prefix + "total"] = len(group)
    if null_odds is not None:
        for name, values in raw.items():
            best = _best_threshold(values, golds, predictions, null_odds)
            scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best
    return scores


def _score_question(prediction: str, golds: Iterable[str], f1_of_empty: int) -> Tuple[int, float]:
    """Return exact match and F1, each with the gold text that is best for it; the gold texts are normalized."""
    prediction = normalize(prediction)
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


def _best_threshold(
    raw_scores: Mapping[str, float],
    golds: Golds,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> Tuple[float, float]:
    """Return the best score over all thresholds, in per cent, and its threshold.

    Start with no question answered, which is correct for those without an answer, then answer one question after
    another in order of increasing null odds. Equal null odds are taken in the order of `null_odds`, and
    the best score may lie between two of them, as in the official script.
    """
    score: float = sum(not golds[question] for question in raw_scores)
    best, threshold = score, 0.0
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


def score_files(
    dataset_path: str,
    predictions_path: str,
    null_odds_path: Optional[str] = None,
    threshold: Optional[float] = None,
    version: str = AUTO,
) -> Tuple[str, List[str]]:
    """Score predictions (JSON, question id -> text) against a SQuAD file with answers.

    Null odds (JSON, question id -> number) and a threshold, see `score_v2`, are for version 2.0. `AUTO` means 2.0
    if any question has the key `is_impossible` or no answers, else 1.1. Return the scores as the official script prints
    them, and warnings about the predictions.
    """
    if threshold is not None and not null_odds_path:
        raise errors.UserError("--threshold needs null odds; add --null_odds=FILE.")
    dataset = squad.read(dataset_path)
    golds = dataset.golds()
    if not dataset.has_answers:
        raise errors.UserError(f"{dataset_path} has no answers to compare with; use a file with answers.")
    if version == AUTO:
        version = "2.0" if dataset.says_impossible or not all(golds.values()) else "1.1"
    if null_odds_path and version == "1.1":
        raise errors.UserError("--null_odds is for version 2.0, but the data set is scored as version 1.1.")
    predictions = _read_values(predictions_path, "text", lambda value: isinstance(value, str))
    if not any(question in golds for question in predictions):
        raise errors.UserError(
            f"{predictions_path} has {len(predictions)} predictions, but none for a question of {dataset_path}; use "
            "predictions for this data set."
        )
    warnings = _find_mismatches(golds, predictions, "count 0" if version == "1.1" else "are ignored")
    if version == "1.1":
        return json.dumps(score_v1(golds, predictions)), warnings
    null_odds = _read_values(null_odds_path, "number", _is_number) if null_odds_path else None
    scores = score_v2(golds, predictions, null_odds, 1.0 if threshold is None else threshold)
    return json.dumps(scores, indent=2), warnings


def _find_mismatches(golds: Golds, predictions: Mapping[str, str], effect: str) -> List[str]:
    """Return a warning about missing predictions, with their effect, and one about unknown questions."""
    warnings = []
    missing = [question for question in golds if question not in predictions]
    if missing:
        found = f"{len(missing)} of {len(golds)} questions have no prediction"
        warnings.append(f"{found} and {effect}, the first: {missing[0]!r}.")
    unknown = [question for question in predictions if question not in golds]
    if unknown:
        found = f"{len(unknown)} of {len(predictions)} predictions are for unknown questions"
        warnings.append(f"{found} and are ignored, the first: {unknown[0]!r}.")
    return warnings


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


def _read_values(path: str, kind: str, is_valid: Callable[[Any], bool]) -> Dict[str, Any]:
    """Read a JSON object of question id -> value and check the values."""
    expected = f"Expected a JSON object of question id -> {kind}."
    content = json_files.read_object(path, expected, is_data=True)
    for question, value in content.items():
        if not is_valid(value):
            raise errors.UserError(f"{path}: the value of {question!r} is {json.dumps(value)[:40]}. {expected}")
    return content
