"""The network: embeddings of words or texts, n-gram convolutions, hidden layers, and a linear model of the words.

deep tower    embeddings -> [convolutions of 1 to n words -> maximum over the text] -> hidden layers -> logits
wide tower    words of the text, one-hot -> logits
logits        their sum
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.baselines.settings import NetworkSettings
from adapter_bert.common.cached_property import cached_property
from adapter_bert.model import batch_norm, parameters, precision
from adapter_bert.model.dropout import dropout
from adapter_bert.model.heads import ClassificationHead, HeadOutput, LabelHead

Features = Mapping[str, tf.Tensor]
ACTIVATIONS: Dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": tf.nn.leaky_relu,
    "swish": lambda x: x * tf.sigmoid(x),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
}
# Features of a batch: numbers of its words (0 for padding), and vectors of its texts if the module is frozen.
WORDS, VECTORS = "words", "vectors"
# Variables with the embeddings of the words of the training split, of other words, and of a module that is trained.
TRAINED_WORDS, OTHER_WORDS, MODULE = "module/embeddings", "module/other_embeddings", "module/"
_DEEP, _WIDE = "deep", "wide"
_STATISTICS = ("moving_mean", "moving_variance")
# Names of the variables of TensorFlow's optimizers.
_SLOTS = {_DEEP: ("Adagrad",), _WIDE: ("Ftrl", "Ftrl_1")}
_EPSILON = 1e-3
_LOWEST = -1e9


class Sizes(NamedTuple):
    """What the data and the module determine."""

    train_words: int
    other_words: int
    width: int  # of an embedding


@dataclasses.dataclass(frozen=True)
class NetworkSpec:
    """The network of a run; has the attributes of a `ModelSpec` that the training code reads."""

    network: NetworkSettings
    head: LabelHead
    sizes: Sizes
    # Adds a module that is fine-tuned as a whole to the graph: features -> float [B, width]; None for others.
    module: Optional[Any] = None

    precision = precision.FLOAT32

    @property
    def uses_vectors(self) -> bool:
        """Whether the embedding of a text is a feature, computed once."""
        return not (self.network.use_convolution or self.network.fine_tune_module)

    @cached_property
    def shapes(self) -> parameters.Shapes:
        """Name -> shape of every variable, in the order of the graph."""
        with tf.Graph().as_default():
            features = {WORDS: tf.zeros([1, 1], tf.int32), VECTORS: tf.zeros([1, self.sizes.width])}
            if self.module:
                features.update(self.module.placeholders())
            self.logits(features, is_training=False)
            variables = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
            return {optimization.variable_name(each): tuple(each.shape.as_list()) for each in variables}

    @cached_property
    def trained_names(self) -> List[str]:
        """Names of the variables that training changes, with moving averages."""
        if self.network.fine_tune_module:
            return [name for name in self.shapes if name != OTHER_WORDS]
        return [name for name in self.shapes if not name.startswith(MODULE)]

    @cached_property
    def frozen_names(self) -> List[str]:
        """Names of all other variables."""
        trained = set(self.trained_names)
        return [name for name in self.shapes if name not in trained]

    @property
    def trained_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of the trained variables."""
        return {name: self.shapes[name] for name in self.trained_names}

    @property
    def slot_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of the variables of the optimizers."""
        return {
            f"{name}/{slot}": shape
            for name, shape in self.trained_shapes.items()
            if not name.endswith(_STATISTICS)
            for slot in _SLOTS[tower_of(name)]
        }

    def parameter_counts(self) -> Dict[str, int]:
        """Return the number of parameters, `total` and `trained`."""
        return {
            "total": parameters.count(self.shapes),
            "trained": parameters.count(self.shapes, self.trained_names),
        }

    def reduced_names(self, trains: bool) -> List[str]:
        """Return the variables to store in less than 32 bits: none."""
        return []

    # ------------------------------------------------------------------------------------------- the graph

    def forward(self, features: Features, is_training: bool) -> HeadOutput:
        """Build the network and the loss for a batch."""
        return self.head.output(self.logits(features, is_training), features, is_training)

    def logits(self, features: Features, is_training: bool) -> tf.Tensor:
        """Build both towers: float [B, classes], or [B, 1] in regression."""
        rate = functools.partial(_rate, is_training)
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            if self.network.use_convolution:
                x = self._convolve(features[WORDS], rate, is_training)
            else:
                x = self._text_vectors(features)
            for number in range(self.network.hidden_layers):
                with tf.variable_scope(f"{_DEEP}/hidden_{number}"):
                    x = self._hidden_layer(x, rate, is_training)
            classes = self.head.num_labels if isinstance(self.head, ClassificationHead) else 1
            with tf.variable_scope(_DEEP):
                deep = _dense(x, classes)
            return deep + self._wide(features[WORDS], classes)

    def _text_vectors(self, features: Features) -> tf.Tensor:
        if self.module:
            return self.module.build(features)
        if self.uses_vectors:
            return tf.reshape(features[VECTORS], [-1, self.sizes.width])
        words = features[WORDS]
        vectors, mask = self._word_vectors(words)
        return tf.reduce_sum(vectors, axis=1) * _root_count(mask)

    def _word_vectors(self, words: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Return float [B, T, width], zero for padding, and float [B, T, 1], which is 1 for words."""
        count, others, width = self.sizes
        trains = self.network.fine_tune_module
        zeros = tf.zeros_initializer()
        known = tf.get_variable(TRAINED_WORDS, [max(count, 1), width], initializer=zeros, trainable=trains)
        other = tf.get_variable(OTHER_WORDS, [max(others, 1), width], initializer=zeros, trainable=False)
        mask = tf.cast(words > 0, tf.float32)[:, :, tf.newaxis]
        is_known = tf.cast(words <= count, tf.float32)[:, :, tf.newaxis]
        # Two gathers instead of one from both tables, so that the gradient stays sparse.
        from_known = tf.gather(known, tf.clip_by_value(words - 1, 0, max(count, 1) - 1))
        from_other = tf.gather(other, tf.clip_by_value(words - 1 - count, 0, max(others, 1) - 1))
        return (from_known * is_known + from_other * (1.0 - is_known)) * mask, mask

    def _convolve(self, words: tf.Tensor, rate: Callable[[float], float], is_training: bool) -> tf.Tensor:
        network = self.network
        vectors, mask = self._word_vectors(words)  # [B, T, D]
        with tf.variable_scope(f"{_DEEP}/words"):
            vectors = dropout(vectors, rate(network.conv_embedding_dropout))
        found = []
        for length in range(1, network.conv_max_ngram + 1):
            with tf.variable_scope(f"{_DEEP}/ngrams_{length}"):
                kernel = _weights("kernel", [length, self.sizes.width, network.conv_filters])
                bias = tf.get_variable("bias", [network.conv_filters], initializer=tf.zeros_initializer())
                x = tf.nn.conv1d(vectors, kernel, 1, "SAME") + bias  # [B, T, filters]
                if network.conv_batch_norm:
                    rows = tf.reshape(x, [-1, network.conv_filters])
                    normed = _batch_norm(rows, tf.reshape(mask, [-1, 1]) if is_training else None)
                    x = tf.reshape(normed, tf.shape(x))
                x = ACTIVATIONS[network.conv_activation](x)
                # A text without words has only padding: its maximum would be that of nothing.
                highest = tf.reduce_max(x * mask + _LOWEST * (1.0 - mask), axis=1)
                found.append(tf.where(highest > _LOWEST / 2, highest, tf.zeros_like(highest)))
        with tf.variable_scope(f"{_DEEP}/ngrams"):
            joined = tf.concat(found, axis=1)
            joined.set_shape([None, network.conv_filters * network.conv_max_ngram])
            return dropout(joined, rate(network.conv_dropout))

    def _hidden_layer(self, x: tf.Tensor, rate: Callable[[float], float], is_training: bool) -> tf.Tensor:
        network = self.network
        x = _dense(x, network.hidden_size)
        if network.hidden_norm == "batch":
            x = _batch_norm(x, tf.ones([tf.shape(x)[0], 1]) if is_training else None)
        elif network.hidden_norm == "layer":
            x = _scaled(x, *tf.nn.moments(x, [1], keep_dims=True))
        return dropout(ACTIVATIONS[network.hidden_activation](x), rate(network.hidden_dropout))

    def _wide(self, words: tf.Tensor, classes: int) -> tf.Tensor:
        """Return float [B, classes]: the sum of the weights of a text's words over their root count.

        Words that the training split lacks share their weights, which stay at zero.
        """
        count = self.sizes.train_words
        with tf.variable_scope(_WIDE):
            table = tf.get_variable("weights", [count + 1, classes], initializer=tf.zeros_initializer())
        mask = tf.cast((words > 0) & (words <= count), tf.float32)[:, :, tf.newaxis]
        weights = tf.gather(table, tf.where(words <= count, words, tf.zeros_like(words)))
        return tf.reduce_sum(weights * mask, axis=1) * _root_count(mask)


def tower_of(name: str) -> str:
    """Return the tower of a variable. A module that is trained belongs to the deep one."""
    return _WIDE if name.startswith(_WIDE + "/") else _DEEP


def _rate(is_training: bool, rate: float) -> float:
    return rate if is_training else 0.0


def _root_count(mask: tf.Tensor) -> tf.Tensor:
    """Return float [B, 1]: one over the root of the number of words."""
    return tf.math.rsqrt(tf.maximum(tf.reduce_sum(mask, axis=1), 1.0))


def _weights(name: str, shape: List[int]) -> tf.Variable:
    deviation = 1.0 / math.sqrt(functools.reduce(operator.mul, shape[:-1]))
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=deviation))


def _dense(x: tf.Tensor, units: int) -> tf.Tensor:
    kernel = _weights("kernel", [x.shape.as_list()[-1], units])
    return tf.matmul(x, kernel) + tf.get_variable("bias", [units], initializer=tf.zeros_initializer())


def _batch_norm(x: tf.Tensor, real_rows: Optional[tf.Tensor]) -> tf.Tensor:
    return _scaled(x, *batch_norm.statistics(x, real_rows))


def _scaled(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    shape = x.shape.as_list()[-1:]
    scale = tf.get_variable("gamma", shape, initializer=tf.ones_initializer())
    offset = tf.get_variable("beta", shape, initializer=tf.zeros_initializer())
    return (x - mean) * tf.math.rsqrt(variance + _EPSILON) * scale + offset


# ------------------------------------------------------------------------------------------------------- training


def train_op(network: NetworkSettings, loss: tf.Tensor) -> tf.Operation:
    """Return the operation that updates both towers, each with its own optimizer, and then the step."""
    variables = tf.trainable_variables()
    towers = {tower: [each for each in variables if tower_of(each.op.name) == tower] for tower in (_DEEP, _WIDE)}
    weights = {_DEEP: network.deep_l2, _WIDE: network.wide_l2}
    total = loss
    for tower, members in towers.items():
        # Neither biases nor embeddings, whose gradient must stay sparse.
        kernels = [each for each in members if each.op.name.endswith(("/kernel", "/weights"))]
        if weights[tower]:
            total += weights[tower] * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
    gradients = tf.gradients(total, variables)
    by_variable = {each.op.name: gradient for each, gradient in zip(variables, gradients)}
    optimizers = {
        _DEEP: tf.train.AdagradOptimizer(network.deep_learning_rate),
        _WIDE: tf.train.FtrlOptimizer(network.wide_learning_rate),
    }
    tf.add_to_collection(optimization.LEARNING_RATE, tf.constant(network.deep_learning_rate))
    updates: List[tf.Operation] = list(tf.get_collection(batch_norm.UPDATES))
    for tower, members in towers.items():
        updates.append(optimizers[tower].apply_gradients([(by_variable[each.op.name], each) for each in members]))
    with tf.control_dependencies(updates):
        return tf.assign_add(tf.train.get_or_create_global_step(), 1).op
