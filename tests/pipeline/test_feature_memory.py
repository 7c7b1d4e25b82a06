"""Memory does not grow with the data. Minutes: marked slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT, VOCABULARY, WORDS


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("processes", [1, 2])
def test_eight_times_the_rows_take_no_more_memory(tmp_path, processes):
    """In memory, the texts of the larger file alone would be 70 MB."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "MRPC").mkdir()
    text = " ".join(WORDS[:24])
    rows = "".join(f"1\t1\t2\t{text} {i}\t{text} {i}\n" for i in range(500))
    (tmp_path / "MRPC" / "train.tsv").write_text("Quality\tid\tid\ta\tb\n" + rows)
    script = os.path.join(ROOT, "benchmarks", "features.py")
    command = [sys.executable, script, f"--data_dir={tmp_path}", f"--vocab_file={tmp_path / 'vocab.txt'}", "--rounds=0"]
    command += [
        "--theirs=0",
        f"--processes={processes}",
        "--memory_rows=30000,240000",
        f"--json={tmp_path / 'figures'}",
    ]
    subprocess.run(command, check=True)
    small, large = json.loads((tmp_path / "figures").read_text())
    assert (small["rows"], large["rows"], large["files"]) == (30000, 240000, 3)
    assert large["peak_mb"] - large["base_mb"] < small["peak_mb"] - small["base_mb"] + 15
    assert large["forked_mb"] < small["forked_mb"] + 15
