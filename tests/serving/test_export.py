"""Exported models give the predictions of `Predictor`, also in a process without this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v2 as tf

from adapter_bert.serving import export, export_source
from adapter_bert.serving.export_saved_model import ModelFunctions
from adapter_bert.serving.predictor import Predictor, load
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from scripts import export as export_script
from tests.helpers import assert_mentions, make_pack, message_of

ADAPTER = {"size": 4, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"}
# Name -> changes of the pack's configuration: tasks that can share a model.
TASKS = {
    "one": {"seed": 1},
    "three_classes": {"seed": 2, "labels": ["a", "b", "ü"], "adapter": {**ADAPTER, "size": 12}},
    "number": {"seed": 3, "head": "regression"},
    "upper": {"seed": 4, "adapter": {**ADAPTER, "layers": [1], "placement": "feedforward"}},
    "norms": {"seed": 5, "mode": "layer_norm"},
    "head": {"seed": 6, "mode": "head", "max_seq_length": 8},
}
# Tasks that are exported alone.
ALONE = {
    "full": {"seed": 7, "mode": "full"},
    "top": {"seed": 8, "mode": "top_layers"},
    "batch_norm": {"seed": 9, "adapter": {**ADAPTER, "norm": "batch"}},
    "relu": {"seed": 10, "adapter": {**ADAPTER, "activation": "relu"}},
    "parallel": {"seed": 11, "adapter": {**ADAPTER, "connection": "parallel", "depth": 2, "norm": "layer"}},
}
SPAN = {"seed": 12, "head": "span"}
TEXTS = [
    "the cat is big .",
    "He SEES the dogs, and they run!",
    ("the cat is big .", "she sees it ."),
    "",
    ("it was not small , and " * 9, "they are cats and dogs . " * 3),
    "caf\u00e9 \u732b\u732b the\u00adcat \u2028 RUNS\x00",
]

# Loads models in a process of its own, and prints the outputs of requests as JSON.
PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
import tensorflow as tf
if sys.argv[2] == "text":
    import tensorflow_text
found = []
for folder, signature, inputs in json.load(sys.stdin):
    run = tf.saved_model.load(folder).signatures[signature]
    types = run.structured_input_signature[1]
    outputs = run(**{name: tf.constant(values, types[name].dtype) for name, values in inputs.items()})
    found.append({name: value.numpy().tolist() for name, value in outputs.items()})
ours = [name for name in sys.modules if name.split(".")[0] in ("modeling", "tokenization", "adapter_bert")]
try:
    import adapter_bert
except ImportError:
    print(json.dumps([ours, found], default=bytes.decode))
"""


@pytest.fixture(scope="module")
def bank(tiny_bert, tmp_path_factory):
    """Return the folder of a bank with all tasks."""
    made = Bank.create(str(tmp_path_factory.mktemp("export") / "bank"), bases.Base.find(tiny_bert))
    for name, changes in {**TASKS, **ALONE, "span": SPAN}.items():
        pack = make_pack(made.base, **changes)
        variances = {key: abs(value) for key, value in pack.tensors.items() if key.endswith("moving_variance")}
        made.add(packs.Pack(pack.config, {**pack.tensors, **variances}), name)
    return made.folder


@pytest.fixture(scope="module")
def expected(bank):
    """Return a function from a task and texts to predictions."""
    opened = {}

    def predict(task, texts):
        if task not in opened:
            opened[task] = Predictor.from_bank(bank, task, threads=1)
        return opened[task].predict(texts)

    yield predict
    for predictor in opened.values():
        predictor.close()


@pytest.fixture(scope="module")
def models(bank, tmp_path_factory):
    """Return the folders of the models of a bank and of a task, which read texts."""
    pytest.importorskip("tensorflow_text")
    output = str(tmp_path_factory.mktemp("models"))
    options = export.ExportOptions()
    together = export_source.find(bank=bank, tasks=list(TASKS))
    return {
        "bank": export.export(together, output, options),
        "one": export.export(export_source.find(bank=bank, task="one"), output, options),
    }


@pytest.fixture(scope="module")
def loaded(models):
    return {name: tf.saved_model.load(folder) for name, folder in models.items()}


def as_inputs(texts, tasks=None):
    """Return the inputs of the signature `pairs`."""
    pairs = [(text, "") if isinstance(text, str) else text for text in texts]
    inputs = {"texts": [pair[0] for pair in pairs], "second_texts": [pair[1] for pair in pairs]}
    return {**inputs, "tasks": tasks} if tasks else inputs


def assert_same(outputs, predictions):
    """Compare the outputs of a model, as lists of `str` and `float`, with predictions."""
    assert len(predictions) == len(next(iter(outputs.values())))
    for row, prediction in enumerate(predictions):
        if prediction.label is None:
            assert outputs["values"][row] == pytest.approx(prediction.number, abs=1e-5)
            continue
        assert outputs["labels"][row] == prediction.label
        found = {name: value for name, value in zip(outputs["classes"][row], outputs["probabilities"][row]) if name}
        assert list(found) == list(prediction.probabilities)
        np.testing.assert_allclose(list(found.values()), list(prediction.probabilities.values()), atol=1e-5)
        assert sum(outputs["probabilities"][row]) == pytest.approx(1, abs=1e-5)


def outputs_of(function, inputs):
    kinds = {str: tf.string, list: tf.int32}
    found = function(**{name: tf.constant(values, kinds[type(values[0])]) for name, values in inputs.items()})
    return json.loads(json.dumps({name: value.numpy().tolist() for name, value in found.items()}, default=bytes.decode))


def test_a_model_of_a_bank_mixes_tasks(loaded, expected):
    mixed = [(task, text) for task in TASKS for text in TEXTS]
    found = outputs_of(
        loaded["bank"].signatures["pairs"],
        as_inputs([text for _, text in mixed], [task for task, _ in mixed]),
    )
    assert_same(found, [expected(task, [text])[0] for task, text in mixed])


def test_an_unknown_task_is_an_error_with_the_known_ones(loaded):
    run = loaded["bank"].signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(texts=tf.constant(["the cat", "a dog"]), tasks=tf.constant(["one", "other"]))
    assert_mentions(str(caught.value), "Unknown task", "other", *TASKS)


def test_a_loaded_model_can_be_trained_further(loaded, bank):
    model = loaded["one"]
    pack = Bank.open(bank).read("one")
    assert {variable.name[: -len(":0")] for variable in model.trainable_variables} == set(pack.tensors)
    assert len(model.variables) > len(model.trainable_variables) and not model.regularization_losses
    with tf.GradientTape() as tape:
        found = model(tf.constant(["the cat is big ."]))
        loss = tf.reduce_sum(found["logits"] ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(float(tf.reduce_max(tf.abs(gradient))) > 0 for gradient in gradients[:4])
    assert None not in gradients


@pytest.mark.long
def test_a_process_with_tensorflow_only_reproduces_the_predictions(models, bank, expected, tmp_path):
    ids = export.export(export_source.find(bank=bank, task="number"), str(tmp_path), export.ExportOptions(inputs="ids"))
    features = {"input_ids": [[2, 5, 7, 3]], "input_mask": [[1, 1, 1, 1]], "segment_ids": [[0, 0, 0, 0]]}
    requests = [
        [models["one"], "pairs", as_inputs(TEXTS)],
        [models["one"], "serving_default", {"texts": ["the cat is big ."]}],
        [models["bank"], "pairs", as_inputs(TEXTS, list(TASKS))],
        [ids, "serving_default", features],
    ]
    # -I ignores PYTHONPATH and the working directory, -S the links of packages that are installed in place.
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, sysconfig.get_paths()["purelib"], "text"]
    done = subprocess.run(command, input=json.dumps(requests), cwd=str(tmp_path), stdout=subprocess.PIPE, text=True)
    imported, (one, default, mixed, number) = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    assert_same(one, expected("one", TEXTS))
    assert_same(default, expected("one", ["the cat is big ."]))
    assert_same(mixed, [expected(task, [text])[0] for task, text in zip(TASKS, TEXTS)])
    assert_same(number, expected("number", ["the cat"]))


@pytest.mark.parametrize("task", [*ALONE, *TASKS])
def test_a_single_task_may_have_any_mode(bank, expected, task):
    source = export_source.find(bank=bank, task=task)
    encoded = [2, 5, 7, 3, 0]
    inputs = {"input_ids": [encoded], "input_mask": [[1, 1, 1, 1, 0]], "segment_ids": [[0] * 5]}
    found = outputs_of(ModelFunctions(source, source.network(), from_texts=False).signature(), inputs)
    assert source.tokenizer.convert_ids_to_tokens(encoded[1:3]) == ["the", "cat"]
    assert_same(found, expected(task, ["the cat"]))


def test_warm_up_requests_are_those_of_tf_serving(models, loaded):
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    for name, folder in models.items():
        signatures = loaded[name].signatures
        path = os.path.join(folder, "assets.extra", "tf_serving_warmup_requests")
        found = [logs.PredictionLog.FromString(each.numpy()) for each in tf.data.TFRecordDataset(path)]
        assert {log.predict_log.request.model_spec.signature_name for log in found} == {"serving_default", "pairs"}
        for log in found:
            request = log.predict_log.request
            assert request.model_spec.name == name
            inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
            outputs = signatures[request.model_spec.signature_name](**inputs)
            assert len(outputs["labels"]) == len(inputs["texts"])


class TestScript:
    def run(self, capsys, *words):
        export_script.main(list(words))
        return capsys.readouterr().out.strip()

    def test_a_new_version_is_added_beside_the_others(self, bank, tmp_path, capsys):
        words = ["--bank=" + bank, "--task=head", f"--output={tmp_path}", "--inputs=ids", "--name=short"]
        assert self.run(capsys, *words) == str(tmp_path / "short" / "1")
        assert self.run(capsys, *words, "--version=7") == str(tmp_path / "short" / "7")
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as caught:
            export_script.main([*words, "--version=7"])
        assert_mentions(str(caught.value), tmp_path / "short" / "7", "--version")
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        extra = tmp_path / "short" / "1" / "assets.extra"
        described = json.loads((extra / "export.json").read_text())
        assert [task["name"] for task in described["tasks"]] == ["head"] and described["inputs"] == "ids"
        pack = packs.read(os.path.join(bank, "packs", "head.safetensors"))
        assert described["tasks"][0]["pack"] == pack.fingerprint
        assert (extra / "vocab.txt").read_bytes() == Path(bank, "base", "vocab.txt").read_bytes()

    @pytest.mark.parametrize(
        ("words", "facts"),
        [
            ([], ["full", "span", "batch_norm", "relu", "--tasks", "--task"]),
            (["--task=span"], ["span", "answers questions"]),
            (["--tasks=one,nothing"], ["nothing", "three_classes"]),
            (["--tasks=one,one"], ["one", "more than once"]),
            (["--task=one", "--tasks=head"], ["--tasks", "--task"]),
            (["--task=one", "--bert_dir=elsewhere"], ["bert_dir"]),
            (["--tasks=one", "--bert_dir=elsewhere"], ["--bert_dir"]),
            (["--task=one", "--format=pickle"], ["pickle", "savedmodel", "onnx", "tflite"]),
            (["--task=one", "--inputs=pixels"], ["pixels", "ids"]),
            (["--task=one", "--int8"], ["--int8", "onnx"]),
            (["--task=one", "--inputs=ids", "--pairs"], ["--pairs"]),
            (["--task=one", "--version=0"], ["--version", "0"]),
            (["--task=one", "--name=a/b"], ["a/b", "--name"]),
            (["--tasks=one,head", "--format=onnx"], ["onnx", "--task"]),
        ],
    )
    def test_wrong_flags_and_tasks_are_reported(self, bank, tmp_path, words, facts):
        if "--inputs" not in " ".join(words):
            pytest.importorskip("tensorflow_text")
        with pytest.raises(SystemExit) as caught:
            export_script.main(["--bank=" + bank, f"--output={tmp_path}/models", *words])
        message = str(caught.value)
        assert "error: " in message and "\n" not in message
        assert_mentions(message, *facts)
        assert not (tmp_path / "models").exists() or not any((tmp_path / "models").rglob("*.pb"))

    def test_a_run_is_exported_with_its_base(self, trained, tiny_bert, tmp_path, capsys, predictor):
        folder = self.run(capsys, "--run=" + trained, "--inputs=ids", f"--output={tmp_path}")
        assert folder == str(tmp_path / "CoLA" / "1")
        inputs = {"input_ids": [[2, 5, 7, 3]], "input_mask": [[1] * 4], "segment_ids": [[0] * 4]}
        found = outputs_of(tf.saved_model.load(folder).signatures["serving_default"], inputs)
        assert_same(found, predictor.predict(["the cat"]))


def test_load_and_export_take_the_same_arguments(bank):
    assert message_of(load, bank=bank, task="missing") == message_of(export_source.find, bank=bank, task="missing")
