"""What the tests of the predictor and its script share."""

from __future__ import annotations

from adapter_bert.weights import bases, packs
from tests.helpers import make_pack


def write_pack(tmp_path, tiny_bert, **config):
    """Write a random pack; return its path."""
    path = str(tmp_path / "pack.safetensors")
    packs.write(path, make_pack(bases.Base.find(tiny_bert), **config))
    return path


def probabilities(predictions):
    return [list(prediction.probabilities.values()) for prediction in predictions]
