"""What a SQuAD data set is, versions 1.1 and 2.0: contexts, questions on them, and where the answers stand.

Which of it can be trained on, counts of it and its fingerprint. How it is read from a file: `squad_files`. Offsets
count code points, as SQuAD's own do. Nothing is known here about tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Collection, Dict, Iterator, List, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.common.text import first_names

_SHOWN_IDS = 3


@dataclasses.dataclass(frozen=True)
class GoldAnswer:
    """One answer as an annotator gave it.

    Attributes:
      text: its words.
      start: where they stand in the context: where the file says, or else the nearest place that has them; None where
        there is none, or where the text is blank.
      moved: whether `start` is another than the file's.
    """

    text: str
    start: Optional[int]
    moved: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
    """One question on a context.

    Attributes:
      id: its name, unique in the file.
      text: what is asked.
      answers: in the file's order; none where the question is unanswerable, or its answers are not published.
      is_impossible: whether the context is known to hold no answer.
    """

    id: str
    text: str
    answers: Tuple[GoldAnswer, ...]
    is_impossible: bool

    @property
    def found(self) -> Optional[GoldAnswer]:
        """The first answer that stands in the context."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def is_trainable(self) -> bool:
        """Whether it is known where an answer stands, or that there is none."""
        return self.is_impossible or self.found is not None


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A context and the questions on it."""

    context: str
    questions: Tuple[Question, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the context is nothing but white space."""
        return not self.context.strip()


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What a file holds.

    Attributes:
      path: the file.
      paragraphs: those of all articles, in the file's order.
      says_impossible: whether any question has the key `is_impossible`, as in version 2.0.
    """

    path: str
    paragraphs: Tuple[Paragraph, ...]
    says_impossible: bool

    def questions(self) -> Iterator[Question]:
        """Yields the questions in the file's order."""
        for paragraph in self.paragraphs:
            yield from paragraph.questions

    @property
    def num_questions(self) -> int:
        """How many questions there are."""
        return sum(len(paragraph.questions) for paragraph in self.paragraphs)

    def golds(self) -> Dict[str, List[str]]:
        """For each question's id the texts of its answers, in the file's order; none for an unanswerable one."""
        return {question.id: [answer.text for answer in question.answers] for question in self.questions()}

    @property
    def has_negatives(self) -> bool:
        """Whether any question is unanswerable."""
        return any(question.is_impossible for question in self.questions())

    @property
    def has_answers(self) -> bool:
        """Whether the answers are known; not so in a test file."""
        return any(question.answers or question.is_impossible for question in self.questions())


def check_version(dataset: Dataset, version_2_with_negative: bool) -> None:
    """Refuses a file of the other version than the flag says; one without any answers passes.

    Raises:
      errors.UserError: there are unanswerable questions without the flag, or a file of version 1.1 with it.
    """
    if not dataset.has_answers:
        return
    unanswerable = [question.id for question in dataset.questions() if not question.answers]
    if unanswerable and not version_2_with_negative:
        raise errors.UserError(
            f"{dataset.path}: {len(unanswerable)} of {dataset.num_questions} questions have no answer, the first: "
            f"{shown(unanswerable[:1])}; this is SQuAD 2.0: add --version_2_with_negative=true"
            + ("." if dataset.says_impossible else ", or give them answers.")
        )
    if version_2_with_negative and not unanswerable and not dataset.says_impossible:
        raise errors.UserError(
            f"{dataset.path}: every question has an answer and none has the key is_impossible; this is SQuAD 1.1: "
            "leave --version_2_with_negative out."
        )


def for_training(dataset: Dataset) -> Dataset:
    """The questions that can be trained on; says in one warning what is left out and which answers were moved.

    Left out are questions on an empty context, and answerable ones of which no answer stands in the context.

    Raises:
      errors.UserError: the file has no answers, or nothing is left.
    """
    if not dataset.has_answers:
        raise errors.UserError(
            f"{dataset.path} has no answers to train on: none of its {dataset.num_questions} questions has any."
        )
    kept: List[Paragraph] = []
    on_nothing: List[Question] = []
    not_found: List[Question] = []
    for paragraph in dataset.paragraphs:
        if paragraph.is_empty:
            on_nothing.extend(paragraph.questions)
            continue
        questions = tuple(question for question in paragraph.questions if question.is_trainable)
        not_found.extend(question for question in paragraph.questions if not question.is_trainable)
        if questions:
            kept.append(Paragraph(paragraph.context, questions))
    trained = dataclasses.replace(dataset, paragraphs=tuple(kept))
    moved = [question for question in trained.questions() if any(answer.moved for answer in question.answers)]
    without = [question for question in not_found if not question.answers]
    notes = _note("Left out, as they have no answer and are not said to be impossible", without)
    notes += _note(
        "Left out, as none of their answers stands in the context", [q for q in not_found if q not in without]
    )
    notes += _note("Left out, as their context is empty", on_nothing)
    if not kept:
        raise errors.UserError(f"{dataset.path}: none of {dataset.num_questions} questions can be trained on.{notes}")
    notes += _note("Answers are elsewhere than answer_start says, so the nearest place is taken", moved)
    if notes:
        tf.logging.warning(
            "%s: training on %d of %d questions.%s", dataset.path, trained.num_questions, dataset.num_questions, notes
        )
    return trained


def _note(text: str, questions: Sequence[Question]) -> str:
    """A sentence with the number of questions and the first ids; nothing where there are none."""
    if not questions:
        return ""
    return f" {text}: {len(questions)} ({shown([question.id for question in questions], _SHOWN_IDS)})."


def describe(dataset: Dataset) -> Dict[str, int]:
    """Counts for logs and results."""
    answers = [answer for question in dataset.questions() for answer in question.answers]
    return {
        "paragraphs": len(dataset.paragraphs),
        "empty_contexts": sum(paragraph.is_empty for paragraph in dataset.paragraphs),
        "questions": dataset.num_questions,
        "unanswerable": sum(question.is_impossible for question in dataset.questions()),
        "answers": len(answers),
        "answers_not_found": sum(answer.start is None for answer in answers),
        "answers_moved": sum(answer.moved for answer in answers),
    }


def fingerprint(dataset: Dataset) -> str:
    """A hash of contexts, questions, answers and their places in their order; ids do not count."""
    digest = hashlib.sha256()
    for paragraph in dataset.paragraphs:
        questions = [
            (question.text, [(answer.text, answer.start) for answer in question.answers], question.is_impossible)
            for question in paragraph.questions
        ]
        # JSON in ASCII is the same on every Python, which `repr` of rare characters is not.
        digest.update((json.dumps([paragraph.context, questions]) + "\n").encode("ascii"))
    return "sha256:" + digest.hexdigest()[:16]


def shown(names: Collection[str], limit: int = 10) -> str:
    """Names from a file, such that they fit in a line."""
    texts = [name if name.isprintable() and 0 < len(name) <= 60 else repr(name[:60]) for name in names]
    return first_names(texts, limit)
