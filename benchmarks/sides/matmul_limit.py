"""The matrix products of an adapter training step and nothing else: a limit that no implementation can beat.

A classifier needs the last layer's output for the first token only; other tokens count there as keys and values.
Forward: all products. Backward: the gradients of the inputs, and of the weights that train. Element-wise work, softmax,
LayerNorm, dropout and the optimizer are excluded. All encoder layers but the last have the same products, so `LAYERS`
of them are timed and counted for all.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np

from benchmarks.sides import common

LAYERS = 3


class Product(NamedTuple):
    """A product [rows, inner] x [inner, columns], for `batch` pairs of matrices at once."""

    rows: int
    inner: int
    columns: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """Return the floating point operations: a multiplication and an addition for each term."""
        return 2 * self.rows * self.inner * self.columns * self.batch

    @property
    def shapes(self) -> Tuple[tuple, tuple, tuple]:
        """Return the shapes of the left operand, the right operand and the result."""
        batch = (self.batch,) if self.batch > 1 else ()
        return batch + (self.rows, self.inner), batch + (self.inner, self.columns), batch + (self.rows, self.columns)


def frozen(rows: int, inner: int, columns: int) -> List[Product]:
    """A frozen projection: forward and the gradient of its input."""
    return [Product(rows, inner, columns), Product(rows, columns, inner)]


def trained(rows: int, inner: int, columns: int) -> List[Product]:
    """A trained projection: also the gradient of its weights."""
    return frozen(rows, inner, columns) + [Product(inner, rows, columns)]


def both_gradients(rows: int, inner: int, columns: int, batch: int) -> List[Product]:
    """A product of two activations: forward and the gradients of both."""
    return [
        Product(rows, inner, columns, batch),
        Product(rows, columns, inner, batch),
        Product(inner, rows, columns, batch),
    ]


def layer_products(
    config: Mapping[str, int], batch: int, length: int, adapter_size: int, outputs: Optional[int] = None
) -> List[Product]:
    """Return the products of one encoder layer with its two adapters.

    Args:
      config: sizes of the network, named as in `bert_config.json`.
      batch, length: examples in a batch, tokens of each.
      adapter_size: units of the bottleneck.
      outputs: number of tokens of each example whose output is needed; all by default.
    """
    outputs = outputs or length
    width, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_size, tokens, rows = width // heads, batch * length, batch * outputs
    adapter = trained(rows, width, adapter_size) + trained(rows, adapter_size, width)
    return [
        *frozen(rows, width, width),  # query
        *frozen(tokens, width, width),  # key
        *frozen(tokens, width, width),  # value
        *both_gradients(outputs, head_size, length, batch * heads),  # attention scores
        *both_gradients(outputs, length, head_size, batch * heads),  # attention context
        *frozen(rows, width, width),  # attention output
        *adapter,
        *frozen(rows, width, wide),  # intermediate
        *frozen(rows, wide, width),  # output
        *adapter,
    ]


def top_products(config: Mapping[str, int], batch: int, length: int, adapter_size: int) -> List[Product]:
    """Return the products of the last layer for the first token, of the frozen pooler and of the head."""
    width = config["hidden_size"]
    last = layer_products(config, batch, length, adapter_size, outputs=1)
    return last + frozen(batch, width, width) + trained(batch, width, common.CLASSES)


def step_flops(job: common.Job) -> int:
    """Return the floating point operations of the matrix products of a whole step."""
    sizes = (job["config"], job["batch"], job["length"], job["adapter_size"])
    below = job["config"]["num_hidden_layers"] - 1
    layer, top = (sum(p.flops for p in found) for found in (layer_products(*sizes), top_products(*sizes)))
    return below * layer + top


def torch_multiplier() -> Callable[[Product], Callable[[], Any]]:
    """Return a function that prepares a product in PyTorch, with preallocated results."""
    import torch

    results: Dict[tuple, Any] = {}

    def prepare(product: Product) -> Callable[[], Any]:
        left, right, result = product.shapes
        operands = [torch.randn(*shape) for shape in (left, right)]
        out = results.setdefault(result, torch.empty(*result))
        return lambda: torch.matmul(*operands, out=out)

    return prepare


def tensorflow_multiplier() -> Callable[[Product], Callable[[], Any]]:
    """Return a function that prepares a product in TensorFlow, one operation at a time."""
    import tensorflow.compat.v1 as tf

    def prepare(product: Product) -> Callable[[], Any]:
        left, right, _ = product.shapes
        operands = [tf.constant(np.random.standard_normal(shape).astype("float32")) for shape in (left, right)]
        return lambda: tf.matmul(*operands)

    return prepare


def run_all(products: List[Callable[[], Any]]) -> float:
    """Return the seconds for all products."""
    started = time.perf_counter()
    for multiply in products:
        multiply()
    return time.perf_counter() - started


def step(job: common.Job) -> common.Result:
    """Time the products of a whole step."""
    prepare = {"torch": torch_multiplier, "tensorflow": tensorflow_multiplier}[job["library"]]()
    sizes = (job["config"], job["batch"], job["length"], job["adapter_size"])
    layer, top = ([prepare(product) for product in found] for found in (layer_products(*sizes), top_products(*sizes)))
    below = job["config"]["num_hidden_layers"] - 1
    layers = min(LAYERS, below)
    run_all(layer + top)
    seconds = []
    for _ in range(job["steps"]):
        measured = sum(run_all(layer) for _ in range(layers))
        seconds.append(measured * below / max(layers, 1) + run_all(top))
    return {"seconds": seconds, "examples": job["batch"], "flops": step_flops(job)}


if __name__ == "__main__":
    common.answer({"step": step}, sys.argv)
