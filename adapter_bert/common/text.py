"""Text for messages and tables."""

from __future__ import annotations

from typing import Iterable


def first_names(names: Iterable[object], limit: int = 5) -> str:
    """Return the first names and the number of others, e.g. `a, b and 3 more`; `nothing` if there are none."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return (", ".join(texts[:limit]) or "nothing") + more
