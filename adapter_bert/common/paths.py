"""Predicates and names for local and remote paths.

A remote path has a scheme, e.g. `gs://bucket/run`, and is accessed through `tf.gfile`. Local paths do not need
TensorFlow, so that a mistake on the command line is reported before its slow import.
"""

from __future__ import annotations

import os
import pathlib
from typing import Iterator, List

from adapter_bert.common.lazy_tensorflow import tf


def is_remote(path: str) -> bool:
    """Return whether a path has a scheme."""
    return "://" in path


def with_parents(path: str) -> Iterator[str]:
    """Yield the real path of a file or folder, which need not exist, and of all folders that it is in."""
    if is_remote(path):
        scheme, _, rest = path.partition("://")
        parts = rest.rstrip("/").split("/")
        yield from (f"{scheme}://{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1))
    else:
        local = pathlib.Path(os.path.realpath(path))
        yield from map(str, (local, *local.parents))


def real(path: str) -> str:
    """Return the canonical path of a file or folder, to compare paths. Links in a local path are resolved."""
    return next(with_parents(path))


def exists(path: str) -> bool:
    """Return whether there is a file or folder."""
    return tf.gfile.Exists(path) if is_remote(path) else os.path.exists(path)


def is_taken(path: str) -> bool:
    """Return whether there is a file, a folder or a link, even a broken one."""
    return tf.gfile.Exists(path) if is_remote(path) else os.path.lexists(path)


def is_file(path: str) -> bool:
    """Return whether a path is a file, or a link to one."""
    return tf.gfile.Exists(path) and not tf.gfile.IsDirectory(path) if is_remote(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Return whether a path is a folder, or a link to one."""
    return tf.gfile.IsDirectory(path) if is_remote(path) else os.path.isdir(path)


def names_in(folder: str) -> List[str]:
    """Return the sorted names in a folder; none if there is no folder."""
    if not is_folder(folder):
        return []
    found = tf.gfile.ListDirectory(folder) if is_remote(folder) else os.listdir(folder)
    return sorted(name.rstrip("/") for name in found)  # buckets mark folders with a slash
