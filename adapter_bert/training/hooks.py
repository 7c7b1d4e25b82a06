"""Training hooks: progress, checkpoints and evaluation of the dev set."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from concurrent import futures
from typing import Any, Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from adapter_bert.common import files, progress
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

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Read the step, which may come from a checkpoint."""
        self.step = int(session.run(tf.train.get_global_step(session.graph)))


class ProgressHook(_StepHook):
    """Shows step, mean loss since the last line, learning rate, examples per second and the time left.

    Shows a bar on a terminal or in a notebook, and lines in a log. Time between steps, e.g. in later hooks, is not
    counted, nor is the first step, which optimizes the graph. Stops training on request.
    """

    def __init__(
        self, tensors: TrainingTensors, total_steps: int, batch_size: int, history: History, stop: StopRequest
    ) -> None:
        self._tensors = tensors
        self._total_steps = total_steps
        self._batch_size = batch_size
        self._history = history
        self._stop = stop
        self._bar: Optional[tqdm] = None
        self._open = contextlib.ExitStack()
        # Since the last line; the first step has no time.
        self._losses: List[float] = []
        self._seconds, self._timed_steps = 0.0, 0
        self._steps, self._widths = 0, 0  # in this process

    def _open_bar(self) -> None:
        if tf.logging.get_verbosity() > tf.logging.INFO or not progress.shows_bar():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in a notebook, tqdm asks for widgets, which this bar does not use
            from tqdm.contrib.logging import logging_redirect_tqdm
        self._open.enter_context(logging_redirect_tqdm([logging.getLogger("tensorflow")]))
        bar = progress.make_bar(self._total_steps, initial=self.step, bar_format=BAR)
        self._bar = self._open.enter_context(bar)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Fetch the values to show."""
        self._started = time.perf_counter()
        return tf.train.SessionRunArgs([self._tensors.loss, self._tensors.learning_rate, self._tensors.width])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Count the step, and show a line if one is due."""
        seconds = time.perf_counter() - self._started
        loss, rate, width = run_values.results
        self.step += 1
        self._losses.append(loss)
        self._steps += 1
        self._widths += int(width)
        self._history.add_step(seconds, self._batch_size)
        self._history.add_loss(self.step, self._total_steps, float(loss))
        if self._steps == 1:
            self._open_bar()
        else:
            self._seconds += seconds
            self._timed_steps += 1
            if self._bar is not None:
                self._bar.update()
        if self._stop.is_set:
            run_context.request_stop()
        is_last = self.step == self._total_steps or self._stop.is_set
        if self._seconds >= (progress.LOG_SECONDS if self._bar is None else 1.0) or is_last:
            self._show(rate)

    def _show(self, rate: float) -> None:
        seconds_per_step = self._seconds / max(self._timed_steps, 1)
        loss = sum(self._losses) / len(self._losses)
        speed = self._batch_size / seconds_per_step if seconds_per_step else 0.0
        self._losses, self._seconds, self._timed_steps = [], 0.0, 0
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, lr {rate:.2e}, {speed:.1f} examples/s")
            return
        left = progress.format_seconds((self._total_steps - self.step) * seconds_per_step)
        values = f"loss {loss:.4f}  lr {rate:.2e}  {speed:.1f} examples/s  {left} left"
        tf.logging.info("step %d/%d  %s", self.step, self._total_steps, values)

    def end(self, session: tf.Session) -> None:
        """Log how much of the batches was padding."""
        if self._steps:
            tf.logging.info("Batches had %.1f tokens per sequence on average.", self._widths / self._steps)

    def close(self) -> None:
        """Close the bar. Call this even if training fails."""
        self._open.close()


class SummaryHook(_StepHook):
    """Writes loss, learning rate and speed for TensorBoard, at the first step and at a fixed interval.

    TensorFlow's own hooks fetch additional values in these steps only, so TensorFlow has to optimize a second graph,
    which takes seconds.
    """

    def __init__(self, tensors: TrainingTensors, writer: tf.summary.FileWriter, every_steps: int) -> None:
        self._fetched = {"loss": tensors.loss, "learning_rate": tensors.learning_rate}
        self._writer = writer
        self._every_steps = every_steps
        self._written: Optional[Tuple[int, float]] = None  # step and time

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Fetch the values."""
        return tf.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Write the values if they are due."""
        self.step += 1
        now, values = time.perf_counter(), dict(run_values.results)
        if self._written is not None:
            steps = self.step - self._written[0]
            if steps < self._every_steps:
                return
            values["global_step/sec"] = steps / (now - self._written[1])
        summary = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_summary(tf.Summary(value=summary), self.step)
        self._written = self.step, now


class CheckpointHook(_StepHook):
    """Saves checkpoints at a fixed interval and at the end of training, and evaluates the dev set when it is due.

    The evaluation uses the current weights in the training session, and may stop training.
    """

    def __init__(
        self, tensors: TrainingTensors, output_dir: str, every_steps: int, evaluator: Optional[Evaluator] = None
    ) -> None:
        self._tensors = tensors
        self._prefix = os.path.join(output_dir, checkpoints.MODEL_NAME)
        self._every_steps = every_steps
        self._evaluator = evaluator
        self._saved_step = 0
        self._preparation: Optional[futures.Future] = None

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Store the initial step, which may already have a checkpoint."""
        super().after_create_session(session, coord)
        self._saved_step = self.step

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Save and evaluate if due, and stop training if the evaluator says so."""
        self.step += 1
        if self._evaluator and self._preparation is None:
            pool = futures.ThreadPoolExecutor(1)
            self._preparation = pool.submit(self._prepare_evaluation, run_context.session)
            pool.shutdown(wait=False)
        if self.step % self._every_steps == 0:
            self._save(run_context.session)
        if self._evaluator and self._evaluator.is_due(self.step):
            # Save a checkpoint first, so that a killed run resumes from its last evaluation.
            self._save(run_context.session)
            batches, count = self._dev_batches(run_context.session), self._evaluator.dev.features.num_examples
            rows = predicted_rows(batches, count, "evaluation")
            self._evaluator.evaluate(self.step, list(rows), f"{self._prefix}-{self.step}")
        if self._evaluator and self._evaluator.should_stop:
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        """Save the last weights."""
        self._save(session)

    def _save(self, session: tf.Session) -> None:
        """Save a checkpoint of this step, unless it exists."""
        if self._saved_step != self.step:
            with files.user_errors(f"Cannot save the checkpoint of step {self.step}"):
                self._tensors.saver.save(session, self._prefix, global_step=self.step)
            self._saved_step = self.step

    def _prepare_evaluation(self, session: tf.Session) -> None:
        """Make TensorFlow optimize the evaluation graph, which takes seconds, in parallel with training steps."""
        # The dev iterator is not initialized, or an earlier run in this session has exhausted it.
        with contextlib.suppress(tf.errors.FailedPreconditionError, tf.errors.OutOfRangeError):
            session.run(self._tensors.dev_batch)
        session.run(self._tensors.dev_start)

    def _dev_batches(self, session: tf.Session) -> Iterator[Row]:
        assert self._preparation is not None
        self._preparation.result()
        session.run(self._tensors.dev_start)
        while True:
            try:
                batch = session.run(self._tensors.dev_batch)
            except tf.errors.OutOfRangeError:
                return
            yield batch
