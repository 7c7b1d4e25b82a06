"""Train a stream of tasks on one frozen base, and verify that no task is forgotten.

After each task, all packs in the bank are evaluated again. They share only frozen weights, so every score and every
prediction must stay identical.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any, Container, Dict, List, Mapping, Optional, Sequence, Tuple

import tabulate
import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.common import errors, files, paths
from adapter_bert.model import parameters
from adapter_bert.settings import flags as settings_flags
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification
from adapter_bert.weights import packs
from adapter_bert.weights.bank import Bank, check_name
from adapter_bert.weights.run_folder import RunFolder

REPORT_FILE = "stream.json"

# Flags that the bank sets, and flags that the stream sets itself.
BASE_FLAGS = (
    *("bert_dir", "bert_hub_module_handle", "bert_config_file", "vocab_file", "spm_model_file"),
    *("init_checkpoint", "adapter_pack"),
)
_STREAM_FLAGS = (*BASE_FLAGS, "output_dir", "do_train", "do_eval", "do_predict")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation on the dev split. `metric` is the primary one; `predictions` is a fingerprint."""

    metric: str
    metrics: Mapping[str, float]
    loss: Optional[float]
    predictions: Optional[str]
    collapsed: bool = False


# Name of the task trained last -> name of a task trained so far -> its evaluation.
Table = Dict[str, Dict[str, Evaluation]]


def read_tasks(path: str, common: ClassifierSettings) -> Dict[str, ClassifierSettings]:
    """Read a list of tasks, one line of flags per task as in a shell. Empty lines and `#` comments are ignored.

    Return name of the pack -> settings, in the order of the lines; `common` provides values that a line does not set.
    """
    if paths.real(path) == paths.real(os.path.join(common.output_dir or "", REPORT_FILE)):
        raise errors.UserError(f"The stream would overwrite its list of tasks {path}: use another --output_dir.")
    try:
        with tf.gfile.GFile(path, "r") as reader:
            lines = reader.read().split("\n")
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(f"Cannot read the list of tasks {path}: {errors.reason(error)}.") from None
    tasks: Dict[str, ClassifierSettings] = {}
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                settings = dataclasses.replace(common, **_parse_flags(words))
                tasks[_check_task(settings, tasks)] = settings
        except (errors.UserError, flags.Error, ValueError) as error:
            raise errors.UserError(f"{path}, line {number}: {errors.reason(error)}.") from None
    if not tasks:
        raise errors.UserError(f"{path} lists no tasks; expected one line of flags per task, e.g. --task_name=CoLA.")
    return tasks


def _parse_flags(words: Sequence[str]) -> Dict[str, Any]:
    values = flags.FlagValues()
    settings_flags.define_flags(ClassifierSettings, values)
    settings_flags.reject_positional_args(values(["tasks", *words]))
    present = {settings_flags.ALIASES.get(name, name) for name in values if values[name].present}
    for name in _STREAM_FLAGS:
        if name in present:
            raise errors.UserError(f"--{name} cannot be set for a single task of a stream")
    return {name: values[name].value for name in present}


def _check_task(settings: ClassifierSettings, earlier: Container[str]) -> str:
    """Return the name of the task's pack."""
    if not settings.task_name:
        raise errors.UserError("--task_name is missing")
    name = settings.task_name.lower()
    check_name(name)
    if name in earlier:
        raise errors.UserError(f"the task '{name}' is listed twice")
    settings.validate()
    return name


@dataclasses.dataclass(frozen=True)
class Stream:
    """A bank with a base, and the tasks to train on it in this order.

    `tasks` are those of `read_tasks`. `output_dir` is for the runs; an interrupted stream continues there.
    """

    bank: Bank
    tasks: Mapping[str, ClassifierSettings]
    output_dir: str

    def learn(self) -> Table:
        """Train all tasks, evaluate all packs after each, and write `stream.json` and print a table each time."""
        self._check_all()
        table: Table = {}
        for count, trained in enumerate(self.tasks, 1):
            tf.logging.info("***** Task %d of %d: %s *****", count, len(self.tasks), trained)
            self._train(trained)
            table[trained] = {name: self.evaluate(name, trained) for name in list(self.tasks)[:count]}
            files.write_json(os.path.join(self.output_dir, REPORT_FILE), self._report(table))
            print("\n".join(format_table(table)))
        return table

    def _check_all(self) -> None:
        """Check all tasks before the first is trained."""
        for name in self.tasks:
            folder = self._run_folder(name)
            if name in self.bank.names() and not RunFolder(folder).holds_run():
                raise errors.UserError(
                    f"The bank {self.bank.folder} already has a pack '{name}' from elsewhere. Remove it, or use "
                    "another --bank."
                )
            try:
                classification.load_data(self._settings(name, folder, do_train=True))
            except errors.UserError as error:
                raise errors.UserError(f"Task '{name}': {error}") from None

    def _train(self, name: str) -> None:
        folder = self._run_folder(name)
        classification.run(self._settings(name, folder, do_train=True))
        pack = packs.read(packs.find(folder))
        if name not in self.bank.names():
            self.bank.add(pack, name)
        elif self.bank.read(name).fingerprint != pack.fingerprint:
            raise errors.UserError(
                f"The pack '{name}' in the bank {self.bank.folder} differs from the one of the run {folder}. Remove it "
                "from the bank, or use another --bank."
            )

    def _run_folder(self, name: str) -> str:
        return os.path.join(self.output_dir, "runs", name)

    def evaluate(self, name: str, after: str) -> Evaluation:
        """Evaluate a pack of the bank in a separate folder; `after` is the task trained last."""
        folder = os.path.join(self.output_dir, "after", after, name)
        results = classification.run(self._settings(name, folder, adapter_pack=self.bank.path(name)))
        assert results is not None  # do_eval is set
        predictions = results.fingerprints["predictions"]
        return Evaluation(results.primary_metric, results.metrics, results.loss, predictions, results.collapsed)

    def _settings(self, name: str, folder: str, **changes: Any) -> ClassifierSettings:
        values = dict(self.bank.base.flags(), do_train=False, do_eval=True, do_predict=False, output_dir=folder)
        features = self.tasks[name].feature_cache_dir or os.path.join(self.output_dir, "features")
        return dataclasses.replace(self.tasks[name], **dict(values, feature_cache_dir=features, **changes))

    def _report(self, table: Table) -> Dict[str, Any]:
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
        evaluations = [row.get(name) for row in table.values()]
        cells = [f"{each.metrics[each.metric]:.4f}{'*' * each.collapsed}" if each else "" for each in evaluations]
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


def format_parameters(counts: Mapping[str, float]) -> str:
    """Return a sentence on the number of parameters."""
    return (
        f"Parameters: {counts['base']:,} (base) + {counts['packs']:,} (packs) = {counts['total']:,}, or "
        f"{counts['times_one_base']:.2f} times the base; full fine-tuning of each task would take "
        f"{counts['times_one_base_by_full_fine_tuning']} times."
    )
