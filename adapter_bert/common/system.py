"""Process settings: memory allocation and TensorFlow's environment variables."""

from __future__ import annotations

import contextlib
import ctypes
import os

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Keep freed memory for later tensors, if possible (Linux with glibc).

    By default, glibc returns large blocks to the system, which has to zero the pages of each new one. That takes
    longer than many operations of a network. With one arena, a block freed by one thread is reused by another.
    """
    wanted = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, or Windows
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in wanted.items():
            mallopt(parameter, value)


def configure_tensorflow() -> None:
    """Set TensorFlow's environment variables. Call this before TensorFlow is imported; values already set are kept."""
    # Silence messages about missing GPU libraries.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN's matrix products are 10% faster on small batches; TensorFlow disables them without AVX-512.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # A session with its own number of threads, e.g. a predictor's, must not limit the other sessions of the process.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
