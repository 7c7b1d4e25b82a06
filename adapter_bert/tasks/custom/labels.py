"""What flags say about labels: lists, other spellings, weights of classes."""

from __future__ import annotations

import collections
import json
import math
from typing import Dict, Iterable, Optional, Sequence, Tuple, Union

from adapter_bert.common import errors
from adapter_bert.tasks.custom import tables
from adapter_bert.tasks.task import InputExample


def balanced_class_weights(examples: Iterable[InputExample], labels: Sequence[str]) -> Tuple[float, ...]:
    """A weight per class, in the order of the labels: examples / (classes * examples of the class).

    Raises:
      errors.UserError: a label has no example.
    """
    counts = collections.Counter(example.label for example in examples)
    missing = [label for label in labels if label not in counts]
    if missing:
        raise errors.UserError(
            f"--class_weights=balanced needs training examples of every label; '{short(missing[0])}' has none."
        )
    total = sum(counts.values())
    return tuple(total / (len(labels) * counts[label]) for label in labels)


def class_weights(
    choice: Optional[str], examples: Iterable[InputExample], labels: Sequence[str]
) -> Optional[Tuple[float, ...]]:
    """The weights that `--class_weights` asks for, in the order of the labels.

    Args:
      choice: `none`, `balanced`, or weights by label (`Yes=1,No=2.5`); labels that are not named have weight 1.
      examples: the training split.
      labels: of the task.

    Raises:
      errors.UserError: an unknown label, a weight that is no positive number, or a regression.
    """
    if not choice or choice.strip().lower() == "none":
        return None
    if not labels:
        raise errors.UserError(f"--class_weights={choice}: a regression has no classes to weigh.")
    if choice.strip().lower() == "balanced":
        return balanced_class_weights(examples, labels)
    weights = dict.fromkeys(labels, 1.0)
    for label, text in parse_map(choice, "--class_weights").items():
        if label not in weights:
            raise errors.unknown("label in --class_weights", label, labels)
        weights[label] = finite(text)
        if weights[label] is None or weights[label] <= 0:
            raise errors.UserError(f"--class_weights: expected a positive number for '{label}', found '{text}'.")
    return tuple(weights.values())


def parse_list(text: str, flag: str = "--labels") -> Tuple[str, ...]:
    """Reads `Yes,No`, or in JSON form `["a, b", "c"]` where labels contain commas.

    Raises:
      errors.UserError: it is neither.
    """
    if text.lstrip().startswith("["):
        items = [_scalar(item, flag, text) for item in _json_value(text, list, flag)]
    else:
        items = text.split(",")
    items = [item.strip() for item in items]
    if not all(items) or not items:
        raise errors.UserError(f"{flag} has an empty entry, expected e.g. Yes,No; found '{text}'.")
    return tuple(items)


def parse_map(text: str, flag: str = "--label_map") -> Dict[str, str]:
    """Reads `Y=Yes,N=No`, or in JSON form `{"a, b": "c"}` where labels contain commas or equals signs.

    Raises:
      errors.UserError: it is neither, or names something twice.
    """
    if text.lstrip().startswith("{"):
        pairs = [(key, _scalar(value, flag, text)) for key, value in _json_value(text, dict, flag).items()]
    else:
        parts = [part.partition("=") for part in text.split(",")]
        pairs = [(key, value) if equals else ("", "") for key, equals, value in parts]
    pairs = [(key.strip(), value.strip()) for key, value in pairs]
    if not pairs or not all(key and value for key, value in pairs):
        raise errors.UserError(f"{flag} expects entries such as Y=Yes,N=No, found '{text}'.")
    twice = [key for key, count in collections.Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise errors.UserError(f"{flag} names '{twice[0]}' twice: '{text}'.")
    return dict(pairs)


def _json_value(text: str, kind: type, flag: str) -> Union[list, dict]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise errors.UserError(f"{flag} is no JSON ({errors.reason(error)}): '{text}'.") from None
    if not isinstance(value, kind):
        raise errors.UserError(f"{flag} expects one JSON {'list' if kind is list else 'object'}, found '{text}'.")
    return value


def _scalar(value: object, flag: str, text: str) -> str:
    if isinstance(value, (list, dict)):
        raise errors.UserError(f"{flag} expects texts, found {json.dumps(value)} in '{text}'.")
    return tables.cell_text(value)


def finite(text: str) -> Optional[float]:
    """The number that a text is; None where it is none, or not finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def short(label: str, width: int = 40) -> str:
    """A label for messages, which have one line and should be readable."""
    label = tables.one_line(label)
    return label if len(label) <= width else label[: width - 1] + "…"
