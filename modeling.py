"""BERT with adapters. Independent of flags and tasks.

Axes: B batch, S (or F from, T to) sequence, N heads, H head size, D hidden size.
Variable names are those of Google's checkpoints, which load unchanged.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import json
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

import adapter_layers
from adapter_bert.common import checkpoint_index, errors, json_files
from adapter_bert.model import fused_ops, shared_layers
from adapter_bert.model.adapter_config import MAX_SIZE
from adapter_bert.model.dropout import dropout, dropout_seed, next_pass
from adapter_layers import gelu, gelu_erf, get_activation  # noqa: F401  (published names)

LAYER_NORM_EPSILON = 1e-12
# More than any real BERT has. Building a graph with an absurd number of layers would take hours.
MAX_LAYERS = 64


@dataclasses.dataclass(eq=False)
class BertConfig:
    """The architecture of a BERT, as in `bert_config.json`."""

    vocab_size: int
    hidden_size: int = 768  # D, the width of every layer's output
    num_hidden_layers: int = 12
    num_attention_heads: int = 12  # N, a divisor of `hidden_size`
    intermediate_size: int = 3072  # width of the feed-forward sub-layer
    hidden_act: Union[str, Callable] = "gelu"  # a key of `adapter_layers.ACTIVATIONS`, or a function
    hidden_dropout_prob: float = 0.1  # of embeddings and sub-layer outputs
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512  # maximum sequence length
    type_vocab_size: int = 16  # number of segment types
    initializer_range: float = 0.02  # standard deviation of new weights

    @classmethod
    def from_dict(cls, json_object: Mapping[str, Any], where: str = "The BERT config") -> BertConfig:
        """Create a config from a dictionary; unknown keys become attributes. Error messages start with `where`."""
        config = cls(vocab_size=None)  # type: ignore[arg-type]
        for key, value in json_object.items():
            if key not in config.__dict__ and hasattr(config, key):  # would hide a method
                raise errors.UserError(f"{where}: the key {key!r} is not allowed.")
            setattr(config, key, value)
        return config

    @classmethod
    def from_json_file(cls, json_file: str) -> BertConfig:
        """Read a `bert_config.json`. Raise `errors.UserError` if it is missing or invalid."""
        config = cls.from_dict(json_files.read_object(json_file, "Use the bert_config.json of a BERT."), json_file)
        config.check(json_file)
        return config

    def check(self, where: str = "The BERT config") -> None:
        """Raise `errors.UserError`, starting with `where`, if a value is invalid."""
        for name in (field.name for field in dataclasses.fields(BertConfig) if field.name != "hidden_act"):
            value = getattr(self, name)
            if not name.endswith("_prob") and name != "initializer_range":
                maximum = MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE
                errors.check_int(f"{where}: {name}", value, maximum=maximum)
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise errors.UserError(
                    f"{where}: {name} must be a number of at least 0 and below 1, found {value!r:.60}."
                )
        if self.hidden_size % self.num_attention_heads:
            raise errors.UserError(
                f"{where}: hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}."
            )
        try:
            get_activation(self.hidden_act)
        except errors.UserError as error:
            raise errors.UserError(f"{where}: {error}") from None

    def to_dict(self) -> Dict[str, Any]:
        """Return a deep copy of the values."""
        return copy.deepcopy(self.__dict__)

    def to_json_string(self) -> str:
        """Return the values as the text of a `bert_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


class BertModel:
    """The encoder: embeddings, `num_hidden_layers` Transformer layers with adapters, pooler.

    The constructor builds the graph; the getters return its tensors.
    """

    def __init__(
        self,
        config: BertConfig,
        is_training: bool,
        input_ids: tf.Tensor,
        input_mask: Optional[tf.Tensor] = None,
        token_type_ids: Optional[tf.Tensor] = None,
        use_one_hot_embeddings: bool = False,
        scope: Optional[str] = None,
        adapter_fn: adapter_layers.AdapterFn = "feedforward_adapter",
        gradient_checkpointing: bool = False,
        share_layers: bool = False,
    ) -> None:
        """Build the graph.

        Args:
          config: the architecture.
          is_training: whether to apply dropout.
          input_ids: int [B, S]; both sizes may be dynamic.
          input_mask: int [B, S], 0 for padding; None for no padding.
          token_type_ids: int [B, S]; None for all zeros.
          use_one_hot_embeddings: look up words with a matrix product (for TPUs) instead of a gather.
          scope: variable scope; `bert` by default.
          adapter_fn: see `adapter_layers.get_adapter`. None builds plain BERT.
          gradient_checkpointing: recompute the activations of each layer in the backward pass: less memory, steps take
            about 1.5 times as long.
          share_layers: build the graph faster, see `shared_layers`.
        """
        config.check("BertModel")
        if isinstance(adapter_fn, adapter_layers.AdapterConfig):
            adapter_fn.check_fits(config.num_hidden_layers)
        config = copy.copy(config)
        if not is_training:
            config.hidden_dropout_prob = 0.0
            config.attention_probs_dropout_prob = 0.0
        _check_rank(input_ids, 2)
        if input_mask is None:
            input_mask = tf.ones_like(input_ids, tf.int32)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids, tf.int32)

        with tf.variable_scope(scope, default_name="bert"), next_pass():
            with tf.variable_scope("embeddings"):
                words, self.embedding_table = embedding_lookup(input_ids, config, use_one_hot_embeddings)
                self.embedding_output = embedding_postprocessor(words, token_type_ids, config)
            with tf.variable_scope("encoder"):
                self.all_encoder_layers, first_token = transformer_model(
                    self.embedding_output,
                    attention_bias(input_mask),
                    config,
                    adapter_fn,
                    gradient_checkpointing,
                    share_layers,
                )
            self.sequence_output = self.all_encoder_layers[-1]
            with tf.variable_scope("pooler"):
                self.pooled_output = dense(first_token, config.hidden_size, "dense", config, tf.tanh)

    def get_pooled_output(self) -> tf.Tensor:
        """Return float [B, D]: the first token's last state through a tanh layer.

        The last layer is computed separately for this token (see `transformer_model`), so the pooled output has no
        gradient with respect to `get_sequence_output`.
        """
        return self.pooled_output

    def get_sequence_output(self) -> tf.Tensor:
        """Return float [B, S, D]: the last layer's states."""
        return self.sequence_output

    def get_all_encoder_layers(self) -> List[tf.Tensor]:
        """Return the output of each encoder layer, float [B, S, D], starting with the lowest."""
        return self.all_encoder_layers

    def get_embedding_output(self) -> tf.Tensor:
        """Return float [B, S, D]: the input of the first encoder layer."""
        return self.embedding_output

    def get_embedding_table(self) -> tf.Tensor:
        """Return float [vocab_size, D]: the word embeddings."""
        return self.embedding_table


def create_initializer(initializer_range: float = 0.02) -> Callable:
    """Return the initializer of BERT's weights."""
    return tf.truncated_normal_initializer(stddev=initializer_range)


def layer_norm(x: tf.Tensor, residual: Optional[tf.Tensor] = None, name: str = "LayerNorm") -> tf.Tensor:
    """Add the residual, if any, and normalize over the last axis, with trained scale `gamma` and shift `beta`."""
    width = x.shape.as_list()[-1]
    with tf.variable_scope(name):
        beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
        gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
        return fused_ops.layer_norm(x, residual, gamma, beta, LAYER_NORM_EPSILON)


def dense(
    x: tf.Tensor, units: int, name: str, config: BertConfig, activation: Union[str, Callable, None] = None
) -> tf.Tensor:
    """Apply a fully connected layer to [rows, width], with variables `kernel` and `bias` in the scope `name`."""
    act = get_activation(activation)
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [x.shape.as_list()[-1], units], initializer=create_initializer(config.initializer_range)
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        y = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        return y if act is None else act(y)


def embedding_lookup(
    input_ids: tf.Tensor, config: BertConfig, use_one_hot_embeddings: bool = False
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Return the word embeddings [B, S, D] and their table [vocab_size, D]."""
    table = tf.get_variable(
        "word_embeddings",
        [config.vocab_size, config.hidden_size],
        initializer=create_initializer(config.initializer_range),
    )
    if not use_one_hot_embeddings:
        return tf.gather(table, input_ids), table
    flat = tf.one_hot(tf.reshape(input_ids, [-1]), depth=config.vocab_size)  # [B*S, vocab_size]
    return tf.reshape(tf.matmul(flat, table), get_shape_list(input_ids) + [config.hidden_size]), table


def embedding_postprocessor(words: tf.Tensor, token_type_ids: tf.Tensor, config: BertConfig) -> tf.Tensor:
    """Add segment and position embeddings to word embeddings [B, S, D], then apply LayerNorm and dropout."""
    batch_size, seq_length, width = get_shape_list(words, expected_rank=3)
    initializer = create_initializer(config.initializer_range)
    segments = tf.get_variable("token_type_embeddings", [config.type_vocab_size, width], initializer=initializer)
    # The segment table is tiny, so a one-hot product is faster than a gather on every device.
    one_hot = tf.one_hot(tf.reshape(token_type_ids, [-1]), depth=config.type_vocab_size)  # [B*S, types]
    output = words + tf.reshape(tf.matmul(one_hot, segments), [batch_size, seq_length, width])

    positions = tf.get_variable("position_embeddings", [config.max_position_embeddings, width], initializer=initializer)
    if isinstance(seq_length, int):
        check_sequence_length(seq_length, config)
    # If the length is dynamic, the slice fails at run time instead.
    output += tf.slice(positions, [0, 0], [seq_length, -1])  # [S, D], broadcast over the batch
    output = layer_norm(tf.reshape(output, [-1, width]))
    return tf.reshape(dropout(output, config.hidden_dropout_prob), [batch_size, seq_length, width])


def check_sequence_length(seq_length: int, config: BertConfig) -> None:
    """Raise `errors.UserError` if sequences are longer than the model has positions."""
    if seq_length > config.max_position_embeddings:
        raise errors.UserError(
            f"Cannot use sequence length {seq_length}: the BERT model supports at most "
            f"{config.max_position_embeddings} tokens (max_position_embeddings)."
        )


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """Return the bias of attention scores: 0 for real tokens, -10000 for padding. [B, T] -> [B, 1, 1, T].

    All layers and heads share it: it is broadcast over the scores [B, N, F, T].
    """
    return (1.0 - tf.cast(input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * -10000.0


def attention_layer(
    queries: tf.Tensor, states: tf.Tensor, bias: tf.Tensor, batch_size: Union[int, tf.Tensor], config: BertConfig
) -> tf.Tensor:
    """Apply multi-headed self-attention: tokens with states `queries` [B*F, D] attend to `states` [B*T, D].

    The bias is that of `attention_bias`. Return the output of the heads, float [B*F, D], before the projection.
    """
    heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def projected(x: tf.Tensor, name: str) -> tf.Tensor:
        y = dense(x, config.hidden_size, name, config)
        return tf.transpose(tf.reshape(y, [batch_size, -1, heads, head_size]), [0, 2, 1, 3])  # [B, N, S, H]

    query, key, value = projected(queries, "query"), projected(states, "key"), projected(states, "value")
    rate = config.attention_probs_dropout_prob
    context = fused_ops.attention(query, key, value, bias, dropout_seed() if rate else None, rate)
    context = tf.transpose(context, [0, 2, 1, 3])  # [B, F, N, H]
    return tf.reshape(context, [-1, config.hidden_size])


def transformer_model(
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    config: BertConfig,
    adapter_fn: adapter_layers.AdapterFn,
    gradient_checkpointing: bool = False,
    share_layers: bool = False,
) -> Tuple[List[tf.Tensor], tf.Tensor]:
    """Build the stack of encoder layers on embeddings [B, S, D]; see `BertModel` for the other arguments.

    Return the output of each layer, float [B, S, D], starting with the lowest; and the last layer's output for the
    first token, float [B, D]. A graph that uses only the latter does not compute the last layer for other tokens. In
    training, its dropout masks differ from those of the full layer.
    """
    shape = get_shape_list(embeddings, expected_rank=3)
    adapt = adapter_layers.get_adapter(adapter_fn)

    def build(states: tf.Tensor, layer: int, first_only: bool = False) -> tf.Tensor:
        def apply(states: tf.Tensor, bias: tf.Tensor = bias) -> tf.Tensor:
            batch_size = bias.shape.as_list()[0] or tf.shape(bias)[0]
            queries = tf.reshape(states, [batch_size, -1, config.hidden_size])[:, 0, :] if first_only else states
            return encoder_layer(queries, states, bias, batch_size, config, functools.partial(adapt, layer=layer))

        with tf.variable_scope(f"layer_{layer}", reuse=True if first_only else None):
            if gradient_checkpointing:
                return fused_ops.recomputed(apply, states)
            # Layers of static shapes may be compiled instead.
            if not share_layers or embeddings.shape.is_fully_defined():
                return apply(states)
            key = adapter_layers.describe(adapter_fn, layer), repr(sorted(config.to_dict().items()))
            return shared_layers.build(key, first_only, apply, [states, bias], dropout_seed)

    # Keep two axes throughout: reshapes are free on a CPU but not on a TPU.
    states = [tf.reshape(embeddings, [-1, config.hidden_size])]
    for layer in range(config.num_hidden_layers):
        states.append(build(states[-1], layer))
    first_token = build(states[-2], config.num_hidden_layers - 1, first_only=True)
    return [tf.reshape(output, shape) for output in states[1:]], first_token


def encoder_layer(
    queries: tf.Tensor,
    states: tf.Tensor,
    bias: tf.Tensor,
    batch_size: Union[int, tf.Tensor],
    config: BertConfig,
    adapt: Callable,
) -> tf.Tensor:
    """Build one layer: attention, then the feed-forward sub-layer. Return float [B*F, D].

    `states` [B*S, D] is the layer's input for all tokens, `queries` [B*F, D] for those whose output is needed;
    `adapt(tensor, sublayer=…)` applies the adapter.
    """
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = attention_layer(queries, states, bias, batch_size, config)
        attended = _project_and_add(context, queries, config, adapt, "attention")
    with tf.variable_scope("intermediate"):
        wide = dense(attended, config.intermediate_size, "dense", config, config.hidden_act)
    return _project_and_add(wide, attended, config, adapt, "feedforward")


def _project_and_add(
    x: tf.Tensor, residual: tf.Tensor, config: BertConfig, adapt: Callable, sublayer: str
) -> tf.Tensor:
    """Apply the end of a sub-layer: projection, dropout, adapter, residual and LayerNorm."""
    with tf.variable_scope("output"):
        y = dropout(dense(x, config.hidden_size, "dense", config), config.hidden_dropout_prob)
        return layer_norm(adapt(y, sublayer=sublayer), residual)


def get_shape_list(tensor: tf.Tensor, expected_rank: Optional[int] = None) -> List[Union[int, tf.Tensor]]:
    """Return the shape as integers where static and as scalar tensors where dynamic."""
    if expected_rank is not None:
        _check_rank(tensor, expected_rank)
    static = tensor.shape.as_list()
    dynamic: Any = tf.shape(tensor) if None in static else None
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def _check_rank(tensor: tf.Tensor, expected: int) -> None:
    if tensor.shape.ndims != expected:
        raise ValueError(
            f"{tensor.name} has rank {tensor.shape.ndims} (shape {tensor.shape}); expected rank {expected}."
        )


def get_assignment_map_from_checkpoint(
    tvars: Sequence[tf.Variable], init_checkpoint: str
) -> Tuple[Mapping[str, str], Dict[str, int]]:
    """Match the variables of a graph with those of a checkpoint by name.

    Return the assignment map for `tf.train.init_from_checkpoint`, and a dictionary with `name` and `name:0` of every
    matched variable (all values are 1).
    """
    wanted = {re.sub(r":\d+$", "", variable.name) for variable in tvars}
    is_folder = tf.gfile.IsDirectory(init_checkpoint)
    prefix = is_folder and tf.train.latest_checkpoint(init_checkpoint) or init_checkpoint
    found = checkpoint_index.read_shapes(prefix)
    assignment_map = collections.OrderedDict((name, name) for name in found if name in wanted)
    initialized = {form: 1 for name in assignment_map for form in (name, name + ":0")}
    return assignment_map, initialized
