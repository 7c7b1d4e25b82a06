"""The first half of BERT's tokenizer: split text into words. Re-exported by `tokenization`."""

from __future__ import annotations

import itertools
import unicodedata
from typing import List, Union

from adapter_bert.common import unicode_text


def convert_to_unicode(text: Union[str, bytes]) -> str:
    """Return text as `str`. Bytes are decoded as UTF-8; invalid ones are dropped."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Text must be str or bytes, received {type(text).__name__}: {text!r}")


def whitespace_tokenize(text: str) -> List[str]:
    """Split text at white space; ignore leading, trailing and repeated white space."""
    return text.split()


class BasicTokenizer:
    """Split text into words and punctuation marks; optionally lower-case it and strip accents.

    Subclasses may override the steps, the methods with an underscore, which have the names of the original.
    """

    _has_own_steps = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._has_own_steps = any(getattr(cls, name) is not getattr(BasicTokenizer, name) for name in _STEPS)

    def __init__(self, do_lower_case: bool = True) -> None:
        self.do_lower_case = do_lower_case

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Return the words of a text."""
        text = convert_to_unicode(text)
        if self._has_own_steps:
            return self._tokenize_in_steps(text)
        # The same as in steps, but several times as fast.
        if text.isascii() and text.isalnum():  # most single words
            return [text.lower() if self.do_lower_case else text]
        text = text.translate(unicode_text.CLEANED)
        if self.do_lower_case:
            text = self._run_strip_accents(text.lower())
        return whitespace_tokenize(text.translate(unicode_text.PUNCTUATION_ISOLATED))

    def _tokenize_in_steps(self, text: str) -> List[str]:
        parts: List[str] = []
        for word in whitespace_tokenize(self._tokenize_chinese_chars(self._clean_text(text))):
            parts += self._run_split_on_punc(self._run_strip_accents(word.lower()) if self.do_lower_case else word)
        return whitespace_tokenize(" ".join(parts))

    def _clean_text(self, text: str) -> str:
        """Drop control characters and replace all white space with spaces."""
        return "".join(map(unicode_text.clean_character, text))

    def _tokenize_chinese_chars(self, text: str) -> str:
        """Put spaces around CJK ideographs."""
        return "".join(f" {char} " if self._is_chinese_char(ord(char)) else char for char in text)

    def _is_chinese_char(self, cp: int) -> bool:
        return unicode_text.is_cjk_ideograph(chr(cp))

    def _run_strip_accents(self, text: str) -> str:
        """Remove accents and other marks."""
        return unicodedata.normalize("NFD", text).translate(unicode_text.WITHOUT_MARKS)

    def _run_split_on_punc(self, text: str) -> List[str]:
        """Split text at punctuation marks, which become words of their own."""
        words: List[str] = []
        for is_punctuation, chars in itertools.groupby(text, unicode_text.is_punctuation):
            run = list(chars)
            words += run if is_punctuation else ["".join(run)]
        return words


_STEPS = ("_clean_text", "_tokenize_chinese_chars", "_is_chinese_char", "_run_strip_accents", "_run_split_on_punc")
