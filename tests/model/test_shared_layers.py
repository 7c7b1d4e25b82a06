"""Layers that are calls of one function compute the same as layers built one by one."""

from __future__ import annotations

import pytest

from adapter_bert.model.heads import ClassificationHead, SpanHead
from tests.tiny_networks import assert_same, loss_and_gradients, random_batch

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize(
    "head, mode, parts, in_two",
    [
        (ClassificationHead(2), "adapter", 1, True),
        (SpanHead(), "full", 1, True),
        pytest.param(ClassificationHead(2), "full", 2, False, marks=pytest.mark.slow),
    ],
    ids=["halves", "span", "parts"],
)
def test_outputs_gradients_and_dropout_are_those_of_separate_layers(head, mode, parts, in_two):
    options = {"dropout": 0.2, "layers": 3, "static": False, "parts": parts, "in_two": in_two}
    separate = loss_and_gradients(random_batch(6), head, mode, **options)
    shared = loss_and_gradients(random_batch(6), head, mode, share_layers=True, **options)
    assert "bert/encoder/layer_2/output/adapters/weights1" in shared and set(shared) == set(separate)
    assert_same(shared, separate)
