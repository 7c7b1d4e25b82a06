"""Input functions for training and scoring."""

from __future__ import annotations

from typing import Mapping, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.pipeline import batches, feature_store, records
from adapter_bert.settings.groups import Settings

LabelTypes = Mapping[str, tf.DType]


def training_input_fn(
    record_files: Sequence[str], settings: Settings, label_types: LabelTypes, total_steps: int, seed: int, start: int
) -> records.InputFn:
    """Return the input function for training from step `start`; `seed` determines the order of the examples."""
    length = settings.max_seq_length
    if settings.pads_all:
        skipped = start * settings.train_batch_size
        return records.file_based_input_fn_builder(record_files, length, True, True, seed, skipped, label_types)
    size = feature_store.num_records(record_files)
    return batches.training_input_fn(record_files, length, size, total_steps, seed, start, label_types)


def scoring_input_fn(record_files: Sequence[str], settings: Settings, label_types: LabelTypes) -> records.InputFn:
    """Return the input function of one pass over a split."""
    length = settings.max_seq_length
    if settings.pads_all:
        drops = settings.device.needs_static_shapes
        return records.file_based_input_fn_builder(record_files, length, False, drops, label_types=label_types)
    return batches.scoring_input_fn(record_files, length, label_types)
