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
from adapter_bert.training import classification, preparation
from adapter_bert.training.evaluator import DevSet
from adapter_bert.training.loop import TrainingLoop
from adapter_bert.weights import checkpoints, packs
from adapter_layers import AdapterConfig
from tests.helpers import (
    TINY,
    assert_mentions,
    base_flags,
    command_line,
    message_of,
    read_results,
    tiny_config,
    write_bert,
    write_cola,
)
from tests.kill import Program
from tests.runs.helpers import error_of, pack_of, prepare, read_json, run


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path) -> dict:
    """Flags of a run of 24 steps, three epochs, that evaluates once per epoch."""
    flags = base_flags(tiny_bert, cola_dir, str(tmp_path / "out"))
    return dict(flags, num_train_epochs=3.0, learning_rate=3e-3, do_train=True, do_eval=True)


def evaluations_of(flags: dict) -> List[dict]:
    return read_json(flags["output_dir"], "training.json")["evaluations"]


def steps_of(flags: dict) -> List[int]:
    return [entry["step"] for entry in evaluations_of(flags)]


def best_of(entries: List[dict]) -> dict:
    return max(entries, key=lambda entry: (entry["metrics"]["matthews"], -entry["loss"]))


def checkpoint_files(folder: str) -> List[str]:
    return glob.glob(os.path.join(folder, "*.ckpt-*")) + [os.path.join(folder, "checkpoint")]


@pytest.fixture
def go_back(given, tmp_path, monkeypatch):
    """A function that restores the checkpoints to what they were when an earlier one was the newest."""
    save = checkpoints.RunSaver.save

    def save_and_copy(saver, session, path, global_step):
        save(saver, session, path, global_step)
        folder = tmp_path / f"as-at-{global_step}"
        folder.mkdir(exist_ok=True)
        for name in checkpoint_files(given["output_dir"]):
            shutil.copy(name, str(folder))

    monkeypatch.setattr(checkpoints.RunSaver, "save", save_and_copy)

    def go_back(step):
        for name in checkpoint_files(given["output_dir"]):
            os.remove(name)
        for name in checkpoint_files(str(tmp_path / f"as-at-{step}")):
            shutil.copy(name, given["output_dir"])

    return go_back


def keep_evaluations_before(flags: dict, step: int) -> List[dict]:
    """Shorten the history as a kill would; return all of its evaluations."""
    path = os.path.join(flags["output_dir"], "training.json")
    content = read_json(path)
    kept = [entry for entry in content["evaluations"] if entry["step"] < step]
    with open(path, "w") as file:
        json.dump(dict(content, evaluations=kept), file)
    return content["evaluations"]


class TestSteps:
    def test_a_run_evaluates_at_a_given_interval(self, given):
        run(given, eval_every_steps=10)
        assert steps_of(given) == [10, 20, 24]

    def test_without_evaluation_the_last_weights_are_used_as_in_the_original(self, given):
        run(given, eval_every_steps=0)
        assert steps_of(given) == []
        assert read_results(given["output_dir"])["global_step"] == packs.read_config(pack_of(given)).step == 24

    def test_training_alone_does_not_read_the_dev_split(self, given, cola_dir, tmp_path):
        data_dir = shutil.copytree(cola_dir, str(tmp_path / "data"))
        os.remove(os.path.join(data_dir, "dev.tsv"))
        run(given, do_eval=False, data_dir=data_dir)
        assert steps_of(given) == []

    def test_every_evaluation_leaves_a_checkpoint(self, given):
        """With the original's 1000 steps between checkpoints, small tasks would start again."""
        run(given)
        assert steps_of(given) == [8, 16, 24], "once per epoch"
        names = [name for name in os.listdir(given["output_dir"]) if name.endswith(".index")]
        assert sorted(names) == [f"model.ckpt-{step}.index" for step in (16, 24, 8)] + ["optimizer.ckpt-24.index"]


class TestEvaluationDuringTraining:
    @pytest.mark.long
    def test_its_scores_are_those_of_the_saved_checkpoints(self, given, tmp_path):
        """The training graph and a new graph with the saved weights give the same scores."""
        run(given, save_checkpoints_steps=8)
        entries = evaluations_of(given)
        assert len(entries) == 3
        for entry in entries:
            prefix = os.path.join(given["output_dir"], f"model.ckpt-{entry['step']}")
            folder = str(tmp_path / str(entry["step"]))
            results = run(given, do_train=False, init_checkpoint=prefix, output_dir=folder)
            assert (results.loss, results.metrics) == (entry["loss"], entry["metrics"])

    @pytest.mark.long
    def test_it_does_not_change_the_training(self, given, tmp_path):
        run(given, do_eval=False, output_dir=str(tmp_path / "alone"))
        run(given, eval_every_steps=5)
        alone, evaluated = (
            tf.train.load_checkpoint(os.path.join(folder, "model.ckpt-24"))
            for folder in (str(tmp_path / "alone"), given["output_dir"])
        )
        names = alone.get_variable_to_shape_map()
        assert names and names == evaluated.get_variable_to_shape_map()
        for name in names:
            np.testing.assert_array_equal(alone.get_tensor(name), evaluated.get_tensor(name), name)

    @pytest.mark.long
    def test_training_in_pieces_as_on_a_tpu_gives_the_same_scores_and_the_same_best_weights(self, given, tmp_path):
        run(given)
        settings = ClassifierSettings(**dict(given, output_dir=str(tmp_path / "pieces")))
        trainer, data, features = prepare(settings)
        dev = DevSet(features["dev"], classification.make_scorer(trainer.spec.head, data.task))
        schedule = preparation.make_schedule(settings, len(data.splits["train"]))
        loop = TrainingLoop(trainer, schedule, features["train"], dev)
        loop.run_in_pieces()
        assert loop.history.evaluations == evaluations_of(given) != []
        whole, pieces = (packs.read(path) for path in (pack_of(given), trainer.folder.pack_path))
        assert (whole.config.step, whole.fingerprint) == (pieces.config.step, pieces.fingerprint)


class TestBestWeights:
    @pytest.mark.long
    def test_they_are_the_pack_and_used_from_then_on(self, given):
        """Two epochs with a learning rate that ruins what the first steps have learned."""
        results = run(given, learning_rate=0.3, eval_every_steps=2, num_train_epochs=2.0)
        best = best_of(evaluations_of(given))
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
    def test_a_run_killed_between_saving_the_best_weights_and_recording_them_recovers(self, given, go_back):
        changes = {"save_checkpoints_steps": 8, "num_train_epochs": 2.0}
        run(given, **changes)
        expected = keep_evaluations_before(given, 16)
        go_back(8)
        run(given, **changes)
        assert evaluations_of(given) == expected

    @pytest.mark.long
    @pytest.mark.parametrize("step", [8, 16])
    def test_an_evaluation_prevented_by_a_kill_comes_first(self, given, go_back, step):
        """Killed after a checkpoint and before its scores were recorded, in the middle or at the end."""
        changes = {"save_checkpoints_steps": 8, "num_train_epochs": 2.0, "seed": 4}
        run(given, **changes)
        best = packs.read_config(pack_of(given)).step
        expected = keep_evaluations_before(given, step)
        os.remove(pack_of(given))
        go_back(step)
        run(given, **changes)
        assert evaluations_of(given) == expected
        assert packs.read_config(pack_of(given)).step == best == 16

    def test_a_run_with_evaluation_is_not_continued_without_it(self, given):
        run(given)
        assert_mentions(error_of(given, do_eval=False, do_predict=True), given["output_dir"], "--do_eval=true")

    @pytest.mark.long
    def test_a_damaged_history_is_an_error(self, given):
        run(given)
        with open(os.path.join(given["output_dir"], "training.json"), "w") as file:
            file.write('{"evaluations": [{"loss": 1}], "seconds": 1, "steps": 1, "examples": 8}')
        assert_mentions(message_of(run, given), "training.json", "damaged")


class TestEarlyStopping:
    @pytest.mark.long
    def test_a_run_without_a_new_best_score_stops_and_stays_stopped(self, given, log):
        changes = {"learning_rate": 0.0, "eval_every_steps": 4, "early_stopping_patience": 2}
        run(given, **changes)
        assert steps_of(given) == [4, 8, 12]
        assert checkpoints.read_step(tf.train.latest_checkpoint(given["output_dir"])) == 12
        assert any(line.startswith("Stopping early: matthews") for line in log)
        run(given, **changes)
        assert steps_of(given) == [4, 8, 12]
        assert any("stopped early at step 12" in line for line in log)

    @pytest.mark.parametrize("changes", [{"do_eval": False}, {"eval_every_steps": 0}])
    def test_it_needs_evaluation_during_training(self, given, changes):
        message = error_of(given, early_stopping_patience=2, **changes)
        assert_mentions(message, "--early_stopping_patience", "--do_eval", "--eval_every_steps")


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
        def add_head():
            tf.get_variable("output_weights", initializer=np.full([2, TINY["hidden_size"]], np.nan, np.float32))
            tf.get_variable("output_bias", initializer=np.zeros([2], np.float32))

        prefix = write_bert(str(tmp_path / "nan"), tiny_config(), AdapterConfig(size=4), extra=add_head)
        message = message_of(run, given, init_checkpoint=prefix, do_eval=False)
        assert_mentions(message, "at step 1", "--learning_rate", "none were saved")


class TestResults:
    @pytest.mark.long
    def test_a_run_that_always_predicts_one_class_is_reported(self, given, tmp_path, log):
        def add_head():
            tf.get_variable("output_weights", initializer=np.zeros([2, TINY["hidden_size"]], np.float32))
            tf.get_variable("output_bias", initializer=np.array([0.0, 5.0], np.float32))

        prefix = write_bert(str(tmp_path / "one"), tiny_config(), AdapterConfig(size=4), extra=add_head)
        assert run(given, init_checkpoint=prefix, learning_rate=0.0).collapsed is True
        assert any("Collapsed: all predictions are the same" in line for line in log)
        assert any("Dev set at step 8" in line and "(collapsed" in line for line in log)

    def test_results_json_contains_everything(self, given, cola_dir, log):
        returned = run(given, learning_rate=1e-2)
        results, text = read_json(given["output_dir"], "results.json"), read_results(given["output_dir"])
        assert results == json.loads(json.dumps(returned.as_dict()))
        assert (results["task"], results["primary_metric"], results["seed"]) == ("CoLA", "matthews", 1)
        assert results["metrics"] == {name: text["eval_" + name] for name in ("matthews", "accuracy")}
        assert (results["loss"], results["step"]) == (text["eval_loss"], text["global_step"])
        assert results["majority"] == {"matthews": 0.0, "accuracy": text["majority_accuracy"]}
        assert results["parameters"]["trained"] < results["parameters"]["total"]
        assert (results["settings"]["learning_rate"], results["settings"]["data_dir"]) == (1e-2, cola_dir)
        assert results["versions"]["tensorflow"] == tf.version.VERSION
        training = results["training"]
        assert training["steps_computed"] == 24
        assert training["examples_per_second"] == pytest.approx(24 * 8 / training["seconds"], rel=1e-2)
        assert {name: split["examples"] for name, split in results["data"].items()} == {"train": 64, "dev": 24}
        assert results["fingerprints"]["base"].startswith("sha256:")
        assert results["collapsed"] is False and not any("Collapsed" in line for line in log)

    @pytest.mark.long
    def test_fingerprints_tell_bases_and_data_apart(self, given, tmp_path):
        first = run(given)
        prefix = write_bert(str(tmp_path / "bert"), tiny_config(), seed=8)
        data_dir = write_cola(str(tmp_path / "cola"), train=56)
        other = run(given, init_checkpoint=prefix, data_dir=data_dir, output_dir=str(tmp_path / "other"))
        assert first.fingerprints["base"] != other.fingerprints["base"]
        assert first.data["train"]["fingerprint"] != other.data["train"]["fingerprint"]
        assert first.data["dev"]["fingerprint"] == other.data["dev"]["fingerprint"]

    @pytest.mark.long
    def test_a_later_evaluation_reports_how_the_weights_were_trained(self, given, tmp_path):
        first = run(given)
        later = run(given, do_train=False, train_batch_size=32, learning_rate=5e-5, num_train_epochs=9.0)
        for name in ("train_batch_size", "learning_rate", "num_train_epochs"):
            assert later.settings[name] == first.settings[name]
        for name in ("training", "fingerprints", "metrics", "seed"):
            assert getattr(later, name) == getattr(first, name)
        elsewhere = {"init_checkpoint": given["output_dir"], "output_dir": str(tmp_path / "new")}
        assert run(given, do_train=False, **elsewhere).fingerprints == first.fingerprints

    @pytest.mark.long
    def test_a_run_does_not_continue_with_changed_data(self, given, cola_dir, tmp_path):
        data_dir = shutil.copytree(cola_dir, str(tmp_path / "data"))
        run(given, data_dir=data_dir)
        with open(os.path.join(data_dir, "train.tsv"), "a") as file:
            file.write("tst\t1\t\tthe cat is big .\n")
        assert re.search("train_data was sha256:.*, is sha256:", error_of(given, data_dir=data_dir))

    @pytest.mark.long
    def test_a_folder_without_a_checkpoint_can_be_used_with_other_settings(self, given):
        os.makedirs(given["output_dir"])
        with open(os.path.join(given["output_dir"], "settings.json"), "w") as file:
            json.dump({"learning_rate": 7.0, "facts": {"train_data": "sha256:0"}}, file)
        run(given, num_train_epochs=0.2)
        assert read_json(given["output_dir"], "settings.json")["learning_rate"] == given["learning_rate"]


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
    def test_tensorboard_shows_loss_learning_rate_and_metrics(self, given, log):
        run(given)
        training, dev = scalars(given["output_dir"]), scalars(os.path.join(given["output_dir"], "eval"))
        assert len(training["loss"]) > 1 and max(training["learning_rate"]) > 12
        # Two steps of warm-up, then linearly from 3e-3 to 0 at step 24; a summary has the number of the next step.
        for step, rate in training["learning_rate"].items():
            past = step - 1
            assert rate == pytest.approx(3e-3 * past / 2 if past < 2 else 3e-3 * (1 - past / 24), rel=1e-5)
        assert len(evaluations_of(given)) == 3
        for entry in evaluations_of(given):
            for name, value in dict(entry["metrics"], loss=entry["loss"]).items():
                assert dev[name][entry["step"]] == pytest.approx(value)
        pattern = r"step 24/24  loss \d+\.\d{4}  lr \d\.\d\de-\d\d  \d+\.\d examples/s  0:00 left"
        assert any(re.fullmatch(pattern, line) for line in log)

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
        assert re.search(r"100%\|.*24/24 \[.*loss \d+\.\d{4}, lr \d\.\d\de-\d\d, \d+\.\d examples/s", text)
        assert "Dev set at step 8" in text
        assert "step 24/24  loss" not in text
