"""Batches with little padding: sequences of similar length share a batch, padded to the smallest width that fits.

Everything runs in tf.data; no Python code runs between batches.
"""

from __future__ import annotations

import random
from typing import Any, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat
from adapter_bert.model.heads import ROW
from adapter_bert.pipeline import records
from adapter_bert.pipeline.records import CLASS_LABEL, WHOLE, Features, InputFn, Share, graph_function
from adapter_bert.pipeline.tfrecords import Files

# (length, step): up to this length, widths are multiples of the step. Gives few shapes and little padding.
WIDTH_STEPS = ((16, 1), (32, 2), (64, 4))
LAST_STEP = 8
# Number of consecutive training batches that exchange examples. More batches mean less padding and more memory.
POOL = 64
# Number of records sorted together for scoring: a prediction waits for at most this many others.
CHUNK = 16384


def bucket_widths(seq_length: int) -> List[int]:
    """Return the widths that batches may have, see `WIDTH_STEPS`; `seq_length` is the last."""
    widths: List[int] = []
    begin = 0
    for end, step in (*WIDTH_STEPS, (seq_length, LAST_STEP)):
        widths.extend(range(begin + step, min(end, seq_length - 1) + 1, step))
        begin = max(begin, end)
    return [*widths, seq_length]


def pool_ends(epoch_size: int, batch_size: int, total_batches: int) -> List[int]:
    """Divide the training batches into pools; examples are exchanged only within a pool.

    A pool has at most `POOL` batches, all from one epoch. A batch that spans two epochs is a separate pool. Thus no
    example occurs twice in the batches of an epoch, and less than one batch of examples is missing.

    Returns:
      The number of batches up to the end of each pool; the last one is `total_batches`.
    """
    ends: List[int] = []
    begin = 0
    while begin < total_batches:
        epoch = begin * batch_size // epoch_size
        whole = (epoch + 1) * epoch_size // batch_size  # end of the last batch within this epoch
        end = min(begin + POOL, whole) if begin < whole else begin + 1
        begin = min(end, total_batches)
        ends.append(begin)
    return ends


def _longest_first(serialized: tf.Tensor) -> tf.Tensor:
    """Return the order of records by descending length, int32 [n]; stable."""
    return tf.argsort(records.read_lengths(serialized), direction="DESCENDING", stable=True)


def _exchange_examples(batches: tf.Tensor, seed: List[Any]) -> tf.Tensor:
    """Regroup the examples of a pool, string [batches, B], into batches of similar length in random order.

    Examples are sorted by length, then each is moved at random by less than a batch. Sorted by length alone, examples
    of rare lengths would share batches in every epoch.
    """
    examples, (count, size) = tf.reshape(batches, [-1]), tf.unstack(tf.shape(batches))
    by_length = tf.gather(examples, _longest_first(examples))
    places = tf.cast(tf.range(count * size), tf.float32)
    moved = tf.argsort(places + tf.cast(size, tf.float32) * tf.random.stateless_uniform([count * size], seed))
    similar = tf.reshape(tf.gather(by_length, moved), [count, size])
    order = tf.argsort(tf.random.stateless_uniform([count], [seed[0], -1 - seed[1]]))
    exchanged = tf.gather(similar, order)
    exchanged.set_shape(batches.shape)
    return exchanged


def _pooled(numbered: tf.data.Dataset, ends: Sequence[int], seed: int) -> tf.data.Dataset:
    """Exchange examples within the pools of numbered batches of records."""

    @graph_function
    def pool_of(number: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        del batch
        found = tf.searchsorted(tf.constant(ends, tf.int64), tf.reshape(number, [1]), side="right")
        return tf.cast(found[0], tf.int64)

    @graph_function
    def size_of(pool: tf.Tensor) -> tf.Tensor:
        sizes = [end - begin for begin, end in zip([0, *ends], ends)]
        return tf.gather(tf.constant(sizes, tf.int64), pool)

    @graph_function
    def exchange(pool: tf.Tensor, window: tf.data.Dataset) -> tf.data.Dataset:
        whole = window.map(lambda number, batch: batch).batch(POOL)
        return whole.map(lambda batches: _exchange_examples(batches, [seed, pool])).unbatch()

    return compat.group_by_window(numbered, pool_of, exchange, size_of)


def training_input_fn(
    input_file: Files,
    seq_length: int,
    epoch_size: int,
    total_steps: int,
    seed: Optional[int] = None,
    skip_steps: int = 0,
    label_types: Mapping[str, tf.DType] = CLASS_LABEL,
    share: Share = WHOLE,
) -> InputFn:
    """Return an estimator's `input_fn` for training, see `records.file_based_input_fn_builder`.

    The order is that of `records.shuffled`, with examples exchanged within pools, see `pool_ends`. The files have
    `epoch_size` records. Of the `total_steps` batches, `skip_steps` were used before an interruption. `share` is the
    part of each batch to return.
    """
    parse_records = records.parser(bucket_widths(seq_length), label_types)
    seed = random.randrange(2**31) if seed is None else seed

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        ends = pool_ends(epoch_size, batch_size, total_steps)
        # Skip whole pools without building them.
        begin = max([0, *(end for end in ends if end <= skip_steps)])
        stream = records.shuffled(tf.data.TFRecordDataset(input_file), seed).skip(begin * batch_size)
        batches = stream.batch(batch_size, drop_remainder=True).take(total_steps - begin).enumerate(begin)
        batches = _pooled(batches, ends, seed).skip(skip_steps - begin)
        return records.prefetched(share.of(batches).map(parse_records))

    return input_fn


def scoring_input_fn(input_file: Files, seq_length: int, label_types: Mapping[str, tf.DType] = CLASS_LABEL) -> InputFn:
    """Return an estimator's `input_fn` for one pass over the files, with the longest sequences of each chunk first.

    The feature `ROW` is the position of the example in the files, see `evaluation.scores.in_file_order`.
    """
    parse_records = records.parser(bucket_widths(seq_length), label_types)

    @graph_function
    def sort(numbers: tf.Tensor, serialized: tf.Tensor) -> Any:
        order = _longest_first(serialized)
        return tf.gather(numbers, order), tf.gather(serialized, order)

    @graph_function
    def parse(numbers: tf.Tensor, serialized: tf.Tensor) -> Features:
        return dict(parse_records(serialized), **{ROW: tf.cast(numbers, tf.int32)})

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        # Use whole batches, so that none mixes the shortest sequences of a chunk with the longest of the next.
        chunk = max(CHUNK // batch_size, 1) * batch_size
        chunks = tf.data.TFRecordDataset(input_file).enumerate().batch(chunk).map(sort)
        split = graph_function(lambda *rows: tf.data.Dataset.from_tensor_slices(rows).batch(batch_size))
        return records.prefetched(chunks.flat_map(split).map(parse))

    return input_fn
