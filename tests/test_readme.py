"""The commands of the README and of the quickstart's output can be pasted as they are, one after another."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from typing import List

import pytest
from absl import flags

from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import define_flags, from_flags
from adapter_bert.settings.squad import SquadSettings
from tests.helpers import ROOT

SETTINGS = {"run_classifier.py": ClassifierSettings, "run_squad.py": SquadSettings}
WRITING_FLAGS = ("--output_dir", "--output", "--bank")
# Programs that do not end by themselves.
VIEWERS = ("tensorboard",)


def read(*parts: str) -> str:
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def lines_of(text: str) -> List[str]:
    """Return the commands in a text, with continued lines joined."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def readme_commands() -> List[str]:
    return [line for block in re.findall(r"```bash\n(.*?)```", read("README.md"), re.S) for line in lines_of(block)]


def next_commands() -> List[str]:
    output = subprocess.check_output(["scripts/quickstart.sh", "--next"], cwd=ROOT).decode()
    return lines_of(output.partition(":\n")[2])


def programs_of(command: str) -> List[List[str]]:
    """Return the words of each program in a pipe; a redirection stays at the end."""
    words = shlex.split(command, comments=True)
    ends = [index for index, word in enumerate(words) if word == "|"]
    return [words[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(words)])]


def check_flags(script: str, words: List[str]) -> None:
    """Check that a script has the flags of a command, and accepts their values."""
    if script in SETTINGS:
        values = flags.FlagValues()
        define_flags(SETTINGS[script], values)
        assert values([script, *words]) == [script]
        from_flags(SETTINGS[script], values).validate()
        return
    known = set(re.findall(r"--(\w+)", read(script))) | set(re.findall(r'DEFINE_\w+\("(\w+)"', read(script)))
    if "ClassifierSettings" in read(script):
        known |= set(ClassifierSettings.__dataclass_fields__)
    for word in words:
        if word.startswith("--"):
            assert word[2:].partition("=")[0] in known, f"{script} has no flag {word}"


def check_program(words: List[str], written: List[str]) -> None:
    """Check the names in a command, given what earlier commands have written, and add what it writes."""
    program = words[0]
    if program == "python":
        check_flags(words[1], words[2:])
    elif "/" in program:
        assert os.access(os.path.join(ROOT, program), os.X_OK), program
    else:
        assert program in ("source", "echo", *VIEWERS), program
    for before, word in zip(["", *words], words):
        flag, _, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
        if re.match(r"(examples|scripts|docs)/[\w./-]+$", path):
            assert os.path.exists(os.path.join(ROOT, path)), path
        elif flag in WRITING_FLAGS or before == ">":
            written.append(path)
        elif path.startswith("runs/"):
            assert any((path + "/").startswith(earlier + "/") or earlier.startswith(path + "/") for earlier in written)


@pytest.mark.parametrize("commands", [readme_commands, next_commands], ids=["README", "quickstart"])
def test_every_command_names_scripts_flags_and_files_that_exist(commands):
    found = commands()
    assert len(found) >= 5
    written = ["runs/quickstart/adapters_64"]  # by the quickstart
    for command in found:
        assert not re.search(r"…|\$", command), f"cannot be pasted: {command}"
        for words in programs_of(command):
            check_program(words, written)


def test_the_readme_has_the_commands_of_the_quickstart():
    missing = {re.sub(r"\s+", " ", line) for line in next_commands() if not line.startswith(VIEWERS)}
    missing -= {re.sub(r"\s+#.*|\s+(?=\s)", "", line) for line in readme_commands()}
    assert not missing


@pytest.mark.slow
def test_every_command_runs_in_a_fresh_clone(tmp_path):
    clone = tmp_path / "clone"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT).decode().splitlines():
        os.makedirs(os.path.dirname(str(clone / name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), str(clone / name))
    commands = [line for line in readme_commands() + next_commands() if not line.startswith(VIEWERS)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(["bash", "-e", "-c", "\n".join(commands)], cwd=str(clone), env=environment)
    assert done.returncode == 0
