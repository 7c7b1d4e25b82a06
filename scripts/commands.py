"""Console commands that run the entry points as programs, so that flags are checked before TensorFlow is imported."""

from __future__ import annotations

import runpy


def classifier() -> None:
    """Run `run_classifier.py`."""
    runpy.run_module("run_classifier", run_name="__main__", alter_sys=True)


def squad() -> None:
    """Run `run_squad.py`."""
    runpy.run_module("run_squad", run_name="__main__", alter_sys=True)


def extract() -> None:
    """Run `extract_features.py`."""
    runpy.run_module("adapter_bert_scripts.extract_features", run_name="__main__", alter_sys=True)
