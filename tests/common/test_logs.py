"""The log shows this project's lines, and those of TensorFlow that a user can act on, once each."""

from __future__ import annotations

import logging

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import logs

TENSORFLOW = "/usr/lib/python3/site-packages/tensorflow_estimator/python/estimator/estimator.py"
LINES = [
    ("/home/me/adapter_bert/training/trainer.py", logging.INFO, "step 1", True),
    (TENSORFLOW, logging.INFO, "Saving checkpoints for 10 into model.ckpt.", True),
    (TENSORFLOW, logging.INFO, "Graph was finalized.", False),
    (TENSORFLOW, logging.WARNING, "is deprecated", False),
    (TENSORFLOW, logging.ERROR, "Out of range", True),
]


@pytest.fixture
def logger():
    """TensorFlow's logger, in the state that tests expect afterwards."""
    found = logging.getLogger("tensorflow")
    earlier = found.propagate, list(found.filters), found.level
    yield found
    found.propagate, found.filters[:] = earlier[:2]
    found.setLevel(earlier[2])


@pytest.mark.parametrize("path, level, text, expected", LINES)
def test_lines_of_tensorflow_are_filtered_and_not_repeated_by_other_handlers(logger, path, level, text, expected):
    record = logging.LogRecord("tensorflow", level, path, 1, text, (), None)
    logs.show_progress()
    assert bool(logger.filter(record)) is expected
    assert tf.logging.get_verbosity() == tf.logging.INFO
    assert logger.propagate is False
    logs.show_progress(all_lines=True)
    assert logger.filter(record)
