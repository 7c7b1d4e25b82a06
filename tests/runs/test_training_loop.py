"""The training loop: evaluation during training, best weights, early stopping, logs and summaries."""

from __future__ import annotations

import glob
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from typing import Dict, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.util import event_pb2

from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification, workflow
from adapter_bert.training.evaluator import DevSet
from adapter_bert.training.loop import TrainingLoop
from adapter_bert.weights import checkpoints, packs
from adapter_layers import AdapterConfig
from tests.helpers import (
    TINY,
    assert_mentions,
    command_line,
    message_of,
    read_results,
    tiny_config,
    write_bert,
    write_cola,
)
from tests.kill import Program
from tests.runs.helpers import error_of, pack_of, prepare, read_json, run

TRAINING = {"do_train": True, "do_eval": True}


@pytest.fixture
def given(given) -> dict:
    """Flags of a run of 16 steps, two epochs, that evaluates once per epoch."""
    return dict(given, **TRAINING)


def evaluations_of(flags: dict) -> List[dict]:
    return read_json(flags["output_dir"], "training.json")["evaluations"]


def steps_of(flags: dict) -> List[int]:
    return [entry["step"] for entry in evaluations_of(flags)]


def write_bert_with_head(folder, weights: float, bias: List[float]) -> str:
    """Write a BERT with adapters and a head of given values; return the checkpoint's prefix."""

    def add_head():
        tf.get_variable("output_weights", initializer=np.full([2, TINY["hidden_size"]], weights, np.float32))
        tf.get_variable("output_bias", initializer=np.array(bias, np.float32))

    return write_bert(str(folder), tiny_config(), AdapterConfig(size=4), extra=add_head)


def assert_same_checkpoints(one: dict, other: dict) -> None:
    """Check that the last checkpoints of two runs contain the same numbers."""
    readers = [tf.train.load_checkpoint(os.path.join(flags["output_dir"], "model.ckpt-16")) for flags in (one, other)]
    names = readers[0].get_variable_to_shape_map()
    assert names and names == readers[1].get_variable_to_shape_map()
    for name in names:
        np.testing.assert_array_equal(*[reader.get_tensor(name) for reader in readers], name)


class TestEvaluationDuringTraining:
    def test_it_comes_once_per_epoch_and_leaves_a_checkpoint(self, trained):
        """With the original's 1000 steps between checkpoints, small tasks would start again."""
        assert steps_of(trained) == [8, 16]
        names = [name for name in os.listdir(trained["output_dir"]) if name.endswith(".index")]
        assert sorted(names) == ["model.ckpt-16.index", "model.ckpt-8.index", "optimizer.ckpt-16.index"]

    def test_it_comes_at_a_given_interval_and_does_not_change_training(self, given, unscored):
        assert steps_of(unscored) == []
        run(given, eval_every_steps=5)
        assert steps_of(given) == [5, 10, 15, 16]
        assert_same_checkpoints(given, unscored)

    @pytest.mark.long
    def test_without_it_the_last_weights_are_scored_as_in_the_original(self, given):
        run(given, eval_every_steps=0)
        assert steps_of(given) == []
        config, results = packs.read_config(pack_of(given)), read_results(given["output_dir"])
        assert results["global_step"] == config.step == 16
        assert config.metrics["matthews"] == results["eval_matthews"], "added to the pack later"
        run(given, eval_every_steps=0)
        assert packs.read_config(pack_of(given)) == config, "the same command again has nothing left to do"

    def test_its_scores_are_those_of_the_saved_checkpoints(self, trained, tmp_path):
        """The training graph and a new graph with the saved weights give the same scores."""
        entries = evaluations_of(trained)
        assert len(entries) == 2
        for entry in entries:
            prefix = os.path.join(trained["output_dir"], f"model.ckpt-{entry['step']}")
            folder = str(tmp_path / str(entry["step"]))
            results = run(trained, do_eval=True, init_checkpoint=prefix, output_dir=folder)
            assert (results.loss, results.metrics) == (entry["loss"], entry["metrics"])

    @pytest.mark.long
    def test_training_in_pieces_as_on_a_tpu_gives_the_same_scores_and_the_same_best_weights(self, given, trained):
        settings = ClassifierSettings(**given)
        trainer, data, features = prepare(settings)
        dev = DevSet(features["dev"], classification.make_scorer(trainer.spec.head, data.task))
        loop = TrainingLoop(trainer, workflow.make_schedule(settings, 64), features["train"], dev)
        loop.run_in_pieces()
        assert loop.history.evaluations == evaluations_of(trained) != []
        whole, pieces = (packs.read(path) for path in (pack_of(trained), trainer.folder.pack_path))
        assert (whole.config.step, whole.fingerprint) == (pieces.config.step, pieces.fingerprint)


class TestBestWeights:
    @pytest.mark.long
    def test_they_become_the_pack_and_are_used_from_then_on(self, given):
        """A learning rate that ruins what the first steps have learned."""
        results = run(given, learning_rate=0.3, eval_every_steps=2)
        best = max(evaluations_of(given), key=lambda entry: (entry["metrics"]["matthews"], -entry["loss"]))
        saved = packs.read_config(pack_of(given))
        assert (saved.step, saved.metrics, saved.loss) == (best["step"], best["metrics"], best["loss"])
        assert (results.step, results.metrics, results.loss) == (best["step"], best["metrics"], best["loss"])
        first = read_results(given["output_dir"])
        run(given, do_train=False, do_predict=True)
        assert read_results(given["output_dir"]) == first

    def test_another_metric_can_select_them(self, given):
        task = classification.load_data(ClassifierSettings(**dict(given, primary_metric="accuracy"))).task
        assert task.metrics == ("accuracy", "matthews")
        assert_mentions(error_of(given, primary_metric="spearman"), "spearman")

    @pytest.mark.long
    def test_a_run_that_was_killed_around_an_evaluation_recovers(self, given, tmp_path, monkeypatch):
        """Killed after a checkpoint and before its evaluation, or before recording the best weights."""
        save = checkpoints.TrainedSaver.save

        def save_and_copy(saver, session, path, global_step):
            save(saver, session, path, global_step)
            copy = str(tmp_path / f"killed-at-{global_step}")
            if not os.path.exists(copy):
                shutil.copytree(given["output_dir"], copy)

        changes = {"save_checkpoints_steps": 8, "seed": 4}
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints.TrainedSaver, "save", save_and_copy)
            run(given, **changes)
        expected, best = evaluations_of(given), packs.read_config(pack_of(given)).step
        assert len(expected) == 2 and best == 16
        late = str(tmp_path / "late")
        shutil.copytree(str(tmp_path / "killed-at-8"), late)
        shutil.copy(str(tmp_path / "killed-at-16" / "training.json"), late)  # with the evaluation of step 8
        shutil.copy(pack_of(given), late)
        assert not os.path.exists(str(tmp_path / "killed-at-8" / "training.json"))
        assert steps_of({"output_dir": late}) == [8]
        for folder in ("killed-at-8", "killed-at-16", "late"):
            killed = dict(given, output_dir=str(tmp_path / folder), **changes)
            run(killed)
            assert evaluations_of(killed) == expected
            assert packs.read(pack_of(killed)).fingerprint == packs.read(pack_of(given)).fingerprint

    def test_a_run_with_evaluation_is_not_continued_without_it(self, trained):
        message = error_of(trained, do_train=True, do_predict=True)
        assert_mentions(message, trained["output_dir"], "--do_eval=true")

    def test_a_damaged_history_is_an_error(self, finished):
        with open(os.path.join(finished["output_dir"], "training.json"), "w") as file:
            file.write('{"evaluations": [{"loss": 1}], "seconds": 1, "steps": 1, "examples": 8}')
        assert_mentions(message_of(run, finished, **TRAINING), "training.json", "damaged")

    @pytest.mark.long
    def test_a_run_that_learns_nothing_is_reported_stops_early_and_stays_stopped(self, given, tmp_path, log):
        prefix = write_bert_with_head(tmp_path / "one", 0.0, [0.0, 5.0])
        changes = {"init_checkpoint": prefix, "learning_rate": 0.0, "eval_every_steps": 4}
        assert run(given, early_stopping_patience=2, **changes).collapsed is True
        assert steps_of(given) == [4, 8, 12]
        assert checkpoints.read_step(tf.train.latest_checkpoint(given["output_dir"])) == 12
        text = "\n".join(log)
        assert_mentions(text, "Collapsed: all predictions are the same", "Stopping early: matthews")
        assert any("Dev set at step 8" in line and "(collapsed" in line for line in log)
        run(given, early_stopping_patience=2, **changes)
        assert steps_of(given) == [4, 8, 12]
        assert_mentions("\n".join(log)[len(text) :], "stopped early at step 12")


class TestFailures:
    @pytest.mark.long
    def test_ctrl_c_saves_a_checkpoint_and_the_same_command_continues(self, given):
        program = Program(command_line(dict(given, num_train_epochs=200.0, save_checkpoints_steps=20)))
        checkpoint = os.path.join(given["output_dir"], "model.ckpt-20.index")
        code = program.wait_until(lambda: os.path.exists(checkpoint)).end(signal.SIGINT)
        assert code == 130 and "Traceback" not in program.output, program.output
        last = program.output.strip().split("\n")[-1]
        step = int(re.fullmatch(r"run_classifier.py: interrupted at step (\d+); the same command .*", last).group(1))
        assert step >= 20
        assert checkpoints.read_step(tf.train.latest_checkpoint(given["output_dir"])) == step

    def test_a_diverging_loss_stops_the_run_and_the_last_checkpoint_is_finite(self, given):
        changes = {"learning_rate": 1e30, "warmup_proportion": 0.0, "save_checkpoints_steps": 1, "tuning_mode": "full"}
        message = message_of(run, given, **changes)
        step = int(re.search(r"at step (\d+)", message).group(1))
        assert step > 1, "the first gradient is finite"
        latest = tf.train.latest_checkpoint(given["output_dir"])
        assert_mentions(message, latest, "--learning_rate")
        assert checkpoints.read_step(latest) == step - 1
        reader = tf.train.load_checkpoint(latest)
        names = reader.get_variable_to_shape_map()
        assert names and all(np.isfinite(reader.get_tensor(name)).all() for name in names)

    def test_a_loss_that_is_nan_from_the_start_is_an_error(self, given, tmp_path):
        prefix = write_bert_with_head(tmp_path / "nan", np.nan, [0.0, 0.0])
        message = message_of(run, given, init_checkpoint=prefix, do_eval=False)
        assert_mentions(message, "at step 1", "--learning_rate", "none were saved")

    def test_a_run_does_not_continue_with_changed_data(self, trained, cola_dir, tmp_path):
        data_dir = shutil.copytree(cola_dir, str(tmp_path / "data"))
        with open(os.path.join(data_dir, "train.tsv"), "a") as file:
            file.write("tst\t1\t\tthe cat is big .\n")
        message = error_of(trained, data_dir=data_dir, **TRAINING)
        assert re.search("train_data was sha256:.*, is sha256:", message)

    @pytest.mark.long
    def test_a_folder_without_a_checkpoint_can_be_used_with_other_settings(self, given):
        os.makedirs(given["output_dir"])
        with open(os.path.join(given["output_dir"], "settings.json"), "w") as file:
            file.write('{"learning_rate": 7.0, "max_seq_length": 16, "facts": {"train_data": "sha256:0"}}')
        run(given, num_train_epochs=0.2)
        assert read_json(given["output_dir"], "settings.json")["learning_rate"] == given["learning_rate"]


class TestResults:
    def test_results_json_contains_everything(self, trained_run, cola_dir):
        folder = trained_run.flags["output_dir"]
        results, text = read_json(folder, "results.json"), read_results(folder)
        assert results == json.loads(json.dumps(trained_run.results.as_dict()))
        assert (results["task"], results["primary_metric"], results["seed"]) == ("CoLA", "matthews", 1)
        assert results["metrics"] == {name: text["eval_" + name] for name in ("matthews", "accuracy")}
        assert (results["loss"], results["step"]) == (text["eval_loss"], text["global_step"])
        assert results["majority"] == {"matthews": 0.0, "accuracy": text["majority_accuracy"]}
        assert results["parameters"]["trained"] < results["parameters"]["total"]
        assert (results["settings"]["learning_rate"], results["settings"]["data_dir"]) == (1e-2, cola_dir)
        assert results["versions"]["tensorflow"] == tf.version.VERSION
        training = results["training"]
        assert training["steps_computed"] == 16
        assert training["examples_per_second"] == pytest.approx(16 * 8 / training["seconds"], rel=1e-2)
        sizes = {name: split["examples"] for name, split in results["data"].items()}
        assert sizes == {"train": 64, "dev": 24, "test": 10}
        assert results["fingerprints"]["base"].startswith("sha256:")
        assert results["collapsed"] is False and not any("Collapsed" in line for line in trained_run.log)

    @pytest.mark.long
    def test_fingerprints_tell_bases_and_data_apart(self, given, trained_run, tmp_path):
        prefix = write_bert(str(tmp_path / "bert"), tiny_config(), seed=8)
        data_dir = write_cola(str(tmp_path / "cola"), train=56)
        first, other = trained_run.results, run(given, init_checkpoint=prefix, data_dir=data_dir)
        assert first.fingerprints["base"] != other.fingerprints["base"]
        assert first.data["train"]["fingerprint"] != other.data["train"]["fingerprint"]
        assert first.data["dev"]["fingerprint"] == other.data["dev"]["fingerprint"]

    def test_a_later_evaluation_reports_how_the_weights_were_trained(self, finished, trained_run, tmp_path):
        first = trained_run.results
        later = run(finished, do_eval=True, train_batch_size=32, learning_rate=5e-5, num_train_epochs=9.0)
        for name in ("train_batch_size", "learning_rate", "num_train_epochs"):
            assert later.settings[name] == first.settings[name]
        for name in ("training", "fingerprints", "metrics", "seed"):
            assert getattr(later, name) == getattr(first, name)
        elsewhere = {"init_checkpoint": finished["output_dir"], "output_dir": str(tmp_path / "new")}
        assert run(finished, do_eval=True, **elsewhere).fingerprints == first.fingerprints


def scalars(folder: str) -> Dict[str, Dict[int, float]]:
    """Return tag -> step -> value of all summaries in a folder, read without TensorBoard."""
    found: Dict[str, Dict[int, float]] = {}
    for path in glob.glob(os.path.join(folder, "events.*")):
        for record in tf.python_io.tf_record_iterator(path):
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = float(number)
    return found


class TestProgress:
    def test_tensorboard_shows_loss_learning_rate_and_metrics(self, trained_run):
        folder = trained_run.flags["output_dir"]
        training, dev = scalars(folder), scalars(os.path.join(folder, "eval"))
        assert len(training["loss"]) > 1 and max(training["learning_rate"]) > 12
        # One step of warm-up, then linearly from 1e-2 to 0 at step 16; a summary has the number of the next step.
        for step, rate in training["learning_rate"].items():
            assert rate == pytest.approx(1e-2 * (1 - (step - 1) / 16) if step > 1 else 0.0, rel=1e-5)
        entries = evaluations_of(trained_run.flags)
        assert len(entries) == 2
        for entry in entries:
            for name, value in dict(entry["metrics"], loss=entry["loss"]).items():
                assert dev[name][entry["step"]] == pytest.approx(value)
        pattern = r"step 16/16  loss \d+\.\d{4}  lr \d\.\d\de-\d\d  \d+\.\d examples/s  0:00 left"
        assert any(re.fullmatch(pattern, line) for line in trained_run.log)

    @pytest.mark.long
    def test_a_terminal_shows_a_bar_with_log_lines_above_it(self, given):
        master, slave = pty.openpty()
        process = subprocess.Popen(command_line(given), stdout=slave, stderr=slave)
        os.close(slave)
        output = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            output += part
        assert process.wait() == 0
        text = output.decode("utf-8", "replace")
        assert re.search(r"100%\|.*16/16 \[.*loss \d+\.\d{4}, lr \d\.\d\de-\d\d, \d+\.\d examples/s", text)
        assert "Dev set at step 8" in text
        assert "step 16/16  loss" not in text
