"""Searches on a tiny task: helpers for tests."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import pytest

from adapter_bert.baselines import search
from adapter_bert.baselines.features import Memory
from adapter_bert.baselines.search_folder import Search, SearchFolder
from adapter_bert.baselines.study import Study
from adapter_bert.baselines.worker import work
from tests.baselines.helpers import command_flags, tiny_settings
from tests.helpers import ROOT

optuna = pytest.importorskip("optuna", reason="optuna is not installed (pip install -e .[search])")

# A network that trains in a second, whatever else is chosen.
FIXED: Dict[str, Any] = {"num_train_samples": 64, "conv_filters": 3, "hidden_size": 4, "fine_tune_module": False}


def make_search(folder: str, module: str, **changes) -> Search:
    options: Dict[str, Any] = {"trials": 4, "final_seeds": [1], **changes}
    fixed = {**FIXED, "hub_module": module, **options.pop("fixed", {})}
    settings = tiny_settings(folder, module, eval_every_steps=2)
    return search.make(settings, fixed, options)


def run(folder: str, found: Search) -> Study:
    """Run a search in this process."""
    place = SearchFolder(folder)
    place.start(found)
    work(place, Memory())
    study = Study(place, found)
    search.write_results(study)
    return study


def described(study: Study) -> List[tuple]:
    return [(trial.number, trial.state.name, trial.params, trial.value) for trial in study.trials()]


def command(folder: str, module: str, **changes) -> List[str]:
    """The flags of a command that runs such a search."""
    settings = command_flags(tiny_settings(folder, module, eval_every_steps=2))
    for name in ("do_train", "do_eval"):
        settings.pop(name)
    values = {**settings, **FIXED, "trials": 4, "workers": 1, "final_seeds": "1", **changes}
    script = os.path.join(ROOT, "scripts", "search_baseline.py")
    return [script, *(f"--{name}={value}" for name, value in values.items())]
