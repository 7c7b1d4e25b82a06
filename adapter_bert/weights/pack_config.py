"""The configuration of an adapter pack: its task, its model and its variables."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import modeling
from adapter_bert.common import errors
from adapter_bert.model import heads
from adapter_bert.model.spec import ModelSpec
from adapter_layers import AdapterConfig

FORMAT = "adapter-bert pack 1"
METADATA_KEY = "adapter_config.json"
CHECKSUM = "checksum"

# More than any real BERT. Building a graph with an absurd number of layers would take hours.
_MAX_LAYERS = 64


@dataclasses.dataclass(frozen=True)
class PackConfig:
    """Describes the weights of a pack. The fields are the keys of `adapter_config.json`.

    Attributes:
      task: name of the task.
      architecture: the content of the base's `bert_config.json`.
      tuning_mode: what was trained, see `optimization.trainable_names`.
      head: one of `heads.TYPES`.
      labels: the classes in the order of the head's units; empty for regression and spans.
      tokenizer: see `bases.describe_tokenizer`.
      max_seq_length: sequence length in training.
      base: fingerprint of the frozen variables; None if everything was trained.
      created: date, ISO 8601 in UTC.
      adapter: the fields of an `AdapterConfig`; None in modes without adapters.
      tune_top_layers: number of layers in mode `top_layers`.
      metrics: scores on the dev split, the primary metric first; empty if it was not evaluated.
      loss: mean loss on the dev split.
      collapsed: whether all predictions for the dev split were the same.
      seed: seed of the training run; None if unknown.
      step: training step of the weights.
      training: other settings of the training run, by flag.
      versions: versions of the software that trained it.
      origin: where the weights come from, if they were not trained by this project.
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
        """Check the values that do not determine the variables.

        Raises:
          errors.UserError: a number is out of range.
          UnicodeEncodeError: a text has lone surrogates, e.g. from bytes of a command line that are not UTF-8.
        """
        scores = [self.loss, *self.metrics.values()]
        if not all(value is None or type(value) in (int, float) for value in scores):
            raise errors.UserError(f"loss and metrics must be numbers, found {self.loss} and {self.metrics}")
        limit = self.bert_config.max_position_embeddings
        if self.step < 0 or not 1 <= self.max_seq_length <= limit:
            raise errors.UserError(
                f"step must be 0 or more, found {self.step}, and max_seq_length must be in [1, {limit}], found "
                f"{self.max_seq_length}"
            )
        json.dumps(dataclasses.asdict(self), ensure_ascii=False, default=str).encode("utf-8")


@functools.lru_cache(maxsize=32)
def _make_spec(architecture: str, adapter: str, head: heads.Head, mode: str, top_layers: Optional[int]) -> ModelSpec:
    config, fields = modeling.BertConfig.from_dict(json.loads(architecture)), json.loads(adapter)
    config.check("architecture")
    if config.num_hidden_layers > _MAX_LAYERS:
        raise errors.UserError(f"architecture has {config.num_hidden_layers} layers; the maximum is {_MAX_LAYERS}")
    if (mode == "adapter") != (fields is not None):
        raise errors.UserError(f"tuning_mode {mode} cannot be combined with adapter {fields}")
    return ModelSpec(config, head, AdapterConfig(**fields) if fields is not None else None, mode, top_layers)


_JSON_TYPES: Dict[str, Tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "Mapping": (dict,),
    "Sequence": (list,),
}


def _json_types(annotation: str) -> Tuple[type, ...]:
    """Return the types that JSON gives for a field, e.g. `(dict, NoneType)` for `Optional[Mapping[str, Any]]`."""
    is_optional = annotation.startswith("Optional[")
    name = annotation[len("Optional[") :] if is_optional else annotation
    types = _JSON_TYPES[re.split(r"\W", name)[0]]
    return (*types, type(None)) if is_optional else types


def parse(path: str, values: Mapping[str, Any]) -> PackConfig:
    """Build the configuration from the JSON object in a pack.

    Raises:
      errors.UserError: another format, missing or unknown keys, or a value of the wrong type.
    """
    if values.get("format") != FORMAT:
        raise errors.UserError(
            f"The pack {path} has the format {values.get('format')!r}; this version reads {FORMAT!r}."
        )
    fields = {field.name: field for field in dataclasses.fields(PackConfig)}
    found = {name: value for name, value in values.items() if name not in ("format", CHECKSUM)}
    unknown, missing = sorted(set(found) - set(fields)), sorted(set(fields) - set(found))
    if unknown or missing:
        raise errors.UserError(f"The pack {path}: {METADATA_KEY} has unknown keys {unknown} and lacks {missing}.")
    for name, value in found.items():
        types = _json_types(str(fields[name].type))
        if type(value) not in types:
            expected = " or ".join(kind.__name__ for kind in types)
            raise errors.UserError(f"The pack {path}: {name} in {METADATA_KEY} is {value!r}; expected {expected}.")
    return PackConfig(**found)
