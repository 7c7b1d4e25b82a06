"""A sentence encoder of TensorFlow.js becomes a TF-Hub module that can be fine-tuned."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import json_format

from adapter_bert.baselines import sentence_encoder, training
from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.trained_module import TrainedModule
from tests.baselines.helpers import tiny_settings, write_module
from tests.helpers import assert_mentions, message_of

PIECES = ["�", "<s>", "</s>", "<a>", "<b>", "<c>", "▁cat", "▁the", "▁", "s", "▁big", ":", "▁cat"]
TABLE = np.random.RandomState(1).normal(size=[len(PIECES), 4]).astype(np.float32)


def model_files() -> dict:
    """The files of a model that returns the mean vector of a text's pieces."""
    with tf.Graph().as_default() as graph:
        indices, values = (
            tf.placeholder(tf.int64, [None, 2], "indices"),
            tf.placeholder(tf.int64, [None], "values"),
        )
        table = tf.constant(TABLE, name="table")
        axis = tf.constant(0, tf.int32, name="axis")
        vectors = tf.gather(table, values, axis=axis)
        tf.segment_mean(vectors, tf.gather(indices, tf.constant(0, tf.int64, name="column"), axis=1), name="mean")
    topology = json_format.MessageToDict(graph.as_graph_def(), use_integers_for_enums=True)
    manifest, data = [], b""
    for node in topology["node"]:
        if node["op"] == "Const":
            value = {"table": TABLE, "axis": np.int32(0), "column": np.int32(0)}.get(node["name"])
            value = np.asarray(1 if value is None else value)
            kind = "float32" if value.dtype == np.float32 else "int32"
            data += value.astype({"float32": "<f4", "int32": "<i4"}[kind]).tobytes()
            manifest.append({"name": node["name"], "shape": list(value.shape), "dtype": kind})
    half = len(data) // 2
    vocabulary = [[piece, None if piece == ":" else -float(number)] for number, piece in enumerate(PIECES)]
    weights = [{"weights": manifest, "paths": ["shard1", "shard2"]}]
    description = {"modelTopology": topology, "weightsManifest": weights}
    return {
        "model.json": json.dumps(description).encode(),
        "vocab.json": json.dumps(vocabulary).encode(),
        "shard1": data[:half],
        "shard2": data[half:],
    }


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> TextModule:
    folder = str(tmp_path_factory.mktemp("encoder") / "module")
    sentence_encoder.convert(model_files().__getitem__, folder)
    return TextModule(folder, "encoder")


def test_the_module_reads_the_pieces_of_texts(module):
    assert module.reads_pieces and not module.is_word_module and module.width == 4
    pieces = module.pieces(["the cats", "big cat"])
    assert list(pieces.values) == [7, 6, 9, 10, 6]
    found = module.text_vectors(["the cats", "big cat"])
    np.testing.assert_allclose(found, [TABLE[[7, 6, 9]].mean(0), TABLE[[10, 6]].mean(0)], rtol=1e-5)


def test_the_whole_module_is_fine_tuned(tmp_path, module):
    settings = tiny_settings(str(tmp_path / "run"), module.folder, fine_tune_module=True, hidden_layers=0)
    results = training.run(settings)
    assert results.parameters["trained"] == results.parameters["total"] > TABLE.size
    again = training.run(tiny_settings(str(tmp_path / "run"), module.folder, fine_tune_module=True, hidden_layers=0))
    assert again.fingerprints["pack"] == results.fingerprints["pack"]
    frozen = training.run(tiny_settings(str(tmp_path / "frozen"), module.folder, hidden_layers=0))
    assert frozen.parameters["total"] == results.parameters["total"] - TABLE.size


def test_a_graph_with_tables_can_only_be_fine_tuned_by_words(tmp_path):
    module = TextModule(write_module(str(tmp_path / "module")), "words")
    assert_mentions(message_of(TrainedModule, module), "words", "--fine_tune_module", "--use_convolution=true")


def test_files_that_are_too_short_are_noticed(tmp_path):
    contents = {**model_files(), "shard2": b""}
    with pytest.raises(ValueError, match="too short"):
        sentence_encoder.convert(contents.__getitem__, str(tmp_path / "module"))
