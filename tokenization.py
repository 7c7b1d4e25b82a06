"""Text to token ids: WordPiece (BERT) and SentencePiece (ALBERT) behind one interface.

Names and behaviour are those of the `tokenization.py` that comes with Google's BERT, so what imports it keeps
working. Either tokenizer offers `tokenize`, `tokenize_with_offsets`, `token_ids`, `convert_tokens_to_ids`,
`convert_ids_to_tokens`, `vocab`, `inv_vocab` and `unk_token`; whatever `tokenize` returns is in `vocab`.
`create_tokenizer` chooses.
"""

from __future__ import annotations

import collections
import itertools
import re
import unicodedata
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError

# Words whose pieces or ids one tokenizer remembers; a language's frequent words are far fewer.
_MAX_CACHED_WORDS = 100000
# Longer ones are not remembered with their ids: paragraphs without a space, for instance, which hardly come again.
_MAX_CACHED_CHARACTERS = 50

# Folder names of Google's releases, e.g. wwm_uncased_L-24_H-1024_A-16. The layer count is part of the name:
# a user's own folder, say `cased_vs_uncased`, says nothing about the checkpoint in it.
_LOWER_CASED_RELEASE = re.compile(r"(?:(?:wwm_)?uncased|multilingual|chinese)_L-\d")
_CASED_RELEASE = re.compile(r"(?:wwm_|multi_)?cased_L-\d")

_CJK_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)

# White space to Python's `str.split`, but control characters to BERT, which drops them.
_DROPPED_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

_WORD_START = "\u2581"  # SentencePiece writes a space as this character.
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # a byte of a character that a model with byte fallback has not
_CLEAN_UP_UNIT = re.compile(r"``|''|\s+|\S")  # what becomes one character before SentencePiece's NFKD

Span = Tuple[int, int]  # start and end of text[start:end], in code points


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: Optional[str]) -> None:
    """Refuses a casing flag that contradicts the name of the checkpoint's folder.

    Only the names of Google's releases are known; under any other name the flag is taken as it is.

    Args:
      do_lower_case: whether text is to be lower-cased.
      init_checkpoint: path of the checkpoint, or nothing.

    Raises:
      UserError: the folder is a cased release and the flag lower-cases, or the other way round.
    """
    folders = re.split(r"[/\\]", init_checkpoint or "")[:-1]
    folder = folders[-1] if folders else ""
    if _LOWER_CASED_RELEASE.match(folder) and not do_lower_case:
        found, wanted = "an uncased", True
    elif _CASED_RELEASE.match(folder) and do_lower_case:
        found, wanted = "a cased", False
    else:
        return
    raise UserError(
        f"The checkpoint {init_checkpoint} lies in '{folder}', {found} release of BERT, but "
        f"--do_lower_case={not wanted} was given: set --do_lower_case={wanted}, or rename the folder if it "
        "holds another model."
    )


def check_case_matches_vocabulary(do_lower_case: bool, vocab: Iterable[str]) -> None:
    """Refuses a casing flag that a WordPiece vocabulary plainly contradicts.

    Args:
      do_lower_case: whether text is to be lower-cased.
      vocab: the tokens. Specials such as `[UNK]`, `[unused1]` or `<S>` are left out of account.

    Raises:
      UserError: text would be lower-cased though more than 1 % of the word pieces hold upper-case letters, or
        it would keep its case though no piece has A-Z while some have a-z.
    """
    pieces = [token for token in vocab if not re.match(r"\[.+\]$|<.+>$", token)]
    if do_lower_case:
        upper_cased = sum(any(char.isupper() for char in piece) for piece in pieces)
        if upper_cased > 0.01 * len(pieces):
            raise UserError(
                f"{upper_cased:,} of the vocabulary's {len(pieces):,} word pieces "
                f"({upper_cased / len(pieces):.1%}) hold upper-case letters, which lower-cased text has none "
                "of: this is a cased model, set --do_lower_case=False."
            )
        return
    lower_cased = sum(bool(re.search("[a-z]", piece)) for piece in pieces)
    if lower_cased and not any(re.search("[A-Z]", piece) for piece in pieces):
        raise UserError(
            f"None of the vocabulary's {len(pieces):,} word pieces holds an upper-case letter A-Z while "
            f"{lower_cased:,} hold a-z, so every capitalised word would become unknown: this is an uncased "
            "model, set --do_lower_case=True."
        )


def convert_to_unicode(text: Union[str, bytes]) -> str:
    """Returns text as `str`; bytes are read as UTF-8, undecodable ones dropped."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Text must be str or bytes, received {type(text).__name__}: {text!r}")


def printable_text(text: Union[str, bytes]) -> str:
    """Returns text in the form that `print` and the logger take."""
    return convert_to_unicode(text)


def load_vocab(vocab_file: str) -> Dict[str, int]:
    r"""Reads a vocabulary of one token per line.

    Args:
      vocab_file: local path or any address TensorFlow reads, such as gs://. UTF-8; lines end at `\n` alone,
        since other Unicode line breaks are tokens in some vocabularies.

    Returns:
      Token -> line number from 0, in the file's order.

    Raises:
      UserError: the file is missing, empty or not UTF-8.
    """
    content = _read_file(vocab_file, "vocabulary file", "--vocab_file")
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"The vocabulary file {vocab_file} is not UTF-8 text (byte 0x{content[error.start]:02x} in line "
            f"{line_number}): give --vocab_file the vocab.txt that belongs to the checkpoint."
        ) from None
    lines = lines if lines[-1] else lines[:-1]
    # A token that is itself white space is kept as it is, so that every id has a token.
    return collections.OrderedDict((line.strip() or line, index) for index, line in enumerate(lines))


def _read_file(path: str, kind: str, flag: str) -> bytes:
    """The bytes of a file that a user named, from any file system TensorFlow knows."""
    try:
        with tf.gfile.GFile(path, "rb") as reader:
            content = reader.read()
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())
        raise UserError(f"Cannot read the {kind} {path}, check {flag}: {reason}") from None
    if not content.strip():
        raise UserError(f"The {kind} {path} is empty: check {flag}.")
    return content


def convert_by_vocab(vocab: Mapping[Any, Any], items: Iterable[Any]) -> List[Any]:
    """Looks every item up in `vocab`, tokens or ids alike; `UserError` names the first that is missing."""
    return _look_up(vocab, items, "Token or id")


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> List[int]:
    """The ids of tokens; `UserError` names the first that the vocabulary lacks."""
    return _look_up(vocab, tokens, "Token")


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> List[str]:
    """The tokens of ids; `UserError` names the first that the vocabulary lacks."""
    return _look_up(inv_vocab, ids, "Id")


def _look_up(table: Mapping[Any, Any], items: Iterable[Any], kind: str) -> List[Any]:
    try:
        return [table[item] for item in items]
    except KeyError as error:
        raise UserError(
            f"{kind} {error.args[0]!r} is not in the vocabulary of {len(table):,} entries: give what was "
            "made with this vocabulary."
        ) from None


def whitespace_tokenize(text: str) -> List[str]:
    """Splits text at white space, of which there may be any amount anywhere."""
    return text.split()


class _CharacterTable(dict):
    """A table for `str.translate` that works out a character's replacement when it first meets it."""

    def __init__(self, replacement: Callable[[str], str]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code_point: int) -> str:
        replacement = self[code_point] = self._replacement(chr(code_point))
        return replacement


def _clean(char: str) -> str:
    """Drops control characters, makes all space one kind, and makes every CJK ideograph a word."""
    if char in " \t\n\r":
        return " "
    category = unicodedata.category(char)
    if char in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    if category == "Zs":
        return " "
    return f" {char} " if _CJK_IDEOGRAPH.match(char) else char


def _set_apart_punctuation(char: str) -> str:
    # Of ASCII, all symbols count as punctuation, also those such as "$" or "^" that Unicode files elsewhere.
    is_ascii_symbol = "!" <= char <= "~" and not char.isalnum()
    return f" {char} " if is_ascii_symbol or unicodedata.category(char).startswith("P") else char


def _is_nonspacing_mark(char: str) -> bool:
    return unicodedata.category(char) == "Mn"


_CLEANED = _CharacterTable(_clean)
_WITHOUT_MARKS = _CharacterTable(lambda char: "" if _is_nonspacing_mark(char) else char)
_PUNCTUATION_APART = _CharacterTable(_set_apart_punctuation)


class BasicTokenizer:
    """Splits text into words and punctuation marks, lower-cased and without accents if asked."""

    def __init__(self, do_lower_case: bool = True) -> None:
        self.do_lower_case = do_lower_case

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the words of a text."""
        text = convert_to_unicode(text)
        if text.isascii() and text.isalnum():  # most words, if they come one by one
            return [text.lower() if self.do_lower_case else text]
        text = text.translate(_CLEANED)
        if self.do_lower_case:
            text = unicodedata.normalize("NFD", text.lower()).translate(_WITHOUT_MARKS)
        return whitespace_tokenize(text.translate(_PUNCTUATION_APART))


def _visible_widths(words_of: Callable[[str], List[str]]) -> _CharacterTable:
    """A table of how many visible characters a clean-up makes of a character, each number as `chr(number)`.

    The numbers of a text's characters add up to the number of the text: where a clean-up looks at neighbours
    (final sigma, order of marks, runs of white space), the count of visible characters does not depend on them.

    Args:
      words_of: cleans up a text and splits it at white space.
    """
    return _CharacterTable(lambda char: chr(len("".join(words_of(char)))))


def _sources(text: str, widths: _CharacterTable) -> List[int]:
    """For each visible character that a clean-up leaves, the index in `text` of its source; then the text's end."""
    counts = text.translate(widths).encode("latin-1")
    indices = range(len(text))
    if counts.strip(b"\0\1"):  # some character becomes several
        sources = list(itertools.chain.from_iterable(map(itertools.repeat, indices, counts)))
    else:
        sources = list(itertools.compress(indices, counts))
    sources.append(len(text))
    return sources


def _spans(lengths: Iterable[int], firsts: Sequence[int], lasts: Sequence[int]) -> List[Span]:
    """Lays tokens one after the other over a text's visible characters.

    Args:
      lengths: how many visible characters each token has. One with none gets an empty span at the next one.
      firsts: for each visible character, the index of the first character of the text that it stands for; then
        the text's end.
      lasts: the same for the last such character, without the text's end.
    """
    spans: List[Span] = []
    done = end = 0
    for length in lengths:
        start = firsts[done]
        done += length
        # A word start amid what is one character in the text shares that character's span.
        end = lasts[done - 1] + 1 if length else max(start, end)
        spans.append((start, end))
    return spans


def _with_marks(spans: List[Span], text: str, is_dropped_mark: Callable[[str], Any]) -> List[Span]:
    """Extends spans over the marks right behind them, so that a decomposed accent is not cut off its letter."""
    marks = "" if text.isascii() else "".join(filter(is_dropped_mark, set(text)))
    if not marks:
        return spans
    behind = {run.start(): run.end() for run in re.finditer(f"[{marks}]+", text)}
    return [(start, behind.get(end, end)) for start, end in spans]


_LOWER_CASED_WIDTHS = _visible_widths(BasicTokenizer(do_lower_case=True).tokenize)
_CASED_WIDTHS = _visible_widths(BasicTokenizer(do_lower_case=False).tokenize)


class WordpieceTokenizer:
    """Splits words into pieces of a vocabulary, each time the longest that fits.

    Attributes (none of them to change after the first use):
      vocab: the tokens; pieces inside a word begin with `##`.
      unk_token: what a word becomes that cannot be put together from pieces.
      max_input_chars_per_word: a longer word becomes `unk_token` untried.
    """

    def __init__(self, vocab: Mapping[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest_piece = max(map(len, vocab), default=0)
        self._inside = {piece[len("##") :] for piece in vocab if piece.startswith("##")}
        self._pieces_of_word: Dict[str, Tuple[str, ...]] = {}

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the pieces of words set apart by white space, as `unaffable` -> `un`, `##aff`, `##able`."""
        pieces: List[str] = []
        for word in whitespace_tokenize(convert_to_unicode(text)):
            pieces.extend(self._pieces_of_word.get(word) or self._split_anew(word))
        return pieces

    def tokenize_with_lengths(self, words: Iterable[str]) -> Tuple[List[str], List[int]]:
        """Returns the pieces of words, and how many characters of its word each stands for.

        Args:
          words: without white space. A word that becomes `unk_token` is covered by it whole.
        """
        tokens: List[str] = []
        lengths: List[int] = []
        for word in words:
            pieces = self._pieces_of_word.get(word) or self._split_anew(word)
            tokens.extend(pieces)
            if len(pieces) == 1:
                lengths.append(len(word))
            else:
                lengths.append(len(pieces[0]))
                lengths.extend([len(piece) - len("##") for piece in pieces[1:]])
        return tokens, lengths

    def _split_anew(self, word: str) -> Tuple[str, ...]:
        """The pieces of a word that is not remembered; from now on it is."""
        if len(word) > self.max_input_chars_per_word:
            return (self.unk_token,)
        if len(self._pieces_of_word) >= _MAX_CACHED_WORDS:
            self._pieces_of_word.clear()
        pieces = self._pieces_of_word[word] = tuple(self._split(word))
        return pieces

    def _split(self, word: str) -> List[str]:
        pieces: List[str] = []
        start, prefix, choice = 0, "", self.vocab
        while start < len(word):
            for end in range(min(len(word), start + self._longest_piece), start, -1):
                if word[start:end] in choice:
                    break
            else:
                return [self.unk_token]
            pieces.append(prefix + word[start:end])
            start, prefix, choice = end, "##", self._inside
        return pieces


class _VocabularyTokenizer:
    """What both tokenizers share: tokens and their ids.

    Attributes:
      vocab: token -> id, in the order of ids.
      inv_vocab: id -> token.
      unk_token: the token of what the vocabulary cannot express.
    """

    vocab: Dict[str, int]
    inv_vocab: Dict[int, str]
    unk_token: str

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the tokens of a text."""
        raise NotImplementedError()

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Returns the tokens' ids; `UserError` for a token that is not in `vocab`."""
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> List[str]:
        """Returns the ids' tokens; `UserError` for an id that is not in `inv_vocab`."""
        return convert_ids_to_tokens(self.inv_vocab, ids)

    def _ids_by_tokens(self, text: Union[str, bytes]) -> List[int]:
        """What `token_ids` must return, the slow way."""
        return self.convert_tokens_to_ids(self.tokenize(text))


class _WordTable(dict):
    """Words -> ids, worked out when a word is first met. Forgets all when full."""

    def __init__(self, ids_of: Callable[[str], List[int]]) -> None:
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, word: str) -> Tuple[int, ...]:
        ids = tuple(self._ids_of(word))
        if len(word) <= _MAX_CACHED_CHARACTERS:
            if len(self) >= _MAX_CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


class FullTokenizer(_VocabularyTokenizer):
    """BERT's tokenizer: words and punctuation first, then WordPiece."""

    def __init__(self, vocab_file: str, do_lower_case: bool = True) -> None:
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        self.unk_token = self.wordpiece_tokenizer.unk_token
        self._ids_of_word = _WordTable(self._ids_by_tokens)

    def token_ids(self, text: Union[str, bytes]) -> List[int]:
        """Returns the ids of the tokens that `tokenize` returns; several times as fast, since words come again.

        Nothing that is done to a text looks beyond white space, so a word between two spaces has its ids by itself.
        A subclass whose `tokenize` does look beyond must override this too.
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
        """Returns the word pieces of a text."""
        # Words hold no white space, so joining them with spaces hands all of them over in one call.
        return self.wordpiece_tokenizer.tokenize(" ".join(self.basic_tokenizer.tokenize(text)))

    def tokenize_with_offsets(self, text: str) -> Tuple[List[str], List[Span]]:
        """Returns the tokens of `tokenize`, and of each the span of `text` that it stands for.

        `text[start:end]` is the original writing. It includes marks that follow the token's last character and
        were dropped; `unk_token` spans its word. Spans are in order; pieces of what is a single character in
        `text`, such as a Hangul syllable, share its span.
        """
        words = self.basic_tokenizer.tokenize(text)
        tokens, lengths = self.wordpiece_tokenizer.tokenize_with_lengths(words)
        if not self.basic_tokenizer.do_lower_case:
            sources = _sources(text, _CASED_WIDTHS)
            return tokens, _spans(lengths, sources, sources)
        sources = _sources(text, _LOWER_CASED_WIDTHS)
        return tokens, _with_marks(_spans(lengths, sources, sources), text, _is_nonspacing_mark)


# Half a surrogate pair, as careless JSON has it, is no character: SentencePiece would fail on it.
_WITHOUT_COMBINING = _CharacterTable(
    lambda char: "" if unicodedata.combining(char) or "\ud800" <= char <= "\udfff" else char
)


def _fold(text: str) -> str:
    """Spells out ligatures and the like, and drops accents."""
    return unicodedata.normalize("NFKD", text).translate(_WITHOUT_COMBINING)


def _join_space(text: str) -> str:
    """Makes runs of white space one space, and TeX's quotation marks plain ones."""
    return " ".join(text.split()).replace("``", '"').replace("''", '"')


def _starts_before_join(text: str) -> List[int]:
    """Where in `text` each character of `_join_space(text)` starts; then where the last one ends."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [unit.start() for unit in _CLEAN_UP_UNIT.finditer(text, start, end)] + [end]


def _without_space(text: str) -> str:
    return text.replace(" ", "").replace(_WORD_START, "")


def _ends_with_number_and_comma(piece: str) -> bool:
    return piece.endswith(",") and piece[-2:-1].isdigit()


_FOLDED_WIDTHS = _visible_widths(lambda text: _fold(text).replace(_WORD_START, " ").split())


class SentencePieceTokenizer(_VocabularyTokenizer):
    """ALBERT's tokenizer: a SentencePiece model, with the clean-up of text that ALBERT was trained with."""

    def __init__(self, spm_model_file: str, do_lower_case: bool = True) -> None:
        self.do_lower_case = do_lower_case
        self._model = _load_sentencepiece_model(spm_model_file)
        self.inv_vocab = {index: self._model.IdToPiece(index) for index in range(self._model.GetPieceSize())}
        self.vocab = collections.OrderedDict((piece, index) for index, piece in self.inv_vocab.items())
        self.unk_token = self.inv_vocab[self._model.unk_id()]
        # Of these, `tokenize` may make other tokens than the model does.
        self._doubtful_ids = {index for index, piece in self.inv_vocab.items() if _ends_with_number_and_comma(piece)}
        self._doubtful_ids.add(self._model.unk_id())

    def token_ids(self, text: Union[str, bytes]) -> List[int]:
        """Returns the ids of the tokens that `tokenize` returns, straight from the model where that is the same."""
        ids = self._model.EncodeAsIds(self._clean(text))
        return ids if self._doubtful_ids.isdisjoint(ids) else self._ids_by_tokens(text)

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the pieces of a text; `unk_token` stands for each stretch the model has no piece for."""
        pieces = self._encode(self._clean(text))
        return [piece if piece in self.vocab else self.unk_token for piece in pieces]

    def tokenize_with_offsets(self, text: str) -> Tuple[List[str], List[Span]]:
        """Returns the tokens of `tokenize`, and of each the span of `text` that it stands for.

        `text[start:end]` is the original writing, and includes marks that follow the token's last character and
        were dropped. A word start stands for no character: a token that is nothing else has an empty span, at
        the next visible character. Spans are in order; pieces of what is a single character in `text`, such as
        a ligature, share its span.
        """
        joined = _join_space(text)
        cleaned = self._lower(_fold(joined))
        pieces = self._encode(cleaned)
        sources = _sources(joined, _FOLDED_WIDTHS)
        if _without_space("".join(pieces)) == _without_space(cleaned):
            spans = _spans([len(piece.replace(_WORD_START, "")) for piece in pieces], sources, sources)
        else:
            spans = self._spans_by_model(pieces, cleaned, sources)
        if joined != text:
            starts = _starts_before_join(text)
            spans = [(starts[start], starts[end]) for start, end in spans]
        tokens = [piece if piece in self.vocab else self.unk_token for piece in pieces]
        return tokens, _with_marks(spans, text, unicodedata.combining)

    def _clean(self, text: Union[str, bytes]) -> str:
        return self._lower(_fold(_join_space(convert_to_unicode(text))))

    def _lower(self, text: str) -> str:
        return text.lower() if self.do_lower_case else text

    def _encode(self, cleaned: str) -> List[str]:
        pieces: List[str] = []
        for piece in self._model.EncodeAsPieces(cleaned):
            if _ends_with_number_and_comma(piece):
                pieces.extend(self._split_off_comma(piece))
            else:
                pieces.append(piece)
        return pieces

    def _spans_by_model(self, pieces: List[str], cleaned: str, sources: List[int]) -> List[Span]:
        """The spans of pieces that do not have the characters of `cleaned`, since the model replaces some.

        Counts bytes of UTF-8 instead of characters, since a model with byte fallback has pieces that are bytes.

        Args:
          pieces: what the model makes of `cleaned`.
          cleaned: the text as the model receives it.
          sources: where its visible characters come from, as `_sources` has it.
        """
        visible_before = [0] + list(itertools.accumulate(char not in (" ", _WORD_START) for char in cleaned))
        end_of_text = sources[-1]
        firsts: List[int] = []
        lasts: List[int] = []
        normalized, offsets = self._model.Normalize(cleaned, with_offsets=True)
        bounds = sorted(set(offsets))
        next_bound = dict(zip(bounds, bounds[1:]))
        position = 0
        for char, start in zip(normalized, offsets):
            if char == _WORD_START:
                continue
            # The stretch from `start` may stand for several characters, and end with some that the model drops.
            end = next_bound.get(start, start)
            spelt_out = unicodedata.normalize("NFKD", char)
            position = max(position, start)
            if cleaned.startswith(spelt_out, position, end):
                start = position
                position = end = start + len(spelt_out)
            first = visible_before[start]
            last = max(first, visible_before[end] - 1)
            size = len(char.encode("utf-8"))
            firsts.extend([sources[first]] * size)
            lasts.extend([min(sources[last], end_of_text - 1)] * size)
        lengths = [
            1 if _BYTE_PIECE.fullmatch(piece) else len(piece.replace(_WORD_START, "").encode("utf-8"))
            for piece in pieces
        ]
        beyond = sum(lengths) - len(lasts)  # 0, unless `_split_off_comma` made the model change a piece again
        firsts.extend([end_of_text] * (beyond + 1))
        lasts.extend([end_of_text - 1] * beyond)
        return _spans(lengths, firsts, lasts)

    def _split_off_comma(self, piece: str) -> List[str]:
        """Splits a piece such as `9,` into number and comma, so that `9,9` and `9 , 9` share their pieces."""
        digits = self._model.EncodeAsPieces(piece[:-1].replace(_WORD_START, ""))
        if not piece.startswith(_WORD_START) and digits[0].startswith(_WORD_START):
            # The model takes any text for the start of a word, which this is not.
            digits = ([digits[0][1:]] if len(digits[0]) > 1 else []) + digits[1:]
        return digits + [","]


def _load_sentencepiece_model(spm_model_file: str) -> Any:
    try:
        import sentencepiece  # needed by those alone who use such a model
    except ImportError:
        raise UserError(
            f"The model {spm_model_file} needs the package sentencepiece, which is not installed: run "
            "`pip install sentencepiece`."
        ) from None
    content = _read_file(spm_model_file, "SentencePiece model", "--spm_model_file")
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except RuntimeError:
        raise UserError(
            f"The file {spm_model_file} is not a SentencePiece model: give --spm_model_file the .model file "
            "that belongs to the checkpoint."
        ) from None
    return model


def create_tokenizer(
    vocab_file: Optional[str], spm_model_file: Optional[str], do_lower_case: bool
) -> Union[FullTokenizer, SentencePieceTokenizer]:
    """Returns the tokenizer for the one file given.

    Args:
      vocab_file: WordPiece vocabulary, or nothing.
      spm_model_file: SentencePiece model, or nothing.
      do_lower_case: whether text is to be lower-cased.

    Raises:
      UserError: neither or both files are given, or the vocabulary lacks `[CLS]`, `[SEP]` or `unk_token`.
    """
    if bool(vocab_file) == bool(spm_model_file):
        found = f"both were given ({vocab_file}, {spm_model_file})" if vocab_file else "neither was given"
        raise UserError(
            "A tokenizer needs one of --vocab_file (WordPiece, as BERT has it) and --spm_model_file "
            f"(SentencePiece, as ALBERT has it), but {found}."
        )
    tokenizer: Union[FullTokenizer, SentencePieceTokenizer]
    if vocab_file:
        tokenizer = FullTokenizer(vocab_file, do_lower_case)
    else:
        tokenizer = SentencePieceTokenizer(spm_model_file, do_lower_case)
    missing = [token for token in ("[CLS]", "[SEP]", tokenizer.unk_token) if token not in tokenizer.vocab]
    if missing:
        raise UserError(
            f"The vocabulary in {vocab_file or spm_model_file} ({len(tokenizer.vocab):,} entries) lacks "
            f"{', '.join(missing)}: give the file that belongs to the checkpoint."
        )
    return tokenizer
