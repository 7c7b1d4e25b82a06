"""The network of an exported model: one task, or the tasks of a bank, with TensorFlow 2's variables and functions."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v2 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.model import fused_ops, heads, parameters
from adapter_bert.serving import stacking
from adapter_bert.serving.export_text import Features
from adapter_bert.weights import packs
from adapter_layers import AdapterConfig

# Names of the outputs: see `Network.outputs`.
LABELS, PROBABILITIES, CLASSES, VALUES = "labels", "probabilities", "classes", "values"

# Added to the logits of classes that a task does not have.
_IMPOSSIBLE = -1e30
_UNKNOWN_TASK = -1

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportedTask:
    """A task to export."""

    name: str
    config: packs.PackConfig
    tensors: Tensors  # the trained variables
    max_seq_length: int

    @property
    def classes(self) -> List[str]:
        """The labels; empty for regression."""
        return list(self.config.labels)


def check_one(task: ExportedTask) -> None:
    """Raise a `UserError` if a task cannot be exported."""
    if task.config.head == "span":
        raise errors.UserError(
            f"The task {task.name} answers questions, which cannot be exported: expected a task that predicts labels "
            "or numbers. Use run_squad.py --do_predict=true, or Predictor.answer in Python."
        )


def check_together(tasks: Sequence[ExportedTask]) -> None:
    """Raise a `UserError`, which lists the tasks, if tasks cannot share a model."""
    problems = {}
    configs = [task.config for task in tasks if task.config.adapter_config]
    expected = configs[0].adapter_config.activation if configs else None  # type: ignore[union-attr]
    lower_case = tasks[0].config.tokenizer["do_lower_case"]
    for task in tasks:
        config, problem = task.config, stacking.obstacle(task.config)
        if config.head == "span":
            problem = "it answers questions"
        elif config.adapter_config and config.adapter_config.activation != expected:
            problem = problem or f"its adapters use {config.adapter_config.activation}, those of others {expected}"
        elif config.tokenizer["do_lower_case"] != lower_case:
            problem = problem or f"its do_lower_case is not {lower_case} as that of {tasks[0].name}"
        if problem:
            problems[task.name] = problem
    if problems:
        found = errors.first_names(f"{name} ({problem})" for name, problem in problems.items())
        raise errors.UserError(
            f"{len(problems)} of {len(tasks)} tasks cannot be exported together: {found}. Choose others with "
            "--tasks=NAME,NAME, or export one with --task=NAME."
        )


def _common_adapter(tasks: Sequence[ExportedTask]) -> Optional[AdapterConfig]:
    """Return adapters that contain those of all tasks: where a task has none, its weights are zeros."""
    found = [task.config.adapter_config for task in tasks]
    adapters = [adapter for adapter in found if adapter]
    if not adapters:
        return None
    placements, layers = {adapter.placement for adapter in adapters}, None
    if all(adapter.layers for adapter in adapters):
        layers = tuple(sorted({layer for adapter in adapters for layer in adapter.layers or ()}))
    placement = placements.pop() if len(placements) == 1 else "both"
    size = max(adapter.size for adapter in adapters)
    return AdapterConfig(size, adapters[0].activation, layers=layers, placement=placement)


class Network(tf.Module):
    """BERT with the weights of one task or, if `is_bank`, of many that a batch may mix.

    Attributes:
      weights: the variables, under Google's names; those of a bank's tasks have the task as their first axis.
    """

    def __init__(
        self, config: modeling.BertConfig, base: Tensors, tasks: Sequence[ExportedTask], is_bank: bool
    ) -> None:
        super().__init__()
        self.tasks, self.is_bank = tasks, is_bank
        self._config = config
        self._adapter = _common_adapter(tasks) if is_bank else tasks[0].config.adapter_config
        self._units = max(max(len(task.classes), 1) for task in tasks)
        head = heads.RegressionHead() if self._units == 1 else heads.ClassificationHead(self._units)
        self._head_names = tuple(head.shapes(1))
        shapes = parameters.model_shapes(config, head, self._adapter)
        trained = {name for task in tasks for name in task.tensors}
        # Variables that have a value for each task.
        self._own = {name for name in shapes if name in trained or parameters.group_of(name) == "adapters"}
        self.weights = {}
        for name, shape in shapes.items():
            if is_bank and name in self._own:
                value = self._stacked(name, shape, base)
            else:
                value = tasks[0].tensors[name] if name in tasks[0].tensors else base[name]
            is_trained = name in trained and not name.endswith(("moving_mean", "moving_variance"))
            self.weights[name] = tf.Variable(value, trainable=is_trained, name=name)
        if is_bank:
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    [task.name for task in tasks], np.arange(len(tasks), dtype=np.int32)
                ),
                _UNKNOWN_TASK,
            )

    def _stacked(self, name: str, shape: Sequence[int], base: Tensors) -> np.ndarray:
        """Return the values of all tasks, padded with zeros: [tasks, …]."""
        stacked = np.zeros([len(self.tasks), *shape], np.float32)
        if name == self._head_names[1]:
            stacked += np.float32(_IMPOSSIBLE)
        for task, place in zip(self.tasks, stacked):
            value = task.tensors.get(name, base.get(name))
            if value is not None:
                place[tuple(slice(0, size) for size in value.shape)] = value
        return stacked

    def task_indices(self, names: tf.Tensor) -> tf.Tensor:
        """Return the places of tasks, int32 [B]; computing them fails if a name is unknown."""
        places = self._table.lookup(names)
        unknown = tf.unique(tf.boolean_mask(names, tf.equal(places, _UNKNOWN_TASK)))[0]
        known = tf.constant([task.name for task in self.tasks])
        check = tf.debugging.Assert(
            tf.equal(tf.size(unknown), 0), ["Unknown task:", unknown, "Available:", known], summarize=50
        )
        with tf.control_dependencies([check]):
            return tf.identity(places)

    def limits(self, tasks: Optional[tf.Tensor]) -> tf.Tensor:
        """Return the maximum numbers of tokens: a scalar, or of each example, int32 [B]."""
        limits = tf.constant([task.max_seq_length for task in self.tasks], tf.int32)
        return limits[0] if tasks is None else tf.gather(limits, tasks)

    def logits(self, features: Features, tasks: Optional[tf.Tensor]) -> tf.Tensor:
        """Return logits of the classes or, in regression, the predicted number: float [B, units]."""
        read: Dict[str, Any] = {}

        def get(getter: Callable, name: str, *args: Any, **options: Any) -> Any:
            if name not in read:
                weights = self.weights[name]
                read[name] = tf.gather(weights, tasks) if tasks is not None and name in self._own else weights
            return read[name]

        v1 = tf.compat.v1
        scope = v1.variable_scope(v1.get_variable_scope(), custom_getter=get)
        with scope, fused_ops.compiling(fused_ops.EXPORTED):
            model = modeling.BertModel(self._config, False, *features, scope="bert", adapter_fn=self._adapter)
            weights, bias = (get(v1.get_variable, name) for name in self._head_names)
            pooled = model.get_pooled_output()
            if tasks is None:
                return tf.matmul(pooled, weights, transpose_b=True) + bias
            return tf.reduce_sum(pooled[:, tf.newaxis, :] * weights, axis=-1) + bias

    def outputs(self, logits: tf.Tensor, tasks: Optional[tf.Tensor]) -> Dict[str, tf.Tensor]:
        """Return the predictions for B examples.

        `labels`, string [B], the most probable class; `probabilities`, float [B, C], of the classes whose names are
        `classes`, string [B, C]; for tasks of regression `values`, float [B]. Of a bank, C is the largest number of
        classes: others are padded with zeros and empty names. What a task does not have is 0 or empty.
        """
        kinds = {bool(task.classes) for task in self.tasks}
        padded = [task.classes + [""] * (self._units - len(task.classes)) for task in self.tasks]
        places = tf.zeros(tf.shape(logits)[:1], tf.int32) if tasks is None else tasks
        has_classes = tf.gather(tf.constant([bool(task.classes) for task in self.tasks]), places)
        found = {}
        if True in kinds:
            classes = tf.gather(tf.constant(padded), places)
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            probabilities = tf.nn.softmax(logits) * tf.cast(has_classes, tf.float32)[:, tf.newaxis]
            found = {
                LABELS: tf.gather(classes, best, batch_dims=1),
                PROBABILITIES: probabilities,
                CLASSES: classes,
            }
        if False in kinds:
            found[VALUES] = tf.where(has_classes, 0.0, logits[:, 0])
        return found
