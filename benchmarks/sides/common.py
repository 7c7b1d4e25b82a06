"""What all sides share: reading the job, timing, peak memory, printing the result."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from adapter_bert.common import system

Job = Mapping[str, Any]
Result = Dict[str, Any]
CLASSES = 2
# Timed calls of `timed_tasks`, after one that is not.
TASK_CALLS = 5


def peak_bytes() -> int:
    """Return the peak memory of this process, including interpreter and libraries."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux; macOS counts bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def random_batch(job: Job) -> Dict[str, np.ndarray]:
    """Return token ids and labels without padding, the same for all sides."""
    random = np.random.RandomState(job["seed"])
    shape = (job["batch"], job["length"])
    return {
        "input_ids": random.randint(0, job["config"]["vocab_size"], shape),
        "input_mask": np.ones(shape, np.int64),
        "segment_ids": np.zeros(shape, np.int64),
        "label_ids": random.randint(0, CLASSES, job["batch"]),
    }


def timed_steps(step: Callable[[], float], job: Job) -> Result:
    """Run the untimed steps, then the timed ones. `step` runs one step and returns its loss."""
    for _ in range(job["warmup"]):
        step()
    seconds, losses = [], []
    for _ in range(job["steps"]):
        started = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - started)
    if not np.isfinite(losses).all():
        raise ValueError(f"The loss is not finite: {losses}.")
    return {"seconds": seconds, "losses": losses, "examples": job["batch"]}


def clock(job: Job) -> float:
    """Return the time in seconds: of the CPU, for `--cpu_time`, or elapsed."""
    return time.process_time() if job.get("cpu_time") else time.perf_counter()


def read_sentences(job: Job) -> List[str]:
    """Return the first sentences of the dev split of SST-2."""
    with open(os.path.join(job["data_dir"], "dev.tsv"), encoding="utf-8") as file:
        return [line.split("\t")[0] for line in file][1 : job["sentences"] + 1]


def timed_tasks(predict: Callable[[List[str], List[int]], Sequence[Any]], job: Job) -> Result:
    """Time warm predictions of sentences that belong to several tasks in turn.

    `predict` takes texts and the number of the task of each; the time is the median of several calls.
    """
    texts = read_sentences(job)
    numbers = [index % job["tasks"] for index in range(len(texts))]
    seconds = []
    for _ in range(1 + TASK_CALLS):
        started = clock(job)
        count = len(predict(texts, numbers))
        seconds.append(clock(job) - started)
        assert count == len(texts)
    return {"seconds": [statistics.median(seconds[1:])], "examples": len(texts)}


def timed_predictions(predict: Callable[[List[str], int], Sequence[Any]], job: Job) -> Result:
    """Time warm predictions of SST-2 sentences: one by one (median), or all at once in batches.

    `predict` takes texts and a batch size, and returns one prediction for each text.
    """
    texts = read_sentences(job)
    batch = job["predict_batch"]
    predict(texts[:32], batch)
    calls = [[text] for text in texts] if batch == 1 else [texts]
    seconds = []
    for call in calls:
        started = clock(job)
        count = len(predict(call, batch))
        seconds.append(clock(job) - started)
        assert count == len(call)
    return {"seconds": [statistics.median(seconds)], "examples": len(calls[0])}


def run_command(command: Sequence[str], log_file: str, cwd: str) -> Result:
    """Run a program and return its `peak_bytes`. Exit with the end of its output if it fails."""
    with open(log_file, "w") as log:
        process = subprocess.Popen(list(command), stdout=log, stderr=subprocess.STDOUT, cwd=cwd)
        _, process.returncode, usage = os.wait4(process.pid, 0)
    if process.returncode:
        with open(log_file) as log:
            sys.exit("".join(log.readlines()[-8:]))
    return {"peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


def folder_bytes(folder: str) -> int:
    """Return the size of all files in a folder."""
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(folder) for name in names)


def answer(kinds: Mapping[str, Callable[[Job], Result]], argv: Sequence[str]) -> None:
    """Run the job on the command line and print its result as the last line of the output."""
    job = json.loads(argv[1])
    if job.get("cpu_time"):
        system.use_cores(sorted(os.sched_getaffinity(0))[-1:])
    result = kinds[job["kind"]](job)
    result.setdefault("peak_bytes", peak_bytes())
    print("\n" + json.dumps(result), flush=True)
