"""The Python API: train tasks and load them, e.g. in a notebook. The package exports these names.

run = adapter_bert.train(task_name="Reviews", train_file="reviews.csv", bert_dir="bert", output_dir="runs/reviews")
run.results.metrics                                # {'accuracy': …, …}
with adapter_bert.load(run=run.output_dir) as predictor:
    predictor.predict(["a fine film"])
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Type

from adapter_bert.common import logs
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.serving.predictor import load  # noqa: F401  part of the API
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import from_values
from adapter_bert.settings.groups import Settings
from adapter_bert.settings.squad import SquadSettings
from adapter_bert.training import classification, span_extraction
from adapter_bert.weights.run_folder import RunFolder


class Run(NamedTuple):
    """A finished run."""

    output_dir: str
    pack: str  # path of the trained weights; load it with `load(adapter_pack=…, bert_dir=…)`
    results: Optional[EvalResults]  # scores of the dev split; None if it was not evaluated


def train(**flags: Any) -> Run:
    """Train and evaluate a classification or regression task.

    Arguments are the flags of `run_classifier.py`; `do_train` and `do_eval` are true unless they are given. As on the
    command line, a finished run in `output_dir` is not trained again, and an interrupted one continues.

    Raises:
      errors.UserError: wrong arguments or files.
    """
    return _run(ClassifierSettings, classification.run, {"do_train": True, "do_eval": True, **flags}, "task_name")


def train_squad(**flags: Any) -> Run:
    """Train on questions and, with a `predict_file`, answer and evaluate them: the flags of `run_squad.py`."""
    return _run(SquadSettings, span_extraction.run, {"do_train": True, "do_eval": "predict_file" in flags, **flags})


def _run(kind: Type[Any], workflow: Callable[[Any], Any], flags: Mapping[str, Any], *required: str) -> Run:
    settings: Settings = from_values(kind, flags, (*required, "output_dir"))
    settings.validate()
    settings.check_paths()
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    results = workflow(settings)
    folder = RunFolder(settings.output_dir or "")
    return Run(folder.path, folder.pack_path, results)
