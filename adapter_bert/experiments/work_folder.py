"""A folder of work that several processes share: runs that they claim by locking them."""

from __future__ import annotations

import os
from typing import Optional

from adapter_bert.common import errors, files, json_files, locks, paths

_CRASHES_FILE = "crashes.json"
# Number of times that a run may kill its worker, e.g. by running out of memory, before it counts as failed.
MAX_CRASHES = 3


class WorkFolder:
    """The folder of a sweep or a search.

    Attributes:
      path: path of the folder.
    """

    # In messages: what the folder belongs to, and the flags that name it.
    kind = "work"
    flags = "--output_dir"

    def __init__(self, path: str) -> None:
        if paths.is_remote(path):
            raise errors.UserError(f"The folder of a {self.kind}, {self.flags}, must be local; found {path}.")
        self.path = path

    def file(self, *names: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, *names)

    def claim_folder(self, folder: str) -> Optional[locks.Lock]:
        """Create and lock the folder of a run; return None if another process has it."""
        os.makedirs(folder, exist_ok=True)
        lock = locks.acquire(os.path.join(folder, ".lock"))
        if lock:
            lock.write({"pid": os.getpid()})
        return lock

    def count_crash(self, folder: str) -> int:
        """Record that the run in a folder has killed its worker; return how often it has."""
        os.makedirs(folder, exist_ok=True)
        count = 1 + self.crashes(folder)
        files.write_json(os.path.join(folder, _CRASHES_FILE), {"count": count})
        return count

    def crashes(self, folder: str) -> int:
        """Return how often the run in a folder has killed its worker."""
        path = os.path.join(folder, _CRASHES_FILE)
        return int(json_files.read_object(path).get("count", 0)) if os.path.exists(path) else 0
