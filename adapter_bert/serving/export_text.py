"""Convert texts to token ids in a TensorFlow graph, with the same ids as `tokenization` and `pipeline.features`.

The graph consists of operations of TensorFlow and `tensorflow-text`. The classes of characters (punctuation, marks and
so on) are those of this process: they become regular expressions in the graph.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, Callable, List, NamedTuple, Union

import tensorflow.compat.v2 as tf

import tokenization
from adapter_bert.common import errors, files, unicode_text
from adapter_bert.weights import bases

# More than the bytes of a word that is not unknown because of its length.
_MAX_BYTES_PER_WORD = 4 * 201


def load_tensorflow_text() -> Any:
    """Import and return `tensorflow_text`; raise a `UserError` if it does not work here."""
    try:
        import tensorflow_text
    except (ImportError, tf.errors.OpError) as error:  # not installed, or built for another TensorFlow
        major, minor = tf.version.VERSION.split(".")[:2]
        raise errors.UserError(
            f"A model that reads texts needs the package tensorflow-text, which cannot be imported: "
            f"{errors.reason(error)}. Run `pip install tensorflow-text=={major}.{minor}.*`, or export with "
            "--inputs=ids."
        ) from None
    return tensorflow_text


# For private use, so that no SentencePiece model knows it.
_UNKNOWN_CHARACTER = "\ue000"
# Code points that may be characters: planes 4 to 13 are empty, 15 and 16 for private use; without surrogates.
_CODE_POINTS = [point for point in (*range(0x40000), *range(0xE0000, 0xE1000)) if not 0xD800 <= point < 0xE000]


@functools.lru_cache(maxsize=None)
def _class_of(contains: Callable[[str], Any]) -> str:
    r"""Return a class for regular expressions, e.g. `[\x{61}-\x{7a}]`, of the characters with a property."""
    ranges: List[List[int]] = []
    for point in filter(lambda point: contains(chr(point)), _CODE_POINTS):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


def _replace(texts: tf.Tensor, contains: Callable[[str], Any], replacement: str) -> tf.Tensor:
    return tf.strings.regex_replace(texts, _class_of(contains), replacement)


def _is_dropped(char: str) -> bool:
    return not unicode_text.clean_character(char)


def _is_space(char: str) -> bool:
    """Return whether text is split at a character, which is not dropped."""
    return unicode_text.is_whitespace(char) or (char.isspace() and not _is_dropped(char))


class WordPieceGraph(tf.Module):
    """`tokenization.FullTokenizer` in a graph."""

    def __init__(self, tokenizer: tokenization.FullTokenizer) -> None:
        super().__init__()
        self._lower = tokenizer.basic_tokenizer.do_lower_case
        self._library = load_tensorflow_text()
        pieces = tokenizer.wordpiece_tokenizer
        self._longest, self._unknown = pieces.max_input_chars_per_word, pieces.unk_token
        self._pieces = self._library.FastWordpieceTokenizer(
            list(tokenizer.vocab),
            max_bytes_per_word=_MAX_BYTES_PER_WORD,
            token_out_type=tf.int32,
            unknown_token=self._unknown,
            no_pretokenization=True,
        )

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the words of each text, see `BasicTokenizer`."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        texts = _replace(texts, _is_dropped, "")
        texts = _replace(texts, _is_space, " ")
        texts = _replace(texts, unicode_text.is_cjk_ideograph, r" \0 ")
        if self._lower:
            texts = self._library.normalize_utf8(tf.strings.lower(texts, "utf-8"), "NFD")
            texts = _replace(texts, unicode_text.is_nonspacing_mark, "")
        return tf.strings.split(_replace(texts, unicode_text.is_punctuation, r" \0 "))

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids of each text, int32 [B, None]."""
        words = self.words(texts)
        lengths = tf.strings.length(words.flat_values, "UTF8_CHAR")
        known = tf.where(lengths > self._longest, self._unknown, words.flat_values)
        return self._pieces.tokenize(words.with_flat_values(known)).merge_dims(1, 2)


class SentencePieceGraph(tf.Module):
    """`tokenization.SentencePieceTokenizer` in a graph."""

    def __init__(self, tokenizer: tokenization.SentencePieceTokenizer, spm_model_file: str) -> None:
        super().__init__()
        self._lower = tokenizer.do_lower_case
        self._library = load_tensorflow_text()
        content = files.read_input(spm_model_file, "SentencePiece model", "--spm_model_file")
        self._model = self._library.SentencepieceTokenizer(content, tf.int32)
        replaced = tokenizer.replaced_ids()
        # For each id of the model, the ids that `tokenize` returns.
        self._replacements = [replaced.get(index, [index]) for index in range(len(tokenizer.inv_vocab))]

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids of each text, int32 [B, None]."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        texts = tf.strings.regex_replace(texts, r"\x00", _UNKNOWN_CHARACTER)  # SentencePiece would stop there
        texts = tf.strings.strip(_replace(texts, str.isspace, " "))
        texts = tf.strings.regex_replace(tf.strings.regex_replace(texts, " +", " "), "``|''", '"')
        texts = _replace(self._library.normalize_utf8(texts, "NFKD"), unicodedata.combining, "")
        if self._lower:
            texts = tf.strings.lower(texts, "utf-8")
        table = tf.ragged.constant(self._replacements, tf.int32, ragged_rank=1)
        return tf.gather(table, self._model.tokenize(texts)).merge_dims(1, 2)


TokenizerGraph = Union[WordPieceGraph, SentencePieceGraph]


def create(tokenizer: bases.Tokenizer, spm_model_file: str) -> TokenizerGraph:
    """Return a tokenizer in the graph; `spm_model_file` is used for SentencePiece only."""
    if isinstance(tokenizer, tokenization.FullTokenizer):
        return WordPieceGraph(tokenizer)
    return SentencePieceGraph(tokenizer, spm_model_file)


class Features(NamedTuple):
    """The input of the network, int32 [B, S] each, padded with zeros to the longest row."""

    ids: tf.Tensor
    mask: tf.Tensor
    segments: tf.Tensor


def pack_inputs(first: tf.RaggedTensor, second: tf.RaggedTensor, limit: tf.Tensor, cls: int, sep: int) -> Features:
    """Return `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` of each row, truncated as `features.Encoder` does.

    Args:
      first: ids of the first texts, int32 [B, None].
      second: ids of the second texts; a row without ids is a single text.
      limit: maximum number of tokens, a scalar or int32 [B].
      cls: the id of `[CLS]`.
      sep: the id of `[SEP]`.
    """
    lengths, others = (tf.cast(ids.row_lengths(), tf.int32) for ids in (first, second))
    is_pair = tf.cast(others > 0, tf.int32)
    space = limit - 2 - is_pair
    kept_second = tf.minimum(others, tf.maximum(space - lengths, space // 2))
    kept_first = tf.minimum(lengths, space - kept_second)
    first, second = _leading(first, kept_first), _leading(second, kept_second)
    start, end = (tf.fill([first.nrows(), 1], token) for token in (cls, sep))
    one = tf.concat([start, first, end], axis=1)
    other = tf.concat([second, _leading(tf.RaggedTensor.from_tensor(end), is_pair)], axis=1)
    ids = tf.concat([one, other], axis=1)
    segments = tf.concat([tf.zeros_like(one), tf.ones_like(other)], axis=1).to_tensor()
    return Features(ids.to_tensor(), tf.ones_like(ids).to_tensor(), segments)


def _leading(ids: tf.RaggedTensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Return the first ids of each row."""
    places = tf.ragged.range(tf.cast(ids.row_lengths(), tf.int32)).with_row_splits_dtype(tf.int64)
    return tf.ragged.boolean_mask(ids, places < tf.cast(counts, tf.int32)[:, tf.newaxis])
