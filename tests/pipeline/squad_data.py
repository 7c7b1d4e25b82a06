"""Made-up SQuAD data."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import List

import pytest

from adapter_bert.pipeline import spans
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks.squad import Dataset, GoldAnswer, Paragraph, Question
from tests.helpers import SHARED
from tests.test_tokenization import SPECIALS, write

SQUAD_V1 = os.path.join(SHARED, "data", "squad", "dev-v1.1.rebuilt.json")
PIECES = ["golden", "gate", "##s", "##en", "gold", "19", "##th", "un", "##want", "##ed", "cafe", "who", "?", "日", "本"]
# Words of made-up paragraphs; the last one is unknown.
WORDS = ["Golden", "gates", "(1895-1943)", "well-known,", "Caf\xe9", "cafe\u0301", "U.S.'s", "19th", "1919"]
WORDS += ["“unwanted”", "日本", "$3.5bn", "a-a-a", "ca\xadfe", "ß"]
SPACES = [" ", " ", " ", "  ", "\n", "\t", "\u202f", "\xa0"]
SMALL = WindowConfig(max_seq_length=40, doc_stride=8, max_query_length=6)


def write_vocabulary(folder) -> str:
    characters = "abcdefghijklmnopqrstuvwxyz0123456789(-),.'$“”;"
    pieces = [prefix + character for prefix in ("", "##") for character in characters]
    return write(folder / "vocab.txt", "\n".join(SPECIALS + PIECES + pieces) + "\n")


def needed(path):
    if not os.path.exists(path):
        pytest.skip(f"{path} does not exist")
    return path


def sample(dataset: Dataset, every: int, first: int = 0) -> Dataset:
    return dataclasses.replace(dataset, paragraphs=dataset.paragraphs[first::every])


def dataset_of(*paragraphs: Paragraph) -> Dataset:
    return Dataset("made-up.json", paragraphs, says_impossible=True)


def asked(context: str, *answers: str, text: str = "Who?", **more) -> Paragraph:
    """A paragraph with one question; each answer is where its text first occurs."""
    found = tuple(GoldAnswer(answer, context.find(answer) if answer in context else None) for answer in answers)
    return Paragraph(context, (Question("q", text, found, more.get("is_impossible", not answers)),))


def made_up_context(generator: random.Random, count: int) -> str:
    return "".join(generator.choice(WORDS) + generator.choice(SPACES) for _ in range(count))


def made_up_answer(generator: random.Random, context: str, tokenizer) -> GoldAnswer:
    """A range of a few tokens."""
    document = spans.tokenize_document(context, tokenizer)
    first = generator.randrange(len(document.ids))
    last = min(first + generator.randrange(4), len(document.ids) - 1)
    start = int(document.starts[first])
    return GoldAnswer(context[start : int(document.ends[last])], start)


def made_up(seed: int, tokenizer, paragraphs: int = 6, unanswerable: float = 0.0) -> Dataset:
    """Paragraphs of one word up to several windows, with three questions each."""
    generator = random.Random(seed)
    made = []
    for number in range(paragraphs):
        context = made_up_context(generator, generator.choice([1, 4, 20, 60]))
        questions = []
        for index in range(3):
            text = made_up_context(generator, generator.randrange(8))
            is_impossible = generator.random() < unanswerable
            answers = () if is_impossible else (made_up_answer(generator, context, tokenizer),)
            questions.append(Question(f"{number}.{index}", text, answers, is_impossible))
        made.append(Paragraph(context, tuple(questions)))
    return dataset_of(*made)


def features_of(dataset: Dataset, tokenizer, config: WindowConfig) -> List[spans.SpanFeatures]:
    made, number = [], 0
    for paragraph in dataset.paragraphs:
        made.extend(spans.paragraph_features(paragraph, number, tokenizer, config))
        number += len(paragraph.questions)
    return made
