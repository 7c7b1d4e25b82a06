"""Disturb commands in every way, and print how many cases held.

    python -m tests.faults.sweep --work=/tmp/faults --commands='bank *' --kinds=kill,full --seconds=300

Results are appended to `<work>/results.jsonl`; a second call continues with what is missing. For another commit, use
another folder.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import random
import re
import threading
import time
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from tests.faults.cases import OTHER_SEED, STREAMS, WRITES, Case, Trial, Workshop
from tests.faults.commands import COMMANDS
from tests.faults.harness import FaultServer

KINDS = ("kill", "full", "read only", "two starts", "streams")


def _spread(count: int, number: int) -> List[int]:
    """Return up to `number` of the integers from 1 to `count`, evenly spaced."""
    return sorted({1 + index * count // number for index in range(number)}) if count else []


def _ends_of_series(operations: Sequence[str], numbers: Sequence[int]) -> List[int]:
    """Return the first and last of consecutive equal operations, e.g. of those that write one file."""
    lines = ["", *operations, ""]
    return [at for at in numbers if not lines[at - 1] == lines[at] == lines[at + 1]]


def cases_of(name: str, kind: str, operations: Sequence[str]) -> List[Case]:
    """Return the cases of one kind for a command; `operations` are those of an undisturbed run.

    A slow command is killed at every operation by way of snapshots; here are a few real kills to compare with.
    """
    command, count = COMMANDS[name], len(operations)
    if kind == "streams":
        return [Case(name, kind, where=where) for where in STREAMS]
    if kind == "read only":
        # A run that cannot write to the folder `features` uses another.
        whole = [Case(name, kind, 1, where) for where in ("", *command.outputs) if where != "features"]
        later = _spread(count, 5) if command.is_slow else list(range(1, count + 1))
        return whole + [Case(name, kind, at) for at in later if at > 1]
    if kind == "full":
        numbers = [at for at, line in enumerate(operations, 1) if WRITES.match(line)]
        return [Case(name, kind, at) for at in (_ends_of_series(operations, numbers) if command.is_slow else numbers)]
    if kind == "two starts" and command.is_slow:
        seeds = [OTHER_SEED] if "--do_train=true" in command.line else []
        return [Case(name, kind, at, where) for where in ["", *seeds] for at in _spread(count, 8) or [1]]
    if kind == "two starts":
        return [Case(name, kind, at) for at in range(1, max(count, 1) + 1)]
    return [Case(name, kind, at) for at in (_spread(count, 5) if command.is_slow else range(1, count + 1))]


class Results:
    """The outcome of each case, in a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.problems: Dict[Tuple[str, ...], List[str]] = {}
        if os.path.exists(path):
            with open(path) as file:
                for line in file:
                    key, problems = json.loads(line)
                    self.problems[tuple(key)] = problems

    def add(self, keys: Sequence[Sequence[object]], problems: List[str]) -> None:
        """Record cases with the same outcome."""
        with self._lock, open(self._path, "a") as file:
            for key in keys:
                self.problems[tuple(map(str, key))] = problems
                file.write(json.dumps([list(map(str, key)), problems]) + "\n")

    def failures(self) -> str:
        """Return a line per command, kind and problem, with the operations at which it occurred."""
        found: Dict[Tuple[str, ...], List[str]] = {}
        for (name, kind, at, where), problems in self.problems.items():
            for problem in problems:
                # Temporary names differ from case to case.
                text = re.sub(r"[0-9a-f]{8,}|\d{8,}", "#", re.sub(r"\S*/root\d", "", problem))
                found.setdefault((name, kind, where, text), []).append(at)
        return "\n".join(f"{', '.join(filter(None, key))} [at {' '.join(at)}]" for key, at in found.items())

    def table(self) -> str:
        """Return a table: command, then tried and held cases of each kind."""
        kinds = list(dict.fromkeys(key[1] for key in self.problems))
        lines = ["| command | " + " | ".join(kinds) + " | tried | held |", "|---" * (len(kinds) + 3) + "|"]
        totals = [(name, name) for name in COMMANDS] + [("all", None)]
        for title, name in totals:
            cells, tried, held = [], 0, 0
            for kind in kinds:
                found = [not v for k, v in self.problems.items() if k[1] == kind and name in (k[0], None)]
                cells.append(f"{sum(found)}/{len(found)}" if found else "")
                tried, held = tried + len(found), held + sum(found)
            if tried:
                lines.append(f"| {title} | {' | '.join(cells)} | {tried} | {held} |")
        return "\n".join(lines)


Job = Callable[[Trial], None]


def _jobs(
    workshop: Workshop, server: FaultServer, results: Results, names: List[str], kinds: List[str]
) -> Iterator[Job]:
    """Yield functions that try one case and record it; cases that were tried are left out."""
    for name in names:
        operations = workshop.expected(server, name).outcome.operations
        for case in (case for kind in kinds for case in cases_of(name, kind, operations)):
            if tuple(map(str, case)) not in results.problems:
                yield lambda trial, case=case: results.add([case], trial.run(case))
        if "kill" in kinds and COMMANDS[name].is_slow and operations:
            for state, numbers in workshop.snapshots(server, name).items():
                keys = [(name, "kill (snapshot)", number, "") for number in numbers]
                if tuple(map(str, keys[0])) not in results.problems:
                    yield lambda trial, keys=keys, state=state: results.add(keys, trial.recover(keys[0][0], state))


def run(
    work: str, names: List[str], kinds: List[str], processes: int, seconds: float = float("inf")
) -> Tuple[Results, int]:
    """Try all cases that have not been tried, for at most `seconds`; return the results and what is left."""
    os.makedirs(work, exist_ok=True)
    workshop, results = Workshop(work), Results(os.path.join(work, "results.jsonl"))
    deadline = time.monotonic() + seconds
    with FaultServer() as server:
        jobs = list(_jobs(workshop, server, results, names, kinds))
    random.Random(1).shuffle(jobs)  # so that a part of the sweep says something about all commands
    queue = iter(jobs)
    lock, done = threading.Lock(), []

    def next_job() -> Optional[Job]:
        with lock:
            return next(queue, None) if time.monotonic() < deadline else None

    def work_off(worker: int) -> None:
        with FaultServer() as server:
            trial = Trial(workshop, server, f"root{worker}")
            for job in iter(next_job, None):
                job(trial)
                done.append(job)

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        for future in [pool.submit(work_off, worker) for worker in range(processes)]:
            future.result()
    return results, len(jobs) - len(done)


def main() -> None:
    """Parse the flags, try the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, help="folder for inputs, results and temporary files")
    parser.add_argument("--commands", default="*", help="names, with wildcards; separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--processes", type=int, default=2, help="default: 2")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    args = parser.parse_args()
    patterns = args.commands.split(",")
    names = [name for name in COMMANDS if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    results, left = run(args.work, names, args.kinds.split(","), args.processes, args.seconds)
    print(results.failures())
    print(results.table())
    print(f"{left} cases are left." if left else "All cases were tried.")


if __name__ == "__main__":
    main()
