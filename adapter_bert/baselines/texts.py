"""Turn texts into words, as the settings of a network ask for."""

from __future__ import annotations

import re
from typing import List

_WORDS = re.compile(r"\w+|[^\w\s]")
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def normalize(text: str, lowercase: bool, alphanumeric: bool) -> str:
    """Return a text in lower case and without characters that are neither letters nor digits, if requested."""
    text = text.lower() if lowercase else text
    return (_NOT_ALPHANUMERIC.sub(" ", text) if alphanumeric else text).strip()


def split_words(text: str) -> List[str]:
    """Split a text into words and single punctuation marks: `no, it's` gives `no`, `,`, `it`, `'` and `s`."""
    return _WORDS.findall(text)
