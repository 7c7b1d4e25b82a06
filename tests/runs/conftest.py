"""Runs that several tests share. They are trained once; a test that changes one works on a copy."""

from __future__ import annotations

import os
import shutil
from typing import List, NamedTuple

import pytest

from adapter_bert.evaluation.results import EvalResults
from tests.helpers import base_flags, recorded_log
from tests.runs.helpers import run


class TrainedRun(NamedTuple):
    """A finished run: its flags, what it returned and what it logged."""

    flags: dict
    results: EvalResults
    log: List[str]


def cola_flags(tiny_bert: str, cola_dir: str, output_dir: str) -> dict:
    return dict(base_flags(tiny_bert, cola_dir, output_dir), num_train_epochs=2.0, learning_rate=1e-2)


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path) -> dict:
    """Flags of a run of 16 steps in two epochs, to be changed by a test."""
    return cola_flags(tiny_bert, cola_dir, str(tmp_path / "out"))


@pytest.fixture(scope="session")
def trained_run(tiny_bert, cola_dir, tmp_path_factory) -> TrainedRun:
    """The run of `given`: trained, scored after each epoch, and predicted. Read only."""
    flags = cola_flags(tiny_bert, cola_dir, str(tmp_path_factory.mktemp("trained") / "out"))
    with recorded_log() as lines:
        results = run(flags, do_train=True, do_eval=True, do_predict=True)
    return TrainedRun(flags, results, lines)


@pytest.fixture(scope="session")
def trained(trained_run) -> dict:
    """The flags of `trained_run`. Read only."""
    return trained_run.flags


@pytest.fixture
def finished(trained, tmp_path) -> dict:
    """The flags of a copy of `trained_run`."""
    return dict(trained, output_dir=shutil.copytree(trained["output_dir"], str(tmp_path / "finished")))


@pytest.fixture(scope="session")
def unscored(tiny_bert, cola_dir, tmp_path_factory) -> dict:
    """The flags of the same run without evaluation, with a checkpoint every two steps, by itself. Read only."""
    folder = tmp_path_factory.mktemp("unscored")
    data_dir = shutil.copytree(cola_dir, str(folder / "data"))
    os.remove(os.path.join(data_dir, "dev.tsv"))
    flags = dict(cola_flags(tiny_bert, data_dir, str(folder / "out")), save_checkpoints_steps=2)
    run(flags, do_train=True)
    return flags


@pytest.fixture(scope="session")
def other_seed(tiny_bert, cola_dir, tmp_path_factory) -> dict:
    """The flags of the same run with another seed and without evaluation. Read only."""
    flags = dict(cola_flags(tiny_bert, cola_dir, str(tmp_path_factory.mktemp("seed") / "out")), seed=2)
    run(flags, do_train=True)
    return flags
