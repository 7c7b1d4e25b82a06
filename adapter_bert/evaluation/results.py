"""Read and write `results.json`, the results of an evaluation."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Dict, Mapping, Optional, Sequence

from adapter_bert.common import errors, files, json_files
from adapter_bert.evaluation.class_report import ClassReport

_NO_DEFAULT = ("task", "primary_metric", "metrics", "loss", "seed")
# Left out of the file if they are empty.
_OPTIONAL = ("details", "per_class", "confusion_matrix", "test")
# In the short form for interpreters and notebooks.
_SHOWN = ("task", "metrics", "majority", "collapsed", "step", "parameters")


@dataclasses.dataclass(frozen=True)
class EvalResults:
    """Everything about an evaluation; the fields are the keys of `results.json`."""

    task: str
    primary_metric: str  # selects the best weights
    metrics: Mapping[str, Any]  # scores of the dev split, the primary one first; None where a score is not finite
    details: Mapping[str, Any]  # additional scores, e.g. of the questions that have an answer
    loss: Optional[float]  # mean over the dev split
    majority: Mapping[str, Any]  # scores of a constant prediction: the most frequent class, the mean, or no answer
    collapsed: bool  # whether all predictions are the same although the labels differ
    step: int  # training step of the weights
    seed: Optional[int]  # of the training run
    parameters: Mapping[str, int]  # counts: `total` and `trained`
    training: Mapping[str, Any]  # times and evaluations of the training run, see `History.summary`
    fingerprints: Mapping[str, Optional[str]]  # hashes of base, frozen weights, training data, pack and predictions
    data: Mapping[str, Mapping[str, Any]]  # size and fingerprint of each split
    versions: Mapping[str, str]  # of the software
    settings: Mapping[str, Any]  # of the training run
    command: Mapping[str, Any]  # settings of the command that evaluated
    per_class: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)  # see `ClassReport`
    confusion_matrix: Sequence[Sequence[int]] = dataclasses.field(default_factory=list)
    # Metrics, loss, majority, size and fingerprint of a test split with labels.
    test: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the scores: all fields would fill the screen of a notebook."""
        shown = {name: getattr(self, name) for name in _SHOWN}
        return f"EvalResults({', '.join(f'{name}={value!r}' for name, value in shown.items())}, …)"

    @property
    def primary(self) -> Any:
        """The score that selects the best weights."""
        return self.metrics[self.primary_metric]

    @property
    def class_report(self) -> ClassReport:
        """Scores of each class and the confusion matrix; empty for tasks without classes."""
        return ClassReport(self.per_class, self.confusion_matrix)

    @classmethod
    def read(cls, path: str) -> EvalResults:
        """Read `results.json`; files written by earlier versions may lack keys or have additional ones."""
        content = json_files.read_object(path)
        defaults: Dict[str, Any] = {"collapsed": False, "step": 0, "confusion_matrix": [], **dict.fromkeys(_NO_DEFAULT)}
        hints = dict(typing.get_type_hints(cls), metrics=Mapping[str, Optional[float]])
        values = {name: content.get(name, defaults.get(name, {})) for name in hints}
        json_files.check_types(values, hints, path)
        if values["primary_metric"] not in values["metrics"]:
            raise errors.UserError(f"{path}: metrics lack the primary_metric, {values['primary_metric']!r}.")
        return cls(**values)

    def write(self, path: str) -> None:
        """Write `results.json`."""
        files.write_json(path, self.as_dict())

    def as_dict(self) -> Dict[str, Any]:
        """Return the content of `results.json`."""
        # Not dataclasses.asdict, which would copy the whole history.
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if name not in _OPTIONAL or value}

    def as_text(self, digits: Optional[int] = None) -> str:
        """Return the lines of `eval_results.txt`: `key = value`, sorted, including the original's keys.

        Numbers are rounded to this many decimal digits, e.g. to show them on a screen.
        """
        values: Dict[str, Any] = {f"eval_{name}": value for name, value in {**self.details, **self.metrics}.items()}
        # The original writes `loss` as well as `eval_loss`.
        values.update(eval_loss=self.loss, loss=self.loss, global_step=self.step)
        values.update({f"majority_{name}": value for name, value in self.majority.items()})
        if digits is not None:
            values = {key: round(value, digits) if isinstance(value, float) else value for key, value in values.items()}
        return "".join(f"{key} = {values[key]}\n" for key in sorted(values))
