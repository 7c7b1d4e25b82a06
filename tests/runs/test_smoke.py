"""The whole way through the command line, in processes of their own: what must work on every TensorFlow version."""

from __future__ import annotations

import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import base_flags, command_line, read_results, run_command
from tests.kill import Program

pytestmark = pytest.mark.smoke

STEPS = 400
EPOCHS = 50  # of 64 examples in batches of 8
CHECKPOINT_FILES = ("model.ckpt", "optimizer.ckpt")


@pytest.fixture(scope="module")
def flags(tiny_bert, cola_dir, tmp_path_factory):
    output_dir = str(tmp_path_factory.mktemp("smoke") / "run")
    return dict(
        base_flags(tiny_bert, cola_dir, output_dir),
        num_train_epochs=EPOCHS,
        learning_rate=3e-3,
        save_checkpoints_steps=40,
    )


@pytest.fixture(scope="module")
def killed_run(flags):
    """Starts the training and kills it without warning once a checkpoint is there; returns that step."""
    program = Program(command_line(dict(flags, do_train=True, do_eval=True)))
    program.wait_until(lambda: tf.train.latest_checkpoint(flags["output_dir"]) is not None).kill()
    return int(tf.train.latest_checkpoint(flags["output_dir"]).split("-")[-1])


def checkpoint_tensors(folder: str) -> dict:
    """All tensors of a run's last checkpoint, the optimizer's too."""
    readers = [tf.train.load_checkpoint(os.path.join(folder, f"{name}-{STEPS}")) for name in CHECKPOINT_FILES]
    return {name: reader.get_tensor(name) for reader in readers for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def finished_run(flags, killed_run):
    """The same command again, with evaluation and prediction."""
    return run_command(dict(flags, do_train=True, do_eval=True, do_predict=True))


def test_a_killed_run_continues_from_its_last_checkpoint(flags, killed_run, finished_run):
    assert finished_run.returncode == 0, finished_run.stdout
    assert 0 < killed_run < STEPS
    assert f"Training: steps {killed_run} to {STEPS}" in finished_run.stdout
    assert tf.train.latest_checkpoint(flags["output_dir"]).endswith(f"model.ckpt-{STEPS}")


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(flags, finished_run, tmp_path_factory):
    """Data order and dropout go on where they stopped: every tensor is the same, the optimizer's too."""
    assert finished_run.returncode == 0, finished_run.stdout
    output_dir = str(tmp_path_factory.mktemp("whole") / "run")
    process = run_command(dict(flags, output_dir=output_dir, do_train=True, do_eval=True))
    assert process.returncode == 0, process.stdout
    whole, resumed = (checkpoint_tensors(folder) for folder in (output_dir, flags["output_dir"]))
    assert set(whole) == set(resumed) > {"global_step", "output_weights", "output_weights/adam_m"}
    assert [name for name in whole if not np.array_equal(whole[name], resumed[name])] == []
    assert read_results(output_dir) == read_results(flags["output_dir"])


def test_the_parameter_table_stands_before_training(finished_run):
    lines = finished_run.stdout.split("\n")
    totals = [line for line in lines if "*****" in line and "Parameters" in line]
    assert [re.search(r"\*{5} (.*) = \d+ \*{5}", line).group(1) for line in totals] == [
        "Total Parameters",
        "Total Trainable Parameters",
    ]
    table = finished_run.stdout
    for group in ("embeddings", "encoder", "adapters", "LayerNorm", "pooler", "head"):
        assert re.search(rf"{group} +\d+ +[\d,]+  (trained|frozen)", table), group


def test_evaluation_writes_scores_of_the_trained_model(flags, finished_run):
    assert finished_run.returncode == 0, finished_run.stdout
    results = read_results(flags["output_dir"])
    assert {"eval_accuracy", "eval_loss", "loss", "eval_matthews"} <= set(results)
    # The rule is simple and the dev sentences are combinations of seen words.
    assert results["eval_matthews"] > 0.5


def test_prediction_writes_a_row_of_probabilities_for_each_test_example(flags, finished_run):
    assert finished_run.returncode == 0, finished_run.stdout
    rows = np.loadtxt(os.path.join(flags["output_dir"], "test_results.tsv"), delimiter="\t")
    assert rows.shape == (10, 2)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-5)


def test_the_best_weights_of_a_run_can_be_evaluated_in_a_new_folder(flags, finished_run, tmp_path):
    assert finished_run.returncode == 0, finished_run.stdout
    output_dir = str(tmp_path / "new")
    process = run_command(dict(flags, init_checkpoint=flags["output_dir"], output_dir=output_dir, do_eval=True))
    assert process.returncode == 0, process.stdout
    assert read_results(output_dir) == read_results(flags["output_dir"])


def test_a_pack_on_its_base_gives_the_scores_of_its_training_to_the_last_digit(flags, finished_run, tmp_path):
    assert finished_run.returncode == 0, finished_run.stdout
    pack = str(tmp_path / "cola.safetensors")
    shutil.copy(os.path.join(flags["output_dir"], "adapter_pack.safetensors"), pack)
    output_dir = str(tmp_path / "new")
    process = run_command(dict(flags, adapter_pack=pack, output_dir=output_dir, do_eval=True))
    assert process.returncode == 0, process.stdout
    assert read_results(output_dir) == read_results(flags["output_dir"])


def test_checkpoints_hold_what_is_trained_and_nothing_of_the_frozen_base(flags, finished_run):
    assert finished_run.returncode == 0, finished_run.stdout
    held = {name for name in checkpoint_tensors(flags["output_dir"]) if not name.endswith(("/adam_m", "/adam_v"))}
    assert {re.search("adapters/|LayerNorm/|output_|global_step", name) is not None for name in held} == {True}


def test_a_full_checkpoint_holds_the_frozen_base_bit_by_bit(flags, tiny_bert, tmp_path):
    changed = dict(
        flags, output_dir=str(tmp_path / "full"), do_train=True, save_full_checkpoint=True, num_train_epochs=1
    )
    process = run_command(changed)
    assert process.returncode == 0, process.stdout
    base = tf.train.load_checkpoint(os.path.join(tiny_bert, "bert_model.ckpt"))
    tuned = tf.train.load_checkpoint(os.path.join(changed["output_dir"], "model.ckpt-8"))
    names = base.get_variable_to_shape_map()
    moved = {name for name in names if not np.array_equal(base.get_tensor(name), tuned.get_tensor(name))}
    assert moved == {name for name in names if "LayerNorm" in name}
    assert tuned.has_tensor("output_weights/adam_m")


def test_a_bad_command_ends_with_one_sentence_and_an_exit_code(flags, tmp_path):
    output_dir = str(tmp_path / "out")
    process = run_command(dict(flags, output_dir=output_dir, task_name="CoLa2", do_train=True))
    assert process.returncode not in (0, None)
    last = process.stdout.strip().split("\n")[-1]
    assert last.startswith("run_classifier.py: error: Unknown task 'CoLa2'. Did you mean 'CoLA'?")
    assert "Traceback" not in process.stdout
    assert not os.path.exists(output_dir)
