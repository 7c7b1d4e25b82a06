"""Writing results so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import Any, Dict, Iterator

import tensorflow.compat.v1 as tf

import errors


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns what the file system refuses (no rights, no space, unknown scheme) into a `UserError`."""
    try:
        yield
    except tf.errors.OpError as error:
        raise errors.UserError(f"The file system refused: {errors.reason(error)}.") from None


def make_folder(path: str) -> None:
    """Creates a folder with its parents, if it is not there."""
    try:
        tf.gfile.MakeDirs(path)
    except tf.errors.OpError as error:
        raise errors.UserError(f"The folder {path} cannot be made: {errors.reason(error)}.") from None


def read_json(path: str) -> Dict[str, Any]:
    """Reads a JSON object that an earlier run wrote.

    Raises:
      errors.UserError: it is damaged.
    """
    with reported(), tf.gfile.GFile(path, "rb") as reader:
        data = reader.read()
    try:
        content = json.loads(data.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise errors.UserError(f"{path} is damaged ({errors.reason(error)}): use another --output_dir.") from None
    return content


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 text file, see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file under a temporary name and renames it, over an older one if there is one."""
    partial = f"{path}.{uuid.uuid4().hex[:8]}.partial"
    with reported():
        try:
            with tf.gfile.GFile(partial, "wb") as writer:
                writer.write(data)
            tf.gfile.Rename(partial, path, overwrite=True)
        except BaseException:
            if tf.gfile.Exists(partial):
                tf.gfile.Remove(partial)
            raise
