"""The settings of `run_classifier.py`. Imports no TensorFlow, so that flags are checked before it is loaded."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Dict, Optional

from adapter_bert import tasks
from adapter_bert.common import errors
from adapter_bert.evaluation import metrics
from adapter_bert.settings.flags import MODEL, TRAINING, Limits, Rules, setting
from adapter_bert.settings.groups import Settings
from adapter_bert.tasks import custom


def _check_data(settings: ClassifierSettings) -> None:
    if settings.has_custom_data:
        settings.custom_data  # noqa: B018  (the constructor checks the values)
    elif settings.data_dir:
        settings.known_task()
    else:
        raise errors.UserError(
            "No data: set --data_dir to the folder of a known task ({}), or use your own data with --train_file, "
            "--dev_file and --test_file.".format(", ".join(tasks.names()))
        )


@dataclasses.dataclass(frozen=True)
class ClassifierSettings(Settings):
    """The flags that every entry point has, and those of classification and regression."""

    data_dir: Optional[str] = setting(
        None, "Folder with the task's files (.tsv) as its download has them.", TRAINING, "path"
    )
    do_predict: bool = setting(False, "Write the test split's class probabilities.")
    predict_header: bool = setting(
        False, "Start test_results.tsv with a line of label names; old readers expect none. Own data always has one."
    )
    primary_metric: Optional[str] = setting(
        None,
        "Metric that decides which weights are best: {}. The task's own if not given.".format(
            ", ".join(sorted(metrics.METRICS))
        ),
        TRAINING,
        limits=Limits(choices=tuple(sorted(metrics.METRICS))),
    )
    class_weights: str = setting(
        "none",
        "How much examples of each class count in training: none (all alike), balanced (in inverse proportion to the "
        "class's size), or e.g. ham=0.5,spam=4.",
        TRAINING,
    )
    # Own data.
    train_file: Optional[str] = setting(
        None,
        "Own data in place of --data_dir: a CSV, TSV or JSONL file, or a folder or tar archive with a text file for "
        "each example in a folder for each label. Any --task_name will do.",
        TRAINING,
        "path",
    )
    dev_file: Optional[str] = setting(
        None, "Own dev split; without it, one is split off --train_file.", TRAINING, "path"
    )
    test_file: Optional[str] = setting(None, "Own test split, to be predicted; needs no labels.")
    text_column: str = setting("text", "Own data: column of the text; its name, or its number from 1.", TRAINING)
    text_pair_column: Optional[str] = setting(None, "Own data: column of the second text of a pair.", TRAINING)
    label_column: str = setting("label", "Own data: column of the label.", TRAINING)
    task_type: str = setting("classification", "Own data: classification, or regression (labels are numbers).", MODEL)
    encoding: Optional[str] = setting(None, "Own data: encoding, e.g. utf-8 or cp1252; found out if not given.")
    header: Optional[bool] = setting(
        None, "Own data: whether the first line names the columns. If not given: unless all columns are numbers."
    )
    quoting: Optional[bool] = setting(
        None, "Own data: whether double quotes enclose cells. If not given: in CSV files they do, in TSV files not."
    )
    labels: Optional[str] = setting(
        None,
        "Own data: labels in the order of the classes, e.g. No,Yes; rows with others are left out. Learnt from "
        "--train_file if not given.",
        TRAINING,
    )
    label_map: Optional[str] = setting(
        None, "Own data: other spellings of labels, e.g. Y=Yes,N=No; applied before --labels.", TRAINING
    )
    dev_fraction: float = setting(
        0.1, "Own data: share of --train_file, 0 to below 1, to split off where there is no --dev_file.", TRAINING
    )
    split_seed: int = setting(1, "Own data: seed of that split; the same for all runs of a sweep.", TRAINING)

    RULES: ClassVar[Rules] = (_check_data,)

    @property
    def has_custom_data(self) -> bool:
        """Whether files are named one by one, and not by a folder in a known layout."""
        return bool(self.train_file or self.dev_file or self.test_file)

    @property
    def custom_data(self) -> custom.CustomData:
        """The flags that describe own data."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(custom.CustomData)}
        values["labels"] = custom.parse_list(self.labels) if self.labels else None
        values["label_map"] = custom.parse_map(self.label_map) if self.label_map else {}
        return custom.CustomData(**values)

    def known_task(self) -> tasks.Task:
        """The task whose layout `data_dir` has."""
        try:
            return tasks.get(self.task_name or "")
        except errors.UserError as error:
            hint = "Data of your own is given by --train_file, in place of --data_dir."
            raise errors.UserError(f"{error} {hint}") from None

    def needed_paths(self) -> Dict[str, str]:
        """Flag -> what must be there under its path."""
        needed = dict(super().needed_paths(), data_dir="folder")
        for name, is_read in (
            ("train_file", self.do_train),
            ("dev_file", self.do_eval),
            ("test_file", self.do_predict),
        ):
            if is_read:
                needed[name] = "file or folder"
        return needed
