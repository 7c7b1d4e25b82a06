"""The matrix products of an adapter training step and nothing else, back to back, by one library.

All encoder layers but the last have the same products: `limit_layers` of them are run, and their time is taken for all.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, List, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np

from benchmarks import products
from benchmarks.sides import common

Multiply = Callable[[], Any]
LAYERS = 3


def shapes_of(product: products.Product) -> Tuple[tuple, tuple, tuple]:
    """Of the left operand, the right one and the result."""
    batch = (product.batch,) if product.batch > 1 else ()
    return (
        batch + (product.rows, product.inner),
        batch + (product.inner, product.columns),
        batch + (product.rows, product.columns),
    )


class Torch:
    """Products by PyTorch, into memory that is there already."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._results: dict = {}

    def multiply(self, product: products.Product) -> Multiply:
        """What multiplies, with operands of its own."""
        left, right, result = shapes_of(product)
        operands = [self._torch.randn(*shape) for shape in (left, right)]
        out = self._results.setdefault(result, self._torch.empty(*result))
        return lambda: self._torch.matmul(*operands, out=out)


class TensorFlow:
    """Products by TensorFlow, one operation at a time."""

    def __init__(self) -> None:
        import run_classifier  # noqa: F401  (first: what an entry point sets for TensorFlow must hold here too)

        import tensorflow.compat.v1 as tf  # isort: skip

        self._tf = tf

    def multiply(self, product: products.Product) -> Multiply:
        """What multiplies, with operands of its own."""
        left, right, _ = shapes_of(product)
        operands = [self._tf.constant(np.random.standard_normal(shape).astype("float32")) for shape in (left, right)]
        return lambda: self._tf.matmul(*operands)


LIBRARIES = {"torch": Torch, "tensorflow": TensorFlow}


def run_all(operations: List[Tuple[Multiply, int]]) -> float:
    """Seconds for all of them, each as often as it occurs."""
    started = time.perf_counter()
    for multiply, times in operations:
        for _ in range(times):
            multiply()
    return time.perf_counter() - started


def step(job: common.Job) -> common.Result:
    """Seconds of the products of a whole step."""
    library = LIBRARIES[job["library"]]()
    config = job["config"]
    sizes = (config, job["batch"], job["length"], job["adapter_size"])
    layer, top = products.layer_products(*sizes), products.top_products(*sizes)
    in_layer, behind = (
        [(library.multiply(product), product.times) for product in found] for found in (layer, top)
    )  # fmt: skip
    below = config["num_hidden_layers"] - 1
    layers = min(job.get("limit_layers", LAYERS), below)
    run_all(in_layer + behind)
    seconds = []
    for _ in range(job["steps"]):
        measured = sum(run_all(in_layer) for _ in range(layers))
        seconds.append(measured * below / max(layers, 1) + run_all(behind))
    return {"seconds": seconds, "flops": products.step_flops(job), "library": job["library"]}


if __name__ == "__main__":
    common.answer({"step": step}, sys.argv)
