"""Input functions for training and scoring."""

from __future__ import annotations

from typing import Mapping

import tensorflow.compat.v1 as tf

from adapter_bert.pipeline import batches, feature_store, records
from adapter_bert.pipeline.tfrecords import Files
from adapter_bert.settings.groups import Settings

LabelTypes = Mapping[str, tf.DType]


def training_input_fn(
    record_files: Files, settings: Settings, label_types: LabelTypes, total_steps: int, seed: int, start: int
) -> records.InputFn:
    """Return the input function for training.

    Args:
      record_files: features of the training split.
      settings: settings of the run.
      label_types: see `Head.label_types`.
      total_steps: total number of training steps.
      seed: seed of the training order.
      start: step to start from.
    """
    if not settings.pads_all:
        return batches.training_input_fn(
            record_files,
            settings.max_seq_length,
            epoch_size=feature_store.num_records(record_files),
            total_steps=total_steps,
            seed=seed,
            skip_steps=start,
            label_types=label_types,
        )
    return records.file_based_input_fn_builder(
        record_files,
        settings.max_seq_length,
        is_training=True,
        drop_remainder=True,
        seed=seed,
        skip_examples=start * settings.train_batch_size,
        label_types=label_types,
    )


def scoring_input_fn(record_files: Files, settings: Settings, label_types: LabelTypes) -> records.InputFn:
    """Return the input function of one pass over a split."""
    if not settings.pads_all:
        return batches.scoring_input_fn(record_files, settings.max_seq_length, label_types)
    return records.file_based_input_fn_builder(
        record_files,
        settings.max_seq_length,
        is_training=False,
        drop_remainder=settings.device.needs_static_shapes,
        label_types=label_types,
    )
