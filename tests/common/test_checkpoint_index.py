"""The index of a checkpoint is checked before TensorFlow reads it, because TensorFlow aborts on a crafted one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from typing import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

import modeling
from adapter_bert.common import checkpoint_index
from adapter_bert.weights import checkpoints
from tests.common.index_files import HEADER, block, entry, index_of, join, mutate, varint, write_checkpoint
from tests.helpers import ROOT, SHARED, assert_mentions, base_flags, message_of, run_command

pytestmark = pytest.mark.smoke
E5_SMALL = os.path.join(SHARED, "weights", "e5-small", "bert_model.ckpt")


def save(prefix: str, build) -> str:
    """Save the variables that `build` creates."""
    with tf.Graph().as_default(), tf.Session() as session:
        build()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)
    return prefix


def typed_variables() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int32, tf.int64, tf.bool, tf.complex64):
        tf.get_variable(dtype.name, initializer=tf.cast(tf.ones([2, 3]), dtype))
    tf.get_variable("text", initializer=tf.constant(["a", "longer"]))
    tf.get_variable("scalar", initializer=3)
    tf.get_variable("empty", initializer=tf.zeros([0, 5]))


def partitioned_variables() -> None:
    tf.get_variable("rows", [1000, 8], partitioner=tf.fixed_size_partitioner(7))
    tf.get_variable("columns", [10, 300], partitioner=tf.fixed_size_partitioner(3, axis=1))
    tf.get_variable("long", [100000], partitioner=tf.fixed_size_partitioner(2))
    tf.get_variable("one_part", [4, 4], partitioner=tf.fixed_size_partitioner(1))
    tf.get_variable("plain", [4, 4])


def many_variables() -> None:
    for number in range(100):  # several blocks
        tf.get_variable(f"scope_{number % 7}/layer_{number}/kernel", [number % 5 + 1, 3])


def save_shards(folder) -> str:
    """Save a checkpoint with three data files; each has a third of one variable."""
    parts = [str(folder / f"part_{number}") for number in range(3)]
    with tf.Graph().as_default(), tf.Session() as session:
        for number, part in enumerate(parts):
            names, slices = [f"whole_{number}", "sliced"], ["", f"6 4 {2 * number},2:0,4"]
            tensors = [tf.ones([number + 1]), tf.fill([2, 4], float(number))]
            session.run(tf.raw_ops.SaveV2(prefix=part, tensor_names=names, shape_and_slices=slices, tensors=tensors))
        merged = str(folder / "merged")
        session.run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=merged))
    return merged


def save_objects(folder) -> str:
    """Save an object-based checkpoint, as TensorFlow 2 does."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("x", [3])
        checkpoint = tf.train.Checkpoint(x=variable)
        session.run([variable.initializer, checkpoint.save_counter.initializer])
        return checkpoint.save(str(folder / "objects"), session=session)


SAVERS = {
    "types": lambda folder: save(str(folder / "types"), typed_variables),
    "partitioned": lambda folder: save(str(folder / "partitioned"), partitioned_variables),
    "many": lambda folder: save(str(folder / "many"), many_variables),
    "shards": save_shards,
    "objects": save_objects,
}


@pytest.mark.parametrize("kind", SAVERS)
def test_checkpoints_of_tensorflow_are_read_like_tensorflow_reads_them(tmp_path, kind):
    assert_read_like_tensorflow(SAVERS[kind](tmp_path))


@pytest.mark.skipif(not os.path.exists(E5_SMALL + ".index"), reason="needs ../shared/weights/e5-small")
def test_a_published_base_is_read_like_tensorflow_reads_it():
    assert_read_like_tensorflow(E5_SMALL)


def assert_read_like_tensorflow(prefix: str) -> None:
    reader = tf.train.NewCheckpointReader(prefix)
    types, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    numeric = {name: tuple(shapes[name]) for name in sorted(shapes) if types[name] != tf.string}
    assert list(checkpoints.read_shapes(prefix).items()) == list(numeric.items())
    for name, value in checkpoints.each_tensor(prefix, list(numeric)):
        np.testing.assert_array_equal(value, reader.get_tensor(name))


def header(**fields) -> bytes:
    return BundleHeaderProto(**dict({"num_shards": 1, "version": {"producer": 1}}, **fields)).SerializeToString()


def slices(*extents) -> dict:
    """Fields of an entry: slices of a vector, from (start, length)."""
    return {"slices": [{"extent": [{"start": start, "length": length}]} for start, length in extents]}


# TensorFlow 2.15 aborts on these.
ABORTING = {
    "negative size": (index_of({b"a": entry((-2,))}), "(-2,)"),
    "overflow": (index_of({b"a": entry((2**40, 2**40))}), 2**40),
    "300 dimensions": (index_of({b"a": entry((1,) * 300)}), 300),
    "not an entry": (index_of({b"a": b"\xff\xff\xff"}), "BundleEntryProto"),
    "unknown type": (index_of({b"a": entry(dtype=9999)}), 9999),
    "no type": (index_of({b"a": entry(dtype=0)}), "type 0"),
    "reference type": (index_of({b"a": entry(dtype=101)}), 101),
    "equal slices": (index_of({b"a": entry((4,), **slices((0, 2), (0, 2)))}), "(0, 2)"),
}
DAMAGED = {
    **ABORTING,
    "empty with overflow": (index_of({b"a": entry((0, 2**62, 2**62))}), 2**62),
    "too large": (index_of({b"a": entry((2**38,))}), 2**38),
    "nine dimensions": (index_of({b"a": entry((1,) * 9)}), 9),
    "unknown shape": (
        index_of({b"a": BundleEntryProto(dtype=1, size=4, shape={"unknown_rank": True}).SerializeToString()}),
        "unknown",
    ),
    "resource": (index_of({b"a": entry(dtype=20)}), 20),
    "variant": (index_of({b"a": entry(dtype=21)}), 21),
    "other encoding": (index_of({b"a": b"\x08\x01" + entry()}), "BundleEntryProto"),
    "file 7 of 1": (index_of({b"a": entry(shard_id=7)}), "7 of 1"),
    "file -1 of 1": (index_of({b"a": entry(shard_id=-1)}), "-1 of 1"),
    "file 0 of 0": (index_of({b"a": entry()}, header(num_shards=0)), "0 of 0"),
    "missing file": (index_of({b"a": entry(shard_id=1)}, header(num_shards=2)), "data-00001-of-00002"),
    "larger than the data": (index_of({b"a": entry((17,))}), 64),
    "before the data": (index_of({b"a": entry(offset=-8)}), 64),
    "too few bytes": (index_of({b"a": entry(size=4)}), "4 bytes", 8),
    "too many bytes": (index_of({b"a": entry(size=12)}), "12 bytes", 8),
    "negative bytes": (index_of({b"a": entry(size=-8)}), "-8 bytes"),
    "short text": (index_of({b"a": entry((9,), dtype=7, size=8)}), "8 bytes", 9),
    "binary name": (index_of({b"\xc1": entry()}), "UTF-8"),
    "long name": (index_of({b"a" * 1001: entry()}), "damaged"),
    "missing slice": (index_of({b"a": entry((4,), **slices((0, 2)))}), "(0, 2)"),
    "slice outside": (index_of({b"a": entry((4,), **slices((3, 2)))}), "(3, 2)"),
    "negative slice": (index_of({b"a": entry((4,), **slices((2, -1)))}), "(2, -1)"),
    "slice with another rank": (index_of({b"a": entry((4, 4), **slices((0, 2)))}), "(4, 4)"),
    "whole as slice": (index_of({b"a": entry((4,), slices=[{"extent": [{}]}])}), "None"),
    "too many slices": (index_of({b"a": entry((4,), **slices(*[(0, 2)] * 1001))}), 1001),
    "slice too small": (
        index_of({b"\0a\0\1\1\1\x80\x82": entry((1,)), b"a": entry((2,), **slices((0, 2)))}),
        "(0, 2)",
    ),
    "slices too small": (
        index_of({b"\0a\0\1\1\1\x80\x82": entry((2,)), b"a": entry((4,), **slices((0, 2)))}),
        "2 elements",
    ),
    "no header": (join([block({b"a": entry()})]), "0 of 0"),
    "no magic number": (index_of({})[:-1], "end"),
    "nothing": (b"", "end"),
    "not an index": (b"<html>404 Not found</html>\n" * 9, "end"),
    "huge block": (join([block({b"": HEADER})], index=block({b"\xff": b"\0" + varint(2**40)})), "larger"),
    "block outside": (join([block({b"": HEADER})], index=block({b"\xff": varint(2**20) + varint(50)})), "cut off"),
    "no handle": (join([block({b"": HEADER})], index=block({b"\xff": b""})), "ends early"),
    "block used twice": (
        join([block({b"": HEADER})], index=block({b"a": b"\0" + varint(30), b"b": b"\0" + varint(30)})),
        "damaged",
    ),
    "huge index block": (join([block({b"": HEADER})], footer=b"\0\0\0" + varint(2**40).ljust(37, b"\0")), "larger"),
    "restart point outside": (join([block({b"": HEADER}, restarts=[0, 2**31])]), "damaged"),
    "restart point inside an entry": (join([block({b"": HEADER}, restarts=[0, 1])]), "damaged"),
    "number of restart points": (join([block({b"": HEADER})[:-4] + b"\xff\xff\xff\x3f"]), "damaged"),
    "no restart point": (join([block({b"": HEADER}, restarts=[])]), "damaged"),
    "empty block": (join([block({})]), "damaged"),
    "unsorted": (index_of({b"b": entry(), b"a": entry()}), "sorted"),
    "twice": (join([block({b"": HEADER, b"a": entry()}), block({b"a": entry()})], [b"a", b"b"]), "sorted"),
    "last key": (join([block({b"": HEADER, b"b": entry()})], [b"a"]), "sorted"),
    "too many entries": (index_of({b"%05d" % number: entry() for number in range(20000)}), 20000),
    "too many bytes in total": (index_of({b"%05d" % number: bytes(900) for number in range(1200)}), 2**20),
}


def test_a_correct_crafted_index_is_accepted(tmp_path):
    items = {b"\0a\0\1\1\1\x80\x82": entry((2,)), b"\0a\0\1\1\1\x82\x82": entry((2,), offset=8)}
    index = index_of({**items, b"a": entry((4,), size=0, **slices((0, 2), (2, 2))), b"b": entry((2, 8))})
    assert_read_like_tensorflow(write_checkpoint(tmp_path, index))


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_index_is_rejected_with_the_reason(tmp_path, kind):
    index, *facts = DAMAGED[kind]
    prefix = write_checkpoint(tmp_path, index)
    message = message_of(checkpoints.read_shapes, prefix)
    assert_mentions(message.replace(",", "") if kind == "too many bytes in total" else message, prefix, *facts)
    with tf.Graph().as_default():
        assert message_of(modeling.get_assignment_map_from_checkpoint, [tf.get_variable("a", [2])], prefix) == message
    assert message_of(checkpoints.read_step, prefix) == message
    assert message_of(checkpoints.read_tensors, prefix, ["a"]) == message


def test_a_block_with_a_wrong_checksum_or_compression_is_rejected(tmp_path):
    index = bytearray(index_of({b"a": entry()}))
    index[5] ^= 1
    assert "checksum" in message_of(checkpoints.read_shapes, write_checkpoint(tmp_path, bytes(index)))
    index = index_of({b"a": entry()})
    end = len(block({b"": HEADER, b"a": entry()}))
    compressed = index[:end] + b"\1" + index[end + 1 :]
    assert "compressed" in message_of(checkpoints.read_shapes, write_checkpoint(tmp_path, compressed))


def test_files_that_are_not_regular_are_never_opened(tmp_path):
    prefix = write_checkpoint(tmp_path, index_of({b"a": entry((0,))}))
    for ending in (".data-00000-of-00001", ".index"):
        os.remove(prefix + ending)
        os.mkfifo(prefix + ending)
        assert_mentions(message_of(checkpoints.read_shapes, prefix), prefix + ending, "FIFO")


def test_a_checkpoint_that_tensorflow_would_not_find_is_named(tmp_path):
    prefix = write_checkpoint(tmp_path, index_of({b"a": entry()}))
    os.mkdir(prefix)
    assert_mentions(message_of(checkpoints.read_shapes, prefix), prefix, "folder")
    (tmp_path / "run[1]").mkdir()
    prefix = write_checkpoint(tmp_path / "run[1]", index_of({b"a": entry()}))
    assert_mentions(message_of(checkpoints.read_shapes, prefix), prefix, "[")


@pytest.mark.parametrize("offset", [57, 2**40, 2**62, 2**63 - 1])
def test_only_tensors_behind_the_end_of_the_data_cannot_be_read(tmp_path, offset):
    prefix = write_checkpoint(tmp_path, index_of({b"a": entry(offset=offset), b"b": entry()}))
    np.testing.assert_array_equal(checkpoints.read_tensors(prefix, ["b"])["b"], [0, 0])
    assert_mentions(message_of(checkpoints.read_tensors, prefix, ["a"]), prefix, "damaged")


def test_text_is_never_read(tmp_path):
    prefix = write_checkpoint(tmp_path, index_of({b"a": entry((1,), dtype=7)}))
    assert checkpoints.read_shapes(prefix) == {}
    assert_mentions(message_of(checkpoints.read_tensors, prefix, ["a"]), prefix, "a")


def test_a_step_that_is_no_scalar_is_not_read(tmp_path):
    assert checkpoints.read_step(write_checkpoint(tmp_path, index_of({b"global_step": entry((2,))}))) == 0


READ = """
import sys
from adapter_bert.common import system
system.configure_tensorflow()
import tensorflow.compat.v1 as tf
from adapter_bert.common import errors
from adapter_bert.weights import checkpoints
for prefix in sys.stdin.read().split():
    try:
        shapes = checkpoints.read_shapes(prefix)
    except errors.UserError:
        print("rejected", prefix)
        continue
    reader = tf.train.NewCheckpointReader(prefix)
    types, found = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    assert {name: tuple(found[name]) for name in found if types[name] != tf.string} == shapes
    for name in shapes:
        try:
            reader.get_tensor(name)
        except Exception:  # e.g. a wrong checksum; an IndexError behind the end of the file
            break
    print("accepted", prefix)
"""


def write_damaged_copies(saved: str, generator: random.Random, count: int) -> Iterator[str]:
    """Write copies of a checkpoint with randomly damaged indexes; yield their prefixes."""
    folder, name = os.path.split(saved)
    with open(saved + ".index", "rb") as file:
        items = dict(checkpoint_index._read_table(file.read()))
    for number in range(count):
        copy = os.path.join(folder, f"{name}_{number}")
        os.mkdir(copy)
        for each in checkpoints.files_of(saved):
            os.link(each, os.path.join(copy, os.path.basename(each)))
        os.remove(os.path.join(copy, name + ".index"))
        with open(os.path.join(copy, name + ".index"), "wb") as file:
            file.write(mutate(items, generator))
        yield os.path.join(copy, name)


def test_tensorflow_survives_every_random_index_that_is_accepted(tmp_path):
    generator, prefixes = random.Random(1), []
    for kind in ("types", "partitioned", "shards", "objects"):
        prefixes += write_damaged_copies(SAVERS[kind](tmp_path), generator, 150)
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input="\n".join(prefixes),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(outcomes) == len(prefixes) and min(outcomes.count("rejected"), outcomes.count("accepted")) > 100


def test_a_crafted_base_ends_a_training_with_one_line(tmp_path, tiny_bert, cola_dir):
    base = str(tmp_path / "base")
    shutil.copytree(tiny_bert, base)
    with open(os.path.join(base, "bert_model.ckpt.index"), "wb") as file:
        file.write(ABORTING["negative size"][0])
    flags = dict(base_flags(base, cola_dir, str(tmp_path / "run")), do_train=True)
    done = run_command(flags)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert_mentions(
        done.stdout.strip().splitlines()[-1], "error:", os.path.join(base, "bert_model.ckpt.index"), "(-2,)"
    )
