"""Adapter packs: a trained task as one file of a few MB, to use with the frozen base that it was trained on.

A pack is a safetensors file with exactly the variables that the task trained, under Google's names, and one entry of
metadata, `adapter_config.json`, which describes them and contains a checksum of the whole file, so that any change is
detected. LayerNorms are part of a pack, so packs on the same base do not affect each other.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, fingerprints, pack_config
from adapter_bert.weights.pack_config import CHECKSUM, FORMAT, METADATA_KEY, PackConfig
from adapter_layers import AdapterConfig

FILE_NAME = "adapter_pack.safetensors"
ENDING = ".safetensors"

_NO_CHECKSUM = "0" * 64


@dataclasses.dataclass(frozen=True)
class Pack:
    """Trained weights and their description.

    Attributes:
      config: description of the weights.
      tensors: variable name -> float32 values.
    """

    config: PackConfig
    tensors: Mapping[str, np.ndarray]

    @property
    def num_parameters(self) -> int:
        """The number of parameters in all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())

    @property
    def fingerprint(self) -> str:
        """A hash of the weights, independent of the configuration and the file name."""
        return fingerprints.combine(fingerprints.of_tensors(self.tensors))

    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of each tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def describe_adapter(adapter: Optional[AdapterConfig]) -> Optional[Dict[str, Any]]:
    """Return the fields of an adapter in the form of `PackConfig.adapter`; None for no adapter."""
    if adapter is None:
        return None
    return dict(dataclasses.asdict(adapter), layers=list(adapter.layers) if adapter.layers else None)


def now() -> str:
    """Return the date for `PackConfig.created`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_scores(pack: Pack, scores: Any) -> Pack:
    """Return the pack with these scores (an `evaluation.Scores`)."""
    config = dataclasses.replace(
        pack.config, metrics=dict(scores.metrics), loss=scores.loss, collapsed=bool(scores.collapsed)
    )
    return Pack(config, pack.tensors)


def is_pack(path: str) -> bool:
    """Return whether a path has the ending of a pack."""
    return path.endswith(ENDING)


def find(path: str) -> str:
    """Return the path of a pack, given a file or the output folder of a run.

    Raises:
      errors.UserError: there is none.
    """
    inside = os.path.join(path, FILE_NAME)
    if not is_pack(path) and tf.gfile.Exists(inside):
        return inside
    if not tf.gfile.Exists(path) or tf.gfile.IsDirectory(path):
        raise errors.UserError(
            f"There is no adapter pack {path}: expected a file *{ENDING}, or the output folder of a training run with "
            f"its {FILE_NAME}."
        )
    return path


def write(path: str, pack: Pack) -> None:
    """Write a pack atomically, replacing an older file.

    Raises:
      errors.UserError: the pack is invalid (see `check`) or cannot be written.
    """
    check(pack, "The pack to be written")
    files.write_bytes(path, serialise(pack))


def serialise(pack: Pack) -> bytes:
    """Return the bytes of a pack's file."""
    values = dict(files.finite(dataclasses.asdict(pack.config)), format=FORMAT)
    # The checksum comes first, so that a label of 64 zeros is not mistaken for its placeholder.
    text = json.dumps(dict({CHECKSUM: _NO_CHECKSUM}, **values), ensure_ascii=False, allow_nan=False)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in pack.tensors.items()}
    data = safetensors.numpy.save(tensors, {METADATA_KEY: text})
    return data.replace(_NO_CHECKSUM.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def read(path: str) -> Pack:
    """Read a pack and check its checksum, configuration, names, shapes and values.

    Raises:
      errors.UserError: it is missing, damaged, not a pack, or inconsistent.
    """
    data = _read_bytes(path)
    values = _parse_header(path, data)
    checksum = str(values.get(CHECKSUM))
    blanked = data.replace(checksum.encode(), _NO_CHECKSUM.encode(), 1)
    if len(checksum) != 64 or hashlib.sha256(blanked).hexdigest() != checksum:
        raise errors.UserError(
            f"The pack {path} ({len(data)} bytes) is damaged or incomplete: its checksum does not match its content. "
            "Copy or download it again."
        )
    config = pack_config.parse(path, values)
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the reader raises many types, including those of NumPy
        raise _not_a_pack(path, errors.reason(error)) from None
    pack = Pack(config, tensors)
    check(pack, f"The pack {path}")
    return pack


def read_config(path: str) -> PackConfig:
    """Read the configuration of a pack without its weights, which are not checked."""
    return pack_config.parse(path, _parse_header(path, _read_bytes(path, header_only=True)))


def _read_bytes(path: str, header_only: bool = False) -> bytes:
    if not tf.gfile.Exists(path):
        raise errors.UserError(f"There is no adapter pack {path}.")
    with files.user_errors(), tf.gfile.GFile(path, "rb") as reader:
        if not header_only:
            return reader.read()
        prefix = reader.read(8)
        return prefix + reader.read(min(int.from_bytes(prefix, "little"), files.size(path)))


def _not_a_pack(path: str, reason: str) -> errors.UserError:
    return errors.UserError(f"The pack {path} is damaged or is not an adapter pack: {reason}.")


def _parse_header(path: str, data: bytes) -> Dict[str, Any]:
    """Return the JSON object in the header of a safetensors file: 8 bytes with its size, then JSON."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size:
        raise _not_a_pack(path, f"its header should end at byte {8 + size}, but it has {len(data)} bytes")
    try:
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
        values = json.loads(header["__metadata__"][METADATA_KEY])
        if not isinstance(values, dict):
            raise ValueError("expected a JSON object")
        json.dumps(values, ensure_ascii=False).encode("utf-8")  # fails on lone surrogates
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_a_pack(path, f"its header has no {METADATA_KEY} ({errors.reason(error)})") from None
    return values


def check(pack: Pack, where: str) -> None:
    """Check that the tensors are exactly those that the configuration requires, and finite.

    Raises:
      errors.UserError: the pack is invalid. The message starts with `where`, e.g. `The pack cola.safetensors`.
    """
    try:
        pack.config.check()
        expected = pack.config.trained_shapes()
    except (errors.UserError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise errors.UserError(f"{where} has an invalid {METADATA_KEY}: {errors.reason(error)}.") from None
    found = pack.shapes()
    mismatch = parameters.describe_mismatch(expected, found)
    if mismatch:
        raise errors.UserError(f"{where} does not contain the tensors that its {METADATA_KEY} requires: {mismatch}")
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise errors.UserError(
            f"{where} contains {len(unknown)} tensors that its {METADATA_KEY} does not allow, e.g. {unknown[0]}: "
            f"expected the {len(expected)} of mode {pack.config.tuning_mode}."
        )
    for name, tensor in pack.tensors.items():
        if tensor.dtype != np.float32:
            raise errors.UserError(f"{where}: {name} is {tensor.dtype}; expected float32.")
        bad = tensor.size - int(np.count_nonzero(np.isfinite(tensor)))
        if bad:
            raise errors.UserError(f"{where}: {bad} of {tensor.size} values in {name} are NaN or infinite.")


def check_architecture(pack: Pack, where: str, architecture: Mapping[str, Any], base: str) -> None:
    """Check that a network has the architecture of the pack's base; shapes do not reveal all differences.

    Args:
      pack, where: the pack and its name in error messages, e.g. its path.
      architecture, base: the network's `bert_config.json` and its name in error messages.
    """
    for key in bases.ARCHITECTURE:
        expected, found = (str(values.get(key)).lower() for values in (pack.config.architecture, architecture))
        if expected != found:
            raise errors.UserError(
                f"The pack {where} (task {pack.config.task}) belongs to a base with another architecture: {key} is "
                f"{expected} in the pack and {found} in {base}."
            )


def check_adapter(pack: Pack, where: str, adapter: Optional[AdapterConfig]) -> None:
    """Check that a model has the adapters of the pack; their initialisation no longer matters."""
    if pack.config.adapter is None:
        return
    expected, found = (
        {name: value for name, value in dataclasses.asdict(config).items() if name != "init_scale"} if config else None
        for config in (pack.config.adapter_config, adapter)
    )
    if expected != found:
        raise errors.UserError(f"The pack {where} has other adapters than this model: {expected}, not {found}.")


def check_base(pack: Pack, where: str, digests: fingerprints.Digests, base: str) -> None:
    """Check that a base has the frozen weights that the pack was trained on.

    Args:
      pack, where: the pack and its name in error messages, e.g. its path.
      digests, base: name -> hash of the base's variables, and the name of the base in error messages.
    """
    names = pack.config.frozen_names()
    layers, layers_found = pack.config.bert_config.num_hidden_layers, optimization.count_layers(list(digests))
    if names and layers_found != layers:
        raise errors.UserError(f"The pack {where} belongs to a base with {layers} layers; {base} has {layers_found}.")
    missing = [name for name in names if name not in digests]
    if missing:
        raise errors.UserError(f"The pack {where} belongs to another base: {base} has no {missing[0]}.")
    found = fingerprints.combine(digests, names) if names else None
    if found != pack.config.base:
        raise errors.UserError(
            f"The pack {where} (task {pack.config.task}) belongs to another base: the frozen weights that it was "
            f"trained on have the fingerprint {pack.config.base}, those of {base} have {found}."
        )
