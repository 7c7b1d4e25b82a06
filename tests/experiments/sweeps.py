"""Results of a sweep for tests: made-up numbers in the range of real ones, in `sweep.csv`, and made-to-order cells."""

from __future__ import annotations

import os
from typing import List

from adapter_bert.experiments import cells
from adapter_bert.experiments.cells import CellResult

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sweep.csv")


def sweep() -> List[CellResult]:
    """All GLUE tasks, SQuAD and one additional task; RTE has a collapsed run, and CoLA one without a score."""
    return cells.read(PATH)


def make_cell(dev=0.8, seed=1, **changes) -> CellResult:
    values = {
        "task": "CoLA",
        "method": "adapters 64",
        "kind": "adapter",
        "settings": {"learning_rate": 3e-4, "adapter_size": 64},
        "metric": "accuracy",
        "test": None,
        "metrics": {"accuracy": dev},
        "majority": 0.5,
        "collapsed": False,
        "loss": 0.5,
        "trained_params": 2_419_202,
        "total_params": 111_863_042,
        "steps": 801,
        "fingerprint": "0" * 12,
        **changes,
    }
    name = "/".join(str(values[key]) for key in ("task", "method", "settings"))
    return CellResult(**{"name": f"{name}/{seed}", "dev": dev, "seed": seed, **values})
