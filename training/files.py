"""Writing results so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

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


def write_text(path: str, text: str) -> None:
    """Writes a text file under a temporary name and renames it, over an older one if there is one."""
    partial = f"{path}.{os.getpid()}.partial"
    with reported():
        try:
            with tf.gfile.GFile(partial, "w") as writer:
                writer.write(text)
            tf.gfile.Rename(partial, path, overwrite=True)
        except BaseException:
            if tf.gfile.Exists(partial):
                tf.gfile.Remove(partial)
            raise
