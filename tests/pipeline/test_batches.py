"""Batches have little padding, a training sees every example once per epoch, and predictions are in file order."""

from __future__ import annotations

import collections
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common.files import write_json
from adapter_bert.common.json_files import read_object
from adapter_bert.evaluation import scores
from adapter_bert.model.heads import ROW
from adapter_bert.pipeline import batches, records, tfrecords
from adapter_bert.pipeline.records import Share
from adapter_bert.training.evaluator import epoch_ends
from adapter_bert.weights import packs
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder
from run_classifier import ClassifierSettings
from tests.helpers import TINY, base_flags, run_batches, tiny_config, write_bert
from tests.runs.helpers import prepare

pytestmark = pytest.mark.smoke

SEQ_LENGTH = 50


def skewed_lengths(count: int, seed: int = 1) -> np.ndarray:
    """Mostly short sequences and a few long ones, like sentences."""
    return np.minimum(3 + np.random.RandomState(seed).geometric(0.12, count), SEQ_LENGTH)


def features_of(number: int, length: int) -> dict:
    """Features without padding whose label is their number."""
    return {
        "input_ids": [1 + (number + place) % 30 for place in range(length)],
        "segment_ids": [0] * (length // 2) + [1] * (length - length // 2),
        "label_ids": [number],
        "is_real_example": [1],
    }


def padded(number: int, length: int) -> dict:
    """The same features as Google's code writes them."""
    features = dict(features_of(number, length), input_mask=[1] * length)
    for name in records.TOKEN_FEATURES:
        features[name] = features[name] + [0] * (SEQ_LENGTH - length)
    return features


def write(path, lengths, make=features_of) -> str:
    features = (make(number, int(length)) for number, length in enumerate(lengths))
    tfrecords.write_records(map(tfrecords.serialize, features), str(path))
    return str(path)


@pytest.fixture(scope="module")
def lengths():
    return skewed_lengths(103)


@pytest.fixture(scope="module")
def file(tmp_path_factory, lengths):
    """103 sequences of skewed lengths."""
    return write(tmp_path_factory.mktemp("batches") / "records", lengths)


@pytest.fixture(scope="module")
def small_pools():
    """Several pools per epoch, and a shuffle buffer smaller than the file."""
    patch = pytest.MonkeyPatch()
    patch.setattr(batches, "POOL", 3)
    patch.setattr(records, "SHUFFLE_BUFFER", 40)
    yield
    patch.undo()


def trained_on(file, batch_size, total, seed=5, skip=0, epoch_size=103) -> list:
    """The batches of a training."""
    return run_batches(batches.training_input_fn(file, SEQ_LENGTH, epoch_size, total, seed, skip), batch_size)


@pytest.mark.parametrize("pads_all", [False, True])
def test_the_shares_of_workers_are_the_batches_of_one_process(file, pads_all):
    def batches_of(share: Share) -> list:
        if pads_all:
            input_fn = records.file_based_input_fn_builder(file, SEQ_LENGTH, True, True, seed=5, share=share)
        else:
            input_fn = batches.training_input_fn(file, SEQ_LENGTH, 103, 12, 5, 2, share=share)
        return numbers(run_batches(input_fn, 9, 10))

    whole = batches_of(Share())
    shares = [batches_of(Share(rank, 3)) for rank in range(3)]
    assert len(whole) == 10
    for index, batch in enumerate(whole):
        assert [shares[position % 3][index][position // 3] for position in range(9)] == batch


def plain_order(file, batch_size, total) -> list:
    """The batches of the original with the same seed."""
    input_fn = records.file_based_input_fn_builder(file, SEQ_LENGTH, True, True, seed=5)
    return run_batches(input_fn, batch_size, total)


def numbers(found) -> list:
    return [batch["label_ids"].tolist() for batch in found]


def flat(found) -> list:
    return [number for batch in numbers(found) for number in batch]


def assert_same_batches(found, expected) -> None:
    assert len(found) == len(expected) > 0
    for batch, other in zip(found, expected):
        assert set(batch) == set(other)
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[name], name)


class TestWidths:
    @pytest.mark.parametrize(
        "longest, widths",
        [
            (5, range(1, 6)),
            (21, [*range(1, 17), 18, 20, 21]),
            (512, [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 513, 8)]),
        ],
    )
    def test_steps_grow_with_the_length_and_the_maximum_length_is_the_last(self, longest, widths):
        assert batches.bucket_widths(longest) == list(widths)

    def test_a_batch_has_the_smallest_width_that_holds_its_longest_sequence(self, tmp_path):
        widths = {1: 1, 7: 7, 16: 16, 17: 18, 33: 36, 48: 48, 49: 50, 50: 50}
        path = write(tmp_path / "records", widths)
        for input_fn in (
            batches.scoring_input_fn(path, SEQ_LENGTH),
            batches.training_input_fn(path, SEQ_LENGTH, epoch_size=8, total_steps=8),
        ):
            found = run_batches(input_fn, 1)
            assert len(found) == 8
            for batch in found:
                for name in records.TOKEN_FEATURES:
                    assert batch[name].shape == (1, list(widths.values())[batch["label_ids"][0]])

    def test_there_is_little_padding_even_if_lengths_differ_a_lot(self, tmp_path):
        lengths = skewed_lengths(3200)
        found = trained_on(write(tmp_path / "records", lengths), 32, 100, epoch_size=3200)
        real = sum(int(batch["input_mask"].sum()) for batch in found)
        assert real == lengths.sum()
        computed = sum(batch["input_mask"].size for batch in found)
        # The optimum: all sequences padded to their own width.
        best = (-(-lengths // 8) * 8).sum()
        assert computed < 1.15 * best < 0.5 * 3200 * SEQ_LENGTH

    def test_a_sequence_that_is_too_long_is_an_error(self, tmp_path):
        path = write(tmp_path / "records", [3, 20])
        for input_fn in (
            batches.training_input_fn(path, 16, epoch_size=2, total_steps=1),
            records.file_based_input_fn_builder(path, 16, False, False),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="longer than seq_length"):
                run_batches(input_fn, 2)


class TestRecords:
    def test_both_formats_give_the_same_batches(self, tmp_path):
        files = [write(tmp_path / make.__name__, skewed_lengths(40), make) for make in (features_of, padded)]
        expected, found = (trained_on(path, 8, 10, epoch_size=40) for path in files)
        assert len(expected) == 10
        assert_same_batches(found, expected)

    @pytest.mark.parametrize("mask", [{}, {"input_mask": [0]}], ids=["unpadded", "padded"])
    def test_padding_examples_of_both_formats_have_no_width(self, tmp_path, mask):
        zeros = dict(dict.fromkeys(features_of(0, 1), [0]), **mask)
        path = write(tmp_path / "records", [1, 1], lambda number, length: zeros)
        [batch] = run_batches(batches.scoring_input_fn(path, SEQ_LENGTH), 2)
        assert batch["input_ids"].shape[1] <= 1 and not batch["input_ids"].any()
        assert batch["is_real_example"].tolist() == [0, 0]

    def test_labels_may_be_floats(self, tmp_path):
        path = write(tmp_path / "records", [5], lambda *sizes: dict(features_of(*sizes), label_ids=[2.5]))
        [batch] = run_batches(batches.scoring_input_fn(path, SEQ_LENGTH, {"label_ids": tf.float32}), 4)
        assert batch["label_ids"].tolist() == [2.5] and batch["label_ids"].dtype == np.float32

    def test_the_training_batch_size_is_static(self, file):
        with tf.Graph().as_default():
            input_fn = batches.training_input_fn(file, SEQ_LENGTH, 103, 4)
            shapes = tf.data.get_output_shapes(input_fn({"batch_size": 8}))
        assert (shapes["input_ids"].as_list(), shapes["label_ids"].as_list()) == ([8, None], [8])


def test_an_epoch_has_as_few_pools_as_possible_and_a_batch_of_two_epochs_is_a_pool():
    assert batches.pool_ends(64 * 100, 32, 400) == [64, 128, 192, 200, 264, 328, 392, 400]
    assert batches.pool_ends(20, 6, 10) == [3, 4, 6, 7, 10]
    assert batches.pool_ends(3, 8, 3) == [1, 2, 3]


@pytest.fixture(scope="module")
def five_epochs(small_pools, file):
    """Batch size -> the batches of five epochs."""
    return {8: trained_on(file, 8, 5 * 103 // 8), 60: trained_on(file, 60, 5 * 103 // 60)}


@pytest.mark.usefixtures("small_pools")
class TestOrder:
    @pytest.mark.parametrize("batch_size", [8, 60])
    def test_an_epoch_has_every_example_once_except_for_less_than_a_batch(self, file, five_epochs, batch_size):
        found, steps = numbers(five_epochs[batch_size]), 103 // batch_size
        assert len(set(sum(found[:steps], []))) == steps * batch_size
        expected = numbers(plain_order(file, batch_size, len(found)))
        assert found != expected
        ends = sorted(epoch_ends(103, batch_size, len(found)))
        assert len(ends) == 5
        for end in ends:  # after every epoch, the examples are those of the original
            assert sorted(sum(found[:end], [])) == sorted(sum(expected[:end], []))
        seen = collections.Counter(sum(found, []))
        assert set(seen) == set(range(103)) and set(seen.values()) <= {4, 5}

    def test_a_batch_may_be_larger_than_the_file(self, tmp_path):
        path = write(tmp_path / "records", [3, 4, 5])
        found = trained_on(path, 8, 3, epoch_size=3)
        assert set(collections.Counter(flat(found)).values()) == {8}

    def test_part_of_an_epoch_has_the_first_examples_of_the_original(self, file):
        assert sorted(flat(trained_on(file, 8, 5))) == sorted(flat(plain_order(file, 8, 5)))

    def test_the_seed_determines_the_order_and_no_batch_occurs_twice(self, file, five_epochs):
        first = numbers(five_epochs[8])
        assert numbers(trained_on(file, 8, 64)) == first
        assert numbers(trained_on(file, 8, 64, seed=6)) != first
        assert len(set(map(frozenset, first))) == len(first) == 64

    def test_batches_differ_and_are_not_sorted_if_an_epoch_is_one_pool(self, tmp_path, monkeypatch):
        monkeypatch.setattr(batches, "POOL", 64)
        path = write(tmp_path / "records", 2 + np.arange(96) * 32 // 96)
        found = trained_on(path, 8, 36, epoch_size=96)
        # Sorted by length only, there would be 12. The shortest and the longest may meet again by chance, which depends
        # on the random numbers of the TensorFlow version.
        assert len({frozenset(batch) for batch in numbers(found)}) > 30
        for epoch in (found[:12], found[12:24], found[24:]):
            widths = [batch["input_ids"].shape[1] for batch in epoch]
            assert widths not in (sorted(widths), sorted(widths, reverse=True))

    @pytest.mark.parametrize("skip", [2, 13, 22])
    def test_resumed_training_uses_the_remaining_batches(self, file, five_epochs, skip):
        assert_same_batches(trained_on(file, 8, 64, skip=skip), five_epochs[8][skip:])


class TestFileOrder:
    def test_several_files_are_read_in_order(self, tmp_path):
        paths = [write(tmp_path / str(index), [3 + index, 9, 20]) for index in range(2)]
        found = run_batches(batches.scoring_input_fn(paths, SEQ_LENGTH), 4)
        rows = list(scores.predicted_rows(found, 6, "predictions"))
        assert [int(row["input_mask"].sum()) for row in rows] == [3, 9, 20, 4, 9, 20]

    @pytest.mark.parametrize("chunk", [1, 20])
    def test_rows_are_in_the_order_of_the_file(self, file, monkeypatch, chunk):
        monkeypatch.setattr(batches, "CHUNK", chunk)
        found = run_batches(batches.scoring_input_fn(file, SEQ_LENGTH), 8)
        assert sorted(flat(found)) == list(range(103))
        assert [len(batch) for batch in numbers(found)] == [8] * 12 + [7]
        rows = list(scores.predicted_rows(found, 103, "predictions"))
        assert [int(row["label_ids"]) for row in rows] == list(range(103))
        assert all(ROW not in row for row in rows)

    def test_the_longest_sequences_are_first_and_few_batches_mix_widths(self, file, lengths):
        found = run_batches(batches.scoring_input_fn(file, SEQ_LENGTH), 8)
        widths = [batch["input_ids"].shape[1] for batch in found]
        assert widths == sorted(widths, reverse=True)
        mixed = sum(len(set(-(-lengths[batch["label_ids"]] // 8))) > 1 for batch in found)
        assert mixed < len(set(-(-lengths // 8)))

    def test_a_row_is_yielded_as_soon_as_those_before_it_are(self):
        taken = iter((2, 1, 0, 5, 4, 3))
        ordered = scores.in_file_order({ROW: number, "value": number} for number in taken)
        assert next(ordered) == {"value": 0} and next(taken) == 5, "three rows were read"
        assert [row["value"] for row in ordered] == [1, 2, 3, 4]
        with pytest.raises(ValueError, match="Row 0 is missing"):
            list(scores.in_file_order([{ROW: 1}]))
        assert list(scores.in_file_order([{"value": 2}, {"value": 1}])) == [{"value": 2}, {"value": 1}]

    def test_padding_examples_are_excluded(self):
        batch = {ROW: np.array([2, 0, 1]), "is_real_example": np.array([1, 1, 0]), "v": np.array([2, 0, 1])}
        assert [int(row["v"]) for row in scores.predicted_rows([batch], 3, "predictions")] == [0, 2]


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path):
    return base_flags(tiny_bert, cola_dir, str(tmp_path / "out"))


class TestRun:
    def test_predictions_are_those_of_padded_batches_in_the_order_of_the_file(self, given, tmp_path):
        head = ("output_weights", [2, TINY["hidden_size"]]), ("output_bias", [2])
        tuned = write_bert(
            str(tmp_path / "tuned"),
            tiny_config(),
            extra=lambda: [
                tf.get_variable(name, shape, initializer=tf.random_normal_initializer(seed=5)) for name, shape in head
            ],
        )
        given = dict(given, init_checkpoint=tuned, tuning_mode="full", do_eval=True)
        found = {}
        for pads in (False, True):
            settings = ClassifierSettings(**dict(given, pad_to_max_seq_length=pads))
            trainer, _, features = prepare(settings)
            found[pads] = dict(trainer.predict([features["dev"]._replace(batch_size=5)]))["dev"]
        assert len(found[True]) == len(found[False]) == 24
        for one, other in zip(found[True], found[False]):
            assert set(one) == set(other)
            for name, values in one.items():
                np.testing.assert_allclose(other[name], values, atol=1e-5, err_msg=name)

    def test_the_flag_gives_the_order_and_the_shapes_of_the_original(self, given):
        settings = ClassifierSettings(**dict(given, do_train=True, pad_to_max_seq_length=True))
        trainer, _, features = prepare(settings)
        path = features["train"].record_files
        found_fn = features["train"].training_input_fn(settings, trainer.spec.head.label_types, 64, 1, 3)

        def plain_fn(params):
            stream = tf.data.TFRecordDataset(path).shuffle(records.SHUFFLE_BUFFER, seed=1).repeat().skip(3 * 8)
            return stream.batch(8, drop_remainder=True).map(records.parser([16], records.CLASS_LABEL))

        plain = run_batches(plain_fn, 8, 10)
        assert {batch["input_ids"].shape for batch in plain} == {(8, 16)}
        assert_same_batches(run_batches(found_fn, 8, 10), plain)

    def test_a_run_started_before_the_flag_existed_continues_with_it(self, given):
        same = dict(given, do_train=True)
        folder = RunFolder(given["output_dir"])
        padded = ClassifierSettings(**dict(same, pad_to_max_seq_length=True))
        folder.claim(folder.check_same_run(padded, {}), {})
        with open(os.path.join(given["output_dir"], packs.FILE_NAME), "w"):
            pass  # something that can be continued
        path = os.path.join(given["output_dir"], SETTINGS_FILE)
        recorded = read_object(path)
        assert recorded.pop("pad_to_max_seq_length") is True
        write_json(path, recorded)
        assert folder.check_same_run(padded, {}).recorded
        with pytest.raises(Exception, match="--pad_to_max_seq_length was True, is False"):
            folder.check_same_run(ClassifierSettings(**same), {})
