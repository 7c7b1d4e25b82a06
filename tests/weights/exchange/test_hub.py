"""TF-Hub modules: a module in each layout becomes the base that it was exported from."""

from __future__ import annotations

import http.server
import json
import os
import threading

import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.devices import compat
from adapter_bert.settings import base_files
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.weights.bases import ARCHITECTURE, Base
from adapter_bert.weights.exchange import hub
from tests.helpers import SHARED, assert_mentions, base_flags, message_of, tiny_config, write_bert, write_file
from tests.runs.helpers import read_json, run
from tests.runs.remote import new_bucket, upload
from tests.weights.exchange.hub_modules import LAYOUTS, archive, export

if compat.tensorflow_version() < (2, 0):
    LAYOUTS = LAYOUTS[:1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv(base_files.CACHE_VARIABLE, str(tmp_path / "cache"))
    return str(tmp_path / "cache")


@pytest.fixture(scope="module")
def base(tiny_bert) -> Base:
    return Base.find(tiny_bert)


@pytest.fixture(scope="module", params=LAYOUTS)
def module(request, base, tmp_path_factory) -> str:
    """A cased module with the weights of the tiny BERT. Read only."""
    folder = str(tmp_path_factory.mktemp("modules") / request.param.replace(" ", "_"))
    return export(base, folder, request.param, do_lower_case=False)


def assert_same_base(found: Base, expected: Base) -> None:
    assert {key: getattr(found.config, key) for key in ARCHITECTURE} == {
        key: getattr(expected.config, key) for key in ARCHITECTURE
    }
    assert found.digests == expected.digests
    assert found.tokenizer_description == expected.tokenizer_description


def test_a_module_is_converted_once_to_the_base_it_contains(module, base, cache):
    folder = hub.provide(module)
    assert_same_base(Base.find(folder), base)
    os.remove(os.path.join(folder, hub.RECORD_NAME))
    assert hub.provide(module) == folder and not os.path.exists(os.path.join(folder, hub.RECORD_NAME))
    assert [name for name in os.listdir(cache) if not name.startswith(".")] == [os.path.basename(folder)]


def test_weights_vocabulary_and_casing_come_from_the_module(module, cola_dir, tmp_path):
    flags = base_flags("", cola_dir, str(tmp_path))
    for name in ("vocab_file", "bert_config_file", "init_checkpoint"):
        del flags[name]
    settings = hub.use_module(ClassifierSettings(**flags, bert_hub_module_handle=module, do_train=True))
    assert settings.do_lower_case is False
    assert {os.path.dirname(getattr(settings, name) or "") for name in ("vocab_file", "init_checkpoint")} == {
        hub.provide(module)
    }


def assert_same_runs(base: Base, module: str, cola_dir: str, folder) -> None:
    """Train and evaluate on a base and on a module, and compare weights and predictions."""
    flags = dict(base_flags("", cola_dir, ""), num_train_epochs=1.0, learning_rate=1e-2, do_train=True, do_eval=True)
    for name in ("vocab_file", "bert_config_file", "init_checkpoint"):
        del flags[name]
    found = []
    for name, model in (("base", base.flags()), ("hub", {"bert_hub_module_handle": module})):
        run(flags, **model, output_dir=str(folder / name))
        found.append(read_json(str(folder / name), "results.json")["fingerprints"])
    assert found[0] == found[1] and found[0]["pack"] and found[0]["predictions"]


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_on_a_module_is_the_run_on_its_base(layout, base, cola_dir, tmp_path):
    assert_same_runs(base, export(base, str(tmp_path / "module"), layout), cola_dir, tmp_path)


def sentencepiece_base(model: str, folder) -> Base:
    write_bert(str(folder), tiny_config(vocab_size=len(tokenization.SentencePieceTokenizer(model).vocab)))
    os.remove(str(folder / "vocab.txt"))
    return Base(str(folder / "bert_config.json"), str(folder / "bert_model.ckpt"), spm_model_file=model)


def test_a_sentencepiece_model_is_found_in_a_module(spm_model_file, tmp_path):
    base = sentencepiece_base(spm_model_file, tmp_path / "bert")
    found = Base.find(hub.provide(export(base, str(tmp_path / "module"), "tf1")))
    assert found.spm_model_file and found.vocab_file is None
    assert_same_base(found, base)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_a_run_with_the_sentencepiece_model_of_albert_is_the_run_on_its_base(layout, cola_dir, tmp_path):
    model = os.path.join(SHARED, "data", "sentencepiece", "albert_spiece.model")
    if not os.path.exists(model):
        pytest.skip(f"needs {model}")
    base = sentencepiece_base(model, tmp_path / "bert")
    assert_same_runs(base, export(base, str(tmp_path / "module"), layout), cola_dir, tmp_path)


@pytest.mark.parametrize(
    "layout, drop", [("tf1", "word_embeddings"), *((layout, "intermediate/dense/kernel") for layout in LAYOUTS)]
)
def test_missing_variables_are_named(layout, drop, base, cache, tmp_path):
    module = export(base, str(tmp_path / "module"), layout, drop=drop)
    message = message_of(hub.provide, module)
    assert_mentions(message, module, drop, "not a BERT")
    assert base_files.CACHE_VARIABLE not in message
    assert not [name for name in os.listdir(cache) if not name.startswith(".")]


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_a_module_that_does_not_record_its_case_leaves_it_to_the_flag(layout, base, cola_dir, tmp_path):
    module = export(base, str(tmp_path / "module"), layout, do_lower_case=None)
    settings = ClassifierSettings(bert_hub_module_handle=module, do_lower_case=False)
    assert hub.use_module(settings).do_lower_case is False
    with open(os.path.join(hub.provide(module), hub.RECORD_NAME)) as file:
        assert json.load(file) == {"handle": module, "do_lower_case": None}


def test_a_remote_module_is_read_in_place(module, base):
    remote = upload(module, f"{new_bucket()}/module")
    assert_same_base(Base.find(hub.provide(remote)), base)
    assert_mentions(message_of(hub.provide, remote + "/none"), remote + "/none", "saved_model.pb")


def test_another_module_in_the_same_folder_is_converted_again(base, tmp_path):
    folder = str(tmp_path / "module")
    first = hub.provide(export(base, folder, "tf1"))
    prefix = write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
    tf.gfile.DeleteRecursively(folder)
    second = hub.provide(export(Base.find(os.path.dirname(prefix)), folder, "tf1"))
    assert first != second


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802
        found = self.path == "/bert/1?tf-hub-format=compressed"
        self.send_response(200 if found else 404)
        self.end_headers()
        if found:
            self.wfile.write(self.server.content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as created:
        threading.Thread(target=created.serve_forever, daemon=True).start()
        yield created
        created.shutdown()


def test_a_url_is_downloaded_once(server, base, tmp_path):
    path = archive(export(base, str(tmp_path / "module"), "tf1"), str(tmp_path / "archive"))
    with open(path, "rb") as file:
        server.content = file.read()
    url = f"http://127.0.0.1:{server.server_address[1]}/bert/1"
    folder = hub.provide(url)
    assert_same_base(Base.find(folder), base)
    server.content = b"not an archive"
    assert hub.provide(url) == folder
    assert_mentions(message_of(hub.provide, url + "/no"), f"{url}/no", 404)


def test_an_answer_that_is_no_module_is_an_error(server):
    url = f"http://127.0.0.1:{server.server_address[1]}/bert/1"
    for content in (b"", b"<html>", b"\x1f\x8b damaged"):
        server.content = content
        assert_mentions(message_of(hub.provide, url), url)


def test_a_folder_that_is_no_module_is_an_error(tiny_bert, tmp_path):
    assert_mentions(message_of(hub.provide, tiny_bert), "--bert_hub_module_handle", tiny_bert, "saved_model.pb")
    write_file(tmp_path, "damaged/saved_model.pb", b"\xff\xff")
    write_file(tmp_path, "damaged/variables/variables.index", b"")
    assert_mentions(message_of(hub.provide, str(tmp_path / "damaged")), str(tmp_path / "damaged"))


def test_the_flag_must_name_a_module_and_nothing_else_the_bert(tiny_bert):
    both = ClassifierSettings(bert_hub_module_handle="m", bert_dir=tiny_bert, do_train=True, task_name="cola")
    assert_mentions(message_of(both.validate), "--bert_hub_module_handle=m", f"--bert_dir={tiny_bert}")
    assert_mentions(message_of(ClassifierSettings(bert_hub_module_handle="no/folder").check_paths), "no/folder")
    ClassifierSettings(bert_hub_module_handle="https://tfhub.dev/google/bert/1", data_dir=tiny_bert).check_paths()
