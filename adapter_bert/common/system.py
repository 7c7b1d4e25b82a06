"""Process settings: memory allocation and TensorFlow's environment variables."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Callable, FrozenSet, List, Optional, Sequence, Type

from adapter_bert.common import native_output, streams

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


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


def use_cores(cores: Sequence[int]) -> None:
    """Limit this process to some cores, if the system supports it; call this before TensorFlow counts the cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def end_with_parent() -> None:
    """Let this process receive SIGTERM when its parent ends, however that happens (Linux only)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def gpus() -> List[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, line in enumerate(listed.stdout.splitlines()) if line.startswith(b"GPU ")]


def cpu_flags() -> FrozenSet[str]:
    """Return the names of the CPU's instruction sets, e.g. `avx512_bf16`; empty if unknown (no Linux)."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return frozenset(next((line.partition(":")[2] for line in file if line.startswith("flags")), "").split())
    return frozenset()


def configure_tensorflow(verbose: bool = False) -> None:
    """Set TensorFlow's environment variables. Call this before TensorFlow is imported; values already set are kept.

    Unless `verbose`, a program hides the messages of TensorFlow's C++ code.
    """
    streams.open_descriptors()
    if sys.flags.optimize > 1:
        program = os.path.basename(sys.argv[0])
        sys.exit(f"{program}: error: TensorFlow needs docstrings: omit Python's option -OO and PYTHONOPTIMIZE=2.")
    if importlib.util.find_spec("tf_keras") is None:
        # Nothing here uses Keras, but TensorFlow 2.15 imports the one that this variable requests.
        os.environ.pop("TF_USE_LEGACY_KERAS", None)
    if "tensorflow" not in sys.modules and sys.excepthook is sys.__excepthook__:  # in a program, not in a notebook
        sys.excepthook = _report_failed_start
        # Imports and graphs create a million objects that stay alive. Searching them for garbage takes seconds, even
        # at exit.
        gc.set_threshold(200_000, 20, 100)
        atexit.register(gc.freeze)
        if not verbose and "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
            native_output.hide_at_import()
        if sys.version_info >= (3, 8):
            threading.excepthook = _report_in_main_thread(threading.excepthook)
    # Silence messages about missing GPU libraries.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    # oneDNN's matrix products are 10% faster on small batches; TensorFlow disables them without AVX-512.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # A session with its own number of threads, e.g. a predictor's, must not limit the other sessions of the process.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")


def _report_in_main_thread(report: Callable[[Any], object]) -> Callable[[Any], None]:
    """Report failed threads, except TensorFlow's summary writer: the main thread raises its error again."""

    def report_others(args: Any) -> None:
        if args.thread is None or args.thread.name != "EventLoggerThread":
            report(args)

    return report_others


def _report_failed_start(kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
    """Print one line if memory ran out or the user interrupted the imports, otherwise the traceback as usual.

    With a limit on the address space, also imports, threads and mapped files fail.
    """
    program = os.path.basename(sys.argv[0])
    if issubclass(kind, KeyboardInterrupt):
        print(f"{program}: interrupted.", file=sys.stderr)
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = limit != resource.RLIM_INFINITY
    text = streams.printable(str(error) or kind.__name__)
    if issubclass(kind, MemoryError) or kind.__name__ == "ResourceExhaustedError":
        pass
    elif not is_limited or not re.search("memory|new thread|failed to map|import|returned NULL", text, re.IGNORECASE):
        sys.__excepthook__(kind, error, traceback)
        return
    found = f" The limit of this process (ulimit -v) is {limit / 2**30:.1f} GiB." if is_limited else ""
    print(f"{program}: error: Out of memory: {text:.200}.{found}", file=sys.stderr)
