"""`--cache_frozen_layers`: the same training without the frozen layers; one cache for runs that can share it."""

from __future__ import annotations

import collections
import errno
import glob
import os
import shutil

import numpy as np
import pytest

from adapter_bert.common import system
from adapter_bert.devices import compat
from adapter_bert.experiments import sweep_file, worker
from adapter_bert.pipeline import frozen_states
from adapter_bert.serving.predictor import Predictor
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification, frozen_cache
from adapter_bert.training.engine import Engine, WarmEngine
from adapter_bert.weights import checkpoints, packs
from tests.helpers import (
    assert_mentions,
    base_flags,
    command_line,
    recorded_log,
    run_command,
    tiny_config,
    write_bert,
    write_cola,
    write_squad,
)
from tests.kill import Program
from tests.runs.helpers import error_of, pack_of, prepare, read_json, run

TOP = {"tuning_mode": "top_layers", "tune_top_layers": 1}
HEAD = {"tuning_mode": "head"}
UPPER = {"adapter_layers": "1", "adapter_freeze_below": True}
CACHED = {"cache_frozen_layers": True}
NO_ROOM = dict(CACHED, frozen_cache_limit_mb=0)


@pytest.fixture(scope="module")
def quiet_bert(tmp_path_factory) -> str:
    """A BERT without dropout."""
    folder = str(tmp_path_factory.mktemp("quiet_bert"))
    write_bert(folder, tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return folder


@pytest.fixture
def flags(tiny_bert, cola_dir, tmp_path) -> dict:
    """Flags of a run of 16 steps in two epochs, with dropout."""
    given = base_flags(tiny_bert, cola_dir, str(tmp_path / "out"))
    return dict(given, num_train_epochs=2.0, learning_rate=1e-2, do_train=True, do_eval=True)


@pytest.fixture
def quiet(flags, quiet_bert) -> dict:
    """The same without dropout in BERT."""
    paths = {
        name: os.path.join(quiet_bert, os.path.basename(flags[name])) for name in ("vocab_file", "bert_config_file")
    }
    return dict(flags, **paths, init_checkpoint=os.path.join(quiet_bert, "bert_model.ckpt"))


def states_of(flags: dict) -> list:
    return sorted(glob.glob(os.path.join(os.path.dirname(flags["output_dir"]), "features", "*.states")))


def assert_close(one: dict, other: dict, tolerance: float = 1e-3) -> None:
    """Check that two runs have the same losses and weights, except for rounding."""
    histories = [read_json(run["output_dir"], "training.json") for run in (one, other)]
    losses = [[loss for loss in history["losses"] if loss is not None] for history in histories]
    assert len(losses[0]) == 16
    np.testing.assert_allclose(*losses, atol=0.1 * tolerance)
    tensors = [packs.read(pack_of(run)).tensors for run in (one, other)]
    assert set(tensors[0]) == set(tensors[1])
    for name in tensors[0]:
        np.testing.assert_allclose(tensors[0][name], tensors[1][name], atol=tolerance, err_msg=name)


MORE = {"pad_to_max_seq_length": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(TOP, id="top layer"),
        pytest.param(HEAD, id="head", marks=pytest.mark.long),
        pytest.param(UPPER, id="upper adapters", marks=pytest.mark.long),
        pytest.param({**TOP, **MORE}, id="padded, accumulated, checkpointed", marks=pytest.mark.long),
    ],
)
def test_without_dropout_a_cached_run_equals_an_uncached_one(quiet, tmp_path, mode):
    one, other = ({**quiet, **mode, "output_dir": str(tmp_path / name)} for name in ("uncached", "cached"))
    run(one)
    assert states_of(one) == []
    results = run(other, **CACHED)
    assert len(states_of(other)) == 2, "train and dev"
    assert_close(one, other)
    recorded = [read_json(other["output_dir"], "settings.json"), packs.read_config(pack_of(other)).training]
    assert [values["cache_frozen_layers"] for values in (*recorded, results.settings)] == [True] * 3
    assert_mentions(error_of(other), "--cache_frozen_layers was True, is False")


@pytest.mark.long
@pytest.mark.skipif(compat.tensorflow_version() < (2, 0), reason="bfloat16 needs TensorFlow 2")
def test_states_are_stored_in_the_precision_of_the_network(quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(["avx512_bf16"]))
    reduced = dict(quiet, **TOP, precision="bfloat16")
    one, other = ({**reduced, "output_dir": str(tmp_path / "b" / name)} for name in ("uncached", "cached"))
    run(one)
    run(other, **CACHED)
    assert_close(one, other, 0.02)
    full = {**quiet, **TOP, "output_dir": str(tmp_path / "f" / "cached")}
    run(full, **CACHED)
    sizes = [[os.path.getsize(path) for path in states_of(each)] for each in (full, other)]
    assert len(sizes[0]) == 2 and sum(sizes[0]) == 2 * sum(sizes[1])


def test_a_cache_is_shared_and_one_of_another_base_or_other_texts_is_not_used(flags, quiet, tmp_path, monkeypatch):
    computed = collections.Counter()
    compute = frozen_cache._compute

    def counted(trainer, split):
        computed[split.name] += 1
        return compute(trainer, split)

    monkeypatch.setattr(frozen_cache, "_compute", counted)

    def provide(name: str, **changes) -> dict:
        values = {**flags, **TOP, **CACHED, "feature_cache_dir": str(tmp_path / "features"), **changes}
        trainer, _, features = prepare(ClassifierSettings(**dict(values, output_dir=str(tmp_path / name))))
        return frozen_cache.provide(trainer, features)

    first = provide("first")
    assert computed == {"train": 1, "dev": 1} and all(split.states for split in first.values())
    assert provide("other settings", learning_rate=1.0, seed=5, tune_top_layers=1) == first
    assert computed == {"train": 1, "dev": 1}
    # Dropout does not change the output of frozen layers, so this base has the same weights and the same cache.
    assert provide("same weights", bert_config_file=quiet["bert_config_file"]) == first
    assert computed == {"train": 1, "dev": 1}

    write_bert(str(tmp_path / "bert"), tiny_config(), seed=8)
    other_base = provide("other base", init_checkpoint=str(tmp_path / "bert" / "bert_model.ckpt"))
    other_texts = provide("other texts", data_dir=write_cola(str(tmp_path / "cola"), train=56))
    shorter = provide("shorter", max_seq_length=8)
    head = provide("head", tuning_mode="head", tune_top_layers=None)
    assert computed == {"train": 5, "dev": 4}
    paths = {splits["train"].states.path for splits in (first, other_base, other_texts, shorter, head)}
    assert len(paths) == 5

    os.truncate(first["dev"].states.path, 100)
    with recorded_log() as lines:
        assert provide("damaged") == first
    assert_mentions("\n".join(lines), first["dev"].states.path, "damaged")
    assert computed == {"train": 5, "dev": 5}


def test_without_room_the_size_is_reported_and_nothing_is_written(flags, tmp_path, monkeypatch, log):
    trainer, _, features = prepare(ClassifierSettings(**{**flags, **TOP, **NO_ROOM}))
    assert frozen_cache.provide(trainer, features) == features
    assert_mentions("\n".join(log), "0.1 MB", "88 sequences", "lowest 1 layers", "--frozen_cache_limit_mb=0")
    log.clear()

    trainer.record.settings.__dict__["frozen_cache_limit_mb"] = 100
    full = shutil.disk_usage(".")._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: full)
        assert frozen_cache.provide(trainer, features) == features
    assert_mentions("\n".join(log), "0.1 MB", "0.0 MB are free", os.path.join(str(tmp_path), "features"))
    assert states_of(flags) == []
    log.clear()

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(frozen_states, "write", fail)
    assert frozen_cache.provide(trainer, features) == features, "another program has filled the disk meanwhile"
    assert_mentions("\n".join(log), "cannot be written", "No space left")


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({}, ["--cache_frozen_layers", "adapter", "--adapter_layers=1-1", "--adapter_freeze_below=true"]),
        ({"adapter_layers": "1"}, ["--adapter_freeze_below=true"]),
        ({"tuning_mode": "full"}, ["full", "nothing to cache"]),
        (dict(TOP, tune_top_layers=2), ["top_layers", "nothing to cache"]),
    ],
)
def test_without_frozen_layers_at_the_bottom_there_is_an_error(flags, changes, facts):
    assert_mentions(error_of(flags, **CACHED, **changes), *facts)


@pytest.mark.long
@pytest.mark.parametrize("mode", [TOP, HEAD], ids=["top layer", "head"])
def test_with_dropout_a_run_without_room_equals_a_cached_one(flags, tmp_path, mode):
    one, other = ({**flags, **mode, "output_dir": str(tmp_path / name)} for name in ("no room", "cached"))
    run(one, **NO_ROOM)
    assert states_of(one) == []
    run(other, **CACHED)
    assert_close(one, other)


class KilledError(Exception):
    pass


@pytest.mark.long
def test_a_killed_run_continues_bit_for_bit_even_if_the_cache_was_deleted(flags, tmp_path, monkeypatch):
    whole, killed = ({**flags, **UPPER, **CACHED, "output_dir": str(tmp_path / name)} for name in ("whole", "killed"))
    run(whole)
    save = checkpoints.RunSaver.save

    def save_and_fail(self, session, path, global_step=None, **unused):
        save(self, session, path, global_step)
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(checkpoints.RunSaver, "save", save_and_fail)
        run(killed)
    for path in states_of(killed):
        os.remove(path)
    run(killed)
    assert_same_checkpoints(whole, killed, 16)


def assert_same_checkpoints(one: dict, other: dict, step: int) -> None:
    """Check that two runs have the same weights and optimizer state at a step, bit for bit."""
    for name in (f"model.ckpt-{step}", f"optimizer.ckpt-{step}"):
        prefixes = [os.path.join(run["output_dir"], name) for run in (one, other)]
        names = list(checkpoints.read_shapes(prefixes[0]))
        assert names
        for (name, value), (_, found) in zip(*(checkpoints.each_tensor(prefix, names) for prefix in prefixes)):
            np.testing.assert_array_equal(value, found, name)


@pytest.mark.long
def test_a_process_that_is_killed_while_it_reads_the_cache_continues_bit_for_bit(flags, tmp_path):
    flags = {**flags, **UPPER, **CACHED, "num_train_epochs": 30.0, "save_checkpoints_steps": 8, "do_eval": False}
    whole, killed = ({**flags, "output_dir": str(tmp_path / name)} for name in ("whole", "killed"))
    run(whole)
    assert states_of(whole)
    program = Program(command_line(killed))
    program.wait_until(lambda: os.path.exists(os.path.join(killed["output_dir"], "checkpoint"))).kill()
    assert 0 < checkpoints.read_step(checkpoints.find_latest(killed["output_dir"])) < 240
    assert run_command(killed).returncode == 0
    assert_same_checkpoints(whole, killed, 240)


@pytest.mark.long
def test_the_pack_of_a_cached_run_predicts_with_the_whole_network(flags, tmp_path):
    results = run(flags, **UPPER, **CACHED)
    pack = packs.read(pack_of(flags))
    assert not [name for name in pack.tensors if "layer_0" in name or "embeddings" in name]
    assert len([name for name in pack.tensors if "layer_1/" in name and "LayerNorm" in name]) == 4
    assert pack.config.adapter["freeze_below"] is True
    with Predictor.from_run(flags["output_dir"]) as predictor:
        assert predictor.predict(["the cat is big ."])[0].label in ("0", "1")
    again = run(flags, **UPPER, do_train=False, adapter_pack=pack_of(flags), output_dir=str(tmp_path / "again"))
    assert abs(again.loss - results.loss) < 1e-5 and again.metrics == results.metrics


@pytest.mark.long
@pytest.mark.parametrize("mode", [TOP, HEAD], ids=["top layer", "head"])
def test_span_extraction_reads_the_states_of_all_tokens(flags, tmp_path, mode):
    given = {name: flags[name] for name in flags if name not in ("task_name", "data_dir")}
    lengths = {"max_seq_length": 24, "doc_stride": 8, "max_query_length": 8}
    file = write_squad(str(tmp_path / "questions.json"))
    given = {**given, **mode, **lengths, "train_file": file, "predict_file": file}
    one, other = (dict(given, output_dir=str(tmp_path / name)) for name in ("no room", "cached"))
    run(one, **NO_ROOM)
    run(other, **CACHED)
    assert len(states_of(other)) == 2
    assert_close(one, other)


SWEEP = """
tasks = ["CoLA"]
seeds = [1, 2]

[flags]
data_dir = "{data}"
bert_dir = "{bert}"
max_seq_length = 16
train_batch_size = 8
num_train_epochs = 1
tuning_mode = "top_layers"
tune_top_layers = 1
learning_rate = 1e-2

[method.cached]
cache_frozen_layers = true
"""


@pytest.mark.long
def test_the_cells_of_a_sweep_share_a_cache_and_equal_separate_runs(tiny_bert, cola_dir, tmp_path, monkeypatch):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.replace("{data}", cola_dir).replace("{bert}", tiny_bert))
    sweep = sweep_file.read(str(path), {})
    cells = list(sweep.grid_cells())
    assert len(cells) == 2

    def summary(cell, name, engine):
        settings = sweep.settings(cell, str(tmp_path / name), str(tmp_path / "features"))
        return worker.summarize(cell, settings, classification.run(settings, engine))

    alone = [summary(cell, f"alone-{number}", Engine()) for number, cell in enumerate(cells)]
    assert len(glob.glob(str(tmp_path / "features" / "*.states"))) == 2
    monkeypatch.setattr(frozen_cache, "_compute", None)
    engine = WarmEngine()
    assert [summary(cell, f"warm-{number}", engine) for number, cell in enumerate(cells)] == alone
