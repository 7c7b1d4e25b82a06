"""Run this project's network and a PyTorch model on the same inputs, with dropout off."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import modeling
from adapter_bert.pipeline import features
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, packs
from adapter_layers import AdapterConfig
from tests.helpers import make_pack

OUTPUT_LIMIT, GRADIENT_LIMIT = 1e-4, 1e-3
# Leaving something out must change the outputs by a multiple of the limit; otherwise agreement would prove nothing.
LEAST_EFFECT = 100 * OUTPUT_LIMIT
STDDEV, SEED = 0.1, 1902
TEXTS = (
    ("The committee postponed its decision until the spring.", "A decision was made in the autumn.", "0"),
    ("Rain.", None, "1"),
    ("Who did you say that Bill thinks Mary saw at the station?", None, "1"),
    ("Shares of the chip maker fell 7.5% after hours.", "The stock lost ground on Tuesday.", "1"),
    ("She kept the letters, the photographs and even the envelopes in an old biscuit tin.", None, "0"),
    ("Is it open on Sundays?", "Monday to Saturday, 9 a.m. to 6 p.m.; closed on all public holidays.", "0"),
)


class Batch(NamedTuple):
    """Inputs for both sides: int [B, S] each, labels int [B]."""

    ids: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    labels: np.ndarray


def make_batch(base: bases.Base) -> Batch:
    """Tokenize `TEXTS`. Every row has padding, so that the mask matters in all of them."""
    examples = [InputExample(str(number), *text) for number, text in enumerate(TEXTS)]
    rows = [row.as_lists() for row in features.convert_examples_to_features(examples, ("0", "1"), 40, base.tokenizer)]
    length = max(sum(row["input_mask"]) for row in rows) + 3
    names = ("input_ids", "input_mask", "segment_ids")
    arrays = [np.array([row[name] for row in rows], np.int32)[:, :length] for name in names]
    return Batch(*arrays, labels=np.array([row["label_ids"][0] for row in rows], np.int32))


def random_pack(base: bases.Base, adapter: AdapterConfig, head: str = "classification") -> packs.Pack:
    """Return a pack with random weights, always the same; its LayerNorms are those of the base, shifted."""
    config = make_pack(base, head=head, adapter=packs.describe_adapter(adapter)).config
    random, pretrained = np.random.RandomState(SEED), base.tensors()
    shapes = config.trained_shapes().items()
    values = {name: pretrained.get(name, 0.0) + STDDEV * random.standard_normal(shape) for name, shape in shapes}
    return packs.Pack(config, {name: value.astype(np.float32) for name, value in values.items()})


def run_ours(base: bases.Base, pack: packs.Pack, gradients: bool = False, seed: int = SEED) -> Dict[str, np.ndarray]:
    """Return `embeddings`, `layer N`, `pooled` and `logits`, and the loss's gradients by variable name.

    Outputs of tokens are 0 at padding. Variables that neither the base nor the pack has are initialised with `seed`.
    """
    batch, head = make_batch(base), pack.config.make_head()
    # Fusing ops rounds differently with and without adapters.
    session_config = tf.ConfigProto()
    session_config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    with tf.Graph().as_default(), tf.Session(config=session_config) as session:
        tf.set_random_seed(seed)
        inputs = [tf.constant(array) for array in batch]
        adapter = pack.config.adapter_config
        model = modeling.BertModel(base.config, False, *inputs[:3], scope="bert", adapter_fn=adapter)
        output = head.build(model, dict.fromkeys(head.label_types, inputs[3]), is_training=False)
        states = {f"layer {number}": state for number, state in enumerate(model.get_all_encoder_layers())}
        states["embeddings"] = model.get_embedding_output()
        fetches = {name: state * tf.cast(inputs[1], tf.float32)[:, :, None] for name, state in states.items()}
        fetches.update(pooled=model.get_pooled_output(), logits=output.logits)
        variables = {variable.op.name: variable for variable in tf.trainable_variables()}
        if gradients:
            fetches.update(zip(pack.tensors, tf.gradients(output.loss, [variables[name] for name in pack.tensors])))
        session.run(tf.global_variables_initializer())
        for name, value in {**base.tensors(), **pack.tensors}.items():
            variables[name].load(value, session)
        outputs = session.run(fetches)
    if head.kind == "span":
        outputs["logits"] *= batch.mask[:, np.newaxis]  # [B, 2, S]
    return outputs


def run_theirs(model: Any, base: bases.Base, **options: Any) -> Any:
    """Return the output of a PyTorch model."""
    import torch

    ids, mask, segments, _ = (torch.tensor(array, dtype=torch.long) for array in make_batch(base))
    return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=segments, **options)


def largest_difference(what: str, ours: np.ndarray, theirs: Any) -> float:
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    print(f"{what}: max abs difference {difference:.2e}")
    return difference
