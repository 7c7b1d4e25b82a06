"""`adapter_config.json` and `head_config.json`: how AdapterHub describes an adapter and its head, both ways.

Each key is written with the value that means our network. In what is read, a key that asks for another network is
refused by name. There are no weights here, and of a pack only its configuration: the rest is in `adapterhub`.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import modeling
from adapter_bert.common import errors
from adapter_bert.common.text import first_names
from adapter_bert.model import heads
from adapter_bert.weights import packs
from adapter_bert.weights.exchange import huggingface
from adapter_layers import AdapterConfig

CONFIG, HEAD_CONFIG = "adapter_config.json", "head_config.json"
# What is written is for this one: names of activations have changed between versions.
VERSION = "adapters.1.3.0"

# Theirs, ours; the identity is an activation of adapters only.
_ACTIVATIONS = (*huggingface.ACTIVATIONS, ("linear", "linear"))
_PLACEMENTS = {(True, True): "both", (True, False): "attention", (False, True): "feedforward"}
# Keys of their configuration with the values that mean our network. The first is also their default.
_FIXED: Dict[str, tuple] = {
    "architecture": (None,),
    "original_ln_before": (False,),
    "original_ln_after": (True,),
    "ln_before": (False,),
    "ln_after": (False,),
    "is_parallel": (False,),
    "scaling": (1.0,),
    "use_gating": (False,),
    "residual_before_ln": (True, False),  # the same where no LayerNorm comes before
    "inv_adapter": (None,),
    "cross_adapter": (False,),
    "phm_layer": (False,),
}
_READ = ("mh_adapter", "output_adapter", "reduction_factor", "non_linearity", "leave_out")
# Of initial values, of training, or of what is switched off by the above.
_WITHOUT_EFFECT = re.compile(
    r"^(init_weights(_seed)?|dropout|stochastic_depth|adapter_residual_before_ln|inv_adapter_reduction_factor|"
    r"(shared_|factorized_)?phm_\w+|learn_phm|shared_W_phm|hypercomplex_nonlinearity)$"
)


class _Form(NamedTuple):
    """A head of theirs that can be one of ours.

    Attributes:
      fixed: keys of its description with the values that mean ours.
      static: the class of Hugging Face's that has this head built in.
      layer: the name of the linear layer there.
      scope: of our variables.
      dropout: in front of ours, in training.
      what: our head in words, and what makes it there.
    """

    fixed: Mapping[str, Any]
    static: str
    layer: str
    scope: str
    dropout: float
    what: str


# By their `head_type`.
_FORMS = {
    "classification": _Form(
        {"layers": 1, "use_pooler": True, "bias": True},
        "BertForSequenceClassification",
        "classifier",
        "",
        heads.HEAD_DROPOUT,
        "one linear layer on the frozen pooler (add_classification_head(…, layers=1, use_pooler=True))",
    ),
    "question_answering": _Form(
        {"layers": 1, "num_labels": 2},
        "BertForQuestionAnswering",
        "qa_outputs",
        "cls/squad/",
        0.0,
        "one linear layer on the tokens, for start and end (add_qa_head(…, layers=1))",
    ),
}
# By the kind of ours.
_HEAD_TYPES = {"classification": "classification", "regression": "classification", "span": "question_answering"}


class Head(NamedTuple):
    """A head that both sides have.

    Attributes:
      kind: ours, one of `heads.TYPES`.
      prefix: of the names of its weights, there.
      units: of its linear layer.
      labels: of the classes, in the order of the units; empty or None where they have no names.
    """

    kind: str
    prefix: str
    units: int
    labels: Optional[Sequence[str]]

    @property
    def scope(self) -> str:
        """Of our variables."""
        return _FORMS[_HEAD_TYPES[self.kind]].scope


# ----------------------------------------------------------------------------------------------- ours -> theirs


def head_of(config: packs.PackConfig, name: str) -> Head:
    """The head of a pack, as the head `name` of a `BertAdapterModel`."""
    units = {"classification": len(config.labels), "regression": 1, "span": 2}[config.head]
    return Head(config.head, _prefix(name), units, config.labels)


def describe_adapter(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    """The content of `adapter_config.json` for a pack's adapters."""
    adapter, bert = config.adapter_config, config.bert_config
    values = {key: allowed[0] for key, allowed in _FIXED.items() if key != "architecture"}
    values.update(
        mh_adapter=adapter.placement in ("both", "attention"),
        output_adapter=adapter.placement in ("both", "feedforward"),
        reduction_factor=reduction_factor(bert.hidden_size, adapter.size),
        non_linearity={ours: theirs for theirs, ours in reversed(_ACTIVATIONS)}[adapter.activation],
        leave_out=[n for n in range(bert.num_hidden_layers) if adapter.layers is not None and n not in adapter.layers],
    )
    return _describe(config, name, values)


def describe_head(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    """The content of `head_config.json` for a pack's head."""
    head_type = _HEAD_TYPES[config.head]
    values = {
        "head_type": head_type,
        "num_labels": head_of(config, name).units,
        "label2id": {label: number for number, label in enumerate(config.labels)} or None,
        "activation_function": None,  # between layers, of which there is one
        "dropout_prob": _FORMS[head_type].dropout,
    }
    return _describe(config, name, dict(values, **_FORMS[head_type].fixed))


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
    """Of the names of a head's weights; what has the number 0 there is the dropout."""
    return f"heads.{name}.1"


def reduction_factor(hidden_size: int, size: int) -> float:
    """The factor from which AdapterHub computes this size, which it takes in no other way."""
    if hidden_size % size == 0:
        return hidden_size // size
    # Half a unit more, so that rounding down gives the size whatever the fraction's last digit.
    return hidden_size / (size + 0.5)


# ----------------------------------------------------------------------------------------------- theirs -> ours


def load(path: str) -> Dict[str, Any]:
    """The content of one of the two files; of its keys, the version alone is looked at.

    Raises:
      errors.UserError: it is missing, no JSON object, or of a version before `adapters`.
    """
    content = huggingface.read_json(path)
    if not str(content.get("version")).startswith("adapters."):
        raise _unfit(
            path,
            "version",
            content.get("version"),
            "'adapters.…': before, names of activations meant others. Load it with AdapterHub's adapters and save it "
            "again",
        )
    return content


def _unfit(path: str, key: str, found: Any, expected: str) -> errors.UserError:
    """The error for a value that means another network, or nothing."""
    return errors.UserError(f"{path} has {key} = {json.dumps(found)}; expected {expected}.")


def read_adapter(path: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> AdapterConfig:
    """The adapters that a description means.

    Args:
      path: of the file, for messages.
      described: its content, see `load`.
      bert: the base.

    Raises:
      errors.UserError: it is not for this base, describes no adapter, or one that the network here cannot be.
    """
    for key, expected in (("model_type", "bert"), ("hidden_size", bert.hidden_size)):
        if described.get(key) != expected:
            raise _unfit(path, key, described.get(key), f"{json.dumps(expected)}, as the base")
    values = described.get("config")
    if not isinstance(values, dict) or not isinstance(described.get("name"), str):
        raise errors.UserError(f"{path} does not describe an adapter: it lacks its name or its config.")
    _check_keys(path, values)
    activation = str(values.get("non_linearity")).lower()
    if activation not in dict(_ACTIVATIONS):
        raise errors.unknown(f"non_linearity in {path}:", activation, dict(_ACTIVATIONS))
    places = (bool(values.get("mh_adapter")), bool(values.get("output_adapter")))
    if places not in _PLACEMENTS:
        raise errors.UserError(f"{path} asks for no adapter: neither mh_adapter nor output_adapter is true.")
    layers = _read_layers(path, values.get("leave_out") or [], bert.num_hidden_layers)
    return AdapterConfig(
        size=_read_size(path, values.get("reduction_factor"), layers, bert.hidden_size),
        activation=dict(_ACTIVATIONS)[activation],
        layers=layers if len(layers) < bert.num_hidden_layers else None,
        placement=_PLACEMENTS[places],
    )


def _check_keys(path: str, values: Mapping[str, Any]) -> None:
    """Refuses keys that ask for another network, or for what is not known here."""
    for key, found in values.items():
        if key in _FIXED and found not in _FIXED[key]:
            allowed = " or ".join(json.dumps(value) for value in _FIXED[key])
            why = "the network here has no other adapters than those of AdapterHub's DoubleSeqBnConfig"
            raise _unfit(path, key, found, f"{allowed}: {why}")
        if key not in _FIXED and key not in _READ and not _WITHOUT_EFFECT.match(key):
            raise errors.UserError(f"{path} has the unknown key {key}: what it asks for is not known here.")


def _read_layers(path: str, left_out: Any, num_layers: int) -> Tuple[int, ...]:
    """The layers with adapters."""
    if not isinstance(left_out, list) or not all(type(layer) is int for layer in left_out):
        raise _unfit(path, "leave_out", left_out, "a list of layers")
    layers = tuple(layer for layer in range(num_layers) if layer not in left_out)
    if not layers:
        raise errors.UserError(f"{path} asks for no adapter: leave_out names all of the {num_layers} layers.")
    return layers


def _read_size(path: str, factors: Any, layers: Sequence[int], hidden_size: int) -> int:
    """The adapters' size, from one reduction factor or from one for each layer."""
    if not isinstance(factors, dict):
        factors = {"default": factors}
    chosen = [factors.get(str(layer), factors.get("default")) for layer in layers]
    if not all(type(factor) in (int, float) and 0 < factor < float("inf") for factor in chosen):
        raise _unfit(path, "reduction_factor", factors, "a number above 0 for every layer")
    sizes = sorted({max(int(hidden_size // factor), 1) for factor in chosen})
    if len(sizes) > 1:
        raise errors.UserError(
            f"{path} has different reduction_factor by layer, sizes {sizes}; expected one: the network here has "
            "adapters of one size."
        )
    return sizes[0]


def read_head(folder: str) -> Head:
    """The head that the `head_config.json` in a folder means.

    Raises:
      errors.UserError: the file is missing or broken, or its head is none of ours.
    """
    path = os.path.join(folder, HEAD_CONFIG)
    if not os.path.isfile(path):
        raise errors.UserError(
            f"There is no head in {folder} ({HEAD_CONFIG} is missing), and without one a pack predicts nothing: save "
            "the adapter with its head (save_adapter's with_head=True)."
        )
    described = load(path)
    values, model_class = described.get("config"), described.get("model_class")
    static = next((form for form in _FORMS.values() if form.static == model_class), None)
    if values is None and static:
        return _read_head(path, static.layer, static, dict(static.fixed, **described))
    if not isinstance(values, dict):
        raise errors.UserError(
            f"{path} has the head of a {model_class}; expected that of a BertAdapterModel or of a "
            f"{' or a '.join(form.static for form in _FORMS.values())}."
        )
    form = _FORMS.get(str(values.get("head_type")))
    if form is None:
        raise _unfit(path, "head_type", values.get("head_type"), " or ".join(map(json.dumps, _FORMS)))
    return _read_head(path, _prefix(described.get("name")), form, values)


def _read_head(path: str, prefix: str, form: _Form, values: Mapping[str, Any]) -> Head:
    """Refuses what is not our head; returns what is said of it."""
    for key, expected in form.fixed.items():
        found = values.get(key, True if key == "bias" else None)
        if found != expected:
            raise _unfit(path, key, found, f"{json.dumps(expected)}: the head here is {form.what}")
    units, ids = values.get("num_labels"), values.get("label2id")
    if form is _FORMS["question_answering"]:
        return Head("span", prefix, units, None)
    if type(units) is not int or units < 1:
        raise _unfit(path, "num_labels", units, "a whole number above 0")
    kind = "regression" if units == 1 else "classification"
    if not ids:
        return Head(kind, prefix, units, None)
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(units))):
        raise _unfit(path, "label2id", ids, f"the numbers 0 to {units - 1}")
    return Head(kind, prefix, units, sorted(ids, key=lambda label: int(ids[label])))


def choose_labels(folder: str, head: Head, labels: Optional[Sequence[str]]) -> List[str]:
    """The labels of a pack; those that are given count, but never in another order than the head's.

    Args:
      folder: where the head comes from, for messages.
      head: as `read_head` gives it.
      labels: given by the user; None to take the head's own.

    Raises:
      errors.UserError: the head has others, or none.
    """
    if head.kind != "classification":
        if labels:
            what = "has one unit, a regression" if head.kind == "regression" else "is for spans, which have no labels"
            raise errors.UserError(
                f"The head in {folder} {what}; {len(labels)} labels were given: {first_names(list(labels))}."
            )
        return []
    theirs = list(head.labels or [f"LABEL_{number}" for number in range(head.units)])
    if labels is None:
        return theirs
    if len(labels) != head.units:
        raise errors.UserError(
            f"The head in {folder} has {head.units} classes ({first_names(theirs)}); {len(labels)} labels were "
            f"given: {first_names(list(labels))}."
        )
    moved = [label for number, label in enumerate(labels) if label in theirs and theirs[number] != label]
    if moved:
        raise errors.UserError(
            f"The head in {folder} has its classes in the order {', '.join(theirs)}; the labels were given as "
            f"{', '.join(labels)}. Give them in the head's order."
        )
    return list(labels)
