"""A network in which the adapters of any span of layers can be removed, in one graph.

A removed adapter is the identity; everything else, e.g. LayerNorms and head, stays as trained. Layers are counted from
0, and spans include both ends.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common.progress import with_bar
from adapter_bert.devices import estimators
from adapter_bert.evaluation.scores import Row
from adapter_bert.model import batch_splitting, fused_ops
from adapter_bert.model.heads import Features, HeadOutput
from adapter_bert.model.tuning_modes import layer_index
from adapter_bert.pipeline import feature_store
from adapter_bert.training.trainer import SplitFeatures, Trainer
from adapter_bert.weights.assigner import WeightAssigner
from adapter_layers import AdapterConfig

Span = Tuple[int, int]  # first and last layer
# Predictions for a batch without the adapters of a span; None: with all adapters.
SpanPredictions = Tuple[Optional[Span], Row]


def spans(layers: int) -> List[Span]:
    """Return all spans of a network with this number of layers."""
    return [(first, last) for first in range(layers) for last in range(first, layers)]


def predict(trainer: Trainer, split: SplitFeatures) -> Dict[Optional[Span], List[Row]]:
    """Return the predictions for each batch of a split with all adapters (None), and without those of each span."""
    keys = [None, *spans(trainer.spec.config.num_hidden_layers)]
    found: Dict[Optional[Span], List[Row]] = {key: [] for key in keys}
    total = len(keys) * math.ceil(split.num_examples / split.batch_size)
    with feature_store.damage_errors(split.record_files):
        for span, predictions in with_bar(_Network(trainer, split).predict(), total, "ablation", "batches"):
            found[span].append(predictions)
    return found


def last_layers_recorded(adapter: AdapterConfig, found: List[List[tf.Tensor]]) -> ContextManager[Any]:
    """Return a context for building BERT that appends the adapters' last weights and biases in layer `n` to `found[n]`.

    The appended tensors stand between the variables and the adapter that reads them. To remove the adapter, feed zeros
    for them: x + 0 · h + 0.
    """
    last = re.compile(rf"/adapters/(weights|biases){adapter.depth + 1}$")

    def get_variable(getter: Callable, name: str, *args: Any, **options: Any) -> tf.Tensor:
        variable, layer = getter(name, *args, **options), layer_index(name)
        if layer is None or not last.search(name):
            return variable
        found[layer].append(tf.identity(variable))
        return found[layer][-1]

    return tf.variable_scope(tf.get_variable_scope(), custom_getter=get_variable)


class _Network:
    """The graph, which reads the batches of a split, and its session.

    To remove a span, compute only its last layer and the layers above. The input of the last layer is fed: it is known
    from the span that ends one layer below, or from the network with all adapters. With twelve layers, each batch takes
    387 layer evaluations instead of 948.
    """

    def __init__(self, trainer: Trainer, split: SplitFeatures) -> None:
        self._spec = trainer.spec
        self._layers = self._spec.config.num_hidden_layers
        # For each layer: its inputs, one for each half of a batch, and the last weights and biases of its adapters.
        self._inputs: List[List[tf.Tensor]] = [[] for _ in range(self._layers)]
        self._last: List[List[tf.Tensor]] = [[] for _ in range(self._layers)]
        adapter = self._spec.adapter
        assert isinstance(adapter, AdapterConfig)
        assigner = WeightAssigner(trainer.weights.assignments)
        with tf.Graph().as_default() as graph:
            input_fn = split.scoring_input_fn(trainer.settings, self._spec.head.label_types)
            iterator = tf.data.make_initializable_iterator(input_fn({"batch_size": split.batch_size}))
            self._batch: Dict[str, tf.Tensor] = iterator.get_next()
            # As in `ModelFn.forward`, for bit-identical results.
            splits = trainer.settings.device.splits_batches
            build = functools.partial(self._build, share_layers=splits)
            with assigner.creating_variables(), last_layers_recorded(adapter, self._last), fused_ops.compiling(False):
                output = batch_splitting.run_in_two(build, self._batch) if splits else build(self._batch)
            self._predictions = self._spec.head.predictions(output, self._batch)
            self._session = tf.Session(graph=graph, config=estimators.session_config())
            assigner.load(self._session)
            self._session.run(iterator.initializer)

    def _build(self, features: Features, share_layers: bool) -> HeadOutput:
        model = modeling.BertModel(
            self._spec.config,
            False,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            scope="bert",
            adapter_fn=self._spec.adapter,
            share_layers=share_layers,
        )
        # `BertModel` returns layers as [B, S, D], reshaped from the matrices [B*S, D] that the next layers read.
        matrices = [layer.op.inputs[0] for layer in model.get_all_encoder_layers()]
        for known, tensor in zip(self._inputs, [model.get_embedding_output(), *matrices]):
            known.append(tensor)
        return self._spec.head.build(model, features, is_training=False)

    def predict(self) -> Iterator[List[SpanPredictions]]:
        """Yield the predictions for each batch: with all adapters, then without the spans that start at each layer."""
        fetches = {"batch": self._batch, "predictions": self._predictions}
        with self._session:
            while True:
                try:
                    values = self._session.run(fetches)
                except tf.errors.OutOfRangeError:
                    return
                yield [(None, values["predictions"])]
                batch = {self._batch[name]: value for name, value in values["batch"].items()}
                # Use a second run: fetching the inputs changes how TensorFlow fuses operations, and thus rounding.
                for first, states in enumerate(self._session.run(self._inputs, batch)):
                    yield list(self._without_spans(batch, first, states))

    def _without_spans(
        self, batch: Mapping[tf.Tensor, np.ndarray], first: int, states: List[np.ndarray]
    ) -> Iterator[SpanPredictions]:
        """Yield the predictions for a batch without the spans that start at layer `first`, whose input is `states`."""
        for last in range(first, self._layers):
            zeros = {tensor: np.zeros(tensor.shape.as_list()) for tensor in self._last[last]}
            fed = {**batch, **zeros, **dict(zip(self._inputs[last], states))}
            above = self._inputs[last + 1 : last + 2]  # empty at the top
            predictions, following = self._session.run([self._predictions, above], fed)
            yield (first, last), predictions
            states = following[0] if following else []
