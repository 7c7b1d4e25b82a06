"""Writing results so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
from typing import Any, Dict, Iterator, Mapping

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
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
    with user_errors(), tf.gfile.GFile(path, "rb") as reader:
        data = reader.read()
    try:
        content = json.loads(data.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise errors.UserError(
            f"{path} is damaged ({errors.reason(error)}): put it back, or use another folder."
        ) from None
    return content


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Writes a JSON object; numbers that JSON has no word for (NaN, infinities) become null."""
    write_text(path, json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The value with null for every number that JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def writable_folder(*candidates: str) -> str:
    """The first of these folders, made if need be, that takes a file; the last one must."""
    for folder in candidates[:-1]:
        try:
            make_folder(folder)
            probe = os.path.join(folder, f"{uuid.uuid4().hex[:8]}.partial")
            write_bytes(probe, b"")
            tf.gfile.Remove(probe)
            return folder
        except (errors.UserError, tf.errors.OpError):
            tf.logging.info("The folder %s cannot be used; taking another.", folder)
    make_folder(candidates[-1])
    return candidates[-1]


def size(path: str) -> int:
    """Bytes of a file."""
    with user_errors():
        return tf.gfile.Stat(path).length


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 text file, see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file under a temporary name and renames it, over an older one if there is one."""
    partial = f"{path}.{uuid.uuid4().hex[:8]}.partial"
    with user_errors():
        try:
            with tf.gfile.GFile(partial, "wb") as writer:
                writer.write(data)
            if "://" not in partial:
                # A rename may outlive a power cut that the bytes do not.
                with open(partial, "rb") as written:
                    os.fsync(written.fileno())
            tf.gfile.Rename(partial, path, overwrite=True)
        except BaseException:
            if tf.gfile.Exists(partial):
                tf.gfile.Remove(partial)
            raise
