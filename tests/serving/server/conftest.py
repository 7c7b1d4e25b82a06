"""A server that several tests share."""

from __future__ import annotations

import pytest

from adapter_bert.serving.task_predictor import TaskPredictor
from tests.serving.server.servers import serving, write_bank


@pytest.fixture(scope="session")
def bank(tiny_bert, tmp_path_factory):
    """A bank with `TASKS`. Read only."""
    return write_bank(str(tmp_path_factory.mktemp("served") / "bank"), tiny_bert)


@pytest.fixture(scope="session")
def server(bank):
    """A server of that bank without API keys."""
    pytest.importorskip("starlette", reason="Needs the extra `serve`.")
    pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")
    with serving(bank) as address:
        yield address


@pytest.fixture(scope="session")
def expected(bank):
    """A predictor of that bank."""
    with TaskPredictor.from_bank(bank.folder, threads=1) as predictor:
        yield predictor
