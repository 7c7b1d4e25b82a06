"""Start a program, wait until it is at work, kill it: for tests of what a killed process leaves behind."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Sequence

from tests.helpers import ROOT

PATIENCE = 300  # seconds


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE, describe: Callable[[], str] = str) -> None:
    """Wait until something is true, e.g. that a file exists; fail with a description if it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Nothing happened for {seconds} seconds. {describe()}"
        time.sleep(0.1)


class Program:
    """A program in a process and a session of its own. Its standard error goes to its standard output."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        values = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "start_new_session": True,
            "env": dict(os.environ, PYTHONPATH=ROOT),
        }
        self.process = subprocess.Popen(list(command), **dict(values, **options))
        self.output = ""

    @classmethod
    def of_code(cls, code: str, *args: str) -> Program:
        """Start Python code."""
        return cls([sys.executable, "-c", code, *args])

    def wait_for_line(self, text: str, count: int = 1) -> Program:
        """Wait until it has printed this many lines that contain a text."""
        for line in iter(self.process.stdout.readline, ""):
            self.output += line
            count -= text in line
            if not count:
                return self
        raise AssertionError(f"The program ended without printing {text!r}: {self.output}")

    def wait_until(self, condition: Callable[[], bool]) -> Program:
        """Wait until something is true, e.g. that a file exists."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"The program ended too early: {self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"Nothing happened for {PATIENCE} seconds"
            time.sleep(0.02)
        return self

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, wait for the program and all its children, and return the exit code."""
        self.process.send_signal(number)
        try:
            self.output += self.process.communicate(timeout=PATIENCE)[0] or ""
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return self.process.returncode

    def kill(self) -> None:
        """Kill the program, which must still be running."""
        code = self.end()
        assert code == -signal.SIGKILL, f"The program ended before it could be killed: {self.output}"


class ForkServer:
    """Imports a module once, in another process, and kills children of that process inside its functions.

    with ForkServer(__name__) as server:
        server.kill("save_forever", folder, seconds=0.03)
    """

    def __init__(self, module: str) -> None:
        self._program = Program(
            [sys.executable, "-m", "tests.kill", module], stdin=subprocess.PIPE, stderr=None, cwd=ROOT
        )

    def __enter__(self) -> ForkServer:
        self._program.wait_for_line("ready")
        return self

    def __exit__(self, *unused: Any) -> None:
        self._program.process.stdin.close()
        self._program.process.wait(PATIENCE)
        self._program.process.stdout.close()

    def kill(self, function: str, *args: Any, seconds: float = 0.0) -> None:
        """Run a function of the module in a child; kill the child `seconds` after the call of `tell`.

        Args:
          function: called with a function `tell` and `args`; does not return, or kills itself.
          *args: values that JSON can hold.
          seconds: time between `tell()` and the kill.
        """
        self._program.process.stdin.write(json.dumps([function, args, seconds]) + "\n")
        self._program.process.stdin.flush()
        status = self._program.process.stdout.readline().strip()
        assert status == str(int(signal.SIGKILL)), f"{function} ended by itself: {status!r}"


def _serve(module: str) -> None:
    functions = importlib.import_module(module)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        function, args, seconds = json.loads(line)
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                getattr(functions, function)(functools.partial(os.write, sender, b"1"), *args)
            finally:
                os._exit(3)
        os.close(sender)
        if os.read(receiver, 1):
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        os.close(receiver)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
