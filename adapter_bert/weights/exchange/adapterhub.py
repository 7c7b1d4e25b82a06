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
from typing import Dict, List, Sequence

import numpy as np

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.exchange import ImportedTask, outputs, tensors
from adapter_bert.weights.exchange import adapterhub_configs as configs
from adapter_bert.weights.exchange.tensors import TensorRow
from adapter_layers import AdapterConfig

LAYER_NORMS, README = "layer_norms.safetensors", "README.md"
# By group of variables, see `parameters.group_of`.
_WEIGHTS = {"adapters": "adapter.safetensors", "head": "model_head.safetensors", "LayerNorm": LAYER_NORMS}
_CONFIGS = {"adapters": configs.CONFIG, "head": configs.HEAD_CONFIG, "LayerNorm": configs.CONFIG}
FILES = (configs.CONFIG, configs.HEAD_CONFIG, README, *_WEIGHTS.values())

# Task names that cannot be adapter names, because PyTorch modules have attributes with these names.
_RESERVED = re.compile(
    r"^(add_module|apply|buffers|children|clear|compile|cpu|cuda|double|eval|float|forward|half|items|ipu|keys|modules|"
    r"mtia|parameters|pop|state_dict|to|train|training|type|update|values|xpu)$"
)

_README = """# {config.task}: an adapter for AdapterHub

Two bottleneck adapters per layer (Houlsby et al., 2019) of size {size} with a head for {head}, written for `{version}`.

BERT's LayerNorms were trained together with the adapters. AdapterHub's adapters cannot store them: they are in
`{layer_norms}` and replace those of the base, so a model can hold only one such task at a time. Without
them, the predictions are not those of the trained network.

`BASE` is the BERT on which the adapter was trained (frozen weights `{config.base}`), in Hugging Face's layout.
`scripts/convert_hf_checkpoint.py --base_dir` of the project converts a base from Google's layout.

```python
from adapters import BertAdapterModel
from safetensors.torch import load_file
from transformers import BertTokenizer

BASE = "path/to/the/base"
FOLDER = "."

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
    """Write a pack, which was trained on this base, as a folder of `FILES` for AdapterHub's `load_adapter`."""
    config = pack.config
    output = outputs.OutputFolder(folder, FILES, overwrite, base.folder)
    adapter = _check_exportable(config)
    packs.check(pack, "The pack to export")
    packs.check_base(pack, config.task, base.digests, base.folder)
    packs.check_architecture(pack, config.task, base.config.to_dict(), base.config_file)
    name = adapter_name(config.task)
    described = configs.describe_adapter(config, adapter, name)
    described.update(base_fingerprint=config.base, layer_norms=LAYER_NORMS)  # for `read`; AdapterHub ignores them
    with output.replaced() as staging:
        files.write_json(os.path.join(staging, configs.CONFIG), described)
        files.write_json(os.path.join(staging, configs.HEAD_CONFIG), configs.describe_head(config, name))
        files.write_text(os.path.join(staging, README), _readme(config, adapter.size))
        for group, rows in _rows_by_group(config, name, configs.head_layer(name)).items():
            prefix = "" if group == "head" else "bert."
            values = {prefix + row.hf: row.to_hf(pack.tensors[row.google]) for row in rows}
            tensors.write(os.path.join(staging, _WEIGHTS[group]), values)


def _rows_by_group(config: packs.PackConfig, adapter: str, head: str) -> Dict[str, List[TensorRow]]:
    """Return the tensors of a pack by group; the last two arguments are those of `make_rows`."""
    rows = tensors.make_rows(config.trained_shapes(), adapter, head)
    return {group: [row for row in rows if parameters.group_of(row.google) == group] for group in _WEIGHTS}


def adapter_name(task: str) -> str:
    """Return the name of a task's adapter in AdapterHub, where it is part of the tensors' names."""
    name = re.sub(r"[^\w-]", "_", task) or "task"
    return f"{name}_task" if _RESERVED.match(name) or name.startswith("_") else name


def _check_exportable(config: packs.PackConfig) -> AdapterConfig:
    """Return the adapters of a pack that AdapterHub supports."""
    adapter, problem = config.adapter_config, None
    if adapter is None:
        problem = f"was trained in the mode {config.tuning_mode!r}; AdapterHub supports only 'adapter'"
    elif adapter.variant:
        problem = f"has adapters with {adapter.variant}; AdapterHub's DoubleSeqBnConfig has only the default"
    elif config.tokenizer.get("type") == "sentencepiece":
        problem = "uses SentencePiece; Hugging Face's BERT supports only WordPiece"
    elif len(config.labels) == 1:
        problem = f"has only the class {config.labels[0]!r}; AdapterHub would treat it as a regression"
    if adapter is None or problem:
        raise errors.UserError(f"The pack of {config.task} cannot be exported to AdapterHub: it {problem}.")
    return adapter


def _readme(config: packs.PackConfig, size: int) -> str:
    order = f"Order of the logits: {', '.join(config.labels)}."
    head, use, outputs = {
        "classification": (f"{len(config.labels)} classes", _USE, order),
        "regression": ("regression", _USE, "The single logit is the prediction."),
        "span": ("the start and the end of an answer", _USE_SPANS, _SPAN_OUTPUTS),
    }[config.head]
    return _README.format(
        config=config,
        size=size,
        head=head,
        version=configs.VERSION.replace(".", " ", 1),
        layer_norms=LAYER_NORMS,
        lower=bool(config.tokenizer.get("do_lower_case", True)),
        use=use.format(length=config.max_seq_length),
        outputs=outputs,
    )


def read(folder: str, base: bases.Base, task: ImportedTask) -> packs.Pack:
    """Read a folder written by AdapterHub's `save_adapter(…, use_safetensors=True)`, with its head.

    The base is the BERT on which the adapter was trained, which AdapterHub does not record. If the folder has no
    LayerNorms, the pack gets those of the base. Dropout rates, which matter only in training, are ignored.
    """
    if not os.path.isdir(folder):
        raise errors.UserError(f"There is no local folder {folder}; expected one written by AdapterHub's save_adapter.")
    path = os.path.join(folder, configs.CONFIG)
    described = configs.load(path)
    adapter = configs.read_adapter(path, described, base.config)
    head = configs.read_head(folder)
    shapes = {name: tensor.shape for name, tensor in _list_tensors(folder, "head").items()}
    head.check_shape(base.config.hidden_size, shapes, os.path.join(folder, _WEIGHTS["head"]))
    has_norms = os.path.isfile(os.path.join(folder, LAYER_NORMS)) or bool(described.get("layer_norms"))
    config = task.pack_config(
        base,
        adapter,
        head=head.kind,
        labels=task.choose_labels(f"{head.kind} head in {folder}", head.labels),
        origin={"adapterhub": described, "layer_norms": LAYER_NORMS if has_norms else "of the base"},
    )
    digests = base.digests
    fingerprint = described.get("base_fingerprint", fingerprints.combine(digests, config.frozen_names()))
    values: Dict[str, np.ndarray] = {}
    for group, rows in _rows_by_group(config, described["name"], head.layer).items():
        if group == "LayerNorm" and not has_norms:
            values.update(checkpoints.each_tensor(base.checkpoint, [row.google for row in rows]))
        else:
            values.update(_read_tensors(folder, group, rows))
    ordered = {name: values[name] for name in config.trained_shapes()}
    pack = packs.Pack(dataclasses.replace(config, base=fingerprint), ordered)
    packs.check(pack, f"The AdapterHub folder {folder}")
    packs.check_base(pack, folder, digests, base.folder)
    return pack


def _list_tensors(folder: str, group: str) -> Dict[str, tensors.StoredTensor]:
    """Return the tensors in the file of a group; a missing file raises a `UserError`."""
    name = _WEIGHTS[group]
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        pickle = "pytorch_" + name.replace(".safetensors", ".bin")
        advice = "save it again in AdapterHub with model.save_adapter(folder, name, use_safetensors=True)"
        raise tensors.missing_weights(folder, f"{name}, which {_CONFIGS[group]} requires,", [pickle], advice)
    return tensors.list_stored([path])


def _read_tensors(folder: str, group: str, rows: Sequence[TensorRow]) -> Dict[str, np.ndarray]:
    """Return the values by Google's names, if the file of this group contains exactly these tensors."""
    where = os.path.join(folder, _WEIGHTS[group])
    return tensors.load(rows, _list_tensors(folder, group), where, _CONFIGS[group])[0]
