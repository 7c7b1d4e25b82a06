"""Packs and bases go out to AdapterHub and Hugging Face and come back the same; what does not fit is refused.

Names and values of the other side are written out by hand, as AdapterHub's `adapters` 1.3.0 writes them; that they
mean the same network there is what scripts/check_exchange.py measures, with PyTorch.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common.errors import UserError
from adapter_bert.weights import bases, fingerprints, packs
from adapter_bert.weights.exchange import adapterhub, adapterhub_configs, google_checkpoints, huggingface
from adapter_layers import AdapterConfig
from tests.helpers import TINY, VOCABULARY, tiny_config, write_bert

CREATED = "2024-05-06T07:08:09Z"
LABELS = ["bad", "good", "fair"]
FILES = [
    "README.md",
    "adapter.safetensors",
    "adapter_config.json",
    "head_config.json",
    "layer_norms.safetensors",
    "model_head.safetensors",
]
# What `save_adapter` writes for DoubleSeqBnConfig(non_linearity="gelu", reduction_factor=4).
THEIR_CONFIG = {
    "adapter_residual_before_ln": False,
    "cross_adapter": False,
    "dropout": 0.0,
    "factorized_phm_W": True,
    "factorized_phm_rule": False,
    "hypercomplex_nonlinearity": "glorot-uniform",
    "init_weights": "bert",
    "init_weights_seed": None,
    "inv_adapter": None,
    "inv_adapter_reduction_factor": None,
    "is_parallel": False,
    "learn_phm": True,
    "leave_out": [],
    "ln_after": False,
    "ln_before": False,
    "mh_adapter": True,
    "non_linearity": "gelu",
    "original_ln_after": True,
    "original_ln_before": False,
    "output_adapter": True,
    "phm_bias": True,
    "phm_c_init": "normal",
    "phm_dim": 4,
    "phm_init_range": 0.0001,
    "phm_layer": False,
    "phm_rank": 1,
    "reduction_factor": 4,
    "residual_before_ln": True,
    "scaling": 1.0,
    "shared_W_phm": False,
    "shared_phm_rule": True,
    "stochastic_depth": 0.0,
    "use_gating": False,
}
THEIR_HEAD = {
    "activation_function": "tanh",
    "bias": True,
    "dropout_prob": None,
    "head_type": "classification",
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "layers": 1,
    "num_labels": 2,
    "use_pooler": True,
}
# What `add_qa_head` makes.
THEIR_SPAN_HEAD = {
    "activation_function": "tanh",
    "dropout_prob": None,
    "head_type": "question_answering",
    "label2id": None,
    "layers": 1,
    "num_labels": 2,
}


@pytest.fixture(scope="module")
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


def make_pack(base: bases.Base, labels=LABELS, mode="adapter", head=None, **adapter) -> packs.Pack:
    """A pack with random weights on the base; the head is the one that goes with the labels, unless it is named."""
    fields = dataclasses.asdict(AdapterConfig(**dict({"size": 4}, **adapter))) if mode == "adapter" else None
    config = packs.PackConfig(
        task="CoLA",
        architecture=base.config().to_dict(),
        tuning_mode=mode,
        head=head or ("classification" if labels else "regression"),
        labels=list(labels),
        tokenizer=base.describe_tokenizer(),
        max_seq_length=16,
        base=None,
        created=CREATED,
        adapter=fields,
    )
    random = np.random.RandomState(5)
    shapes = config.trained_shapes()
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    names = config.frozen_names()
    fingerprint = fingerprints.combine(base.digests(), names) if names else None
    return packs.Pack(dataclasses.replace(config, base=fingerprint), tensors)


def read(folder, base, labels=None) -> packs.Pack:
    return adapterhub.read(str(folder), base, "CoLA", labels, CREATED, 16, True)


def refusal(folder, base, labels=None) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, base, labels)
    return str(caught.value)


def load(path) -> dict:
    return safetensors.numpy.load_file(str(path))


def read_json(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path, part=None, **changes) -> None:
    """Changes keys of a JSON file, or of the object under the key `part`."""
    content = read_json(path)
    (content[part] if part else content).update(changes)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def exported(base, tmp_path_factory):
    """A pack and the folder that it was exported to. Read only."""
    folder = tmp_path_factory.mktemp("exports") / "cola"
    pack = make_pack(base)
    adapterhub.export(pack, base, str(folder))
    return pack, folder


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of the exported folder, to be spoilt."""
    return shutil.copytree(str(exported[1]), str(tmp_path / "copy")) and tmp_path / "copy"


@pytest.fixture
def theirs(tmp_path):
    """A folder as AdapterHub writes it: adapter and head, no LayerNorms."""
    path, random = tmp_path / "theirs", np.random.RandomState(8)
    path.mkdir()
    common = {"model_type": "bert", "hidden_size": 16, "model_name": "x", "name": "t", "version": "adapters.1.3.0"}
    common["model_class"] = "BertAdapterModel"
    (path / "adapter_config.json").write_text(json.dumps(dict(common, config=THEIR_CONFIG)), encoding="utf-8")
    (path / "head_config.json").write_text(json.dumps(dict(common, config=THEIR_HEAD)), encoding="utf-8")
    shapes = {}
    for layer in range(2):
        for part in ("attention.output", "output"):
            prefix = f"bert.encoder.layer.{layer}.{part}.adapters.t"
            shapes[f"{prefix}.adapter_down.0.weight"] = (4, 16)
            shapes[f"{prefix}.adapter_down.0.bias"] = (4,)
            shapes[f"{prefix}.adapter_up.weight"] = (16, 4)
            shapes[f"{prefix}.adapter_up.bias"] = (16,)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, str(path / "adapter.safetensors"))
    head = {"heads.t.1.weight": random.standard_normal((2, 16)), "heads.t.1.bias": random.standard_normal(2)}
    head = {name: value.astype(np.float32) for name, value in head.items()}
    safetensors.numpy.save_file(head, str(path / "model_head.safetensors"))
    return path


@pytest.fixture
def their_spans(theirs):
    """The same with a head for question answering."""
    change_json(theirs / "head_config.json", config=THEIR_SPAN_HEAD)
    return theirs


# ----------------------------------------------------------------------------------------- pack -> AdapterHub


def test_an_export_is_what_adapterhub_writes_and_the_layer_norms_beside_it(base, exported):
    pack, folder = exported
    assert sorted(os.listdir(str(folder))) == FILES
    described = read_json(folder / "adapter_config.json")
    assert {key: THEIR_CONFIG[key] for key in described["config"]} == dict(described["config"], non_linearity="gelu")
    assert described["config"]["non_linearity"] == "gelu_new"
    assert (described["name"], described["model_type"], described["hidden_size"]) == ("CoLA", "bert", 16)
    assert described["version"] == "adapters.1.3.0"
    head = read_json(folder / "head_config.json")["config"]
    assert set(head) == set(THEIR_HEAD)
    assert head["label2id"] == {"bad": 0, "good": 1, "fair": 2}
    assert (head["layers"], head["use_pooler"], head["num_labels"], head["dropout_prob"]) == (1, True, 3, 0.1)
    weights = load(folder / "adapter.safetensors")
    assert len(weights) == 2 * 2 * 4
    there, here = (
        "bert.encoder.layer.1.attention.output.adapters.CoLA",
        "bert/encoder/layer_1/attention/output/adapters",
    )
    np.testing.assert_array_equal(weights[f"{there}.adapter_down.0.weight"], pack.tensors[f"{here}/weights1"].T)
    np.testing.assert_array_equal(weights[f"{there}.adapter_down.0.bias"], pack.tensors[f"{here}/biases1"][0])
    np.testing.assert_array_equal(weights[f"{there}.adapter_up.weight"], pack.tensors[f"{here}/weights2"].T)
    np.testing.assert_array_equal(weights[f"{there}.adapter_up.bias"], pack.tensors[f"{here}/biases2"][0])
    head_weights = load(folder / "model_head.safetensors")
    np.testing.assert_array_equal(head_weights["heads.CoLA.1.weight"], pack.tensors["output_weights"])
    np.testing.assert_array_equal(head_weights["heads.CoLA.1.bias"], pack.tensors["output_bias"])
    norms = load(folder / "layer_norms.safetensors")
    assert len(norms) == 2 * (1 + 2 * 2)
    gamma = pack.tensors["bert/encoder/layer_0/output/LayerNorm/gamma"]
    np.testing.assert_array_equal(norms["bert.encoder.layer.0.output.LayerNorm.weight"], gamma)


def test_the_head_of_spans_is_exported_as_what_answers_questions_there(base, tmp_path):
    pack = make_pack(base, (), head="span")
    adapterhub.export(pack, base, str(tmp_path / "out"))
    head = read_json(tmp_path / "out" / "head_config.json")["config"]
    # A key that add_qa_head does not know, such as use_pooler, ends the loading there.
    assert head == dict(THEIR_SPAN_HEAD, activation_function=None, dropout_prob=0.0)
    weights = load(tmp_path / "out" / "model_head.safetensors")
    assert sorted(weights) == ["heads.CoLA.1.bias", "heads.CoLA.1.weight"]
    np.testing.assert_array_equal(weights["heads.CoLA.1.weight"], pack.tensors["cls/squad/output_weights"])
    np.testing.assert_array_equal(weights["heads.CoLA.1.bias"], pack.tensors["cls/squad/output_bias"])
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")
    assert "output.start_logits, output.end_logits" in code
    assert '"max_length": 16' in code
    assert "regression" not in text


def test_the_readme_has_code_that_loads_all_parts(exported):
    text = (exported[1] / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")
    for part in ("use_safetensors=True", "layer_norms.safetensors", "do_lower_case=True", "max_length=16"):
        assert part in code
    assert exported[0].config.base in text


@pytest.mark.parametrize(
    ("labels", "adapter"),
    [
        (LABELS, {}),
        ((), {"head": "span"}),
        ((), {"head": "span", "activation": "relu", "placement": "feedforward", "layers": (0,), "size": 3}),
        ((), {"activation": "gelu_erf"}),
        (LABELS, {"activation": "relu", "placement": "attention", "size": 5}),
        (LABELS, {"activation": "tanh", "placement": "feedforward", "size": 16}),
        ((), {"activation": "linear", "layers": (1,), "size": 40}),
    ],
)
def test_a_pack_comes_back_equal_to_the_bit(base, tmp_path, labels, adapter):
    pack = make_pack(base, labels, **adapter)
    adapterhub.export(pack, base, str(tmp_path / "out"))
    again = read(tmp_path / "out", base)
    assert list(again.tensors) == list(pack.tensors)
    assert again.fingerprint == pack.fingerprint
    assert again.config.adapter_config == pack.config.adapter_config
    for field in ("task", "architecture", "head", "labels", "tokenizer", "base", "max_seq_length", "tuning_mode"):
        assert getattr(again.config, field) == getattr(pack.config, field), field
    packs.write(str(tmp_path / "pack.safetensors"), again)
    assert packs.read(str(tmp_path / "pack.safetensors")).fingerprint == pack.fingerprint


@pytest.mark.parametrize("hidden", [16, 312, 384, 768, 1024])
def test_every_size_has_a_reduction_factor_from_which_adapterhub_computes_it(hidden):
    for size in range(1, 2 * hidden):
        assert int(hidden // adapterhub_configs.reduction_factor(hidden, size)) == size


@pytest.mark.parametrize(
    ("task", "name"), [("SST-2", "SST-2"), ("my.own task", "my_own_task"), ("train", "train_task"), ("_x", "_x_task")]
)
def test_adapters_get_names_that_pytorch_takes(task, name):
    assert adapterhub.adapter_name(task) == name


@pytest.mark.parametrize("mode", ["full", "layer_norm", "head"])
def test_packs_without_adapters_are_not_exported(base, tmp_path, mode):
    with pytest.raises(UserError, match=f"mode '{mode}'; expected 'adapter'"):
        adapterhub.export(make_pack(base, mode=mode), base, str(tmp_path / "out"))
    assert os.listdir(str(tmp_path)) == []


def test_a_pack_is_not_exported_as_one_of_another_base(base, tmp_path, exported):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    with pytest.raises(UserError, match="belongs to another base"):
        adapterhub.export(exported[0], bases.Base.find(str(tmp_path / "other")), str(tmp_path / "out"))
    shutil.copytree(base.folder, str(tmp_path / "relu"))
    (tmp_path / "relu" / "bert_config.json").write_text(json.dumps(dict(TINY, hidden_act="relu")), encoding="utf-8")
    with pytest.raises(UserError, match="hidden_act is gelu in the pack and relu in"):
        adapterhub.export(exported[0], bases.Base.find(str(tmp_path / "relu")), str(tmp_path / "out"))


def test_an_older_export_is_replaced_only_when_asked_and_other_files_never(base, tmp_path, exported):
    pack, out = exported[0], tmp_path / "out"
    adapterhub.export(pack, base, str(out))
    with pytest.raises(UserError, match="already holds README.md"):
        adapterhub.export(pack, base, str(out))
    other = packs.Pack(pack.config, {name: 2 * value for name, value in pack.tensors.items()})
    adapterhub.export(other, base, str(out), overwrite=True)
    assert read(out, base).fingerprint == other.fingerprint
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds other files: notes.txt"):
        adapterhub.export(pack, base, str(out), overwrite=True)
    assert os.listdir(str(tmp_path)) == ["out"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_export_that_stops_half_way_leaves_the_older_one(base, tmp_path, exported, monkeypatch, stop):
    out = tmp_path / "out"
    adapterhub.export(exported[0], base, str(out))

    def stops(*_):
        raise stop

    monkeypatch.setattr(huggingface, "write_tensors", stops)
    for target in ("out", "fresh"):
        with pytest.raises((KeyboardInterrupt, UserError)):
            adapterhub.export(exported[0], base, str(tmp_path / target), overwrite=True)
    assert os.listdir(str(tmp_path)) == ["out"]
    assert read(out, base).fingerprint == exported[0].fingerprint


# ----------------------------------------------------------------------------------------- AdapterHub -> pack


def test_an_adapter_of_theirs_becomes_a_pack_with_the_layer_norms_of_the_base(base, theirs):
    pack = read(theirs, base)
    assert pack.config.adapter_config == AdapterConfig(size=4, activation="gelu_erf")
    assert pack.config.labels == ["LABEL_0", "LABEL_1"]
    assert pack.config.origin["layer_norms"] == "of the base"
    assert pack.config.origin["adapterhub"]["config"] == THEIR_CONFIG
    there = load(theirs / "adapter.safetensors")
    here = pack.tensors["bert/encoder/layer_1/output/adapters/weights2"]
    np.testing.assert_array_equal(here, there["bert.encoder.layer.1.output.adapters.t.adapter_up.weight"].T)
    name = "bert/encoder/layer_1/output/LayerNorm/beta"
    np.testing.assert_array_equal(pack.tensors[name], base.tensors()[name])
    packs.check_base(pack, "pack", base.digests(), "base")


def test_labels_that_are_given_count_in_the_heads_order_only(base, theirs):
    assert read(theirs, base, ["0", "1"]).config.labels == ["0", "1"]
    assert "has 2 classes (LABEL_0, LABEL_1); 3 labels were given" in refusal(theirs, base, LABELS)
    assert "Give them in the head's order" in refusal(theirs, base, ["LABEL_1", "LABEL_0"])
    change_json(theirs / "head_config.json", "config", label2id={"LABEL_0": 0, "LABEL_1": 3})
    assert "expected the numbers 0 to 1" in refusal(theirs, base)


def test_the_head_of_a_sequence_classifier_is_read_too(base, theirs):
    change_json(theirs / "head_config.json", model_class="BertForSequenceClassification", config=None, num_labels=2)
    head = {name.replace("heads.t.1", "classifier"): v for name, v in load(theirs / "model_head.safetensors").items()}
    safetensors.numpy.save_file(head, str(theirs / "model_head.safetensors"))
    pack = read(theirs, base, ["0", "1"])
    np.testing.assert_array_equal(pack.tensors["output_weights"], head["classifier.weight"])
    change_json(theirs / "head_config.json", model_class="BertForTokenClassification")
    assert "the head of a BertForTokenClassification; expected" in refusal(theirs, base)


def test_a_question_answering_head_of_theirs_becomes_one_for_spans(base, their_spans):
    pack = read(their_spans, base)
    assert (pack.config.head, pack.config.labels) == ("span", [])
    there = load(their_spans / "model_head.safetensors")
    np.testing.assert_array_equal(pack.tensors["cls/squad/output_weights"], there["heads.t.1.weight"])
    np.testing.assert_array_equal(pack.tensors["cls/squad/output_bias"], there["heads.t.1.bias"])
    assert "output_weights" not in pack.tensors
    assert read(their_spans, base, []).fingerprint == pack.fingerprint
    said = refusal(their_spans, base, ["yes", "no"])
    assert "is for spans, which have no labels; 2 labels were given: yes, no" in said
    # The same network, saved from the class with the head built in, which also names two classes that are none.
    change_json(their_spans / "head_config.json", model_class="BertForQuestionAnswering", config=None, num_labels=2)
    change_json(their_spans / "head_config.json", label2id={"LABEL_0": 0, "LABEL_1": 1})
    static = {name.replace("heads.t.1", "qa_outputs"): value for name, value in there.items()}
    safetensors.numpy.save_file(static, str(their_spans / "model_head.safetensors"))
    again = read(their_spans, base)
    assert (again.fingerprint, again.config.head, again.config.labels) == (pack.fingerprint, "span", [])
    change_json(their_spans / "head_config.json", num_labels=3)
    assert "num_labels = 3; expected 2" in refusal(their_spans, base)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 2}, "layers = 2; expected 1: the head here is one linear layer on the tokens"),
        ({"num_labels": 3}, "num_labels = 3; expected 2"),
        ({"num_labels": None}, "num_labels = null; expected 2"),
        ({"head_type": "tagging"}, 'head_type = "tagging"; expected "classification" or "question_answering".'),
        ({"head_type": ["tagging"]}, 'head_type = ["tagging"]; expected'),
        ({"head_type": "classification"}, "use_pooler = null; expected true"),
    ],
)
def test_heads_for_questions_that_are_not_ours_are_refused_by_name(base, their_spans, changes, said):
    change_json(their_spans / "head_config.json", "config", **changes)
    assert said in refusal(their_spans, base)


def test_weights_saved_without_the_prefix_of_the_model_are_read_too(base, theirs):
    before = read(theirs, base)
    bare = {name[len("bert.") :]: value for name, value in load(theirs / "adapter.safetensors").items()}
    safetensors.numpy.save_file(bare, str(theirs / "adapter.safetensors"))
    assert read(theirs, base).fingerprint == before.fingerprint


def test_reduction_factors_by_layer_are_read_where_they_mean_one_size(base, theirs):
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4, "default": 3.9})
    assert read(theirs, base).config.adapter["size"] == 4
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4, "default": 2})
    assert "different reduction_factor by layer, sizes [4, 8]" in refusal(theirs, base)
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4})
    assert "a number above 0 for every layer" in refusal(theirs, base)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "prefix_tuning"}, 'architecture = "prefix_tuning"; expected null'),
        ({"original_ln_before": True}, "original_ln_before = true; expected false"),
        ({"original_ln_after": False}, "original_ln_after = false; expected true"),
        ({"ln_before": True}, "ln_before = true"),
        ({"ln_after": True}, "ln_after = true"),
        ({"is_parallel": True}, "is_parallel = true"),
        ({"scaling": 4.0}, "scaling = 4.0; expected 1.0"),
        ({"scaling": "learned"}, 'scaling = "learned"'),
        ({"use_gating": True}, "use_gating = true"),
        ({"residual_before_ln": "post_add"}, 'residual_before_ln = "post_add"; expected true or false'),
        ({"inv_adapter": "nice"}, 'inv_adapter = "nice"'),
        ({"cross_adapter": True}, "cross_adapter = true"),
        ({"phm_layer": True}, "phm_layer = true"),
        ({"non_linearity": "mish"}, "'mish'. Did you mean 'swish'? Available: gelu, gelu_new"),
        ({"mh_adapter": False, "output_adapter": False}, "asks for no adapter"),
        ({"leave_out": [0, 1]}, "leave_out names all of the 2 layers"),
        ({"leave_out": "0"}, 'leave_out = "0"; expected a list'),
        ({"reduction_factor": 0}, "expected a number above 0"),
        ({"vera_d": 1.0}, "unknown key vera_d"),
    ],
)
def test_adapters_that_the_network_cannot_express_are_refused_by_name(base, theirs, changes, said):
    change_json(theirs / "adapter_config.json", "config", **changes)
    assert said in refusal(theirs, base)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "roberta"}, 'model_type = "roberta"; expected "bert"'),
        ({"hidden_size": 32}, "hidden_size = 32; expected 16"),
        ({"version": "3.2.1"}, 'version = "3.2.1"'),
        ({"config": "houlsby"}, "does not describe an adapter"),
    ],
)
def test_folders_for_other_models_are_refused(base, theirs, changes, said):
    change_json(theirs / "adapter_config.json", **changes)
    assert said in refusal(theirs, base)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 2}, "layers = 2; expected 1"),
        ({"use_pooler": False}, "use_pooler = false; expected true"),
        ({"head_type": "tagging"}, 'head_type = "tagging"'),
        ({"bias": False}, "bias = false"),
        ({"num_labels": 0}, "num_labels = 0"),
        ({"num_labels": 1, "label2id": None}, "heads.t.1.weight is [2, 16]"),
    ],
)
def test_heads_that_the_network_cannot_express_are_refused_by_name(base, theirs, changes, said):
    change_json(theirs / "head_config.json", "config", **changes)
    assert said in refusal(theirs, base)


def test_a_folder_without_a_head_is_refused(base, theirs):
    (theirs / "head_config.json").unlink()
    assert "with_head=True" in refusal(theirs, base)


@pytest.mark.parametrize(
    ("name", "pickle"),
    [("adapter.safetensors", "pytorch_adapter.bin"), ("model_head.safetensors", "pytorch_model_head.bin")],
)
def test_pickles_are_not_loaded(base, theirs, name, pickle):
    (theirs / name).rename(theirs / pickle)
    said = refusal(theirs, base)
    assert f"only as a pickle ({pickle})" in said
    assert "use_safetensors=True" in said
    (theirs / pickle).unlink()
    assert f"There is no {name}" in refusal(theirs, base)


DOWN = "bert.encoder.layer.0.output.adapters.t.adapter_down.0.bias"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (DOWN, None, "1 missing (encoder.layer.0.output.adapters.t.adapter_down.0.bias)"),
        (DOWN, np.zeros(5, np.float32), "is [5] where the model has [4]"),
        (DOWN, np.array([0, np.nan, 0, np.inf], np.float32), "2 of 4 values"),
        (DOWN, np.zeros(4, np.int32), "is I32; expected F32"),
        (DOWN[len("bert.") :], np.zeros(4, np.float32), "holds a tensor twice"),
        ("bert.invertible_adapters.t.F.0.bias", np.zeros(4, np.float32), "1 tensors that its configuration does not"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(base, theirs, name, value, said):
    tensors = load(theirs / "adapter.safetensors")
    tensors.pop(name, None)
    tensors.update({} if value is None else {name: value})
    safetensors.numpy.save_file(tensors, str(theirs / "adapter.safetensors"))
    assert said in refusal(theirs, base)


def test_an_export_without_its_layer_norms_or_on_another_base_is_refused(base, folder, tmp_path):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    assert "was trained on a base whose" in refusal(folder, bases.Base.find(str(tmp_path / "other")))
    (folder / "layer_norms.safetensors").unlink()
    assert "says that the LayerNorms were trained" in refusal(folder, base)
    assert "There is no folder" in refusal(tmp_path / "nowhere", base)


# ------------------------------------------------------------------------------------- base <-> Hugging Face


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "relu", "tanh"])
def test_a_base_goes_to_hugging_face_and_back_equal_to_the_bit(tmp_path, activation):
    write_bert(str(tmp_path / "ours"), tiny_config(hidden_act=activation, num_hidden_layers=1))
    base = bases.Base.find(str(tmp_path / "ours"))
    huggingface.export_base(base, str(tmp_path / "hf"), do_lower_case=False)
    huggingface.convert(str(tmp_path / "hf"), str(tmp_path / "again"))
    again = bases.Base.find(str(tmp_path / "again"))
    assert again.config().to_dict() == base.config().to_dict()
    assert again.digests() == base.digests()
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == (tmp_path / "ours" / "vocab.txt").read_bytes()
    huggingface.export_base(again, str(tmp_path / "hf2"), do_lower_case=False)
    for name in ("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"):
        assert (tmp_path / "hf2" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name


def test_transformers_reads_an_exported_base(base, tmp_path):
    transformers = pytest.importorskip("transformers")
    done = huggingface.export_base(base, str(tmp_path / "hf"), do_lower_case=True)
    config = transformers.BertConfig.from_pretrained(str(tmp_path / "hf"))
    assert (config.hidden_act, config.layer_norm_eps, config.hidden_size) == ("gelu_new", 1e-12, 16)
    tokenizer = transformers.BertTokenizer.from_pretrained(str(tmp_path / "hf"))
    assert tokenizer.do_lower_case
    assert tokenizer.tokenize("The CAT sees dogs") == ["the", "cat", "sees", "dogs"]
    assert tokenizer.convert_tokens_to_ids(VOCABULARY) == list(range(len(VOCABULARY)))
    with safetensors.safe_open(str(tmp_path / "hf" / "model.safetensors"), framework="np") as reader:
        assert reader.metadata() == {"format": "pt"}
        kernel = reader.get_tensor("encoder.layer.0.intermediate.dense.weight")
    np.testing.assert_array_equal(kernel.T, base.tensors()["bert/encoder/layer_0/intermediate/dense/kernel"])
    assert (done.tensors, done.skipped) == (39, [])


def test_what_hugging_face_cannot_say_is_refused(base, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(base.folder, str(folder))

    def said() -> str:
        with pytest.raises(UserError) as caught:
            huggingface.export_base(bases.Base.find(str(folder)), str(tmp_path / "hf"), do_lower_case=True)
        assert not (tmp_path / "hf").exists()
        return str(caught.value)

    (folder / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]), encoding="utf-8")
    assert f"has {len(VOCABULARY) + 1} entries, but vocab_size" in said()
    (folder / "vocab.txt").write_bytes(b"[PAD]\na\rb\n")
    assert "line 2: a piece holds a line break" in said()
    (folder / "bert_config.json").write_text(json.dumps(dict(TINY, hidden_act="linear")), encoding="utf-8")
    assert "'linear'. Available: tanh, swish, relu, gelu, gelu_erf" in said()
    (folder / "vocab.txt").rename(folder / "spm.model")
    assert "splits text by SentencePiece (spm.model)" in said()


def run_script(monkeypatch, *flags) -> None:
    script = importlib.import_module("scripts.convert_hf_checkpoint")
    monkeypatch.setattr(sys, "argv", ["convert_hf_checkpoint.py", *map(str, flags)])
    script.main()


def test_the_script_converts_back(base, tmp_path, monkeypatch, capsys):
    flags = ["--base_dir", base.folder, "--output_dir", tmp_path / "hf"]
    with pytest.raises(SystemExit, match="needs --do_lower_case=true or =false"):
        run_script(monkeypatch, *flags)
    run_script(monkeypatch, *flags, "--do_lower_case", "false")
    assert "39 tensors" in capsys.readouterr().out
    assert read_json(tmp_path / "hf" / "tokenizer_config.json")["do_lower_case"] is False
    with pytest.raises(SystemExit, match="already holds config.json"):
        run_script(monkeypatch, *flags, "--do_lower_case", "true")
    run_script(monkeypatch, *flags, "--do_lower_case", "true", "--overwrite")
    assert read_json(tmp_path / "hf" / "tokenizer_config.json")["do_lower_case"] is True


# --------------------------------------------------------------------------------- Google's checkpoints -> packs


def write_trained(folder, adapter_fn=None, mode="adapter", labels=2, head="output", **config) -> str:
    """A checkpoint as Google's scripts leave it: all of BERT, a head, Adam's slots, the step."""

    def add() -> None:
        tf.get_variable(f"{head}_weights", [labels, TINY["hidden_size"]])
        tf.get_variable(f"{head}_bias", [labels])
        variables = {variable.op.name: variable for variable in tf.trainable_variables()}
        for name in optimization.trainable_names(list(variables), mode):
            for slot in ("adam_m", "adam_v"):
                tf.get_variable(f"{name}/{slot}", variables[name].shape.as_list(), trainable=False)
        step = tf.constant_initializer(1340)
        tf.get_variable("global_step", [], tf.int64, initializer=step, trainable=False)

    return write_bert(str(folder), tiny_config(**config), adapter_fn, extra=add)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a checkpoint with `write_trained`, each kind once; returns its prefix. Read only."""
    known = {}

    def write(adapter_fn=None, **kind) -> str:
        key = str((adapter_fn, sorted(kind.items())))
        if key not in known:
            known[key] = write_trained(tmp_path_factory.mktemp("trained"), adapter_fn, **kind)
        return known[key]

    return write


def take(prefix, labels=("0", "1"), base=None, **config) -> packs.Pack:
    tokenizer = {"type": "wordpiece", "do_lower_case": True, "entries": len(VOCABULARY)}
    return google_checkpoints.pack_from_checkpoint(
        prefix, tiny_config(**config), "CoLA", labels, tokenizer, 16, CREATED, base
    )


@pytest.mark.parametrize(
    "adapter",
    [
        AdapterConfig(size=4, init_scale=1e-3),
        AdapterConfig(size=7, init_scale=1e-3, layers=(1,), placement="attention"),
        AdapterConfig(size=4, init_scale=1e-3, placement="feedforward"),
    ],
)
def test_a_checkpoint_of_adapter_bert_becomes_a_pack_of_its_own_base(written, tmp_path, adapter):
    prefix = written(adapter)
    pack = take(prefix)
    assert pack.config.tuning_mode == "adapter"
    assert pack.config.adapter_config == adapter
    assert (pack.config.step, pack.config.labels) == (1340, ["0", "1"])
    reader = tf.train.load_checkpoint(prefix)
    for name, value in pack.tensors.items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))
    # The checkpoint holds all of BERT, so that it is a base itself, and one with the same frozen weights.
    base = bases.Base.find(os.path.dirname(prefix))
    assert take(prefix, base=base).config.base == pack.config.base
    packs.write(str(tmp_path / "pack.safetensors"), pack)
    assert packs.read(str(tmp_path / "pack.safetensors")).fingerprint == pack.fingerprint


@pytest.mark.parametrize("adapter", [AdapterConfig(size=4, init_scale=1e-3), None], ids=["adapters", "full"])
def test_the_head_of_run_squad_is_known_by_its_variables(written, adapter):
    prefix = written(adapter, mode="adapter" if adapter else "full", head="cls/squad/output")
    assert google_checkpoints.has_span_head(prefix)
    assert not google_checkpoints.has_span_head(written(AdapterConfig(size=4)))
    pack = take(prefix, labels=())
    assert (pack.config.head, pack.config.labels) == ("span", [])
    assert (pack.config.tuning_mode, pack.config.adapter_config) == ("adapter" if adapter else "full", adapter)
    reader = tf.train.load_checkpoint(prefix)
    assert pack.tensors["cls/squad/output_weights"].shape == (2, TINY["hidden_size"])
    for name, value in pack.tensors.items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))
    with pytest.raises(UserError, match="is that of SQuAD .* has no labels, but for CoLA 2 labels were given: 0, 1"):
        take(prefix)


def test_of_two_heads_none_is_chosen(tmp_path):
    def add() -> None:
        for scope in ("", "cls/squad/"):
            tf.get_variable(f"{scope}output_weights", [2, TINY["hidden_size"]])
            tf.get_variable(f"{scope}output_bias", [2])

    prefix = write_bert(str(tmp_path), tiny_config(), extra=add)
    for labels in ((), ("0", "1")):
        with pytest.raises(UserError, match="has two heads, output_weights and cls/squad/output_weights: expected one"):
            take(prefix, labels=labels)


def test_a_checkpoint_on_another_base_is_refused(written, tmp_path):
    write_bert(str(tmp_path), tiny_config(), seed=8)
    with pytest.raises(UserError, match="belongs to another base"):
        take(written(AdapterConfig(size=4)), base=bases.Base.find(str(tmp_path)))


def test_a_checkpoint_without_adapters_becomes_a_full_pack(written):
    pack = take(written(mode="full", labels=1), labels=())
    assert (pack.config.tuning_mode, pack.config.adapter, pack.config.base) == ("full", None, None)
    assert pack.config.head == "regression"
    assert len(pack.tensors) == 39 + 2


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ({}, {"labels": LABELS}, "has 2 units, but 3 labels were given: bad, good, fair"),
        ({}, {"labels": ()}, "has 2 units, but no labels were"),
        ({"head": "cls/seq_relationship/output"}, {}, "or cls/squad/output_weights .*, found only cls/seq_relat"),
        ({"head": "cls/squad/output", "labels": 3}, {"labels": ()}, "2 of another shape"),
        ({"mode": "full"}, {}, "more was trained than adapters, LayerNorms and head"),
        ({}, {"num_hidden_layers": 1}, "network has 1 layers"),
        ({}, {"intermediate_size": 64}, "does not fit the architecture that was given: .* of another shape"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(written, kind, asked, said):
    with pytest.raises(UserError, match=said):
        take(written(AdapterConfig(size=4), **kind), **asked)


def test_a_deeper_checkpoint_is_not_cut(written):
    with pytest.raises(UserError, match="variables of a larger or other network"):
        take(written(mode="full", labels=1), labels=(), num_hidden_layers=1)


def test_a_pretrained_bert_is_no_task(tiny_bert):
    with pytest.raises(UserError, match="A pre-trained BERT is no task"):
        take(os.path.join(tiny_bert, "bert_model.ckpt"))
