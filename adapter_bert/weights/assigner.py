"""Give the variables of a graph their initial values."""

from __future__ import annotations

import functools
import zlib
from typing import Any, Callable, Collection, ContextManager, Dict, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.devices import compat
from adapter_bert.model.dropout import run_seed
from adapter_bert.weights.loading import Assignment


class WeightAssigner:
    """Assigns weights to the variables of a graph, which may lack the layers below a cache."""

    def __init__(
        self, assignments: Sequence[Assignment], reduced: Collection[str] = (), precision: str = "float32"
    ) -> None:
        """Prepare to assign weights; variables whose names are in `reduced` are created with the type `precision`."""
        self._assignments = assignments
        self._reduced = frozenset(reduced)
        self._precision = precision
        self._sources = {name: each for each in assignments for name in each.names}
        self._paths: Dict[str, tf.Tensor] = {}  # paths of checkpoints, as constants in the graph

    def creating_variables(self) -> ContextManager[Any]:
        """Return a context in which variables are created with their weights as initial values.

        Random initial values of other variables depend only on the variable's name and the run's seed.
        """
        return tf.variable_scope(tf.get_variable_scope(), custom_getter=self._get_variable)

    def _get_variable(self, getter: Callable, name: str, *args: Any, **options: Any) -> tf.Variable:
        source = self._sources.get(name)
        if options.get("trainable") is False and source is None:  # e.g. a slot of the optimizer
            return getter(name, *args, **options)
        if source is None:
            options["initializer"] = _determined_by_name(options["initializer"], name)
        elif source.values is None:
            options["initializer"] = functools.partial(self._restored, source.path, name)
        else:  # `load` feeds the value
            options["initializer"] = tf.zeros_initializer()
        if name in self._reduced:
            options["initializer"] = functools.partial(_converted, options["initializer"], options["dtype"])
            options["dtype"] = tf.as_dtype(self._precision)
        return getter(name, *args, **options)

    def _restored(self, path: str, name: str, shape: Sequence[int], dtype: tf.DType, **unused: Any) -> tf.Tensor:
        if path not in self._paths:
            self._paths[path] = tf.constant(path)
        (value,) = tf.raw_ops.RestoreV2(
            prefix=self._paths[path], tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
        )
        value.set_shape(shape)
        return value

    def scaffold(self, saver: Any = None, feed: Optional[Mapping[tf.Tensor, Any]] = None) -> tf.train.Scaffold:
        """Return a scaffold that starts from these weights, unless the saver finds a checkpoint.

        `feed` has the values of placeholders that initial values depend on.
        """
        unused = tf.no_op()  # otherwise a scaffold builds its own checks
        return _UncheckedScaffold(
            init_feed_dict=feed,
            init_fn=lambda scaffold, session: self._feed_packs(session, ()),
            ready_op=unused,
            ready_for_local_init_op=unused,
            saver=saver,
        )

    def load(self, session: tf.Session, skip: Collection[str] = ()) -> None:
        """Load the weights of all variables except `skip` into a session."""
        variables = _by_name(session.graph)
        names = [name for each in self._assignments if each.values is None for name in each.names if name not in skip]
        session.run([variables[name].initializer for name in names if name in variables])
        self._feed_packs(session, skip)

    def _feed_packs(self, session: tf.Session, skip: Collection[str]) -> None:
        """Load the values of packs one at a time: together they may exceed the maximum size of a message."""
        variables = _by_name(session.graph)
        for assignment in self._assignments:
            for name, value in (assignment.values or {}).items():
                if name in variables and name not in skip:
                    initializer = compat.initializer_op(variables[name])
                    target = initializer.inputs[1]
                    session.run(initializer, {target: value.astype(target.dtype.as_numpy_dtype, copy=False)})


class _UncheckedScaffold(tf.train.Scaffold):
    """A scaffold that does not check whether variables are initialized, because all of them have initial values."""

    ready_op = None
    ready_for_local_init_op = None


def _by_name(graph: tf.Graph) -> Dict[str, tf.Variable]:
    collected = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    return {optimization.variable_name(variable): variable for variable in collected}


def _converted(
    initializer: Any, initial_type: tf.DType, shape: Sequence[int], dtype: tf.DType, **unused: Any
) -> tf.Tensor:
    """Return the initial value of a variable whose initializer gives values of another type."""
    return tf.cast(initializer(shape, dtype=initial_type), dtype)


def _determined_by_name(initializer: Any, name: str) -> Any:
    """Return an initializer whose random values depend on the variable's name and the run's seed, if it has one.

    TensorFlow's own values would also depend on the number of operations already in the graph.
    """
    seed = run_seed()
    if seed is None or not isinstance(initializer, tf.truncated_normal_initializer):
        return initializer

    def draw(shape: Sequence[int], dtype: tf.DType, **unused: Any) -> tf.Tensor:
        key = tf.stack([zlib.crc32(name.encode()) & 0x7FFFFFFF, seed])
        return tf.random.stateless_truncated_normal(shape, key, initializer.mean, initializer.stddev, dtype)

    return draw
