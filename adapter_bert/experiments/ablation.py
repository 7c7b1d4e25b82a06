"""Ablation of trained adapters: dev scores without the adapters of each span of layers (section 3.6, figure 6)."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import typing
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import tabulate
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, json_files
from adapter_bert.evaluation import metrics
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import predicted_rows
from adapter_bert.experiments import figures
from adapter_bert.experiments.ablation_network import Span, predict, spans
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.groups import ADAPTER_SETTINGS
from adapter_bert.training import classification, workflow
from adapter_bert.training.engine import Engine
from adapter_bert.weights import packs
from adapter_bert.weights.exchange.outputs import OutputFolder
from adapter_bert.weights.run_folder import RESULTS_FILE, RunFolder

VERSION = 1
STEM = "ablation"
FILES = tuple(f"{STEM}.{ending}" for ending in ("json", "csv", "png", "svg"))
# Settings that `--bert_dir` replaces.
_BASE_FLAGS = ("bert_config_file", "vocab_file", "spm_model_file", "init_checkpoint")
_FIXED = {"do_train": False, "do_eval": True, "do_predict": False, "use_tpu": False, "tpu_name": None, "master": None}


# ------------------------------------------------------------------------------------------ settings


def find_all_settings(sources: Sequence[str], changes: Mapping[str, Any]) -> List[ClassifierSettings]:
    """Return `find_settings` for each run; raise a `UserError` unless all of them are of one task."""
    found = [find_settings(source, changes) for source in sources]
    names = {(settings.task_name or "").lower(): source for source, settings in zip(sources, found)}
    if len(names) > 1:
        tasks = ", ".join(f"{source} is of the task {name}" for name, source in names.items())
        raise errors.UserError(
            f"Expected runs of one task, e.g. with different seeds; {tasks}. Ablate them one by one."
        )
    return found


def find_settings(source: str, changes: Mapping[str, Any]) -> ClassifierSettings:
    """Return the settings to evaluate a run on its own dev split, or a pack on the dev split that `changes` names.

    Args:
      source: the output folder of a run, or a pack.
      changes: settings that replace the recorded ones. `bert_dir` replaces all paths of the base.
    """
    with files.user_errors():
        path = packs.find(source)
        config = packs.read_config(path)
        if config.head == "span":
            raise errors.UserError(
                f"{source} is for question answering; an ablation supports only classification and regression."
            )
        if config.adapter is None:
            raise errors.UserError(
                f"{source} was trained with --tuning_mode={config.tuning_mode}, so it has no adapters to remove; "
                "expected a run with --tuning_mode=adapter."
            )
        values = _values_of_pack(config)
        if path == source:
            values["adapter_pack"] = path
        else:
            values.update(_values_of_run(source), output_dir=source)
    if "bert_dir" in changes:
        values.update(dict.fromkeys(_BASE_FLAGS))
    settings = ClassifierSettings(**{**values, **_FIXED, **changes})
    settings.validate()
    settings.check_paths()
    return settings


def _values_of_pack(config: packs.PackConfig) -> Dict[str, Any]:
    """Return the settings that a pack records. They contain no paths."""
    adapter = dict(config.adapter or {})
    layers = adapter.get("layers")
    adapter["layers"] = "all" if layers is None else ",".join(map(str, layers))
    values = {flag: adapter[name] for flag, name in ADAPTER_SETTINGS.items() if name in adapter}
    values.update(task_name=config.task, max_seq_length=config.max_seq_length, tuning_mode=config.tuning_mode)
    values.update(do_lower_case=config.tokenizer["do_lower_case"])
    return {**_known(config.training, f"The pack of {config.task}"), **values}


def _values_of_run(path: str) -> Dict[str, Any]:
    """Return the settings of a run: all of them from its results file, and absolute paths from its settings file."""
    folder, values = RunFolder(path), {}
    if tf.gfile.Exists(folder.file(RESULTS_FILE)):
        values.update(_known(folder.read_results().settings, folder.file(RESULTS_FILE)))
    recorded = folder.read_settings()
    kinds = {field.name: field.metadata["kind"] for field in dataclasses.fields(ClassifierSettings)}
    paths = {name: value for name, value in recorded.items() if value and kinds.get(name) == "path"}
    return {**values, **_known(paths, path)}


def _known(values: Mapping[str, Any], where: str) -> Dict[str, Any]:
    """Return the values whose names are settings; raise a `UserError` if one has the wrong type."""
    hints = typing.get_type_hints(ClassifierSettings)
    known = {name: value for name, value in values.items() if name in hints}
    json_files.check_types(known, {name: hints[name] for name in known}, where)
    return known


# ------------------------------------------------------------------------------------------ scores


@dataclasses.dataclass(frozen=True)
class RunAblation:
    """The dev scores of a run with all adapters, and without those of each span."""

    source: str  # the run, or the pack
    task: str
    metric: str
    layers: int
    examples: int
    score: float  # with all adapters
    majority: float  # of a constant prediction: the most frequent class, or the mean
    scores: Mapping[Span, float]  # without the adapters of a span

    def changes(self) -> np.ndarray:
        """Return the change without each span, in points, [first, last]; NaN below the main diagonal."""
        matrix = np.full([self.layers, self.layers], np.nan)
        for span, score in self.scores.items():
            matrix[span] = 100 * (score - self.score)
        return matrix


def ablate(settings: ClassifierSettings) -> RunAblation:
    """Score the dev split of a run or a pack with all adapters and without each span. Only features are written."""
    engine = Engine()
    with RunFolder(settings.output_dir or "") as folder, files.user_errors():
        data = classification.load_data(settings)
        settings = dataclasses.replace(settings, task_name=data.task.name)
        base, head = workflow.load_base(settings, engine), classification.make_head(settings, data)
        trainer = workflow.prepare(settings, folder, base, head, data.fingerprints(), engine)
        split = classification.make_features(settings, base, data)["dev"]
    score, scores, labels = classification.make_scorer(head, data.task), {}, np.array([])
    for span, batches in predict(trainer, split).items():
        rows = list(predicted_rows(batches, split.num_examples, "scores"))
        scores[span] = score(rows)
        labels = np.array([row["label_ids"] for row in rows])
    complete = scores[None]
    metric = next(iter(complete.metrics))
    known = folder.results_of(data.task.name, trainer.weights.fingerprint(trainer.spec.trained_names))
    _check_score(known, metric, complete.primary, folder.path)
    return RunAblation(
        source=folder.path if folder.holds_run() else settings.adapter_pack or "",
        task=data.task.name,
        metric=metric,
        layers=base.config.num_hidden_layers,
        examples=len(labels),
        score=complete.primary,
        majority=metrics.majority_class_score([metric], labels)[metric],
        scores={span: scores[span].primary for span in spans(base.config.num_hidden_layers)},
    )


def _check_score(known: Optional[EvalResults], metric: str, score: float, path: str) -> None:
    """Warn if the score with all adapters differs from the one that the run recorded for the same weights."""
    own = known.metrics.get(metric) if known else None
    if own is not None and abs(own - score) > 1e-6:
        tf.logging.warning(
            "***** %s is %.6f with all adapters, but %.6f in %s: the dev set or the software has changed. *****",
            *(metric, score, own, os.path.join(path, RESULTS_FILE)),
        )


def mean_changes(runs: Sequence[RunAblation]) -> np.ndarray:
    """Return the mean of `RunAblation.changes`; raise a `UserError` if the runs differ in their metric or depth."""
    first = runs[0]
    for run in runs[1:]:
        for name in ("metric", "layers"):
            values = [getattr(each, name) for each in (first, run)]
            if values[0] != values[1]:
                raise errors.UserError(
                    f"Cannot average runs that differ in their {name}: {first.source} has {values[0]}, {run.source} "
                    f"has {values[1]}. Ablate them one by one."
                )
    return np.mean([run.changes() for run in runs], axis=0)


# ------------------------------------------------------------------------------------------ output


def summarize(runs: Sequence[RunAblation]) -> Dict[str, Any]:
    """Return the numbers that section 3.6 reports: scores in percent, changes in points, both means over the runs."""
    changes, layers = mean_changes(runs), runs[0].layers
    single = int(changes.diagonal().argmin())
    summary: Dict[str, Any] = {
        "all_adapters": 100 * float(np.mean([run.score for run in runs])),
        "majority": 100 * float(np.mean([run.majority for run in runs])),
        "worst_layer": single,
        "without_worst_layer": float(changes[single, single]),
    }
    if layers > 1:
        middle = layers // 2
        summary["without_lower_half"] = float(changes[0, middle - 1])
        summary["without_upper_half"] = float(changes[middle, -1])
    return {**summary, "without_all": float(changes[0, -1])}


def format_summary(runs: Sequence[RunAblation]) -> str:
    """Return the summary as text."""
    run, values = runs[0], summarize(runs)
    complete, top, middle = values["all_adapters"], run.layers - 1, run.layers // 2
    names = {
        "without_worst_layer": f"without layer {values['worst_layer']}, the largest drop of a single layer",
        "without_lower_half": f"without the lower half, layers 0 to {middle - 1}",
        "without_upper_half": f"without the upper half, layers {middle} to {top}",
        "without_all": "without all adapters",
    }
    rows: List[Sequence[Any]] = [("with all adapters", complete, "")]
    rows += [(names[key], complete + values[key], f"{values[key]:+.1f}") for key in names if key in values]
    rows.append(("constant prediction (majority class or mean)", values["majority"], ""))
    count = f"{len(runs)} run" + ("s" if len(runs) > 1 else "")
    headers = [f"{run.task}, {run.examples} dev examples, {count}", f"{run.metric} (%)", "points"]
    return tabulate.tabulate(
        rows, headers, "simple", floatfmt=".1f", disable_numparse=[2], colalign=("left", *["right"] * 2)
    )


def write(output: OutputFolder, runs: Sequence[RunAblation]) -> List[str]:
    """Write the ablation as JSON, CSV and a heat map; return the paths."""
    changes, first = mean_changes(runs), runs[0]
    rows = [
        {
            "first": span[0],
            "last": span[1],
            "score": float(np.mean([run.scores[span] for run in runs])),
            "change": round(float(changes[span]), 6),
        }
        for span in spans(first.layers)
    ]
    content = {
        "version": VERSION,
        **{name: getattr(first, name) for name in ("task", "metric", "layers", "examples")},
        "summary": summarize(runs),
        "spans": rows,  # scores as in results.json, changes in points
        "runs": [
            {"source": run.source, "score": run.score, "majority": run.majority, "changes": run.changes().tolist()}
            for run in runs
        ],
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    figure = figures.ablation_figure({first.task: changes}, first.metric)
    with output.replaced() as folder:
        files.write_json(os.path.join(folder, f"{STEM}.json"), content)
        files.write_text(os.path.join(folder, f"{STEM}.csv"), text.getvalue())
        figures.save(figure, os.path.join(folder, STEM))
    return [os.path.join(output.path, name) for name in FILES]
