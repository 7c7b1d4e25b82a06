"""Adapters, packs and heads compute the same here and in AdapterHub's `adapters`, in both directions.

AdapterHub's `DoubleSeqBnConfig` is the adapter of Houlsby et al. (2019). Only its activation and size are set.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest

from adapter_bert.model import heads, parameters
from adapter_bert.weights import packs
from adapter_bert.weights.exchange import ImportedTask, adapterhub, tensor_names
from adapter_layers import AdapterConfig
from tests.helpers import make_pack
from tests.parity import networks

pytestmark = pytest.mark.parity

CLASSES = ("no", "yes", "maybe")
TASK = ImportedTask("CoLA", None, 16, "2024-05-06T07:08:09Z")


# ------------------------------------------------------------------------------------- the network itself


def build_theirs(hf_dir: str, activation: str, rows, values) -> Any:
    """Return a classifier with AdapterHub's adapters of size 64 and these values in everything that is trained."""
    import adapters
    import torch
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(hf_dir, num_labels=2)
    adapters.init(model)
    factor = model.config.hidden_size // 64
    config = adapters.DoubleSeqBnConfig(non_linearity=activation, reduction_factor=factor)
    model.add_adapter("houlsby", config=config, set_active=True)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for row in rows:
            named[row.hf].copy_(torch.tensor(row.to_hf(values[row.google])))
    return model


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("relu", "relu")])
def test_outputs_gradients_and_parameter_counts_agree(real_base, batch, theirs, ours):
    import torch

    config, adapter, head = real_base.ours.config, AdapterConfig(64, ours), heads.ClassificationHead(2)
    trained = tensor_names.norm_rows(config) + tensor_names.adapter_rows(config, adapter, "houlsby")
    rows = [row._replace(hf=f"bert.{row.hf}") for row in trained] + tensor_names.head_rows("classifier", 2, config)
    pretrained = real_base.ours.tensors()
    values = networks.draw_values({row.google: row.shape for row in rows}, pretrained)
    here = networks.run_ours(config, batch, dict(pretrained, **values), head, adapter, list(values))

    model = build_theirs(real_base.hf_dir, theirs, rows, values)
    labels = torch.tensor(batch.labels, dtype=torch.long)
    there = networks.run_theirs(model, batch, labels=labels, output_hidden_states=True)
    there.loss.backward()
    last = f"layer {config.num_hidden_layers - 1}"
    states = there.hidden_states[-1].detach().numpy()[batch.real]
    networks.assert_close(f"{ours}: last layer", here[last][batch.real], states)
    networks.assert_close(f"{ours}: logits", here["logits"], there.logits.detach())
    named = dict(model.named_parameters())
    relative = {}
    for row in rows:
        gradient = row.to_google(named[row.hf].grad.numpy())
        relative[row.google] = float(np.abs(here[row.google] - gradient).max() / np.abs(gradient).max())
    worst = max(relative, key=lambda name: (np.isnan(relative[name]), relative[name]))
    print(f"{ours}: gradients, max relative difference {relative[worst]:.2e} ({worst})")
    assert relative[worst] <= networks.GRADIENT_LIMIT

    without = {name: value for name, value in values.items() if "/adapters/" not in name}
    plain = networks.run_ours(config, batch, dict(pretrained, **without), head)
    networks.assert_apart(f"{ours}: no adapters", here[last][batch.real], plain[last][batch.real])
    formula = 2 * config.num_hidden_layers * (2 * 64 * config.hidden_size + config.hidden_size + 64)
    assert sum(value.numel() for name, value in named.items() if ".adapters." in name) == formula
    assert sum(value.size for name, value in values.items() if "/adapters/" in name) == formula


# ------------------------------------------------------------------------------------------------- packs


def random_pack(base, adapter: AdapterConfig, head: str) -> packs.Pack:
    """Return a pack with random weights; its LayerNorms are those of the base, shifted."""
    labels = list(CLASSES) if head == "classification" else []
    config = make_pack(base, head=head, labels=labels, adapter=packs.describe_adapter(adapter)).config
    return packs.Pack(config, networks.draw_values(config.trained_shapes(), base.tensors()))


def our_logits(base, batch, pack: packs.Pack) -> np.ndarray:
    values, config = dict(base.tensors(), **pack.tensors), pack.config
    outputs = networks.run_ours(config.bert_config, batch, values, config.make_head(), config.adapter_config)
    return mask_padding(outputs["logits"], batch)


def their_logits(model: Any, batch) -> np.ndarray:
    import torch

    with torch.no_grad():
        output = networks.run_theirs(model, batch)
    if "start_logits" in output:
        return mask_padding(np.stack([output.start_logits, output.end_logits], axis=1), batch)
    return output.logits.numpy()


def mask_padding(logits: np.ndarray, batch) -> np.ndarray:
    """Set the logits of spans, [B, 2, S], to 0 at padding, where no answer is searched."""
    return logits * batch.mask[:, np.newaxis] if logits.ndim == 3 else logits


def load_with_readme(folder: str, hf_dir: str, with_norms: bool = True) -> Any:
    """Run the code in the README.md of an export and return its model."""
    with open(os.path.join(folder, adapterhub.README), encoding="utf-8") as file:
        code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    for line, value in ((adapterhub.BASE_LINE, hf_dir), (adapterhub.FOLDER_LINE, folder)):
        assert line in code
        code = code.replace(line, f"{line.split(' = ')[0]} = {value!r}")
    if not with_norms:
        code = re.sub(r"(?m)^unknown = .*\n^assert .*\n", "", code)
    names = {"print": lambda *values: None}
    exec(code, names)
    return names["model"]


@pytest.mark.parametrize(
    ("head", "adapter"),
    [
        ("classification", AdapterConfig(64)),
        ("regression", AdapterConfig(64, "gelu_erf")),
        ("classification", AdapterConfig(50, "relu", placement="attention")),
        ("classification", AdapterConfig(48, "tanh", placement="feedforward")),
        ("classification", AdapterConfig(8, "linear", layers=(1, 4))),
        ("regression", AdapterConfig(400, layers=(5,), placement="attention")),
        ("span", AdapterConfig(64)),
        ("span", AdapterConfig(20, "relu", layers=(0, 2))),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.size}-{value.activation}",
)
def test_an_exported_pack_has_our_logits_there_and_comes_back_to_the_bit(real_base, batch, tmp_path, head, adapter):
    pack, folder = random_pack(real_base.ours, adapter, head), str(tmp_path / "out")
    adapterhub.export(pack, real_base.ours, folder)
    ours = our_logits(real_base.ours, batch, pack)
    theirs = their_logits(load_with_readme(folder, real_base.hf_dir), batch)
    title = f"export, {head}, {adapter.size} {adapter.activation}"
    networks.assert_close(title, ours, theirs)
    without_norms = their_logits(load_with_readme(folder, real_base.hf_dir, with_norms=False), batch)
    networks.assert_apart(f"{title}: no LayerNorms", ours, without_norms)
    if head == "span":
        networks.assert_apart(f"{title}: start for end", ours, theirs[:, ::-1])
    again = adapterhub.read(folder, real_base.ours, TASK, True)
    assert again.fingerprint == pack.fingerprint
    assert (again.config.head, again.config.labels) == (head, pack.config.labels)


def make_theirs(hf_dir: str, activation: str, units: int, model_class: str) -> Any:
    """Return a model with an adapter and a head made by AdapterHub, with random weights; 0 units mean spans."""
    import adapters
    import torch
    import transformers

    if model_class == "BertAdapterModel":
        model = adapters.BertAdapterModel.from_pretrained(hf_dir)
        if units:
            model.add_classification_head("theirs", num_labels=units, layers=1, use_pooler=True)
        else:
            model.add_qa_head("theirs")
    else:
        model = getattr(transformers, model_class).from_pretrained(hf_dir, num_labels=units or 2)
        adapters.init(model)
    config = adapters.DoubleSeqBnConfig(non_linearity=activation, reduction_factor=6, leave_out=[0])
    model.add_adapter("theirs", config=config, set_active=True)
    torch.manual_seed(networks.SEED)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".adapters.theirs." in name or name.startswith(("heads.", "classifier.", "qa_outputs.")):
                value.normal_(std=networks.STDDEV)
    return model


@pytest.mark.parametrize(
    ("activation", "units", "model_class"),
    [
        ("gelu", 3, "BertAdapterModel"),
        ("gelu_new", 1, "BertAdapterModel"),
        ("relu", 2, "BertForSequenceClassification"),
        ("swish", 2, "BertAdapterModel"),
        ("gelu", 0, "BertAdapterModel"),
        ("swish", 0, "BertForQuestionAnswering"),
    ],
)
def test_an_adapter_made_by_adapterhub_has_their_logits_here(
    real_base, batch, tmp_path, activation, units, model_class
):
    model = make_theirs(real_base.hf_dir, activation, units, model_class)
    model.save_adapter(str(tmp_path), "theirs", use_safetensors=True)
    pack = adapterhub.read(str(tmp_path), real_base.ours, TASK, True)
    ours = our_logits(real_base.ours, batch, pack)
    title = f"import, {activation}, {units or 'spans'}, {model_class}"
    networks.assert_close(title, ours, their_logits(model, batch))
    off = {name: 0 * v if parameters.group_of(name) == "adapters" else v for name, v in pack.tensors.items()}
    networks.assert_apart(
        f"{title}: adapters off", ours, our_logits(real_base.ours, batch, packs.Pack(pack.config, off))
    )
