"""A bank holds one base and valid packs on it, however many processes write to it and are killed."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.bank import BASE, Bank, PackSummary, check_name
from adapter_bert.weights.exchange import huggingface
from scripts import bank as command
from tests.helpers import ROOT, VOCABULARY, assert_mentions, make_pack, message_of, tiny_config, write_bert
from tests.kill import ForkServer
from tests.reference_model import MODES


@pytest.fixture
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


@pytest.fixture
def bank(base, tmp_path) -> Bank:
    return Bank.create(str(tmp_path / "bank"), base)


def damage(path: str, position: int = -5) -> None:
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[position] ^= 1
        file.seek(0)
        file.write(data)


def other_files(bank: Bank) -> List[str]:
    """What lies beside the packs of a bank."""
    return sorted(name for name in os.listdir(os.path.join(bank.folder, "packs")) if not packs.is_pack(name))


def problems(bank: Bank) -> Dict[str, str]:
    return {name: problem for name, problem in Bank.open(bank.folder).verify() if problem}


# ------------------------------------------------------------------------------------------ create, open


def test_a_new_bank_holds_a_copy_of_the_base_and_no_packs(base, tmp_path):
    folder = tmp_path / "deep" / "bank"
    Bank.create(str(folder), base)
    bank = Bank.open(str(folder))
    assert bank.names() == [] and bank.base.folder == str(folder / "base")
    assert bank.base.digests() == base.digests() == bank.manifest.tensors
    assert bank.manifest.base == fingerprints.combine(base.digests())
    assert bank.manifest.tokenizer["entries"] == len(VOCABULARY)
    assert os.listdir(tmp_path / "deep") == ["bank"]


def test_a_bank_can_be_moved_and_holds_only_the_files_of_the_base(tmp_path):
    write_bert(str(tmp_path / "base"), tiny_config())
    for name in ("notes.txt", "bert_model.ckpt.meta", "checkpoint"):
        (tmp_path / "base" / name).write_text("mine")
    bank = Bank.create(str(tmp_path / "bank"), bases.Base.find(str(tmp_path / "base")))
    bank.add(make_pack(bank.base), "cola")
    shutil.rmtree(tmp_path / "base")
    os.rename(tmp_path / "bank", tmp_path / "moved")
    moved = Bank.open(str(tmp_path / "moved"))
    assert moved.verify() == [(BASE, None), ("cola", None)]
    data = ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    assert sorted(os.listdir(moved.base.folder)) == ["bert_config.json", *data, "vocab.txt"]


def test_a_bank_is_created_in_a_new_or_empty_folder_only(base, tmp_path):
    taken, empty = tmp_path / "taken", tmp_path / "empty"
    taken.mkdir()
    empty.mkdir()
    (taken / "mine.txt").write_text("mine")
    assert str(taken) in message_of(Bank.create, str(taken), base)
    assert os.listdir(taken) == ["mine.txt"]
    Bank.create(str(empty), base)
    assert str(empty) in message_of(Bank.create, str(empty), base)
    assert sorted(os.listdir(tmp_path)) == ["empty", "taken"]


def test_a_bank_of_an_invalid_base_is_not_created(base, tmp_path):
    broken = str(tmp_path / "base")
    shutil.copytree(base.folder, broken)
    damage(os.path.join(broken, "bert_model.ckpt.data-00000-of-00001"), 40)
    assert broken in message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    with open(os.path.join(broken, "vocab.txt"), "a") as file:
        file.write("more\n")
    message = message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    assert_mentions(message, f"{len(VOCABULARY) + 1} entries", f"vocab_size {len(VOCABULARY)}")
    assert os.listdir(tmp_path) == ["base"]


def make_old(path: str, seconds: float = 7200) -> None:
    inside = [os.path.join(top, name) for top, folders, names in os.walk(path) for name in folders + names]
    for each in inside + [path]:
        os.utime(each, (time.time() - seconds,) * 2)


def test_old_leftovers_of_a_killed_creation_are_removed(base, tmp_path):
    for name in ("bank.01234567.partial", "bank.89abcdef.partial", "bankrupt.01234567.partial"):
        (tmp_path / name / "base").mkdir(parents=True)
        (tmp_path / name / "base" / "vocab.txt").write_text("the\n")
        if "01234567" in name:
            make_old(str(tmp_path / name))
    Bank.create(str(tmp_path / "bank"), base)
    assert sorted(os.listdir(tmp_path)) == ["bank", "bank.89abcdef.partial", "bankrupt.01234567.partial"]


def test_a_folder_that_is_not_a_bank_is_not_opened(tmp_path):
    for folder in (str(tmp_path / "none"), str(tmp_path)):
        assert_mentions(message_of(Bank.open, folder), folder, "scripts/bank.py create")
    assert_mentions(message_of(Bank.open, "gs://bucket/bank"), "gs://bucket/bank", "local")


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"format": "adapter-bert bank 2"}, ["adapter-bert bank 2", "adapter-bert bank 1"]),
        ({"tensors": None}, ["tensors", "None"]),
        ({"tensors": {"a": "b"}}, ["fingerprint"]),
        ({"architecture": tiny_config(num_attention_heads=4).to_dict()}, ["num_attention_heads", 4]),
        ({"tokenizer": {"type": "wordpiece", "entries": 7}}, ["entries", 7]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_manifest_that_is_damaged_or_describes_another_base_is_rejected(bank, changes, facts):
    path = os.path.join(bank.folder, "bank.json")
    with open(path) as file:
        values = json.load(file)
    with open(path, "w") as file:
        json.dump(dict(values, **changes), file)
    assert_mentions(message_of(Bank.open, bank.folder), path, *facts)


def test_damaged_or_missing_files_are_named_when_a_bank_is_opened(bank):
    with open(bank.base.tokenizer_file, "w") as file:
        file.write("\n".join(VOCABULARY[:-2] + VOCABULARY[:-3:-1]) + "\n")
    assert "vocabulary is sha256:" in message_of(Bank.open, bank.folder)
    os.remove(bank.base.tokenizer_file)
    assert "vocab.txt" in message_of(Bank.open, bank.folder)
    with open(os.path.join(bank.folder, "bank.json"), "w") as file:
        file.write("{")
    assert "bank.json" in message_of(Bank.open, bank.folder)


FIRST_VERSION = {
    "adapter": "sha256:d25cf7cb6bfea663",
    "full": "sha256:29299d8430f00be4",
    "head": "sha256:561e94bafb65b977",
    "layer-norm": "sha256:d8f63606a8559d19",
    "mean": "sha256:d25cf7cb6bfea663",
    "top-layers": "sha256:a476ac9a90aebd18",
}


def test_a_bank_written_by_the_first_version_still_loads(tmp_path):
    folder = str(tmp_path / "bank")
    shutil.copytree(os.path.join(ROOT, "tests", "data", "first_version", "bank"), folder)
    bank = Bank.open(folder)
    assert bank.manifest.base == "sha256:4fbccb6949ffa91e"
    assert bank.verify() == [(name, None) for name in [BASE, *FIRST_VERSION]]
    for name, fingerprint in FIRST_VERSION.items():
        pack = bank.read(name)
        assert pack.fingerprint == fingerprint
        with open(bank.path(name), "rb") as file:
            assert packs.serialise(pack) == file.read()


# ------------------------------------------------------------------------------------------ packs in it


@pytest.mark.parametrize("mode", MODES)
def test_a_pack_is_read_as_it_was_added(bank, mode):
    pack = make_pack(bank.base, mode=mode)
    path = bank.add(pack, "cola")
    assert path == bank.path("cola") == os.path.join(bank.folder, "packs", "cola.safetensors")
    found = Bank.open(bank.folder).read("cola")
    assert found.config == pack.config == bank.config("cola") and found.fingerprint == pack.fingerprint
    assert other_files(bank) == []


def test_packs_are_summarised_by_their_headers(bank):
    pack = make_pack(bank.base)
    bank.add(pack, "sst-2")
    bank.add(make_pack(bank.base, mode="full"), "cola.top_1")
    full, summary = bank.summaries()
    assert bank.names() == ["cola.top_1", "sst-2"] == [full.name, summary.name]
    assert summary == PackSummary("sst-2", os.path.getsize(bank.path("sst-2")), pack.num_parameters, config=pack.config)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_pack_is_replaced_only_on_demand(bank, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    first, second = make_pack(bank.base, 1), make_pack(bank.base, 2)
    bank.add(first, "cola")
    assert_mentions(message_of(bank.add, second, "cola"), "'cola'", "--replace")
    assert bank.read("cola").fingerprint == first.fingerprint
    bank.add(second, "cola", replace=True)
    bank.add(first, "new", replace=True)
    assert [bank.read(name).config.seed for name in ("cola", "new")] == [2, 1]
    assert set(other_files(bank)) <= {".lock"}


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".cola", "-cola", "a/b", "../cola", "a\\b", "a b", "cola\n", "ä", "x.safetensors", "a" * 101],
)
def test_a_name_that_could_be_a_path_or_an_option_is_rejected(bank, name):
    assert_mentions(message_of(bank.add, None, name), repr(name), "--name")


def test_common_names_are_allowed():
    for name in ("cola", "SST-2", "mnli_m", "cola.seed-1", "7", "a" * 100):
        check_name(name)


def test_an_unknown_name_is_reported_with_the_existing_ones(bank):
    assert "empty" in message_of(bank.read, "cola")
    bank.add(make_pack(bank.base), "cola")
    for function in (bank.path, bank.config, bank.read, bank.remove):
        assert_mentions(message_of(function, "cols"), "cols", "'cola'?")
    assert "../packs/cola" in message_of(bank.read, "../packs/cola")


def test_a_pack_of_another_base_is_rejected(bank, tmp_path):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    other = make_pack(bases.Base.find(str(tmp_path / "other")))
    assert_mentions(message_of(bank.add, other, "cola"), other.config.base)
    packs.write(os.path.join(bank.folder, "packs", "cola.safetensors"), other)
    assert_mentions(message_of(bank.read, "cola"), other.config.base)
    assert bank.names() == ["cola"]


@pytest.mark.parametrize("mode", ["adapter", "full"])
@pytest.mark.parametrize("change", [{"num_attention_heads": 4}, {"hidden_act": "relu"}, {"type_vocab_size": 3}])
def test_a_pack_of_another_architecture_is_rejected(bank, change, mode):
    other = make_pack(bank.base, mode=mode, architecture=tiny_config(**change).to_dict())
    assert_mentions(message_of(bank.add, other, "cola"), *change, *change.values())


def test_values_that_only_matter_in_training_may_differ(bank):
    architecture = dict(tiny_config(hidden_dropout_prob=0.0, hidden_act="GELU").to_dict(), directionality="bidi")
    bank.add(make_pack(bank.base, architecture=architecture), "cola")
    assert bank.read("cola").config.architecture["directionality"] == "bidi"


def test_a_pack_needs_the_vocabulary_of_the_bank_but_not_its_case(bank):
    for tokenizer in (dict(bank.base.describe_tokenizer(), vocabulary="sha256:0123456789abcdef"), {}):
        message = message_of(bank.add, make_pack(bank.base, tokenizer=tokenizer), "cola")
        assert_mentions(message, bank.base.tokenizer_file)
    bank.add(make_pack(bank.base, tokenizer=bank.base.describe_tokenizer(do_lower_case=False)), "cased")
    assert bank.names() == ["cased"]


def test_an_invalid_pack_is_rejected(bank):
    pack = make_pack(bank.base)
    tensors = dict(pack.tensors, output_bias=np.array([0, np.nan], np.float32))
    assert "output_bias" in message_of(bank.add, packs.Pack(pack.config, tensors), "cola")
    del tensors["output_bias"]
    assert "output_bias" in message_of(bank.add, packs.Pack(pack.config, tensors), "cola")
    assert bank.names() == []


def test_a_damaged_pack_is_not_read_but_can_be_removed(bank):
    bank.add(make_pack(bank.base), "cola")
    damage(bank.path("cola"))
    assert "damaged" in message_of(bank.read, "cola")
    with open(bank.path("cola"), "w") as file:
        file.write("none")
    (summary,) = bank.summaries()
    assert (summary.name, summary.size, summary.config) == ("cola", 4, None)
    assert bank.remove("cola") == os.path.join(bank.folder, "packs", "cola.safetensors")
    assert bank.names() == [] and bank.summaries() == []


def test_verify_reports_each_result_at_once(bank):
    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    damage(bank.path("three"))
    reported: List[Any] = []
    results = bank.verify(lambda *result: reported.append(result))
    assert [name for name, _ in results] == [BASE, "one", "three", "two"] and reported == results
    assert list(problems(bank)) == ["three"]


def test_verify_finds_a_changed_or_damaged_base(bank):
    bank.add(make_pack(bank.base), "cola")
    tensors = bank.base.tensors()
    tensors["bert/pooler/dense/bias"] = tensors["bert/pooler/dense/bias"] + 1
    checkpoints.write(tensors, bank.base.checkpoint)
    assert list(problems(bank)) == [BASE]
    assert_mentions(problems(bank)[BASE], "1 of its", "bert/pooler/dense/bias")
    damage(bank.base.checkpoint + ".data-00000-of-00001", 40)
    assert "damaged" in problems(bank)[BASE]


def test_leftovers_are_not_listed_and_removed_when_they_are_old(bank):
    folder = os.path.join(bank.folder, "packs")
    # Earlier versions gave temporary files hidden names.
    old = [".cola.01234567.partial", "cola.safetensors.01234567.partial"]
    kept = ["cola.safetensors.89abcdef.partial", "notes.txt"]
    for name in old + kept + [".hidden.safetensors"]:
        with open(os.path.join(folder, name), "w") as file:
            file.write("half")
        if "89abcdef" not in name:
            make_old(os.path.join(folder, name))
    assert bank.names() == [] and len(bank.verify()) == 1
    bank.add(make_pack(bank.base), "cola")
    assert other_files(bank) == kept and bank.names() == ["cola"]


def test_a_writer_whose_temporary_file_was_removed_fails(bank, monkeypatch):
    monkeypatch.setattr(files, "_sync", os.remove)
    assert "cola" in message_of(bank.add, make_pack(bank.base), "cola")
    assert bank.names() == []


# ------------------------------------------------------------------------------------------ the command


def run(capsys, *args: str) -> str:
    capsys.readouterr()
    command.main(list(args))
    return capsys.readouterr().out


def failure(*args: str) -> str:
    """Return the message with which a command fails."""
    with pytest.raises(SystemExit) as caught:
        command.main(list(args))
    return str(caught.value.code)


@pytest.fixture
def here(bank) -> str:
    return f"--bank={bank.folder}"


def write_pack(folder, pack: packs.Pack, name: str = "pack.safetensors") -> str:
    path = os.path.join(str(folder), name)
    packs.write(path, pack)
    return path


def test_create_takes_a_base_of_google_or_hugging_face(base, tmp_path, capsys):
    google, hugging, theirs = (str(tmp_path / name) for name in ("google", "hugging", "theirs"))
    huggingface.export_base(base, theirs, do_lower_case=True)
    assert "2 layers, hidden size 16" in run(capsys, "create", f"--bank={google}", f"--base={base.folder}")
    run(capsys, "create", f"--bank={hugging}", f"--base={theirs}")
    assert Bank.open(google).manifest.base == Bank.open(hugging).manifest.base
    assert sorted(os.listdir(tmp_path)) == ["google", "hugging", "theirs"]
    assert google in failure("create", f"--bank={google}", f"--base={base.folder}")
    assert "nowhere" in failure("create", f"--bank={google}2", "--base=nowhere")


def test_list_prints_a_row_for_each_pack_and_totals(bank, here, capsys):
    assert "0 packs, 0.0 MB" in run(capsys, "list", here)
    bank.add(make_pack(bank.base, metrics={}, seed=None), "cola")
    bank.add(make_pack(bank.base, mode="full", task="RTE", collapsed=True, metrics={"accuracy": None}), "rte")
    bank.add(make_pack(bank.base, mode="top_layers"), "top")
    bank.add(make_pack(bank.base), "bad")
    damage(bank.path("bad"), 30)
    out = run(capsys, "list", here).split("\n")
    assert out[1].split() == ["name", "task", "mode", "parameters", "MB", "score", "seed", "date"]
    assert "cannot be read" in out[2]
    assert out[3].split() == ["cola", "CoLA", "adapter", "4", "786", "0.007", "-", "-", "2024-05-06"]
    assert "full" in out[4] and "accuracy ? (collapsed)" in out[4]
    assert " ".join(out[5].split()).startswith("top CoLA top_layers 1 ")
    trained = sum(bank.read(name).num_parameters for name in ("cola", "rte", "top"))
    base = parameters.count(bank.base.shapes())
    total = base + trained
    assert_mentions(out[6], "4 packs, ", f"{total:,} parameters", f"{total / base:.2f}x one BERT")


def test_totals_are_compared_with_as_many_fine_tuned_models():
    summaries = [PackSummary(f"task-{n}", 9_700_000, parameters=2_419_202) for n in range(9)]
    text = command.describe_totals(summaries, 109_482_240)
    assert_mentions(text, "9 packs", "87.3 MB", "131,255,058 parameters", "1.20x", "9x")


def test_show_prints_the_configuration_as_text_or_json(bank, here, capsys):
    pack = make_pack(bank.base, origin={"source": {"seed": 1}})
    bank.add(pack, "cola")
    values = json.loads(run(capsys, "show", here, "cola", "--json"))
    assert values["fingerprint"] == pack.fingerprint and values["parameters"] == pack.num_parameters
    assert {name: values[name] for name in vars(pack.config)} == vars(pack.config)
    lines = [line.split() for line in run(capsys, "show", here, "cola").split("\n")]
    for line in ("task CoLA", "hidden_size 16", "matthews 0.5", "labels 0, 1", "collapsed no", "tune_top_layers -"):
        assert line.split() in lines
    assert ["layers", "all"] in lines


def test_add_takes_packs_and_run_folders_and_names_them_by_their_task(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, task="SST-2")
    write_pack(tmp_path, pack, packs.FILE_NAME)
    assert pack.fingerprint in run(capsys, "add", here, str(tmp_path))
    run(capsys, "add", here, str(tmp_path / packs.FILE_NAME), "--name=again")
    assert bank.names() == ["again", "sst-2"]
    assert "'sst-2'" in failure("add", here, str(tmp_path))
    write_pack(tmp_path, make_pack(bank.base, 2, task="SST-2"), packs.FILE_NAME)
    run(capsys, "add", here, str(tmp_path), "--replace")
    assert bank.config("sst-2").seed == 2
    assert "nothing" in failure("add", here, str(tmp_path / "nothing"))
    assert "--name" in failure("add", here, write_pack(tmp_path, make_pack(bank.base, task="my task")))


def results_of(pack: packs.Pack, **changes) -> dict:
    content = {
        "task": pack.config.task,
        "primary_metric": "matthews",
        "metrics": {"accuracy": 0.9, "matthews": 0.8},
        "loss": 0.125,
        "collapsed": True,
        "fingerprints": {"pack": pack.fingerprint},
    }
    return dict(content, **changes)


def test_add_takes_the_scores_of_an_evaluation(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, metrics={}, loss=None, collapsed=None)
    path, results = write_pack(tmp_path, pack), tmp_path / "results.json"
    results.write_text(json.dumps(results_of(pack)))
    run(capsys, "add", here, path, f"--results={results}")
    config = bank.read("cola").config
    assert list(config.metrics.items()) == [("matthews", 0.8), ("accuracy", 0.9)]
    assert (config.loss, config.collapsed) == (0.125, True)
    run(capsys, "add", here, path, f"--results={tmp_path}", "--name=from-folder")


@pytest.mark.parametrize(
    "head, changes, facts",
    [
        ("classification", {"fingerprints": {"pack": "sha256:0123"}}, ["sha256:0123", "run_classifier.py"]),
        ("span", {"fingerprints": {}}, ["None", "run_squad.py"]),
        ("classification", {"fingerprints": None}, ["results.json", "fingerprints"]),
        ("classification", {"metrics": {}}, ["results.json", "metrics"]),
        ("classification", {"metrics": {"matthews": "good"}}, ["matthews", "good"]),
        ("classification", {"loss": "small"}, ["loss", "small"]),
        ("classification", {"task": "RTE"}, ["RTE", "CoLA"]),
    ],
    ids=str,
)
def test_add_rejects_the_scores_of_other_weights(bank, here, tmp_path, head, changes, facts):
    pack = make_pack(bank.base, head=head)
    (tmp_path / "results.json").write_text(json.dumps(results_of(pack, **changes)))
    path = write_pack(tmp_path, pack)
    assert_mentions(failure("add", here, path, f"--results={tmp_path / 'results.json'}"), *facts)
    assert bank.names() == []


def test_remove_removes_all_named_packs_or_none(bank, here, capsys):
    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    assert "tow" in failure("remove", here, "one", "tow")
    assert bank.names() == ["one", "three", "two"]
    out = run(capsys, "remove", here, "one", "two")
    assert_mentions(out, "packs/one.safetensors: task CoLA, 786 parameters", "packs/two.safetensors")
    assert bank.names() == ["three"]


def test_a_pack_is_exported_and_imported_into_another_bank(bank, here, base, tmp_path, capsys):
    pack = make_pack(bank.base)
    bank.add(pack, "cola")
    other = Bank.create(str(tmp_path / "other"), base)
    for output, path in (("a.safetensors", "a.safetensors"), ("folder", "folder/cola.safetensors")):
        run(capsys, "export", here, "cola", f"--output={tmp_path / output}")
        assert packs.read(str(tmp_path / path)).config == pack.config
        assert "--overwrite" in failure("export", here, "cola", f"--output={tmp_path / output}")
    run(capsys, "export", here, "cola", "--overwrite", f"--output={tmp_path / 'folder'}")
    exported = str(tmp_path / "a.safetensors")
    run(capsys, "import", f"--bank={other.folder}", exported, "--format=pack", "--name=new")
    assert other.read("new").fingerprint == pack.fingerprint
    assert "--task_name" in failure("import", here, exported, "--format=pack", "--task_name=RTE")


def read_checkpoint(prefix: str) -> Dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_an_exported_checkpoint_contains_base_and_pack(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base)
    bank.add(pack, "cola")
    prefix = str(tmp_path / "new" / "cola.ckpt")
    out = run(capsys, "export", here, "cola", "--format=checkpoint", f"--output={prefix}")
    assert_mentions(out, f"--init_checkpoint={prefix}", f"--vocab_file={bank.base.tokenizer_file}")
    found = read_checkpoint(prefix)
    step = found.pop("global_step")
    assert (step.dtype, step.shape, step) == (np.int64, (), 12)
    expected = dict(bank.base.tensors(), **pack.tensors)
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }
    assert sorted(os.listdir(tmp_path / "new")) == ["cola.ckpt.data-00000-of-00001", "cola.ckpt.index"]


def test_an_exported_checkpoint_is_replaced_only_on_demand_and_never_mixed(bank, here, tmp_path, capsys, monkeypatch):
    for seed in (1, 2):
        bank.add(make_pack(bank.base, seed), f"cola-{seed}")
    run(capsys, "export", here, "cola-1", "--format=checkpoint", f"--output={tmp_path}/")
    prefix = str(tmp_path / "model.ckpt")
    again = ["export", here, "cola-2", "--format=checkpoint", f"--output={prefix}"]
    assert "--overwrite" in failure(*again)
    np.testing.assert_array_equal(read_checkpoint(prefix)["output_bias"], bank.read("cola-1").tensors["output_bias"])
    run(capsys, *again, "--overwrite")
    np.testing.assert_array_equal(read_checkpoint(prefix)["output_bias"], bank.read("cola-2").tensors["output_bias"])

    def stop(source, target):
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(os, "replace", stop)
    assert "No space left" in failure(*again, "--overwrite")
    assert not os.path.exists(prefix + ".index")
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


@pytest.mark.parametrize("mode", ["adapter", "full"])
def test_a_checkpoint_of_google_is_imported_as_a_pack(bank, here, tmp_path, capsys, mode):
    pack = make_pack(bank.base, mode=mode)
    bank.add(pack, "cola")
    prefix = str(tmp_path / "model.ckpt-12")
    run(capsys, "export", here, "cola", "--format=checkpoint", f"--output={prefix}")
    take = ["import", here, prefix, "--format=checkpoint"]
    run(capsys, *take, "--task_name=cola", "--name=back")
    back = bank.read("back")
    assert back.fingerprint == pack.fingerprint
    assert (back.config.task, back.config.tuning_mode, back.config.step) == ("CoLA", mode, 12)
    run(capsys, *take, "--task_name=mine", "--labels=bad,good")
    assert bank.config("mine").labels == ["bad", "good"]
    assert "--labels=a,b" in failure(*take, "--name=x", "--task_name=mine")
    assert "--task_name" in failure(*take, "--name=x")
    assert "2 units" in failure(*take, "--name=x", "--task_name=MNLI")


def test_a_checkpoint_on_another_base_is_not_imported(bank, here, tmp_path, capsys):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=9)
    other = Bank.create(str(tmp_path / "other-bank"), bases.Base.find(str(tmp_path / "other")))
    other.add(make_pack(other.base), "cola")
    prefix = str(tmp_path / "model.ckpt")
    run(capsys, "export", f"--bank={other.folder}", "cola", "--format=checkpoint", f"--output={prefix}")
    message = failure("import", here, prefix, "--format=checkpoint", "--task_name=CoLA")
    assert_mentions(message, "another base", other.config("cola").base)


def test_a_pack_goes_to_adapterhub_and_back(bank, here, tmp_path, capsys):
    pack, folder = make_pack(bank.base), str(tmp_path / "hub")
    bank.add(pack, "cola")
    run(capsys, "export", here, "cola", "--format=adapterhub", f"--output={folder}")
    run(capsys, "import", here, folder, "--format=adapterhub", "--task_name=cola", "--name=back", "--max_seq_length=16")
    back = bank.read("back")
    assert back.fingerprint == pack.fingerprint
    assert (back.config.task, back.config.labels, back.config.max_seq_length) == ("CoLA", ["0", "1"], 16)
    assert folder in failure("export", here, "cola", "--format=adapterhub", f"--output={folder}")


SPANS = {"head": "span", "task": "SQuAD-v1.1", "metrics": {"f1": 81.25, "exact_match": 72.5}}


def test_packs_of_squad_are_added_listed_shown_verified_and_removed(bank, here, tmp_path, capsys):
    write_pack(tmp_path, make_pack(bank.base, **SPANS), packs.FILE_NAME)
    run(capsys, "add", here, str(tmp_path))
    line = run(capsys, "list", here).split("\n")[2].split()
    assert line == ["squad-v1.1", "SQuAD-v1.1", "adapter", "4", "786", "0.007", "f1", "81.2500", "1", "2024-05-06"]
    lines = [line.split() for line in run(capsys, "show", here, "squad-v1.1").split("\n")]
    assert ["head", "span"] in lines and ["labels", "-"] in lines
    assert "2 of 2 are good" in run(capsys, "verify", here)
    assert "task SQuAD-v1.1" in run(capsys, "remove", here, "squad-v1.1")


@pytest.mark.parametrize("form", ["adapterhub", "checkpoint"])
def test_packs_of_squad_are_exported_and_imported_without_labels(bank, here, tmp_path, capsys, form):
    pack, output = make_pack(bank.base, **SPANS), str(tmp_path / "out")
    bank.add(pack, "squad")
    run(capsys, "export", here, "squad", f"--format={form}", f"--output={output}")
    take = ["import", here, output, f"--format={form}"]
    run(capsys, *take, "--task_name=SQuAD-v1.1", "--name=back")
    back = bank.read("back")
    assert back.fingerprint == pack.fingerprint
    assert (back.config.task, back.config.head, back.config.labels) == ("SQuAD-v1.1", "span", [])
    assert back.config.max_seq_length == 32  # 384, but at most that of the base
    run(capsys, *take, "--task_name=mine", "--labels=", "--max_seq_length=16")
    assert (bank.config("mine").head, bank.config("mine").max_seq_length) == ("span", 16)
    assert "labels" in failure(*take, "--task_name=SQuAD", "--labels=a,b")
    assert "0, 1" in failure(*take, "--task_name=CoLA")
    assert "STS-B" in failure(*take, "--task_name=STS-B")
    assert bank.names() == ["back", "mine", "squad"]


@pytest.mark.parametrize("mode", ["full", "head"])
def test_packs_of_squad_in_other_modes_become_checkpoints(bank, here, tmp_path, capsys, mode):
    pack, prefix = make_pack(bank.base, mode=mode, **SPANS), str(tmp_path / "model.ckpt")
    bank.add(pack, "squad")
    run(capsys, "export", here, "squad", "--format=checkpoint", f"--output={prefix}")
    found = read_checkpoint(prefix)
    assert "output_weights" not in found
    np.testing.assert_array_equal(found["cls/squad/output_bias"], pack.tensors["cls/squad/output_bias"])
    run(capsys, "import", here, prefix, "--format=checkpoint", "--task_name=SQuAD-v1.1", "--name=back")
    assert bank.config("back").tuning_mode == "full"  # a checkpoint does not say what was trained


def test_verify_exits_with_code_1_if_something_is_wrong(bank, here):
    for name in ("good", "wrong"):
        bank.add(make_pack(bank.base), name)
    damage(bank.path("wrong"))
    script = os.path.join(ROOT, "scripts", "bank.py")
    environment = dict(os.environ, PYTHONPATH=ROOT)
    done = subprocess.run([sys.executable, script, "verify", here], capture_output=True, text=True, env=environment)
    lines = done.stdout.split("\n")
    assert done.returncode == 1, done.stderr
    assert lines[:2] == ["good  base/", "good  good"] and lines[2].startswith("BAD   wrong: The pack ")
    assert lines[3].startswith("2 of 3 are good")


# ------------------------------------------------------------------------------------------ several processes

ADDED, EXISTS = "added", "exists"
barrier: Any = None  # of the processes of `in_parallel`


def set_barrier(value: Any) -> None:
    globals()["barrier"] = value


def in_parallel(function: Any, arguments: List[tuple]) -> list:
    """Call a function once in each of several processes, which may wait for each other at `barrier`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that TensorFlow is imported once
    shared = context.Barrier(len(arguments))
    with context.Pool(len(arguments), set_barrier, (shared,)) as pool:
        return pool.starmap(function, arguments, chunksize=1)


def no_links(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


def slowly(step: Any, *paths: str) -> None:
    time.sleep(0.02)
    step(*paths)


def outcome_of(function: Any, *args: Any) -> str:
    try:
        function(*args)
    except errors.UserError:
        return EXISTS
    return ADDED


def add_own_and_shared_names(folder: str, seed: int, has_links: bool) -> List[str]:
    """Add four packs under own names and four under shared ones, on a slow file system."""
    bank = Bank.open(folder)
    pack = make_pack(bank.base, seed)
    os.link = functools.partial(slowly, os.link if has_links else no_links)
    os.rename = functools.partial(slowly, os.rename)
    barrier.wait()
    for index in range(4):
        bank.add(pack, f"own-{seed}-{index}")
    outcomes = []
    for index in range(4):
        barrier.wait()
        outcomes.append(outcome_of(bank.add, pack, f"same-{index}"))
    return outcomes


@pytest.mark.parametrize("has_links", [True, False])
def test_twenty_concurrent_additions_succeed_and_a_shared_name_is_taken_once(bank, has_links):
    outcomes = in_parallel(add_own_and_shared_names, [(bank.folder, seed, has_links) for seed in range(5)])
    for index, results in enumerate(zip(*outcomes)):
        assert sorted(results) == [ADDED] + [EXISTS] * 4
        assert bank.config(f"same-{index}").seed == results.index(ADDED)
    own = [f"own-{seed}-{index}" for seed in range(5) for index in range(4)]
    assert bank.names() == own + [f"same-{index}" for index in range(4)]
    assert problems(bank) == {}
    assert set(other_files(bank)) <= {".lock"}


def create_at_once(folder: str, base_folder: str) -> str:
    base = bases.Base.find(base_folder)
    barrier.wait()
    return outcome_of(Bank.create, folder, base)


def test_of_processes_that_create_the_same_bank_one_succeeds(base, tmp_path):
    outcomes = in_parallel(create_at_once, [(str(tmp_path / "bank"), base.folder)] * 4)
    assert sorted(outcomes) == [ADDED] + [EXISTS] * 3
    assert Bank.open(str(tmp_path / "bank")).verify() == [(BASE, None)]
    assert os.listdir(tmp_path) == ["bank"]


@pytest.fixture(scope="module")
def server():
    with ForkServer(__name__) as started:
        yield started


def write_forever(tell: Any, folder: str) -> None:
    bank = Bank.open(folder)
    # Large, so that the kill may come in the middle of a file.
    members = [make_pack(bank.base, seed, adapter={"size": 1024}) for seed in (1, 2)]
    for index in itertools.count():
        bank.add(members[index % 2], "kept", replace=True)
        tell()
        outcome_of(bank.add, members[index % 2], "new")
        if index % 3 == 0:
            bank.remove("new")


def test_a_killed_writer_leaves_complete_packs(server, bank):
    moments = random.Random(1)
    for _ in range(15):
        server.kill("write_forever", bank.folder, seconds=moments.uniform(0, 0.1))
        assert problems(bank) == {}
        assert "kept" in bank.names()
        assert {bank.config(name).adapter["size"] for name in bank.names()} == {1024}


def add_and_die(tell: Any, folder: str, name: str, place: str, step: str) -> None:
    """Add a pack over or beside the pack `old`, and die before or after a step."""
    owner: Any = os if hasattr(os, step) else files.tf.gfile
    original = getattr(owner, step)

    def die(*args: Any, **kwargs: Any) -> None:
        if place == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), 9)

    bank = Bank.open(folder)
    pack = make_pack(bank.base, 2)
    setattr(owner, step, die)
    bank.add(pack, name, replace=name == "old")


@pytest.mark.parametrize(
    "name, place, step, seeds, num_leftovers",
    [
        ("new", "before", "fsync", {"old": 1}, 1),
        ("new", "after", "fsync", {"old": 1}, 1),
        ("new", "before", "link", {"old": 1}, 1),
        ("new", "after", "link", {"new": 2, "old": 1}, 1),
        ("new", "before", "Remove", {"new": 2, "old": 1}, 1),
        ("new", "after", "Remove", {"new": 2, "old": 1}, 0),
        ("old", "before", "fsync", {"old": 1}, 1),
        ("old", "after", "fsync", {"old": 1}, 1),
        ("old", "before", "Rename", {"old": 1}, 1),
        ("old", "after", "Rename", {"old": 2}, 0),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(server, bank, name, place, step, seeds, num_leftovers):
    bank.add(make_pack(bank.base, 1), "old")
    server.kill("add_and_die", bank.folder, name, place, step)
    assert problems(bank) == {}
    assert {each: bank.read(each).config.seed for each in bank.names()} == seeds
    assert len(other_files(bank)) == num_leftovers
