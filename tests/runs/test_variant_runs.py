"""A run with batch normalization in its adapters: the statistics belong to the task, and a killed run continues."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.serving.predictor import Predictor
from adapter_bert.weights import checkpoints, packs
from tests.helpers import assert_mentions
from tests.runs.helpers import error_of, pack_of, run

VARIANT = {"adapter_norm": "batch", "adapter_depth": 2, "adapter_connection": "parallel", "adapter_layers": "1"}
STEPS = 16


class KilledError(Exception):
    pass


@pytest.fixture
def whole(given, tmp_path) -> dict:
    flags = dict(given, **VARIANT, do_train=True, do_eval=True, output_dir=str(tmp_path / "whole"))
    run(flags)
    return flags


def checkpoint_of(flags: dict) -> dict:
    folder = flags["output_dir"]
    prefixes = [os.path.join(folder, f"{name}-{STEPS}") for name in ("model.ckpt", "optimizer.ckpt")]
    return {
        name: value for p in prefixes for name, value in checkpoints.each_tensor(p, list(checkpoints.read_shapes(p)))
    }


@pytest.mark.long
def test_statistics_are_part_of_checkpoints_and_packs_and_a_killed_run_continues(whole, tmp_path, monkeypatch):
    killed = dict(whole, output_dir=str(tmp_path / "killed"))
    save = checkpoints.RunSaver.save

    def save_and_fail(self, session, path, global_step=None, **unused):
        save(self, session, path, global_step)
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(checkpoints.RunSaver, "save", save_and_fail)
        run(killed)
    assert tf.train.latest_checkpoint(killed["output_dir"]).endswith("model.ckpt-8")
    resumed = run(killed)
    one, other = checkpoint_of(whole), checkpoint_of(killed)
    moving = [name for name in one if "moving" in name]
    assert len(moving) == 4 and set(one) == set(other)
    assert [name for name in one if not np.array_equal(one[name], other[name])] == []
    pack = packs.read(pack_of(whole))
    assert set(moving) <= set(pack.tensors) and pack.config.adapter["norm"] == "batch"

    evaluated = run(whole, do_train=False, adapter_pack=pack_of(whole), output_dir=str(tmp_path / "evaluated"))
    assert (evaluated.loss, evaluated.metrics) == (resumed.loss, resumed.metrics)
    with Predictor.from_run(whole["output_dir"]) as predictor:
        assert predictor.predict(["the cat is big ."])[0].label in ("0", "1")
    message = error_of(whole, do_train=False, adapter_connection="serial")
    assert_mentions(message, "--adapter_connection was parallel, is serial")
