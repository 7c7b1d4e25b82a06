"""One graph with a base and the weights of many tasks, which come and go while the graph runs.

Every variable that packs train (LayerNorms, adapters, heads) is here a list of tensors, with one element for each slot
of a table. A task occupies a slot. Two kinds of network read the lists:

    shared    all examples of a batch belong to one task: the network uses the elements of its slot, without a copy
    mixed     each example gathers the elements of its own slot: weights [B, d, m] in place of [d, m]

Both compute the same values. A slot is written before the first batch that reads it and emptied after the last one, so
readers need no lock. Lists grow without a new graph, and elements have the sizes of their packs; only elements that are
gathered together must have equal sizes, see `Family`.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.devices import estimators
from adapter_bert.model import fused_ops, heads, parameters
from adapter_bert.model.precision import FLOAT32
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.loading import Assignment
from adapter_layers import AdapterConfig

# What a network computes for each example: logits of the classes or the predicted number, float [units]; logits of each
# token as the first and the last of the answer, float [2, S]; the pooled output, float [D].
LABEL, SPAN, POOLED = "label", "span", "pooled"

# Sizes in the table of adapters, and of heads for classes, are powers of two and at least this.
_LEAST_SIZE = 8
# Axes of an adapter's variables whose size is that of the adapter.
_ADAPTER_AXES = {"weights1": [1], "biases1": [1], "weights2": [0]}
_BIASES = ("biases1", "biases2")

Tensors = Mapping[str, np.ndarray]
Shape = Sequence[Optional[int]]
# From slots [B] (of which a shared network reads the first), ids, mask and segments [B, S] to float [B, …].
Run = Callable[..., np.ndarray]


class Family(NamedTuple):
    """What tasks have in common whose examples may share a batch."""

    kind: str  # LABEL, SPAN or POOLED
    adapter: Optional[AdapterConfig] = None  # of any size if it is in the table
    size: int = 0  # of the adapter, in the table
    units: int = 0  # of the head, in the table


def table_size(size: int) -> int:
    """Return the size in the table of an adapter or head of this size; padding with zeros changes no result."""
    return max(_LEAST_SIZE, 1 << (size - 1).bit_length())


def head_names(kind: str) -> Tuple[str, str]:
    """Return the names of the weights and the bias of a head."""
    weights, bias = heads.make("span" if kind == SPAN else "regression", 0).shapes(1)
    return weights, bias


def table_names(config: modeling.BertConfig) -> List[str]:
    """Return the names of all variables in a table of tasks on this architecture."""
    shapes = parameters.bert_shapes(config, AdapterConfig())
    trained = [name for name in shapes if parameters.group_of(name) in ("adapters", "LayerNorm")]
    return [*trained, *head_names(LABEL), *head_names(SPAN)]


def table_shape(name: str, shape: Shape, size: Optional[int], units: Optional[int]) -> List[Optional[int]]:
    """Return the shape in the table of a variable of this shape, given the sizes of adapter and head there."""
    if name in (*head_names(LABEL), *head_names(SPAN)):
        return [units, *shape[1:]]
    axes = _ADAPTER_AXES.get(name.rpartition("/")[2], [])
    return [size if axis in axes else length for axis, length in enumerate(shape)]


def padded(tensors: Tensors, family: Family) -> Dict[str, np.ndarray]:
    """Return the variables of a task with zeros appended up to their sizes in the table."""
    found = {}
    for name, tensor in tensors.items():
        shape = table_shape(name, tensor.shape, family.size, family.units)
        missing = [(0, (wanted or 0) - length) for wanted, length in zip(shape, tensor.shape)]
        found[name] = np.pad(tensor, missing, "constant") if any(map(any, missing)) else tensor
    return found


class TaskTable:
    """Lists of tensors in the default graph, one for each name, and the operations that change them."""

    def __init__(self, names: Collection[str], reduced: Collection[str], kind: str) -> None:
        """Create lists without slots; those whose names are in `reduced` hold elements of the type `kind`."""
        self._kinds = {name: tf.as_dtype(kind) if name in reduced else tf.float32 for name in names}
        self._lists: Dict[str, tf.Variable] = {}
        self._fed: Dict[str, tf.Tensor] = {}
        self._writes: Dict[str, tf.Operation] = {}
        self._resizes: List[tf.Operation] = []
        self._slot = tf.placeholder(tf.int32, [], "written_slot")
        self._capacity = tf.placeholder(tf.int32, [], "capacity")
        with tf.variable_scope("tasks", use_resource=True):
            for name in names:
                self._add_list(name)

    def _add_list(self, name: str) -> None:
        empty = tf.raw_ops.TensorListReserve(
            element_shape=tf.constant(-1), num_elements=0, element_dtype=self._kinds[name]
        )
        options: Any = {"trainable": False, "collections": ["tasks"], "validate_shape": False}
        variable = tf.get_variable(name, initializer=empty, **options)
        handle = variable.read_value()
        fed = tf.placeholder(tf.float32, None)
        # A copy: otherwise the list would share the memory of the array that is fed.
        item = tf.raw_ops.DeepCopy(x=tf.cast(fed, self._kinds[name]))
        written = tf.raw_ops.TensorListSetItem(input_handle=handle, index=self._slot, item=item)
        resized = tf.raw_ops.TensorListResize(input_handle=handle, size=self._capacity)
        self._lists[name], self._fed[name] = variable, fed
        self._writes[name] = variable.assign(written).op
        self._resizes.append(variable.assign(resized).op)

    def __contains__(self, name: str) -> bool:
        return name in self._lists

    def initialize(self, session: tf.Session) -> None:
        """Create the lists in a session."""
        session.run([variable.initializer for variable in self._lists.values()])

    def resize(self, session: tf.Session, capacity: int) -> None:
        """Change the number of slots."""
        session.run(self._resizes, {self._capacity: capacity})

    def write(self, session: tf.Session, slot: int, tensors: Tensors) -> None:
        """Set the elements of a slot with these names."""
        feed = {self._fed[name]: tensor for name, tensor in tensors.items()}
        session.run([self._writes[name] for name in tensors], {self._slot: slot, **feed})

    def element(self, name: str, slot: tf.Tensor, shape: Shape) -> tf.Tensor:
        """Return the element of a slot."""
        return self._read(tf.raw_ops.TensorListGetItem, name, shape, shape, index=slot)

    def rows(self, name: str, slots: tf.Tensor, shape: Shape) -> tf.Tensor:
        """Return the elements of several slots, [slots, …]."""
        return self._read(tf.raw_ops.TensorListGather, name, shape, [None, *shape], indices=slots)

    def _read(self, read: Callable, name: str, shape: Shape, result: Shape, **slots: tf.Tensor) -> tf.Tensor:
        sizes = tf.constant([-1 if size is None else size for size in shape])
        handle = self._lists[name].read_value()
        found = read(input_handle=handle, element_shape=sizes, element_dtype=self._kinds[name], **slots)
        found.set_shape(result)
        return found


class TaskGraph:
    """A base in a session, with a table of tasks. Any number of threads may use it."""

    def __init__(
        self,
        config: modeling.BertConfig,
        assignments: Sequence[Assignment],
        names: Collection[str],
        reduced: Collection[str] = (),
        kind: str = FLOAT32,
        adapter: Optional[AdapterConfig] = None,
    ) -> None:
        """Build the graph and load the weights of the base.

        Args:
          config: the architecture.
          assignments: the weights of all variables that are not in the table.
          names: names of the variables in the table.
          reduced: names of the variables to store in the precision `kind`.
          kind: the precision.
          adapter: of the first network.
        """
        self._config, self._precision = config, kind
        self._functions: Dict[Any, Run] = {}
        self._models: Dict[Any, modeling.BertModel] = {}
        self._free: List[int] = []
        self._lock = threading.Lock()  # held while the graph or the table changes
        self._is_open = True
        self.capacity = 0  # number of slots
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._slots = tf.placeholder(tf.int32, [None], "slots")
            features = ("input_ids", "input_mask", "segment_ids")
            self._inputs = [tf.placeholder(tf.int32, [None, None], name) for name in features]
            self._table = TaskTable(names, reduced, kind)
            self._assigner = WeightAssigner(assignments, reduced, kind)
            self._models[adapter, False] = self._build_model(adapter, False)
            self._session = tf.Session(graph=self._graph, config=estimators.serving_config())
            self._assigner.load(self._session)
            self._table.initialize(self._session)

    def write(self, tensors: Tensors) -> int:
        """Put the weights of a task into a free slot and return it. If there is none, double the number of slots."""
        with self._lock:
            if not self._free:
                added = max(self.capacity, 1)
                self._table.resize(self._session, self.capacity + added)
                self._free = list(range(self.capacity + added - 1, self.capacity - 1, -1))
                self.capacity += added
            self._table.write(self._session, self._free[-1], tensors)
            return self._free.pop()

    def erase(self, slot: int, names: Collection[str]) -> None:
        """Free a slot, whose elements have these names, and its memory."""
        with self._lock:
            if self._is_open:
                self._table.write(self._session, slot, dict.fromkeys(names, np.zeros([0], np.float32)))
                self._free.append(slot)

    def function(self, family: Family, is_mixed: bool) -> Run:
        """Return the function that computes batches of a family; the first call builds its graph."""
        network = family.adapter, is_mixed
        key = (family.kind, *network)
        if key not in self._functions:
            with self._lock, self._graph.as_default():
                if network not in self._models:
                    self._models[network] = self._build_model(*network)
                output = self._output(self._models[network], family.kind, is_mixed)
                self._functions[key] = self._session.make_callable(output, [self._slots, *self._inputs])
        return self._functions[key]

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._is_open = False
            self._session.close()

    def _weights(self, name: str, is_mixed: bool, shape: Shape) -> tf.Tensor:
        """Return a variable of each example; or that of the batch's task, for matrices with a new axis of size 1."""
        shape = table_shape(name, shape, None, None)
        if is_mixed:
            return self._table.rows(name, self._slots, shape)
        found = self._table.element(name, self._slots[0], shape)
        # Matrices of both networks have three axes. TensorFlow would fuse products of two axes with later additions,
        # which changes the order of the additions, and thus rounding.
        return tf.expand_dims(found, 0) if len(shape) == 2 and name.rpartition("/")[2] not in _BIASES else found

    def _build_model(self, adapter: Optional[AdapterConfig], is_mixed: bool) -> modeling.BertModel:
        """Build a network; all networks share the variables of the base."""
        read: Dict[str, tf.Tensor] = {}

        def get(getter: Callable, name: str, *args: Any, **options: Any) -> Any:
            if name not in self._table:
                return getter(name, *args, **options)
            if name not in read:
                read[name] = self._weights(name, is_mixed, options["shape"])
            return read[name]

        # TensorFlow 1.15 would create reference variables, which the session's executor does not support.
        scope = tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE, use_resource=True)
        with scope, self._assigner.creating_variables(), fused_ops.compiling(False), tf.variable_scope(
            tf.get_variable_scope(), custom_getter=get
        ):
            ids, mask, segments = self._inputs
            return modeling.BertModel(
                self._config, False, ids, mask, segments, False, "bert", adapter, precision=self._precision
            )

    def _output(self, model: modeling.BertModel, kind: str, is_mixed: bool) -> tf.Tensor:
        """Return what a network computes: the heads of `model.heads`, in a form in which rows do not affect others."""
        pooled = model.get_pooled_output()
        if kind == POOLED:
            return pooled
        weights_name, bias_name = head_names(kind)
        weights = self._weights(weights_name, is_mixed, [None, self._config.hidden_size])
        bias = self._weights(bias_name, is_mixed, [None])
        if not is_mixed:
            bias = tf.expand_dims(bias, 0)
        if kind == SPAN:
            return tf.matmul(weights, model.get_sequence_output(), transpose_b=True) + bias[:, :, tf.newaxis]
        return tf.reduce_sum(pooled[:, tf.newaxis, :] * weights, axis=-1) + bias
