"""Write and read `adapter_config.json` and `head_config.json`, AdapterHub's descriptions of an adapter and its head.

Every key is written with the value that describes our network. A key that describes another network raises an error.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import modeling
from adapter_bert.common import errors, files
from adapter_bert.common.text import first_names
from adapter_bert.model import heads
from adapter_bert.weights import packs
from adapter_bert.weights.exchange import tensor_names
from adapter_layers import AdapterConfig

CONFIG, HEAD_CONFIG = "adapter_config.json", "head_config.json"
# Exports are for this version: names of activations have changed between versions.
VERSION = "adapters.1.3.0"

# (theirs, ours); only adapters can be linear.
_ACTIVATIONS = (*tensor_names.ACTIVATIONS, ("linear", "linear"))
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
_READ = ("mh_adapter", "output_adapter", "reduction_factor", "non_linearity", "leave_out")
# Keys for initialization, training, or features that the keys above switch off.
_IGNORED = re.compile(
    r"^(init_weights(_seed)?|dropout|stochastic_depth|adapter_residual_before_ln|inv_adapter_reduction_factor|"
    r"(shared_|factorized_)?phm_\w+|learn_phm|shared_W_phm|hypercomplex_nonlinearity)$"
)


class _HeadForm(NamedTuple):
    """A head of AdapterHub that corresponds to one of ours."""

    fixed: Mapping[str, tuple]  # values of keys that describe our head
    model_class: str  # the class of Hugging Face with this head built in
    layer: str  # name of the linear layer in that class
    scope: str  # scope of our variables
    dropout: float  # before our head in training
    description: str


# By AdapterHub's `head_type`.
_FORMS = {
    "classification": _HeadForm(
        {"layers": (1,), "use_pooler": (True,), "bias": (True,)},
        "BertForSequenceClassification",
        "classifier",
        "",
        heads.HEAD_DROPOUT,
        "one linear layer on the frozen pooler (add_classification_head(…, layers=1, use_pooler=True))",
    ),
    "question_answering": _HeadForm(
        {"layers": (1,), "num_labels": (2,)},
        "BertForQuestionAnswering",
        "qa_outputs",
        "cls/squad/",
        0.0,
        "one linear layer on the tokens, for start and end (add_qa_head(…, layers=1))",
    ),
}
_HEAD_TYPES = {"classification": "classification", "regression": "classification", "span": "question_answering"}


class ExchangedHead(NamedTuple):
    """A head that exists on both sides."""

    kind: str  # one of `heads.TYPES`
    prefix: str  # prefix of the names of its weights in AdapterHub
    units: int
    labels: Sequence[str] = ()  # in the order of the units; empty if they have no names

    @property
    def scope(self) -> str:
        """Scope of our variables."""
        return _FORMS[_HEAD_TYPES[self.kind]].scope


# ----------------------------------------------------------------------------------------------- ours -> theirs


def head_of(config: packs.PackConfig, name: str) -> ExchangedHead:
    """Return the head of a pack as the head `name` of a `BertAdapterModel`."""
    units = {"classification": len(config.labels), "regression": 1, "span": 2}[config.head]
    return ExchangedHead(config.head, _prefix(name), units, config.labels)


def describe_adapter(config: packs.PackConfig, adapter: AdapterConfig, name: str) -> Dict[str, Any]:
    """Return the content of `adapter_config.json`."""
    hidden_size, layers = config.bert_config.hidden_size, range(config.bert_config.num_hidden_layers)
    values = {key: allowed[0] for key, allowed in _FIXED.items() if key != "architecture"}
    values.update(
        mh_adapter=adapter.placement in ("both", "attention"),
        output_adapter=adapter.placement in ("both", "feedforward"),
        reduction_factor=reduction_factor(hidden_size, adapter.size),
        non_linearity=tensor_names.our_to_their_activations(_ACTIVATIONS)[adapter.activation],
        leave_out=[layer for layer in layers if adapter.layers is not None and layer not in adapter.layers],
    )
    return _describe(config, name, values)


def describe_head(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    """Return the content of `head_config.json`."""
    head_type = _HEAD_TYPES[config.head]
    values = {
        "head_type": head_type,
        "num_labels": head_of(config, name).units,
        "label2id": {label: number for number, label in enumerate(config.labels)} or None,
        "activation_function": None,  # between layers; there is only one
        "dropout_prob": _FORMS[head_type].dropout,
    }
    values.update((key, allowed[0]) for key, allowed in _FORMS[head_type].fixed.items())
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


def _prefix(name: Any) -> str:
    """Return the prefix of the names of a head's weights; layer 0 is the dropout."""
    return f"heads.{name}.1"


def reduction_factor(hidden_size: int, size: int) -> float:
    """Return the factor from which AdapterHub computes this adapter size."""
    if hidden_size % size == 0:
        return hidden_size // size
    # Add half a unit, so that rounding errors cannot change the result of the integer division.
    return hidden_size / (size + 0.5)


# ----------------------------------------------------------------------------------------------- theirs -> ours


def load(path: str) -> Dict[str, Any]:
    """Read one of the two files; raise a `UserError` if it was not written by `adapters`."""
    content = files.read_json_object(path, "Save the adapter again.")
    if not str(content.get("version")).startswith("adapters."):
        raise _unsupported(
            path,
            "version",
            content.get("version"),
            "'adapters.…'. Older versions use other names of activations: load and save it with AdapterHub's adapters",
        )
    return content


def _unsupported(path: str, key: str, found: Any, expected: str) -> errors.UserError:
    return errors.UserError(f"{path} has {key} = {json.dumps(found)}; expected {expected}.")


def _check_values(path: str, values: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]], reason: str) -> None:
    for key, options in allowed.items():
        if values.get(key) not in options:
            raise _unsupported(path, key, values.get(key), f"{' or '.join(map(json.dumps, options))}: {reason}")


def read_adapter(path: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> AdapterConfig:
    """Translate the content of the `adapter_config.json` at `path` for a base.

    Raises:
      errors.UserError: it does not describe an adapter for this base that the network supports.
    """
    _check_values(path, described, {"model_type": ["bert"], "hidden_size": [bert.hidden_size]}, "this is the base")
    values = described.get("config")
    if not isinstance(values, dict) or "name" not in described:
        raise errors.UserError(f"{path} does not describe an adapter: its name or its config is missing.")
    fixed = {key: options for key, options in _FIXED.items() if key in values}
    _check_values(path, values, fixed, "only AdapterHub's DoubleSeqBnConfig is supported")
    unknown = [key for key in values if key not in (*_FIXED, *_READ) and not _IGNORED.match(key)]
    if unknown:
        raise errors.UserError(f"{path} has unknown keys, which may describe another network: {first_names(unknown)}.")
    activation, activations = str(values.get("non_linearity")).lower(), dict(_ACTIVATIONS)
    if activation not in activations:
        raise errors.unknown(f"non_linearity in {path}:", activation, activations)
    layers = tuple(n for n in range(bert.num_hidden_layers) if n not in (values.get("leave_out") or []))
    placement = _PLACEMENTS.get((bool(values.get("mh_adapter")), bool(values.get("output_adapter"))))
    if placement is None or not layers:
        raise errors.UserError(
            f"{path} describes no adapter: mh_adapter and output_adapter are false, or leave_out contains all of the "
            f"{bert.num_hidden_layers} layers."
        )
    return AdapterConfig(
        size=_read_size(path, values.get("reduction_factor"), layers, bert.hidden_size),
        activation=activations[activation],
        layers=layers if len(layers) < bert.num_hidden_layers else None,
        placement=placement,
    )


def _read_size(path: str, factors: Any, layers: Sequence[int], hidden_size: int) -> int:
    """Return the adapter size for one reduction factor, or for one per layer."""
    by_layer: Dict[str, Any] = factors if isinstance(factors, dict) else {"default": factors}
    chosen: List[Any] = [by_layer.get(str(layer), by_layer.get("default")) for layer in layers]
    if not all(type(factor) in (int, float) and 0 < factor < float("inf") for factor in chosen):
        raise _unsupported(path, "reduction_factor", factors, "a positive number for every layer")
    sizes = sorted({max(int(hidden_size // factor), 1) for factor in chosen})
    if len(sizes) > 1:
        raise _unsupported(path, "reduction_factor", factors, f"one size for all layers, found {sizes}")
    return sizes[0]


def read_head(folder: str) -> ExchangedHead:
    """Read the `head_config.json` in a folder.

    Raises:
      errors.UserError: the file is missing or damaged, or describes a head that is not supported.
    """
    path = os.path.join(folder, HEAD_CONFIG)
    if not os.path.isfile(path):
        raise errors.UserError(
            f"There is no head in {folder} ({HEAD_CONFIG} is missing); a pack needs one. Save the adapter with its "
            "head (save_adapter(…, with_head=True))."
        )
    described = load(path)
    values = described.get("config")
    if values is None:  # a head that is built into a class of Hugging Face
        forms = {form.model_class: form for form in _FORMS.values()}
        _check_values(path, described, {"model_class": list(forms)}, "or the head of a BertAdapterModel")
        form = forms[described["model_class"]]
        built_in = {key: allowed[0] for key, allowed in form.fixed.items()}
        return _translate_head(path, form.layer, form, dict(built_in, **described))
    _check_values(path, values, {"head_type": list(_FORMS)}, "only these are supported")
    return _translate_head(path, _prefix(described.get("name")), _FORMS[values["head_type"]], values)


def _translate_head(path: str, prefix: str, form: _HeadForm, values: Mapping[str, Any]) -> ExchangedHead:
    _check_values(path, dict({"bias": True}, **values), form.fixed, f"our head is {form.description}")
    if form is _FORMS["question_answering"]:
        return ExchangedHead("span", prefix, 2)
    units: Any = values.get("num_labels")
    ids = values.get("label2id") or {}
    errors.check_int(f"num_labels in {path}", units)
    if ids and sorted(map(str, ids.values())) != sorted(map(str, range(units))):
        raise _unsupported(path, "label2id", ids, f"the numbers 0 to {units - 1}")
    kind = "regression" if units == 1 else "classification"
    return ExchangedHead(kind, prefix, units, sorted(ids, key=lambda label: int(ids[label])))


def choose_labels(folder: str, head: ExchangedHead, labels: Optional[Sequence[str]]) -> List[str]:
    """Return the labels of a pack: those given by the user, in the order of the head, or else those of the head.

    Raises:
      errors.UserError: the given labels do not match the head.
    """
    given = f"{len(labels or ())} labels were given: {first_names(labels or ())}"
    if head.kind != "classification":
        if labels:
            raise errors.UserError(f"The head in {folder} is for {head.kind}, which has no labels; {given}.")
        return []
    theirs = list(head.labels) or [f"LABEL_{number}" for number in range(head.units)]
    if labels is None:
        return theirs
    if len(labels) != head.units:
        raise errors.UserError(f"The head in {folder} has {head.units} classes ({first_names(theirs)}); {given}.")
    if any(label in theirs and theirs[number] != label for number, label in enumerate(labels)):
        raise errors.UserError(
            f"The head in {folder} has its classes in the order {', '.join(theirs)}, not {', '.join(labels)}. Give the "
            "labels in the order of the head."
        )
    return list(labels)
