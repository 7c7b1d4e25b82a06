"""Check that a device computes in the requested precision."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, system
from adapter_bert.devices import compat
from adapter_bert.devices.device import Device
from adapter_bert.model.precision import BFLOAT16, FLOAT16, FLOAT32, NAMES

# Instruction sets with products in bfloat16. Without them, these take several times as long as in float32.
CPU_FLAGS = ("avx512_bf16", "amx_bf16")


def check(precision: str, device: Device) -> None:
    """Raise `errors.UserError` if the precision is unknown, or the device or this TensorFlow does not support it."""
    if precision not in NAMES:
        raise errors.unknown("precision", precision, NAMES)
    if precision == FLOAT32:
        return
    if compat.tensorflow_version() < (2, 0):
        raise errors.UserError(
            f"precision={precision} needs TensorFlow 2; this is TensorFlow {tf.version.VERSION}. Use {FLOAT32}."
        )
    on_cpu = not device.use_tpu and not compat.has_gpu()
    if precision == FLOAT16 and (device.use_tpu or on_cpu):
        found = "a TPU" if device.use_tpu else "a CPU, where its products take more than 100 times as long"
        raise errors.UserError(
            f"precision={FLOAT16} needs a GPU, but this runs on {found}. Use {BFLOAT16} or {FLOAT32}."
        )
    if on_cpu and not system.cpu_flags().intersection(CPU_FLAGS):
        raise errors.UserError(
            f"precision={BFLOAT16} needs a CPU with {' or '.join(CPU_FLAGS)} (AMD since Zen 4, Intel Xeon since Cooper "
            f"Lake); the flags in /proc/cpuinfo name neither. Use {FLOAT32}, which is faster on this CPU."
        )
