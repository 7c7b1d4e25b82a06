"""Parameter-efficient transfer learning with BERT on TensorFlow: adapters, tasks, training and serving.

The Python API is `train`, `train_squad`, `load` and `UserError`, see `adapter_bert.api` and docs/python_api.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

from adapter_bert.common.errors import UserError

if TYPE_CHECKING:
    from adapter_bert.api import load, train, train_squad

__all__ = ["UserError", "load", "train", "train_squad"]


def __getattr__(name: str) -> Any:
    """Import the API when it is first used, because that imports TensorFlow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adapter_bert.common import system

    system.configure_tensorflow()  # before it is imported
    return getattr(importlib.import_module("adapter_bert.api"), name)
