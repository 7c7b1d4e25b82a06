"""Compute with reduced precision: matrix products, and the activations between them, in bfloat16 or float16.

LayerNorm, softmax, activation functions, dropout, the head, gradients of weights and the optimizer compute in float32
(see `fused_ops`), and trained weights are float32. Only frozen weights are stored in reduced precision. Those stored in
float32 are rounded in each step, with the same result. In float16, the loss is scaled too (see `loss_scale`). Imports
no TensorFlow.
"""

from __future__ import annotations

import re
from typing import Collection, List, Sequence

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
NAMES = (FLOAT32, BFLOAT16, FLOAT16)

# Operands of the products and what is added to them.
_IN_PRODUCTS = re.compile(r"/(kernel|bias)$|/adapters/(weights|biases)\d+$")
_TABLES = re.compile(r"/embeddings/\w+_embeddings$")


def stored_names(names: Sequence[str], frozen: Collection[str], trains: bool) -> List[str]:
    """Return the names of the variables to store in reduced precision.

    Args:
      names: names of all variables.
      frozen: those that are not trained. The tables of embeddings are rounded only if they are among these.
      trains: whether the other variables are trained.
    """
    return [
        name
        for name in names
        if (_IN_PRODUCTS.search(name) and (name in frozen or not trains)) or (_TABLES.search(name) and name in frozen)
    ]
