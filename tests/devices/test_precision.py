"""Precision: the CPU must have its instructions."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import system
from adapter_bert.devices import compat, precision
from adapter_bert.devices.device import Device
from tests.helpers import assert_mentions, message_of


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets what the machine has."""

    def set_machine(flags=(), gpu=False, version=(2, 15)):
        monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(flags))
        monkeypatch.setattr(compat, "has_gpu", lambda: gpu)
        monkeypatch.setattr(compat, "tensorflow_version", lambda: version)

    return set_machine


@pytest.mark.parametrize("flag", precision.CPU_FLAGS)
def test_bfloat16_needs_an_instruction_set_of_the_cpu(machine, flag):
    machine(["avx512f", flag])
    precision.check("bfloat16", Device())
    machine(["avx512f"])
    assert_mentions(message_of(precision.check, "bfloat16", Device()), "bfloat16", *precision.CPU_FLAGS, "float32")
    precision.check("float32", Device())


def test_gpus_and_tpus_need_no_instruction_set_of_the_cpu(machine):
    machine(gpu=True)
    precision.check("bfloat16", Device())
    machine()
    precision.check("bfloat16", Device(use_tpu=True, tpu_name="tpu"))


def test_float16_needs_a_gpu(machine):
    machine(gpu=True)
    precision.check("float16", Device())
    machine(["avx512_fp16", *precision.CPU_FLAGS])
    assert_mentions(message_of(precision.check, "float16", Device()), "float16", "GPU", "CPU", "bfloat16")
    tpu = Device(use_tpu=True, tpu_name="tpu")
    assert_mentions(message_of(precision.check, "float16", tpu), "float16", "GPU", "TPU", "bfloat16")


def test_tensorflow_1_is_rejected(machine):
    machine(precision.CPU_FLAGS, version=(1, 15))
    assert_mentions(message_of(precision.check, "bfloat16", Device()), "TensorFlow 2", tf.version.VERSION, "float32")
    precision.check("float32", Device())


def test_an_unknown_precision_is_an_error_that_lists_the_known_ones(machine):
    machine(precision.CPU_FLAGS)
    assert_mentions(message_of(precision.check, "float8", Device()), "float8", "float32", "bfloat16")


def test_the_flags_of_this_cpu_are_known_on_linux():
    assert isinstance(system.cpu_flags(), frozenset)
