"""`token_ids` returns the ids of the tokens of `tokenize`, for any text."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given, settings, strategies

import tokenization
from adapter_bert import tasks
from tests.helpers import SHARED
from tests.test_tokenization import SAME_FOR_BOTH, SHARED_SPM, SHARED_VOCAB, SPECIALS, spm_model_file, write  # noqa: F401

GLUE_DATA = os.path.join(SHARED, "data", "glue_data")
# White space, dropped characters, letters whose form depends on their neighbours, marks and punctuation.
TRICKY = list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029\xa0\u3000\u200b\u2009\u180e\0\ufffd\u00ad\ufeff")
TRICKY += list("Σσς\u0345\u0301\u0327İıßẞǅaAzZ09.,-'\"#[]中가ﬁ\U0001f600\ud800")


CHARACTERS = (
    strategies.sampled_from(TRICKY)
    | strategies.sampled_from("abAB ")
    | strategies.integers(0, 0x24F).map(chr)
    | strategies.integers(0, 0x10FFFF).map(chr)
)


def check(tokenizer, text):
    assert tokenizer.token_ids(text) == tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)), ascii(text)


@pytest.fixture(scope="module", params=[True, False], ids=["lower-cased", "cased"])
def tokenizer(tmp_path_factory, request):
    """Return a tokenizer with a vocabulary of single characters and a few pairs, so that ids show every character."""
    characters = sorted({char for char in TRICKY + list(map(chr, range(33, 0x250))) if char.isprintable()})
    pieces = characters + ["##" + char for char in characters] + ["ab", "##ba", "aa", "##aa"]
    path = write(tmp_path_factory.mktemp("vocabulary") / "vocab.txt", "\n".join(SPECIALS + pieces))
    return tokenization.FullTokenizer(path, do_lower_case=request.param)


@settings(max_examples=1000, derandomize=True, deadline=None, database=None)
@given(text=strategies.text(CHARACTERS, max_size=40))
def test_random_texts(tokenizer, text):
    check(tokenizer, text)


def test_every_kind_of_character_next_to_others(tokenizer):
    for code in [*range(0x800), *range(0x1F00, 0x3100), *range(0x3100, 0x110000, 499)]:
        char = chr(code)
        check(tokenizer, f"a{char}b Σ{char} {char}Σ")


@pytest.mark.parametrize("text", SAME_FOR_BOTH)
def test_tricky_texts(tokenizer, text):
    check(tokenizer, text)


def test_bytes_are_decoded_as_utf8(tokenizer):
    assert tokenizer.token_ids("É b".encode() + b"\xff") == tokenizer.token_ids("É b")


def test_dropped_control_characters_do_not_split_words(tokenizer):
    assert tokenizer.token_ids("a\x1cb") == tokenizer.token_ids("ab") != tokenizer.token_ids("a b")


def test_clearing_the_cache_changes_no_result(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenization, "_MAX_CACHED_WORDS", 3)
    for _ in range(2):
        check(tokenizer, "a b c d a b ab ba é a, b")
    assert len(tokenizer._ids_of_word) <= 3


def test_very_long_words_are_not_cached(tokenizer):
    check(tokenizer, "ab" * 90)
    assert "ab" * 90 not in tokenizer._ids_of_word


def test_a_tokenizer_can_be_pickled_after_use(tokenizer):
    expected = tokenizer.token_ids("ab ba É")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.token_ids("ab ba É") == expected
    assert copy.token_ids("new words") == tokenizer.token_ids("new words")


def test_changing_a_returned_list_does_not_change_the_cache(tokenizer):
    tokenizer.token_ids("ab").append(7)
    check(tokenizer, "ab")


def test_words_over_the_limit_are_unknown(tokenizer):
    for length in (199, 200, 201, 500):
        check(tokenizer, "a" * length)
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"] != tokenizer.tokenize("a" * 200)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_sentencepiece(spm_model_file, do_lower_case):  # noqa: F811
    models = [spm_model_file] + ([SHARED_SPM] if os.path.exists(SHARED_SPM) else [])
    tokenizers = [tokenization.SentencePieceTokenizer(model, do_lower_case) for model in models]

    @settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @given(strategies.text(strategies.sampled_from("the quick 1928,,\u2581☃É`'"), max_size=20))
    def check_all(text):
        for tokenizer in tokenizers:
            check(tokenizer, text)

    check_all()
    for text in SAME_FOR_BOTH + ["9,", "9,9", "x9,", "8, 9,", "☃9,", "\u25819,", "1928, 9 , 8"]:
        for tokenizer in tokenizers:
            check(tokenizer, text)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(GLUE_DATA), reason=f"needs {GLUE_DATA}")
def test_all_real_texts():
    tokenizer = tokenization.FullTokenizer(SHARED_VOCAB)
    for name in ("CoLA", "SST-2", "MRPC", "STS-B", "WNLI"):
        for example in tasks.read_examples(tasks.get(name), os.path.join(GLUE_DATA, name), "train"):
            for text in (example.text_a, example.text_b or ""):
                check(tokenizer, text)
