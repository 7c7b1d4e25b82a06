"""The Optuna study of a search: storage, sampler and pruner, and its trials.

A trial belongs to the process that holds its lock, so the trial of a killed process is free at once, and another
process continues it from its checkpoint under the same number.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Dict, List, Optional

from adapter_bert.baselines.search_folder import JOURNAL_FILE, Search, SearchFolder, check_same
from adapter_bert.common import errors, locks

# Environment variable with the address of the storage, which may contain a password.
STORAGE_VARIABLE = "ADAPTER_BERT_STUDY_STORAGE"
_IDENTITY = "search"
_STARTUP_TRIALS, _WARMUP_EVALUATIONS = 10, 2
_SERVERS = ("postgresql://", "postgresql+psycopg2://", "postgresql+psycopg://")


def import_optuna() -> Any:
    """Import Optuna, or raise a `UserError` that says how to install it."""
    try:
        import optuna
    except ImportError:
        raise errors.UserError("A search needs the package optuna: pip install -e '.[search]' (Python 3.9+).") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def check_storage(address: Optional[str]) -> None:
    """Raise a `UserError` for a storage that several processes cannot share."""
    if address and not address.startswith(_SERVERS):
        kind = address.partition("://")[0]
        why = ": SQLite loses trials if several processes write" if kind.startswith("sqlite") else ""
        raise errors.UserError(
            f"--storage={kind}://… is not supported{why}. Use {_SERVERS[0]}USER:PASSWORD@HOST/DATABASE, or leave it "
            "out for a journal file in --output_dir."
        )


def without_password(address: Optional[str]) -> Optional[str]:
    """Return the address of a storage without user and password, to be recorded."""
    if not address:
        return None
    kind, _, rest = address.partition("://")
    return f"{kind}://{rest.rpartition('@')[2].partition('?')[0]}"


class _JournalLock:
    """The lock of a journal. It ends with its process, unlike Optuna's own, for which others wait half a minute."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: Any = None

    def acquire(self) -> bool:
        """Wait for the lock. A process that was killed while writing may have left an incomplete line: remove it."""
        self._held = locks.held(self._path + ".lock")
        self._held.__enter__()
        with open(self._path, "r+b") as file:
            content_end = file.seek(0, os.SEEK_END)
            file.seek(max(0, content_end - 2**20))
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.truncate(content_end - len(tail) + tail.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.__exit__(None, None, None)


def _with_driver(address: str) -> str:
    """Name the installed driver in an address without one: the default of SQLAlchemy depends on its version."""
    for driver in ("psycopg2", "psycopg"):
        if address.startswith(_SERVERS[0]) and importlib.util.find_spec(driver):
            return f"postgresql+{driver}{address[len('postgresql') :]}"
    return address


def open_storage(folder: SearchFolder, address: Optional[str]) -> Any:
    """Return the storage of a study: a journal in the folder, or a server."""
    optuna = import_optuna()
    if not address:
        from optuna.storages.journal import JournalFileBackend

        path = folder.file(JOURNAL_FILE)
        lock: Any = _JournalLock(path)
        try:
            return optuna.storages.JournalStorage(JournalFileBackend(path, lock))
        except (ValueError, KeyError) as error:
            raise errors.UserError(f"The study {path} is damaged: {errors.reason(error)}. Restore it.") from None
    try:
        return optuna.storages.RDBStorage(_with_driver(address), engine_kwargs={"pool_pre_ping": True})
    except ImportError as error:
        raise errors.UserError(f"--storage: {errors.reason(error)}: pip install -e '.[search]'.") from None
    except Exception as error:  # the drivers raise many types
        reason = errors.reason(error)
        raise errors.UserError(
            f"The server at --storage={without_password(address)} does not answer: {reason}."
        ) from None


class Study:
    """The trials of a search."""

    def __init__(self, folder: SearchFolder, search: Search, address: Optional[str] = None) -> None:
        """Open the study, or create it; raise a `UserError` if the storage has another search under this name."""
        self._optuna = import_optuna()
        self.folder, self.search = folder, search
        storage = open_storage(folder, address or os.environ.get(STORAGE_VARIABLE))
        pruner = self._optuna.pruners.MedianPruner(_STARTUP_TRIALS, n_warmup_steps=0)
        self._study = self._optuna.create_study(
            storage=storage, study_name=search.study, direction="maximize", load_if_exists=True, pruner=pruner
        )
        recorded = self._study.user_attrs.get(_IDENTITY)
        if recorded is None:
            self._study.set_user_attr(_IDENTITY, search.identity())
        else:
            check_same(recorded, search.identity(), f"The storage, under the name {search.study},")

    @property
    def optuna_study(self) -> Any:
        """The study as Optuna's functions expect it."""
        return self._study

    def trials(self) -> List[Any]:
        """Return all trials, in order."""
        return list(self._study.get_trials(deepcopy=False))

    def is_done(self) -> bool:
        """Return whether all trials have finished."""
        trials = self.trials()
        return len(trials) >= self.search.trials and all(trial.state.is_finished() for trial in trials)

    def next_trial(self) -> Optional[OwnTrial]:
        """Return a trial of a killed process, or a new one; None if other processes run all that are left."""
        for found in self.trials():
            if not found.state.is_finished():
                lock = self.folder.claim("trials", str(found.number))
                if lock is None:
                    continue
                # It may have finished before its process released the lock.
                if not self._study._storage.get_trial(found._trial_id).state.is_finished():
                    return self._own(found._trial_id, found.number, lock)
                lock.release()
        with self.folder.adding_trials():
            if len(self.trials()) >= self.search.trials:
                return None
            created = self._study.ask()
            lock = self.folder.claim("trials", str(created.number))
        return self._own(created._trial_id, created.number, lock) if lock else self.next_trial()

    def _own(self, trial_id: int, number: int, lock: locks.Lock) -> OwnTrial:
        # Constructed for each trial, so that its choice depends only on the trials before it.
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=self.search.trial_seed(number), n_startup_trials=_STARTUP_TRIALS, constant_liar=True
        )
        return OwnTrial(self._optuna, self._study, self._optuna.trial.Trial(self._study, trial_id), lock)

    def best(self) -> Optional[Any]:
        """Return the trial with the highest score and, among equals, the lowest loss; None if none has a score."""
        complete = [trial for trial in self.trials() if trial.state.name == "COMPLETE"]
        infinite = sys.float_info.max
        return max(
            complete,
            key=lambda trial: (trial.value, -trial.user_attrs.get("loss", infinite), -trial.number),
            default=None,
        )

    def counts(self) -> Dict[str, int]:
        """Return the number of trials of each state."""
        states = [trial.state.name for trial in self.trials()]
        return {name: states.count(name) for name in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")}


class OwnTrial:
    """A trial that this process runs.

    Attributes:
      trial: Optuna's trial.
      number: number of the trial, from 0.
    """

    def __init__(self, optuna: Any, study: Any, trial: Any, lock: locks.Lock) -> None:
        self._optuna, self._study, self._lock = optuna, study, lock
        self.trial = trial
        self.number: int = trial.number

    def report(self, step: int, score: float) -> None:
        """Report a score of the dev split; raise `TrialPruned` if the trial is worse than the median so far."""
        self.trial.report(score, step)
        evaluations = len(self._study._storage.get_trial(self.trial._trial_id).intermediate_values)
        if evaluations > _WARMUP_EVALUATIONS and self.trial.should_prune():
            raise self._optuna.TrialPruned

    @property
    def pruned_error(self) -> Any:
        """The exception that `report` raises."""
        return self._optuna.TrialPruned

    def finish(self, state: str, value: Optional[float], attributes: Dict[str, Any]) -> None:
        """Record the result: `COMPLETE`, `PRUNED` or `FAIL`."""
        for name, content in attributes.items():
            self.trial.set_user_attr(name, content)
        states = self._optuna.trial.TrialState
        self._study.tell(self.trial, value if state == "COMPLETE" else None, state=states[state])

    def release(self) -> None:
        """Let other processes see that this one no longer runs the trial."""
        self._lock.release()
