"""Old notebooks run after `import adapter_bert.notebook`: the package `bert`, `tf.estimator`, a user's own modules."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

import modeling
import tokenization
from adapter_bert import notebook
from tests.helpers import ROOT, assert_mentions, recorded_log, write_file

pytestmark = pytest.mark.smoke

# In the style of the notebooks for bert-tensorflow; the first line is ours.
CELLS = """
import adapter_bert.notebook
import json, os, sys
import tensorflow.compat.v1 as tf
import bert
from bert import run_classifier
from bert import optimization
from bert import modeling
from bert.tokenization import FullTokenizer

BERT, DATA, OUTPUT_DIR = sys.argv[1:]
label_list = ["0", "1"]
examples = bert.run_classifier.ColaProcessor().get_train_examples(DATA)
tokenizer = FullTokenizer(vocab_file=os.path.join(BERT, "vocab.txt"), do_lower_case=True)
features = bert.run_classifier.convert_examples_to_features(examples, label_list, 16, tokenizer)
bert_config = modeling.BertConfig.from_json_file(os.path.join(BERT, "bert_config.json"))

def model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    model = modeling.BertModel(
        config=bert_config, is_training=is_training, input_ids=features["input_ids"],
        input_mask=features["input_mask"], token_type_ids=features["segment_ids"])
    weights = tf.get_variable("review/weights", [16, 2], initializer=tf.truncated_normal_initializer(stddev=0.02))
    logits = tf.matmul(model.get_pooled_output(), weights)
    predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"labels": predicted})
    loss = tf.losses.sparse_softmax_cross_entropy(features["label_ids"], logits)
    if is_training:
        train_op = bert.optimization.create_optimizer(loss, 1e-2, 20, 2, use_tpu=False)
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    metrics = {"eval_accuracy": tf.metrics.accuracy(features["label_ids"], predicted)}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)

run_config = tf.estimator.RunConfig(model_dir=OUTPUT_DIR, save_summary_steps=100, save_checkpoints_steps=500)
estimator = tf.estimator.Estimator(model_fn=model_fn, config=run_config, params={"batch_size": 8})
builder = bert.run_classifier.input_fn_builder
train_input_fn = builder(features=features, seq_length=16, is_training=True, drop_remainder=False)
eval_input_fn = builder(features=features, seq_length=16, is_training=False, drop_remainder=False)
estimator.train(input_fn=train_input_fn, max_steps=20)
result = estimator.evaluate(input_fn=eval_input_fn, steps=None)
rows = list(estimator.predict(eval_input_fn))
right = [label_list[row["labels"]] == example.label for row, example in zip(rows, examples)]

tpu = tf.estimator.tpu
assert issubclass(tpu.TPUEstimator, tf.estimator.Estimator) and tpu.RunConfig().tpu_config
print(json.dumps({
    "step": int(result["global_step"]), "accuracy": float(result["eval_accuracy"]), "counted": sum(right) / len(rows),
    "moved": bool(abs(estimator.get_variable_value("review/weights/adam_m")).max() > 0),
    "same": [sys.modules["bert." + name] is sys.modules[name] for name in ("modeling", "optimization", "tokenization")],
    "names": [modeling.__name__, modeling.__spec__.name], "squad": "run_squad" in sys.modules,
}))
"""


def run_script(script: str, folder: str, *arguments: str) -> str:
    """Run a script in a folder as a user does, with this project installed; return its output."""
    command = [sys.executable, "-c", script, *arguments]
    environment = dict(os.environ, PYTHONPATH=ROOT)
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    return process.stdout.decode()


def test_the_cells_of_an_old_notebook_train_evaluate_and_predict(tiny_bert, cola_dir, tmp_path):
    # Checkpoints are often in a folder of this name.
    write_file(tmp_path, "bert/bert_model.ckpt.index", "")
    output = run_script(CELLS, str(tmp_path), tiny_bert, cola_dir, str(tmp_path / "out"))
    found = json.loads(output.strip().split("\n")[-1])
    assert found["step"] == 20 and found["moved"]
    assert found["accuracy"] == pytest.approx(found["counted"])
    assert found["same"] == [True] * 3 and found["names"] == ["modeling"] * 2
    assert not found["squad"], "imported although nobody asked for it"


def test_modules_of_the_user_with_the_names_of_ours_break_no_import(tmp_path):
    """A script's folder comes first on the path, so `training.py` there would win over a top-level module of ours."""
    names = {"errors", "files", "metrics", "training"}
    for folder, _, files in os.walk(os.path.join(ROOT, "adapter_bert")):
        names.update([os.path.basename(folder)], (name[: -len(".py")] for name in files if name.endswith(".py")))
    names -= {"adapter_bert", "__init__", "__pycache__"}
    assert {"errors", "files", "trainer", "weights"} <= names
    for name in names:
        write_file(tmp_path, f"{name}.py", "raise RuntimeError('a module of the user')")
    assert run_script("import run_classifier, run_squad; print('imported')", str(tmp_path)).endswith("imported\n")


@pytest.fixture
def without_alias(monkeypatch):
    """The interpreter as before the import, restored afterwards."""
    finders = [finder for finder in sys.meta_path if type(finder).__name__ != "_AliasFinder"]
    monkeypatch.setattr(sys, "meta_path", finders)
    for name in [name for name in sys.modules if name.split(".")[0] == "bert"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "bert"]:
        del sys.modules[name]


@pytest.fixture
def users_bert(tmp_path, monkeypatch) -> str:
    path = write_file(tmp_path, "bert/__init__.py", "mine = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def test_the_alias_has_the_modules_of_the_old_package_and_no_others(without_alias):
    importlib.reload(notebook)
    import bert.tokenization
    from bert import modeling as aliased

    assert aliased is modeling and bert.tokenization is tokenization
    assert importlib.import_module("bert.modeling") is modeling
    with pytest.raises(ImportError, match="run_pretraining"):
        importlib.import_module("bert.run_pretraining")


def test_an_installed_package_is_hidden_with_a_warning_that_names_it(without_alias, users_bert):
    with recorded_log() as lines:
        importlib.reload(notebook)
    assert_mentions("\n".join(lines), users_bert)
    assert not hasattr(importlib.import_module("bert"), "mine")


def test_an_imported_package_stays_with_a_warning_that_names_it(without_alias, users_bert):
    package = importlib.import_module("bert")
    with recorded_log() as lines:
        importlib.reload(notebook)
    assert_mentions("\n".join(lines), users_bert, "adapter_bert.notebook")
    assert importlib.import_module("bert") is package and package.mine
