"""Build equal layers from one function, which is faster than creating the operations of each layer.

A graph with many layers takes seconds to build in Python. Here the first layer is built as usual. It is then traced as
a function of its inputs, weights and dropout seeds. All other layers, also in other networks of the graph, are calls of
that function. TensorFlow inlines the calls before it runs the graph, so the computation is the same.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.model import fused_ops

# Graph attribute with the traced functions, so that they are freed with the graph.
_FUNCTIONS = "adapter_bert_layer_functions"

Body = Callable[..., tf.Tensor]


class _Layer:
    """A layer that was built once: the variables and seeds that it uses, in order, and its function."""

    def __init__(self) -> None:
        self.variables: Dict[str, Tuple[tuple, Dict[str, Any]]] = {}  # relative name -> arguments of `tf.get_variable`
        self.seeds: List[str] = []  # relative names of the scopes that draw a dropout seed
        self.function: Any = None

    def build(self, body: Body, inputs: List[tf.Tensor]) -> tf.Tensor:
        """Build the layer from operations and record what it uses."""
        prefix = len(tf.get_variable_scope().name) + 1

        def get(getter: Callable, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
            kept = {key: value for key, value in kwargs.items() if key in ("shape", "initializer", "dtype")}
            self.variables[name[prefix:]] = args, kept
            return getter(name, *args, **kwargs)

        drawn: Dict[str, tf.Tensor] = {}
        with tf.variable_scope(tf.get_variable_scope(), custom_getter=get), fused_ops.pushed(
            fused_ops.drawn_before, drawn
        ):
            y = body(*inputs)
        self.seeds = [name[prefix:] for name in drawn]
        return y

    def call(self, body: Body, inputs: List[tf.Tensor], draw_seed: Callable[[str], tf.Tensor]) -> tf.Tensor:
        """Build the layer in the current variable scope as a call of its function."""
        scope = tf.get_variable_scope().name
        weights = [
            tf.convert_to_tensor(tf.get_variable(name, *args, **kw)) for name, (args, kw) in self.variables.items()
        ]
        seeds = [draw_seed(f"{scope}/{name}") for name in self.seeds]
        arguments = [*inputs, *weights, *seeds]
        if self.function is None:
            self.function = self._trace(body, len(inputs), len(weights)).get_concrete_function(*arguments)
            assert not self.function.captured_inputs, "a layer must not use tensors other than its inputs"
        return self.function(*arguments)

    def _trace(self, body: Body, num_inputs: int, num_weights: int) -> Any:
        end = num_inputs + num_weights

        def function(*args: tf.Tensor) -> tf.Tensor:
            scope = tf.get_variable_scope().name  # that of the layer which is traced
            weights = dict(zip((f"{scope}/{name}" for name in self.variables), args[num_inputs:end]))
            seeds = dict(zip((f"{scope}/{name}" for name in self.seeds), args[end:]))
            with tf.variable_scope(
                tf.get_variable_scope(), custom_getter=lambda getter, name, *_, **__: weights[name]
            ), fused_ops.pushed(fused_ops.drawn_before, seeds):
                return body(*args[:num_inputs])

        return tf.function(function, autograph=False)


def build(key: Hashable, body: Body, inputs: List[tf.Tensor], draw_seed: Callable[[str], tf.Tensor]) -> tf.Tensor:
    """Return `body(*inputs)`, a layer with the variables of the current scope.

    Args:
      key: equal for layers that differ only in the values of their inputs, weights and seeds.
      body: builds the layer; it may create variables and draw seeds with `fused_ops.drawn_once`.
      inputs: the tensors that the layer reads; the body must not use any other.
      draw_seed: returns the dropout seed of a variable scope.
    """
    graph = tf.get_default_graph()
    if not hasattr(graph, _FUNCTIONS):
        setattr(graph, _FUNCTIONS, {})
    layers: Dict[Hashable, _Layer] = getattr(graph, _FUNCTIONS)
    key = key, tuple(tuple(tensor.shape.as_list()) for tensor in inputs)
    if key not in layers:
        layers[key] = _Layer()
        return layers[key].build(body, inputs)
    return layers[key].call(body, inputs, draw_seed)
