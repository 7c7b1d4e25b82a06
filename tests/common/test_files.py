"""Files are complete or absent, and names are taken only once."""

from __future__ import annotations

import os
import re

import pytest

from adapter_bert.common import errors, files
from tests.helpers import assert_mentions, message_of


def test_a_write_has_a_temporary_name_until_it_is_complete(tmp_path):
    path = str(tmp_path / "a.txt")
    files.write_text(path, "old")
    with files.atomic_write(path) as temporary:
        assert re.fullmatch(r"a\.txt\.[0-9a-f]{8}\.partial", os.path.basename(temporary))
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
    assert set(os.listdir(tmp_path)) <= {"a.txt", ".lock"}


def test_a_file_system_error_is_a_user_error(tmp_path):
    assert_mentions(message_of(files.write_text, str(tmp_path / "no" / "a.txt"), "x"), "File system error", "a.txt")
    (tmp_path / "file").write_text("")
    assert_mentions(message_of(files.make_folder, str(tmp_path / "file" / "b")), tmp_path / "file" / "b")


def test_json_objects_are_written_and_read_with_null_for_numbers_that_are_not_finite(tmp_path):
    path = str(tmp_path / "a.json")
    files.write_json(path, {"a": float("nan"), "b": [1.5, float("inf"), "ü"]})
    assert files.read_json_object(path) == {"a": None, "b": [1.5, None, "ü"]}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff{}"])
def test_a_missing_file_or_other_content_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "a.json"
    assert_mentions(message_of(files.read_json_object, str(path)), path)
    path.write_bytes(content)
    assert_mentions(message_of(files.read_json_object, str(path), "Ask again."), path, "is damaged", "Ask again.")


def test_an_existing_output_is_an_error_that_names_the_flags(tmp_path):
    path = tmp_path / "a"
    files.check_absent(str(path), "--dev_out")
    path.write_text("")
    assert_mentions(message_of(files.check_absent, str(path), "--dev_out"), path, "--dev_out", "--overwrite")


def test_the_first_writable_folder_is_used(tmp_path):
    (tmp_path / "file").write_text("")
    blocked, second = str(tmp_path / "file" / "features"), str(tmp_path / "second")
    assert files.writable_folder(blocked, second) == second
    assert files.writable_folder(second, blocked) == second
    assert os.listdir(second) == []


def test_a_staging_folder_is_removed_with_leftovers_of_dead_writers(tmp_path):
    old, young, other = "out.01234567.partial", "out.89abcdef.partial", "other.01234567.partial"
    for name in (old, young, other):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / old, (1, 1))
    os.utime(tmp_path / other, (1, 1))
    with files.staging_folder(str(tmp_path / "out")) as staging:
        (tmp_path / "in").write_text("")
        os.rename(tmp_path / "in", os.path.join(staging, "file"))
        files.rename_folder_noreplace(staging, str(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path)) == sorted(["out", young, other])
    with pytest.raises(FileExistsError), files.staging_folder(str(tmp_path / "out")) as staging:
        files.rename_folder_noreplace(staging, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == ["file"]


def test_the_first_names_and_the_number_of_others_are_listed():
    assert errors.first_names([]) == "nothing"
    assert errors.first_names("abc") == "a, b, c"
    assert errors.first_names("abcdefg", 2) == "a, b and 5 more"


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_a_value_that_is_not_a_positive_integer_is_an_error(value):
    errors.check_int("--size", 1)
    assert_mentions(message_of(errors.check_int, "--size", value), "--size", "at least 1", repr(value))
