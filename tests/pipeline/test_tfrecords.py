"""Records are what `tf.train.Example` makes of the same numbers, byte for byte except for the order of names."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.pipeline.tfrecords import serialize

pytestmark = pytest.mark.smoke

INTEGERS = [0, 1, 127, 128, 255, 256, 16383, 16384, 30521, 131071, 131072, 2**21, 2**31, 2**63 - 1, -1, -128, -(2**63)]


def by_message(lists) -> bytes:
    """The record as the library of the message encodes it; the order of several names is undefined."""
    features = {}
    for name, values in lists.items():
        if isinstance(values[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize("value", [*INTEGERS, 0.0, -0.0, 1.0, -2.5, 0.1, 1e30, 1e-30])
def test_a_number_is_encoded_as_tensorflow_does(value):
    zero = type(value)(0)
    for lists in ({"a": [value]}, {"a": [value, zero]}, {"a": [zero] * 300 + [value]}):
        assert serialize(lists) == by_message(lists)


def test_equal_integers_and_floats_are_distinguished():
    for values in ([1], [1.0], [1], [0.0], [0]):
        assert serialize({"a": values}) == by_message({"a": values})


INTEGER_LISTS = st.sampled_from([1, 127, 128, 30522, 2**40]).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=1, max_size=400)
)
FLOAT_LISTS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50)
NAMES = st.text("abcé_", min_size=1, max_size=150)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.dictionaries(NAMES, INTEGER_LISTS | FLOAT_LISTS, min_size=1, max_size=4))
def test_random_features_are_encoded_as_tensorflow_does(lists):
    record, expected = serialize(lists), by_message(lists)
    assert len(record) == len(expected)
    assert tf.train.Example.FromString(record) == tf.train.Example.FromString(expected)
    for name, values in lists.items():
        assert serialize({name: values}) == by_message({name: values})


def test_the_order_of_names_is_that_of_the_features():
    record = serialize({"b": [1], "a": [2]})
    assert record.index(b"b") < record.index(b"a")
    assert tf.train.Example.FromString(record) == tf.train.Example.FromString(by_message({"a": [2], "b": [1]}))
