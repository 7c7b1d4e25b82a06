"""Evaluate the dev set during training, keep the best weights and decide when to stop."""

from __future__ import annotations

from typing import Callable, FrozenSet, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import files
from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.scores import Row, Scorer, Scores
from adapter_bert.training.trainer import SplitFeatures
from adapter_bert.weights.run_folder import EVAL_SUMMARIES, BestPack


def epoch_ends(num_examples: int, batch_size: int, total_steps: int) -> FrozenSet[int]:
    """Return the last step of each epoch, and the last step of training."""
    epochs = total_steps * batch_size // num_examples
    return frozenset([num_examples * epoch // batch_size for epoch in range(1, epochs + 1)] + [total_steps]) - {0}


def multiples(interval: int, total_steps: int) -> FrozenSet[int]:
    """Return the multiples of an interval, and the last step of training."""
    return frozenset([*range(interval, total_steps, interval), total_steps])


class DevSet(NamedTuple):
    """A data set that is evaluated during training: its features, and the function that scores predictions."""

    features: SplitFeatures
    score: Scorer
    # Called with the step and the scores of each evaluation; may raise an exception to stop the run.
    observe: Callable[[int, Scores], None] = lambda step, scores: None


class Evaluator:
    """Evaluates at given steps, keeps the best weights, and decides when to stop.

    The best weights are saved as the run's pack. Its step and the history are the only state, and both survive a kill
    at any time. Training that resumes from an older checkpoint repeats the evaluations after it, except the best one.
    """

    def __init__(
        self, dev: DevSet, due_steps: FrozenSet[int], patience: Optional[int], history: History, best_pack: BestPack
    ) -> None:
        """Start, or resume from the state that an earlier process left.

        Evaluates `dev` at `due_steps`, and stops after `patience` evaluations without a new best score.
        """
        self.dev = dev
        self.due_steps = due_steps
        self._patience = patience
        self._history = history
        self._best_pack = best_pack
        saved = best_pack.saved()
        history.forget_after(best_pack.folder.latest_step(), keep=saved.step if saved else None)
        self._best = history.at(saved.step) if saved else None
        # Predictions of the best weights, if this process has evaluated them.
        self.best_rows: Optional[Sequence[Row]] = None

    def is_due(self, step: int) -> bool:
        """Return whether to evaluate at this step."""
        return step in self.due_steps and self._history.at(step) is None

    @property
    def should_stop(self) -> bool:
        """Whether the score has not improved within `patience` evaluations."""
        if self._patience is None or self._best is None:
            return False
        return sum(entry["step"] > self._best["step"] for entry in self._history.evaluations) >= self._patience

    def evaluate(self, step: int, rows: Sequence[Row], checkpoint: str) -> None:
        """Score predictions for the dev set, and save the checkpoint if it is the best so far.

        If scores are equal, the lower loss wins.
        """
        scores = self.dev.score(rows)
        is_best = self._is_best(scores)
        if is_best:
            self._best_pack.save(checkpoint, scores)
        self._write_summary(step, scores)
        self._history.add(step, scores)
        self._history.write()  # after the weights: a killed run repeats what is not recorded
        self.dev.observe(step, scores)
        if is_best:
            self._best, self.best_rows = self._history.at(step), rows
        tf.logging.info("Dev set at step %d: %s%s", step, scores, "  (best so far)" if is_best else "")
        if self.should_stop and self._best:
            primary = next(iter(scores.metrics))
            best = f"{self._best['metrics'][primary]:.4f} (step {self._best['step']})"
            tf.logging.info("Stopping early: %s was not above %s in %d evaluations.", primary, best, self._patience)

    def _is_best(self, scores: Scores) -> bool:
        primary = next(iter(scores.metrics))
        if self._best is None or self._best["metrics"].get(primary) is None:  # null: the score was not finite
            return True
        loss = self._best.get("loss")
        best = (self._best["metrics"][primary], -float("inf" if loss is None else loss))
        return (scores.primary, -scores.loss) > best

    def _write_summary(self, step: int, scores: Scores) -> None:
        values = dict(scores.metrics, loss=scores.loss)
        folder = self._best_pack.folder.file(EVAL_SUMMARIES)
        files.make_folder(folder)  # with the permissions of the umask, unlike TensorFlow
        # TensorFlow 2 can create this writer only in graph mode.
        with tf.Graph().as_default():
            writer = tf.summary.FileWriterCache.get(folder)
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]), step)
        writer.flush()
