"""The right positions give the right answers, and a fitted threshold gives the scores it was fitted for."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import tokenization
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.pipeline import spans
from adapter_bert.tasks.squad import Dataset, GoldAnswer, Paragraph, Question
from tests.pipeline.squad_data import SMALL, asked, dataset_of, features_of, made_up, made_up_answer, write_vocabulary

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenization.FullTokenizer(write_vocabulary(tmp_path_factory.mktemp("vocab")))


def rows_for(dataset: Dataset, tokenizer, logits_of):
    """Predictions of a network that gives each window these logits."""
    return [
        {
            "question_ids": np.int32(features["question_ids"][0]),
            "window_ids": np.int32(features["window_ids"][0]),
            "logits": logits_of(features),
            "loss": np.float32(0.5),
        }
        for features in features_of(dataset, tokenizer, SMALL)
    ]


def oracle(features: spans.SpanFeatures) -> np.ndarray:
    """10 at the right positions, 0 elsewhere."""
    logits = np.zeros((2, len(features["input_ids"])), np.float32)
    logits[[0, 1], [features["start_positions"][0], features["end_positions"][0]]] = 10.0
    return logits


def check_oracle(dataset: Dataset, tokenizer, version_2: bool = False) -> None:
    """Check that the right positions give the annotated texts, and the best score."""
    decoder = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=version_2))
    rows = rows_for(dataset, tokenizer, oracle)
    assert {name: answer.text for name, answer in decoder.answer(rows).items()} == {
        question.id: question.answers[0].text if question.answers else "" for question in dataset.questions()
    }
    assert decoder.score(rows).metrics["exact" if version_2 else "exact_match"] == 100.0


@pytest.mark.parametrize("seed", range(5))
def test_right_positions_give_right_answers(tokenizer, seed):
    check_oracle(made_up(seed, tokenizer), tokenizer)
    check_oracle(made_up(seed, tokenizer, unanswerable=0.4), tokenizer, version_2=True)


def test_right_positions_give_right_answers_with_sentence_pieces(sentencepiece):
    context = 'The  quick brown fox said "no" 1928,9 times,\nthe LAZY do\u0301g.\t' * 4
    for seed in range(20):
        generator = random.Random(seed)
        answers = []
        while len(answers) < 5:
            answer = made_up_answer(generator, context, sentencepiece)
            if answer.text and answer.text == answer.text.strip():  # the start of a word alone has no character
                answers.append(answer)
        questions = tuple(Question(str(n), "Quick fox?", (answer,), False) for n, answer in enumerate(answers))
        check_oracle(dataset_of(Paragraph(context, questions)), sentencepiece)


@pytest.mark.parametrize("version_2", [False, True])
def test_a_paragraph_with_nothing_visible_has_no_window_and_no_answer(tokenizer, version_2):
    contexts = {"before": "a b", "empty": "", "invisible": "\u200b \n\xad", "behind": "c b"}
    gold = {name: GoldAnswer("b", 2 if "b" in context else None) for name, context in contexts.items()}
    dataset = dataset_of(
        *(Paragraph(contexts[name], (Question(name, "Who?", (gold[name],), False),)) for name in contexts)
    )
    rows = rows_for(dataset, tokenizer, oracle)
    assert [int(row["question_ids"]) for row in rows] == [0, 3], "questions keep their numbers"
    decoder = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=version_2))
    answers = {name: answer.text for name, answer in decoder.answer(rows).items()}
    assert answers == {"before": "b", "empty": "", "invisible": "", "behind": "b"}
    assert decoder.score(rows).metrics["f1"] == 50.0
    scores = AnswerDecoder(dataset_of(asked(" ", "b")), tokenizer, SMALL, AnswerRules(version_2=version_2)).score([])
    assert scores.metrics["f1"] == 0.0 and math.isnan(scores.loss)


# --------------------------------------------------------------------------------------------- scores and threshold


def random_rows(dataset: Dataset, tokenizer, seed: int, scale: float = 1.0, null: float = 0.0):
    """Return partly right predictions; `null` is added to the logits of no answer."""
    generator = np.random.RandomState(seed)

    def logits_of(features):
        noise = generator.normal(0.0, 4.0, (2, len(features["input_ids"])))
        noise[:, 0] += null
        return ((noise + oracle(features) * generator.uniform(0, 1)) * scale).astype(np.float32)

    return rows_for(dataset, tokenizer, logits_of)


def scores_of(dataset: Dataset, tokenizer, rows, **rules):
    return AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=True, **rules)).score(rows)


@pytest.mark.parametrize("version_2", [False, True])
def test_the_order_of_rows_does_not_matter(tokenizer, version_2):
    for seed in range(5):
        dataset = made_up(seed, tokenizer, unanswerable=0.5 * version_2)
        rows = random_rows(dataset, tokenizer, seed)
        decoder = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=version_2))
        expected, answers = decoder.score(rows), decoder.answer(rows)
        random.Random(seed).shuffle(rows)
        assert decoder.score(rows) == expected
        shuffled = decoder.answer(rows)
        assert shuffled == answers and list(shuffled) == list(answers)


def plain_words(seed: int, tokenizer) -> Dataset:
    """Questions whose answers consist of words that the normalization of answers keeps."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(generator.randrange(2, 12)):
        context = " ".join(generator.choice("bcdefghijklmnopqrstuvwxyz") for _ in range(generator.randrange(1, 30)))
        is_impossible = generator.random() < 0.5
        answers = () if is_impossible else (made_up_answer(generator, context, tokenizer),)
        paragraphs.append(Paragraph(context, (Question(str(number), "Who?", answers, is_impossible),)))
    return dataset_of(*paragraphs)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e30])
def test_a_fitted_threshold_gives_the_scores_that_it_was_fitted_for(tokenizer, scale):
    """F1 may differ in its last digits, as sums are in a different order; exact matches are counted.

    If answering no question is best, the fitted threshold is 0, as in the official script.
    """
    counts = {"f1": [0, 0], "exact": [0, 0]}
    for seed in range(80):
        dataset = plain_words(seed, tokenizer)
        rows = random_rows(dataset, tokenizer, seed, scale, null=seed % 4 * 4.0)
        fitted = scores_of(dataset, tokenizer, rows, null_threshold=random.Random(seed).uniform(-9, 9))
        values = {**fitted.metrics, **fitted.details}
        nothing = AnswerDecoder(dataset, tokenizer, SMALL, AnswerRules(version_2=True)).no_answer_score()
        for name in ("f1", "exact"):
            best, threshold = values[f"best_{name}"], values[f"best_{name}_thresh"]
            again = scores_of(dataset, tokenizer, rows, null_threshold=threshold)
            answers = best > nothing[name]
            counts[name][answers] += 1
            if answers:
                assert again.metrics[name] == pytest.approx(best, rel=1e-13), seed
            else:
                assert (best, threshold) == (nothing[name], 0.0), seed
                below = scores_of(dataset, tokenizer, rows, null_threshold=-1e38)
                assert below.metrics[name] == best, "a threshold below all null odds gives this score"
            for each in ("best_f1", "best_f1_thresh"):
                assert again.metrics[each] == fitted.metrics[each], "independent of the threshold in use"
        assert values["best_f1"] >= fitted.metrics["f1"] - 1e-9
    assert min(counts["f1"]) > 3 and min(counts["exact"]) > 3, counts
