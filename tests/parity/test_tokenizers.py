"""Token ids are those of Hugging Face's tokenizers, except where theirs depart from Google's BERT in known ways.

A difference is known only if our tokenizer, changed by one of `RULES`, returns exactly the ids of the other side.
Needs transformers, but no PyTorch.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import unicodedata
from typing import Callable, Dict, Iterator, List, NamedTuple

import pytest

import tokenization
from tests import test_tokenization as ours_tests
from tests.test_tokenization import SAME_FOR_BOTH, SHARED_SPM, SHARED_VOCAB, SPECIALS

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

Encode = Callable[[str], List[int]]
UNKNOWN = "UNKNOWN DIFFERENCE"
SPECIAL_TOKEN = re.compile(r"(\[(?:UNK|SEP|PAD|CLS|MASK)\])")
# Hugging Face's rule -> the change of a text that gives it to our tokenizer.
RULES: Dict[str, Callable[[str], str]] = {
    "drops private-use, unassigned and surrogate characters": lambda text: "".join(
        char for char in text if unicodedata.category(char) not in ("Co", "Cn", "Cs")
    ),
    "composes characters (NFC)": lambda text: unicodedata.normalize("NFC", text),
    "lower-cases each character by itself, not in its word": lambda text: "".join(char.lower() for char in text),
}
SHORT_WORDS = "words over 100 characters, not 200, are unknown"
SPECIAL_TOKENS = "special tokens in the text are special"
DIFFERENCES = {
    "word " + "a" * 150: SHORT_WORDS,
    "private \ue000use": "drops private-use, unassigned and surrogate characters",
    "say [MASK] now": SPECIAL_TOKENS,
    "\u039f\u0394\u039f\u03a3": "lower-cases each character by itself, not in its word",
}


class Comparison(NamedTuple):
    """Two ways from text to ids, and ours changed by each rule."""

    ours: Encode
    theirs: Encode
    changed: Dict[str, Encode]

    def difference(self, text: str) -> str:
        """Return "" if the ids agree, otherwise the rule that explains the difference, or `UNKNOWN`."""
        theirs = self.theirs(text)
        if self.ours(text) == theirs:
            return ""
        return next((rule for rule, encode in self.changed.items() if encode(text) == theirs), UNKNOWN)


def encoder(tokenizer, tokenize) -> Encode:
    return lambda text: tokenizer.convert_tokens_to_ids(tokenize(text))


def wordpiece_comparisons(vocab_file: str, do_lower_case: bool) -> List[Comparison]:
    """Compare with the slow and with the fast tokenizer."""
    ours, short = (tokenization.FullTokenizer(vocab_file, do_lower_case) for _ in range(2))
    short.wordpiece_tokenizer = tokenization.WordpieceTokenizer(short.vocab, max_input_chars_per_word=100)

    def all_rules(text: str) -> List[int]:
        for change in RULES.values():
            text = change(text)
        return short.token_ids(text)

    def with_special_tokens(encode: Encode) -> Encode:
        def encode_parts(text: str) -> List[int]:
            parts = [[ours.vocab[part]] if part in SPECIALS else encode(part) for part in SPECIAL_TOKEN.split(text)]
            return list(itertools.chain(*parts))

        return encode_parts

    changed = {rule: lambda text, change=change: ours.token_ids(change(text)) for rule, change in RULES.items()}
    changed.update({SHORT_WORDS: short.token_ids, "several rules": all_rules})
    changed.update({SPECIAL_TOKENS: with_special_tokens(ours.token_ids), "all rules": with_special_tokens(all_rules)})
    kinds = [transformers.BertTokenizer, transformers.BertTokenizerFast]
    tokenizers = [kind(vocab_file, do_lower_case=do_lower_case) for kind in kinds]
    return [Comparison(ours.token_ids, encoder(each, each.tokenize), changed) for each in tokenizers]


def sentencepiece_comparison(spm_model_file: str, do_lower_case: bool) -> Comparison:
    """Compare with the part of ALBERT's slow tokenizer that does not handle special tokens."""
    ours = tokenization.SentencePieceTokenizer(spm_model_file, do_lower_case)
    slow = transformers.AlbertTokenizer(spm_model_file, do_lower_case=do_lower_case)
    return Comparison(ours.token_ids, encoder(slow, slow._tokenize), {})


@pytest.fixture(scope="module")
def character_vocab_file(tmp_path_factory):
    """A vocabulary of single characters, so that ids show every character."""
    texts = "".join(SAME_FOR_BOTH + list(DIFFERENCES))
    characters = sorted(char for char in set(texts + texts.lower()) if not char.isspace())
    pieces = [prefix + char for prefix in ("", "##") for char in characters]
    return ours_tests.write(tmp_path_factory.mktemp("vocab") / "vocab.txt", "\n".join(SPECIALS + pieces))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_difficult_texts_have_the_same_ids(character_vocab_file, tmp_path, do_lower_case):
    comparisons = wordpiece_comparisons(character_vocab_file, do_lower_case)
    models = [ours_tests.train_sentencepiece(tmp_path, ["[CLS]", "[SEP]", "9,", "8,", "\u25818"])]
    models += [SHARED_SPM] if os.path.exists(SHARED_SPM) else []
    comparisons += [sentencepiece_comparison(model, do_lower_case) for model in models]
    for comparison, text in itertools.product(comparisons, SAME_FOR_BOTH):
        assert comparison.difference(text) == "", text


def test_the_known_differences_are_found(character_vocab_file):
    slow = wordpiece_comparisons(character_vocab_file, True)[0]
    assert {text: slow.difference(text) for text in DIFFERENCES} == DIFFERENCES
    assert "NFC" in wordpiece_comparisons(character_vocab_file, False)[0].difference("e\u0301")


def texts_of(path: str) -> Iterator[str]:
    """Yield the contexts and questions of a SQuAD file, or the lines of any other file."""
    with open(path, "rb") as file:
        content = file.read().decode("utf-8-sig", "backslashreplace")
    if not path.endswith(".json"):
        yield from content.splitlines()
        return
    for article in json.loads(content)["data"]:
        for paragraph in article["paragraphs"]:
            yield from [paragraph["context"], *(question["question"] for question in paragraph["qas"])]


@pytest.mark.parametrize("per_file", [70, pytest.param(3000, marks=pytest.mark.parity)])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_real_texts_have_the_same_ids(per_file, do_lower_case):
    if not os.path.exists(SHARED_VOCAB):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {SHARED_VOCAB}")
    comparisons = wordpiece_comparisons(SHARED_VOCAB, do_lower_case)[1:]
    comparisons.append(sentencepiece_comparison(SHARED_SPM, do_lower_case))
    patterns = ("glue_data/*/*.tsv", "squad/*.json", "text/*.csv", "text/SMS*", "text/*/*.txt")
    paths = [path for each in patterns for path in sorted(glob.glob(os.path.join(ours_tests.SHARED_DATA, each)))]
    texts = [(path, text) for path in paths for text in itertools.islice(texts_of(path), per_file)]
    assert len(texts) > 1500
    for (path, text), comparison in itertools.product(texts, comparisons):
        assert comparison.difference(text) != UNKNOWN, (path, text)
