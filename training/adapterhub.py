"""Adapter packs <-> AdapterHub's adapter folders (the library `adapters`, PyTorch), without PyTorch.

AdapterHub's bottleneck (`BnConfig`, as `DoubleSeqBnConfig` sets it) holds our adapters as they are: size, activation,
layers, sub-layers. Its `classification` head with one layer on the pooler is our head; one label means a regression.

It cannot hold BERT's LayerNorms: `save_adapter` keeps the weights of adapter modules and of the head, nothing of the
base, which `train_adapter` freezes as a whole. A pack's LayerNorms therefore lie beside the adapter in a file of their
own, under Hugging Face's names, and `README.md` shows how all is loaded. It has no form for the other tuning modes.

Only safetensors are read and written: a pickle can run code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import errors
import modeling
from adapter_layers import AdapterConfig
from training import bases, fingerprints, heads, huggingface, packs, parameters
from training.huggingface import TensorRow

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter.safetensors", "pytorch_adapter.bin"
HEAD_CONFIG, HEAD_WEIGHTS, HEAD_PICKLE = "head_config.json", "model_head.safetensors", "pytorch_model_head.bin"
LAYER_NORMS, README = "layer_norms.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS, HEAD_CONFIG, HEAD_WEIGHTS, LAYER_NORMS, README)
# What the folder is written for: names of activations have changed between versions.
VERSION = "adapters.1.3.0"
# Stands in the generated code for the folder of the base, and for that of the adapter.
BASE_PLACE, FOLDER_PLACE = 'BASE = "path/to/the/base"', 'FOLDER = "."'

# Theirs, ours; the identity is an activation of adapters only.
_ACTIVATIONS = (*huggingface.ACTIVATIONS, ("linear", "linear"))
_PLACEMENTS = {(True, True): "both", (True, False): "attention", (False, True): "feedforward"}
_PARTS = {"attention": "attention.output", "feedforward": "output"}
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
_HEAD_FIXED = {"head_type": "classification", "layers": 1, "use_pooler": True, "bias": True}
_STATIC_HEAD = "BertForSequenceClassification"
# What a module of PyTorch has as an attribute cannot be the name of an adapter; these could be the names of tasks.
_TAKEN = re.compile(
    r"^(add_module|apply|buffers|children|clear|compile|cpu|cuda|double|eval|float|forward|half|items|ipu|keys|modules|"
    r"mtia|parameters|pop|state_dict|to|train|training|type|update|values|xpu)$"
)

_README = """# {task}: an adapter for AdapterHub

Two bottleneck adapters per layer (Houlsby et al., 2019), size {size}, {head}, written for `{version}`.

BERT's LayerNorms were trained with the adapters. AdapterHub's adapters cannot hold them: they are in
`{layer_norms}` and take the place of the base's, so that a model holds one such task at a time. Without
them the predictions are not those of the trained network.

`BASE` is the BERT that the adapter was trained on (frozen weights `{base}`) in Hugging Face's layout.
`scripts/convert_hf_checkpoint.py --base_dir` of the project makes that of a base in Google's.

```python
from adapters import BertAdapterModel
from safetensors.torch import load_file
from transformers import BertTokenizer

{base_place}
{folder_place}

model = BertAdapterModel.from_pretrained(BASE)
model.load_adapter(FOLDER, use_safetensors=True, set_active=True)
unknown = model.load_state_dict(load_file(FOLDER + "/{layer_norms}"), strict=False).unexpected_keys
assert not unknown, unknown
model.eval()

tokenizer = BertTokenizer.from_pretrained(BASE, do_lower_case={lower})
# For tasks of pairs: tokenizer("A sentence.", "Another one.", …)
inputs = tokenizer("A sentence.", truncation=True, max_length={length}, return_tensors="pt")
print(model(**inputs).logits)
```

{outputs}
"""


def export(pack: packs.Pack, base: bases.Base, folder: str, overwrite: bool = False) -> None:
    """Writes a pack as a folder that AdapterHub's `load_adapter` reads; complete or not at all.

    Args:
      pack: of the tuning mode `adapter`.
      base: what it was trained on.
      folder: gets the adapter, its head, the LayerNorms and a `README.md` with the lines that load them.
      overwrite: whether an earlier export may be replaced.

    Raises:
      errors.UserError: AdapterHub has no form for the pack, it belongs to another base, or the folder is taken.
    """
    config = pack.config
    _check_exportable(config)
    packs.check(pack, "The pack to be exported")
    packs.check_base(pack, config.task, base.digests(), base.folder)
    packs.check_architecture(pack, config.task, base.config().to_dict(), base.config_file)
    name = adapter_name(config.task)
    rows = adapter_rows(config.bert_config, config.adapter_config, name)
    of_head = head_rows(f"heads.{name}.1", len(config.labels) or 1, config.bert_config)
    norms = norm_rows(config.bert_config)
    texts = {
        CONFIG: _json(_describe_adapter(config, name)),
        HEAD_CONFIG: _json(_describe_head(config, name)),
        README: _describe_folder(config),
    }
    with huggingface.folder_at_once(folder, FILES, overwrite) as staging:
        for file_name, text in texts.items():
            huggingface.write_text(os.path.join(staging, file_name), text)
        for file_name, table, prefix in (
            (WEIGHTS, rows, "bert."),
            (LAYER_NORMS, norms, "bert."),
            (HEAD_WEIGHTS, of_head, ""),
        ):
            tensors = {prefix + row.hf: _to_theirs(row, pack.tensors[row.google]) for row in table}
            huggingface.write_tensors(os.path.join(staging, file_name), tensors)


def adapter_name(task: str) -> str:
    """The name of a task's adapter at AdapterHub, where it is part of the weights' names."""
    name = re.sub(r"[^\w-]", "_", task) or "task"
    return f"{name}_task" if _TAKEN.match(name) or name.startswith("_") else name


def _check_exportable(config: packs.PackConfig) -> None:
    if config.tuning_mode != "adapter":
        raise errors.UserError(
            f"The pack of {config.task} was trained in the mode {config.tuning_mode!r}; expected 'adapter': AdapterHub "
            "has a form for adapters only, not for BERT's own weights."
        )
    if config.tokenizer.get("type") == "sentencepiece":
        raise errors.UserError(
            f"The pack of {config.task} splits text by SentencePiece; expected WordPiece: Hugging Face's BERT has no "
            "other."
        )
    if len(config.labels) == 1:
        raise errors.UserError(
            f"The pack of {config.task} has the one class {config.labels[0]!r}; expected two or more: AdapterHub takes "
            "a head with one unit for a regression."
        )


def adapter_rows(config: modeling.BertConfig, adapter: AdapterConfig, name: str) -> List[TensorRow]:
    """The adapters' tensors under both names."""
    hidden, size, rows = config.hidden_size, adapter.size, []
    for layer in range(config.num_hidden_layers):
        for sublayer, part in _PARTS.items():
            if adapter.covers(layer, sublayer):
                theirs = f"encoder.layer.{layer}.{part}.adapters.{name}"
                ours = f"bert/encoder/layer_{layer}/{part.replace('.', '/')}/adapters"
                rows += [
                    TensorRow(f"{theirs}.adapter_down.0.weight", f"{ours}/weights1", (hidden, size), True),
                    TensorRow(f"{theirs}.adapter_down.0.bias", f"{ours}/biases1", (1, size)),
                    TensorRow(f"{theirs}.adapter_up.weight", f"{ours}/weights2", (size, hidden), True),
                    TensorRow(f"{theirs}.adapter_up.bias", f"{ours}/biases2", (1, hidden)),
                ]
    return rows


def norm_rows(config: modeling.BertConfig) -> List[TensorRow]:
    """The LayerNorms' tensors under both names."""
    return [r for r in huggingface.tensor_table(config.to_dict()) if parameters.group_of(r.google) == "LayerNorm"]


def head_rows(prefix: str, units: int, config: modeling.BertConfig) -> List[TensorRow]:
    """The head's tensors under both names; `prefix` is that of the linear layer."""
    return [
        TensorRow(f"{prefix}.weight", "output_weights", (units, config.hidden_size)),
        TensorRow(f"{prefix}.bias", "output_bias", (units,)),
    ]


def _their_shape(row: TensorRow) -> Tuple[int, ...]:
    if row.transposed:
        return row.shape[::-1]
    return row.shape[1:] if "/adapters/biases" in row.google else row.shape


def _to_theirs(row: TensorRow, value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray((value.T if row.transposed else value).reshape(_their_shape(row)))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _describe_both(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    """What the descriptions of adapter and head have in common."""
    return {
        "model_type": "bert",
        "model_class": "BertAdapterModel",
        "model_name": None,
        "hidden_size": config.bert_config.hidden_size,
        "name": name,
        "version": VERSION,
    }


def _describe_adapter(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    adapter, bert = config.adapter_config, config.bert_config
    values = {key: allowed[0] for key, allowed in _FIXED.items() if key != "architecture"}
    values.update(
        mh_adapter=adapter.placement in ("both", "attention"),
        output_adapter=adapter.placement in ("both", "feedforward"),
        reduction_factor=reduction_factor(bert.hidden_size, adapter.size),
        non_linearity={ours: theirs for theirs, ours in reversed(_ACTIVATIONS)}[adapter.activation],
        leave_out=[n for n in range(bert.num_hidden_layers) if adapter.layers is not None and n not in adapter.layers],
    )
    # The last two are ours: what a later import checks.
    return dict(_describe_both(config, name), config=values, base_fingerprint=config.base, layer_norms=LAYER_NORMS)


def _describe_head(config: packs.PackConfig, name: str) -> Dict[str, Any]:
    values = dict(
        _HEAD_FIXED,
        num_labels=len(config.labels) or 1,
        label2id={label: number for number, label in enumerate(config.labels)} or None,
        activation_function=None,  # between layers, of which there is one
        dropout_prob=heads.HEAD_DROPOUT,
    )
    return dict(_describe_both(config, name), config=values)


def _describe_folder(config: packs.PackConfig) -> str:
    return _README.format(
        task=config.task,
        size=config.adapter_config.size,
        head="with a head for " + (f"{len(config.labels)} classes" if config.labels else "a regression"),
        version=VERSION.replace(".", " ", 1),
        layer_norms=LAYER_NORMS,
        base=config.base,
        base_place=BASE_PLACE,
        folder_place=FOLDER_PLACE,
        lower=bool(config.tokenizer.get("do_lower_case", True)),
        length=config.max_seq_length,
        outputs=f"The logits are those of, in this order: {', '.join(config.labels)}." if config.labels else
        "The one number is the prediction.",
    )


def reduction_factor(hidden_size: int, size: int) -> float:
    """The factor from which AdapterHub computes this size, which it takes in no other way."""
    if hidden_size % size == 0:
        return hidden_size // size
    # Half a unit more, so that rounding down gives the size whatever the fraction's last digit.
    return hidden_size / (size + 0.5)


def _bottleneck_size(hidden_size: int, factor: float) -> int:
    return max(int(hidden_size // factor), 1)


class _Head(NamedTuple):
    """What a head's description says: the prefix of its linear layer, its units, the names of the classes."""

    prefix: str
    units: int
    labels: Optional[List[str]]


def read(
    folder: str,
    base: bases.Base,
    task: str,
    labels: Optional[Sequence[str]],
    created: str,
    max_seq_length: int,
    do_lower_case: bool,
) -> packs.Pack:
    """Reads a folder that AdapterHub's `save_adapter(…, use_safetensors=True)` has written, head included.

    AdapterHub's dropouts act in training only and are passed over.

    Args:
      folder: local.
      base: the BERT that the adapter was trained on, which AdapterHub does not note in a way that could be checked.
        Its LayerNorms go into the pack where the folder has none of its own.
      task: name of the task.
      labels: of the classes, in the head's order; empty for a regression; None to take the head's own.
      created: the pack's date.
      max_seq_length: tokens of a sequence in training.
      do_lower_case: whether text was lower-cased in training.

    Raises:
      errors.UserError: the folder is incomplete, or holds what the network here cannot express.
    """
    if not os.path.isdir(folder):
        raise errors.UserError(f"There is no folder {folder}; expected one that AdapterHub's save_adapter has written.")
    described = _read_config(folder, CONFIG)
    bert = base.config()
    _check_described(folder, described, bert)
    adapter = _read_adapter_config(os.path.join(folder, CONFIG), described["config"], bert)
    head = _read_head_config(folder)
    weights = _weights_file(folder, WEIGHTS, PICKLE)
    tensors = _read_tensors(weights, adapter_rows(bert, adapter, described["name"]))
    of_head = head_rows(head.prefix, head.units, bert)
    tensors.update(_read_tensors(_weights_file(folder, HEAD_WEIGHTS, HEAD_PICKLE), of_head))
    pretrained = base.tensors()
    norms = _read_norms(folder, described, bert)
    tensors.update(norms or {row.google: pretrained[row.google] for row in norm_rows(bert)})
    config = packs.PackConfig(
        task=task,
        architecture=bert.to_dict(),
        tuning_mode="adapter",
        head="regression" if head.units == 1 else "classification",
        labels=_choose_labels(folder, head, labels),
        tokenizer=base.describe_tokenizer(do_lower_case),
        max_seq_length=max_seq_length,
        base=None,
        created=created,
        adapter=packs.describe_adapter(adapter),
        origin={"adapterhub": described, "layer_norms": LAYER_NORMS if norms else "of the base"},
    )
    config = dataclasses.replace(config, base=_base_fingerprint(folder, described, config, pretrained))
    pack = packs.Pack(config, {name: tensors[name] for name in packs.expected_shapes(config)})
    packs.check(pack, f"The AdapterHub folder {folder}")
    return pack


def _read_config(folder: str, name: str) -> Dict[str, Any]:
    content = huggingface.read_json(os.path.join(folder, name))
    if not str(content.get("version")).startswith("adapters."):
        raise errors.UserError(
            f"{os.path.join(folder, name)} has version = {json.dumps(content.get('version'))}; expected 'adapters.…': "
            "before, names of activations meant others. Load it with AdapterHub's adapters and save it again."
        )
    return content


def _check_described(folder: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> None:
    path = os.path.join(folder, CONFIG)
    for key, expected in (("model_type", "bert"), ("hidden_size", bert.hidden_size)):
        if described.get(key) != expected:
            raise errors.UserError(
                f"{path} has {key} = {json.dumps(described.get(key))}; expected {json.dumps(expected)}, as the base."
            )
    if not isinstance(described.get("config"), dict) or not isinstance(described.get("name"), str):
        raise errors.UserError(f"{path} does not describe an adapter: it lacks its name or its config.")


def _read_adapter_config(path: str, values: Mapping[str, Any], bert: modeling.BertConfig) -> AdapterConfig:
    """Our adapters, if theirs are no others."""
    for key, found in values.items():
        if key in _FIXED and found not in _FIXED[key]:
            allowed = " or ".join(json.dumps(value) for value in _FIXED[key])
            raise errors.UserError(
                f"{path} has {key} = {json.dumps(found)}; expected {allowed}: the network here has no other adapters "
                "than those of AdapterHub's DoubleSeqBnConfig."
            )
        if key not in _FIXED and key not in _READ and not _WITHOUT_EFFECT.match(key):
            raise errors.UserError(f"{path} has the unknown key {key}: what it asks for is not known here.")
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


def _read_layers(path: str, left_out: Any, num_layers: int) -> Tuple[int, ...]:
    """The layers with adapters."""
    if not isinstance(left_out, list) or not all(type(layer) is int for layer in left_out):
        raise errors.UserError(f"{path} has leave_out = {json.dumps(left_out)}; expected a list of layers.")
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
        raise errors.UserError(
            f"{path} has reduction_factor = {json.dumps(factors)}; expected a number above 0 for every layer."
        )
    sizes = sorted({_bottleneck_size(hidden_size, factor) for factor in chosen})
    if len(sizes) > 1:
        raise errors.UserError(
            f"{path} has different reduction_factor by layer, sizes {sizes}; expected one: the network here has "
            "adapters of one size."
        )
    return sizes[0]


def _read_head_config(folder: str) -> _Head:
    """What stands in `head_config.json`, if it is our head."""
    path = os.path.join(folder, HEAD_CONFIG)
    if not os.path.isfile(path):
        raise errors.UserError(
            f"There is no head in {folder} ({HEAD_CONFIG} is missing), and without one a pack predicts nothing: save "
            "the adapter with its head (save_adapter's with_head=True)."
        )
    described = _read_config(folder, HEAD_CONFIG)
    values = described.get("config")
    if values is None and described.get("model_class") == _STATIC_HEAD:
        prefix, values = "classifier", described
    elif isinstance(values, dict):
        prefix = f"heads.{described.get('name')}.1"
        for key, expected in _HEAD_FIXED.items():
            found = values.get(key, True if key == "bias" else None)
            if found != expected:
                raise errors.UserError(
                    f"{path} has {key} = {json.dumps(found)}; expected {json.dumps(expected)}: the head here is one "
                    "linear layer on the frozen pooler (add_classification_head(…, layers=1, use_pooler=True))."
                )
    else:
        raise errors.UserError(
            f"{path} has the head of a {described.get('model_class')}; expected that of a BertAdapterModel or of a "
            f"{_STATIC_HEAD}."
        )
    units, ids = values.get("num_labels"), values.get("label2id")
    if type(units) is not int or units < 1:
        raise errors.UserError(f"{path} has num_labels = {json.dumps(units)}; expected a whole number above 0.")
    if not ids:
        return _Head(prefix, units, None)
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(units))):
        raise errors.UserError(f"{path} has label2id = {json.dumps(ids)}; expected the numbers 0 to {units - 1}.")
    return _Head(prefix, units, sorted(ids, key=lambda label: int(ids[label])))


def _choose_labels(folder: str, head: _Head, labels: Optional[Sequence[str]]) -> List[str]:
    """The labels of the pack; those that are given count, but never in another order than the head's."""
    if head.units == 1:
        if labels:
            raise errors.UserError(f"The head in {folder} has one unit, a regression; {len(labels)} labels were given.")
        return []
    theirs = head.labels or [f"LABEL_{number}" for number in range(head.units)]
    if labels is None:
        return theirs
    if len(labels) != head.units:
        raise errors.UserError(
            f"The head in {folder} has {head.units} classes ({huggingface.some(theirs)}); {len(labels)} labels were "
            f"given: {huggingface.some(list(labels))}."
        )
    moved = [label for number, label in enumerate(labels) if label in theirs and theirs[number] != label]
    if moved:
        raise errors.UserError(
            f"The head in {folder} has its classes in the order {', '.join(theirs)}; the labels were given as "
            f"{', '.join(labels)}. Give them in the head's order."
        )
    return list(labels)


def _weights_file(folder: str, name: str, pickle: str) -> str:
    path = os.path.join(folder, name)
    if os.path.isfile(path):
        return path
    if os.path.isfile(os.path.join(folder, pickle)):
        raise errors.UserError(
            f"{folder} holds its weights only as a pickle ({pickle}): pickles from outside are not loaded, because "
            "they can run code. Load it with AdapterHub and save it again with model.save_adapter(folder, name, "
            "use_safetensors=True)."
        )
    raise errors.UserError(f"There is no {name} in {folder}; it holds {huggingface.some(sorted(os.listdir(folder)))}.")


def _read_norms(folder: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> Dict[str, np.ndarray]:
    """The LayerNorms beside an adapter; nothing where there are none and none are promised."""
    path = os.path.join(folder, LAYER_NORMS)
    if os.path.isfile(path):
        return _read_tensors(path, norm_rows(bert))
    if described.get("layer_norms"):
        raise errors.UserError(
            f"There is no {LAYER_NORMS} in {folder}, but its {CONFIG} says that the LayerNorms were trained: take it "
            "from the folder's source again."
        )
    return {}


def _read_tensors(path: str, table: Sequence[TensorRow]) -> Dict[str, np.ndarray]:
    """The values by Google's names, if the file holds exactly what the table lists."""
    stored = huggingface.stored_tensors([path])
    by_name = {huggingface.canonical_name(tensor.name): tensor for tensor in stored}
    if len(by_name) < len(stored):
        raise errors.UserError(f"{path} holds a tensor twice, with and without the prefix 'bert.'.")
    expected = {row.hf: _their_shape(row) for row in table}
    misfit = modeling.describe_misfit(expected, {name: tensor.shape for name, tensor in by_name.items()})
    if misfit:
        raise errors.UserError(f"{path} does not hold what its configuration asks for: {misfit}")
    surplus = [tensor.name for name, tensor in by_name.items() if name not in expected]
    if surplus:
        raise errors.UserError(
            f"{path} holds {len(surplus)} tensors that its configuration does not ask for: {huggingface.some(surplus)}."
        )
    tensors = {}
    for row in table:
        tensor = by_name[row.hf]
        if tensor.dtype not in huggingface.FLOAT_TYPES:
            raise errors.UserError(f"{path}: {tensor.name} is {tensor.dtype}; expected F32, F16 or BF16.")
        value = huggingface.load_tensor(tensor)
        tensors[row.google] = np.ascontiguousarray((value.T if row.transposed else value).reshape(row.shape))
    return tensors


def _base_fingerprint(
    folder: str, described: Mapping[str, Any], config: packs.PackConfig, pretrained: Mapping[str, np.ndarray]
) -> str:
    """That of the base's frozen weights, if the folder does not name another."""
    names = packs.frozen_names(config)
    found = fingerprints.combine(fingerprints.of_tensors({name: pretrained[name] for name in names}))
    expected = described.get("base_fingerprint", found)
    if found != expected:
        raise errors.UserError(
            f"The adapter in {folder} was trained on a base whose frozen weights have the fingerprint {expected}; "
            f"those of the base that was given have {found}."
        )
    return found
