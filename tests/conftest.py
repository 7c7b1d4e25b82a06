"""Fixtures that every test may use."""

from __future__ import annotations

import signal

import pytest

import tokenization
from tests import slurm
from tests.helpers import recorded_log, tiny_config, write_bert, write_cola
from tests.test_tokenization import train_sentencepiece


@pytest.fixture
def log():
    """The lines that a test logs."""
    with recorded_log() as lines:
        yield lines


@pytest.fixture
def deadline():
    """Fail a test that takes more than a minute, even while it waits to open a FIFO."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("This takes more than a minute."))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


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


@pytest.fixture(scope="session")
def spm_model_file(tmp_path_factory) -> str:
    """A tiny SentencePiece model with ALBERT's special tokens, and numbers with a comma as pieces. Read only."""
    symbols = ["[CLS]", "[SEP]", "9,", "8,", "\u25818", "the", "fox", "f", "i", "x"]
    return train_sentencepiece(tmp_path_factory.mktemp("spm"), symbols)


@pytest.fixture(scope="session")
def sentencepiece(spm_model_file) -> tokenization.SentencePieceTokenizer:
    return tokenization.SentencePieceTokenizer(spm_model_file)


@pytest.fixture(scope="module")
def slurm_daemons(tmp_path_factory):
    """A running SLURM with one node."""
    with slurm.running_slurm(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture
def slurm_jobs(slurm_daemons):
    """Let a test submit jobs to SLURM; cancel those that it leaves behind."""
    yield
    slurm.cancel_jobs()
