"""The matrix products of an adapter training step and nothing else: a limit that no implementation can beat.

A classifier needs the last layer's output for the first token only; other tokens count there as keys and values.
Forward: all products. Backward: the gradients of the inputs, and of the weights that train. Element-wise work, softmax,
LayerNorm, dropout and the optimizer are excluded. All encoder layers but the last have the same products, so `LAYERS`
of them are timed and counted for all.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

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


def frozen(rows: int, inner: int, columns: int, batch: int = 1) -> List[Product]:
    """A frozen projection: forward and the gradient of its input."""
    return [Product(rows, inner, columns, batch), Product(rows, columns, inner, batch)]


def trained(rows: int, inner: int, columns: int, batch: int = 1) -> List[Product]:
    """A trained projection, or a product of two activations: also the gradient of the right operand."""
    return frozen(rows, inner, columns, batch) + [Product(inner, rows, columns, batch)]


def layer_products(job: common.Job, outputs: int) -> List[Product]:
    """Return the products of one encoder layer with its two adapters; `outputs` tokens of each example are needed."""
    config, batch, length, adapter_size = job["config"], job["batch"], job["length"], job["adapter_size"]
    width, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_size, tokens, rows = width // heads, batch * length, batch * outputs
    adapter = trained(rows, width, adapter_size) + trained(rows, adapter_size, width)
    return [
        *frozen(rows, width, width),  # query
        *frozen(tokens, width, width),  # key
        *frozen(tokens, width, width),  # value
        *trained(outputs, head_size, length, batch * heads),  # attention scores
        *trained(outputs, length, head_size, batch * heads),  # attention context
        *frozen(rows, width, width),  # attention output
        *adapter,
        *frozen(rows, width, wide),  # intermediate
        *frozen(rows, wide, width),  # output
        *adapter,
    ]


def step_products(job: common.Job) -> Tuple[List[Product], List[Product]]:
    """Return the products of a lower layer; and of the last layer for the first token, the pooler and the head."""
    batch, width = job["batch"], job["config"]["hidden_size"]
    top = layer_products(job, outputs=1) + frozen(batch, width, width) + trained(batch, width, common.CLASSES)
    return layer_products(job, outputs=job["length"]), top


def step_flops(job: common.Job) -> int:
    """Return the floating point operations of the matrix products of a whole step."""
    layer, top = (sum(product.flops for product in products) for products in step_products(job))
    return (job["config"]["num_hidden_layers"] - 1) * layer + top


def torch_multiplier(precision: str) -> Callable[[Product], Callable[[], Any]]:
    """Return a function that prepares a product in PyTorch, with preallocated results."""
    import torch

    results: Dict[tuple, Any] = {}

    def prepare(product: Product) -> Callable[[], Any]:
        left, right, result = product.shapes
        kind = getattr(torch, precision)
        operands = [torch.randn(*shape).to(kind) for shape in (left, right)]
        out = results.setdefault(result, torch.empty(*result, dtype=kind))
        return lambda: torch.matmul(*operands, out=out)

    return prepare


def tensorflow_multiplier(precision: str) -> Callable[[Product], Callable[[], Any]]:
    """Return a function that prepares a product in TensorFlow, one operation at a time."""
    import tensorflow.compat.v1 as tf

    def prepare(product: Product) -> Callable[[], Any]:
        left, right, _ = product.shapes
        random = (np.random.standard_normal(shape).astype("float32") for shape in (left, right))
        operands = [tf.cast(values, precision) for values in random]
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
    prepare = {"torch": torch_multiplier, "tensorflow": tensorflow_multiplier}[job["library"]](job["precision"])
    layer, top = ([prepare(product) for product in products] for products in step_products(job))
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
