"""A base computes the same here and in Hugging Face's BERT, and survives conversion to the bit."""

from __future__ import annotations

import os

import pytest

from adapter_bert.model import heads
from adapter_bert.weights import bases, fingerprints
from adapter_bert.weights.exchange import huggingface
from tests.parity import networks

pytestmark = pytest.mark.parity


def test_every_layer_has_the_outputs_of_transformers(real_base, batch):
    import torch
    import transformers

    config = real_base.ours.config
    ours = networks.run_ours(config, batch, real_base.ours.tensors(), heads.ClassificationHead(2))
    model, info = transformers.BertModel.from_pretrained(real_base.hf_dir, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        theirs = networks.run_theirs(model, batch, output_hidden_states=True)
    names = ["embeddings", *(f"layer {index}" for index in range(config.num_hidden_layers))]
    assert len(names) == len(theirs.hidden_states)
    for name, states in zip(names, theirs.hidden_states):
        networks.assert_close(name, ours[name][batch.real], states.numpy()[batch.real])
    networks.assert_close("pooled output", ours["pooled"], theirs.pooler_output)


def test_an_exported_base_has_the_configuration_and_tensors_of_its_source(real_base, tmp_path):
    if not real_base.source:
        pytest.skip("this base was not converted from a Hugging Face folder")
    huggingface.convert(real_base.hf_dir, str(tmp_path / "again"))
    again = bases.Base.find(str(tmp_path / "again"))
    assert again.config.to_dict() == real_base.ours.config.to_dict()
    assert fingerprints.combine(again.digests) == fingerprints.combine(real_base.ours.digests)
    import safetensors.numpy

    stored = [
        safetensors.numpy.load_file(os.path.join(folder, "model.safetensors"))
        for folder in (real_base.source, real_base.hf_dir)
    ]
    shared = [name for name in stored[1] if name in stored[0]]
    assert len(shared) == len(stored[1])
    assert [name for name in shared if stored[0][name].tobytes() != stored[1][name].tobytes()] == []
