"""Fixtures for tests of packs and banks."""

from __future__ import annotations

import pytest

from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from tests.weights.pack_files import smallest


@pytest.fixture(scope="session")
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


@pytest.fixture
def bank(base, tmp_path) -> Bank:
    return Bank.create(str(tmp_path / "bank"), base)


@pytest.fixture(scope="session")
def pack() -> packs.Pack:
    """A small valid pack."""
    return smallest()


@pytest.fixture(scope="session")
def content(pack) -> bytes:
    """The bytes of the small pack."""
    return packs.serialise(pack)


@pytest.fixture
def path(tmp_path) -> str:
    """Where a pack may be written."""
    return str(tmp_path / "pack.safetensors")
