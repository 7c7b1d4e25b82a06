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
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

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
    """Which spans are valid answers."""

    n_best_size: int = 20  # number of starts and ends to consider per window, and of texts to list per question
    max_answer_length: int = 30  # in tokens
    version_2: bool = False  # whether a question may have no answer, as in SQuAD 2.0
    null_threshold: float = 0.0  # predict no answer if its score exceeds that of the best text by more than this

    def __post_init__(self) -> None:
        for name in ("n_best_size", "max_answer_length"):
            errors.check_int(name, getattr(self, name))
        if math.isnan(self.null_threshold):
            raise errors.UserError("null_threshold must be a number, found nan.")


class Candidate(NamedTuple):
    """A possible answer, "" for no answer; the fields are those of an n-best file."""

    text: str
    probability: float  # relative to the other candidates of the question; 0 until all of them are known
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


class PredictedAnswer(NamedTuple):
    """The answer to a question. All its numbers are finite."""

    text: str  # the prediction
    candidates: Tuple[Candidate, ...]  # best first, never empty; in 2.0, no answer is last if not among the best
    null_odds: Optional[float]  # score of no answer minus score of `best_text`; None in version 1.1
    best_text: str  # the prediction if there had to be an answer; "" if no span is valid


_NOTHING = Candidate("", 0.0, 0.0, 0.0)


def find_answer(
    context: str,
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> PredictedAnswer:
    """Find the answer to a question about a paragraph, given its windows (none if it has no tokens).

    The logits are float [positions] for each window: scores of an answer that starts or ends at each position.
    """
    # A SentencePiece token may cover nothing but the space before a word.
    return find_answer_text(lambda start, end: context[start:end].strip(), windows, start_logits, end_logits, rules)


def find_answer_text(
    text_of: Callable[[int, int], str],
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> PredictedAnswer:
    """Find an answer as `find_answer` does; `text_of` returns the text from a token's start to another's end."""
    if not len(windows) == len(start_logits) == len(end_logits):
        rows = f"{len(start_logits)} rows of start logits and {len(end_logits)} of end logits"
        raise ValueError(f"Expected one row of logits for each of {len(windows)} windows, found {rows}.")
    start_logits, end_logits = _clip(start_logits), _clip(end_logits)
    spans = [_valid_spans(*row, rules) for row in zip(windows, start_logits, end_logits)]
    texts = _best_texts(text_of, np.concatenate(spans, axis=1), rules.n_best_size) if spans else []
    best = texts[0] if texts else _NOTHING
    if not rules.version_2:
        return PredictedAnswer(best.text, _with_probabilities(texts or [_NOTHING]), None, best.text)
    nulls = [Candidate("", 0.0, float(starts[0]), float(ends[0])) for starts, ends in zip(start_logits, end_logits)]
    null = min(nulls, key=lambda candidate: candidate.score, default=_NOTHING)
    # The sort is stable: if scores are equal, a text comes before no answer.
    listed = sorted([*texts, null], key=lambda candidate: candidate.score, reverse=True)[: rules.n_best_size]
    if null not in listed:
        listed.append(null)
    null_odds = null.score - best.start_logit - best.end_logit
    text = "" if null_odds > rules.null_threshold else best.text
    return PredictedAnswer(text, _with_probabilities(listed), null_odds, best.text)


def _clip(logits: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Return the logits as finite 64-bit floats."""
    wide = [np.asarray(row, np.float64) for row in logits]
    return [np.clip(np.where(np.isnan(row), -MAX_LOGIT, row), -MAX_LOGIT, MAX_LOGIT) for row in wide]


def _valid_spans(window: Window, start_logits: np.ndarray, end_logits: np.ndarray, rules: AnswerRules) -> np.ndarray:
    """Return the valid spans of a window, ordered by the rank of their start, then of their end.

    The result is float [4, spans]: first and last character in the paragraph, start logit, end logit.
    """
    top = (best_indices(logits, rules.n_best_size) for logits in (start_logits, end_logits))
    # Token numbers in the window. Question, special tokens and padding are outside of 0 ... n - 1.
    first, last = (positions - window.first for positions in top)
    first, last = (tokens[(tokens >= 0) & (tokens < len(window.starts))] for tokens in (first, last))
    first = first[window.has_max_context[first]]
    distance = last[np.newaxis, :] - first[:, np.newaxis]  # [starts, ends]
    rows, columns = np.nonzero((distance >= 0) & (distance < rules.max_answer_length))
    first, last = first[rows], last[columns]
    logits = start_logits[first + window.first], end_logits[last + window.first]
    return np.stack([window.starts[first], window.ends[last], *logits])


def _best_texts(text_of: Callable[[int, int], str], spans: np.ndarray, count: int) -> List[Candidate]:
    """Return the best texts of these spans (see `_valid_spans`), best first, without duplicates or empty texts."""
    texts: Dict[str, Candidate] = {}
    for index in np.argsort(-(spans[2] + spans[3]), kind="stable"):
        start, end, start_logit, end_logit = spans[:, index].tolist()
        text = text_of(int(start), int(end))
        if text and text not in texts:
            texts[text] = Candidate(text, 0.0, start_logit, end_logit)
            if len(texts) == count:
                break
    return list(texts.values())


def best_indices(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the highest logits, highest first; ties are broken by position."""
    return np.argsort(-logits, kind="stable")[:count]


def softmax(scores: Sequence[float]) -> List[float]:
    """Return probabilities that are proportional to the exponentials of the scores."""
    values = np.array(scores, np.float64)
    powers = np.exp(values - values.max(initial=-np.inf))
    return (powers / powers.sum()).tolist()


def _with_probabilities(candidates: Sequence[Candidate]) -> Tuple[Candidate, ...]:
    """Set the probabilities to the softmax of the scores."""
    shares = softmax([candidate.score for candidate in candidates])
    return tuple(candidate._replace(probability=share) for candidate, share in zip(candidates, shares))
