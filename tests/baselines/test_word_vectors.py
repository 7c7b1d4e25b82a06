"""Readers of word vectors."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

from adapter_bert.baselines import word_vectors
from tests.helpers import assert_mentions, message_of, write_file

VECTORS = np.array([[1, 2, 3], [0, -1, 0.5]], np.float32)


def write(folder, kind: str) -> str:
    if kind == "txt":
        return write_file(folder, "v.txt", "cat 1 2 3\ncafé 0 -1 0.5\ncat 9 9 9\n")
    if kind == "vec":
        return write_file(folder, "v.vec", "2 3\ncat 1 2 3 \ncafé 0 -1 0.5\n")
    if kind == "npz":
        np.savez(str(folder / "v.npz"), words=np.array(["cat", "café"]), vectors=VECTORS)
        return str(folder / "v.npz")
    words = np.frombuffer("cat\ncafé".encode(), np.uint8)
    return write_file(folder, "v.safetensors", safetensors.numpy.save({"words": words, "vectors": VECTORS}))


@pytest.mark.parametrize("kind", ["txt", "vec", "npz", "safetensors"])
def test_all_formats_give_the_same_vectors(tmp_path, kind):
    found = word_vectors.read(write(tmp_path, kind))
    assert list(found.words) == ["cat", "café"]
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, VECTORS)


def test_vectors_of_different_widths_are_reported_with_their_lines(tmp_path):
    path = write_file(tmp_path, "v.txt", "cat 1 2 3\n\ndog 1 2\n")
    assert_mentions(message_of(word_vectors.read, path), path, "line 3", "dog", "2 numbers", "line 1", "3")


@pytest.mark.parametrize(
    "name, content, facts",
    [
        ("v.txt", "cat 1 x 3\n", ["line 1", "cat 1 x 3"]),
        ("v.txt", b"cat 1 2\n\xff 1 2\n", ["line 2", "UTF-8"]),
        ("v.txt", "\n", ["no word vectors"]),
        ("v.txt", "cat 1 2\ndog nan 2\n", ["vector 2", "NaN"]),
        ("v.npz", b"PK\x03\x04nothing", ["damaged", ".npz"]),
        ("v.safetensors", b"\x00" * 20, ["damaged", ".safetensors"]),
        ("v.bin", "cat 1\n", [".txt", ".npz"]),
    ],
)
def test_wrong_files_are_reported(tmp_path, name, content, facts):
    path = write_file(tmp_path, name, content)
    assert_mentions(message_of(word_vectors.read, path), path, *facts)


def test_a_pickle_in_an_npz_file_is_not_loaded(tmp_path):
    path = str(tmp_path / "v.npz")
    np.savez(path, words=np.array(["cat", None], object), vectors=VECTORS)
    assert_mentions(message_of(word_vectors.read, path), path, "allow_pickle=False")


def test_arrays_that_do_not_belong_together_are_reported(tmp_path):
    path = str(tmp_path / "v.npz")
    np.savez(path, words=np.array(["cat"]), vectors=VECTORS)
    assert_mentions(message_of(word_vectors.read, path), path, "[1, width]", "[2, 3]")
    np.savez(path, words=np.array(["cat"]))
    assert_mentions(message_of(word_vectors.read, path), path, "'vectors'")
