"""`--bert_dir`: which files it names, and which flags override it."""

from __future__ import annotations

import os

import pytest

from adapter_bert.settings import base_files
from adapter_bert.settings.flags import MODEL, TRAINING
from adapter_bert.settings.groups import Settings
from tests.helpers import assert_mentions, base_flags, message_of, write_file

PARTS = ("bert_config_file", "vocab_file", "init_checkpoint")


def parts_of(settings: Settings) -> list:
    return [getattr(settings, name) for name in PARTS]


def test_a_folder_names_the_same_run_as_the_flags_for_its_parts(tiny_bert):
    flags = base_flags(tiny_bert, "data", "out")
    by_folder, by_parts = Settings(bert_dir=tiny_bert), Settings(**{name: flags[name] for name in PARTS})
    assert parts_of(by_folder) == parts_of(by_parts)
    scopes = (MODEL, TRAINING)
    assert by_folder.comparable_values(scopes) == by_parts.comparable_values(scopes)
    assert by_folder.spm_model_file is None


def test_the_flag_of_a_part_overrides_the_folder(tiny_bert):
    settings = Settings(bert_dir=tiny_bert, init_checkpoint="runs/other")
    assert parts_of(settings)[:2] == parts_of(Settings(bert_dir=tiny_bert))[:2]
    assert settings.init_checkpoint == "runs/other"
    settings = Settings(bert_dir=tiny_bert, spm_model_file="en.model")
    assert (settings.vocab_file, settings.spm_model_file) == (None, "en.model")


def test_a_sentencepiece_model_replaces_the_vocabulary(tmp_path):
    for name in ("bert_config.json", "bert_model.ckpt.index", "en.model"):
        write_file(tmp_path, name, "")
    settings = Settings(bert_dir=str(tmp_path))
    assert (settings.vocab_file, settings.spm_model_file) == (None, str(tmp_path / "en.model"))


def test_a_folder_that_is_not_a_base_is_an_error(tmp_path):
    write_file(tmp_path, "config.json", "{}")
    assert_mentions(message_of(Settings, bert_dir=str(tmp_path)), tmp_path, "bert_config.json", "config.json")
    assert_mentions(message_of(Settings, bert_dir="minilmm"), "minilmm", "minilm", "folder")


def test_a_command_must_name_a_bert():
    assert_mentions(message_of(Settings().check_paths), "--bert_dir", "--bert_config_file")


@pytest.mark.parametrize("variable, folder", [("ADAPTER_BERT_CACHE", ""), ("XDG_CACHE_HOME", "adapter-bert")])
def test_a_known_base_is_in_the_cache(tmp_path, monkeypatch, variable, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(base_files.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    settings = Settings(bert_dir="minilm", output_dir="out")
    expected = os.path.join(str(tmp_path), "cache", folder, "minilm")
    assert settings.bert_config_file == os.path.join(expected, "bert_config.json")
    settings.check_paths()  # it may have to be downloaded
    wrong = Settings(bert_dir="minilm", output_dir="out", vocab_file="no.txt")
    assert_mentions(message_of(wrong.check_paths), "--vocab_file=no.txt")


def test_a_folder_in_the_working_directory_takes_precedence_over_a_known_base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bert_config.json", "bert_model.ckpt.index", "vocab.txt"):
        write_file(tmp_path / "minilm", name, "")
    assert Settings(bert_dir="minilm").vocab_file == os.path.join("minilm", "vocab.txt")
