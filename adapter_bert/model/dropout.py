"""Dropout whose masks depend on the seed, the step and the place in the graph, so that a run can be resumed."""

from __future__ import annotations

import zlib
from typing import ContextManager, Dict, List, Optional, Union

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat
from adapter_bert.model import fused_ops

# Stack of the active dropout stream numbers.
_streams: List[Union[int, tf.Tensor]] = [0]
# Stack of the numbers of networks that share variables, e.g. two towers.
_passes: List[int] = [0]
# Stack of the numbers of workers that compute shares of the same batch.
_workers: List[int] = [0]
# Graph collection with the variable scope of each network.
_SCOPES = "bert_model_scopes"
# Graph collections: the seed that is fed, and pairs (place, tensor) of the numbers that are fed with it.
_RUN_SEED, _PLACES = "run_seed", "dropout_places"


def dropout(x: tf.Tensor, rate: Optional[float]) -> tf.Tensor:
    """Apply dropout; return the tensor unchanged if the rate is zero."""
    return fused_ops.dropout(x, dropout_seed(), rate) if rate else x


def next_pass() -> ContextManager[None]:
    """Give the network built in this context different dropout masks from earlier ones in its variable scope."""
    scope = tf.get_variable_scope().name
    earlier = tf.get_collection(_SCOPES).count(scope)
    tf.add_to_collection(_SCOPES, scope)
    return fused_ops.pushed(_passes, earlier)


def dropout_stream(number: Union[int, tf.Tensor]) -> ContextManager[None]:
    """Give the graph built in this context, e.g. a loop body, its own dropout masks for each number (int32 scalar).

    Streams can be nested; the masks then depend on all numbers.
    """
    return fused_ops.pushed(_streams, _streams[-1] * 2**16 + number)


def of_worker(rank: int) -> ContextManager[None]:
    """Give the graph built in this context a worker's own dropout masks; the first worker has the usual ones."""
    return fused_ops.pushed(_workers, rank)


def dropout_seed(scope: Optional[str] = None) -> tf.Tensor:
    """Return the seed, int32 [2], of the dropout in a variable scope, by default the current one.

    A scope has at most one dropout.

    If the graph has a seed and a global step, the seed depends on both, on the scope's name, on the `BertModel` of that
    scope and on the `dropout_stream`, so that an interrupted run continues with the same dropout masks. The masks
    change only with the step, and the cores of a TPU share them. Otherwise each session run draws a new seed.
    """
    scope = tf.get_variable_scope().name if scope is None else scope

    def draw() -> tf.Tensor:
        step = tf.train.get_global_step()
        worker = f"/worker{_workers[-1]}" if _workers[-1] else ""
        key = _place_key(scope + (f"/{_passes[-1]}" if _passes[-1] else "") + worker)
        if key is None or step is None:
            return tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        return compat.random_int32([2], [key + tf.convert_to_tensor(_streams[-1]), tf.cast(step, tf.int32)])

    return fused_ops.drawn_once(scope, draw)


def run_seed() -> Union[None, int, tf.Tensor]:
    """Return the seed of the run: a tensor that is fed (see `use_run_seed`), or the graph's seed, or None."""
    fed = tf.get_collection(_RUN_SEED)
    return fed[0] if fed else tf.get_default_graph().seed


def use_run_seed(seed: tf.Tensor) -> None:
    """Use this int32 scalar as the seed of the default graph, which can then serve several runs; see `place_keys`."""
    tf.add_to_collection(_RUN_SEED, seed)


def place_keys(seed: int) -> Dict[tf.Tensor, int]:
    """Return the values to feed for a run's seed, besides the seed itself: one number for each place with dropout."""
    return {tensor: _hash(seed, place) for place, tensor in tf.get_collection(_PLACES)}


def _place_key(place: str) -> Union[None, int, tf.Tensor]:
    """Return a number derived from the run's seed and the place: a tensor if the seed is fed, None without a seed."""
    seed = tf.get_default_graph().seed
    if seed is None or not tf.get_collection(_RUN_SEED):
        return None if seed is None else _hash(seed, place)
    # A placeholder inside the body of a loop cannot be fed.
    with tf.init_scope():
        known = dict(tf.get_collection(_PLACES))
        if place not in known:
            with tf.name_scope("run/"):
                known[place] = tf.placeholder_with_default(tf.constant(_hash(seed, place)), [], "dropout")
            tf.add_to_collection(_PLACES, (place, known[place]))
    return known[place]


def _hash(seed: int, place: str) -> int:
    return zlib.crc32(f"{seed}/{place}".encode()) & 0x7FFFFFFF
