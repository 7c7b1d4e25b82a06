"""The estimator factory and session configs: how graphs run, and on which device."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from adapter_bert.common import errors, parallel, system
from adapter_bert.devices import collective, compat, reachability
from adapter_bert.devices.cluster import Cluster
from adapter_bert.devices.device import Device

ModeKeys = compat.import_estimator("mode_keys").ModeKeys
TPUEstimator = compat.import_estimator("tpu.tpu_estimator").TPUEstimator
TPUEstimatorSpec = compat.import_estimator("tpu.tpu_estimator").TPUEstimatorSpec
RunConfig = compat.import_estimator("tpu.tpu_config").RunConfig
_TPUConfig = compat.import_estimator("tpu.tpu_config").TPUConfig
_InputPipelineConfig = compat.import_estimator("tpu.tpu_config").InputPipelineConfig


def session_config() -> tf.ConfigProto:
    """Return the config for training and evaluation. Results are bit-identical for the same command and machine.

    Two operations run at a time, one for each half of a batch (see `model.batch_splitting`). The memory optimizer is
    off: it would add three or more tensors in the order in which they become available, which changes the sums. As a
    side effect, the process keeps the memory that it frees, see `system.keep_freed_memory`.
    """
    system.configure_tensorflow()  # too late for oneDNN, but in time for the thread pools
    system.keep_freed_memory()
    config = tf.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=2)
    # With two cores, each operation gets one; with more, TensorFlow divides them.
    config.intra_op_parallelism_threads = 1 if parallel.num_cores() <= 2 else 0
    rewrites = config.graph_options.rewrite_options
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    # These find nothing to do in BERT (no convolutions, loops or LSTMs), and take a third of the first step's time. So
    # would a second pass of all graph optimizers.
    for useless in ("layout_optimizer", "loop_optimization", "shape_optimization", "implementation_selector"):
        setattr(rewrites, useless, rewriter_config_pb2.RewriterConfig.OFF)
    rewrites.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    return config


def serving_config() -> tf.ConfigProto:
    """Return the config for serving: operations run one by one in the caller's thread.

    For a single sentence, the default executor's queue costs as much as the operations themselves, and so does dividing
    small matrix products among threads. Several callers use several cores.
    """
    config = session_config()
    config.intra_op_parallelism_threads = 1
    config.use_per_session_threads = True
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    # It would change the order of products in LayerNorm, and thus rounding, but only in networks whose examples share
    # their weights.
    config.graph_options.rewrite_options.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    return config


@functools.lru_cache(maxsize=None)
def tpu_cluster(device: Device) -> Any:
    """Find the TPU and return its cluster; return None if the device is not a TPU with a name.

    Raises:
      UserError: the TPU or the server at `device.master` does not answer, or it has not `device.num_tpu_cores` cores.
    """
    flag = f"--master={device.master}"
    if not device.use_tpu:
        if device.master:
            _list_devices(device.master, flag)
        return None
    if compat.tensorflow_version() > compat.LAST_WITH_ESTIMATOR:
        raise errors.UserError(
            f"TPUs need TensorFlow 2.15 or older (Python 3.11 or older); this is TensorFlow {tf.version.VERSION}."
        )
    # The estimator's training loop needs the older control flow.
    tf.disable_control_flow_v2()
    if device.master:
        _check_cores(device, _list_devices(device.master, flag), flag)
        return None
    flag = f"--tpu_name={device.tpu_name}"
    try:
        cluster, master = reachability.within(reachability.TIMEOUT, lambda: _find_cluster(device))
    except Exception as error:  # the cloud client raises all kinds of exceptions for a wrong address
        raise errors.UserError(f"Cannot find the TPU {flag}: {errors.reason(error)}.") from error
    shown = flag if master in ("", device.tpu_name) else f"{master} ({flag})"
    _check_cores(device, _list_devices(master, shown, cluster), shown)
    return cluster


def _list_devices(master: str, flag: str, cluster: Any = None) -> List[Any]:
    """Return the devices of a TensorFlow server; raise a `UserError` that names `flag` if it does not answer."""

    def query() -> List[Any]:
        with tf.Graph().as_default(), tf.Session(master, config=config) as session:
            return session.list_devices()

    spec = cluster.cluster_spec() if cluster else None  # None for an address in 1.15
    config = tf.ConfigProto(cluster_def=spec.as_cluster_def() if spec else None)
    try:
        if master in ("", "local"):  # this process, where starting the TPU may take longer than a server's answer
            return query()
        reachability.check_server(master, flag)
        return reachability.within(reachability.TIMEOUT, query)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(f"The server at {flag} opens no TensorFlow session: {errors.reason(error)}.") from None


def _check_cores(device: Device, devices: Sequence[Any], flag: str) -> None:
    """Raise a `UserError` that names `flag` unless these are the devices of a TPU with the expected number of cores."""
    cores = sum(each.device_type == "TPU" for each in devices)
    if not cores:
        raise errors.UserError(
            f"There is no TPU at {flag}; found {errors.first_names([each.name for each in devices])}. On a TPU VM, "
            "--tpu_name=local needs a TensorFlow with TPU support (docs/scaling.md) and no other process on the TPU."
        )
    if cores != device.num_tpu_cores:
        raise errors.UserError(
            f"The TPU at {flag} has {cores} cores, but --num_tpu_cores is {device.num_tpu_cores}: set "
            f"--num_tpu_cores={cores}."
        )


def _find_cluster(device: Device) -> Tuple[Any, str]:
    """Return the cluster and the address of a TPU, which the cloud knows if it is a name; `local` has no address."""
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
        device.tpu_name, zone=device.tpu_zone, project=device.gcp_project
    )
    return cluster, cluster.master()


def run_config(
    device: Device,
    model_dir: str,
    seed: int,
    save_checkpoints_steps: int = 1000,
    cluster: Optional[Cluster] = None,
) -> Any:
    """Return the config of an estimator that runs on this device, or as one of the workers of a cluster."""
    # On a TPU the estimator creates its own session config.
    config = session_config() if device.supports_hooks else None
    master = device.master
    if config and cluster and cluster.count > 1:
        config, master = collective.session_config(config, cluster), collective.start_server(cluster, config)
    return RunConfig(
        cluster=tpu_cluster(device),
        master=master,
        model_dir=model_dir,
        tf_random_seed=seed,
        session_config=config,
        # This project's hooks save checkpoints and write summaries. The estimator's own saver would also write the
        # graph, which is larger than the weights.
        save_checkpoints_steps=None if device.supports_hooks else save_checkpoints_steps,
        save_checkpoints_secs=None,
        save_summary_steps=0 if device.supports_hooks else 100,
        log_step_count_steps=None if device.supports_hooks else 100,
        tpu_config=_TPUConfig(
            iterations_per_loop=device.iterations_per_loop,
            num_shards=device.num_tpu_cores,
            per_host_input_for_training=_InputPipelineConfig.PER_HOST_V2,
            # Only the first of several hosts can return predictions in order.
            eval_training_input_configuration=_InputPipelineConfig.SLICED
            if device.use_tpu
            else _InputPipelineConfig.PER_HOST_V1,
        ),
    )


def make_estimator(model_fn: Callable, device: Device, config: Any, batch_size: int) -> Any:
    """Return a TPUEstimator, which also runs on CPUs and GPUs, for batches of this size."""
    return TPUEstimator(
        model_fn,
        config=config,
        use_tpu=device.use_tpu,
        train_batch_size=batch_size,
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
    )
