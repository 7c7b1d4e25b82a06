"""When training evaluates, which weights are the best, and when it stops."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adapter_bert.evaluation.history import History
from adapter_bert.evaluation.scores import Scores
from adapter_bert.training.evaluator import Evaluator, epoch_ends, multiples


@pytest.mark.parametrize(
    "steps, expected",
    [
        (epoch_ends(64, 8, 24), {8, 16, 24}),
        (epoch_ends(8551, 32, 801), {267, 534, 801}),
        (epoch_ends(10, 4, 7), {2, 5, 7}),  # 2.5 steps per epoch
        (epoch_ends(64, 8, 20), {8, 16, 20}),  # two and a half epochs
        (epoch_ends(5, 8, 3), {1, 2, 3}),  # less than a step per epoch
        (multiples(10, 25), {10, 20, 25}),
        (multiples(10, 30), {10, 20, 30}),
        (multiples(100, 30), {30}),
    ],
)
def test_epochs_end_with_their_last_full_batch_and_the_last_step_is_always_evaluated(steps, expected):
    assert steps == expected


class Run:
    """A training run whose dev scores are given; `start` is the step of its newest checkpoint, `saved` of its best."""

    def __init__(self, folder, patience=None, start=0, saved=None):
        self.saved = [saved]
        self.history = History(str(folder / "training.json"))
        best_pack = SimpleNamespace(
            folder=SimpleNamespace(latest_step=lambda: start, file=lambda name: str(folder / name)),
            saved=lambda: saved and SimpleNamespace(step=saved),
            save=lambda checkpoint, scores: self.saved.append(checkpoint),
        )
        dev = SimpleNamespace(score=lambda rows: rows[0], observe=lambda step, scores: None)
        self.evaluator = Evaluator(dev, frozenset(range(1, 300)), patience, self.history, best_pack)

    def evaluate(self, step: int, accuracy: float, loss: float = 1.0) -> bool:
        """Evaluate, and return whether training should stop."""
        self.evaluator.evaluate(step, [Scores({"accuracy": accuracy}, loss, False)], step)
        return self.evaluator.should_stop


@pytest.mark.parametrize(
    "patience, scores, best",
    [
        (1, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.25, 1.0)], 3),
        (1, [(0.5, 1.0), (0.5, 0.9), (0.5, 0.9)], 2),
        (None, [(0.5, 1.0)] * 19, 1),
    ],
    ids=["a lower score", "the lower loss decides between equal scores", "without patience it never stops"],
)
def test_training_stops_when_its_patience_runs_out(tmp_path, patience, scores, best):
    run = Run(tmp_path, patience)
    stops = [run.evaluate(step, *score) for step, score in enumerate(scores, 1)]
    assert stops == [False] * (len(scores) - 1) + [patience is not None]
    assert run.saved[-1] == best


def test_a_loss_that_was_not_finite_is_worse_than_any_other(tmp_path):
    run = Run(tmp_path)
    run.evaluate(1, 0.5, loss=float("nan"))
    again = Run(tmp_path, start=1, saved=1)
    assert again.history.evaluations[0]["loss"] is None, "as JSON holds it"
    again.evaluate(2, 0.5, loss=5.0)
    assert again.saved[-1] == 2


def test_the_best_weights_are_not_lost_when_a_run_continues_from_an_earlier_checkpoint(tmp_path):
    """The best weights are from step 240, the newest checkpoint from step 200: later scores must beat the best."""
    first = Run(tmp_path, patience=2)
    first.evaluate(120, 0.9)
    first.evaluate(240, 0.95)
    second = Run(tmp_path, patience=2, start=200, saved=240)
    assert [entry["step"] for entry in second.history.evaluations] == [120, 240]
    second.evaluate(220, 0.5)
    assert second.saved[-1] == 240
    assert not second.evaluator.is_due(240) and second.evaluator.is_due(260)
    assert [entry["step"] for entry in Run(tmp_path, start=299).history.evaluations] == [120, 220, 240]


def test_the_history_counts_steps_and_time(tmp_path):
    history = History(str(tmp_path / "training.json"))
    assert history.summary()["examples_per_second"] is None
    for _ in range(4):
        history.add_step(0.5, 8)
    history.write()
    summary = History(str(tmp_path / "training.json")).summary()
    assert summary == {"seconds": 2.0, "steps_computed": 4, "examples_per_second": 16.0, "evaluations": []}
