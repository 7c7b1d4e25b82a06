"""BERT's word splitter: its steps under the original's names, alone, overridden, and together in one pass."""

from __future__ import annotations

import pytest

import tokenization
from tokenization import BasicTokenizer


class InSteps(BasicTokenizer):
    """Runs step by step, because one of the steps is its own."""

    def _clean_text(self, text: str) -> str:
        return super()._clean_text(text)


class KeepsNames(BasicTokenizer):
    """Old code does this to protect special tokens."""

    def _run_split_on_punc(self, text: str) -> list:
        return [text] if text.startswith("[") else super()._run_split_on_punc(text)


class KeepsIdeographs(BasicTokenizer):
    def _is_chinese_char(self, cp: int) -> bool:
        return False


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_steps_give_the_words_of_the_fast_path_for_every_common_character(do_lower_case):
    fast, in_steps = BasicTokenizer(do_lower_case), InSteps(do_lower_case)
    for start in range(0, 0x10000, 0x1000):
        text = "".join(f"A{chr(code)}{chr(code)}e\u0301 " for code in range(start, start + 0x1000))
        assert fast.tokenize(text) == in_steps.tokenize(text), hex(start)


@pytest.mark.parametrize(
    "tokenizer, words",
    [
        (BasicTokenizer(), ["[", "mask", "]", ",", "\u4e00", "x"]),
        (KeepsNames(do_lower_case=False), ["[MASK],", "\u4e00", "x"]),
        (KeepsIdeographs(), ["[", "mask", "]", ",", "\u4e00x"]),
    ],
    ids=["BasicTokenizer", "KeepsNames", "KeepsIdeographs"],
)
def test_an_overridden_step_is_used(tokenizer, words):
    assert tokenizer.tokenize("[MASK], \u4e00x") == words


def test_the_steps_do_what_their_names_say():
    tokenizer = BasicTokenizer()
    assert tokenizer._clean_text("a\x00b\u200b\tc\u3000\ufffdd") == "ab c d"
    assert tokenizer._tokenize_chinese_chars("ah\u535a\u63a8zz") == "ah \u535a  \u63a8 zz"
    assert tokenizer._run_strip_accents("H\u00e9llo\u0301") == "Hello"
    assert tokenizer._run_split_on_punc("a,,b c!") == ["a", ",", ",", "b c", "!"]
    assert tokenizer._run_split_on_punc("") == []
    edges = [0x3400, 0x4DBF, 0x4E00, 0x9FFF, 0xF900, 0xFAFF, 0x20000, 0x2A6DF, 0x2A700, 0x2CEAF, 0x2F800, 0x2FA1F]
    assert all(tokenizer._is_chinese_char(cp) for cp in edges)
    assert not any(tokenizer._is_chinese_char(cp) for cp in (0x33FF, 0x4DC0, 0xA000, 0x2A6E0, 0x2CEB0, 0x3042, 0xAC00))


@pytest.mark.parametrize(
    "function, included, excluded",
    [
        (tokenization._is_whitespace, " \t\r\n\u00a0\u3000", "A-\x0b\u200b"),
        (tokenization._is_control, "\u0005\x7f\u200b\xad", "A \t\r\n\U0001f4a9"),
        (tokenization._is_punctuation, "-$`.^~\u2014\u00bf", "A 5\u20ac\u535a"),
    ],
    ids=["whitespace", "control", "punctuation"],
)
def test_characters_have_the_classes_of_the_original(function, included, excluded):
    assert [function(char) for char in included] == [True] * len(included)
    assert [function(char) for char in excluded] == [False] * len(excluded)
