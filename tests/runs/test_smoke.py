"""Train, kill, resume, evaluate and predict on the command line: what must work on every TensorFlow version."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import assert_mentions, base_flags, command_line, read_results, run_command
from tests.kill import Program

pytestmark = pytest.mark.smoke

STEPS = 400
EPOCHS = 50  # of 64 examples in batches of 8
CHECKPOINT_FILES = ("model.ckpt", "optimizer.ckpt")


@pytest.fixture(scope="module")
def flags(tiny_bert, cola_dir, tmp_path_factory):
    output_dir = str(tmp_path_factory.mktemp("smoke") / "run")
    values = base_flags(tiny_bert, cola_dir, output_dir)
    return dict(values, num_train_epochs=EPOCHS, learning_rate=3e-3, save_checkpoints_steps=40)


@pytest.fixture(scope="module")
def killed_run(flags):
    """Start the training and kill it without warning once there is a checkpoint; return its step."""
    program = Program(command_line(dict(flags, do_train=True, do_eval=True)))
    program.wait_until(lambda: tf.train.latest_checkpoint(flags["output_dir"]) is not None).kill()
    return int(tf.train.latest_checkpoint(flags["output_dir"]).split("-")[-1])


def checkpoint_tensors(folder: str) -> dict:
    """Return all tensors of a run's last checkpoint, the optimizer's too."""
    readers = [tf.train.load_checkpoint(os.path.join(folder, f"{name}-{STEPS}")) for name in CHECKPOINT_FILES]
    return {name: reader.get_tensor(name) for reader in readers for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def finished_run(flags, killed_run):
    """The output of the same command again, with evaluation and prediction."""
    return run_successfully(dict(flags, do_train=True, do_eval=True, do_predict=True))


def run_successfully(flags: dict) -> str:
    process = run_command(flags)
    assert process.returncode == 0, process.stdout
    return process.stdout


def test_a_killed_run_continues_from_its_last_checkpoint(flags, killed_run, finished_run):
    assert 0 < killed_run < STEPS
    assert_mentions(finished_run, f"Training: steps {killed_run} to {STEPS}")
    assert tf.train.latest_checkpoint(flags["output_dir"]).endswith(f"model.ckpt-{STEPS}")


def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(flags, finished_run, tmp_path):
    """Data order and dropout go on where they stopped: every tensor is the same, the optimizer's too."""
    output_dir = str(tmp_path / "whole")
    run_successfully(dict(flags, output_dir=output_dir, do_train=True, do_eval=True))
    whole, resumed = (checkpoint_tensors(folder) for folder in (output_dir, flags["output_dir"]))
    assert set(whole) == set(resumed) > {"global_step", "output_weights", "output_weights/adam_m"}
    assert [name for name in whole if not np.array_equal(whole[name], resumed[name])] == []
    assert read_results(output_dir) == read_results(flags["output_dir"])


def test_the_parameter_table_comes_before_training(finished_run):
    totals = re.findall(r"\*{5} (.*Parameters) = \d+ \*{5}", finished_run)
    assert totals == ["Total Parameters", "Total Trainable Parameters"]
    for group in ("embeddings", "encoder", "adapters", "LayerNorm", "pooler", "head"):
        assert re.search(rf"{group} +\d+ +[\d,]+  (trained|frozen)", finished_run), group


def test_evaluation_writes_scores_of_the_trained_model(flags, finished_run):
    results = read_results(flags["output_dir"])
    assert {"eval_accuracy", "eval_loss", "loss", "eval_matthews"} <= set(results)
    # The rule is simple and the dev sentences are combinations of seen words.
    assert results["eval_matthews"] > 0.5


def test_prediction_writes_a_row_of_probabilities_for_each_test_example(flags, finished_run):
    rows = np.loadtxt(os.path.join(flags["output_dir"], "test_results.tsv"), delimiter="\t")
    assert rows.shape == (10, 2)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-5)


def test_checkpoints_contain_trained_variables_and_nothing_of_the_frozen_base(flags, finished_run):
    held = {name for name in checkpoint_tensors(flags["output_dir"]) if not name.endswith(("/adam_m", "/adam_v"))}
    assert {re.search("adapters/|LayerNorm/|output_|global_step", name) is not None for name in held} == {True}
