"""Logging for entry points: this project's messages, and those of TensorFlow that are useful to users."""

from __future__ import annotations

import logging
import re

import tensorflow.compat.v1 as tf

_FROM_TENSORFLOW = re.compile(r"-packages[/\\](tensorflow|tensorflow_core|tensorflow_estimator)[/\\]")
_USEFUL = ("Restoring parameters", "Skipping training")
# absl's values of --verbosity -> level. absl's own default, -1, counts as 0 unless it is given.
_LEVELS = {1: logging.DEBUG, 0: logging.INFO, -1: logging.WARNING, -2: logging.ERROR, -3: logging.FATAL}


class _Formatter(logging.Formatter):
    """Shows messages without a prefix, and warnings and errors with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.capitalize()}: {text}"


def _is_useful(record: logging.LogRecord) -> bool:
    if record.levelno >= logging.ERROR or not _FROM_TENSORFLOW.search(record.pathname):
        return True
    return record.getMessage().startswith(_USEFUL)


def show_progress(verbosity: int = 0, all_lines: bool = False) -> None:
    """Log messages of a level and above, each once (absl would repeat those of TensorFlow).

    Args:
      verbosity: as absl's flag: 0 for progress, -1 for warnings, -2 for errors only, 1 for everything.
      all_lines: keep all messages of TensorFlow: on a TPU they are the only progress shown.
    """
    tf.logging.set_verbosity(_LEVELS[min(max(verbosity, -3), 1)])
    logger = logging.getLogger("tensorflow")
    logger.propagate = False
    for handler in logger.handlers:
        handler.setFormatter(_Formatter())
    logger.removeFilter(_is_useful)
    if not all_lines and verbosity < 1:
        logger.addFilter(_is_useful)
