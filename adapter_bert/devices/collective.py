"""TensorFlow's part of a distributed run: a server and a session for each worker, and means over all workers."""

from __future__ import annotations

import atexit
from typing import List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors
from adapter_bert.devices import compat
from adapter_bert.devices.cluster import Cluster

_JOB = "worker"
# A server that is deleted still listens. Deleting one after TensorFlow's modules prints an error in 1.15.
_servers: List[tf.train.Server] = []
atexit.register(_servers.clear)


class Reduced(NamedTuple):
    """Values of a training step that are the same on all workers."""

    loss: tf.Tensor  # scalar
    grads: List[Optional[tf.Tensor]]
    # What to add to the square of the norm of the gradients, see `mean_over_workers`.
    square_correction: tf.Tensor
    stops: tf.Tensor  # scalar: how many workers were asked to stop


def session_config(config: tf.ConfigProto, cluster: Cluster) -> tf.ConfigProto:
    """Return a session config with which this worker computes its own graph, and others only take part in sums."""
    shared = tf.ConfigProto()
    shared.CopyFrom(config)
    shared.device_filters.append(f"/job:{_JOB}/task:{cluster.rank}")
    shared.experimental.collective_group_leader = f"/job:{_JOB}/replica:0/task:0"
    shared.isolate_session_state = True
    return shared


def start_server(cluster: Cluster, config: tf.ConfigProto) -> str:
    """Start this worker's TensorFlow server, which runs until the process ends; return its address for sessions."""
    spec = tf.train.ClusterSpec({_JOB: list(cluster.addresses)})
    try:
        server = tf.train.Server(spec, job_name=_JOB, task_index=cluster.rank, config=session_config(config, cluster))
    except tf.errors.OpError as error:
        raise errors.UserError(
            f"TensorFlow's server cannot listen on port {cluster.port} of {cluster.name(cluster.rank)}: "
            f"{errors.reason(error)}. Another program may use it."
        ) from None
    _servers.append(server)
    return server.target


def mean_over_workers(
    cluster: Cluster,
    loss: tf.Tensor,
    grads: Sequence[Optional[tf.Tensor]],
    stop: tf.Tensor,
    timeout: float,
) -> Reduced:
    """Return the mean of loss and gradients over all workers, in a single all-reduce of one vector.

    TensorFlow computes the norm of a sparse gradient, that of a table of embeddings, from its rows, before rows of the
    same word are added. `square_correction` lets the sum of such gradients have the norm that it has in one process.

    Args:
      cluster: the workers, which have equal shares of the batch.
      loss: the mean loss of this worker's share, a scalar.
      grads: its gradients, float32; None if the loss does not depend on a variable.
      stop: float32 scalar, 1 to ask all workers to stop.
      timeout: seconds to wait for other workers (since TensorFlow 2; see also `Workers.expect_end`).
    """
    used = [grad for grad in grads if grad is not None]
    dense = [tf.convert_to_tensor(grad) for grad in used]
    is_sparse = [isinstance(grad, tf.IndexedSlices) for grad in used]
    rows = [tf.reduce_sum(tf.square(grad.values)) for grad, sparse in zip(used, is_sparse) if sparse]
    parts = [*dense, loss, stop, tf.add_n(rows) if rows else tf.zeros([])]
    # Equal on all workers, so each can divide by the number before the sum.
    vector = tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0) / cluster.count
    total = compat.all_reduce(vector, cluster.count, timeout)
    pieces = tf.split(total, [part.shape.num_elements() for part in parts])
    means = [tf.reshape(piece, part.shape) for piece, part in zip(pieces, parts)]
    *summed, mean_loss, stops, square = means
    of_sums = [tf.reduce_sum(tf.square(grad)) for grad, sparse in zip(summed, is_sparse) if sparse]
    correction = square / cluster.count - tf.add_n(of_sums) if of_sums else tf.zeros([])
    remaining = iter(summed)
    means_or_none = [None if grad is None else next(remaining) for grad in grads]
    return Reduced(mean_loss, means_or_none, correction, stops * cluster.count)
