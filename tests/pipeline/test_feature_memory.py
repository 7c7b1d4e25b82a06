"""The memory of feature making does not grow with the data. Takes minutes, so it is marked slow."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers import ROOT, VOCABULARY, WORDS

# Make features of a split in a new process. Print memory in MB: growth at the peak, and the largest child process.
PROGRAM = """
import json, resource
import tokenization
from adapter_bert import tasks
from adapter_bert.common import parallel
from adapter_bert.pipeline.feature_store import FeatureStore

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024

parallel.num_processes = lambda: {processes}
tokenizer = tokenization.FullTokenizer({folder!r} + "/vocab.txt")
task = tasks.get("MNLI")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # resets the peak
before = resident("VmRSS")
split = tasks.StreamedSplit(task, {folder!r}, "train")
paths = FeatureStore([{folder!r}], tokenizer, "").example_files("train", split, task.labels, 128)
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps(dict(rows=len(split), files=len(paths), growth=resident("VmHWM") - before, child=child)))
"""


def measure(folder, rows: int, processes: int) -> dict:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    text = " ".join(WORDS[:24])
    # Both files have the same words: the tokenizer caches up to 100,000 of them.
    texts = (f"{text} {row % 10000}" for row in range(rows))
    lines = ("\t".join([str(row)] * 8 + [first, text, "neutral", "neutral"]) for row, first in enumerate(texts))
    (folder / "train.tsv").write_text("\n".join(["\t".join("abcdefghijkl"), *lines]) + "\n")
    code = PROGRAM.format(folder=str(folder), processes=processes)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return json.loads(done.stdout.decode().strip().split("\n")[-1])


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("processes", [1, 2])
def test_eight_times_the_rows_take_no_more_memory(tmp_path, processes):
    """The texts of the larger file alone would take 70 MB."""
    small, large = (measure(tmp_path / str(rows), rows, processes) for rows in (30000, 240000))
    assert (small["rows"], large["rows"], large["files"]) == (30000, 240000, 3)
    assert large["growth"] < small["growth"] + 15
    assert large["child"] < small["child"] + 15
