"""Fixtures that every test may use."""

from __future__ import annotations

import logging

import pytest

from tests.helpers import tiny_config, write_bert, write_cola


@pytest.fixture
def log():
    """The lines that a test logs, whatever level others (e.g. transformers) have left behind."""
    lines = []

    class Keeper(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger, keeper = logging.getLogger("tensorflow"), Keeper()
    level = logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(keeper)
    logger.setLevel(level)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    """A folder with bert_config.json, vocab.txt and bert_model.ckpt. Read only."""
    folder = str(tmp_path_factory.mktemp("tiny_bert"))
    write_bert(folder, tiny_config())
    return folder


@pytest.fixture(scope="session")
def cola_dir(tmp_path_factory) -> str:
    """A folder with train.tsv, dev.tsv and test.tsv in CoLA's layout. Read only."""
    return write_cola(str(tmp_path_factory.mktemp("cola")))
