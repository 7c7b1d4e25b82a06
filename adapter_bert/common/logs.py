"""Logging for entry points: this project's messages, and those of TensorFlow that are useful to users."""

from __future__ import annotations

import logging
import re

import tensorflow.compat.v1 as tf

_FROM_TENSORFLOW = re.compile(r"-packages[/\\](tensorflow|tensorflow_core|tensorflow_estimator)[/\\]")
_USEFUL = ("Saving checkpoints", "Restoring parameters", "Loss for final step", "Skipping training")


def _is_useful(record: logging.LogRecord) -> bool:
    if record.levelno >= logging.ERROR or not _FROM_TENSORFLOW.search(record.pathname):
        return True
    return record.getMessage().startswith(_USEFUL)


def show_progress(all_lines: bool = False) -> None:
    """Log messages of level INFO and above, each once (absl would repeat those of TensorFlow).

    `all_lines` keeps all messages of TensorFlow: on a TPU they are the only progress shown.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    logger = logging.getLogger("tensorflow")
    logger.propagate = False
    logger.removeFilter(_is_useful)
    if not all_lines:
        logger.addFilter(_is_useful)
