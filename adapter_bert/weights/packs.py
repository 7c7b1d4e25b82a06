"""Adapter packs: a trained task as one file of a few MB, to use with the frozen base that it was trained on.

A pack is a safetensors file with exactly the variables that the task trained, under Google's names, and one entry of
metadata, `adapter_config.json`, which describes them and contains a checksum of the whole file, so that any change is
detected. LayerNorms are part of a pack, so packs on the same base do not affect each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import os
import typing
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common import errors, files, json_files
from adapter_bert.model import heads, parameters
from adapter_bert.model.adapter_config import VARIANT_DEFAULTS
from adapter_bert.model.spec import ModelSpec
from adapter_bert.weights import bases, fingerprints
from adapter_layers import AdapterConfig

FILE_NAME = "adapter_pack.safetensors"
ENDING = ".safetensors"
FORMAT = "adapter-bert pack 1"
METADATA_KEY = "adapter_config.json"
CHECKSUM = "checksum"

# More than any real BERT has.
_MAX_BYTES = 2**33
_ADVICE = "Copy or download it again."
_NO_CHECKSUM = "0" * 64


@dataclasses.dataclass(frozen=True)
class PackConfig:
    """Describes the weights of a pack. The fields are the keys of `adapter_config.json`."""

    task: str
    architecture: Mapping[str, Any]  # the content of the base's `bert_config.json`
    tuning_mode: str  # what was trained, see `optimization.trainable_names`
    head: str  # one of `heads.TYPES`
    labels: Sequence[str]  # the classes in the order of the head's units; empty for regression and spans
    tokenizer: Mapping[str, Any]  # see `bases.describe_tokenizer`
    max_seq_length: int  # in training
    base: Optional[str]  # fingerprint of the frozen variables; None if everything was trained
    created: str  # date, ISO 8601 in UTC
    adapter: Optional[Mapping[str, Any]] = None  # the fields of an `AdapterConfig`; None in modes without adapters
    tune_top_layers: Optional[int] = None  # number of layers in mode `top_layers`
    # Scores of the dev split, the primary metric first; empty if it was not evaluated.
    metrics: Mapping[str, Optional[float]] = dataclasses.field(default_factory=dict)
    loss: Optional[float] = None  # mean over the dev split
    collapsed: Optional[bool] = None  # whether all predictions for the dev split were the same
    seed: Optional[int] = None  # of the training run; None if unknown
    step: int = 0  # training step of the weights
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # other settings of the run, by flag
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the software that trained it
    origin: Optional[Mapping[str, Any]] = None  # of weights that were not trained by this project

    @property
    def bert_config(self) -> modeling.BertConfig:
        """The architecture of the base."""
        return modeling.BertConfig.from_dict(self.architecture)

    @property
    def adapter_config(self) -> Optional[AdapterConfig]:
        """The adapters; None in modes without them."""
        return AdapterConfig(**self.adapter) if self.adapter is not None else None

    @property
    def primary_metric(self) -> Optional[str]:
        """The metric that selects the best weights; None if they were not evaluated."""
        return next(iter(self.metrics), None)

    def make_head(self) -> heads.Head:
        """Return the head that the weights belong to."""
        return heads.make(self.head, len(self.labels))

    @property
    def spec(self) -> ModelSpec:
        """The model; packs of the same model share it, because finding its variables takes time."""
        if len(set(map(str, self.labels))) != len(self.labels) or not all(isinstance(e, str) for e in self.labels):
            raise errors.UserError(f"labels must be different strings, found {self.labels}")
        architecture, adapter = json.dumps(self.architecture), json.dumps(self.adapter)
        return _make_spec(architecture, adapter, self.make_head(), self.tuning_mode, self.tune_top_layers)

    def trained_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of the variables in the pack."""
        return self.spec.trained_shapes

    def frozen_names(self) -> List[str]:
        """Return the variables that the pack takes from its base."""
        return self.spec.frozen_names

    def check(self) -> None:
        """Check the values that do not determine the variables."""
        scores = [self.loss, *self.metrics.values()]
        if not all(value is None or type(value) in (int, float) for value in scores):
            raise errors.UserError(f"loss and metrics must be numbers, found {self.loss} and {self.metrics}")
        limit = self.bert_config.max_position_embeddings
        if self.step < 0 or not 1 <= self.max_seq_length <= limit:
            raise errors.UserError(
                f"step must be 0 or more, found {self.step}, and max_seq_length must be in [1, {limit}], found "
                f"{self.max_seq_length}"
            )
        # Fails on lone surrogates, e.g. from bytes of a command line that are not UTF-8.
        json.dumps(dataclasses.asdict(self), ensure_ascii=False, default=str).encode("utf-8")


@functools.lru_cache(maxsize=32)
def _make_spec(architecture: str, adapter: str, head: heads.Head, mode: str, top_layers: Optional[int]) -> ModelSpec:
    config, fields = modeling.BertConfig.from_dict(json.loads(architecture)), json.loads(adapter)
    config.check("architecture")
    if (mode == "adapter") != (fields is not None):
        raise errors.UserError(f"tuning_mode {mode} cannot be combined with adapter {fields}")
    return ModelSpec(config, head, AdapterConfig(**fields) if fields is not None else None, mode, top_layers)


@dataclasses.dataclass(frozen=True)
class Pack:
    """Trained weights and their description."""

    config: PackConfig
    tensors: Mapping[str, np.ndarray]  # variable name -> float32 values

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
    """Return the fields of an adapter in the form of `PackConfig.adapter`; None for no adapter.

    Variant fields are omitted if they have their defaults, so that earlier versions can read the pack.
    """
    if adapter is None:
        return None
    fields = dict(dataclasses.asdict(adapter), layers=list(adapter.layers) if adapter.layers else None)
    return {name: fields[name] for name in fields if name not in VARIANT_DEFAULTS or name in adapter.variant}


def now() -> str:
    """Return the date for `PackConfig.created`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_scores(pack: Pack, scores: Any) -> Pack:
    """Return the pack with these scores, a `Scores` or `EvalResults`."""
    config = dataclasses.replace(
        pack.config, metrics=dict(scores.metrics), loss=scores.loss, collapsed=bool(scores.collapsed)
    )
    return Pack(config, pack.tensors)


def is_pack(path: str) -> bool:
    """Return whether a path has the ending of a pack."""
    return path.endswith(ENDING)


def find(path: str) -> str:
    """Return the path of a pack, given a file or the output folder of a run."""
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
    """Write a pack atomically, replacing an older file; raise a `UserError` if it is invalid, see `check`."""
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
    """Read a pack and check its checksum, configuration, names, shapes and values."""
    data = files.read_bytes(path, f"Cannot read the pack {path}", _MAX_BYTES)
    values = _parse_header(path, data)
    checksum = str(values.get(CHECKSUM))
    blanked = data.replace(checksum.encode(), _NO_CHECKSUM.encode(), 1)
    if len(checksum) != 64 or hashlib.sha256(blanked).hexdigest() != checksum:
        raise errors.UserError(
            f"The pack {path} ({len(data)} bytes) is damaged or incomplete: its checksum does not match its content. "
            f"{_ADVICE}"
        )
    config = _parse_config(path, values)
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the reader raises many types, including those of NumPy
        raise _not_a_pack(path, errors.reason(error)) from None
    pack = Pack(config, tensors)
    check(pack, f"The pack {path}")
    return pack


def read_config(path: str) -> PackConfig:
    """Read the configuration of a pack without its weights, which are not checked."""
    failure = f"Cannot read the pack {path}"
    files.check_regular_file(path, failure)
    with files.user_errors(failure), tf.gfile.GFile(path, "rb") as reader:
        prefix = reader.read(8)
        header = reader.read(min(int.from_bytes(prefix, "little"), json_files.MAX_BYTES, reader.size()))
    return _parse_config(path, _parse_header(path, prefix + header))


def _not_a_pack(path: str, reason: str) -> errors.UserError:
    return errors.UserError(f"The pack {path} is damaged or is not an adapter pack: {reason}.")


def _parse_header(path: str, data: bytes) -> Dict[str, Any]:
    """Return the JSON object in the header of a safetensors file: 8 bytes with its size, then JSON."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size or size > json_files.MAX_BYTES:
        raise _not_a_pack(path, f"its header should end at byte {8 + size}, but it has {len(data)} bytes")
    try:
        header = json_files.parse(data[8 : 8 + size], "its header", "")
        json_files.check_type(header, Mapping[str, Any], "its header")
        json_files.check_types(header, {"__metadata__": Mapping[str, str]}, "its header")
        json_files.check_types(header["__metadata__"], {METADATA_KEY: str}, "its header")
        values = json_files.parse(header["__metadata__"][METADATA_KEY], f"its {METADATA_KEY}", "")
        json_files.check_type(values, Mapping[str, Any], f"its {METADATA_KEY}")
        json_files.check_unicode(values, f"its {METADATA_KEY}")
    except errors.UserError as error:
        raise _not_a_pack(path, errors.reason(error)) from None
    return values


def _where(path: str) -> str:
    return f"The {METADATA_KEY} in the pack {path}"


def _parse_config(path: str, values: Mapping[str, Any]) -> PackConfig:
    """Build the configuration from the JSON object in a pack; check its format, its keys and their values."""
    if values.get("format") != FORMAT:
        raise errors.UserError(
            f"The pack {path} has the format {values.get('format')!r:.60}; this version reads {FORMAT!r}."
        )
    hints = typing.get_type_hints(PackConfig)
    fields = {name: value for name, value in values.items() if name not in ("format", CHECKSUM)}
    unknown, missing = sorted(set(fields) - set(hints)), sorted(set(hints) - set(fields))
    if unknown or missing:
        raise errors.UserError(
            f"{_where(path)} has unknown keys ({errors.first_names(map(repr, unknown))}) and lacks "
            f"{errors.first_names(map(repr, missing))}."
        )
    json_files.check_types(fields, hints, _where(path))
    json_files.check_types(fields["tokenizer"], bases.TOKENIZER, f"{_where(path)}: tokenizer")
    config = PackConfig(**fields)
    with _config_errors(f"The pack {path}"):
        config.check()
        config.spec  # noqa: B018  raises errors
    return config


@contextlib.contextmanager
def _config_errors(where: str) -> Iterator[None]:
    """Raise a `UserError` that starts with `where` for any error that an invalid configuration causes."""
    try:
        yield
    except (errors.UserError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise errors.UserError(f"{where} has an invalid {METADATA_KEY}: {errors.reason(error)}.") from None


def check(pack: Pack, where: str) -> None:
    """Check that the tensors are exactly those that the configuration requires, and finite.

    Error messages start with `where`, e.g. `The pack cola.safetensors`.
    """
    with _config_errors(where):
        pack.config.check()
        expected = pack.config.trained_shapes()
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

    `where` and `base` are the names of the pack and of the network in error messages.
    """
    mismatch = bases.describe_difference(bases.ARCHITECTURE, pack.config.architecture, architecture)
    if mismatch:
        raise errors.UserError(
            f"The pack {where} (task {pack.config.task}) belongs to a base whose architecture differs from {base}: its "
            f"{mismatch}."
        )


def check_adapter(pack: Pack, where: str, adapter: Optional[AdapterConfig]) -> None:
    """Check that a model has the adapters of the pack; their initialization no longer matters."""
    if pack.config.adapter is None:
        return
    expected, found = (
        {name: value for name, value in dataclasses.asdict(config).items() if name != "init_scale"} if config else None
        for config in (pack.config.adapter_config, adapter)
    )
    if expected != found:
        raise errors.UserError(f"The pack {where} has different adapters from this model: {expected}, not {found}.")


def check_base(pack: Pack, where: str, digests: fingerprints.Digests, base: str) -> None:
    """Check that a base with these `digests` (hashes) has the frozen weights that the pack was trained on.

    `where` and `base` are the names of the pack and of the base in error messages.
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
