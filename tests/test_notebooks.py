"""The notebooks run from top to bottom, show little, and are stored without outputs."""

from __future__ import annotations

import os
import re

import pytest

from tests.helpers import assert_mentions, base_flags
from tests.notebooks import (
    FOLDER,
    NAMES,
    code_cell,
    images,
    read_notebook,
    run_notebook,
    shown_text,
    source_of,
    stream_blocks,
    with_parameters,
)

# Parameters for a run of seconds: a few steps.
SMALL = {
    "adapters_on_tpu.ipynb": {"EPOCHS": 0.05},
    "tour.ipynb": {"EPOCHS": 0.05},
    "your_own_data.ipynb": {"EPOCHS": 2.0},
}
FIGURES = {"adapters_on_tpu.ipynb": 1, "tour.ipynb": 2, "your_own_data.ipynb": 0}


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_stored_without_outputs(name):
    notebook = read_notebook(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 5
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert os.path.getsize(os.path.join(FOLDER, name)) < 40_000


def test_all_notebooks_have_the_same_installation():
    cells = [next(cell for cell in read_notebook(name)["cells"] if cell["cell_type"] == "code") for name in NAMES]
    assert len(cells) == len(SMALL) == 3 and len({source_of(cell) for cell in cells}) == 1
    assert_mentions(source_of(cells[0]), "REPOSITORY = ", "git clone", "pip install --quiet -e")


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_of_the_folder_lists_the_notebook(name):
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as file:
        assert f"({name})" in file.read()


@pytest.mark.smoke
def test_a_training_shows_one_bar_and_an_error_one_line(tiny_bert, cola_dir, tmp_path, monkeypatch):
    flags = dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "out")), num_train_epochs=2.0, eval_every_steps=4)
    train = f"import adapter_bert\nrun = adapter_bert.train(**{flags!r})"
    cells = [code_cell(train), code_cell("run"), code_cell("adapter_bert.train(lerning_rate=1e-3)", "raises-exception")]
    trained, shown, failed = run_notebook({"cells": cells}, monkeypatch, str(tmp_path))
    assert stream_blocks(trained) == ["stdout"], "a notebook shows each change of the stream as a new block"
    text = shown_text(trained)
    assert len(re.findall(r"%\|", text)) == 1 and re.search(r"100%\|.*\b16/16\b", text)
    assert text.count("Dev set at step") == 4
    assert len(shown.outputs[0].data["text/plain"]) < 1000
    (error,) = failed.outputs
    assert error.ename == "UserError" and len(error.traceback) == 1
    assert_mentions(error.traceback[0], "UserError", "'lerning_rate'", "'learning_rate'")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_from_top_to_bottom(name, tiny_bert, tmp_path, monkeypatch):
    values = {"BERT_DIR": tiny_bert, "OUTPUT": str(tmp_path / "runs"), **SMALL[name]}
    cells = run_notebook(with_parameters(read_notebook(name), values), monkeypatch, str(tmp_path))
    for cell in cells:
        text = shown_text(cell)
        assert stream_blocks(cell) in ([], ["stdout"], [""], ["stdout", ""]), text
        assert len(text.splitlines()) <= 60, text
        assert "Traceback" not in text and " error: " not in text
    assert images(cells) == FIGURES[name]
    assert os.listdir(str(tmp_path / "runs"))


def final_accuracies(cells) -> list:
    """Return the accuracies at the end of each training, from the log."""
    return [float(found) for cell in cells for found in re.findall(r"eval_accuracy = (.*)", shown_text(cell))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, expected",
    [("adapters_on_tpu.ipynb", [0.9, 0.75, 0.75]), ("tour.ipynb", [0.8, 0.9]), ("your_own_data.ipynb", [0.75])],
)
def test_notebooks_as_they_are_reach_their_scores(name, expected, tmp_path, monkeypatch):
    notebook = with_parameters(read_notebook(name), {"OUTPUT": str(tmp_path / "runs")})
    found = final_accuracies(run_notebook(notebook, monkeypatch, str(tmp_path)))
    assert len(found) == len(expected) and all(score >= least for score, least in zip(found, expected)), found
