"""Make old BERT notebooks run: `import adapter_bert.notebook` in the first cell.

- `tf.estimator` exists on TensorFlow 2.16 and later, which removed it. TensorFlow 2.15 and older are not changed.
- `from bert import run_classifier` and `from bert.tokenization import FullTokenizer`, written for the package
  bert-tensorflow, import the modules of this project. Nothing is installed: this process alone is affected. A package
  `bert` that is already imported stays; one that is only installed is hidden, with a warning.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any, Optional

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat

_ALIAS = "bert"
_MODULES = ("modeling", "optimization", "run_classifier", "run_squad", "tokenization")


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `bert` as an empty package, and `bert.modeling` as the module `modeling`, when code asks for it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        package, _, module = fullname.partition(".")
        if package != _ALIAS or (module and module not in _MODULES):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=not module)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Use a new, empty module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Replace `bert.modeling` by `modeling`; importlib returns what it then finds in `sys.modules`."""
        name = module.__name__.partition(".")[2]
        if name:
            sys.modules[module.__name__] = importlib.import_module(name)


def _add_alias() -> None:
    if any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        return
    if _ALIAS in sys.modules:
        where = getattr(sys.modules[_ALIAS], "__file__", None)
        tf.logging.warning(
            "The package `%s` is already imported from %s and stays. To use this project's modules under that name, "
            "restart and run `import adapter_bert.notebook` first.", _ALIAS, where
        )  # fmt: skip
        return
    installed = importlib.util.find_spec(_ALIAS)
    # A folder without __init__.py, e.g. of checkpoints, has no origin.
    if installed and installed.origin:
        tf.logging.warning("`import %s` now imports this project's modules and not %s.", _ALIAS, installed.origin)
    sys.meta_path.insert(0, _AliasFinder())


compat.restore_estimator_api()
_add_alias()
