"""Words and vectors of the texts of a task, and the batches made of them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.baselines.features import Memory, Reading, SplitWords, TextFeatures, VectorCache, find_words
from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.network import WORDS
from adapter_bert.baselines.texts import normalize, split_words
from adapter_bert.tasks.task import InputExample, Task
from adapter_bert.tasks.task_data import TaskData
from tests.baselines.helpers import write_module
from tests.helpers import run_batches

LABELS = {"label_ids": tf.int64}


def make_data(**splits) -> TaskData:
    found = {
        name: [InputExample(f"{name}-{number}", text, None, "0") for number, text in enumerate(texts)]
        for name, texts in splits.items()
    }
    return TaskData(Task("Tiny", ("0", "1")), found)


def test_texts_are_normalized_as_requested():
    assert normalize("It's 5 €_OK!", True, True) == "it s 5 ok"
    assert normalize(" It's ", False, False) == "It's"
    assert split_words("No, it's 5€") == ["No", ",", "it", "'", "s", "5", "€"]


def test_words_of_the_training_split_come_first():
    data = make_data(train=["b a", "a c c"], dev=["z a", ""])
    words = find_words(data, Reading(True, False, 2))
    assert words.train_words == ("a", "b", "c") and words.other_words == ("z",)
    ids, starts = words.splits["train"]
    assert [list(ids[start:end]) for start, end in zip(starts, starts[1:])] == [[2, 1], [1, 3]]
    ids, starts = words.splits["dev"]
    assert [list(ids[start:end]) for start, end in zip(starts, starts[1:])] == [[4, 1], []]


def test_without_the_training_split_its_words_keep_their_numbers():
    data = make_data(train=["b a"], test=["z b"])
    both = find_words(data, Reading(True, False, 9))
    alone = find_words(make_data(test=["z b"]), Reading(True, False, 9), both.train_words)
    np.testing.assert_array_equal(alone.splits["test"].ids, both.splits["test"].ids)


def features(count: int = 5, size: int = 2) -> TextFeatures:
    words = SplitWords(np.arange(1, count + 1, dtype=np.int32), np.arange(count + 1))
    return TextFeatures("train", size, words, np.zeros(count, np.int64))


def seen(input_fn) -> list:
    return [list(batch[WORDS][:, 0]) for batch in run_batches(input_fn, 2)]


def test_each_epoch_has_every_example_once_in_its_own_order():
    numbers = sum(seen(features().training_input_fn(None, LABELS, 10, 3, 0)), [])
    epochs = [numbers[start : start + 5] for start in range(0, 20, 5)]
    assert all(sorted(epoch) == [1, 2, 3, 4, 5] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_training_resumes_with_the_batch_after_the_last():
    whole = seen(features().training_input_fn(None, LABELS, 8, 3, 0))
    assert len(whole) == 8
    assert seen(features().training_input_fn(None, LABELS, 8, 3, 5)) == whole[5:]
    assert seen(features().training_input_fn(None, LABELS, 8, 4, 0)) != whole


def test_scoring_reads_the_split_once_in_order():
    assert seen(features().scoring_input_fn(None, LABELS)) == [[1, 2], [3, 4], [5]]


def test_vectors_are_computed_once(tmp_path, monkeypatch):
    module = TextModule(write_module(str(tmp_path / "module")), "m")
    first = VectorCache(str(tmp_path), module).of_texts(["cat", "big cat"])
    monkeypatch.setattr(TextModule, "text_vectors", lambda *unused: pytest.fail("computed again"))
    again = VectorCache(str(tmp_path), module).of_texts(["cat", "big cat"])
    assert isinstance(again, np.memmap)
    np.testing.assert_array_equal(first, again)


def test_a_damaged_file_of_vectors_is_computed_again(tmp_path):
    cache = VectorCache(str(tmp_path), TextModule(write_module(str(tmp_path / "module")), "m"))
    expected = np.array(cache.of_words(["cat"]))
    (name,) = (name for name in os.listdir(tmp_path) if name.endswith(".npy"))
    np.save(str(tmp_path / name), np.zeros([2, 2], np.float32))
    np.testing.assert_array_equal(cache.of_words(["cat"]), expected)


def test_memory_drops_what_was_not_used_for_long():
    memory, computed = Memory(), []
    for key in [*range(20), 19, 0]:
        memory.get(key, lambda key=key: computed.append(key))
    assert computed == [*range(20), 0]
