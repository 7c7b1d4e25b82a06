"""The adapter: a small bottleneck network with a skip connection, inserted after a frozen projection.

    adapter(x) = x + W2 · act(W1 · x + b1) + b2

with W1 [d, m], b1 [1, m], W2 [m, d], b2 [1, d]: 2md + d + m parameters. The weights start near zero, so a network
with new adapters starts close to the original network (Houlsby et al., 2019, section 2). Independent of BERT.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Hashable, Optional, Union

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors
from adapter_bert.model.adapter_config import PAPER_INIT_SCALE, PAPER_SIZE, AdapterConfig, check_activation
from adapter_bert.model.fused_ops import gelu, gelu_erf

# Graph collection of the variables of adapters, as in Google's adapter-bert.
COLLECTION = "adapters"


def swish(x: tf.Tensor) -> tf.Tensor:
    """Return x · sigmoid(x), also known as SiLU: the default of AdapterHub."""
    return x * tf.sigmoid(x)


ACTIVATIONS = {"gelu": gelu, "gelu_erf": gelu_erf, "relu": tf.nn.relu, "swish": swish, "tanh": tf.tanh, "linear": None}


def get_activation(activation_string: Union[str, Callable, None]) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
    """Return an activation function by its name in `ACTIVATIONS`, ignoring case; None for `linear` or an empty name.

    Callables are returned unchanged. An unknown name raises `errors.UserError`.
    """
    if callable(activation_string):
        return activation_string
    check_activation(activation_string)
    return ACTIVATIONS[activation_string.lower()] if activation_string else None


def feedforward_adapter(
    input_tensor: tf.Tensor,
    hidden_size: int = PAPER_SIZE,
    init_scale: float = PAPER_INIT_SCALE,
    activation: Union[str, Callable, None] = "gelu",
) -> tf.Tensor:
    """Add a bottleneck adapter to the graph in the variable scope `adapters`; return a tensor of the input's shape.

    Args:
      input_tensor: float [..., d] with a static d.
      hidden_size: m, the size of the bottleneck.
      init_scale: standard deviation of the initial weights, a normal truncated at two standard deviations.
      activation: the non-linearity of the bottleneck.
    """
    width = input_tensor.shape.as_list()[-1]
    rows = input_tensor if input_tensor.shape.ndims == 2 else tf.reshape(input_tensor, [-1, width])
    act = get_activation(activation)
    with tf.variable_scope("adapters"):
        near_zero = tf.truncated_normal_initializer(stddev=init_scale)
        zero = tf.zeros_initializer()
        get_variable = functools.partial(tf.get_variable, collections=[COLLECTION, tf.GraphKeys.GLOBAL_VARIABLES])
        weights1 = get_variable("weights1", [width, hidden_size], initializer=near_zero)
        biases1 = get_variable("biases1", [1, hidden_size], initializer=zero)
        weights2 = get_variable("weights2", [hidden_size, width], initializer=near_zero)
        biases2 = get_variable("biases2", [1, width], initializer=zero)
        # As vectors, so that TensorFlow fuses the bias into the matrix product.
        hidden = tf.nn.bias_add(tf.matmul(rows, weights1), tf.reshape(biases1, [-1]))
        if act is not None:
            hidden = act(hidden)
        output = rows + tf.nn.bias_add(tf.matmul(hidden, weights2), tf.reshape(biases2, [-1]))
    return output if rows is input_tensor else tf.reshape(output, tf.shape(input_tensor))


AdapterFn = Union[None, str, AdapterConfig, Callable[[tf.Tensor], tf.Tensor]]


def get_adapter(adapter_fn: AdapterFn) -> Callable[..., tf.Tensor]:
    """Convert the `adapter_fn` argument of `BertModel` into a function of (tensor, layer index, sub-layer name).

    Args:
      adapter_fn: None for no adapters; the name `feedforward_adapter` for adapters of size 64; an `AdapterConfig`; or
        a function of one tensor that is applied after every projection.
    """
    chosen: Any = adapter_fn
    if isinstance(adapter_fn, str):
        if adapter_fn != "feedforward_adapter":
            raise errors.unknown("adapter function", adapter_fn, ["feedforward_adapter"])
        chosen = AdapterConfig()

    def adapt(tensor: tf.Tensor, layer: int, sublayer: str) -> tf.Tensor:
        if chosen is None:
            return tensor
        if not isinstance(chosen, AdapterConfig):
            return _recorded(chosen, tensor)
        if not chosen.covers(layer, sublayer):
            return tensor
        return feedforward_adapter(tensor, chosen.size, chosen.init_scale, chosen.activation)

    return adapt


def _recorded(adapter: Callable[[tf.Tensor], tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Apply an adapter function; add the variables that it creates, under any name, to `COLLECTION`."""
    earlier = len(tf.trainable_variables())
    output = adapter(tensor)
    known = {variable.name for variable in tf.get_collection(COLLECTION)}
    for variable in tf.trainable_variables()[earlier:]:
        if variable.name not in known:
            tf.add_to_collection(COLLECTION, variable)
    return output


def describe(adapter_fn: AdapterFn, layer: int) -> Hashable:
    """Return a key that is equal for layers with the same adapters."""
    if not isinstance(adapter_fn, AdapterConfig):
        return adapter_fn
    placed = tuple(adapter_fn.covers(layer, sublayer) for sublayer in ("attention", "feedforward"))
    return dataclasses.replace(adapter_fn, layers=None), placed
