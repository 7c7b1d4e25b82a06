"""Too little memory ends a program with one line, and variables for other programs do no harm."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from tests.helpers import ROOT, assert_mentions


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (300 * 2**20,) * 2)


def test_a_program_without_enough_address_space_ends_with_one_line():
    command = [sys.executable, "scripts/bank.py", "list", "--bank=nothing"]
    process = subprocess.run(command, cwd=ROOT, preexec_fn=limit_memory, stderr=subprocess.PIPE, timeout=100)
    lines = process.stderr.decode().splitlines()
    assert process.returncode == 1 and len(lines) == 1
    assert_mentions(lines[0], "bank.py: error: ", "memory", "ulimit -v", "0.3 GiB")


def raised(statement: str, exit_code: int = 1) -> str:
    """Return what a program prints if `statement` fails."""
    code = f"from adapter_bert.common import system\nsystem.configure_tensorflow()\n{statement}"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, timeout=100)
    assert process.returncode == exit_code
    return process.stderr.decode()


def test_only_lack_of_memory_is_reported_without_a_traceback():
    assert_mentions(raised("raise MemoryError"), "error: Out of memory: MemoryError.")
    assert "Traceback" not in raised("raise MemoryError")
    assert raised("raise KeyboardInterrupt", -signal.SIGINT) == "-c: interrupted.\n"
    for statement in ("import no_such_module", "raise ValueError('memory')"):
        assert_mentions(raised(statement), "Traceback (most recent call last)")


@pytest.mark.parametrize("name", ["TF_USE_LEGACY_KERAS", "TF_DETERMINISTIC_OPS"])
def test_variables_for_other_programs_do_no_harm(name):
    code = "from adapter_bert.common import system\nsystem.configure_tensorflow()\nimport run_classifier"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ, **{name: "1"}), check=True, timeout=100)
