"""Hashes of weights: equal for equal values, wherever and in whatever format they lie."""

from __future__ import annotations

import hashlib
from typing import Dict, Iterable, Mapping, Optional, Sequence

import numpy as np

Digests = Mapping[str, str]


def of_tensor(tensor: np.ndarray) -> str:
    """A hash of a tensor's type, shape and values."""
    digest = hashlib.sha256(f"{tensor.dtype} {tensor.shape}\n".encode())
    digest.update(np.ascontiguousarray(tensor))
    return digest.hexdigest()


def of_rows(rows: Sequence[np.ndarray]) -> str:
    """The same for rows that would be one tensor, without making it."""
    if not rows:
        return of_tensor(np.array(rows))
    digest = hashlib.sha256(f"{rows[0].dtype} {(len(rows), *rows[0].shape)}\n".encode())
    for row in rows:
        digest.update(np.ascontiguousarray(row))
    return digest.hexdigest()


def of_tensors(tensors: Mapping[str, np.ndarray]) -> Dict[str, str]:
    """Name -> hash of each tensor."""
    return {name: of_tensor(tensor) for name, tensor in tensors.items()}


def combine(digests: Digests, names: Optional[Iterable[str]] = None) -> str:
    """One hash for several tensors, in any order; for all of them by default."""
    names = digests if names is None else names
    return of_text("".join(f"{name} {digests[name]}\n" for name in sorted(names)))


def of_text(text: str) -> str:
    """A hash of a text, short enough to be read aloud."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
