"""Tensors of Hugging Face's BERT and of AdapterHub: their names, shapes and safetensors files.

Only safetensors files are read: a pickle can run code.
"""

from __future__ import annotations

import fnmatch
import os
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import safetensors
import safetensors.numpy

from adapter_bert.common import errors, files, json_files
from adapter_bert.model import parameters

# Last part of Google's name -> Hugging Face's. Embedding tables only get the ending `.weight`.
_SUFFIXES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "weights1": "adapter_down.0.weight",
    "biases1": "adapter_down.0.bias",
    "weights2": "adapter_up.weight",
    "biases2": "adapter_up.bias",
    "output_weights": "weight",
    "output_bias": "bias",
}
_TRANSPOSED = ("/kernel", "/weights1", "/weights2")
_OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# NumPy has no bfloat16, which is the upper half of a float32.
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class TensorRow(NamedTuple):
    """The names and shape of one tensor in both libraries."""

    hf: str  # without the prefix `bert.`
    google: str
    shape: Tuple[int, ...]  # in Google's layout

    @property
    def hf_shape(self) -> Tuple[int, ...]:
        """Shape in Hugging Face's layout; adapter biases are [1, n] here and [n] there."""
        if self.google.endswith(_TRANSPOSED):
            return self.shape[::-1]
        return self.shape[1:] if "/adapters/biases" in self.google else self.shape

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        """Convert a value from Google's layout."""
        return self._convert(value, self.hf_shape)

    def to_google(self, value: np.ndarray) -> np.ndarray:
        """Convert a value to Google's layout."""
        return self._convert(value, self.shape)

    def _convert(self, value: np.ndarray, shape: Tuple[int, ...]) -> np.ndarray:
        value = value.T if self.google.endswith(_TRANSPOSED) else value
        return np.ascontiguousarray(value.reshape(shape))


def make_rows(shapes: Mapping[str, Tuple[int, ...]], adapter: str = "", head: str = "") -> List[TensorRow]:
    """Return a row for each variable, e.g. of `parameters.bert_shapes` or `PackConfig.trained_shapes`.

    `adapter` is the name of the adapters in AdapterHub, `head` that of the head's linear layer in the other library.
    """
    rows = []
    for google, shape in shapes.items():
        scope, _, suffix = google.rpartition("/")
        scope = scope[len("bert/") :].replace("/layer_", "/layer/").replace("/", ".")
        group = parameters.group_of(google)
        scope = head if group == "head" else f"{scope}.{adapter}" if group == "adapters" else scope
        rows.append(TensorRow(f"{scope}.{_SUFFIXES.get(suffix, suffix + '.weight')}", google, shape))
    return rows


def canonical_name(name: str) -> str:
    """Return a stored name as `TensorRow.hf` spells it: without `bert.`, and with new names of LayerNorm tensors."""
    name = name[len("bert.") :] if name.startswith("bert.") else name
    for old, new in _OLD_SUFFIXES.items():
        if name.endswith(old):
            return name[: -len(old)] + new
    return name


class StoredTensor(NamedTuple):
    """A tensor in a file, from the header of the file."""

    path: str
    name: str
    dtype: str
    shape: Tuple[int, ...]
    offset: int


def list_stored(paths: Sequence[str]) -> Dict[str, StoredTensor]:
    """List the tensors in safetensors files by `canonical_name`, without reading them."""
    stored: Dict[str, StoredTensor] = {}
    for path in paths:
        files.check_regular_file(path)
        try:
            with safetensors.safe_open(path, framework="np"):  # checks the header and the size
                pass
        except (safetensors.SafetensorError, OSError) as error:
            raise errors.UserError(
                f"{path} ({os.path.getsize(path)} bytes) is damaged or incomplete ({error}). Download it again; a git "
                "clone without git-lfs leaves only a pointer of about 130 bytes."
            ) from None
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json_files.parse(file.read(size), path)
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items()):
            begin = 8 + size + entry["data_offsets"][0]
            tensor = StoredTensor(path, name, entry["dtype"], tuple(entry["shape"]), begin)
            other = stored.setdefault(canonical_name(name), tensor)
            if other is not tensor:
                raise errors.UserError(f"{path} contains one tensor twice: {other.name} and {name}.")
    return stored


def load(
    rows: Sequence[TensorRow],
    stored: Mapping[str, StoredTensor],
    where: str,
    config: str,
    may_skip: Callable[[str], bool] = lambda name: False,
) -> Tuple[Dict[str, np.ndarray], List[str]]:
    """Return Google's name -> value as float32, and the stored names of tensors that were skipped.

    Raises a `UserError` if a tensor that the file `config` requires (`rows`) is missing from the file or folder
    `where`, has another shape or type, or contains NaN or infinity, or if `may_skip` rejects another `stored` tensor.
    """
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    mismatch = parameters.describe_mismatch({row.hf: row.hf_shape for row in rows}, shapes)
    required = {row.hf for row in rows}
    others = [tensor.name for name, tensor in stored.items() if name not in required]
    unknown = [name for name in others if not may_skip(name)]
    if mismatch or unknown:
        problem = mismatch or f"{len(unknown)} tensors are unknown ({errors.first_names(unknown)})."
        raise errors.UserError(f"The weights in {where} do not match {config}: {problem}")
    return {row.google: row.to_google(_load_one(stored[row.hf])) for row in rows}, others


def _load_one(stored: StoredTensor) -> np.ndarray:
    if stored.dtype not in _DTYPES:
        expected = " or ".join(_DTYPES)
        raise errors.UserError(f"{stored.path}: {stored.name} is {stored.dtype}; expected {expected}.")
    size = int(np.prod(stored.shape))
    value = np.fromfile(stored.path, _DTYPES[stored.dtype], size, offset=stored.offset).reshape(stored.shape)
    if stored.dtype == "BF16":
        value = (value.astype("<u4") << 16).view("<f4")
    value = value.astype(np.float32, copy=False)
    check_finite(stored.name, value, stored.path)
    return value


def check_finite(name: str, value: np.ndarray, where: str) -> None:
    """Raise a `UserError` if a tensor contains NaN or infinity."""
    bad = value.size - np.count_nonzero(np.isfinite(value))
    if bad:
        raise errors.UserError(f"{where}: {bad} of {value.size} values in {name} are NaN or infinite.")


def missing_weights(folder: str, expected: str, pickles: Sequence[str], advice: str) -> errors.UserError:
    """Return an error for a folder without a safetensors file; `advice` says how to replace one of the `pickles`."""
    found = matching(folder, pickles)
    if found:
        return errors.UserError(
            f"{folder} contains its weights only as a pickle ({errors.first_names(found)}). Pickles are not loaded "
            f"because they can run code; {advice}."
        )
    return errors.UserError(f"There is no {expected} in {folder}; found {errors.first_names(matching(folder, ['*']))}.")


def write(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file for PyTorch."""
    # transformers rejects files without this entry. Unlike `save_file`, this respects the umask.
    files.write_bytes(path, safetensors.numpy.save(dict(tensors), {"format": "pt"}))


def matching(folder: str, patterns: Sequence[str]) -> List[str]:
    """Return the names in a folder that match one of the patterns; nothing if there is no folder."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
