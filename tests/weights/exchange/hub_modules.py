"""Write TF-Hub modules in both layouts, from a base."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.weights.bases import Base

# Google's name -> Keras name, in the two generations of TF2 modules.
KERAS_NAMES: Dict[str, Dict[str, str]] = {
    "tf2": {
        "embeddings/word_embeddings": "word_embeddings/embeddings",
        "embeddings/position_embeddings": "position_embedding/embeddings",
        "embeddings/token_type_embeddings": "type_embeddings/embeddings",
        "embeddings/LayerNorm": "embeddings/layer_norm",
        "encoder": "transformer",
        "attention/self": "self_attention",
        "attention/output/dense": "self_attention/attention_output",
        "attention/output/LayerNorm": "self_attention_layer_norm",
        "intermediate/dense": "intermediate",
        "output/dense": "output",
        "output/LayerNorm": "output_layer_norm",
        "pooler/dense": "pooler_transform",
    },
}
KERAS_NAMES["tf2 of 2019"] = dict(
    KERAS_NAMES["tf2"],
    **{
        "embeddings/position_embeddings": "embedding_postprocessor/position_embeddings",
        "embeddings/token_type_embeddings": "embedding_postprocessor/type_embeddings",
        "embeddings/LayerNorm": "embedding_postprocessor/layer_norm",
        "encoder": "encoder",
        "attention/output/dense": "self_attention_output",
    },
)
LAYOUTS = ("tf1", *KERAS_NAMES)


def export(base: Base, folder: str, layout: str, do_lower_case: Optional[bool] = True, drop: str = "-") -> str:
    """Write a module, without the variables whose names contain `drop`; return its folder."""
    if layout == "tf1":
        _export_tf1(base, folder, do_lower_case, drop)
    else:
        _export_tf2(base, folder, KERAS_NAMES[layout], do_lower_case, drop)
    return folder


def _export_tf1(base: Base, folder: str, do_lower_case: Optional[bool], drop: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        names = ("input_ids", "input_mask", "segment_ids")
        inputs = {name: tf.placeholder(tf.int32, [None, None], name) for name in names}
        model = modeling.BertModel(base.config, False, *inputs.values(), scope="bert", adapter_fn=None)
        tf.get_variable("cls/predictions/output_bias", [base.config.vocab_size])
        outputs = {"pooled_output": model.get_pooled_output(), "sequence_output": model.get_sequence_output()}
        session.run(tf.global_variables_initializer())
        values = base.tensors()
        session.run([tf.assign(variable, values[variable.op.name]) for variable in tf.trainable_variables("bert/")])
        asset = tf.constant(base.tokenizer_file)
        info = {"vocab_file": asset}
        if do_lower_case is not None:
            info["do_lower_case"] = tf.identity(tf.constant(do_lower_case))
        builder = tf.saved_model.Builder(folder)
        kept = [variable for variable in tf.global_variables() if drop not in variable.op.name]
        builder.add_meta_graph_and_variables(
            session,
            [],
            {"tokens": _signature(inputs, outputs), "tokenization_info": _signature({}, info)},
            assets_collection=[asset],
            saver=tf.train.Saver(kept),
        )
        builder.save()
    with open(os.path.join(folder, "tfhub_module.pb"), "wb") as file:
        file.write(b"\x08\x03")


def _signature(inputs: Dict[str, tf.Tensor], outputs: Dict[str, tf.Tensor]) -> Any:
    described = [
        {name: tf.saved_model.build_tensor_info(tensor) for name, tensor in tensors.items()}
        for tensors in (inputs, outputs)
    ]
    return tf.saved_model.build_signature_def(*described)


def _export_tf2(base: Base, folder: str, names: Dict[str, str], do_lower_case: Optional[bool], drop: str) -> None:
    module = tf2.Module()
    module.vocab_file = tf2.saved_model.Asset(base.tokenizer_file)
    if do_lower_case is not None:
        module.do_lower_case = tf2.Variable(do_lower_case, trainable=False)
    values = {name: value for name, value in base.tensors().items() if drop not in name}
    module.weights = [
        tf2.Variable(_keras_value(name, value, base), name=_keras_name(name, names)) for name, value in values.items()
    ]
    tf2.saved_model.save(module, folder)


def _keras_name(name: str, names: Dict[str, str]) -> str:
    name = name[len("bert/") :]
    for google, keras in names.items():
        name = re.sub(rf"(^|/){google}(?=/|$)", rf"\1{keras}", name, count=1)
    return name


def _keras_value(name: str, value: np.ndarray, base: Base) -> np.ndarray:
    heads, hidden = base.config.num_attention_heads, base.config.hidden_size
    if "/attention/self/" in name:
        return value.reshape([*value.shape[:-1], heads, hidden // heads])
    if name.endswith("/attention/output/dense/kernel"):
        return value.reshape([heads, hidden // heads, hidden])
    return value


def archive(folder: str, path: str) -> str:
    """Pack a module as TF-Hub's servers do; return the path of the archive."""
    return shutil.make_archive(path, "gztar", folder)
