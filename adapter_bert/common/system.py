"""What a process asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> bool:
    """Lets the process keep what it frees, for its next tensors; returns whether that was possible.

    The C library gives large blocks back to the system at once, and each new one comes as pages that the system first
    fills with zeros: for a network whose every operation makes a tensor, more work than many of the operations. One
    arena, so that a block freed by one thread serves another. Linux with glibc only; elsewhere nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
    return all(mallopt(parameter, value) == 1 for parameter, value in wanted.items())


def configure_tensorflow() -> None:
    """Set TensorFlow's environment variables. Call this before TensorFlow is imported; values already set are kept."""
    # Silences notes about missing GPU libraries.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN's matrix products are a tenth faster on small batches; TensorFlow disables them without AVX-512.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # A session with its own number of threads, such as a predictor's, does not limit the other sessions of its process.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
