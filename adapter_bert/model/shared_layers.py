"""Build equal layers from one function, which is faster than creating the operations of each layer.

A graph with many layers takes seconds to build in Python. Here the first layer is built as usual. It is then traced as
a function of its inputs, weights and dropout seeds. All other layers, also in other networks of the graph, are calls of
that function. TensorFlow inlines the calls before it runs the graph, so the computation is the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Hashable, List

import tensorflow.compat.v1 as tf

from adapter_bert.model import fused_ops

# Graph attribute with the layers that were built, so that they are freed with the graph.
_LAYERS = "adapter_bert_layers"
# Of `tf.get_variable`, which passes them to a custom getter.
_OPTIONS = ("shape", "dtype", "initializer", "trainable", "collections")

Body = Callable[..., tf.Tensor]
DrawSeed = Callable[[str], tf.Tensor]


@dataclasses.dataclass
class _Layer:
    """A layer that was built: the variables and seeds that it uses, and its functions."""

    variables: Dict[str, Dict[str, Any]] = dataclasses.field(default_factory=dict)  # name -> options of `get_variable`
    seeds: List[str] = dataclasses.field(default_factory=list)  # scopes that draw a dropout seed
    functions: Dict[Hashable, Any] = dataclasses.field(default_factory=dict)  # by variant

    def build(self, body: Body, inputs: List[tf.Tensor]) -> tf.Tensor:
        """Build the layer from operations and record what it uses. Names are relative to the current scope."""
        prefix = len(tf.get_variable_scope().name) + 1

        def get(getter: Callable, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
            self.variables[name[prefix:]] = {key: kwargs[key] for key in _OPTIONS}
            return getter(name, *args, **kwargs)

        drawn: Dict[str, tf.Tensor] = {}
        with tf.variable_scope(tf.get_variable_scope(), custom_getter=get), fused_ops.pushed(
            fused_ops.drawn_before, drawn
        ):
            y = body(*inputs)
        self.seeds = [name[prefix:] for name in drawn]
        return y

    def call(self, variant: Hashable, body: Body, inputs: List[tf.Tensor], draw_seed: DrawSeed) -> tf.Tensor:
        """Build the layer in the current variable scope as a call of its function."""
        scope = tf.get_variable_scope().name
        variables = [tf.get_variable(name, **options) for name, options in self.variables.items()]
        weights = [tf.convert_to_tensor(variable) for variable in variables]
        arguments = [*inputs, *weights, *(draw_seed(f"{scope}/{name}") for name in self.seeds)]
        variant = (variant, tuple(weight.dtype for weight in weights))  # frozen layers may have other types
        if variant not in self.functions:
            function = self._make_function(body, len(inputs), len(weights)).get_concrete_function(*arguments)
            assert not function.captured_inputs, "a layer must not use tensors other than its inputs"
            self.functions[variant] = function
        return self.functions[variant](*arguments)

    def _make_function(self, body: Body, num_inputs: int, num_weights: int) -> Any:
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


def build(key: Hashable, variant: Hashable, body: Body, inputs: List[tf.Tensor], draw_seed: DrawSeed) -> tf.Tensor:
    """Return `body(*inputs)`, a layer with the variables of the current scope.

    Args:
      key: equal for layers with the same variables and seeds.
      variant: equal for layers with equal keys that differ only in the values of inputs, weights and seeds.
      body: builds the layer; it may create variables and draw seeds with `fused_ops.drawn_once`.
      inputs: the tensors that the layer reads; the body must not use any other.
      draw_seed: returns the dropout seed of a variable scope.
    """
    graph = tf.get_default_graph()
    if not hasattr(graph, _LAYERS):
        setattr(graph, _LAYERS, {})
    layers: Dict[Hashable, _Layer] = getattr(graph, _LAYERS)
    if key not in layers:
        layers[key] = _Layer()
        return layers[key].build(body, inputs)
    shapes = tuple(tuple(tensor.shape.as_list()) for tensor in inputs)
    return layers[key].call((variant, shapes), body, inputs, draw_seed)
