"""Whose run an output folder holds: its settings, and facts such as labels and fingerprints of the data."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any, Dict, List, Mapping

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.evaluation.scores import History
from adapter_bert.settings.flags import MODEL, TRAINING
from adapter_bert.settings.groups import ADAPTER_SETTINGS, Settings
from adapter_bert.weights import checkpoints, packs

SETTINGS_FILE = "settings.json"
# What a run begins with.
STARTING_POINTS = ("init_checkpoint", "adapter_pack")


class RunRecord:
    """What was noted when a run began, compared with what is asked for now.

    Attributes:
      seed: of the run; drawn where neither the settings nor the record have one.
      facts: what is known about the training besides its settings.
    """

    def __init__(self, settings: Settings, facts: Mapping[str, Any]) -> None:
        """Finds what was noted, and checks that it agrees.

        Args:
          settings: of the command.
          facts: what else makes the run what it is, as the command finds it.

        Raises:
          errors.UserError: the folder holds another run.
        """
        self._settings = settings
        self._noted = recorded_settings(settings)
        self._check(facts)
        self.facts: Dict[str, Any] = dict(self._noted.get("facts", {}), **facts)
        drawn = random.SystemRandom().randrange(2**31)
        self.seed = self._noted.get("seed", drawn) if settings.seed is None else settings.seed

    @property
    def is_known(self) -> bool:
        """Whether there is a record of the run that is continued or evaluated."""
        return bool(self._noted)

    def _check(self, facts: Mapping[str, Any]) -> None:
        if not self.is_known:
            return
        settings = self._settings
        differing = self._differing_settings() + self._differing_facts(facts)
        if differing:
            place, advice = f"output folder {settings.output_dir}", "Use another --output_dir, or the same settings."
            if not holds_run(settings.output_dir):
                place, advice = f"folder of --init_checkpoint={settings.init_checkpoint}", "Use the same settings."
                if settings.adapter_pack:
                    place = f"pack {settings.adapter_pack}"
            raise errors.UserError(
                "The {} holds a run with other settings: {}. {}".format(place, "; ".join(differing), advice)
            )
        if settings.do_train and not settings.evaluates_in_training and _is_scored(settings.output_dir):
            raise errors.UserError(
                f"The run in {settings.output_dir} is scored along its training; without scores its best weights would "
                "be out of date. Add --do_eval=true, or use another --output_dir."
            )

    def _differing_settings(self) -> List[str]:
        now = self._settings.comparable_values((MODEL, TRAINING) if self._settings.do_train else (MODEL,))
        if self._settings.seed is None:
            now.pop("seed", None)
        if "base" in self._noted.get("facts", {}):
            # Moved, or left away: fingerprints tell whether it is the same.
            now = {name: value for name, value in now.items() if name not in STARTING_POINTS}
        # What a setting was for an older version, which did not know it.
        unset = {field.name: field.metadata["legacy"] for field in dataclasses.fields(self._settings)}
        return [
            f"--{name} was {self._noted.get(name, unset[name])}, is {value}"
            for name, value in now.items()
            if self._noted.get(name, unset[name]) != value
        ]

    def _differing_facts(self, facts: Mapping[str, Any]) -> List[str]:
        noted = self._noted.get("facts", {})
        return [
            f"{name} was {noted[name]}, is {value}" for name, value in facts.items() if noted.get(name, value) != value
        ]

    def training_settings(self) -> Dict[str, Any]:
        """All settings; where the training was an earlier command, with the values that it had."""
        values = dict(dataclasses.asdict(self._settings), seed=self.seed)
        if not self._settings.do_train:
            trained_with = [f.name for f in dataclasses.fields(self._settings) if f.metadata["scope"] == TRAINING]
            values.update({name: self._noted[name] for name in trained_with if name in self._noted})
        return values

    def write(self, **facts: Any) -> None:
        """Notes the run in its output folder, with further facts."""
        self.facts.update(facts)
        values = dict(self._settings.comparable_values((MODEL, TRAINING)), seed=self.seed, facts=self.facts)
        if not self._settings.init_checkpoint:
            values.update({name: self._noted.get(name) for name in STARTING_POINTS})
        files.write_json(os.path.join(self._settings.output_dir, SETTINGS_FILE), dict(sorted(values.items())))


def holds_run(folder: str) -> bool:
    """Whether a folder holds weights of a run: a checkpoint, or a pack."""
    return tf.gfile.Exists(os.path.join(folder, packs.FILE_NAME)) or bool(checkpoints.find_latest(folder))


def _is_scored(folder: str) -> bool:
    """Whether a folder's pack was chosen by its score."""
    return tf.gfile.Exists(os.path.join(folder, packs.FILE_NAME)) and bool(History(folder).evaluations)


def recorded_settings(settings: Settings) -> Dict[str, Any]:
    """What is noted about the run that is continued or evaluated; empty where there is none.

    A folder whose run has not come to a checkpoint holds nothing that could be continued. What is evaluated in a new
    folder comes from a pack, or from the run that `init_checkpoint` belongs to.
    """
    if holds_run(settings.output_dir):
        inside = os.path.join(settings.output_dir, packs.FILE_NAME)
        noted = read(settings.output_dir)
        if not noted and not settings.do_train and tf.gfile.Exists(inside):
            return _noted_in_pack(settings, packs.read_config(inside))
        return noted
    if settings.do_train or not settings.init_checkpoint:
        return {}
    if settings.adapter_pack:
        return _noted_in_pack(settings, packs.read_config(packs.find(settings.adapter_pack)))
    path = settings.init_checkpoint
    return read(path if tf.gfile.IsDirectory(path) else checkpoints.folder_of(path))


def _noted_in_pack(settings: Settings, config: packs.PackConfig) -> Dict[str, Any]:
    """What a pack says, in the form of a run's record. What it does not say is taken to agree."""
    noted = dict(settings.comparable_values((MODEL,)), **config.training)
    adapter = config.adapter or {}
    noted.update({name: adapter.get(field) for name, field in ADAPTER_SETTINGS.items()})
    noted.update(
        tuning_mode=config.tuning_mode,
        tune_top_layers=config.tune_top_layers,
        do_lower_case=config.tokenizer.get("do_lower_case"),
        max_seq_length=config.max_seq_length,
        seed=config.seed,
        facts={"labels": list(config.labels)},
    )
    return noted


def read(folder: str) -> Dict[str, Any]:
    """What a run noted in its output folder; empty where that is missing."""
    path = os.path.join(folder, SETTINGS_FILE)
    return files.read_json_object(path) if tf.gfile.Exists(path) else {}
