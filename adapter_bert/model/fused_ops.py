"""Memory-efficient GELU, LayerNorm, dropout and attention with custom gradients.

Built from TensorFlow's small operations, these would take half the time of a step: each operation writes a tensor
that the next one reads, and most tensors are kept for the gradient. The functions here keep one tensor each and
recompute the rest. If shapes are static and tensors large, XLA compiles each function into a single loop; otherwise
compiling for every shape would cost more than it saves. Independent of BERT; creates no variables.

Tensors may be bfloat16. The functions then compute in float32; what they return and keep for the gradient is bfloat16.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat

# If the largest tensor has fewer elements, calling an XLA function costs more than it saves.
MIN_COMPILED_SIZE = 2**20

_TANH_FACTOR = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715

# Constants of a 32-bit hash with good mixing: the golden ratio, then shifts and factors of two rounds.
_GOLDEN = -1640531535
_MIXING = ((16, 0x7FEB352D), (15, -2073254261))

# Value of `compiling` for a graph that XLA compiles as a whole, as on a TPU.
WHOLE_GRAPH = "whole graph"
# Value of `compiling` for a graph that other programs load: it has TensorFlow's own gradients.
EXPORTED = "exported"
# Stack of the values set by `compiling`. Only one thread builds graphs at a time.
_compiling: List[Union[bool, str, None]] = [None]
# Stack of the random tensors of recomputed functions, by name.
drawn_before: List[Dict[str, tf.Tensor]] = []


@contextlib.contextmanager
def pushed(stack: list, value: Any) -> Iterator[None]:
    """Push a value onto a stack; pop it when the context ends."""
    stack.append(value)
    try:
        yield
    finally:
        stack.pop()


def compiling(use_xla: Union[bool, str, None]) -> ContextManager[None]:
    """Set whether XLA compiles these functions in the graph built in this context.

    True for always, once per shape; False for never; None for large static shapes only; `WHOLE_GRAPH` if XLA compiles
    the whole graph anyway; `EXPORTED` for a graph without custom gradients, which only this code could compute.
    """
    return pushed(_compiling, use_xla)


@functools.lru_cache(maxsize=None)
def _can_compile() -> bool:
    """Return whether this TensorFlow can compile single functions for the CPU."""
    has_option = "jit_compile" in inspect.signature(tf.function).parameters
    return has_option and not tf.config.list_physical_devices("GPU")


def _is_compiled(tensors: Tuple[tf.Tensor, ...]) -> bool:
    if _compiling[-1] is not None:
        return _compiling[-1] is True and _can_compile()
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    return None not in sizes and max(sizes) >= MIN_COMPILED_SIZE and _can_compile()


def _is_hashed(x: tf.Tensor) -> bool:
    """Return whether dropout uses a hash: the cheapest generator in XLA, the most expensive one elsewhere."""
    return _compiling[-1] == WHOLE_GRAPH or _is_compiled((x,))


def fused(function: Callable) -> Callable:
    """Decorate a function of tensors (and keyword constants): compile it with XLA if `compiling` says so.

    The result has no gradient; callers define one.
    """

    @functools.lru_cache(maxsize=None)
    def compiled(constants: Tuple[Tuple[str, Any], ...]) -> Callable:
        return tf.function(functools.partial(function, **dict(constants)), jit_compile=True)

    @functools.wraps(function)
    def call(*tensors: tf.Tensor, **constants: Any) -> Any:
        if _is_compiled(tensors):
            return compiled(tuple(sorted(constants.items())))(*tensors)
        return function(*tensors, **constants)

    return call


# All custom gradients share one name. The graph stores the actual functions, so that they are freed with it.
_GRADIENT = "AdapterBertOwnGradient"


@tf.RegisterGradient(_GRADIENT)
def _own_gradient(op: tf.Operation, dy: tf.Tensor, *unused: tf.Tensor) -> List[Optional[tf.Tensor]]:
    gradients = getattr(op.graph, _GRADIENT, {})
    if op.name not in gradients:
        raise RuntimeError(f"{op.name} was imported from a file; only a graph built by this code has gradients.")
    # Otherwise operations that depend on forward results alone run early, and their results are kept. In float32, this
    # would change how TensorFlow's optimizers merge operations, and thus rounding.
    with tf.control_dependencies([dy] if dy.dtype != tf.float32 else []):
        return [None, *gradients[op.name](dy)]


def with_gradient(y: tf.Tensor, inputs: Sequence[tf.Tensor], grad: Callable[[tf.Tensor], Sequence]) -> tf.Tensor:
    """Return `y`, a function of `inputs`, with a custom gradient: `grad(dy)` returns one for each input."""
    if tf.executing_eagerly() or _compiling[-1] == EXPORTED:
        return y
    graph = tf.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        outputs = tf.identity_n([y, *inputs])
    if not hasattr(graph, _GRADIENT):
        setattr(graph, _GRADIENT, {})
    getattr(graph, _GRADIENT)[outputs[0].op.name] = grad
    return outputs[0]


def converted(value: Union[tf.Tensor, tf.Variable], like: tf.Tensor) -> Union[tf.Tensor, tf.Variable]:
    """Return a value in the type of a tensor: a weight that is multiplied by `like`."""
    return value if value.dtype.base_dtype == like.dtype else tf.cast(value, like.dtype)


def in_float32(function: Callable) -> Callable:
    """Decorate a function of tensors that computes in float32.

    Reduced floats among its arguments are converted. All results then get the type of the first of these arguments.
    """

    @functools.wraps(function)
    def call(*tensors: tf.Tensor, **constants: Any) -> Any:
        reduced = [tensor for tensor in tensors if tensor.dtype.is_floating and tensor.dtype != tf.float32]
        if not reduced:
            return function(*tensors, **constants)
        results = function(*(tf.cast(t, tf.float32) if t.dtype.is_floating else t for t in tensors), **constants)
        return tf.nest.map_structure(lambda result: tf.cast(result, reduced[0].dtype), results)

    return call


def drawn_once(name: str, draw: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Return `draw()`; when a function is recomputed, return the tensor first drawn under this name."""
    if not drawn_before:
        return draw()
    if name not in drawn_before[-1]:
        drawn_before[-1][name] = draw()
    return drawn_before[-1][name]


def recomputed(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Return `function(x)`, keeping only `x` for the gradient, which recomputes the rest.

    The function may use variables of the current scope, and random seeds from `drawn_once`.
    """
    used: Dict[str, tf.Tensor] = {}
    drawn: Dict[str, tf.Tensor] = {}

    def build(x: tf.Tensor, reuse: Optional[bool]) -> tf.Tensor:
        with pushed(drawn_before, drawn), tf.variable_scope(scope, reuse=reuse, custom_getter=get_once):
            return function(x)

    def get_once(getter: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("trainable") is False:  # the function may assign it, and it has no gradient
            return getter(name, *args, **kwargs)
        if name not in used:
            used[name] = tf.convert_to_tensor(getter(name, *args, **kwargs))
        return used[name]

    scope = tf.get_variable_scope()
    y = build(x, reuse=None)

    def grad(dy: tf.Tensor) -> List[Optional[tf.Tensor]]:
        # Delay the recomputation until it is needed, and keep graph optimizers from merging it with the forward pass.
        with tf.control_dependencies([dy]):
            again = tf.identity(x)
        return tf.gradients(build(again, reuse=True), [again, *used.values()], dy)

    return with_gradient(y, [x, *used.values()], grad)


@fused
@in_float32
def _gelu(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.tanh(x * (_TANH_FACTOR + (_TANH_FACTOR * _CUBIC) * (x * x))))


@fused
@in_float32
def _gelu_grad(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    inner = x * (_TANH_FACTOR + (_TANH_FACTOR * _CUBIC) * (x * x))
    tanh = tf.tanh(inner)
    # x · d inner/dx = 3 · inner - 2 · factor · x
    slope = (1.0 + tanh) + (1.0 - tanh * tanh) * (3.0 * inner - (2.0 * _TANH_FACTOR) * x)
    return (0.5 * dy) * slope


def _activated(function: Callable, gradient: Callable, x: tf.Tensor) -> tf.Tensor:
    if x.dtype == tf.float32 or _is_compiled((x,)):
        return with_gradient(function(x), [x], lambda dy: [gradient(x, dy)])
    # Keep the slope instead of `x`: the two functions then share their conversions and most of their operations.
    slope = gradient(x, tf.ones([], x.dtype))
    return with_gradient(function(x), [x], lambda dy: [slope * dy])


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Return the Gaussian error linear unit in its tanh approximation, as in Google's BERT."""
    return _activated(_gelu, _gelu_grad, x)


@fused
@in_float32
def _gelu_erf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.erf(x * math.sqrt(0.5)))


@fused
@in_float32
def _gelu_erf_grad(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    density = tf.exp(-0.5 * (x * x)) * (1.0 / math.sqrt(2.0 * math.pi))
    return dy * (0.5 * (1.0 + tf.erf(x * math.sqrt(0.5))) + x * density)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Return the exact Gaussian error linear unit, x · Φ(x), called `gelu` in Hugging Face's configs."""
    return _activated(_gelu_erf, _gelu_erf_grad, x)


def _hashed(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return a random int32 tensor: a hash of each element's index, keyed by `seed`, int32 [2]."""

    def shifted(x: tf.Tensor, places: int) -> tf.Tensor:
        # Shifting signed numbers copies the sign bit; mask it out.
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(x, places), (1 << (32 - places)) - 1)

    x = tf.reshape(tf.range(tf.reduce_prod(shape)), shape) * _GOLDEN + seed[0]
    # Spread the seed over all bits: similar seeds, e.g. swapped ones, would otherwise collide for some elements.
    x = tf.bitwise.bitwise_xor(x, seed[1] * _MIXING[0][1])
    for places, factor in _MIXING:
        x = tf.bitwise.bitwise_xor(x, shifted(x, places)) * factor
    return tf.bitwise.bitwise_xor(x, shifted(x, 16))


def _drawn(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return a random int16 tensor from TensorFlow's generator: two elements per number drawn."""
    size = tf.reduce_prod(shape)
    pairs = compat.random_int32([(size + 1) // 2], seed)
    return tf.reshape(tf.reshape(tf.bitcast(pairs, tf.int16), [-1])[:size], shape)


@in_float32
def _dropped(x: tf.Tensor, seed: tf.Tensor, rate: float, hashed: bool) -> tf.Tensor:
    """Return `x` with dropout; the same seed drops the same elements."""
    noise = (_hashed if hashed else _drawn)(tf.shape(x), seed)
    least = round((rate - 0.5) * 2.0 ** (8 * noise.dtype.size))
    kept = noise >= tf.constant(least, noise.dtype)
    return x * (tf.cast(kept, x.dtype) * (1.0 / (1.0 - rate)))


_dropout = fused(_dropped)


def dropout(x: tf.Tensor, seed: tf.Tensor, rate: float) -> tf.Tensor:
    """Apply dropout at a rate above 0 and below 1.

    The seed, int32 [2], determines the mask, which the gradient recomputes instead of storing it.
    """
    drop = functools.partial(_dropout, rate=rate, hashed=_is_hashed(x))
    return with_gradient(drop(x, seed), [x], lambda dy: [drop(dy, seed)])


@fused
def _normalise(gamma: tf.Tensor, beta: tf.Tensor, *terms: tf.Tensor, epsilon: float) -> tuple:
    kind = terms[0].dtype
    first, *second = [tf.cast(term, tf.float32) for term in terms]
    x = first + second[0] if second else first
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    scale = tf.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    # What the gradient keeps is on the way to the result; otherwise it might be computed, and its input freed, late.
    normal = tf.cast(centred * scale, kind)
    return tf.cast(tf.cast(normal, tf.float32) * gamma + beta, kind), normal, scale


@fused
def _normalise_grad(dy: tf.Tensor, normal: tf.Tensor, scale: tf.Tensor, gamma: tf.Tensor) -> tuple:
    normal = tf.cast(normal, tf.float32)
    d = dy * gamma
    mean = tf.reduce_mean(d, axis=-1, keepdims=True)
    slope = tf.reduce_mean(d * normal, axis=-1, keepdims=True)
    return scale * (d - mean - normal * slope), dy * normal


def layer_norm(
    x: tf.Tensor, residual: Optional[tf.Tensor], gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Normalize the rows of `x + residual`, float [rows, D], then scale by gamma [D] and shift by beta [D]."""
    terms = [x] if residual is None else [x, residual]
    y, normal, scale = _normalise(gamma, beta, *terms, epsilon=epsilon)

    def grad(dy: tf.Tensor) -> List[tf.Tensor]:
        dy = tf.cast(dy, tf.float32)
        dx, dgamma = _normalise_grad(dy, normal, scale, gamma)
        # Sum over rows as products with a row of ones, which use all cores.
        ones = tf.ones([1, tf.shape(dy)[0]])
        return [tf.reshape(tf.matmul(ones, d), [-1]) for d in (dgamma, dy)] + [tf.cast(dx, x.dtype)] * len(terms)

    return with_gradient(y, [gamma, beta, *terms], grad)


def _softmax(scores: tf.Tensor, bias: tf.Tensor, *seed: tf.Tensor, scale: float, **random: Any) -> List[tf.Tensor]:
    """Return the attention weights and, if there is a seed, the weights after dropout."""
    weights = tf.nn.softmax(scores * scale + bias)
    return [weights, _dropped(weights, *seed, **random)] if seed else [weights]


_weights = fused(in_float32(_softmax))


@fused
def _weights_grad(d: tf.Tensor, weights: tf.Tensor, *seed: tf.Tensor, scale: float, **random: Any) -> tf.Tensor:
    if seed:
        d = _dropped(d, *seed, **random)
    return (weights * scale) * (d - tf.reduce_sum(d * weights, axis=-1, keepdims=True))


@fused
@in_float32
def _weights_and_grad(
    scores: tf.Tensor, bias: tf.Tensor, d: tf.Tensor, *seed: tf.Tensor, scale: float, **random: Any
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Return the attention weights after dropout, and the gradient of the scores, without stored weights."""
    weights, *dropped = _softmax(scores, bias, *seed, scale=scale, **random)
    used = dropped[0] if seed else weights
    d = d * used
    return used, scale * (d - weights * tf.reduce_sum(d, axis=-1, keepdims=True))


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, seed: Optional[tf.Tensor], rate: float
) -> tf.Tensor:
    """Apply scaled dot-product attention with dropout (unless the rate is 0) to float [B, N, S, H].

    The bias is broadcast over the scores [B, N, F, T] and gets no gradient. The only large tensor kept for the gradient
    is the weights before dropout; in reduced precision, in which products are cheap, they are recomputed.
    """
    scale = 1.0 / math.sqrt(query.shape.as_list()[-1])
    scores = tf.matmul(query, key, transpose_b=True)
    random = {"rate": rate, "hashed": _is_hashed(scores)}
    seeds = [seed] if rate else []
    forward = _weights(scores, bias, *seeds, scale=scale, **random)

    def grad(dy: tf.Tensor) -> List[tf.Tensor]:
        d = tf.matmul(dy, value, transpose_b=True)
        if query.dtype == tf.float32:
            weights = forward[0]
            again = _dropout(weights, seed, **random) if rate else weights
            d = _weights_grad(d, weights, *seeds, scale=scale, **random)
        else:
            scores = tf.matmul(query, key, transpose_b=True)
            again, d = _weights_and_grad(scores, bias, d, *seeds, scale=scale, **random)
        return [tf.matmul(d, key), tf.matmul(d, query, transpose_a=True), tf.matmul(again, dy, transpose_a=True)]

    return with_gradient(tf.matmul(forward[-1], value), [query, key, value], grad)
