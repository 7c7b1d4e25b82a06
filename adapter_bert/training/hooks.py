"""What happens while a model trains: a line on how it goes, checkpoints, and scores on the dev set."""

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

# Fits into 80 columns with what is added behind it.
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class _StepHook(tf.train.SessionRunHook):
    """Counts steps from where the session starts.

    Fetching the counter beside the step would give the number before or after it, as it happens.
    """

    step = 0

    def begin(self) -> None:
        """Finds the step counter."""
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Reads the step that a checkpoint may have brought."""
        self.step = int(session.run(self._global_step))


class ProgressHook(_StepHook):
    """Shows the step, the mean loss since the last line, the learning rate, examples a second and the time left.

    A bar on a terminal, lines in a log. Time spent outside of steps, e.g. by hooks behind this one, is not counted.
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
        """Takes what is watched.

        Args:
          tensors: of the training.
          total_steps: steps of the whole run.
          batch_size: examples a step.
          history: is told the time that steps take.
          stop: where it is set, the training ends; its last weights are saved then.
          every_seconds: the least time between two lines; the last step always has one.
          on_terminal: whether to show a bar; by default where the log goes to a terminal.
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
        self._steps, self._widths = 0, 0  # of this process; the sum over its steps

    @property
    def mean_width(self) -> float:
        """What the batches so far were padded to, on average; 0 where there were none."""
        return self._widths / max(self._steps, 1)

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Opens the bar."""
        super().after_create_session(session, coord)
        if self._on_terminal:
            self._redirect = logging_redirect_tqdm([logging.getLogger("tensorflow")])
            self._redirect.__enter__()
            # Not tqdm's own search for the size: it draws nothing on a terminal that does not know it.
            columns, rows = shutil.get_terminal_size()
            self._bar = tqdm(total=self._total_steps, initial=self.step, ncols=columns, nrows=rows, bar_format=BAR)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Asks for what is shown."""
        self._started = time.perf_counter()
        return tf.train.SessionRunArgs([self._tensors.loss, self._tensors.learning_rate, self._tensors.width])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Counts, and shows a line if it is time for one."""
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
        seconds_a_step = self._seconds / len(self._losses)
        loss = sum(self._losses) / len(self._losses)
        speed = self._batch_size / seconds_a_step if seconds_a_step else 0.0
        self._losses, self._seconds = [], 0.0
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, lr {rate:.2e}, {speed:.1f} examples/s")
            return
        left = format_seconds((self._total_steps - self.step) * seconds_a_step)
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
        """Closes the bar; to be called however the training ends."""
        if self._bar is not None:
            self._bar.close()
            self._redirect.__exit__(None, None, None)
            self._bar = None


class CheckpointHook(_StepHook):
    """Saves checkpoints every so many steps, and when the training ends."""

    def __init__(self, saver: tf.train.Saver, output_dir: str, every_steps: int) -> None:
        """Takes the parts.

        Args:
          saver: of the training.
          output_dir: of the run.
          every_steps: steps between two checkpoints.
        """
        self._saver = saver
        self._prefix = os.path.join(output_dir, checkpoints.MODEL_NAME)
        self._every_steps = every_steps
        self._saved_step = 0

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Starts behind the checkpoint that the session may have begun with."""
        super().after_create_session(session, coord)
        self._saved_step = self.step

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Saves where it is time to."""
        self.step += 1
        if self.step % self._every_steps == 0:
            self.save(run_context.session)

    def end(self, session: tf.Session) -> None:
        """Saves what the training has come to."""
        self.save(session)

    def save(self, session: tf.Session) -> str:
        """Saves a checkpoint of this step, unless that is done; returns its prefix."""
        if self._saved_step != self.step:
            self._saver.save(session, self._prefix, global_step=self.step)
            self._saved_step = self.step
        return f"{self._prefix}-{self.step}"


class EvaluationHook(_StepHook):
    """Scores the dev set with the weights of the moment, in the session of the training."""

    def __init__(
        self, tensors: TrainingTensors, evaluator: Evaluator, checkpoint_hook: CheckpointHook, num_examples: int
    ) -> None:
        """Takes the parts.

        Args:
          tensors: of the training, with a dev set.
          evaluator: says when, and what to do with the predictions.
          checkpoint_hook: comes before this one.
          num_examples: of the dev set.
        """
        self._tensors = tensors
        self._evaluator = evaluator
        self._checkpoint_hook = checkpoint_hook
        self._num_examples = num_examples

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Evaluates where it is time to, and stops the training where it has come to nothing."""
        self.step += 1
        if self._evaluator.is_due(self.step):
            # First a checkpoint: a run that is killed goes on from its last scores.
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
