"""What measurements depend on: the machine, the libraries, the code. Loads none of the libraries."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any, Dict

from adapter_bert.common import parallel

PACKAGES = ("tensorflow", "torch", "transformers", "tokenizers", "adapters", "peft", "numpy")


def processor() -> str:
    """The CPU's name."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def cores() -> int:
    """How many this process may use: `taskset` counts."""
    return parallel.num_cores()


def memory_gigabytes() -> float:
    """Of the machine."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def versions() -> Dict[str, str]:
    """Of what is installed."""
    from importlib import metadata  # Python 3.8

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit(root: str) -> str:
    """The state of the code: a commit, with a mark where files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def gather(root: str) -> Dict[str, Any]:
    """Everything."""
    return {
        "processor": processor(),
        "cores": cores(),
        "memory GB": memory_gigabytes(),
        "system": platform.system() + " " + platform.machine(),
        "python": platform.python_version(),
        **versions(),
        "commit": commit(root),
    }
