"""Read SQuAD files, JSON of version 1.1 or 2.0. Errors name the place in the file, e.g. `data[0].paragraphs[2]`."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Dict, Iterator, NamedTuple, Optional, Set, Tuple

from adapter_bert.common import errors, files
from adapter_bert.common.text import first_names
from adapter_bert.tasks.squad.dataset import Dataset, GoldAnswer, Paragraph, Question, printable

_LAYOUT = (
    'Expected an uncompressed SQuAD file in UTF-8: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, '
    '"question": …}]}]}]}.'
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read(path: str) -> Dataset:
    """Read a file of version 1.1 or 2.0, with or without answers.

    A question is unanswerable if the file says so. Without the key `is_impossible`, it is unanswerable if it has no
    answers and other questions have some. Lone surrogates, which cannot be written to a file, become U+FFFD.

    Raises:
      errors.UserError: the file is missing, not JSON, not in SQuAD's layout, without questions, or inconsistent.
    """
    return parse(load(path), path)


def load(path: str) -> Dict[str, Any]:
    """Return the JSON object in a file without checking its content."""
    return files.read_json_object(path, advice=_LAYOUT)


def parse(content: Dict[str, Any], path: str) -> Dataset:
    """Convert the content of a file to a dataset, see `read`."""
    parser = _Parser()
    paragraphs = tuple(parser.paragraphs(_Node(path, "", content)))
    dataset = Dataset(path, paragraphs, says_impossible=len(parser.places) > len(parser.unmarked))
    if not dataset.num_questions:
        raise errors.UserError(f"{path} contains no questions.")
    if parser.unmarked and dataset.has_answers:
        dataset = dataclasses.replace(dataset, paragraphs=tuple(_mark_impossible(paragraphs, parser.unmarked)))
    return dataset


def _mark_impossible(paragraphs: Tuple[Paragraph, ...], unmarked: Set[str]) -> Iterator[Paragraph]:
    """Mark questions without answers as impossible, if the file does not say whether they are."""
    for paragraph in paragraphs:
        questions = (
            dataclasses.replace(question, is_impossible=not question.answers) if question.id in unmarked else question
            for question in paragraph.questions
        )
        yield Paragraph(paragraph.context, tuple(questions))


class _Node(NamedTuple):
    """A JSON value and its place in the file. Its methods return values of the expected type or raise a `UserError`."""

    path: str
    place: str
    value: Any

    def error(self, text: str) -> errors.UserError:
        where = f"{self.path}, {self.place}" if self.place else self.path
        return errors.UserError(f"{where}: {text}")

    def typed(self, kind: type, expected: str) -> Any:
        if not isinstance(self.value, kind) or (kind is int and isinstance(self.value, bool)):
            raise self.error(f"expected {expected}, found {json.dumps(self.value)[:60]}.")
        return self.value

    def has(self, key: str) -> bool:
        return key in self.typed(dict, "an object {…}")

    def at(self, key: str) -> _Node:
        if not self.has(key):
            keys = first_names([printable(name) for name in self.value], 10)
            raise self.error(f"no key '{key}', found: {keys}. {_LAYOUT}")
        return _Node(self.path, f"{self.place}.{key}" if self.place else key, self.value[key])

    def items(self) -> Iterator[_Node]:
        for number, value in enumerate(self.typed(list, "a list […]")):
            yield _Node(self.path, f"{self.place}[{number}]", value)

    def text(self) -> str:
        # One character for one, so that offsets stay the same.
        return _LONE_SURROGATE.sub("\ufffd", self.typed(str, "a string"))

    def truth(self) -> bool:
        return self.typed(bool, "true or false")

    def integer(self) -> int:
        if isinstance(self.value, float) and self.value.is_integer():  # Some programs write 5 as 5.0.
            return int(self.value)
        return self.typed(int, "an integer")


class _Parser:
    """Convert JSON to paragraphs. Collect the place of each question by id, and ids without `is_impossible`."""

    def __init__(self) -> None:
        self.places: Dict[str, str] = {}
        self.unmarked: Set[str] = set()

    def paragraphs(self, top: _Node) -> Iterator[Paragraph]:
        for article in top.at("data").items():
            for paragraph in article.at("paragraphs").items():
                context = paragraph.at("context").text()
                yield Paragraph(context, tuple(self.question(node, context) for node in paragraph.at("qas").items()))

    def question(self, node: _Node, context: str) -> Question:
        question_id = node.at("id").text()
        first_place = self.places.setdefault(question_id, node.place)
        if first_place != node.place:
            raise node.error(
                f"the question id {printable(question_id)} is that of {first_place}. Give each question a unique id."
            )
        answers: Tuple[GoldAnswer, ...] = ()
        if node.has("answers"):
            answers = tuple(_parse_answer(answer, context) for answer in node.at("answers").items())
        is_impossible = False
        if node.has("is_impossible"):
            is_impossible = node.at("is_impossible").truth()
        else:
            self.unmarked.add(question_id)
        if is_impossible and answers:
            raise node.error(
                f"is_impossible is true, but there are answers, first {json.dumps(answers[0].text)[:60]}. Remove one "
                "of the two; plausible but wrong answers belong under plausible_answers."
            )
        return Question(question_id, node.at("question").text(), answers, is_impossible)


def _parse_answer(node: _Node, context: str) -> GoldAnswer:
    text = node.at("text").text()
    given = node.at("answer_start").integer()
    start = _nearest(context, text, given)
    return GoldAnswer(text, start, moved=start is not None and start != given)


def _nearest(context: str, text: str, offset: int) -> Optional[int]:
    """Return the occurrence of a text nearest to an offset, the first of two; None if there is none."""
    if not text.strip():
        return None
    offset = max(offset, 0)
    found = (context.rfind(text, 0, offset + len(text)), context.find(text, offset))
    return min((start for start in found if start >= 0), key=lambda start: abs(start - offset), default=None)
