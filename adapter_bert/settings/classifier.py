"""Settings of `run_classifier.py` and, for any model, of its data. Imports no TensorFlow, see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional

from adapter_bert import tasks
from adapter_bert.common import errors
from adapter_bert.evaluation import metrics
from adapter_bert.settings.flags import MODEL, NOT_NEGATIVE, TRAINING, Limits, setting
from adapter_bert.settings.groups import RunSettings, Settings
from adapter_bert.tasks import custom

METRIC_NAMES = tuple(sorted(metrics.METRICS))


@dataclasses.dataclass(frozen=True)
class TaskSettings(RunSettings):
    """Settings for classification and regression with any model."""

    data_dir: Optional[str] = setting(None, "Folder with the task's files as downloaded.", TRAINING, kind="path")
    do_predict: bool = setting(False, "Write class probabilities of the test set.")
    predict_header: bool = setting(
        False, "Start test_results.tsv with a line of labels, unlike the original. Always true for custom data."
    )
    primary_metric: Optional[str] = setting(
        None,
        f"Metric that selects the best weights: {', '.join(METRIC_NAMES)}. Default: the task's own.",
        TRAINING,
        Limits(choices=METRIC_NAMES),
    )
    worst_mistakes: int = setting(
        0, "Write this many dev examples with the highest loss to worst_mistakes.csv.", None, NOT_NEGATIVE
    )
    class_weights: str = setting(
        "none", "Class weights of the loss: none, balanced (inverse frequency), or e.g. ham=0.5,spam=4.", TRAINING
    )
    train_file: Optional[str] = setting(
        None,
        "Custom data, instead of --data_dir: a CSV, TSV or JSONL file, or a folder or tar archive with a folder per "
        "label and a text file per example. Choose any --task_name.",
        TRAINING,
        kind="path",
    )
    dev_file: Optional[str] = setting(
        None, "Custom dev set. Default: split off --train_file, see --dev_fraction.", TRAINING, kind="path"
    )
    test_file: Optional[str] = setting(None, "Custom test set to predict; needs no labels.")
    text_column: str = setting("text", "Custom data: name or number (from 1) of the text column.", TRAINING)
    text_pair_column: Optional[str] = setting(None, "Custom data: column of the second text of a pair.", TRAINING)
    label_column: str = setting("label", "Custom data: column of the label.", TRAINING)
    task_type: str = setting("classification", "Custom data: classification, or regression (numeric labels).", MODEL)
    encoding: Optional[str] = setting(None, "Custom data: encoding, e.g. utf-8 or cp1252; detected if not set.")
    header: Optional[bool] = setting(
        None, "Custom data: whether the first line has column names. Default: false if columns are given by number."
    )
    quoting: Optional[bool] = setting(
        None, "Custom data: whether double quotes enclose cells. Default: true for CSV, false for TSV."
    )
    labels: Optional[str] = setting(
        None,
        "Custom data: labels in class order, e.g. No,Yes; drops other rows. Default: all in --train_file.",
        TRAINING,
    )
    label_map: Optional[str] = setting(
        None, "Custom data: other spellings of labels, e.g. Y=Yes,N=No; applied before --labels.", TRAINING
    )
    dev_fraction: float = setting(
        0.1, "Custom data: fraction of --train_file in [0, 1) to use as dev set if there is no --dev_file.", TRAINING
    )
    split_seed: int = setting(1, "Custom data: random seed of that split; keep it for all runs of a sweep.", TRAINING)

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        if self.has_custom_data:
            self.custom_data  # noqa: B018  (the constructor checks the values)
        elif self.data_dir:
            self.known_task()
        elif not (tasks.is_known(self.task_name) and self.known_task().reader):  # code may need no folder
            raise errors.UserError(
                f"No data: set --data_dir to the folder of a known task ({', '.join(tasks.names())}), or use custom "
                "data with --train_file, --dev_file and --test_file."
            )

    @property
    def has_custom_data(self) -> bool:
        """Whether data comes from single files instead of a known task's folder."""
        return bool(self.train_file or self.dev_file or self.test_file)

    @property
    def custom_data(self) -> custom.CustomData:
        """The description of the custom data."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(custom.CustomData)}
        values["labels"] = custom.parse_list(self.labels) if self.labels else None
        values["label_map"] = custom.parse_map(self.label_map) if self.label_map else {}
        return custom.CustomData(**values)

    def known_task(self) -> tasks.Task:
        """Return the task of `data_dir`."""
        try:
            return tasks.get(self.task_name or "")
        except errors.UserError as error:
            raise errors.UserError(f"{error} For custom data, use --train_file instead of --data_dir.") from None

    def needed_paths(self) -> Dict[str, str]:
        """As in the base class: only files that the requested phases read."""
        files = {"train_file": self.do_train, "dev_file": self.do_eval, "test_file": self.do_predict}
        read = {name: "file or folder" for name, is_read in files.items() if is_read}
        return dict(super().needed_paths(), data_dir="folder", **read)


@dataclasses.dataclass(frozen=True)
class ClassifierSettings(TaskSettings, Settings):
    """Settings for classification and regression with BERT."""
