"""What a run reports: `eval_results.txt` as the original has it, and `results.json` for programs."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Mapping, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import files
from adapter_bert.devices import compat
from adapter_bert.evaluation.scores import History, Row, Scores
from adapter_bert.model import parameters
from adapter_bert.training.run import Run
from adapter_bert.weights import fingerprints

TEXT_FILE = "eval_results.txt"
JSON_FILE = "results.json"
FILES = (TEXT_FILE, JSON_FILE)


def training_summary(run: Run) -> Dict[str, Any]:
    """How the training went: time, speed, every evaluation. Empty times where another folder's run is evaluated."""
    history = History(run.settings.output_dir)
    return {
        "seconds": history.seconds,
        "steps_computed": history.steps,
        "examples_per_second": round(history.examples / history.seconds, 3) if history.seconds else None,
        "evaluations": history.evaluations,
    }


def describe(run: Run, task_name: str, scores: Scores, majority: Mapping[str, float], data: Mapping[str, Any]) -> dict:
    """Everything about an evaluation that a later reader may ask for.

    Args:
      run: the run.
      task_name: name of the task.
      scores: of the dev split.
      majority: what predicting always the same would score.
      data: fingerprints and sizes of the splits.
    """
    return {
        "task": task_name,
        "primary_metric": next(iter(scores.metrics)),
        "metrics": dict(scores.metrics),
        **({"details": dict(scores.details)} if scores.details else {}),
        "loss": scores.loss,
        "majority": dict(majority),
        "collapsed": scores.collapsed,
        "step": run.step(),
        "seed": run.seed,
        "parameters": {
            "total": parameters.count(run.shapes),
            "trained": parameters.count(run.shapes, run.trained),
        },
        "training": training_summary(run),
        "fingerprints": {
            "base": run.record.facts.get("base"),
            "frozen": run.frozen_fingerprint(),
            "train_data": run.record.facts.get("train_data"),
            "pack": run.pack_fingerprint(),
        },
        "data": dict(data),
        "versions": compat.versions(),
        "settings": run.record.training_settings(),
        "command": dataclasses.asdict(run.settings),
    }


def as_text(scores: Scores, majority: Mapping[str, float], step: int) -> str:
    """The lines of `eval_results.txt`: `key = value`, sorted, the original's keys among them."""
    values: Dict[str, Any] = {f"eval_{name}": value for name, value in {**scores.details, **scores.metrics}.items()}
    # `loss` stands beside `eval_loss` in the original's file.
    values.update(eval_loss=scores.loss, loss=scores.loss, global_step=step)
    values.update({f"majority_{name}": value for name, value in majority.items()})
    return "".join(f"{key} = {values[key]}\n" for key in sorted(values))


def report(
    run: Run,
    task_name: str,
    scores: Scores,
    majority: Mapping[str, float],
    data: Mapping[str, Any],
    rows: Sequence[Row],
) -> None:
    """Tells what an evaluation came to: in the log, in both files, and in the run's pack.

    Args:
      run, task_name, scores, majority, data: see `describe`.
      rows: the predictions; a hash of their logits tells whether another run has come to the same.
    """
    folder, text = run.settings.output_dir, as_text(scores, majority, run.step())
    tf.logging.info("***** Eval results *****")
    for line in text.splitlines():
        tf.logging.info("  %s", line)
    if scores.collapsed:
        advice = "The run has learnt nothing: try a lower --learning_rate, smaller batches or more epochs."
        if not run.settings.do_train:
            advice = "Are these weights for this task?"
        if not run.step():
            advice = "The weights are untrained: add --do_train=true, or name the --output_dir of a training."
        tf.logging.warning("***** Collapsed: all predictions are the same. %s *****", advice)
    run.note_scores(scores)
    content = describe(run, task_name, scores, majority, data)
    content["fingerprints"]["predictions"] = fingerprints.of_rows([row["logits"] for row in rows])
    files.write_text(os.path.join(folder, TEXT_FILE), text)
    files.write_json(os.path.join(folder, JSON_FILE), content)
