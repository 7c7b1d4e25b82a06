"""Convert BERT modules of TensorFlow Hub to Google's layout. Reads their files and never runs their graphs.

A TF1 module stores its variables under Google's names, a TF2 SavedModel under those of Keras layers. In both layouts,
the vocabulary is an asset, and the module says whether it is lower-cased.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tarfile
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

import modeling
import optimization
from adapter_bert.common import errors, files, json_files
from adapter_bert.model import parameters
from adapter_bert.settings import base_files
from adapter_bert.settings.base_files import CHECKPOINT_NAME, CONFIG_NAME, SENTENCEPIECE_ENDING, VOCAB_NAME
from adapter_bert.settings.groups import BertSettings
from adapter_bert.weights import checkpoints
from adapter_bert.weights.exchange import known_bases

# Written next to the converted files: {"handle": …, "do_lower_case": …}.
RECORD_NAME = "hub_module.json"
_MODEL, _VARIABLES, _ASSETS = "saved_model.pb", "variables/variables", "assets"
_TIMEOUT = 20  # seconds, for each answer of a server
# Files of a module in an archive.
_MEMBER = re.compile(r"(\./)?(saved_model\.pb|(variables|assets)/[^/\\]+)")

_LAYER = r"layer_(\d+)/"
# End of a Keras name -> Google's name. There are two generations of them.
_KERAS_NAMES = (
    (r"word_embeddings/embeddings", "embeddings/word_embeddings"),
    (r"position_embeddings?(?:/embeddings)?", "embeddings/position_embeddings"),
    (r"type_embeddings(?:/embeddings)?", "embeddings/token_type_embeddings"),
    (r"(?:embeddings|embedding_postprocessor)/layer_norm/(gamma|beta)", r"embeddings/LayerNorm/\1"),
    (_LAYER + r"self_attention/(query|key|value)/(\w+)", r"encoder/layer_\1/attention/self/\2/\3"),
    (_LAYER + r"self_attention(?:/attention)?_output/(\w+)", r"encoder/layer_\1/attention/output/dense/\2"),
    (_LAYER + r"self_attention_layer_norm/(\w+)", r"encoder/layer_\1/attention/output/LayerNorm/\2"),
    (_LAYER + r"intermediate/(\w+)", r"encoder/layer_\1/intermediate/dense/\2"),
    (_LAYER + r"output/(\w+)", r"encoder/layer_\1/output/dense/\2"),
    (_LAYER + r"output_layer_norm/(\w+)", r"encoder/layer_\1/output/LayerNorm/\2"),
    (r"pooler_transform/(\w+)", r"pooler/dense/\1"),
)

AnySettings = TypeVar("AnySettings", bound=BertSettings)


def use_module(settings: AnySettings) -> AnySettings:
    """Return the settings with the files and the casing of `bert_hub_module_handle`, if it is set."""
    handle = settings.bert_hub_module_handle
    if not handle:
        return settings
    folder = provide(handle)
    casing = json_files.read_object(os.path.join(folder, RECORD_NAME))["do_lower_case"]
    if casing is None:
        tf.logging.warning("The module %s does not record its case; --do_lower_case is used.", handle)
        casing = settings.do_lower_case
    return dataclasses.replace(settings, bert_dir=folder, do_lower_case=casing)


def provide(handle: str) -> str:
    """Return the folder of a converted module; download and convert it unless it is in the cache."""
    is_url = base_files.is_url(handle)
    # A local module may be replaced by another one. The index of its variables contains their checksums.
    content = b"" if is_url else _read(handle, _MODEL, handle) + _read(handle, _VARIABLES + ".index", handle)
    name = "hub-" + hashlib.sha256(handle.encode() + content).hexdigest()[:20]

    def create(folder: str) -> None:
        with files.staging_folder(folder) as staging:
            module = os.path.join(staging, "module") if is_url else handle
            if is_url:
                download(handle, module)
            converted = os.path.join(staging, "base")
            os.mkdir(converted)
            convert(module, converted, handle)
            files.replace_folder(converted, folder)

    return known_bases.in_cache(name, create)


def _read(module: str, name: str, handle: str) -> bytes:
    """Read a file of a module, whose folder is `module` and whose name in messages is `handle`."""
    path = os.path.join(module, name)
    if not tf.gfile.Exists(path):
        raise errors.UserError(f"--bert_hub_module_handle={handle} is not a TF-Hub module: it has no {name}.")
    with tf.gfile.GFile(path, "rb") as file:
        return file.read()


def download(url: str, folder: str, flag: str = "--bert_hub_module_handle") -> None:
    """Download and unpack a module in the format of TF-Hub's servers, a compressed archive; `flag` names it."""
    tf.logging.info("Downloading the module %s", url)
    request = f"{url}{'&' if '?' in url else '?'}tf-hub-format=compressed"
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, tarfile.open(
            fileobj=answer, mode="r|*"
        ) as archive:
            for member in archive:
                if member.isfile() and _MEMBER.fullmatch(member.name):
                    path = os.path.join(folder, member.name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        shutil.copyfileobj(archive.extractfile(member), file)  # type: ignore[arg-type]
    except (OSError, EOFError, tarfile.TarError) as error:
        raise errors.UserError(
            f"Cannot download {flag}={url}: {errors.reason(error)}. Download and unpack the module "
            "yourself, and pass its folder."
        ) from None


def convert(module: str, folder: str, handle: str) -> None:
    """Write the base that a module contains to an empty folder. `handle` is the name of the module in messages."""
    prefix, model = os.path.join(module, _VARIABLES), _read(module, _MODEL, handle)
    try:
        graph = saved_model_pb2.SavedModel.FromString(model).meta_graphs[0]
        found = _read_keras(prefix) if graph.HasField("object_graph_def") else _read_tf1(prefix, graph)
    except errors.UserError:
        raise
    except Exception as error:  # the readers raise many types
        raise errors.UserError(f"The module {handle} is damaged: {errors.reason(error)}.") from None
    config = _make_config(found, handle)
    source = _find_vocabulary(module, handle)
    target = f"vocabulary{SENTENCEPIECE_ENDING}" if source.endswith(SENTENCEPIECE_ENDING) else VOCAB_NAME
    files.write_bytes(os.path.join(folder, target), _read(module, source, handle))
    files.write_json(os.path.join(folder, CONFIG_NAME), config.to_dict())
    files.write_json(os.path.join(folder, RECORD_NAME), {"handle": handle, "do_lower_case": found.do_lower_case})
    keys = {key: name for name, (key, _) in found.variables.items()}
    shapes = parameters.bert_shapes(config)
    stored = checkpoints.each_tensor(prefix, [found.variables[name][0] for name in shapes])
    values = {keys[key]: value.reshape(shapes[keys[key]]) for key, value in stored}
    checkpoints.write(values, os.path.join(folder, CHECKPOINT_NAME))


class _Module(NamedTuple):
    """What a module contains."""

    variables: Dict[str, Tuple[str, Tuple[int, ...]]]  # Google's name -> name in the checkpoint, Google's shape
    num_heads: Optional[int]
    do_lower_case: Optional[bool]
    others: List[str]  # names of other variables


def _read_tf1(prefix: str, graph: Any) -> _Module:
    """Read the variables of a TF1 module, and the constants that its graph reshapes and returns."""
    nodes = {node.name: node for node in graph.graph_def.node}

    def constant(name: str) -> Optional[np.ndarray]:
        node = nodes.get(name.split(":")[0].lstrip("^"))
        while node is not None and node.op == "Identity":
            node = nodes.get(node.input[0].split(":")[0])
        return tf.make_ndarray(node.attr["value"].tensor) if node is not None and node.op == "Const" else None

    def heads() -> Optional[int]:
        # Attention reshapes the query to [batch, length, heads, head size].
        for name, node in nodes.items():
            if node.op != "Reshape" or "layer_0/attention/self/" not in name:
                continue
            shape = nodes[node.input[1].split(":")[0]]
            if shape.op == "Pack" and len(shape.input) == 4:
                sizes = constant(shape.input[2])
            else:
                values = constant(shape.name)
                sizes = values[2] if values is not None and np.size(values) == 4 else None
            if sizes is not None:
                return int(sizes)
        return None

    outputs = graph.signature_def["tokenization_info"].outputs if "tokenization_info" in graph.signature_def else {}
    casing = constant(outputs["do_lower_case"].name) if "do_lower_case" in outputs else None
    shapes = checkpoints.read_shapes(prefix)
    names = {re.sub(r"^module/", "", key): (key, shape) for key, shape in shapes.items()}
    bert = {name: value for name, value in names.items() if name.startswith("bert/")}
    return _Module(bert, heads(), None if casing is None else bool(casing), sorted(set(names) - set(bert)))


def _read_keras(prefix: str) -> _Module:
    """Read the variables of a TF2 SavedModel, whose object graph has their names."""
    shapes = checkpoints.read_shapes(prefix)
    reader = tf.train.NewCheckpointReader(prefix)
    stored = reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(stored)
    variables: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
    heads, others = None, []
    for node in graph.nodes:
        for attribute in node.attributes:
            key = attribute.checkpoint_key
            name = _google_name(attribute.full_name)
            if name is None or key not in shapes:
                others.append(attribute.full_name)
                continue
            shape = shapes[key]
            if name.endswith("layer_0/attention/self/query/kernel") and len(shape) == 3:
                heads = shape[1]
            variables[name] = key, _two_axes(name, shape)
    casing = None
    for child in graph.nodes[0].children:
        if child.local_name == "do_lower_case" and graph.nodes[child.node_id].attributes:
            casing = bool(reader.get_tensor(graph.nodes[child.node_id].attributes[0].checkpoint_key))
    return _Module(variables, heads, casing, sorted(others))


def _google_name(keras_name: str) -> Optional[str]:
    for pattern, name in _KERAS_NAMES:
        match = re.search(rf"(?:^|/){pattern}$", keras_name)
        if match:
            return "bert/" + match.expand(name)
    return None


def _two_axes(name: str, shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return a shape with the axis of the heads joined to that of the head size; only attention has both."""
    if "/attention/" not in name or len(shape) < 2 or name.endswith("kernel") and len(shape) == 2:
        return shape
    if name.endswith("bias"):
        return (shape[0] * shape[1],)
    return (shape[0] * shape[1], shape[2]) if "/output/" in name else (shape[0], shape[1] * shape[2])


def _make_config(module: _Module, handle: str) -> modeling.BertConfig:
    """Infer the architecture from the variables; raise a `UserError` that names those that a BERT would have."""
    shapes = {name: shape for name, (_, shape) in module.variables.items()}

    def size(name: str, axis: int) -> int:
        shape = shapes.get(f"bert/{name}", ())
        return shape[axis] if len(shape) == 2 else 1

    hidden = size("embeddings/word_embeddings", 1)
    config = modeling.BertConfig(
        vocab_size=size("embeddings/word_embeddings", 0),
        hidden_size=hidden,
        num_hidden_layers=max(1, optimization.count_layers(list(shapes))),
        num_attention_heads=module.num_heads or max(1, hidden // 64),  # as in all published BERTs
        intermediate_size=size("encoder/layer_0/intermediate/dense/kernel", 1),
        max_position_embeddings=size("embeddings/position_embeddings", 0),
        type_vocab_size=size("embeddings/token_type_embeddings", 0),
    )
    mismatch = parameters.describe_mismatch(parameters.bert_shapes(config), shapes)
    if mismatch:
        others = f" It also has {errors.first_names(module.others, 3)}." if module.others else ""
        raise errors.UserError(f"The module {handle} is not a BERT: {mismatch}{others}")
    config.check(handle)
    return config


def _find_vocabulary(module: str, handle: str) -> str:
    """Return the path, in the module, of the WordPiece vocabulary or the SentencePiece model."""
    folder = os.path.join(module, _ASSETS)
    names = sorted(tf.gfile.ListDirectory(folder)) if tf.gfile.IsDirectory(folder) else []
    for ending in (".txt", SENTENCEPIECE_ENDING):
        for name in names:
            if name.endswith(ending):
                return os.path.join(_ASSETS, name)
    raise errors.UserError(f"The module {handle} has no vocabulary: found {errors.first_names(names)} in its assets.")
