"""ONNX and TensorFlow Lite models give the predictions of `Predictor`."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import tensorflow.compat.v2 as tf

from adapter_bert.pipeline.features import Encoder
from adapter_bert.serving import export, export_source
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases
from adapter_bert.weights.bank import Bank
from tests.helpers import make_pack, message_of

ADAPTER = {"size": 4, "activation": "gelu_erf", "init_scale": 0.01, "layers": None, "placement": "both"}
TASKS = {
    "classes": {"seed": 1, "labels": ["a", "b", "ü"], "adapter": ADAPTER},
    "number": {"seed": 2, "head": "regression", "mode": "full"},
}
TEXTS = ["the cat is big .", ("he sees the dogs", "they run !"), "dogs"]


@pytest.fixture(scope="module")
def bank(tiny_bert, tmp_path_factory):
    made = Bank.create(str(tmp_path_factory.mktemp("formats") / "bank"), bases.Base.find(tiny_bert))
    for name, changes in TASKS.items():
        made.add(make_pack(made.base, **changes), name)
    return made.folder


def expected(bank, task):
    """Return the predictions of `TEXTS` as an array."""
    with Predictor.from_bank(bank, task, threads=1) as predictor:
        found = predictor.predict(TEXTS)
    return np.array([list(each.probabilities.values()) or each.number for each in found])


def features(source, length=None):
    """Return the ids, mask and segments of `TEXTS`, padded to a length or to the longest."""
    encoder = Encoder((), source.tasks[0].max_seq_length, source.tokenizer)
    pairs = [(text, None) if isinstance(text, str) else text for text in TEXTS]
    rows = [encoder.encode(InputExample("", *pair)) for pair in pairs]
    size = length or max(len(row["input_ids"]) for row in rows)
    arrays = np.zeros([3, len(rows), size], np.int32)
    for index, row in enumerate(rows):
        count = len(row["input_ids"])
        arrays[:, index, :count] = row["input_ids"], [1] * count, row["segment_ids"]
    return dict(zip(("input_ids", "input_mask", "segment_ids"), arrays))


def write(source, tmp_path, **options):
    folder = export.export(source, str(tmp_path), export.ExportOptions(**options))
    with open(f"{folder}/export.json") as file:
        described = json.load(file)
    assert described["tasks"][0]["labels"] == list(source.tasks[0].config.labels)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_onnx_runtime_reproduces_the_predictions(bank, task, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    source = export_source.find(bank=bank, task=task)
    session = runtime.InferenceSession(write(source, tmp_path, kind="onnx") + "/model.onnx")
    (output,) = session.get_outputs()
    assert output.name == ("probabilities" if task == "classes" else "values")
    assert [each.shape for each in session.get_inputs()] == [["batch", "length"]] * 3
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == list(source.tasks[0].config.labels)
    for length in (None, 16):  # axes are dynamic
        (found,) = session.run(None, features(source, length))
        np.testing.assert_allclose(found, expected(bank, task), atol=1e-5)


@pytest.mark.long
def test_onnx_in_8_bits_is_close(bank, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    source = export_source.find(bank=bank, task="classes")
    path = write(source, tmp_path, kind="onnx", int8=True) + "/model.onnx"
    (found,) = runtime.InferenceSession(path).run(None, features(source))
    np.testing.assert_allclose(found, expected(bank, "classes"), atol=0.1)
    assert not np.allclose(found, expected(bank, "classes"), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("task", "int8"), [("classes", False), ("number", False), ("classes", True)])
def test_tensorflow_lite_reproduces_the_predictions(bank, task, int8, tmp_path):
    source = export_source.find(bank=bank, task=task)
    path = write(source, tmp_path, kind="tflite", int8=int8) + "/model.tflite"
    run = tf.lite.Interpreter(path).get_signature_runner()
    given = features(source, length=16)
    rows = [run(**{name: values[row : row + 1] for name, values in given.items()}) for row in range(len(TEXTS))]
    found = np.concatenate([next(iter(row.values())) for row in rows])
    np.testing.assert_allclose(found, expected(bank, task), atol=0.1 if int8 else 1e-5)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "package onnx" in message_of(export.ExportOptions(kind="onnx").check)
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    message = message_of(export.ExportOptions().check)
    assert "tensorflow-text" in message and "--inputs=ids" in message
