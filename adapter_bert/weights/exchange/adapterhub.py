"""Adapter packs <-> AdapterHub's adapter folders (the library `adapters`, PyTorch), without PyTorch.

AdapterHub's bottleneck (`BnConfig`, as `DoubleSeqBnConfig` sets it) holds our adapters as they are: size, activation,
layers, sub-layers. Its `classification` head with one layer on the pooler is our head; one label means a regression.
Its `question_answering` head with one layer is our head for spans: row 0 is the start, row 1 the end.

It cannot hold BERT's LayerNorms: `save_adapter` keeps the weights of adapter modules and of the head, nothing of the
base, which `train_adapter` freezes as a whole. A pack's LayerNorms therefore lie beside the adapter in a file of their
own, under Hugging Face's names, and `README.md` shows how all is loaded. It has no form for the other tuning modes.

Here are the folders: which files, which tensors under which names, the `README.md`. What stands in the two files of
JSON is in `adapterhub_configs`. Only safetensors are read and written: a pickle can run code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

import modeling
from adapter_bert.common import errors
from adapter_bert.common.text import first_names
from adapter_bert.model import parameters
from adapter_bert.weights import bases, fingerprints, packs
from adapter_bert.weights.exchange import adapterhub_configs as configs
from adapter_bert.weights.exchange import huggingface
from adapter_bert.weights.exchange.huggingface import TensorRow
from adapter_layers import AdapterConfig

WEIGHTS, PICKLE = "adapter.safetensors", "pytorch_adapter.bin"
HEAD_WEIGHTS, HEAD_PICKLE = "model_head.safetensors", "pytorch_model_head.bin"
LAYER_NORMS, README = "layer_norms.safetensors", "README.md"
FILES = (configs.CONFIG, WEIGHTS, configs.HEAD_CONFIG, HEAD_WEIGHTS, LAYER_NORMS, README)
# Stands in the generated code for the folder of the base, and for that of the adapter.
BASE_PLACE, FOLDER_PLACE = 'BASE = "path/to/the/base"', 'FOLDER = "."'

_PARTS = {"attention": "attention.output", "feedforward": "output"}
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
{use}
```

{outputs}
"""

_USE = """# For tasks of pairs: tokenizer("A sentence.", "Another one.", …)
inputs = tokenizer("A sentence.", truncation=True, max_length={length}, return_tensors="pt")
print(model(**inputs).logits)"""
_USE_ON_SPANS = """lengths = {{"truncation": "only_second", "max_length": {length}}}
output = model(**tokenizer("A question?", "A text.", return_tensors="pt", **lengths))
print(output.start_logits, output.end_logits)"""


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
    # The last two are ours: what a later import checks.
    described = dict(configs.describe_adapter(config, name), base_fingerprint=config.base, layer_norms=LAYER_NORMS)
    texts = {
        configs.CONFIG: _json(described),
        configs.HEAD_CONFIG: _json(configs.describe_head(config, name)),
        README: _readme(config),
    }
    head, bert = configs.head_of(config, name), config.bert_config
    tables = {
        WEIGHTS: ("bert.", adapter_rows(bert, config.adapter_config, name)),
        LAYER_NORMS: ("bert.", norm_rows(bert)),
        HEAD_WEIGHTS: ("", head_rows(head.prefix, head.units, bert, head.scope)),
    }
    with huggingface.folder_at_once(folder, FILES, overwrite) as staging:
        for file_name, text in texts.items():
            huggingface.write_text(os.path.join(staging, file_name), text)
        for file_name, (prefix, table) in tables.items():
            tensors = {prefix + row.hf: _turned(row, pack.tensors[row.google], _their_shape(row)) for row in table}
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


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _readme(config: packs.PackConfig) -> str:
    """What the folder holds, and the lines that load it."""
    head, outputs = {
        "classification": (
            f"{len(config.labels)} classes",
            f"The logits are those of, in this order: {', '.join(config.labels)}.",
        ),
        "regression": ("a regression", "The one number is the prediction."),
        "span": (
            "the start and the end of an answer",
            "The logits are, for each token, that the answer starts and that it ends there; token 0, `[CLS]`, stands "
            "for no\nanswer. A text that is longer than a sequence is cut here: answer it window by window.",
        ),
    }[config.head]
    use = _USE_ON_SPANS if config.head == "span" else _USE
    return _README.format(
        task=config.task,
        size=config.adapter_config.size,
        head=f"with a head for {head}",
        version=configs.VERSION.replace(".", " ", 1),
        layer_norms=LAYER_NORMS,
        base=config.base,
        base_place=BASE_PLACE,
        folder_place=FOLDER_PLACE,
        lower=bool(config.tokenizer.get("do_lower_case", True)),
        use=use.format(length=config.max_seq_length),
        outputs=outputs,
    )


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
      labels: of the classes, in the head's order; empty for a regression and for spans; None to take the head's own.
      created: the pack's date.
      max_seq_length: tokens of a sequence in training.
      do_lower_case: whether text was lower-cased in training.

    Raises:
      errors.UserError: the folder is incomplete, or holds what the network here cannot express.
    """
    if not os.path.isdir(folder):
        raise errors.UserError(f"There is no folder {folder}; expected one that AdapterHub's save_adapter has written.")
    path = os.path.join(folder, configs.CONFIG)
    described, bert = configs.load(path), base.config()
    adapter = configs.read_adapter(path, described, bert)
    head = configs.read_head(folder)
    of_adapter = adapter_rows(bert, adapter, described["name"])
    tensors = _read_tensors(_weights_file(folder, WEIGHTS, PICKLE), of_adapter)
    of_head = head_rows(head.prefix, head.units, bert, head.scope)
    tensors.update(_read_tensors(_weights_file(folder, HEAD_WEIGHTS, HEAD_PICKLE), of_head))
    pretrained = base.tensors()
    norms = _read_norms(folder, described, bert)
    tensors.update(norms or {row.google: pretrained[row.google] for row in norm_rows(bert)})
    config = packs.PackConfig(
        task=task,
        architecture=bert.to_dict(),
        tuning_mode="adapter",
        head=head.kind,
        labels=configs.choose_labels(folder, head, labels),
        tokenizer=base.describe_tokenizer(do_lower_case),
        max_seq_length=max_seq_length,
        base=None,
        created=created,
        adapter=packs.describe_adapter(adapter),
        origin={"adapterhub": described, "layer_norms": LAYER_NORMS if norms else "of the base"},
    )
    config = dataclasses.replace(config, base=_base_fingerprint(folder, described, config, pretrained))
    pack = packs.Pack(config, {name: tensors[name] for name in config.trained_shapes()})
    packs.check(pack, f"The AdapterHub folder {folder}")
    return pack


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
    raise errors.UserError(f"There is no {name} in {folder}; it holds {first_names(sorted(os.listdir(folder)))}.")


def _read_norms(folder: str, described: Mapping[str, Any], bert: modeling.BertConfig) -> Dict[str, np.ndarray]:
    """The LayerNorms beside an adapter; nothing where there are none and none are promised."""
    path = os.path.join(folder, LAYER_NORMS)
    if os.path.isfile(path):
        return _read_tensors(path, norm_rows(bert))
    if described.get("layer_norms"):
        raise errors.UserError(
            f"There is no {LAYER_NORMS} in {folder}, but its {configs.CONFIG} says that the LayerNorms were trained: "
            "take it from the folder's source again."
        )
    return {}


def _read_tensors(path: str, table: Sequence[TensorRow]) -> Dict[str, np.ndarray]:
    """The values by Google's names, if the file holds exactly what the table lists."""
    stored = huggingface.stored_tensors([path])
    by_name = {huggingface.canonical_name(tensor.name): tensor for tensor in stored}
    if len(by_name) < len(stored):
        raise errors.UserError(f"{path} holds a tensor twice, with and without the prefix 'bert.'.")
    expected = {row.hf: _their_shape(row) for row in table}
    misfit = modeling.describe_mismatch(expected, {name: tensor.shape for name, tensor in by_name.items()})
    if misfit:
        raise errors.UserError(f"{path} does not hold what its configuration asks for: {misfit}")
    surplus = [tensor.name for name, tensor in by_name.items() if name not in expected]
    if surplus:
        raise errors.UserError(
            f"{path} holds {len(surplus)} tensors that its configuration does not ask for: {first_names(surplus)}."
        )
    tensors = {}
    for row in table:
        tensor = by_name[row.hf]
        if tensor.dtype not in huggingface.FLOAT_TYPES:
            raise errors.UserError(f"{path}: {tensor.name} is {tensor.dtype}; expected F32, F16 or BF16.")
        tensors[row.google] = _turned(row, huggingface.load_tensor(tensor), row.shape)
    return tensors


def _base_fingerprint(
    folder: str, described: Mapping[str, Any], config: packs.PackConfig, pretrained: Mapping[str, np.ndarray]
) -> str:
    """That of the base's frozen weights, if the folder does not name another."""
    names = config.frozen_names()
    found = fingerprints.combine(fingerprints.of_tensors({name: pretrained[name] for name in names}))
    expected = described.get("base_fingerprint", found)
    if found != expected:
        raise errors.UserError(
            f"The adapter in {folder} was trained on a base whose frozen weights have the fingerprint {expected}; "
            f"those of the base that was given have {found}."
        )
    return found


# ------------------------------------------------------------------------------------- tensors under both names


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


def head_rows(prefix: str, units: int, config: modeling.BertConfig, scope: str = "") -> List[TensorRow]:
    """The head's tensors under both names; `prefix` is that of their linear layer, `scope` that of our variables."""
    return [
        TensorRow(f"{prefix}.weight", f"{scope}output_weights", (units, config.hidden_size)),
        TensorRow(f"{prefix}.bias", f"{scope}output_bias", (units,)),
    ]


def _their_shape(row: TensorRow) -> Tuple[int, ...]:
    if row.transposed:
        return row.shape[::-1]
    return row.shape[1:] if "/adapters/biases" in row.google else row.shape


def _turned(row: TensorRow, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A tensor as the other side stores it, where it has this shape."""
    return np.ascontiguousarray((value.T if row.transposed else value).reshape(shape))
