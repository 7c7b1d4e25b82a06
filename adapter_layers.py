"""The adapter: a small bottleneck network with a skip connection, inserted after a frozen projection.

    adapter(x) = x + W2 · act(W1 · x + b1) + b2

with W1 [d, m], b1 [1, m], W2 [m, d], b2 [1, d]: 2md + d + m parameters. The weights start near zero, so a network
with new adapters starts close to the original network (Houlsby et al., 2019, section 2). Independent of BERT.

The paper's section 3.6 lists variants, which `AdapterConfig` selects. With f(x) = W2 · act(W1 · x + b1) + b2:

    more hidden layers     f(x) = W3 · act(W2 · act(W1 · x + b1) + b2) + b3, and so on
    normalization          f(norm(x)) in place of f(x)
    parallel               output + f(input) of the sub-layer
    parallel, multiplying  output · (1 + f(input)) of the sub-layer
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Hashable, Optional, Union

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors
from adapter_bert.model import batch_norm, fused_ops
from adapter_bert.model.adapter_config import PAPER_INIT_SCALE, PAPER_SIZE, AdapterConfig, check_activation
from adapter_bert.model.fused_ops import gelu, gelu_erf

# Graph collection of the variables of adapters, as in Google's adapter-bert.
COLLECTION = "adapters"

LAYER_NORM_EPSILON = 1e-12  # of BERT
BATCH_NORM_EPSILON = 1e-5


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
    depth: int = 1,
    normalize: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
    source: Optional[tf.Tensor] = None,
    multiply: bool = False,
) -> tf.Tensor:
    """Add a bottleneck adapter to the graph in the variable scope `adapters`; return a tensor of the input's shape.

    Args:
      input_tensor: float [..., d] with a static d.
      hidden_size: m, the size of the bottleneck.
      init_scale: standard deviation of the initial weights, a normal truncated at two standard deviations.
      activation: the non-linearity of the bottleneck.
      depth: number of hidden layers.
      normalize: function applied to the input of the bottleneck, float [rows, d].
      source: input of the bottleneck, of the same shape as `input_tensor`, which is the default.
      multiply: multiply `input_tensor` by 1 + the bottleneck's output, instead of adding that output.
    """
    width = input_tensor.shape.as_list()[-1]
    rows = _as_rows(input_tensor)
    hidden = rows if source is None else _as_rows(source)
    act = get_activation(activation)
    sizes = [width, *[hidden_size] * depth, width]
    with tf.variable_scope("adapters"):
        near_zero = tf.truncated_normal_initializer(stddev=init_scale)
        zero = tf.zeros_initializer()
        get_variable = functools.partial(tf.get_variable, collections=[COLLECTION, tf.GraphKeys.GLOBAL_VARIABLES])
        if normalize is not None:
            hidden = normalize(hidden)
        layers = []
        for number, shape in enumerate(zip(sizes, sizes[1:]), 1):
            weights = get_variable(f"weights{number}", shape, initializer=near_zero)
            layers.append((weights, get_variable(f"biases{number}", [1, shape[1]], initializer=zero)))
        for number, (weights, biases) in enumerate(layers, 1):
            weights, biases = (fused_ops.converted(variable, hidden) for variable in (weights, biases))
            hidden = _affine(hidden, weights, biases)
            if act is not None and number <= depth:
                hidden = act(hidden)
        hidden = _as_rows(hidden)
        output = _scaled(rows, hidden) if multiply else rows + hidden
    return output if rows is input_tensor else tf.reshape(output, tf.shape(input_tensor))


@fused_ops.in_float32  # in bfloat16, 1 + hidden would lose most of a small `hidden`
def _scaled(rows: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    return rows * (1.0 + hidden)


def _affine(x: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
    """Return x · weights + biases for float [rows, inputs], weights [inputs, outputs] and biases [1, outputs].

    Each of B examples may have its own weights, [B, inputs, outputs], and biases, [B, 1, outputs]. The rows, or
    [B, S, inputs], belong to the examples in order; the result is [B, S, outputs].
    """
    if weights.shape.ndims == 2:
        # As a vector, so that TensorFlow fuses the bias into the matrix product.
        return tf.nn.bias_add(tf.matmul(x, weights), tf.reshape(biases, [-1]))
    if x.shape.ndims == 2:
        x = tf.reshape(x, [tf.shape(weights)[0], -1, x.shape.as_list()[-1]])
    return tf.matmul(x, weights) + biases


def _as_rows(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.ndims == 2 else tf.reshape(tensor, [-1, tensor.shape.as_list()[-1]])


def _normalize(rows: tf.Tensor, kind: str, real_rows: Optional[tf.Tensor]) -> tf.Tensor:
    """Normalize float [rows, d], by row (layer) or column (batch), with a trained shift and scale; see `batch_norm`."""
    with tf.variable_scope({"layer": "LayerNorm", "batch": "BatchNorm"}[kind]):
        options = {"shape": rows.shape.as_list()[-1:], "collections": [COLLECTION, tf.GraphKeys.GLOBAL_VARIABLES]}
        beta = tf.convert_to_tensor(tf.get_variable("beta", initializer=tf.zeros_initializer(), **options))
        gamma = tf.convert_to_tensor(tf.get_variable("gamma", initializer=tf.ones_initializer(), **options))
        if kind == "layer":
            return fused_ops.layer_norm(rows, None, gamma, beta, LAYER_NORM_EPSILON)
        values = tf.cast(rows, tf.float32)
        mean, variance = batch_norm.statistics(values, real_rows)
        normal = tf.nn.batch_normalization(values, mean, variance, beta, gamma, BATCH_NORM_EPSILON)
        return tf.cast(normal, rows.dtype)


AdapterFn = Union[None, str, AdapterConfig, Callable[[tf.Tensor], tf.Tensor]]


def has_batch_norm(adapter_fn: AdapterFn) -> bool:
    """Return whether, in training, adapters need the whole batch and update their statistics as a side effect."""
    return isinstance(adapter_fn, AdapterConfig) and adapter_fn.norm == "batch"


def get_adapter(adapter_fn: AdapterFn, real_rows: Optional[tf.Tensor] = None) -> Callable[..., tf.Tensor]:
    """Convert the `adapter_fn` argument of `BertModel` into a function of a sub-layer's output.

    The function's arguments are the output, the layer index, the name of the sub-layer and the input of the sub-layer.

    Args:
      adapter_fn: None for no adapters; the name `feedforward_adapter` for adapters of size 64; an `AdapterConfig`; or
        a function of one tensor that is applied after every projection.
      real_rows: for batch normalization in training, see `batch_norm.statistics`.
    """
    chosen: Any = adapter_fn
    if isinstance(adapter_fn, str):
        if adapter_fn != "feedforward_adapter":
            raise errors.unknown("adapter function", adapter_fn, ["feedforward_adapter"])
        chosen = AdapterConfig()

    def adapt(tensor: tf.Tensor, layer: int, sublayer: str, source: Optional[tf.Tensor] = None) -> tf.Tensor:
        if chosen is None:
            return tensor
        if not isinstance(chosen, AdapterConfig):
            return _recorded(chosen, tensor)
        if not chosen.covers(layer, sublayer):
            return tensor
        return feedforward_adapter(
            tensor,
            chosen.size,
            chosen.init_scale,
            chosen.activation,
            chosen.depth,
            None if chosen.norm == "none" else functools.partial(_normalize, kind=chosen.norm, real_rows=real_rows),
            None if chosen.connection == "serial" else source,
            chosen.connection == "multiply",
        )

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
    return dataclasses.replace(adapter_fn, layers=None, freeze_below=False), placed
