"""Extract the vectors of chosen layers for each token of a text, as `extract_features.py` of Google's BERT does."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors, files, parallel, progress
from adapter_bert.devices import estimators
from adapter_bert.model import fused_ops
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline.features import Encoder
from adapter_bert.pipeline.records import TOKEN_FEATURES
from adapter_bert.settings.extract import ExtractSettings
from adapter_bert.tasks.task import InputExample, read_lines
from adapter_bert.training import workflow
from adapter_bert.training.engine import Engine
from adapter_bert.weights import loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.bases import Base
from adapter_bert.weights.exchange import hub
from adapter_bert.weights.loading import WeightRequest, Weights

# From ids, mask and segments, int [B, S], to the vectors of each layer, float [B, S, H].
Run = Callable[..., List[np.ndarray]]

SEPARATOR = " ||| "
# Digits after the decimal point, as in the original.
DIGITS = 6


def extract(settings: ExtractSettings) -> int:
    """Write the vectors of all lines of the input file; return the number of lines. The settings must be validated."""
    output = settings.output_file or ""
    with files.user_errors():
        if not settings.overwrite:
            files.check_absent(output, "--output_file")
        total = sum(1 for _ in read_lines(settings.input_file or ""))
        settings = hub.use_module(settings)
        base = workflow.load_base(settings, Engine())  # type: ignore[arg-type]  # has what is needed of a run's settings
        layers = settings.layer_indices(base.config.num_hidden_layers)
        spec, weights = _resolve_weights(settings, base)
        encoder = Encoder((), settings.max_seq_length, base.tokenizer)
        files.make_folder(os.path.dirname(output) or ".")
    session, run = _build(spec, weights, layers)
    with session, files.user_errors(), files.atomic_write(output) as temporary, tf.gfile.GFile(
        temporary, "w"
    ) as writer:
        examples = progress.with_progress(read_texts(settings.input_file or ""), total, "vectors", "lines")
        number = 0
        for batch in parallel.chunks(examples, settings.batch_size):
            for tokens, vectors in _vectors(batch, encoder, run):
                writer.write(json.dumps(_as_json(number, tokens, layers, vectors)) + "\n")
                number += 1
    tf.logging.info("Vectors of %d lines: %s", total, output)
    return total


def read_texts(path: str) -> Iterator[InputExample]:
    """Yield the text, or pair of texts, of each line."""
    for number, line in enumerate(read_lines(path)):
        first, separator, second = line.strip().rpartition(SEPARATOR)
        yield InputExample(str(number), first, second) if separator else InputExample(str(number), second)


def _resolve_weights(settings: ExtractSettings, base: Base) -> Tuple[ModelSpec, Weights]:
    """Return the model, whose head is not used, and its weights, checked against the files."""
    # The labels of a new head need not be known: as at the start of a training, it is random.
    spec, purpose = ModelSpec(base.config, ClassificationHead(2), None, "full"), loading.TRAIN
    pack = packs.find(settings.adapter_pack) if settings.adapter_pack else None
    if pack:
        config = packs.read_config(pack)
        if config.tokenizer != base.tokenizer_description:
            raise errors.UserError(
                f"The pack {pack} was trained with another tokenizer: {config.tokenizer}; this one is "
                f"{base.tokenizer_description}."
            )
        spec, purpose = dataclasses.replace(config.spec, config=base.config), loading.EVALUATE
    weights = loading.resolve(spec, WeightRequest(settings.init_checkpoint, pack), purpose)
    assert weights is not None  # the request names a checkpoint
    return dataclasses.replace(spec, use_one_hot_embeddings=settings.use_one_hot_embeddings), weights


def _build(
    spec: ModelSpec, weights: Weights, layers: Sequence[int]
) -> Tuple[tf.Session, Callable[..., List[np.ndarray]]]:
    """Return a session with the weights, and a function from (ids, mask, segments) to the vectors of each layer."""
    with tf.Graph().as_default() as graph:
        ids, mask, segments = (tf.placeholder(tf.int32, [None, None], name) for name in TOKEN_FEATURES)
        names = set(spec.shapes) - set(spec.head.shapes(spec.config.hidden_size))
        assigner = WeightAssigner([_restricted(each, names) for each in weights.assignments])
        resources = tf.variable_scope(tf.get_variable_scope(), use_resource=True)
        with resources, assigner.creating_variables(), fused_ops.compiling(False):
            model = modeling.BertModel(
                spec.config, False, ids, mask, segments, spec.use_one_hot_embeddings, "bert", spec.adapter
            )
        fetched = [model.get_all_encoder_layers()[layer] for layer in layers]
        session = tf.Session(graph=graph, config=estimators.session_config())
        assigner.load(session)
        return session, session.make_callable(fetched, [ids, mask, segments])


def _restricted(assignment: loading.Assignment, names: Any) -> loading.Assignment:
    """Return the part of an assignment that concerns these variables."""
    values = assignment.values and {name: value for name, value in assignment.values.items() if name in names}
    return assignment._replace(names=tuple(name for name in assignment.names if name in names), values=values)


def _vectors(batch: Sequence[InputExample], encoder: Encoder, run: Run) -> Iterator[Tuple[List[str], np.ndarray]]:
    """Yield the tokens of each example and their vectors, float [layers, tokens, H]."""
    features = [encoder.encode_padded(example) for example in batch]
    lengths = [sum(feature.input_mask) for feature in features]
    arrays = [np.array([getattr(each, name) for each in features], np.int32) for name in TOKEN_FEATURES]
    vectors = np.stack(run(*(array[:, : max(lengths)] for array in arrays)))
    for row, (feature, length) in enumerate(zip(features, lengths)):
        yield encoder.tokenizer.convert_ids_to_tokens(feature.input_ids[:length]), vectors[:, row, :length]


def _as_json(number: int, tokens: Sequence[str], layers: Sequence[int], vectors: np.ndarray) -> Any:
    """Return the JSON object of a line; its keys are those of the original, including the spelling of the first."""
    rounded = [[[round(value, DIGITS) for value in token] for token in layer] for layer in vectors.tolist()]
    return {
        "linex_index": number,
        "features": [
            {
                "token": token,
                "layers": [{"index": index, "values": layer[place]} for index, layer in zip(layers, rounded)],
            }
            for place, token in enumerate(tokens)
        ],
    }
