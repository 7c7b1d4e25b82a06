"""Clean up text for the tokenizers, and map what is left back to positions in the original text."""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Any, Callable, Iterable, List, Sequence, Tuple

WORD_START = "\u2581"  # SentencePiece's symbol for a space

_CJK_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # one byte of an unknown character, from a model with byte fallback
_JOINED_UNIT = re.compile(r"``|''|\s+|\S")  # each match becomes one character in `join_whitespace`

Span = Tuple[int, int]  # start and end of text[start:end], in code points


class CharacterTable(dict):
    """A table for `str.translate` that computes each replacement on first use."""

    def __init__(self, replacement: Callable[[str], str]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code_point: int) -> str:
        replacement = self[code_point] = self._replacement(chr(code_point))
        return replacement


def is_whitespace(char: str) -> bool:
    """Return whether BERT treats a character as white space."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    """Return whether BERT drops a character as a control character."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def is_punctuation(char: str) -> bool:
    """Return whether BERT makes a character a word of its own."""
    # BERT treats all ASCII symbols as punctuation, including those that Unicode does not, such as "$" and "^".
    is_ascii_symbol = "!" <= char <= "~" and not char.isalnum()
    return is_ascii_symbol or unicodedata.category(char).startswith("P")


def is_cjk_ideograph(char: str) -> bool:
    """Return whether a character is an ideograph, which BERT makes a word of its own."""
    return _CJK_IDEOGRAPH.match(char) is not None


def clean_character(char: str) -> str:
    """Return a space for white space, and nothing for a control character or a replacement character."""
    if is_whitespace(char):
        return " "
    return "" if char in "\0\ufffd" or is_control(char) else char


def is_nonspacing_mark(char: str) -> bool:
    """Return whether a character is a mark that BERT removes from lower-cased text."""
    return unicodedata.category(char) == "Mn"


# Drops control characters, converts all white space to spaces and puts spaces around CJK ideographs.
CLEANED = CharacterTable(lambda char: f" {char} " if is_cjk_ideograph(char) else clean_character(char))
WITHOUT_MARKS = CharacterTable(lambda char: "" if is_nonspacing_mark(char) else char)
PUNCTUATION_ISOLATED = CharacterTable(lambda char: f" {char} " if is_punctuation(char) else char)
# Also drops lone surrogates, which occur in malformed JSON and make SentencePiece fail.
_WITHOUT_COMBINING = CharacterTable(
    lambda char: "" if unicodedata.combining(char) or "\ud800" <= char <= "\udfff" else char
)


def fold(text: str) -> str:
    """Replace ligatures and other compatibility characters with plain ones, and drop accents."""
    return unicodedata.normalize("NFKD", text).translate(_WITHOUT_COMBINING)


def join_whitespace(text: str) -> str:
    """Replace each run of white space with one space, and TeX's quotation marks with plain ones."""
    return " ".join(text.split()).replace("``", '"').replace("''", '"')


def starts_before_join(text: str) -> List[int]:
    """Return where in `text` each character of `join_whitespace(text)` starts, followed by the end of the last one."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [unit.start() for unit in _JOINED_UNIT.finditer(text, start, end)] + [end]


def without_spaces(text: str) -> str:
    """Remove spaces and SentencePiece's symbol for them."""
    return text.replace(" ", "").replace(WORD_START, "")


def visible_widths(words_of: Callable[[str], List[str]]) -> CharacterTable:
    """Return a table from a character to the number of visible characters that it becomes, as `chr(number)`.

    The widths of a text's characters add up to the width of the text. This holds even where the clean-up depends on
    neighbours (final sigma, order of marks, runs of white space): they do not affect the number of characters.
    `words_of` cleans up a text and splits it at white space.
    """
    return CharacterTable(lambda char: chr(len("".join(words_of(char)))))


FOLDED_WIDTHS = visible_widths(lambda text: fold(text).replace(WORD_START, " ").split())


def source_indices(text: str, widths: CharacterTable) -> List[int]:
    """Return the index in `text` that each visible character comes from, followed by the length of `text`."""
    counts = text.translate(widths).encode("latin-1")
    indices = range(len(text))
    if counts.strip(b"\0\1"):  # some character becomes several
        sources = list(itertools.chain.from_iterable(map(itertools.repeat, indices, counts)))
    else:
        sources = list(itertools.compress(indices, counts))
    sources.append(len(text))
    return sources


def token_spans(lengths: Iterable[int], firsts: Sequence[int], lasts: Sequence[int]) -> List[Span]:
    """Return the spans of consecutive tokens with these numbers of visible characters.

    For each visible character, `firsts` and `lasts` contain the first and last original index that it represents.
    `firsts` ends with the length of the text. A token without visible characters has an empty span at the next one.
    """
    spans: List[Span] = []
    done = end = 0
    for length in lengths:
        start = firsts[done]
        done += length
        # A word start inside a single original character shares the span of that character.
        end = lasts[done - 1] + 1 if length else max(start, end)
        spans.append((start, end))
    return spans


def extend_over_marks(spans: List[Span], text: str, is_dropped_mark: Callable[[str], Any]) -> List[Span]:
    """Extend spans over the marks that follow them, so that a decomposed accent stays with its letter."""
    marks = "" if text.isascii() else "".join(filter(is_dropped_mark, set(text)))
    if not marks:
        return spans
    end_of_marks = {run.start(): run.end() for run in re.finditer(f"[{marks}]+", text)}
    return [(start, end_of_marks.get(end, end)) for start, end in spans]


def spans_of_normalized(model: Any, pieces: List[str], cleaned: str, sources: List[int]) -> List[Span]:
    """Return the spans of SentencePiece pieces of `cleaned` if the model's normalization changes characters.

    `sources` are the indices of the visible characters of `cleaned`, see `source_indices`. Count UTF-8 bytes instead of
    characters, because a piece of a model with byte fallback may be a single byte. SentencePiece's own offsets do not
    suffice: they are code points in version 0.2.0, bytes in 0.2.3, and include characters that the model drops.
    """
    visible_before = [0] + list(itertools.accumulate(char not in (" ", WORD_START) for char in cleaned))
    end_of_text = sources[-1]
    firsts: List[int] = []
    lasts: List[int] = []
    normalized, offsets = model.Normalize(cleaned, with_offsets=True)
    bounds = sorted(set(offsets))
    next_bound = dict(zip(bounds, bounds[1:]))
    position = 0
    for char, start in zip(normalized, offsets):
        if char == WORD_START:
            continue
        # cleaned[start:end] may become several characters, and may end with characters that the model drops.
        end = next_bound.get(start, start)
        decomposed = unicodedata.normalize("NFKD", char)
        position = max(position, start)
        if cleaned.startswith(decomposed, position, end):
            start = position
            position = end = start + len(decomposed)
        first = visible_before[start]
        last = max(first, visible_before[end] - 1)
        size = len(char.encode("utf-8"))
        firsts.extend([sources[first]] * size)
        lasts.extend([min(sources[last], end_of_text - 1)] * size)
    lengths = [
        1 if _BYTE_PIECE.fullmatch(piece) else len(piece.replace(WORD_START, "").encode("utf-8")) for piece in pieces
    ]
    # Nonzero only if the tokenizer has split a piece at a comma and the model changed it again.
    missing = sum(lengths) - len(lasts)
    firsts.extend([end_of_text] * (missing + 1))
    lasts.extend([end_of_text - 1] * missing)
    return token_spans(lengths, firsts, lasts)
