"""Text for messages."""

from __future__ import annotations

from typing import Iterable


def first_names(names: Iterable[str], limit: int = 5) -> str:
    """Return the first names of a list and the number of the others, e.g. `a, b and 3 more`."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return (", ".join(found[:limit]) or "nothing") + more
