"""`TaskPredictor` gives the predictions of `Predictor` for every task, while tasks come and go."""

from __future__ import annotations

import numpy as np
import pytest

from adapter_bert.common import system
from adapter_bert.devices.precision import CPU_FLAGS
from adapter_bert.serving.engine import _row, plan_rows
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from tests.helpers import WORDS, assert_mentions, make_pack, message_of, tiny_config, write_bert

ADAPTER = {"size": 4, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"}
# Name -> changes of the pack's configuration. Weights depend on the seed.
TASKS = {
    "one": {"seed": 1},
    "two": {"seed": 2},
    "three_classes": {"seed": 3, "labels": ["a", "b", "c"]},
    "many_classes": {"seed": 4, "labels": [str(label) for label in range(20)]},
    "number": {"seed": 5, "head": "regression"},
    "large": {"seed": 6, "adapter": {**ADAPTER, "size": 12}},
    "relu": {"seed": 7, "adapter": {**ADAPTER, "activation": "relu"}},
    "upper": {"seed": 8, "adapter": {**ADAPTER, "layers": [1], "freeze_below": True}},
    "feedforward": {"seed": 9, "adapter": {**ADAPTER, "placement": "feedforward"}},
    "norms": {"seed": 10, "mode": "layer_norm"},
    "head": {"seed": 11, "mode": "head"},
    "long": {"seed": 12, "max_seq_length": 32},
}


def random_texts(count, seed=0, words=8):
    random = np.random.RandomState(seed)
    return [" ".join(random.choice(WORDS[:24], random.randint(1, words))) for _ in range(count)]


def values(prediction):
    return list(prediction.probabilities.values()) or [prediction.number]


@pytest.fixture(scope="module")
def base(tiny_bert):
    return bases.Base.find(tiny_bert)


@pytest.fixture(scope="module")
def task_packs(base):
    return {name: make_pack(base, **changes) for name, changes in TASKS.items()}


@pytest.fixture(scope="module")
def alone(base, task_packs, tmp_path_factory):
    """Return name -> predictor of each task on its own."""
    folder, predictors = tmp_path_factory.mktemp("packs"), {}
    for name, pack in task_packs.items():
        packs.write(str(folder / f"{name}.safetensors"), pack)
        predictors[name] = Predictor(base.checkpoint, str(folder / f"{name}.safetensors"), threads=1)
    yield predictors
    for predictor in predictors.values():
        predictor.close()


@pytest.fixture(scope="module")
def predictor(base, task_packs):
    with TaskPredictor(base, threads=1) as made:
        for name, pack in task_packs.items():
            made.add(name, pack)
        yield made


def test_mixed_predictions_equal_those_of_single_tasks(predictor, alone):
    texts = random_texts(60)
    examples = [(list(TASKS)[index % len(TASKS)], text) for index, text in enumerate(texts)]
    found = predictor.predict(examples)
    for (name, text), prediction in zip(examples, found):
        expected = alone[name].predict([text])[0]
        assert prediction.label == expected.label
        assert list(prediction.probabilities) == list(expected.probabilities)
        np.testing.assert_allclose(values(prediction), values(expected), atol=1e-5)
    assert len({tuple(values(prediction)) for prediction in found}) > 30


def test_mixed_predictions_are_bit_identical_at_the_same_padded_shape(predictor, alone):
    words = random_texts(1)[0]
    texts = [f"{words} {word}" for word in ("cat", "dog", "cats", "dogs")]  # of equal length
    names = ["one", "two", "three_classes", "number"]
    mixed = predictor.predict(list(zip(names, texts)), batch_size=4)
    single = {name: alone[name].predict(texts, batch_size=4) for name in names}
    assert mixed == [single[name][index] for index, name in enumerate(names)]
    assert len({tuple(values(single[name][0])) for name in names}) == 4


def test_pairs_of_texts(predictor, alone):
    pair, first = predictor.predict([("one", ("the cat is", "big .")), ("two", ["the cat", None])])
    np.testing.assert_allclose(values(pair), values(alone["one"].predict([("the cat is", "big .")])[0]), atol=1e-5)
    np.testing.assert_allclose(values(first), values(alone["two"].predict(["the cat"])[0]), atol=1e-5)


def test_each_task_truncates_to_its_own_length(predictor, alone):
    text = "the cat is big and " * 10
    found = predictor.predict([("one", text), ("long", text)])
    for name, prediction in zip(("one", "long"), found):
        np.testing.assert_allclose(values(prediction), values(alone[name].predict([text])[0]), atol=1e-5)


def test_batches_hold_one_family_and_tasks_with_many_texts_get_their_own(predictor):
    tasks = {name: predictor.acquire(name) for name in ("one", "two", "large", "norms")}
    names = ["one"] * 9 + ["two", "norms", "large", "two", "large"]
    rows = [_row(tasks[name], ("the cat", None)) for name in names]
    batches = plan_rows(rows, 4, 1)
    predictor.release(tasks.values())
    assert sorted(index for batch in batches for index in batch) == list(range(len(names)))
    found = [sorted(names[index] for index in batch) for batch in batches]
    assert sorted(found) == [["large", "large"], ["norms"], ["one"], ["one"] * 4, ["one"] * 4, ["two", "two"]]


def test_plain_bert_is_not_changed_by_tasks(predictor, base, tmp_path):
    texts = random_texts(3)
    plain, adapted, head = (predictor.pooled([(task, text) for text in texts]) for task in (None, "one", "head"))
    assert plain.shape == (3, 16)
    np.testing.assert_array_equal(plain, head)  # a pack of mode head leaves BERT as it is
    assert np.abs(plain - adapted).max() > 1e-3


def test_a_task_is_replaced_and_removed(base, task_packs, alone):
    with TaskPredictor(base, threads=1) as predictor:
        predictor.add("task", task_packs["one"])
        held = predictor.acquire("task")
        assert_mentions(message_of(predictor.add, "task", task_packs["two"]), "'task'", "replace=True")
        predictor.add("task", task_packs["two"], replace=True)
        new, old = predictor.predict([("task", "the cat"), (held, "the cat")])
        np.testing.assert_allclose(values(old), values(alone["one"].predict(["the cat"])[0]), atol=1e-6)
        np.testing.assert_allclose(values(new), values(alone["two"].predict(["the cat"])[0]), atol=1e-6)
        predictor.release([held])
        assert_mentions(message_of(predictor.predict, [(held, "the cat")]), "task", "removed and released")
        assert predictor.names() == ["task"] and predictor.config("task") == task_packs["two"].config
        predictor.remove("task")
        assert predictor.names() == []
        assert_mentions(message_of(predictor.predict, [("task", "the cat")]), "Unknown task 'task'")
        assert_mentions(message_of(predictor.remove, "task"), "Unknown task 'task'")


def test_slots_of_removed_tasks_are_used_again(base, task_packs):
    with TaskPredictor(base, threads=1) as predictor:
        graph = predictor._engine._graph
        for _ in range(20):
            predictor.add("task", task_packs["one"], replace=True)
            predictor.add("other", task_packs["norms"])
            predictor.remove("other")
        assert graph.capacity == 4  # plain BERT, the task, its next version and the other task


def test_a_bank(base, task_packs, tmp_path, alone):
    bank = Bank.create(str(tmp_path / "bank"), base)
    for name in ("one", "norms"):
        bank.add(task_packs[name], name)
    with TaskPredictor.from_bank(bank.folder) as predictor:
        assert predictor.names() == ["norms", "one"]
        found = predictor.predict([("one", "the cat"), ("norms", "the cat")])
        for name, prediction in zip(("one", "norms"), found):
            np.testing.assert_allclose(values(prediction), values(alone[name].predict(["the cat"])[0]), atol=1e-5)
    with TaskPredictor.from_bank(bank.folder, ["one"]) as predictor:
        assert predictor.names() == ["one"]


@pytest.mark.skipif(not system.cpu_flags().intersection(CPU_FLAGS), reason="needs a CPU with bfloat16")
def test_reduced_precision(base, task_packs, predictor):
    names = ["one", "two", "number", "large"]
    examples = [(names[index % 4], text) for index, text in enumerate(random_texts(12))]
    expected = predictor.predict(examples)
    with TaskPredictor(base, threads=1, precision="bfloat16") as reduced:
        for name in names:
            reduced.add(name, task_packs[name])
        found = reduced.predict(examples, batch_size=12)
    assert found != expected
    for (name, _), *pair in zip(examples, found, expected):
        # The random weights of these packs make the network sensitive to rounding.
        np.testing.assert_allclose(*map(values, pair), atol=0.6 if name == "number" else 0.2)


class TestErrors:
    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"mode": "full", "base": None}, ["full", "adapter, layer_norm, head"]),
            ({"mode": "top_layers"}, ["top_layers"]),
            ({"adapter": {**ADAPTER, "depth": 2}}, ["depth=2"]),
            (
                {"adapter": {**ADAPTER, "norm": "batch", "connection": "parallel"}},
                ["norm=batch", "connection=parallel"],
            ),
        ],
    )
    def test_packs_that_cannot_share_a_base(self, predictor, base, changes, facts):
        assert_mentions(message_of(predictor.add, "other", make_pack(base, **changes)), *facts, "Predictor")
        assert "other" not in predictor.names()

    def test_another_base(self, predictor, tmp_path):
        write_bert(str(tmp_path), tiny_config(), seed=8)
        other = make_pack(bases.Base.find(str(tmp_path)))
        assert_mentions(message_of(predictor.add, "other", other), "another base")

    def test_a_missing_pack(self, predictor, tmp_path):
        assert_mentions(message_of(predictor.add, "other", str(tmp_path / "none")), tmp_path / "none")

    @pytest.mark.parametrize(
        "examples, fact",
        [
            ("text", "found str"),
            ([("one",)], "item 0"),
            ([("one", "a"), (1, "a")], "item 1"),
            ([("one", None)], "item 0 is None"),
            ([("oen", "a")], "Did you mean 'one'"),
            ([(None, "a")], "Plain BERT has no head"),
        ],
    )
    def test_invalid_examples(self, predictor, examples, fact):
        assert_mentions(message_of(predictor.predict, examples), fact)

    def test_a_closed_predictor(self, base, task_packs):
        predictor = TaskPredictor(base)
        predictor.close()
        predictor.close()
        assert_mentions(message_of(predictor.predict, []), "closed")
        assert_mentions(message_of(predictor.add, "one", task_packs["one"]), "closed")
