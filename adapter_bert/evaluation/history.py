"""The history of a training run: its evaluations, its training loss and the time of its steps."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import files, json_files
from adapter_bert.evaluation.scores import Scores

_TYPES = {
    "evaluations": Sequence[Mapping[str, Any]],
    "seconds": float,
    "steps": int,
    "examples": int,
    "losses": Sequence[Optional[float]],
}
_ENTRY_TYPES = {"step": int, "loss": Optional[float], "metrics": Mapping[str, Optional[float]]}
# Points of the curve of the training loss.
_PARTS = 50


class History:
    """Evaluations, training loss and step times of a training run, stored in a JSON file."""

    def __init__(self, path: str) -> None:
        """Read the file; start empty if it does not exist."""
        self._path = path
        # For each evaluation: step, loss, metrics, collapsed.
        self.evaluations: List[Dict[str, Any]] = []
        # Time spent in training steps, excluding evaluation, and their number and examples. Killed processes add none.
        self.seconds, self.steps, self.examples = 0.0, 0, 0
        # Mean training loss of each fiftieth of the steps; None where there is no step, or it was lost in a kill.
        # A resumed run replaces those that it computes again, even in part.
        self.losses: List[Optional[float]] = [None] * _PARTS
        self._sums: Dict[int, Tuple[float, int]] = {}  # part -> sum and number of the losses, in this process
        if tf.gfile.Exists(path):
            content = {"losses": [], **json_files.read_object(path)}  # older versions wrote no losses
            json_files.check_types(content, _TYPES, path)
            for entry in content["evaluations"]:
                json_files.check_types(entry, _ENTRY_TYPES, f"{path}: evaluations")
            self.evaluations, self.seconds = content["evaluations"], content["seconds"]
            self.steps, self.examples = content["steps"], content["examples"]
            self.losses = (list(content["losses"]) + self.losses)[:_PARTS]

    def forget_after(self, step: int, keep: Optional[int] = None) -> None:
        """Drop evaluations after a step, which the resumed training will repeat, except the one at step `keep`."""
        self.evaluations = [entry for entry in self.evaluations if entry["step"] <= step or entry["step"] == keep]

    def at(self, step: Optional[int]) -> Optional[Dict[str, Any]]:
        """Return the evaluation at a step, or None."""
        return next((entry for entry in self.evaluations if entry["step"] == step), None)

    def add(self, step: int, scores: Scores) -> None:
        """Add an evaluation."""
        entry = {"step": step, "loss": scores.loss, "metrics": dict(scores.metrics), "collapsed": scores.collapsed}
        self.evaluations.append(entry)
        self.evaluations.sort(key=lambda entry: entry["step"])

    def add_loss(self, step: int, total_steps: int, loss: float) -> None:
        """Add the loss of a training step, counted from 1."""
        part = min((step - 1) * _PARTS // total_steps, _PARTS - 1)
        total, count = self._sums.get(part, (0.0, 0))
        self._sums[part] = total + loss, count + 1
        self.losses[part] = round((total + loss) / (count + 1), 6)

    def add_step(self, seconds: float, examples: int) -> None:
        """Count a training step."""
        self.seconds += seconds
        self.steps += 1
        self.examples += examples

    def write(self) -> None:
        """Write the file."""
        content = {"evaluations": self.evaluations, "seconds": round(self.seconds, 3), "steps": self.steps}
        files.write_json(self._path, {**content, "examples": self.examples, "losses": self.losses})

    def summary(self) -> Dict[str, Any]:
        """Return the section `training` of `results.json`."""
        return {
            "seconds": self.seconds,
            "steps_computed": self.steps,
            "examples_per_second": round(self.examples / self.seconds, 3) if self.seconds else None,
            "evaluations": self.evaluations,
        }
