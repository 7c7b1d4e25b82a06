"""SQuAD 1.1 and 2.0 datasets: contexts with questions and answers. Offsets count code points, as in SQuAD's files."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.common.text import first_names


@dataclasses.dataclass(frozen=True)
class GoldAnswer:
    """One annotated answer.

    `start` is its offset in the context: that of the file, or else the nearest offset of this text (then `moved` is
    true); None if the context does not contain the text, or the text is blank.
    """

    text: str
    start: Optional[int]
    moved: bool = False


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

    @property
    def is_empty(self) -> bool:
        """Whether the context is blank."""
        return not self.context.strip()


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


def check_version(dataset: Dataset, version_2_with_negative: bool) -> None:
    """Raise a `UserError` if the file's version does not match the flag. A file without answers matches both."""
    if not dataset.has_answers:
        return
    unanswerable = [question.id for question in dataset.questions() if not question.answers]
    if unanswerable and not version_2_with_negative:
        raise errors.UserError(
            f"{dataset.path}: {len(unanswerable)} of {dataset.num_questions} questions have no answer, first "
            f"{printable(unanswerable[0])}. This is SQuAD 2.0: add --version_2_with_negative=true"
            + ("." if dataset.says_impossible else ", or add answers.")
        )
    if version_2_with_negative and not unanswerable and not dataset.says_impossible:
        raise errors.UserError(
            f"{dataset.path}: every question has an answer and none has the key is_impossible. This is SQuAD 1.1: "
            "remove --version_2_with_negative."
        )


def for_training(dataset: Dataset) -> Dataset:
    """Return the questions to train on; log one warning about excluded questions and moved answers.

    Excluded are questions about an empty context, and answerable questions without an answer in the context.

    Raises:
      errors.UserError: the file has no answers, or no question remains.
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
    if paragraph.is_empty:
        return "about an empty context"
    if question.is_impossible or question.found:
        return None
    return (
        "whose answers do not occur in the context"
        if question.answers
        else "without answers and not marked as impossible"
    )


def _note(text: str, questions: Sequence[Question]) -> str:
    return f" {text}: {len(questions)} ({first_names([printable(question.id) for question in questions], 3)})."


def describe(dataset: Dataset) -> Dict[str, int]:
    """Return counts for logs and results."""
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
    """Return a hash of contexts, questions and answers, independent of ids. Runs store it: it must never change."""
    digest = hashlib.sha256()
    for paragraph in dataset.paragraphs:
        questions = [
            (question.text, [(answer.text, answer.start) for answer in question.answers], question.is_impossible)
            for question in paragraph.questions
        ]
        # ASCII JSON is the same in all Python versions; `repr` of rare characters is not.
        digest.update((json.dumps([paragraph.context, questions]) + "\n").encode("ascii"))
    return "sha256:" + digest.hexdigest()[:16]


def printable(name: str) -> str:
    """Return a name from a file such that it fits in a one-line message."""
    return name if name.isprintable() and 0 < len(name) <= 60 else repr(name[:60])
