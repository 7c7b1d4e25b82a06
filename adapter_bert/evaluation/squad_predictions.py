"""Answers from features in the format of the original `run_squad.py`, for code that imports them from there.

Our own runs do not use these: see `answer_decoding`. The answers are those of the original, except where the docstring
of `answers` says otherwise.
"""

from __future__ import annotations

import collections
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence

import numpy as np

import tokenization
from adapter_bert.evaluation import answer_decoding
from adapter_bert.evaluation.answers import AnswerRules, PredictedAnswer, find_answer_text
from adapter_bert.pipeline.spans import Window
from adapter_bert.pipeline.squad_features import SquadExample, SquadFeatures

# More positions than a window has; identifies a token by its window and position.
_WINDOW = 2**20


class RawResult(NamedTuple):
    """A model's prediction for one window."""

    unique_id: int
    start_logits: Sequence[float]
    end_logits: Sequence[float]


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Iterable[SquadFeatures],
    all_results: Iterable[Any],
    rules: AnswerRules,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str,
) -> None:
    """Write predictions, n-best lists and, for version 2.0, null odds, given a `RawResult` for each window."""
    windows: Dict[int, List[SquadFeatures]] = collections.defaultdict(list)
    for feature in all_features:
        windows[feature.example_index].append(feature)
    results = {result.unique_id: result for result in all_results}
    answers: Dict[str, PredictedAnswer] = {}
    for index, example in enumerate(all_examples):
        answers[example.qas_id] = _find_answer(example, windows[index], results, rules, do_lower_case)
    null_odds = output_null_log_odds_file if rules.version_2 else None
    answer_decoding.write_files(answers, output_prediction_file, output_nbest_file, null_odds)


def _find_answer(
    example: SquadExample, features: Sequence[SquadFeatures], results: Dict[int, Any], rules: AnswerRules, lower: bool
) -> PredictedAnswer:
    def text_of(start: int, end: int) -> str:
        (number, first), last = divmod(start, _WINDOW), end % _WINDOW
        return _window_text(example, features[number], first, last, lower)

    windows, start_logits, end_logits = [], [], []
    for number, feature in enumerate(features):
        result = results[feature.unique_id]
        start_logits.append(np.asarray(result.start_logits, np.float64))
        end_logits.append(np.asarray(result.end_logits, np.float64))
        positions = sorted(feature.token_to_orig_map)
        ids = np.array(positions, np.int64) + number * _WINDOW
        has_max_context = np.array([feature.token_is_max_context.get(each, False) for each in positions], bool)
        windows.append(Window(0, positions[0] if positions else 0, ids, ids, has_max_context))
    return find_answer_text(text_of, windows, start_logits, end_logits, rules)


def _window_text(example: SquadExample, feature: SquadFeatures, first: int, last: int, lower: bool) -> str:
    """Return the text of the tokens from `first` to `last` as the paragraph has it."""
    pieces = " ".join(feature.tokens[first : last + 1]).replace(" ##", "").replace("##", "")
    words = example.doc_tokens[feature.token_to_orig_map[first] : feature.token_to_orig_map[last] + 1]
    return get_final_text(" ".join(pieces.split()), " ".join(words), lower)


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool) -> str:
    """Return the part of `orig_text` that was tokenized to `pred_text`; all of it if that cannot be determined.

    For the tokens `steve smith` and the words `Steve Smith's`, that is `Steve Smith`.
    """
    tok_text = " ".join(tokenization.BasicTokenizer(do_lower_case=do_lower_case).tokenize(orig_text))
    start = tok_text.find(pred_text)
    # Where each visible character is. If both texts have as many, the characters correspond to each other.
    tok_places, orig_places = ([i for i, char in enumerate(text) if char != " "] for text in (tok_text, orig_text))
    ends = {start, start + len(pred_text) - 1}
    if start < 0 or len(tok_places) != len(orig_places) or not ends <= set(tok_places):
        return orig_text
    first, last = (orig_places[tok_places.index(place)] for place in (min(ends), max(ends)))
    return orig_text[first : last + 1]
