"""Values that differ between runs that share a graph: seed and schedule.

They are fed in every step, so that a graph and its session can serve several runs. The results are the same as those of
a new graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, NamedTuple

import tensorflow.compat.v1 as tf

from adapter_bert.model import dropout

_COLLECTION = "run_values"
_SEED = "seed"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    learning_rate: float  # the peak
    num_train_steps: int
    num_warmup_steps: int  # steps in which the learning rate rises linearly
    num_examples: int = 0  # in an epoch


class ScheduleTensors(NamedTuple):
    """The placeholders of a schedule."""

    learning_rate: tf.Tensor
    num_train_steps: tf.Tensor
    num_warmup_steps: tf.Tensor


def placeholders(schedule: Schedule) -> ScheduleTensors:
    """Create the placeholders in the default graph, with this run's values as defaults; return the schedule's."""
    seed = tf.get_default_graph().seed
    with tf.name_scope("run"):
        if seed is not None:
            dropout.use_run_seed(_placeholder(_SEED, seed, tf.int32))
        types = (tf.float32, tf.int32, tf.int32)
        names = ScheduleTensors._fields
        return ScheduleTensors(*(_placeholder(name, getattr(schedule, name), t) for name, t in zip(names, types)))


def _placeholder(name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    tensor = tf.placeholder_with_default(tf.constant(value, dtype), [], name)
    tf.add_to_collection(_COLLECTION, (name, tensor))
    return tensor


def feed(schedule: Schedule, seed: Any = None) -> Dict[tf.Tensor, Any]:
    """Return placeholder -> value of a run, for the default graph. The seed defaults to that of the graph."""
    seed = tf.get_default_graph().seed if seed is None else seed
    values = {_SEED: seed, **{name: getattr(schedule, name) for name in ScheduleTensors._fields}}
    places = {} if seed is None else dropout.place_keys(seed)
    return {**{tensor: values[name] for name, tensor in tf.get_collection(_COLLECTION)}, **places}


class FeedHook(tf.train.SessionRunHook):
    """Feeds values in every step."""

    def __init__(self, values: Mapping[tf.Tensor, Any]) -> None:
        self._values = dict(values)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Feed the values."""
        return tf.train.SessionRunArgs(None, self._values)
