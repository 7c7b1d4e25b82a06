"""SQuAD's files, JSON of version 1.1 or 2.0 -> `squad.Dataset`; what is wrong with a file is said with its place in it.

Where an answer is not at its `answer_start`, the nearest place that has its words is taken.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings
from adapter_bert.tasks.squad.dataset import Dataset, GoldAnswer, Paragraph, Question, shown

_LAYOUT = 'a SQuAD file is expected: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …}]}]}]}'
_TABLE_EXTENSIONS = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
_TABLE_HINT = "Tables of texts and labels (CSV, TSV, JSON lines) are read by run_classifier.py."
_LABEL_KEYS = {"label", "labels", "gold_label", "text", "text_a", "sentence", "sentence1"}
_NO_UTF8 = (
    (b"\x1f\x8b", "is compressed with gzip; decompress it (gunzip)"),
    (b"PK\x03\x04", "is a ZIP archive; unzip it"),
    (codecs.BOM_UTF16_LE, "is UTF-16, expected UTF-8; convert it: iconv -f utf-16 -t utf-8"),
    (codecs.BOM_UTF16_BE, "is UTF-16, expected UTF-8; convert it: iconv -f utf-16 -t utf-8"),
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read(path: str) -> Dataset:
    """Reads a file of version 1.1 or 2.0, with or without answers.

    A question is unanswerable if the file says so; where it says nothing, if it has no answer while the answers of
    others are known. Lone surrogates, which no file can take, become U+FFFD; offsets stay.

    Args:
      path: where it lies; anything that `tf.gfile` opens.

    Raises:
      errors.UserError: it is missing, no JSON, not in SQuAD's layout, without questions, or contradicts itself.
    """
    return parse(load(path), path)


def load(path: str) -> Dict[str, Any]:
    """The JSON object that a file is; what is in it is not looked at.

    Raises:
      errors.UserError: it is missing, not UTF-8, no JSON, or no object.
    """
    try:
        if tf.gfile.IsDirectory(path):
            names = sorted(tf.gfile.ListDirectory(path))
            raise errors.UserError(f"{path} is a folder, expected a SQuAD file; it holds: {shown(names)}.")
        data = encodings.read_bytes(path)
    except tf.errors.OpError as error:
        raise errors.UserError(f"The data file {path} cannot be read: {errors.reason(error)}.") from None
    for beginning, message in _NO_UTF8:
        if data.startswith(beginning):
            raise errors.UserError(f"{path} {message}.")
    text = encodings.decode_utf8(data, path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.UserError(_no_json_message(path, text, error)) from None
    if not isinstance(content, dict):
        raise errors.UserError(f"{path}: {_LAYOUT}, found {_kind(content)}.{_hint(content)}")
    return content


def parse(content: Dict[str, Any], path: str) -> Dataset:
    """What `load` gave -> questions; see `read`."""
    reader = _Reader(path)
    paragraphs = tuple(reader.paragraphs(_Node(path, "", content)))
    reader.check()
    dataset = Dataset(path, paragraphs, says_impossible=len(reader.places) > len(reader.unsaid))
    if not dataset.num_questions:
        raise errors.UserError(f"{path} holds no question.")
    if reader.unsaid and dataset.has_answers:
        dataset = dataclasses.replace(dataset, paragraphs=tuple(_resolved(paragraphs, reader.unsaid)))
    if reader.surrogates:
        tf.logging.warning(
            "%s: %d texts hold lone surrogates, which no file can take; they are read as U+FFFD.",
            path,
            reader.surrogates,
        )
    return dataset


def _resolved(paragraphs: Iterable[Paragraph], unsaid: Set[str]) -> Iterator[Paragraph]:
    """Marks as unanswerable what has no answer, among the questions of which the file does not say whether they are."""
    for paragraph in paragraphs:
        questions = (
            dataclasses.replace(question, is_impossible=True)
            if question.id in unsaid and not question.answers
            else question
            for question in paragraph.questions
        )
        yield Paragraph(paragraph.context, tuple(questions))


# ---------------------------------------------------------------------------------------- JSON -> questions


class _Node(NamedTuple):
    """A JSON value and its place in the file; its methods return what is expected there, or raise a `UserError`."""

    path: str
    place: str
    value: Any

    def error(self, text: str) -> errors.UserError:
        where = f"{self.path}, {self.place}" if self.place else self.path
        return errors.UserError(f"{where}: {text}")

    def wrong(self, expected: str) -> errors.UserError:
        return self.error(f"expected {expected}, found {_kind(self.value)}.")

    def has(self, key: str) -> bool:
        if not isinstance(self.value, dict):
            raise self.wrong("an object {…}")
        return key in self.value

    def at(self, key: str) -> _Node:
        if not self.has(key):
            hint = "" if self.place else _hint(self.value)
            raise self.error(f"no key '{key}', found: {shown(self.value)}; {_LAYOUT}.{hint}")
        return _Node(self.path, f"{self.place}.{key}" if self.place else key, self.value[key])

    def items(self) -> Iterator[_Node]:
        if not isinstance(self.value, list):
            raise self.wrong("a list […]")
        for number, value in enumerate(self.value):
            yield _Node(self.path, f"{self.place}[{number}]", value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a text in quotes")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def whole_number(self) -> int:
        # Some programs write 5 as 5.0.
        is_whole = isinstance(self.value, int) or (isinstance(self.value, float) and self.value.is_integer())
        if isinstance(self.value, bool) or not is_whole:
            raise self.wrong("a whole number")
        return int(self.value)


class _Reader:
    """Walks a file and keeps what has to be known of all questions.

    Attributes:
      places: where each question stands, by its id.
      repeated: (id, place) of each question whose id an earlier one has.
      unsaid: ids of the questions without the key `is_impossible`.
      surrogates: how many texts had lone surrogates.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.places: Dict[str, str] = {}
        self.repeated: List[Tuple[str, str]] = []
        self.unsaid: Set[str] = set()
        self.surrogates = 0

    def paragraphs(self, top: _Node) -> Iterator[Paragraph]:
        for article in top.at("data").items():
            for paragraph in article.at("paragraphs").items():
                context = self.text(paragraph.at("context"))
                questions = tuple(self.question(node, context) for node in paragraph.at("qas").items())
                yield Paragraph(context, questions)

    def question(self, node: _Node, context: str) -> Question:
        question_id = self.id(node)
        text = self.text(node.at("question"))
        answers: Tuple[GoldAnswer, ...] = ()
        if node.has("answers"):
            answers = tuple(self.answer(answer, context) for answer in node.at("answers").items())
        is_impossible = False
        if node.has("is_impossible"):
            is_impossible = node.at("is_impossible").truth()
        else:
            self.unsaid.add(question_id)
        if is_impossible and answers:
            raise node.error(
                f"is_impossible is true, but there are answers, the first: {_kind(answers[0].text)}. Remove one of the "
                "two; answers that only seem to be right stand under plausible_answers."
            )
        return Question(question_id, text, answers, is_impossible)

    def id(self, node: _Node) -> str:
        question_id = node.at("id").text()
        if _LONE_SURROGATE.search(question_id):
            raise node.error(
                f"the id {shown([question_id])} holds a lone surrogate, which no file of predictions can take."
            )
        if question_id in self.places:
            self.repeated.append((question_id, node.place))
        self.places.setdefault(question_id, node.place)
        return question_id

    def answer(self, node: _Node, context: str) -> GoldAnswer:
        text = self.text(node.at("text"))
        told = node.at("answer_start").whole_number()
        start = _nearest(context, text, told)
        return GoldAnswer(text, start, moved=start is not None and start != told)

    def text(self, node: _Node) -> str:
        # One character for one, so that offsets stay; and the same in context and answer.
        text, count = _LONE_SURROGATE.subn("\ufffd", node.text())
        self.surrogates += bool(count)
        return text

    def check(self) -> None:
        if self.repeated:
            first, place = self.repeated[0]
            raise errors.UserError(
                f"{self.path}: the question id {shown([first])} stands in {self.places[first]} and again in {place}; "
                f"{len(self.repeated)} of the ids in this file repeat an earlier one. Give each question its own."
            )


def _nearest(context: str, text: str, told: int) -> Optional[int]:
    """The offset of a text nearest to one that was told; of two as near, the first. None if it is not there."""
    if not text.strip():
        return None
    told = max(told, 0)
    before = context.rfind(text, 0, told + len(text))
    behind = context.find(text, told)
    found = [offset for offset in (before, behind) if offset >= 0]
    return min(found, key=lambda offset: abs(offset - told), default=None)


# ------------------------------------------------------------------------------------------------- messages


def _kind(value: Any) -> str:
    """A JSON value in words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the text {value[:40]!r}" + ("…" if len(value) > 40 else "")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with the keys: {shown(value)}"
    return f"the number {str(value)[:40]}"


def _hint(content: Any) -> str:
    """What a JSON value that is no SQuAD file may be instead."""
    first = content[0] if isinstance(content, list) and content else content
    if not isinstance(first, dict) or not first:
        return ""
    if "paragraphs" in first:
        return ' It is a list of articles: put it under "data".'
    if {"context", "question"} <= set(first):
        return " Its rows have one question each: group them by context, and give answers as a list of objects."
    if _LABEL_KEYS & {key.lower() for key in first}:
        return " " + _TABLE_HINT
    values = list(first.values())
    # Predictions, scores of having no answer, and lists of the best predictions.
    is_texts = all(isinstance(value, (str, int, float)) for value in values)
    is_lists = all(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)
    if content is first and (is_texts or is_lists):
        return " It looks like predictions, with a question's id as each key: give the file with the questions."
    return ""


def _no_json_message(path: str, text: str, error: Exception) -> str:
    start = text.lstrip()
    if not start:
        return f"{path} is empty; {_LAYOUT}."
    where, hint = path, ""
    if isinstance(error, json.JSONDecodeError):
        where = f"{path}, line {error.lineno}, column {error.colno}"
        # An unterminated string is reported where it opens.
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            hint = " It seems to be cut off: copy or download it again."
    if start[0] == "<":
        hint = " It seems to be a web page: download the file itself."
    elif os.path.splitext(path)[1].lower() in _TABLE_EXTENSIONS or start[0] not in "{[":
        hint = " " + _TABLE_HINT
    elif getattr(error, "msg", "") == "Extra data":
        try:
            hint = _hint(json.loads(encodings.LINE_END.split(start, maxsplit=1)[0]))
        except (ValueError, RecursionError):
            hint = ""
    reason = getattr(error, "msg", None) or errors.reason(error)
    return f"{where}: not JSON ({reason}); {_LAYOUT}.{hint}"
