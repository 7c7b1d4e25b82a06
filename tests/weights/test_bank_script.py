"""The commands of scripts/bank.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from adapter_bert.model import parameters
from adapter_bert.weights import checkpoints, fingerprints, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import huggingface
from scripts import bank as command
from tests.helpers import ROOT, assert_mentions, make_pack
from tests.weights.test_bank import damage

SPANS = {"head": "span", "task": "SQuAD-v1.1", "metrics": {"f1": 81.25, "exact_match": 72.5}}


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
    assert Bank.open(google).manifest["base"] == Bank.open(hugging).manifest["base"]
    assert sorted(os.listdir(tmp_path)) == ["google", "hugging", "theirs"]
    assert google in failure("create", f"--bank={google}", f"--base={base.folder}")
    assert "nowhere" in failure("create", f"--bank={google}2", "--base=nowhere")


def test_list_prints_a_row_for_each_pack_and_totals(bank, here, capsys):
    assert "0 packs, 0.0 MB" in run(capsys, "list", here)
    bank.add(make_pack(bank.base, metrics={}, seed=None), "cola")
    bank.add(make_pack(bank.base, mode="full", task="RTE", collapsed=True, metrics={"accuracy": None}), "rte")
    bank.add(make_pack(bank.base, **SPANS), "squad")
    bank.add(make_pack(bank.base, mode="top_layers"), "top")
    bank.add(make_pack(bank.base), "bad")
    damage(bank.path("bad"), 30)
    lines = [" ".join(line.split()) for line in run(capsys, "list", here).split("\n")]
    assert lines[1] == "name task mode parameters MB score seed date"
    assert lines[2].startswith("bad ? ? ? ") and "BAD" in lines[2]
    assert lines[3] == "cola CoLA adapter 4 786 0.007 - - 2024-05-06"
    assert "full" in lines[4] and "accuracy ? (collapsed)" in lines[4]
    assert lines[5] == "squad SQuAD-v1.1 adapter 4 786 0.007 f1 81.2500 1 2024-05-06"
    assert lines[6].startswith("top CoLA top_layers 1 ")
    base = parameters.count(bank.base.shapes)
    total = base + sum(bank.read(name).num_parameters for name in ("cola", "rte", "squad", "top"))
    assert lines[7].startswith(f"BAD bad: The pack {bank.path('bad')} ")
    assert_mentions(lines[8], "5 packs, ", f"{total:,} parameters", f"{total / base:.2f}x one BERT", "5x")


def test_show_prints_the_configuration_as_text_or_json(bank, here, capsys):
    pack = make_pack(bank.base, adapter={"size": 4}, origin={"source": {"seed": 1}})
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
    assert_mentions(failure("add", here, str(tmp_path)), "'sst-2'", "--replace")
    assert bank.read("sst-2").fingerprint == pack.fingerprint
    write_pack(tmp_path, make_pack(bank.base, 2, task="SST-2"), packs.FILE_NAME)
    run(capsys, "add", here, str(tmp_path), "--replace")
    run(capsys, "add", here, str(tmp_path), "--name=new", "--replace")
    assert [bank.read(name).config.seed for name in ("again", "new", "sst-2")] == [1, 2, 2]
    assert "nothing" in failure("add", here, str(tmp_path / "nothing"))
    assert "--name" in failure("add", here, write_pack(tmp_path, make_pack(bank.base, task="my task")))


def results_of(pack: packs.Pack, **changes) -> str:
    content = {
        "task": pack.config.task,
        "primary_metric": "matthews",
        "metrics": {"matthews": 0.8, "accuracy": 0.9},
        "loss": 0.125,
        "collapsed": True,
        "fingerprints": {"pack": pack.fingerprint},
    }
    return json.dumps(dict(content, **changes))


def test_add_takes_the_scores_of_an_evaluation(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, metrics={}, loss=None, collapsed=None)
    path, results = write_pack(tmp_path, pack), tmp_path / "results.json"
    results.write_text(results_of(pack))
    run(capsys, "add", here, path, f"--results={results}")
    config = bank.read("cola").config
    assert list(config.metrics.items()) == [("matthews", 0.8), ("accuracy", 0.9)]
    assert (config.loss, config.collapsed) == (0.125, True)
    run(capsys, "add", here, path, f"--results={tmp_path}", "--name=from-folder")


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"fingerprints": {"pack": "sha256:0123"}}, ["sha256:0123", "--adapter_pack"]),
        ({"fingerprints": None}, ["results.json", "fingerprint"]),
        ({"metrics": {"matthews": "good"}}, ["matthews", "good"]),
        ({"task": "RTE"}, ["RTE", "CoLA"]),
    ],
    ids=str,
)
def test_add_rejects_the_scores_of_other_weights(bank, here, tmp_path, changes, facts):
    pack = make_pack(bank.base)
    (tmp_path / "results.json").write_text(results_of(pack, **changes))
    path = write_pack(tmp_path, pack)
    assert_mentions(failure("add", here, path, f"--results={tmp_path / 'results.json'}"), *facts)
    assert bank.names() == []


def test_remove_removes_all_named_packs_or_none(bank, here, capsys):
    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    assert "tow" in failure("remove", here, "one", "tow")
    assert bank.names() == ["one", "three", "two"]
    out = run(capsys, "remove", here, "one", "two")
    assert_mentions(out, "packs/one.safetensors", "packs/two.safetensors")
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


@pytest.mark.parametrize("mode", ["adapter", "full"])
def test_a_checkpoint_of_base_and_pack_is_exported_and_imported(bank, here, tmp_path, capsys, mode):
    pack, prefix = make_pack(bank.base, mode=mode), str(tmp_path / "new" / "cola.ckpt")
    bank.add(pack, "cola")
    out = run(capsys, "export", here, "cola", "--format=checkpoint", f"--output={prefix}")
    assert_mentions(out, f"--init_checkpoint={prefix}", f"--vocab_file={bank.base.tokenizer_file}")
    expected = dict(bank.base.tensors(), **pack.tensors, global_step=np.int64(12))
    found = checkpoints.read_tensors(prefix, list(checkpoints.read_shapes(prefix)))
    assert fingerprints.of_tensors(found) == fingerprints.of_tensors(expected)
    assert sorted(os.listdir(tmp_path / "new")) == ["cola.ckpt.data-00000-of-00001", "cola.ckpt.index"]
    take = ["import", here, prefix, "--format=checkpoint"]
    run(capsys, *take, "--task_name=cola", "--name=back")
    back = bank.read("back")
    assert back.fingerprint == pack.fingerprint
    assert (back.config.task, back.config.tuning_mode, back.config.step) == ("CoLA", mode, 12)
    run(capsys, *take, "--task_name=mine", "--labels=bad,good")
    assert bank.read("mine").config.labels == ["bad", "good"]
    assert "--labels=a,b" in failure(*take, "--name=x", "--task_name=mine")
    assert "--task_name" in failure(*take, "--name=x")
    assert "2 classes" in failure(*take, "--name=x", "--task_name=MNLI")


def test_an_exported_checkpoint_is_replaced_only_on_request_and_not_by_half(bank, here, tmp_path, capsys, monkeypatch):
    prefix = str(tmp_path / "model.ckpt")
    first, second = make_pack(bank.base, 1), make_pack(bank.base, 2)
    bank.add(first, "first")
    bank.add(second, "second")
    again = ["export", here, "second", "--format=checkpoint", f"--output={prefix}"]

    def assert_holds(pack: packs.Pack) -> None:
        found = checkpoints.read_tensors(prefix, ["output_bias"])["output_bias"]
        np.testing.assert_array_equal(found, pack.tensors["output_bias"])
        assert len(os.listdir(tmp_path)) == 1 + len(checkpoints.files_of(prefix))

    run(capsys, "export", here, "first", "--format=checkpoint", f"--output={tmp_path}/")
    assert "--overwrite" in failure(*again)
    assert_holds(first)

    def stop(source, target):
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        assert "No space left" in failure(*again, "--overwrite")
    assert_holds(first)
    run(capsys, *again, "--overwrite")
    assert_holds(second)


def test_exporting_with_an_unset_variable_does_not_replace_the_working_directory(bank, here, tmp_path, monkeypatch):
    bank.add(make_pack(bank.base), "cola")
    monkeypatch.chdir(tmp_path)
    for form in ("pack", "adapterhub", "checkpoint"):
        assert "--output" in failure("export", here, "cola", f"--format={form}", "--output=")
    assert os.listdir(tmp_path) == ["bank"] and bank.names() == ["cola"]


@pytest.mark.parametrize("form", ["adapterhub", "checkpoint"])
def test_packs_of_squad_are_exported_and_imported_without_labels(bank, here, tmp_path, capsys, form):
    pack, output = make_pack(bank.base, **SPANS), str(tmp_path / "out")
    bank.add(pack, "squad")
    run(capsys, "export", here, "squad", f"--format={form}", f"--output={output}")
    assert "--overwrite" in failure("export", here, "squad", f"--format={form}", f"--output={output}")
    take = ["import", here, output, f"--format={form}"]
    run(capsys, *take, "--task_name=SQuAD-v1.1", "--name=back")
    back = bank.read("back")
    assert back.fingerprint == pack.fingerprint
    assert (back.config.task, back.config.head, back.config.labels) == ("SQuAD-v1.1", "span", [])
    assert back.config.max_seq_length == 32  # 384, but at most that of the base
    run(capsys, *take, "--task_name=mine", "--labels=", "--max_seq_length=16")
    assert (bank.read("mine").config.head, bank.read("mine").config.max_seq_length) == ("span", 16)
    assert "labels" in failure(*take, "--task_name=SQuAD", "--labels=a,b")
    assert "0, 1" in failure(*take, "--task_name=CoLA")
    assert "STS-B" in failure(*take, "--task_name=STS-B")
    assert bank.names() == ["back", "mine", "squad"]


def test_verify_exits_with_code_1_if_something_is_wrong(bank, here, capsys):
    for name in ("good", "wrong"):
        bank.add(make_pack(bank.base), name)
    assert "3 of 3 are good" in run(capsys, "verify", here)
    damage(bank.path("wrong"))
    assert failure("verify", here) == "1"
    lines = capsys.readouterr().out.split("\n")
    assert lines[:2] == ["good  base/", "good  good"] and lines[2].startswith("BAD   wrong: The pack ")
    assert lines[3].startswith("2 of 3 are good")


UNSAFE = "a\x1b[2J\nb\u202e\x9b"
ESCAPED = r"a\u001b[2J\nb\u202e\u009b"


def test_names_in_packs_are_printed_without_control_characters(bank, here, tmp_path, capsys):
    pack = make_pack(bank.base, task=UNSAFE, labels=[UNSAFE, "good"], metrics={UNSAFE: 0.5}, created=UNSAFE)
    shown = run(capsys, "add", here, write_pack(tmp_path, pack), "--name=one")
    shown += run(capsys, "show", here, "one") + run(capsys, "list", here)
    assert shown.count(ESCAPED) >= 6
    assert UNSAFE[:2] not in shown and "\u202e" not in shown and "\x9b" not in shown
    assert len(run(capsys, "list", here).splitlines()) == 4  # base, titles, pack, totals


def test_packs_are_removed_and_bad_ones_reported_even_if_nobody_reads_it(bank, here):
    def process(*args: str, shell: str) -> subprocess.CompletedProcess:
        command = [sys.executable, os.path.join(ROOT, "scripts", "bank.py"), *args, here]
        environment = dict(os.environ, PYTHONPATH=ROOT)
        shown = subprocess.run(["sh", "-c", f'"$0" "$@" {shell}', *command], stderr=subprocess.PIPE, env=environment)
        assert b"Traceback" not in shown.stderr and b"Exception ignored" not in shown.stderr
        return shown

    for name in ("one", "two", "three"):
        bank.add(make_pack(bank.base), name)
    removal = process("remove", "one", "two", shell=">&-")
    assert (removal.returncode, removal.stderr, bank.names()) == (0, b"", ["three"])
    listing = process("list", shell="> /dev/full")
    assert listing.returncode == 1
    assert_mentions(listing.stderr.decode(), "bank.py: error: ", "standard output", "No space left on device")
