"""Convert the network of one task to ONNX and TensorFlow Lite. Both read ids and return probabilities or values."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from typing import Any, Dict

import tensorflow.compat.v2 as tf

from adapter_bert.common import errors, files
from adapter_bert.serving.export_network import PROBABILITIES, VALUES, Network
from adapter_bert.serving.export_saved_model import IDS
from adapter_bert.serving.export_source import ExportSource
from adapter_bert.serving.export_text import Features

ONNX_FILE, TFLITE_FILE = "model.onnx", "model.tflite"

# ONNX Runtime reads it since 1.12.
_OPSET = 17
# More does not fit into a protobuf message.
_MAX_BYTES = 2**31 - 2**20


def load_library(name: str) -> Any:
    """Import and return a library for ONNX; raise a `UserError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise errors.UserError(
            f"--format=onnx needs the package {name.partition('.')[0]}, which cannot be imported: "
            f"{errors.reason(error)}. Run `pip install adapter-bert[onnx]`."
        ) from None


def check_libraries(int8: bool) -> None:
    """Raise a `UserError` unless the libraries for ONNX are installed."""
    for name in ("onnx", "tf2onnx", *(["onnxruntime"] if int8 else [])):
        load_library(name)


def _function(network: Network, size: Any, length: Any) -> Any:
    """Return a function from ids, mask and segments [size, length] to its numbers."""

    def run(*features: tf.Tensor) -> Dict[str, tf.Tensor]:
        found = network.outputs(network.logits(Features(*features), None), None)
        return {name: found[name] for name in (PROBABILITIES, VALUES) if name in found}

    return tf.function(run, input_signature=[tf.TensorSpec([size, length], tf.int32, name) for name in IDS])


def write_onnx(folder: str, source: ExportSource, int8: bool) -> None:
    """Write the model with dynamic batch and length; with `int8`, products use 8-bit integers."""
    convert, onnx = load_library("tf2onnx.convert"), load_library("onnx")
    network = source.network()
    size = sum(variable.shape.num_elements() * 4 for variable in network.weights.values())
    if size > _MAX_BYTES:
        raise errors.UserError(f"The model has {size:,} bytes; an ONNX file has at most {_MAX_BYTES:,}.")
    function = _function(network, None, None)
    model, _ = convert.from_function(function, function.input_signature, opset=_OPSET)
    if int8:
        model = _quantized(model)
    for each in (*model.graph.input, *model.graph.output):
        for axis, axis_name in zip(each.type.tensor_type.shape.dim, ("batch", "length")):
            if not axis.dim_value:
                axis.dim_param = axis_name
    (task,) = source.tasks
    described = {"task": task.name, "labels": json.dumps(task.classes), "max_seq_length": str(task.max_seq_length)}
    onnx.helper.set_model_props(model, described)
    files.write_bytes(os.path.join(folder, ONNX_FILE), model.SerializeToString())


def _quantized(model: Any) -> Any:
    quantization, onnx = load_library("onnxruntime.quantization"), load_library("onnx")
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("float32.onnx", "int8.onnx")]
        onnx.save(model, paths[0])
        quantization.quantize_dynamic(*paths, weight_type=quantization.QuantType.QInt8)
        return onnx.load(paths[1])


def write_tflite(folder: str, source: ExportSource, int8: bool) -> None:
    """Write the model for single examples of the maximum length; with `int8`, weights are quantized."""
    (task,) = source.tasks
    network = source.network()
    function = _function(network, 1, task.max_seq_length)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], network)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    files.write_bytes(os.path.join(folder, TFLITE_FILE), converter.convert())
