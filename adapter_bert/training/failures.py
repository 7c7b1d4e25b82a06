"""Turn training failures into errors that a user can act on."""

from __future__ import annotations

import contextlib
from typing import Iterator, Sequence

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors
from adapter_bert.settings.groups import Settings
from adapter_bert.training.hooks import ProgressHook
from adapter_bert.weights.run_folder import RunFolder


@contextlib.contextmanager
def translate_failures(settings: Settings, folder: RunFolder, progress: Sequence[ProgressHook]) -> Iterator[None]:
    """Raise `errors.UserError` for a loss that is not finite, a full disk or too little memory.

    Args:
      settings: settings of the run.
      folder: output folder of the run.
      progress: list to which training adds its progress hooks; they are closed on exit.
    """
    try:
        yield
    except (tf.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError) as error:
        if isinstance(error, tf.errors.InvalidArgumentError) and optimization.NOT_FINITE not in str(error):
            raise
        failed_at = f" at step {progress[-1].step + 1}" if progress else ""
        saved = [tf.train.latest_checkpoint(folder.path), folder.pack_path if folder.has_pack() else None]
        good = ", ".join(path for path in saved if path) or "none were saved yet"
        raise errors.UserError(
            f"The loss became NaN or infinite{failed_at}: lower --learning_rate (it is {settings.learning_rate}) and "
            f"use another --output_dir. Last good weights: {good}."
        ) from None
    except tf.errors.ResourceExhaustedError as error:
        if "No space left" in str(error):
            raise errors.UserError(f"The disk is full: {errors.reason(error)}.") from None
        raise errors.UserError(
            "Out of memory: set --gradient_checkpointing=true, raise --gradient_accumulation_steps (it is "
            f"{settings.gradient_accumulation_steps}), or lower --train_batch_size (it is "
            f"{settings.train_batch_size}) or --max_seq_length (it is {settings.max_seq_length})."
        ) from None
    finally:
        for hook in progress:
            hook.close()
