"""Write and read `adapter_config.json` and `head_config.json`, AdapterHub's descriptions of an adapter and its head.

Every key is written with the value that describes our network. A key that describes another network raises an error.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import modeling
from adapter_bert.common import errors, json_files
from adapter_bert.model import heads, parameters
from adapter_bert.model.adapter_config import MAX_SIZE
from adapter_bert.weights import packs
from adapter_bert.weights.exchange import huggingface
from adapter_bert.weights.exchange.huggingface import check_values, unsupported
from adapter_layers import AdapterConfig

CONFIG, HEAD_CONFIG = "adapter_config.json", "head_config.json"
# Exports are for this version: names of activations have changed between versions.
VERSION = "adapters.1.3.0"

# Only adapters can be linear.
_ACTIVATIONS = {**huggingface.ACTIVATIONS, "linear": "linear"}
_PLACEMENTS = {(True, True): "both", (True, False): "attention", (False, True): "feedforward"}
# Values of keys that describe our adapters. The first is also AdapterHub's default.
_FIXED: Dict[str, tuple] = {
    "architecture": (None,),
    "original_ln_before": (False,),
    "original_ln_after": (True,),
    "ln_before": (False,),
    "ln_after": (False,),
    "is_parallel": (False,),
    "scaling": (1.0,),
    "use_gating": (False,),
    "residual_before_ln": (True, False),  # no effect, as there is no LayerNorm before
    "inv_adapter": (None,),
    "cross_adapter": (False,),
    "phm_layer": (False,),
}
# Other known keys: first those that are read, then initialization, training, and features that are switched off above.
_KNOWN = re.compile(
    r"^(mh_adapter|output_adapter|reduction_factor|non_linearity|leave_out|init_weights(_seed)?|dropout|"
    r"stochastic_depth|adapter_residual_before_ln|inv_adapter_reduction_factor|(shared_|factorized_)?phm_\w+|"
    r"learn_phm|shared_W_phm|hypercomplex_nonlinearity)$"
)
# Values of keys that describe our heads, by AdapterHub's `head_type`.
_HEADS: Dict[str, Dict[str, Any]] = {
    "classification": {"layers": 1, "use_pooler": True, "bias": True},
    "question_answering": {"layers": 1, "num_labels": 2},
}
_SUPPORTED = "add_classification_head(…, layers=1, use_pooler=True) and add_qa_head(…, layers=1)"
# Classes of Hugging Face with such a head built in -> its type, and the name of its linear layer.
_BUILT_IN = {
    "BertForSequenceClassification": ("classification", "classifier"),
    "BertForQuestionAnswering": ("question_answering", "qa_outputs"),
}


class ForeignHead(NamedTuple):
    """A head of AdapterHub, as one of ours."""

    kind: str  # one of `heads.TYPES`
    layer: str  # name of its linear layer in AdapterHub
    units: int  # of that layer, if its weights match
    label_ids: Mapping[str, Any]  # label -> index of its unit; empty if the labels have no names

    def check_shape(self, hidden_size: int, found: parameters.Shapes, where: str) -> None:
        """Check that the weights in the file `where` have this number of units; until then, it can be any number."""
        mismatch = parameters.describe_mismatch({f"{self.layer}.weight": (self.units, hidden_size)}, found)
        if mismatch:
            raise errors.UserError(f"{where} does not match num_labels = {self.units} in {HEAD_CONFIG}: {mismatch}")

    @property
    def labels(self) -> Sequence[str]:
        """The classes in the order of the units; empty for regression and spans."""
        if self.kind != "classification":
            return ()
        named = sorted(self.label_ids, key=lambda label: int(self.label_ids[label]))
        return named or [f"LABEL_{number}" for number in range(self.units)]


def head_layer(name: object) -> str:
    """Return the name of the linear layer of a head `name`; layer 0 is the dropout."""
    return f"heads.{name}.1"


def describe_adapter(config: packs.PackConfig, adapter: AdapterConfig, name: str) -> Dict[str, Any]:
    """Return the content of `adapter_config.json`."""
    layers = range(config.bert_config.num_hidden_layers)
    values = {key: allowed[0] for key, allowed in _FIXED.items() if key != "architecture"}
    values.update(
        mh_adapter=adapter.placement in ("both", "attention"),
        output_adapter=adapter.placement in ("both", "feedforward"),
        reduction_factor=reduction_factor(config.bert_config.hidden_size, adapter.size),
        non_linearity=huggingface.our_to_their(_ACTIVATIONS)[adapter.activation],
        leave_out=[layer for layer in layers if adapter.layers is not None and layer not in adapter.layers],
    )
    return _describe(config, name, values)


def reduction_factor(hidden_size: int, size: int) -> float:
    """Return the factor from which AdapterHub computes this adapter size."""
    if hidden_size % size == 0:
        return hidden_size // size
    # Add half a unit, so that rounding errors cannot change the result of the integer division.
    return hidden_size / (size + 0.5)


def describe_head(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    """Return the content of `head_config.json`."""
    head_type = "question_answering" if config.head == "span" else "classification"
    values = {
        "head_type": head_type,
        "num_labels": len(config.labels) or 1,
        "label2id": {label: number for number, label in enumerate(config.labels)} or None,
        "activation_function": None,  # between layers; there is only one
        "dropout_prob": 0.0 if config.head == "span" else heads.HEAD_DROPOUT,
        **_HEADS[head_type],
    }
    return _describe(config, name, values)


def _describe(config: packs.PackConfig, name: str, values: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "model_type": "bert",
        "model_class": "BertAdapterModel",
        "model_name": None,
        "hidden_size": config.bert_config.hidden_size,
        "name": name,
        "version": VERSION,
        "config": values,
    }


def load(path: str) -> Dict[str, Any]:
    """Read one of the two files; raise a `UserError` if it was not written by `adapters`."""
    content = json_files.read_object(path, "Save the adapter again.")
    if not str(content.get("version")).startswith("adapters."):
        advice = "Older versions use other names of activations: load and save it with AdapterHub's adapters"
        raise unsupported(path, "version", content.get("version"), f"'adapters.…'. {advice}")
    json_files.check_types(content, {"config": Optional[Mapping[str, Any]], "name": Optional[str]}, path)
    return content


def read_adapter(path: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> AdapterConfig:
    """Translate the `adapter_config.json` at `path`; raise a `UserError` if it is not an adapter for this base."""
    check_values(path, described, {"model_type": ["bert"], "hidden_size": [bert.hidden_size]}, ": this is the base")
    values = described.get("config")
    if values is None or described.get("name") is None:
        raise errors.UserError(f"{path} does not describe an adapter: its name or its config is missing.")
    fixed = {key: options for key, options in _FIXED.items() if key in values}
    check_values(path, values, fixed, ": only AdapterHub's DoubleSeqBnConfig is supported")
    unknown = [key for key in values if key not in _FIXED and not _KNOWN.match(key)]
    if unknown:
        raise errors.UserError(
            f"{path} has unknown keys, which may describe another network: {errors.first_names(unknown)}."
        )
    json_files.check_types(values, {"leave_out": Optional[Sequence[int]]}, path)
    layers = tuple(n for n in range(bert.num_hidden_layers) if n not in (values.get("leave_out") or []))
    placement = _PLACEMENTS.get((bool(values.get("mh_adapter")), bool(values.get("output_adapter"))))
    if placement is None or not layers:
        raise errors.UserError(
            f"{path} describes no adapter: mh_adapter and output_adapter are false, or leave_out contains all of the "
            f"{bert.num_hidden_layers} layers."
        )
    return AdapterConfig(
        size=_read_size(path, values.get("reduction_factor"), layers, bert.hidden_size),
        activation=huggingface.translate_activation(path, "non_linearity", values.get("non_linearity"), _ACTIVATIONS),
        layers=layers if len(layers) < bert.num_hidden_layers else None,
        placement=placement,
    )


def _read_size(path: str, factors: Any, layers: Sequence[int], hidden_size: int) -> int:
    """Return the adapter size for one reduction factor, or for one per layer."""
    by_layer: Dict[str, Any] = factors if isinstance(factors, dict) else {"default": factors}
    chosen: List[Any] = [by_layer.get(str(layer), by_layer.get("default")) for layer in layers]
    smallest = hidden_size / MAX_SIZE
    if not all(type(factor) in (int, float) and smallest <= factor < float("inf") for factor in chosen):
        raise unsupported(path, "reduction_factor", factors, "a positive number for every layer")
    sizes = sorted({max(int(hidden_size // factor), 1) for factor in chosen})
    if len(sizes) > 1:
        raise unsupported(path, "reduction_factor", factors, f"one size for all layers, found {sizes}")
    return sizes[0]


def read_head(folder: str) -> ForeignHead:
    """Read the `head_config.json` in a folder; raise a `UserError` if there is none, or the head is not one of ours."""
    path = os.path.join(folder, HEAD_CONFIG)
    if not os.path.isfile(path):
        raise errors.UserError(
            f"There is no head in {folder} ({HEAD_CONFIG} is missing); a pack needs one. Save the adapter with its "
            "head (save_adapter(…, with_head=True))."
        )
    described = load(path)
    values = described.get("config")
    if values is None:  # a head that is built into a class of Hugging Face
        check_values(path, described, {"model_class": list(_BUILT_IN)}, " or BertAdapterModel")
        head_type, layer = _BUILT_IN[described["model_class"]]
        values = {**_HEADS[head_type], **described}
    else:
        check_values(path, values, {"head_type": list(_HEADS)})
        head_type, layer = values["head_type"], head_layer(described.get("name"))
    fixed = {key: [value] for key, value in _HEADS[head_type].items()}
    check_values(path, {"bias": True, **values}, fixed, f": only the heads of {_SUPPORTED} are supported")
    if head_type == "question_answering":
        return ForeignHead("span", layer, 2, {})
    units: Any = values.get("num_labels")
    errors.check_int(f"num_labels in {path}", units)
    json_files.check_types(values, {"label2id": Optional[Mapping[str, Any]]}, path)
    ids = values.get("label2id") or {}
    if ids and (len(ids) != units or sorted(map(str, ids.values())) != sorted(map(str, range(units)))):
        raise unsupported(path, "label2id", ids, f"the numbers 0 to {units - 1}")
    return ForeignHead("regression" if units == 1 else "classification", layer, units, ids)
