"""Compare exported models with the predictor on a dev split: size, accuracy and changed labels.

    python benchmarks/export_formats.py --run=runs/sst2 --data_dir=glue_data/SST-2

The run must be a classification task with published files. Needs `pip install adapter-bert[onnx]`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np
import tabulate
import tensorflow.compat.v2 as tf

from adapter_bert.common import errors
from adapter_bert.pipeline.features import Encoder
from adapter_bert.serving import export, export_source, predictor
from adapter_bert.serving.export_convert import ONNX_FILE, TFLITE_FILE, load_library
from adapter_bert.serving.export_saved_model import IDS
from adapter_bert.tasks import task as tasks
from adapter_bert.tasks.task import InputExample

# From ids, mask and segments, int32 [1, S], to probabilities.
Run = Callable[[Dict[str, np.ndarray]], np.ndarray]


def onnx_model(folder: str) -> Tuple[Run, bool]:
    """Return the function of an ONNX model, and whether all inputs have the maximum length."""
    session = load_library("onnxruntime").InferenceSession(os.path.join(folder, ONNX_FILE))
    return lambda features: session.run(None, features)[0][0], False


def tflite_model(folder: str) -> Tuple[Run, bool]:
    """Return the function of a TFLite model, and whether all inputs have the maximum length."""
    run = tf.lite.Interpreter(os.path.join(folder, TFLITE_FILE)).get_signature_runner()
    return lambda features: run(**features)["probabilities"][0], True


MODELS = {export.ONNX: onnx_model, export.TFLITE: tflite_model}


def probabilities(folder: str, kind: str, encoder: Encoder, examples: Sequence[InputExample]) -> np.ndarray:
    """Return the probabilities of all examples, one at a time, float [examples, classes]."""
    run, is_fixed = MODELS[kind](folder)
    found = []
    for example in examples:
        encoded = encoder.encode(example)
        length = len(encoded["input_ids"])
        features = np.zeros([3, 1, encoder.max_seq_length if is_fixed else length], np.int32)
        features[:, 0, :length] = encoded["input_ids"], [1] * length, encoded["segment_ids"]
        found.append(run(dict(zip(IDS, features))))
    return np.array(found)


def size_of(folder: str) -> float:
    """Return the size of a model in MB."""
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if "model" in name) / 1e6


def measure(run: str, data_dir: str, folder: str) -> List[List[object]]:
    """Return a row for each model."""
    source = export_source.find(run=run)
    (task,) = source.tasks
    examples = list(tasks.read_examples(tasks.get(task.config.task), data_dir, "dev"))
    labels = np.array([task.classes.index(str(example.label)) for example in examples])
    with predictor.load(run=run) as loaded:
        texts = [(each.text_a, each.text_b) if each.text_b else each.text_a for each in examples]
        expected = np.array([list(found.probabilities.values()) for found in loaded.predict(texts)])
    rows: List[List[object]] = [["predictor, float32", None, (expected.argmax(1) == labels).mean() * 100, 0, 0.0]]
    encoder = Encoder((), task.max_seq_length, source.tokenizer)
    for kind in MODELS:
        for int8 in (False, True):
            options = export.ExportOptions(kind, int8=int8, name=f"{kind}{int8}")
            path = export.export(source, folder, options)
            found = probabilities(path, kind, encoder, examples)
            changed = int((found.argmax(1) != expected.argmax(1)).sum())
            accuracy, distance = (found.argmax(1) == labels).mean() * 100, np.abs(found - expected).max()
            rows.append([f"{kind}, {'int8' if int8 else 'float32'}", size_of(path), accuracy, changed, distance])
    return rows


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="output folder of a training run")
    parser.add_argument("--data_dir", required=True, help="folder of the task's files")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args.run, args.data_dir, folder)
    headers = ["model", "MB", "accuracy", "labels changed", "largest difference of a probability"]
    print(tabulate.tabulate(rows, headers, "github", floatfmt=("", ".1f", ".2f", "d", ".1e")))


if __name__ == "__main__":
    main()
