"""Exports and conversions replace only earlier outputs of their kind; a kill leaves the old or the new one."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import shutil
from typing import Any, Callable, Dict

import numpy as np
import pytest
import safetensors.numpy

from adapter_bert.common import errors, files
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import adapterhub, google_checkpoints, huggingface, outputs
from scripts import bank as command
from tests.helpers import assert_mentions, make_pack, message_of, tiny_config, write_bert, write_file
from tests.kill import ForkServer


def export(form: str, output: str, *flags: str) -> None:
    args = ["export", "--bank=bank", "rte", f"--format={form}", f"--output={output}", *flags]
    command.export(Bank.open("bank"), command.make_parser().parse_args(args))


# Each writes new weights: of the pack `rte`, or of the base `other`.
WRITERS: Dict[str, Callable[[str], object]] = {
    "pack": lambda output: export("pack", output, "--overwrite"),
    "checkpoint": lambda output: export("checkpoint", output, "--overwrite"),
    "lone": lambda output: export("checkpoint", f"{output}/model.ckpt", "--overwrite"),  # without other files
    "adapterhub": lambda output: export("adapterhub", output, "--overwrite"),
    "google": lambda output: huggingface.convert("hf", output, overwrite=True),
    "hf": lambda output: huggingface.export_base(bases.Base.find("other"), output, True, overwrite=True),
}
FOLDERS = ["adapterhub", "google", "hf"]


@pytest.fixture(scope="module")
def original(base, tmp_path_factory) -> str:
    """A folder with the sources of `WRITERS`, `old` outputs with other weights, and `new` outputs."""
    folder = tmp_path_factory.mktemp("original")
    bank = Bank.create(str(folder / "bank"), base)
    bank.add(make_pack(base, 2), "rte")
    write_bert(str(folder / "other"), tiny_config(), seed=8)
    huggingface.export_base(bases.Base.find(str(folder / "other")), str(folder / "hf"), True)
    old, pack = folder / "old", make_pack(base, 1)
    packs.write(write_file(old, "pack.safetensors", ""), pack)
    adapterhub.export(pack, base, str(old / "adapterhub"))
    google_checkpoints.export(pack, base.tensors(), str(old / "checkpoint"))
    google_checkpoints.export(pack, base.tensors(), str(old / "lone" / "model.ckpt"))
    huggingface.export_base(base, str(old / "hf"), True)
    shutil.copytree(base.folder, str(old / "google"))
    before = os.getcwd()
    os.chdir(str(folder))
    for kind, write in WRITERS.items():
        write(output_of(kind, "new"))
    os.chdir(before)
    return str(folder)


def output_of(kind: str, folder: str = "old") -> str:
    return os.path.join(folder, "pack.safetensors" if kind == "pack" else kind)


@pytest.fixture
def here(original, tmp_path, monkeypatch):
    """A copy of `original` as the working directory."""
    shutil.copytree(original, str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def contents(folder) -> Dict[str, str]:
    """Return path -> hash of the file, target of the link, or kind."""
    found = {}
    for top, folders, names in os.walk(str(folder)):
        for path in (os.path.join(top, name) for name in folders + names):
            if os.path.islink(path):
                found[path] = "-> " + os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[path] = hashlib.sha256(file.read()).hexdigest()
            else:
                found[path] = "folder" if os.path.isdir(path) else "other"
    return found


def assert_rejected(kind: str, output: str, *facts: object) -> None:
    """Check that a writer fails with a message that contains these facts, and changes nothing."""
    before = contents(".")
    assert_mentions(message_of(WRITERS[kind], output), *facts)
    assert contents(".") == before


# ------------------------------------------------------------------------------------------ forbidden places


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_is_written_into_a_bank_however_its_path_is_spelled(here, kind):
    os.symlink("bank", "link")
    os.symlink(os.path.join("bank", "base"), "base-link")
    os.symlink(os.path.join("bank", "packs", "rte.safetensors"), "link.safetensors")
    os.mkdir("sub")
    inside = ["", "/", "/base", "/base/bert_model.ckpt", "/packs", "/packs/rte.safetensors", "/bank.json", "/new/x"]
    absolute, around = str(here / "bank"), os.path.join("sub", "..", "bank")
    paths = [start + end for start in ("bank", "link", absolute, around) for end in inside]
    for path in [*paths, "base-link", "base-link/bert_model.ckpt", "link.safetensors"]:
        assert_rejected(kind, path, path, here / "bank")


@pytest.mark.parametrize("kind", ["pack", "checkpoint", *FOLDERS])
def test_an_empty_path_does_not_mean_the_working_directory(here, kind):
    assert_rejected(kind, "", "empty")


@pytest.mark.parametrize("kind, source", [("google", "hf"), ("hf", "other")])
def test_a_conversion_is_not_written_into_its_source(here, kind, source):
    os.symlink(source, "link")
    for path in (source, f"{source}/sub", "link", "link/sub", f"old/../{source}"):
        assert_rejected(kind, path, path, source)


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("output", [".", "..", "/", "/dev/shm", "old"])
def test_a_folder_with_other_content_is_not_replaced(here, kind, output):
    assert_rejected(kind, output, os.path.realpath(output))


def test_the_working_directory_is_not_replaced(here, monkeypatch):
    monkeypatch.chdir(here / "old" / "google")
    before = contents(".")
    for path in (".", str(here / "old" / "google"), "../google"):
        message = message_of(huggingface.convert, str(here / "hf"), path, overwrite=True)
        assert_mentions(message, here / "old" / "google", "working directory")
    assert contents(".") == before


def test_a_checkpoint_in_the_working_directory_is_replaced_but_not_the_directory(here, monkeypatch):
    monkeypatch.chdir(here / "old" / "lone")
    folder = os.stat(".").st_ino
    args = ["export", "--bank=../../bank", "rte", "--format=checkpoint", "--output=model.ckpt", "--overwrite"]
    command.export(Bank.open("../../bank"), command.make_parser().parse_args(args))
    assert os.stat(str(here / "old" / "lone")).st_ino == folder
    assert weights_of("lone", ".") == weights_of("lone", str(here / "new" / "lone"))


@pytest.mark.parametrize("kind", ["pack", "checkpoint"])
def test_files_are_not_written_into_the_folder_of_a_run(here, kind):
    packs.write(write_file(here, "run/adapter_pack.safetensors", ""), make_pack())
    write_file(here, "run/settings.json", "{}")
    for path in ("run", "run/", "run/adapter_pack.safetensors", "run/model.ckpt"):
        if kind == "checkpoint" or path != "run/model.ckpt":  # otherwise a new folder
            assert_rejected(kind, path, "run/", "folder of a run")


# ------------------------------------------------------------------------------------------ what is replaced


def weights_of(kind: str, output: str) -> Dict[str, str]:
    """Load an output; return the hashes of its tensors."""
    if kind in ("checkpoint", "google", "lone"):
        prefix = os.path.join(output, {"google": "bert_model.ckpt", "lone": "model.ckpt"}.get(kind, "")).rstrip("/")
        return fingerprints.of_tensors(checkpoints.read_tensors(prefix, list(checkpoints.read_shapes(prefix))))
    name = {"pack": "", "adapterhub": "adapter.safetensors", "hf": "model.safetensors"}[kind]
    return fingerprints.of_tensors(safetensors.numpy.load_file(os.path.join(output, name).rstrip("/")))


@pytest.mark.parametrize("kind", WRITERS)
def test_an_earlier_output_is_replaced_and_everything_else_stays(here, kind):
    output = output_of(kind)
    assert weights_of(kind, output) != weights_of(kind, output_of(kind, "new"))
    others = {path: value for path, value in contents(".").items() if not path.startswith(f"./{output}")}
    assert others
    WRITERS[kind](output)
    assert weights_of(kind, output) == weights_of(kind, output_of(kind, "new"))
    assert {path: value for path, value in contents(".").items() if not path.startswith(f"./{output}")} == others


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("path", ["notes.txt", ".git/HEAD", "bert_model.ckpt.zip", "bert_model.ckpt-1/mine"])
def test_overwrite_keeps_files_of_others(here, kind, path):
    write_file(here, f"old/{kind}/{path}", "mine")
    assert_rejected(kind, f"old/{kind}", here / "old" / kind, path.split("/")[0])


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("change", ["missing", "folder", "link"])
def test_overwrite_replaces_only_a_complete_output(here, kind, change):
    name = {"adapterhub": "README.md", "google": "vocab.txt", "hf": "config.json"}[kind]
    os.rename(f"old/{kind}/{name}", "moved")
    if change == "folder":
        write_file(here, f"old/{kind}/{name}/mine", "mine")
    elif change == "link":
        os.symlink(str(here / "moved"), f"old/{kind}/{name}")
    assert_rejected(kind, f"old/{kind}", here / "old" / kind, name)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_single_file_with_one_of_the_names_is_not_replaced(here, kind):
    name = {"adapterhub": "README.md", "google": "vocab.txt", "hf": "config.json"}[kind]
    write_file(here, f"mine/{name}", "mine")
    assert_rejected(kind, "mine", here / "mine", name)


@pytest.mark.parametrize("kind", FOLDERS)
def test_overwrite_does_not_follow_a_link(here, kind):
    os.symlink(os.path.join("old", kind), "link")
    assert_rejected(kind, "link", here / "old" / kind, "symbolic link")
    os.mkdir("empty")
    os.symlink("empty", "empty-link")
    WRITERS[kind]("empty-link")
    assert sorted(os.listdir("empty")) == sorted(os.listdir(f"old/{kind}"))
    assert os.path.islink("empty-link")


def test_a_file_that_appears_during_a_conversion_is_kept(here):
    output = outputs.OutputFolder("old/hf", huggingface.HF_FILES, True, "other")
    before = contents("old/hf")
    with pytest.raises(errors.UserError, match=r"notes\.txt"), output.replaced() as staging:
        write_file(pathlib.Path(staging), "config.json", "new")
        write_file(here, "old/hf/notes.txt", "mine")
    assert contents("old/hf").items() > before.items()
    assert contents("old/hf")["old/hf/notes.txt"]


@pytest.mark.parametrize("existing", ["model of Hugging Face", "empty file", "folder", "pipe", "bank.json"])
def test_overwrite_replaces_only_packs_with_a_pack(here, existing):
    path = "mine.safetensors"
    if existing == "folder":
        write_file(here, "mine.safetensors/mine", "mine")
    elif existing == "pipe":
        os.mkfifo(path)
    elif existing == "empty file":
        write_file(here, path, "")
    else:
        shutil.copy("hf/model.safetensors" if "model" in existing else "bank/bank.json", path)
    assert_rejected("pack", path, path, "--overwrite replaces only packs")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_a_pack_is_replaced_and_its_target_stays(here, link):
    target = "old/pack.safetensors" if link is os.symlink else "bank/packs/rte.safetensors"
    link(os.path.abspath(target), "link.safetensors")
    before = contents(os.path.dirname(target))
    WRITERS["pack"]("link.safetensors")
    assert contents(os.path.dirname(target)) == before
    assert packs.read("link.safetensors").config.seed == 2 and not os.path.islink("link.safetensors")


def write_trained(prefix: str) -> None:
    tensors = checkpoints.read_tensors("old/checkpoint", list(checkpoints.read_shapes("old/checkpoint")))
    checkpoints.write({**tensors, "output_bias/adam_m": np.zeros(2, np.float32)}, prefix)


@pytest.mark.parametrize("existing", ["base", "training", "graph", "text", "pipe"])
def test_overwrite_replaces_only_exported_checkpoints_with_a_checkpoint(here, existing):
    prefix = {"base": "other/bert_model.ckpt", "graph": "old/checkpoint"}.get(existing, "mine")
    if existing == "training":
        write_trained(prefix)
    elif existing == "graph":
        write_file(here, "old/checkpoint.meta", "mine")
    elif existing == "text":
        write_file(here, "mine.index", "mine")
    elif existing == "pipe":
        os.mkfifo("mine.index")
    assert_rejected("checkpoint", prefix, prefix, "--overwrite replaces only exported checkpoints")


def test_a_checkpoint_is_replaced_among_similar_names(here):
    kept = ["checkpoint.data-mine", "checkpoint.index.txt", "checkpoint-2.index", "checkpoint-2.data-00000-of-00001"]
    for name in kept:
        write_file(here, f"old/{name}", "mine")
    shards = []
    for _ in range(2):
        WRITERS["checkpoint"]("old/checkpoint")
        assert weights_of("checkpoint", "old/checkpoint") == weights_of("checkpoint", "new/checkpoint")
        shards.append([path[-8:] for path in checkpoints.files_of("old/checkpoint")[1:]])
    assert shards == [["of-00002"] * 2, ["of-00001"]]
    for name in kept:
        assert (here / "old" / name).read_text() == "mine"


def test_two_exports_of_one_checkpoint_do_not_mix(here, monkeypatch):
    """The other process writes the same data files between the check and the rename."""
    original = checkpoints.write

    def write_twice(tensors, prefix, num_shards=1):
        original(tensors, prefix, num_shards)
        if not os.path.exists("x.index"):
            monkeypatch.setattr(checkpoints, "write", original)
            export("checkpoint", "x")

    monkeypatch.setattr(checkpoints, "write", write_twice)
    assert "x.data-00000-of-00001" in message_of(export, "checkpoint", "x")
    assert weights_of("checkpoint", "x") == weights_of("checkpoint", "new/checkpoint")
    assert sorted(name for name in os.listdir(".") if name[0] in "x.") == ["x.data-00000-of-00001", "x.index"]


# ------------------------------------------------------------------------------------------ kills


@pytest.fixture(scope="module")
def server():
    with ForkServer(__name__) as started:
        yield started


def replace_and_die(tell: Any, folder: str, kind: str, can_swap: bool, num_steps: int) -> None:
    """Replace an output, and die after this many changes outside the staging folder, at the latest in the end."""
    os.chdir(folder)
    steps = 0

    def counted(function: Any) -> Any:
        def call(*paths: Any, **options: Any) -> Any:
            nonlocal steps
            if any(".partial" not in str(path) for path in paths):
                if steps == num_steps:
                    os.kill(os.getpid(), 9)
                steps += 1
            return function(*paths, **options)

        return call

    files._swap = counted(files._swap) if can_swap else lambda *paths: False
    for name in ("rename", "replace", "link", "remove", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    with contextlib.redirect_stdout(io.StringIO()):  # the server reports there
        WRITERS[kind](f"old/{kind}")
    os.kill(os.getpid(), 9)


SWAPPED = [(kind, True, steps, steps == 1) for kind in [*FOLDERS, "lone"] for steps in range(2)]
NOT_SWAPPED = [("adapterhub", False, steps, steps > 1) for steps in range(4)]
# The first data file, the second, the index, removing the old data.
CHECKPOINT = [("checkpoint", True, steps, steps > 2) for steps in range(5)]


@pytest.mark.parametrize("kind, can_swap, num_steps, is_new", SWAPPED + NOT_SWAPPED + CHECKPOINT)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_output(here, server, kind, can_swap, num_steps, is_new):
    old, new = (weights_of(kind, f"{folder}/{kind}") for folder in ("old", "new"))
    sources = [contents(name) for name in ("bank", "hf", "other")]
    server.kill("replace_and_die", str(here), kind, can_swap, num_steps)
    assert [contents(name) for name in ("bank", "hf", "other")] == sources
    place = kind
    if not can_swap and num_steps == 1:  # documented in `files.replace_folder`
        (place,) = [name for name in os.listdir("old") if name.startswith(kind) and name.endswith(".old")]
    assert weights_of(kind, f"old/{place}") == (new if is_new else old)
    WRITERS[kind](f"old/{kind}")
    assert weights_of(kind, f"old/{kind}") == new
    if kind == "checkpoint":
        assert len({path[-8:] for path in checkpoints.files_of("old/checkpoint")[1:]}) == 1
