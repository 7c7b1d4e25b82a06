"""Features are built once for each content, and never read half-written."""

from __future__ import annotations

import itertools
import os

import pytest
import tensorflow.compat.v1 as tf

import run_classifier
import tokenization
from adapter_bert import tasks
from adapter_bert.pipeline import feature_store, features, tfrecords
from adapter_bert.pipeline.feature_store import FeatureStore, num_records
from adapter_bert.pipeline.records import file_based_input_fn_builder
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.tasks import InputExample
from tests.helpers import DAMAGES, assert_mentions, base_flags, damage, message_of, run_batches
from tests.kill import Program

LABELS = ("0", "1")


def examples(count=20):
    nouns = ["cat", "dog", "cats", "dogs"]
    return [InputExample(f"train-{i}", f"the {nouns[i % 4]} is big", None, LABELS[i % 2]) for i in range(count)]


@pytest.fixture
def make(tiny_bert, tmp_path):
    """Ask the store for features, by default always the same."""
    tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))

    def make(items=None, labels=LABELS, length=12, key="vocabulary 1", name="train", pad_to=1):
        items = examples() if items is None else items
        return FeatureStore([str(tmp_path)], tokenizer, key).example_files(name, items, labels, length, pad_to)

    return make


@pytest.fixture
def small_shards(monkeypatch):
    """Files of eight records each."""
    monkeypatch.setattr(tfrecords, "RECORDS_PER_SHARD", 8)


def ids(paths):
    found = []
    for record in itertools.chain.from_iterable(map(tf.python_io.tf_record_iterator, paths)):
        found.append(list(tf.train.Example.FromString(record).features.feature["input_ids"].int64_list.value))
    return found


def test_the_same_content_is_built_once(make, monkeypatch):
    paths = make()
    monkeypatch.setattr(tfrecords, "write_shards", lambda *_: pytest.fail("features were built again"))
    assert make() == paths
    renamed = [InputExample("x", e.text_a, e.text_b, e.label) for e in examples()]
    assert make(renamed) == paths, "names of examples do not matter"
    assert len(ids(paths)) == num_records(paths) == 20


@pytest.mark.parametrize(
    "change",
    [
        {"length": 13},
        {"labels": ("1", "0")},
        {"key": "vocabulary 2"},
        {"items": examples()[::-1]},
        {"items": examples()[:-1] + [InputExample("a", "the dogs is big", None, "0")]},
        {"pad_to": 8},
    ],
)
def test_different_content_has_different_files(make, change):
    first, other = make(), make(**change)
    assert set(first).isdisjoint(other)
    assert all(map(os.path.exists, first + other))


def test_borders_between_texts_matter():
    """`a` + `bc` is a different pair from `ab` + `c`, and a text `None` is not a missing one."""
    pairs = [("a", "bc"), ("ab", "c"), ("abc", None), ("abc", "None"), ("abc", "")]
    assert len({tasks.fingerprint([InputExample("x", a, b, "0")]) for a, b in pairs}) == len(pairs)


def test_another_version_of_the_code_has_different_files(make, monkeypatch, tmp_path):
    paths = make()
    (tmp_path / "features.py").write_text("another version")
    monkeypatch.setattr(features, "__file__", str(tmp_path / "features.py"))
    assert make() != paths


def test_padding_examples_complete_the_last_batch(make):
    paths = make(pad_to=8)
    assert num_records(paths) == 24
    assert ids(paths) == ids(make()) + [[0]] * 4


@pytest.mark.parametrize("count, sizes", [(0, [0]), (7, [7]), (8, [8]), (9, [8, 1]), (16, [8, 8]), (20, [8, 8, 4])])
def test_large_data_is_split_into_files_in_order_and_no_records_give_one(make, small_shards, monkeypatch, count, sizes):
    paths = make(examples(count))
    assert [num_records([path]) for path in paths] == sizes
    assert num_records(paths) == len(ids(paths)) == count
    monkeypatch.setattr(tfrecords, "RECORDS_PER_SHARD", 100)
    assert ids(paths) == ids(make(examples(count), key="another"))


@pytest.mark.parametrize("write", [tfrecords.write_shards, tfrecords.write_records])
def test_an_interrupted_write_leaves_nothing_behind_and_a_killed_one_no_file_that_looks_complete(
    small_shards, tmp_path, write
):
    def records():
        yield from [b"record"] * 13
        assert all(name.endswith(".partial") for name in os.listdir(str(tmp_path)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(records(), str(tmp_path / "train"))
    assert os.listdir(str(tmp_path)) == []


def test_an_incomplete_set_is_built_again(make, small_shards):
    """As a process leaves it that is killed between two renames."""
    paths = make()
    whole = ids(paths)
    for path in paths:
        os.remove(path)
        assert make() == paths
        assert ids(paths) == whole


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_built_again_or_named(make, small_shards, log, how):
    """A file of another size is found at once; TensorFlow finds a changed byte when it reads the record."""
    paths = make()
    whole = ids(paths)
    damage(paths[1], how)
    if how != "changed byte":
        assert make() == paths
        assert any(paths[1] in line and "incomplete" in line for line in log)
    else:
        input_fn = file_based_input_fn_builder(make(), 12, is_training=False, drop_remainder=False)

        def read():
            with feature_store.damage_errors(paths):
                run_batches(input_fn, 32)

        assert_mentions(message_of(read), paths[1], "damaged", "Delete it")
        os.remove(paths[1])
        assert make() == paths
    assert ids(paths) == whole


@pytest.mark.parametrize("record", [b"no example", tfrecords.serialize({"other": [1]})])
def test_a_record_that_contains_no_features_is_named(make, record):
    paths = make()
    with tf.python_io.TFRecordWriter(paths[0]) as writer:
        writer.write(record)
    input_fn = file_based_input_fn_builder(paths, 12, is_training=False, drop_remainder=False)

    def read():
        with feature_store.damage_errors(paths):
            run_batches(input_fn, 32)

    assert_mentions(message_of(read), paths[0], "damaged", "Delete it")


BUILDER = """
import run_classifier
import tokenization
from adapter_bert.pipeline.feature_store import FeatureStore
from tests.pipeline.test_feature_store import LABELS, examples
store = FeatureStore([{folder!r}], tokenization.FullTokenizer({vocabulary!r}), "vocabulary 1")
print(*store.example_files("train", examples(4000), LABELS, 12))
"""


def test_two_processes_may_build_the_same_features_concurrently(tmp_path, tiny_bert):
    folder = str(tmp_path / "features")
    code = BUILDER.format(folder=folder, vocabulary=os.path.join(tiny_bert, "vocab.txt"))
    programs = [Program.of_code(code) for _ in range(2)]
    outputs = [program.process.communicate()[0] for program in programs]
    assert [program.process.returncode for program in programs] == [0, 0], outputs
    paths = {output.strip().split("\n")[-1] for output in outputs}
    assert len(paths) == 1
    assert os.listdir(folder) == [os.path.basename(path) for path in paths]
    assert len(ids(paths)) == 4000


@pytest.mark.long
def test_runs_of_a_sweep_share_features(tiny_bert, cola_dir, tmp_path, monkeypatch):
    flags = dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "one")), do_train=True, do_eval=True)
    flags.update(num_train_epochs=0.2)
    run_classifier.run_task(ClassifierSettings(**flags))
    assert sorted(os.listdir(str(tmp_path))) == ["features", "one"]
    monkeypatch.setattr(tfrecords, "write_shards", lambda *_: pytest.fail("features were built again"))
    flags.update(seed=2, output_dir=str(tmp_path / "two"), learning_rate=1e-3)
    run_classifier.run_task(ClassifierSettings(**flags))


@pytest.mark.parametrize(
    "make_entry",
    [os.mkfifo, lambda path: os.symlink("nowhere", path), lambda path: os.symlink("/dev/zero", path)],
    ids=["fifo", "dangling link", "device"],
)
def test_a_file_that_is_not_regular_is_rebuilt_and_never_opened(make, deadline, make_entry):
    for items in (examples(), examples(0)):  # a FIFO has the size of an empty file
        (path,) = make(items)
        os.remove(path)
        make_entry(path)
        assert make(items) == [path] and os.path.isfile(path) and not os.path.islink(path)
        assert len(ids([path])) == len(items)
