"""Score a file of predictions against a SQuAD file, like the official scripts."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from adapter_bert.common import errors, files
from adapter_bert.evaluation import squad_metrics
from adapter_bert.tasks import squad

AUTO = "auto"
VERSIONS = ("1.1", "2.0")


def score_files(
    dataset_path: str,
    predictions_path: str,
    null_odds_path: Optional[str] = None,
    threshold: Optional[float] = None,
    version: str = AUTO,
) -> Tuple[str, List[str]]:
    """Score predictions.

    Args:
      dataset_path: a SQuAD file with answers.
      predictions_path: JSON, question id -> text.
      null_odds_path: JSON, question id -> number; version 2.0 only.
      threshold: see `squad_metrics.score_v2`; 1.0 by default.
      version: one of `VERSIONS`, or `AUTO`: 2.0 if any question has the key `is_impossible` or no answers, else 1.1.

    Returns:
      The scores as the official script prints them, and warnings about the predictions.

    Raises:
      errors.UserError: a file is invalid, or files and options do not match.
    """
    if threshold is not None and not null_odds_path:
        raise errors.UserError("--threshold needs null odds; add --null_odds=FILE.")
    dataset = squad.read(dataset_path)
    if not dataset.has_answers:
        raise errors.UserError(f"{dataset_path} has no answers to compare with; use a file with answers.")
    if version == AUTO:
        is_version_2 = dataset.says_impossible or not all(question.answers for question in dataset.questions())
        version = "2.0" if is_version_2 else "1.1"
    if null_odds_path and version == "1.1":
        raise errors.UserError("--null_odds is for version 2.0, but the data set is scored as version 1.1.")
    golds, predictions = dataset.golds(), _read_values(predictions_path, "text", lambda value: isinstance(value, str))
    if not any(question in golds for question in predictions):
        raise errors.UserError(
            f"{predictions_path} has {len(predictions)} predictions, but none for a question of {dataset_path}; use "
            "predictions for this data set."
        )
    warnings = find_mismatches(golds, predictions, version)
    if version == "1.1":
        return json.dumps(squad_metrics.score_v1(golds, predictions)), warnings
    null_odds = _read_values(null_odds_path, "number", _is_number) if null_odds_path else None
    scores = squad_metrics.score_v2(golds, predictions, null_odds, 1.0 if threshold is None else threshold)
    return json.dumps(scores, indent=2), warnings


def find_mismatches(golds: squad_metrics.Golds, predictions: Mapping[str, str], version: str) -> List[str]:
    """Return a warning for missing predictions and one for unknown questions."""
    warnings = []
    missing = [question for question in golds if question not in predictions]
    if missing:
        effect = "count 0" if version == "1.1" else "are ignored"
        warnings.append(
            f"{len(missing)} of {len(golds)} questions have no prediction and {effect}, the first: {missing[0]!r}."
        )
    unknown = [question for question in predictions if question not in golds]
    if unknown:
        warnings.append(
            f"{len(unknown)} of {len(predictions)} predictions are for unknown questions and are ignored, the first: "
            f"{unknown[0]!r}."
        )
    return warnings


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _read_values(path: str, kind: str, is_valid: Callable[[Any], bool]) -> Dict[str, Any]:
    """Read a JSON object of question id -> value and check the values."""
    expected = f"Expected a JSON object of question id -> {kind}."
    content = files.read_json_object(path, expected)
    for question, value in content.items():
        if not is_valid(value):
            raise errors.UserError(f"{path}: the value of {question!r} is {json.dumps(value)[:40]}. {expected}")
    return content
