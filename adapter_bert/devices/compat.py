"""Differences between TensorFlow versions, 1.15 to the newest.

TensorFlow up to 2.15 includes TPUEstimator. With newer versions, the package `tensorflow-estimator==2.15.0` still works
if the private modules that TensorFlow removed are replaced by empty ones. TPUs need TensorFlow 2.15 or older.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import sys
import types
from typing import Any, Callable, Dict, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, native_output

LAST_WITH_ESTIMATOR = (2, 15)


def tensorflow_version() -> Tuple[int, int]:
    """Return TensorFlow's (major, minor) version."""
    major, minor = tf.version.VERSION.split(".")[:2]
    return int(major), int(minor)


def versions() -> Dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    libraries = {"scipy": _installed_version("scipy"), "scikit-learn": _installed_version("scikit-learn")}
    found = {"python": platform.python_version(), "tensorflow": tf.version.VERSION, "numpy": np.__version__}
    return {**found, **libraries}


def _installed_version(package: str) -> str:
    """Return the version of an installed package without importing it, which would take seconds."""
    if sys.version_info >= (3, 8):
        from importlib import metadata

        return metadata.version(package)
    import pkg_resources  # part of setuptools

    return pkg_resources.get_distribution(package).version


class _EmptyModule(types.ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _add_removed_modules() -> None:
    """Add the modules that tensorflow-estimator 2.15 imports and newer TensorFlow versions lack."""
    for name in (
        "tensorflow.python.distribute.estimator_training",
        "tensorflow.python.tpu.tpu_embedding",
        "tensorflow.python.tpu.tpu_embedding_gradient",
        "tensorflow.python.tpu.session_support",
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            parent, _, child = name.rpartition(".")
            sys.modules[name] = _EmptyModule(name)
            setattr(importlib.import_module(parent), child, sys.modules[name])

    from tensorflow.python.util import tf_export

    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        tf_export.ESTIMATOR_API_NAME = "estimator"
        for table, suffix in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
            attributes = type(table[tf_export.TENSORFLOW_API_NAME])
            table[tf_export.ESTIMATOR_API_NAME] = attributes(
                "_estimator_api_names" + suffix, "_estimator_api_constants" + suffix
            )


class _LazyPackage(types.ModuleType):
    """A package whose `__init__` is executed when one of its names is used, and not to import its modules."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        return getattr(self, name)


def _import_lazily(name: str) -> None:
    """Import a package as a `_LazyPackage`, unless it has been imported or is not installed."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec:
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _LazyPackage
        sys.modules[name] = package


def import_estimator(name: str, package: str = "python.estimator") -> Any:
    """Import a module of the package tensorflow-estimator, e.g. `mode_keys`."""
    if tensorflow_version() > LAST_WITH_ESTIMATOR:
        _add_removed_modules()
    _import_lazily("tensorflow_estimator")  # it imports Keras, which takes a second
    try:
        return importlib.import_module(f"tensorflow_estimator.{package}.{name}")
    except ImportError as error:
        raise errors.UserError(
            f"TensorFlow {tf.version.VERSION} needs the package tensorflow-estimator, which cannot be imported "
            f"({error}): install the versions in requirements.txt."
        ) from error


def restore_estimator_api() -> None:
    """Add `tf.estimator`, which TensorFlow 2.16 removed, to `tensorflow` and `tensorflow.compat.v1`."""
    import tensorflow as tf2

    for module, version in ((tf2, "v2"), (tf, "v1")):
        if not hasattr(module, "estimator"):
            module.estimator = import_estimator("estimator", f"_api.{version}")
            sys.modules[f"{module.__name__}.estimator"] = module.estimator


@functools.lru_cache(maxsize=None)
def has_gpu() -> bool:
    """Return whether TensorFlow finds a GPU."""
    config = tf.config if hasattr(tf.config, "list_physical_devices") else tf.config.experimental  # 1.15
    # Without a driver, the first call prints a message of the CUDA libraries.
    quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "3"
    with native_output.hidden() if quiet else contextlib.ExitStack():
        return bool(config.list_physical_devices("GPU"))


def random_int32(shape: Any, seed: Any) -> tf.Tensor:
    """Return random int32 values over the full range, determined by `seed`, int32 [2]."""
    # TensorFlow 1 requires limits, which cost a division per number.
    low, high = (-(2**31), 2**31 - 1) if tensorflow_version() < (2, 0) else (None, None)
    return tf.random.stateless_uniform(shape, seed, minval=low, maxval=high, dtype=tf.int32)


def all_reduce(tensor: tf.Tensor, count: int, timeout: float) -> tf.Tensor:
    """Return the sum of a tensor over the workers of a cluster. A process can do this for tensors of one size only."""
    from tensorflow.python.ops import collective_ops

    options = {} if tensorflow_version() < (2, 0) else {"timeout": timeout}
    with tf.device(f"/device:{'GPU' if has_gpu() else 'CPU'}:0"):  # 1.15 requires a device
        return collective_ops.all_reduce(tf.identity(tensor), count, 1, 1, "Add", "Id", **options)


def without_autotuning() -> tf.data.Options:
    """Return dataset options that turn off autotuning."""
    options = tf.data.Options()
    if hasattr(options, "autotune"):
        options.autotune.enabled = False
    else:  # 1.15
        options.experimental_optimization.autotune = False
    return options


def start_iterator(iterator: tf.data.Iterator, dataset: tf.data.Dataset) -> tf.Operation:
    """Return the operation that moves an iterator to the beginning of a dataset."""
    if tensorflow_version() < (2, 0):
        # TensorFlow 1.15 applies the options only for iterators of one dataset. They matter, because some optimizations
        # change the order of the examples.
        dataset = dataset._apply_options()
    return iterator.make_initializer(dataset)


def group_by_window(dataset: tf.data.Dataset, key: Callable, reduce: Callable, size: Callable) -> tf.data.Dataset:
    """Group a dataset's elements by key into windows, and reduce each window to a dataset."""
    if hasattr(dataset, "group_by_window"):
        return dataset.group_by_window(key, reduce, window_size_func=size)
    return dataset.apply(tf.data.experimental.group_by_window(key, reduce, window_size_func=size))  # 1.15


def initializer_op(variable: tf.Variable) -> tf.Operation:
    """Return the operation that assigns a variable's initial value."""
    initializer = variable.initializer
    # In 1.15 it is a tensor if the value comes from a checkpoint.
    return initializer.op if isinstance(initializer, tf.Tensor) else initializer
