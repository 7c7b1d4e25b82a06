"""Texts get the same ids in a TensorFlow graph as in Python."""

from __future__ import annotations

import json
import os
import random
import tarfile
import unicodedata

import numpy as np
import pytest

import tokenization
from adapter_bert.pipeline.features import Encoder
from adapter_bert.tasks.task import InputExample
from tests.helpers import SHARED, VOCABULARY

pytest.importorskip("tensorflow_text")

import tensorflow.compat.v2 as tf  # noqa: E402

from adapter_bert.serving import export_text  # noqa: E402

# One text for each rule of the tokenizers, and for combinations of them.
TEXTS = [
    "",
    " \t\r\n ",
    "Don't stop-believing: $9,000.00 (or 9,9)?",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "na\u00efve CAF\u00c9 A\u030angstr\u00f6m \u1e9e \u0130stanbul \u039f\u0394\u039f\u03a3 \u039f\u03a3\u0391",
    "\u4e2d\u6587abc\u65e5\u672c\u8a9e\U00020000 \ud55c\uad6d\uc5b4 \uff21\uff22\uff23 \uf900\ufa0e",
    "a\u00adb\u200bc\u200dd\ufefee\x00f\ufffdg\x85h\x0bi\x1cj",
    "a\u00a0b\u2003c\u2028d\u2029e\u3000f\u1680g\u202fh",
    "\u2018quotes\u2019 \u00abguillemets\u00bb \u2026 \u2014 \u00bf\u00a1 \u3001\u3002 \u055e \u037e ` ^ ~ |",
    "``TeX'' quotes and ''more`` 9, 8, \u00b2\u2075, 1,2,3,",
    "\U0001f600\U0001f468\u200d\U0001f469 \u00bd \u2122 \ufb01ne \u01c5 \u2160",
    "x" * 200 + " " + "x" * 201 + " " + "\u00e9" * 150 + " " + "\u00e9" * 201,
    "[CLS] the [MASK] [SEP] [UNK] ##ing ## # cat##s",
    "the cats runs seeing \u0307 \u0301a \u0345 \u0f71\u0f72",
]


def random_texts(count, seed=0):
    """Return texts of words of the vocabulary and random characters, many of them letters and marks.

    The characters have long been part of Unicode: TensorFlow and Python know different versions of it.
    """
    choose = random.Random(seed)
    blocks = [(0x20, 0x250), (0x250, 0x600), (0x600, 0x3100), (0x3000, 0xD7FF), (0xE000, 0x11000), (0x1D000, 0x1FFFF)]

    def part():
        if choose.random() < 0.3:
            return choose.choice(VOCABULARY)
        start, end = choose.choice(blocks)
        chars = [chr(choose.randrange(start, end)) for _ in range(choose.randint(1, 12))]
        return "".join(char for char in chars if unicodedata.ucd_3_2_0.category(char) != "Cn")

    return [choose.choice(["", " "]).join(part() for _ in range(choose.randint(1, 12))) for _ in range(count)]


def differences(tokenizer, graph, texts, size=1000):
    """Return the texts whose ids differ, each with the ids from the graph."""
    run = tf.function(graph, input_signature=[tf.TensorSpec([None], tf.string)])
    found = []
    for start in range(0, len(texts), size):
        some = texts[start : start + size]
        ids = run(tf.constant([text.encode("utf-8", "ignore") for text in some])).to_list()
        found += [(text, row) for text, row in zip(some, ids) if row != tokenizer.token_ids(text)]
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def wordpiece(request, tiny_bert):
    tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"), request.param)
    return tokenizer, export_text.create(tokenizer, "")


def test_wordpiece_ids_are_the_same(wordpiece):
    tokenizer, graph = wordpiece
    assert differences(tokenizer, graph, TEXTS + random_texts(2000)) == []


def test_words_are_the_same(wordpiece):
    """Ids of a small vocabulary would hide differences: most words are unknown."""
    tokenizer, graph = wordpiece
    texts = TEXTS + random_texts(500, seed=1)
    found = graph.words(tf.constant(texts)).to_list()
    for text, words in zip(texts, found):
        assert [word.decode() for word in words] == tokenizer.basic_tokenizer.tokenize(text)


def test_sentencepiece_ids_are_the_same(sentencepiece, spm_model_file):
    assert sentencepiece.replaced_ids()
    graph = export_text.create(sentencepiece, spm_model_file)
    texts = TEXTS + ["9,9 the fox 8, 9, fix,", "8,9,8, 9,"] + random_texts(1000)
    assert differences(sentencepiece, graph, texts) == []


def test_pairs_are_packed_and_truncated_as_in_training(wordpiece):
    tokenizer, graph = wordpiece
    choose, words = random.Random(2), VOCABULARY[5:25]
    pairs = [tuple(" ".join(choose.choices(words, k=choose.randint(0, 12))) for _ in range(2)) for _ in range(200)] + [
        ("the cat", ""),
        ("", "the cat"),
        ("", ""),
        ("the cat", " \x00 "),
    ]
    limits = [choose.randint(3, 14) for _ in pairs]
    cls, sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    first, second = (graph(tf.constant([pair[side] for pair in pairs])) for side in (0, 1))
    found = [each.numpy() for each in export_text.pack_inputs(first, second, tf.constant(limits), cls, sep)]
    longest = 0
    for row, (pair, limit) in enumerate(zip(pairs, limits)):
        expected = Encoder((), limit, tokenizer).encode(InputExample("", *pair))
        length = len(expected["input_ids"])
        longest = max(longest, length)
        rows = [expected["input_ids"], [1] * length, expected["segment_ids"]]
        np.testing.assert_array_equal([each[row, :length] for each in found], rows)
        assert not any(each[row, length:].any() for each in found)
    assert found[0].shape == (len(pairs), longest)


def shared_texts():
    """Yield all lines of all files with real data, and the texts inside JSON."""
    folder = os.path.join(SHARED, "data")
    for parent, _, names in sorted(os.walk(folder)):
        for path in (os.path.join(parent, name) for name in sorted(names)):
            if path.endswith(".json"):
                with open(path, encoding="utf-8") as file:
                    for article in json.load(file)["data"]:
                        for paragraph in article["paragraphs"]:
                            yield paragraph["context"]
                            yield from (question["question"] for question in paragraph["qas"])
            elif path.endswith(".tar.gz"):
                with tarfile.open(path) as archive:
                    for member in filter(tarfile.TarInfo.isfile, archive):
                        yield archive.extractfile(member).read().decode("latin-1")
            elif not path.endswith(".model"):
                with open(path, "rb") as file:
                    content = file.read()
                try:
                    yield from content.decode("utf-8").splitlines()
                except UnicodeDecodeError:
                    yield from content.decode("latin-1").splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(os.path.join(SHARED, "data")), reason="needs ../shared/data")
@pytest.mark.parametrize("kind", ["lower", "cased"])
def test_wordpiece_ids_are_the_same_on_all_real_data(kind):
    texts = list(shared_texts())
    assert len(texts) > 200000
    path = os.path.join(SHARED, "weights", "e5-small", "vocab.txt")
    tokenizer = tokenization.FullTokenizer(path, do_lower_case=kind == "lower")
    assert differences(tokenizer, export_text.create(tokenizer, path), texts) == []


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(os.path.join(SHARED, "data")), reason="needs ../shared/data")
def test_sentencepiece_ids_are_the_same_on_all_real_data_except_for_ties():
    """The version of SentencePiece in tensorflow-text may choose another of several best segmentations."""
    texts = list(shared_texts())
    path = os.path.join(SHARED, "data", "sentencepiece", "albert_spiece.model")
    tokenizer = tokenization.SentencePieceTokenizer(path)
    different = differences(tokenizer, export_text.create(tokenizer, path), texts)
    print(len(different), "of", len(texts))
    assert len(different) < 0.005 * len(texts)

    def score(ids):
        return sum(tokenizer._model.GetScore(index) for index in ids)

    for text, ids in different:
        assert score(ids) == pytest.approx(score(tokenizer.token_ids(text)), rel=1e-5), text
