"""What is special about SQuAD in an evaluation: predictions for windows -> answers -> scores and files."""

from __future__ import annotations

import collections
import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import files
from adapter_bert.evaluation import answers as answers_lib
from adapter_bert.evaluation import squad_metrics
from adapter_bert.evaluation.answers import N_BEST, NULL_ODDS, PREDICTIONS, Answer, AnswerRules
from adapter_bert.evaluation.scores import Row, Scores
from adapter_bert.pipeline import spans
from adapter_bert.tasks.squad.dataset import Dataset

Answers = Mapping[str, Answer]


class AnswerDecoder:
    """Answers the questions of a file from a model's predictions, and scores the answers."""

    def __init__(self, dataset: Dataset, tokenizer: Any, lengths: spans.WindowConfig, rules: AnswerRules) -> None:
        """Takes the parts.

        Args:
          dataset: the questions.
          tokenizer: the one that the features were made with.
          lengths: those that the features were made with.
          rules: what counts as an answer.
        """
        self._dataset = dataset
        self._tokenizer = tokenizer
        self._lengths = lengths
        self._rules = rules
        self._windows: Optional[List[List[spans.Window]]] = None

    def _windows_of(self, question: int) -> List[spans.Window]:
        """The windows of a question. Paragraphs are tokenised once, however many candidates are looked at later."""
        if self._windows is None:
            self._windows = list(spans.all_windows(self._dataset.paragraphs, self._tokenizer, self._lengths))
        return self._windows[question]

    def answer(self, rows: Iterable[Row]) -> Answers:
        """The answers, by question.

        Args:
          rows: the head's predictions for every window, in any order.
        """
        by_question: Dict[int, List[Row]] = collections.defaultdict(list)
        for row in rows:
            by_question[int(row["question_ids"])].append(row)
        found: Dict[str, Answer] = {}
        number = 0
        for paragraph in self._dataset.paragraphs:
            for question in paragraph.questions:
                of_question = sorted(by_question[number], key=lambda row: int(row["window_ids"]))
                found[question.id] = answers_lib.find_answer(
                    paragraph.context,
                    self._windows_of(number),
                    [row["logits"][0] for row in of_question],
                    [row["logits"][1] for row in of_question],
                    self._rules,
                )
                number += 1
        return found

    def score(self, rows: Sequence[Row]) -> Scores:
        """Scores predictions by the official rules."""
        return self.score_answers(self.answer(rows), rows)

    def score_answers(self, answers: Answers, rows: Sequence[Row]) -> Scores:
        """The same, where the answers are known."""
        golds = self._dataset.golds()
        texts = {name: answer.text for name, answer in answers.items()}
        loss = float(np.mean([row["loss"] for row in rows], dtype=np.float64)) if rows else float("nan")
        wanted = {tuple(sorted(texts)) for texts in golds.values()}
        # Not the predictions: in version 2 the threshold may leave none, however good the texts are.
        collapsed = len({answer.best_text for answer in answers.values()}) == 1 and len(wanted) > 1
        if not self._rules.version_2:
            scores = squad_metrics.score_v1(golds, texts)
            return Scores({name: scores[name] for name in ("f1", "exact_match")}, loss, collapsed)
        scores = score_with_threshold(golds, answers)
        metrics = {name: scores.pop(name) for name in ("best_f1", "best_f1_thresh", "f1", "exact")}
        return Scores(metrics, loss, collapsed, scores)

    def no_answer_score(self) -> Dict[str, float]:
        """What answering nothing would score."""
        golds = self._dataset.golds()
        nothing = dict.fromkeys(golds, "")
        if not self._rules.version_2:
            scores = squad_metrics.score_v1(golds, nothing)
            return {name: scores[name] for name in ("f1", "exact_match")}
        scores = squad_metrics.score_v2(golds, nothing)
        return {"best_f1": scores["f1"], "f1": scores["f1"], "exact": scores["exact"]}


def score_with_threshold(golds: Mapping[str, Sequence[str]], answers: Answers) -> Dict[str, float]:
    """Scores by the rules of version 2.0, and the threshold that would be best.

    The threshold is fitted on the best texts, also where the prediction is none: so it is the one to predict with.
    """
    odds = {name: answer.null_odds for name, answer in answers.items()}
    least = min(odds.values())
    fitted = squad_metrics.score_v2(
        golds,
        {name: answer.best_text for name, answer in answers.items()},
        odds,
        # Below all odds: of huge ones, 1 less is the same number.
        none_threshold=min(least - 1.0, float(np.nextafter(least, -np.inf))),
    )
    scores = squad_metrics.score_v2(golds, {name: answer.text for name, answer in answers.items()})
    return {**scores, **{name: value for name, value in fitted.items() if name.startswith("best_")}}


def write(folder: str, answers: Answers, version_2: bool) -> List[str]:
    """Writes predictions, n-best lists and, in version 2.0, the odds of no answer; returns the paths.

    They have the form of the original's, whose readers are out there.
    """
    contents: Dict[str, Mapping[str, Any]] = {
        PREDICTIONS: {name: answer.text for name, answer in answers.items()},
        N_BEST: {name: answers_lib.nbest_entries(answer) for name, answer in answers.items()},
    }
    if version_2:
        contents[NULL_ODDS] = {name: answer.null_odds for name, answer in answers.items()}
    stale = os.path.join(folder, NULL_ODDS)
    if NULL_ODDS not in contents and tf.gfile.Exists(stale):
        tf.gfile.Remove(stale)
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), json.dumps(content, indent=4) + "\n")
    return [os.path.join(folder, name) for name in contents]
