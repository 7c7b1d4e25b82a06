"""Convert adapter packs to AdapterHub's adapter folders (the PyTorch library `adapters`), and back, without PyTorch.

AdapterHub's `DoubleSeqBnConfig` is exactly our adapter: size, activation, layers, sub-layers. Its `classification` head
with one layer on the pooler is our head; one label means regression. Its `question_answering` head with one layer is
our span head: row 0 is the start, row 1 the end.

AdapterHub cannot store LayerNorms, which it freezes with the rest of BERT. A pack's LayerNorms are written to a
separate file, and the exported `README.md` shows how to load everything. AdapterHub has no equivalent of the other
tuning modes.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from adapter_bert.common import errors, files
from adapter_bert.common.text import first_names
from adapter_bert.weights import bases, fingerprints, packs
from adapter_bert.weights.exchange import ImportedTask, tensor_files
from adapter_bert.weights.exchange import adapterhub_configs as configs
from adapter_bert.weights.exchange.tensor_names import TensorRow, adapter_rows, head_rows, norm_rows
from adapter_layers import AdapterConfig

WEIGHTS, HEAD_WEIGHTS = "adapter.safetensors", "model_head.safetensors"
LAYER_NORMS, README = "layer_norms.safetensors", "README.md"
FILES = (configs.CONFIG, WEIGHTS, configs.HEAD_CONFIG, HEAD_WEIGHTS, LAYER_NORMS, README)
_PICKLES = {WEIGHTS: "pytorch_adapter.bin", HEAD_WEIGHTS: "pytorch_model_head.bin"}
# Lines of the code in README.md that its reader has to edit.
BASE_LINE, FOLDER_LINE = 'BASE = "path/to/the/base"', 'FOLDER = "."'

# Task names that cannot be adapter names, because PyTorch modules have attributes with these names.
_RESERVED = re.compile(
    r"^(add_module|apply|buffers|children|clear|compile|cpu|cuda|double|eval|float|forward|half|items|ipu|keys|modules|"
    r"mtia|parameters|pop|state_dict|to|train|training|type|update|values|xpu)$"
)

_README = """# {task}: an adapter for AdapterHub

Two bottleneck adapters per layer (Houlsby et al., 2019) of size {size} with a head for {head}, written for `{version}`.

BERT's LayerNorms were trained together with the adapters. AdapterHub's adapters cannot store them: they are in
`{layer_norms}` and replace those of the base, so a model can hold only one such task at a time. Without
them, the predictions are not those of the trained network.

`BASE` is the BERT on which the adapter was trained (frozen weights `{base}`), in Hugging Face's layout.
`scripts/convert_hf_checkpoint.py --base_dir` of the project converts a base from Google's layout.

```python
from adapters import BertAdapterModel
from safetensors.torch import load_file
from transformers import BertTokenizer

{base_line}
{folder_line}

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
_USE = """# For sentence pairs: tokenizer("A sentence.", "Another one.", ...)
inputs = tokenizer("A sentence.", truncation=True, max_length={length}, return_tensors="pt")
print(model(**inputs).logits)"""
_USE_SPANS = """lengths = {{"truncation": "only_second", "max_length": {length}}}
output = model(**tokenizer("A question?", "A text.", return_tensors="pt", **lengths))
print(output.start_logits, output.end_logits)"""
_SPAN_OUTPUTS = """For every token, the logits that the answer starts and ends there; token 0, `[CLS]`, means no
answer. This code truncates a text that is longer than a sequence; to search all of it, split it into windows."""


def export(pack: packs.Pack, base: bases.Base, folder: str, overwrite: bool = False) -> None:
    """Write a pack as a folder for AdapterHub's `load_adapter`.

    Args:
      pack: a pack of the tuning mode `adapter`.
      base: the base on which it was trained.
      folder: receives the adapter, its head, the LayerNorms, and a `README.md` with the code that loads them.
      overwrite: replace an earlier export.

    Raises:
      errors.UserError: AdapterHub does not support the pack, it belongs to another base, or the folder is in use or
        contains other files.
    """
    config = pack.config
    tensor_files.check_export(folder, FILES, overwrite)
    adapter = _check_exportable(config)
    packs.check(pack, "The pack to export")
    packs.check_base(pack, config.task, base.digests, base.folder)
    packs.check_architecture(pack, config.task, base.config.to_dict(), base.config_file)
    name = adapter_name(config.task)
    # AdapterHub ignores the last two entries; `read` checks them.
    described = dict(
        configs.describe_adapter(config, adapter, name), base_fingerprint=config.base, layer_norms=LAYER_NORMS
    )
    head, bert = configs.head_of(config, name), config.bert_config
    tables = {
        WEIGHTS: ("bert.", adapter_rows(bert, adapter, name)),
        LAYER_NORMS: ("bert.", norm_rows(bert)),
        HEAD_WEIGHTS: ("", head_rows(head.prefix, head.units, bert, head.scope)),
    }
    with tensor_files.replaced_folder(folder) as staging:
        tensor_files.write_json(os.path.join(staging, configs.CONFIG), described)
        tensor_files.write_json(os.path.join(staging, configs.HEAD_CONFIG), configs.describe_head(config, name))
        files.write_text(os.path.join(staging, README), _readme(config, adapter.size))
        for file_name, (prefix, rows) in tables.items():
            tensors = {prefix + row.hf: row.to_hf(pack.tensors[row.google]) for row in rows}
            tensor_files.write_tensors(os.path.join(staging, file_name), tensors)


def adapter_name(task: str) -> str:
    """Return the name of a task's adapter in AdapterHub, where it is part of the tensors' names."""
    name = re.sub(r"[^\w-]", "_", task) or "task"
    return f"{name}_task" if _RESERVED.match(name) or name.startswith("_") else name


def _check_exportable(config: packs.PackConfig) -> AdapterConfig:
    """Return the adapters of a pack that AdapterHub supports."""
    adapter, problem = config.adapter_config, None
    if adapter is None:
        problem = f"was trained in the mode {config.tuning_mode!r}; AdapterHub supports only 'adapter'"
    elif config.tokenizer.get("type") == "sentencepiece":
        problem = "uses SentencePiece; Hugging Face's BERT supports only WordPiece"
    elif len(config.labels) == 1:
        problem = f"has only the class {config.labels[0]!r}; AdapterHub would treat it as a regression"
    if adapter is None or problem:
        raise errors.UserError(f"The pack of {config.task} cannot be exported to AdapterHub: it {problem}.")
    return adapter


def _readme(config: packs.PackConfig, size: int) -> str:
    head, outputs = {
        "classification": (f"{len(config.labels)} classes", f"Order of the logits: {', '.join(config.labels)}."),
        "regression": ("regression", "The single logit is the prediction."),
        "span": ("the start and the end of an answer", _SPAN_OUTPUTS),
    }[config.head]
    use = _USE_SPANS if config.head == "span" else _USE
    return _README.format(
        task=config.task,
        size=size,
        head=head,
        version=configs.VERSION.replace(".", " ", 1),
        layer_norms=LAYER_NORMS,
        base=config.base,
        base_line=BASE_LINE,
        folder_line=FOLDER_LINE,
        lower=bool(config.tokenizer.get("do_lower_case", True)),
        use=use.format(length=config.max_seq_length),
        outputs=outputs,
    )


def read(folder: str, base: bases.Base, task: ImportedTask, do_lower_case: bool) -> packs.Pack:
    """Read a folder written by AdapterHub's `save_adapter(…, use_safetensors=True)`, with its head.

    AdapterHub's dropout rates, which matter only in training, are ignored.

    Args:
      folder: a local folder.
      base: the BERT on which the adapter was trained; AdapterHub does not record it. If the folder has no LayerNorms,
        the pack gets those of the base.
      do_lower_case: whether text was lower-cased in training.

    Raises:
      errors.UserError: the folder is incomplete, or this project's network does not support its content.
    """
    if not os.path.isdir(folder):
        raise errors.UserError(f"There is no folder {folder}; expected one written by AdapterHub's save_adapter.")
    path = os.path.join(folder, configs.CONFIG)
    described, bert = configs.load(path), base.config
    adapter = configs.read_adapter(path, described, bert)
    head = configs.read_head(folder)
    tensors = _read_tensors(folder, WEIGHTS, adapter_rows(bert, adapter, described["name"]), configs.CONFIG)
    rows = head_rows(head.prefix, head.units, bert, head.scope)
    tensors.update(_read_tensors(folder, HEAD_WEIGHTS, rows, configs.HEAD_CONFIG))
    pretrained = base.tensors()
    has_norms = os.path.isfile(os.path.join(folder, LAYER_NORMS)) or bool(described.get("layer_norms"))
    if has_norms:
        tensors.update(_read_tensors(folder, LAYER_NORMS, norm_rows(bert), configs.CONFIG))
    else:
        tensors.update((row.google, pretrained[row.google]) for row in norm_rows(bert))
    config = packs.PackConfig(
        task=task.name,
        architecture=bert.to_dict(),
        tuning_mode="adapter",
        head=head.kind,
        labels=configs.choose_labels(folder, head, task.labels),
        tokenizer=dict(base.tokenizer_description, do_lower_case=do_lower_case),
        max_seq_length=task.max_seq_length,
        base=None,
        created=task.created,
        adapter=packs.describe_adapter(adapter),
        origin={"adapterhub": described, "layer_norms": LAYER_NORMS if has_norms else "of the base"},
    )
    config = dataclasses.replace(config, base=_base_fingerprint(folder, described, config, pretrained))
    pack = packs.Pack(config, {name: tensors[name] for name in config.trained_shapes()})
    packs.check(pack, f"The AdapterHub folder {folder}")
    return pack


def _read_tensors(folder: str, name: str, table: Sequence[TensorRow], config: str) -> Dict[str, np.ndarray]:
    """Return the values by Google's names, if the file contains exactly the tensors of the table."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        pickle = _PICKLES.get(name, "")
        if os.path.isfile(os.path.join(folder, pickle)):
            raise errors.UserError(
                f"{folder} contains its weights only as a pickle ({pickle}). Pickles are not loaded because they can "
                "run code; save it again in AdapterHub with model.save_adapter(folder, name, use_safetensors=True)."
            )
        names = first_names(sorted(os.listdir(folder)))
        raise errors.UserError(f"There is no {name} in {folder}, which its {config} requires; found {names}.")
    found, others = tensor_files.match_tensors(table, tensor_files.list_tensors([path]), path, config)
    if others:
        names = first_names([tensor.name for tensor in others])
        raise errors.UserError(f"{path} contains {len(others)} tensors that {config} does not describe: {names}.")
    return {row.google: row.to_google(tensor_files.load_tensor(found[row.hf])) for row in table}


def _base_fingerprint(
    folder: str, described: Mapping[str, Any], config: packs.PackConfig, pretrained: Mapping[str, np.ndarray]
) -> str:
    """Return the fingerprint of the base's frozen weights, if it is that of the folder."""
    names = config.frozen_names()
    found = fingerprints.combine(fingerprints.of_tensors({name: pretrained[name] for name in names}))
    expected = described.get("base_fingerprint", found)
    if found != expected:
        raise errors.UserError(
            f"The adapter in {folder} belongs to another base: its frozen weights have the fingerprint {expected}, "
            f"those of the given base {found}."
        )
    return found
