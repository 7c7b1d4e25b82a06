"""Flags about labels: lists, alternative spellings and class weights."""

from __future__ import annotations

import collections
import json
import math
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple

from adapter_bert.common import errors
from adapter_bert.tasks.custom.table import cell_text, one_line
from adapter_bert.tasks.task import InputExample


def class_weights(
    choice: Optional[str], examples: Iterable[InputExample], labels: Sequence[str]
) -> Optional[Tuple[float, ...]]:
    """Return the weights that --class_weights requests, in the order of the labels.

    Args:
      choice: `none`, `balanced` (inversely proportional to the frequencies), or weights by label (`Yes=1,No=2.5`);
        the default weight is 1.
      examples: the training split.
      labels: the labels of the task.

    Raises:
      errors.UserError: an unknown label, a label without examples, a weight that is not positive, or a regression task.
    """
    choice = (choice or "none").strip()
    if choice.lower() == "none":
        return None
    if not labels:
        raise errors.UserError(f"--class_weights={choice} needs classes, but this is a regression task.")
    if choice.lower() == "balanced":
        return _balanced_weights([example.label for example in examples], labels)
    weights = dict.fromkeys(labels, 1.0)
    for label, text in parse_map(choice, "--class_weights").items():
        if label not in weights:
            raise errors.unknown("label in --class_weights", label, labels)
        weights[label] = parse_finite(text) or 0.0
        if weights[label] <= 0:
            raise errors.UserError(f"--class_weights: expected a positive number for '{label}', found '{text}'.")
    return tuple(weights.values())


def _balanced_weights(found: Sequence[Any], labels: Sequence[str]) -> Tuple[float, ...]:
    missing = sorted(set(labels) - set(found))
    if missing:
        raise errors.UserError(
            f"--class_weights=balanced needs training examples of every label; '{shorten(missing[0])}' has none."
        )
    import numpy as np
    from sklearn.utils.class_weight import compute_class_weight  # slow to import

    return tuple(compute_class_weight("balanced", classes=np.array(labels), y=found).tolist())


def parse_list(text: str, flag: str = "--labels") -> Tuple[str, ...]:
    """Parse `Yes,No`, or the JSON form `["a, b", "c"]` for labels that contain commas."""
    if text.lstrip().startswith("["):
        items = [_scalar(item, flag, text) for item in _load_json(text, flag)]
    else:
        items = text.split(",")
    items = [item.strip() for item in items]
    if not all(items) or not items:
        raise errors.UserError(f"{flag} has an empty entry, expected e.g. Yes,No; found '{text}'.")
    return tuple(items)


def parse_map(text: str, flag: str = "--label_map") -> Dict[str, str]:
    """Parse `Y=Yes,N=No`, or the JSON form `{"a, b": "c"}` for labels that contain commas or equals signs."""
    if text.lstrip().startswith("{"):
        pairs = [(key, _scalar(value, flag, text)) for key, value in _load_json(text, flag).items()]
    else:
        pairs = [(key, value) for key, _, value in (entry.partition("=") for entry in text.split(","))]
    pairs = [(key.strip(), value.strip()) for key, value in pairs]
    if not pairs or not all(key and value for key, value in pairs):
        raise errors.UserError(f"{flag} expects entries such as Y=Yes,N=No, found '{text}'.")
    repeated = [key for key, count in collections.Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise errors.UserError(f"{flag} contains '{repeated[0]}' twice: '{text}'.")
    return dict(pairs)


def _load_json(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.UserError(f"{flag} is not valid JSON ({errors.reason(error)}): '{text}'.") from None


def _scalar(value: object, flag: str, text: str) -> str:
    if isinstance(value, (list, dict)):
        raise errors.UserError(f"{flag} expects strings, found {json.dumps(value)} in '{text}'.")
    return cell_text(value)


def parse_finite(text: str) -> Optional[float]:
    """Return the number in a text; None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def shorten(label: str, width: int = 40) -> str:
    """Shorten a label to fit in a one-line message."""
    label = one_line(label)
    return label if len(label) <= width else label[: width - 1] + "…"
