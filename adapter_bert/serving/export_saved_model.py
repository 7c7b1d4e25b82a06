"""Write a SavedModel that TensorFlow, TF-Serving and TensorFlow Hub load without this project.

    serving_default   texts, string [B] -> predictions, see `Network.outputs`; of a bank, also tasks, string [B]
    pairs             the same with second_texts, string [B]; an empty one means a single text

With ids instead of texts, `serving_default` takes input_ids, input_mask and segment_ids, int32 [B, S]. `__call__` of
the loaded model takes what `serving_default` takes (several tensors as a dictionary) and also returns `logits`, for
further training.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import tensorflow.compat.v2 as tf

from adapter_bert.serving import export_text, export_warmup
from adapter_bert.serving.export_network import Network
from adapter_bert.serving.export_source import ExportSource
from adapter_bert.serving.export_text import Features

TEXTS, SECOND_TEXTS, TASKS = "texts", "second_texts", "tasks"
IDS = ("input_ids", "input_mask", "segment_ids")
SERVING, PAIRS = "serving_default", "pairs"

# From named tensors to named tensors.
Function = Callable[[Mapping[str, tf.Tensor]], Dict[str, tf.Tensor]]


class ModelFunctions:
    """The functions of an exported model."""

    def __init__(self, source: ExportSource, network: Network, from_texts: bool) -> None:
        self._network = network
        self._tokenizer: Optional[export_text.TokenizerGraph] = None
        if from_texts:
            self._tokenizer = export_text.create(source.tokenizer, source.tokenizer_file)
        self._cls, self._sep = source.tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])

    def inputs(self, pairs: bool = False) -> Dict[str, tf.TensorSpec]:
        """Return the types of the inputs by name."""
        if self._tokenizer is None:
            found = {name: tf.TensorSpec([None, None], tf.int32, name) for name in IDS}
        else:
            names = [TEXTS, *([SECOND_TEXTS] if pairs else [])]
            found = {name: tf.TensorSpec([None], tf.string, name) for name in names}
        if self._network.is_bank:
            found[TASKS] = tf.TensorSpec([None], tf.string, TASKS)
        return found

    def predict(self, given: Mapping[str, tf.Tensor], with_logits: bool = False) -> Dict[str, tf.Tensor]:
        """Return the predictions for the inputs."""
        network = self._network
        tasks = network.task_indices(given[TASKS]) if network.is_bank else None
        if self._tokenizer is None:
            features = Features(*(given[name] for name in IDS))
        else:
            first = self._tokenizer(given[TEXTS])
            second = self._tokenizer(given[SECOND_TEXTS]) if SECOND_TEXTS in given else first[:, :0]
            features = export_text.pack_inputs(first, second, network.limits(tasks), self._cls, self._sep)
        logits = network.logits(features, tasks)
        found = network.outputs(logits, tasks)
        return {**found, "logits": logits} if with_logits else found

    def signature(self, pairs: bool = False) -> Any:
        """Return a function with one argument for each input."""
        specs = self.inputs(pairs)

        def run(*tensors: tf.Tensor) -> Dict[str, tf.Tensor]:
            return self.predict(dict(zip(specs, tensors)))

        return tf.function(run).get_concrete_function(*specs.values())

    def call(self, pairs: bool) -> Any:
        """Return the function for `__call__`."""
        specs = self.inputs(pairs)
        is_single = len(specs) == 1

        def run(inputs: Any) -> Dict[str, tf.Tensor]:
            return self.predict(dict.fromkeys(specs, inputs) if is_single else inputs, with_logits=True)

        return tf.function(run, input_signature=list(specs.values()) if is_single else [specs])

    def trackable(self, pairs: bool) -> tf.Module:
        """Return the object to save: a reusable SavedModel as TensorFlow Hub defines it."""
        variables = list(self._network.weights.values())
        saved = tf.train.Checkpoint(network=self._network)
        if self._tokenizer is not None:
            saved.tokenizer = self._tokenizer
        saved.__call__ = self.call(pairs)
        saved.variables = variables
        saved.trainable_variables = [variable for variable in variables if variable.trainable]
        saved.regularization_losses = []
        return saved

    def signatures(self, pairs: bool) -> Dict[str, Any]:
        """Return the signatures by name; with `pairs`, the default one takes pairs of texts."""
        if self._tokenizer is None:
            return {SERVING: self.signature()}
        both = self.signature(pairs=True)
        return {SERVING: both if pairs else self.signature(), PAIRS: both}


def write(folder: str, name: str, source: ExportSource, from_texts: bool, pairs: bool) -> None:
    """Write the model, which requests call `name`, into a folder."""
    functions = ModelFunctions(source, source.network(), from_texts)
    signatures = functions.signatures(pairs)
    tf.saved_model.save(functions.trackable(pairs), folder, signatures)
    logs = []
    for signature in signatures:
        specs = functions.inputs(from_texts and (pairs or signature == PAIRS))
        for inputs in export_warmup.requests(specs, list(source.tasks)):
            logs.append(export_warmup.prediction_log(name, signature, inputs))
    export_warmup.write(folder, logs)
