"""Read batches from TFRecord files or from features in memory."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.devices import compat
from adapter_bert.pipeline import tfrecords
from adapter_bert.pipeline.features import Encoder, Example, InputFeatures
from adapter_bert.pipeline.tfrecords import Files

# Size of the shuffle buffer: holds all records of most tasks, and bounds the memory for the largest.
SHUFFLE_BUFFER = 100000

# Marks a function that AutoGraph need not convert, because it has no Python loops or branches on tensors. Conversion
# takes longer than everything else before the first batch.
graph_function = tf.autograph.experimental.do_not_convert

Features = Dict[str, tf.Tensor]
InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]

# One number per token; every other feature is a single number.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
CLASS_LABEL = {"label_ids": tf.int64}


def _record_spec(label_types: Mapping[str, tf.DType]) -> Dict[str, Any]:
    """Return the parsing spec of records: token features may have any length and are padded with -1.

    There are two formats: sequences without padding and `input_mask`; and padded sequences with `input_mask`, as in
    Google's code.
    """
    any_length = tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=-1)
    spec = dict.fromkeys(TOKEN_FEATURES, any_length)
    numbers = {**label_types, "is_real_example": tf.int64}
    spec.update({name: tf.FixedLenFeature([], number_type) for name, number_type in numbers.items()})
    return spec


def _lengths(tokens: Features) -> tf.Tensor:
    """Return the number of real tokens in each parsed sequence, int64 [B]."""

    def count(found: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(found, tf.int64), axis=1)

    ids, mask = tokens["input_ids"], tokens["input_mask"]
    has_mask = tf.reduce_any(mask >= 0, axis=1)
    return tf.where(has_mask, count(mask > 0), count(ids >= 0))


def read_lengths(serialized: tf.Tensor) -> tf.Tensor:
    """Return the number of tokens in each record, int64 [B]."""
    spec = _record_spec({})
    return _lengths(tf.parse_example(serialized, {name: spec[name] for name in ("input_ids", "input_mask")}))


def to_int32(features: Features) -> Features:
    """Convert int64, the type in records, to int32, which TPUs and the graph expect."""
    return {name: tf.cast(values, tf.int32) if values.dtype.is_integer else values for name, values in features.items()}


def parser(widths: Sequence[int], label_types: Mapping[str, tf.DType]) -> Callable[[tf.Tensor], Features]:
    """Return a function for tf.data that parses a batch of records of either format, string [B].

    Sequences are padded to the first of the ascending `widths` that holds the longest one. With a single width, the
    shape is static. `label_types` are the features besides tokens, see `model.heads.Head`.
    """

    @graph_function
    def parse(serialized: tf.Tensor) -> Features:
        features = tf.parse_example(serialized, _record_spec(label_types))
        lengths = _lengths(features)
        longest = tf.reduce_max(lengths)
        fits = tf.Assert(longest <= widths[-1], ["Records hold sequences longer than seq_length."])
        with tf.control_dependencies([fits]):
            lengths, longest = tf.identity(lengths), tf.identity(longest)
        width = widths[0]
        if len(widths) > 1:
            allowed = tf.constant(widths, tf.int64)
            width = tf.gather(allowed, tf.searchsorted(allowed, tf.reshape(longest, [1]))[0])
        mask = tf.sequence_mask(lengths, width, tf.int64)
        for name in TOKEN_FEATURES:
            # Truncate too: padded records are longer than their real tokens.
            values = features[name][:, :width]
            missing = tf.cast(width, tf.int32) - tf.shape(values)[1]
            values = mask if name == "input_mask" else tf.pad(values, [[0, 0], [0, missing]]) * mask
            values.set_shape([serialized.shape[0], width if len(widths) == 1 else None])
            features[name] = values
        return to_int32(features)

    return parse


def shuffled(dataset: tf.data.Dataset, seed: Optional[int]) -> tf.data.Dataset:
    """Shuffle, then repeat forever, so that each epoch contains every example once."""
    return dataset.shuffle(SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=True).repeat()


def _share_of_host(dataset: tf.data.Dataset, params: Mapping[str, Any]) -> Tuple[tf.data.Dataset, int]:
    """Return the part of a training set that the host reads which calls the `input_fn`, and the number of hosts.

    TPUEstimator calls it once for each host of a TPU, with a `context`; elsewhere there is only one.
    """
    context = params.get("context")
    if context is None or context.num_hosts == 1:
        return dataset, 1
    return dataset.shard(context.num_hosts, context.current_host), context.num_hosts


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of each training batch that one of several workers computes: every `count`-th example.

    All workers read the records, whose lengths and order determine the batches, and decode only their share.
    """

    rank: int = 0
    count: int = 1

    def of(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Return this share of batches of records, string [B]."""
        own = slice(self.rank, None, self.count)
        return batches if self.count == 1 else batches.map(graph_function(lambda batch: batch[own]))


WHOLE = Share()


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Prepare the next batches in the background: the last stage of every pipeline.

    Autotuning is disabled: it has nothing to tune here, and its thread sleeps for increasing periods and can delay the
    closing of a session by seconds.
    """
    return batches.prefetch(2).with_options(compat.without_autotuning())


def file_based_convert_examples_to_features(
    examples: Iterable[Example],
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    output_file: str,
) -> None:
    """Write features of examples to a TFRecord file, padded to one length, in the format of Google's code."""
    encoder = Encoder(label_list, max_seq_length, tokenizer)
    features = map(encoder.encode_padded, encoder.log_first(examples))
    tfrecords.write_records((tfrecords.serialize(feature.as_lists()) for feature in features), output_file)


def file_based_input_fn_builder(
    input_file: Files,
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
    skip_examples: int = 0,
    label_types: Mapping[str, tf.DType] = CLASS_LABEL,
    share: Share = WHOLE,
) -> InputFn:
    """Return an estimator's `input_fn` that reads TFRecord files and pads every sequence to one length.

    Args:
      is_training: shuffle and repeat forever, instead of one pass in the order of the files.
      drop_remainder: drop the last batch if it is not full.
      seed: seed of the training order; random if None.
      skip_examples: number of training examples that were used before an interruption.
      label_types: see `parser`.
      share: the part of each batch to return.
    """

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        dataset = tf.data.TFRecordDataset(input_file)
        if is_training:
            dataset, hosts = _share_of_host(dataset, params)
            dataset = shuffled(dataset, seed).skip(skip_examples // hosts)
        batches = dataset.batch(params["batch_size"], drop_remainder=drop_remainder)
        return prefetched(share.of(batches).map(parser([seq_length], label_types)))

    return input_fn


def input_fn_builder(
    features: List[InputFeatures],
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
) -> InputFn:
    """Return an `input_fn` for features in memory, see `file_based_input_fn_builder`. For notebooks and small data."""
    columns: Dict[str, List] = collections.defaultdict(list)
    for feature in features:
        for name, values in feature.as_lists().items():
            columns[name].append(values if name in TOKEN_FEATURES else values[0])

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        tensors = to_int32({name: tf.constant(values) for name, values in columns.items()})
        dataset = tf.data.Dataset.from_tensor_slices(tensors)
        if is_training:
            dataset, _ = _share_of_host(dataset, params)
            # Use `skip` as for files: the seeds of later operations depend on the number of operations before them.
            dataset = shuffled(dataset, seed).skip(0)
        return prefetched(dataset.batch(params["batch_size"], drop_remainder=drop_remainder))

    return input_fn
