"""Run notebooks without a browser, and read what they show."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any, Dict, List, Sequence

import pytest

from tests.helpers import ROOT

FOLDER = os.path.join(ROOT, "notebooks")
NAMES = sorted(name for name in os.listdir(FOLDER) if name.endswith(".ipynb"))
# Seconds for a cell.
TIMEOUT = 1800
_NEEDED = ("nbformat", "nbclient", "ipykernel")


def read_notebook(name: str) -> Dict[str, Any]:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return json.load(file)


def source_of(cell: Dict[str, Any]) -> str:
    return "".join(cell["source"])


def with_parameters(notebook: Dict[str, Any], values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the notebook with a cell that sets other values, after the one that is tagged `parameters`."""
    (position,) = (
        number for number, cell in enumerate(notebook["cells"]) if "parameters" in cell["metadata"].get("tags", ())
    )
    settings = source_of(notebook["cells"][position])
    for name in values:
        assert f"{name} = " in settings, f"{name} is not a parameter"
    lines = [f"assert sys.executable == {sys.executable!r}", *(f"{name} = {value!r}" for name, value in values.items())]
    cells = list(notebook["cells"])
    cells.insert(position + 1, code_cell("\n".join(lines)))
    return {**notebook, "cells": cells}


def code_cell(source: str, *tags: str) -> Dict[str, Any]:
    """Return a code cell; with the tag `raises-exception`, an error does not end the run."""
    cell = {"cell_type": "code", "id": f"added-{abs(hash(source))}", "metadata": {"tags": list(tags)}}
    return {**cell, "source": source, "outputs": [], "execution_count": None}


def run_notebook(notebook: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: str) -> List[Any]:
    """Run a notebook with this interpreter and this checkout, in a folder; return its code cells with their outputs."""
    nbformat, nbclient, _ = (pytest.importorskip(name, reason=f"notebooks need {name}") for name in _NEEDED)
    settings = os.path.join(folder, "jupyter")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, settings)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYTHONPATH", ROOT)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)  # set by this process
    node = nbformat.reads(json.dumps({"metadata": {}, "nbformat": 4, "nbformat_minor": 5, **notebook}), as_version=4)
    resources = {"metadata": {"path": folder}}
    limits = {"timeout": TIMEOUT, "startup_timeout": TIMEOUT}
    nbclient.NotebookClient(node, kernel_name="python3", resources=resources, **limits).execute()
    return [cell for cell in node.cells if cell.cell_type == "code"]


def shown_text(cell: Any) -> str:
    """Return what a notebook shows below a cell: of a line that was drawn several times, only the last state."""
    streams = [output for output in cell.outputs if output.output_type == "stream"]
    text = "".join(output.text for output in streams).replace("\r\n", "\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def stream_blocks(cell: Any) -> List[str]:
    """Return the names of the streams of a cell, in the order of the blocks that a notebook shows."""
    return [name for name, _ in itertools.groupby(output.get("name", "") for output in cell.outputs)]


def images(cells: Sequence[Any]) -> int:
    """Return the number of images that the cells show."""
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
