"""Run this project's network and a PyTorch model on the same inputs, with dropout off."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.model import heads
from adapter_bert.pipeline import features
from adapter_bert.tasks.task import InputExample
from adapter_layers import AdapterConfig

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

Arrays = Dict[str, np.ndarray]


class Batch(NamedTuple):
    """Inputs for both sides: int [B, S] each, labels int [B]."""

    ids: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    labels: np.ndarray

    @property
    def real(self) -> np.ndarray:
        """bool [B, S], False at padding."""
        return self.mask.astype(bool)


def make_batch(vocab_file: str) -> Batch:
    """Tokenize `TEXTS`. Every row has padding, so that the mask matters in all of them."""
    tokenizer = tokenization.FullTokenizer(vocab_file)
    examples = [InputExample(str(number), *text) for number, text in enumerate(TEXTS)]
    rows = [row.as_lists() for row in features.convert_examples_to_features(examples, ("0", "1"), 40, tokenizer)]
    length = max(sum(row["input_mask"]) for row in rows) + 3
    names = ("input_ids", "input_mask", "segment_ids")
    arrays = [np.array([row[name] for row in rows], np.int32)[:, :length] for name in names]
    return Batch(*arrays, labels=np.array([row["label_ids"][0] for row in rows], np.int32))


def draw_values(shapes: Mapping[str, Sequence[int]], pretrained: Arrays) -> Arrays:
    """Return random values, added to the pretrained ones where there are any; always the same."""
    random = np.random.RandomState(SEED)
    return {
        name: (pretrained.get(name, 0.0) + STDDEV * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def run_ours(
    config: modeling.BertConfig,
    batch: Batch,
    values: Arrays,
    head: heads.Head,
    adapter: Optional[AdapterConfig] = None,
    gradients_of: Sequence[str] = (),
) -> Arrays:
    """Return `embeddings`, `layer N`, `pooled` and `logits`, and gradients of the loss by variable name."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(array) for array in batch]
        model = modeling.BertModel(config, False, *inputs[:3], scope="bert", adapter_fn=adapter)
        output = head.build(model, dict.fromkeys(head.label_types, inputs[3]), is_training=False)
        fetches = {"embeddings": model.get_embedding_output(), "pooled": model.get_pooled_output()}
        fetches.update((f"layer {index}", layer) for index, layer in enumerate(model.get_all_encoder_layers()))
        fetches["logits"] = output.logits
        variables = {variable.op.name: variable for variable in tf.trainable_variables()}
        if gradients_of:
            fetches.update(zip(gradients_of, tf.gradients(output.loss, [variables[name] for name in gradients_of])))
        session.run(tf.global_variables_initializer())
        for name, variable in variables.items():
            if name in values:
                variable.load(values[name], session)
            else:
                assert name.startswith("output_"), name  # a head whose logits are not compared
        return session.run(fetches)


def run_theirs(model: Any, batch: Batch, **options: Any) -> Any:
    """Return the output of a PyTorch model."""
    import torch

    ids, mask, segments, _ = (torch.tensor(array, dtype=torch.long) for array in batch)
    return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=segments, **options)


def assert_close(what: str, ours: np.ndarray, theirs: Any, limit: float = OUTPUT_LIMIT) -> None:
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    print(f"{what}: max abs difference {difference:.2e}")
    assert difference <= limit, f"{what}: {difference} > {limit}"


def assert_apart(what: str, ours: np.ndarray, theirs: Any) -> None:
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    print(f"{what}: moved by {difference:.2e}")
    assert difference >= LEAST_EFFECT, f"{what}: moved by {difference} only"
