"""Compares our token ids with those of Hugging Face's tokenizers, on every text of a data folder.

    python scripts/compare_tokenizers.py --data_dir=DATA --vocab_file=vocab.txt --spm_model_file=spiece.model

DATA holds `glue_data/*/*.tsv`, `squad/*.json` and `text/`; what is absent is left out. `--vocab_file` is for
WordPiece against `BertTokenizer`, slow and fast, with and without lower-casing; `--spm_model_file` is for
SentencePiece against the slow `AlbertTokenizer`. Needs transformers and sentencepiece.

Ours follows Google's BERT. Hugging Face departs from it in a few rules (`ADAPTATIONS`). A text whose ids
differ is put down to such a rule only if our tokenizer, given that rule, yields the other side's ids exactly;
whatever remains is printed as UNEXPLAINED and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import collections
import csv
import glob
import io
import json
import multiprocessing
import os
import re
import sys
import tarfile
import unicodedata
from typing import Callable, Counter, Dict, Iterable, Iterator, List, NamedTuple, Tuple

import tokenization

Encode = Callable[[str], List[int]]

TEXT_COLUMNS = {"text", "content", "tweet", "sentence", "sentence1", "sentence2", "#1 String", "#2 String"}
# Files without a header, such as CoLA's except for its test file: part of the path -> column of the text.
COLUMN_WITHOUT_HEADER = {"CoLA": 3, "SMSSpamCollection": 1, "news_aggregator": 1}

UNEXPLAINED = "UNEXPLAINED"
SEVERAL = "several of these rules"
SHORT_WORDS = "words over 100 characters are unknown (Google: over 200)"
SINGLE_CHARACTERS = "each character is lower-cased by itself (Google: in its word, which knows final sigma)"
SPECIAL_TOKENS = "special tokens written in the text are taken as such (Google: as text)"
SPECIAL_TOKEN = re.compile(r"(\[(?:UNK|SEP|PAD|CLS|MASK)\])")
BATCH_SIZE = 500


# ---------------------------------------------------------------------------------------------- the texts


def decode(content: bytes) -> str:
    """Text of a file in UTF-8, with or without a byte order mark, or else in Latin-1."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def read_texts(data_dir: str) -> Iterator[Tuple[str, str]]:
    """Yields (file, text) for every text under a data folder."""
    for pattern, read in (
        ("glue_data/*/*.tsv", _texts_of_table),
        ("squad/*.json", _texts_of_squad),
        ("text/*", _texts_of_table),
        ("text/*/*", _texts_of_table),
        ("text/*.tar.gz", _texts_of_archive),
    ):
        for path in sorted(glob.glob(os.path.join(data_dir, pattern))):
            if os.path.isfile(path) and (read is _texts_of_archive or not path.endswith(".tar.gz")):
                for text in read(path):
                    yield os.path.relpath(path, data_dir), text


def _texts_of_table(path: str) -> Iterator[str]:
    with open(path, "rb") as reader:
        content = decode(reader.read())
    if path.endswith(".csv"):
        rows: Iterable[List[str]] = csv.reader(io.StringIO(content, newline=""))
    else:
        rows = (line.rstrip("\r").split("\t") for line in content.split("\n") if line)
    rows = iter(rows)
    first = next(rows)
    columns = [index for index, name in enumerate(first) if name in TEXT_COLUMNS]
    if not columns:
        columns = [column for part, column in COLUMN_WITHOUT_HEADER.items() if part in path]
        if not columns:
            raise SystemExit(f"{path}: none of the columns {first} is known to hold text")
        yield first[columns[0]]
    for row in rows:
        for column in columns:
            yield row[column]


def _texts_of_squad(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as reader:
        articles = json.load(reader)["data"]
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        yield paragraph["context"]
        for question in paragraph["qas"]:
            yield question["question"]
            for answer in question["answers"] + question.get("plausible_answers", []):
                yield answer["text"]


def _texts_of_archive(path: str) -> Iterator[str]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                yield decode(archive.extractfile(member).read())


# ----------------------------------------------------------------------- where Hugging Face has other rules


def _dropping_unassigned(encode: Encode) -> Encode:
    def drop(text: str) -> str:
        return "".join(char for char in text if unicodedata.category(char) not in ("Co", "Cn", "Cs"))

    return lambda text: encode(drop(text))


def _composing(encode: Encode) -> Encode:
    return lambda text: encode(unicodedata.normalize("NFC", text))


def _lower_casing_single_characters(encode: Encode) -> Encode:
    return lambda text: encode("".join(char.lower() for char in text))


ADAPTATIONS: Dict[str, Callable[[Encode], Encode]] = {
    "private-use, unassigned and surrogate characters are dropped (Google: kept)": _dropping_unassigned,
    "characters are composed, NFC (Google: left as they are)": _composing,
    SINGLE_CHARACTERS: _lower_casing_single_characters,
}


def keeping_special_tokens(encode: Encode, ids: Dict[str, int]) -> Encode:
    """Makes a tokenizer take `[SEP]` and its like, written in a text, for the special token they name."""

    def encode_parts(text: str) -> List[int]:
        result: List[int] = []
        for part in SPECIAL_TOKEN.split(text):
            result.extend([ids[part]] if part in ids else encode(part))
        return result

    return encode_parts


# ------------------------------------------------------------------------------------------- the comparisons


class Comparison(NamedTuple):
    """Two ways from text to ids, and what ours yields under rules of theirs (name of the rule -> ids)."""

    name: str
    ours: Encode
    theirs: Encode
    adapted: Dict[str, Encode]


def _encoder(tokenizer: object, tokenize: Callable[[str], List[str]]) -> Encode:
    return lambda text: tokenizer.convert_tokens_to_ids(tokenize(text))


def wordpiece_comparisons(vocab_file: str, do_lower_case: bool) -> List[Comparison]:
    """Ours against the slow tokenizer's two stages, the slow tokenizer as a whole, and the fast one."""
    import transformers

    ours = tokenization.FullTokenizer(vocab_file, do_lower_case)
    encode = ours.token_ids
    short = tokenization.FullTokenizer(vocab_file, do_lower_case)
    short.wordpiece_tokenizer = tokenization.WordpieceTokenizer(short.vocab, max_input_chars_per_word=100)
    encode_short = short.token_ids
    slow = transformers.BertTokenizer(vocab_file, do_lower_case=do_lower_case)
    fast = transformers.BertTokenizerFast(vocab_file, do_lower_case=do_lower_case)

    def two_stages(text: str) -> List[str]:
        words = slow.basic_tokenizer.tokenize(text)
        return [piece for word in words for piece in slow.wordpiece_tokenizer.tokenize(word)]

    adapted = {SHORT_WORDS: encode_short}
    adapted.update((rule, adapt(encode)) for rule, adapt in ADAPTATIONS.items())
    every_rule = encode_short
    for adapt in ADAPTATIONS.values():
        every_rule = adapt(every_rule)
    special_ids = {token: ours.vocab[token] for token in slow.all_special_tokens if token in ours.vocab}
    with_specials = dict(adapted)
    with_specials[SPECIAL_TOKENS] = keeping_special_tokens(encode, special_ids)
    adapted[SEVERAL] = every_rule
    with_specials[SEVERAL] = keeping_special_tokens(every_rule, special_ids)
    name = "WordPiece, {}, {{}} BertTokenizer".format("lower-cased" if do_lower_case else "case kept")
    return [
        Comparison(name.format("two stages of slow"), encode, _encoder(slow, two_stages), adapted),
        Comparison(name.format("slow"), encode, _encoder(slow, slow.tokenize), with_specials),
        Comparison(name.format("fast"), encode, _encoder(fast, fast.tokenize), with_specials),
    ]


def sentencepiece_comparisons(spm_model_file: str, do_lower_case: bool) -> List[Comparison]:
    """Ours against the slow tokenizer, without and with its handling of special tokens in the text."""
    import transformers

    ours = tokenization.SentencePieceTokenizer(spm_model_file, do_lower_case)
    encode = ours.token_ids
    slow = transformers.AlbertTokenizer(spm_model_file, do_lower_case=do_lower_case)
    special_ids = {token: ours.vocab[token] for token in slow.all_special_tokens if token in ours.vocab}
    adapted = {
        SPECIAL_TOKENS: keeping_special_tokens(encode, special_ids),
        SINGLE_CHARACTERS: _lower_casing_single_characters(encode),
    }
    name = "SentencePiece, {}, {{}} AlbertTokenizer".format("lower-cased" if do_lower_case else "case kept")
    # `_tokenize` is the part that is ALBERT's; `tokenize` wraps it in what all slow tokenizers share.
    return [
        Comparison(name.format("core of slow"), encode, _encoder(slow, slow._tokenize), {}),
        Comparison(name.format("slow"), encode, _encoder(slow, slow.tokenize), adapted),
    ]


def kind_of(comparison: Comparison, text: str) -> str:
    """`""` if both sides agree, or else the rule that explains the difference, or `UNEXPLAINED`."""
    theirs = comparison.theirs(text)
    if comparison.ours(text) == theirs:
        return ""
    for rule, encode in comparison.adapted.items():
        if encode(text) == theirs:
            return rule
    return UNEXPLAINED


# ------------------------------------------------------------------------------------------------- the run

_comparisons: List[Comparison] = []
Tally = Tuple[Counter[Tuple[str, str]], Dict[Tuple[str, str], List[Tuple[str, str]]]]


def set_up(vocab_file: str, spm_model_file: str) -> None:
    """Builds the comparisons of a process."""
    for do_lower_case in (True, False):
        if vocab_file:
            _comparisons.extend(wordpiece_comparisons(vocab_file, do_lower_case))
        if spm_model_file:
            _comparisons.extend(sentencepiece_comparisons(spm_model_file, do_lower_case))


def compare(batch: List[Tuple[str, str]]) -> Tally:
    """Counts a batch of (file, text) by (comparison, kind), with the texts of each kind of difference."""
    counts: Counter[Tuple[str, str]] = collections.Counter()
    examples: Dict[Tuple[str, str], List[Tuple[str, str]]] = collections.defaultdict(list)
    for file, text in batch:
        for comparison in _comparisons:
            key = (comparison.name, kind_of(comparison, text))
            counts[key] += 1
            if key[1]:
                examples[key].append((file, text))
    return counts, examples


def _batches(texts: Iterable[Tuple[str, str]], per_file: int, seen: Counter[str]) -> Iterator[List[Tuple[str, str]]]:
    """Groups texts, at most `per_file` of a file (0: all), and counts in `seen` what was taken."""
    batch = []
    for file, text in texts:
        if per_file and seen[file] >= per_file:
            continue
        seen[file] += 1
        batch.append((file, text))
        if len(batch) == BATCH_SIZE:
            yield batch
            batch = []
    yield batch


def report(tally: Tally, seen: Counter[str], shown: int) -> bool:
    """Prints what was compared and how it went; says whether every text was identical or explained."""
    counts, examples = tally
    for file in sorted(seen):
        print(f"{seen[file]:9,}  {file}")
    print(f"{sum(seen.values()):9,}  texts in all")
    for name in sorted({name for name, _ in counts}):
        print(f"\n{name}")
        kinds = {kind: count for (other, kind), count in counts.items() if other == name}
        print(f"{kinds.pop('', 0):9,}  identical")
        for kind, count in sorted(kinds.items()):
            print(f"{count:9,}  {kind}")
            for file, text in examples[(name, kind)][:shown]:
                print(f"{'':11}{file}: {text[:150]!a}")
    return not any(kind == UNEXPLAINED for _, kind in counts)


def main() -> None:
    """Reads the flags, compares, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data_dir", required=True, help="folder with glue_data/, squad/ and text/")
    parser.add_argument("--vocab_file", default="", help="WordPiece vocabulary")
    parser.add_argument("--spm_model_file", default="", help="SentencePiece model")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--texts_per_file", type=int, default=0, help="take so many of a file; 0: all")
    parser.add_argument("--shown", type=int, default=3, help="texts printed for every kind of difference")
    flags = parser.parse_args()
    if not (flags.vocab_file or flags.spm_model_file):
        parser.error("give --vocab_file, --spm_model_file or both")

    counts: Counter[Tuple[str, str]] = collections.Counter()
    examples: Dict[Tuple[str, str], List[Tuple[str, str]]] = collections.defaultdict(list)
    seen: Counter[str] = collections.Counter()
    batches = _batches(read_texts(flags.data_dir), flags.texts_per_file, seen)
    with multiprocessing.Pool(flags.processes, set_up, (flags.vocab_file, flags.spm_model_file)) as pool:
        for batch_counts, batch_examples in pool.imap(compare, batches):
            counts.update(batch_counts)
            for key, texts in batch_examples.items():
                examples[key].extend(texts[: flags.shown])
    if not seen:
        parser.error(f"no text was found under {flags.data_dir}")
    sys.exit(0 if report((counts, examples), seen, flags.shown) else 1)


if __name__ == "__main__":
    main()
