"""Fixtures of the predictor's tests."""

from __future__ import annotations

import os

import pytest

from adapter_bert.serving.predictor import Predictor
from run_classifier import ClassifierSettings, run_task
from tests.helpers import base_flags


@pytest.fixture(scope="session")
def trained(tiny_bert, cola_dir, tmp_path_factory):
    """Return the output folder of a short run with predictions of the test split."""
    flags = base_flags(tiny_bert, cola_dir, str(tmp_path_factory.mktemp("predictor") / "run"))
    run_task(ClassifierSettings(**flags, num_train_epochs=1, learning_rate=1e-2, do_train=True, do_predict=True))
    return flags["output_dir"]


@pytest.fixture(scope="session")
def sentences(cola_dir):
    with open(os.path.join(cola_dir, "test.tsv")) as file:
        return [line.rstrip("\n").split("\t")[1] for line in file][1:]


@pytest.fixture(scope="session")
def predictor(trained):
    with Predictor.from_run(trained, threads=1) as made:
        yield made
