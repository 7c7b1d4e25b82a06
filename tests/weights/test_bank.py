"""The bank: one base and its packs. What it takes in is sound; whoever is killed, or is faster, leaves it sound."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.bank import BASE, Bank, check_name
from adapter_bert.weights.exchange import huggingface
from adapter_layers import AdapterConfig
from scripts import bank as command
from tests.helpers import ROOT, VOCABULARY, message_of, tiny_config, write_bert

HOURS = 3600


def make_pack(base: bases.Base, seed: int = 1, mode: str = "adapter", **changes) -> packs.Pack:
    """A pack with random weights for a base."""
    config = packs.PackConfig(
        task="CoLA",
        architecture=base.config().to_dict(),
        tuning_mode=mode,
        head="classification",
        labels=["0", "1"],
        tokenizer=base.describe_tokenizer(),
        max_seq_length=16,
        base=None,
        created="2024-05-06T07:08:09Z",
        adapter=dict(dataclasses.asdict(AdapterConfig(size=4))) if mode == "adapter" else None,
        metrics={"matthews": 0.5, "accuracy": 0.75},
        loss=0.25,
        collapsed=False,
        seed=seed,
        step=12,
    )
    config = dataclasses.replace(config, **changes)
    frozen = config.frozen_names()
    if frozen and "base" not in changes:
        config = dataclasses.replace(config, base=fingerprints.combine(base.digests(), frozen))
    numbers = np.random.RandomState(seed)
    tensors = {
        name: numbers.standard_normal(shape).astype(np.float32) for name, shape in config.trained_shapes().items()
    }
    return packs.Pack(config, tensors)


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


def same_weights(one: packs.Pack, other: packs.Pack) -> bool:
    return one.fingerprint == other.fingerprint


def hidden_files(bank: Bank) -> List[str]:
    return [name for name in os.listdir(os.path.join(bank.folder, "packs")) if not packs.is_pack(name)]


# ------------------------------------------------------------------------------------------ create, open


def test_a_new_bank_holds_a_copy_of_the_base_and_no_packs(base, tmp_path):
    Bank.create(str(tmp_path / "deep" / "bank"), base)
    bank = Bank.open(str(tmp_path / "deep" / "bank"))
    assert bank.names() == []
    assert bank.base.folder == str(tmp_path / "deep" / "bank" / "base")
    assert bank.base.digests() == base.digests() == bank.notes.tensors
    assert bank.notes.base == fingerprints.combine(base.digests())
    assert bank.notes.tokenizer["entries"] == len(VOCABULARY)
    assert sorted(os.listdir(tmp_path / "deep")) == ["bank"]


def test_a_bank_can_be_moved_and_needs_nothing_else(tmp_path):
    write_bert(str(tmp_path / "base"), tiny_config())
    bank = Bank.create(str(tmp_path / "bank"), bases.Base.find(str(tmp_path / "base")))
    bank.add(make_pack(bank.base), "cola")
    shutil.rmtree(tmp_path / "base")
    os.rename(tmp_path / "bank", tmp_path / "moved")
    moved = Bank.open(str(tmp_path / "moved"))
    assert [problem for _, problem in moved.verify()] == [None, None]


def test_what_lies_beside_a_base_is_not_copied(base, tmp_path):
    folder = str(tmp_path / "base")
    shutil.copytree(base.folder, folder)
    for name in ("notes.txt", "bert_model.ckpt.meta", "checkpoint"):
        (tmp_path / "base" / name).write_text("mine")
    bank = Bank.create(str(tmp_path / "bank"), bases.Base.find(folder))
    assert sorted(os.listdir(bank.base.folder)) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "vocab.txt",
    ]


def test_an_existing_folder_is_refused_and_an_empty_one_is_used(base, tmp_path):
    taken, empty = tmp_path / "taken", tmp_path / "empty"
    taken.mkdir()
    empty.mkdir()
    (taken / "mine.txt").write_text("mine")
    assert f"{taken} is there already" in message_of(Bank.create, str(taken), base)
    assert os.listdir(taken) == ["mine.txt"]
    Bank.create(str(empty), base)
    assert "is there already" in message_of(Bank.create, str(empty), base)
    assert sorted(os.listdir(tmp_path)) == ["empty", "taken"]


def test_a_creation_that_fails_leaves_nothing(base, tmp_path):
    broken = str(tmp_path / "base")
    shutil.copytree(base.folder, broken)
    damage(os.path.join(broken, "bert_model.ckpt.data-00000-of-00001"), 40)
    assert f"The checkpoint {broken}" in message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    assert os.listdir(tmp_path) == ["base"]


def test_a_vocabulary_of_another_model_is_refused(base, tmp_path):
    folder = str(tmp_path / "base")
    shutil.copytree(base.folder, folder)
    with open(os.path.join(folder, "vocab.txt"), "a") as file:
        file.write("more\n")
    message = message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(folder))
    assert f"has {len(VOCABULARY) + 1} entries" in message and f"vocab_size {len(VOCABULARY)}" in message


def test_the_leftovers_of_a_killed_creation_are_removed_when_they_are_old(base, tmp_path):
    for name in ("bank.01234567.partial", "bank.89abcdef.partial", "bankrupt.01234567.partial"):
        (tmp_path / name / "base").mkdir(parents=True)
        (tmp_path / name / "base" / "vocab.txt").write_text("the\n")
    for name in ("bank.01234567.partial", "bankrupt.01234567.partial"):
        make_old(str(tmp_path / name))
    Bank.create(str(tmp_path / "bank"), base)
    assert sorted(os.listdir(tmp_path)) == ["bank", "bank.89abcdef.partial", "bankrupt.01234567.partial"]


def make_old(path: str, seconds: float = 2 * HOURS) -> None:
    inside = [os.path.join(top, name) for top, folders, names in os.walk(path) for name in folders + names]
    for each in inside + [path]:
        os.utime(each, (time.time() - seconds,) * 2)


def test_what_is_no_bank_is_told_so(tmp_path):
    assert "There is no bank" in message_of(Bank.open, str(tmp_path / "none"))
    assert "scripts/bank.py create" in message_of(Bank.open, str(tmp_path))
    assert "local folder" in message_of(Bank.open, "gs://bucket/bank")


def change_notes(bank: Bank, **changes) -> None:
    path = os.path.join(bank.folder, "bank.json")
    with open(path) as file:
        values = json.load(file)
    with open(path, "w") as file:
        json.dump(dict(values, **changes), file)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"format": "adapter-bert bank 2"}, "this version reads 'adapter-bert bank 1'"),
        ({"tensors": None}, "tensors cannot be None"),
        ({"tensors": {"a": "b"}}, "is damaged: its tensors have the fingerprint"),
        ({"architecture": dict(tiny_config(num_attention_heads=4).to_dict())}, "num_attention_heads is 4 in the bank"),
        ({"tokenizer": {"type": "wordpiece", "entries": 7}}, "entries is 7 in the bank"),
    ],
)
def test_notes_that_do_not_fit_are_refused(bank, changes, told):
    change_notes(bank, **changes)
    assert told in message_of(Bank.open, bank.folder)


def test_a_damaged_note_and_missing_parts_are_told(bank):
    os.remove(bank.base.tokenizer_file)
    assert "is not a base" in message_of(Bank.open, bank.folder)
    with open(os.path.join(bank.folder, "bank.json"), "w") as file:
        file.write("{")
    assert "bank.json is damaged" in message_of(Bank.open, bank.folder)


def test_a_changed_vocabulary_is_found_when_the_bank_is_opened(bank):
    with open(bank.base.tokenizer_file, "w") as file:
        file.write("\n".join(VOCABULARY[:-2] + VOCABULARY[:-3:-1]) + "\n")
    assert "vocabulary is sha256:" in message_of(Bank.open, bank.folder)


# ------------------------------------------------------------------------------------------ packs in it


@pytest.mark.parametrize("mode", ["adapter", "full", "top_layers", "layer_norm", "head"])
def test_a_pack_of_every_mode_comes_back_as_it_was(bank, mode):
    pack = make_pack(bank.base, mode=mode, tune_top_layers=1 if mode == "top_layers" else None)
    path = bank.add(pack, "cola")
    assert path == bank.path("cola") == os.path.join(bank.folder, "packs", "cola.safetensors")
    found = Bank.open(bank.folder).read("cola")
    assert found.config == pack.config and same_weights(found, pack)
    assert bank.config("cola") == pack.config
    assert hidden_files(bank) == []


def test_packs_are_listed_by_name_with_what_a_table_needs(bank):
    bank.add(make_pack(bank.base, task="SST-2", seed=None, metrics={}), "sst-2")
    bank.add(make_pack(bank.base, mode="top_layers", tune_top_layers=1, collapsed=True), "cola.top_1")
    assert bank.names() == ["cola.top_1", "sst-2"]
    top, adapter = bank.rows()
    pack = bank.read("sst-2")
    assert (adapter.task, adapter.mode, adapter.adapter_size, adapter.seed) == ("SST-2", "adapter", 4, None)
    assert (adapter.parameters, adapter.size) == (pack.num_parameters, os.path.getsize(bank.path("sst-2")))
    assert (adapter.metric, adapter.value, adapter.created) == (None, None, "2024-05-06T07:08:09Z")
    assert (top.mode, top.top_layers, top.adapter_size, top.collapsed) == ("top_layers", 1, None, True)
    assert (top.metric, top.value, top.seed) == ("matthews", 0.5, 1)


def test_a_name_is_given_once_unless_it_is_to_be_replaced(bank):
    first, second = make_pack(bank.base, 1), make_pack(bank.base, 2)
    bank.add(first, "cola")
    assert "There is a pack 'cola'" in message_of(bank.add, second, "cola")
    assert same_weights(bank.read("cola"), first)
    bank.add(second, "cola", replace=True)
    assert same_weights(bank.read("cola"), second)
    bank.add(first, "new", replace=True)
    assert bank.names() == ["cola", "new"] and hidden_files(bank) == []


def test_without_hard_links_a_name_is_still_given_once(bank, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    first, second = make_pack(bank.base, 1), make_pack(bank.base, 2)
    bank.add(first, "cola")
    assert "There is a pack 'cola'" in message_of(bank.add, second, "cola")
    bank.add(second, "other")
    assert bank.names() == ["cola", "other"] and same_weights(bank.read("cola"), first)
    assert hidden_files(bank) == [".lock"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".cola", "-cola", "a/b", "../cola", "a\\b", "a b", "cola\n", "ä", "x.safetensors", "a" * 101],
)
def test_what_could_be_a_path_or_an_option_is_no_name(bank, name):
    assert "cannot be called" in message_of(bank.add, None, name)
    if name and name != "..":
        assert "There is no pack" in message_of(bank.path, name)


def test_usual_names_are_names():
    for name in ("cola", "SST-2", "mnli_m", "cola.seed-1", "7", "a" * 100):
        check_name(name)


def test_an_unknown_name_is_told_with_those_that_exist(bank):
    assert "it is empty" in message_of(bank.read, "cola")
    bank.add(make_pack(bank.base), "cola")
    for function in (bank.path, bank.config, bank.read, bank.remove):
        assert "Did you mean 'cola'?" in message_of(function, "cols")
    assert "Unknown pack" in message_of(bank.read, "../packs/cola")


def test_a_pack_on_another_base_is_refused(bank, tmp_path):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    other = make_pack(bases.Base.find(str(tmp_path / "other")))
    assert "belongs to another base" in message_of(bank.add, other, "cola")
    packs.write(os.path.join(bank.folder, "packs", "cola.safetensors"), other)
    assert "belongs to another base" in message_of(bank.read, "cola")
    assert bank.names() == ["cola"]


@pytest.mark.parametrize("mode", ["adapter", "full"])
@pytest.mark.parametrize("change", [{"num_attention_heads": 4}, {"hidden_act": "relu"}, {"type_vocab_size": 3}])
def test_a_pack_of_another_architecture_is_refused(bank, change, mode):
    other = make_pack(bank.base, mode=mode, architecture=tiny_config(**change).to_dict())
    message = message_of(bank.add, other, "cola")
    key, value = next(iter(change.items()))
    assert "another architecture" in message and f"{key} is " in message and f"is {value} in the pack" in message


def test_what_matters_in_training_only_may_differ(bank):
    architecture = dict(tiny_config(hidden_dropout_prob=0.0, hidden_act="GELU").to_dict(), directionality="bidi")
    bank.add(make_pack(bank.base, architecture=architecture), "cola")
    assert bank.read("cola").config.architecture["directionality"] == "bidi"


def test_a_pack_with_another_vocabulary_is_refused_and_one_with_another_case_is_not(bank):
    swapped = dict(bank.base.describe_tokenizer(), vocabulary=fingerprints.of_text("other words"))
    assert "another vocabulary" in message_of(bank.add, make_pack(bank.base, tokenizer=swapped), "cola")
    assert "another vocabulary" in message_of(bank.add, make_pack(bank.base, tokenizer={}), "cola")
    bank.add(make_pack(bank.base, tokenizer=bank.base.describe_tokenizer(do_lower_case=False)), "cased")
    assert bank.names() == ["cased"]


def test_a_pack_that_is_not_sound_is_refused(bank):
    pack = make_pack(bank.base)
    tensors = dict(pack.tensors, output_bias=np.array([0, np.nan], np.float32))
    assert "are NaN or infinite" in message_of(bank.add, packs.Pack(pack.config, tensors), "cola")
    del tensors["output_bias"]
    assert "1 missing" in message_of(bank.add, packs.Pack(pack.config, tensors), "cola")
    assert bank.names() == []


def test_a_damaged_pack_is_refused_and_can_be_removed(bank):
    bank.add(make_pack(bank.base), "cola")
    damage(bank.path("cola"))
    assert "is damaged" in message_of(bank.read, "cola")
    with open(bank.path("cola"), "w") as file:
        file.write("none")
    (row,) = bank.rows()
    assert (row.name, row.size, row.task) == ("cola", 4, None) and "is damaged" in row.problem
    assert bank.remove("cola") == os.path.join(bank.folder, "packs", "cola.safetensors")
    assert bank.names() == [] and bank.rows() == []


def test_verify_tells_what_is_wrong_with_which(bank):
    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    told = []
    assert bank.verify(lambda *result: told.append(result)) == [
        (BASE, None),
        ("one", None),
        ("three", None),
        ("two", None),
    ]
    damage(bank.path("three"))
    results = bank.verify(lambda *result: told.append(result))
    assert [name for name, problem in results if problem] == ["three"] and "is damaged" in dict(results)["three"]
    assert told[4:] == results


def test_verify_finds_a_base_that_was_changed(bank):
    bank.add(make_pack(bank.base), "cola")
    tensors = bank.base.tensors()
    tensors["bert/pooler/dense/bias"] = tensors["bert/pooler/dense/bias"] + 1
    checkpoints.write(tensors, bank.base.checkpoint)
    results = dict(Bank.open(bank.folder).verify())
    assert "1 of its" in results[BASE] and "bert/pooler/dense/bias" in results[BASE]
    assert results["cola"] is None
    damage(bank.base.checkpoint + ".data-00000-of-00001", 40)
    assert "is damaged" in dict(bank.verify())[BASE]


def test_leftovers_are_never_listed_and_go_when_they_are_old(bank):
    folder = os.path.join(bank.folder, "packs")
    old, young = ".cola.01234567.partial", ".cola.89abcdef.partial"
    for name in (old, young, ".hidden.safetensors", "notes.txt"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("half")
    for name in (old, ".hidden.safetensors", "notes.txt"):
        make_old(os.path.join(folder, name))
    assert bank.names() == [] and len(bank.verify()) == 1
    bank.add(make_pack(bank.base), "cola")
    assert sorted(hidden_files(bank)) == sorted([young, "notes.txt"]) and bank.names() == ["cola"]


def test_a_writer_that_slept_too_long_fails_and_spoils_nothing(bank, monkeypatch):
    monkeypatch.setattr(files, "remove_leftovers", lambda folder, of, now: remove_partials(folder))
    assert bank.folder in message_of(bank.add, make_pack(bank.base), "cola")
    assert bank.names() == []


def remove_partials(folder: str) -> None:
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))


# ------------------------------------------------------------------------------------------ the command


def run(capsys, *args: str) -> str:
    capsys.readouterr()
    command.main(list(args))
    return capsys.readouterr().out


def refusal(*args: str) -> str:
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


def test_a_bank_is_made_from_either_kind_of_folder(base, tmp_path, capsys):
    google, hugging, theirs = (str(tmp_path / name) for name in ("google", "hugging", "theirs"))
    huggingface.export_base(base, theirs, do_lower_case=True)
    assert "2 layers, hidden size 16" in run(capsys, "create", f"--bank={google}", f"--base={base.folder}")
    run(capsys, "create", f"--bank={hugging}", f"--base={theirs}")
    assert Bank.open(google).notes.base == Bank.open(hugging).notes.base
    assert sorted(os.listdir(tmp_path)) == ["google", "hugging", "theirs"]
    assert "is there already" in refusal("create", f"--bank={google}", f"--base={base.folder}")
    assert "There is no folder" in refusal("create", f"--bank={google}2", "--base=nowhere")


def test_list_shows_each_pack_and_what_all_come_to(bank, here, capsys):
    assert "0 packs, 0.0 MB" in run(capsys, "list", here)
    bank.add(make_pack(bank.base), "cola")
    bank.add(make_pack(bank.base, mode="full", task="RTE", collapsed=True, metrics={"accuracy": None}), "rte")
    bank.add(make_pack(bank.base), "bad")
    damage(bank.path("bad"), 30)
    out = run(capsys, "list", here).split("\n")
    assert out[1].split() == ["name", "task", "mode", "parameters", "MB", "score", "seed", "date"]
    assert "cannot be read" in out[2]
    assert out[3].split() == ["cola", "CoLA", "adapter", "4", "786", "0.007", "matthews", "0.5000", "1", "2024-05-06"]
    assert "full" in out[4] and "accuracy ? (collapsed)" in out[4]
    base, full = (parameters.count(shapes) for shapes in (bank.base.shapes(), bank.read("rte").shapes()))
    total = base + 786 + full
    assert out[5].startswith("3 packs, ") and f"{total:,} parameters: {total / base:.2f}x one BERT" in out[5]


def test_the_total_says_what_as_many_fine_tunings_would_come_to():
    rows = [command.Row(f"task-{n}", 9_700_000, parameters=2_419_202) for n in range(9)]
    assert command.describe_totals(rows, 109_482_240) == (
        "9 packs, 87.3 MB; with the base 131,255,058 parameters: 1.20x one BERT instead of 9x, a fine-tuned one for "
        "each."
    )


def test_show_prints_everything_for_readers_and_for_programs(bank, here, capsys):
    pack = make_pack(bank.base, origin={"mean_of": [{"seed": 1}, {"seed": 2}]})
    bank.add(pack, "cola")
    values = json.loads(run(capsys, "show", here, "cola", "--json"))
    assert values["fingerprint"] == pack.fingerprint and values["parameters"] == pack.num_parameters
    for field in dataclasses.fields(packs.PackConfig):
        assert values[field.name] == getattr(pack.config, field.name)
    lines = [line.split() for line in run(capsys, "show", here, "cola").split("\n")]
    for line in ("task CoLA", "hidden_size 16", "matthews 0.5", "labels 0, 1", "collapsed no", "tune_top_layers -"):
        assert line.split() in lines


def test_add_takes_packs_and_run_folders_and_names_them_by_their_task(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, task="SST-2")
    write_pack(tmp_path, pack, packs.FILE_NAME)
    assert pack.fingerprint in run(capsys, "add", here, str(tmp_path))
    run(capsys, "add", here, str(tmp_path / packs.FILE_NAME), "--name=again")
    assert bank.names() == ["again", "sst-2"]
    assert "There is a pack 'sst-2'" in refusal("add", here, str(tmp_path))
    write_pack(tmp_path, make_pack(bank.base, 2, task="SST-2"), packs.FILE_NAME)
    run(capsys, "add", here, str(tmp_path), "--replace")
    assert bank.config("sst-2").seed == 2
    assert "There is no adapter pack" in refusal("add", here, str(tmp_path / "nothing"))
    odd = write_pack(tmp_path, make_pack(bank.base, task="my task"))
    assert "--name" in refusal("add", here, odd)


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


def test_results_of_an_evaluation_become_the_scores_of_the_pack(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, metrics={}, loss=None, collapsed=None)
    path, results = write_pack(tmp_path, pack), tmp_path / "results.json"
    results.write_text(json.dumps(results_of(pack)))
    run(capsys, "add", here, path, f"--results={results}")
    found = bank.read("cola")
    assert list(found.config.metrics.items()) == [("matthews", 0.8), ("accuracy", 0.9)]
    assert (found.config.loss, found.config.collapsed) == (0.125, True) and same_weights(found, pack)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"fingerprints": {"pack": "sha256:0123456789abcdef"}}, "scores of other weights"),
        ({"fingerprints": {}}, "scores of other weights"),
        ({"fingerprints": None}, "no results.json"),
        ({"metrics": {}}, "no results.json"),
        ({"metrics": {"matthews": "good"}}, "matthews cannot be 'good'"),
        ({"task": "RTE"}, "scores of the task RTE"),
    ],
)
def test_results_of_anything_else_are_refused(bank, here, tmp_path, changes, told):
    pack = make_pack(bank.base)
    (tmp_path / "results.json").write_text(json.dumps(results_of(pack, **changes)))
    path = write_pack(tmp_path, pack)
    assert told in refusal("add", here, path, f"--results={tmp_path / 'results.json'}")
    assert bank.names() == []


def test_remove_takes_names_only_and_says_what_is_gone(bank, here, capsys):
    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    assert "Unknown pack" in refusal("remove", here, "one", "tow")
    assert bank.names() == ["one", "three", "two"]
    out = run(capsys, "remove", here, "one", "two")
    assert "packs/one.safetensors: task CoLA, 786 parameters" in out and "packs/two.safetensors" in out
    assert bank.names() == ["three"]


def test_export_as_a_pack_and_import_into_another_bank(bank, here, base, tmp_path, capsys):
    pack = make_pack(bank.base)
    bank.add(pack, "cola")
    other = Bank.create(str(tmp_path / "other"), base)
    for output, path in (("a.safetensors", "a.safetensors"), ("folder", "folder/cola.safetensors")):
        run(capsys, "export", here, "cola", f"--output={tmp_path / output}")
        assert packs.read(str(tmp_path / path)).config == pack.config
        assert "--overwrite" in refusal("export", here, "cola", f"--output={tmp_path / output}")
    run(capsys, "export", here, "cola", "--overwrite", f"--output={tmp_path / 'folder'}")
    exported = str(tmp_path / "a.safetensors")
    run(capsys, "import", f"--bank={other.folder}", exported, "--format=pack", "--name=new")
    assert same_weights(other.read("new"), pack)
    assert "leave --task_name" in refusal("import", here, exported, "--format=pack", "--task_name=RTE")


def test_export_to_adapterhub_and_back(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base)
    bank.add(pack, "cola")
    folder = str(tmp_path / "hub")
    run(capsys, "export", here, "cola", "--format=adapterhub", f"--output={folder}")
    run(capsys, "import", here, folder, "--format=adapterhub", "--task_name=cola", "--name=back", "--max_seq_length=16")
    back = bank.read("back")
    assert same_weights(back, pack)
    assert (back.config.task, back.config.labels, back.config.max_seq_length) == ("CoLA", ["0", "1"], 16)
    assert "already holds" in refusal("export", here, "cola", "--format=adapterhub", f"--output={folder}")


def read_checkpoint(prefix: str) -> Dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_export_as_a_checkpoint_has_base_and_pack_in_one(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base)
    bank.add(pack, "cola")
    prefix = str(tmp_path / "new" / "cola.ckpt")
    out = run(capsys, "export", here, "cola", "--format=checkpoint", f"--output={prefix}")
    assert f"--init_checkpoint={prefix}" in out and f"--vocab_file={bank.base.tokenizer_file}" in out
    found = read_checkpoint(prefix)
    step = found.pop("global_step")
    assert (step.dtype, step.shape, step) == (np.int64, (), 12)
    assert set(found) == set(bank.base.shapes()) | set(pack.tensors)
    for name, value in dict(bank.base.tensors(), **pack.tensors).items():
        np.testing.assert_array_equal(found[name], value)
    assert sorted(os.listdir(tmp_path / "new")) == ["cola.ckpt.data-00000-of-00001", "cola.ckpt.index"]


def test_a_checkpoint_is_replaced_only_on_demand_and_never_mixed(bank, here, tmp_path, capsys, monkeypatch):
    for seed in (1, 2):
        bank.add(make_pack(bank.base, seed), f"cola-{seed}")
    run(capsys, "export", here, "cola-1", "--format=checkpoint", f"--output={tmp_path}/")
    prefix = str(tmp_path / "model.ckpt")
    again = ["export", here, "cola-2", "--format=checkpoint", f"--output={prefix}"]
    assert "--overwrite" in refusal(*again)
    np.testing.assert_array_equal(read_checkpoint(prefix)["output_bias"], bank.read("cola-1").tensors["output_bias"])
    run(capsys, *again, "--overwrite")
    np.testing.assert_array_equal(read_checkpoint(prefix)["output_bias"], bank.read("cola-2").tensors["output_bias"])

    def stop(source, target):
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(os, "replace", stop)
    assert "No space left" in refusal(
        "export", here, "cola-1", "--format=checkpoint", f"--output={prefix}", "--overwrite"
    )
    assert not os.path.exists(prefix + ".index")
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


@pytest.mark.parametrize("mode", ["adapter", "full"])
def test_a_checkpoint_of_googles_comes_back_as_a_pack(bank, here, tmp_path, capsys, mode):
    pack = make_pack(bank.base, mode=mode)
    bank.add(pack, "cola")
    prefix = str(tmp_path / "model.ckpt-12")
    run(capsys, "export", here, "cola", "--format=checkpoint", f"--output={prefix}")
    run(capsys, "import", here, prefix, "--format=checkpoint", "--task_name=cola", "--name=back")
    back = bank.read("back")
    assert same_weights(back, pack)
    assert (back.config.task, back.config.tuning_mode, back.config.step) == ("CoLA", mode, 12)
    run(capsys, "import", here, prefix, "--format=checkpoint", "--task_name=mine", "--labels=bad,good")
    assert bank.config("mine").labels == ["bad", "good"]
    unknown = ["import", here, prefix, "--format=checkpoint", "--name=x"]
    assert "give --labels=a,b" in refusal(*unknown, "--task_name=mine")
    assert "give --task_name" in refusal(*unknown)
    assert "2 units" in refusal(*unknown, "--task_name=MNLI")


def test_a_foreign_checkpoint_on_another_base_is_refused(bank, here, base, tmp_path, capsys):
    write_bert(str(tmp_path / "other"), tiny_config(), seed=9)
    other = Bank.create(str(tmp_path / "other-bank"), bases.Base.find(str(tmp_path / "other")))
    other.add(make_pack(other.base), "cola")
    prefix = str(tmp_path / "model.ckpt")
    run(capsys, "export", f"--bank={other.folder}", "cola", "--format=checkpoint", f"--output={prefix}")
    message = refusal("import", here, prefix, "--format=checkpoint", "--task_name=CoLA")
    assert "belongs to another base" in message


def test_the_command_leaves_with_1_where_something_is_wrong(bank, here):
    for name in ("good", "wrong"):
        bank.add(make_pack(bank.base), name)
    damage(bank.path("wrong"))
    script = os.path.join(ROOT, "scripts", "bank.py")
    done = subprocess.run([sys.executable, script, "verify", here], capture_output=True, text=True)
    lines = done.stdout.split("\n")
    assert done.returncode == 1, done.stderr
    assert lines[:2] == ["good  base/", "good  good"] and lines[2].startswith("BAD   wrong: The pack ")
    assert lines[3].startswith("2 of 3 are good")


# ------------------------------------------------------------------------------------------ packs of SQuAD

SPANS = {"head": "span", "labels": [], "task": "SQuAD-v1.1", "metrics": {"f1": 81.25, "exact_match": 72.5}}


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
def test_packs_of_squad_go_out_and_come_back_without_labels(bank, here, tmp_path, capsys, form):
    pack, output = make_pack(bank.base, **SPANS), str(tmp_path / "out")
    bank.add(pack, "squad")
    run(capsys, "export", here, "squad", f"--format={form}", f"--output={output}")
    take = ["import", here, output, f"--format={form}"]
    run(capsys, *take, "--task_name=SQuAD-v1.1", "--name=back")
    back = bank.read("back")
    assert same_weights(back, pack)
    assert (back.config.task, back.config.head, back.config.labels) == ("SQuAD-v1.1", "span", [])
    assert back.config.max_seq_length == 32  # 384, or as many as the base has
    run(capsys, *take, "--task_name=mine", "--labels=", "--max_seq_length=16")
    assert (bank.config("mine").head, bank.config("mine").max_seq_length) == ("span", 16)
    assert "no labels" in refusal(*take, "--task_name=SQuAD", "--labels=a,b")
    assert "2 labels were given: 0, 1" in refusal(*take, "--task_name=CoLA")
    assert "STS-B is no such task" in refusal(*take, "--task_name=STS-B")
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
    assert bank.config("back").tuning_mode == "full"  # what was trained cannot be seen


# ------------------------------------------------------------------------------------------ many processes
# TensorFlow takes seconds to import, so one process does it and forks the others. They use the file system only.


class Forker:
    """A process that runs the functions below, and may fork."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        environment = dict(os.environ, PYTHONPATH=ROOT)
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)], stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def __call__(self, function: Callable, *args) -> Any:
        """Runs a function there and returns its result, as JSON has it."""
        self.process.stdin.write(json.dumps([function.__name__, *args]) + "\n")
        self.process.stdin.flush()
        failure, result = json.loads(self.process.stdout.readline())
        assert failure is None, failure
        return result


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    started = Forker()
    yield started
    started.process.communicate()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
REFUSED, FAILED = 3, 4


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        work()
        code = 0
    except errors.UserError:
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def exit_code(child: int) -> int:
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def at_once(works: List[Callable[[], object]]) -> List[int]:
    """Runs them in a process each, started by one signal; returns their exit codes."""
    gate, key = os.pipe()

    def wait_then(work: Callable[[], object]) -> None:
        os.close(key)
        os.read(gate, 1)  # ends when the parent closes the other end
        work()

    children = [fork(functools.partial(wait_then, work)) for work in works]
    os.close(key)
    codes = [exit_code(child) for child in children]
    os.close(gate)
    return codes


def race_for_names(links: bool, *args) -> dict:
    """`race` on a slow file system, with or without hard links: others are sure to come in between."""

    def slow(step: Callable, *paths: str) -> None:
        time.sleep(0.02)
        step(*paths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", functools.partial(slow, os.link if links else no_links))
        patch.setattr(os, "rename", functools.partial(slow, os.rename))
        return race(*args)


def no_links(*_) -> None:
    raise PermissionError(1, "Operation not permitted")


def race(folder: str, writers: int, rounds: int) -> dict:
    """Several processes add packs at once, first each under names of its own, then all under the same names."""
    bank = Bank.open(folder)
    members = [make_pack(bank.base, seed) for seed in range(writers)]
    bank.add(members[0], "warm-up")

    def add_own(number: int) -> None:
        for index in range(rounds):
            bank.add(members[number], f"own-{number}-{index}")

    codes = at_once([functools.partial(add_own, number) for number in range(writers)])
    winners, refused, right = 0, 0, 0
    for index in range(rounds):
        works = [functools.partial(bank.add, member, f"same-{index}") for member in members]
        results = at_once(works)
        winners += results.count(0)
        refused += results.count(REFUSED)
        right += bank.read(f"same-{index}").config.seed == results.index(0)
    problems = [result for result in bank.verify() if result[1]]
    return {"own": codes, "won": winners, "refused": refused, "right": right, "problems": problems}


@needs_fork
@pytest.mark.parametrize("links", [True, False])
def test_of_processes_that_add_at_once_all_win_their_own_name_and_one_a_shared_one(forker, bank, links):
    done = forker(race_for_names, links, bank.folder, 5, 12)
    assert done == {"own": [0] * 5, "won": 12, "refused": 48, "right": 12, "problems": []}
    own = [f"own-{number}-{index}" for number in range(5) for index in range(12)]
    assert bank.names() == sorted(own + [f"same-{index}" for index in range(12)] + ["warm-up"])
    assert hidden_files(bank) == ([] if links else [".lock"])


def kills(folder: str, count: int) -> dict:
    """Kills a process that keeps writing, again and again, and looks at the bank each time."""
    bank = Bank.open(folder)
    # Large ones, so that the kill may come in the middle of a file.
    members = [make_pack(bank.base, seed, adapter=dataclasses.asdict(AdapterConfig(size=1024))) for seed in (1, 2)]
    complete = {member.fingerprint for member in members}
    bank.add(members[0], "kept")
    seen: Dict[str, int] = collections.Counter()
    moments = random.Random(1)
    for _ in range(count):
        gate, key = os.pipe()
        child = fork(functools.partial(_keep_writing, bank, members, key))
        os.read(gate, 1)  # it has begun
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        seen[f"code {exit_code(child)}"] += 1
        os.close(gate)
        os.close(key)
        after = Bank.open(folder)
        seen["problems"] += sum(problem is not None for _, problem in after.verify())
        found = {name: after.read(name).fingerprint for name in after.names()}
        seen["incomplete"] += sum(fingerprint not in complete for fingerprint in found.values())
        seen["lost"] += "kept" not in found
        for pair in found.items():
            seen[str(pair)] = 1
        partial = hidden_files(after)
        seen["partial"] += len(partial)
        for name in partial:
            os.remove(os.path.join(folder, "packs", name))
    return seen


def _keep_writing(bank: Bank, members: List[packs.Pack], key: int) -> None:
    os.write(key, b"!")
    for index in itertools.count():
        member = members[index % 2]
        bank.add(member, "kept", replace=True)
        with contextlib.suppress(errors.UserError):
            bank.add(member, "new")
        if index % 3 == 0 and "new" in bank.names():
            bank.remove("new")


@needs_fork
def test_a_process_that_is_killed_while_it_writes_leaves_the_old_pack_or_the_new(forker, bank):
    seen = forker(kills, bank.folder, 60)
    assert seen["code -9"] == 60
    assert (seen["problems"], seen["incomplete"], seen["lost"]) == (0, 0, 0)
    # The kills came at moments that matter: in the middle of a file, and with either pack in place.
    assert seen["partial"] > 0
    assert sum(key.startswith("('kept'") for key in seen) == 2


def moments(folder: str) -> List[list]:
    """Kills a writer before and after each of its steps; returns what the bank has then."""
    bank = Bank.open(folder)
    old, new = (make_pack(bank.base, seed) for seed in (1, 2))
    found = []
    for replace, step in ((False, "link"), (True, "replace")):
        for place, name in itertools.product(("before", "after"), ("fsync", step, "remove")):
            for each in bank.names():
                bank.remove(each)
            bank.add(old, "old")
            child = fork(functools.partial(_add_and_die, bank, new, "old" if replace else "new", replace, place, name))
            code = exit_code(child)
            after = Bank.open(folder)
            assert all(problem is None for _, problem in after.verify())
            seeds = [f"{each}:{after.read(each).config.seed}" for each in after.names()]
            found.append([f"{place} {name}", seeds, len(hidden_files(after)), code])
            for each in hidden_files(after):
                os.remove(os.path.join(folder, "packs", each))
    return found


def _add_and_die(bank: Bank, pack: packs.Pack, name: str, replace: bool, place: str, step: str) -> None:
    original = getattr(os, step)

    def die(*args) -> None:
        if place == "after":
            original(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, step, die)
    bank.add(pack, name, replace)


@needs_fork
def test_at_every_step_a_kill_leaves_the_old_state_or_the_new(forker, bank):
    before, added, replaced = ["old:1"], ["new:2", "old:1"], ["old:2"]
    assert forker(moments, bank.folder) == [
        ["before fsync", before, 1, -9],
        ["before link", before, 1, -9],
        ["before remove", added, 1, -9],
        ["after fsync", before, 1, -9],
        ["after link", added, 1, -9],
        ["after remove", added, 0, -9],
        ["before fsync", before, 1, -9],
        ["before replace", before, 1, -9],
        ["before remove", replaced, 0, -9],
        ["after fsync", before, 1, -9],
        ["after replace", replaced, 0, -9],
        # The temporary name is gone already, so that the step fails before the kill.
        ["after remove", replaced, 0, 0],
    ]


def creations(folder: str, base_folder: str, writers: int) -> dict:
    """Several processes make the same bank at once."""
    base = bases.Base.find(base_folder)
    codes = at_once([functools.partial(Bank.create, folder, base) for _ in range(writers)])
    return {"codes": sorted(codes), "problems": [problem for _, problem in Bank.open(folder).verify()]}


@needs_fork
def test_of_processes_that_make_one_bank_at_once_one_wins(forker, base, tmp_path):
    done = forker(creations, str(tmp_path / "bank"), base.folder, 4)
    assert done == {"codes": [0, REFUSED, REFUSED, REFUSED], "problems": [None]}
    assert os.listdir(tmp_path) == ["bank"]


def serve() -> None:
    """What a `Forker`'s process does."""
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            answer = [None, globals()[name](*args)]
        except BaseException:
            answer = [traceback.format_exc(), None]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
