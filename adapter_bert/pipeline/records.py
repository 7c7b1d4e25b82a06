"""TFRecords, or features in memory -> batches."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.devices import compat
from adapter_bert.pipeline.features import InputFeatures, padded_features
from adapter_bert.pipeline.writing import Files, serialize, write_records, write_serialized  # noqa: F401  (asked for here)

# Records held for shuffling: all of most tasks, and a bounded share of memory for the largest.
SHUFFLE_BUFFER = 100000

# Marks a function for tf.data without Python loops or branches on tensors: to look for them in its source takes longer
# than all the rest before the first batch.
graph_function = tf.autograph.experimental.do_not_convert

Features = Dict[str, tf.Tensor]
InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]


# One number for each token of a sequence; every other feature is a single number.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
CLASS_LABEL = {"label_ids": tf.int64}


def feature_spec(seq_length: int, label_types: Mapping[str, tf.DType] = CLASS_LABEL) -> Dict[str, tf.FixedLenFeature]:
    """Names, types and lengths of an example's features, as the network takes them.

    Args:
      seq_length: tokens of a sequence.
      label_types: what there is besides tokens, see `model.heads.Head`; by default the index of a class.
    """
    spec = {name: tf.FixedLenFeature([seq_length], tf.int64) for name in TOKEN_FEATURES}
    spec.update({name: tf.FixedLenFeature([], label_type) for name, label_type in label_types.items()})
    spec["is_real_example"] = tf.FixedLenFeature([], tf.int64)
    return spec


def file_based_convert_examples_to_features(
    examples: Iterable,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    output_file: str,
) -> None:
    """Tokenises examples into a TFRecord file, padded to one length, as Google's code writes and reads it."""
    write_records(padded_features(examples, label_list, max_seq_length, tokenizer), output_file)


def shuffled(dataset: tf.data.Dataset, seed: Optional[int]) -> tf.data.Dataset:
    """The endless order of a training.

    Shuffling comes before repeating, so that an epoch shows every example once.
    """
    return dataset.shuffle(SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=True).repeat()


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The end of every pipeline: the next batches are made while one is used.

    Without TensorFlow's tuning: no pipeline here leaves it anything to choose, and its thread, which sleeps for longer
    and longer, may keep a session from closing for seconds.
    """
    return batches.prefetch(2).with_options(compat.without_autotuning())


def _batches(
    dataset: tf.data.Dataset,
    batch_size: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int],
    skip_examples: int,
) -> tf.data.Dataset:
    """Shuffles and repeats for training, then batches.

    What an interrupted run has seen already is skipped, in the same order if the seed is the same.
    """
    if is_training:
        dataset = shuffled(dataset, seed).skip(skip_examples)
    return dataset.batch(batch_size, drop_remainder=drop_remainder)


def _to_int32(features: Features) -> Features:
    """TPUs and the graph take int32; TFRecords hold int64. Floats stay."""
    return {name: tf.cast(values, tf.int32) if values.dtype.is_integer else values for name, values in features.items()}


def record_spec(label_types: Mapping[str, tf.DType]) -> Dict[str, Any]:
    """How records are parsed: token features may have any length, and are -1 behind their end.

    There are two formats: sequences of their own length without `input_mask`, and padded ones with it, as Google's code
    writes them.
    """
    any_length = tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=-1)
    return dict(feature_spec(1, label_types), **dict.fromkeys(TOKEN_FEATURES, any_length))


def _lengths(tokens: Features) -> tf.Tensor:
    """int64 [B]: how many tokens of each parsed sequence are real."""
    ids, mask = tokens["input_ids"], tokens["input_mask"]
    has_mask = tf.reduce_any(mask >= 0, axis=1)
    return tf.where(has_mask, _count(mask > 0), _count(ids >= 0))


def _count(found: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(found, tf.int64), axis=1)


def read_lengths(serialized: tf.Tensor) -> tf.Tensor:
    """int64 [B]: how many tokens there are in each record."""
    spec = record_spec({})
    return _lengths(tf.parse_example(serialized, {name: spec[name] for name in ("input_ids", "input_mask")}))


def parse(serialized: tf.Tensor, widths: Sequence[int], label_types: Mapping[str, tf.DType]) -> Features:
    """A batch for the network.

    Args:
      serialized: string [B], records of either format.
      widths: what sequences may be padded to, rising; the least that holds the longest of the batch is taken. With one
        alone, the shape is known before the graph runs.
      label_types: see `feature_spec`.
    """
    features = tf.parse_example(serialized, record_spec(label_types))
    lengths = _lengths(features)
    longest = tf.reduce_max(lengths)
    fits = tf.Assert(longest <= widths[-1], ["Records hold sequences longer than seq_length."])
    with tf.control_dependencies([fits]):
        lengths, longest = tf.identity(lengths), tf.identity(longest)
    width = widths[0]
    if len(widths) > 1:
        width = tf.gather(tf.constant(widths, tf.int64), bucket_of(tf.reshape(longest, [1]), widths)[0])
    mask = tf.sequence_mask(lengths, width, tf.int64)
    for name in TOKEN_FEATURES:
        # Cut as well: padded records are longer than what is real of them.
        values = features[name][:, :width]
        missing = tf.cast(width, tf.int32) - tf.shape(values)[1]
        values = mask if name == "input_mask" else tf.pad(values, [[0, 0], [0, missing]]) * mask
        values.set_shape([serialized.shape[0], width if len(widths) == 1 else None])
        features[name] = values
    return _to_int32(features)


def parser(widths: Sequence[int], label_types: Mapping[str, tf.DType]) -> Callable[[tf.Tensor], Features]:
    """`parse` with these arguments, for tf.data."""
    return graph_function(lambda serialized: parse(serialized, widths, label_types))


def bucket_of(lengths: tf.Tensor, widths: Sequence[int]) -> tf.Tensor:
    """int32 [B]: the index of the least width that holds a sequence of each length, int64 [B]."""
    return tf.searchsorted(tf.constant(widths, tf.int64), lengths)


def file_based_input_fn_builder(
    input_file: Files,
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
    skip_examples: int = 0,
    label_types: Mapping[str, tf.DType] = CLASS_LABEL,
) -> InputFn:
    """Makes an estimator's `input_fn` that reads TFRecord files and pads every sequence to one length.

    Args:
      input_file: the path, or several in their order.
      seq_length: tokens of a sequence with its padding: the length that the file was written with, or more.
      is_training: shuffle and repeat for ever, or one pass in the file's order.
      drop_remainder: leave out a last batch that is not full.
      seed: of the order.
      skip_examples: how many examples of the training order to leave out at the start.
      label_types: see `feature_spec`.
    """

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        dataset = _batches(
            tf.data.TFRecordDataset(input_file),
            params["batch_size"],
            is_training,
            drop_remainder,
            seed,
            skip_examples,
        )
        return prefetched(dataset.map(parser([seq_length], label_types)))

    return input_fn


def input_fn_builder(
    features: List[InputFeatures],
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
) -> InputFn:
    """The same for features in memory: for notebooks and small data."""
    columns: Dict[str, List] = {name: [] for name in feature_spec(seq_length)}
    for feature in features:
        for name, values in feature.as_lists().items():
            columns[name].append(values if name in TOKEN_FEATURES else values[0])

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        tensors = _to_int32({name: tf.constant(values) for name, values in columns.items()})
        dataset = tf.data.Dataset.from_tensor_slices(tensors)
        return prefetched(_batches(dataset, params["batch_size"], is_training, drop_remainder, seed, 0))

    return input_fn
