"""What the tests of whole runs share."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

import run_classifier
import run_squad
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification, workflow
from adapter_bert.training.engine import Engine
from adapter_bert.weights import packs
from adapter_bert.weights.bases import Base
from adapter_bert.weights.run_folder import RunFolder
from tests.helpers import message_of


def run(flags: dict, **changes: Any) -> Optional[EvalResults]:
    """Run the classifier in this process, or SQuAD if there is a --predict_file."""
    values = dict(flags, **changes)
    if "predict_file" in values:
        return run_squad.run_task(run_squad.SquadSettings(**values))
    return run_classifier.run_task(ClassifierSettings(**values))


def error_of(flags: dict, **changes: Any) -> str:
    """Return the error message of a run, which must leave the output folder as it was."""
    folder = dict(flags, **changes)["output_dir"]
    before = os.path.exists(folder) and sorted(os.listdir(folder))
    message = message_of(run, flags, **changes)
    assert (os.path.exists(folder) and sorted(os.listdir(folder))) == before, "a failed command wrote files"
    return message


def prepare(settings: ClassifierSettings) -> tuple:
    """Return the trainer, the data and the features of a run."""
    folder, bert = RunFolder(settings.output_dir), Base.load(settings)
    data = classification.load_data(settings)
    head = classification.make_head(settings, data)
    trainer = workflow.prepare(settings, folder, bert, head, data.fingerprints(), Engine())
    return trainer, data, classification.make_features(settings, bert, data)


def read_text(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def read_json(*parts: str) -> dict:
    return json.loads(read_text(*parts))


def pack_of(flags: dict) -> str:
    """Return the path of a run's pack."""
    return os.path.join(flags["output_dir"], packs.FILE_NAME)
