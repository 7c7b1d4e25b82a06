"""SQuAD evaluation: turn predictions for windows into answers, scores and files."""

from __future__ import annotations

import collections
import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import files
from adapter_bert.evaluation import squad_metrics
from adapter_bert.evaluation.answers import N_BEST, NULL_ODDS, PREDICTIONS, AnswerRules, PredictedAnswer, find_answer
from adapter_bert.evaluation.scores import Row, Scores
from adapter_bert.pipeline import spans
from adapter_bert.tasks.squad import Dataset

# By question id.
Answers = Mapping[str, PredictedAnswer]


class AnswerDecoder:
    """Answers the questions of a SQuAD file from a model's predictions, and scores the answers."""

    def __init__(self, dataset: Dataset, tokenizer: Any, lengths: spans.WindowConfig, rules: AnswerRules) -> None:
        """Create a decoder; tokenizer and lengths must be those that created the features."""
        self._dataset = dataset
        self._tokenizer = tokenizer
        self._lengths = lengths
        self._rules = rules
        self._windows: Optional[List[List[spans.Window]]] = None

    def answer(self, rows: Iterable[Row]) -> Answers:
        """Return the answers, given the head's predictions for every window in any order."""
        rows_by_question: Dict[int, List[Row]] = collections.defaultdict(list)
        for row in rows:
            rows_by_question[int(row["question_ids"])].append(row)
        if self._windows is None:  # tokenize only once, even if the file is evaluated repeatedly
            self._windows = list(spans.all_windows(self._dataset.paragraphs, self._tokenizer, self._lengths))
        contexts = [paragraph.context for paragraph in self._dataset.paragraphs for _ in paragraph.questions]
        answers: Dict[str, PredictedAnswer] = {}
        for number, question in enumerate(self._dataset.questions()):
            question_rows = sorted(rows_by_question[number], key=lambda row: int(row["window_ids"]))
            starts, ends = ([row["logits"][end] for row in question_rows] for end in (0, 1))
            answers[question.id] = find_answer(contexts[number], self._windows[number], starts, ends, self._rules)
        return answers

    def score(self, rows: Sequence[Row]) -> Scores:
        """Score predictions by the official rules."""
        return self.score_answers(self.answer(rows), rows)

    def score_answers(self, answers: Answers, rows: Sequence[Row]) -> Scores:
        """Score answers that `answer` has returned for these rows."""
        golds = self._dataset.golds()
        loss = float(np.mean([row["loss"] for row in rows], dtype=np.float64)) if rows else float("nan")
        # Compares the best texts: in version 2.0 the threshold may suppress all predictions, however good they are.
        golds_differ = len({tuple(sorted(texts)) for texts in golds.values()}) > 1
        collapsed = golds_differ and len({answer.best_text for answer in answers.values()}) == 1
        details = self._score_texts({question: answer.text for question, answer in answers.items()})
        if self._rules.version_2:
            details.update(_fit_threshold(golds, answers))
        # The primary metric is first.
        names = ("best_f1", "best_f1_thresh", "f1", "exact") if self._rules.version_2 else ("f1", "exact_match")
        metrics = {name: details.pop(name) for name in names}
        return Scores(metrics, loss, collapsed, details)

    def no_answer_score(self) -> Dict[str, float]:
        """Return the scores of leaving every question unanswered."""
        scores = self._score_texts(dict.fromkeys(self._dataset.golds(), ""))
        if not self._rules.version_2:
            return {"f1": scores["f1"], "exact_match": scores["exact_match"]}
        return {"best_f1": scores["f1"], "f1": scores["f1"], "exact": scores["exact"]}

    def _score_texts(self, texts: Mapping[str, str]) -> Dict[str, float]:
        score = squad_metrics.score_v2 if self._rules.version_2 else squad_metrics.score_v1
        return score(self._dataset.golds(), texts)


def _fit_threshold(golds: squad_metrics.Golds, answers: Answers) -> Dict[str, float]:
    """Return the best scores over all thresholds, and the thresholds that reach them.

    These are fitted to the best text of every question, even where the prediction is no answer, so predicting with the
    threshold gives the reported score. If answering no question is best, the threshold is 0.0, as in the official
    script, but only one below all null odds gives that score.
    """
    null_odds = {question: answer.null_odds for question, answer in answers.items() if answer.null_odds is not None}
    best_texts = {question: answer.best_text for question, answer in answers.items()}
    scores = squad_metrics.score_v2(golds, best_texts, null_odds)
    return {name: value for name, value in scores.items() if name.startswith("best_")}


def write(folder: str, answers: Answers, version_2: bool) -> List[str]:
    """Write predictions, n-best lists and, for version 2.0, null odds in the original's format; return the paths."""
    null_odds_path = os.path.join(folder, NULL_ODDS)
    if not version_2 and tf.gfile.Exists(null_odds_path):
        tf.gfile.Remove(null_odds_path)  # left by an earlier run with version 2.0
    paths = [os.path.join(folder, name) for name in (PREDICTIONS, N_BEST)] + ([null_odds_path] if version_2 else [])
    write_files(answers, *paths)
    return paths


def write_files(answers: Answers, predictions: str, n_best: str, null_odds: Optional[str] = None) -> None:
    """Write predictions and n-best lists and, if a path is given, null odds in the original's format."""
    contents: Dict[str, Mapping[str, Any]] = {
        predictions: {question: answer.text for question, answer in answers.items()},
        n_best: {question: [each._asdict() for each in answer.candidates] for question, answer in answers.items()},
    }
    if null_odds:
        contents[null_odds] = {question: answer.null_odds for question, answer in answers.items()}
    for path, content in contents.items():
        files.write_text(path, json.dumps(content, indent=4) + "\n")
