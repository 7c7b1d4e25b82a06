"""Hugging Face folders become bases in Google's layout, and back, also with scripts/convert_hf_checkpoint.py.

Names are written out by hand, not derived.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys

import numpy as np
import pytest
import safetensors
import tensorflow.compat.v1 as tf
from safetensors.numpy import save_file

from adapter_bert.common import errors
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.exchange import huggingface
from scripts import convert_hf_checkpoint
from tests.helpers import TINY, assert_mentions, message_of, tiny_config, write_bert, write_file
from tests.helpers import VOCABULARY as TINY_VOCABULARY

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "\u2028", "é"]
GOOGLE_CONFIG = {
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 7,
    "type_vocab_size": 3,
    "hidden_act": "gelu_erf",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "initializer_range": 0.05,
}
HF_CONFIG = dict(GOOGLE_CONFIG, model_type="bert", hidden_act="gelu", layer_norm_eps=1e-12, architectures=["BertModel"])
# Hugging Face's name -> (shape there, Google's name)
BODY = {
    "embeddings.word_embeddings.weight": ((8, 4), "bert/embeddings/word_embeddings"),
    "embeddings.position_embeddings.weight": ((7, 4), "bert/embeddings/position_embeddings"),
    "embeddings.token_type_embeddings.weight": ((3, 4), "bert/embeddings/token_type_embeddings"),
    "embeddings.LayerNorm.weight": ((4,), "bert/embeddings/LayerNorm/gamma"),
    "embeddings.LayerNorm.bias": ((4,), "bert/embeddings/LayerNorm/beta"),
    "pooler.dense.weight": ((4, 4), "bert/pooler/dense/kernel"),
    "pooler.dense.bias": ((4,), "bert/pooler/dense/bias"),
}
for _number in range(2):
    for _name, _shape, _google in (
        ("attention.self.query", (4, 4), "attention/self/query"),
        ("attention.self.key", (4, 4), "attention/self/key"),
        ("attention.self.value", (4, 4), "attention/self/value"),
        ("attention.output.dense", (4, 4), "attention/output/dense"),
        ("attention.output.LayerNorm", (4,), "attention/output/LayerNorm"),
        ("intermediate.dense", (6, 4), "intermediate/dense"),
        ("output.dense", (4, 6), "output/dense"),
        ("output.LayerNorm", (4,), "output/LayerNorm"),
    ):
        _theirs, _ours = f"encoder.layer.{_number}.{_name}", f"bert/encoder/layer_{_number}/{_google}"
        _weight, _bias = ("gamma", "beta") if "LayerNorm" in _name else ("kernel", "bias")
        BODY[f"{_theirs}.weight"] = (_shape, f"{_ours}/{_weight}")
        BODY[f"{_theirs}.bias"] = (_shape[:1], f"{_ours}/{_bias}")
RESULTS = ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt"]


def weights():
    random = np.random.RandomState(3)
    return {name: random.standard_normal(BODY[name][0]).astype(np.float32) for name in sorted(BODY)}


def write_folder(path, tensors=None, config=None, vocabulary=VOCABULARY):
    """Write a Hugging Face folder; `vocabulary=None` omits vocab.txt."""
    write_file(path, "config.json", json.dumps(HF_CONFIG if config is None else config))
    if vocabulary is not None:
        write_file(path, "vocab.txt", "".join(token + "\n" for token in vocabulary))
    save_file(weights() if tensors is None else tensors, str(path / "model.safetensors"))
    return path


def read_back(folder):
    reader = tf.train.load_checkpoint(os.path.join(str(folder), "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_is_conversion_of(folder, tensors):
    stored = read_back(folder)
    assert set(stored) == {google for _, google in BODY.values()}
    for name, (_, google) in BODY.items():
        expected = tensors[name].T if google.endswith("/kernel") else tensors[name]
        np.testing.assert_array_equal(stored[google], expected, err_msg=google)
        assert stored[google].dtype == np.float32


def contents(folder):
    return {name: (folder / name).read_bytes() for name in os.listdir(str(folder))} if folder.is_dir() else None


def rejection(hf_dir, output_dir, *facts):
    """Check that a conversion fails with a message that contains these facts, and leaves no files."""
    before = contents(output_dir)
    assert_mentions(message_of(huggingface.convert, str(hf_dir), str(output_dir)), *facts)
    assert contents(output_dir) == before


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


def test_a_folder_becomes_a_base_in_googles_layout(tmp_path, out):
    done = huggingface.convert(str(write_folder(tmp_path / "hf")), str(out))
    assert sorted(os.listdir(str(out))) == RESULTS
    assert_is_conversion_of(out, weights())
    assert (out / "vocab.txt").read_bytes() == "".join(token + "\n" for token in VOCABULARY).encode("utf-8")
    assert json.loads((out / "bert_config.json").read_text(encoding="utf-8")) == GOOGLE_CONFIG
    assert (done.skipped, done.pooler_is_random) == ([], False)


def test_prefixes_old_layer_norm_names_heads_and_buffers_are_accepted(tmp_path, out):
    renamed = {"bert.embeddings.position_ids": np.arange(7)[None]}
    for name, value in weights().items():
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        renamed["bert." + name] = value
    extras = ["classifier.weight", "cls.predictions.bias", "cls.predictions.transform.LayerNorm.gamma"]
    renamed.update({name: np.zeros(2, np.float32) for name in extras})
    done = huggingface.convert(str(write_folder(tmp_path / "hf", renamed)), str(out))
    assert_is_conversion_of(out, weights())
    assert sorted(done.skipped) == ["bert.embeddings.position_ids", *extras]


def test_shards_are_read(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    names = sorted(weights())
    shards = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for shard, members in shards.items():
        save_file({name: weights()[name] for name in members}, str(folder / shard))
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    write_file(folder, "model.safetensors.index.json", json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    done = huggingface.convert(str(folder), str(out))
    assert_is_conversion_of(out, weights())
    assert [os.path.basename(path) for path in done.sources] == sorted(shards)
    (folder / "model-00002-of-00002.safetensors").unlink()
    rejection(folder, tmp_path / "other", "index.json", "missing", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_becomes_float32(tmp_path, out, dtype):
    folder = write_folder(tmp_path / "hf")
    header, body, expected = {}, b"", {}
    for name, value in weights().items():
        if dtype == "F16":
            halves = value.astype("<f2")
            expected[name] = halves.astype(np.float32)
        else:
            halves = (value.view(np.uint32) >> 16).astype("<u2")  # truncated, not rounded
            expected[name] = (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        offsets = [len(body), len(body) + halves.nbytes]
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": offsets}
        body += halves.tobytes()
    text = json.dumps(header).encode("utf-8")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    huggingface.convert(str(folder), str(out))
    assert_is_conversion_of(out, expected)


def tokenizer_json(**model):
    ids = {token: number for number, token in reversed(list(enumerate(VOCABULARY[:-1])))}
    return {
        "added_tokens": [{"id": 0, "content": "[PAD]"}, {"id": 7, "content": "é"}],
        "normalizer": {"type": "BertNormalizer", "lowercase": False},
        "model": {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": ids, **model},
    }


def test_the_vocabulary_of_tokenizer_json_is_sorted_by_id(tmp_path, out):
    folder = write_folder(tmp_path / "hf", vocabulary=None)
    write_file(folder, "tokenizer.json", json.dumps(tokenizer_json()))
    huggingface.convert(str(folder), str(out))
    assert (out / "vocab.txt").read_bytes().decode("utf-8").split("\n") == [*VOCABULARY, ""]


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (tokenizer_json(type="BPE"), "BPE"),
        (tokenizer_json(vocab={"a": 0, "b": 2}), "ids"),
        (tokenizer_json(vocab={token + "\n": i for i, token in enumerate(VOCABULARY[:7])}), "line break"),
        ({"model": None}, "model is null"),
        ({**tokenizer_json(), "added_tokens": {}}, "added_tokens is {}"),
        ({**tokenizer_json(), "added_tokens": [{"content": "a", "id": "5"}]}, 'id is "5"'),
        (tokenizer_json(vocab={"a": 0.5}), '"a" is 0.5'),
        ([], "JSON object"),
    ],
)
def test_a_tokenizer_json_without_wordpieces_is_rejected(tmp_path, out, content, fact):
    folder = write_folder(tmp_path / "hf", vocabulary=None)
    write_file(folder, "tokenizer.json", json.dumps(content))
    rejection(folder, out, folder / "tokenizer.json", fact)


def test_a_missing_pooler_is_drawn_at_random_and_always_the_same(tmp_path, out):
    shapes = {name: [64 if size == 4 else size for size in shape] for name, (shape, _) in BODY.items()}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if "pooler" not in name}
    folder = write_folder(tmp_path / "hf", tensors, dict(HF_CONFIG, hidden_size=64))
    assert huggingface.convert(str(folder), str(out)).pooler_is_random
    stored = read_back(out)
    assert len(stored) == len(BODY)
    np.testing.assert_array_equal(stored["bert/pooler/dense/bias"], np.zeros(64, np.float32))
    # A normal truncated at two standard deviations has 0.87962566 of the standard deviation (SciPy).
    kernel = stored["bert/pooler/dense/kernel"]
    assert np.abs(kernel).max() <= 0.1 + 1e-7
    np.testing.assert_allclose(kernel.std() / 0.05, 0.87962566, atol=0.03)
    assert kernel.astype(np.float64).sum() == pytest.approx(-0.751267181190542, abs=1e-9)  # as in earlier versions


def test_an_activation_with_two_names_is_translated():
    assert huggingface.google_config(dict(HF_CONFIG, hidden_act="silu"), "config.json").hidden_act == "swish"


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"hidden_act": "mish"}, ["mish", "gelu, gelu_new, gelu_pytorch_tanh, relu, swish, silu, tanh"]),
        ({"model_type": "roberta"}, ['model_type = "roberta"', '"bert"']),
        ({"model_type": None}, ["model_type = null"]),
        ({"layer_norm_eps": 1e-5}, ["layer_norm_eps = 1e-05", "1e-12"]),
        ({"position_embedding_type": "relative_key"}, ['"relative_key"', '"absolute"']),
        ({"is_decoder": True}, ["is_decoder = true", "false"]),
        ({"hidden_size": "4"}, ["hidden_size", "'4'"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers", "None"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "at most 64"]),
        ({"num_hidden_layers": 64}, [f"{62 * 16} missing"]),
        ({"intermediate_size": 2**24}, ["of another shape", 2**24]),
        ({"initializer_range": 10**400}, ["401 digits"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act", "['gelu']"]),
        ({"architectures": json.loads("[" * 65 + "]" * 65)}, ["nested"]),
        ({"vocab_size": 9}, ["8 entries", "vocab_size", "9"]),
    ],
)
def test_an_unsupported_configuration_is_rejected(tmp_path, out, deadline, change, facts):
    rejection(write_folder(tmp_path / "hf", config=dict(HF_CONFIG, **change)), out, "config.json", *facts)


@pytest.mark.parametrize("value", [None, [], 3, {"a": 3}, {"a": ["b"]}, {"a": "fifo.safetensors"}], ids=str)
def test_an_index_of_shards_with_other_values_or_a_fifo_is_rejected(tmp_path, out, deadline, value):
    folder = write_folder(tmp_path / "hf")
    (folder / "model.safetensors").unlink()
    os.mkfifo(str(folder / "fifo.safetensors"))
    write_file(folder, "model.safetensors.index.json", json.dumps({"weight_map": value}))
    rejection(folder, out, folder, "FIFO" if "fifo" in str(value) else "weight_map")


@pytest.mark.parametrize(
    ("name", "renamed", "facts"),
    [
        ("config.json", "other", ["config.json"]),
        ("vocab.txt", "other", ["no vocab.txt"]),
        ("model.safetensors", "other", ["no model.safetensors"]),
        ("model.safetensors", "pytorch_model.bin", ["pytorch_model.bin", "safe_serialization=True"]),
    ],
)
def test_missing_files_are_named_and_pickles_are_not_loaded(tmp_path, out, name, renamed, facts):
    folder = write_folder(tmp_path / "hf")
    (folder / name).rename(folder / renamed)
    rejection(folder, out, folder, *facts)
    rejection(tmp_path / "nowhere", out, tmp_path / "nowhere")


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_truncated_weights_are_rejected(tmp_path, out, keep):
    folder = write_folder(tmp_path / "hf")
    content = (folder / "model.safetensors").read_bytes()[:keep]
    (folder / "model.safetensors").write_bytes(content)
    rejection(folder, out, folder / "model.safetensors", f"({len(content)} bytes)")


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("encoder.layer.1.output.dense.bias", None, ["38 of 39", "1 missing"]),
        ("encoder.layer.0.output.dense.weight", np.zeros((6, 4), np.float32), ["is [6, 4] where the model has [4, 6]"]),
        ("pooler.dense.bias", np.zeros(4, np.int8), ["I8"]),
        ("encoder.layer.1.output.dense.bias", np.array([0, np.nan, 0, np.inf], np.float32), ["2 of 4 values"]),
        ("encoder.layer.2.output.dense.bias", np.zeros(4, np.float32), ["config.json"]),
        ("bert.pooler.dense.bias", np.zeros(4, np.float32), ["twice"]),
    ],
)
def test_tensors_that_do_not_match_are_rejected(tmp_path, out, name, value, facts):
    changed = dict(weights(), **{name: value}).items()
    tensors = {key: tensor for key, tensor in changed if tensor is not None}
    rejection(write_folder(tmp_path / "hf", tensors), out, name, *facts)


def test_results_are_replaced_only_on_request(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    huggingface.convert(str(folder), str(out))
    rejection(folder, out, out, "bert_config.json", "--overwrite")
    doubled = {name: 2 * value for name, value in weights().items()}
    save_file(doubled, str(folder / "model.safetensors"))
    huggingface.convert(str(folder), str(out), overwrite=True)
    assert sorted(os.listdir(str(out))) == RESULTS
    assert_is_conversion_of(out, doubled)
    write_file(tmp_path, "file", "mine")
    rejection(folder, tmp_path / "file", tmp_path / "file")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failed_conversion_leaves_earlier_results(tmp_path, out, monkeypatch, stop):
    folder = write_folder(tmp_path / "hf")
    huggingface.convert(str(folder), str(out))
    before = contents(out)

    def fail(tensors, prefix):
        with open(prefix + ".data-00000-of-00001", "wb") as file:
            file.write(b"half")
        raise stop

    monkeypatch.setattr(checkpoints, "write", fail)
    for target in (out, tmp_path / "fresh"):
        with pytest.raises((KeyboardInterrupt, errors.UserError)):
            huggingface.convert(str(folder), str(target), overwrite=True)
    assert contents(out) == before
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "relu", "tanh"])
def test_a_base_goes_to_hugging_face_and_back_unchanged(tmp_path, activation):
    write_bert(str(tmp_path / "ours"), tiny_config(hidden_act=activation, num_hidden_layers=1))
    base = bases.Base.find(str(tmp_path / "ours"))
    huggingface.export_base(base, str(tmp_path / "hf"), do_lower_case=False)
    assert sorted(os.listdir(str(tmp_path / "hf"))) == sorted(huggingface.HF_FILES)
    huggingface.convert(str(tmp_path / "hf"), str(tmp_path / "again"))
    again = bases.Base.find(str(tmp_path / "again"))
    assert again.config.to_dict() == base.config.to_dict()
    assert again.digests == base.digests
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == (tmp_path / "ours" / "vocab.txt").read_bytes()


def test_transformers_reads_an_exported_base(base, tmp_path):
    transformers = pytest.importorskip("transformers")
    huggingface.export_base(base, str(tmp_path / "hf"), do_lower_case=True)
    config = transformers.BertConfig.from_pretrained(str(tmp_path / "hf"))
    assert (config.hidden_act, config.layer_norm_eps, config.hidden_size) == ("gelu_new", 1e-12, 16)
    tokenizer = transformers.BertTokenizer.from_pretrained(str(tmp_path / "hf"))
    assert tokenizer.do_lower_case
    assert tokenizer.tokenize("The CAT sees dogs") == ["the", "cat", "sees", "dogs"]
    assert tokenizer.convert_tokens_to_ids(TINY_VOCABULARY) == list(range(len(TINY_VOCABULARY)))
    with safetensors.safe_open(str(tmp_path / "hf" / "model.safetensors"), framework="np") as reader:
        assert reader.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("vocab.txt", "\n".join([*TINY_VOCABULARY, "more"]), [len(TINY_VOCABULARY) + 1, "vocab_size"]),
        ("vocab.txt", "[PAD]\na\rb\n", ["line 2"]),
        ("vocab.txt", b"[PAD]\n\xff\n", ["vocab.txt", "UTF-8"]),
        ("bert_config.json", json.dumps(dict(TINY, hidden_act="linear")), ["'linear'", "tanh, swish, relu, gelu"]),
        ("spm.model", "", ["SentencePiece", "spm.model"]),
    ],
)
def test_a_base_that_hugging_face_does_not_support_is_rejected(base, tmp_path, name, content, facts):
    folder = tmp_path / "base"
    shutil.copytree(base.folder, str(folder))
    if name == "spm.model":
        (folder / "vocab.txt").unlink()
    write_file(folder, name, content)
    other = bases.Base.find(str(folder))
    assert_mentions(message_of(huggingface.export_base, other, str(tmp_path / "hf"), do_lower_case=True), *facts)
    assert not (tmp_path / "hf").exists()


@pytest.fixture
def run_script(monkeypatch, capsys):
    def run(*flags) -> str:
        monkeypatch.setattr(sys, "argv", ["convert_hf_checkpoint.py", *map(str, flags)])
        convert_hf_checkpoint.main()
        return capsys.readouterr().out

    return run


def test_the_script_reports_what_it_did_and_what_to_run_next(tmp_path, out, run_script):
    tensors = {name: value for name, value in weights().items() if not name.startswith("pooler")}
    tensors["cls.predictions.bias"] = np.zeros(8, np.float32)
    folder = write_folder(tmp_path / "hf", tensors)
    write_file(folder, "tokenizer.json", json.dumps(tokenizer_json()))
    parameters = sum(value.size for value in weights().values())
    assert_mentions(
        run_script("--hf_dir", folder, "--output_dir", out),
        f"39 tensors, {parameters:,} parameters",
        "Skipped: cls.predictions.bias\n",
        "no pooler",
        f"--init_checkpoint={out}/bert_model.ckpt",
        "--do_lower_case=false --max_seq_length=7",
    )


@pytest.mark.parametrize(
    ("settings", "facts", "warns"),
    [
        ({"do_lower_case": True}, ["lower-cases", "--do_lower_case=true"], False),
        ({"do_lower_case": True, "strip_accents": False}, ["--do_lower_case=true"], True),
        ({}, ["do not say", "--do_lower_case=true"], False),
    ],
)
def test_the_script_says_whether_to_lower_case(tmp_path, out, run_script, settings, facts, warns):
    folder = write_folder(tmp_path / "hf")
    write_file(folder, "tokenizer_config.json", json.dumps(settings))
    report = run_script("--hf_dir", folder, "--output_dir", out)
    assert_mentions(report, *facts)
    assert ("strip_accents = false" in report) == warns


def test_the_script_converts_back(base, tmp_path, run_script):
    flags = ["--base_dir", base.folder, "--output_dir", tmp_path / "hf"]
    with pytest.raises(SystemExit, match="--do_lower_case"):
        run_script(*flags)
    assert_mentions(run_script(*flags, "--do_lower_case", "false"), "39 tensors", tmp_path / "hf")
    settings = tmp_path / "hf" / "tokenizer_config.json"
    assert json.loads(settings.read_text(encoding="utf-8"))["do_lower_case"] is False
    with pytest.raises(SystemExit, match="config.json"):
        run_script(*flags, "--do_lower_case", "true")
    run_script(*flags, "--do_lower_case", "true", "--overwrite")
    assert json.loads(settings.read_text(encoding="utf-8"))["do_lower_case"] is True


def test_errors_of_the_script_are_one_line(tmp_path, out, run_script):
    with pytest.raises(SystemExit, match=r"^convert_hf_checkpoint.py: error: .*nowhere"):
        run_script("--hf_dir", tmp_path / "nowhere", "--output_dir", out)
    with pytest.raises(SystemExit, match="gs://bucket/base"):
        run_script("--hf_dir", tmp_path, "--output_dir", "gs://bucket/base")
