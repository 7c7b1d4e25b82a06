"""A remote file system for tests: TensorFlow's `ram://`, which lives in the memory of the process.

It has a quirk that buckets do not have: the beginning of a path counts as a folder. TensorFlow 1.15 has no `ram://`, so
there, the tests use the scheme `file://`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from typing import Dict, List

import tensorflow.compat.v1 as tf


def new_bucket() -> str:
    """Return a new remote folder."""
    bucket = f"ram://{uuid.uuid4().hex}"
    try:
        tf.gfile.MakeDirs(bucket)
    except tf.errors.UnimplementedError:
        folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/tmp"))
        atexit.register(shutil.rmtree, folder)
        bucket = f"file://{folder}"
    return bucket


def upload(path: str, target: str) -> str:
    """Copy a local file or folder; return the remote path."""
    if os.path.isfile(path):
        tf.gfile.Copy(path, target)
    for folder, _, names in os.walk(path):
        tf.gfile.MakeDirs(target + folder[len(path) :])
        for name in names:
            tf.gfile.Copy(os.path.join(folder, name), os.path.join(target + folder[len(path) :], name))
    return target


def write_text(path: str, text: str) -> str:
    """Write a file; return its path."""
    with tf.gfile.GFile(path, "w") as file:
        file.write(text)
    return path


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with tf.gfile.GFile(path, "rb") as file:
        return file.read()


def read_text(path: str) -> str:
    """Return the content of a file in UTF-8."""
    return read_bytes(path).decode("utf-8")


def names_in(folder: str) -> List[str]:
    """Return the names of the files of a run, without those that contain the time."""
    return sorted(name for name in tf.gfile.ListDirectory(folder) if not name.startswith("events.out"))


def content_of(folder: str) -> Dict[str, bytes]:
    """Return the content of all files in a folder, by path."""
    found = [os.path.join(below, name) for below, _, names in tf.gfile.Walk(folder) for name in names]
    return {path: read_bytes(path) for path in found}
