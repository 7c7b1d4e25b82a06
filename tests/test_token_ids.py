"""The fast way from text to ids gives what the plain way gives, for any text."""

from __future__ import annotations

import os
import pickle
import random

import pytest

import tokenization
from adapter_bert import tasks
from tests.helpers import SHARED
from tests.test_tokenization import SAME_FOR_BOTH, SHARED_SPM, SHARED_VOCAB, SPECIALS, spm_model_file, write  # noqa: F401

GLUE_DATA = os.path.join(SHARED, "data", "glue_data")
# All that is white space or is dropped, here or there; letters whose form depends on neighbours; marks; punctuation.
TRICKY = list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029\xa0\u3000\u200b\u2009\u180e\0\ufffd\u00ad\ufeff")
TRICKY += list("Σσς\u0345\u0301\u0327İıßẞǅaAzZ09.,-'\"#[]中가ﬁ\U0001f600\ud800")


def by_tokens(tokenizer, text):
    """The plain way."""
    return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


@pytest.fixture(scope="module", params=[True, False], ids=["lower-cased", "cased"])
def tokenizer(tmp_path_factory, request):
    """With a vocabulary of single characters, so that ids show every character; and of a few pairs of them."""
    characters = sorted({char for char in TRICKY + list(map(chr, range(33, 0x250))) if char.isprintable()})
    pieces = characters + ["##" + char for char in characters] + ["ab", "##ba", "aa", "##aa"]
    path = write(tmp_path_factory.mktemp("vocabulary") / "vocab.txt", "\n".join(SPECIALS + pieces))
    return tokenization.FullTokenizer(path, do_lower_case=request.param)


def random_text(rng):
    pools = (TRICKY, "abAB ", [chr(rng.randrange(0x250))], [chr(rng.randrange(0x110000))])
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(40)))


def test_random_texts(tokenizer):
    rng = random.Random(1)
    for _ in range(3000):
        text = random_text(rng)
        assert tokenizer.token_ids(text) == by_tokens(tokenizer, text), ascii(text)


def test_every_kind_of_character_beside_others(tokenizer):
    for code in [*range(0x800), *range(0x1F00, 0x3100), *range(0x3100, 0x110000, 499)]:
        char = chr(code)
        text = f"a{char}b Σ{char} {char}Σ"
        assert tokenizer.token_ids(text) == by_tokens(tokenizer, text), hex(code)


@pytest.mark.parametrize("text", SAME_FOR_BOTH)
def test_tricky_texts(tokenizer, text):
    assert tokenizer.token_ids(text) == by_tokens(tokenizer, text)


def test_bytes_are_read_as_utf8(tokenizer):
    assert tokenizer.token_ids("É b".encode() + b"\xff") == tokenizer.token_ids("É b")


def test_a_control_character_joins_what_python_would_split(tokenizer):
    assert tokenizer.token_ids("a\x1cb") == tokenizer.token_ids("ab") != tokenizer.token_ids("a b")


def test_forgetting_words_changes_no_result(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenization, "_MAX_CACHED_WORDS", 3)
    text = "a b c d a b ab ba é a, b"
    for _ in range(2):
        assert tokenizer.token_ids(text) == by_tokens(tokenizer, text)
    assert len(tokenizer._ids_of_word) <= 3


def test_what_looks_like_a_paragraph_without_spaces_is_not_remembered(tokenizer):
    text = "ab" * 90
    assert tokenizer.token_ids(text) == by_tokens(tokenizer, text)
    assert text not in tokenizer._ids_of_word


def test_a_tokenizer_that_has_been_used_can_be_sent_to_another_process(tokenizer):
    text = "ab ba É"
    expected = tokenizer.token_ids(text)
    sent = pickle.loads(pickle.dumps(tokenizer))
    assert sent.token_ids(text) == expected
    assert sent.token_ids("new words") == by_tokens(tokenizer, "new words")


def test_ids_may_be_changed_by_who_gets_them(tokenizer):
    tokenizer.token_ids("ab").append(7)
    assert tokenizer.token_ids("ab") == by_tokens(tokenizer, "ab")


def test_words_over_the_limit_are_unknown(tokenizer):
    for length in (199, 200, 201, 500):
        text = "a" * length
        assert tokenizer.token_ids(text) == by_tokens(tokenizer, text)
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"] != tokenizer.tokenize("a" * 200)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_sentence_pieces(spm_model_file, do_lower_case):  # noqa: F811
    rng = random.Random(2)
    texts = SAME_FOR_BOTH + ["9,", "9,9", "x9,", "8, 9,", "☃9,", "\u25819,", "1928, 9 , 8"]
    texts += ["".join(rng.choice("the quick 1928,,\u2581☃É`'") for _ in range(20)) for _ in range(300)]
    for model in [spm_model_file] + ([SHARED_SPM] if os.path.exists(SHARED_SPM) else []):
        tokenizer = tokenization.SentencePieceTokenizer(model, do_lower_case)
        for text in texts:
            assert tokenizer.token_ids(text) == by_tokens(tokenizer, text), (model, text)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(GLUE_DATA), reason=f"needs {GLUE_DATA}")
def test_all_real_texts():
    tokenizer = tokenization.FullTokenizer(SHARED_VOCAB)
    for name in ("CoLA", "SST-2", "MRPC", "STS-B", "WNLI"):
        for example in tasks.read_examples(tasks.get(name), os.path.join(GLUE_DATA, name), "train"):
            for text in (example.text_a, example.text_b or ""):
                assert tokenizer.token_ids(text) == by_tokens(tokenizer, text), text
