"""Read and write safetensors files, and replace an export or the files of a conversion all at once.

Only safetensors files are read: a pickle can run code.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
from typing import Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.common.text import first_names
from adapter_bert.model import parameters
from adapter_bert.weights.exchange.tensor_names import TensorRow, canonical_name

_FLOAT_TYPES = ("F32", "F16", "BF16")


class StoredTensor(NamedTuple):
    """A tensor in a file, from the header of the file."""

    path: str
    name: str
    dtype: str
    shape: Tuple[int, ...]


def list_tensors(paths: Sequence[str]) -> List[StoredTensor]:
    """List the tensors in safetensors files without reading them."""
    stored = []
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="np") as reader:
                for name in sorted(reader.keys()):
                    header = reader.get_slice(name)
                    stored.append(StoredTensor(path, name, header.get_dtype(), tuple(header.get_shape())))
        except (safetensors.SafetensorError, OSError) as error:
            raise errors.UserError(
                f"{path} ({os.path.getsize(path)} bytes) is damaged or incomplete ({error}). Download it again; a git "
                "clone without git-lfs leaves only a pointer of about 130 bytes."
            ) from None
    return stored


def match_tensors(
    table: Sequence[TensorRow], stored: Sequence[StoredTensor], where: str, config: str
) -> Tuple[Dict[str, StoredTensor], List[StoredTensor]]:
    """Return the tensors of the table by `TensorRow.hf`, and all others that are stored `where`.

    Raises:
      errors.UserError: a tensor that the file `config` requires is missing, or has another shape or type.
    """
    by_name: Dict[str, StoredTensor] = {}
    for tensor in stored:
        other = by_name.setdefault(canonical_name(tensor.name), tensor)
        if other is not tensor:
            raise errors.UserError(f"{where} contains one tensor twice: {other.name} and {tensor.name}.")
    shapes = {name: tensor.shape for name, tensor in by_name.items()}
    mismatch = parameters.describe_mismatch({row.hf: row.hf_shape for row in table}, shapes)
    if mismatch:
        raise errors.UserError(f"The weights in {where} do not match {config}: {mismatch}")
    found = {row.hf: by_name.pop(row.hf) for row in table}
    wrong = [f"{tensor.name} is {tensor.dtype}" for tensor in found.values() if tensor.dtype not in _FLOAT_TYPES]
    if wrong:
        raise errors.UserError(f"{where}: {first_names(wrong)}; expected {' or '.join(_FLOAT_TYPES)}.")
    return found, list(by_name.values())


def load_tensor(stored: StoredTensor) -> np.ndarray:
    """Read one tensor as float32; raise a `UserError` if it contains NaN or infinity."""
    if stored.dtype == "BF16":
        # NumPy has no bfloat16, so safetensors cannot return it. It is the upper half of a float32.
        with open(stored.path, "rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(header_size).decode("utf-8"))[stored.name]["data_offsets"]
            file.seek(8 + header_size + begin)
            halves = np.frombuffer(file.read(end - begin), "<u2")
        value = (halves.astype("<u4") << 16).view("<f4").reshape(stored.shape)
    else:
        with safetensors.safe_open(stored.path, framework="np") as reader:
            value = reader.get_tensor(stored.name).astype(np.float32, copy=False)
    check_finite(stored.name, value, stored.path)
    return value


def check_finite(name: str, value: np.ndarray, where: str) -> None:
    """Raise a `UserError` if a tensor contains NaN or infinity."""
    bad = value.size - np.count_nonzero(np.isfinite(value))
    if bad:
        raise errors.UserError(f"{where}: {bad} of {value.size} values in {name} are NaN or infinite.")


def write_tensors(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file for PyTorch."""
    # transformers rejects files without this entry. Unlike `save_file`, this respects the umask.
    files.write_bytes(path, safetensors.numpy.save(dict(tensors), {"format": "pt"}))


def write_json(path: str, content: Mapping[str, object]) -> None:
    """Write a JSON object with sorted keys."""
    files.write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def check_output(folder: str, patterns: Sequence[str], overwrite: bool) -> None:
    """Raise a `UserError` if the folder is not local, or contains such files and may not be overwritten."""
    if "://" in folder:
        raise errors.UserError(f"{folder} is not a local folder: write to a local one, then copy it.")
    existing = _matching(folder, patterns)
    if existing and not overwrite:
        raise errors.UserError(
            f"{folder} already contains {first_names(existing)}; choose another folder, or add --overwrite."
        )


def check_export(folder: str, names: Sequence[str], overwrite: bool) -> None:
    """Raise a `UserError` if the folder is not local, contains other files, or may not be overwritten."""
    others = [name for name in _matching(folder, ["*"]) if name not in names]
    if others:
        raise errors.UserError(f"{folder} contains other files: {first_names(others)}; choose another folder.")
    check_output(folder, names, overwrite)


@contextlib.contextmanager
def replaced_folder(folder: str) -> Iterator[str]:
    """Yield an empty folder, which takes the place of `folder` if the block succeeds.

    A folder cannot replace another in one step: a process that is killed in between leaves the older one, complete, as
    `<folder>.<8 characters>.old`.
    """
    folder = os.path.realpath(folder)
    try:
        with files.staging_folder(folder) as staging:
            yield staging
            older = staging[: -len("partial")] + "old"
            try:
                if os.path.isdir(folder):
                    os.rename(folder, older)
                os.rename(staging, folder)
            finally:
                if os.path.isdir(older) and not os.path.isdir(folder):
                    os.rename(older, folder)
                shutil.rmtree(older, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(f"Cannot write to {folder}: {errors.reason(error)}.") from error


def _matching(folder: str, patterns: Sequence[str]) -> List[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


@contextlib.contextmanager
def replaced_files(folder: str, patterns: Sequence[str], key: str) -> Iterator[str]:
    """Yield an empty folder; if the block succeeds, its files replace those in `folder` that match the patterns.

    Nothing can be loaded without the file `key`. It is removed first and written last, so a killed process never leaves
    a loadable mixture of old and new files.
    """
    folder = os.path.realpath(folder)
    is_new = not os.path.isdir(folder)
    try:
        with files.staging_folder(os.path.join(folder, ".exchange")) as staging:
            yield staging
            for name in sorted(_matching(folder, patterns), key=lambda name: name != key):
                os.remove(os.path.join(folder, name))
            for name in sorted(os.listdir(staging), key=lambda name: name == key):
                os.replace(os.path.join(staging, name), os.path.join(folder, name))
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(f"Cannot write to {folder}: {errors.reason(error)}.") from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty, unless writing has failed
                os.rmdir(folder)
