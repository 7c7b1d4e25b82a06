"""From the logits of a span model over the windows of a paragraph to the answer of a question, as SQuAD has it.

Equal logits give the answers of Google's run_squad.py, with these differences:

* Where no span is possible it answers "empty" (version 1.1) or fails (version 2); here the answer is "".
* A logit that is not a number counts as the least one of 32 bits, an infinite one as the nearest finite one, so that
  nothing written to JSON is other than finite.
* A text is cut out of the paragraph by the characters of its tokens, as it stands there; nothing is looked up in a
  second tokenisation of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from adapter_bert.common import errors

if TYPE_CHECKING:
    from adapter_bert.pipeline.spans import Window

# The files that answers are written to.
PREDICTIONS = "predictions.json"
N_BEST = "nbest_predictions.json"
NULL_ODDS = "null_odds.json"

# The sum of two of these is finite in 64 bits.
GREATEST_LOGIT = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """What counts as an answer.

    Attributes:
      n_best_size: starts and ends looked at in each window, and texts listed for a question.
      max_answer_length: of an answer, in tokens.
      version_2: whether a question may have no answer, as in SQuAD 2.0.
      null_threshold: how far the score of no answer must be above that of the best text to be the prediction.
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
    """A possible answer; "" stands for none. Its probability is its share among those listed with it."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


class Answer(NamedTuple):
    """What is found for a question.

    Attributes:
      text: the prediction.
      candidates: the best, greatest score first; the null one, if it is not among them, behind. Never empty.
      null_odds: how far the score of no answer is above that of `best_text`; None unless there may be no answer.
      best_text: the prediction if there had to be one; "" where no span is possible.
    """

    text: str
    candidates: Tuple[Candidate, ...]
    null_odds: Optional[float]
    best_text: str


class _Scored(NamedTuple):
    """A text and the logits of its first and last token."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class _Pairs(NamedTuple):
    """Spans of a window, an entry [n] of each array for each: characters of the paragraph, and logits."""

    starts: np.ndarray
    ends: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


def find_answer(
    context: str,
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> Answer:
    """Finds the answer to a question.

    Args:
      context: the paragraph.
      windows: what of it each input sequence shows; none if it has no tokens.
      start_logits: for each window, float [positions of the sequence], that the answer starts there.
      end_logits: likewise, that it ends there.
      rules: what counts.

    Returns:
      The answer. All its numbers are finite.

    Raises:
      ValueError: windows and logits do not match.
    """
    start_logits, end_logits = _finite(start_logits), _finite(end_logits)
    _check(windows, start_logits, end_logits)
    spans: List[_Scored] = []
    null = _Scored("", 0.0, 0.0)
    if windows:
        spans = _best_spans(context, windows, start_logits, end_logits, rules)
        if rules.version_2:
            null = min((_Scored("", float(s[0]), float(e[0])) for s, e in zip(start_logits, end_logits)), key=_score)
    # Of equal scores, a text goes before the null answer.
    listed = sorted(spans + [null] if rules.version_2 else spans, key=_score, reverse=True)[: rules.n_best_size]
    if null not in listed and (rules.version_2 or not listed):
        listed.append(null)
    candidates = _with_probabilities(listed)
    best = spans[0] if spans else _Scored("", 0.0, 0.0)
    if not rules.version_2:
        return Answer(text=best.text, candidates=candidates, null_odds=None, best_text=best.text)
    null_odds = null.score - best.start_logit - best.end_logit
    text = "" if null_odds > rules.null_threshold else best.text
    return Answer(text=text, candidates=candidates, null_odds=null_odds, best_text=best.text)


def nbest_entries(answer: Answer) -> List[Dict[str, Any]]:
    """The candidates of an answer as the entries of an n-best file."""
    return [
        {
            "text": candidate.text,
            "probability": candidate.probability,
            "start_logit": candidate.start_logit,
            "end_logit": candidate.end_logit,
        }
        for candidate in answer.candidates
    ]


def _score(scored: _Scored) -> float:
    return scored.score


def _finite(logits: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Logits in 64 bits, where the sum of two 32-bit ones is as good as exact, each of them finite."""
    wide = [np.asarray(row, np.float64) for row in logits]
    return [np.clip(np.where(np.isnan(row), -GREATEST_LOGIT, row), -GREATEST_LOGIT, GREATEST_LOGIT) for row in wide]


def _check(windows: Sequence[Window], start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray]) -> None:
    if not len(windows) == len(start_logits) == len(end_logits):
        raise ValueError(
            f"{len(windows)} windows, {len(start_logits)} rows of start logits and {len(end_logits)} of end logits "
            "do not match."
        )
    for window, starts, ends in zip(windows, start_logits, end_logits):
        if starts.shape != ends.shape or starts.ndim != 1 or len(starts) < window.first + len(window.starts):
            raise ValueError(
                f"A window with {len(window.starts)} tokens from position {window.first} on does not match "
                f"{starts.shape} start logits and {ends.shape} end logits."
            )


def _greatest(logits: np.ndarray, count: int) -> np.ndarray:
    """The positions of the greatest logits, greatest first; of equal ones, the lower position first."""
    positions = np.arange(len(logits))
    if count < len(logits):
        least = np.partition(logits, -count)[-count]
        # More than the count where others equal the last: the stable sort leaves the lower positions in front.
        positions = np.flatnonzero(logits >= least)
    return positions[np.argsort(-logits[positions], kind="stable")][:count]


def _pairs(window: Window, start_logits: np.ndarray, end_logits: np.ndarray, rules: AnswerRules) -> _Pairs:
    """The spans of a window that may be an answer, by the rank of their start, then of their end."""
    # As tokens of the document: outside of 0 ... n - 1 are the question, the special tokens and the padding.
    first, last = (_greatest(logits, rules.n_best_size) - window.first for logits in (start_logits, end_logits))
    first, last = (tokens[(tokens >= 0) & (tokens < len(window.starts))] for tokens in (first, last))
    first = first[window.has_max_context[first]]
    # [starts, ends]: how many tokens the answer has behind its first.
    more = last[np.newaxis, :] - first[:, np.newaxis]
    rows, columns = np.nonzero((more >= 0) & (more < rules.max_answer_length))
    first, last = first[rows], last[columns]
    return _Pairs(
        starts=window.starts[first],
        ends=window.ends[last],
        start_logits=start_logits[first + window.first],
        end_logits=end_logits[last + window.first],
    )


def _best_spans(
    context: str,
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    rules: AnswerRules,
) -> List[_Scored]:
    """The best texts of all windows, greatest score first, at most as many as are listed."""
    of_windows = [_pairs(*row, rules) for row in zip(windows, start_logits, end_logits)]
    pairs = _Pairs(*(np.concatenate(arrays) for arrays in zip(*of_windows)))
    return list(itertools.islice(_distinct(context, pairs), rules.n_best_size))


def _distinct(context: str, pairs: _Pairs) -> Iterator[_Scored]:
    """Goes down the spans from the greatest score; of equal texts gives the first, and never the text ""."""
    seen: Set[str] = {""}
    for index in np.argsort(-(pairs.start_logits + pairs.end_logits), kind="stable"):
        # A token of SentencePiece may stand for the space in front of a word alone.
        text = context[pairs.starts[index] : pairs.ends[index]].strip()
        if text not in seen:
            seen.add(text)
            yield _Scored(text, float(pairs.start_logits[index]), float(pairs.end_logits[index]))


def _with_probabilities(listed: Sequence[_Scored]) -> Tuple[Candidate, ...]:
    """Adds the softmax of the scores."""
    scores = np.array([scored.score for scored in listed], np.float64)
    powers = np.exp(scores - scores.max())
    shares = (powers / powers.sum()).tolist()
    return tuple(
        Candidate(scored.text, share, scored.start_logit, scored.end_logit) for scored, share in zip(listed, shares)
    )
