"""Read word vectors from text, npz and safetensors files."""

from __future__ import annotations

import io
import zipfile
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import safetensors.numpy

from adapter_bert.common import errors, files

# GloVe's largest file has 5.6 GB.
MAX_BYTES = 2**33
ENDINGS = (".txt", ".vec", ".npz", ".safetensors")
_WORDS, _VECTORS = "words", "vectors"


class WordVectors(NamedTuple):
    """Words and their vectors. Several words may share a row."""

    words: Sequence[str]
    vectors: np.ndarray  # float32 [rows, width]
    rows: Optional[np.ndarray] = None  # int32 [words]; None if word i has row i


def read(path: str) -> WordVectors:
    """Read a file: text (word2vec's or GloVe's), npz or safetensors with the arrays `words` and `vectors`.

    In safetensors, `words` are the UTF-8 bytes of the words, separated by line breaks. Raises a `UserError` that names
    the place of the first mistake.
    """
    ending = next((each for each in ENDINGS if path.lower().endswith(each)), None)
    if ending is None:
        raise errors.UserError(f"{path}: unknown kind of word vectors; expected a name with {', '.join(ENDINGS)}.")
    data = files.read_bytes(path, f"Cannot read the word vectors {path}", MAX_BYTES)
    if ending in (".txt", ".vec"):
        return parse_text(data, path)
    try:
        arrays = _npz(data) if ending == ".npz" else safetensors.numpy.load(data)
    except Exception as error:  # the readers raise many types
        raise errors.UserError(f"{path} is damaged or not a {ending} file: {errors.reason(error)}.") from None
    return from_arrays(arrays, path)


def _npz(data: bytes) -> Dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
            raise errors.UserError(f"it unpacks to more than {MAX_BYTES} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def from_arrays(arrays: Dict[str, np.ndarray], path: str) -> WordVectors:
    """Check the arrays `words` and `vectors` of a file."""
    missing = [name for name in (_WORDS, _VECTORS) if name not in arrays]
    if missing:
        raise errors.UserError(
            f"{path} lacks the array '{missing[0]}'; expected '{_WORDS}' and '{_VECTORS}', found "
            f"{errors.first_names(arrays)}."
        )
    words, vectors = arrays[_WORDS], arrays[_VECTORS]
    if words.dtype == np.uint8:
        texts = _decode(words.tobytes(), path).split("\n")
    else:
        texts = [str(word) for word in words.ravel()]
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating) or len(vectors) != len(texts):
        raise errors.UserError(
            f"{path}: '{_VECTORS}' must be numbers of shape [{len(texts)}, width], one row for each word; found "
            f"{vectors.dtype} {list(vectors.shape)}."
        )
    return check(WordVectors(texts, vectors.astype(np.float32, copy=False)), path)


def check(found: WordVectors, path: str) -> WordVectors:
    """Raise a `UserError` for vectors that are not finite, no words, and words that no table can hold."""
    if not len(found.words) or not found.vectors.size:
        raise errors.UserError(f"{path} contains no word vectors.")
    finite = np.isfinite(found.vectors).all(axis=1)
    if not finite.all():
        raise errors.UserError(f"{path}: vector {int(np.argmin(finite)) + 1} contains NaN or infinite numbers.")
    for number, word in enumerate(found.words, 1):
        if not word or "\n" in word or "\t" in word or "\r" in word:
            raise errors.UserError(f"{path}: word {number} is {word!r:.40}; expected no tabs, line breaks or nothing.")
    return found


def parse_text(data: bytes, path: str) -> WordVectors:
    """Read lines of a word and its numbers, separated by spaces. word2vec's first line, `count width`, is optional."""
    lines = _decode(data, path).split("\n")
    start = 1 if len(lines[0].split()) == 2 else 0
    words: Dict[str, None] = {}
    rows: List[np.ndarray] = []
    width: Optional[Tuple[int, int]] = None  # and the line that it comes from
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            continue
        word, _, numbers = line.rstrip().partition(" ")
        try:
            row = np.array(numbers.split(" "), np.float32)
        except ValueError:
            raise errors.UserError(
                f"{path}, line {number}: expected a word and its numbers, found {line!r:.80}."
            ) from None
        width = width or (len(row), number)
        if len(row) != width[0]:
            raise errors.UserError(
                f"{path}, line {number}: the vector of {word!r:.40} has {len(row)} numbers; that of line {width[1]} "
                f"has {width[0]}."
            )
        if word not in words:  # GloVe's files contain a few words twice
            words[word] = None
            rows.append(row)
    return check(WordVectors(list(words), np.array(rows, np.float32)), path)


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise errors.UserError(f"{path}, line {line}: not UTF-8 ({error.reason}).") from None
