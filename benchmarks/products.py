"""The matrix products of one adapter training step, as shapes: what no implementation can leave out.

A classifier needs the last layer's output for the first token alone; the others count there as keys and values only.
Forward all of them; backward the gradients of inputs (through frozen and trained weights alike) and those of the
trained weights. Element-wise work, softmax, LayerNorm, dropout and the optimizer are left out: what they take is what
a step loses against this limit.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional


class Product(NamedTuple):
    """`times` products [rows, inner] x [inner, columns], each for `batch` pairs of matrices at once."""

    what: str
    rows: int
    inner: int
    columns: int
    batch: int = 1
    times: int = 1

    @property
    def flops(self) -> int:
        """Floating point operations: a multiplication and an addition for each term."""
        return 2 * self.rows * self.inner * self.columns * self.batch * self.times


def frozen(what: str, rows: int, inner: int, columns: int, times: int = 1) -> List[Product]:
    """A frozen projection: forward, and the gradient of its input."""
    return [
        Product(what, rows, inner, columns, times=times),
        Product(what + ", input gradient", rows, columns, inner, times=times),
    ]


def trained(what: str, rows: int, inner: int, columns: int) -> List[Product]:
    """A trained projection: the gradient of its weights besides."""
    return frozen(what, rows, inner, columns) + [Product(what + ", weight gradient", inner, rows, columns)]


def both_gradients(what: str, rows: int, inner: int, columns: int, batch: int) -> List[Product]:
    """A product of two activations: forward, and the gradients of both."""
    return [
        Product(what, rows, inner, columns, batch),
        Product(what + ", left gradient", rows, columns, inner, batch),
        Product(what + ", right gradient", inner, rows, columns, batch),
    ]


def layer_products(
    config: Mapping[str, int], batch: int, length: int, adapter_size: int, wanted: Optional[int] = None
) -> List[Product]:
    """The products of one encoder layer with its two adapters.

    Args:
      config: sizes of the network, named as in `bert_config.json`.
      batch: examples in a batch.
      length: tokens of each.
      adapter_size: units of the bottleneck.
      wanted: of how many tokens of each the output is wanted; of all by default.
    """
    wanted = wanted or length
    width, wide = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_size, tokens, outputs = width // heads, batch * length, batch * wanted
    adapter = [
        *trained("adapter, down", outputs, width, adapter_size),
        *trained("adapter, up", outputs, adapter_size, width),
    ]
    return [
        *frozen("query", outputs, width, width),
        *frozen("key, value", tokens, width, width, times=2),
        *both_gradients("attention scores", wanted, head_size, length, batch * heads),
        *both_gradients("attention context", wanted, length, head_size, batch * heads),
        *frozen("attention output", outputs, width, width),
        *adapter,
        *frozen("intermediate", outputs, width, wide),
        *frozen("output", outputs, wide, width),
        *adapter,
    ]


def top_products(
    config: Mapping[str, int], batch: int, length: int, adapter_size: int, classes: int = 2
) -> List[Product]:
    """The products of the last layer for the first token, of the frozen pooler and of the head."""
    width = config["hidden_size"]
    return [
        *layer_products(config, batch, length, adapter_size, wanted=1),
        *frozen("pooler", batch, width, width),
        *trained("head", batch, width, classes),
    ]


def count_flops(products: List[Product]) -> int:
    """Of all of them."""
    return sum(product.flops for product in products)


def step_flops(job: Mapping) -> int:
    """Floating point operations of the matrix products of a whole step."""
    config: Dict[str, int] = job["config"]
    sizes = (config, job["batch"], job["length"], job["adapter_size"])
    below = config["num_hidden_layers"] - 1
    return below * count_flops(layer_products(*sizes)) + count_flops(top_products(*sizes))
