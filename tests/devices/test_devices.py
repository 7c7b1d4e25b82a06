"""Devices: the constraints of a TPU, and how estimators and sessions are configured."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import parallel
from adapter_bert.devices import compat, estimators, reachability
from adapter_bert.devices.device import Device
from tests.helpers import ROOT, assert_mentions, message_of

pytestmark = pytest.mark.smoke
TPU = Device(use_tpu=True, tpu_name="no-such-tpu")


@pytest.fixture
def listener():
    """A socket that accepts connections on a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.fixture(scope="module")
def server() -> str:
    """The address of a TensorFlow server in this process."""
    created = tf.train.Server.create_local_server()
    return created.target.replace("localhost", "127.0.0.1")


@pytest.mark.parametrize("device, has_gpu", [(Device(), False), (Device(), True), (TPU, False)])
def test_a_tpu_needs_static_shapes_and_full_batches_and_only_a_cpu_splits_them(monkeypatch, device, has_gpu):
    monkeypatch.setattr(compat, "has_gpu", lambda: has_gpu)
    assert device.needs_static_shapes == device.uses_one_hot_embeddings == (device is TPU)
    assert device.supports_hooks is (device is not TPU)
    assert device.padded_batch_size(8) == (8 if device is TPU else 1)
    assert device.splits_batches is (device is not TPU and not has_gpu)


def test_a_device_without_a_tpu_name_has_no_cluster(server):
    assert estimators.tpu_cluster(Device()) is None
    assert estimators.tpu_cluster(Device(master=server)) is None


NEEDS_TPU_SUPPORT = pytest.mark.skipif(compat.tensorflow_version() > (2, 15), reason="TPUs need an older TensorFlow")


@pytest.mark.parametrize("use_tpu", [False, pytest.param(True, marks=NEEDS_TPU_SUPPORT)])
def test_an_address_without_a_server_is_an_error_that_names_the_flag(listener, use_tpu):
    address = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    device = Device(use_tpu=use_tpu, master=address)
    assert_mentions(message_of(estimators.tpu_cluster, device), f"--master={address}")


@NEEDS_TPU_SUPPORT
def test_an_address_of_a_tpu_that_does_not_answer_is_an_error(monkeypatch, listener, server):
    monkeypatch.setattr(tf, "disable_control_flow_v2", lambda: None)
    monkeypatch.setattr(reachability, "TIMEOUT", 0.2)
    address = f"grpc://127.0.0.1:{listener.getsockname()[1]}"  # accepts connections, and never answers
    message = message_of(estimators.tpu_cluster, Device(use_tpu=True, tpu_name=address))
    assert_mentions(message, f"--tpu_name={address}")


@NEEDS_TPU_SUPPORT
@pytest.mark.parametrize("name", [{"tpu_name": "local"}, {"tpu_name": ""}, {"master": ""}])
def test_a_machine_or_a_server_without_a_tpu_is_an_error(monkeypatch, server, name):
    monkeypatch.setattr(tf, "disable_control_flow_v2", lambda: None)
    named = {flag: value or server for flag, value in name.items()}
    ((flag, value),) = named.items()
    assert_mentions(message_of(estimators.tpu_cluster, Device(use_tpu=True, **named)), f"--{flag}={value}")


@NEEDS_TPU_SUPPORT
def test_the_number_of_cores_must_be_that_of_the_tpu(monkeypatch):
    monkeypatch.setattr(tf, "disable_control_flow_v2", lambda: None)
    devices = [mock.Mock(device_type=kind) for kind in ("CPU", "TPU", "TPU", "TPU_SYSTEM", "TPU", "TPU")]
    monkeypatch.setattr(estimators, "_list_devices", lambda *_: devices)
    local = Device(use_tpu=True, tpu_name="local", num_tpu_cores=4)
    assert estimators.tpu_cluster(local).master() in ("", "local")
    config = estimators.run_config(local, "unused", 1)
    assert config.master in ("", "local") and config.tpu_config.num_shards == 4
    message = message_of(estimators.tpu_cluster, dataclasses.replace(local, num_tpu_cores=8))
    assert_mentions(message, "--tpu_name=local", "--num_tpu_cores=4", 8)


@pytest.mark.parametrize(
    "address", ["foo", "grpc://", "grpc://host", "grpc://host:port", "grpc://a:1:2", "grpc://127.0.0.1:99999"]
)
def test_an_address_that_is_none_is_an_error(address):
    assert_mentions(message_of(reachability.check_server, address, f"--master={address}"), f"--master={address}")


def test_a_server_of_another_kind_is_an_error(listener):
    def answer() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    address = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
    assert_mentions(message_of(reachability.check_server, address, address), address, "gRPC")


def test_a_call_that_never_returns_is_given_up():
    assert reachability.within(60, lambda: "result") == "result"
    with pytest.raises(KeyError):
        reachability.within(60, lambda: {}["a"])
    with pytest.raises(TimeoutError):
        reachability.within(0.01, threading.Event().wait)


@pytest.mark.parametrize(
    "version, facts",
    [((2, 16), ["2.15", tf.version.VERSION]), ((2, 15), ["--tpu_name=no-such-tpu", "no route to no-such-tpu"])],
)
def test_a_tpu_needs_an_older_tensorflow_and_must_be_reachable(monkeypatch, version, facts):
    def fail(name, **kwargs):
        raise RuntimeError(f"no route to {name}")

    monkeypatch.setattr(compat, "tensorflow_version", lambda: version)
    monkeypatch.setattr(tf, "disable_control_flow_v2", lambda: None)
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    assert_mentions(message_of(estimators.tpu_cluster, TPU), *facts)


def test_hooks_save_checkpoints_and_summaries_if_the_device_supports_hooks(monkeypatch, tmp_path):
    monkeypatch.setattr(estimators, "tpu_cluster", lambda device: None)
    configs = [
        estimators.run_config(device, str(tmp_path), 5, save_checkpoints_steps=20)
        for device in (Device(num_tpu_cores=1), Device(use_tpu=True, master="grpc://tpu:8470", iterations_per_loop=4))
    ]
    assert [config.save_checkpoints_steps for config in configs] == [None, 20]
    assert [config.tpu_config.iterations_per_loop for config in configs] == [1000, 4]
    assert [config.save_summary_steps for config in configs] == [0, 100]
    assert {config.tf_random_seed for config in configs} == {5}


@pytest.mark.parametrize("cores, threads", [(1, 1), (2, 1), (4, 0)])
def test_each_operation_of_two_halves_gets_one_of_two_cores(monkeypatch, cores, threads):
    monkeypatch.setattr(parallel, "num_cores", lambda: cores)
    config = estimators.session_config()
    assert (config.inter_op_parallelism_threads, config.intra_op_parallelism_threads) == (2, threads)


def test_a_predictor_runs_in_the_thread_of_its_caller():
    config = estimators.serving_config()
    assert config.experimental.executor_type == "SINGLE_THREADED_EXECUTOR" and config.intra_op_parallelism_threads == 1


def test_random_numbers_are_determined_by_their_seed():
    with tf.Graph().as_default(), tf.Session() as session:
        one, same, other = session.run([compat.random_int32([1000], [1, seed]) for seed in (2, 2, 3)])
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.99 and one.dtype == np.int32
    assert one.min() < -(2**30) and one.max() > 2**30


NAMES = ("TF_ENABLE_ONEDNN_OPTS", "TF_OVERRIDE_GLOBAL_THREADPOOL")
PROBE = f"""
import os, sys
{{call}}
from adapter_bert.{{module}} import *
print("tensorflow" in sys.modules, *[os.environ.get(name) for name in {NAMES}])
"""


@pytest.mark.parametrize(
    "call, module, expected",
    [
        ("", "settings.classifier", "False None None"),
        ("", "serving.predictor", "True None None"),
        ("from adapter_bert.common.system import configure_tensorflow as c; c()", "devices.estimators", "True 1 1"),
    ],
    ids=["settings", "predictor", "configured"],
)
def test_the_environment_changes_only_on_request(call, module, expected):
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-c", PROBE.format(call=call, module=module)]
    output = subprocess.check_output(command, env=dict(environment, PYTHONPATH=ROOT), stderr=subprocess.DEVNULL)
    assert output.decode().split("\n")[-2] == expected
