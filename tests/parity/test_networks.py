"""A base, adapters, packs and heads compute the same here and in Hugging Face's BERT and AdapterHub's `adapters`.

AdapterHub's `DoubleSeqBnConfig` is the adapter of Houlsby et al. (2019). Only its activation, size and layers are set.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from adapter_bert.model import parameters
from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import ImportedTask, adapterhub, huggingface, tensors
from adapter_layers import AdapterConfig
from tests.helpers import make_pack
from tests.parity import networks
from tests.parity.networks import LEAST_EFFECT, OUTPUT_LIMIT, largest_difference

pytestmark = pytest.mark.parity

TASK = ImportedTask("CoLA", None, 16, "2024-05-06T07:08:09Z")


@pytest.mark.parametrize(("scale", "limit"), [(1e-2, 0.1), (1e-3, 1e-3), (1e-7, 1e-6)])
def test_new_adapters_start_near_the_identity(real_base, scale, limit):
    base = real_base.ours
    head = make_pack(base, mode="head")
    config = make_pack(base, adapter=packs.describe_adapter(AdapterConfig(init_scale=scale))).config
    plain, real = networks.run_ours(base, head), networks.make_batch(base).mask.astype(bool)
    last, worst = f"layer {base.config.num_hidden_layers - 1}", np.zeros(3)
    for seed in range(3):
        adapted = networks.run_ours(base, packs.Pack(config, head.tensors), seed=seed)
        moved = (adapted[last] - plain[last])[real]
        relative = np.linalg.norm(moved, axis=1) / np.linalg.norm(plain[last][real], axis=1)
        pooled = np.abs(adapted["pooled"] - plain["pooled"])
        worst = np.maximum(worst, [np.abs(moved).max(), pooled.max(), relative.mean()])
    print("scale {:.0e}: last layer {:.1e}, pooled output {:.1e}, mean relative {:.1e}".format(scale, *worst))
    assert max(worst[:2]) <= limit
    assert scale < 1e-3 or min(worst) > 0


def test_every_layer_has_the_outputs_of_transformers(torch_libraries, real_base):
    import torch
    import transformers

    ours = networks.run_ours(real_base.ours, make_pack(real_base.ours, mode="head"))
    model, info = transformers.BertModel.from_pretrained(real_base.hf_dir, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        theirs = networks.run_theirs(model, real_base.ours, output_hidden_states=True)
    names = ["embeddings", *(f"layer {index}" for index in range(real_base.ours.config.num_hidden_layers))]
    mask = networks.make_batch(real_base.ours).mask[:, :, np.newaxis]
    assert len(names) == len(theirs.hidden_states)
    for name, states in zip(names, theirs.hidden_states):
        assert largest_difference(name, ours[name], states.numpy() * mask) <= OUTPUT_LIMIT
    assert largest_difference("pooled output", ours["pooled"], theirs.pooler_output) <= OUTPUT_LIMIT


def test_an_exported_base_has_the_configuration_and_tensors_of_its_source(real_base, tmp_path):
    if not real_base.source:
        pytest.skip("this base was not converted from a Hugging Face folder")
    huggingface.convert(real_base.hf_dir, str(tmp_path / "again"))
    again = bases.Base.find(str(tmp_path / "again"))
    assert again.config.to_dict() == real_base.ours.config.to_dict()
    assert again.digests == real_base.ours.digests
    source, exported = (
        safetensors.numpy.load_file(os.path.join(folder, "model.safetensors"))
        for folder in (real_base.source, real_base.hf_dir)
    )
    assert exported and [name for name in exported if source[name].tobytes() != exported[name].tobytes()] == []


def make_theirs(hf_dir: str, model_class: str, units: int, **adapter: Any) -> Any:
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
    model.add_adapter("theirs", config=adapters.DoubleSeqBnConfig(**adapter), set_active=True)
    torch.manual_seed(networks.SEED)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".adapters.theirs." in name or name.startswith(("heads.", "classifier.", "qa_outputs.")):
                value.normal_(std=networks.STDDEV)
    return model


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("relu", "relu")])
def test_outputs_gradients_and_parameter_counts_agree(torch_libraries, real_base, theirs, ours):
    import torch

    base = real_base.ours
    pack = networks.random_pack(base, AdapterConfig(64, ours))
    here = networks.run_ours(base, pack, gradients=True)

    hidden, layers = base.config.hidden_size, base.config.num_hidden_layers
    name = "BertForSequenceClassification"
    model = make_theirs(real_base.hf_dir, name, 2, non_linearity=theirs, reduction_factor=hidden // 64)
    named = {re.sub(r"^bert\.", "", name): value for name, value in model.named_parameters()}
    rows = tensors.make_rows(pack.config.trained_shapes(), "theirs", "classifier")
    with torch.no_grad():
        for row in rows:
            named[row.hf].copy_(torch.tensor(row.to_hf(pack.tensors[row.google])))
    labels = torch.tensor(networks.make_batch(base).labels, dtype=torch.long)
    there = networks.run_theirs(model, base, labels=labels)
    there.loss.backward()
    assert largest_difference(f"{ours}: logits", here["logits"], there.logits.detach()) <= OUTPUT_LIMIT
    relative = {}
    for row in rows:
        gradient = row.to_google(named[row.hf].grad.numpy())
        relative[row.google] = float(np.abs(here[row.google] - gradient).max() / np.abs(gradient).max())
    worst = max(relative, key=lambda name: (np.isnan(relative[name]), relative[name]))
    print(f"{ours}: gradients, max relative difference {relative[worst]:.2e} ({worst})")
    assert relative[worst] <= networks.GRADIENT_LIMIT

    plain = networks.run_ours(base, without_adapters(pack))
    assert largest_difference(f"{ours}: no adapters", here["logits"], plain["logits"]) >= LEAST_EFFECT
    formula = 2 * layers * (2 * 64 * hidden + hidden + 64)
    assert sum(value.numel() for name, value in named.items() if ".adapters." in name) == formula
    assert sum(value.size for name, value in pack.tensors.items() if "/adapters/" in name) == formula


def without_adapters(pack: packs.Pack) -> packs.Pack:
    """Return the pack with zeros in its adapters, which are then the identity."""
    values = {name: 0 * v if parameters.group_of(name) == "adapters" else v for name, v in pack.tensors.items()}
    return packs.Pack(pack.config, values)


def their_logits(model: Any, base: bases.Base) -> np.ndarray:
    import torch

    with torch.no_grad():
        output = networks.run_theirs(model, base)
    if "start_logits" not in output:
        return output.logits.numpy()
    logits = np.stack([output.start_logits, output.end_logits], axis=1)
    return logits * networks.make_batch(base).mask[:, np.newaxis]


def load_with_readme(folder: str, hf_dir: str, with_norms: bool = True) -> Any:
    """Run the code in the README.md of an export and return its model."""
    with open(os.path.join(folder, adapterhub.README), encoding="utf-8") as file:
        code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    for name, value in (("BASE", hf_dir), ("FOLDER", folder)):
        code, count = re.subn(f'(?m)^{name} = ".*"$', f"{name} = {value!r}", code)
        assert count == 1
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
def test_an_exported_pack_has_our_logits_there_and_comes_back_to_the_bit(
    torch_libraries, real_base, tmp_path, head, adapter
):
    base, folder = real_base.ours, str(tmp_path / "out")
    pack = networks.random_pack(base, adapter, head)
    adapterhub.export(pack, base, folder)
    ours = networks.run_ours(base, pack)["logits"]
    theirs = their_logits(load_with_readme(folder, real_base.hf_dir), base)
    assert largest_difference("export", ours, theirs) <= OUTPUT_LIMIT
    without_norms = their_logits(load_with_readme(folder, real_base.hf_dir, with_norms=False), base)
    assert largest_difference("no LayerNorms", ours, without_norms) >= LEAST_EFFECT
    if head == "span":
        assert largest_difference("start for end", ours, theirs[:, ::-1]) >= LEAST_EFFECT
    again = adapterhub.read(folder, base, TASK)
    assert again.fingerprint == pack.fingerprint
    assert (again.config.head, again.config.labels) == (head, pack.config.labels)


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
    torch_libraries, real_base, tmp_path, activation, units, model_class
):
    config = {"non_linearity": activation, "reduction_factor": 6, "leave_out": [0]}
    model = make_theirs(real_base.hf_dir, model_class, units, **config)
    model.save_adapter(str(tmp_path), "theirs", use_safetensors=True)
    pack = adapterhub.read(str(tmp_path), real_base.ours, TASK)
    ours = networks.run_ours(real_base.ours, pack)["logits"]
    assert largest_difference("import", ours, their_logits(model, real_base.ours)) <= OUTPUT_LIMIT
    plain = networks.run_ours(real_base.ours, without_adapters(pack))["logits"]
    assert largest_difference("adapters off", ours, plain) >= LEAST_EFFECT
