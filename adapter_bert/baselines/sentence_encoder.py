"""Convert the Universal Sentence Encoder Lite from TensorFlow.js to a TF-Hub module.

Like TF-Hub's own module of it, the result reads the numbers of SentencePiece pieces, as a sparse matrix, and has the
SentencePiece model as an asset. All weights are variables, so that it can be fine-tuned.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import json_format

from adapter_bert.baselines.hub_modules import ASSETS, FORMAT_V3, TF1_MARK
from adapter_bert.common import files, protobuf

_PIECES_FILE = "pieces.model"
# Pieces of the vocabulary before the first that occurs in texts.
_RESERVED = 6
# Types of pieces in a SentencePiece model.
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5


def convert(read: Callable[[str], bytes], folder: str) -> None:
    """Write the module; `read` returns the content of the model's files by name."""
    description = json.loads(read("model.json"))
    topology = _with_base64(description["modelTopology"])
    graph_def = json_format.ParseDict(topology, tf.GraphDef(), ignore_unknown_fields=True)
    # The files have no 64-bit integers, because JavaScript has none; the graph says which they were.
    types = {node.name: tf.as_dtype(node.attr["dtype"].type) for node in graph_def.node if node.op == "Const"}
    weights = {
        name: value.astype(types[name].as_numpy_dtype)
        for name, value in _weights(description["weightsManifest"], read).items()
    }
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        indices, values = tf.placeholder(tf.int64, [None, 2], "indices"), tf.placeholder(tf.int64, [None], "values")
        vectors = _import(graph_def, weights, {"indices": indices, "values": values}, session)
        info = tf.saved_model.build_tensor_info
        signature = tf.saved_model.build_signature_def(
            {"indices": info(indices), "values": info(values)}, {"default": info(vectors)}, "default"
        )
        builder = tf.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(session, [], {"default": signature})
        builder.save()
    files.write_bytes(os.path.join(folder, TF1_MARK), FORMAT_V3)
    files.make_folder(os.path.join(folder, ASSETS))
    files.write_bytes(os.path.join(folder, ASSETS, _PIECES_FILE), _pieces(json.loads(read("vocab.json"))))


def _import(
    graph_def: tf.GraphDef, weights: Dict[str, np.ndarray], given: Dict[str, tf.Tensor], session: tf.Session
) -> tf.Tensor:
    """Import a graph whose weights become variables, with their values; return its output, float [B, width]."""
    inputs: Dict[str, Any] = dict(given)
    for number, (name, value) in enumerate(weights.items()):
        if value.dtype == np.float32 and value.ndim and "TimingSignal" not in name:
            initial = tf.placeholder(value.dtype, value.shape)
            variable = tf.get_variable(f"encoder/{number}", initializer=initial)
            session.run(variable.initializer, {initial: value})
            inputs[name] = tf.convert_to_tensor(variable)
        else:
            inputs[name] = tf.constant(value)
    output = _last_node(graph_def)
    kept = [node for node in graph_def.node if node.name not in inputs]
    del graph_def.node[:]
    graph_def.node.extend(kept)
    (vectors,) = tf.import_graph_def(graph_def, inputs, [output + ":0"], name="universal_sentence_encoder_lite")
    width = int(session.run(tf.shape(vectors), {given["indices"]: [[0, 0]], given["values"]: [_RESERVED]})[1])
    return tf.reshape(vectors, [-1, width])


def _with_base64(content: Any) -> Any:
    """Return parsed JSON in which the bytes of attributes, here lists of numbers, are base64, as protobuf expects."""
    if isinstance(content, list):
        return [_with_base64(item) for item in content]
    if not isinstance(content, dict):
        return content
    changed = {name: _with_base64(value) for name, value in content.items()}
    if set(content) == {"s"}:
        changed["s"] = base64.b64encode(bytes(content["s"])).decode()
    return changed


def _last_node(graph_def: tf.GraphDef) -> str:
    """Return the name of the only node that no other reads."""
    read = {name.split(":")[0].lstrip("^") for node in graph_def.node for name in node.input}
    (last,) = (node.name for node in graph_def.node if node.name not in read)
    return str(last)


def _weights(manifest: Any, read: Callable[[str], bytes]) -> Dict[str, np.ndarray]:
    """Return the tensors of a TensorFlow.js model: concatenated files, one tensor after the other."""
    found = {}
    for group in manifest:
        data, place = b"".join(read(path) for path in group["paths"]), 0
        for weight in group["weights"]:
            if "quantization" in weight:
                raise ValueError("its weights are quantized")
            kind, shape = np.dtype({"float32": "<f4", "int32": "<i4"}[weight["dtype"]]), weight["shape"]
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            if place + size > len(data):
                raise ValueError(f"its files are too short for {weight['name']}")
            found[weight["name"]] = np.frombuffer(data[place : place + size], kind).reshape(shape)
            place += size
    return found


def _pieces(vocabulary: List[Tuple[str, Optional[float]]]) -> bytes:
    """Return a SentencePiece model with these pieces and scores, a message of the format of protocol buffers.

    The module for such messages that is part of the package sentencepiece does not support all versions of protobuf.
    """
    model, score = b"", 0.0
    known: Set[str] = set()
    for number, (piece, own_score) in enumerate(vocabulary):
        # Sorted by score. The published file has lost the scores of pieces with a colon.
        score = score if own_score is None else own_score
        kind = _UNKNOWN if not number else _CONTROL if number < _RESERVED else _NORMAL
        if piece in known:  # a few occur twice; the first one counts
            piece, kind = f"<unused_{number}>", _UNUSED
        known.add(piece)
        model += protobuf.bytes_field(
            1, protobuf.bytes_field(1, piece.encode("utf-8")) + b"\x15" + struct.pack("<f", score) + _number(3, kind)
        )
    unigram_model, unk_id, bos_id, eos_id, pad_id = (3, 1), (40, 0), (41, 1), (42, 2), (43, 2**64 - 1)
    trainer = b"".join(_number(*each) for each in (unigram_model, unk_id, bos_id, eos_id, pad_id))
    return model + protobuf.bytes_field(2, trainer) + protobuf.bytes_field(3, protobuf.bytes_field(1, b"identity"))


def _number(field: int, value: int) -> bytes:
    return protobuf.varint(field << 3) + protobuf.varint(value)
