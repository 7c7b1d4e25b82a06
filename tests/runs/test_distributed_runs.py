"""Runs with several processes: the same training as in one, kills, resumption, and workers that disagree.

Dropout is off where runs are compared, because each worker has its own masks.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, system
from adapter_bert.devices import cluster, compat, launcher
from adapter_bert.devices.cluster import Cluster
from adapter_bert.weights import packs
from tests import slurm
from tests.helpers import (
    ROOT,
    assert_mentions,
    base_flags,
    cola_rows,
    command_line,
    message_of,
    tiny_config,
    write_bert,
)
from tests.kill import Program, wait_until
from tests.runs.helpers import pack_of, read_json, read_text, run

NO_HEAD_DROPOUT = """
import runpy, sys
from adapter_bert.common import errors, system
system.configure_tensorflow()
from adapter_bert.model import heads
heads.HEAD_DROPOUT = 0.0
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
# Saves take long enough for a scheduler to kill the first worker meanwhile.
SLOW_SAVES = """
import runpy, sys, time
from adapter_bert.common import system
system.configure_tensorflow()
import tensorflow.compat.v1 as tf
save = tf.train.Saver.save
tf.train.Saver.save = lambda *args, **options: (time.sleep(2), save(*args, **options))[1]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
# All processes end within this many seconds after one was killed.
LIMIT = 60


@pytest.fixture(scope="module")
def still_bert(tmp_path_factory) -> str:
    """A BERT without dropout."""
    folder = str(tmp_path_factory.mktemp("still_bert"))
    write_bert(folder, tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return folder


def flags_of(bert: str, cola_dir: str, output_dir: str) -> dict:
    values = base_flags(bert, cola_dir, output_dir)
    return dict(values, num_train_epochs=2.0, learning_rate=3e-3, do_train=True, do_eval=True)


@pytest.fixture
def flags(still_bert, cola_dir, tmp_path) -> dict:
    """Flags of a run of 16 steps in two epochs, evaluated after each."""
    return flags_of(still_bert, cola_dir, str(tmp_path / "out"))


@pytest.fixture(scope="module")
def alone(still_bert, cola_dir, tmp_path_factory) -> dict:
    """The flags of that run in one process, finished. Read only."""
    return train(flags_of(still_bert, cola_dir, str(tmp_path_factory.mktemp("alone") / "out")), 1, "alone")


def start(flags: dict, count: int, **of_last: object) -> List[Program]:
    """Start a run with this many workers; `of_last` are flags of the last one that differ."""
    addresses = tuple(f"localhost:{port}" for port in launcher.free_ports(count))
    programs = []
    for rank in range(count):
        own = dict(flags, **(of_last if rank == count - 1 else {}))
        if count > 1:
            own["distribution_strategy"] = "multi_worker_mirrored"
        command = wrapped(NO_HEAD_DROPOUT, own)
        variables = cluster.tf_config(Cluster(addresses, rank)) if count > 1 else {}
        programs.append(Program(command, env=dict(os.environ, PYTHONPATH=ROOT, **variables)))
    return programs


def wrapped(code: str, flags: dict) -> List[str]:
    """Return the command of a run that starts with this code."""
    return [sys.executable, "-c", code, *command_line(flags)[1:]]


def end(programs: List[Program]) -> List[int]:
    """Wait until all have ended; return their exit codes."""
    for program in programs:
        program.output += program.process.communicate(timeout=300)[0]
    return [program.process.returncode for program in programs]


def train(flags: dict, count: int, name: str) -> dict:
    """Train with this many workers in a folder of its own; return its flags."""
    own = dict(flags, output_dir=f"{flags['output_dir']}-{name}")
    programs = start(own, count)
    assert end(programs) == [0] * count, programs[0].output
    return own


def losses_of(flags: dict) -> np.ndarray:
    """Return the loss of each step of a run that is shorter than its record of losses."""
    losses = read_json(flags["output_dir"], "training.json")["losses"]
    return np.array([loss for loss in losses if loss is not None])


def assert_same_training(one: dict, other: dict) -> None:
    """Check that two runs had the same losses and have the same weights."""
    losses = [losses_of(flags) for flags in (one, other)]
    assert len(losses[0]) == 16 and losses[0].std() > 0
    np.testing.assert_allclose(*losses, atol=1e-4)
    found = [packs.read(pack_of(flags)) for flags in (one, other)]
    assert found[0].tensors.keys() == found[1].tensors.keys() and found[0].tensors
    for name, tensor in found[0].tensors.items():
        np.testing.assert_allclose(found[1].tensors[name], tensor, atol=1e-4, err_msg=name)
    assert found[0].config.metrics == found[1].config.metrics


@pytest.mark.smoke
def test_two_workers_train_as_one_does_and_only_the_first_writes(flags, alone):
    two = train(flags, 2, "two")
    assert_same_training(alone, two)
    names = [sorted(os.listdir(run["output_dir"])) for run in (alone, two)]
    kept = [[name for name in found if not name.startswith("events")] for found in names]
    assert kept[0] == kept[1] and [len(found) for found in names] == [len(kept[0]) + 1] * 2


@pytest.mark.long
def test_four_workers_train_as_one_does_with_accumulated_gradients(flags, alone):
    assert_same_training(alone, train(dict(flags, gradient_accumulation_steps=2), 4, "four"))


@pytest.mark.long
def test_two_workers_train_all_weights_as_one_does(flags):
    full = dict(flags, tuning_mode="full", learning_rate=1e-3, pad_to_max_seq_length=True)
    assert_same_training(train(full, 1, "alone"), train(full, 2, "two"))


@pytest.mark.long
@pytest.mark.skipif(
    compat.tensorflow_version() < (2, 0) or "avx512_bf16" not in system.cpu_flags(), reason="needs bfloat16"
)
def test_two_workers_train_in_bfloat16(flags):
    reduced = dict(flags, precision="bfloat16")
    alone, two = train(reduced, 1, "alone"), train(reduced, 2, "two")
    np.testing.assert_allclose(losses_of(alone), losses_of(two), atol=0.02)  # each rounds other numbers
    assert len(losses_of(two)) == 16


@pytest.mark.long
def test_a_kill_of_any_worker_ends_all_and_the_same_command_continues(flags):
    long = dict(flags, num_train_epochs=60, save_checkpoints_steps=10)
    for victim in (1, 0):
        programs, earlier = start(long, 2), last_step(long)
        programs[victim].wait_until(functools.partial(has_step_after, long, earlier))
        killed_at = time.monotonic()
        programs[victim].kill()
        survivor = programs[1 - victim]
        assert end([survivor]) == [1]
        assert time.monotonic() - killed_at < LIMIT
        message = survivor.output.strip().splitlines()[-1]
        assert_mentions(message, "error", f"orker {victim} (localhost:", f"orker {1 - victim} ", "same command")
        assert earlier < last_step(long) < 480
    programs, earlier = start(long, 2), last_step(long)
    assert end(programs) == [0, 0]
    assert_mentions(programs[0].output, f"Training: steps {earlier} to 480")
    assert read_json(long["output_dir"], "results.json")["metrics"]["accuracy"] == 1.0


def last_step(flags: dict) -> int:
    """Return the step of a run's newest checkpoint; 0 if there is none."""
    newest = tf.train.latest_checkpoint(flags["output_dir"])
    return int(newest.split("-")[-1]) if newest else 0


def has_step_after(flags: dict, step: int) -> bool:
    return last_step(flags) > step


@pytest.mark.long
def test_a_signal_to_the_launcher_stops_all_workers_at_a_checkpoint(flags):
    long = dict(flags, num_train_epochs=60, distribution_strategy="mirrored", workers=2, save_checkpoints_steps=10)
    program = Program(command_line(long)).wait_until(functools.partial(has_step_after, long, 0))
    assert program.end(signal.SIGTERM) == errors.INTERRUPTED
    step = last_step(long)
    assert step % 10, "the last checkpoint is one that is due anyway"
    assert_mentions(program.output.strip().splitlines()[-1], f"step {step}", "same command")
    assert subprocess.run(["pgrep", "-f", long["output_dir"]], stdout=subprocess.DEVNULL).returncode == 1
    program = Program(command_line(long))
    assert end([program]) == [0], program.output
    assert_mentions(program.output, f"Training: steps {step} to 480")


@pytest.mark.long
@slurm.needs_slurm
def test_the_tasks_of_a_slurm_job_train_as_one_process_does(flags, alone, slurm_jobs):
    own = dict(flags, distribution_strategy="multi_worker_mirrored")
    program = Program(["srun", "--ntasks=2", *wrapped(NO_HEAD_DROPOUT, own)])
    assert end([program]) == [0], program.output
    assert program.output.count("***** Training: steps 0 to 16") == 2
    assert_same_training(alone, own)


@pytest.mark.long
@slurm.needs_slurm
def test_a_slurm_job_saves_a_checkpoint_before_its_time_limit_and_the_next_one_continues(flags, slurm_jobs, tmp_path):
    long = dict(flags, distribution_strategy="multi_worker_mirrored", num_train_epochs=60, save_checkpoints_steps=100)
    long["do_eval"] = False
    first = submit(long, tmp_path)
    wait_until(functools.partial(has_step_after, long, 0))
    subprocess.run(["scancel", "--signal=TERM", first], check=True)  # as with #SBATCH --signal=TERM@120
    wait_until(lambda: slurm.state_of(first) == "FAILED")
    step = last_step(long)
    assert step % 100, "the last checkpoint is one that is due anyway"
    assert_mentions(read_text(str(tmp_path), f"{first}.out"), f"interrupted at step {step}", "same command")
    second = submit(long, tmp_path)
    wait_until(lambda: slurm.state_of(second) == "COMPLETED")
    assert_mentions(read_text(str(tmp_path), f"{second}.out"), f"Training: steps {step} to 480")


def submit(flags: dict, folder: pathlib.Path) -> str:
    """Submit a run of two workers as `docs/scaling.md` does; return the number of the job."""
    srun = ["srun", "--kill-on-bad-exit=1", *wrapped(SLOW_SAVES, flags)]
    options = ["--parsable", "--ntasks=2", f"--output={folder}/%j.out", f"--wrap={' '.join(map(shlex.quote, srun))}"]
    environment = dict(os.environ, PYTHONPATH=ROOT)
    return subprocess.run(
        ["sbatch", *options], env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()


@pytest.mark.long
def test_a_worker_with_other_flags_data_or_base_ends_all_before_anything_is_written(flags, tmp_path):
    data_dir = shutil.copytree(flags["data_dir"], str(tmp_path / "data"))
    with open(os.path.join(data_dir, "train.tsv"), "w") as file:
        file.write("\n".join(cola_rows(64, 1)) + "\n")
    other = write_bert(str(tmp_path / "other"), tiny_config(hidden_dropout_prob=0.0), seed=8)
    for changes, fact in (
        ({"seed": 2, "data_dir": data_dir}, ["--seed is 2", "and 1 on worker 0", "train_data"]),
        ({"init_checkpoint": other}, ["base is"]),
    ):
        programs = start(flags, 2, **changes)
        assert end(programs) == [1, 1]
        for program in programs:
            assert_mentions(program.output.strip().splitlines()[-1], "Worker 1", "differs from worker 0", *fact)
    assert not os.path.exists(flags["output_dir"])


@pytest.mark.long
def test_a_launched_run_stops_early_and_is_then_finished(flags):
    flags = dict(flags, distribution_strategy="mirrored", workers=2, num_train_epochs=30, early_stopping_patience=1)
    flags["learning_rate"] = 0.0  # the second evaluation is as good as the first
    for _ in range(2):
        program = Program(command_line(flags))
        assert end([program]) == [0], program.output
    assert_mentions(program.output, "Training stopped early at step", "nothing is left to do")
    steps = [entry["step"] for entry in read_json(flags["output_dir"], "training.json")["evaluations"]]
    assert steps == [8, 16] and last_step(flags) == 16


def test_what_cannot_work_is_an_error(flags, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    many = dict(flags, distribution_strategy="multi_worker_mirrored")
    assert_mentions(message_of(run, many), "TF_CONFIG", "mirrored")
    two = cluster.tf_config(Cluster(("localhost:1", "localhost:2"), 0))
    monkeypatch.setenv("TF_CONFIG", two["TF_CONFIG"])
    assert_mentions(message_of(run, many, train_batch_size=9), "--train_batch_size=9", "2")
    assert json.loads(os.environ["TF_CONFIG"]) == json.loads(two["TF_CONFIG"])
    one = dict(flags, distribution_strategy="mirrored")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert_mentions(message_of(run, one), "command line")
    assert_mentions(message_of(run, one, workers=3), "--train_batch_size=8", "3")
    assert_mentions(message_of(run, flags, workers=2), "--workers=2", "--distribution_strategy")
    assert_mentions(message_of(run, one, adapter_norm="batch"), "--adapter_norm=batch")
    assert_mentions(message_of(run, one, use_tpu=True, tpu_name="local"), "--use_tpu", "mirrored")
    assert not os.path.exists(flags["output_dir"])
