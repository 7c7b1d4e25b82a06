"""The log shows this project's lines, and those of TensorFlow that a user can act on, once each."""

from __future__ import annotations

import logging

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import logs

TENSORFLOW = "/usr/lib/python3/site-packages/tensorflow_estimator/python/estimator/estimator.py"
LINES = [
    ("/home/me/adapter_bert/training/trainer.py", logging.INFO, "step 1", True),
    (TENSORFLOW, logging.INFO, "Restoring parameters from model.ckpt-10", True),
    (TENSORFLOW, logging.INFO, "Saving checkpoints for 10 into model.ckpt.", False),
    (TENSORFLOW, logging.INFO, "Graph was finalized.", False),
    (TENSORFLOW, logging.WARNING, "is deprecated", False),
    (TENSORFLOW, logging.ERROR, "Out of range", True),
]


@pytest.fixture
def logger():
    """TensorFlow's logger, in the state that tests expect afterwards."""
    found = logging.getLogger("tensorflow")
    earlier = found.propagate, list(found.filters), found.level, [handler.formatter for handler in found.handlers]
    yield found
    found.propagate, found.filters[:] = earlier[:2]
    found.setLevel(earlier[2])
    for handler, formatter in zip(found.handlers, earlier[3]):
        handler.setFormatter(formatter)


@pytest.mark.parametrize("path, level, text, expected", LINES)
def test_lines_of_tensorflow_are_filtered_and_not_repeated_by_other_handlers(logger, path, level, text, expected):
    record = logging.LogRecord("tensorflow", level, path, 1, text, (), None)
    logs.show_progress()
    assert bool(logger.filter(record)) is expected
    assert tf.logging.get_verbosity() == tf.logging.INFO
    assert logger.propagate is False
    logs.show_progress(all_lines=True)
    assert logger.filter(record)


@pytest.mark.parametrize(
    "verbosity, level", [(0, logging.INFO), (1, logging.DEBUG), (-1, logging.WARNING), (9, logging.DEBUG)]
)
def test_verbosity_selects_the_level_and_1_shows_everything(logger, verbosity, level):
    logs.show_progress(verbosity)
    assert logger.level == level
    record = logging.LogRecord("tensorflow", logging.INFO, TENSORFLOW, 1, "Graph was finalized.", (), None)
    assert bool(logger.filter(record)) is (verbosity >= 1)


def test_only_warnings_and_errors_have_a_prefix(logger):
    logs.show_progress()
    shown = [
        logger.handlers[0].format(logging.LogRecord("tensorflow", level, "x.py", 1, "text %d", (3,), None))
        for level in (logging.INFO, logging.WARNING, logging.ERROR)
    ]
    assert shown == ["text 3", "Warning: text 3", "Error: text 3"]
