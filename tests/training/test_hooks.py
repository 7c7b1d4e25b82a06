"""Training hooks: what they log, save, evaluate and stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import List

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import progress
from adapter_bert.common.signals import StopRequest
from adapter_bert.evaluation.history import History
from adapter_bert.training.hooks import CheckpointHook, ProgressHook
from adapter_bert.training.model_fn import TrainingTensors

TOTAL, BATCH = 6, 4


def train(make_hooks, steps: int = TOTAL, start: int = 0) -> List[int]:
    """Run training steps with a loss of 0.5 and three dev batches; return the steps of its checkpoints."""
    saved: List[int] = []
    saver = SimpleNamespace(save=lambda session, path, global_step: saved.append(global_step))
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        batches = tf.data.make_initializable_iterator(tf.data.Dataset.range(3))
        dev = {"value": tf.reshape(batches.get_next(), [1]), "is_real_example": tf.ones([1], tf.int32)}
        loss, rate, width = tf.constant(0.5), tf.constant(1e-3), tf.constant(12)
        tensors = TrainingTensors(loss, rate, width, saver, batches.initializer, dev)
        train_op = step.assign_add(1)
        scaffold = tf.train.Scaffold(init_op=step.assign(start), saver=tf.train.Saver([step]))
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), make_hooks(tensors)) as session:
            for _ in range(steps):
                if not session.should_stop():
                    session.run(train_op)
    return saved


@pytest.fixture
def history(tmp_path) -> History:
    return History(str(tmp_path / "training.json"))


class FakeEvaluator:
    """Is due at some steps, and stops training at one."""

    def __init__(self, due, last=None) -> None:
        self.due, self.last, self.seen = due, last, []
        self.dev, self.should_stop = SimpleNamespace(features=SimpleNamespace(num_examples=3)), False

    def is_due(self, step):
        return step in self.due

    def evaluate(self, step, rows, checkpoint):
        self.seen.append((step, [int(row["value"]) for row in rows], checkpoint))
        self.should_stop = step == self.last


def progress_hook(tensors, history, stop=None) -> ProgressHook:
    return ProgressHook(tensors, TOTAL, BATCH, history, stop or StopRequest())


@pytest.mark.parametrize("seconds, start, logged", [(1e9, 0, [6]), (0, 0, [1, 2, 3, 4, 5, 6]), (1e9, 4, [6])])
def test_progress_is_logged_at_intervals_and_at_the_last_step(history, log, monkeypatch, seconds, start, logged):
    monkeypatch.setattr(progress, "LOG_SECONDS", seconds)
    train(lambda tensors: [progress_hook(tensors, history)], TOTAL - start, start)
    lines = [line for line in log if line.startswith("step ")]
    assert [line.split("  ")[:3] for line in lines] == [[f"step {n}/6", "loss 0.5000", "lr 1.00e-03"] for n in logged]
    assert lines[-1].endswith(" examples/s  0:00 left")
    assert (history.steps, history.examples) == (TOTAL - start, (TOTAL - start) * BATCH) and history.seconds > 0
    assert "Batches had 12.0 tokens per sequence on average." in log


def test_a_stop_request_ends_training_after_the_current_step(history, log):
    stop = StopRequest()
    stop.is_set = True
    saved = train(lambda tensors: [progress_hook(tensors, history, stop), CheckpointHook(tensors, "out", 100)])
    assert history.steps == 1 and saved == [1]
    assert any(line.startswith("step 1/6") for line in log)


@pytest.mark.parametrize(
    "every, steps, start, expected",
    [(2, TOTAL, 0, [2, 4, 6]), (4, TOTAL, 0, [4, 6]), (100, TOTAL, 0, [6]), (1, 0, 3, [])],
    ids=["divides", "does not divide", "longer than the training", "nothing to train"],
)
def test_checkpoints_are_saved_at_intervals_and_at_the_end(every, steps, start, expected):
    assert train(lambda tensors: [CheckpointHook(tensors, "out", every)], steps, start) == expected


@pytest.mark.parametrize(
    "last, evaluated, saved", [(None, [2, 5], [2, 4, 5, 6]), (2, [2], [2])], ids=["to the end", "stops early"]
)
def test_each_evaluation_sees_the_whole_dev_set_and_a_checkpoint_of_its_step(last, evaluated, saved):
    evaluator = FakeEvaluator({2, 5}, last)
    assert train(lambda tensors: [CheckpointHook(tensors, "out", 4, evaluator)]) == saved
    assert evaluator.seen == [(step, [0, 1, 2], f"out/model.ckpt-{step}") for step in evaluated]


@pytest.mark.parametrize("seconds, text", [(3.4, "0:03"), (75, "1:15"), (3723, "1:02:03")])
def test_the_time_left_is_shown_as_on_a_clock(seconds, text):
    assert progress.format_seconds(seconds) == text
