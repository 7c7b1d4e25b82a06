"""Training hooks: progress, checkpoints and evaluation of the dev set."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from typing import Any, Iterator, List, Optional

import tensorflow.compat.v1 as tf
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from adapter_bert.common.progress import format_seconds
from adapter_bert.common.signals import StopRequest
from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.scores import Row, predicted_rows
from adapter_bert.training.evaluator import Evaluator
from adapter_bert.training.model_fn import TrainingTensors
from adapter_bert.weights import checkpoints

# Fits into 80 columns, including the postfix.
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class _StepHook(tf.train.SessionRunHook):
    """Counts steps, starting from the step of the session.

    Fetching the step counter together with the training step could return its value before or after the increment.
    """

    step = 0

    def begin(self) -> None:
        """Find the step counter."""
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Read the step, which may come from a checkpoint."""
        self.step = int(session.run(self._global_step))


class ProgressHook(_StepHook):
    """Shows step, mean loss since the last line, learning rate, examples per second and the time left.

    Shows a bar on a terminal and lines in a log. Time between steps, e.g. in later hooks, is not counted.
    """

    def __init__(
        self,
        tensors: TrainingTensors,
        total_steps: int,
        batch_size: int,
        history: History,
        stop: StopRequest,
        every_seconds: float = 10.0,
        on_terminal: Optional[bool] = None,
    ) -> None:
        """Create a hook.

        Args:
          tensors: tensors of the training graph.
          total_steps: total number of steps of the run.
          batch_size: number of examples in a step.
          history: receives the time of each step.
          stop: stops training once it is set.
          every_seconds: minimum time between two lines; the last step always has one.
          on_terminal: whether to show a bar; by default if the log goes to a terminal.
        """
        self._tensors = tensors
        self._total_steps = total_steps
        self._batch_size = batch_size
        self._history = history
        self._stop = stop
        self._every_seconds = every_seconds
        self._on_terminal = sys.stderr.isatty() if on_terminal is None else on_terminal
        self._bar = None
        self._losses: List[float] = []
        self._seconds = 0.0
        self._steps, self._widths = 0, 0  # in this process

    @property
    def mean_width(self) -> float:
        """Mean width of the batches so far, with padding; 0 if there were none."""
        return self._widths / max(self._steps, 1)

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Open the bar."""
        super().after_create_session(session, coord)
        if self._on_terminal:
            self._redirect = logging_redirect_tqdm([logging.getLogger("tensorflow")])
            self._redirect.__enter__()
            # tqdm draws nothing if the terminal does not report its size.
            columns, rows = shutil.get_terminal_size()
            self._bar = tqdm(total=self._total_steps, initial=self.step, ncols=columns, nrows=rows, bar_format=BAR)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Fetch the values to show."""
        self._started = time.perf_counter()
        return tf.train.SessionRunArgs([self._tensors.loss, self._tensors.learning_rate, self._tensors.width])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Count the step, and log a line if one is due."""
        seconds = time.perf_counter() - self._started
        loss, rate, width = run_values.results
        self.step += 1
        self._losses.append(loss)
        self._steps += 1
        self._widths += int(width)
        self._seconds += seconds
        self._history.add_step(seconds, self._batch_size)
        if self._bar is not None:
            self._bar.update()
        if self._stop.is_set:
            run_context.request_stop()
        is_last = self.step == self._total_steps or self._stop.is_set
        if self._seconds >= (1.0 if self._bar is not None else self._every_seconds) or is_last:
            self._show(rate)

    def _show(self, rate: float) -> None:
        seconds_per_step = self._seconds / len(self._losses)
        loss = sum(self._losses) / len(self._losses)
        speed = self._batch_size / seconds_per_step if seconds_per_step else 0.0
        self._losses, self._seconds = [], 0.0
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, lr {rate:.2e}, {speed:.1f} examples/s")
            return
        left = format_seconds((self._total_steps - self.step) * seconds_per_step)
        tf.logging.info(
            "step %d/%d  loss %.4f  lr %.2e  %.1f examples/s  %s left",
            self.step,
            self._total_steps,
            loss,
            rate,
            speed,
            left,
        )

    def close(self) -> None:
        """Close the bar. Call this even if training fails."""
        if self._bar is not None:
            self._bar.close()
            self._redirect.__exit__(None, None, None)
            self._bar = None


class CheckpointHook(_StepHook):
    """Saves checkpoints at a fixed interval, and at the end of training."""

    def __init__(self, saver: tf.train.Saver, output_dir: str, every_steps: int) -> None:
        self._saver = saver
        self._prefix = os.path.join(output_dir, checkpoints.MODEL_NAME)
        self._every_steps = every_steps
        self._saved_step = 0

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Store the initial step, which may already have a checkpoint."""
        super().after_create_session(session, coord)
        self._saved_step = self.step

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Save if a checkpoint is due."""
        self.step += 1
        if self.step % self._every_steps == 0:
            self.save(run_context.session)

    def end(self, session: tf.Session) -> None:
        """Save the last weights."""
        self.save(session)

    def save(self, session: tf.Session) -> str:
        """Save a checkpoint of this step, unless it exists; return its prefix."""
        if self._saved_step != self.step:
            self._saver.save(session, self._prefix, global_step=self.step)
            self._saved_step = self.step
        return f"{self._prefix}-{self.step}"


class EvaluationHook(_StepHook):
    """Evaluates the dev set with the current weights, in the training session."""

    def __init__(
        self, tensors: TrainingTensors, evaluator: Evaluator, checkpoint_hook: CheckpointHook, num_examples: int
    ) -> None:
        """Create a hook.

        Args:
          tensors: tensors of the training graph, with a dev set.
          evaluator: decides when to evaluate, and scores the predictions.
          checkpoint_hook: saves checkpoints; must come before this hook.
          num_examples: size of the dev set.
        """
        self._tensors = tensors
        self._evaluator = evaluator
        self._checkpoint_hook = checkpoint_hook
        self._num_examples = num_examples

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Evaluate if due, and stop training if the evaluator says so."""
        self.step += 1
        if self._evaluator.is_due(self.step):
            # Save a checkpoint first, so that a killed run resumes from its last evaluation.
            prefix = self._checkpoint_hook.save(run_context.session)
            self._evaluator.evaluate(self.step, self._predict(run_context.session), prefix)
        if self._evaluator.should_stop:
            run_context.request_stop()

    def _predict(self, session: tf.Session) -> List[Row]:
        return list(predicted_rows(self._batches(session), self._num_examples, "evaluation"))

    def _batches(self, session: tf.Session) -> Iterator[Row]:
        session.run(self._tensors.dev_start)
        while True:
            try:
                batch = session.run(self._tensors.dev_batch)
            except tf.errors.OutOfRangeError:
                return
            yield batch
