"""A module that is fine-tuned as a whole: its graph becomes a part of the network, its weights variables of it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.network import MODULE
from adapter_bert.common import errors

INDICES, VALUES = "piece_indices", "piece_values"


class TrainedModule:
    """The graph of a module without lookup tables, e.g. a sentence encoder that reads SentencePiece pieces.

    Attributes:
      values: name -> initial value of the variables.
    """

    def __init__(self, module: TextModule) -> None:
        self._module = module
        with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
            output = module.load(session)
            variables = {each.op.name: each for each in tf.global_variables() if each.dtype.base_dtype == tf.float32}
            values = session.run(variables)
            node = output.split(":")[0]
            convert = tf.graph_util.convert_variables_to_constants
            self._graph_def = convert(session, graph.as_graph_def(), [node])
        tables = sorted({each.op for each in self._graph_def.node if "Table" in each.op})
        if tables or not module.reads_pieces:
            raise errors.UserError(
                f"--fine_tune_module=true: the graph of --hub_module={module.name} looks words up in tables "
                f"({', '.join(tables) or 'it reads strings'}) that only run frozen. Use --fine_tune_module=false, or "
                "--use_convolution=true, which trains its vectors of single words."
            )
        constants = {each.name for each in self._graph_def.node if each.op == "Const"}
        self.values: Dict[str, np.ndarray] = {
            MODULE + name: value for name, value in values.items() if name in constants
        }
        self._output = output

    def placeholders(self) -> Dict[str, tf.Tensor]:
        """Return features of an empty batch."""
        return {INDICES: tf.zeros([1, 2], tf.int64), VALUES: tf.zeros([1], tf.int64)}

    def encode(self, texts: Sequence[str]) -> Dict[str, np.ndarray]:
        """Return the features of a batch of texts."""
        pieces = self._module.pieces(texts)
        return {INDICES: pieces.indices, VALUES: pieces.values}

    def build(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Add the graph to the network: float [B, width]."""
        variables: Dict[str, Any] = {}
        for name, value in self.values.items():
            zeros = tf.zeros_initializer()
            variables[name[len(MODULE) :]] = tf.get_variable(name, value.shape, initializer=zeros)
        inputs = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        given = {"indices": tf.reshape(features[INDICES], [-1, 2]), "values": features[VALUES]}
        for name, tensor in self._module.signature.inputs.items():
            if name in given:
                inputs[tensor.name] = given[name]
        (vectors,) = tf.import_graph_def(self._graph_def, inputs, [self._output], name="trained_module")
        return tf.reshape(vectors, [-1, self._module.width])
