"""Files are complete or absent, and names are taken only once."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

from adapter_bert.common import errors, files
from tests.helpers import ROOT, assert_mentions, message_of


def test_a_write_has_a_temporary_name_until_it_is_complete(tmp_path):
    path = str(tmp_path / "a.txt")
    files.write_text(path, "old")
    with files.atomic_write(path) as temporary:
        assert re.fullmatch(r"\.[0-9a-f]{8}\.partial/a\.txt", os.path.relpath(temporary, tmp_path))
        with open(temporary, "w") as file:
            file.write("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failed_write_keeps_the_old_file_and_nothing_else(tmp_path):
    path = str(tmp_path / "a.txt")
    files.write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), files.atomic_write(path) as temporary:
        with open(temporary, "w") as file:
            file.write("new")
        raise KeyboardInterrupt
    assert (tmp_path / "a.txt").read_text() == "old"
    (tmp_path / "folder").mkdir()
    message_of(files.write_text, str(tmp_path / "folder"), "cannot be renamed")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "folder"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_name_is_taken_only_once(tmp_path, monkeypatch, has_links):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = str(tmp_path / "a.txt")
    files.write_bytes(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write_bytes(path, b"second", replace=False)
    assert (tmp_path / "a.txt").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_system_error_is_a_user_error(tmp_path):
    assert_mentions(message_of(files.write_text, str(tmp_path / "no" / "a.txt"), "x"), "File system error", "a.txt")
    (tmp_path / "file").write_text("")
    for blocked in (tmp_path / "file", tmp_path / "file" / "b"):
        assert_mentions(message_of(files.make_folder, str(blocked)), blocked)


def make_fifo(path):
    """Make a FIFO that opening for reading does not block."""
    os.mkfifo(path)
    os.open(path, os.O_RDWR)


@pytest.mark.parametrize(
    "make, kind",
    [
        (make_fifo, "a FIFO"),
        (os.mkdir, "a folder"),
        (lambda path: os.symlink("/dev/zero", path), "a device"),
        (lambda path: os.symlink("nowhere", path), "(a symbolic link to nowhere): No such file"),
        (lambda path: os.symlink("a", path), "(a symbolic link to a): Too many levels"),
        (lambda path: None, "no file"),
    ],
    ids=["fifo", "folder", "device", "dangling link", "looping link", "missing"],
)
def test_only_regular_files_are_opened(tmp_path, make, kind):
    path = str(tmp_path / "a")
    make(path)
    assert_mentions(message_of(files.read_bytes, path, "Cannot read it"), "Cannot read it", kind)
    assert_mentions(message_of(files.read_input, path, "vocabulary", "--vocab_file"), path, "--vocab_file", kind)
    assert_mentions(message_of(files.check_regular_file, path), path, kind)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.truncate(10**13)  # sparse
    assert_mentions(message_of(files.read_bytes, str(path), "Cannot read it"), f"{10**13:,}", f"{2**28:,}")


def test_an_existing_output_is_an_error_that_names_the_flags(tmp_path):
    path = tmp_path / "a"
    files.check_absent(str(path), "--dev_out")
    path.write_text("")
    assert_mentions(message_of(files.check_absent, str(path), "--dev_out"), path, "--dev_out", "--overwrite")


def test_a_path_is_inside_a_folder_however_it_is_spelled(tmp_path, monkeypatch):
    (tmp_path / "bank" / "base").mkdir(parents=True)
    (tmp_path / "bank2").mkdir()
    os.symlink("bank/base", str(tmp_path / "link"))
    monkeypatch.chdir(tmp_path / "bank2")
    bank = str(tmp_path / "bank")
    for path in (bank, f"{bank}/", "../bank/new/deep", "../link", "../link/new", f"{tmp_path}/bank2/../bank/base/x"):
        assert files.is_inside(path, bank)
        assert files.is_inside(path, "../link/..")
    for path in (".", "..", "../bank2/new", "../other", "/"):
        assert not files.is_inside(path, bank)
    assert not files.is_inside("x", "missing")


def test_a_mounted_folder_is_the_same_folder(tmp_path):
    for name in ("bank", "mounted"):
        (tmp_path / name).mkdir()
    bank, mounted = str(tmp_path / "bank"), str(tmp_path / "mounted")
    code = f"from adapter_bert.common import files; print(files.is_inside({mounted + '/new'!r}, {bank!r}))"
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", bank, mounted, sys.executable, code]
    if not shutil.which("unshare"):
        pytest.skip("there is no command unshare")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"folders cannot be mounted here: {done.stderr}")
    assert done.stdout == "True\n"


def test_the_first_writable_folder_is_used(tmp_path):
    (tmp_path / "file").write_text("")
    blocked, second = str(tmp_path / "file" / "features"), str(tmp_path / "second")
    assert files.writable_folder(blocked, second) == second
    assert files.writable_folder(second, blocked) == second
    assert os.listdir(second) == []


def test_a_staging_folder_becomes_the_folder_or_is_removed(tmp_path):
    with files.staging_folder(str(tmp_path / "out")) as staging:
        (tmp_path / "in").write_text("")
        os.rename(tmp_path / "in", os.path.join(staging, "file"))
        files.rename_folder_noreplace(staging, str(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(FileExistsError), files.staging_folder(str(tmp_path / "out")) as staging:
        files.rename_folder_noreplace(staging, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == ["file"]
    assert os.listdir(tmp_path) == ["out"]


def abandon(folder: pathlib.Path) -> str:
    """Leave a staging folder behind, as a killed writer does; return its path."""
    with files.staging_folder(str(folder / "out")) as staging:
        left = os.path.dirname(staging)
        shutil.copytree(left, str(folder / "copy"))
    os.rename(folder / "copy", left)
    return left


def test_the_next_writer_removes_what_a_dead_one_left(tmp_path):
    abandon(tmp_path)
    (tmp_path / ".00000000.partial").mkdir()  # its writer was killed before it created the marker
    assert len(os.listdir(tmp_path)) == 2
    files.write_text(str(tmp_path / "a.txt"), "x")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_files_of_a_living_writer_stay(tmp_path):
    with files.atomic_write(str(tmp_path / "a.txt")) as temporary:
        files.write_text(temporary, "slow")
        files.write_text(str(tmp_path / "b.txt"), "fast")
    assert (tmp_path / "a.txt").read_text() == "slow"


def test_cleaning_neither_follows_links_nor_removes_what_a_user_made(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    for name in ("precious", "folder/.11111111.partial", "folder/x.12345678.partial"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "thesis.txt").write_text("my work")
    left = abandon(folder)
    os.symlink(precious, os.path.join(left, "link"))
    os.symlink(precious, folder / "x.87654321.partial")
    os.symlink(precious, folder / ".22222222.partial")
    with_marker = tmp_path / "with_marker"
    shutil.copytree(left, str(with_marker), symlinks=True)
    os.symlink(with_marker, folder / ".33333333.partial")
    files.write_text(str(folder / "a.txt"), "x")
    assert not os.path.exists(left)
    expected = {".11111111.partial", "x.12345678.partial", "x.87654321.partial", ".22222222.partial",
                ".33333333.partial", "a.txt"}  # fmt: skip
    assert set(os.listdir(folder)) == expected
    for name in ("precious", "folder/.11111111.partial", "folder/x.12345678.partial"):
        assert (tmp_path / name / "thesis.txt").read_text() == "my work"
    assert os.listdir(with_marker)


def test_new_files_and_folders_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o002)
    try:
        files.make_folder(str(tmp_path / "a" / "b"))
        files.write_text(str(tmp_path / "a" / "b" / "c.txt"), "x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a", "a/b", "a/b/c.txt")]
    assert [oct(mode) for mode in modes] == ["0o775", "0o775", "0o664"]


def test_the_first_names_and_the_number_of_others_are_listed():
    assert errors.first_names([]) == "nothing"
    assert errors.first_names("abc") == "a, b, c"
    assert errors.first_names("abcdefg", 2) == "a, b and 5 more"


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_a_value_that_is_not_a_positive_integer_is_an_error(value):
    errors.check_int("--size", 1)
    assert_mentions(message_of(errors.check_int, "--size", value), "--size", "at least 1", repr(value))
