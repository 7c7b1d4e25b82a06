"""Convert text to token ids: WordPiece (BERT) and SentencePiece (ALBERT) with the same interface.

Names and behaviour are those of `tokenization.py` in Google's BERT, so code that imports it keeps working. Every token
that `tokenize` returns is in the tokenizer's `vocab`.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from typing import Any, Callable, Container, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from adapter_bert.common import files, unicode_text
from adapter_bert.common.basic_tokenizer import BasicTokenizer, convert_to_unicode, whitespace_tokenize
from adapter_bert.common.errors import UserError
from adapter_bert.common.unicode_text import WORD_START, Span
from adapter_bert.common.unicode_text import is_control as _is_control  # noqa: F401  (names that other code uses)
from adapter_bert.common.unicode_text import is_punctuation as _is_punctuation  # noqa: F401
from adapter_bert.common.unicode_text import is_whitespace as _is_whitespace  # noqa: F401

# A tokenizer caches the pieces or ids of this many words. The frequent words of a language are far fewer.
_MAX_CACHED_WORDS = 100000
# Longer "words" are not cached: these are e.g. paragraphs without spaces, which rarely occur twice.
_MAX_CACHED_CHARACTERS = 50

# Folder names of Google's releases, e.g. wwm_uncased_L-24_H-1024_A-16. Other names say nothing about the checkpoint.
_LOWER_CASED_RELEASE = re.compile(r"(?:(?:wwm_)?uncased|multilingual|chinese)_L-\d")
_CASED_RELEASE = re.compile(r"(?:wwm_|multi_)?cased_L-\d")

# White space according to `str.split`, but control characters to BERT, which drops them.
_DROPPED_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: Optional[str]) -> None:
    """Raise a `UserError` if the checkpoint's folder is named like one of Google's releases with the other case."""
    folder = ([""] + re.split(r"[/\\]", init_checkpoint or ""))[-2]
    other_release = _CASED_RELEASE if do_lower_case else _LOWER_CASED_RELEASE
    if other_release.match(folder):
        found = "a cased" if do_lower_case else "an uncased"
        raise UserError(
            f"The checkpoint {init_checkpoint} is in the folder '{folder}', which is the name of {found} release of "
            f"BERT, but --do_lower_case is {do_lower_case}. Set --do_lower_case={not do_lower_case}, or rename the "
            "folder if it contains another model."
        )


def check_case_matches_vocabulary(do_lower_case: bool, vocab: Iterable[str]) -> None:
    """Raise a `UserError` if `do_lower_case` does not match the letters in a WordPiece vocabulary.

    A vocabulary is cased if more than 1% of the word pieces contain upper-case letters, and uncased if no piece
    contains A-Z and some contain a-z. Special tokens such as `[UNK]`, `[unused1]` or `<S>` are ignored.
    """
    pieces = [token for token in vocab if not re.match(r"\[.+\]$|<.+>$", token)]
    if do_lower_case:
        upper_cased = sum(any(char.isupper() for char in piece) for piece in pieces)
        if upper_cased > 0.01 * len(pieces):
            raise UserError(
                f"{upper_cased:,} of the vocabulary's {len(pieces):,} word pieces "
                f"({upper_cased / len(pieces):.1%}) contain upper-case letters, so this is a cased model, but "
                "--do_lower_case is True. Set --do_lower_case=False."
            )
        return
    lower_cased = sum(bool(re.search("[a-z]", piece)) for piece in pieces)
    if lower_cased and not any(re.search("[A-Z]", piece) for piece in pieces):
        raise UserError(
            f"None of the vocabulary's {len(pieces):,} word pieces contains A-Z, but {lower_cased:,} contain a-z, so "
            "this is an uncased model and capitalized words would be unknown. Set --do_lower_case=True."
        )


def printable_text(text: Union[str, bytes]) -> str:
    """Return text as `str`, for `print` and logging."""
    return convert_to_unicode(text)


def load_vocab(vocab_file: str) -> Dict[str, int]:
    """Read a UTF-8 file with one token per line; return token -> line number from 0, in the order of the file.

    Of a token that occurs repeatedly, the last line counts, as in the original.
    """
    return collections.OrderedDict((token, index) for index, token in enumerate(read_vocab_tokens(vocab_file)))


def read_vocab_tokens(vocab_file: str) -> List[str]:
    r"""Return the tokens of a vocabulary file.

    Only `\n` ends a line, because other Unicode line breaks are tokens in some vocabularies.
    """
    content = files.read_input(vocab_file, "vocabulary file", "--vocab_file")
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"The vocabulary file {vocab_file} is not UTF-8 text (byte 0x{content[error.start]:02x} in line "
            f"{line_number}). Set --vocab_file to the vocab.txt of the checkpoint."
        ) from None
    lines = lines if lines[-1] else lines[:-1]
    # Keep tokens that are white space themselves, so that every id has a token.
    return [line.strip() or line for line in lines]


def convert_by_vocab(vocab: Mapping[Any, Any], items: Iterable[Any]) -> List[Any]:
    """Look up tokens or ids; raise `UserError` for the first that is not in `vocab`."""
    try:
        return [vocab[item] for item in items]
    except KeyError as error:
        raise UserError(
            f"The token or id {error.args[0]!r} is not in the vocabulary, which has {len(vocab):,} entries. Check that "
            "the data and the vocabulary belong together."
        ) from None


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> List[int]:
    """Return the ids of tokens; raise `UserError` for the first that is not in `vocab`."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> List[str]:
    """Return the tokens of ids; raise `UserError` for the first that is not in `inv_vocab`."""
    return convert_by_vocab(inv_vocab, ids)


_LOWER_CASED_WIDTHS = unicode_text.visible_widths(BasicTokenizer(do_lower_case=True).tokenize)
_CASED_WIDTHS = unicode_text.visible_widths(BasicTokenizer(do_lower_case=False).tokenize)


class _WordTable(dict):
    """A cache from words to their pieces or ids, computed on first use. It is cleared when full."""

    def __init__(self, compute: Callable[[str], List[Any]]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> Tuple[Any, ...]:
        values = tuple(self._compute(word))
        if len(word) <= _MAX_CACHED_CHARACTERS:
            if len(self) >= _MAX_CACHED_WORDS:
                self.clear()
            self[word] = values
        return values


class WordpieceTokenizer:
    """Split words into pieces of a vocabulary, longest match first.

    Attributes (do not change them after the first use):
      vocab: the tokens. Pieces that continue a word begin with `##`.
      unk_token: the token for a word that cannot be built from pieces.
      max_input_chars_per_word: longer words become `unk_token`.
    """

    def __init__(self, vocab: Mapping[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest_piece = max(map(len, vocab), default=0)
        self._inside = {piece[len("##") :] for piece in vocab if piece.startswith("##")}
        self._pieces_of_word = _WordTable(self._split)

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Return the pieces of words separated by white space, e.g. `un`, `##aff`, `##able` for `unaffable`."""
        pieces: List[str] = []
        pieces_of_word = self._pieces_of_word
        for word in whitespace_tokenize(convert_to_unicode(text)):
            pieces += pieces_of_word[word]
        return pieces

    def tokenize_with_lengths(self, words: Iterable[str]) -> Tuple[List[str], List[int]]:
        """Return the pieces of words, and how many characters of its word each represents; `unk_token`: all."""
        tokens: List[str] = []
        lengths: List[int] = []
        for word in words:
            pieces = self._pieces_of_word[word]
            tokens += pieces
            if len(pieces) == 1:
                lengths.append(len(word))
            else:
                lengths.append(len(pieces[0]))
                lengths += [len(piece) - len("##") for piece in pieces[1:]]
        return tokens, lengths

    def _split(self, word: str) -> List[str]:
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces: List[str] = []
        candidates: Container[str] = self.vocab
        start, prefix = 0, ""
        while start < len(word):
            for end in range(min(len(word), start + self._longest_piece), start, -1):
                if word[start:end] in candidates:
                    break
            else:
                return [self.unk_token]
            pieces.append(prefix + word[start:end])
            start, prefix, candidates = end, "##", self._inside
        return pieces


class _VocabularyTokenizer:
    """Base class of both tokenizers."""

    vocab: Dict[str, int]  # in the order of ids
    inv_vocab: Dict[int, str]
    unk_token: str  # the token for text that the vocabulary cannot represent

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Return the tokens of a text."""
        raise NotImplementedError()

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Return the ids of tokens; raise `UserError` for the first that is not in `vocab`."""
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> List[str]:
        """Return the tokens of ids; raise `UserError` for the first that is not in `inv_vocab`."""
        return convert_ids_to_tokens(self.inv_vocab, ids)

    def _ids_by_tokens(self, text: Union[str, bytes]) -> List[int]:
        return self.convert_tokens_to_ids(self.tokenize(text))


class FullTokenizer(_VocabularyTokenizer):
    """BERT's tokenizer: `BasicTokenizer`, then `WordpieceTokenizer`."""

    def __init__(self, vocab_file: str, do_lower_case: bool = True) -> None:
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        self.unk_token = self.wordpiece_tokenizer.unk_token
        self._ids_of_word = _WordTable(self._ids_by_tokens)

    def token_ids(self, text: Union[str, bytes]) -> List[int]:
        """Return the ids of the tokens that `tokenize` returns; several times as fast, because words are cached.

        No step of the tokenization looks across white space, so each word can be converted on its own. Subclasses
        whose `tokenize` does look across white space must override this method too.
        """
        text = convert_to_unicode(text)
        if not text.isprintable():
            text = _DROPPED_SPACE.sub("", text)
        ids: List[int] = []
        ids_of_word = self._ids_of_word
        for word in text.split():
            ids += ids_of_word[word]
        return ids

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Return the word pieces of a text."""
        # Words contain no white space, so they can be joined with spaces and split in one call.
        return self.wordpiece_tokenizer.tokenize(" ".join(self.basic_tokenizer.tokenize(text)))

    def tokenize_with_offsets(self, text: str) -> Tuple[List[str], List[Span]]:
        """Return the tokens of `tokenize` and the span of `text` that each represents.

        `text[start:end]` is the token as originally written, including dropped marks after its last character.
        `unk_token` spans its word. Spans are in order; pieces of a single character of `text`, such as a Hangul
        syllable, share the span of that character.
        """
        words = self.basic_tokenizer.tokenize(text)
        tokens, lengths = self.wordpiece_tokenizer.tokenize_with_lengths(words)
        do_lower_case = self.basic_tokenizer.do_lower_case
        sources = unicode_text.source_indices(text, _LOWER_CASED_WIDTHS if do_lower_case else _CASED_WIDTHS)
        spans = unicode_text.token_spans(lengths, sources, sources)
        if do_lower_case:
            spans = unicode_text.extend_over_marks(spans, text, unicode_text.is_nonspacing_mark)
        return tokens, spans


def _ends_with_number_and_comma(piece: str) -> bool:
    return piece.endswith(",") and piece[-2:-1].isdigit()


class SentencePieceTokenizer(_VocabularyTokenizer):
    """ALBERT's tokenizer: a SentencePiece model, applied after the text clean-up that ALBERT was trained with."""

    def __init__(self, spm_model_file: str, do_lower_case: bool = True) -> None:
        self.do_lower_case = do_lower_case
        self._model = _load_sentencepiece_model(spm_model_file)
        self.inv_vocab = {index: self._model.IdToPiece(index) for index in range(self._model.GetPieceSize())}
        self.vocab = collections.OrderedDict((piece, index) for index, piece in self.inv_vocab.items())
        self.unk_token = self.inv_vocab[self._model.unk_id()]
        # For texts with one of these ids, `tokenize` may differ from the model.
        self._ambiguous_ids = {index for index, piece in self.inv_vocab.items() if _ends_with_number_and_comma(piece)}
        self._ambiguous_ids.add(self._model.unk_id())

    def token_ids(self, text: Union[str, bytes]) -> List[int]:
        """Return the ids of the tokens that `tokenize` returns, directly from the model where possible."""
        ids = self._model.EncodeAsIds(self._clean(text))
        return ids if self._ambiguous_ids.isdisjoint(ids) else self._ids_by_tokens(text)

    def replaced_ids(self) -> Dict[int, List[int]]:
        """Return the ids of the model that `tokenize` replaces, with what replaces them, e.g. `9,` with `9` and `,`."""
        ambiguous = {index: self.inv_vocab[index] for index in sorted(self._ambiguous_ids)}
        return {
            index: [self.vocab.get(part, self.vocab[self.unk_token]) for part in self._split_off_comma(piece)]
            for index, piece in ambiguous.items()
            if _ends_with_number_and_comma(piece)
        }

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Return the pieces of a text, with `unk_token` for each part that the model has no piece for."""
        pieces = self._encode(self._clean(text))
        return [piece if piece in self.vocab else self.unk_token for piece in pieces]

    def tokenize_with_offsets(self, text: str) -> Tuple[List[str], List[Span]]:
        """Return the tokens of `tokenize` and the span of `text` that each represents.

        `text[start:end]` is the token as originally written, including dropped marks after its last character. A token
        that is only a word start has an empty span at the next visible character. Spans are in order; pieces of a
        single character of `text`, such as a ligature, share the span of that character.
        """
        joined = unicode_text.join_whitespace(text)
        cleaned = self._clean(joined)
        pieces = self._encode(cleaned)
        sources = unicode_text.source_indices(joined, unicode_text.FOLDED_WIDTHS)
        if unicode_text.without_spaces("".join(pieces)) == unicode_text.without_spaces(cleaned):
            lengths = [len(piece.replace(WORD_START, "")) for piece in pieces]
            spans = unicode_text.token_spans(lengths, sources, sources)
        else:
            spans = unicode_text.spans_of_normalized(self._model, pieces, cleaned, sources)
        if joined != text:
            starts = unicode_text.starts_before_join(text)
            spans = [(starts[start], starts[end]) for start, end in spans]
        tokens = [piece if piece in self.vocab else self.unk_token for piece in pieces]
        return tokens, unicode_text.extend_over_marks(spans, text, unicodedata.combining)

    def _clean(self, text: Union[str, bytes]) -> str:
        text = unicode_text.fold(unicode_text.join_whitespace(convert_to_unicode(text)))
        return text.lower() if self.do_lower_case else text

    def _encode(self, cleaned: str) -> List[str]:
        pieces: List[str] = []
        for piece in self._model.EncodeAsPieces(cleaned):
            pieces += self._split_off_comma(piece) if _ends_with_number_and_comma(piece) else [piece]
        return pieces

    def _split_off_comma(self, piece: str) -> List[str]:
        """Split a piece such as `9,` into number and comma, so that `9,9` and `9 , 9` have the same pieces."""
        digits = self._model.EncodeAsPieces(piece[:-1].replace(WORD_START, ""))
        if not piece.startswith(WORD_START) and digits[0].startswith(WORD_START):
            # The model treats any text as the start of a word, but this is not one.
            digits = ([digits[0][1:]] if len(digits[0]) > 1 else []) + digits[1:]
        return digits + [","]


def _load_sentencepiece_model(spm_model_file: str) -> Any:
    try:
        import sentencepiece  # optional dependency
    except ImportError:
        problem = f"The model {spm_model_file} requires the package sentencepiece, which is not installed."
        raise UserError(f"{problem} Run `pip install sentencepiece`.") from None
    content = files.read_input(spm_model_file, "SentencePiece model", "--spm_model_file")
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
        model.IdToPiece(list(range(model.GetPieceSize())))  # fails if a piece is not UTF-8
    except (RuntimeError, UnicodeDecodeError):
        problem = f"The file {spm_model_file} is not a SentencePiece model."
        raise UserError(f"{problem} Set --spm_model_file to the .model file of the checkpoint.") from None
    return model


def create_tokenizer(
    vocab_file: Optional[str], spm_model_file: Optional[str], do_lower_case: bool
) -> Union[FullTokenizer, SentencePieceTokenizer]:
    """Return a WordPiece or SentencePiece tokenizer, depending on which file is given."""
    tokenizer: Union[FullTokenizer, SentencePieceTokenizer]
    if vocab_file and not spm_model_file:
        tokenizer = FullTokenizer(vocab_file, do_lower_case)
    elif spm_model_file and not vocab_file:
        tokenizer = SentencePieceTokenizer(spm_model_file, do_lower_case)
    else:
        found = f"both are set ({vocab_file}, {spm_model_file})" if vocab_file else "neither is set"
        raise UserError(
            "Set exactly one of --vocab_file (WordPiece, for BERT) and --spm_model_file (SentencePiece, for ALBERT); "
            f"{found}."
        )
    missing = [token for token in ("[CLS]", "[SEP]", tokenizer.unk_token) if token not in tokenizer.vocab]
    if missing:
        raise UserError(
            f"The vocabulary in {vocab_file or spm_model_file} ({len(tokenizer.vocab):,} entries) lacks "
            f"{', '.join(missing)}. Use the file that belongs to the checkpoint."
        )
    return tokenizer
