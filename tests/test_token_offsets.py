"""For any text, `token_ids` returns the ids of `tokenize`, and `tokenize_with_offsets` the spans of the tokens."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings, strategies

import tokenization
from tests.pipeline.squad_data import SQUAD_V1, needed
from tests.test_tokenization import SAME_FOR_BOTH, SHARED_SPM, SHARED_VOCAB, SPECIALS, train_sentencepiece, write

JAMO = ["\u1112", "##\u1161", "##\u11ab"]
WORDS = ["cafe", "naive", "un", "##want", "##ed", "istanbul", "οδος"]
# Characters that the clean-up drops, splits, joins, reorders or isolates, or whose form depends on their neighbours.
TRICKY = (
    "a'AeEsSxX01899,,,.-''```\"#[] \t\n\r\x0b\x0c\xa0\u3000\u2028\u2029\u2009\u180e\u200b\u200d\u200e\ufeff\xad\x00\x01"
    "\x1c\x1d\x1e\x1f\x85\ufffd\u2581\u0130\u0131\u03a3\u03c3\u03c2\xdf\u1e9e\u01c5\ufb01\ufdfa\xe9\xc9\u0301\u0308\u0323\u0327"
    "\u0344\u0345\u1fef\u037e\xb4\u65e5\u672c\ud55c\uac00\u1112\u1161\u11ab\u304b\uff9e\u0915\u094d\u0937\u09c7\u09be\u0e33\u2026"
    "\xbd\xb2\u2603\U0001f600\u2764\ufe0f\u20e3\ud83d\ude00"
)
# The strategies for any character exclude surrogates.
CHARACTERS = (
    strategies.sampled_from(TRICKY)
    | strategies.sampled_from("abxAB 19,")
    | strategies.characters(max_codepoint=0x30FF)
    | strategies.characters()
)
any_text = given(text=strategies.text(CHARACTERS, max_size=30))
many_examples = settings(max_examples=1000, derandomize=True, deadline=None, database=None)
few_examples = settings(many_examples, max_examples=300)


def tokens_with_text(tokenizer, text):
    """Return pairs of a token, unless it is only a word start, and the part of the text that it represents."""
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    return [(token, text[start:end]) for token, (start, end) in zip(tokens, spans) if token != "\u2581"]


def check(tokenizer, text):
    """Check that ids and tokens are those of `tokenize`, and that the spans are inside the text and in order."""
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    assert tokens == tokenizer.tokenize(text)
    assert tokenizer.token_ids(text) == tokenizer.convert_tokens_to_ids(tokens), ascii(text)
    assert len(spans) == len(tokens)
    bounds = [(0, 0)] + spans + [(len(text), len(text))]
    for (start, end), (next_start, next_end) in zip(bounds, bounds[1:]):
        assert start <= end and start <= next_start and end <= next_end, (text, tokens, spans)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    """Write a vocabulary of some words and all characters that most texts here can become; only `q` is unknown."""
    texts = "".join(SAME_FOR_BOTH) + TRICKY + "dfkwz;!\u0660\u1b44\u302e" + "".join(map(chr, range(33, 0x250)))
    characters = set(texts + unicodedata.normalize("NFD", texts.lower()))
    characters = sorted(char for char in characters - set("qQ\ud83d\ude00") if not char.isspace())
    pieces = [prefix + char for prefix in ("", "##") for char in characters]
    return write(tmp_path_factory.mktemp("vocab") / "vocab.txt", "\n".join(SPECIALS + WORDS + pieces))


@pytest.fixture(scope="module")
def uncased(vocab_file):
    return tokenization.FullTokenizer(vocab_file)


@pytest.fixture(scope="module")
def cased(vocab_file):
    return tokenization.FullTokenizer(vocab_file, do_lower_case=False)


@pytest.fixture(scope="module")
def paragraphs():
    """Return every fifth paragraph of SQuAD's development set."""
    with open(needed(SQUAD_V1), encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]][::5]


# ------------------------------------------------------------------------------------------ WordPiece


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \t\n\xa0\u2028 \u0301\u200b\x00", []),
        ("Caf\xe9 CAFE", [("cafe", "Caf\xe9"), ("cafe", "CAFE")]),
        ("cafe\u0323\u0301 nai\u0308ve", [("cafe", "cafe\u0323\u0301"), ("naive", "nai\u0308ve")]),
        ("Unwante\u0301d\u0301!", [("un", "Un"), ("##want", "want"), ("##ed", "e\u0301d\u0301"), ("!", "!")]),
        ("e\u0301z", [("e", "e\u0301"), ("##z", "z")]),
        ("ΟΔΟΣ Σ", [("οδος", "ΟΔΟΣ"), ("σ", "Σ")]),
        ("\u0130stanbul", [("istanbul", "\u0130stanbul")]),
        ("ab日本c", [("a", "a"), ("##b", "b"), ("日", "日"), ("本", "本"), ("c", "c")]),
        ("日\ufe00 本", [("日", "日\ufe00"), ("本", "本")]),
        ("\x00ca\x01fe\x7f", [("cafe", "ca\x01fe")]),
        ("ca\u200bfe\u200b \ufeffcafe", [("cafe", "ca\u200bfe"), ("cafe", "cafe")]),
        ("😀, \u2764\ufe0f!", [("😀", "😀"), (",", ","), ("\u2764", "\u2764\ufe0f"), ("!", "!")]),
        ("\ufb01x", [("\ufb01", "\ufb01"), ("##x", "x")]),
        ("a  Aqu\xe9\u0301e,", [("a", "a"), ("[UNK]", "Aqu\xe9\u0301e"), (",", ",")]),
        ("a\u0301" * 201 + " ,", [("[UNK]", "a\u0301" * 201), (",", ",")]),
        ("a\u037eb\u1fef", [("a", "a"), (";", "\u037e"), ("b", "b"), ("`", "\u1fef")]),
        ("\ud83dx x", [("[UNK]", "\ud83dx"), ("x", "x")]),
        ("  \x00😀 Unwanted,", [("😀", "😀"), ("un", "Un"), ("##want", "want"), ("##ed", "ed"), (",", ",")]),
        # Pieces of one character share its span.
        ("한\u0301!", [*((piece, "한\u0301") for piece in JAMO), ("!", "!")]),
        (unicodedata.normalize("NFD", "한"), list(zip(JAMO, unicodedata.normalize("NFD", "한")))),
        # Spans stay in order although normalization puts the second mark before the first.
        ("a\u302e\u1b44x", [("a", "a"), ("##\u1b44", "\u302e"), ("##\u302e", "\u1b44"), ("##x", "x")]),
    ],
)
def test_a_word_piece_spans_its_original_text(uncased, text, expected):
    assert tokens_with_text(uncased, text) == expected


def test_cased_text_keeps_marks_as_separate_pieces(cased):
    expected = [("cafe", "ca\u200bfe"), ("##\u0301", "\u0301"), ("\u0130", "\u0130"), (",", ",")]
    assert tokens_with_text(cased, "ca\u200bfe\u0301 \u0130,") == expected


def plain(text):
    """Return text in lower case without marks and control characters, and with one form of sigma."""
    characters = unicodedata.normalize("NFD", text.lower()).replace("\u03c2", "\u03c3").replace("\ufffd", "")
    return "".join(char for char in characters if unicodedata.category(char) not in ("Mn", "Cc", "Cf"))


@many_examples
@any_text
def test_word_pieces_of_any_text_have_valid_ids_and_spans(uncased, cased, text):
    check(uncased, text)
    check(cased, text)
    # Marks that are kept and reordered are tested above.
    text = "".join(char for char in text if not unicodedata.combining(char) or plain(char) == "")
    tokens, spans = uncased.tokenize_with_offsets(text)
    ends, starts = [0] + [end for _, end in spans], [start for start, _ in spans] + [len(text)]
    for token, (start, end), end_before, start_behind in zip(tokens, spans, ends, starts[1:]):
        overlaps = start < end_before or start_behind < end
        if token != "[UNK]" and not overlaps:
            piece = token[2:] if token.startswith("##") else token
            assert plain(text[start:end]) == plain(piece), (text, token)


def test_every_kind_of_character_next_to_others(uncased, cased):
    codes = [*range(0x800), *range(0x1F00, 0x3100), *range(0x3100, 0x110000, 499)]
    for text in [f"a{chr(code)}b Σ{chr(code)} {chr(code)}Σ" for code in codes] + SAME_FOR_BOTH:
        check(uncased, text)
        check(cased, text)


# ------------------------------------------------------------------------------------------ Hugging Face


def compare_with_huggingface(vocab_file, do_lower_case, texts):
    """Check that tokens and spans are equal; return the number of spans that include marks unlike Hugging Face's.

    For e + U+0301 of lower-cased text, its span is the e without the dropped mark.
    """
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast(vocab_file, do_lower_case=do_lower_case)
    ours = tokenization.FullTokenizer(vocab_file, do_lower_case)
    assert texts
    with_marks = 0
    for text in texts:
        encoding = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        tokens, spans = ours.tokenize_with_offsets(text)
        assert tokens == theirs.convert_ids_to_tokens(encoding["input_ids"])
        for (start, end), (their_start, their_end) in zip(spans, encoding["offset_mapping"]):
            marks = text[their_end:end] if do_lower_case else ""
            assert (start, end) == (their_start, their_end + len(marks)), (text, tokens)
            assert all(unicodedata.category(mark) == "Mn" for mark in marks)
            with_marks += bool(marks)
    return with_marks


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_spans_equal_hugging_faces_but_include_decomposed_accents(vocab_file, do_lower_case):
    compare_with_huggingface(vocab_file, do_lower_case, SAME_FOR_BOTH)
    accented = ["Cafe\u0301 e\u0301z", "\u2764\ufe0f!"]
    assert compare_with_huggingface(vocab_file, do_lower_case, accented) == (3 if do_lower_case else 0)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_spans_of_squad_equal_hugging_faces(paragraphs, do_lower_case):
    texts = [paragraph["context"] for paragraph in paragraphs]
    assert compare_with_huggingface(needed(SHARED_VOCAB), do_lower_case, texts) <= 1


# ------------------------------------------------------------------------------------------ SentencePiece


@pytest.fixture(scope="module")
def cased_sentencepiece(spm_model_file):
    return tokenization.SentencePieceTokenizer(spm_model_file, do_lower_case=False)


@pytest.fixture(scope="module")
def albert():
    pytest.importorskip("sentencepiece")
    return tokenization.SentencePieceTokenizer(needed(SHARED_SPM))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \t\n\xa0 \u0301\ud83d", []),
        ("  The\t \n FOX ", [("the", "The"), ("fox", "FOX")]),
        ("th\xe9 fo\u0301x\u0301\u0323", [("the", "th\xe9"), ("fox", "fo\u0301x\u0301\u0323")]),
        ("``the''  `fox'", [('"', "``"), ("the", "the"), ('"', "''"), ("<unk>", "`"), ("fox", "fox"), ("<unk>", "'")]),
        ("the'''", [("the", "the"), ('"', "''"), ("<unk>", "'")]),
        ("ｔｈｅ \ufb01", [("the", "ｔｈｅ"), ("f", "\ufb01"), ("i", "\ufb01")]),
        ("\u2026", [("<unk>", "\u2026")]),
        ("the日本fox 日", [("the", "the"), ("<unk>", "日本"), ("fox", "fox"), ("<unk>", "日")]),
        ("x9,9 x8,", [("x", "x"), ("9", "9"), (",", ","), ("9", "9"), ("x", "x"), ("8", "8"), (",", ",")]),
        ("\xb4fox\xb4", [("fox", "fox")]),
        ("the\ud83d fox", [("the", "the"), ("fox", "fox")]),
        ("the\u2581fox", [("the", "the"), ("fox", "fox")]),
        # Below, the model itself drops or replaces characters.
        ("\x01the\x01 \x01fox\x01", [("the", "the"), ("fox", "fox")]),
        ("\u200bthe\u200bfox\ufeff", [("the", "the"), ("fox", "fox")]),
        ("the 한 fox", [("the", "the"), ("<unk>", "한"), ("fox", "fox")]),
        ("the \u1112\u1161\u11ab fox", [("the", "the"), ("<unk>", "\u1112\u1161\u11ab"), ("fox", "fox")]),
        (" ``\u1112\u1161\u11ab''\x01 ", [('"', "``"), ("<unk>", "\u1112\u1161\u11ab"), ('"', "''")]),
    ],
)
def test_a_piece_spans_its_original_text(sentencepiece, text, expected):
    assert tokens_with_text(sentencepiece, text) == expected


# U+FDFA is a sentence of four words.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  日  the", [("\u2581", (2, 2)), ("<unk>", (2, 3)), ("\u2581", (5, 5)), ("the", (5, 8))]),
        ("\ufdfa", [("\u2581", (0, 0)), *[("<unk>", (0, 1)), ("\u2581", (0, 1))] * 3, ("<unk>", (0, 1))]),
    ],
)
def test_a_word_start_has_an_empty_span_at_the_next_visible_character_or_that_of_its_character(
    sentencepiece, text, expected
):
    assert list(zip(*sentencepiece.tokenize_with_offsets(text))) == expected


@few_examples
@any_text
def test_pieces_of_any_text_have_valid_ids_and_spans(sentencepiece, cased_sentencepiece, text):
    check(sentencepiece, text)
    check(cased_sentencepiece, text)


def test_pieces_with_commas_have_valid_ids_and_spans(sentencepiece):
    for text in ["9,", "9,9", "x9,", "8, 9,", "☃9,", "\u25819,", "1928, 9 , 8", *SAME_FOR_BOTH]:
        check(sentencepiece, text)


def test_byte_pieces_share_the_span_of_their_character(tmp_path):
    model = train_sentencepiece(tmp_path, ["[CLS]", "[SEP]"], vocab_size=300, byte_fallback=True)
    tokenizer = tokenization.SentencePieceTokenizer(model)
    yen = ["<0xE5>", "<0x86>", "<0x86>"]
    assert tokens_with_text(tokenizer, "X 円\u200b円")[1:] == [(piece, "円") for piece in yen * 2]
    for text in SAME_FOR_BOTH:
        check(tokenizer, text)


def test_spans_of_squad_equal_sentencepieces_own(albert, paragraphs):
    model, compared = albert._model, 0
    encode = getattr(model, "EncodeAsProto", None) or model.EncodeAsImmutableProto  # the name depends on the version
    for paragraph in paragraphs:
        text = unicodedata.normalize("NFKD", " ".join(paragraph["context"].split())).lower()
        text = "".join(char for char in text if not unicodedata.combining(char)).replace("''", "")
        expected, end = [], 0
        for piece in encode(text).pieces:
            # Use the surfaces, because the offsets are bytes or code points depending on the version.
            end += len(piece.surface)
            if not (piece.piece[-1] == "," and piece.piece[-2:-1].isdigit()):  # split further by our tokenizer
                start = end - len(piece.surface.lstrip(" \ufeff"))
                expected.append((piece.piece if piece.piece in albert.vocab else "<unk>", (start, end)))
        ours = list(zip(*albert.tokenize_with_offsets(text)))
        assert [pair for pair in ours if pair in set(expected)] == expected
        compared += len(expected)
    assert compared > 50000
