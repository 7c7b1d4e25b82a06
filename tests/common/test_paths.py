"""Names of local and remote files and folders."""

from __future__ import annotations

import os

import pytest

from adapter_bert.common import files, locks, paths
from tests.runs.remote import content_of, new_bucket, read_text, write_text

GS = "gs://bucket/runs/cola"


def test_a_remote_path_has_a_scheme():
    assert paths.is_remote(GS) and paths.is_remote("file:///tmp")
    assert not any(map(paths.is_remote, ("", "runs/cola", "/gs:/bucket", "news.tar.gz//train")))


def test_remote_paths_are_compared_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.real(GS + "/") == paths.real(GS) == GS
    assert list(paths.with_parents(GS)) == [GS, "gs://bucket/runs", "gs://bucket"]
    assert list(paths.with_parents("gs://bucket/")) == ["gs://bucket"]
    assert files.is_inside(GS, "gs://bucket/runs/") and files.is_inside(GS, GS)
    assert not any(files.is_inside(GS, folder) for folder in ("gs://bucket/run", "gs://other", str(tmp_path), "."))
    assert not files.is_inside(str(tmp_path), "gs://bucket")


def test_local_paths_are_compared_through_links(tmp_path):
    os.symlink(tmp_path, tmp_path / "link")
    assert paths.real(str(tmp_path / "link" / "new")) == os.path.realpath(tmp_path / "new")
    assert list(paths.with_parents(str(tmp_path)))[-1] == "/"


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path) -> str:
    return str(tmp_path) if request.param == "local" else new_bucket()


def test_what_is_at_a_path(folder):
    path = write_text(f"{folder}/b.txt", "b")
    files.make_folder(f"{folder}/a/nested")
    answers = {"b.txt": (True, True, False), "a": (True, False, True), "none": (False, False, False)}
    for name, expected in answers.items():
        place = f"{folder}/{name}"
        assert (paths.exists(place), paths.is_file(place), paths.is_folder(place)) == expected
        assert paths.is_taken(place) == expected[0]
    assert paths.names_in(folder) == ["a", "b.txt"]
    assert paths.names_in(path) == paths.names_in(f"{folder}/none") == []


def test_a_link_to_nothing_is_taken(tmp_path):
    os.symlink("none", tmp_path / "link")
    assert paths.is_taken(str(tmp_path / "link")) and not paths.exists(str(tmp_path / "link"))


def test_files_are_written_replaced_and_left_alone(folder):
    path = f"{folder}/file"
    files.write_bytes(path, b"1", replace=False)
    files.write_bytes(path, b"2")
    with pytest.raises(FileExistsError):
        files.write_bytes(path, b"3", replace=False)
    with pytest.raises(ZeroDivisionError), files.atomic_write(path) as temporary:
        write_text(temporary, "half")
        _ = 1 / 0
    assert (read_text(path), paths.names_in(folder)) == ("2", ["file"])


def test_a_folder_appears_when_it_is_complete(folder):
    target = f"{folder}/new"
    with files.staging_folder(target) as staging:
        files.make_subfolder(f"{staging}/sub")
        for name in ("a", "sub/b"):
            write_text(f"{staging}/{name}", name)
        assert not paths.exists(target)
        files.rename_folder_noreplace(staging, target)
    assert content_of(folder) == {f"{target}/a": b"a", f"{target}/sub/b": b"sub/b"}
    with pytest.raises(FileExistsError), files.staging_folder(target) as staging:
        write_text(f"{staging}/c", "c")
        files.rename_folder_noreplace(staging, target)
    assert paths.names_in(folder) == ["new"] and paths.names_in(target) == ["a", "sub"]


def test_errors_name_the_file_that_the_user_knows():
    for reason in ("gs://b/.0123abcd.partial.results.json: denied", "runs/.0123abcd.partial/results.json: denied"):
        with pytest.raises(ValueError, match="/results.json: denied"), files.user_errors():
            raise OSError(reason)


def test_remote_paths_have_no_locks():
    first, second = (locks.acquire("gs://bucket/.lock") for _ in range(2))
    assert first and second
    first.write({"pid": 1})
    first.release()
    with locks.held("gs://bucket/.lock"):
        second.release(remove=False)
