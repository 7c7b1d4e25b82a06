"""Both tokenizers return the ids of the original implementations, and report wrong files and flags."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys

import pytest

import tokenization
from tests.helpers import SHARED, assert_mentions, message_of, write_file

SHARED_VOCAB = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
SHARED_DATA = os.path.join(SHARED, "data")
SHARED_SPM = os.path.join(SHARED_DATA, "sentencepiece", "albert_spiece.model")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "low", "lowest", "résumé", "resume"]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(SPECIALS + PIECES) + "\n")


# ------------------------------------------------------------------------------------------ casing


UNCASED, CASED = ["uncased", "wwm_uncased", "multilingual", "chinese"], ["cased", "wwm_cased", "multi_cased"]


@pytest.mark.parametrize("name", UNCASED + CASED)
def test_do_lower_case_must_match_the_name_of_a_release(name):
    is_lower_cased = name in UNCASED
    folder = name + "_L-12_H-768_A-12"
    for checkpoint in (f"gs://bucket/{folder}/bert_model.ckpt", f"C:\\data\\{folder}\\bert_model.ckpt"):
        tokenization.validate_case_matches_checkpoint(is_lower_cased, checkpoint)
        message = message_of(tokenization.validate_case_matches_checkpoint, not is_lower_cased, checkpoint)
        assert_mentions(message, checkpoint, f"--do_lower_case={is_lower_cased}")


@pytest.mark.parametrize("folder", ["", "/my_bert/", "/cased_vs_uncased/", "/uncased_vs_cased/", "/cased_L-12/mine/"])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_any_other_checkpoint_name_allows_both_values_of_do_lower_case(folder, do_lower_case):
    for checkpoint in (None, "", folder + "bert_model.ckpt", folder + "uncased_L-12", folder + "cased_L-12"):
        tokenization.validate_case_matches_checkpoint(do_lower_case, checkpoint)


LOWER = [f"word{number}" for number in range(198)]


@pytest.mark.parametrize(
    ("vocab", "expected", "facts"),
    [
        (SPECIALS + ["the", "##s", "The", "Ärger"], False, ["2 of", "4 word pieces", "50.0%"]),
        (SPECIALS + ["[unused1]", "<S>", "the", "##s", "1", "日"], True, ["4 word pieces", "2 contain a-z"]),
        (LOWER + ["A", "B", "C"], False, ["3 of"]),
    ],
)
def test_do_lower_case_must_match_the_letters_in_the_vocabulary(vocab, expected, facts):
    tokenization.check_case_matches_vocabulary(expected, vocab)
    message = message_of(tokenization.check_case_matches_vocabulary, not expected, vocab)
    assert_mentions(message, f"--do_lower_case={expected}", *facts)


@pytest.mark.parametrize("vocab", [[], SPECIALS, ["日", "本", "1"], LOWER + ["A", "B"]])
def test_both_values_of_do_lower_case_are_valid_without_latin_letters_or_with_one_percent_upper_case(vocab):
    for do_lower_case in (True, False):
        tokenization.check_case_matches_vocabulary(do_lower_case, vocab)


# ------------------------------------------------------------------------------------------ vocabulary


def test_bytes_are_converted_to_text():
    assert tokenization.convert_to_unicode("né") == "né"
    assert tokenization.convert_to_unicode("né".encode() + b"\xff") == "né"
    assert tokenization.printable_text("né".encode()) == "né"
    with pytest.raises(ValueError, match="str or bytes, received int: 3"):
        tokenization.convert_to_unicode(3)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("\n".join(SPECIALS + PIECES) + "\n", SPECIALS + PIECES),
        # Only line feeds separate tokens, and a blank line has an id.
        ("a\n\u2028\nb\x85c\n\x0b\n\xa0\n\nf", ["a", "\u2028", "b\x85c", "\x0b", "\xa0", "", "f"]),
        # A byte order mark and carriage returns are ignored.
        (b"\xef\xbb\xbf[PAD]\r\n[UNK]\r\nthe", ["[PAD]", "[UNK]", "the"]),
    ],
    ids=["plain", "line breaks", "Windows"],
)
def test_a_vocabulary_maps_tokens_to_line_numbers_in_order(tmp_path, content, tokens):
    vocab = tokenization.load_vocab(write(tmp_path / "vocab.txt", content))
    assert list(vocab.items()) == [(token, line) for line, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("content", "fact"),
    [(None, "Cannot read"), (b"\n \n", "empty"), (b"[PAD]\nthe\ncaf\xe9\n", "byte 0xe9 in line 3")],
)
def test_an_invalid_vocabulary_is_reported(tmp_path, content, fact):
    path = str(tmp_path) if content is None else write(tmp_path / "vocab.txt", content)
    assert_mentions(message_of(tokenization.load_vocab, path), path, fact, "--vocab_file")


@pytest.mark.parametrize(
    ("function", "table", "unknown"),
    [
        (tokenization.convert_tokens_to_ids, {"a": 0, "b": 1}, "zzz"),
        (tokenization.convert_ids_to_tokens, {0: "a", 1: "b"}, 7),
        (tokenization.convert_by_vocab, {"a": 0, "b": 1}, "zzz"),
    ],
)
def test_tokens_and_ids_convert_both_ways_and_unknown_ones_are_reported(function, table, unknown):
    first, second = table
    assert function(table, [second, first, second]) == [table[second], table[first], table[second]]
    assert_mentions(message_of(function, table, [*table, unknown]), repr(unknown), "2 entries")


# ------------------------------------------------------------------------------------------ WordPiece


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"]),
        ("H\u00e9llo Hello\u0301", ["hello", "hello"]),
        ("ah\u535a\u63a8zz \U00020000x", ["ah", "\u535a", "\u63a8", "zz", "\U00020000", "x"]),
        ("a\x00b\ufffdc\u200bd\x85e\xadf", ["abcdef"]),
        ("a\xa0b\u3000c\u2028d\re", ["a", "b", "c", "d", "e"]),
        ("a$b^c`d\u2014e\u00bff", ["a", "$", "b", "^", "c", "`", "d", "\u2014", "e", "\u00bf", "f"]),
        ("\u20ac5 \U0001f600x", ["\u20ac5", "\U0001f600x"]),
        ("\u039f\u0394\u039f\u03a3 \u0130", ["\u03bf\u03b4\u03bf\u03c2", "i"]),
        ("\ufb01x\u00b2 \u0915\u093f \ue000x", ["\ufb01x\u00b2", "\u0915\u093f", "\ue000x"]),
        (b"[H\xc3\xa9]", ["[", "he", "]"]),
        ("", []),
    ],
)
def test_words_are_cleaned_lower_cased_and_split_at_punctuation(text, words):
    assert tokenization.BasicTokenizer().tokenize(text) == words


def test_case_and_accents_are_kept_without_lower_casing():
    words = tokenization.BasicTokenizer(do_lower_case=False).tokenize("H\u00e9LLo, e\u0301\u4e00!")
    assert words == ["H\u00e9LLo", ",", "e\u0301", "\u4e00", "!"]


def test_a_word_is_split_into_the_longest_pieces_unless_it_is_too_long():
    vocab = dict.fromkeys(["[UNK]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", "a", "##a"], 0)
    tokenizer = tokenization.WordpieceTokenizer(vocab)
    assert tokenizer.tokenize("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert tokenizer.tokenize(" ") == []
    assert tokenizer.tokenize("a" * 200 + " " + "a" * 201) == ["a"] + ["##a"] * 199 + ["[UNK]"]
    short = tokenization.WordpieceTokenizer(vocab, unk_token="<unk>", max_input_chars_per_word=2)
    assert short.tokenize("aa aaa") == ["a", "##a", "<unk>"]


def test_the_cache_of_words_is_bounded_and_changes_no_result(vocab_file, monkeypatch):
    text, long_word = "low want wanted lowest unwanted ZZ low", "low" + "est" * 20
    monkeypatch.setattr(tokenization, "_MAX_CACHED_WORDS", 2)
    tokenizer = tokenization.FullTokenizer(vocab_file)
    for _ in range(2):
        tokenizer.token_ids(text).append(7)  # changing what was returned does not change the cache
        assert tokenizer.token_ids(text) == [13, 5, 5, 7, 14, 9, 6, 7, 1, 13]
    assert tokenizer.token_ids(long_word) == [1]
    for cache in (tokenizer._ids_of_word, tokenizer.wordpiece_tokenizer._pieces_of_word):
        assert 0 < len(cache) <= 2 and long_word not in cache


def test_the_full_tokenizer_converts_text_to_ids_and_back(vocab_file):
    tokenizer = tokenization.FullTokenizer(vocab_file)
    tokens = tokenizer.tokenize("UNwanted,running R\u00e9sum\u00e9 \u65e5\u672c")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing", "resume", "[UNK]", "[UNK]"]
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert ids == [9, 6, 7, 12, 10, 11, 16, 1, 1]
    assert tokenizer.token_ids("UNwanted,running R\u00e9sum\u00e9 \u65e5\u672c".encode() + b"\xff") == ids
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.vocab["[CLS]"] == 2
    assert tokenizer.inv_vocab[2] == "[CLS]"
    # Also after it was pickled, with what it has cached.
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.tokenize("unwanted low") == ["un", "##want", "##ed", "low"]
    assert copy.token_ids("unwanted low") == tokenizer.token_ids("unwanted low") == [9, 6, 7, 13]


# ------------------------------------------------------------------------------------------ SentencePiece


def train_sentencepiece(folder, symbols, **changes):
    """Train a tiny model in another process, because the trainer crashes in one that has loaded TensorFlow 1.15."""
    pytest.importorskip("sentencepiece")
    sentences = ["the quick brown fox jumps over the lazy dog", 'he said "no" 1928 times , 8 , 9']
    prefix = str(folder / "tiny")
    options = {
        "input": write(folder / "corpus.txt", "\n".join(sentences * 20)),
        "model_prefix": prefix,
        "vocab_size": 60,
        "hard_vocab_limit": False,
        "character_coverage": 1.0,
        "user_defined_symbols": symbols,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "num_threads": 1,
        "minloglevel": 2,
        **changes,
    }
    program = f"import sentencepiece; sentencepiece.SentencePieceTrainer.Train(**{options!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    return prefix + ".model"


def test_a_sentencepiece_model_with_a_piece_that_is_not_utf8_is_an_error(spm_model_file, tmp_path):
    content = pathlib.Path(spm_model_file).read_bytes()
    assert b"fox" in content
    path = write_file(tmp_path, "damaged.model", content.replace(b"fox", b"\x80ox"))
    assert_mentions(message_of(tokenization.create_tokenizer, None, path, True), path, "--spm_model_file")


def test_sentencepiece_converts_text_to_ids_and_back(sentencepiece):
    # What the model cannot represent becomes the unknown token.
    tokens = sentencepiece.tokenize("The QUICK fox \u65e5\u672c fox")
    assert sentencepiece.unk_token == "<unk>"
    assert "".join(tokens).replace("\u2581", " ") == " the quick fox <unk> fox"
    ids = sentencepiece.convert_tokens_to_ids(tokens)
    assert ids.count(1) == 1 and sentencepiece.convert_ids_to_tokens(ids) == tokens
    assert list(sentencepiece.vocab.values()) == list(range(len(sentencepiece.vocab)))
    assert sentencepiece.inv_vocab[sentencepiece.vocab["[CLS]"]] == "[CLS]"
    assert sentencepiece.tokenize("The QUICK fox \u65e5\u672c fox".encode()) == tokens


@pytest.mark.parametrize("text", ["x9,9", "x8,9"])
def test_a_comma_is_split_off_a_number(sentencepiece, text):
    # The model's piece for `9,` is encoded again as a word start and `9`; `8,` as one piece that includes the start.
    assert text[1:3] in sentencepiece.vocab
    tokens = sentencepiece.tokenize(text)
    assert tokens[-3:] == list(text[1:])
    assert "".join(tokens) == "\u2581" + text
    assert pickle.loads(pickle.dumps(sentencepiece)).tokenize(text) == tokens


def test_a_missing_sentencepiece_package_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    message = message_of(tokenization.SentencePieceTokenizer, str(tmp_path / "spiece.model"))
    assert_mentions(message, "pip install sentencepiece")


@pytest.mark.parametrize(
    ("content", "fact"),
    [(None, "no file"), (b"", "empty"), (b"[PAD]\n[UNK]\n", "not a SentencePiece model")],
)
def test_an_unreadable_or_invalid_sentencepiece_model_is_reported(tmp_path, content, fact):
    pytest.importorskip("sentencepiece")
    path = str(tmp_path / "some.model") if content is None else write(tmp_path / "some.model", content)
    assert_mentions(message_of(tokenization.SentencePieceTokenizer, path), path, fact, "--spm_model_file")


# ------------------------------------------------------------------------------------------ create_tokenizer


def test_the_kind_of_file_determines_the_tokenizer(vocab_file, spm_model_file):
    for files, kind in (((vocab_file, None), "FullTokenizer"), (("", spm_model_file), "SentencePieceTokenizer")):
        uncased, cased = (tokenization.create_tokenizer(*files, do_lower_case) for do_lower_case in (True, False))
        assert type(uncased).__name__ == type(cased).__name__ == kind
        text = "low" if files[0] else "fox"
        assert uncased.tokenize(text) == uncased.tokenize(text.upper()) == cased.tokenize(text)
        assert cased.unk_token in cased.tokenize(text.upper()) and cased.unk_token not in cased.tokenize(text)


@pytest.mark.parametrize(
    ("vocab_file", "spm_model_file", "fact"),
    [("", "", "neither"), (None, None, "neither"), ("a.txt", "b.model", "both")],
)
def test_exactly_one_file_must_be_given(vocab_file, spm_model_file, fact):
    message = message_of(tokenization.create_tokenizer, vocab_file, spm_model_file, True)
    assert_mentions(message, "--vocab_file", "--spm_model_file", fact, vocab_file or "", spm_model_file or "")


def test_missing_special_tokens_are_reported(tmp_path):
    path = write(tmp_path / "vocab.txt", "[PAD]\n[CLS]\nthe\n")
    assert_mentions(message_of(tokenization.create_tokenizer, path, None, True), path, "[SEP], [UNK]")
    path = train_sentencepiece(tmp_path, ["[CLS]"])
    assert_mentions(message_of(tokenization.create_tokenizer, None, path, True), path, "lacks [SEP].")


# Texts with the same tokens and spans in Hugging Face's tokenizers.
SAME_FOR_BOTH = [
    "",
    " ",
    "H\u00e9llo W\u00f6rld, na\u00efve caf\u00e9! \u1e9e\u00df \u0130stanbul",
    "\u65e5\u672c\u8a9e and \u4e2d\u6587\u5b57 mixed\uac00\ub098\u3042\u30a2 \U00020000",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea!",
    "con\x00trol\x01\x1f \x7f\x85 soft\xadhyphen zero\u200bwidth \ufeffbom \ufffd tab\tnew\nline\r",
    "nb\xa0space en\u2002space ideographic\u3000space line\u2028sep para\u2029sep ogham\u1680x",
    "$1,234.56 #tag @user a_b c^d e`f `` '' ~x~ <br> {a} \u201cquoted\u201d \u2014 \u2026",
    "\u00bfqu\u00e9? \u20ac5 \u00a35 \u00b0C x\u00b2 \u2122 \u00bd \u2460 \uff21\uff22 \ufb01",
    "long " + "a" * 100 + " " + "ab" * 101 + " end",
    "Ελληνικά Русский العربية हिन्दी ไทย עברית",
    "http://t.co/abc?x=1&y=2 it's don't 9,9 1,000, (9,) 50% A.B.C.",
]
