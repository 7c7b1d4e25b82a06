"""Import TensorFlow quietly and faster.

Newer versions report missing GPU libraries and the like on standard error before their log level takes effect. All
versions import optional libraries, which takes a second.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import sys
import tempfile
from types import ModuleType
from typing import IO, Any, Iterator, Optional, Sequence

# Optional imports of TensorFlow that nothing here uses.
_UNUSED = ("keras", "tf_keras", "h5py", "scipy")


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Hide everything that is written to standard error in this context, unless it ends with an exception."""
    with contextlib.ExitStack() as cleanup:
        try:
            kept = os.dup(2)
            cleanup.callback(os.close, kept)
            file = cleanup.enter_context(_memory_file())
        except OSError:  # no standard error, or no space for temporary files
            yield
            return
        os.dup2(file.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(kept, 2)
            file.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, file.read())
            raise
        finally:
            os.dup2(kept, 2)


def _memory_file() -> IO[bytes]:
    """Return a file that is not on a disk, which may be full; a temporary file where there is no such thing."""
    if hasattr(os, "memfd_create"):  # Linux, Python 3.8
        return os.fdopen(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()


@contextlib.contextmanager
def _unavailable(names: Sequence[str]) -> Iterator[None]:
    """Make the import of these libraries fail in this context, unless they are imported already."""
    blocked = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None stands for a missing module
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]


def hide_at_import() -> None:
    """Hide what TensorFlow prints when it is imported, and let it import only what it needs. Call this before."""
    # Without AVX, TensorFlow aborts the process, and its message must be seen.
    cpu = pathlib.Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and not (cpu.exists() and " avx" in cpu.read_text()):
        return
    if not any(isinstance(finder, _QuietFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _QuietFinder())


class _QuietFinder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as usual, and gives it a loader that hides its output and omits optional imports."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Return the spec of TensorFlow; None for every other module, which other finders find."""
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec and spec.loader
        if loader:
            execute = loader.exec_module

            def execute_quietly(module: ModuleType) -> None:
                with hidden(), _unavailable(_UNUSED):
                    execute(module)

            loader.exec_module = execute_quietly
        return spec
