"""Scores along a training: which step was best, whether to go on, and how long it took."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.common.progress import with_progress
from adapter_bert.evaluation import metrics as scoring
from adapter_bert.model.heads import ROW, LabelHead

HISTORY_FILE = "training.json"
# For TensorBoard: scores as a run of their own.
FOLDER = "eval"

Row = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scores:
    """How good predictions are.

    Attributes:
      metrics: name -> value. The first is the primary one, which decides: greater is better.
      loss: mean over the examples.
      collapsed: whether all predictions are the same while the labels are not.
      details: further figures, for files alone.
    """

    metrics: Mapping[str, float]
    loss: float
    collapsed: bool
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def primary(self) -> float:
        """The value that decides."""
        return next(iter(self.metrics.values()))

    def __str__(self) -> str:
        values = [f"{name} {value:.4f}" for name, value in self.metrics.items()] + [f"loss {self.loss:.4f}"]
        return "  ".join(values) + ("  (collapsed: all predictions are the same)" if self.collapsed else "")


Scorer = Callable[[Sequence[Row]], Scores]


def rows_of(batch: Row) -> List[Row]:
    """The rows of a batch of predictions, fillers left out."""
    return [row for row in _all_rows(batch) if row["is_real_example"]]


def _all_rows(batch: Row) -> List[Row]:
    count = len(batch["is_real_example"])
    return [{name: values[index] for name, values in batch.items()} for index in range(count)]


def in_file_order(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows in the order of their `ROW`, which is left out; as they come where they have none.

    A row waits for those before it, so that memory holds as many as were sorted at a time.
    """
    waiting: Dict[int, Row] = {}
    following = 0
    for row in rows:
        if ROW not in row:
            yield row
            continue
        waiting[int(row[ROW])] = {name: value for name, value in row.items() if name != ROW}
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    if waiting:
        raise ValueError(f"Row {following} is missing, and there are rows behind it.")


def predicted_rows(batches: Iterable[Row], num_examples: int, action: str) -> Iterator[Row]:
    """The rows of all batches of predictions for a file, in its order, fillers left out.

    Args:
      batches: the predictions.
      num_examples: how many rows there are.
      action: what is logged on the way, see `with_progress`.
    """
    # Progress counts what is predicted, not what waits for its turn.
    rows = with_progress((row for batch in batches for row in _all_rows(batch)), num_examples, action, "examples")
    return (row for row in in_file_order(rows) if row["is_real_example"])


def score_rows(metric_names: Sequence[str], head: LabelHead, rows: Sequence[Row]) -> Scores:
    """Scores the predictions for a whole split.

    Args:
      metric_names: see `evaluation.metrics`; the first is the primary one.
      head: what made the predictions.
      rows: one for each example, without fillers.
    """
    labels = np.array([row["label_ids"] for row in rows])
    predictions = np.array([head.decode(row) for row in rows])
    return Scores(
        metrics=scoring.score(metric_names, labels, predictions),
        loss=float(np.mean([row["loss"] for row in rows], dtype=np.float64)),
        collapsed=scoring.is_collapsed(predictions, labels),
    )


def epoch_ends(num_examples: int, batch_size: int, total_steps: int) -> FrozenSet[int]:
    """The last step of each epoch, and the very last step."""
    epochs = total_steps * batch_size // num_examples
    return frozenset([num_examples * epoch // batch_size for epoch in range(1, epochs + 1)] + [total_steps]) - {0}


def multiples(every: int, total_steps: int) -> FrozenSet[int]:
    """Every so many steps, and the very last step."""
    return frozenset(list(range(every, total_steps, every)) + [total_steps])


class History:
    """What is known of a training so far, kept in its output folder.

    Attributes:
      evaluations: one dictionary for each evaluation: step, loss, metrics, collapsed.
      seconds: time spent in training steps, evaluation not counted.
      steps, examples: what that time covers; those of a process that was killed are missing in all three.
    """

    def __init__(self, folder: str) -> None:
        """Reads what the folder holds; an empty history if there is none."""
        self._path = os.path.join(folder, HISTORY_FILE)
        self.evaluations: List[Dict[str, Any]] = []
        self.seconds, self.steps, self.examples = 0.0, 0, 0
        if tf.gfile.Exists(self._path):
            content = files.read_json_object(self._path)
            try:
                self.evaluations = [dict(entry, step=int(entry["step"])) for entry in content["evaluations"]]
                self.seconds = float(content["seconds"])
                self.steps, self.examples = int(content["steps"]), int(content["examples"])
            except (KeyError, TypeError, ValueError) as error:
                raise errors.UserError(
                    f"{self._path} is damaged ({errors.reason(error)}): use another --output_dir."
                ) from None

    def forget_after(self, step: int, keep: Optional[int] = None) -> None:
        """Drops evaluations behind a step, where the training goes on: it makes them again.

        Args:
          step: the last that stays.
          keep: a later step that stays too, because its weights are kept.
        """
        self.evaluations = [entry for entry in self.evaluations if entry["step"] <= step or entry["step"] == keep]

    def at(self, step: Optional[int]) -> Optional[Dict[str, Any]]:
        """The evaluation at a step, if there is one."""
        return next((entry for entry in self.evaluations if entry["step"] == step), None)

    def add(self, step: int, scores: Scores) -> None:
        """Appends an evaluation."""
        self.evaluations.append(
            {"step": step, "loss": scores.loss, "metrics": dict(scores.metrics), "collapsed": scores.collapsed}
        )
        self.evaluations.sort(key=lambda entry: entry["step"])

    def add_step(self, seconds: float, examples: int) -> None:
        """Counts a training step."""
        self.seconds += seconds
        self.steps += 1
        self.examples += examples

    def write(self) -> None:
        """Writes it to the folder."""
        content = {
            "evaluations": self.evaluations,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "examples": self.examples,
        }
        files.write_json(self._path, content)


class Evaluator:
    """Scores the dev set at given steps, keeps the best weights, and says when to stop.

    The best weights are the run's pack. Its step and the history tell the state: both survive a kill at any point,
    and a training that goes on from an older checkpoint makes again what is behind it, except for the best itself.
    """

    def __init__(
        self,
        output_dir: str,
        history: History,
        start: int,
        score: Scorer,
        due_steps: FrozenSet[int],
        keep: Callable[[str, Scores], None],
        patience: Optional[int] = None,
        kept_step: Optional[int] = None,
    ) -> None:
        """Takes up an earlier state.

        Args:
          output_dir: of the run.
          history: of the run.
          start: the step that the training starts from.
          score: predictions of the dev set -> scores.
          due_steps: when to evaluate.
          keep: keeps the weights of a checkpoint, with their scores, as the best.
          patience: evaluations without a new best after which the training stops; None for never.
          kept_step: the step of the weights that are kept as the best so far.
        """
        self._output_dir = output_dir
        self.history = history
        self._score = score
        self.due_steps = due_steps
        self._keep = keep
        self._patience = patience
        history.forget_after(start, keep=kept_step)
        self._best = history.at(kept_step)

    def is_due(self, step: int) -> bool:
        """Whether to evaluate now."""
        return step in self.due_steps and self.history.at(step) is None

    @property
    def should_stop(self) -> bool:
        """Whether the scores have not improved for so long that the training is to stop."""
        if self._patience is None or self._best is None:
            return False
        return sum(entry["step"] > self._best["step"] for entry in self.history.evaluations) >= self._patience

    def evaluate(self, step: int, rows: Sequence[Row], checkpoint: str) -> None:
        """Scores predictions; where they are the best so far (of equal scores, by the lower loss), keeps the weights.

        Args:
          step: the training step of the weights.
          rows: the head's predictions for the dev set.
          checkpoint: the weights.
        """
        scores = self._score(rows)
        primary = next(iter(scores.metrics))
        is_best = self._best is None or (scores.primary, -scores.loss) > (
            self._best["metrics"][primary],
            -float("inf" if self._best["loss"] is None else self._best["loss"]),
        )
        if is_best:
            self._keep(checkpoint, scores)
        self.history.add(step, scores)
        self.history.write()
        if is_best:
            self._best = self.history.at(step)
        tf.logging.info("Dev set at step %d: %s%s", step, scores, "  (best so far)" if is_best else "")
        self._summarise(step, scores)
        if self.should_stop:
            tf.logging.info(
                "Stopping early: %s has not risen above %.4f (step %d) in %d evaluations.",
                primary,
                self._best["metrics"][primary],
                self._best["step"],
                self._patience,
            )

    def _summarise(self, step: int, scores: Scores) -> None:
        """Writes the scores for TensorBoard, as the run `eval`."""
        values = dict(scores.metrics, loss=scores.loss)
        # The graph that the hooks of a training see; a writer cannot be made outside of one in TensorFlow 2.
        with tf.Graph().as_default():
            writer = tf.summary.FileWriterCache.get(os.path.join(self._output_dir, FOLDER))
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]), step)
        writer.flush()
