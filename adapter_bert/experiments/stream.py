"""Tasks that arrive one after another: each is trained on one frozen base, and none of the earlier ones is forgotten.

After each task all packs so far are evaluated again, from the bank. As they share nothing but frozen weights, every
score must be equal to the last digit, and every prediction byte by byte.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Type

import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.settings import flags as settings_flags
from adapter_bert.settings.groups import Settings
from adapter_bert.training import classification
from adapter_bert.weights import packs
from adapter_bert.weights.bank import Bank, check_name
from adapter_bert.weights.run_folder import RunFolder

REPORT_FILE = "stream.json"


# What the stream decides itself.
_OF_THE_STREAM = (
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
class Arrival:
    """A task of the stream.

    Attributes:
      name: of its pack.
      settings: of its training.
    """

    name: str
    settings: Settings


@dataclasses.dataclass(frozen=True)
class Entry:
    """One evaluation.

    Attributes:
      metric: the primary one.
      metrics: all scores.
      loss: of the dev split.
      predictions: a hash of them.
      collapsed: whether they are all the same.
    """

    metric: str
    metrics: Mapping[str, float]
    loss: float
    predictions: str
    collapsed: bool = False


# The name of the task that had just arrived -> the name of a task known by then -> how it did.
Table = Dict[str, Dict[str, Entry]]


def read_tasks(path: str, common: Settings) -> List[Arrival]:
    """Reads a list of tasks: a line for each, with its flags as in a shell; empty lines and `#` comments are skipped.

    Args:
      path: of the text file.
      common: the settings that a line does not give.

    Raises:
      errors.UserError: a line is wrong, or there are none.
    """
    try:
        with tf.gfile.GFile(path, "r") as reader:
            lines = reader.read().split("\n")
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(f"Cannot read the list of tasks {path}: {errors.reason(error)}.") from None
    arrivals: List[Arrival] = []
    for number, line in enumerate(lines, 1):
        try:
            given = _parse_line(line, type(common))
            if not given:
                continue
            arrivals.append(_arrival(dataclasses.replace(common, **given), [other.name for other in arrivals]))
        except (errors.UserError, flags.Error, ValueError) as error:
            raise errors.UserError(f"{path}, line {number}: {errors.reason(error)}.") from None
    if not arrivals:
        raise errors.UserError(f"{path} lists no tasks: expected a line of flags for each, e.g. --task_name=CoLA.")
    return arrivals


def _parse_line(line: str, settings_class: Type[Settings]) -> Dict[str, Any]:
    values = flags.FlagValues()
    settings_flags.define_flags(settings_class, values)
    surplus = values(["a line of tasks"] + shlex.split(line, comments=True))[1:]
    if surplus:
        raise errors.UserError(f"'{surplus[0]}' is no flag; flags are given as --name=value")
    present = {settings_flags.ALIASES.get(name, name) for name in values if values[name].present}
    given = {name: values[name].value for name in present}
    for name in _OF_THE_STREAM:
        if name in given:
            raise errors.UserError(f"--{name} does not go with a task of a stream, which sets it for all of them")
    return given


def _arrival(settings: Settings, earlier: Sequence[str]) -> Arrival:
    if not settings.task_name:
        raise errors.UserError("--task_name is missing")
    name = settings.task_name.lower()
    check_name(name)
    if name in earlier:
        raise errors.UserError(f"the task '{name}' has come before")
    settings.validate()
    return Arrival(name, settings)


@dataclasses.dataclass(frozen=True)
class Stream:
    """A bank that learns tasks in their order.

    Attributes:
      bank: with the base.
      arrivals: the tasks.
      output_dir: for the runs; a stream that was interrupted goes on there.
    """

    bank: Bank
    arrivals: Sequence[Arrival]
    output_dir: str

    def check_all(self) -> None:
        """Finds before the first training what would go wrong in a later one."""
        for arrival in self.arrivals:
            folder = self._run_folder(arrival)
            if arrival.name in self.bank.names() and not RunFolder(folder).holds_run():
                raise errors.UserError(
                    f"The bank {self.bank.folder} holds a pack '{arrival.name}' that is not of this stream: remove it, "
                    "or use another --bank."
                )
            try:
                classification.load_data(self._settings(arrival, folder, do_train=True))
            except errors.UserError as error:
                raise errors.UserError(f"The task '{arrival.name}': {error}") from None

    def learn(self, show: Callable[[str], None] = print) -> Table:
        """Trains all tasks, with a look back after each; writes `stream.json`.

        Args:
          show: is given a table after each task.
        """
        self.check_all()
        table: Table = {}
        for count, arrival in enumerate(self.arrivals, 1):
            tf.logging.info("***** Task %d of %d arrives: %s *****", count, len(self.arrivals), arrival.name)
            self._train(arrival)
            table[arrival.name] = {known.name: self._evaluate(known, arrival.name) for known in self.arrivals[:count]}
            files.write_json(os.path.join(self.output_dir, REPORT_FILE), self.report(table))
            show("\n".join(format_table(table)))
        return table

    def _train(self, arrival: Arrival) -> None:
        folder = self._run_folder(arrival)
        classification.run(self._settings(arrival, folder, do_train=True))
        pack = packs.read(packs.find(folder))
        if arrival.name not in self.bank.names():
            self.bank.add(pack, arrival.name)
        elif self.bank.read(arrival.name).fingerprint != pack.fingerprint:
            raise errors.UserError(
                f"The bank {self.bank.folder} holds another pack '{arrival.name}' than the run in {folder}: remove the "
                "pack, or use another --bank."
            )

    def _run_folder(self, arrival: Arrival) -> str:
        return os.path.join(self.output_dir, "runs", arrival.name)

    def _evaluate(self, known: Arrival, after: str) -> Entry:
        """Scores a pack as it lies in the bank, in a folder of its own."""
        folder = os.path.join(self.output_dir, "after", after, known.name)
        results = classification.run(self._settings(known, folder, adapter_pack=self.bank.path(known.name)))
        return Entry(
            results.primary_metric,
            results.metrics,
            results.loss,
            results.fingerprints["predictions"],
            results.collapsed,
        )

    def _settings(self, arrival: Arrival, folder: str, **changes: Any) -> Settings:
        values = dict(self.bank.base.flags(), do_train=False, do_eval=True, do_predict=False, output_dir=folder)
        values["feature_cache_dir"] = arrival.settings.feature_cache_dir or os.path.join(self.output_dir, "features")
        return dataclasses.replace(arrival.settings, **dict(values, **changes))

    def report(self, table: Table) -> Dict[str, Any]:
        """Everything about the stream so far, for programs."""
        equal, compared = compare(table)
        return {
            "tasks": list(table),
            "table": {after: {name: dataclasses.asdict(entry) for name, entry in row.items()}
                      for after, row in table.items()},
            "comparisons": compared,
            "equal": equal,
            "parameters": self.count_parameters(list(table)),
        }  # fmt: skip

    def count_parameters(self, names: Sequence[str]) -> Dict[str, float]:
        """What all these tasks take together, against a fully tuned model for each."""
        base = parameters.count(self.bank.base.shapes())
        trained = sum(self.bank.read(name).num_parameters for name in names)
        return {
            "base": base,
            "packs": trained,
            "total": base + trained,
            "times_one_base": (base + trained) / base,
            "times_one_base_by_full_fine_tuning": len(names),
        }


def compare(table: Table) -> Tuple[int, int]:
    """How many repeated evaluations gave exactly what the first one gave, and how many there were."""
    equal = compared = 0
    for after, row in table.items():
        for name, entry in row.items():
            if name != after:
                compared += 1
                equal += entry == table[name][name]
    return equal, compared


def format_table(table: Table) -> List[str]:
    """Tasks against time: a line for each task, a column for each arrival."""
    arrivals = list(table)
    width = max([len(name) for name in arrivals] + [8]) + 6
    first = max(len(name) + len(table[name][name].metric) for name in arrivals) + 3
    lines = ["".ljust(first) + "".join(f"after {name}".rjust(width) for name in arrivals)]
    for name in arrivals:
        cells = [_cell(row[name]) if name in row else "" for row in table.values()]
        label = f"{name} {table[name][name].metric}"
        lines.append(label.ljust(first) + "".join(cell.rjust(width) for cell in cells))
    if any(table[name][name].collapsed for name in arrivals):
        lines.append("* collapsed: all predictions are the same, nothing was learnt")
    equal, compared = compare(table)
    if compared:
        lines.append(
            f"Memory: {equal} of {compared} repeated evaluations equal the first one, scores to the last digit and "
            "predictions byte by byte."
        )
    return lines


def _cell(entry: Entry) -> str:
    return f"{entry.metrics[entry.metric]:.4f}" + ("*" if entry.collapsed else " ")


def format_parameters(counts: Mapping[str, float]) -> str:
    """One line on what the tasks take together."""
    return (
        f"Parameters: {counts['base']:,} of the base + {counts['packs']:,} of the packs = {counts['total']:,}, "
        f"{counts['times_one_base']:.2f} times one base; full fine-tuning of each task takes "
        f"{counts['times_one_base_by_full_fine_tuning']} times."
    )
