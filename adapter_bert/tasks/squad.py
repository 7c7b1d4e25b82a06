"""SQuAD 1.1 and 2.0: contexts with questions and answers, and the reader of the JSON files.

Offsets count code points, as in the files. Errors name the place in the file, e.g. `data[0].paragraphs[2]`.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import errors, json_files
from adapter_bert.common.cached_property import cached_property
from adapter_bert.common.lazy_tensorflow import tf

_LAYOUT = (
    'Expected an uncompressed SQuAD file in UTF-8: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, '
    '"question": …}]}]}]}.'
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class GoldAnswer:
    """One annotated answer."""

    text: str
    start: Optional[int]  # offset in the context; None if the text is blank or the context does not contain it
    moved: bool = False  # whether `start` is the nearest occurrence, because the text is not where the file says


@dataclasses.dataclass(frozen=True)
class Question:
    """One question about a context. Without answers, it is unanswerable if `is_impossible`, else of a test file."""

    id: str
    text: str
    answers: Tuple[GoldAnswer, ...]
    is_impossible: bool

    @property
    def found(self) -> Optional[GoldAnswer]:
        """The first answer that the context contains."""
        return next((answer for answer in self.answers if answer.start is not None), None)


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A context and its questions."""

    context: str
    questions: Tuple[Question, ...]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The paragraphs of a file; `says_impossible` if any question has the key `is_impossible`, as in version 2.0."""

    path: str
    paragraphs: Tuple[Paragraph, ...]
    says_impossible: bool

    def questions(self) -> Iterator[Question]:
        """Yield the questions in order."""
        for paragraph in self.paragraphs:
            yield from paragraph.questions

    @property
    def num_questions(self) -> int:
        """Number of questions."""
        return sum(len(paragraph.questions) for paragraph in self.paragraphs)

    def golds(self) -> Dict[str, List[str]]:
        """Return the texts of the answers by question id; empty for an unanswerable question."""
        return {question.id: [answer.text for answer in question.answers] for question in self.questions()}

    @property
    def has_answers(self) -> bool:
        """Whether answers are known; False for a test file."""
        return any(question.answers or question.is_impossible for question in self.questions())

    def counts(self) -> Dict[str, int]:
        """Return counts for logs and results."""
        answers = [answer for question in self.questions() for answer in question.answers]
        return {
            "paragraphs": len(self.paragraphs),
            "empty_contexts": sum(not paragraph.context.strip() for paragraph in self.paragraphs),
            "questions": self.num_questions,
            "unanswerable": sum(question.is_impossible for question in self.questions()),
            "answers": len(answers),
            "answers_not_found": sum(answer.start is None for answer in answers),
            "answers_moved": sum(answer.moved for answer in answers),
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hash of contexts, questions and answers, independent of ids. Runs store it: it must never change."""
        digest = hashlib.sha256()
        for paragraph in self.paragraphs:
            questions = [
                (question.text, [(answer.text, answer.start) for answer in question.answers], question.is_impossible)
                for question in paragraph.questions
            ]
            # ASCII JSON is the same in all Python versions; `repr` of rare characters is not.
            digest.update((json.dumps([paragraph.context, questions]) + "\n").encode("ascii"))
        return "sha256:" + digest.hexdigest()[:16]


def check_version(dataset: Dataset, version_2_with_negative: bool) -> None:
    """Raise a `UserError` if the file's version does not match the flag. A file without answers matches both."""
    if not dataset.has_answers:
        return
    unanswerable = [question.id for question in dataset.questions() if not question.answers]
    if unanswerable and not version_2_with_negative:
        raise errors.UserError(
            f"{dataset.path}: {len(unanswerable)} of {dataset.num_questions} questions have no answer, first "
            f"{_printable(unanswerable[0])}. This is SQuAD 2.0: add --version_2_with_negative=true"
            + ("." if dataset.says_impossible else ", or add answers.")
        )
    if version_2_with_negative and not unanswerable and not dataset.says_impossible:
        raise errors.UserError(
            f"{dataset.path}: every question has an answer and none has the key is_impossible. This is SQuAD 1.1: "
            "remove --version_2_with_negative."
        )


def for_training(dataset: Dataset) -> Dataset:
    """Return the questions to train on; log one warning about excluded questions and moved answers.

    Exclude questions about an empty context, and answerable questions without an answer in the context. Raise a
    `UserError` if no question remains.
    """
    total = dataset.num_questions
    if not dataset.has_answers:
        raise errors.UserError(f"{dataset.path}: none of the {total} questions has an answer to train on.")
    kept: List[Paragraph] = []
    excluded: Dict[str, List[Question]] = collections.defaultdict(list)
    for paragraph in dataset.paragraphs:
        trainable: List[Question] = []
        for question in paragraph.questions:
            reason = _reason_to_exclude(paragraph, question)
            (excluded[reason] if reason else trainable).append(question)
        if trainable:
            kept.append(Paragraph(paragraph.context, tuple(trainable)))
    notes = "".join(_note(f"Excluded questions {reason}", found) for reason, found in excluded.items())
    if not kept:
        raise errors.UserError(f"{dataset.path}: none of the {total} questions can be trained on.{notes}")
    training = dataclasses.replace(dataset, paragraphs=tuple(kept))
    moved = [question for question in training.questions() if any(answer.moved for answer in question.answers)]
    if moved:
        notes += _note("Answers that are not at answer_start, moved to the nearest occurrence", moved)
    if notes:
        tf.logging.warning("%s: training on %d of %d questions.%s", dataset.path, training.num_questions, total, notes)
    return training


def _reason_to_exclude(paragraph: Paragraph, question: Question) -> Optional[str]:
    if not paragraph.context.strip():
        return "about an empty context"
    if question.is_impossible or question.found:
        return None
    if question.answers:
        return "whose answers do not occur in the context"
    return "without answers and not marked as impossible"


def _note(text: str, questions: Sequence[Question]) -> str:
    return f" {text}: {len(questions)} ({errors.first_names([_printable(question.id) for question in questions], 3)})."


def _printable(name: str) -> str:
    """Return a name from a file in a form that fits in a one-line message."""
    return name if name.isprintable() and 0 < len(name) <= 60 else repr(name[:60])


def read(path: str) -> Dataset:
    """Read a file of version 1.1 or 2.0, with or without answers.

    A question is unanswerable if the file says so. Without the key `is_impossible`, it is unanswerable if it has no
    answers and other questions have some. Lone surrogates, which cannot be written to a file, become U+FFFD.
    """
    return parse(load(path), path)


def load(path: str) -> Dict[str, Any]:
    """Return the JSON object in a file without checking its content."""
    return json_files.read_object(path, _LAYOUT, is_data=True)


def parse(content: Dict[str, Any], path: str) -> Dataset:
    """Convert the content of a file to a dataset, see `read`."""
    parser = _Parser()
    paragraphs = tuple(parser.paragraphs(_Node(path, "", content)))
    dataset = Dataset(path, paragraphs, says_impossible=bool(parser.marks))
    if not dataset.num_questions:
        raise errors.UserError(f"{path} contains no questions.")
    if len(parser.marks) < len(parser.places) and dataset.has_answers:
        marked = tuple(_mark_impossible(paragraph, parser.marks) for paragraph in paragraphs)
        dataset = dataclasses.replace(dataset, paragraphs=marked)
    return dataset


def _mark_impossible(paragraph: Paragraph, marks: Mapping[str, bool]) -> Paragraph:
    """Mark questions without answers as impossible, if the file does not say whether they are."""
    questions = (
        question if question.id in marks else dataclasses.replace(question, is_impossible=not question.answers)
        for question in paragraph.questions
    )
    return Paragraph(paragraph.context, tuple(questions))


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
            keys = errors.first_names([_printable(name) for name in self.value], 10)
            raise self.error(f"no key '{key}', found: {keys}. {_LAYOUT}")
        return _Node(self.path, f"{self.place}.{key}" if self.place else key, self.value[key])

    def items(self) -> Iterator[_Node]:
        for number, value in enumerate(self.typed(list, "a list […]")):
            yield _Node(self.path, f"{self.place}[{number}]", value)

    def text(self) -> str:
        # Replace each with one character, so that offsets stay the same.
        return _LONE_SURROGATE.sub("\ufffd", self.typed(str, "a string"))

    def integer(self) -> int:
        if isinstance(self.value, float) and self.value.is_integer():  # Some programs write 5 as 5.0.
            return int(self.value)
        return self.typed(int, "an integer")


class _Parser:
    """Convert JSON to paragraphs. Collect the place of each question by id, and `is_impossible` where it is given."""

    def __init__(self) -> None:
        self.places: Dict[str, str] = {}
        self.marks: Dict[str, bool] = {}

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
                f"the question id {_printable(question_id)} is that of {first_place}. Give each question a unique id."
            )
        answers: Tuple[GoldAnswer, ...] = ()
        if node.has("answers"):
            answers = tuple(_parse_answer(answer, context) for answer in node.at("answers").items())
        if node.has("is_impossible"):
            self.marks[question_id] = node.at("is_impossible").typed(bool, "true or false")
        is_impossible = self.marks.get(question_id, False)
        if is_impossible and answers:
            raise node.error(
                f"is_impossible is true, but there are answers, first {json.dumps(answers[0].text)[:60]}. Remove one "
                "of the two; plausible but wrong answers belong under plausible_answers."
            )
        return Question(question_id, node.at("question").text(), answers, is_impossible)


def _parse_answer(node: _Node, context: str) -> GoldAnswer:
    """Return an answer with the occurrence in the context nearest to its offset; if two are equally near, the first."""
    text = node.at("text").text()
    given = node.at("answer_start").integer()
    if not text.strip():
        return GoldAnswer(text, None)
    offset = max(given, 0)
    found = (context.rfind(text, 0, offset + len(text)), context.find(text, offset))
    start = min((each for each in found if each >= 0), key=lambda each: abs(each - offset), default=None)
    return GoldAnswer(text, start, moved=start is not None and start != given)
