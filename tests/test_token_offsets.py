"""`tokenize_with_offsets` returns the span of the original text that each token represents."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest

import tokenization
from tests.helpers import SHARED
from tests.test_tokenization import SAME_FOR_BOTH, SHARED_SPM, SHARED_VOCAB, SPECIALS, train_sentencepiece, write

SQUAD = os.path.join(SHARED, "data", "squad", "dev-v1.1.rebuilt.json")
WORDS = ["cafe", "naive", "un", "##want", "##ed", "istanbul", "οδος"]
# Characters that the clean-up drops, splits, joins, reorders or isolates.
TRICKY = (
    "aAeEsSxX019,,.-'''```\" \t\n\xa0\u3000\u2028\u200b\u200d\u200e\ufeff\xad\x00\x01\x1c\x85\ufffd\u2581"
    "\u0130\u0131\u03a3\u03c3\u03c2\xdf\u1e9e\ufb01\ufdfa\xe9\xc9\u0301\u0308\u0323\u0344\u0345\u1fef\u037e\xb4"
    "\u65e5\u672c\ud55c\uac00\u1112\u1161\u11ab\u304b\uff9e\u0915\u094d\u0937\u09c7\u09be\u0e33\u2026\xbd\xb2"
    "\U0001f600\u2764\ufe0f\u20e3\ud83d\ude00"
)


def random_texts(count, seed):
    """Return short texts of tricky characters, mixed with some from the first scripts and some of any code point."""
    generator = random.Random(seed)

    def character():
        last = generator.choice([0] * 8 + [0x30FF, 0x10FFFF])
        return chr(generator.randint(0, last)) if last else generator.choice(TRICKY)

    return ["".join(character() for _ in range(generator.randrange(25))) for _ in range(count)]


def tokens_with_text(tokenizer, text):
    """Return pairs of a token and the part of the text that it represents."""
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    return [(token, text[start:end]) for token, (start, end) in zip(tokens, spans)]


def check(tokenizer, text):
    """Check that the tokens are those of `tokenize`, and that the spans are inside the text and in order."""
    tokens, spans = tokenizer.tokenize_with_offsets(text)
    assert tokens == tokenizer.tokenize(text)
    assert len(spans) == len(tokens)
    bounds = [(0, 0)] + spans + [(len(text), len(text))]
    for (start, end), (next_start, next_end) in zip(bounds, bounds[1:]):
        assert start <= end and start <= next_start and end <= next_end, (text, tokens, spans)


def over_marks(text, end):
    """Return the end of the marks that start at `end`."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    """Write a vocabulary of some words and all characters that the texts here can become; only `q` is unknown."""
    texts = "".join(SAME_FOR_BOTH) + TRICKY + "dfkwz;!\u0660\u1b44\u302e"
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
    if not os.path.exists(SQUAD):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {SQUAD}")
    with open(SQUAD, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]][::5]


# ------------------------------------------------------------------------------------------ WordPiece


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\xa0\u2028 ", []),
        ("\u0301\u200b\x00", []),
        ("Caf\xe9 CAFE", [("cafe", "Caf\xe9"), ("cafe", "CAFE")]),
        ("Cafe\u0301", [("cafe", "Cafe\u0301")]),
        ("cafe\u0323\u0301 cafe", [("cafe", "cafe\u0323\u0301"), ("cafe", "cafe")]),
        ("Nai\u0308ve", [("naive", "Nai\u0308ve")]),
        ("Unwante\u0301d\u0301!", [("un", "Un"), ("##want", "want"), ("##ed", "e\u0301d\u0301"), ("!", "!")]),
        ("e\u0301z", [("e", "e\u0301"), ("##z", "z")]),
        ("ΟΔΟΣ Σ", [("οδος", "ΟΔΟΣ"), ("σ", "Σ")]),
        ("\u0130stanbul", [("istanbul", "\u0130stanbul")]),
        ("ab日本c", [("a", "a"), ("##b", "b"), ("日", "日"), ("本", "本"), ("c", "c")]),
        ("日\ufe00 本", [("日", "日\ufe00"), ("本", "本")]),
        ("\x00ca\x01fe\x7f", [("cafe", "ca\x01fe")]),
        ("ca\u200bfe\u200b \ufeffcafe", [("cafe", "ca\u200bfe"), ("cafe", "cafe")]),
        ("cafe\xa0cafe\u3000,", [("cafe", "cafe"), ("cafe", "cafe"), (",", ",")]),
        ("😀, \u2764\ufe0f!", [("😀", "😀"), (",", ","), ("\u2764", "\u2764\ufe0f"), ("!", "!")]),
        ("\ufb01x", [("\ufb01", "\ufb01"), ("##x", "x")]),
        ("a  Aqu\xe9\u0301e,", [("a", "a"), ("[UNK]", "Aqu\xe9\u0301e"), (",", ",")]),
        ("a\u0301" * 201 + " ,", [("[UNK]", "a\u0301" * 201), (",", ",")]),
        ("a\u037eb\u1fef", [("a", "a"), (";", "\u037e"), ("b", "b"), ("`", "\u1fef")]),
        ("\ud83dx x", [("[UNK]", "\ud83dx"), ("x", "x")]),
    ],
)
def test_a_word_piece_spans_its_original_text(uncased, text, expected):
    assert tokens_with_text(uncased, text) == expected


def test_spans_are_in_code_points_of_the_original_text(uncased):
    tokens, spans = uncased.tokenize_with_offsets("  \x00😀 Unwanted,e\u0301")
    assert tokens == ["😀", "un", "##want", "##ed", ",", "e"]
    assert spans == [(3, 4), (5, 7), (7, 11), (11, 13), (13, 14), (14, 16)]


def test_cased_text_keeps_marks_as_separate_pieces(cased):
    expected = [("cafe", "ca\u200bfe"), ("##\u0301", "\u0301"), ("\u0130", "\u0130"), (",", ",")]
    assert tokens_with_text(cased, "ca\u200bfe\u0301 \u0130,") == expected


def test_pieces_of_one_character_share_its_span(uncased):
    jamo = ["\u1112", "##\u1161", "##\u11ab"]
    assert tokens_with_text(uncased, "x 한\u0301!")[1:] == [(piece, "한\u0301") for piece in jamo] + [("!", "!")]
    decomposed = unicodedata.normalize("NFD", "한")
    assert tokens_with_text(uncased, decomposed) == list(zip(jamo, decomposed))


def test_spans_stay_in_order_if_normalization_reorders_marks(uncased):
    # Both marks are kept, but normalization puts the second before the first.
    tokens, spans = uncased.tokenize_with_offsets("a\u302e\u1b44x")
    assert tokens == ["a", "##\u1b44", "##\u302e", "##x"]
    assert spans == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_word_pieces_of_any_text_have_valid_spans(uncased, cased):
    for text in random_texts(3000, seed=1) + SAME_FOR_BOTH:
        check(uncased, text)
        check(cased, text)


def plain(text):
    """Return text in lower case without marks and control characters, and with one form of sigma."""
    characters = unicodedata.normalize("NFD", text.lower()).replace("\u03c2", "\u03c3").replace("\ufffd", "")
    return "".join(char for char in characters if unicodedata.category(char) not in ("Mn", "Cc", "Cf"))


def test_the_original_text_of_a_word_piece_equals_the_piece_after_clean_up(uncased):
    compared = 0
    for text in random_texts(3000, seed=2) + SAME_FOR_BOTH:
        # Marks that are kept and reordered are tested separately.
        text = "".join(char for char in text if not unicodedata.combining(char) or plain(char) == "")
        tokens, spans = uncased.tokenize_with_offsets(text)
        ends, starts = [0] + [end for _, end in spans], [start for start, _ in spans] + [len(text)]
        for token, (start, end), end_before, start_behind in zip(tokens, spans, ends, starts[1:]):
            overlaps = start < end_before or start_behind < end
            if token != "[UNK]" and not overlaps:
                piece = token[2:] if token.startswith("##") else token
                assert plain(text[start:end]) == plain(piece), (text, token)
                compared += 1
    assert compared > 10000


# ------------------------------------------------------------------------------------------ Hugging Face


def huggingface(vocab_file, do_lower_case):
    """Return a function from text to Hugging Face's tokens and spans."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.BertTokenizerFast(vocab_file, do_lower_case=do_lower_case)

    def tokenize(text):
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return tokenizer.convert_ids_to_tokens(encoding["input_ids"]), encoding["offset_mapping"]

    return tokenize


def compare_with_huggingface(vocab_file, do_lower_case, texts):
    """Compare spans where tokens are equal; return the number of texts with equal tokens and of different spans.

    The one difference allowed is that Hugging Face excludes dropped marks: for e + U+0301 its span is the e.
    """
    ours = tokenization.FullTokenizer(vocab_file, do_lower_case)
    theirs = huggingface(vocab_file, do_lower_case)
    same_tokens = different_spans = 0
    for text in texts:
        tokens, spans = ours.tokenize_with_offsets(text)
        their_tokens, their_spans = theirs(text)
        if tokens != their_tokens:
            continue
        same_tokens += 1
        expected = [(start, over_marks(text, end) if do_lower_case else end) for start, end in their_spans]
        assert spans == expected, (text, tokens)
        different_spans += sum(span != tuple(theirs) for span, theirs in zip(spans, their_spans))
    return same_tokens, different_spans


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_spans_of_tricky_texts_equal_hugging_faces(vocab_file, do_lower_case):
    same_tokens, _ = compare_with_huggingface(vocab_file, do_lower_case, SAME_FOR_BOTH)
    assert same_tokens == len(SAME_FOR_BOTH)


def test_unlike_hugging_face_spans_include_decomposed_accents(vocab_file):
    assert compare_with_huggingface(vocab_file, True, ["Cafe\u0301 e\u0301z", "\u2764\ufe0f!"]) == (2, 3)
    assert compare_with_huggingface(vocab_file, False, ["Cafe\u0301 e\u0301z", "\u2764\ufe0f!"]) == (2, 0)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_spans_of_squad_equal_hugging_faces(paragraphs, do_lower_case):
    if not os.path.exists(SHARED_VOCAB):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {SHARED_VOCAB}")
    texts = [paragraph["context"] for paragraph in paragraphs]
    same_tokens, different_spans = compare_with_huggingface(SHARED_VOCAB, do_lower_case, texts)
    assert same_tokens == len(texts)
    assert different_spans <= 1


# ------------------------------------------------------------------------------------------ SentencePiece


@pytest.fixture(scope="module")
def spm_model_file(tmp_path_factory):
    symbols = ["[CLS]", "[SEP]", "9,", "8,", "\u25818", "the", "fox", "f", "i", "x"]
    return train_sentencepiece(tmp_path_factory.mktemp("spm"), symbols)


@pytest.fixture(scope="module")
def sentencepiece(spm_model_file):
    return tokenization.SentencePieceTokenizer(spm_model_file)


@pytest.fixture(scope="module")
def albert():
    pytest.importorskip("sentencepiece")
    if not os.path.exists(SHARED_SPM):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {SHARED_SPM}")
    return tokenization.SentencePieceTokenizer(SHARED_SPM)


def visible_tokens_with_text(tokenizer, text):
    """Return `tokens_with_text` without the tokens that are only a word start."""
    return [pair for pair in tokens_with_text(tokenizer, text) if pair[0] != "\u2581"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\xa0 ", []),
        ("\u0301\ud83d", []),
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
    assert visible_tokens_with_text(sentencepiece, text) == expected


def test_a_separate_word_start_has_an_empty_span_at_the_next_visible_character(sentencepiece):
    tokens, spans = sentencepiece.tokenize_with_offsets("  日  the")
    assert tokens == ["\u2581", "<unk>", "\u2581", "the"]
    assert spans == [(2, 2), (2, 3), (5, 5), (5, 8)]


def test_pieces_and_word_starts_of_one_character_share_its_span(sentencepiece):
    # U+FDFA is a sentence of four words.
    tokens, spans = sentencepiece.tokenize_with_offsets("x\ufdfa")
    assert tokens[2:] == ["<unk>"] + ["\u2581", "<unk>"] * 3
    assert spans[2:] == [(1, 2)] * 7


@pytest.mark.parametrize("model", ["spm_model_file", "albert"])
def test_pieces_of_any_text_have_valid_spans(request, model):
    found = request.getfixturevalue(model)
    tokenizers = [found]
    if model == "spm_model_file":
        tokenizers = [tokenization.SentencePieceTokenizer(found, do_lower_case) for do_lower_case in (True, False)]
    for text in random_texts(3000, seed=3) + SAME_FOR_BOTH:
        for tokenizer in tokenizers:
            check(tokenizer, text)


def test_alberts_pieces_span_their_original_text(albert):
    expected = [
        ("\u2581the", "The"),
        ("\u2581cafe", "Cafe\u0301"),
        ("\u2581", ""),
        ('"', "``"),
        ("fix", "\ufb01x"),
        ('"', "''"),
        ("\u25819", "9"),
        (",", ","),
        ("9", "9"),
        ("\u2581", ""),
        ("<unk>", "日本"),
    ]
    assert tokens_with_text(albert, " The  Cafe\u0301 ``\ufb01x'' 9,9 日本") == expected


def test_byte_pieces_share_the_span_of_their_character(tmp_path):
    pytest.importorskip("sentencepiece")
    options = {
        "input": write(tmp_path / "corpus.txt", "\n".join(["the quick brown fox"] * 20)),
        "model_prefix": str(tmp_path / "bytes"),
        "vocab_size": 300,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "minloglevel": 2,
    }
    program = f"import sentencepiece; sentencepiece.SentencePieceTrainer.Train(**{options!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    tokenizer = tokenization.SentencePieceTokenizer(options["model_prefix"] + ".model")
    yen = ["<0xE5>", "<0x86>", "<0x86>"]
    assert visible_tokens_with_text(tokenizer, "X 円\u200b円")[1:] == [(piece, "円") for piece in yen * 2]
    for text in random_texts(300, seed=5):
        check(tokenizer, text)


def sentencepiece_spans(model, text):
    """Yield SentencePiece's own pieces and spans of a text, without white space before a piece."""
    # Use the surfaces, because the offsets are bytes or code points depending on the version.
    proto = model.EncodeAsProto(text) if hasattr(model, "EncodeAsProto") else model.EncodeAsImmutableProto(text)
    position = 0
    for piece in proto.pieces:
        end = position + len(piece.surface)
        yield piece.piece, (end - len(piece.surface.lstrip(" \ufeff")), end)
        position = end


def test_spans_of_squad_equal_sentencepieces_own(albert, paragraphs):
    compared = 0
    for paragraph in paragraphs:
        text = unicodedata.normalize("NFKD", " ".join(paragraph["context"].split())).lower()
        text = "".join(char for char in text if not unicodedata.combining(char)).replace("''", "")
        expected = [
            (piece if piece in albert.vocab else "<unk>", span)
            for piece, span in sentencepiece_spans(albert._model, text)
            if not (piece[-1] == "," and piece[-2:-1].isdigit())  # split further by our tokenizer
        ]
        ours = list(zip(*albert.tokenize_with_offsets(text)))
        assert [pair for pair in ours if pair in set(expected)] == expected
        compared += len(expected)
    assert compared > 50000


# ------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_answers_of_squad_can_be_extracted_by_token_spans(request, paragraphs, kind):
    if kind == "sentencepiece":
        tokenizer = request.getfixturevalue("albert")
    elif os.path.exists(SHARED_VOCAB):
        tokenizer = tokenization.FullTokenizer(SHARED_VOCAB)
    else:
        pytest.skip(f"REAL DATA NOT TESTED: there is no {SHARED_VOCAB}")
    answers = exact = 0
    for paragraph in paragraphs:
        text = paragraph["context"]
        _, spans = tokenizer.tokenize_with_offsets(text)
        for answer in (answer for question in paragraph["qas"] for answer in question["answers"]):
            start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            inside = [span for span in spans if span[0] < end and span[1] > start]
            cut = text[inside[0][0] : inside[-1][1]]
            assert answer["text"].strip() in cut
            answers += 1
            exact += cut == answer["text"]
    assert exact / answers > 0.99
