"""The inputs and outputs of tasks, which are the same in all protocols.

    task                   inputs                outputs
    classification         texts, second_texts    labels, probabilities, classes (the names of the probabilities)
    regression             texts, second_texts    values
    question answering     questions, contexts    answers, probabilities

`second_texts` may be omitted. The names are those of exported models (`scripts/export.py`).
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import Any, Dict, Iterable, List, Mapping, Optional, Pattern, Sequence, Tuple

from adapter_bert.evaluation.answers import PredictedAnswer
from adapter_bert.serving.engine import LoadedTask, Prediction
from adapter_bert.serving.server.request_body import RequestError, RequestLimits

# Far more than any language uses.
_MAX_MARKS = 64
_TEXT_INPUTS, _QUESTION_INPUTS = ("texts", "second_texts"), ("questions", "contexts")

# A text and perhaps another, or a question and its paragraph.
Example = Tuple[str, Optional[str]]


def inputs_of(task: LoadedTask) -> Tuple[Sequence[str], int]:
    """Return the names of a task's inputs, and how many of them are required."""
    return (_QUESTION_INPUTS, 2) if task.pack_config.head == "span" else (_TEXT_INPUTS, 1)


def check_names(task: LoadedTask, values: Iterable[str], where: str) -> None:
    """Raise a `RequestError`, whose text starts with `where`, if a name is not one of the task's inputs."""
    names, _ = inputs_of(task)
    unknown = next((name for name in values if name not in names), None)
    if unknown is not None:
        raise RequestError(400, f"{where} input {unknown!r:.60}. The task has the inputs {', '.join(names)}.")


def check_count(count: int, limits: RequestLimits) -> None:
    """Raise a `RequestError` if there are too many examples."""
    if count > limits.texts:
        raise RequestError(413, f"The request has {count} texts; the maximum is {limits.texts}.")


def make_examples(task: LoadedTask, columns: Mapping[str, Any], limits: RequestLimits) -> List[Example]:
    """Return examples, given a list of texts for each input; raise a `RequestError` if they are not valid."""
    names, required = inputs_of(task)
    check_names(task, columns, "Unknown")
    missing = [name for name in names[:required] if name not in columns]
    if missing:
        raise RequestError(400, f"The input {missing[0]!r} is missing.")
    firsts, seconds = columns[names[0]], columns.get(names[1])
    if seconds is None:
        seconds = [None] * len(firsts)
    if len(firsts) != len(seconds):
        raise RequestError(
            400, f"The inputs differ in length: {len(firsts)} of {names[0]}, {len(seconds)} of {names[1]}."
        )
    check_count(len(firsts), limits)
    if not firsts:
        raise RequestError(400, f"The input {names[0]} has no values.")
    for name, texts in zip(names, (firsts, seconds)):
        for index, text in enumerate(texts):
            if text is not None or name in names[:required]:
                _check_text(text, f"{name}, item {index},", limits)
    return list(zip(firsts, seconds))


@functools.lru_cache(maxsize=None)
def _many_marks() -> Pattern[str]:
    """Return a pattern of combining marks: Unicode normalization takes quadratic time in the length of such a run."""
    marks = "".join(map(re.escape, filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1)))))
    return re.compile(f"[{marks}]{{{_MAX_MARKS + 1}}}")


def _check_text(text: Any, where: str, limits: RequestLimits) -> None:
    if not isinstance(text, str):
        raise RequestError(400, f"{where} is not a string.")
    if len(text) > limits.characters:
        raise RequestError(413, f"{where} has {len(text)} characters; the maximum is {limits.characters}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(400, f"{where} contains a lone surrogate.") from None
    if not text.isascii() and _many_marks().search(text):
        raise RequestError(400, f"{where} has more than {_MAX_MARKS} combining marks in a row.")


def output_types(task: LoadedTask) -> Dict[str, Tuple[str, List[int]]]:
    """Return output -> type and shape; -1 stands for the number of examples."""
    labels = len(task.pack_config.labels)
    if labels:
        shape = [-1, labels]
        return {"labels": ("BYTES", [-1]), "probabilities": ("FP32", shape), "classes": ("BYTES", shape)}
    if task.pack_config.head == "span":
        return {"answers": ("BYTES", [-1]), "probabilities": ("FP32", [-1])}
    return {"values": ("FP32", [-1])}


def output_values(task: LoadedTask, results: Sequence[Any]) -> Dict[str, List[Any]]:
    """Return output -> values of all examples."""
    if task.pack_config.head == "span":
        answers: Sequence[PredictedAnswer] = results
        return {
            "answers": [each.text for each in answers],
            "probabilities": [_probability(each) for each in answers],
        }
    predictions: Sequence[Prediction] = results
    if not task.pack_config.labels:
        return {"values": [each.number for each in predictions]}
    return {
        "labels": [each.label for each in predictions],
        "probabilities": [list(each.probabilities.values()) for each in predictions],
        "classes": [list(each.probabilities) for each in predictions],
    }


def _probability(answer: PredictedAnswer) -> float:
    return next((each.probability for each in answer.candidates if each.text == answer.text), 0.0)
