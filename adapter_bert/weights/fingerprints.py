"""Hashes of weights and texts. They depend only on the values, not on file or format."""

from __future__ import annotations

import hashlib
from typing import Dict, Iterable, Mapping, Optional, Sequence

import numpy as np

Digests = Mapping[str, str]


def of_tensor(tensor: np.ndarray) -> str:
    """Hash the type, shape and values of a tensor."""
    digest = hashlib.sha256(f"{tensor.dtype} {tensor.shape}\n".encode())
    digest.update(np.ascontiguousarray(tensor))  # type: ignore[arg-type]
    return digest.hexdigest()


def of_rows(rows: Sequence[np.ndarray]) -> str:
    """Hash the rows of a tensor as `of_tensor` would, without stacking them."""
    if not rows:
        return of_tensor(np.array(rows))
    digest = hashlib.sha256(f"{rows[0].dtype} {(len(rows), *rows[0].shape)}\n".encode())
    for row in rows:
        digest.update(np.ascontiguousarray(row))  # type: ignore[arg-type]
    return digest.hexdigest()


def of_tensors(tensors: Mapping[str, np.ndarray]) -> Dict[str, str]:
    """Return name -> hash of each tensor."""
    return {name: of_tensor(tensor) for name, tensor in tensors.items()}


def combine(digests: Digests, names: Optional[Iterable[str]] = None) -> str:
    """Combine the hashes of these tensors, or of all, into one that does not depend on their order."""
    names = digests if names is None else names
    return of_text("".join(f"{name} {digests[name]}\n" for name in sorted(names)))


def of_text(text: str) -> str:
    """Hash a text; 16 hexadecimal digits are enough to compare by eye."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
