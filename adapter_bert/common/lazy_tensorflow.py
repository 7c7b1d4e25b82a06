"""TensorFlow for modules that are imported before it: it is loaded when one of its names is first used.

Its import takes seconds, and a misspelt flag should be told at once. So what checks a command line says

    from lazy_tensorflow import tf

and everything else `import tensorflow.compat.v1 as tf`; both are the same module from the first use on.
"""

from __future__ import annotations

import importlib
from typing import Any


class _LazyTensorFlow:
    """`tensorflow.compat.v1` by its attributes."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("tensorflow.compat.v1"), name)
        setattr(self, name, value)  # found without this method from now on
        return value


tf = _LazyTensorFlow()
