"""Turn the logits of a span model over the windows of a paragraph into the answer to a question.

Given equal logits, the answers are those of Google's run_squad.py, with these differences:

* If no span is valid, the original answers "empty" (version 1.1) or fails (version 2.0); here the answer is "".
* NaN logits become the lowest 32-bit float and infinite ones the nearest finite float, so that every number
  written to JSON is finite.
* The answer is the slice of the paragraph that its tokens cover; nothing is aligned with a second tokenization.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import errors

if TYPE_CHECKING:
    from adapter_bert.pipeline.spans import Window

# The files that answers are written to.
PREDICTIONS = "predictions.json"
N_BEST = "nbest_predictions.json"
NULL_ODDS = "null_odds.json"

# The sum of two such logits is finite in 64 bits.
MAX_LOGIT = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """Which spans are valid answers.

    Attributes:
      n_best_size: number of starts and ends to consider per window, and of texts to list per question.
      max_answer_length: in tokens.
      version_2: whether a question may have no answer, as in SQuAD 2.0.
      null_threshold: predict no answer if its score exceeds that of the best text by more than this.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2: bool = False
    null_threshold: float = 0.0

    def __post_init__(self) -> None:
        for name in ("n_best_size", "max_answer_length"):
            errors.check_int(name, getattr(self, name))
        if math.isnan(self.null_threshold):
            raise errors.UserError("null_threshold must be a number, found nan.")


class Candidate(NamedTuple):
    """A possible answer, "" for no answer. Probabilities are relative to the other candidates of the question."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


class PredictedAnswer(NamedTuple):
    """The answer to a question. All its numbers are finite.

    Attributes:
      text: the prediction.
      candidates: best first; if no answer is possible and not among the best, it comes last. Never empty.
      null_odds: score of no answer minus score of `best_text`; None unless no answer is possible.
      best_text: the prediction if there had to be an answer; "" if no span is valid.
    """

    text: str
    candidates: Tuple[Candidate, ...]
    null_odds: Optional[float]
    best_text: str


class _ScoredText(NamedTuple):
    """A text with the logits of its first and last token."""

    text: str
    start_logit: float
    end_logit: float


def find_answer(
    context: str,
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> PredictedAnswer:
    """Find the answer to a question.

    Args:
      context: the paragraph.
      windows: the windows of the paragraph; none if it has no tokens.
      start_logits: for each window, float [positions], the logit of an answer that starts there.
      end_logits: likewise for the end.
      rules: which spans are valid.
    """
    if not len(windows) == len(start_logits) == len(end_logits):
        raise ValueError(
            f"Expected one row of logits for each of {len(windows)} windows, found {len(start_logits)} rows of start "
            f"logits and {len(end_logits)} of end logits."
        )
    start_logits, end_logits = _clip(start_logits), _clip(end_logits)
    nothing = _ScoredText("", 0.0, 0.0)
    texts = _best_texts(context, windows, start_logits, end_logits, rules) if windows else []
    best = texts[0] if texts else nothing
    if not rules.version_2:
        return PredictedAnswer(best.text, _with_probabilities(texts or [nothing]), None, best.text)
    nulls = [_ScoredText("", float(starts[0]), float(ends[0])) for starts, ends in zip(start_logits, end_logits)]
    null = min(nulls, key=_score, default=nothing)
    # The sort is stable: if scores are equal, a text comes before no answer.
    listed = sorted([*texts, null], key=_score, reverse=True)[: rules.n_best_size]
    if null not in listed:
        listed.append(null)
    null_odds = _score(null) - best.start_logit - best.end_logit
    text = "" if null_odds > rules.null_threshold else best.text
    return PredictedAnswer(text, _with_probabilities(listed), null_odds, best.text)


def nbest_entries(answer: PredictedAnswer) -> List[Dict[str, Any]]:
    """Return the candidates of an answer as the entries of an n-best file."""
    return [dict(candidate._asdict()) for candidate in answer.candidates]


def _score(scored: _ScoredText) -> float:
    return scored.start_logit + scored.end_logit


def _clip(logits: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Return the logits as finite 64-bit floats."""
    wide = [np.asarray(row, np.float64) for row in logits]
    return [np.clip(np.where(np.isnan(row), -MAX_LOGIT, row), -MAX_LOGIT, MAX_LOGIT) for row in wide]


def _top_positions(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the highest logits, highest first; ties by position."""
    positions = np.arange(len(logits))
    if count < len(logits):
        lowest = np.partition(logits, -count)[-count]
        # May be more than `count` because of ties; the stable sort keeps the lower positions.
        positions = np.flatnonzero(logits >= lowest)
    return positions[np.argsort(-logits[positions], kind="stable")][:count]


def _valid_spans(window: Window, start_logits: np.ndarray, end_logits: np.ndarray, rules: AnswerRules) -> np.ndarray:
    """Return the valid spans of a window, ordered by the rank of their start, then of their end.

    Returns:
      float [4, spans]: first and last character in the paragraph, start logit, end logit.
    """
    # Token numbers in the window. Question, special tokens and padding are outside of 0 ... n - 1.
    first, last = (_top_positions(logits, rules.n_best_size) - window.first for logits in (start_logits, end_logits))
    first, last = (tokens[(tokens >= 0) & (tokens < len(window.starts))] for tokens in (first, last))
    first = first[window.has_max_context[first]]
    distance = last[np.newaxis, :] - first[:, np.newaxis]  # [starts, ends]
    rows, columns = np.nonzero((distance >= 0) & (distance < rules.max_answer_length))
    first, last = first[rows], last[columns]
    logits = start_logits[first + window.first], end_logits[last + window.first]
    return np.stack([window.starts[first], window.ends[last], *logits])


def _best_texts(
    context: str,
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> List[_ScoredText]:
    """Return the `n_best_size` best texts of all windows, best first, without duplicates or empty texts."""
    spans = np.concatenate([_valid_spans(*row, rules) for row in zip(windows, start_logits, end_logits)], axis=1)
    texts: Dict[str, _ScoredText] = {}
    for index in np.argsort(-(spans[2] + spans[3]), kind="stable"):
        start, end, start_logit, end_logit = spans[:, index].tolist()
        # A SentencePiece token may cover nothing but the space before a word.
        text = context[int(start) : int(end)].strip()
        if text and text not in texts:
            texts[text] = _ScoredText(text, start_logit, end_logit)
            if len(texts) == rules.n_best_size:
                break
    return list(texts.values())


def _with_probabilities(texts: Sequence[_ScoredText]) -> Tuple[Candidate, ...]:
    """Add the softmax of the scores."""
    scores = np.array([_score(scored) for scored in texts], np.float64)
    powers = np.exp(scores - scores.max())
    shares = (powers / powers.sum()).tolist()
    return tuple(Candidate(scored.text, share, *scored[1:]) for scored, share in zip(texts, shares))
