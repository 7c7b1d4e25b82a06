"""Run commands of the project while their file operations are disturbed.

A server process imports TensorFlow once, with `shim.c` preloaded, and runs each command in a forked child. The shim
counts the operations that change files below one folder, and interferes at a chosen one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, List, NamedTuple, Optional, Sequence

import pytest

from tests.helpers import ROOT
from tests.kill import Program

# What happens at the chosen operation, in the order of `shim.c`. The disk stays full, the folder read-only. A pause
# lasts until a second command has run. A snapshot copies the folder before every operation.
KINDS = ("count", "kill", "full", "read only", "pause", "snapshot")
PRELOADED = (
    "tensorflow.compat.v1",
    "sklearn.metrics",
    "scipy.stats",
    "adapter_bert.training.classification",
    "adapter_bert.training.span_extraction",
    "adapter_bert.weights.bank",
    "adapter_bert.weights.exchange.adapterhub",
    "adapter_bert.weights.exchange.google_checkpoints",
    "adapter_bert.weights.exchange.huggingface",
    "adapter_bert.serving.predictor",
)
# A second command that waits for the paused one gets this long before the paused one continues.
PAUSE_SECONDS = 20


class Outcome(NamedTuple):
    """How a command ended.

    Attributes:
      code: exit code; negative for a signal.
      output: standard output and standard error.
      operations: changes of files below the watched folder, e.g. `rename /run/results.json`.
      outside: other paths that it changed.
    """

    code: int
    output: str
    operations: List[str]
    outside: List[str]

    @property
    def last_line(self) -> str:
        """The last line of the output, with the error."""
        return (self.output.strip().splitlines() or [""])[-1]


def compile_shim(folder: str) -> str:
    """Compile `shim.c` into a folder and return the library's path; skip the test if there is no C compiler."""
    compiler = shutil.which("cc")
    if not compiler or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler (cc) to interfere with file operations")
    library = os.path.join(folder, "shim.so")
    source = os.path.join(os.path.dirname(__file__), "shim.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


class FaultServer:
    """Runs commands in children of a process that has TensorFlow imported.

    with FaultServer() as server:
        outcome = server.run(["scripts/bank.py", "list", "--bank=bank"], folder, "kill", at=3)
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="faults-")
        # Children write no bytecode, and read their scripts' packages from this project.
        environment = dict(
            os.environ,
            PYTHONPATH=ROOT,
            PYTHONDONTWRITEBYTECODE="1",
            TF_CPP_MIN_LOG_LEVEL="3",
            LD_PRELOAD=compile_shim(self._folder),
        )
        command = [sys.executable, "-m", "tests.faults.harness", self._folder]
        self._program = Program(command, stdin=subprocess.PIPE, stderr=None, cwd=ROOT, env=environment)

    def __enter__(self) -> FaultServer:
        self._program.wait_for_line("ready")
        return self

    def __exit__(self, *unused: Any) -> None:
        self._program.process.stdin.close()
        self._program.process.wait()
        self._program.process.stdout.close()
        shutil.rmtree(self._folder)

    def run(
        self, command: Sequence[str], root: str, kind: str = "count", at: int = 0, target: str = "", copies: str = ""
    ) -> Outcome:
        """Run a script in a folder.

        Args:
          command: the script, relative to the project, and its arguments.
          root: working directory, below which operations count.
          kind: what happens at operation number `at`, see `KINDS`.
          at: number of the operation, from 1.
          target: path in `root`; the disk is full or read-only only there.
          copies: folder for snapshots, which are called 1, 2, ...
        """
        return self._request([command], root, kind, at, target, copies)[0]

    def run_two(self, first: Sequence[str], second: Sequence[str], root: str, at: int) -> List[Outcome]:
        """Run two scripts at the same time: the second one while the first is about to perform operation `at`."""
        return self._request([first, second], root, "pause", at, "", "")

    def _request(self, commands: Sequence[Sequence[str]], *arguments: Any) -> List[Outcome]:
        self._program.process.stdin.write(json.dumps([commands, *arguments]) + "\n")
        self._program.process.stdin.flush()
        codes = json.loads(self._program.process.stdout.readline())
        return [self._outcome(index, code) for index, code in enumerate(codes)]

    def _outcome(self, index: int, code: int) -> Outcome:
        with open(os.path.join(self._folder, f"output{index}"), encoding="utf-8", errors="replace") as file:
            output = file.read()
        with open(os.path.join(self._folder, f"trace{index}"), encoding="utf-8", errors="replace") as file:
            traced = [line.rstrip("\n").split("\t", 1) for line in file]
        operations = [" ".join(parts) for parts in traced if parts[0] != "outside"]
        return Outcome(code, output, operations, [path for name, path in traced if name == "outside"])


def _enter(root: str, output: str) -> None:
    """Start a new session in a folder, with empty input and with the output in a file."""
    os.setsid()
    for descriptor, path in ((0, os.devnull), (1, output), (2, output)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(root)


def _run_script(command: Sequence[str]) -> int:
    """Run a script in this process; return its exit code."""
    sys.argv = [os.path.join(ROOT, command[0]), *command[1:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class _Child:
    """A forked child that runs a script."""

    def __init__(self, index: int, folder: str, command: Sequence[str], root: str, fault: Sequence[Any]) -> None:
        output, trace = (os.path.join(folder, f"{name}{index}") for name in ("output", "trace"))
        with open(output, "w"):
            pass
        self.code: Optional[int] = None
        self.process = os.fork()
        if self.process == 0:
            kind, at, target, copies = fault
            _enter(root, output)
            texts = [os.fsencode(text) for text in (root, target, trace, copies)]
            arm = ctypes.CDLL(None).fault_arm
            arm(texts[0], texts[1], ctypes.c_long(at), KINDS.index(kind), texts[2], texts[3])
            code = _run_script(command)
            # Exit like a program, but without destroying all objects, which takes a second.
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError):  # an exit handler has closed it
                    stream.flush()
            os._exit(code)

    def wait(self, options: int = 0) -> bool:
        """Wait until it ends, or as the options say; return whether it has ended."""
        if self.code is None:
            process, status = os.waitpid(self.process, options)
            if process and not os.WIFSTOPPED(status):
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.code is not None


def _run_request(folder: str, commands: List[List[str]], root: str, *fault: Any) -> List[int]:
    """Run one command, or a second one while the first is paused; return the exit codes."""
    first = _Child(0, folder, commands[0], root, fault)
    first.wait(os.WUNTRACED)
    children = [first]
    if len(commands) == 2:
        second = _Child(1, folder, commands[1], root, ("count", 0, "", ""))
        children.append(second)
        deadline = time.monotonic() + PAUSE_SECONDS
        while not second.wait(os.WNOHANG) and time.monotonic() < deadline and first.code is None:
            time.sleep(0.01)
        if first.code is None:
            os.killpg(first.process, signal.SIGCONT)
    for child in children:
        child.wait()
    return [child.code for child in children]


def _serve(folder: str) -> None:
    from adapter_bert.common import system

    system.configure_tensorflow()
    for module in PRELOADED:
        importlib.import_module(module)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        codes = _run_request(folder, *json.loads(line))
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
