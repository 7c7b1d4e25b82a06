"""Read SQuAD files, JSON of version 1.1 or 2.0. Errors name the place in the file, e.g. `data[0].paragraphs[2]`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

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
    parser.check_ids(path)
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
            dataclasses.replace(question, is_impossible=True)
            if question.id in unmarked and not question.answers
            else question
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

    def type_error(self, expected: str) -> errors.UserError:
        return self.error(f"expected {expected}, found {_describe(self.value)}.")

    def has(self, key: str) -> bool:
        if not isinstance(self.value, dict):
            raise self.type_error("an object {…}")
        return key in self.value

    def at(self, key: str) -> _Node:
        if not self.has(key):
            raise self.error(f"no key '{key}', found: {_keys(self.value)}. {_LAYOUT}")
        return _Node(self.path, f"{self.place}.{key}" if self.place else key, self.value[key])

    def items(self) -> Iterator[_Node]:
        if not isinstance(self.value, list):
            raise self.type_error("a list […]")
        for number, value in enumerate(self.value):
            yield _Node(self.path, f"{self.place}[{number}]", value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.type_error("a string")
        # One character for one, so that offsets stay the same.
        return _LONE_SURROGATE.sub("\ufffd", self.value)

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.type_error("true or false")
        return self.value

    def integer(self) -> int:
        # Some programs write 5 as 5.0.
        is_integer = isinstance(self.value, int) or (isinstance(self.value, float) and self.value.is_integer())
        if isinstance(self.value, bool) or not is_integer:
            raise self.type_error("an integer")
        return int(self.value)


class _Parser:
    """Convert JSON to paragraphs and collect facts about all questions.

    Attributes:
      places: place of each question by id.
      repeated: (id, place) of each question with the id of an earlier one.
      unmarked: ids of the questions without the key `is_impossible`.
    """

    def __init__(self) -> None:
        self.places: Dict[str, str] = {}
        self.repeated: List[Tuple[str, str]] = []
        self.unmarked: Set[str] = set()

    def paragraphs(self, top: _Node) -> Iterator[Paragraph]:
        for article in top.at("data").items():
            for paragraph in article.at("paragraphs").items():
                context = paragraph.at("context").text()
                yield Paragraph(context, tuple(self.question(node, context) for node in paragraph.at("qas").items()))

    def question(self, node: _Node, context: str) -> Question:
        question_id = node.at("id").text()
        if self.places.setdefault(question_id, node.place) != node.place:
            self.repeated.append((question_id, node.place))
        text = node.at("question").text()
        answers: Tuple[GoldAnswer, ...] = ()
        if node.has("answers"):
            answers = tuple(_parse_answer(answer, context) for answer in node.at("answers").items())
        if not node.has("is_impossible"):
            self.unmarked.add(question_id)
            return Question(question_id, text, answers, is_impossible=False)
        is_impossible = node.at("is_impossible").truth()
        if is_impossible and answers:
            raise node.error(
                f"is_impossible is true, but there are answers, first {_describe(answers[0].text)}. Remove one of the "
                "two; plausible but wrong answers belong under plausible_answers."
            )
        return Question(question_id, text, answers, is_impossible)

    def check_ids(self, path: str) -> None:
        if self.repeated:
            question_id, place = self.repeated[0]
            raise errors.UserError(
                f"{path}: the question id {printable(question_id)} occurs in {self.places[question_id]} and again in "
                f"{place}; {len(self.repeated)} ids repeat an earlier one. Give each question a unique id."
            )


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


def _keys(value: Dict[str, Any]) -> str:
    return first_names([printable(key) for key in value], 10)


def _describe(value: Any) -> str:
    """Describe a JSON value for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the string {value[:40]!r}" + ("…" if len(value) > 40 else "")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with the keys: {_keys(value)}"
    return f"the number {str(value)[:40]}"
