"""Features -> TFRecords -> batches. One specification drives the writing and the parsing."""

from __future__ import annotations

import uuid
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import tokenization
from pipeline.features import InputFeatures, iterate_features

# Records held for shuffling: all of most tasks, and a bounded share of memory for the largest.
SHUFFLE_BUFFER = 100000

Features = Dict[str, tf.Tensor]
InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]


def feature_spec(seq_length: int, label_type: tf.DType = tf.int64) -> Dict[str, tf.FixedLenFeature]:
    """Names, types and lengths of an example's features.

    Args:
      seq_length: tokens of a sequence.
      label_type: `tf.int64` for the index of a class, `tf.float32` for a number to predict.
    """
    return {
        "input_ids": tf.FixedLenFeature([seq_length], tf.int64),
        "input_mask": tf.FixedLenFeature([seq_length], tf.int64),
        "segment_ids": tf.FixedLenFeature([seq_length], tf.int64),
        "label_ids": tf.FixedLenFeature([], label_type),
        "is_real_example": tf.FixedLenFeature([], tf.int64),
    }


def _as_proto(values: Sequence) -> tf.train.Feature:
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_records(features: Iterable[InputFeatures], path: str) -> int:
    """Writes features as TFRecords under a temporary name and renames it when complete.

    Returns:
      The number of records.
    """
    partial = f"{path}.{uuid.uuid4().hex[:8]}.partial"
    count = 0
    try:
        with tf.python_io.TFRecordWriter(partial) as writer:
            for feature in features:
                values = {name: _as_proto(numbers) for name, numbers in feature.as_lists().items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString())
                count += 1
        tf.gfile.Rename(partial, path, overwrite=True)
    except BaseException:
        if tf.gfile.Exists(partial):
            tf.gfile.Remove(partial)
        raise
    return count


def file_based_convert_examples_to_features(
    examples: Iterable,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: tokenization.FullTokenizer,
    output_file: str,
) -> None:
    """Tokenises examples straight into a TFRecord file."""
    write_records(iterate_features(examples, label_list, max_seq_length, tokenizer), output_file)


def _batches(
    dataset: tf.data.Dataset,
    batch_size: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int],
    skip_examples: int,
) -> tf.data.Dataset:
    """Shuffles and repeats for training, then batches.

    Shuffling comes before repeating, so that an epoch shows every example once; what an interrupted run has seen
    already is skipped, in the same order if the seed is the same.
    """
    if is_training:
        dataset = dataset.shuffle(SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=True).repeat()
        dataset = dataset.skip(skip_examples)
    return dataset.batch(batch_size, drop_remainder=drop_remainder)


def _to_int32(features: Features) -> Features:
    """TPUs and the graph take int32; TFRecords hold int64. Floats stay."""
    return {name: tf.cast(values, tf.int32) if values.dtype.is_integer else values for name, values in features.items()}


def file_based_input_fn_builder(
    input_file: str,
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
    skip_examples: int = 0,
    label_type: tf.DType = tf.int64,
) -> InputFn:
    """Makes an estimator's `input_fn` that reads a TFRecord file.

    Args:
      input_file: what `write_records` wrote.
      seq_length: the length it was written with.
      is_training: shuffle and repeat for ever, or one pass in the file's order.
      drop_remainder: leave out a last batch that is not full.
      seed: of the order.
      skip_examples: how many examples of the training order to leave out at the start.
      label_type: see `feature_spec`.
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
        spec = feature_spec(seq_length, label_type)
        return dataset.map(lambda records: _to_int32(tf.parse_example(records, spec))).prefetch(2)

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
            columns[name].append(values if name in ("input_ids", "input_mask", "segment_ids") else values[0])

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        tensors = _to_int32({name: tf.constant(values) for name, values in columns.items()})
        dataset = tf.data.Dataset.from_tensor_slices(tensors)
        return _batches(dataset, params["batch_size"], is_training, drop_remainder, seed, 0)

    return input_fn
