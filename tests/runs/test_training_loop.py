"""The training loop: scores along the way, the best weights, stopping early, what is shown and what is kept."""

from __future__ import annotations

import glob
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tests.helpers import TINY, base_flags, command_line, read_results, tiny_config, write_bert, write_cola
from tensorflow.core.util import event_pb2

from adapter_bert.common import errors
import modeling
import run_classifier
from adapter_layers import AdapterConfig
from adapter_bert.common.progress import format_seconds
from run_classifier import ClassifierSettings, run_task
from adapter_bert.weights import checkpoints, packs
from adapter_bert.evaluation import scores as evaluation
from adapter_bert.evaluation.scores import Evaluator, History, Scores
from adapter_bert.training.run import DevSet, Run


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path):
    """Settings of a run of 24 steps, three epochs, that scores the dev split once an epoch."""
    return dict(
        base_flags(tiny_bert, cola_dir, str(tmp_path / "out")),
        num_train_epochs=3.0,
        learning_rate=3e-3,
        do_train=True,
        do_eval=True,
    )


def run(given, **changes):
    run_task(ClassifierSettings(**dict(given, **changes)))


def read_json(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def steps_of(folder):
    return [entry["step"] for entry in read_json(folder, "training.json")["evaluations"]]


def kept_step(folder: str) -> int:
    """The step of the weights that a run has kept."""
    return packs.read_config(os.path.join(folder, packs.FILE_NAME)).step


@pytest.fixture
def go_back(given, tmp_path, monkeypatch):
    """Puts the run's checkpoints back to what they were when an earlier one was the newest."""
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


def checkpoint_files(folder: str) -> list:
    return glob.glob(os.path.join(folder, "*.ckpt-*")) + [os.path.join(folder, "checkpoint")]


class TestWhen:
    @pytest.mark.parametrize(
        "examples, batch_size, total, expected",
        [
            (64, 8, 24, {8, 16, 24}),
            (8551, 32, 801, {267, 534, 801}),
            (10, 4, 7, {2, 5, 7}),  # 2.5 steps an epoch
            (64, 8, 20, {8, 16, 20}),  # two and a half epochs
            (5, 8, 3, {3}),  # less than a step an epoch: at each step's end there is a new epoch's end
        ],
    )
    def test_epochs_end_where_their_last_full_batch_does_and_the_last_step_always_counts(
        self, examples, batch_size, total, expected
    ):
        assert expected <= evaluation.epoch_ends(examples, batch_size, total)
        assert max(evaluation.epoch_ends(examples, batch_size, total)) == total
        if examples >= batch_size:
            assert evaluation.epoch_ends(examples, batch_size, total) == expected

    def test_every_so_many_steps_and_at_the_last(self):
        assert evaluation.multiples(10, 25) == {10, 20, 25}
        assert evaluation.multiples(10, 30) == {10, 20, 30}
        assert evaluation.multiples(100, 30) == {30}

    def test_a_run_evaluates_every_so_many_steps(self, given):
        run(given, eval_every_steps=10)
        assert steps_of(given["output_dir"]) == [10, 20, 24]

    def test_or_never_and_then_the_last_weights_count_as_in_the_original(self, given):
        run(given, eval_every_steps=0)
        assert steps_of(given["output_dir"]) == []
        assert read_results(given["output_dir"])["global_step"] == kept_step(given["output_dir"]) == 24

    def test_training_alone_does_not_read_the_dev_split(self, given, cola_dir, tmp_path):
        data_dir = shutil.copytree(cola_dir, str(tmp_path / "data"))
        os.remove(os.path.join(data_dir, "dev.tsv"))
        run(given, do_eval=False, data_dir=data_dir)
        assert steps_of(given["output_dir"]) == []


class TestScoresAlongTheWay:
    @pytest.mark.long
    def test_they_are_those_of_the_checkpoints_of_their_steps(self, given, tmp_path):
        """The dev split is scored on the training's graph; a fresh graph with the saved weights says the same."""
        run(given, save_checkpoints_steps=8)
        entries = read_json(given["output_dir"], "training.json")["evaluations"]
        assert len(entries) == 3
        for entry in entries:
            folder = str(tmp_path / str(entry["step"]))
            prefix = os.path.join(given["output_dir"], "model.ckpt-{}".format(entry["step"]))
            run(given, do_train=False, init_checkpoint=prefix, output_dir=folder)
            results = read_results(folder)
            assert results["eval_loss"] == entry["loss"]
            assert {name: results["eval_" + name] for name in entry["metrics"]} == entry["metrics"]

    @pytest.mark.long
    def test_scoring_does_not_change_the_training(self, given, tmp_path):
        run(given, do_eval=False, output_dir=str(tmp_path / "alone"))
        run(given, eval_every_steps=5)
        alone, scored = (
            tf.train.load_checkpoint(os.path.join(folder, "model.ckpt-24"))
            for folder in (str(tmp_path / "alone"), given["output_dir"])
        )
        names = alone.get_variable_to_shape_map()
        assert names == scored.get_variable_to_shape_map()
        for name in names:
            np.testing.assert_array_equal(alone.get_tensor(name), scored.get_tensor(name), name)

    @pytest.mark.long
    def test_training_in_pieces_as_on_a_tpu_gives_the_same_scores_and_the_same_best(self, given, tmp_path):
        run(given)
        settings = ClassifierSettings(**dict(given, output_dir=str(tmp_path / "pieces"), task_name="CoLA"))
        data = run_classifier.read_data(settings)
        pieces = Run(settings, run_classifier.make_head(settings, data), len(data.splits["train"]), data.facts())
        pieces.claim_output_dir()
        dev = DevSet(run_classifier.features_of(pieces, data, "dev"), run_classifier.scorer(pieces, data))
        history = History(settings.output_dir)
        evaluator = pieces._make_evaluator(dev, history, 0)
        pieces._train_in_pieces(run_classifier.features_of(pieces, data, "train"), history, dev, evaluator)
        whole = History(given["output_dir"])
        assert history.evaluations == whole.evaluations
        kept = [packs.read(os.path.join(f, packs.FILE_NAME)) for f in (given["output_dir"], settings.output_dir)]
        assert kept[0].config.step == kept[1].config.step
        assert kept[0].fingerprint == kept[1].fingerprint


class TestBest:
    @pytest.mark.long
    def test_the_best_weights_are_kept_alone_and_used(self, given):
        run(given, eval_every_steps=2, do_predict=True)
        entries = read_json(given["output_dir"], "training.json")["evaluations"]
        best = max(entries, key=lambda entry: (entry["metrics"]["matthews"], -entry["loss"]))
        kept = packs.read_config(os.path.join(given["output_dir"], packs.FILE_NAME))
        assert (kept.step, kept.metrics, kept.loss) == (best["step"], best["metrics"], best["loss"])
        results = read_results(given["output_dir"])
        assert results["global_step"] == best["step"]
        assert (results["eval_matthews"], results["eval_loss"]) == (best["metrics"]["matthews"], best["loss"])

    @pytest.mark.long
    def test_they_are_what_a_later_evaluation_of_the_folder_uses(self, given):
        """Two epochs at a rate that spoils what the first steps have learnt; if not, the last steps are the best."""
        run(given, learning_rate=0.3, eval_every_steps=2, num_train_epochs=2.0)
        first = read_results(given["output_dir"])
        entries = read_json(given["output_dir"], "training.json")["evaluations"]
        best = max(entries, key=lambda entry: (entry["metrics"]["matthews"], -entry["loss"]))
        run(given, do_train=False, do_predict=True)
        assert read_results(given["output_dir"]) == first
        assert first["global_step"] == best["step"]

    def test_another_metric_may_decide(self, given):
        task = run_classifier.read_data(ClassifierSettings(**dict(given, primary_metric="accuracy"))).task
        assert task.metrics == ("accuracy", "matthews")

    def test_a_metric_of_numbers_cannot_decide_on_classes(self, given):
        with pytest.raises(errors.UserError, match="spearman"):
            run(given, primary_metric="spearman")

    @pytest.mark.long
    def test_a_run_that_stopped_between_saving_the_best_and_noting_it_makes_up_for_it(self, given, go_back):
        run(given, save_checkpoints_steps=8, num_train_epochs=2.0)
        path = os.path.join(given["output_dir"], "training.json")
        whole = read_json(given["output_dir"], "training.json")
        with open(path, "w") as file:
            json.dump(dict(whole, evaluations=whole["evaluations"][:1]), file)
        go_back(8)
        run(given, save_checkpoints_steps=8, num_train_epochs=2.0)
        assert read_json(given["output_dir"], "training.json")["evaluations"] == whole["evaluations"]

    @pytest.mark.long
    @pytest.mark.parametrize("step", [8, 16])
    def test_an_evaluation_that_a_kill_prevented_is_made_first(self, given, go_back, step):
        """Killed after a checkpoint and before its scores were noted, in the middle or at the very end."""
        run(given, save_checkpoints_steps=8, num_train_epochs=2.0, seed=4)
        whole = read_json(given["output_dir"], "training.json")
        best = kept_step(given["output_dir"])
        cut = dict(whole, evaluations=[entry for entry in whole["evaluations"] if entry["step"] < step])
        with open(os.path.join(given["output_dir"], "training.json"), "w") as file:
            json.dump(cut, file)
        os.remove(os.path.join(given["output_dir"], packs.FILE_NAME))
        go_back(step)
        run(given, save_checkpoints_steps=8, num_train_epochs=2.0, seed=4)
        assert read_json(given["output_dir"], "training.json")["evaluations"] == whole["evaluations"]
        assert kept_step(given["output_dir"]) == best == 16

    def test_the_best_is_not_lost_to_a_worse_one_when_a_run_goes_on_from_before_it(self, tmp_path):
        """Best at 240, newest checkpoint 200: what is scored between the two has to beat the best."""
        folder = str(tmp_path)
        history, kept = History(folder), [None]

        def evaluator(start):
            due = frozenset([120, 220, 240, 260])
            return Evaluator(
                folder, history, start, lambda rows: rows[0], due, lambda step, scores: kept.append(step), 2, kept[-1]
            )

        first = evaluator(0)
        for step, value in ((120, 0.9), (240, 0.95)):
            first.evaluate(step, [Scores({"accuracy": value}, 1.0, False)], step)
        second = evaluator(200)
        assert [entry["step"] for entry in history.evaluations] == [120, 240]
        second.evaluate(220, [Scores({"accuracy": 0.5}, 1.0, False)], 220)
        assert kept[-1] == 240
        assert not second.is_due(240) and second.is_due(260)
        assert [entry["step"] for entry in History(folder).evaluations] == [120, 220, 240]

    def test_a_run_that_is_scored_does_not_go_on_without_scores(self, given):
        run(given)
        with pytest.raises(errors.UserError, match="is scored along its training"):
            run(given, do_eval=False, do_predict=True)

    @pytest.mark.long
    def test_a_damaged_history_is_refused(self, given):
        run(given)
        with open(os.path.join(given["output_dir"], "training.json"), "w") as file:
            file.write('{"evaluations": [{"loss": 1}], "seconds": 1, "steps": 1, "examples": 8}')
        with pytest.raises(errors.UserError, match="training.json is damaged"):
            run(given)


class TestEarlyStopping:
    @pytest.mark.long
    def test_a_run_without_a_new_best_stops_after_the_patience_and_stays_stopped(self, given, log):
        changes = {"learning_rate": 0.0, "eval_every_steps": 4, "early_stopping_patience": 2}
        run(given, **changes)
        assert steps_of(given["output_dir"]) == [4, 8, 12]
        assert checkpoints.read_step(tf.train.latest_checkpoint(given["output_dir"])) == 12
        assert any(line.startswith("Stopping early: matthews has not risen above") for line in log)
        run(given, **changes)
        assert steps_of(given["output_dir"]) == [4, 8, 12]
        assert any("stopped early at step 12" in line for line in log)

    def test_a_run_that_improves_does_not_stop(self, tmp_path):
        evaluator = self.evaluator(tmp_path, patience=1)
        for step, value in ((1, 0.1), (2, 0.2), (3, 0.3)):
            self.report(evaluator, step, value)
            assert not evaluator.should_stop
        self.report(evaluator, 4, 0.25)
        assert evaluator.should_stop

    def test_of_equal_scores_the_lower_loss_is_the_better(self, tmp_path):
        evaluator = self.evaluator(tmp_path, patience=1)
        self.report(evaluator, 1, 0.5, loss=1.0)
        self.report(evaluator, 2, 0.5, loss=0.9)
        assert not evaluator.should_stop
        self.report(evaluator, 3, 0.5, loss=0.9)
        assert evaluator.should_stop

    def test_it_needs_scores_along_the_way(self, given):
        for changes in ({"do_eval": False}, {"eval_every_steps": 0}):
            with pytest.raises(errors.UserError, match="--early_stopping_patience needs evaluations during training"):
                run(given, early_stopping_patience=2, **changes)

    @staticmethod
    def evaluator(folder, patience):
        due = frozenset(range(10))
        history = History(str(folder))
        return Evaluator(str(folder), history, 0, lambda rows: rows[0], due, lambda prefix, scores: None, patience)

    @staticmethod
    def report(evaluator, step, value, loss=1.0):
        evaluator.evaluate(step, [Scores({"accuracy": value}, loss, False)], "a checkpoint")


class TestInterrupted:
    @pytest.mark.long
    def test_ctrl_c_saves_says_so_and_the_same_command_continues(self, given):
        long = dict(given, num_train_epochs=200.0, save_checkpoints_steps=20)
        process = subprocess.Popen(command_line(long), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.time() + 120
        while time.time() < deadline and process.poll() is None:
            if os.path.exists(os.path.join(given["output_dir"], "model.ckpt-20.index")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 130, output
        assert "Traceback" not in output
        last = output.strip().split("\n")[-1]
        pattern = r"run_classifier.py: interrupted at step (\d+); the same command continues .*"
        step = int(re.fullmatch(pattern, last).group(1))
        assert step >= 20
        assert checkpoints.read_step(tf.train.latest_checkpoint(given["output_dir"])) == step

    def test_a_run_goes_on_from_its_last_scores(self, given):
        """Scores leave a checkpoint: at the original's 1000 steps, small tasks would start again."""
        run(given)
        assert steps_of(given["output_dir"]) == [8, 16, 24], "once an epoch"
        names = [name for name in os.listdir(given["output_dir"]) if name.endswith(".index")]
        assert sorted(names) == [f"model.ckpt-{step}.index" for step in (16, 24, 8)] + ["optimizer.ckpt-24.index"]


class TestNotFinite:
    def test_a_loss_that_runs_away_stops_the_run_and_the_last_checkpoint_is_good(self, given):
        with pytest.raises(errors.UserError) as caught:
            run(given, learning_rate=1e30, warmup_proportion=0.0, save_checkpoints_steps=1, tuning_mode="full")
        step = int(re.search(r"NaN or infinite at step (\d+)", str(caught.value)).group(1))
        assert step > 1, "the first gradient is finite"
        latest = tf.train.latest_checkpoint(given["output_dir"])
        assert latest in str(caught.value)
        assert checkpoints.read_step(latest) == step - 1
        reader = tf.train.load_checkpoint(latest)
        for name in reader.get_variable_to_shape_map():
            assert np.isfinite(reader.get_tensor(name)).all(), name


class TestCollapse:
    @pytest.mark.long
    def test_a_run_whose_predictions_are_all_one_class_is_reported(self, given, tmp_path, log):
        def add_head():
            tf.get_variable("output_weights", initializer=np.zeros([2, TINY["hidden_size"]], np.float32))
            tf.get_variable("output_bias", initializer=np.array([0.0, 5.0], np.float32))

        prefix = write_bert(str(tmp_path / "one"), tiny_config(), AdapterConfig(size=4), extra=add_head)
        run(given, init_checkpoint=prefix, learning_rate=0.0)
        assert read_json(given["output_dir"], "results.json")["collapsed"] is True
        assert any("Collapsed: all predictions are the same" in line for line in log)
        assert any("Dev set at step 8" in line and "(collapsed" in line for line in log)

    def test_a_run_that_learns_is_not(self, given, log):
        run(given, learning_rate=1e-2)
        assert read_json(given["output_dir"], "results.json")["collapsed"] is False
        assert not any("Collapsed" in line for line in log)


class TestResults:
    def test_a_program_finds_everything_in_results_json(self, given, cola_dir):
        run(given)
        results = read_json(given["output_dir"], "results.json")
        text = read_results(given["output_dir"])
        assert results["task"] == "CoLA"
        assert results["primary_metric"] == "matthews"
        assert results["metrics"] == {name: text["eval_" + name] for name in ("matthews", "accuracy")}
        assert results["loss"] == text["eval_loss"]
        assert results["majority"] == {"matthews": 0.0, "accuracy": text["majority_accuracy"]}
        assert results["step"] == text["global_step"]
        assert results["seed"] == 1
        assert results["parameters"]["trained"] < results["parameters"]["total"]
        assert results["settings"]["learning_rate"] == 3e-3
        assert results["settings"]["data_dir"] == cola_dir
        assert results["versions"]["tensorflow"] == tf.version.VERSION
        training = results["training"]
        assert training["steps_computed"] == 24
        assert training["examples_per_second"] == pytest.approx(24 * 8 / training["seconds"], rel=1e-2)
        assert {name: split["examples"] for name, split in results["data"].items()} == {"train": 64, "dev": 24}
        assert results["fingerprints"]["base"].startswith("sha256:")

    @pytest.mark.long
    def test_fingerprints_tell_bases_and_data_apart(self, given, tmp_path):
        run(given)
        first = read_json(given["output_dir"], "results.json")
        other_bert, other_data = str(tmp_path / "bert"), write_cola(str(tmp_path / "cola"), train=56)
        write_bert(other_bert, tiny_config(), seed=8)
        prefix = os.path.join(other_bert, "bert_model.ckpt")
        run(given, init_checkpoint=prefix, data_dir=other_data, output_dir=str(tmp_path / "other"))
        other = read_json(str(tmp_path / "other"), "results.json")
        assert first["fingerprints"]["base"] != other["fingerprints"]["base"]
        assert first["data"]["train"]["fingerprint"] != other["data"]["train"]["fingerprint"]
        assert first["data"]["dev"]["fingerprint"] == other["data"]["dev"]["fingerprint"]

    @pytest.mark.long
    def test_the_base_of_a_run_is_known_when_its_weights_are_evaluated_elsewhere(self, given, tmp_path):
        run(given)
        run(given, do_train=False, init_checkpoint=given["output_dir"], output_dir=str(tmp_path / "new"))
        assert (
            read_json(str(tmp_path / "new"), "results.json")["fingerprints"]
            == read_json(given["output_dir"], "results.json")["fingerprints"]
        )

    @pytest.mark.long
    def test_a_run_does_not_continue_on_data_that_has_changed(self, given, cola_dir, tmp_path):
        data_dir = shutil.copytree(cola_dir, str(tmp_path / "data"))
        run(given, data_dir=data_dir)
        with open(os.path.join(data_dir, "train.tsv"), "a") as file:
            file.write("tst\t1\t\tthe cat is big .\n")
        with pytest.raises(errors.UserError, match="train_data was sha256:.*, is sha256:"):
            run(given, data_dir=data_dir)

    @pytest.mark.long
    def test_a_later_evaluation_says_how_the_training_was_set(self, given):
        run(given)
        first = read_json(given["output_dir"], "results.json")
        run(given, do_train=False, train_batch_size=32, learning_rate=5e-5, num_train_epochs=9.0)
        later = read_json(given["output_dir"], "results.json")
        for name in ("train_batch_size", "learning_rate", "num_train_epochs"):
            assert later["settings"][name] == first["settings"][name]
        for name in ("training", "fingerprints", "metrics", "seed"):
            assert later[name] == first[name]

    @pytest.mark.long
    def test_a_folder_whose_run_never_came_to_a_checkpoint_can_be_used_with_other_settings(self, given):
        os.makedirs(given["output_dir"])
        with open(os.path.join(given["output_dir"], "settings.json"), "w") as file:
            json.dump({"learning_rate": 7.0, "facts": {"train_data": "sha256:0"}}, file)
        run(given, num_train_epochs=0.2)
        assert read_json(given["output_dir"], "settings.json")["learning_rate"] == given["learning_rate"]


def scalars(folder):
    """Tag -> steps -> value of all summaries in a folder's event files, read without TensorBoard."""
    found = {}
    for path in glob.glob(os.path.join(folder, "events.*")):
        for record in tf.python_io.tf_record_iterator(path):
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = float(number)
    return found


class TestShown:
    def test_tensorboard_has_loss_learning_rate_and_metrics(self, given):
        run(given)
        training = scalars(given["output_dir"])
        assert len(training["loss"]) > 1
        rates = training["learning_rate"]
        assert max(rates) > 12
        # Two steps of warm-up, then down the line from 3e-3 to 0 at step 24; a summary stands at the step after.
        for step, rate in rates.items():
            past = step - 1
            assert rate == pytest.approx(3e-3 * past / 2 if past < 2 else 3e-3 * (1 - past / 24), rel=1e-5)
        dev = scalars(os.path.join(given["output_dir"], "eval"))
        for entry in read_json(given["output_dir"], "training.json")["evaluations"]:
            for name, value in dict(entry["metrics"], loss=entry["loss"]).items():
                assert dev[name][entry["step"]] == pytest.approx(value)

    @pytest.mark.long
    def test_a_log_has_lines_with_step_loss_rate_speed_and_time_left(self, given, log):
        run(given)
        pattern = r"step 24/24  loss \d+\.\d{4}  lr \d\.\d\de-\d\d  \d+\.\d examples/s  0:00 left"
        assert any(re.fullmatch(pattern, line) for line in log)

    @pytest.mark.long
    def test_a_terminal_has_a_bar_and_lines_stand_above_it(self, given):
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

    @pytest.mark.parametrize("seconds, text", [(3.4, "0:03"), (75, "1:15"), (3723, "1:02:03")])
    def test_time_left_reads_as_a_clock(self, seconds, text):
        assert format_seconds(seconds) == text


class TestDropout:
    """What is dropped is a function of seed, step and place."""

    def masks(self, seed=1, step=0, rate=0.3, shape=(50, 40), count_steps=True):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(seed)
            if count_steps:
                tf.train.create_global_step()
            ones = tf.ones(shape)
            outputs = []
            for place in ("layer_0", "layer_1"):
                with tf.variable_scope(place):
                    outputs.append(modeling.dropout(ones, rate))
            session.run(tf.global_variables_initializer())
            if count_steps:
                session.run(tf.train.get_global_step().assign(step))
            return session.run(outputs) + session.run(outputs)

    def test_the_same_step_drops_the_same_in_another_process(self):
        first, second, again, _ = self.masks()
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, self.masks()[0])
        assert not np.array_equal(first, second), "another place has another mask"

    def test_another_step_or_seed_drops_others(self):
        first = self.masks()[0]
        for changes in ({"step": 1}, {"seed": 2}):
            other = self.masks(**changes)[0]
            agreement = np.mean((first == 0) == (other == 0))
            assert agreement == pytest.approx(0.3**2 + 0.7**2, abs=0.05), "as for independent masks"

    def test_values_are_dropped_at_the_rate_and_the_others_scaled(self):
        values = self.masks(shape=(400, 100))[0]
        assert np.mean(values == 0) == pytest.approx(0.3, abs=0.01)
        np.testing.assert_allclose(values[values != 0], 1 / 0.7, rtol=1e-6)

    def test_without_a_step_counter_every_call_drops_others(self):
        first, _, again, _ = self.masks(count_steps=False)
        assert not np.array_equal(first, again)
