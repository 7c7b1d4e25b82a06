"""The weights of a network: in checkpoints while it trains, and its best ones in `network.safetensors`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

from adapter_bert.baselines.network import NetworkSpec
from adapter_bert.common import errors, files, json_files
from adapter_bert.evaluation.scores import Scores
from adapter_bert.model import parameters
from adapter_bert.weights import checkpoints, fingerprints, loading
from adapter_bert.weights.loading import Assignment, WeightFile, Weights
from adapter_bert.weights.run_folder import BestPack, RunFolder

FILE_NAME = "network.safetensors"
FORMAT = "adapter-bert network 1"
_KEY = "network.json"
_MAX_BYTES = 2**33


class BaselineFolder(RunFolder):
    """The output folder of a baseline; its best weights are in another file than those of adapters."""

    @property
    def pack_path(self) -> str:
        """Path of the best weights, or of the last ones if none were scored."""
        return self.file(FILE_NAME)


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Describes the weights in `network.safetensors`."""

    task: str
    labels: Sequence[str]
    train_words: Sequence[str]  # of the training split, in the order of the rows of the word tables
    module: str  # fingerprint
    metrics: Mapping[str, Optional[float]] = dataclasses.field(default_factory=dict)  # of the dev split
    loss: Optional[float] = None
    step: int = 0
    seed: Optional[int] = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the network, by flag


_TYPES = {
    "task": str,
    "labels": Sequence[str],
    "train_words": Sequence[str],
    "module": str,
    "metrics": Mapping[str, Optional[float]],
    "loss": Optional[float],
    "step": int,
    "seed": Optional[int],
    "settings": Mapping[str, Any],
}


def write(path: str, config: NetworkConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Write weights atomically."""
    values = dict(files.finite(dataclasses.asdict(config)), format=FORMAT)
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    files.write_bytes(path, safetensors.numpy.save(contiguous, {_KEY: json.dumps(values, ensure_ascii=False)}))


def read_config(path: str) -> NetworkConfig:
    """Read the description of weights; raise a `UserError` if it is not one."""
    data = files.read_bytes(path, f"Cannot read the network {path}", _MAX_BYTES)
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise errors.UserError(f"The network {path} is damaged or incomplete. Copy it again.")
    header = json_files.parse(data[8 : 8 + size], f"The header of {path}")
    text = header.get("__metadata__", {}).get(_KEY) if isinstance(header, dict) else None
    if not isinstance(text, str):
        raise errors.UserError(f"{path} is not a network of a baseline: it has no {_KEY}.")
    values = json_files.parse(text, f"The {_KEY} in {path}")
    json_files.check_type(values, Mapping[str, Any], path)
    if values.pop("format", None) != FORMAT:
        raise errors.UserError(f"{path} has another format; this version reads {FORMAT!r}.")
    json_files.check_types(values, _TYPES, path)
    return NetworkConfig(**{name: values[name] for name in _TYPES})


def read_tensors(path: str) -> Dict[str, np.ndarray]:
    """Read the weights, which must be finite."""
    data = files.read_bytes(path, f"Cannot read the network {path}", _MAX_BYTES)
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the reader raises many types
        raise errors.UserError(f"The network {path} is damaged: {errors.reason(error)}.") from None
    bad = [name for name, tensor in tensors.items() if tensor.dtype != np.float32 or not np.isfinite(tensor).all()]
    if bad:
        raise errors.UserError(f"The network {path}: {bad[0]} is not float32, or contains NaN or infinite numbers.")
    return tensors


@dataclasses.dataclass(frozen=True)
class BestNetwork(BestPack):
    """The best weights of a run, or its last ones if none were scored."""

    config: Any  # a NetworkConfig

    def saved(self) -> Any:
        """Return the description of the saved weights, or None."""
        return read_config(self.folder.pack_path) if self.folder.has_pack() else None

    def save(self, checkpoint: str, scores: Optional[Scores] = None) -> None:
        """Save a checkpoint's weights."""
        config = dataclasses.replace(self.config, step=checkpoints.read_step(checkpoint))
        tensors = checkpoints.read_tensors(checkpoint, self.trained_names)
        write(self.folder.pack_path, _with_scores(config, scores), tensors)

    def add_scores(self, scores: Scores) -> None:
        """Add scores to weights that have none."""
        saved = self.saved()
        if saved and not saved.metrics:
            write(self.folder.pack_path, _with_scores(saved, scores), read_tensors(self.folder.pack_path))


def _with_scores(config: NetworkConfig, scores: Optional[Scores]) -> NetworkConfig:
    return config if scores is None else dataclasses.replace(config, metrics=dict(scores.metrics), loss=scores.loss)


@dataclasses.dataclass(frozen=True)
class ModuleWeights:
    """The values that a network takes from its module."""

    name: str
    fingerprint: str
    values: Mapping[str, np.ndarray]  # by name of the variable

    def file(self) -> WeightFile:
        """Return the values as the lowest layer of a network's weights."""
        return WeightFile(self.name, {name: value.shape for name, value in self.values.items()})


def resolve(
    spec: NetworkSpec, module: ModuleWeights, folder: RunFolder, purpose: str, has_random_start: bool
) -> Weights:
    """Return the weights to train from, to evaluate (`has_random_start` allows random ones) or those just trained."""
    trained, step, path = _find_trained(spec, folder, purpose)
    if not trained and purpose != loading.TRAIN and not has_random_start:
        raise errors.UserError(f"There is nothing to evaluate: {folder.path} contains no trained network.")
    mismatch = trained and parameters.describe_mismatch(spec.trained_shapes, {n: v.shape for n, v in trained.items()})
    if mismatch:
        raise errors.UserError(
            f"The output folder {folder.path} contains another network ({path}): {mismatch} Use another --output_dir, "
            "or the settings of that run."
        )
    own = {name: value for name, value in module.values.items() if name not in trained}
    found = [Assignment(module.name, tuple(own), own)]
    opened = [module.file()]
    if trained:
        found.append(Assignment(path, tuple(trained), trained))
        opened.append(WeightFile(path, {name: value.shape for name, value in trained.items()}))
    digests = fingerprints.of_tensors({**own, **trained})
    fresh = tuple(name for name in spec.shapes if name not in digests)
    return Weights(tuple(opened), tuple(found), fresh, step, digests)


def _find_trained(spec: NetworkSpec, folder: RunFolder, purpose: str) -> Any:
    if purpose != loading.TRAIN and folder.has_pack():
        path = folder.pack_path
        return read_tensors(path), read_config(path).step, path
    latest = folder.latest_checkpoint()
    if latest is None:
        if folder.has_pack():
            raise errors.UserError(
                f"The folder {folder.path} contains a network but no checkpoint, so its training cannot be continued: "
                "remove --do_train, or use another --output_dir."
            )
        return {}, 0, ""
    if purpose == loading.TRAIN and not tf.gfile.Exists(checkpoints.optimizer_prefix(latest) + ".index"):
        raise errors.UserError(
            f"The training cannot continue from {latest}: {checkpoints.optimizer_prefix(latest)}.*, the state of its "
            "optimizer, is missing. Use another --output_dir."
        )
    shapes = checkpoints.read_shapes(latest)
    names = [name for name in spec.trained_shapes if name in shapes]
    return checkpoints.read_tensors(latest, names), checkpoints.read_step(latest), latest
