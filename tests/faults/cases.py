"""Disturb one command in one way, and check what is left, what it said, and that it can be run again."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from typing import Dict, List, NamedTuple, Sequence, Tuple

from tests.faults import folders
from tests.faults.commands import COMMANDS, PREPARATION, Command
from tests.faults.harness import FaultServer, Outcome
from tests.helpers import ROOT

# Operations that need space on the disk, see `shim.c`.
WRITES = re.compile(r"f?open|f?write|pwrite|fflush|fclose|sendfile|copy_file_range|ftruncate|mkdir|link|symlink")
# What an error says about its reason.
REASONS = {"full": re.compile("No space left|disk is full|disk full", re.I), "read only": re.compile("read-only", re.I)}
# How the standard streams of a process can be unusable, as redirections of a shell; a broken pipe has no reader.
STREAMS = {
    "stdout closed": ">&-",
    "stderr closed": "2>&-",
    "both closed": ">&- 2>&-",
    "stdout full": ">/dev/full",
    "stderr full": "2>/dev/full",
    "stdout broken": ">&9",
    "stderr broken": "2>&9",
}
OTHER_SEED = "--seed=2"


class Case(NamedTuple):
    """One way to disturb a command.

    Attributes:
      command: a name in `COMMANDS`.
      kind: "kill", "full", "read only", "two starts" or "streams".
      at: number of the operation, from 1.
      where: path that is full or read-only (empty for all), or one of `STREAMS`, or an argument of the second start.
    """

    command: str
    kind: str
    at: int = 0
    where: str = ""


class Expected(NamedTuple):
    """An undisturbed run: content before and after it, scalar summaries by folder, and what happened."""

    before: folders.Content
    after: folders.Content
    events: Dict[str, Dict[str, Dict[int, float]]]
    outcome: Outcome


class Workshop:
    """Prepares folders for commands, in one work folder that several `Trial`s share."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.undisturbed = os.path.join(self.folder, "undisturbed")  # where commands run and snapshots are taken
        self._lock = threading.RLock()

    def prepared(self, server: FaultServer, steps: Sequence[str]) -> str:
        """Return a folder in which the steps of `PREPARATION` have been taken."""
        with self._lock:
            name = hashlib.sha256(repr(steps).encode()).hexdigest()[:12]
            path = os.path.join(self.folder, "prepared", name)
            if os.path.isdir(path):
                return path
            building = path + " building"
            shutil.rmtree(building, ignore_errors=True)
            if steps[:-1]:
                folders.copy(self.prepared(server, steps[:-1]), building)
            else:
                os.makedirs(building)
            step = PREPARATION[steps[-1]]
            if callable(step):
                step(building)
            else:
                outcome = server.run(step, building)
                assert outcome.code == 0, f"{step}: {outcome.output}"
            os.rename(building, path)
            return path

    def expected(self, server: FaultServer, name: str, *more: str) -> Expected:
        """Return what an undisturbed run of a command does; `more` are additional arguments."""
        path = os.path.join(self.folder, "expected " + "-".join([name, *more]).replace(" ", "-"))
        with self._lock:
            if not os.path.exists(path):
                with open(path + " building", "wb") as file:
                    pickle.dump(self._run_undisturbed(server, name, more), file)
                os.rename(path + " building", path)
            with open(path, "rb") as file:
                return pickle.load(file)

    def _run_undisturbed(self, server: FaultServer, name: str, more: Sequence[str]) -> Expected:
        command, root = COMMANDS[name], self.undisturbed
        shutil.rmtree(root, ignore_errors=True)
        folders.copy(self.prepared(server, command.prepare), root)
        before = folders.read(root)
        outcome = server.run([*command.line, *more], root)
        assert outcome.code == 0, f"{name}: {outcome.output}"
        assert not outcome.outside, f"{name} changed {outcome.outside}"
        return Expected(before, folders.read(root), folders.all_events(root), outcome)

    def snapshots(self, server: FaultServer, name: str) -> Dict[str, List[int]]:
        """Return what kills at all operations leave: the folder of each different state -> numbers of operations."""
        with self._lock:
            copies = os.path.join(self.folder, "snapshots", name.replace(" ", "-"))
            index = os.path.join(copies, "states.json")
            if not os.path.exists(index):
                self._take_snapshots(server, name, copies, index)
            with open(index) as file:
                return json.load(file)

    def _take_snapshots(self, server: FaultServer, name: str, copies: str, index: str) -> None:
        root = self.undisturbed
        for path in (root, copies):
            shutil.rmtree(path, ignore_errors=True)
        folders.copy(self.prepared(server, COMMANDS[name].prepare), root)
        os.makedirs(copies)
        outcome = server.run(COMMANDS[name].line, root, "snapshot", copies=copies)
        assert outcome.code == 0, f"{name}: {outcome.output}"
        states: Dict[str, Tuple[str, List[int]]] = {}  # key -> (folder, numbers)
        for number in range(1, len(outcome.operations) + 1):
            copy = os.path.join(copies, str(number))
            kept, numbers = states.setdefault(folders.state_key(folders.read(copy)), (copy, []))
            numbers.append(number)
            if kept != copy:
                shutil.rmtree(copy)
        with open(index, "w") as file:
            json.dump(dict(states.values()), file)


class Trial:
    """Runs cases one after another in a folder of its own. The methods return problems, or nothing."""

    def __init__(self, workshop: Workshop, server: FaultServer, name: str) -> None:
        self._workshop = workshop
        self._server = server
        self._root = os.path.join(workshop.folder, name)

    def run(self, case: Case) -> List[str]:
        """Run a case; return its problems."""
        self._expected = self._workshop.expected(self._server, case.command)
        command = COMMANDS[case.command]
        self._restore(self._workshop.prepared(self._server, command.prepare))
        methods = {
            "kill": self._kill,
            "full": self._fail,
            "read only": self._fail,
            "two starts": self._two,
            "streams": self._stream,
        }
        return methods[case.kind](command, case)

    def recover(self, name: str, state: str) -> List[str]:
        """Check the state that a killed command has left, a folder, and run the command again."""
        self._expected = self._workshop.expected(self._server, name)
        self._restore(state)
        folders.replace_in_json(self._root, self._workshop.undisturbed, self._root)
        return self._check_and_repeat(COMMANDS[name])

    def left_by_kill(self, name: str, at: int) -> str:
        """Return the state that a kill leaves, as text that can be compared."""
        self._restore(self._workshop.prepared(self._server, COMMANDS[name].prepare))
        assert self._server.run(COMMANDS[name].line, self._root, "kill", at).code == -signal.SIGKILL
        return folders.state_key(folders.read(self._root))

    def left_by_snapshot(self, state: str) -> str:
        """Return a state of `Workshop.snapshots`, as text that can be compared."""
        self._restore(state)
        return folders.state_key(folders.read(self._root))

    def _restore(self, source: str) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        folders.copy(source, self._root)

    def _kill(self, command: Command, case: Case) -> List[str]:
        outcome = self._server.run(command.line, self._root, "kill", case.at)
        # The number of operations varies a little if several threads write.
        problems = (
            []
            if outcome.code in (0, -signal.SIGKILL)
            else [f"exit code {outcome.code} instead of a kill: {outcome.last_line}"]
        )
        return problems + self._check_and_repeat(command)

    def _fail(self, command: Command, case: Case) -> List[str]:
        """Run on a full disk or in a read-only folder."""
        outcome = self._server.run(command.line, self._root, case.kind, case.at, case.where)
        problems = _speech_problems(outcome)
        if outcome.code == 0:
            found = folders.visible(folders.read(self._root))
            missing = folders.differences(found, folders.visible(self._expected.after))
            problems += [f"exit code 0, but {each}" for each in missing if not each.endswith("/events")][:3]
        elif not problems:
            line = outcome.last_line
            if not REASONS[case.kind].search(line):
                problems.append(f"the error gives no reason: {line}")
            if not any(output in line for output in command.outputs):
                problems.append(f"the error names no file: {line}")
        return problems + self._check_and_repeat(command)

    def _check_and_repeat(self, command: Command) -> List[str]:
        """Check what is left, and that the same command then gives the result of an undisturbed run."""
        left = folders.read(self._root)
        problems = self._state_problems(command, left)
        outcome = self._server.run(command.line, self._root)
        problems += [f"second run: {each}" for each in _speech_problems(outcome)]
        was_done = folders.visible(left) == folders.visible(self._expected.after)
        if outcome.code != 0 and not was_done:
            problems.append(f"second run: exit code {outcome.code}: {outcome.last_line}")
        return problems + [f"second run: {each}" for each in self._result_problems(self._expected)]

    def _state_problems(self, command: Command, left: folders.Content) -> List[str]:
        before, after = (folders.visible(each) for each in (self._expected.before, self._expected.after))
        left = folders.visible(left)

        def without_outputs(content: folders.Content) -> folders.Content:
            return {p: value for p, value in content.items() if p.rstrip("/").split("/")[0] not in command.outputs}

        problems = [f"input {each}" for each in folders.differences(without_outputs(left), without_outputs(before))]
        if not command.is_atomic:
            return problems + folders.unreadable(self._root)
        contents = [{p: v for p, v in each.items() if not p.endswith("/")} for each in (left, before, after)]
        if contents[0] not in contents[1:]:
            problems.append("neither old nor new: " + ", ".join(folders.differences(contents[0], contents[1])[:4]))
        return problems

    def _result_problems(self, expected: Expected) -> List[str]:
        problems = folders.differences(folders.read(self._root), expected.after)[:4]
        for folder, tags in folders.all_events(self._root).items():
            for tag, values in tags.items():
                wanted = expected.events.get(folder, {}).get(tag, {})
                problems += [f"{tag} at step {s} in {folder}" for s, value in values.items() if wanted.get(s) != value]
        return problems

    def _two(self, command: Command, case: Case) -> List[str]:
        more = [case.where] if case.where else []
        outcomes = self._server.run_two(command.line, [*command.line, *more], self._root, case.at)
        problems = [f"start {i}: {each}" for i, outcome in enumerate(outcomes, 1) for each in _speech_problems(outcome)]
        codes = [outcome.code for outcome in outcomes]
        if 0 not in codes or (more and codes == [0, 0]):
            problems.append(f"exit codes {codes}: {[outcome.last_line for outcome in outcomes]}")
        expected = self._expected
        if more and codes[0] != 0:
            expected = self._workshop.expected(self._server, case.command, *more)
        return problems + [f"{each}, exit codes {codes}" for each in self._result_problems(expected)]

    def _stream(self, command: Command, case: Case) -> List[str]:
        """Run in a process of its own, with unusable standard streams."""
        reader, writer = os.pipe()
        os.close(reader)
        shell = ["bash", "-c", f'exec "$@" 9>&{writer} {STREAMS[case.where]} 9>&-', "bash", sys.executable]
        script = [os.path.join(ROOT, command.line[0]), *command.line[1:]]
        environment = dict(os.environ, PYTHONPATH=ROOT, PYTHONDONTWRITEBYTECODE="1")
        try:
            done = subprocess.run(
                [*shell, *script],
                cwd=self._root,
                env=environment,
                pass_fds=[writer],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
            )
        finally:
            os.close(writer)
        output = done.stdout.decode("utf-8", "replace")
        may_be_silent = not case.where.startswith("stdout") or "broken" in case.where
        problems = _speech_problems(Outcome(done.returncode, output, [], []), may_be_silent)
        # A command fails only if its result is what it prints, and that is lost.
        is_lost = not command.outputs and not case.where.startswith("stderr")
        if (done.returncode != 0) != is_lost:
            problems.append(f"exit code {done.returncode}: {output.strip()[-200:]}")
        return problems + self._result_problems(self._expected)


def _speech_problems(outcome: Outcome, may_be_silent: bool = False) -> List[str]:
    """Return what is wrong with the output of a command: a traceback, or a failure without a one-line error."""
    problems = []
    if "Traceback" in outcome.output or "Exception ignored" in outcome.output:
        problems.append(f"traceback: {outcome.last_line}")
    elif outcome.code != 0 and not may_be_silent and not re.match(r"\S+\.py: ", outcome.last_line):
        problems.append(f"exit code {outcome.code} without an error: {outcome.last_line}")
    return problems + [f"changed {path}" for path in outcome.outside]
