"""Features are made once, for each content, and never read half-written."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

import run_classifier
import tokenization
from adapter_bert import tasks
from adapter_bert.common import files
from adapter_bert.pipeline import feature_store, writing
from adapter_bert.pipeline.records import file_based_input_fn_builder
from adapter_bert.tasks import InputExample
from tests.helpers import DAMAGES, ROOT, VOCABULARY, base_flags, damage

LABELS = ("0", "1")


def examples(count=20):
    nouns = ["cat", "dog", "cats", "dogs"]
    return [InputExample(f"train-{i}", f"the {nouns[i % 4]} is big", None, LABELS[i % 2]) for i in range(count)]


@pytest.fixture
def tokenizer(tiny_bert):
    return tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))


@pytest.fixture
def make(tokenizer, tmp_path):
    """Asks the cache for features; what is not said is the same each time."""

    def make(items=None, labels=LABELS, length=12, key="vocabulary 1", name="train", pad_to=1):
        items = examples() if items is None else items
        return feature_store.feature_files(str(tmp_path), name, items, labels, length, tokenizer, key, pad_to)

    return make


@pytest.fixture
def no_tokenising(monkeypatch):
    """Fails a test that makes features where they should be found."""

    def fail(*_):
        raise AssertionError("features were made again")

    return lambda: monkeypatch.setattr(writing, "write_shards", fail)


def ids(paths):
    found = []
    for record in itertools.chain.from_iterable(map(tf.python_io.tf_record_iterator, paths)):
        found.append(list(tf.train.Example.FromString(record).features.feature["input_ids"].int64_list.value))
    return found


def test_the_same_content_is_made_once(make, no_tokenising):
    paths = make()
    no_tokenising()
    assert make() == paths
    assert len(ids(paths)) == feature_store.num_records(paths) == 20


def test_names_of_examples_do_not_matter_but_order_does(make):
    renamed = [InputExample("x", e.text_a, e.text_b, e.label) for e in examples()]
    assert make(renamed) == make()
    assert make(examples()[::-1]) != make()


@pytest.mark.parametrize(
    "change",
    [
        {"length": 13},
        {"labels": ("1", "0")},
        {"key": "vocabulary 2"},
        {"items": examples()[:-1]},
        {"items": examples()[:-1] + [InputExample("a", "the dogs is big", None, "0")]},
        {"items": examples()[:-1] + [InputExample("a", "the dogs is", "big", "1")]},
        {"pad_to": 8},
    ],
)
def test_other_content_has_a_file_of_its_own(make, change):
    first = make()
    other = make(**change)
    assert other != first
    assert all(map(os.path.exists, first + other))


def test_texts_are_not_confused_with_their_borders(make):
    """`a` + `bc` is another pair than `ab` + `c`, and a text `None` is not a missing one."""
    pairs = [("a", "bc"), ("ab", "c"), ("abc", None), ("abc", "None"), ("abc", "")]
    assert len({tasks.fingerprint([InputExample("x", a, b, "0")]) for a, b in pairs}) == len(pairs)


def test_another_version_of_the_code_makes_its_own_file(make, monkeypatch):
    path = make()
    monkeypatch.setattr(feature_store, "_code_fingerprint", lambda modules: "other")
    assert make() != path


def test_fillers_complete_the_last_batch(make):
    paths = make(pad_to=8)
    assert feature_store.num_records(paths) == 24
    assert ids(paths)[:20] == ids(make())
    assert ids(paths)[20:] == [[0]] * 4


@pytest.fixture
def small_shards(monkeypatch):
    """Files of eight records each."""
    monkeypatch.setattr(writing, "RECORDS_A_SHARD", 8)


@pytest.mark.parametrize("count, sizes", [(1, [1]), (7, [7]), (8, [8]), (9, [8, 1]), (16, [8, 8]), (20, [8, 8, 4])])
def test_much_data_is_in_several_files_and_in_order(make, small_shards, monkeypatch, count, sizes):
    paths = make(examples(count))
    assert [feature_store.num_records(path) for path in paths] == sizes
    assert feature_store.num_records(paths) == count
    monkeypatch.setattr(writing, "RECORDS_A_SHARD", 100)
    assert ids(paths) == ids(make(examples(count), key="another"))


def test_no_record_is_one_empty_file(tmp_path):
    [path] = writing.write_shards(iter(()), str(tmp_path / "none"))
    assert feature_store.num_records(path) == len(ids([path])) == 0


def test_the_network_reads_several_files_as_one(make, small_shards):
    paths = make()
    input_fn = file_based_input_fn_builder(paths, 12, is_training=False, drop_remainder=False)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = session.run(tf.data.make_one_shot_iterator(input_fn({"batch_size": 32})).get_next())
    assert [row[mask == 1].tolist() for row, mask in zip(batch["input_ids"], batch["input_mask"])] == ids(paths)


def test_partial_files_are_never_taken_for_whole_ones(make, small_shards, tmp_path, monkeypatch):
    """A process that is stopped while writing leaves nothing behind."""
    written = writing.write_shards

    def dying(records, stem):
        def some():
            for index, record in enumerate(records):
                if index == 13:
                    raise KeyboardInterrupt
                yield record

        return written(some(), stem)

    monkeypatch.setattr(writing, "write_shards", dying)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert os.listdir(str(tmp_path)) == []
    monkeypatch.setattr(writing, "write_shards", written)
    assert len(ids(make())) == 20


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_set_with_a_file_missing_is_made_again(make, small_shards, missing):
    """As a process leaves it that is killed between two renamings."""
    paths = make()
    whole = ids(paths)
    os.remove(paths[missing])
    assert make() == paths
    assert ids(paths) == whole


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_made_again(make, small_shards, log, how):
    paths = make()
    whole = ids(paths)
    damage(paths[1], how)
    assert make() == paths
    assert ids(paths) == whole
    assert any(paths[1] in line and "damaged" in line for line in log)


def test_two_damaged_files_do_not_make_a_whole_one(make, small_shards):
    """Each has the bytes of the other: nothing but their place is wrong."""
    paths = make()
    whole = ids(paths)
    os.rename(paths[0], paths[0] + ".aside")
    os.rename(paths[1], paths[0])
    os.rename(paths[0] + ".aside", paths[1])
    assert make() == paths
    assert ids(paths) == whole


BUILDER = """
import sys
sys.path.insert(0, {root!r})
import tokenization
from adapter_bert.pipeline import feature_store
from tests.pipeline.test_feature_store import LABELS, examples
print(*feature_store.feature_files({folder!r}, "train", examples(4000), LABELS, 12,
                           tokenization.FullTokenizer({vocabulary!r}), "vocabulary 1"))
"""


def test_two_processes_may_make_the_same_features_at_the_same_time(tmp_path, tiny_bert):
    folder = str(tmp_path / "features")
    os.makedirs(folder)
    code = BUILDER.format(
        root=ROOT,
        folder=folder,
        vocabulary=os.path.join(tiny_bert, "vocab.txt"),
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    paths = {out.strip().split("\n")[-1] for out, _ in outputs}
    assert len(paths) == 1
    assert os.listdir(folder) == [os.path.basename(path) for path in paths]
    assert len(ids(paths)) == 4000


@pytest.mark.long
def test_runs_of_a_sweep_share_their_features(tiny_bert, cola_dir, tmp_path, no_tokenising):
    flags = dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "one")), do_train=True, do_eval=True)
    flags.update(num_train_epochs=0.2)
    run_classifier.run_task(run_classifier.ClassifierSettings(**flags))
    assert sorted(os.listdir(str(tmp_path))) == ["features", "one"]
    no_tokenising()
    flags.update(seed=2, output_dir=str(tmp_path / "two"), learning_rate=1e-3)
    run_classifier.run_task(run_classifier.ClassifierSettings(**flags))


@pytest.mark.parametrize(
    "output_dir, folders",
    [
        ("runs/cola", ("runs/features", "runs/cola/features")),
        ("runs/cola/", ("runs/features", "runs/cola/features")),
        ("cola", ("features", "cola/features")),
        ("gs://bucket/runs/cola", ("gs://bucket/runs/features", "gs://bucket/runs/cola/features")),
        ("gs://bucket", ("gs://bucket/features",)),
    ],
)
def test_features_lie_beside_the_output_folder_or_else_in_it(output_dir, folders):
    assert run_classifier.ClassifierSettings(output_dir=output_dir).feature_folders == folders
    chosen = run_classifier.ClassifierSettings(output_dir=output_dir, feature_cache_dir="/x")
    assert chosen.feature_folders == ("/x",)


def test_a_place_that_cannot_be_written_gives_way_to_the_next(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    second = str(tmp_path / "second")
    assert files.writable_folder(str(blocked / "features"), second) == second
    assert files.writable_folder(second, str(blocked / "features")) == second
    assert os.listdir(second) == []


def test_settings_that_give_other_ids_have_another_key(tiny_bert, cola_dir, tmp_path):
    flags = base_flags(tiny_bert, cola_dir, str(tmp_path / "out"))
    key = run_classifier.ClassifierSettings(**flags).tokenizer_key
    copied = tmp_path / "copy.txt"
    copied.write_text("\n".join(VOCABULARY) + "\n")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(VOCABULARY[:5] + VOCABULARY[:4:-1]) + "\n")

    def key_with(**changes):
        return run_classifier.ClassifierSettings(**dict(flags, **changes)).tokenizer_key

    assert key_with(vocab_file=str(copied)) == key, "the same vocabulary in another place"
    assert key_with(learning_rate=1.0) == key
    assert key_with(vocab_file=str(other)) != key
    assert key_with(do_lower_case=False) != key
