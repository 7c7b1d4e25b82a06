"""What a tokenizer promises: Google's ids for any text, and one clear sentence for any wrong file or flag."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import tokenization
from adapter_bert.common.errors import UserError

SHARED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "..", "shared")
SHARED_DATA = os.path.join(SHARED, "data")
SHARED_VOCAB = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
SHARED_SPM = os.path.join(SHARED_DATA, "sentencepiece", "albert_spiece.model")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "low", "lowest", "résumé", "resume"]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(SPECIALS + PIECES) + "\n")


def message_of(function, *args, **kwargs):
    """The one sentence that a call fails with."""
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------ casing


@pytest.mark.parametrize(
    "folder",
    [
        "uncased_L-12_H-768_A-12",
        "wwm_uncased_L-24_H-1024_A-16",
        "multilingual_L-12_H-768_A-12",
        "chinese_L-12_H-768_A-12",
    ],
)
def test_an_uncased_release_wants_lower_casing(folder):
    checkpoint = f"gs://bucket/{folder}/bert_model.ckpt"
    tokenization.validate_case_matches_checkpoint(True, checkpoint)
    message = message_of(tokenization.validate_case_matches_checkpoint, False, checkpoint)
    assert folder in message
    assert "--do_lower_case=False was given: set --do_lower_case=True" in message


@pytest.mark.parametrize(
    "folder", ["cased_L-12_H-768_A-12", "wwm_cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12"]
)
def test_a_cased_release_wants_no_lower_casing(folder):
    for checkpoint in (f"/data/{folder}/bert_model.ckpt", f"C:\\data\\{folder}\\bert_model.ckpt"):
        tokenization.validate_case_matches_checkpoint(False, checkpoint)
        message = message_of(tokenization.validate_case_matches_checkpoint, True, checkpoint)
        assert folder in message
        assert "set --do_lower_case=False" in message


@pytest.mark.parametrize(
    "checkpoint",
    [
        None,
        "",
        "bert_model.ckpt",
        "/data/my_bert/bert_model.ckpt",
        "/data/cased_vs_uncased/model.ckpt-100",
        "/data/uncased_vs_cased/model.ckpt-100",
        "/runs/cased_L-12_H-768_A-12/mine/model.ckpt-100",
        "uncased_L-12_H-768_A-12",
    ],
)
def test_a_checkpoint_under_an_unknown_name_takes_any_casing(checkpoint):
    for do_lower_case in (True, False):
        tokenization.validate_case_matches_checkpoint(do_lower_case, checkpoint)


def test_a_cased_vocabulary_refuses_lower_casing_and_says_how_many_pieces_tell():
    vocab = SPECIALS + ["the", "##s", "The", "Ärger"]
    tokenization.check_case_matches_vocabulary(False, vocab)
    message = message_of(tokenization.check_case_matches_vocabulary, True, vocab)
    assert "2 of the vocabulary's 4 word pieces (50.0%)" in message
    assert "set --do_lower_case=False" in message


def test_an_uncased_vocabulary_refuses_to_keep_the_case_and_says_how_many_pieces_tell():
    vocab = SPECIALS + ["[unused1]", "<S>", "the", "##s", "1", "日"]
    tokenization.check_case_matches_vocabulary(True, vocab)
    message = message_of(tokenization.check_case_matches_vocabulary, False, vocab)
    assert "None of the vocabulary's 4 word pieces" in message
    assert "2 hold a-z" in message
    assert "set --do_lower_case=True" in message


def test_one_per_cent_of_upper_case_is_not_yet_a_contradiction():
    lower = [f"word{number}" for number in range(198)]
    tokenization.check_case_matches_vocabulary(True, lower + ["A", "B"])
    assert "3 of" in message_of(tokenization.check_case_matches_vocabulary, True, lower + ["A", "B", "C"])


@pytest.mark.parametrize("vocab", [[], SPECIALS, ["日", "本", "1"]])
def test_a_vocabulary_without_latin_letters_takes_any_casing(vocab):
    for do_lower_case in (True, False):
        tokenization.check_case_matches_vocabulary(do_lower_case, vocab)


# ------------------------------------------------------------------------------------------ vocabulary


def test_text_and_bytes_become_text():
    assert tokenization.convert_to_unicode("né") == "né"
    assert tokenization.convert_to_unicode("né".encode() + b"\xff") == "né"
    assert tokenization.printable_text("né".encode()) == "né"
    with pytest.raises(ValueError, match="str or bytes, received int: 3"):
        tokenization.convert_to_unicode(3)


def test_a_vocabulary_maps_tokens_to_line_numbers_in_order(vocab_file):
    vocab = tokenization.load_vocab(vocab_file)
    assert list(vocab.items()) == [(token, line) for line, token in enumerate(SPECIALS + PIECES)]


def test_a_vocabulary_is_split_at_line_feeds_only(tmp_path):
    tokens = ["a", "\u2028", "b\x85c", "\x0b", "d\u2029e", "\xa0", "f"]
    vocab = tokenization.load_vocab(write(tmp_path / "vocab.txt", "\n".join(tokens)))
    assert list(vocab) == tokens


def test_byte_order_mark_carriage_returns_and_missing_final_newline_do_no_harm(tmp_path):
    content = b"\xef\xbb\xbf[PAD]\r\n[UNK]\r\nthe"
    assert list(tokenization.load_vocab(write(tmp_path / "vocab.txt", content))) == ["[PAD]", "[UNK]", "the"]


def test_a_blank_line_keeps_its_number(tmp_path):
    assert tokenization.load_vocab(write(tmp_path / "vocab.txt", "a\n\nb\n"))["b"] == 2


def test_an_unreadable_vocabulary_is_named(tmp_path):
    missing = str(tmp_path / "nowhere" / "vocab.txt")
    for path in (missing, str(tmp_path)):
        message = message_of(tokenization.load_vocab, path)
        assert path in message
        assert "--vocab_file" in message


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_vocabulary_is_named(tmp_path, content):
    path = write(tmp_path / "vocab.txt", content)
    assert f"{path} is empty" in message_of(tokenization.load_vocab, path)


def test_a_vocabulary_that_is_no_utf8_is_named_with_its_line(tmp_path):
    path = write(tmp_path / "vocab.txt", b"[PAD]\nthe\ncaf\xe9\n")
    message = message_of(tokenization.load_vocab, path)
    assert path in message
    assert "byte 0xe9 in line 3" in message


def test_tokens_and_ids_convert_both_ways():
    vocab = {"a": 0, "b": 1}
    inv_vocab = {0: "a", 1: "b"}
    assert tokenization.convert_tokens_to_ids(vocab, ["b", "a", "b"]) == [1, 0, 1]
    assert tokenization.convert_ids_to_tokens(inv_vocab, [1, 0]) == ["b", "a"]
    assert tokenization.convert_by_vocab(vocab, ["b"]) == [1]
    assert tokenization.convert_by_vocab(inv_vocab, []) == []


def test_an_unknown_token_or_id_is_named():
    assert "Token 'zzz' is not in the vocabulary of 1 entries" in message_of(
        tokenization.convert_tokens_to_ids, {"a": 0}, ["a", "zzz"]
    )
    assert "Id 7 is not in the vocabulary" in message_of(tokenization.convert_ids_to_tokens, {0: "a"}, [7])
    assert "'zzz'" in message_of(tokenization.convert_by_vocab, {"a": 0}, ["zzz"])


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
        ("\ufb01x\u00b2 \u0915\u093f", ["\ufb01x\u00b2", "\u0915\u093f"]),
        ("\ue000x", ["\ue000x"]),
        ("[CLS]", ["[", "cls", "]"]),
        (b"H\xc3\xa9", ["he"]),
        ("", []),
    ],
)
def test_words_are_cleaned_lower_cased_and_split_at_punctuation(text, words):
    assert tokenization.BasicTokenizer().tokenize(text) == words


def test_case_and_accents_stay_without_lower_casing():
    words = tokenization.BasicTokenizer(do_lower_case=False).tokenize("H\u00e9LLo, e\u0301\u4e00!")
    assert words == ["H\u00e9LLo", ",", "e\u0301", "\u4e00", "!"]


def test_a_word_is_split_into_the_longest_pieces_there_are():
    vocab = dict.fromkeys(["[UNK]", "want", "##want", "##ed", "wa", "un", "runn", "##ing"], 0)
    tokenizer = tokenization.WordpieceTokenizer(vocab)
    assert tokenizer.tokenize("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert tokenizer.tokenize(" ") == []


def test_words_over_the_limit_are_unknown():
    vocab = {"a": 0, "##a": 1}
    tokenizer = tokenization.WordpieceTokenizer(vocab)
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]
    short = tokenization.WordpieceTokenizer(vocab, unk_token="<unk>", max_input_chars_per_word=2)
    assert short.tokenize("aa aaa") == ["a", "##a", "<unk>"]


def test_forgetting_remembered_words_changes_no_result(monkeypatch):
    monkeypatch.setattr(tokenization, "_MAX_CACHED_WORDS", 2)
    tokenizer = tokenization.WordpieceTokenizer({"a": 0, "##b": 1, "c": 2})
    for _ in range(2):
        assert tokenizer.tokenize("a ab c cb a x") == ["a", "a", "##b", "c", "c", "##b", "a", "[UNK]"]
    assert len(tokenizer._pieces_of_word) <= 2


def test_the_full_tokenizer_goes_from_text_to_ids_and_back(vocab_file):
    tokenizer = tokenization.FullTokenizer(vocab_file)
    tokens = tokenizer.tokenize("UNwanted,running R\u00e9sum\u00e9 \u65e5\u672c")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing", "resume", "[UNK]", "[UNK]"]
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert ids == [9, 6, 7, 12, 10, 11, 16, 1, 1]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.vocab["[CLS]"] == 2
    assert tokenizer.inv_vocab[2] == "[CLS]"
    assert "'Un'" in message_of(tokenizer.convert_tokens_to_ids, ["Un"])
    assert "Id 99" in message_of(tokenizer.convert_ids_to_tokens, [99])


def test_the_full_tokenizer_keeps_case_if_asked(vocab_file):
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=False)
    assert tokenizer.tokenize("want Want r\u00e9sum\u00e9") == ["want", "[UNK]", "r\u00e9sum\u00e9"]


def test_a_tokenizer_can_be_sent_to_another_process(vocab_file):
    tokenizer = tokenization.FullTokenizer(vocab_file)
    tokenizer.tokenize("unwanted")
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize("unwanted") == ["un", "##want", "##ed"]


# ------------------------------------------------------------------------------------------ SentencePiece


def train_sentencepiece(folder, symbols):
    """Trains a tiny model; in a process of its own, since beside TensorFlow 1.15 the trainer crashes."""
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
    }
    program = f"import sentencepiece; sentencepiece.SentencePieceTrainer.Train(**{options!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    return prefix + ".model"


@pytest.fixture(scope="module")
def spm_model_file(tmp_path_factory):
    return train_sentencepiece(tmp_path_factory.mktemp("spm"), ["[CLS]", "[SEP]", "9,", "8,", "\u25818"])


def test_sentencepiece_goes_from_text_to_ids_and_back(spm_model_file):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
    tokens = tokenizer.tokenize("The QUICK fox")
    assert "".join(tokens).replace("\u2581", " ") == " the quick fox"
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert list(tokenizer.vocab.values()) == list(range(len(tokenizer.vocab)))
    assert tokenizer.inv_vocab[tokenizer.vocab["[CLS]"]] == "[CLS]"
    assert "'Fox'" in message_of(tokenizer.convert_tokens_to_ids, ["Fox"])
    assert "Id 999" in message_of(tokenizer.convert_ids_to_tokens, [999])


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("  the \t fox\n", "the fox"),
        ("``no''", '"no"'),
        ("th\u00e9 fo\u0301x", "the fox"),
        ("\uff34\uff28\uff25 \ufb01x", "the fix"),
        ("the\uff9e fox", "the fox"),
        ("the\ud83d fox", "the fox"),
        (b"the fox", "the fox"),
        ("The FOX", "the fox"),
    ],
)
def test_text_is_cleaned_up_before_sentencepiece_sees_it(spm_model_file, text, same_as):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
    assert tokenizer.tokenize(text) == tokenizer.tokenize(same_as)


def test_sentencepiece_keeps_case_if_asked(spm_model_file):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file, do_lower_case=False)
    assert "<unk>" in tokenizer.tokenize("FOX")
    assert tokenizer.tokenize("fox") == tokenization.SentencePieceTokenizer(spm_model_file).tokenize("FOX")


def test_what_sentencepiece_cannot_express_is_the_unknown_token(spm_model_file):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
    assert tokenizer.unk_token == "<unk>"
    tokens = tokenizer.tokenize("fox \u65e5\u672c fox")
    assert tokens.count("<unk>") == 1
    assert tokenizer.convert_tokens_to_ids(tokens).count(1) == 1


@pytest.mark.parametrize(
    ("text", "last_tokens"),
    [
        ("x9,9", ["9", ",", "9"]),  # the model's piece for `9,` is re-read as a word start and `9`
        ("x8,9", ["8", ",", "9"]),  # the one for `8,` as a single piece that includes the word start
    ],
)
def test_a_comma_is_split_off_a_number(spm_model_file, text, last_tokens):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
    assert text[1:3] in tokenizer.vocab
    tokens = tokenizer.tokenize(text)
    assert tokens[-3:] == last_tokens
    assert "".join(tokens) == "\u2581" + text


def test_a_sentencepiece_tokenizer_can_be_sent_to_another_process(spm_model_file):
    tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize("the fox") == tokenizer.tokenize("the fox")


def test_a_missing_sentencepiece_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    message = message_of(tokenization.SentencePieceTokenizer, str(tmp_path / "spiece.model"))
    assert "pip install sentencepiece" in message


def test_an_unreadable_or_foreign_sentencepiece_model_is_named(tmp_path, vocab_file):
    pytest.importorskip("sentencepiece")
    missing = str(tmp_path / "nowhere.model")
    message = message_of(tokenization.SentencePieceTokenizer, missing)
    assert missing in message
    assert "--spm_model_file" in message
    empty = write(tmp_path / "empty.model", b"")
    assert f"{empty} is empty" in message_of(tokenization.SentencePieceTokenizer, empty)
    for foreign in (vocab_file, write(tmp_path / "noise.model", bytes(range(256)))):
        message = message_of(tokenization.SentencePieceTokenizer, foreign)
        assert f"{foreign} is not a SentencePiece model" in message


# ------------------------------------------------------------------------------------------ the choice


def test_the_file_given_decides_which_tokenizer_it_is(vocab_file):
    tokenizer = tokenization.create_tokenizer(vocab_file, None, True)
    assert isinstance(tokenizer, tokenization.FullTokenizer)
    assert tokenizer.tokenize("WANT") == ["want"]
    assert tokenization.create_tokenizer(vocab_file, "", False).tokenize("WANT") == ["[UNK]"]


def test_the_model_given_decides_which_tokenizer_it_is(spm_model_file):
    tokenizer = tokenization.create_tokenizer("", spm_model_file, True)
    assert isinstance(tokenizer, tokenization.SentencePieceTokenizer)
    assert "<unk>" not in tokenizer.tokenize("FOX")
    assert "<unk>" in tokenization.create_tokenizer(None, spm_model_file, False).tokenize("FOX")


def test_neither_or_both_files_are_refused():
    for neither in ("", None):
        message = message_of(tokenization.create_tokenizer, neither, neither, True)
        assert "--vocab_file" in message
        assert "--spm_model_file" in message
        assert "neither" in message
    message = message_of(tokenization.create_tokenizer, "a.txt", "b.model", True)
    assert "both" in message
    assert "a.txt" in message
    assert "b.model" in message


def test_a_vocabulary_without_its_special_tokens_is_refused_by_name(tmp_path):
    path = write(tmp_path / "vocab.txt", "[PAD]\n[CLS]\nthe\n")
    message = message_of(tokenization.create_tokenizer, path, None, True)
    assert path in message
    assert "lacks [SEP], [UNK]" in message


def test_a_sentencepiece_model_without_special_tokens_is_refused_by_name(tmp_path):
    path = train_sentencepiece(tmp_path, ["[CLS]"])
    message = message_of(tokenization.create_tokenizer, None, path, True)
    assert path in message
    assert "lacks [SEP]:" in message


# ------------------------------------------------------------------------------------------ Hugging Face

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
