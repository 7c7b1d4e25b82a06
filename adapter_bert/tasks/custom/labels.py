"""Flags about labels: lists, alternative spellings and class weights."""

from __future__ import annotations

import collections
from typing import Dict, Iterable, Optional, Sequence, Tuple

from adapter_bert.common import errors, json_files
from adapter_bert.tasks.custom.table import cell_text, one_line
from adapter_bert.tasks.task import InputExample, parse_finite


def class_weights(
    choice: Optional[str], examples: Iterable[InputExample], labels: Sequence[str]
) -> Optional[Tuple[float, ...]]:
    """Return the weights that --class_weights requests, in the order of the labels; raise a `UserError` if impossible.

    `choice` is `none`, `balanced` (inversely proportional to the frequencies in the examples), or weights by label
    (`Yes=1,No=2.5`; the default weight is 1).
    """
    choice = (choice or "none").strip()
    if choice.lower() == "none":
        return None
    if not labels:
        raise errors.UserError(f"--class_weights={choice} needs classes, but this is a regression task.")
    if choice.lower() == "balanced":
        import numpy as np
        from sklearn.utils.class_weight import compute_class_weight  # slow to import

        found = [example.label for example in examples]
        missing = sorted(set(labels) - set(found))
        if missing:
            name = shorten(missing[0])
            raise errors.UserError(
                f"--class_weights=balanced needs training examples of every label; '{name}' has none."
            )
        return tuple(compute_class_weight("balanced", classes=np.array(labels), y=found).tolist())
    weights = dict.fromkeys(labels, 1.0)
    for label, text in parse_map(choice, "--class_weights").items():
        if label not in weights:
            raise errors.unknown("label in --class_weights", label, labels)
        weights[label] = parse_finite(text) or 0.0
        if weights[label] <= 0:
            raise errors.UserError(f"--class_weights: expected a positive number for '{label}', found '{text}'.")
    return tuple(weights.values())


def parse_list(text: str) -> Tuple[str, ...]:
    """Parse --labels: `Yes,No`, or the JSON form `["a, b", "c"]` for labels that contain commas."""
    try:
        items = json_files.parse(text, "--labels") if text.lstrip().startswith("[") else text.split(",")
        labels = tuple(cell_text(item).strip() for item in items)
    except ValueError:
        labels = ()
    if not labels or not all(labels):
        raise errors.UserError(f"""--labels: expected e.g. Yes,No or ["a, b", "c"], found '{text}'.""")
    return labels


def parse_map(text: str, flag: str = "--label_map") -> Dict[str, str]:
    """Parse `Y=Yes,N=No`, or the JSON form `{"a, b": "c"}` for labels that contain commas or equals signs."""
    try:
        if text.lstrip().startswith("{"):
            entries = json_files.parse(text, flag).items()
        else:
            entries = [(key, value) for key, _, value in (entry.partition("=") for entry in text.split(","))]
        pairs = [(key.strip(), cell_text(value).strip()) for key, value in entries]
    except ValueError:
        pairs = []
    if not pairs or not all(key and value for key, value in pairs):
        raise errors.UserError(f"""{flag}: expected e.g. Y=Yes,N=No or {{"a, b": "c"}}, found '{text}'.""")
    check_unique([key for key, _ in pairs], f"{flag} '{text}'")
    return dict(pairs)


def check_unique(labels: Iterable[str], flag: str) -> None:
    """Raise a `UserError` if a label occurs more than once in the value of a flag."""
    for label, count in collections.Counter(labels).items():
        if count > 1:
            raise errors.UserError(f"{flag} contains '{label}' twice.")


def check_unicode(label: str, place: str) -> None:
    """Raise a `UserError` if a label contains a lone surrogate, which cannot be written to a file."""
    try:
        label.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"{ascii(label[error.start])} in {ascii(label)[:60]}"
        raise errors.UserError(f"{place}: a label is not Unicode text: found {found}. Correct the label.") from None


def shorten(label: str) -> str:
    """Shorten a label to fit in a one-line message."""
    label = one_line(label)
    return label if len(label) <= 40 else label[:39] + "…"
