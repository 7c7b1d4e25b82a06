"""The output folder of a run. Only this module knows which files it contains."""

from __future__ import annotations

import dataclasses
import datetime
import os
import random
import re
import socket
from typing import Any, Dict, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, json_files, locks, paths
from adapter_bert.devices import compat
from adapter_bert.evaluation import glue_submission
from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Scores
from adapter_bert.model.adapter_config import VARIANT_DEFAULTS
from adapter_bert.settings.flags import MODEL, TRAINING
from adapter_bert.settings.groups import ADAPTER_SETTINGS, Settings
from adapter_bert.weights import bank, checkpoints, packs

SETTINGS_FILE = "settings.json"
HISTORY_FILE = "training.json"
RESULTS_FILE = "results.json"
RESULTS_TEXT_FILE = "eval_results.txt"
TEST_RESULTS_FILE = "test_results.tsv"
TEST_SCORES_FILE = "test_eval_results.txt"
CLASS_REPORT_FILE = "class_report.txt"
# Not `.tsv`, which are names of tasks.
TEST_PREDICTIONS_FILE = "test_predictions.csv"
WORST_MISTAKES_FILE = "worst_mistakes.csv"
# Folder of the dev score summaries, which TensorBoard shows as a separate run.
EVAL_SUMMARIES = "eval"
# Held by a training. It contains a JSON object that says by whom.
LOCK_FILE = ".lock"
# Names of files that a run writes. Predictions of classification tasks have the task's name, see `glue_submission`.
_WRITTEN = re.compile(
    r"settings\.json|training\.json|results\.json|(test_)?eval_results\.txt|test_results\.tsv|checkpoint|\.lock|"
    r"class_report\.txt|test_predictions\.csv|worst_mistakes\.csv|"
    r"(nbest_)?predictions\.json|null_odds\.json|(adapter_pack|network)\.safetensors|"
    r"(model|optimizer)\.ckpt-\d+(\..+)?|events\.out\.tfevents\..+"
)
# Settings that name the weights a run starts from.
STARTING_POINTS = ("init_checkpoint", "adapter_pack")
# Types of the recorded settings that are used; all others are only compared.
_RECORDED = {"facts": Mapping[str, Any], "seed": Optional[int], **dict.fromkeys(STARTING_POINTS, Optional[str])}


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A run that is started, continued or evaluated, with the settings that its folder recorded earlier."""

    settings: Settings  # of this command
    recorded: Mapping[str, Any]  # by the run that is continued or evaluated; empty if there is none
    fingerprints: Mapping[str, Any]  # labels and hashes of data and base; the key `facts` of `settings.json`
    seed: int

    def training_settings(self) -> Dict[str, Any]:
        """Return all settings; if this command does not train, its training settings come from the recorded run."""
        values = dict(dataclasses.asdict(self.settings), seed=self.seed)
        if not self.settings.do_train:
            names = [f.name for f in dataclasses.fields(self.settings) if f.metadata["scope"] == TRAINING]
            values.update({name: self.recorded[name] for name in names if name in self.recorded})
        return values


class RunFolder:
    """The files of one run: settings, checkpoints, best pack, history, results and predictions.

    Attributes:
      path: path of the folder, which need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: Optional[locks.Lock] = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *unused: object) -> None:
        """Release the lock of `claim`."""
        if self._lock:
            self._lock.release()
            self._lock = None

    def file(self, name: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, name)

    def result_file(self, name: str, task: str) -> str:
        """Return the path of a result file of a task.

        The folder belongs to the task that was trained in it or else evaluated first. Results of other tasks, e.g. of
        MNLI-mm in the folder of MNLI, have the task in their names, so that they do not replace those.
        """
        owner = self.read_settings().get("task_name")
        if owner is None and tf.gfile.Exists(self.file(RESULTS_FILE)):
            owner = self.read_results().task
        if not owner or not task or owner.lower() == task.lower():
            return self.file(name)
        return self.file(_name_with_task(name, task))

    @property
    def pack_path(self) -> str:
        """Path of the run's pack: its best weights, or its last ones if none were scored."""
        return self.file(packs.FILE_NAME)

    def has_pack(self) -> bool:
        """Return whether the run has written its pack."""
        return tf.gfile.Exists(self.pack_path)

    def latest_checkpoint(self) -> Optional[str]:
        """Return the prefix of the newest checkpoint, or None. A damaged state raises `errors.UserError`."""
        return checkpoints.find_latest(self.path)

    def latest_step(self) -> int:
        """Return the step of the newest checkpoint; 0 if there is none."""
        latest = self.latest_checkpoint()
        return checkpoints.read_step(latest) if latest else 0

    def holds_run(self) -> bool:
        """Return whether the folder contains weights of a run."""
        return self.has_pack() or self.latest_checkpoint() is not None

    def contains(self, path: str) -> bool:
        """Return whether a path names this folder, or a checkpoint or pack in it."""
        return paths.real(self.path) in (paths.real(path), paths.real(checkpoints.folder_of(path)))

    def remove_weights(self, keep_pack: bool) -> None:
        """Remove the checkpoints of a finished run and, unless `keep_pack`, its pack, to save space."""
        checkpoints.remove_all(self.path)
        if not keep_pack and self.has_pack():
            tf.gfile.Remove(self.pack_path)

    def history(self) -> History:
        """Read the training history; empty if there is none."""
        return History(self.file(HISTORY_FILE))

    def read_settings(self) -> Dict[str, Any]:
        """Read the settings recorded by the run in this folder; empty if there are none."""
        path = self.file(SETTINGS_FILE)
        if not tf.gfile.Exists(path):
            return {}
        recorded = json_files.read_object(path)
        json_files.check_types({"facts": {}, **recorded}, _RECORDED, path)
        json_files.check_types(recorded.get("facts", {}), {"labels": Optional[Sequence[str]]}, f"{path}: facts")
        return recorded

    def check_outputs(self, settings: Settings, *other_names: str) -> None:
        """Raise `errors.UserError` if the run would overwrite one of its inputs, or a file that no run has written.

        `other_names` are names of files that the run writes in addition to the usual ones.
        """
        outer = bank.containing(self.path)
        if outer:
            raise errors.UserError(f"--output_dir={self.path} is inside the bank {outer}: use another folder.")
        if settings.task_name:
            results = (RESULTS_TEXT_FILE, RESULTS_FILE, TEST_RESULTS_FILE, TEST_SCORES_FILE)
            other_names += tuple(_name_with_task(name, settings.task_name) for name in results)
        # A run that is continued or evaluated may name its own weights.
        starts = settings.do_train and not tf.gfile.Exists(self.file(SETTINGS_FILE))
        outputs = ("output_dir",) if starts else ("output_dir", *STARTING_POINTS)
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.name not in outputs and isinstance(value, str) and self._would_write(value, other_names):
                raise errors.UserError(
                    f"The run would overwrite its input --{field.name}={value}: use another --output_dir, or rename it."
                )
        if tf.gfile.Exists(self.file(SETTINGS_FILE)) and "max_seq_length" not in self.read_settings():
            raise errors.UserError(f"{self.file(SETTINGS_FILE)} was not written by a run: use another --output_dir.")
        if tf.gfile.Exists(self.file(RESULTS_FILE)):
            self.read_results()

    def _would_write(self, path: str, other_names: Sequence[str]) -> bool:
        folder, name = os.path.split(paths.real(path))
        if folder != paths.real(self.path) or not (paths.exists(path) or paths.exists(path + ".index")):
            return False
        return name in other_names or bool(_WRITTEN.fullmatch(name))

    def recorded_settings(self, settings: Settings) -> Dict[str, Any]:
        """Return the recorded settings of the run that `settings` continue or evaluate; empty if there are none.

        They come from this folder if it contains weights. If a new folder is used for evaluation, they come from the
        pack or from the folder of `init_checkpoint`.
        """
        if self.holds_run():
            recorded = self.read_settings()
            if not recorded and not settings.do_train and self.has_pack():
                return _settings_of_pack(settings, packs.read_config(self.pack_path))
            return recorded
        if settings.do_train or not settings.init_checkpoint:
            return {}
        if settings.adapter_pack:
            return _settings_of_pack(settings, packs.read_config(packs.find(settings.adapter_pack)))
        path = settings.init_checkpoint
        return RunFolder(path if tf.gfile.IsDirectory(path) else checkpoints.folder_of(path)).read_settings()

    def labels(self, settings: Settings) -> Optional[List[str]]:
        """Return the labels that the run to continue or evaluate was trained with, or None if there is none."""
        return self.recorded_settings(settings).get("facts", {}).get("labels")

    def check_same_run(self, settings: Settings, fingerprints: Mapping[str, Any]) -> RunRecord:
        """Check that a command belongs to the run that it continues or evaluates; the error lists the differences.

        Args:
          settings: settings of the command.
          fingerprints: labels and hashes of the data that the command found.
        """
        recorded = self.recorded_settings(settings)
        differences = _different_settings(settings, recorded) + _different_fingerprints(fingerprints, recorded)
        if recorded and differences:
            raise errors.UserError(self._describe_differences(settings, differences))
        trains_unscored = settings.do_train and not settings.evaluates_in_training
        if recorded and trains_unscored and self.has_pack() and self.history().evaluations:
            raise errors.UserError(
                f"The run in {self.path} evaluates during training; without evaluation, its best weights would become "
                "outdated. Add --do_eval=true, or use another --output_dir."
            )
        seed = settings.seed
        if seed is None:
            seed = recorded.get("seed", random.SystemRandom().randrange(2**31))
        return RunRecord(settings, recorded, dict(recorded.get("facts", {}), **fingerprints), seed)

    def _describe_differences(self, settings: Settings, differences: List[str]) -> str:
        place, advice = f"output folder {self.path}", "Use another --output_dir, or the same settings."
        if not self.holds_run():
            place, advice = f"folder of --init_checkpoint={settings.init_checkpoint}", "Use the same settings."
            if settings.adapter_pack:
                place = f"pack {settings.adapter_pack}"
        return "The {} contains a run with other settings: {}. {}".format(place, "; ".join(differences), advice)

    def claim(self, record: RunRecord, base_fingerprints: Mapping[str, Any], writes: bool = True) -> RunRecord:
        """Create the folder; before training, clean up after a killed run and record the run's settings.

        Returns the record, with the additional fingerprints if the run trains. Without `writes`, nothing is written,
        because another process of the same run claims the folder.
        """
        extended = dataclasses.replace(record, fingerprints=dict(record.fingerprints, **base_fingerprints))
        if not writes:
            return extended
        files.make_folder(self.path)
        if not record.settings.do_train:
            return record
        self._acquire_lock()
        if self.recorded_settings(record.settings) != record.recorded:
            raise errors.UserError(f"Another training has just used the folder {self.path}: run this command again.")
        checkpoints.remove_leftovers(self.path)
        values = dict(
            record.settings.comparable_values((MODEL, TRAINING)), seed=record.seed, facts=extended.fingerprints
        )
        if not record.settings.init_checkpoint:
            values.update({name: record.recorded.get(name) for name in STARTING_POINTS})
        files.write_json(self.file(SETTINGS_FILE), dict(sorted(values.items())))
        return extended

    def _acquire_lock(self) -> None:
        """Lock the folder until the run or its process ends. Remote folders have no locks."""
        path = self.file(LOCK_FILE)
        with files.user_errors(f"Cannot lock the folder {self.path}"):
            self._lock = locks.acquire(path)
        if self._lock is None:
            raise errors.UserError(
                f"Another training is running in {self.path}{_describe_holder(path)}: wait for it, or use another "
                "--output_dir."
            )
        started = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._lock.write({"pid": os.getpid(), "host": socket.gethostname(), "since": started})

    def read_results(self) -> EvalResults:
        """Read `results.json`."""
        return EvalResults.read(self.file(RESULTS_FILE))

    def write_results(self, results: EvalResults) -> None:
        """Write `eval_results.txt`, in the original's format, `class_report.txt` and `results.json`."""
        # Determine all paths first: whoever writes results owns the folder.
        names = (RESULTS_TEXT_FILE, CLASS_REPORT_FILE, RESULTS_FILE)
        text, report, values = (self.result_file(name, results.task) for name in names)
        files.write_text(text, results.as_text())
        if results.class_report:
            files.write_text(report, results.class_report.as_text() + "\n")
        results.write(values)

    def results_of(self, task: str, pack: Optional[str]) -> Optional[EvalResults]:
        """Return the results of a task with the weights that have this fingerprint; None if there are none."""
        path = self.result_file(RESULTS_FILE, task)
        results = EvalResults.read(path) if pack and tf.gfile.Exists(path) else None
        is_same = results and (results.task, results.fingerprints.get("pack")) == (task, pack)
        return results if is_same else None

    def write_test_scores(self, task: str, text: str) -> None:
        """Write `test_eval_results.txt`, the scores of a test split that has labels."""
        files.write_text(self.result_file(TEST_SCORES_FILE, task), text)

    def result_files(self) -> List[str]:
        """Return the names of the result files that exist."""
        return [name for name in (RESULTS_TEXT_FILE, RESULTS_FILE) if tf.gfile.Exists(self.file(name))]


@dataclasses.dataclass(frozen=True)
class BestPack:
    """The pack in a run's folder: its best weights, or its last ones if none were scored."""

    folder: RunFolder
    config: packs.PackConfig  # without its step, date and software versions
    trained_names: Sequence[str]

    def saved(self) -> Optional[packs.PackConfig]:
        """Return the description of the saved pack, or None."""
        return packs.read_config(self.folder.pack_path) if self.folder.has_pack() else None

    def save(self, checkpoint: str, scores: Optional[Scores] = None) -> None:
        """Save a checkpoint's weights as the pack."""
        config = dataclasses.replace(
            self.config, step=checkpoints.read_step(checkpoint), created=packs.now(), versions=compat.versions()
        )
        pack = packs.Pack(config, checkpoints.read_tensors(checkpoint, self.trained_names))
        packs.write(self.folder.pack_path, packs.with_scores(pack, scores) if scores else pack)

    def save_last(self) -> None:
        """Save the newest weights at the end of training, unless the pack was selected by its score."""
        latest, saved = self.folder.latest_checkpoint(), self.saved()
        if latest and (saved is None or (not saved.metrics and saved.step != checkpoints.read_step(latest))):
            self.save(latest)

    def add_scores(self, scores: Scores) -> None:
        """Add scores to a pack that has none."""
        saved = self.saved()
        if saved and not saved.metrics:
            pack = packs.read(self.folder.pack_path)
            packs.write(self.folder.pack_path, packs.with_scores(pack, scores))


def _name_with_task(name: str, task: str) -> str:
    stem, ending = os.path.splitext(name)
    return f"{stem}_{glue_submission.safe_name(task)}{ending}"


def _describe_holder(path: str) -> str:
    """Return who holds a folder's lock, as written by `RunFolder`; nothing if that is not known (yet)."""
    try:
        holder = json_files.read_object(path)
        return ", process {pid} on {host} since {since}".format(**holder)
    except (errors.UserError, KeyError):
        return ""


def _different_settings(settings: Settings, recorded: Mapping[str, Any]) -> List[str]:
    current = settings.comparable_values((MODEL, TRAINING) if settings.do_train else (MODEL,))
    if settings.seed is None:
        current.pop("seed", None)
    if "base" in recorded.get("facts", {}):
        # The base may have been moved or omitted: compare its fingerprints instead.
        current = {name: value for name, value in current.items() if name not in STARTING_POINTS}
    # The values in effect before these settings existed.
    earlier = {field.name: field.metadata["legacy"] for field in dataclasses.fields(settings)}
    return [
        f"--{name} was {recorded.get(name, earlier[name])}, is {value}"
        for name, value in current.items()
        if recorded.get(name, earlier[name]) != value
    ]


def _different_fingerprints(fingerprints: Mapping[str, Any], recorded: Mapping[str, Any]) -> List[str]:
    earlier = recorded.get("facts", {})
    return [
        f"{name} was {earlier[name]}, is {value}"
        for name, value in fingerprints.items()
        if earlier.get(name, value) != value
    ]


def _settings_of_pack(settings: Settings, config: packs.PackConfig) -> Dict[str, Any]:
    """Return a pack's description as recorded settings; settings that it does not record count as equal."""
    adapter = {**VARIANT_DEFAULTS, **(config.adapter or {})}
    recorded = dict(settings.comparable_values((MODEL,)), **config.training)
    recorded.update({name: adapter.get(field) for name, field in ADAPTER_SETTINGS.items()})
    recorded.update(
        tuning_mode=config.tuning_mode,
        tune_top_layers=config.tune_top_layers,
        do_lower_case=config.tokenizer.get("do_lower_case"),
        max_seq_length=config.max_seq_length,
        seed=config.seed,
        facts={"labels": list(config.labels)},
    )
    return recorded
