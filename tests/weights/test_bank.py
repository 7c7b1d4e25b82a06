"""A bank holds one base and valid packs on it."""

from __future__ import annotations

import json
import os
import shutil
from typing import Dict, List

import numpy as np
import pytest

from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.bank import BASE, Bank, PackSummary
from tests.helpers import ROOT, VOCABULARY, assert_mentions, make_pack, message_of, tiny_config, write_bert
from tests.weights import pack_files
from tests.weights.pack_files import assert_same


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


def test_a_bank_holds_a_copy_of_the_base_and_can_be_moved(tmp_path):
    write_bert(str(tmp_path / "base"), tiny_config())
    for name in ("notes.txt", "bert_model.ckpt.meta", "checkpoint"):
        (tmp_path / "base" / name).write_text("mine")
    base = bases.Base.find(str(tmp_path / "base"))
    bank = Bank.create(str(tmp_path / "deep" / "bank"), base)
    assert bank.manifest["tensors"] == base.digests
    assert bank.manifest["base"] == fingerprints.combine(base.digests)
    assert bank.manifest["tokenizer"]["entries"] == len(VOCABULARY)
    assert Bank.open(bank.folder).names() == [] and os.listdir(tmp_path / "deep") == ["bank"]
    bank.add(make_pack(bank.base), "cola")
    shutil.rmtree(tmp_path / "base")
    os.rename(bank.folder, tmp_path / "moved")
    moved = Bank.open(str(tmp_path / "moved"))
    assert list(moved.verify()) == [(BASE, None), ("cola", None)]
    assert moved.base.folder == str(tmp_path / "moved" / "base")
    data = ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    assert sorted(os.listdir(moved.base.folder)) == ["bert_config.json", *data, "vocab.txt"]


def test_a_bank_is_created_only_in_a_new_or_empty_folder(base, tmp_path):
    taken, empty = tmp_path / "taken", tmp_path / "empty"
    taken.mkdir()
    empty.mkdir()
    (taken / "mine.txt").write_text("mine")
    assert str(taken) in message_of(Bank.create, str(taken), base)
    assert os.listdir(taken) == ["mine.txt"]
    Bank.create(str(empty), base)
    assert str(empty) in message_of(Bank.create, str(empty), base)
    assert sorted(os.listdir(tmp_path)) == ["empty", "taken"]


def test_a_bank_is_not_created_inside_its_base_or_another_bank(bank, base, tmp_path):
    shutil.copytree(base.folder, str(tmp_path / "base"))
    os.symlink(str(tmp_path / "base"), str(tmp_path / "link"))
    own = bases.Base.find(str(tmp_path / "base"))
    for folder in ("base", "base/new", "link/new"):
        assert_mentions(message_of(Bank.create, str(tmp_path / folder), own), "inside", own.folder)
    for folder in ("new", "packs/new", "base/new"):
        assert_mentions(message_of(Bank.create, os.path.join(bank.folder, folder), base), "inside", bank.folder)
    assert "''" in message_of(Bank.create, "", base)
    assert sorted(os.listdir(bank.folder)) == ["bank.json", "base", "packs"]
    assert sorted(os.listdir(tmp_path)) == ["bank", "base", "link"]


def test_a_bank_of_an_invalid_base_is_not_created(base, tmp_path):
    broken = str(tmp_path / "base")
    shutil.copytree(base.folder, broken)
    damage(os.path.join(broken, "bert_model.ckpt.data-00000-of-00001"), 40)
    assert broken in message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    with open(os.path.join(broken, "vocab.txt"), "a") as file:
        file.write("more\n")
    message = message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    assert_mentions(message, f"{len(VOCABULARY) + 1} entries", f"vocab_size {len(VOCABULARY)}")
    with open(os.path.join(broken, "vocab.txt"), "w") as file:
        file.write("\n".join(VOCABULARY[:-2] + ["the", "cat"]) + "\n")
    message = message_of(Bank.create, str(tmp_path / "bank"), bases.Base.find(broken))
    lines = [VOCABULARY.index(word) + 1 for word in ("the", "cat")]
    repeated = f"'the' in lines {lines[0]}, {len(VOCABULARY) - 1}, 'cat' in lines {lines[1]}, {len(VOCABULARY)}"
    assert_mentions(message, repeated, f"{len(VOCABULARY) - 2} entries", f"vocab_size {len(VOCABULARY)}")
    assert os.listdir(tmp_path) == ["base"]


def test_a_folder_that_is_not_a_bank_is_not_opened(tmp_path):
    for folder in (str(tmp_path / "none"), str(tmp_path)):
        assert_mentions(message_of(Bank.open, folder), folder, "scripts/bank.py create")
    for folder in ("", "gs://bucket", "gs://bucket/"):
        assert_mentions(message_of(Bank.open, folder), repr(folder), "folder")


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"format": "adapter-bert bank 2"}, ["adapter-bert bank 2", "adapter-bert bank 1"]),
        ({"tensors": None}, ["tensors", "null"]),
        ({"tensors": {"a": 1}}, ["tensors", '"a" is 1']),
        ({"tensors": {"a": "b"}}, ["fingerprint"]),
        ({"architecture": "bert"}, ["architecture", '"bert"']),
        ({"tokenizer": []}, ["tokenizer", "[]"]),
        ({"base": 10**400}, ["401 digits"]),
        ({"base": {"\ud800": 1}}, ["not Unicode"]),
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
    assert bank.manifest["base"] == "sha256:4fbccb6949ffa91e"
    assert list(bank.verify()) == [(name, None) for name in [BASE, *FIRST_VERSION]]
    for name, fingerprint in FIRST_VERSION.items():
        pack = bank.read(name)
        assert pack.fingerprint == fingerprint
        with open(bank.path(name), "rb") as file:
            assert packs.serialise(pack) == file.read()


# ------------------------------------------------------------------------------------------ packs in it


def test_packs_are_read_as_they_were_added_and_summarised_by_their_headers(bank):
    added = {"7": make_pack(bank.base, mode="full"), "SST-2.top_1": make_pack(bank.base)}
    added["a" * 100] = make_pack(bank.base)
    for name, pack in added.items():
        path = bank.add(pack, name)
        assert path == bank.path(name) == os.path.join(bank.folder, "packs", f"{name}.safetensors")
        assert_same(Bank.open(bank.folder).read(name), pack)
    assert bank.summaries() == [
        PackSummary(name, os.path.getsize(bank.path(name)), pack.num_parameters, pack.config)
        for name, pack in added.items()
    ]
    assert bank.names() == list(added) and other_files(bank) == []


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".cola", "-cola", "a/b", "../cola", "a\\b", "a b", "cola\n", "ä", "x.safetensors", "a" * 101],
)
def test_a_name_that_could_be_a_path_or_an_option_is_rejected(bank, name):
    assert_mentions(message_of(bank.add, None, name), repr(name), "--name")


def test_an_unknown_name_is_reported_with_the_existing_ones(bank):
    assert "empty" in message_of(bank.read, "cola")
    bank.add(make_pack(bank.base), "cola")
    for function in (bank.path, bank.read, bank.remove):
        assert_mentions(message_of(function, "cols"), "cols", "'cola'?")
    assert "../packs/cola" in message_of(bank.read, "../packs/cola")


def test_an_invalid_pack_or_one_of_another_base_is_rejected(bank, tmp_path):
    pack = make_pack(bank.base)
    tensors = dict(pack.tensors, output_bias=np.array([0, np.nan], np.float32))
    assert "output_bias" in message_of(bank.add, packs.Pack(pack.config, tensors), "cola")
    write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    other = make_pack(bases.Base.find(str(tmp_path / "other")))
    assert_mentions(message_of(bank.add, other, "cola"), other.config.base)
    assert bank.names() == []
    packs.write(os.path.join(bank.folder, "packs", "cola.safetensors"), other)
    assert_mentions(message_of(bank.read, "cola"), other.config.base)


@pytest.mark.parametrize("mode", ["adapter", "full"])
@pytest.mark.parametrize("change", [{"num_attention_heads": 4}, {"hidden_act": "relu"}, {"type_vocab_size": 3}])
def test_a_pack_of_another_architecture_is_rejected(bank, change, mode):
    other = make_pack(bank.base, mode=mode, architecture=tiny_config(**change).to_dict())
    assert_mentions(message_of(bank.add, other, "cola"), *change, *change.values())


def test_case_and_values_that_only_matter_in_training_may_differ_but_not_the_vocabulary(bank):
    described = bank.base.tokenizer_description
    for tokenizer in (dict(described, vocabulary="sha256:0123456789abcdef"), {}):
        message = message_of(bank.add, make_pack(bank.base, tokenizer=tokenizer), "cola")
        assert_mentions(message, bank.base.tokenizer_file)
    architecture = dict(tiny_config(hidden_dropout_prob=0.0, hidden_act="GELU").to_dict(), directionality="bidi")
    cased = dict(described, do_lower_case=False)
    bank.add(make_pack(bank.base, architecture=architecture, tokenizer=cased), "cased")
    assert bank.read("cased").config.architecture["directionality"] == "bidi"
    assert bank.names() == ["cased"]


def test_a_damaged_pack_is_not_read_but_can_be_removed(bank):
    bank.add(make_pack(bank.base), "cola")
    damage(bank.path("cola"))
    assert "damaged" in message_of(bank.read, "cola")
    assert bank.remove("cola") == os.path.join(bank.folder, "packs", "cola.safetensors")
    assert bank.names() == [] and bank.summaries() == []


@pytest.mark.parametrize("name", ["../base/cola", "../../cola", "/etc/cola", "./cola", "cola.safetensors", ""])
def test_only_packs_of_the_bank_are_removed(bank, tmp_path, name):
    for path in (tmp_path / "cola.safetensors", tmp_path / "bank" / "base" / "cola.safetensors"):
        path.write_text("mine")
    bank.add(make_pack(bank.base), "cola")
    assert repr(name) in message_of(bank.remove, name)
    assert bank.names() == ["cola"] and (tmp_path / "cola.safetensors").exists()
    assert (tmp_path / "bank" / "base" / "cola.safetensors").exists()


def test_a_linked_pack_is_removed_or_replaced_but_not_its_target(bank, tmp_path):
    bank.add(make_pack(bank.base, 1), "cola")
    target = tmp_path / "mine.safetensors"
    os.rename(bank.path("cola"), str(target))
    before = target.read_bytes()
    for change in (bank.remove, lambda name: bank.add(make_pack(bank.base, 2), name, replace=True)):
        os.symlink(str(target), os.path.join(bank.folder, "packs", "cola.safetensors"))
        assert bank.read("cola").config.seed == 1
        change("cola")
        assert target.read_bytes() == before
    assert bank.read("cola").config.seed == 2


def test_packs_are_not_added_or_removed_through_a_linked_folder(bank, tmp_path):
    bank.add(make_pack(bank.base, 1), "cola")
    os.rename(os.path.join(bank.folder, "packs"), str(tmp_path / "mine"))
    os.symlink(str(tmp_path / "mine"), os.path.join(bank.folder, "packs"))
    before = (tmp_path / "mine" / "cola.safetensors").read_bytes()
    for change in (bank.remove, lambda name: bank.add(make_pack(bank.base, 2), name, replace=True)):
        assert_mentions(message_of(change, "cola"), os.path.join(bank.folder, "packs"), tmp_path / "mine")
    assert (tmp_path / "mine" / "cola.safetensors").read_bytes() == before
    assert bank.read("cola").config.seed == 1


def test_verify_finds_a_changed_or_damaged_base(bank):
    tensors = bank.base.tensors()
    tensors["bert/pooler/dense/bias"] = tensors["bert/pooler/dense/bias"] + 1
    checkpoints.write(tensors, bank.base.checkpoint)
    assert_mentions(problems(bank)[BASE], "1 of its", "bert/pooler/dense/bias")
    damage(bank.base.checkpoint + ".data-00000-of-00001", 40)
    assert "damaged" in problems(bank)[BASE]


def test_only_packs_are_listed_and_other_files_stay(bank):
    folder = os.path.join(bank.folder, "packs")
    # Temporary files of earlier versions, and a user's.
    others = [".cola.01234567.partial", ".hidden.safetensors", "cola.safetensors.01234567.partial", "notes.txt"]
    for name in others:
        with open(os.path.join(folder, name), "w") as file:
            file.write("half")
    assert bank.names() == [] and len(list(bank.verify())) == 1
    bank.add(make_pack(bank.base), "cola")
    assert bank.names() == ["cola"]
    assert set(others) < set(os.listdir(folder))


def test_a_writer_whose_temporary_file_was_removed_fails(bank, monkeypatch):
    def remove_temporary_file(_) -> None:
        (name,) = other_files(bank)
        shutil.rmtree(os.path.join(bank.folder, "packs", name))

    monkeypatch.setattr(os, "fsync", remove_temporary_file)
    assert "cola" in message_of(bank.add, make_pack(bank.base), "cola")
    assert bank.names() == []


def sparse_file(path: str) -> None:
    with open(path, "wb") as file:
        file.write((2**40).to_bytes(8, "little"))
        file.truncate(2**42)


def pack_with(**changes):
    """Return a function that writes a pack with a valid checksum and other values in its configuration."""

    def write(path: str) -> None:
        pack_files.write_file(path, pack_files.with_config(packs.serialise(pack_files.smallest()), **changes))

    return write


# What a hostile or careless person may put in the folder of the packs -> what is reported about it.
BAD_ENTRIES = {
    "fifo": (os.mkfifo, "a FIFO"),
    "folder": (os.mkdir, "a folder"),
    "device": (lambda path: os.symlink("/dev/zero", path), "/dev/zero"),
    "dangling": (lambda path: os.symlink("nowhere", path), "nowhere"),
    "loop": (lambda path: os.symlink(os.path.basename(path), path), "Too many levels"),
    "empty": (lambda path: open(path, "w").close(), "not an adapter pack"),
    "huge": (sparse_file, str(2**40 + 8)),
    "metrics": (pack_with(metrics={"f1": "0.5"}), '"f1" is "0.5"'),
    "adapter": (pack_with(adapter=[64]), "[64]"),
    "kind": (pack_with(adapter={"size": 2, "kind": "x"}), "kind"),
    "layers": (pack_with(architecture=dict(pack_files.SMALLEST, num_hidden_layers=10**9)), "at most 64"),
    "tokenizer": (pack_with(tokenizer={"type": "wordpiece"}), "do_lower_case"),
    "nested": (pack_with(training={"a": json.loads("[" * 70 + "]" * 70)}), "nested"),
    "digits": (pack_with(seed=10**400), "401 digits"),
}


def test_bad_entries_are_shown_with_the_reason_and_hide_no_others(bank, deadline):
    bank.add(make_pack(bank.base), "good")
    for name, (make, _) in BAD_ENTRIES.items():
        make(os.path.join(bank.folder, "packs", name + packs.ENDING))
    names = sorted(["good", *BAD_ENTRIES])
    assert bank.names() == names
    summaries = {summary.name: summary for summary in bank.summaries()}
    found = dict(bank.verify())
    assert list(summaries) == names and list(found) == [BASE, *names]
    assert summaries["good"].config and not summaries["good"].problem
    assert found["good"] is None and found[BASE] is None
    for name, (_, fact) in BAD_ENTRIES.items():
        assert summaries[name].config is None
        assert_mentions(summaries[name].problem, name + packs.ENDING, fact)
        if name != "huge":  # not even its header is read
            assert_mentions(found[name], name + packs.ENDING, fact)
        assert_mentions(message_of(bank.read, name), name + packs.ENDING)


@pytest.mark.parametrize(
    "name", ["bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
)
def test_a_fifo_in_the_base_is_never_opened(bank, deadline, name):
    path = os.path.join(bank.base.folder, name)
    os.remove(path)
    os.mkfifo(path)
    if name.startswith("bert_model"):
        assert_mentions(dict(Bank.open(bank.folder).verify())[BASE], path, "FIFO")
    else:
        assert_mentions(message_of(Bank.open, bank.folder), path, "FIFO")
