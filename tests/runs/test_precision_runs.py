"""Runs with --precision=bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from adapter_bert.common import system
from adapter_bert.devices import compat
from adapter_bert.model import loss_scale
from adapter_bert.serving.predictor import Predictor
from adapter_bert.weights import checkpoints, packs
from tests.helpers import assert_mentions, message_of
from tests.runs.helpers import error_of, pack_of, run
from tests.serving.helpers import probabilities

pytestmark = pytest.mark.skipif(compat.tensorflow_version() < (2, 0), reason="bfloat16 needs TensorFlow 2")
TEXTS = ["the cat is big .", "dogs run", "they see the small dog and it runs !"]


@pytest.fixture(autouse=True)
def supported(monkeypatch):
    """A CPU that supports it; others compute it too, but slowly."""
    monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(["avx512_bf16"]))


@pytest.fixture
def reduced(given) -> dict:
    return dict(given, precision="bfloat16", save_checkpoints_steps=4)


def test_a_cpu_without_the_instructions_is_an_error_before_anything_is_written(reduced, monkeypatch):
    monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(["avx2"]))
    assert_mentions(error_of(reduced, do_train=True), "bfloat16", "avx512_bf16", "float32")
    assert_mentions(error_of(dict(reduced, precision="float8"), do_train=True), "float8", "float32, bfloat16, float16")


def test_a_pack_is_float32_records_the_precision_and_runs_in_either(reduced, tmp_path):
    trained = run(reduced, do_train=True, do_eval=True)
    pack = packs.read(pack_of(reduced))
    assert {tensor.dtype for tensor in pack.tensors.values()} == {np.dtype("float32")}
    assert pack.config.training["precision"] == trained.settings["precision"] == "bfloat16"
    other = dict(reduced, precision="float32", adapter_pack=pack_of(reduced), output_dir=str(tmp_path / "other"))
    evaluated = run(other, do_eval=True)
    assert evaluated.loss != trained.loss and abs(evaluated.loss - trained.loss) < 0.05
    assert evaluated.fingerprints["frozen"] == trained.fingerprints["frozen"]
    found = []
    for precision in ("float32", "bfloat16"):
        with Predictor.from_run(reduced["output_dir"], precision=precision) as predictor:
            found.append(probabilities(predictor.predict(TEXTS)))
    np.testing.assert_allclose(*found, atol=0.03)
    assert not np.array_equal(*found)
    assert_mentions(
        message_of(Predictor.from_run, reduced["output_dir"], precision="half"), "half", "float32, bfloat16, float16"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{}, {"tuning_mode": "top_layers", "tune_top_layers": 1}, {"tuning_mode": "full"}, {"precision": "float16"}],
    ids=str,
)
def test_a_run_that_was_killed_ends_with_the_same_weights(reduced, tmp_path, monkeypatch, changes):
    if changes.get("precision") == "float16":  # the graph for a GPU, which the CPU computes too, but slowly
        monkeypatch.setattr(compat, "has_gpu", lambda: True)

    class Killed(BaseException):
        pass

    save = checkpoints.TrainedSaver.save

    def save_and_die(self, session, path, global_step=None, **options):
        save(self, session, path, global_step, **options)
        if global_step == 8:
            raise Killed

    whole, killed = (dict(reduced, **changes, output_dir=str(tmp_path / name)) for name in ("whole", "killed"))
    run(whole, do_train=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.TrainedSaver, "save", save_and_die)
        with pytest.raises(Killed):
            run(killed, do_train=True)
    assert checkpoints.find_latest(killed["output_dir"]).endswith("-8")
    assert_mentions(
        error_of(dict(killed, precision="float32"), do_train=True), "precision", killed["precision"], "float32"
    )
    run(killed, do_train=True)
    ends = [checkpoints.find_latest(flags["output_dir"]) for flags in (whole, killed)]
    first, second = (checkpoints.read_tensors(end, sorted(checkpoints.read_shapes(end))) for end in ends)
    assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    if changes.get("precision") == "float16":
        state = checkpoints.read_tensors(checkpoints.optimizer_prefix(ends[1]), loss_scale.NAMES)
        assert state["loss_scale/steps"] == checkpoints.read_step(ends[1]) > 8


@pytest.mark.long
def test_a_whole_checkpoint_is_float32(reduced):
    run(dict(reduced, save_full_checkpoint=True), do_train=True)
    latest = checkpoints.find_latest(reduced["output_dir"])
    values = checkpoints.read_tensors(latest, ["bert/encoder/layer_0/output/dense/kernel"])
    assert {value.dtype for value in values.values()} == {np.dtype("float32")}
