"""Atomic writes, JSON, folders, and renames that never replace an existing name.

All files of the project are written here. A file or folder is written under the temporary name
`<name>.<8 hex digits>.partial` and renamed when it is complete, so that readers never see an incomplete one.

    write_bytes, write_text, write_json    one file; `atomic_write` for other writers
    staging_folder                         several files that appear together
    rename_noreplace                       a name that only one of several writers may take
    rename_folder_noreplace                the same for a folder
    replace_folder                         a folder that replaces another

Unless stated otherwise, paths may have a scheme that `tf.gfile` supports (`gs://…`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import re
import shutil
import uuid
from typing import Any, Dict, Iterator, Mapping, Optional

import filelock

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf

# A writer that has not touched its temporary file for this long is considered dead. If it was only suspended, it fails
# when it resumes.
LEFTOVER_SECONDS = 3600

_TEMPORARY = r"\.[0-9a-f]{8}\.partial"
# Linux constants that Python does not define.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Errors that file systems without hard links raise.
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def user_errors(failure: str = "File system error") -> Iterator[None]:
    """Turn file system errors (permissions, disk space, unknown scheme) into a `UserError`."""
    try:
        yield
    except (FileExistsError, BrokenPipeError):  # raised by `rename_noreplace`, and by `| head`
        raise
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(f"{failure}: {errors.reason(error)}.") from None


def _temporary_name(path: str) -> str:
    return f"{path}.{uuid.uuid4().hex[:8]}.partial"


@contextlib.contextmanager
def temporary_file(path: str) -> Iterator[str]:
    """Yield a name next to `path` that no other writer uses; on exit, remove the file unless it was renamed."""
    temporary = _temporary_name(path)
    try:
        yield temporary
    finally:
        if tf.gfile.Exists(temporary):
            tf.gfile.Remove(temporary)


@contextlib.contextmanager
def atomic_write(path: str, replace: bool = True) -> Iterator[str]:
    """Yield a temporary path to write to; rename the file to `path` when the block succeeds, else remove it.

    With `replace=False`, the path must be local, and `FileExistsError` is raised if it exists, see `rename_noreplace`.
    """
    with temporary_file(path) as temporary:
        yield temporary
        if "://" not in temporary:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())  # the rename may survive a power cut that unwritten data does not
        if replace:
            tf.gfile.Rename(temporary, path, overwrite=True)
        else:
            rename_noreplace(temporary, path)


def write_bytes(path: str, data: bytes, replace: bool = True) -> None:
    """Write a file atomically, see `atomic_write`."""
    with user_errors(), atomic_write(path, replace) as temporary, tf.gfile.GFile(temporary, "wb") as writer:
        writer.write(data)


def write_text(path: str, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; non-finite floats become null."""
    write_text(path, json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Return the value with None in place of non-finite floats."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_bytes(path: str, failure: str) -> bytes:
    try:
        with tf.gfile.GFile(path, "rb") as reader:
            return reader.read()
    except tf.errors.NotFoundError:
        raise errors.UserError(f"{failure}: there is no file of this name.") from None
    except tf.errors.OpError as error:
        raise errors.UserError(f"{failure}: {errors.reason(error)}.") from None


def read_json_object(path: str, advice: str = "Restore the file, or use another folder.") -> Dict[str, Any]:
    """Read a JSON object; raise a `UserError` that ends with `advice` if the file contains anything else."""
    data = _read_bytes(path, f"Cannot read {path}")
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise errors.UserError(f"{path} is damaged, or not JSON ({errors.reason(error)}). {advice}") from None
    if not isinstance(content, dict):
        found = type(content).__name__
        raise errors.UserError(f"{path} is damaged: expected a JSON object, found a {found}. {advice}")
    return content


def read_input(path: str, kind: str, flag: str) -> bytes:
    """Read a file that the user specified with a flag; raise a `UserError` if it cannot be read or is empty."""
    content = _read_bytes(path, f"Cannot read the {kind} {path}; check {flag}")
    if not content.strip():
        raise errors.UserError(f"The {kind} {path} is empty; check {flag}.")
    return content


def check_absent(path: str, flag: str = "--output") -> None:
    """Raise a `UserError` if the path, which `flag` sets, exists. The script must also have the flag `--overwrite`."""
    if tf.gfile.Exists(path):
        raise errors.UserError(f"{path} already exists; choose another {flag}, or add --overwrite to replace it.")


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    with user_errors():
        return tf.gfile.Stat(path).length


def make_folder(path: str) -> None:
    """Create a folder and its parents, unless it exists."""
    with user_errors(f"Cannot create the folder {path}"):
        tf.gfile.MakeDirs(path)


def writable_folder(*candidates: str) -> str:
    """Return the first folder that is writable, creating it if necessary. The last one is returned without a check."""
    for folder in candidates[:-1]:
        try:
            make_folder(folder)
            with temporary_file(os.path.join(folder, "probe")) as probe:
                write_bytes(probe, b"")
            return folder
        except (errors.UserError, tf.errors.OpError):
            tf.logging.info("Cannot write to the folder %s; using another.", folder)
    make_folder(candidates[-1])
    return candidates[-1]


@contextlib.contextmanager
def staging_folder(path: str) -> Iterator[str]:
    """Yield a new local folder next to `path`, from which the block moves files; on exit, remove it and leftovers."""
    staging = _temporary_name(path)
    os.makedirs(staging)
    try:
        remove_leftovers(os.path.dirname(path), os.path.basename(path), os.stat(staging).st_mtime)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_leftovers(folder: str, name: Optional[str], now: float) -> None:
    """Remove temporary files of dead writers of `name`, or of any name, in a local folder.

    Judge by age, because other machines may be writing to the folder; `now` is the time of a new file.
    """
    pattern = re.compile((".+" if name is None else re.escape(name)) + _TEMPORARY)
    for path in (os.path.join(folder, entry) for entry in os.listdir(folder or ".") if pattern.fullmatch(entry)):
        with contextlib.suppress(OSError):  # another process may have removed it
            inside = [os.path.join(top, each) for top, folders, names in os.walk(path) for each in folders + names]
            if now - max(os.lstat(each).st_mtime for each in [path, *inside]) > LEFTOVER_SECONDS:
                remove = shutil.rmtree if os.path.isdir(path) else os.remove
                remove(path)


def rename_noreplace(temporary: str, final: str) -> None:
    """Rename a complete local file. The temporary name may remain as a second link, which the caller removes.

    Raises:
      FileExistsError: the new name is taken. If several processes try, one succeeds.
    """
    try:
        os.link(temporary, final)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:  # includes the case that the name is taken
            raise
    with filelock.FileLock(os.path.join(os.path.dirname(final), ".lock")):
        if os.path.lexists(final):
            raise _taken(final)
        os.rename(temporary, final)


def rename_folder_noreplace(temporary: str, final: str) -> None:
    """Rename a complete local folder. Raise `FileExistsError` if the name is taken, except by an empty folder."""
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST):
            raise _taken(final) from None
        raise


def replace_folder(temporary: str, final: str) -> None:
    """Rename a complete local folder. An existing folder `final` gets the temporary name, which the caller removes.

    Linux swaps the two names in one step. Where the system or the file system cannot do that, a process that is killed
    between two renames leaves the old folder, complete, as `<final>.<8 hex digits>.old`.
    """
    if not os.path.isdir(final):
        os.rename(temporary, final)
    elif not _swap(temporary, final):
        older = temporary[: -len("partial")] + "old"
        os.rename(final, older)
        try:
            os.rename(temporary, final)
        except OSError:
            os.rename(older, final)
            raise
        os.rename(older, temporary)


def _swap(one: str, other: str) -> bool:
    """Swap the names of two folders in one step; return whether this is supported here."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # macOS, or a C library from before 2018
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):  # not supported by the kernel, by the file system
        return False
    raise OSError(number, os.strerror(number), other)


def _taken(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
