"""What all sides do the same way: read the job, time, tell the peak of memory, answer."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

Job = Mapping[str, Any]
Result = Dict[str, Any]
CLASSES = 2


def peak_bytes() -> int:
    """The most memory that this process has had so far, interpreter and libraries included."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):  # no Linux; in bytes on a Mac
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def random_batch(job: Job) -> Dict[str, np.ndarray]:
    """Token ids and labels; no padding. The same on all sides."""
    random = np.random.RandomState(job.get("seed", 1))
    shape = (job["batch"], job["length"])
    return {
        "ids": random.randint(0, job["config"]["vocab_size"], shape),
        "mask": np.ones(shape, np.int64),
        "segments": np.zeros(shape, np.int64),
        "labels": random.randint(0, CLASSES, job["batch"]),
    }


def timed_steps(step: Callable[[], float], job: Job) -> Result:
    """Takes the warm-up steps, then the measured ones.

    Args:
      step: takes one step and returns its loss.
      job: says how many.
    """
    for _ in range(job["warmup"]):
        step()
    seconds, losses = [], []
    for _ in range(job["steps"]):
        started = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - started)
    if not np.isfinite(losses).all():
        raise ValueError(f"The loss is not finite: {losses}.")
    return {"seconds": seconds, "losses": losses}


def run_command(command: Sequence[str], log_file: str, cwd: str) -> Result:
    """Runs a program to its end.

    Returns:
      Its `peak_bytes`.

    Raises:
      SystemExit: it failed; with the end of what it wrote.
    """
    print("Running", *command, file=sys.stderr, flush=True)
    with open(log_file, "w") as log:
        process = subprocess.Popen(list(command), stdout=log, stderr=subprocess.STDOUT, cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status:
        with open(log_file) as log:
            sys.exit("".join(log.readlines()[-8:]))
    return {"peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


def folder_bytes(folder: str) -> int:
    """Of all files."""
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(folder) for name in names)


def answer(kinds: Mapping[str, Callable[[Job], Result]], argv: List[str]) -> None:
    """Does the job that the command line holds and prints its result; the last line of the output is JSON.

    Args:
      kinds: kind of job -> what does it.
      argv: the program and the job.
    """
    job = json.loads(argv[1])
    if job["kind"] not in kinds:
        sys.exit(f"This side has no '{job['kind']}': {', '.join(kinds)}.")
    result = kinds[job["kind"]](job)
    result.setdefault("peak_bytes", peak_bytes())
    print("\n" + json.dumps(result), flush=True)
