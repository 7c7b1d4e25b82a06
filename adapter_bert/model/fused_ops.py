"""The parts of the network that are no matrix products, in few passes over memory and with little kept for gradients.

A network of TensorFlow's own small operations spends half of a step's time here: each writes a tensor that the next one
reads again, and most are kept until the gradient has used them. So these functions have gradients of their own, which
keep one tensor each and work the rest out again. Where shapes are fixed and tensors large, XLA makes one loop over
memory of each function; elsewhere compiling one for every shape would take longer than it saves.
Graph functions only: no variable, no knowledge of BERT.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat

# Below so many numbers in the largest tensor a loop made by XLA gains less than a call of it costs.
MIN_COMPILED_SIZE = 2**20

_TANH_FACTOR = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715

# Constants of 32-bit hashes that mix well: the golden ratio, then shifts and factors of two rounds.
_GOLDEN = -1640531535
_MIXING = ((16, 0x7FEB352D), (15, -2073254261))

# What `compiling` is given for a graph that XLA compiles as a whole, as on a TPU.
WHOLE_GRAPH = "whole graph"
# See `compiling`. Innermost last; graphs are built by one thread at a time.
_compiling: List[Union[bool, str, None]] = [None]
# What the functions that are recomputed have drawn, by name; innermost last.
_drawn_before: List[Dict[str, tf.Tensor]] = []


@contextlib.contextmanager
def compiling(use_xla: Union[bool, str, None]) -> Iterator[None]:
    """Decides for the graph built inside whether XLA compiles these functions.

    Args:
      use_xla: True for always, once for every shape that comes; False for never; None for where it pays; `WHOLE_GRAPH`
        where XLA compiles everything anyway.
    """
    _compiling.append(use_xla)
    try:
        yield
    finally:
        _compiling.pop()


@functools.lru_cache(maxsize=None)
def _can_compile() -> bool:
    """Whether this TensorFlow compiles single functions for the processor."""
    has_option = "jit_compile" in inspect.signature(tf.function).parameters
    return has_option and not tf.config.list_physical_devices("GPU")


def _is_compiled(tensors: Tuple[tf.Tensor, ...]) -> bool:
    if _compiling[-1] is not None:
        return _compiling[-1] is True and _can_compile()
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    return None not in sizes and max(sizes) >= MIN_COMPILED_SIZE and _can_compile()


def _is_hashed(x: tf.Tensor) -> bool:
    """How values to drop are found: of all ways to draw, a hash is the cheapest in XLA, and the dearest elsewhere."""
    return _compiling[-1] == WHOLE_GRAPH or _is_compiled((x,))


def fused(function: Callable) -> Callable:
    """Lets XLA make one loop of a function of tensors (then of constants, by name), where that pays.

    What comes out of XLA has no gradient: the callers give theirs.
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


# One name for all gradients of ours; which function is meant is noted with the graph, so that it goes when that goes.
_GRADIENT = "AdapterBertOwnGradient"


@tf.RegisterGradient(_GRADIENT)
def _own_gradient(op: tf.Operation, dy: tf.Tensor, *unused: tf.Tensor) -> List[Optional[tf.Tensor]]:
    gradients = getattr(op.graph, _GRADIENT, {})
    if op.name not in gradients:
        raise RuntimeError(f"{op.name} was read from a file: only a graph built by this code has gradients.")
    return [None, *gradients[op.name](dy)]


def with_gradient(y: tf.Tensor, inputs: Sequence[tf.Tensor], grad: Callable[[tf.Tensor], Sequence]) -> tf.Tensor:
    """The tensor `y` with a gradient of its own, in place of that of the operations which made it.

    Args:
      y: a function of `inputs`.
      inputs: what gets a gradient.
      grad: dy -> a gradient for each input.
    """
    if tf.executing_eagerly():
        return y
    graph = tf.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        outputs = tf.identity_n([y, *inputs])
    if not hasattr(graph, _GRADIENT):
        setattr(graph, _GRADIENT, {})
    getattr(graph, _GRADIENT)[outputs[0].op.name] = grad
    return outputs[0]


def drawn_once(name: str, draw: Callable[[], tf.Tensor]) -> tf.Tensor:
    """What `draw` returns; inside of a function that is recomputed, what it returned under this name at first."""
    if not _drawn_before:
        return draw()
    if name not in _drawn_before[-1]:
        _drawn_before[-1][name] = draw()
    return _drawn_before[-1][name]


def recomputed(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """`function(x)`, of which nothing but `x` is kept for the gradient: it is worked out again for that.

    Args:
      function: builds a part of the graph; may get variables of the current scope, and random seeds by `drawn_once`.
      x: its input.
    """
    used: Dict[str, tf.Tensor] = {}
    drawn: Dict[str, tf.Tensor] = {}

    def build(x: tf.Tensor, reuse: Optional[bool]) -> tf.Tensor:
        _drawn_before.append(drawn)
        try:
            with tf.variable_scope(scope, reuse=reuse, custom_getter=note):
                return function(x)
        finally:
            _drawn_before.pop()

    def note(getter: Callable, name: str, *args: Any, **kwargs: Any) -> tf.Tensor:
        # The same value, if it is used twice.
        if name not in used:
            used[name] = tf.convert_to_tensor(getter(name, *args, **kwargs))
        return used[name]

    scope = tf.get_variable_scope()
    y = build(x, reuse=None)

    def grad(dy: tf.Tensor) -> List[Optional[tf.Tensor]]:
        # Not before it is needed; and no optimiser of graphs may take it for what was there already.
        with tf.control_dependencies([dy]):
            again = tf.identity(x)
        return tf.gradients(build(again, reuse=True), [again, *used.values()], dy)

    return with_gradient(y, [x, *used.values()], grad)


@fused
def _gelu(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.tanh(x * (_TANH_FACTOR + (_TANH_FACTOR * _CUBIC) * (x * x))))


@fused
def _gelu_grad(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    inner = x * (_TANH_FACTOR + (_TANH_FACTOR * _CUBIC) * (x * x))
    tanh = tf.tanh(inner)
    # x · d inner/dx = 3 · inner - 2 · factor · x
    slope = (1.0 + tanh) + (1.0 - tanh * tanh) * (3.0 * inner - (2.0 * _TANH_FACTOR) * x)
    return (0.5 * dy) * slope


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit in its tanh approximation, as in Google's BERT."""
    return with_gradient(_gelu(x), [x], lambda dy: [_gelu_grad(x, dy)])


@fused
def _gelu_erf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.erf(x * math.sqrt(0.5)))


@fused
def _gelu_erf_grad(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    density = tf.exp(-0.5 * (x * x)) * (1.0 / math.sqrt(2.0 * math.pi))
    return dy * (0.5 * (1.0 + tf.erf(x * math.sqrt(0.5))) + x * density)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """The exact Gaussian error linear unit, x · Φ(x): what Hugging Face's configs call `gelu`."""
    return with_gradient(_gelu_erf(x), [x], lambda dy: [_gelu_erf_grad(x, dy)])


def _hashed(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A random int32 for each place of a tensor: a hash of the place's number, keyed by `seed`, int32 [2]."""

    def shifted(x: tf.Tensor, places: int) -> tf.Tensor:
        # The shift of signed numbers carries the sign; the mask takes it away.
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(x, places), (1 << (32 - places)) - 1)

    x = tf.reshape(tf.range(tf.reduce_prod(shape)), shape) * _GOLDEN + seed[0]
    # Spread over all bits: close seeds, e.g. swapped ones, would collide at some places.
    x = tf.bitwise.bitwise_xor(x, seed[1] * _MIXING[0][1])
    for places, factor in _MIXING:
        x = tf.bitwise.bitwise_xor(x, shifted(x, places)) * factor
    return tf.bitwise.bitwise_xor(x, shifted(x, 16))


def _drawn(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The same by TensorFlow's generator, a random int16 each: half the numbers to draw, and fine enough for a rate."""
    size = tf.reduce_prod(shape)
    pairs = compat.random_int32([(size + 1) // 2], seed)
    return tf.reshape(tf.reshape(tf.bitcast(pairs, tf.int16), [-1])[:size], shape)


def _dropped(x: tf.Tensor, seed: tf.Tensor, rate: float, hashed: bool) -> tf.Tensor:
    """`x` with a share of its values set to zero and the others scaled up; the same ones for the same seed."""
    noise = (_hashed if hashed else _drawn)(tf.shape(x), seed)
    least = round((rate - 0.5) * 2.0 ** (8 * noise.dtype.size))
    kept = noise >= tf.constant(least, noise.dtype)
    return x * (tf.cast(kept, x.dtype) * (1.0 / (1.0 - rate)))


@fused
def _dropout(x: tf.Tensor, seed: tf.Tensor, rate: float, hashed: bool) -> tf.Tensor:
    return _dropped(x, seed, rate, hashed)


def dropout(x: tf.Tensor, seed: tf.Tensor, rate: float) -> tf.Tensor:
    """Sets values to zero at this rate and scales the others up.

    Args:
      x: float, of any shape.
      seed: int32 [2]. The same values are dropped for the same seed and shape; what is dropped is not kept for the
        gradient but found out again.
      rate: above 0, below 1.
    """
    drop = functools.partial(_dropout, rate=rate, hashed=_is_hashed(x))
    return with_gradient(drop(x, seed), [x], lambda dy: [drop(dy, seed)])


@fused
def _normalise(gamma: tf.Tensor, beta: tf.Tensor, *terms: tf.Tensor, epsilon: float) -> tuple:
    x = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    scale = tf.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    normal = centred * scale
    return normal * gamma + beta, normal, scale


@fused
def _normalise_grad(dy: tf.Tensor, normal: tf.Tensor, scale: tf.Tensor, gamma: tf.Tensor) -> tuple:
    d = dy * gamma
    mean = tf.reduce_mean(d, axis=-1, keepdims=True)
    slope = tf.reduce_mean(d * normal, axis=-1, keepdims=True)
    return scale * (d - mean - normal * slope), dy * normal


def layer_norm(
    x: tf.Tensor, residual: Optional[tf.Tensor], gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Normalises the rows of `x + residual`, float [rows, D] each, then scales by gamma [D] and shifts by beta [D]."""

    terms = [x] if residual is None else [x, residual]
    y, normal, scale = _normalise(gamma, beta, *terms, epsilon=epsilon)

    def grad(dy: tf.Tensor) -> List[tf.Tensor]:
        dx, dgamma = _normalise_grad(dy, normal, scale, gamma)
        # Products with a row of ones: sums over rows, by all cores.
        ones = tf.ones([1, tf.shape(dy)[0]])
        return [tf.reshape(tf.matmul(ones, d), [-1]) for d in (dgamma, dy)] + [dx] * len(terms)

    return with_gradient(y, [gamma, beta, *terms], grad)


@fused
def _weights(scores: tf.Tensor, bias: tf.Tensor, scale: float) -> tf.Tensor:
    return tf.nn.softmax(scores * scale + bias)


@fused
def _weights_grad(d: tf.Tensor, weights: tf.Tensor, scale: float) -> tf.Tensor:
    return (weights * scale) * (d - tf.reduce_sum(d * weights, axis=-1, keepdims=True))


@fused
def _dropped_weights(scores: tf.Tensor, bias: tf.Tensor, seed: tf.Tensor, scale: float, rate: float, hashed: bool):
    weights = tf.nn.softmax(scores * scale + bias)
    return weights, _dropped(weights, seed, rate, hashed)


@fused
def _dropped_weights_grad(
    d: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor, scale: float, rate: float, hashed: bool
) -> tf.Tensor:
    d = _dropped(d, seed, rate, hashed)
    return (weights * scale) * (d - tf.reduce_sum(d * weights, axis=-1, keepdims=True))


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, seed: Optional[tf.Tensor], rate: float
) -> tf.Tensor:
    """Scaled dot-product attention; keeps the weights before dropout, and no other tensor of their size.

    Args:
      query, key, value: float [B, N, S, H].
      bias: float, added to the scores [B, N, F, T] by broadcasting; gets no gradient.
      seed: of the dropout, see `dropout`; None where the rate is 0.
      rate: of the dropout of attention weights.

    Returns:
      float [B, N, F, H].
    """
    scale = 1.0 / math.sqrt(query.shape.as_list()[-1])
    scores = tf.matmul(query, key, transpose_b=True)
    random = {"rate": rate, "hashed": _is_hashed(scores)}
    if rate:
        weights, dropped = _dropped_weights(scores, bias, seed, scale=scale, **random)
    else:
        weights = dropped = _weights(scores, bias, scale=scale)

    def grad(dy: tf.Tensor) -> List[tf.Tensor]:
        d = tf.matmul(dy, value, transpose_b=True)
        if rate:
            again = _dropout(weights, seed, **random)
            d = _dropped_weights_grad(d, weights, seed, scale=scale, **random)
        else:
            again = weights
            d = _weights_grad(d, weights, scale=scale)
        return [tf.matmul(d, key), tf.matmul(d, query, transpose_a=True), tf.matmul(again, dy, transpose_a=True)]

    return with_gradient(tf.matmul(dropped, value), [query, key, value], grad)
