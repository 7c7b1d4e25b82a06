"""Adapter packs: a task as one file of a few MB, to be put on the frozen base that it was trained on.

A pack is a safetensors file with exactly the variables that the task trained, under Google's names, and one entry of
metadata, `adapter_config.json`: what the weights are for. It carries a checksum over every byte of the file, so that
a changed pack is refused whatever was changed. LayerNorms are part of a pack: packs on one base never meet.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common import errors, files
from adapter_bert.model import heads, parameters
from adapter_bert.weights import bases, fingerprints
from adapter_layers import AdapterConfig

FILE_NAME = "adapter_pack.safetensors"
ENDING = ".safetensors"
METADATA_KEY = "adapter_config.json"
FORMAT = "adapter-bert pack 1"

_CHECKSUM = "checksum"
_NO_CHECKSUM = "0" * 64
# No BERT is deeper; a number that is all wrong must not keep a machine busy for hours.
_MOST_LAYERS = 64


@dataclasses.dataclass(frozen=True)
class PackConfig:
    """What a pack's weights are for; its fields are the keys of `adapter_config.json`.

    Attributes:
      task: name of the task.
      architecture: of the base, the content of its `bert_config.json`.
      tuning_mode: what was trained, see `optimization.trainable_names`.
      head: one of `heads.TYPES`.
      labels: of the classes, in the head's order; empty for a regression and for spans.
      tokenizer: see `bases.describe_tokenizer`.
      max_seq_length: tokens of a sequence in training.
      base: fingerprint of the variables that stayed frozen; None where none did.
      created: when, ISO 8601 in UTC.
      adapter: the fields of an `AdapterConfig`; None in modes without adapters.
      tune_top_layers: in mode `top_layers`.
      metrics: of the dev split, the primary one first; empty where nothing was scored.
      loss: of the dev split.
      collapsed: whether all predictions for the dev split were the same.
      seed: of the training; None if unknown.
      step: training steps of the weights.
      training: further settings of the training, by flag.
      versions: of the software that trained it.
      origin: where the weights come from, if not from a training here.
    """

    task: str
    architecture: Mapping[str, Any]
    tuning_mode: str
    head: str
    labels: Sequence[str]
    tokenizer: Mapping[str, Any]
    max_seq_length: int
    base: Optional[str]
    created: str
    adapter: Optional[Mapping[str, Any]] = None
    tune_top_layers: Optional[int] = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    loss: Optional[float] = None
    collapsed: Optional[bool] = None
    seed: Optional[int] = None
    step: int = 0
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    origin: Optional[Mapping[str, Any]] = None

    @property
    def bert_config(self) -> modeling.BertConfig:
        """The base's architecture."""
        return modeling.BertConfig.from_dict(self.architecture)

    @property
    def adapter_config(self) -> Optional[AdapterConfig]:
        """The adapters of the model; None in modes without them."""
        return AdapterConfig(**self.adapter) if self.adapter is not None else None

    def make_head(self) -> heads.Head:
        """The head that the weights belong to."""
        return heads.make(self.head, len(self.labels))

    @property
    def primary_metric(self) -> Optional[str]:
        """The metric that decides; None where nothing was scored."""
        return next(iter(self.metrics), None)


# What JSON gives for each field; a field whose default is None may be null.
_TYPES: Dict[str, tuple] = {
    "architecture": (dict,),
    "labels": (list,),
    "tokenizer": (dict,),
    "max_seq_length": (int,),
    "adapter": (dict,),
    "tune_top_layers": (int,),
    "metrics": (dict,),
    "loss": (float, int),
    "collapsed": (bool,),
    "seed": (int,),
    "step": (int,),
    "training": (dict,),
    "versions": (dict,),
    "origin": (dict,),
}


@dataclasses.dataclass(frozen=True)
class Pack:
    """Trained weights and what they are for.

    Attributes:
      config: what for.
      tensors: variable name -> float32 values.
    """

    config: PackConfig
    tensors: Mapping[str, np.ndarray]

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())

    @property
    def fingerprint(self) -> str:
        """A hash of the weights alone: the same whatever the file is called and says."""
        return fingerprints.combine(fingerprints.of_tensors(self.tensors))

    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of each tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def describe_adapter(adapter: Optional[AdapterConfig]) -> Optional[Dict[str, Any]]:
    """Adapters as `PackConfig.adapter` has them; None for none."""
    if adapter is None:
        return None
    return dict(dataclasses.asdict(adapter), layers=list(adapter.layers) if adapter.layers else None)


def now() -> str:
    """The date for `PackConfig.created`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_scores(pack: Pack, scores: Any) -> Pack:
    """The same weights with these scores (an `evaluation.Scores`) of theirs."""
    config = dataclasses.replace(
        pack.config, metrics=dict(scores.metrics), loss=scores.loss, collapsed=bool(scores.collapsed)
    )
    return Pack(config, pack.tensors)


def is_pack(path: str) -> bool:
    """Whether a path is spelt like a pack's."""
    return path.endswith(ENDING)


def find(path: str) -> str:
    """The pack that a user means: a file, or the folder of a run."""
    inside = os.path.join(path, FILE_NAME)
    if not is_pack(path) and tf.gfile.Exists(inside):
        return inside
    if not tf.gfile.Exists(path) or tf.gfile.IsDirectory(path):
        raise errors.UserError(
            f"There is no adapter pack {path}: expected a file *{ENDING}, or the output folder of a training with its "
            f"{FILE_NAME}."
        )
    return path


def write(path: str, pack: Pack) -> None:
    """Writes a pack; a reader sees the older file of that name, if there was one, or all of the new one.

    Raises:
      errors.UserError: the pack is not sound (see `check`), or cannot be written.
    """
    check(pack, "The pack to be written")
    files.write_bytes(path, serialise(pack))


def serialise(pack: Pack) -> bytes:
    """A pack as the bytes of its file."""
    values = dict(files.finite(dataclasses.asdict(pack.config)), format=FORMAT)
    # The checksum comes first: a label of 64 zeros must not be taken for its place.
    text = json.dumps(dict({_CHECKSUM: _NO_CHECKSUM}, **values), ensure_ascii=False, allow_nan=False)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in pack.tensors.items()}
    data = safetensors.numpy.save(tensors, {METADATA_KEY: text})
    checksum = hashlib.sha256(data).hexdigest()
    return data.replace(_NO_CHECKSUM.encode(), checksum.encode(), 1)


def read(path: str) -> Pack:
    """Reads a pack and checks all of it: checksum, configuration, names, shapes, values.

    Args:
      path: of the file.

    Raises:
      errors.UserError: it is missing, damaged, no pack, or not what it says it is.
    """
    data = _read_bytes(path)
    header, values = _read_header(path, data)
    _check_size(path, data, header)
    checksum = str(values.get(_CHECKSUM))
    plain = data.replace(checksum.encode(), _NO_CHECKSUM.encode(), 1)
    if len(checksum) != 64 or hashlib.sha256(plain).hexdigest() != checksum:
        raise errors.UserError(
            f"The pack {path} is damaged: its checksum does not fit its content. Take it from its source again."
        )
    config = _parse_config(path, values)
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the reader has many kinds for what it finds, NumPy's among them
        raise _damaged(path, errors.reason(error)) from None
    pack = Pack(config, tensors)
    check(pack, f"The pack {path}")
    return pack


def read_config(path: str) -> PackConfig:
    """Reads what a pack says of itself, without its weights: quick, and no proof that the weights are sound."""
    with _refusals(path), tf.gfile.GFile(path, "rb") as reader:
        data = reader.read(8)
        data += reader.read(min(_header_size(path, data), files.size(path)))
    return _parse_config(path, _read_header(path, data)[1])


def _read_bytes(path: str) -> bytes:
    with _refusals(path), tf.gfile.GFile(path, "rb") as reader:
        return reader.read()


def _refusals(path: str):
    if not tf.gfile.Exists(path):
        raise errors.UserError(f"There is no adapter pack {path}.")
    return files.user_errors()


def _damaged(path: str, why: str) -> errors.UserError:
    return errors.UserError(f"The pack {path} is damaged or no adapter pack: {why}.")


def _header_size(path: str, data: bytes) -> int:
    if len(data) < 8:
        raise _damaged(path, f"it has {len(data)} bytes")
    return int.from_bytes(data[:8], "little")


def _read_header(path: str, data: bytes) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The header of a safetensors file, and in it the configuration."""
    size = _header_size(path, data)
    if len(data) < 8 + size:
        raise _damaged(path, f"its header should have {size} bytes and has {len(data) - 8}; it is cut off or foreign")
    try:
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
        values = json.loads(header["__metadata__"][METADATA_KEY])
        if not isinstance(values, dict):
            raise ValueError(f"{METADATA_KEY} holds no JSON object")
        json.dumps(values, ensure_ascii=False).encode("utf-8")  # JSON has words for half characters, UTF-8 has none
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"its header has no {METADATA_KEY} ({errors.reason(error)})") from None
    return header, values


def _check_size(path: str, data: bytes, header: Mapping[str, Any]) -> None:
    """Says plainly where a file was cut off, the commonest damage."""
    try:
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + _header_size(path, data) + max(ends, default=0)
    except (KeyError, TypeError, IndexError) as error:
        raise _damaged(path, f"its header is garbled ({errors.reason(error)})") from None
    if len(data) != expected:
        raise _damaged(path, f"it has {len(data)} bytes where {expected} are expected")


def _parse_config(path: str, values: Mapping[str, Any]) -> PackConfig:
    if values.get("format") != FORMAT:
        raise errors.UserError(
            f"The pack {path} has the format {values.get('format')!r}; this version reads {FORMAT!r}."
        )
    fields = {field.name: field for field in dataclasses.fields(PackConfig)}
    given = {name: value for name, value in values.items() if name not in ("format", _CHECKSUM)}
    surplus = sorted(set(given) - set(fields))
    missing = sorted(set(fields) - set(given))
    if surplus or missing:
        raise errors.UserError(
            "The pack {}: {} has unknown keys [{}] and lacks [{}].".format(
                path, METADATA_KEY, ", ".join(surplus), ", ".join(missing)
            )
        )
    for name, value in given.items():
        kinds = _TYPES.get(name, (str,))
        optional = fields[name].default is None or name == "base"
        if value is None and optional:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise errors.UserError(f"The pack {path}: {name} in its {METADATA_KEY} cannot be {value!r}.")
    return PackConfig(**given)


def check(pack: Pack, where: str) -> None:
    """Refuses a pack whose tensors are not exactly what its configuration asks for, or hold NaN or infinity.

    Raises:
      errors.UserError: beginning with `where`, says what is wrong.
    """
    try:
        _check_values(pack.config)
        expected = expected_shapes(pack.config)
    except (errors.UserError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise errors.UserError(f"{where} has an impossible {METADATA_KEY}: {errors.reason(error)}.") from None
    found = pack.shapes()
    misfit = modeling.describe_mismatch(expected, found)
    if misfit:
        raise errors.UserError(f"{where} does not hold what its {METADATA_KEY} asks for: {misfit}")
    surplus = sorted(set(found) - set(expected))
    if surplus:
        raise errors.UserError(
            f"{where} holds {len(surplus)} tensors that do not belong to it, e.g. {surplus[0]}: "
            f"in the mode {pack.config.tuning_mode} there are {len(expected)}."
        )
    for name, tensor in pack.tensors.items():
        if tensor.dtype != np.float32:
            raise errors.UserError(f"{where}: {name} is {tensor.dtype}; expected float32.")
        bad = tensor.size - int(np.count_nonzero(np.isfinite(tensor)))
        if bad:
            raise errors.UserError(f"{where}: {bad} of {tensor.size} values in {name} are NaN or infinite.")


def _check_values(config: PackConfig) -> None:
    """Refuses numbers and texts that mean nothing."""
    if not all(value is None or type(value) in (int, float) for value in config.metrics.values()):
        raise errors.UserError(f"its metrics are not numbers: {config.metrics}")
    longest = config.bert_config.max_position_embeddings
    if config.step < 0 or not 1 <= config.max_seq_length <= longest:
        raise errors.UserError(
            f"step {config.step} and max_seq_length {config.max_seq_length}; expected 0 or more, and 1 to {longest}"
        )
    # Bytes of a command line that are no UTF-8 come as half characters, which no file can hold.
    json.dumps(dataclasses.asdict(config), ensure_ascii=False, default=str).encode("utf-8")


def expected_shapes(config: PackConfig) -> Dict[str, Tuple[int, ...]]:
    """Name -> shape of what a pack with this configuration holds."""
    shapes, trained = _model_of(config)
    return {name: shapes[name] for name in trained}


def _model_of(config: PackConfig) -> Tuple[parameters.Shapes, List[str]]:
    """Name -> shape of the whole model, and the names of what a pack holds of it."""
    labels = config.labels
    if len(set(map(str, labels))) != len(labels) or not all(isinstance(label, str) for label in labels):
        raise errors.UserError(f"its labels are not different words: {labels}")
    return _shapes_of(
        json.dumps(config.architecture),
        json.dumps(config.adapter),
        config.tuning_mode,
        config.tune_top_layers,
        config.make_head(),
    )


@functools.lru_cache(maxsize=32)
def _shapes_of(
    architecture: str, adapter: str, mode: str, top_layers: Optional[int], head: heads.Head
) -> Tuple[parameters.Shapes, List[str]]:
    config = modeling.BertConfig.from_dict(json.loads(architecture))
    config.check("its architecture")
    if config.num_hidden_layers > _MOST_LAYERS:
        raise errors.UserError(f"its architecture has {config.num_hidden_layers} layers")
    fields = json.loads(adapter)
    if (mode == "adapter") != (fields is not None):
        raise errors.UserError(f"the tuning mode is {mode} and the adapter is {fields}")
    shapes = parameters.model_shapes(config, head, AdapterConfig(**fields) if fields is not None else None)
    return shapes, optimization.trainable_names(list(shapes), mode, config.num_hidden_layers, top_layers)


def frozen_names(config: PackConfig) -> List[str]:
    """The variables of the base that a pack builds upon: those that it does not hold itself."""
    shapes, trained = _model_of(config)
    held = set(trained)
    return [name for name in shapes if name not in held]


def check_architecture(pack: Pack, where: str, architecture: Mapping[str, Any], base: str) -> None:
    """Refuses a pack in another network than its own: some differences do not show in the weights.

    Args:
      pack: the pack.
      where: what to call it, e.g. its path.
      architecture: of the base, the content of a `bert_config.json`.
      base: what to call the base.

    Raises:
      errors.UserError: they compute something else from the same weights.
    """
    for key in bases.ARCHITECTURE:
        expected, found = (str(values.get(key)).lower() for values in (pack.config.architecture, architecture))
        if expected != found:
            raise errors.UserError(
                f"The pack {where} (task {pack.config.task}) belongs to a base with another architecture: {key} is "
                f"{expected} in the pack and {found} in {base}."
            )


def check_adapter(pack: Pack, where: str, adapter: Optional[AdapterConfig]) -> None:
    """Refuses a pack with other adapters than the model's; activations do not show in the weights.

    Raises:
      errors.UserError: they differ in more than how they were initialised.
    """
    if pack.config.adapter is None:
        return
    expected, found = (
        {name: value for name, value in dataclasses.asdict(config).items() if name != "init_scale"} if config else None
        for config in (pack.config.adapter_config, adapter)
    )
    if expected != found:
        raise errors.UserError(f"The pack {where} has other adapters than this model: {expected}, not {found}.")


def check_base(pack: Pack, where: str, digests: fingerprints.Digests, base: str) -> None:
    """Refuses a pack on another base than its own.

    Args:
      pack: the pack.
      where: what to call it, e.g. its path.
      digests: name -> hash of the base's variables.
      base: what to call the base.

    Raises:
      errors.UserError: the base has other variables or other values.
    """
    names = frozen_names(pack.config)
    layers, found_layers = pack.config.bert_config.num_hidden_layers, optimization.count_layers(list(digests))
    if names and found_layers != layers:
        raise errors.UserError(f"The pack {where} belongs to a base with {layers} layers; {base} has {found_layers}.")
    missing = [name for name in names if name not in digests]
    if missing:
        raise errors.UserError(
            f"The pack {where} belongs to a base with other layers than {base}: that has no {missing[0]}."
        )
    found = fingerprints.combine(digests, names) if names else None
    if found != pack.config.base:
        raise errors.UserError(
            f"The pack {where} (task {pack.config.task}) belongs to another base: it was trained on one whose frozen "
            f"weights have the fingerprint {pack.config.base}, those of {base} have {found}."
        )
