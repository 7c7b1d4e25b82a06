"""TensorFlow, imported when one of its names is first used.

The import takes seconds, and a misspelled flag should be reported immediately. Modules that check a command line use

    from adapter_bert.common.lazy_tensorflow import tf

and all others `import tensorflow.compat.v1 as tf`.
"""

from __future__ import annotations

import importlib
from typing import Any


class _LazyTensorFlow:
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("tensorflow.compat.v1"), name)
        setattr(self, name, value)  # the next access does not call this method
        return value


tf = _LazyTensorFlow()
