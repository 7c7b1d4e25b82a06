"""The cached output of frozen layers: a file of states for each split, and records that say where theirs begin.

<stem>-<bytes>-<checksum>.states           rows [D] of the real tokens only, sequence after sequence
<stem>-<index>-of-<total>-….tf_record      the features with one more number, the first row of the sequence
"""

from __future__ import annotations

import glob
import os
import re
import zlib
from typing import Iterable, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.pipeline import feature_store, records, tfrecords

# Names of the features: the states in the graph, float [B, S, D], and the first row of a sequence in records.
STATES, _BEGIN = "frozen_states", "states_begin"
_ENDING = re.compile(r"-(?P<bytes>\d+)-(?P<checksum>[0-9a-f]{8})\.states$")
_READ_BYTES = 2**24
# Bytes of a number -> type in which NumPy handles its bits, because it has no bfloat16.
_BITS = {2: np.int16, 4: np.int32}


class Paths(NamedTuple):
    """The files of a cache."""

    records: List[str]
    states: str


class FrozenStates(NamedTuple):
    """The states of a split."""

    path: str
    width: int  # D
    first_only: bool  # whether there are only the states of first tokens
    dtype: tf.DType = tf.float32  # of the file; the network gets float32

    def label_types(self, label_types: Mapping[str, tf.DType]) -> Mapping[str, tf.DType]:
        """Return the label types of the records."""
        return {**label_types, _BEGIN: tf.int64}

    def input_fn(self, input_fn: records.InputFn) -> records.InputFn:
        """Return an `input_fn` that adds the states to the features that `input_fn` reads from the records."""
        return lambda params: records.prefetched(input_fn(params).map(self._attach))

    @records.graph_function
    def _attach(self, features: records.Features) -> records.Features:
        mask, begins = features["input_mask"], features[_BEGIN]
        if self.first_only:
            mask = tf.ones_like(mask[:, :1])
        bits = _BITS[self.dtype.size]
        found = tf.numpy_function(self._read, [begins, tf.reduce_sum(mask, axis=1), tf.shape(mask)[1]], bits)
        found.set_shape([*mask.shape.as_list(), self.width])
        states = tf.cast(tf.bitcast(found, self.dtype), tf.float32)
        return {**{name: values for name, values in features.items() if name != _BEGIN}, STATES: states}

    def _read(self, begins: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
        """Read the bits of the states of sequences, [B, S, D], with zeros for padding.

        The file is not mapped into memory: if it were truncated meanwhile, the process would crash.
        """
        states = np.zeros([len(begins), width, self.width], _BITS[self.dtype.size])
        with open(self.path, "rb", buffering=0) as file:
            for begin, length, sequence in zip(begins.tolist(), lengths.tolist(), states):
                file.seek(begin * sequence.strides[0])
                if file.readinto(sequence[:length]) != sequence[:length].nbytes:  # type: ignore[arg-type]
                    raise ValueError(f"{self.path} ends too early.")
        return states


def find(stem: str) -> Optional[Paths]:
    """Return the files whose paths start with `stem`; None unless the records are complete and the states undamaged."""
    found = feature_store.find(stem)
    for path in glob.glob(glob.escape(stem) + "-*.states"):
        ending = _ENDING.search(path)
        if found and ending and os.path.getsize(path) == int(ending["bytes"]) and _checksum(path) == ending["checksum"]:
            return Paths(found, path)
        tf.logging.warning("The file %s is incomplete or damaged; rebuilding it.", path)
    return None


def _checksum(path: str) -> str:
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        for block in iter(lambda: file.read(_READ_BYTES), b""):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def write(stem: str, serialized: Iterable[bytes], count: int, states: Iterable[Tuple[int, np.ndarray]]) -> None:
    """Write both kinds of files, atomically, the records last.

    Args:
      stem: beginning of the paths.
      serialized: the records of the features.
      count: their number.
      states: pairs of the position of a record and its states [tokens, D], of the type of the file, in any order.
    """
    begins, end, size, checksum = [-1] * count, 0, 0, 0
    with files.temporary_path(stem) as temporary:
        with open(temporary, "wb") as file:
            for position, rows in states:
                begins[position], end = end, end + len(rows)
                data = rows.tobytes()
                size, checksum = size + file.write(data), zlib.crc32(data, checksum)
        files.rename(temporary, f"{stem}-{size}-{checksum:08x}.states")
    # A feature that is appended to a message is part of it.
    extended = (record + tfrecords.serialize({_BEGIN: [begin]}) for record, begin in zip(serialized, begins))
    try:
        tfrecords.write_shards(extended, stem)
    except tf.errors.OpError as error:
        raise OSError(errors.reason(error)) from None
