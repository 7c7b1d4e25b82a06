"""Cached states: what is written comes back with the right sequences; damaged files are not used."""

from __future__ import annotations

import glob
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.pipeline import batches, frozen_states, tfrecords
from adapter_bert.pipeline.frozen_states import STATES, FrozenStates
from tests.helpers import run_batches

WIDTH = 3
LENGTHS = (4, 2, 7, 5)


@pytest.fixture
def cache(tmp_path) -> str:
    """The stem of a cache for sequences of `LENGTHS`; the states of sequence i are 10 i, 10 i + 1 and so on."""
    features = [{"input_ids": [5] * n, "segment_ids": [0] * n, "is_real_example": [1]} for n in LENGTHS]
    states = [10.0 * row + np.arange(n)[:, np.newaxis] * np.ones(WIDTH) for row, n in enumerate(LENGTHS)]
    states = [rows.astype(np.float32) for rows in states]
    order = [2, 0, 3, 1]
    stem = str(tmp_path / "train-frozen")
    serialized = map(tfrecords.serialize, features)
    frozen_states.write(stem, serialized, len(LENGTHS), ((row, states[row]) for row in order))
    return stem


@pytest.mark.smoke
def test_states_come_back_with_their_sequences_and_zeros_for_padding(cache):
    found = frozen_states.find(cache)
    states = FrozenStates(found.states, WIDTH, first_only=False)
    input_fn = states.input_fn(batches.scoring_input_fn(found.records, 8, states.label_types({})))
    (batch,) = run_batches(input_fn, 4)
    assert batch["row_numbers"].tolist() == [2, 3, 0, 1], "the longest first"
    assert batch[STATES].shape == (4, 7, WIDTH) and batch[STATES].dtype == np.float32
    for row, length, sequence in zip(batch["row_numbers"], batch["input_mask"].sum(axis=1), batch[STATES]):
        assert length == LENGTHS[row]
        np.testing.assert_array_equal(sequence[:length, 1], 10 * row + np.arange(length))
        assert not sequence[length:].any()


def test_only_first_tokens_have_one_state_each(cache):
    found = frozen_states.find(cache)
    states = FrozenStates(found.states, WIDTH, first_only=True)
    input_fn = states.input_fn(batches.scoring_input_fn(found.records, 8, states.label_types({})))
    (batch,) = run_batches(input_fn, 4)
    assert batch[STATES].tolist() == [[[10.0 * row] * WIDTH] for row in batch["row_numbers"]]


def test_numbers_of_two_bytes_are_read_as_float32(cache):
    """The upper halves of float32 numbers are bfloat16 numbers, which NumPy does not know."""
    found = frozen_states.find(cache)
    values = np.fromfile(found.states, np.float32)
    (values.view(np.uint32) >> 16).astype(np.uint16).tofile(found.states)
    states = FrozenStates(found.states, WIDTH, first_only=True, dtype=tf.bfloat16)
    input_fn = states.input_fn(batches.scoring_input_fn(found.records, 8, states.label_types({})))
    (batch,) = run_batches(input_fn, 4)
    assert batch[STATES].dtype == np.float32
    assert batch[STATES].tolist() == [[[10.0 * row] * WIDTH] for row in batch["row_numbers"]]


@pytest.mark.parametrize("how", ["a changed byte", "cut", "no states", "no records"])
def test_a_damaged_cache_is_not_used(cache, how):
    path = frozen_states.find(cache).states
    if how == "a changed byte":
        with open(path, "r+b") as file:
            file.seek(50)
            file.write(b"\xff")
    elif how == "cut":
        os.truncate(path, 50)
    else:
        (removed,) = glob.glob(cache + ("*.states" if how == "no states" else "*.tf_record"))
        os.remove(removed)
    assert frozen_states.find(cache) is None


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_crash(cache):
    found = frozen_states.find(cache)
    states = FrozenStates(found.states, WIDTH, first_only=False)
    os.truncate(found.states, 50)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends too early"):
        run_batches(states.input_fn(batches.scoring_input_fn(found.records, 8, states.label_types({}))), 4)
