"""Converting SQuAD's dev files to windows of tokens and back to text loses a known, small number of answers."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator

import numpy as np
import pytest

import tokenization
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.pipeline import spans
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad import Dataset
from tests.helpers import SHARED

pytestmark = pytest.mark.parity

BERT = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
ALBERT = os.path.join(SHARED, "data", "sentencepiece", "albert_spiece.model")
WINDOWS = spans.WindowConfig()
COUNTS = ("annotated", "recovered", "inside_a_token", "too_long", "split_by_windows")


def oracle_rows(dataset: Dataset, tokenizer: Any) -> Iterator[Dict[str, Any]]:
    """Yield the predictions of a model that is sure of the gold tokens: logit 10 there, 0 elsewhere."""
    first_question = 0
    for paragraph in dataset.paragraphs:
        for features in spans.paragraph_features(paragraph, first_question, tokenizer, WINDOWS):
            logits = np.zeros((2, WINDOWS.max_seq_length), np.float32)
            logits[[0, 1], [features["start_positions"][0], features["end_positions"][0]]] = 10.0
            ids = {name: features[name][0] for name in ("question_ids", "window_ids")}
            yield {**ids, "logits": logits, "loss": 0.0}
        first_question += len(paragraph.questions)


def count_recovered(dataset: Dataset, tokenizer: Any) -> Dict[str, int]:
    """Count the annotations whose text their gold tokens reproduce exactly, and why the others are lost."""
    counts = dict.fromkeys(COUNTS, 0)
    windows = spans.all_windows(dataset.paragraphs, tokenizer, WINDOWS)
    for paragraph in dataset.paragraphs:
        document = spans.tokenize_document(paragraph.context, tokenizer)
        for question in paragraph.questions:
            question_windows, answer = next(windows), question.found
            tokens = document.find(answer)
            if answer is None or tokens is None:
                counts["annotated"] += bool(question.answers)
                continue
            first, last = tokens
            start, end = document.starts[first], document.ends[last]
            counts["annotated"] += 1
            counts["recovered"] += paragraph.context[start:end] == answer.text
            counts["inside_a_token"] += start < answer.start or end > answer.start + len(answer.text)
            counts["too_long"] += last - first >= AnswerRules().max_answer_length
            counts["split_by_windows"] += not any(
                w.begin <= first and last < w.begin + len(w.starts) and w.has_max_context[first - w.begin]
                for w in question_windows
            )
    return counts


@pytest.mark.parametrize(
    "name, vocabulary, num_windows, counts, metrics",
    [
        ("dev-v1.1.rebuilt.json", BERT, 10_833, (10_570, 10_509, 61, 9, 0), {"exact_match": 99.43, "f1": 99.50}),
        ("dev-v2.0.rebuilt.json", BERT, 12_232, (5_928, 5_893, 35, 9, 0), {"exact": 99.67, "f1": 99.71}),
        ("dev-v1.1.rebuilt.json", ALBERT, 10_866, (10_570, 10_501, 69, 13, 0), {"exact_match": 99.40, "f1": 99.46}),
    ],
)
def test_gold_tokens_give_back_the_gold_answers(name, vocabulary, num_windows, counts, metrics):
    path = os.path.join(SHARED, "data", "squad", name)
    for needed in (path, vocabulary):
        if not os.path.exists(needed):
            pytest.skip(f"{needed} does not exist")
    dataset = squad.read(path)
    vocab_file, spm_model_file = (None, vocabulary) if vocabulary == ALBERT else (vocabulary, None)
    tokenizer = tokenization.create_tokenizer(vocab_file, spm_model_file, do_lower_case=True)
    assert count_recovered(dataset, tokenizer) == dict(zip(COUNTS, counts))
    rows = list(oracle_rows(dataset, tokenizer))
    assert len(rows) == num_windows
    rules = AnswerRules(version_2=dataset.says_impossible)
    scores = AnswerDecoder(dataset, tokenizer, WINDOWS, rules).score(rows)
    assert {metric: round(scores.metrics[metric], 2) for metric in metrics} == metrics
