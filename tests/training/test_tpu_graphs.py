"""TPU graphs: train, eval and predict are replicated over the cores, given a TPU's description but no TPU."""

from __future__ import annotations

import collections
import types

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.devices import compat, estimators
from adapter_bert.devices.device import Device
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline import records
from adapter_bert.pipeline.features import InputFeatures
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_layers import AdapterConfig
from tests.helpers import tiny_config

if compat.tensorflow_version() > compat.LAST_WITH_ESTIMATOR:
    pytest.skip("TPUs need TensorFlow 2.15 or older", allow_module_level=True)

from tensorflow.python.tpu import tpu_system_metadata

PER_CORE = 2


@pytest.fixture(params=[(8, 1), (32, 4)], ids=["8 cores", "32 cores on 4 hosts"])
def tpu(request, monkeypatch) -> Device:
    """A TPU that TensorFlow takes for granted."""
    cores, hosts = request.param
    description = types.SimpleNamespace(
        num_cores=cores, num_hosts=hosts, num_of_cores_per_host=cores // hosts, topology=None, devices=[]
    )
    monkeypatch.setattr(tpu_system_metadata, "_query_tpu_system_metadata", lambda *_, **__: description)
    monkeypatch.setattr(estimators, "tpu_cluster", lambda device: None)
    v2_control_flow = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    yield Device(use_tpu=True, master="grpc://10.0.0.2:8470", num_tpu_cores=cores, iterations_per_loop=3)
    if v2_control_flow:
        tf.enable_control_flow_v2()


class Input:
    """An `input_fn` that records the hosts it is called for."""

    def __init__(self, is_training: bool) -> None:
        features = [InputFeatures([7] * 8, [1] * 8, [0] * 8, row % 2) for row in range(128)]
        self._input_fn = records.input_fn_builder(features, 8, is_training, drop_remainder=True, seed=1)
        self.hosts = []

    def __call__(self, params):
        self.hosts.append(params["context"].current_host)
        return self._input_fn(params)


class BuiltError(Exception):
    """Raised instead of opening a session."""


def build(monkeypatch, model_fn: ModelFn, device: Device, mode: str, folder) -> tf.Graph:
    """Run the estimator in a mode until it opens a session; return its graph."""
    graphs = []

    def stop(creator: tf.train.ChiefSessionCreator) -> None:
        creator._scaffold.finalize()
        graphs.append(tf.get_default_graph())
        raise BuiltError

    monkeypatch.setattr(tf.train.ChiefSessionCreator, "create_session", stop)
    config = estimators.run_config(device, str(folder), seed=1)
    estimator = estimators.make_estimator(model_fn, device, config, PER_CORE * device.num_tpu_cores)
    input_fn = Input(mode == ModeKeys.TRAIN)
    run = {
        ModeKeys.TRAIN: lambda: estimator.train(input_fn, max_steps=10),
        ModeKeys.EVAL: lambda: estimator.evaluate(input_fn, steps=2),
        ModeKeys.PREDICT: lambda: list(estimator.predict(input_fn, yield_single_examples=False)),
    }
    with pytest.raises(BuiltError):
        run[mode]()
    hosts = device.num_tpu_cores // 8 if mode == ModeKeys.TRAIN else 1
    assert input_fn.hosts == list(range(hosts))
    return graphs[0]


def assert_replicated(graph: tf.Graph, device: Device) -> None:
    """Check that each core computes its part of a batch, and that every shape on the cores is static."""
    operations = collections.defaultdict(list)
    for operation in graph.get_operations():
        operations[operation.type].append(operation)
    assert [each.get_attr("num_replicas") for each in operations["TPUReplicateMetadata"]] == [device.num_tpu_cores]
    hosts = {tf.DeviceSpec.from_string(each.device).task for each in operations["InfeedEnqueueTuple"]}
    assert hosts == set(range(device.num_tpu_cores // 8))
    on_cores = [each for each in graph.get_operations() if "_tpu_replicate" in each.node_def.attr]
    products = [each.outputs[0].shape for each in on_cores if each.type in ("MatMul", "BatchMatMulV2")]
    assert products and all(shape.is_fully_defined() for shape in products)
    fed = [each.outputs[0].shape.as_list() for each in operations["InfeedDequeueTuple"]]
    assert fed == [[PER_CORE, 8]] or fed == [[PER_CORE]]


@pytest.mark.parametrize(
    "mode, precision",
    [
        (ModeKeys.TRAIN, "float32"),
        (ModeKeys.EVAL, "float32"),
        (ModeKeys.PREDICT, "float32"),
        (ModeKeys.TRAIN, "bfloat16"),
    ],
)
def test_the_graph_of_each_mode_is_replicated(monkeypatch, tpu, tmp_path, mode, precision):
    if precision != "float32" and compat.tensorflow_version() < (2, 0):
        pytest.skip("bfloat16 needs TensorFlow 2")
    head, adapter = ClassificationHead(2), AdapterConfig(size=4)
    spec = ModelSpec(tiny_config(), head, adapter, use_one_hot_embeddings=True, precision=precision)
    graph = build(monkeypatch, ModelFn(spec, plan=TrainingPlan(Schedule(1e-3, 10, 1)), device=tpu), tpu, mode, tmp_path)
    assert_replicated(graph, tpu)
    sums = [operation for operation in graph.get_operations() if operation.type == "CrossReplicaSum"]
    assert len(sums) == (len(spec.trained_names) if mode == ModeKeys.TRAIN else 0)
