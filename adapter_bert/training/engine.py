"""Create estimators: with a new graph and session for each run, or with shared ones for many runs in one process."""

from __future__ import annotations

import collections
import dataclasses
import glob
import os
from typing import Any, Callable, Dict, Hashable, Iterator, List, Mapping, Optional, OrderedDict, Tuple

import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common.paths import is_remote
from adapter_bert.devices import compat, estimators
from adapter_bert.devices.device import Device
from adapter_bert.model import loss_scale
from adapter_bert.settings.groups import Settings
from adapter_bert.training import run_values
from adapter_bert.training.model_fn import ModelFn, TrainingTensors, iterator_like
from adapter_bert.weights import checkpoints
from adapter_bert.weights.bases import Base
from adapter_bert.weights.loading import WeightFile, Weights

InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]


class Engine:
    """Creates everything from scratch for each run."""

    def load_base(self, settings: Settings) -> Base:
        """Return the base of a run."""
        return Base.load(settings)

    def known_file(self, settings: Settings) -> Optional[WeightFile]:
        """Return the checkpoint of the base if it has been read before."""
        return None

    def remember(self, settings: Settings, weights: Optional[Weights]) -> None:
        """Keep the checkpoint that the weights of a run come from."""

    def make_estimator(self, model_fn: ModelFn, device: Device, config: Any, batch_size: int) -> Any:
        """Return an estimator with the methods `train` and `predict`."""
        return estimators.make_estimator(model_fn, device, config, batch_size)


class WarmEngine(Engine):
    """Keeps bases, graphs and sessions for later runs of the same shapes.

    Results are identical to those of separate processes. A run that continues from a checkpoint, or starts from a pack,
    gets its own graph. Not thread-safe.
    """

    def __init__(self, capacity: int = 3) -> None:
        """Keep at most `capacity` graphs; the least recently used one is dropped first."""
        self._capacity = capacity
        self._networks: OrderedDict[Hashable, _Network] = collections.OrderedDict()
        self._bases: Dict[Hashable, Base] = {}
        self._files: Dict[Hashable, WeightFile] = {}

    def load_base(self, settings: Settings) -> Base:
        """As in the base class, from memory if the files have not changed."""
        key = _file_state(settings.bert_config_file, settings.vocab_file, settings.spm_model_file)
        key += (settings.init_checkpoint, settings.do_lower_case, settings.max_seq_length)
        if key not in self._bases:
            self._bases[key] = super().load_base(settings)
        return self._bases[key]

    def known_file(self, settings: Settings) -> Optional[WeightFile]:
        """As in the base class."""
        return self._files.get(_file_state(settings.init_checkpoint))

    def remember(self, settings: Settings, weights: Optional[Weights]) -> None:
        """As in the base class."""
        if weights:
            self._files[_file_state(settings.init_checkpoint)] = weights.files[0]

    def make_estimator(self, model_fn: ModelFn, device: Device, config: Any, batch_size: int) -> Any:
        """As in the base class."""
        is_continued = bool(config.model_dir) and checkpoints.find_latest(config.model_dir) is not None
        if not device.supports_hooks or is_continued or _frozen_file(model_fn) is None:
            return super().make_estimator(model_fn, device, config, batch_size)
        return _WarmEstimator(self._network, model_fn, config, batch_size)

    def _network(self, key: Hashable, create: Callable[[], _Network]) -> _Network:
        if key not in self._networks:
            while len(self._networks) >= self._capacity:
                self._networks.popitem(last=False)[1].session.dispose()
            self._networks[key] = create()
        self._networks.move_to_end(key)
        return self._networks[key]


def _file_state(*paths: Optional[str]) -> Tuple[Any, ...]:
    """Return a key that changes when one of the files, or a file of a checkpoint, changes."""
    found: List[Any] = []
    for path in paths:
        if path and is_remote(path):
            statuses = {name: tf.gfile.Stat(name) for name in sorted(tf.gfile.Glob(path + "*"))}
            found += [(name, status.length, status.mtime_nsec) for name, status in statuses.items()]
        for name in sorted(glob.glob(glob.escape(path) + "*")) if path else ():
            status = os.stat(name)
            found.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
        found.append(path)
    return tuple(found)


def _frozen_file(model_fn: ModelFn) -> Optional[str]:
    """Return the checkpoint that provides all frozen weights; None if no single checkpoint does."""
    if model_fn.weights is None:
        return None
    paths = [each.path for each in model_fn.weights.assignments if each.values is None and each.names]
    # Packs contain only trained variables.
    packed = {name for each in model_fn.weights.assignments for name in (each.values or ())}
    trains = bool(model_fn.plan.schedule.num_train_steps)
    has_pack = bool(packed) and (trains or not packed <= set(model_fn.spec.trained_names))
    return paths[0] if len(paths) == 1 and not has_pack else None


class _OpenSession(tf.Session):
    """A session that stays open when a `MonitoredSession` ends."""

    def close(self) -> None:
        """Do nothing."""

    def dispose(self) -> None:
        """Close the session."""
        super().close()


class _Opened(tf.train.SessionCreator):
    def __init__(self, session: tf.Session) -> None:
        self._session = session

    def create_session(self) -> tf.Session:
        """Return the session."""
        return self._session


class _Network:
    """A graph whose features come from an iterator, and its session."""

    def __init__(self, model_fn: ModelFn, mode: str, dataset_fn: Callable[[], tf.data.Dataset], seed: int) -> None:
        self.tensors: Optional[TrainingTensors] = None
        with tf.Graph().as_default() as self.graph:
            tf.set_random_seed(seed)
            step = tf.train.create_global_step()
            dataset = dataset_fn()
            self.iterator = iterator_like(dataset)
            plan = dataclasses.replace(model_fn.plan, make_hooks=self._keep)
            spec = dataclasses.replace(model_fn, plan=plan)(self.iterator.get_next(), None, mode, {})
            self.spec = spec.as_estimator_spec()
            trained = set(model_fn.spec.trained_names)
            trained |= {*checkpoints.slot_shapes(dict.fromkeys(trained, ())), *loss_scale.NAMES}
            variables = [v for v in tf.global_variables() if optimization.variable_name(v) in trained]
            self.reset = tf.group(step.initializer, *(variable.initializer for variable in variables))
            initialize = tf.global_variables_initializer()
            self.session = _OpenSession(config=estimators.session_config())
            self.session.run(initialize, run_values.feed(model_fn.plan.schedule, seed))

    def _keep(self, tensors: TrainingTensors) -> List[tf.train.SessionRunHook]:
        self.tensors = tensors
        return []


class _WarmEstimator:
    """The methods of an estimator that a run uses."""

    def __init__(self, find_network: Callable, model_fn: ModelFn, config: Any, batch_size: int) -> None:
        self._find_network = find_network
        self._model_fn = model_fn
        self._seed = config.tf_random_seed
        self._params = {"batch_size": batch_size}

    def train(self, input_fn: InputFn, max_steps: int) -> None:
        """Train from the initial weights."""
        network, plan = self._network(estimators.ModeKeys.TRAIN, input_fn), self._model_fn.plan
        session = network.session
        assert network.tensors is not None
        with network.graph.as_default():
            tf.set_random_seed(self._seed)  # for the order of examples
            values = run_values.feed(plan.schedule, self._seed)
            session.run(network.reset, values)
            session.run(compat.start_iterator(network.iterator, input_fn(self._params)))
            tensors = network.tensors
            if plan.dev_data is not None:
                tensors = dataclasses.replace(
                    tensors, dev_start=compat.start_iterator(tensors.dev_iterator, plan.dev_data())
                )
            hooks = [tf.train.NanTensorHook(network.spec.loss), run_values.FeedHook(values), *plan.make_hooks(tensors)]
            with tf.train.MonitoredSession(_Opened(session), hooks) as monitored:
                for _ in range(max_steps):
                    if monitored.should_stop():
                        break
                    monitored.run([network.spec.train_op, network.spec.loss])

    def predict(self, input_fn: InputFn, yield_single_examples: bool) -> Iterator[Dict[str, Any]]:
        """Yield the predictions of each batch."""
        assert not yield_single_examples
        network = self._network(estimators.ModeKeys.PREDICT, input_fn)
        with network.graph.as_default():
            start = compat.start_iterator(network.iterator, input_fn(self._params))
        self._model_fn.make_assigner().load(network.session, skip=self._model_fn.spec.frozen_names)
        network.session.run(start)
        while True:
            try:
                batch = network.session.run(network.spec.predictions)
            except tf.errors.OutOfRangeError:
                return
            yield batch

    def _network(self, mode: str, input_fn: InputFn) -> _Network:
        model_fn, plan = self._model_fn, self._model_fn.plan
        spec = model_fn.spec
        key = (
            mode,
            repr(sorted(spec.config.to_dict().items())),
            (type(spec.head), repr(sorted(vars(spec.head).items()))),
            (spec.adapter, spec.tuning_mode, spec.top_layers, spec.use_one_hot_embeddings),
            (spec.precision, spec.cached_layers),
            (plan.dev_data is None, plan.checkpoint_kind, plan.gradient_checkpointing, plan.accumulation_steps),
            (plan.use_xla, plan.adam_bias_correction),
            _file_state(_frozen_file(model_fn)),
            self._shapes(input_fn),
        )
        return self._find_network(key, lambda: _Network(model_fn, mode, lambda: input_fn(self._params), self._seed))

    def _shapes(self, input_fn: InputFn) -> str:
        with tf.Graph().as_default():
            return repr(tf.data.get_output_shapes(input_fn(self._params)))
