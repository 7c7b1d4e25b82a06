"""Layers that BERT is built from, with the names and arguments of Google's `modeling.py`, which re-exports them.

Axes: B batch, S (or F from, T to) sequence, D width. Variable names are those of Google's checkpoints.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors
from adapter_bert.model import fused_ops
from adapter_bert.model.dropout import dropout as scoped_dropout
from adapter_bert.model.dropout import next_pass
from adapter_layers import get_activation

LAYER_NORM_EPSILON = 1e-12

Size = Union[int, tf.Tensor]  # of an axis: an integer if static, a scalar if dynamic


# --------------------------------------------------------------------------------------------- shapes


def get_shape_list(
    tensor: tf.Tensor, expected_rank: Union[int, Sequence[int], None] = None, name: Optional[str] = None
) -> List[Size]:
    """Return the shape as integers where static and as scalar tensors where dynamic; see `assert_rank`."""
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    static = tensor.shape.as_list()
    dynamic: Any = tf.shape(tensor) if None in static else None
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def assert_rank(tensor: tf.Tensor, expected_rank: Union[int, Sequence[int]], name: Optional[str] = None) -> None:
    """Raise ValueError unless the tensor has the expected rank, or one of them; `name` is for the message."""
    ranks = [expected_rank] if isinstance(expected_rank, int) else list(expected_rank)
    if tensor.shape.ndims not in ranks:
        raise ValueError(
            f"{name or tensor.name} has rank {tensor.shape.ndims} (shape {tensor.shape}); expected rank "
            f"{' or '.join(map(str, ranks))}."
        )


def reshape_to_matrix(input_tensor: tf.Tensor) -> tf.Tensor:
    """Join all axes but the last: [..., D] -> [rows, D]. Raise ValueError for a rank below 2."""
    if input_tensor.shape.ndims < 2:
        raise ValueError(f"{input_tensor.name} has shape {input_tensor.shape}; expected at least two axes.")
    return input_tensor if input_tensor.shape.ndims == 2 else tf.reshape(input_tensor, [-1, input_tensor.shape[-1]])


def reshape_from_matrix(output_tensor: tf.Tensor, orig_shape_list: Sequence[Size]) -> tf.Tensor:
    """Undo `reshape_to_matrix`, given the shape before; the width may have changed."""
    if len(orig_shape_list) == 2:
        return output_tensor
    return tf.reshape(output_tensor, [*orig_shape_list[:-1], get_shape_list(output_tensor)[-1]])


# --------------------------------------------------------------------------------------------- layers


def create_initializer(initializer_range: float = 0.02) -> Callable:
    """Return the initializer of BERT's weights."""
    return tf.truncated_normal_initializer(stddev=initializer_range)


def dense(
    x: tf.Tensor, units: int, name: str, initializer_range: float, activation: Union[str, Callable, None] = None
) -> tf.Tensor:
    """Apply a fully connected layer to [rows, width], with variables `kernel` and `bias` in the scope `name`."""
    act = get_activation(activation)
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [x.shape.as_list()[-1], units], initializer=create_initializer(initializer_range)
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        y = tf.nn.bias_add(tf.matmul(x, fused_ops.converted(kernel, x)), fused_ops.converted(bias, x))
        return y if act is None else act(y)


def add_and_norm(x: tf.Tensor, residual: Optional[tf.Tensor] = None) -> tf.Tensor:
    """Add the residual, if any, to [rows, D] and normalize each row, with variables in the scope `LayerNorm`."""
    with tf.variable_scope("LayerNorm"):
        return _normalize(x, residual)


def _normalize(x: tf.Tensor, residual: Optional[tf.Tensor] = None) -> tf.Tensor:
    """Add the residual and normalize [rows, D], with trained scale `gamma` and shift `beta`."""
    width = x.shape.as_list()[-1]
    collections = ["layer_norm", tf.GraphKeys.GLOBAL_VARIABLES]  # as in Google's adapter-bert
    beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer(), collections=collections)
    gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer(), collections=collections)
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    if gamma.shape.ndims == 1:
        return fused_ops.layer_norm(x, residual, gamma, beta, LAYER_NORM_EPSILON)
    # Each of B examples has its own scale and shift, [B, D]. The rows belong to the examples in order.
    shape = [tf.shape(gamma)[0], -1, width]
    x, residual = tf.reshape(x, shape), None if residual is None else tf.reshape(residual, shape)
    y = fused_ops.layer_norm(x, residual, gamma[:, tf.newaxis, :], beta[:, tf.newaxis, :], LAYER_NORM_EPSILON)
    return tf.reshape(y, [-1, width])


def layer_norm(input_tensor: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    """Normalize over the last axis, with trained scale and shift in the scope `name`.

    By default the scope is the first free one of `LayerNorm`, `LayerNorm_1` and so on.
    """
    with tf.variable_scope(name, default_name="LayerNorm"):
        shape = get_shape_list(input_tensor)
        rows = input_tensor if len(shape) == 2 else tf.reshape(input_tensor, [-1, shape[-1]])
        return reshape_from_matrix(_normalize(rows), shape)


def dropout(input_tensor: tf.Tensor, dropout_prob: Optional[float]) -> tf.Tensor:
    """Set elements to zero with this probability; None or 0 returns the tensor unchanged.

    Several calls in one variable scope drop different elements.
    """
    with next_pass():
        return scoped_dropout(input_tensor, dropout_prob)


def layer_norm_and_dropout(
    input_tensor: tf.Tensor, dropout_prob: Optional[float], name: Optional[str] = None
) -> tf.Tensor:
    """Apply `layer_norm`, then `dropout`."""
    return dropout(layer_norm(input_tensor, name), dropout_prob)


# ----------------------------------------------------------------------------------------- embeddings


def embedding_lookup(
    input_ids: tf.Tensor,
    vocab_size: int,
    embedding_size: int = 128,
    initializer_range: float = 0.02,
    word_embedding_name: str = "word_embeddings",
    use_one_hot_embeddings: bool = False,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Return the embeddings of ids [B, S], float [B, S, D], and their table [vocab_size, D].

    If there are several ids for each position, [B, S, n], their embeddings are concatenated: [B, S, n * D].
    """
    table = tf.get_variable(
        word_embedding_name, [vocab_size, embedding_size], initializer=create_initializer(initializer_range)
    )
    if use_one_hot_embeddings:
        kind = table.dtype.base_dtype
        flat = tf.one_hot(tf.reshape(input_ids, [-1]), depth=vocab_size, dtype=kind)  # [B*S, vocab_size]
        output = tf.reshape(tf.matmul(flat, table), [*get_shape_list(input_ids), embedding_size])
    else:
        output = tf.gather(table, input_ids)
    if input_ids.shape.ndims != 2:
        *outer, inputs = get_shape_list(input_ids)
        output = tf.reshape(output, [*outer, inputs * embedding_size])
    return output, table


def embedding_postprocessor(
    input_tensor: tf.Tensor,
    use_token_type: bool = False,
    token_type_ids: Optional[tf.Tensor] = None,
    token_type_vocab_size: int = 16,
    token_type_embedding_name: str = "token_type_embeddings",
    use_position_embeddings: bool = True,
    position_embedding_name: str = "position_embeddings",
    initializer_range: float = 0.02,
    max_position_embeddings: int = 512,
    dropout_prob: float = 0.1,
) -> tf.Tensor:
    """Add segment and position embeddings to word embeddings [B, S, D], then apply LayerNorm and dropout."""
    batch_size, seq_length, width = get_shape_list(input_tensor, expected_rank=3)
    initializer = create_initializer(initializer_range)
    output = tf.cast(input_tensor, tf.float32)  # the sum and its LayerNorm are float32 even if the tables are not
    if use_token_type:
        if token_type_ids is None:
            raise ValueError("use_token_type is True, but there are no token_type_ids.")
        segments = tf.get_variable(token_type_embedding_name, [token_type_vocab_size, width], initializer=initializer)
        # The segment table is tiny, so a one-hot product is faster than a gather on every device.
        one_hot = tf.one_hot(tf.reshape(token_type_ids, [-1]), depth=token_type_vocab_size)  # [B*S, types]
        added = tf.matmul(one_hot, fused_ops.converted(segments, one_hot))
        output += tf.reshape(added, [batch_size, seq_length, width])
    if use_position_embeddings:
        positions = tf.get_variable(position_embedding_name, [max_position_embeddings, width], initializer=initializer)
        if isinstance(seq_length, int):
            check_sequence_length(seq_length, max_position_embeddings)
        # If the length is dynamic, the slice fails at run time instead.
        added = tf.slice(positions, [0, 0], [seq_length, -1])  # [S, D], broadcast over the batch
        output += fused_ops.converted(added, output)
    output = add_and_norm(tf.reshape(output, [-1, width]))
    return tf.reshape(scoped_dropout(output, dropout_prob), [batch_size, seq_length, width])


def check_sequence_length(seq_length: int, max_position_embeddings: int) -> None:
    """Raise `errors.UserError` if sequences are longer than the model has positions."""
    if seq_length > max_position_embeddings:
        raise errors.UserError(
            f"Cannot use sequence length {seq_length}: the BERT model supports at most "
            f"{max_position_embeddings} tokens (max_position_embeddings)."
        )


# ------------------------------------------------------------------------------------- attention masks


def create_attention_mask_from_input_mask(from_tensor: tf.Tensor, to_mask: tf.Tensor) -> tf.Tensor:
    """Let every position attend to all real tokens: [B, F, ...] and a mask [B, T] give float [B, F, T]."""
    batch_size, from_length = get_shape_list(from_tensor, expected_rank=[2, 3])[:2]
    to_length = get_shape_list(to_mask, expected_rank=2)[1]
    mask = tf.cast(tf.reshape(to_mask, [batch_size, 1, to_length]), tf.float32)
    return tf.ones([batch_size, from_length, 1]) * mask


def bias_of_mask(mask: tf.Tensor) -> tf.Tensor:
    """Return the bias of attention scores: 0 where the mask is 1, -10000 where it is 0."""
    return (1.0 - tf.cast(mask, tf.float32)) * -10000.0


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """Return the bias of attention scores: 0 for real tokens, -10000 for padding. [B, T] -> [B, 1, 1, T].

    All layers and heads share it: it is broadcast over the scores [B, N, F, T].
    """
    return bias_of_mask(input_mask[:, tf.newaxis, tf.newaxis, :])
