"""TFRecords, or features in memory -> batches."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import tokenization
from pipeline.features import InputFeatures, iterate_records
from pipeline.writing import Files, serialize, write_records, write_serialized  # noqa: F401  (asked for here)

# Records held for shuffling: all of most tasks, and a bounded share of memory for the largest.
SHUFFLE_BUFFER = 100000

Features = Dict[str, tf.Tensor]
InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]


# One number for each token of a sequence; every other feature is a single number.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
CLASS_LABEL = {"label_ids": tf.int64}


def feature_spec(seq_length: int, label_types: Mapping[str, tf.DType] = CLASS_LABEL) -> Dict[str, tf.FixedLenFeature]:
    """Names, types and lengths of an example's features.

    Args:
      seq_length: tokens of a sequence.
      label_types: what there is besides tokens, see `training.heads.Head`; by default the index of a class.
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
    """Tokenises examples straight into a TFRecord file."""
    write_serialized(iterate_records(examples, label_list, max_seq_length, tokenizer), output_file)


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
    input_file: Files,
    seq_length: int,
    is_training: bool,
    drop_remainder: bool,
    seed: Optional[int] = None,
    skip_examples: int = 0,
    label_types: Mapping[str, tf.DType] = CLASS_LABEL,
) -> InputFn:
    """Makes an estimator's `input_fn` that reads TFRecord files.

    Args:
      input_file: the path, or several in their order.
      seq_length: what sequences are padded to; the greatest length they were written with.
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
        return dataset.map(lambda records: _parse(records, seq_length, label_types)).prefetch(2)

    return input_fn


def _parse(records: tf.Tensor, seq_length: int, label_types: Mapping[str, tf.DType]) -> Features:
    """Records without padding -> a batch with it."""
    spec = feature_spec(seq_length, label_types)
    del spec["input_mask"]
    spec.update({name: tf.VarLenFeature(tf.int64) for name in ("input_ids", "segment_ids")})
    parsed = tf.parse_example(records, spec)
    shape = [tf.shape(records, out_type=tf.int64)[0], seq_length]

    def padded(ids: tf.SparseTensor, values: tf.Tensor) -> tf.Tensor:
        dense = tf.sparse.to_dense(tf.SparseTensor(ids.indices, values, shape))
        dense.set_shape([records.shape[0], seq_length])
        return dense

    ids, segments = parsed["input_ids"], parsed["segment_ids"]
    parsed["input_mask"] = padded(ids, tf.ones_like(ids.values))
    parsed["input_ids"] = padded(ids, ids.values)
    parsed["segment_ids"] = padded(segments, segments.values)
    return _to_int32(parsed)


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
        return _batches(dataset, params["batch_size"], is_training, drop_remainder, seed, 0)

    return input_fn
