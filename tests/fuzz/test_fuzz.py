"""No reader of foreign bytes raises anything but a `UserError`, takes a second, or a gigabyte of memory.

By default, each reader gets fifty inputs, always the same ones. `-m fuzz` runs 100,000 new inputs and prints a
table; `-k` selects readers, and `--hypothesis-seed` repeats a run.
"""

from __future__ import annotations

import collections
import contextlib
import io
import logging
from typing import Iterator

import hypothesis
import pytest

from adapter_bert.common import errors
from tests.fuzz import data_readers, exchange_readers, limits, mutations, weight_readers  # noqa: F401
from tests.fuzz.readers import READERS, Reader, Workshop

FEW_INPUTS, ALL_INPUTS = 50, 100000


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Iterator[Workshop]:
    logging.disable(logging.CRITICAL)  # pytest would keep every warning
    yield Workshop(str(tmp_path_factory.mktemp("fuzz")))
    logging.disable(logging.NOTSET)


def read_quietly(reader: Reader, data: bytes) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        reader.read(data)


def make_reader(name: str, workshop: Workshop) -> Reader:
    """Return a reader that accepts its seeds: everything that is slow only once is done now."""
    reader = READERS[name](workshop)
    assert reader.seeds
    for seed in reader.seeds:
        read_quietly(reader, seed)
    return reader


def fuzz(reader: Reader, settings: hypothesis.settings, meter: limits.Meter) -> collections.Counter:
    """Read inputs; return how many were accepted and rejected."""
    outcomes: collections.Counter = collections.Counter()

    @settings
    @hypothesis.given(mutations.inputs(reader.seeds, reader.is_json))
    def run(data: bytes) -> None:
        try:
            meter.call(read_quietly, reader, data)
        except errors.UserError as error:
            assert str(error).strip()
            outcomes["rejected"] += 1
        else:
            outcomes["accepted"] += 1

    run()
    assert meter.memory < limits.GIGABYTE
    return outcomes


def settings(max_examples: int, derandomize: bool) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=max_examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        print_blob=True,
    )


@pytest.mark.parametrize("name", READERS)
def test_changed_files_are_read_or_rejected_with_an_error_message(name, workshop):
    with limits.limited() as meter:
        outcomes = fuzz(make_reader(name, workshop), settings(FEW_INPUTS, derandomize=True), meter)
    assert sum(outcomes.values()) >= FEW_INPUTS


@pytest.mark.fuzz
@pytest.mark.parametrize("name", READERS)
def test_many_changed_files_are_read_or_rejected_with_an_error_message(name, workshop, capsys):
    reader = make_reader(name, workshop)
    with limits.limited() as meter:
        outcomes = fuzz(reader, settings(ALL_INPUTS // len(READERS) + 1, derandomize=False), meter)
    total, megabytes = sum(outcomes.values()), meter.memory / 1e6
    with capsys.disabled():
        print(f"\n| {name} | {total:,} | {outcomes['accepted']:,} | {meter.seconds:.3f} | {megabytes:.0f} |", end="")
