"""Atomic writes, reading, folders, and renames that never replace an existing name.

All files of the project are written here. A file or folder is written inside a staging folder next to its final name,
`.<8 hex digits>.partial`, and renamed when it is complete, so that readers never see an incomplete one. The writer
locks a marker file in its staging folder. The next writer in the same place removes staging folders whose writer is
dead: only those with the marker, and without following links.

    write_bytes, write_text, write_json    one file; `atomic_write` for other writers
    staging_folder                         several files that appear together
    rename_noreplace                       a name that only one of several writers may take
    rename_folder_noreplace                the same for a folder
    replace_folder                         a folder that replaces another

Unless stated otherwise, paths may have a scheme that `tf.gfile` supports (`gs://…`). Such remote file systems have no
locks and cannot rename folders, so writers are not protected from each other: two of them can create the same name.
A killed process may leave a temporary file there, `.<8 hex digits>.partial.<name>`, which is never removed.
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
import stat
import uuid
from typing import Any, Iterator, Mapping, Optional, Tuple

from adapter_bert.common import errors, locks, paths
from adapter_bert.common.lazy_tensorflow import tf

# Of vocabularies; those of real models have a few MB.
MAX_INPUT_BYTES = 2**28
_FILE_TYPES = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
# Names of staging folders, and of the file in them that their writer locks.
_STAGING = re.compile(r"\.[0-9a-f]{8}\.partial")
_MARKER = ".adapter_bert.lock"
# Parts of temporary names: of local files, of remote ones, and of TensorFlow's.
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.partial[/.]|\.tempstate\d+")
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
        # Name the file as the user knows it, without the temporary names of this module and of TensorFlow.
        reason = _TEMPORARY.sub("", errors.reason(error))
        raise errors.UserError(f"{failure}: {reason}.") from None


@contextlib.contextmanager
def temporary_path(path: str) -> Iterator[str]:
    """Yield a new path of a file or folder to be renamed to `path`; on exit, remove it unless it was renamed."""
    folder, name = os.path.split(path)
    if paths.is_remote(path):
        temporary = f"{folder}/.{uuid.uuid4().hex[:8]}.partial.{name}"
        try:
            yield temporary
        finally:
            if tf.gfile.IsDirectory(temporary):
                tf.gfile.DeleteRecursively(temporary)
            elif tf.gfile.Exists(temporary):
                tf.gfile.Remove(temporary)
        return
    remove_leftovers(folder)
    try:
        staging, lock = _create_staging(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # the name that the user knows
    try:
        yield os.path.join(staging, name)
    finally:
        _remove_staging(staging, lock)


def _create_staging(folder: str) -> Tuple[str, locks.Lock]:
    while True:
        staging = os.path.join(folder, f".{uuid.uuid4().hex[:8]}.partial")
        os.mkdir(staging)
        try:
            lock = locks.acquire(os.path.join(staging, _MARKER))
            if lock is not None:
                return staging, lock
        except FileNotFoundError:
            pass  # another process took the empty folder for a leftover
        except OSError:
            os.rmdir(staging)
            raise


def _remove_staging(staging: str, lock: locks.Lock) -> None:
    """Remove a staging folder. The marker goes last, so that whoever finds the rest knows what it is."""
    try:
        for entry in os.scandir(staging):
            if entry.name != _MARKER:
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
    except OSError:
        lock.release(remove=False)
    else:
        lock.release()
        with contextlib.suppress(OSError):
            os.rmdir(staging)


def remove_leftovers(folder: str) -> None:
    """Remove the staging folders of dead writers in a folder; a remote folder has none."""
    if paths.is_remote(folder):
        return
    with contextlib.suppress(OSError):  # another process may remove them at the same time
        for entry in os.scandir(folder or "."):
            if _STAGING.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_leftover(entry.path)


def _remove_leftover(staging: str) -> None:
    with contextlib.suppress(OSError):
        names = os.listdir(staging)
        if not names:
            os.rmdir(staging)  # killed before it created the marker; a live writer tries again
        elif _MARKER in names:
            lock = locks.acquire(os.path.join(staging, _MARKER), create=False)
            if lock is not None:
                _remove_staging(staging, lock)


@contextlib.contextmanager
def atomic_write(path: str, replace: bool = True) -> Iterator[str]:
    """Yield a temporary path to write to; rename the file to `path` when the block succeeds, else remove it.

    With `replace=False`, `FileExistsError` is raised if the path exists, see `rename_noreplace`.
    """
    with temporary_path(path) as temporary:
        yield temporary
        if replace:
            rename(temporary, path)
        else:
            rename_noreplace(temporary, path)


def rename(temporary: str, path: str) -> None:
    """Rename a complete file, replacing an older one."""
    if paths.is_remote(temporary):
        tf.gfile.Rename(temporary, path, overwrite=True)
    else:
        _sync(temporary)
        os.replace(temporary, path)


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        try:
            os.fsync(file.fileno())  # the rename may survive a power cut that unwritten data does not
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None


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


def check_regular_file(path: str, failure: Optional[str] = None) -> None:
    """Raise a `UserError` if a local path is anything but a regular file: opening a FIFO or a device can block."""
    if paths.is_remote(path):
        return
    link = f" (a symbolic link to {os.readlink(path)})" if os.path.islink(path) else ""
    failure = (failure or f"Cannot read {path}") + link
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not link
        reason = "there is no file of this name" if missing else error.strerror
        raise errors.UserError(f"{failure}: {reason}.") from None
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _FILE_TYPES if is_kind(mode)), "a device")
        raise errors.UserError(f"{failure}: expected a regular file, found {kind}.")


def read_bytes(path: str, failure: str, max_bytes: int = MAX_INPUT_BYTES) -> bytes:
    """Return the content of a regular file; raise a `UserError` that starts with `failure` if it cannot be read."""
    check_regular_file(path, failure)
    with user_errors(failure), tf.gfile.GFile(path, "rb") as reader:
        if reader.size() > max_bytes:
            raise errors.UserError(f"{failure}: it has {reader.size():,} bytes; the maximum is {max_bytes:,}.")
        return reader.read()


def read_input(path: str, kind: str, flag: str) -> bytes:
    """Read a file that the user specified with a flag; raise a `UserError` if it cannot be read or is empty."""
    content = read_bytes(path, f"Cannot read the {kind} {path}; check {flag}")
    if not content.strip():
        raise errors.UserError(f"The {kind} {path} is empty; check {flag}.")
    return content


def check_absent(path: str, flag: str = "--output") -> None:
    """Raise a `UserError` if the path, which `flag` sets, exists. The script must also have the flag `--overwrite`."""
    remove_leftovers(os.path.dirname(path))  # of a command that was killed when its output was complete
    with user_errors():
        is_there = tf.gfile.Exists(path)
    if is_there:
        raise errors.UserError(f"{path} already exists; choose another {flag}, or add --overwrite to replace it.")


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path is a folder or in it, also through links and mounts. Neither need exist."""
    if paths.is_remote(path) or paths.is_remote(folder):
        return paths.real(folder) in paths.with_parents(path)
    existing = filter(os.path.exists, paths.with_parents(path))
    return os.path.exists(folder) and any(os.path.samefile(each, folder) for each in existing)


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    with user_errors():
        return tf.gfile.Stat(path).length


def make_folder(path: str) -> None:
    """Create a folder and its parents, unless it exists."""
    with user_errors(f"Cannot create the folder {path}"):
        if paths.is_remote(path):
            tf.gfile.MakeDirs(path)
        else:
            try:
                os.makedirs(path, exist_ok=True)  # with the permissions of the user's umask, unlike TensorFlow
            except FileExistsError:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def make_subfolder(path: str) -> None:
    """Create a folder in an existing one."""
    if paths.is_remote(path):
        tf.gfile.MakeDirs(path)
    else:
        os.mkdir(path)


def writable_folder(*candidates: str) -> str:
    """Return the first folder that is writable, creating it if necessary. The last one is returned without a check."""
    for folder in candidates[:-1]:
        try:
            make_folder(folder)
            with temporary_path(os.path.join(folder, "probe")) as probe, tf.gfile.GFile(probe, "wb") as writer:
                writer.write(b"")
            return folder
        except (errors.UserError, OSError, tf.errors.OpError):
            tf.logging.info("Cannot write to the folder %s; using another.", folder)
    make_folder(candidates[-1])
    return candidates[-1]


@contextlib.contextmanager
def staging_folder(path: str) -> Iterator[str]:
    """Yield a new folder to be renamed to `path`, or to move files from; on exit, remove what is left of it."""
    make_folder(os.path.dirname(path) or ".")
    with temporary_path(path) as staging:
        make_subfolder(staging)
        yield staging


def rename_noreplace(temporary: str, final: str) -> None:
    """Rename a complete file. The temporary name may remain as a second link, which the caller removes.

    Raises:
      FileExistsError: the new name is taken. If several processes try, one succeeds, unless the path is remote.
    """
    if paths.is_remote(final):
        if tf.gfile.Exists(final):
            raise _taken(final)
        tf.gfile.Rename(temporary, final)
        return
    _sync(temporary)
    try:
        os.link(temporary, final)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:  # includes the case that the name is taken
            raise
    with locks.held(os.path.join(os.path.dirname(final), ".lock")):
        if os.path.lexists(final):
            raise _taken(final)
        os.rename(temporary, final)


def rename_folder_noreplace(temporary: str, final: str) -> None:
    """Rename a complete folder. Raise `FileExistsError` if the name is taken, except by an empty folder.

    The files of a remote folder are renamed one by one, those that are not in a subfolder last.
    """
    if paths.is_remote(final):
        if paths.names_in(final):
            raise _taken(final)
        for folder, _, names in tf.gfile.Walk(temporary, in_order=False):
            target = final + folder[len(temporary) :]
            tf.gfile.MakeDirs(target)
            for name in names:
                tf.gfile.Rename(os.path.join(folder, name), os.path.join(target, name))
        return
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
        older = f"{final}.{uuid.uuid4().hex[:8]}.old"
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
