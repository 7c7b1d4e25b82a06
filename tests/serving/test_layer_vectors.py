"""Vectors of chosen layers, with the flags and the output of the original `extract_features.py`."""

from __future__ import annotations

import json
import os
from typing import Any, List, Optional

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
import tokenization
from adapter_bert.pipeline import features
from adapter_bert.serving import layer_vectors
from adapter_bert.settings.extract import ExtractSettings
from adapter_bert.tasks import InputExample
from adapter_bert.weights import packs
from adapter_bert.weights.bases import Base
from tests.helpers import assert_mentions, make_pack, message_of, run_command, write_file

pytestmark = pytest.mark.smoke
LINES = ["the cat is big", "  she sees it ||| they run ||| the dogs run .  ", "", "the cats " * 20]
PAIRS = [("the cat is big", None), ("she sees it ||| they run", "the dogs run ."), ("", None), ("the cats " * 20, None)]
LENGTH = 12


@pytest.fixture
def flags(tiny_bert, tmp_path) -> dict:
    base = Base.find(tiny_bert)
    path = write_file(tmp_path, "input.txt", "\n".join(LINES) + "\n")
    outputs = {
        "layers": "-1,-2",
        "output_file": str(tmp_path / "new" / "output.jsonl"),
        "max_seq_length": LENGTH,
        "batch_size": 3,
    }
    return dict(base.flags(), input_file=path, **outputs)


@pytest.fixture
def pack(tiny_bert, tmp_path) -> str:
    path = str(tmp_path / "task.safetensors")
    packs.write(path, make_pack(Base.find(tiny_bert)))
    return path


def extract(flags: dict, **changes: Any) -> List[dict]:
    settings = ExtractSettings(**dict(flags, **changes))
    settings.validate()
    assert layer_vectors.extract(settings) == len(LINES)
    with open(settings.output_file) as file:
        return [json.loads(line) for line in file]


def reference(tiny_bert: str, layers: List[int], pack: Optional[packs.Pack] = None) -> List[np.ndarray]:
    """Return the vectors of each example, [layers, LENGTH, H], padded as in the original."""
    tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))
    examples = [InputExample("", *pair) for pair in PAIRS]
    rows = features.convert_examples_to_features(examples, [], LENGTH, tokenizer)
    checkpoint = tf.train.load_checkpoint(os.path.join(tiny_bert, "bert_model.ckpt"))
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant([getattr(row, n) for row in rows]) for n in ("input_ids", "input_mask", "segment_ids")]
        config = modeling.BertConfig.from_json_file(os.path.join(tiny_bert, "bert_config.json"))
        adapter = pack.config.adapter_config if pack else None
        model = modeling.BertModel(config, False, *inputs, scope="bert", adapter_fn=adapter)
        for variable in tf.global_variables():
            name = optimization.variable_name(variable)
            value = pack.tensors[name] if pack and name in pack.tensors else checkpoint.get_tensor(name)
            variable.load(value, session)
        found = session.run([model.get_all_encoder_layers()[layer] for layer in layers])
    return list(np.stack(found, axis=1))


@pytest.mark.parametrize("adapted", [False, True])
def test_vectors_are_those_of_the_model(flags, tiny_bert, pack, adapted):
    layers = [-1, 0]
    changes = {"adapter_pack": pack} if adapted else {}
    rows = extract(flags, layers="-1,0", **changes)
    expected = reference(tiny_bert, layers, packs.read(pack) if adapted else None)
    plain = reference(tiny_bert, layers)
    assert [row["linex_index"] for row in rows] == [0, 1, 2, 3]
    assert [feature["token"] for feature in rows[0]["features"]] == ["[CLS]", "the", "cat", "is", "big", "[SEP]"]
    assert [len(row["features"]) for row in rows] == [6, 12, 2, 12]
    for row, vectors, other in zip(rows, expected, plain):
        for place, token in enumerate(row["features"]):
            assert [layer["index"] for layer in token["layers"]] == layers
            found = np.array([layer["values"] for layer in token["layers"]])
            np.testing.assert_allclose(found, vectors[:, place], atol=1e-5)
            assert all(value == round(value, 6) for value in found.flat)
        assert np.allclose(vectors, other) != adapted


def test_an_existing_file_is_replaced_only_on_request(flags):
    extract(flags)
    assert_mentions(message_of(extract, flags), flags["output_file"], "--output_file", "--overwrite")
    assert extract(flags, overwrite=True, batch_size=1, use_one_hot_embeddings=True) != []
    assert os.listdir(os.path.dirname(flags["output_file"])) == ["output.jsonl"]


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"layers": "-1,-3"}, ["--layers", "2 layers", "-3"]),
        ({"layers": "top"}, ["--layers", "'top'"]),
        ({"use_tpu": True}, ["--use_tpu"]),
        ({"max_seq_length": 33}, ["33", "32"]),
    ],
)
def test_wrong_flags_are_reported_before_anything_is_written(flags, changes, facts):
    assert_mentions(message_of(extract, flags, **changes), *facts)
    assert not os.path.exists(os.path.dirname(flags["output_file"]))


def test_the_output_never_replaces_the_input(flags):
    assert_mentions(message_of(extract, flags, output_file=flags["input_file"], overwrite=True), "--input_file")


@pytest.mark.long
def test_the_script_has_the_flags_of_the_original(flags):
    original = {"do_lower_case": "True", "use_tpu": "False", "num_tpu_cores": 8, "use_one_hot_embeddings": "False"}
    process = run_command(dict(flags, layers="-1", **original), "scripts/extract_features.py")
    assert process.returncode == 0, process.stdout
    assert os.path.getsize(flags["output_file"]) > 1000
    process = run_command(dict(flags, layers="-1", input_file="missing.txt"), "scripts/extract_features.py")
    assert process.returncode == 1
    assert_mentions(process.stdout.splitlines()[-1], "extract_features.py: error:", "--input_file=missing.txt")
