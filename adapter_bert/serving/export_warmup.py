"""Write the requests that TF-Serving sends to a model before it serves it, so that no user waits for the first one.

The file is a TFRecord of `PredictionLog` messages of `tensorflow-serving-api`. They are encoded here, so that the
package is not needed. A message is a sequence of fields; each is a key (number and type) and a value:

    PredictionLog { 6: PredictLog { 1: PredictRequest {
        1: ModelSpec { 1: name, 3: signature_name }
        2: map of inputs { 1: key, 2: TensorProto } } } }
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping

import numpy as np
import tensorflow.compat.v2 as tf

from adapter_bert.common import files, protobuf
from adapter_bert.serving.export_network import ExportedTask

FOLDER, FILE_NAME = "assets.extra", "tf_serving_warmup_requests"

# Words of the requests' texts.
_LENGTHS = (1, 20, 1000)
_BATCH_SIZES = (1, 4)


def prediction_log(model: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return a serialized `PredictionLog` with a `PredictRequest`."""
    spec = protobuf.bytes_field(1, model.encode()) + protobuf.bytes_field(3, signature.encode())
    request = protobuf.bytes_field(1, spec)
    for name, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += protobuf.bytes_field(2, protobuf.bytes_field(1, name.encode()) + protobuf.bytes_field(2, tensor))
    return protobuf.bytes_field(6, protobuf.bytes_field(1, request))


def requests(specs: Mapping[str, tf.TensorSpec], tasks: List[ExportedTask]) -> List[Dict[str, np.ndarray]]:
    """Return inputs of these types: short and long ones, alone and in batches."""
    longest = max(task.max_seq_length for task in tasks)
    found = []
    for words in sorted({min(length, longest) for length in _LENGTHS}):
        for size in _BATCH_SIZES:
            values = {}
            for name, spec in specs.items():
                if spec.dtype != tf.string:
                    values[name] = np.full([size, words], 0 if name == "segment_ids" else 1, np.int32)
                elif name == "tasks":
                    values[name] = np.array([tasks[row % len(tasks)].name for row in range(size)], object)
                else:
                    values[name] = np.array([" ".join(["the"] * words)] * size, object)
            found.append(values)
    return found


def write(folder: str, logs: List[bytes]) -> None:
    """Write the messages into the folder of a SavedModel."""
    files.make_folder(os.path.join(folder, FOLDER))
    with tf.io.TFRecordWriter(os.path.join(folder, FOLDER, FILE_NAME)) as writer:
        for log in logs:
            writer.write(log)
