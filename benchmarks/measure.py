"""Runs the processes of a plan one after another and keeps what they measured, as it comes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Sequence

from adapter_bert.common import errors
from benchmarks.plan import Entry

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS_FILE = "results.json"


class FailedError(Exception):
    """A process has failed. The text is the end of what it wrote, on one line."""


def write_file(path: str, text: str) -> None:
    """A reader never sees half of it."""
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)


class Store:
    """What has been measured so far, in a file.

    Attributes:
      entries: key -> suite, case, side, round, job, result.
      failures: key -> why.
    """

    def __init__(self, folder: str, facts: Mapping[str, Any]) -> None:
        """Reads what the folder holds.

        Args:
          folder: of the results; made if need be.
          facts: of the machine and the code.

        Raises:
          errors.UserError: the folder holds results of another machine or other code, or they are damaged.
        """
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, RESULTS_FILE)
        self.facts = dict(facts)
        self.entries: Dict[str, Dict[str, Any]] = {}
        self.failures: Dict[str, str] = {}
        if os.path.exists(self._path):
            try:
                with open(self._path, encoding="utf-8") as file:
                    content = json.load(file)
                earlier, self.entries = content["facts"], content["entries"]
            except (ValueError, KeyError) as error:
                raise errors.UserError(f"{self._path} is damaged ({error}): use another --output_dir.") from None
            self._check_facts(earlier, folder)

    def _check_facts(self, earlier: Mapping[str, Any], folder: str) -> None:
        differing = [name for name in {**earlier, **self.facts} if earlier.get(name) != self.facts.get(name)]
        if differing and self.entries:
            told = "; ".join(f"{name}: {earlier.get(name)}, now {self.facts.get(name)}" for name in differing)
            raise errors.UserError(
                f"{folder} holds measurements that were made otherwise ({told}), and a table must not mix them: use "
                "another --output_dir, or delete it."
            )

    def has(self, entry: Entry) -> bool:
        """Whether this very job is done."""
        found = self.entries.get(entry.key)
        # By way of JSON, which has no tuples.
        return found is not None and found["job"] == json.loads(json.dumps(entry.job))

    def add(self, entry: Entry, result: Mapping[str, Any]) -> None:
        """Keeps a result."""
        self.entries[entry.key] = {
            "suite": entry.suite,
            "case": entry.case,
            "side": entry.side,
            "round": entry.round,
            "job": dict(entry.job),
            "result": dict(result),
        }
        self.write()

    def write(self) -> None:
        """Writes the file."""
        content = {"facts": self.facts, "entries": self.entries, "failures": self.failures}
        write_file(self._path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def last_json_line(text: str) -> Any:
    """The result in what a process has printed; libraries print too.

    Raises:
      FailedError: there is none.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                break
    raise FailedError("It printed no result.")


def external_command(job: Mapping[str, Any], python: str, output: str) -> List[str]:
    """The command of a program that measures all sides itself and writes a list of records to a file."""
    return [python, os.path.join(ROOT, job["program"]), *job["arguments"], f"--json={output}"]


def run_entry(entry: Entry, log_folder: str, python: str = sys.executable) -> Dict[str, Any]:
    """Runs one process; what it writes beside its result goes to a log.

    Raises:
      FailedError: it failed.
    """
    os.makedirs(log_folder, exist_ok=True)
    log_path = os.path.join(log_folder, re.sub(r"[^\w.=-]+", "_", entry.key) + ".log")
    with tempfile.TemporaryDirectory() as folder, open(log_path, "w") as log:
        output = os.path.join(folder, "records.json")
        is_external = "program" in entry.job
        command = external_command(entry.job, python, output) if is_external else entry.command(python)
        environment = dict(os.environ, PYTHONPATH=ROOT)
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        wall = time.perf_counter() - started
        log.write(done.stdout)
        log.flush()
        if done.returncode:
            with open(log_path) as file:
                end = [line.strip() for line in file if line.strip()][-3:]
            raise FailedError(f"{' / '.join(end)} (log: {log_path})")
        if not is_external:
            return dict(last_json_line(done.stdout), wall_seconds=wall)
        with open(output, encoding="utf-8") as file:
            return {"records": json.load(file), "text": done.stdout}


def format_seconds(seconds: float) -> str:
    """Minutes and seconds. (That of `common.progress` would bring TensorFlow into this process.)"""
    minutes, rest = divmod(int(round(seconds)), 60)
    return f"{minutes}:{rest:02d}"


def time_left(durations: Mapping[tuple, float], waiting: Sequence[Entry]) -> float:
    """Seconds for what is waiting, by what the same side took in the same case, else by the mean.

    Args:
      durations: (suite, case, side) -> seconds.
      waiting: entries to come.
    """
    mean = sum(durations.values()) / max(len(durations), 1)
    return sum(durations.get((entry.suite, entry.case, entry.side), mean) for entry in waiting)


def run_all(entries: Sequence[Entry], store: Store, log_folder: str) -> None:
    """Runs what is not done yet. What fails is told, and does not keep the others from running."""
    waiting = [entry for entry in entries if not store.has(entry)]
    if len(waiting) < len(entries):
        print(f"{len(entries) - len(waiting)} of {len(entries)} measurements are there already.", flush=True)
    durations: Dict[tuple, float] = {}
    for place, entry in enumerate(waiting):
        started = time.perf_counter()
        try:
            result = run_entry(entry, log_folder)
        except FailedError as error:
            store.failures[entry.key] = str(error)
            store.write()
            print(f"FAILED  {entry.key}: {error}", flush=True)
            continue
        store.failures.pop(entry.key, None)
        store.add(entry, result)
        durations[entry.suite, entry.case, entry.side] = took = time.perf_counter() - started
        told = " ".join(f"{value:.3f}" for value in result.get("seconds", []))
        left = format_seconds(time_left(durations, waiting[place + 1 :]))
        print(f"{place + 1}/{len(waiting)}  {entry.key}: {told or 'done'}  ({took:.0f} s, {left} left)", flush=True)
