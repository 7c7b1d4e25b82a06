"""The tasks that are served: packs of a bank, whose folder is watched.

The folder is polled, because polling works on every file system, also over a network. A pack that appears is loaded,
one that disappears is removed, one that changes is replaced. A pack that cannot be loaded is reported once, and an
older version of it stays. Nothing is removed while the bank itself cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import weakref
from typing import Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, paths
from adapter_bert.serving.engine import LoadedTask
from adapter_bert.serving.server.metrics import Metrics
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.weights import bank as banks

LOGGER = logging.getLogger("adapter_bert.server")

# Size, time of the last change and inode of a file.
FileState = Tuple[int, int, int]


class TaskState(NamedTuple):
    """A task of the bank, for lists."""

    name: str
    version: Optional[int]  # that is served; None if none is
    reason: str  # why none, or not the newest, is served


class ServedBank:
    """The packs of a bank in a predictor. All methods may be called from any thread."""

    def __init__(self, bank: str, predictor: TaskPredictor, metrics: Metrics) -> None:
        self._bank = banks.Bank.open(bank)
        self._predictor = predictor
        self._metrics = metrics
        self._lock = threading.Lock()  # held while tasks change
        self._seen: Dict[str, FileState] = {}  # the file that was loaded, or failed to load
        self._problems: Dict[str, str] = {}
        self._unloaded: Set[str] = set()  # by `unload`
        self._versions: weakref.WeakKeyDictionary[LoadedTask, int] = weakref.WeakKeyDictionary()
        self._outage = ""
        self._stopping = threading.Event()
        self._watcher: Optional[threading.Thread] = None

    # ------------------------------------------------------------------------------------ for requests

    def acquire(self, name: str) -> LoadedTask:
        """Return the current version of a task, to be released; raise a `UserError` if it is not served."""
        return self._predictor.acquire(name)

    def release(self, task: LoadedTask) -> None:
        """Undo `acquire`."""
        self._predictor.release([task])

    def version(self, task: LoadedTask) -> int:
        """Return a number that depends only on the content of the pack, so that all servers of a bank agree."""
        found = self._versions.get(task)
        if found is None:
            config = task.pack_config
            described = json.dumps([task.fingerprint, config.task, list(config.labels), config.max_seq_length])
            # JavaScript's numbers have 53 bits.
            found = int.from_bytes(hashlib.sha256(described.encode()).digest()[:8], "big") >> 11
            self._versions[task] = found
        return found

    def states(self) -> List[TaskState]:
        """Return all tasks of the bank by name."""
        served = set(self._predictor.names())
        with self._lock:
            names = sorted(served | set(self._seen))
            reasons = dict.fromkeys(self._unloaded, "unloaded")
            reasons.update((name, "the pack cannot be loaded; see the log") for name in self._problems)
        found = []
        for name in names:
            version = None
            if name in served:
                try:
                    task = self.acquire(name)
                except errors.UserError:  # removed meanwhile
                    continue
                version = self.version(task)
                self.release(task)
            found.append(TaskState(name, version, reasons.get(name, "")))
        return found

    # ------------------------------------------------------------------------------------ management

    def load(self, name: str) -> None:
        """Load a pack of the bank, also after `unload`; raise a `UserError` if there is none or it is damaged."""
        with self._lock:
            state = self._scan().get(name)
            if state is None:
                raise errors.UserError(f"There is no pack '{name}' in the bank.")
            self._unloaded.discard(name)
            if state != self._seen.get(name) or name in self._problems or name not in self._predictor.names():
                self._load(name, state)
            if name in self._problems:
                raise errors.UserError(f"The pack '{name}' cannot be loaded; see the server's log.")

    def unload(self, name: str) -> None:
        """Stop serving a task in this process until `load`; its pack stays in the bank."""
        with self._lock:
            self._predictor.remove(name)
            self._unloaded.add(name)
            self._count()

    def poll(self) -> None:
        """Compare the folder with what is served, and load, replace and remove packs."""
        with self._lock:
            try:
                found = self._scan()
            except errors.UserError as error:
                if str(error) != self._outage:
                    LOGGER.error("The bank cannot be read; its tasks stay as they are: %s", error)
                self._outage = str(error)
                return
            self._outage = ""
            for name in sorted(set(self._seen) - set(found)):
                self._remove(name)
            for name, state in found.items():
                if self._stopping.is_set():
                    return
                if state != self._seen.get(name) and name not in self._unloaded:
                    self._load(name, state)

    def watch(self, seconds: float, also: Callable[[], None] = lambda: None) -> None:
        """Call `poll` and `also` at intervals in a thread, until `close`."""

        def run() -> None:
            while not self._stopping.wait(seconds):
                for action in (self.poll, also):
                    try:
                        action()
                    except Exception:  # the thread must go on
                        LOGGER.exception("Watching the bank failed.")

        self._watcher = threading.Thread(target=run, name="watch", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()

    # ------------------------------------------------------------------------------------ the folder

    def _scan(self) -> Dict[str, FileState]:
        """Return name -> state of the packs in the folder; raise a `UserError` if the bank cannot be read."""
        folder = self._bank.folder
        if not paths.is_file(os.path.join(folder, banks.FILE_NAME)):
            raise errors.UserError(f"{os.path.join(folder, banks.FILE_NAME)} is missing")
        if not paths.is_remote(folder) and not os.path.isdir(os.path.join(folder, banks.PACKS_FOLDER)):
            raise errors.UserError(f"{os.path.join(folder, banks.PACKS_FOLDER)} is missing")
        found = {}
        for name in self._bank.names():
            try:
                found[name] = _file_state(self._path(name))
            except (OSError, tf.errors.OpError):  # removed meanwhile
                continue
        return found

    def _path(self, name: str) -> str:
        return os.path.join(self._bank.folder, banks.PACKS_FOLDER, name + banks.packs.ENDING)

    def _load(self, name: str, state: FileState) -> None:
        self._seen[name] = state
        is_new = name not in self._predictor.names()
        try:
            banks.check_name(name)
            with files.user_errors():
                self._predictor.add(name, self._path(name), replace=True)
        except Exception as error:  # the other tasks must be served
            self._problems[name] = str(error)
            kept = "it is not served" if is_new else "the old version stays"
            LOGGER.error("Task %s: %s: %s", name, kept, error, exc_info=not isinstance(error, errors.UserError))
        else:
            self._problems.pop(name, None)
            LOGGER.info("Task %s: %s.", name, "added" if is_new else "replaced")
        self._count()

    def _remove(self, name: str) -> None:
        del self._seen[name]
        self._problems.pop(name, None)
        self._unloaded.discard(name)
        if name in self._predictor.names():
            self._predictor.remove(name)
            LOGGER.info("Task %s: removed.", name)
        self._metrics.forget(name)
        self._count()

    def _count(self) -> None:
        self._metrics.tasks.set(len(self._predictor.names()))
        self._metrics.problems.set(len(self._problems))


def _file_state(path: str) -> FileState:
    if paths.is_remote(path):
        remote = tf.gfile.Stat(path)
        return remote.length, remote.mtime_nsec, 0
    local = os.stat(path)
    return local.st_size, local.st_mtime_ns, local.st_ino
