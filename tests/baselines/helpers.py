"""Word vectors, a module and a task small enough for tests of the baseline."""

from __future__ import annotations

import os

import numpy as np

from adapter_bert.baselines import hub_modules
from adapter_bert.baselines.settings import BaselineSettings
from adapter_bert.baselines.word_vectors import WordVectors
from tests.helpers import WORDS, write_cola

WIDTH = 8


def tiny_vectors(width: int = WIDTH) -> WordVectors:
    words = [word for word in WORDS if not word.startswith("##")]
    return WordVectors(words, np.random.RandomState(1).normal(size=[len(words), width]).astype(np.float32))


def write_module(folder: str, layout: str = "tf1") -> str:
    hub_modules.write(tiny_vectors(), folder, layout, buckets=4)
    return folder


def tiny_settings(folder: str, module: str, **changes) -> BaselineSettings:
    """Settings of a run on a tiny task with CoLA's files, which are created unless they exist."""
    data = os.path.join(os.path.dirname(folder), "cola")
    if not os.path.isdir(data):
        write_cola(data)
    values = {
        "task_name": "CoLA",
        "data_dir": data,
        "output_dir": folder,
        "hub_module": module,
        "do_train": True,
        "do_eval": True,
        "train_batch_size": 8,
        "num_train_samples": 64,
        "hidden_size": 8,
        "conv_filters": 4,
        "seed": 1,
    }
    return BaselineSettings(**{**values, **changes})


def command_flags(settings: BaselineSettings) -> dict:
    """The flags that describe settings, without those that have their defaults."""
    defaults = BaselineSettings()
    names = list(BaselineSettings.__dataclass_fields__)
    return {name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(defaults, name)}
