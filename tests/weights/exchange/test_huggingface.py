"""Conversion of Hugging Face folders, on tiny ones made here. Names are written out by hand, not derived."""

import importlib
import json
import os
import struct
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from safetensors.numpy import save_file

from adapter_bert.common import errors
from adapter_bert.weights.exchange import huggingface

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "\u2028", "é"]
HF_CONFIG = {
    "model_type": "bert",
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 7,
    "type_vocab_size": 3,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "initializer_range": 0.05,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "architectures": ["BertModel"],
}
GOOGLE_KEYS = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_act",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
}
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
        ("attention.self.query.weight", (4, 4), "attention/self/query/kernel"),
        ("attention.self.query.bias", (4,), "attention/self/query/bias"),
        ("attention.self.key.weight", (4, 4), "attention/self/key/kernel"),
        ("attention.self.key.bias", (4,), "attention/self/key/bias"),
        ("attention.self.value.weight", (4, 4), "attention/self/value/kernel"),
        ("attention.self.value.bias", (4,), "attention/self/value/bias"),
        ("attention.output.dense.weight", (4, 4), "attention/output/dense/kernel"),
        ("attention.output.dense.bias", (4,), "attention/output/dense/bias"),
        ("attention.output.LayerNorm.weight", (4,), "attention/output/LayerNorm/gamma"),
        ("attention.output.LayerNorm.bias", (4,), "attention/output/LayerNorm/beta"),
        ("intermediate.dense.weight", (6, 4), "intermediate/dense/kernel"),
        ("intermediate.dense.bias", (6,), "intermediate/dense/bias"),
        ("output.dense.weight", (4, 6), "output/dense/kernel"),
        ("output.dense.bias", (4,), "output/dense/bias"),
        ("output.LayerNorm.weight", (4,), "output/LayerNorm/gamma"),
        ("output.LayerNorm.bias", (4,), "output/LayerNorm/beta"),
    ):
        BODY[f"encoder.layer.{_number}.{_name}"] = (_shape, f"bert/encoder/layer_{_number}/{_google}")
RESULTS = ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt"]


def weights():
    random = np.random.RandomState(3)
    return {name: random.standard_normal(BODY[name][0]).astype(np.float32) for name in sorted(BODY)}


def write_folder(path, tensors=None, config=None, vocabulary=VOCABULARY):
    """A Hugging Face folder; what is None gets its default, `vocabulary=None` writes no vocab.txt."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(HF_CONFIG if config is None else config), encoding="utf-8")
    if vocabulary is not None:
        (path / "vocab.txt").write_bytes("".join(token + "\n" for token in vocabulary).encode("utf-8"))
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


def refusal(hf_dir, output_dir, **kwargs):
    """The sentence with which a conversion is refused; nothing may be left behind."""
    before = sorted(os.listdir(str(output_dir))) if output_dir.exists() else None
    with pytest.raises(errors.UserError) as caught:
        huggingface.convert(str(hf_dir), str(output_dir), **kwargs)
    assert (sorted(os.listdir(str(output_dir))) if output_dir.exists() else None) == before
    return str(caught.value)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "deep" / "out"


def test_a_folder_becomes_googles_three_results(tmp_path, out):
    done = huggingface.convert(str(write_folder(tmp_path / "hf")), str(out))
    assert sorted(os.listdir(str(out))) == RESULTS
    assert_is_conversion_of(out, weights())
    assert (out / "vocab.txt").read_bytes() == "".join(token + "\n" for token in VOCABULARY).encode("utf-8")
    config = json.loads((out / "bert_config.json").read_text(encoding="utf-8"))
    assert set(config) == GOOGLE_KEYS
    assert config["hidden_act"] == "gelu_erf"
    assert {key: HF_CONFIG[key] for key in GOOGLE_KEYS - {"hidden_act"}} == {
        key: config[key] for key in GOOGLE_KEYS - {"hidden_act"}
    }
    assert done.tensors == len(BODY)
    assert done.parameters == sum(int(np.prod(shape)) for shape, _ in BODY.values())
    assert (done.skipped, done.pooler_is_random) == ([], False)


def test_the_table_reads_in_both_directions():
    table = huggingface.tensor_table(huggingface.google_config(HF_CONFIG, "config.json"))
    assert {row.hf: row.google for row in table} == {name: google for name, (_, google) in BODY.items()}
    assert {row.google: row.hf for row in table} == {google: name for name, (_, google) in BODY.items()}
    for row in table:
        assert (row.shape[::-1] if row.transposed else row.shape) == BODY[row.hf][0]
        assert row.transposed == row.google.endswith("/kernel")


def test_prefix_old_layer_norm_names_heads_and_buffers(tmp_path, out):
    renamed = {}
    for name, value in weights().items():
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        renamed["bert." + name] = value
    renamed["bert.embeddings.position_ids"] = np.arange(7)[None]
    extras = ["classifier.weight", "cls.predictions.bias", "cls.predictions.transform.LayerNorm.gamma"]
    renamed.update({name: np.zeros(2, np.float32) for name in extras})
    done = huggingface.convert(str(write_folder(tmp_path / "hf", renamed)), str(out))
    assert_is_conversion_of(out, weights())
    assert sorted(done.skipped) == ["bert.embeddings.position_ids", *extras]


def test_shards_are_read_as_one(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    names = sorted(weights())
    shards = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for shard, members in shards.items():
        save_file({name: weights()[name] for name in members}, str(folder / shard))
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    (folder / "model.safetensors").unlink()
    done = huggingface.convert(str(folder), str(out))
    assert_is_conversion_of(out, weights())
    assert [os.path.basename(path) for path in done.sources] == sorted(shards)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(folder, tmp_path / "other")


def test_half_precision_is_stored_as_float32(tmp_path, out):
    half = {name: value.astype(np.float16) for name, value in weights().items()}
    huggingface.convert(str(write_folder(tmp_path / "hf", half)), str(out))
    assert_is_conversion_of(out, {name: value.astype(np.float32) for name, value in half.items()})


def test_bfloat16_is_stored_as_float32(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    header, body, expected = {}, b"", {}
    for name, value in weights().items():
        halves = (value.view(np.uint32) >> 16).astype("<u2")  # cut off, not rounded
        place = [len(body), len(body) + halves.nbytes]
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": place}
        body += halves.tobytes()
        expected[name] = (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
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


def test_the_vocabulary_comes_from_tokenizer_json_in_the_order_of_ids(tmp_path, out):
    folder = write_folder(tmp_path / "hf", vocabulary=None)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    huggingface.convert(str(folder), str(out))
    assert (out / "vocab.txt").read_bytes().decode("utf-8").split("\n") == [*VOCABULARY, ""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tokenizer_json(type="BPE"), "BPE"),
        (tokenizer_json(vocab={"a": 0, "b": 2}), "gaps"),
        (tokenizer_json(vocab={token + "\n": i for i, token in enumerate(VOCABULARY[:7])}), "line break"),
        ({"model": None}, "no WordPiece vocabulary"),
        ([], "expected an object"),
    ],
)
def test_a_tokenizer_json_that_is_no_wordpiece_is_refused(tmp_path, out, content, said):
    folder = write_folder(tmp_path / "hf", vocabulary=None)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert said in refusal(folder, out)


def test_a_missing_pooler_is_drawn_at_random_and_always_the_same(tmp_path, out):
    config = dict(HF_CONFIG, hidden_size=64)
    table = huggingface.tensor_table(huggingface.google_config(config, "config.json"))
    shapes = {row.hf: row.shape[::-1] if row.transposed else row.shape for row in table[:-2]}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    folder = write_folder(tmp_path / "hf", tensors, config)
    done = huggingface.convert(str(folder), str(out))
    huggingface.convert(str(folder), str(tmp_path / "again"))
    stored, again = read_back(out), read_back(tmp_path / "again")
    assert done.pooler_is_random
    assert done.tensors == len(BODY)
    kernel = stored["bert/pooler/dense/kernel"]
    np.testing.assert_array_equal(kernel, again["bert/pooler/dense/kernel"])
    np.testing.assert_array_equal(stored["bert/pooler/dense/bias"], np.zeros(64, np.float32))
    # A normal cut at two standard deviations has 0.87962566 of the standard deviation of the whole (SciPy).
    assert np.abs(kernel).max() <= 0.1 + 1e-7
    np.testing.assert_allclose(kernel.std() / 0.05, 0.87962566, atol=0.03)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu_erf"),
        ("gelu_new", "gelu"),
        ("gelu_pytorch_tanh", "gelu"),
        ("relu", "relu"),
        ("tanh", "tanh"),
    ],
)
def test_activations_keep_their_meaning(theirs, ours):
    assert huggingface.google_config(dict(HF_CONFIG, hidden_act=theirs), "config.json")["hidden_act"] == ours


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "mish"}, "Available: gelu, gelu_new, gelu_pytorch_tanh, relu, swish, silu, tanh"),
        ({"model_type": "roberta"}, 'model_type = "roberta"; expected "bert"'),
        ({"model_type": None}, "model_type = null"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps = 1e-05; expected 1e-12"),
        ({"position_embedding_type": "relative_key"}, '= "relative_key"; expected "absolute"'),
        ({"is_decoder": True}, "is_decoder = true; expected false"),
        ({"hidden_size": "4"}, 'hidden_size = "4"; expected a whole number'),
        ({"num_hidden_layers": None}, "num_hidden_layers = null"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob = 1.5"),
        ({"num_attention_heads": 3}, "a multiple of num_attention_heads, 3"),
        ({"vocab_size": 9}, "has 8 entries, but vocab_size in its config.json is 9"),
    ],
)
def test_configurations_that_the_network_cannot_express_are_refused(tmp_path, out, change, said):
    assert said in refusal(write_folder(tmp_path / "hf", config=dict(HF_CONFIG, **change)), out)


@pytest.mark.parametrize(
    ("remove", "said"),
    [
        (["config.json"], "There is no config.json"),
        (["vocab.txt"], "no vocab.txt or tokenizer.json"),
        (["model.safetensors"], "no model.safetensors"),
    ],
)
def test_missing_files_are_named(tmp_path, out, remove, said):
    folder = write_folder(tmp_path / "hf")
    for name in remove:
        (folder / name).unlink()
    assert said in refusal(folder, out)


def test_a_folder_that_is_not_there_is_named(tmp_path, out):
    assert "no folder " + str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere", out)


def test_pickles_are_not_loaded(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(folder, out)
    assert "pickles from outside are not loaded" in said
    assert "safe_serialization=True" in said


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_truncated_weights_are_refused(tmp_path, out, keep):
    folder = write_folder(tmp_path / "hf")
    content = (folder / "model.safetensors").read_bytes()[:keep]
    (folder / "model.safetensors").write_bytes(content)
    assert f"({len(content)} bytes) is damaged or incomplete" in refusal(folder, out)


def test_missing_tensors_are_counted_and_named(tmp_path, out):
    tensors = weights()
    del tensors["encoder.layer.1.output.dense.bias"], tensors["pooler.dense.bias"]
    said = refusal(write_folder(tmp_path / "hf", tensors), out)
    assert "2 of the 39 tensors" in said
    assert "missing from the weights: encoder.layer.1.output.dense.bias, pooler.dense.bias" in said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "encoder.layer.0.output.dense.weight",
            np.zeros((6, 4), np.float32),
            "found F32 [6, 4], expected F32/F16/BF16 [4, 6]",
        ),
        ("pooler.dense.bias", np.zeros(4, np.int8), "found I8 [4]"),
        ("encoder.layer.1.output.dense.bias", np.array([0, np.nan, 0, np.inf], np.float32), "2 of 4 values"),
        ("encoder.layer.2.output.dense.bias", np.zeros(4, np.float32), "does not have: "),
        ("bert.pooler.dense.bias", np.zeros(4, np.float32), "one tensor twice"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, out, name, value, said):
    message = refusal(write_folder(tmp_path / "hf", dict(weights(), **{name: value})), out)
    assert said in message
    assert name in message


def test_results_are_replaced_only_when_asked(tmp_path, out):
    folder = write_folder(tmp_path / "hf")
    huggingface.convert(str(folder), str(out))
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    (out / "bert_model.ckpt.meta").write_text("of the old checkpoint", encoding="utf-8")
    assert "already holds bert_config.json" in refusal(folder, out)
    doubled = {name: 2 * value for name, value in weights().items()}
    save_file(doubled, str(folder / "model.safetensors"))
    huggingface.convert(str(folder), str(out), overwrite=True)
    assert sorted(os.listdir(str(out))) == sorted([*RESULTS, "notes.txt"])
    assert_is_conversion_of(out, doubled)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_conversion_that_stops_half_way_changes_no_result(tmp_path, out, monkeypatch, stop):
    folder = write_folder(tmp_path / "hf")
    huggingface.convert(str(folder), str(out))
    before = {name: (out / name).read_bytes() for name in os.listdir(str(out))}

    def stops(tensors, prefix):
        with open(prefix + ".data-00000-of-00001", "wb") as file:
            file.write(b"half")
        raise stop

    monkeypatch.setattr(huggingface.checkpoints, "write", stops)
    for target in (out, tmp_path / "fresh"):
        with pytest.raises((KeyboardInterrupt, errors.UserError)):
            huggingface.convert(str(folder), str(target), overwrite=True)
    assert {name: (out / name).read_bytes() for name in os.listdir(str(out))} == before
    assert os.listdir(str(tmp_path / "fresh")) == []


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(errors.UserError, match="Cannot write to"):
        huggingface.convert(str(write_folder(tmp_path / "hf")), str(tmp_path / "file"))


def run_script(monkeypatch, *flags):
    script = importlib.import_module("scripts.convert_hf_checkpoint")
    monkeypatch.setattr(sys, "argv", ["convert_hf_checkpoint.py", *map(str, flags)])
    script.main()


def test_the_script_reports_what_it_did_and_what_to_run_next(tmp_path, out, monkeypatch, capsys):
    tensors = {name: value for name, value in weights().items() if not name.startswith("pooler")}
    tensors["cls.predictions.bias"] = np.zeros(8, np.float32)
    folder = write_folder(tmp_path / "hf", tensors)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    run_script(monkeypatch, "--hf_dir", folder, "--output_dir", out)
    report = capsys.readouterr().out
    parameters = sum(int(np.prod(shape)) for shape, _ in BODY.values())
    assert f"39 tensors, {parameters:,} parameters" in report
    assert "Skipped: cls.predictions.bias\n" in report
    assert "no pooler" in report
    assert "keeps the case: use --do_lower_case=false" in report
    assert f"--init_checkpoint={out}/bert_model.ckpt" in report
    assert "--do_lower_case=false --max_seq_length=7" in report


@pytest.mark.parametrize(
    ("settings", "said", "warned"),
    [
        ({"do_lower_case": True}, "lower-cases: use --do_lower_case=true", False),
        ({"do_lower_case": True, "strip_accents": False}, "use --do_lower_case=true", True),
        ({}, "does not say whether it lower-cases", False),
    ],
)
def test_the_script_says_which_case_to_use(tmp_path, out, monkeypatch, capsys, settings, said, warned):
    folder = write_folder(tmp_path / "hf")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    run_script(monkeypatch, "--hf_dir", folder, "--output_dir", out)
    report = capsys.readouterr().out
    assert said in report
    assert ("strip_accents = false" in report) == warned


def test_the_script_ends_in_one_sentence_without_a_stack_trace(tmp_path, out, monkeypatch):
    with pytest.raises(SystemExit, match=r"^convert_hf_checkpoint.py: error: There is no folder"):
        run_script(monkeypatch, "--hf_dir", tmp_path / "nowhere", "--output_dir", out)
    with pytest.raises(SystemExit, match="is no local folder"):
        run_script(monkeypatch, "--hf_dir", tmp_path, "--output_dir", "gs://bucket/base")
