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
from adapter_bert.model.adapter_config import MAX_SIZE, PAPER_SIZE
from adapter_bert.model.dropout import dropout as scoped_dropout
from adapter_bert.model.dropout import dropout_seed, next_pass
from adapter_bert.model.layers import (  # noqa: F401  (published names)
    Size,
    add_and_norm,
    assert_rank,
    attention_bias,
    bias_of_mask,
    check_sequence_length,
    create_attention_mask_from_input_mask,
    create_initializer,
    dense,
    dropout,
    embedding_lookup,
    embedding_postprocessor,
    get_shape_list,
    layer_norm,
    layer_norm_and_dropout,
    reshape_from_matrix,
    reshape_to_matrix,
)
from adapter_layers import gelu, gelu_erf, get_activation  # noqa: F401

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
        precision: str = "float32",
        frozen_layers: int = 0,
        frozen_output: Optional[tf.Tensor] = None,
    ) -> None:
        """Build the graph.

        Args:
          config: the architecture.
          is_training: whether to apply dropout, and to use the statistics of the batch for batch normalization.
          input_ids: int [B, S]; both sizes may be dynamic.
          input_mask: int [B, S], 0 for padding; None for no padding.
          token_type_ids: int [B, S]; None for all zeros.
          use_one_hot_embeddings: look up words with a matrix product (for TPUs) instead of a gather.
          scope: variable scope; `bert` by default.
          adapter_fn: see `adapter_layers.get_adapter`. None builds plain BERT.
          gradient_checkpointing: recompute the activations of each layer in the backward pass: less memory, steps take
            about 1.5 times as long.
          share_layers: build the graph faster, see `shared_layers`.
          precision: type of the products in encoder and pooler, and of the activations between them, see
            `model.precision`. The final outputs are float32.
          frozen_layers: number of lowest layers that, like the embeddings, run without dropout, so that their output
            depends only on the text. It is 0 for padding.
          frozen_output: this output if it is known, float [B, S, D]; the embeddings and these layers are not built. If
            all layers are frozen, [B, 1, D] is enough for the pooled output.
        """
        config.check("BertModel")
        if isinstance(adapter_fn, adapter_layers.AdapterConfig):
            adapter_fn.check_fits(config.num_hidden_layers)
        config = copy.copy(config)
        if not is_training:
            config.hidden_dropout_prob = 0.0
            config.attention_probs_dropout_prob = 0.0
        assert_rank(input_ids, 2)
        if input_mask is None:
            input_mask = tf.ones_like(input_ids, tf.int32)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids, tf.int32)

        with tf.variable_scope(scope, default_name="bert"), next_pass():
            if frozen_output is None:
                with tf.variable_scope("embeddings"):
                    sizes = config.vocab_size, config.hidden_size, config.initializer_range
                    words, self.embedding_table = embedding_lookup(
                        input_ids, *sizes, use_one_hot_embeddings=use_one_hot_embeddings
                    )
                    self.embedding_output = embedding_postprocessor(
                        words,
                        use_token_type=True,
                        token_type_ids=token_type_ids,
                        token_type_vocab_size=config.type_vocab_size,
                        initializer_range=config.initializer_range,
                        max_position_embeddings=config.max_position_embeddings,
                        dropout_prob=0.0 if frozen_layers else config.hidden_dropout_prob,
                    )
            with tf.variable_scope("encoder"):
                self.all_encoder_layers, self.first_token = encode(
                    tf.cast(self.embedding_output if frozen_output is None else frozen_output, precision),
                    attention_bias(input_mask),
                    config,
                    adapter_fn,
                    gradient_checkpointing,
                    share_layers,
                    is_training,
                    frozen_layers,
                    0 if frozen_output is None else frozen_layers,
                )
            self.sequence_output = tf.cast(self.all_encoder_layers[-1], tf.float32)
            with tf.variable_scope("pooler"):
                pooled = dense(self.first_token, config.hidden_size, "dense", config.initializer_range, tf.tanh)
                self.pooled_output = tf.cast(pooled, tf.float32)

    def get_pooled_output(self) -> tf.Tensor:
        """Return float [B, D]: the first token's last state through a tanh layer.

        The last layer is computed separately for this token (see `encode`), so the pooled output has no
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


def attend(
    queries: tf.Tensor,
    states: tf.Tensor,
    bias: tf.Tensor,
    batch_size: Size,
    config: BertConfig,
    activations: Sequence[Union[str, Callable, None]] = (None, None, None),
) -> tf.Tensor:
    """Apply multi-headed attention: tokens with states `queries` [B*F, D] attend to `states` [B*T, D].

    The bias is broadcast over the scores [B, N, F, T]; the activations are those of query, key and value. Return the
    output of the heads, float [B*F, N*H], before the projection.
    """
    heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def projected(x: tf.Tensor, name: str, activation: Union[str, Callable, None]) -> tf.Tensor:
        y = dense(x, config.hidden_size, name, config.initializer_range, activation)
        return tf.transpose(tf.reshape(y, [batch_size, -1, heads, head_size]), [0, 2, 1, 3])  # [B, N, S, H]

    inputs = {"query": queries, "key": states, "value": states}
    query, key, value = (projected(x, name, act) for (name, x), act in zip(inputs.items(), activations))
    rate = config.attention_probs_dropout_prob
    context = fused_ops.attention(query, key, value, bias, dropout_seed() if rate else None, rate)
    context = tf.transpose(context, [0, 2, 1, 3])  # [B, F, N, H]
    return tf.reshape(context, [-1, config.hidden_size])


def encode(
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    config: BertConfig,
    adapter_fn: adapter_layers.AdapterFn,
    gradient_checkpointing: bool = False,
    share_layers: bool = False,
    is_training: bool = False,
    frozen_layers: int = 0,
    first_layer: int = 0,
) -> Tuple[List[tf.Tensor], tf.Tensor]:
    """Build the stack of encoder layers on embeddings [B, S, D]; see `BertModel` for the other arguments.

    With a `first_layer` above 0, which may be the number of layers, `embeddings` are the input of this layer, and the
    layers below are left out.

    Return the output of each layer, float [B, S, D], starting with the lowest; and the last layer's output for the
    first token, float [B, D]. A graph that uses only the latter does not compute the last layer for other tokens. In
    training, its dropout masks differ from those of the full layer.
    """
    shape = get_shape_list(embeddings, expected_rank=3)
    batch_norm, real_rows = adapter_layers.has_batch_norm(adapter_fn), None
    normalizes = batch_norm and is_training
    if normalizes or frozen_layers:
        real_rows = tf.cast(tf.reshape(bias, [-1, 1]) > -1.0, tf.float32)  # [B*S, 1]
    adapt = adapter_layers.get_adapter(adapter_fn, real_rows if normalizes else None)
    without_dropout = copy.copy(config)
    without_dropout.hidden_dropout_prob = without_dropout.attention_probs_dropout_prob = 0.0

    def build(states: tf.Tensor, layer: int, first_only: bool = False) -> tf.Tensor:
        layer_config = without_dropout if layer < frozen_layers else config

        def apply(states: tf.Tensor, bias: tf.Tensor = bias) -> tf.Tensor:
            batch_size = bias.shape.as_list()[0] or tf.shape(bias)[0]
            queries = tf.reshape(states, [batch_size, -1, config.hidden_size])[:, 0, :] if first_only else states
            adapt_layer = functools.partial(adapt, layer=layer)
            return encoder_layer(queries, states, bias, batch_size, layer_config, adapt_layer)

        with tf.variable_scope(f"layer_{layer}", reuse=True if first_only else None):
            if gradient_checkpointing:
                return fused_ops.recomputed(apply, states)
            # Layers of static shapes may be compiled instead, and those with a function as adapter may differ. A
            # shared layer cannot update the statistics of batch normalization.
            if not share_layers or embeddings.shape.is_fully_defined() or callable(adapter_fn) or batch_norm:
                return apply(states)
            key = adapter_layers.describe(adapter_fn, layer), repr(sorted(layer_config.to_dict().items()))
            return shared_layers.build(key, first_only, apply, [states, bias], dropout_seed)

    # Keep two axes throughout: reshapes are free on a CPU but not on a TPU.
    states = [tf.reshape(embeddings, [-1, config.hidden_size])]
    for layer in range(first_layer, config.num_hidden_layers):
        states.append(build(states[-1], layer))
        if layer + 1 == frozen_layers:
            states[-1] *= tf.cast(real_rows, states[-1].dtype)
    outputs = [tf.reshape(output, shape) for output in states[1:] or states]
    if len(states) > 1 and not normalizes:
        return outputs, build(states[-2], config.num_hidden_layers - 1, first_only=True)
    # The first tokens alone would have different statistics.
    return outputs, outputs[-1][:, 0, :]


def encoder_layer(
    queries: tf.Tensor,
    states: tf.Tensor,
    bias: tf.Tensor,
    batch_size: Size,
    config: BertConfig,
    adapt: Callable,
) -> tf.Tensor:
    """Build one layer: attention, then the feed-forward sub-layer. Return float [B*F, D].

    `states` [B*S, D] is the layer's input for all tokens, `queries` [B*F, D] for those whose output is needed;
    `adapt(output, sublayer=…, source=input)` applies the adapter of a sub-layer.
    """
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = attend(queries, states, bias, batch_size, config)
        attended = _project_and_add(context, queries, config, adapt, "attention")
    with tf.variable_scope("intermediate"):
        wide = dense(attended, config.intermediate_size, "dense", config.initializer_range, config.hidden_act)
    return _project_and_add(wide, attended, config, adapt, "feedforward")


def _project_and_add(
    x: tf.Tensor, residual: tf.Tensor, config: BertConfig, adapt: Callable, sublayer: str
) -> tf.Tensor:
    """Apply the end of a sub-layer: projection, dropout, adapter, residual and LayerNorm."""
    with tf.variable_scope("output"):
        y = dense(x, config.hidden_size, "dense", config.initializer_range)
        y = scoped_dropout(y, config.hidden_dropout_prob)
        return add_and_norm(adapt(y, sublayer=sublayer, source=residual), residual)


# ------------------------------------------------------- the original's arguments, for code that uses them


def attention_layer(
    from_tensor: tf.Tensor,
    to_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    num_attention_heads: int = 1,
    size_per_head: int = 512,
    query_act: Union[str, Callable, None] = None,
    key_act: Union[str, Callable, None] = None,
    value_act: Union[str, Callable, None] = None,
    attention_probs_dropout_prob: float = 0.0,
    initializer_range: float = 0.02,
    do_return_2d_tensor: bool = False,
    batch_size: Optional[Size] = None,
    from_seq_length: Optional[Size] = None,
    to_seq_length: Optional[Size] = None,
) -> tf.Tensor:
    """Let `from_tensor` [B, F, width] attend to `to_tensor` [B, T, width]; return float [B, F, N*H] or [B*F, N*H].

    The mask is [B, F, T], 0 where a position must not attend to another. Matrices [B*F, width] and [B*T, width] are
    accepted together with `batch_size`, `from_seq_length` and `to_seq_length`.
    """
    shape, to_shape = (get_shape_list(tensor, expected_rank=[2, 3]) for tensor in (from_tensor, to_tensor))
    if len(shape) != len(to_shape):
        raise ValueError(f"from_tensor has rank {len(shape)} and to_tensor rank {len(to_shape)}; expected the same.")
    if len(shape) == 3:
        batch_size, from_seq_length = shape[:2]
    elif batch_size is None or from_seq_length is None or to_seq_length is None:
        raise ValueError("Matrices need batch_size, from_seq_length and to_seq_length.")
    width = num_attention_heads * size_per_head
    config = BertConfig(1, width, num_attention_heads=num_attention_heads, initializer_range=initializer_range)
    config.attention_probs_dropout_prob = attention_probs_dropout_prob or 0.0
    queries, states = reshape_to_matrix(from_tensor), reshape_to_matrix(to_tensor)
    with next_pass():
        activations = (query_act, key_act, value_act)
        context = attend(queries, states, _bias(attention_mask), batch_size, config, activations)
    return context if do_return_2d_tensor else tf.reshape(context, [batch_size, from_seq_length, width])


def transformer_model(
    input_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    num_attention_heads: int = 12,
    intermediate_size: int = 3072,
    intermediate_act_fn: Union[str, Callable, None] = gelu,
    hidden_dropout_prob: float = 0.1,
    attention_probs_dropout_prob: float = 0.1,
    initializer_range: float = 0.02,
    do_return_all_layers: bool = False,
    adapter_fn: adapter_layers.AdapterFn = None,
) -> Union[tf.Tensor, List[tf.Tensor]]:
    """Build encoder layers on float [B, S, D] with a mask [B, S, S]; return the last output, or all, [B, S, D] each."""
    shape = get_shape_list(input_tensor, expected_rank=3)
    if hidden_size % num_attention_heads or shape[2] != hidden_size:
        raise ValueError(
            f"hidden_size is {hidden_size}; expected a multiple of num_attention_heads ({num_attention_heads}) and the "
            f"width of the input ({shape[2]})."
        )
    if adapter_layers.has_batch_norm(adapter_fn):
        raise errors.UserError(
            "transformer_model cannot build adapters with norm='batch', because it does not know whether the network "
            "is trained: use BertModel, or norm='layer'."
        )
    config = BertConfig(1, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size)
    config.hidden_act = get_activation(intermediate_act_fn) or "linear"
    config.hidden_dropout_prob = hidden_dropout_prob
    config.attention_probs_dropout_prob = attention_probs_dropout_prob or 0.0
    config.initializer_range = initializer_range
    bias, adapt = _bias(attention_mask), adapter_layers.get_adapter(adapter_fn)
    states = [reshape_to_matrix(input_tensor)]
    with next_pass():
        for layer in range(num_hidden_layers):
            with tf.variable_scope(f"layer_{layer}"):
                adapt_layer = functools.partial(adapt, layer=layer)
                states.append(encoder_layer(states[-1], states[-1], bias, shape[0], config, adapt_layer))
    outputs = [reshape_from_matrix(output, shape) for output in states]
    return outputs[1:] if do_return_all_layers else outputs[-1]


def _bias(attention_mask: Optional[tf.Tensor]) -> tf.Tensor:
    """Return the bias for a mask [B, F, T]; zero without one."""
    return tf.zeros([1, 1, 1, 1]) if attention_mask is None else bias_of_mask(attention_mask[:, tf.newaxis, :, :])


def feedforward_adapter(input_tensor: tf.Tensor, hidden_size: int = PAPER_SIZE, init_scale: float = 1e-3) -> tf.Tensor:
    """Apply `adapter_layers.feedforward_adapter` with the defaults of Google's adapter-bert."""
    return adapter_layers.feedforward_adapter(input_tensor, hidden_size, init_scale)


def get_adapter(function_string: Union[str, Callable, None]) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
    """Return an adapter function by its name, as adapter-bert does; None for no name. Functions are returned as is."""
    if not isinstance(function_string, str):
        return function_string
    if function_string and function_string.lower() != "feedforward_adapter":
        raise errors.unknown("adapter function", function_string, ["feedforward_adapter"])
    return feedforward_adapter if function_string else None


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
