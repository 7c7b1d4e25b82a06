"""Give the variables of a graph their initial values."""

from __future__ import annotations

from typing import Collection, Optional, Sequence

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.devices import compat
from adapter_bert.weights.loading import Assignment


class WeightAssigner:
    """Assigns weights to the trainable variables of the default graph."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._assignments = assignments
        self._variables = {optimization.variable_name(variable): variable for variable in tf.trainable_variables()}

    def replace_initializers(self) -> None:
        """Replace the initializers of variables with reads from their checkpoints. Call this once, before `load`."""
        for assignment in self._assignments:
            if assignment.values is None:
                tf.train.init_from_checkpoint(assignment.path, {name: name for name in assignment.names})

    def scaffold(self, saver: Optional[tf.train.Saver] = None) -> tf.train.Scaffold:
        """Return a scaffold that starts from these weights, unless the saver finds a checkpoint."""
        self.replace_initializers()
        # All variables have initial values. By default, TensorFlow would check each of them, twice.
        nothing_missing = tf.constant([], tf.string)
        return tf.train.Scaffold(
            init_fn=lambda scaffold, session: self._feed_packs(session, ()),
            ready_op=nothing_missing,
            ready_for_local_init_op=nothing_missing,
            saver=saver,
        )

    def load(self, session: tf.Session, skip: Collection[str] = ()) -> None:
        """Load the weights of all variables except `skip` into a session."""
        names = [name for each in self._assignments if each.values is None for name in each.names if name not in skip]
        session.run([self._variables[name].initializer for name in names])
        self._feed_packs(session, skip)

    def _feed_packs(self, session: tf.Session, skip: Collection[str]) -> None:
        """Load the values of packs one at a time: together they may exceed the maximum size of a message."""
        for assignment in self._assignments:
            for name, value in (assignment.values or {}).items():
                if name not in skip:
                    initializer = compat.initializer_op(self._variables[name])
                    session.run(initializer, {initializer.inputs[1]: value})
