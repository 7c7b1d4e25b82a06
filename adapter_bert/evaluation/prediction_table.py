"""The columns that a table of predictions has after those of the texts."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

TEXT_COLUMNS = ("text", "text_pair")


def columns(labels: Sequence[str]) -> List[str]:
    """Return `predicted_label`, `probability` and the probability of each class; `prediction` for a number."""
    if not labels:
        return ["prediction"]
    return ["predicted_label", "probability", *(f"probability_{label}" for label in labels)]


def cells(labels: Sequence[str], values: Sequence[float], predicted: int = 0) -> List[object]:
    """Return the cells of one example, given the probability of each class (or a number) and the predicted class."""
    # Values are 32-bit floats: `str` gives the fewest digits that identify them.
    numbers = [float(str(np.float32(value))) for value in values]
    return [labels[predicted], numbers[predicted], *numbers] if labels else [numbers[0]]
