"""Locks on local files that end with their process, however it ends.

They are advisory (`flock`). On Linux they also work between machines that share a folder over NFS. Remote paths
(`gs://…`) have no locks: everybody gets one, so at most one process may write there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import IO, Any, Iterator, Mapping, Optional

from adapter_bert.common import paths

_POLL_SECONDS = 0.05
# How a lock starts, unless it is empty. Other files are never changed or removed.
_START = b'{"pid"'
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class Lock:
    """An exclusive lock, see `acquire`."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path = path
        self._file = file

    def write(self, holder: Mapping[str, Any]) -> None:
        """Write a JSON object, whose first key is `pid`, for other processes to read."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(holder).encode())

    def release(self, remove: bool = True) -> None:
        """Release the lock, and remove its file unless `remove` is false."""
        if remove:
            with contextlib.suppress(OSError):  # the file, or its folder, may be gone
                os.remove(self._path)
        self._file.close()


class _NoLock(Lock):
    """What `acquire` returns for a remote path."""

    def __init__(self) -> None:
        pass

    def write(self, holder: Mapping[str, Any]) -> None:
        """Do nothing."""

    def release(self, remove: bool = True) -> None:
        """Do nothing."""


def acquire(path: str, create: bool = True) -> Optional[Lock]:
    """Lock a file without waiting; return None if another holder has it. Links are not followed.

    On a file system without locks, the file counts as locked, or, without `create`, as held by others. A remote path
    counts as locked.

    Raises:
      OSError: the file cannot be opened, is not a lock or, without `create`, does not exist.
    """
    if paths.is_remote(path):
        return _NoLock()
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    while True:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(os.open(path, flags, 0o666), "r+b", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                if not create:
                    return None
            if _is_at(file, path):
                if not _is_own(file):
                    raise OSError(errno.EEXIST, "this is not a lock of this program; move it elsewhere", path)
                stack.pop_all()
                return Lock(path, file)
            # Its last holder has removed the file: try again with a new one.


def _is_own(file: IO[bytes]) -> bool:
    """Return whether a file is a lock, and not a user's file or a second link to one."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and _START.startswith(file.read(len(_START)))


def _is_at(file: IO[bytes], path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Wait for a lock and hold it during the block."""
    lock = acquire(path)
    while lock is None:
        time.sleep(_POLL_SECONDS)
        lock = acquire(path)
    try:
        yield
    finally:
        lock.release()
