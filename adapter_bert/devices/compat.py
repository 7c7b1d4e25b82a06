"""What differs between TensorFlow versions, in one place: where TPUEstimator comes from.

Up to TF 2.15 it is part of TensorFlow. From 2.16 on it is gone, but the package `tensorflow-estimator==2.15.0`
still works once a few private modules that it imports, and that TensorFlow dropped, are supplied as empty shells.
None of them is used on a CPU or GPU; TPUs need TF 2.15 or older.
"""

from __future__ import annotations

import importlib
import platform
import sys
import types
from typing import Any, Dict, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from adapter_bert.common import errors, parallel
from adapter_bert.common import system as machine

LAST_WITH_ESTIMATOR = (2, 15)


def tensorflow_version() -> Tuple[int, int]:
    """The running TensorFlow's (major, minor) version."""
    major, minor = tf.version.VERSION.split(".")[:2]
    return int(major), int(minor)


def versions() -> Dict[str, str]:
    """What the figures were computed with."""
    import scipy  # not before: they take a second or two, and a prediction does without
    import sklearn

    return {
        "python": platform.python_version(),
        "tensorflow": tf.version.VERSION,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }


def has_own_estimator() -> bool:
    """Whether TensorFlow brings TPUEstimator itself (and can drive TPUs with it)."""
    return tensorflow_version() <= LAST_WITH_ESTIMATOR


class _Shell(types.ModuleType):
    """A module in which every public name is an empty class: enough to be imported from."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _supply_removed_parts() -> None:
    """Supplies what tensorflow-estimator 2.15 imports and newer TensorFlows lack."""
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
            sys.modules[name] = _Shell(name)
            setattr(importlib.import_module(parent), child, sys.modules[name])

    from tensorflow.python.util import tf_export

    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        tf_export.ESTIMATOR_API_NAME = "estimator"
        for table, suffix in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
            attributes = type(table[tf_export.TENSORFLOW_API_NAME])
            table[tf_export.ESTIMATOR_API_NAME] = attributes(
                "_estimator_api_names" + suffix, "_estimator_api_constants" + suffix
            )


def _import_estimator(name: str) -> Any:
    """Imports a module of the package tensorflow-estimator, which `tf.estimator` is made of where it exists."""
    if not has_own_estimator():
        _supply_removed_parts()
    try:
        return importlib.import_module("tensorflow_estimator.python.estimator." + name)
    except ImportError as error:
        raise errors.UserError(
            "TensorFlow {} needs the package tensorflow-estimator, which cannot be imported ({}): install {}.".format(
                tf.version.VERSION, error, "requirements.txt, it names the right versions"
            )
        ) from error


ModeKeys = _import_estimator("mode_keys").ModeKeys
TPUEstimator = _import_estimator("tpu.tpu_estimator").TPUEstimator
TPUEstimatorSpec = _import_estimator("tpu.tpu_estimator").TPUEstimatorSpec
RunConfig = _import_estimator("tpu.tpu_config").RunConfig
TPUConfig = _import_estimator("tpu.tpu_config").TPUConfig
InputPipelineConfig = _import_estimator("tpu.tpu_config").InputPipelineConfig


def has_gpu() -> bool:
    """Whether TensorFlow finds a GPU."""
    config = tf.config if hasattr(tf.config, "list_physical_devices") else tf.config.experimental  # TensorFlow 1.15
    return bool(config.list_physical_devices("GPU"))


def session_config() -> tf.ConfigProto:
    """How graphs run: the same command gives the same bits on the same machine.

    Two operations at a time, one of each half of a batch (see `halves`). Of two cores each operation has one; of more,
    TensorFlow gives it what is free. Its memory optimiser is left out: it would add three or more tensors in the order
    in which they come, and sums of floats depend on their order.
    From here on the process keeps the memory that it frees, see `machine.keep_freed_memory`.
    """
    machine.keep_freed_memory()
    config = tf.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=2)
    config.intra_op_parallelism_threads = 1 if parallel.num_cores() <= 2 else 0
    rewriting = config.graph_options.rewrite_options
    rewriting.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    # A second pass of the graph's optimisers finds nothing more, and takes a third of the first step's time.
    rewriting.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    return config


def serving_config() -> tf.ConfigProto:
    """How a graph runs whose calls are short: one operation after the other, all in the thread of the caller.

    The ordinary executor hands every operation to a queue, which for one sentence takes as long as the operations; and
    to divide a small product among threads takes longer than to wait for one. Several callers use several cores.
    """
    config = session_config()
    config.intra_op_parallelism_threads = 1
    config.use_per_session_threads = True
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    return config


def tpu_cluster(tpu_name: str, tpu_zone: Optional[str], gcp_project: Optional[str]) -> Any:
    """Finds a Cloud TPU by name or `grpc://` address.

    Raises:
      errors.UserError: this TensorFlow cannot drive TPUs, or none is found under that name.
    """
    if not has_own_estimator():
        raise errors.UserError(
            f"TPUs need TensorFlow 2.15 or older (Python 3.11 or older); this is TensorFlow {tf.version.VERSION}."
        )
    # The estimator's training loop is built on the older control flow.
    tf.disable_control_flow_v2()
    try:
        cluster = tf.distribute.cluster_resolver.TPUClusterResolver(tpu_name, zone=tpu_zone, project=gcp_project)
        cluster.master()
        return cluster
    except Exception as error:  # whatever the cloud client raises: it is about the address that the user gave
        raise errors.UserError(f"No TPU '{tpu_name}' can be reached: {errors.reason(error)}.") from error
