"""Putting files and folders in place for good, on a local or shared file system, with other processes doing the same.

What is to appear is written under a temporary name, `<name>.<token>.partial`, and then moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from typing import Iterator, Optional

try:
    import fcntl
except ImportError:  # Windows, where a rename refuses by itself to replace a file
    fcntl = None

# A writer that has not touched its temporary file for so long is dead. Had it only slept, it fails when it wakes up.
LEFTOVER_SECONDS = 3600

_LEFTOVER = r"\.[0-9a-f]{8}\.partial"
# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def token() -> str:
    """A part of a temporary name that no other writer has."""
    return uuid.uuid4().hex[:8]


def write_synced(path: str, data: bytes) -> None:
    """Writes a new file to the disk itself: a rename may outlive a power cut that the bytes do not."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def rename_noreplace(temporary: str, final: str) -> None:
    """Gives a complete file its name. The temporary name may stay as a second one, for the caller to remove.

    Raises:
      FileExistsError: the name is taken, perhaps since a moment ago; of several processes, one gets it.
    """
    try:
        os.link(temporary, final)
        return
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    with _locked(os.path.join(os.path.dirname(final), ".lock")):
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final)
        os.rename(temporary, final)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lets one process at a time in; one that dies is out."""
    with open(path, "ab") as file:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def move_new_folder(temporary: str, final: str) -> None:
    """Gives a complete folder its name; an empty folder may be there.

    Raises:
      FileExistsError: there is something else.
    """
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from None
        raise


def remove_leftovers(folder: str, of: Optional[str], now: float) -> None:
    """Removes what dead writers left. By age, not by process: several machines may write to a folder.

    Args:
      folder: where to look.
      of: what was to be written; None for whatever it was.
      now: on the clock of the file system, e.g. the time of a file just written: it may not be this machine's.
    """
    pattern = re.compile((".+" if of is None else re.escape(of)) + _LEFTOVER)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if pattern.fullmatch(name):
            with contextlib.suppress(OSError):  # another process may be faster
                if now - _last_touched(path) > LEFTOVER_SECONDS:
                    if os.path.isdir(path):
                        shutil.rmtree(path)
                    else:
                        os.remove(path)


def _last_touched(path: str) -> float:
    inside = [os.path.join(top, name) for top, folders, names in os.walk(path) for name in folders + names]
    return max(os.lstat(each).st_mtime for each in [path] + inside)
