"""A lost stream stops no work, a lost result is reported, and unsafe characters reach no terminal."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Optional

import pytest

from adapter_bert.common import errors, streams
from tests.helpers import ROOT, assert_mentions

UNSAFE = "a\x1b[31mb\r\nc\td\x9b\x7f\u202ee\u2029f\u2066\ud800"
ESCAPED = r"a\u001b[31mb\r\nc\td\u009b\u007f\u202ee\u2029f\u2066\ud800"
HARMLESS = "naïve 猫 \U0001f600 שלום \u200f -> 'x' \\n"

# A program that writes three lines and then a file. With `result`, the lines are its result; otherwise, the file is.
PROGRAM = """
import contextlib, logging, os, sys
from adapter_bert.common import errors, system

system.configure_tensorflow()

@errors.exits_on_user_error
def main():
    with open(sys.argv[1], "w") as file:  # gets the descriptor of a closed stream, if that is still free
        for number in range(3):
            print("caf\\u00e9", number)
            logging.getLogger("tensorflow").warning("line of the log: %s", "x\\ny")
            with contextlib.suppress(OSError):
                os.write(2, b"as TensorFlow's runtime does")
        file.write("complete")
    if "result" in sys.argv:
        errors.check_output()
    if "fail" in sys.argv:
        raise errors.UserError("wrong\\x1b")

main()
"""


def run(path, *words: str, shell: str = "", stdout: Optional[int] = subprocess.PIPE, **variables: str):
    """Run the program with streams that a shell redirects; return exit code, output and log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.update(variables, PYTHONPATH=ROOT)
    command = ["sh", "-c", f'exec "$0" "$@" {shell}', sys.executable, "-c", PROGRAM, str(path), *words]
    process = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=60)
    log = process.stderr.decode("utf-8")
    assert "Traceback" not in log and "Exception ignored" not in log
    return process.returncode, (process.stdout or b"").decode("utf-8"), log


def broken_pipe() -> int:
    """Return a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    "shell, code, facts",
    [
        (">&-", 1, ["standard output", "Bad file descriptor"]),
        (">/dev/full", 1, ["standard output", "No space left on device"]),
        ("broken pipe", errors.BROKEN_PIPE, []),
        (">&- 2>&-", 1, []),
        ("<&- >&- 2>&-", 1, []),
        (">/dev/full 2>/dev/full", 1, []),
        ("2>&-", 0, []),
        ("2>/dev/full", 0, []),
        ("broken pipe 2>&1", errors.BROKEN_PIPE, []),
    ],
)
def test_only_a_command_whose_result_is_lost_fails(tmp_path, shell, code, facts):
    unbuffered = "1" if "/dev/full" in shell else ""
    for words, expected in (((), 0), (("result",), code), (("fail",), 1)):
        path, stdout = tmp_path / "file.txt", broken_pipe() if "broken" in shell else subprocess.PIPE
        found = run(path, *words, shell=shell.replace("broken pipe", ""), stdout=stdout, PYTHONUNBUFFERED=unbuffered)
        if stdout != subprocess.PIPE:
            os.close(stdout)
        assert found[0] == expected
        assert path.read_text() == "complete"
        assert "error" not in found[2] or expected
        if facts and words == ("result",):
            assert_mentions(found[2].split("\n")[-2], "error: ", *facts)


def test_a_pipe_whose_reader_leaves_during_the_work_stops_nothing(tmp_path):
    path = tmp_path / "file.txt"
    code, out, _ = run(path, shell="| head -1", PYTHONUNBUFFERED="1")
    assert (code, out) == (0, "café 0\n")
    assert path.read_text() == "complete"


def test_a_terminal_of_ascii_shows_other_characters_as_escapes(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for variables in (ascii_only, {"PYTHONIOENCODING": "ascii"}):
        code, out, log = run(tmp_path / "file.txt", "fail", **variables)
        assert (code, out.split("\n")[0]) == (1, r"caf\xe9 0")
        assert log.split("\n")[-2].endswith(r"error: wrong\u001b")
        assert r"line of the log: x\ny" in log


def test_arguments_that_are_not_utf8_are_rejected_before_the_work(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    code, _, log = run(os.fsdecode(path))
    assert code == 1 and not os.path.exists(path)
    assert_mentions(log, "error: ", r"caf\udce9.txt", "UTF")
    # The same for a name in UTF-8, where the locale says otherwise.
    code, _, log = run(tmp_path / "café.txt", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert code == 1 and os.listdir(tmp_path) == []
    assert_mentions(log, r"caf\udcc3\udca9.txt", "PYTHONUTF8=1")


def test_python_without_docstrings_is_rejected_because_of_tensorflow(tmp_path):
    code, _, log = run(tmp_path / "file.txt", PYTHONOPTIMIZE="2")
    assert code == 1 and os.listdir(tmp_path) == []
    assert_mentions(log, "-OO", "PYTHONOPTIMIZE=2")
    assert run(tmp_path / "file.txt", PYTHONOPTIMIZE="1")[0] == 0


def test_a_deleted_working_directory_is_named_as_the_reason(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as caught:
        errors.exits_on_user_error(lambda: print(os.path.abspath("relative")))()
    assert "working directory" in str(caught.value.code)


@pytest.mark.parametrize(
    "error, facts",
    [
        (OSError(28, "No space left on device", "/a\nb"), [r"No space left on device: /a\nb."]),
        (OSError(18, "Invalid cross-device link", "/a", None, b"/b"), ["Invalid cross-device link: /a -> /b."]),
        (errors.UserError("first " + "x" * 10**6 + " last"), ["first xx", "xx … xx", "xx last"]),
        (UnicodeEncodeError("utf-8", "x" * 99 + "y\udcff", 100, 101, "surrogates"), [r"xxy\udcff'", "utf-8"]),
    ],
)
def test_an_error_of_the_system_is_one_line_with_file_and_reason(error, facts):
    def main():
        raise error

    with pytest.raises(SystemExit) as caught:
        errors.exits_on_user_error(main)()
    assert_mentions(caught.value.code, "error: ", *facts)
    assert "\n" not in caught.value.code and len(caught.value.code) < 5000


def test_the_reason_of_a_failed_graph_is_the_line_before_its_operation():
    text = "Graph execution error:\n\nNode: 'save'\n/out/model.ckpt-8; No space left on device\n\t [[{{node save}}]]\n"
    assert errors.reason(ValueError(text)) == "/out/model.ckpt-8; No space left on device"
    assert errors.reason(ValueError("first.\nsecond")) == "first"
    assert errors.reason(ValueError("x" * 10**6)) == "x" * 10**6  # a quadratic search would not end


def test_names_are_printed_on_one_line_without_control_characters():
    assert streams.printable(UNSAFE) == ESCAPED
    assert streams.printable(HARMLESS) == HARMLESS
    assert json.loads(f'"{ESCAPED}"') == UNSAFE


def test_names_in_log_messages_are_escaped():
    record = logging.LogRecord("tensorflow", logging.INFO, "x.py", 1, "file\n%s has %d rows", (UNSAFE, 2), None)
    assert streams._escape_names(record)
    assert record.getMessage() == f"file\n{ESCAPED} has 2 rows"


def test_streams_escape_everything_but_line_breaks_tabs_and_the_return_of_a_progress_bar(tmp_path):
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        safe = streams._SafeStream(file.buffer, "utf-8", "backslashreplace")
        print("\r50%", UNSAFE, HARMLESS, file=safe)
        safe.flush()
        safe.detach()
    expected = f"\r50% {ESCAPED} {HARMLESS}\n".replace(r"b\r\nc\td", "b\\r\nc\td")
    assert (tmp_path / "out").read_bytes().decode("utf-8") == expected


@pytest.mark.parametrize("columns, expected", [("1", "40"), ("100", "100"), ("wide", "80"), (None, None)])
def test_help_texts_are_never_wrapped_to_a_few_columns(monkeypatch, columns, expected):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    streams.protect()
    assert os.environ.get("COLUMNS") == expected
