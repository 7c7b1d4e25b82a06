"""Records are what `tf.train.Example` makes of the same numbers, to the last byte but for the order of names."""

from __future__ import annotations

import random
import struct

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.pipeline import writing

INTEGERS = [
    0,
    1,
    2,
    127,
    128,
    129,
    255,
    256,
    16383,
    16384,
    30521,
    131071,
    131072,
    2**21,
    2**31,
    2**63 - 1,
    -1,
    -128,
    -(2**63),
]


class Lists:
    """Something that has `as_lists`."""

    def __init__(self, **lists):
        self._lists = lists

    def as_lists(self):
        return self._lists


def by_message(lists) -> bytes:
    """The bytes of the message, made by its library; of several names in any order."""
    features = {}
    for name, values in lists.items():
        if isinstance(values[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize("value", INTEGERS)
def test_an_integer(value):
    for lists in ({"a": [value]}, {"a": [value, 0]}, {"a": [5] * 300 + [value]}):
        assert writing.serialize(Lists(**lists)) == by_message(lists)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 0.1, 1e30, 1e-30])
def test_a_float(value):
    record = writing.serialize(Lists(a=[value]))
    assert record == by_message({"a": [value]})
    [found] = tf.train.Example.FromString(record).features.feature["a"].float_list.value
    assert struct.pack("f", found) == struct.pack("f", value)


def test_one_as_a_float_and_as_an_integer_are_kept_apart():
    for values in ([1], [1.0], [1], [0.0], [0]):
        assert writing.serialize(Lists(a=values)) == by_message({"a": values})


def test_random_features():
    rng = random.Random(3)
    for _ in range(200):
        names = list({"".join(rng.choice("abcé_") for _ in range(rng.randrange(1, 150))) for _ in range(4)})
        lists = {}
        for name in names:
            size = rng.choice([1, 1, 2, 50, 128, 400])
            if rng.random() < 0.2:
                lists[name] = [rng.gauss(0, 10) for _ in range(size)]
            else:
                most = rng.choice([1, 127, 128, 30522, 2**40])
                lists[name] = [rng.randrange(most + 1) for _ in range(size)]
        made, expected = writing.serialize(Lists(**lists)), by_message(lists)
        assert len(made) == len(expected)
        assert tf.train.Example.FromString(made) == tf.train.Example.FromString(expected)
        for name, values in lists.items():
            assert writing.serialize(Lists(**{name: values})) == by_message({name: values})


def test_the_order_of_names_is_that_of_the_features():
    record = writing.serialize(Lists(b=[1], a=[2]))
    assert record.index(b"b") < record.index(b"a")
    assert tf.train.Example.FromString(record) == tf.train.Example.FromString(by_message({"a": [2], "b": [1]}))


def test_equal_features_have_equal_bytes_so_that_checksums_agree():
    assert len({writing.serialize(Lists(b=[1, 200], a=[0.5])) for _ in range(3)}) == 1
