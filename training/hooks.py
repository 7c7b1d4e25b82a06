"""What a user sees while a model trains."""

from __future__ import annotations

import time

import tensorflow.compat.v1 as tf


def format_seconds(seconds: float) -> str:
    """Hours, minutes and seconds, e.g. `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressHook(tf.train.SessionRunHook):
    """Logs the step, the mean loss since the last line, examples a second and the time left."""

    def __init__(self, loss: tf.Tensor, total_steps: int, batch_size: int, every_seconds: float = 10.0) -> None:
        """Takes what is watched.

        Args:
          loss: scalar.
          total_steps: steps of the whole run.
          batch_size: examples a step.
          every_seconds: the least time between two lines; the last step always has one.
        """
        self._loss = loss
        self._total_steps = total_steps
        self._batch_size = batch_size
        self._every_seconds = every_seconds

    def begin(self) -> None:
        """Finds the step counter."""
        self._global_step = tf.train.get_global_step()
        self._losses = []
        self._since = None

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Asks for the step and the loss."""
        if self._since is None:
            self._since = time.time()
        return tf.train.SessionRunArgs([self._global_step, self._loss])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Logs a line if it is time for one."""
        # The counter may be read before or after this step's increment; one step does not matter here.
        step, loss = run_values.results
        self._losses.append(loss)
        elapsed = time.time() - self._since
        if elapsed < self._every_seconds and step < self._total_steps:
            return
        seconds_a_step = elapsed / len(self._losses)
        tf.logging.info(
            "step %d/%d  loss %.4f  %.1f examples/s  %s left",
            step,
            self._total_steps,
            sum(self._losses) / len(self._losses),
            self._batch_size / seconds_a_step if seconds_a_step else 0.0,
            format_seconds((self._total_steps - step) * seconds_a_step),
        )
        self._losses, self._since = [], time.time()
