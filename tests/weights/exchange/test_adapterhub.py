"""Packs go to AdapterHub and come back unchanged; unsupported adapters, heads and files are rejected.

Names and values of the other side are written out by hand, as AdapterHub's `adapters` 1.3.0 writes them. That they mean
the same network there is tested in tests/parity, with PyTorch.
"""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy

from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import ImportedTask, adapterhub, adapterhub_configs
from adapter_layers import AdapterConfig
from tests.helpers import TINY, assert_mentions, make_pack, message_of, tiny_config, write_bert, write_file

LABELS = ["bad", "good", "fair"]
FILES = ["README.md", "adapter.safetensors", "adapter_config.json", "head_config.json"]
FILES += ["layer_norms.safetensors", "model_head.safetensors"]
# `save_adapter` writes this for DoubleSeqBnConfig(non_linearity="gelu", reduction_factor=4).
THEIR_CONFIG = {
    **dict.fromkeys(["adapter_residual_before_ln", "cross_adapter", "factorized_phm_rule", "is_parallel"], False),
    **dict.fromkeys(["ln_after", "ln_before", "original_ln_before", "phm_layer", "shared_W_phm", "use_gating"], False),
    **dict.fromkeys(["factorized_phm_W", "learn_phm", "phm_bias", "shared_phm_rule"], True),
    **dict.fromkeys(["mh_adapter", "original_ln_after", "output_adapter", "residual_before_ln"], True),
    **dict.fromkeys(["init_weights_seed", "inv_adapter", "inv_adapter_reduction_factor"], None),
    **{"dropout": 0.0, "stochastic_depth": 0.0, "scaling": 1.0, "leave_out": [], "reduction_factor": 4},
    **{"non_linearity": "gelu", "init_weights": "bert", "hypercomplex_nonlinearity": "glorot-uniform"},
    **{"phm_c_init": "normal", "phm_dim": 4, "phm_init_range": 0.0001, "phm_rank": 1},
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
# Features that change the network.
SWITCHED_OFF = [
    "cross_adapter",
    "is_parallel",
    "ln_after",
    "ln_before",
    "original_ln_before",
    "phm_layer",
    "use_gating",
]
# `add_qa_head` makes this.
THEIR_SPAN_HEAD = {key: value for key, value in THEIR_HEAD.items() if key not in ("bias", "use_pooler")}
THEIR_SPAN_HEAD.update(head_type="question_answering", label2id=None)


def random_pack(base: bases.Base, labels=LABELS, mode="adapter", head="classification", **adapter) -> packs.Pack:
    fields = packs.describe_adapter(AdapterConfig(**dict({"size": 4}, **adapter))) if mode == "adapter" else None
    return make_pack(base, 5, mode, labels=list(labels), head=head, adapter=fields)


def read(folder, base, labels=None) -> packs.Pack:
    return adapterhub.read(str(folder), base, ImportedTask("CoLA", labels, 16, "2024-05-06T07:08:09Z"))


def load(path) -> dict:
    return safetensors.numpy.load_file(str(path))


def read_json(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path, part=None, **changes) -> None:
    """Change keys of a JSON file, or of the object under the key `part`."""
    content = read_json(path)
    (content[part] if part else content).update(changes)
    path.write_text(json.dumps(content), encoding="utf-8")


def rename_tensors(path, old: str, new: str) -> dict:
    tensors = {name.replace(old, new): value for name, value in load(path).items()}
    safetensors.numpy.save_file(tensors, str(path))
    return tensors


@pytest.fixture(scope="module")
def exported(base, tmp_path_factory):
    """A pack and the folder that it was exported to. Read only."""
    folder = tmp_path_factory.mktemp("exports") / "cola"
    pack = random_pack(base)
    adapterhub.export(pack, base, str(folder))
    return pack, folder


@pytest.fixture
def theirs(base, tmp_path):
    """A folder as AdapterHub writes it: adapter and head, no LayerNorms."""
    path = tmp_path / "theirs"
    adapterhub.export(random_pack(base, ["0", "1"]), base, str(path))
    for name, config in (("adapter_config.json", THEIR_CONFIG), ("head_config.json", THEIR_HEAD)):
        content = dict(read_json(path / name), config=config)
        unknown = {"base_fingerprint", "layer_norms"}
        write_file(path, name, json.dumps({key: content[key] for key in content if key not in unknown}))
    (path / "layer_norms.safetensors").unlink()
    return path


def test_an_export_has_the_files_of_adapterhub_and_the_layer_norms(exported):
    pack, folder = exported
    assert sorted(os.listdir(str(folder))) == FILES
    described = read_json(folder / "adapter_config.json")
    assert {key: THEIR_CONFIG[key] for key in described["config"]} == dict(described["config"], non_linearity="gelu")
    assert described["config"]["non_linearity"] == "gelu_new"
    assert (described["name"], described["model_type"], described["hidden_size"]) == ("CoLA", "bert", 16)
    assert described["version"] == "adapters.1.3.0"
    head = read_json(folder / "head_config.json")["config"]
    label_ids = {"bad": 0, "good": 1, "fair": 2}
    assert head == dict(THEIR_HEAD, activation_function=None, dropout_prob=0.1, label2id=label_ids, num_labels=3)
    weights, norms = load(folder / "adapter.safetensors"), load(folder / "layer_norms.safetensors")
    assert (len(weights), len(norms)) == (2 * 2 * 4, 2 * (1 + 2 * 2))
    weights.update(norms, **load(folder / "model_head.safetensors"))
    there = "bert.encoder.layer.1.attention.output.adapters.CoLA"
    here = "bert/encoder/layer_1/attention/output/adapters"
    for name, expected in {
        f"{there}.adapter_down.0.weight": pack.tensors[f"{here}/weights1"].T,
        f"{there}.adapter_down.0.bias": pack.tensors[f"{here}/biases1"][0],
        f"{there}.adapter_up.weight": pack.tensors[f"{here}/weights2"].T,
        f"{there}.adapter_up.bias": pack.tensors[f"{here}/biases2"][0],
        "heads.CoLA.1.weight": pack.tensors["output_weights"],
        "heads.CoLA.1.bias": pack.tensors["output_bias"],
        "bert.encoder.layer.0.output.LayerNorm.weight": pack.tensors["bert/encoder/layer_0/output/LayerNorm/gamma"],
    }.items():
        np.testing.assert_array_equal(weights[name], expected, err_msg=name)
    facts = ["use_safetensors=True", "layer_norms.safetensors", "do_lower_case=True", "max_length=16"]
    assert_mentions(code_of(folder), *facts)
    assert_mentions((folder / "README.md").read_text(encoding="utf-8"), pack.config.base, "bad, good, fair")


def code_of(folder) -> str:
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")
    return code


def test_a_span_head_is_exported_as_a_question_answering_head(base, tmp_path):
    pack = random_pack(base, (), head="span")
    adapterhub.export(pack, base, str(tmp_path / "out"))
    head = read_json(tmp_path / "out" / "head_config.json")["config"]
    # AdapterHub fails on keys that add_qa_head does not know, such as use_pooler.
    assert head == dict(THEIR_SPAN_HEAD, activation_function=None, dropout_prob=0.0)
    weights = load(tmp_path / "out" / "model_head.safetensors")
    np.testing.assert_array_equal(weights["heads.CoLA.1.weight"], pack.tensors["cls/squad/output_weights"])
    assert_mentions(code_of(tmp_path / "out"), "output.start_logits, output.end_logits", '"max_length": 16')


@pytest.mark.parametrize(
    ("labels", "adapter"),
    [
        (LABELS, {}),
        ((), {"head": "span", "activation": "relu", "placement": "feedforward", "layers": (0,), "size": 3}),
        (LABELS, {"activation": "tanh", "placement": "attention", "size": 5}),
        ((), {"head": "regression", "activation": "linear", "layers": (1,), "size": 40}),
    ],
)
def test_a_pack_comes_back_unchanged(base, tmp_path, labels, adapter):
    pack = random_pack(base, labels, **adapter)
    adapterhub.export(pack, base, str(tmp_path / "out"))
    again = read(tmp_path / "out", base)
    assert list(again.tensors) == list(pack.tensors)
    assert again.fingerprint == pack.fingerprint
    assert again.config.adapter_config == pack.config.adapter_config
    for field in ("task", "architecture", "head", "labels", "tokenizer", "base", "max_seq_length", "tuning_mode"):
        assert getattr(again.config, field) == getattr(pack.config, field), field


@pytest.mark.parametrize("hidden", [16, 312, 384, 768, 1024])
def test_adapterhub_computes_every_size_from_its_reduction_factor(hidden):
    for size in range(1, 2 * hidden):
        assert int(hidden // adapterhub_configs.reduction_factor(hidden, size)) == size


@pytest.mark.parametrize(
    ("task", "name"), [("SST-2", "SST-2"), ("my.own task", "my_own_task"), ("train", "train_task"), ("_x", "_x_task")]
)
def test_names_of_adapters_are_valid_in_pytorch(task, name):
    assert adapterhub.adapter_name(task) == name


@pytest.mark.parametrize(
    ("mode", "changes", "facts"),
    [
        ("full", {}, ["'full'", "'adapter'"]),
        ("adapter", {"labels": ["a"]}, ["'a'", "regression"]),
        ("adapter", {"tokenizer": {"type": "sentencepiece"}}, ["SentencePiece"]),
        ("adapter", {"adapter": {"size": 4, "norm": "layer"}}, ["{'norm': 'layer'}", "DoubleSeqBnConfig"]),
        ("adapter", {"adapter": {"size": 4, "norm": "batch", "depth": 2}}, ["'batch'", "'depth': 2"]),
        ("adapter", {"adapter": {"size": 4, "connection": "parallel"}}, ["{'connection': 'parallel'}"]),
    ],
)
def test_packs_that_adapterhub_does_not_support_are_not_exported(base, tmp_path, mode, changes, facts):
    pack = make_pack(base, mode=mode, **changes)
    assert_mentions(message_of(adapterhub.export, pack, base, str(tmp_path / "out")), "CoLA", *facts)
    assert os.listdir(str(tmp_path)) == []


@pytest.fixture(scope="module")
def other_base(tmp_path_factory) -> bases.Base:
    folder = str(tmp_path_factory.mktemp("other"))
    write_bert(folder, tiny_config(), seed=8)
    return bases.Base.find(folder)


def test_a_pack_is_not_exported_for_another_base(base, other_base, tmp_path, exported):
    shutil.copytree(base.folder, str(tmp_path / "relu"))
    write_file(tmp_path, "relu/bert_config.json", json.dumps(dict(TINY, hidden_act="relu")))
    relu = bases.Base.find(str(tmp_path / "relu"))
    for other, facts in ((other_base, ["another base"]), (relu, ["hidden_act", "gelu", "relu"])):
        assert_mentions(message_of(adapterhub.export, exported[0], other, str(tmp_path / "out")), *facts)


def test_an_older_export_is_replaced_only_on_request(base, tmp_path, exported):
    pack, out = exported[0], tmp_path / "out"
    adapterhub.export(pack, base, str(out))
    assert_mentions(message_of(adapterhub.export, pack, base, str(out)), out, "README.md", "--overwrite")
    other = packs.Pack(pack.config, {name: 2 * value for name, value in pack.tensors.items()})
    adapterhub.export(other, base, str(out), overwrite=True)
    assert read(out, base).fingerprint == other.fingerprint
    assert sorted(os.listdir(str(out))) == FILES
    assert os.listdir(str(tmp_path)) == ["out"]


def test_an_adapterhub_adapter_becomes_a_pack_with_the_layer_norms_of_the_base(base, theirs):
    pack = read(theirs, base)
    assert pack.config.adapter_config == AdapterConfig(size=4, activation="gelu_erf")
    assert pack.config.labels == ["LABEL_0", "LABEL_1"]
    assert pack.config.origin["layer_norms"] == "of the base"
    assert pack.config.origin["adapterhub"]["config"] == THEIR_CONFIG
    there = load(theirs / "adapter.safetensors")
    here = pack.tensors["bert/encoder/layer_1/output/adapters/weights2"]
    np.testing.assert_array_equal(here, there["bert.encoder.layer.1.output.adapters.CoLA.adapter_up.weight"].T)
    name = "bert/encoder/layer_1/output/LayerNorm/beta"
    np.testing.assert_array_equal(pack.tensors[name], base.tensors()[name])
    packs.check_base(pack, "pack", base.digests, "base")
    rename_tensors(theirs / "adapter.safetensors", "bert.", "")
    assert read(theirs, base).fingerprint == pack.fingerprint


def test_given_labels_must_have_the_order_of_the_head(base, theirs):
    assert_mentions(message_of(read, theirs, base, LABELS), "2 classes", "LABEL_0, LABEL_1", "3 labels")
    assert_mentions(message_of(read, theirs, base, ["LABEL_1", "LABEL_0"]), "order", "LABEL_0, LABEL_1")
    change_json(theirs / "head_config.json", "config", label2id={"LABEL_0": 0, "LABEL_1": 3})
    assert_mentions(message_of(read, theirs, base), "label2id", "0 to 1")


def test_the_head_of_a_sequence_classifier_is_read(base, theirs):
    change_json(theirs / "head_config.json", model_class="BertForSequenceClassification", config=None, num_labels=2)
    head = rename_tensors(theirs / "model_head.safetensors", "heads.CoLA.1", "classifier")
    pack = read(theirs, base, ["0", "1"])
    assert pack.config.labels == ["0", "1"]
    np.testing.assert_array_equal(pack.tensors["output_weights"], head["classifier.weight"])
    change_json(theirs / "head_config.json", model_class="BertForTokenClassification")
    assert_mentions(message_of(read, theirs, base), "BertForTokenClassification", "BertForSequenceClassification")


def test_a_question_answering_head_becomes_a_span_head(base, theirs):
    change_json(theirs / "head_config.json", config=THEIR_SPAN_HEAD)
    pack = read(theirs, base)
    assert (pack.config.head, pack.config.labels) == ("span", [])
    there = load(theirs / "model_head.safetensors")
    np.testing.assert_array_equal(pack.tensors["cls/squad/output_weights"], there["heads.CoLA.1.weight"])
    assert_mentions(message_of(read, theirs, base, ["yes", "no"]), "span", "2 labels", "yes, no")
    # The same network saved by the class with this head built in, which also names two meaningless classes.
    change_json(theirs / "head_config.json", model_class="BertForQuestionAnswering", config=None, num_labels=2)
    change_json(theirs / "head_config.json", label2id={"LABEL_0": 0, "LABEL_1": 1})
    rename_tensors(theirs / "model_head.safetensors", "heads.CoLA.1", "qa_outputs")
    again = read(theirs, base)
    assert (again.fingerprint, again.config.head, again.config.labels) == (pack.fingerprint, "span", [])


@pytest.mark.parametrize(
    ("head", "changes", "facts"),
    [
        (THEIR_SPAN_HEAD, {"layers": 2}, ["layers = 2", "expected 1", "add_qa_head"]),
        (THEIR_SPAN_HEAD, {"num_labels": None}, ["num_labels = null", "expected 2"]),
        (THEIR_SPAN_HEAD, {"head_type": "tagging"}, ['"tagging"', '"classification" or "question_answering"']),
        (THEIR_SPAN_HEAD, {"head_type": ["tagging"]}, ['head_type = ["tagging"]']),
        (THEIR_SPAN_HEAD, {"head_type": "classification"}, ["use_pooler = null", "expected true"]),
        (THEIR_HEAD, {"bias": False}, ["bias = false"]),
        (THEIR_HEAD, {"num_labels": 0}, ["num_labels", "0"]),
        (THEIR_HEAD, {"num_labels": 1, "label2id": None}, ["heads.CoLA.1.weight is [2, 16]"]),
        (THEIR_HEAD, {"num_labels": 10**9, "label2id": None}, [10**9, "heads.CoLA.1.weight is [2, 16]"]),
        (THEIR_HEAD, {"num_labels": 10**9}, ["label2id", f"0 to {10**9 - 1}"]),
        (THEIR_HEAD, {"num_labels": 2.0}, ["num_labels", "2.0"]),
        (THEIR_HEAD, {"label2id": [0, 1]}, ["label2id", "[0, 1]"]),
        (THEIR_HEAD, {"label2id": {"a": [0], "b": 1}}, ["label2id", "[0]"]),
    ],
)
def test_unsupported_heads_are_rejected(base, theirs, deadline, head, changes, facts):
    change_json(theirs / "head_config.json", config=dict(head, **changes))
    assert_mentions(message_of(read, theirs, base), "head_config.json", *facts)


def test_reduction_factors_by_layer_must_give_one_size(base, theirs):
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4, "default": 3.9})
    assert read(theirs, base).config.adapter["size"] == 4
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4, "default": 2})
    assert_mentions(message_of(read, theirs, base), "reduction_factor", "[4, 8]")
    change_json(theirs / "adapter_config.json", "config", reduction_factor={"0": 4})
    assert_mentions(message_of(read, theirs, base), "reduction_factor", "every layer")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"architecture": "prefix_tuning"}, ['architecture = "prefix_tuning"', "expected null"]),
        ({"original_ln_after": False}, ["original_ln_after = false", "expected true"]),
        ({"scaling": 4.0}, ["scaling = 4.0", "expected 1.0"]),
        ({"residual_before_ln": "post_add"}, ['residual_before_ln = "post_add"', "true or false"]),
        ({"inv_adapter": "nice"}, ['inv_adapter = "nice"']),
        *[({key: True}, [f"{key} = true", "expected false"]) for key in SWITCHED_OFF],
        ({"non_linearity": "mish"}, ["'mish'", "'swish'", "gelu, gelu_new"]),
        ({"mh_adapter": False, "output_adapter": False}, ["mh_adapter", "output_adapter"]),
        ({"leave_out": [0, 1]}, ["leave_out", "2 layers"]),
        ({"leave_out": 1}, ["leave_out is 1"]),
        ({"leave_out": ["1"]}, ["leave_out, 0", '"1"']),
        *[({"reduction_factor": value}, ["reduction_factor"]) for value in (1e-300, 5e-324, True, "4", [4])],
        ({"reduction_factor": 10**400}, ["401 digits"]),
        ({"reduction_factor": {"default": [[]]}}, ["reduction_factor"]),
        ({"non_linearity": ["gelu"]}, ["non_linearity", "['gelu']"]),
        ({"name": ["CoLA"]}, ["name", '["CoLA"]']),
        ({"reduction_factor": 0}, ["reduction_factor = 0"]),
        ({"vera_d": 1.0}, ["vera_d"]),
        ({"model_type": "roberta"}, ['model_type = "roberta"', '"bert"']),
        ({"hidden_size": 32}, ["hidden_size = 32", "expected 16"]),
        ({"version": "3.2.1"}, ['version = "3.2.1"']),
        ({"config": "houlsby"}, ["config"]),
    ],
)
def test_unsupported_adapters_are_rejected(base, theirs, changes, facts):
    is_outer = next(iter(changes)) in ("model_type", "hidden_size", "version", "config", "name")
    change_json(theirs / "adapter_config.json", None if is_outer else "config", **changes)
    assert_mentions(message_of(read, theirs, base), "adapter_config.json", *facts)


def test_missing_files_are_named_and_pickles_are_not_loaded(base, theirs, tmp_path):
    pickle = theirs / "pytorch_model_head.bin"
    (theirs / "model_head.safetensors").rename(pickle)
    assert_mentions(message_of(read, theirs, base), pickle.name, "use_safetensors=True")
    pickle.unlink()
    assert_mentions(message_of(read, theirs, base), "no model_head.safetensors")
    (theirs / "head_config.json").unlink()
    assert_mentions(message_of(read, theirs, base), "head_config.json", "with_head=True")
    assert_mentions(message_of(read, tmp_path / "nowhere", base), tmp_path / "nowhere")


def test_a_tensor_of_another_network_is_rejected(base, theirs):
    path = theirs / "adapter.safetensors"
    tensors = dict(load(path), **{"bert.invertible_adapters.CoLA.F.0.bias": np.zeros(4, np.float32)})
    safetensors.numpy.save_file(tensors, str(path))
    assert_mentions(message_of(read, theirs, base), path, "1 tensors", "invertible_adapters")


def test_an_export_without_its_layer_norms_or_for_another_base_is_rejected(base, other_base, exported, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(str(exported[1]), str(folder))
    assert_mentions(message_of(read, folder, other_base), folder, exported[0].config.base)
    (folder / "layer_norms.safetensors").unlink()
    assert_mentions(message_of(read, folder, base), "layer_norms.safetensors", folder)
