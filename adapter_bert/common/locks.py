"""Locks on local files that end with their process, however it ends.

They are advisory (`flock`). On Linux they also work between machines that share a folder over NFS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import IO, Iterator, Optional

_POLL_SECONDS = 0.05
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class Lock:
    """An exclusive lock, see `acquire`."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path = path
        self._file = file

    def write(self, content: bytes) -> None:
        """Replace the content of the file, which other processes may read."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(content)

    def release(self, remove: bool = True) -> None:
        """Release the lock, and remove its file unless `remove` is false."""
        if remove:
            with contextlib.suppress(OSError):  # the file, or its folder, may be gone
                os.remove(self._path)
        self._file.close()


def acquire(path: str, create: bool = True) -> Optional[Lock]:
    """Lock a file without waiting; return None if another holder has it. Links are not followed.

    On a file system without locks, the file counts as locked, or, without `create`, as held by others.

    Raises:
      OSError: the file cannot be opened, is not a regular file or, without `create`, does not exist.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    while True:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(os.open(path, flags, 0o666), "r+b", buffering=0))
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
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
                stack.pop_all()
                return Lock(path, file)
            # Its last holder has removed the file: try again with a new one.


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
