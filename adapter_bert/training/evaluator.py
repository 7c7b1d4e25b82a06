"""Evaluate the dev set during training, keep the best weights and decide when to stop."""

from __future__ import annotations

import dataclasses
from typing import Callable, FrozenSet, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.scores import Row, Scorer, Scores


def epoch_ends(num_examples: int, batch_size: int, total_steps: int) -> FrozenSet[int]:
    """Return the last step of each epoch, and the last step of training."""
    epochs = total_steps * batch_size // num_examples
    return frozenset([num_examples * epoch // batch_size for epoch in range(1, epochs + 1)] + [total_steps]) - {0}


def multiples(interval: int, total_steps: int) -> FrozenSet[int]:
    """Return the multiples of an interval, and the last step of training."""
    return frozenset([*range(interval, total_steps, interval), total_steps])


@dataclasses.dataclass(frozen=True)
class EvaluationPlan:
    """When and how to evaluate during training.

    Attributes:
      score: computes scores from the predictions for the dev set.
      due_steps: steps at which to evaluate.
      patience: number of evaluations without a new best score after which to stop; None for never.
      summary_folder: folder for TensorBoard.
    """

    score: Scorer
    due_steps: FrozenSet[int]
    patience: Optional[int] = None
    summary_folder: Optional[str] = None


class Evaluator:
    """Evaluates at given steps, keeps the best weights, and decides when to stop.

    The best weights are saved as the run's pack. Its step and the history are the only state, and both survive a kill
    at any time. Training that resumes from an older checkpoint repeats the evaluations after it, except the best one.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        history: History,
        save_best: Callable[[str, Scores], None],
        start: int = 0,
        saved_step: Optional[int] = None,
    ) -> None:
        """Start, or resume from the state that an earlier process left.

        Args:
          plan: when and how to evaluate.
          history: history of the run.
          save_best: saves a checkpoint with its scores as the best so far.
          start: step at which training starts.
          saved_step: step of the best weights so far.
        """
        self.plan = plan
        self._history = history
        self._save_best = save_best
        history.forget_after(start, keep=saved_step)
        self._best = history.at(saved_step)

    def is_due(self, step: int) -> bool:
        """Return whether to evaluate at this step."""
        return step in self.plan.due_steps and self._history.at(step) is None

    @property
    def should_stop(self) -> bool:
        """Whether the score has not improved within `patience` evaluations."""
        if self.plan.patience is None or self._best is None:
            return False
        return sum(entry["step"] > self._best["step"] for entry in self._history.evaluations) >= self.plan.patience

    def evaluate(self, step: int, rows: Sequence[Row], checkpoint: str) -> None:
        """Score predictions for the dev set, and save the checkpoint if it is the best so far.

        If scores are equal, the lower loss wins.
        """
        scores = self.plan.score(rows)
        is_best = self._is_best(scores)
        if is_best:
            self._save_best(checkpoint, scores)
        self._history.add(step, scores)
        self._history.write()
        if is_best:
            self._best = self._history.at(step)
        tf.logging.info("Dev set at step %d: %s%s", step, scores, "  (best so far)" if is_best else "")
        self._write_summary(step, scores)
        if self.should_stop and self._best:
            primary = next(iter(scores.metrics))
            tf.logging.info(
                "Stopping early: %s has not risen above %.4f (step %d) in %d evaluations.",
                primary,
                self._best["metrics"][primary],
                self._best["step"],
                self.plan.patience,
            )

    def _is_best(self, scores: Scores) -> bool:
        if self._best is None:
            return True
        primary, loss = next(iter(scores.metrics)), self._best["loss"]
        best = (self._best["metrics"][primary], -float("inf" if loss is None else loss))
        return (scores.primary, -scores.loss) > best

    def _write_summary(self, step: int, scores: Scores) -> None:
        if self.plan.summary_folder is None:
            return
        values = dict(scores.metrics, loss=scores.loss)
        # TensorFlow 2 can create this writer only in graph mode.
        with tf.Graph().as_default():
            writer = tf.summary.FileWriterCache.get(self.plan.summary_folder)
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]), step)
        writer.flush()
