"""What an entry point prints: this project's own lines, and of TensorFlow's only what a user can act on."""

from __future__ import annotations

import logging
import re

import tensorflow.compat.v1 as tf

_FROM_TENSORFLOW = re.compile(r"-packages[/\\](tensorflow|tensorflow_core|tensorflow_estimator)[/\\]")
_WORTH_READING = ("Saving checkpoints", "Restoring parameters", "Loss for final step", "Skipping training")


def _is_worth_reading(record: logging.LogRecord) -> bool:
    if record.levelno >= logging.ERROR or not _FROM_TENSORFLOW.search(record.pathname):
        return True
    return record.getMessage().startswith(_WORTH_READING)


def show_progress(all_lines: bool = False) -> None:
    """Shows lines from INFO on, each once (absl would print TensorFlow's lines a second time).

    Args:
      all_lines: keep TensorFlow's own lines: on a TPU they are the only progress there is.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    logger = logging.getLogger("tensorflow")
    logger.propagate = False
    logger.removeFilter(_is_worth_reading)
    if not all_lines:
        logger.addFilter(_is_worth_reading)
