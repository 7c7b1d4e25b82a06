"""Windows cover a paragraph and overlap; other lengths are errors."""

from __future__ import annotations

import pytest

from adapter_bert.pipeline.windows import WindowConfig
from tests.helpers import assert_mentions, message_of


def test_a_window_has_the_room_that_the_question_and_three_special_tokens_leave():
    """The defaults are those of the original."""
    assert WindowConfig() == WindowConfig(max_seq_length=384, doc_stride=128, max_query_length=64)
    assert WindowConfig().context_length(10) == 371
    assert WindowConfig(max_seq_length=68).context_length(64) == 1


@pytest.mark.parametrize("lengths", [(), (69, 1), (40, 32, 4), (8, 1, 3)])
def test_windows_that_overlap_are_valid(lengths):
    WindowConfig(*lengths).check()


@pytest.mark.parametrize(
    "config, facts",
    [
        (WindowConfig(66, 1), ["--max_seq_length=66", "--max_query_length=64", "68"]),
        (WindowConfig(68, 1), ["--doc_stride=1", "leave 1 token"]),
        (WindowConfig(128, 61), ["--doc_stride=61", "--max_seq_length=128", "leave 61 tokens", "below 61"]),
    ],
)
def test_windows_that_do_not_fit_or_overlap_are_errors(config, facts):
    assert_mentions(message_of(config.check), *facts)
