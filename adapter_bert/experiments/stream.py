"""Train a stream of tasks on one frozen base, and verify that no task is forgotten.

After each task, all packs in the bank are evaluated again. They share only frozen weights, so every score and every
prediction must stay identical.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import tabulate
import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.settings import flags as settings_flags
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification
from adapter_bert.weights import packs
from adapter_bert.weights.bank import Bank, check_name
from adapter_bert.weights.run_folder import RunFolder

REPORT_FILE = "stream.json"

# Flags that the stream sets itself.
_STREAM_FLAGS = (
    "bert_config_file",
    "vocab_file",
    "spm_model_file",
    "init_checkpoint",
    "adapter_pack",
    "output_dir",
    "do_train",
    "do_eval",
    "do_predict",
)


@dataclasses.dataclass(frozen=True)
class StreamTask:
    """A task of the stream: the name of its pack, and the settings of its training."""

    name: str
    settings: ClassifierSettings


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation on the dev split.

    Attributes:
      metric: name of the primary metric.
      predictions: fingerprint of the predictions.
      collapsed: whether all predictions are the same.
    """

    metric: str
    metrics: Mapping[str, float]
    loss: Optional[float]
    predictions: Optional[str]
    collapsed: bool = False


# Name of the task trained last -> name of a task trained so far -> its evaluation.
Table = Dict[str, Dict[str, Evaluation]]


def read_tasks(path: str, common: ClassifierSettings) -> List[StreamTask]:
    """Read a list of tasks, one line of flags per task as in a shell. Empty lines and `#` comments are ignored.

    Args:
      path: the text file.
      common: values of the settings that a line does not set.

    Raises:
      errors.UserError: a line is invalid, or there are none.
    """
    try:
        with tf.gfile.GFile(path, "r") as reader:
            lines = reader.read().split("\n")
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(f"Cannot read the list of tasks {path}: {errors.reason(error)}.") from None
    tasks: List[StreamTask] = []
    for number, line in enumerate(lines, 1):
        try:
            given = _parse_line(line, type(common))
            if not given:
                continue
            tasks.append(_make_task(dataclasses.replace(common, **given), [task.name for task in tasks]))
        except (errors.UserError, flags.Error, ValueError) as error:
            raise errors.UserError(f"{path}, line {number}: {errors.reason(error)}.") from None
    if not tasks:
        raise errors.UserError(f"{path} lists no tasks; expected one line of flags per task, e.g. --task_name=CoLA.")
    return tasks


def _parse_line(line: str, settings_class: Type[ClassifierSettings]) -> Dict[str, Any]:
    values = flags.FlagValues()
    settings_flags.define_flags(settings_class, values)
    positional = values(["tasks"] + shlex.split(line, comments=True))[1:]
    if positional:
        raise errors.UserError(f"unexpected argument '{positional[0]}': write flags as --name=value")
    present = {settings_flags.ALIASES.get(name, name) for name in values if values[name].present}
    given = {name: values[name].value for name in present}
    for name in _STREAM_FLAGS:
        if name in given:
            raise errors.UserError(f"--{name} cannot be set for a single task of a stream")
    return given


def _make_task(settings: ClassifierSettings, earlier: Sequence[str]) -> StreamTask:
    if not settings.task_name:
        raise errors.UserError("--task_name is missing")
    name = settings.task_name.lower()
    check_name(name)
    if name in earlier:
        raise errors.UserError(f"the task '{name}' is listed twice")
    settings.validate()
    return StreamTask(name, settings)


@dataclasses.dataclass(frozen=True)
class Stream:
    """A bank with a base, and the tasks to train on it in this order.

    `output_dir` is for the runs; an interrupted stream continues there.
    """

    bank: Bank
    tasks: Sequence[StreamTask]
    output_dir: str

    def check_all(self) -> None:
        """Check all tasks before the first is trained."""
        for task in self.tasks:
            folder = self._run_folder(task)
            if task.name in self.bank.names() and not RunFolder(folder).holds_run():
                raise errors.UserError(
                    f"The bank {self.bank.folder} already has a pack '{task.name}' from elsewhere. Remove it, or "
                    "use another --bank."
                )
            try:
                classification.load_data(self._settings(task, folder, do_train=True))
            except errors.UserError as error:
                raise errors.UserError(f"Task '{task.name}': {error}") from None

    def learn(self, show: Callable[[str], None] = print) -> Table:
        """Train all tasks, evaluate all packs after each, write `stream.json`, and pass a table to `show`."""
        self.check_all()
        table: Table = {}
        for count, trained in enumerate(self.tasks, 1):
            tf.logging.info("***** Task %d of %d: %s *****", count, len(self.tasks), trained.name)
            self._train(trained)
            table[trained.name] = {task.name: self._evaluate(task, trained.name) for task in self.tasks[:count]}
            files.write_json(os.path.join(self.output_dir, REPORT_FILE), self.report(table))
            show("\n".join(format_table(table)))
        return table

    def _train(self, task: StreamTask) -> None:
        folder = self._run_folder(task)
        classification.run(self._settings(task, folder, do_train=True))
        pack = packs.read(packs.find(folder))
        if task.name not in self.bank.names():
            self.bank.add(pack, task.name)
        elif self.bank.read(task.name).fingerprint != pack.fingerprint:
            raise errors.UserError(
                f"The pack '{task.name}' in the bank {self.bank.folder} differs from the one of the run {folder}. "
                "Remove it from the bank, or use another --bank."
            )

    def _run_folder(self, task: StreamTask) -> str:
        return os.path.join(self.output_dir, "runs", task.name)

    def _evaluate(self, task: StreamTask, after: str) -> Evaluation:
        """Evaluate a pack of the bank, in a separate folder."""
        folder = os.path.join(self.output_dir, "after", after, task.name)
        results = classification.run(self._settings(task, folder, adapter_pack=self.bank.path(task.name)))
        assert results is not None  # do_eval is set
        predictions = results.fingerprints["predictions"]
        return Evaluation(results.primary_metric, results.metrics, results.loss, predictions, results.collapsed)

    def _settings(self, task: StreamTask, folder: str, **changes: Any) -> ClassifierSettings:
        values = dict(self.bank.base.flags(), do_train=False, do_eval=True, do_predict=False, output_dir=folder)
        values["feature_cache_dir"] = task.settings.feature_cache_dir or os.path.join(self.output_dir, "features")
        return dataclasses.replace(task.settings, **dict(values, **changes))

    def report(self, table: Table) -> Dict[str, Any]:
        """Return the content of `stream.json`."""
        equal, compared = compare(table)
        return {
            "tasks": list(table),
            "table": {
                after: {name: dataclasses.asdict(evaluation) for name, evaluation in row.items()}
                for after, row in table.items()
            },
            "comparisons": compared,
            "equal": equal,
            "parameters": self.count_parameters(list(table)),
        }

    def count_parameters(self, names: Sequence[str]) -> Dict[str, float]:
        """Count the parameters of the base and of all packs, to compare with a fully tuned model per task."""
        base = parameters.count(self.bank.base.shapes)
        trained = sum(self.bank.read(name).num_parameters for name in names)
        return {
            "base": base,
            "packs": trained,
            "total": base + trained,
            "times_one_base": (base + trained) / base,
            "times_one_base_by_full_fine_tuning": len(names),
        }


def compare(table: Table) -> Tuple[int, int]:
    """Return how many repeated evaluations equal the first one of their task, and how many there are."""
    repeated = [(name, row[name]) for after, row in table.items() for name in row if name != after]
    return sum(evaluation == table[name][name] for name, evaluation in repeated), len(repeated)


def format_table(table: Table) -> List[str]:
    """Return lines of a table with a row for each task and a column for each point in time, and a summary."""
    rows = []
    for name in table:
        cells = [_cell(row[name]) if name in row else "" for row in table.values()]
        rows.append([f"{name} {table[name][name].metric}", *cells])
    headers = ["", *(f"after {name}" for name in table)]
    align = ["left"] + ["right"] * len(table)
    lines = tabulate.tabulate(rows, headers, "plain", colalign=align, disable_numparse=True).split("\n")
    if any(table[name][name].collapsed for name in table):
        lines.append("* collapsed: all predictions are the same, so nothing was learned")
    equal, compared = compare(table)
    if compared:
        lines.append(
            f"Memory: {equal} of {compared} repeated evaluations are identical to the first one, in all scores and "
            "predictions."
        )
    return lines


def _cell(evaluation: Evaluation) -> str:
    return f"{evaluation.metrics[evaluation.metric]:.4f}" + ("*" if evaluation.collapsed else "")


def format_parameters(counts: Mapping[str, float]) -> str:
    """Return a sentence on the number of parameters."""
    return (
        f"Parameters: {counts['base']:,} (base) + {counts['packs']:,} (packs) = {counts['total']:,}, or "
        f"{counts['times_one_base']:.2f} times the base; full fine-tuning of each task would take "
        f"{counts['times_one_base_by_full_fine_tuning']} times."
    )
