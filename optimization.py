"""The training step: trainable variables, learning rate schedule and BERT's Adam with weight decay."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors
from adapter_bert.model import batch_norm, tuning_modes
from adapter_bert.model.loss_scale import LossScale
from adapter_bert.model.tuning_modes import HEAD, count_layers, trainable_names  # noqa: F401  (published names)

# Graph collection with the learning rate of the current step.
LEARNING_RATE = "learning_rate"
# Error message of a step whose gradient is infinite or NaN.
NOT_FINITE = "The gradient is not finite"


def variable_name(variable: tf.Variable) -> str:
    """Return a variable's name without the output number (`:0`)."""
    return re.sub(r":\d+$", "", variable.name)


def trainable_variables(mode: str, top_layers: Optional[int] = None, frozen_layers: int = 0) -> List[tf.Variable]:
    """Return the trainable variables of the default graph; see `trainable_names` for the arguments."""
    by_name = {variable_name(variable): variable for variable in tf.trainable_variables()}
    return [by_name[name] for name in trainable_names(list(by_name), mode, top_layers, frozen_layers)]


def learning_rate_schedule(
    global_step: tf.Tensor,
    init_lr: Union[float, tf.Tensor],
    num_train_steps: Union[int, tf.Tensor],
    num_warmup_steps: Union[None, int, tf.Tensor],
) -> tf.Tensor:
    """Return the learning rate at a step: linear warm-up from 0, then linear decay to 0.

    As in BERT, the decay starts at step 0, so the rate after the warm-up is slightly below `init_lr`. None or 0 warm-up
    steps mean no warm-up.
    """
    step, total = tf.cast(global_step, tf.float32), tf.cast(num_train_steps, tf.float32)
    warmup = tf.cast(0 if num_warmup_steps is None else num_warmup_steps, tf.float32)
    rate = init_lr * (1.0 - tf.minimum(step, total) / tf.maximum(total, 1.0))
    return tf.where(step < warmup, init_lr * step / tf.maximum(warmup, 1.0), rate)


def create_optimizer(
    loss: tf.Tensor,
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: Optional[int],
    use_tpu: bool,
    tuning_mode: str = "adapter",
    top_layers: Optional[int] = None,
    bias_correction: bool = False,
) -> tf.Operation:
    """Build the training step: gradients of the trainable variables, clipping at norm 1, Adam with weight decay.

    Every trainable variable outside BERT is trained, whatever its name; inside BERT, see `trainable_names`. In the mode
    `adapter`, a model without adapters is trained as a whole. The trained variables are logged. Raise
    `errors.UserError` if the loss depends on no variable outside BERT, unless the mode is `full`.

    See `learning_rate_schedule` and `AdamWeightDecayOptimizer` for the other arguments; `use_tpu` sums gradients over
    TPU cores.

    Return the train op, which also increments the global step. If the gradient is not finite, it raises
    InvalidArgumentError with `NOT_FINITE` and changes nothing, except on a TPU.
    """
    tvars = _notebook_variables(tuning_mode, top_layers)
    grads = tf.gradients(loss, tvars)
    groups = _groups(tvars, grads)
    if not groups["outside BERT"] and (tuning_mode != "full" or not any(groups[group] for group in _TRAINED)):
        used = [variable_name(variable) for group in _TRAINED for variable in groups[group]]
        raise errors.UserError(
            f"Nothing outside BERT would be trained: the loss depends on {len(used)} variables of BERT "
            f"({errors.first_names(used, 3)}) and on no others. Compute it from a head whose variables are trainable; "
            "to train BERT without a head, set tuning_mode='full'."
        )
    for group, variables in groups.items():
        if variables:
            size = sum(variable.shape.num_elements() for variable in variables)
            names = errors.first_names(map(variable_name, variables), 8)
            which = f": {names}" if group == "outside BERT" else ""
            tf.logging.info("Variables, %s: %d with %s parameters%s", group, len(variables), f"{size:,}", which)
    with tf.control_dependencies(tf.get_collection(batch_norm.UPDATES)):
        return train_step(grads, tvars, init_lr, num_train_steps, num_warmup_steps, use_tpu, bias_correction)


# Graph collections of Google's adapter-bert that each mode trains besides the usual names; other modes: `head`.
_COLLECTIONS = {"adapter": ("adapters", "layer_norm", "head"), "layer_norm": ("layer_norm", "head")}
# Groups of trained variables in the log.
_TRAINED = ("adapters", "LayerNorm", "other weights of BERT", "outside BERT")


def _notebook_variables(mode: str, top_layers: Optional[int]) -> List[tf.Variable]:
    """Return the variables that `create_optimizer` trains."""
    by_name = {variable_name(variable): variable for variable in tf.trainable_variables()}
    if mode == "adapter" and not tf.get_collection("adapters") and not any(map(tuning_modes.ADAPTER.search, by_name)):
        tf.logging.info("The model has no adapters: all of its trainable variables are trained.")
        mode = "full"
    declared: Dict[str, tf.Variable] = {}
    for collection in _COLLECTIONS.get(mode, ("head",)):
        declared.update({variable_name(variable): variable for variable in tf.get_collection(collection)})
    names = tuning_modes.notebook_names(list(by_name), _names_in_bert(), mode, top_layers, declared)
    # Variables in a collection are trained even if they are not among TensorFlow's trainable ones.
    return list({**{name: by_name[name] for name in names}, **declared}.values())


def _names_in_bert() -> Set[str]:
    return set(tuning_modes.names_in_bert([variable_name(variable) for variable in tf.global_variables()]))


def _groups(tvars: Sequence[tf.Variable], grads: Sequence[Optional[tf.Tensor]]) -> Dict[str, List[tf.Variable]]:
    """Return the model's variables by group, for the log; variables to train have a gradient or None."""
    inside = _names_in_bert()
    adapters = {variable_name(variable) for variable in tf.get_collection("adapters")}
    groups: Dict[str, List[tf.Variable]] = {group: [] for group in (*_TRAINED, "not used by the loss", "frozen")}
    for variable, grad in zip(tvars, grads):
        name = variable_name(variable)
        if grad is None:
            group = "not used by the loss"
        elif name in adapters or tuning_modes.ADAPTER.search(name):
            group = "adapters"
        elif name not in inside:
            group = "outside BERT"
        else:
            group = "LayerNorm" if tuning_modes.LAYER_NORM.search(name) else "other weights of BERT"
        groups[group].append(variable)
    trained = {variable.name for variable in tvars}
    groups["frozen"] = [variable for variable in tf.trainable_variables() if variable.name not in trained]
    return groups


def train_step(
    grads: Sequence[Optional[tf.Tensor]],
    tvars: Sequence[tf.Variable],
    init_lr: Union[float, tf.Tensor],
    num_train_steps: Union[int, tf.Tensor],
    num_warmup_steps: Union[None, int, tf.Tensor],
    use_tpu: bool,
    bias_correction: bool = False,
    scale: Optional[LossScale] = None,
    square_correction: Optional[tf.Tensor] = None,
) -> tf.Operation:
    """Build the training step from gradients; a gradient is None if the loss does not depend on the variable.

    With a `scale`, the gradients are those of the scaled loss. A step in which they are not finite changes no weights.
    `square_correction` is added to the square of the gradients' norm, see `collective.mean_over_workers`.
    """
    global_step = tf.train.get_or_create_global_step()
    rate = learning_rate_schedule(global_step, init_lr, num_train_steps, num_warmup_steps)
    tf.add_to_collection(LEARNING_RATE, rate)
    optimizer = _SkippingOptimizer(
        rate,
        weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "BatchNorm", "bias"],
        bias_correction=bias_correction,
    )
    if use_tpu:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    updates: List[tf.Operation] = []
    if scale:
        grads, optimizer.is_finite = scale.unscaled(grads)
        updates = scale.update(optimizer.is_finite)
    norm = tf.global_norm(grads)
    if square_correction is not None:
        norm = tf.sqrt(tf.square(norm) + (square_correction / tf.square(scale.factor) if scale else square_correction))
    if not use_tpu:
        # Check before the update, so that a checkpoint never contains NaNs.
        norm = tf.debugging.check_numerics(norm, NOT_FINITE)
    grads, _ = tf.clip_by_global_norm(grads, clip_norm=1.0, use_norm=norm)
    train_op = optimizer.apply_gradients(list(zip(grads, tvars)), global_step=global_step)
    # The optimizer does not increment the step (see apply_gradients). Increment it last: in parallel with the update,
    # the learning rate could read either value.
    with tf.control_dependencies([train_op, *updates]):
        return tf.group(global_step.assign_add(1))


class _SharedZeros:
    """An initializer that creates one tensor of zeros for each shape."""

    def __init__(self) -> None:
        self._tensors: Dict[Tuple[int, ...], tf.Tensor] = {}

    def __call__(self, shape: Sequence[int], dtype: tf.DType, **unused: Any) -> tf.Tensor:
        if tuple(shape) not in self._tensors:
            self._tensors[tuple(shape)] = tf.zeros(shape, dtype)
        return self._tensors[tuple(shape)]


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam with decoupled weight decay and, by default, without bias correction, as BERT was trained.

    The slots are variables `<name>/adam_m` and `<name>/adam_v`, as in Google's checkpoints.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Optional[Sequence[str]] = None,
        name: str = "AdamWeightDecayOptimizer",
        adapter_weight_decay_rate: Optional[float] = None,
        bias_correction: bool = False,
    ) -> None:
        """Store the settings; `exclude_from_weight_decay` lists regular expressions searched in variable names.

        `adapter_weight_decay_rate`, an argument of Google's adapter-bert, is that of adapters, if it differs.
        `bias_correction` corrects the moments of the first steps, as in Kingma and Ba (2014); BERT's Adam does not.
        """
        super().__init__(False, name)
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.adapter_weight_decay_rate = adapter_weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.bias_correction = bias_correction

    def apply_gradients(
        self,
        grads_and_vars: Sequence[Tuple[Optional[tf.Tensor], tf.Variable]],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Update every variable with a gradient. Do not increment `global_step`, as in the original."""
        # Shared by all variables: creating constants takes as long as creating the updates.
        constants, zeros = self._constants(), _SharedZeros()
        updates = []
        for grad, variable in grads_and_vars:
            if grad is None or variable is None:
                continue
            updates.append(self._update(tf.convert_to_tensor(grad), variable, constants, zeros))
        return tf.group(*updates, name=name)

    def _constants(self) -> Dict[str, tf.Tensor]:
        """Return the arguments of TensorFlow's Adam kernel that do not depend on the variable."""
        # The kernel computes 1 - beta_2 in float32, 1.3e-5 too small for 0.999, so its second moment is `scale` times
        # the correct one. The factor sqrt(1 - beta2_power) compensates for this.
        scale = float(np.float32(1) - np.float32(self.beta_2)) / (1.0 - self.beta_2) if self.beta_2 < 1.0 else 1.0
        power_1, power_2 = 0.0, 0.0
        if self.bias_correction:
            count = tf.cast(tf.train.get_or_create_global_step(), tf.float32) + 1.0
            power_1, power_2 = tf.pow(self.beta_1, count), tf.pow(self.beta_2, count)
        constants = {
            "beta1_power": power_1,
            "beta2_power": 1.0 - scale * (1.0 - power_2),
            "lr": self.learning_rate,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon * scale**0.5,
        }
        return {name: tf.convert_to_tensor(value, tf.float32) for name, value in constants.items()}

    def _update(
        self, grad: tf.Tensor, variable: tf.Variable, constants: Mapping[str, tf.Tensor], zeros: Callable
    ) -> tf.Operation:
        name, is_resource = variable_name(variable), hasattr(variable, "handle")
        targets = {"var": variable}
        for slot in ("m", "v"):
            shape = variable.shape.as_list()
            targets[slot] = tf.get_variable(
                f"{name}/adam_{slot}", shape, tf.float32, zeros, trainable=False, use_resource=is_resource
            )
        before: List[Any] = [grad]
        # Subtract the decay from the variable instead of adding it to the loss, to keep it out of Adam's moments.
        if self._do_use_weight_decay(name):
            with tf.control_dependencies(before):
                before = [tf.assign_sub(variable, self._decay_rate(name) * constants["lr"] * variable)]
        with tf.control_dependencies(before):
            if is_resource:
                handles = {key: target.handle for key, target in targets.items()}
                return tf.raw_ops.ResourceApplyAdam(**handles, grad=grad, **constants)
            return tf.raw_ops.ApplyAdam(**targets, grad=grad, **constants).op

    def _decay_rate(self, name: str) -> float:
        if self.adapter_weight_decay_rate is not None and tuning_modes.ADAPTER.search(name):
            return self.adapter_weight_decay_rate
        return self.weight_decay_rate

    # Subclasses in other code call these two.
    def _do_use_weight_decay(self, param_name: str) -> bool:
        excluded = any(re.search(pattern, param_name) for pattern in self.exclude_from_weight_decay or ())
        return bool(self._decay_rate(param_name)) and not excluded

    def _get_variable_name(self, param_name: str) -> str:
        return re.sub(r":\d+$", "", param_name)


class _SkippingOptimizer(AdamWeightDecayOptimizer):
    """The optimizer of runs: changes nothing in a step in which `is_finite` is false; gradients must be 0 then."""

    is_finite: Optional[tf.Tensor] = None
    _UNCHANGED: Mapping[str, float] = {"beta1": 1.0, "beta2": 1.0, "epsilon": 1.0}  # and zeros

    def _constants(self) -> Dict[str, tf.Tensor]:
        constants = super()._constants()
        if self.is_finite is None:
            return constants
        return {
            name: tf.where(self.is_finite, value, self._UNCHANGED.get(name, 0.0)) for name, value in constants.items()
        }
