"""Settings of BERT, adapters, data, training and device."""

from __future__ import annotations

import pytest

from adapter_bert.settings.groups import parse_layers


@pytest.mark.parametrize(
    "text, layers", [("all", None), ("0-2", (0, 1, 2)), ("9,10, 11", (9, 10, 11)), ("0-1,5", (0, 1, 5))]
)
def test_layers_are_numbers_and_ranges(text, layers):
    assert parse_layers(text) == layers
