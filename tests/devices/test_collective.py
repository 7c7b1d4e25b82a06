"""The mean over workers, as TensorFlow's optimizer sees it: norms as in one process."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.devices import collective, compat
from adapter_bert.devices.cluster import Cluster

THREE = Cluster(("a:1", "b:1", "c:1"), 1)


@pytest.fixture
def equal_workers(monkeypatch):
    """As if all workers had the same values."""
    monkeypatch.setattr(compat, "all_reduce", lambda tensor, count, timeout: tensor * count)


def test_means_keep_their_shapes_and_missing_gradients(equal_workers):
    with tf.Graph().as_default(), tf.Session() as session:
        grads = [tf.constant([[1.0, 2.0], [3.0, 4.0]]), None, tf.constant(5.0)]
        found = collective.mean_over_workers(THREE, tf.constant(0.5), grads, tf.constant(1.0), 1.0)
        assert found.grads[1] is None and found.grads[0].shape.as_list() == [2, 2]
        loss, first, last, correction, stops = session.run(
            [found.loss, found.grads[0], found.grads[2], found.square_correction, found.stops]
        )
    assert (loss, last, correction, stops) == (0.5, 5.0, 0.0, 3.0)
    np.testing.assert_array_equal(first, [[1.0, 2.0], [3.0, 4.0]])


def test_sparse_gradients_have_the_norm_of_one_process(equal_workers):
    rows, indices = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32), [0, 2, 0]
    with tf.Graph().as_default(), tf.Session() as session:
        dense = tf.constant([1.0, 1.0])
        share = tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant([4, 2]))
        found = collective.mean_over_workers(THREE, tf.constant(0.0), [share, dense], tf.constant(0.0), 1.0)
        # In one process, the batch has the rows of all shares, each divided by their number.
        whole = tf.IndexedSlices(tf.constant(np.tile(rows / 3, (3, 1))), tf.constant(indices * 3), tf.constant([4, 2]))
        of_sum, correction, expected, table, whole_table = session.run(
            [
                tf.global_norm(found.grads),
                found.square_correction,
                tf.global_norm([whole, dense]),
                found.grads[0],
                tf.convert_to_tensor(whole),
            ]
        )
    np.testing.assert_allclose(table, whole_table, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(of_sum**2 + correction), expected, rtol=1e-6)
    assert abs(of_sum - expected) > 0.1
