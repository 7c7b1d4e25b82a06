"""Advice about the learning rate: usual rates of each mode, and which way to go after a collapse."""

from __future__ import annotations

import numpy as np
import pytest

from adapter_bert.model.tuning_modes import LEARNING_RATES, MODES
from adapter_bert.training import advice
from tests.helpers import assert_mentions

# Mean losses of MiniLM on examples/acceptability, see docs/learning_rates.md: a head at the start has 0.693, a constant
# prediction of the majority class 0.673.
NOISE = np.random.RandomState(1).normal(0, 0.009, 50)
FLAT = [0.692, *(np.append(np.linspace(0.69, 0.672, 9), [0.672] * 40) + NOISE[1:])]
RISEN = [0.688, 0.706, 0.737, 0.683, 0.710, 0.702, 0.692, 0.713, *(0.674 + NOISE[8:])]


def test_every_mode_has_usual_rates():
    assert set(LEARNING_RATES) == set(MODES)
    for rates in LEARNING_RATES.values():
        assert rates.low < rates.first < rates.high


@pytest.mark.parametrize(
    "mode, rate, facts",
    [
        ("adapter", 5e-5, ["--learning_rate=5e-5", "low", "--tuning_mode=adapter", "try 3e-4"]),
        ("adapter", 3e-2, ["--learning_rate=3e-2", "high", "try 3e-4"]),
        ("layer_norm", 3e-4, ["low", "try 3e-3"]),
        ("full", 3e-3, ["high", "try 3e-5"]),
    ],
)
def test_an_unusual_rate_is_described_with_the_one_to_use(mode, rate, facts):
    assert_mentions(advice.describe_unusual_rate(mode, rate), *facts)


@pytest.mark.parametrize(
    "mode, rate",
    [("adapter", 3e-4), ("adapter", 1e-4), ("adapter", 3e-3), ("full", 2e-5), ("full", 5e-5), ("layer_norm", 3e-3)],
)
def test_a_usual_rate_needs_no_warning(mode, rate):
    assert advice.describe_unusual_rate(mode, rate) is None


@pytest.mark.parametrize(
    "mode, rate, losses, facts",
    [
        ("layer_norm", 3e-4, FLAT, ["did not rise (0.692", "is low", "try 3e-3"]),
        ("adapter", 2e-5, FLAT, ["did not rise", "is low", "try 3e-4"]),
        ("adapter", 3e-4, FLAT, ["did not rise", "more epochs", "9e-4"]),
        ("adapter", 3e-4, RISEN, ["rose from 0.688 to 0.7", "too high", "try 1e-4"]),
        ("adapter", 3e-2, RISEN, ["rose", "too high", "try 3e-4"]),
        # Some bases collapse at 1e-3 without a visible rise.
        ("adapter", 1e-3, FLAT, ["did not rise", "too high", "try 3e-4"]),
        # The curve decides, even against the usual range.
        ("full", 1e-5, RISEN, ["rose", "too high", "try 3.3e-6"]),
        ("adapter", 2e-5, [], ["is low", "try 3e-4"]),
        ("adapter", 2e-5, [None, 0.7, None, 0.9], ["is low", "try 3e-4"]),
    ],
)
def test_advice_after_a_collapse_follows_the_loss_the_rate_and_the_mode(mode, rate, losses, facts):
    assert_mentions(advice.after_collapse(mode, rate, losses), f"--tuning_mode={mode}", *facts)


def test_noise_is_not_a_rise():
    random = np.random.RandomState(0)
    for _ in range(100):
        noisy = [0.692] + list(0.673 + random.normal(0, 0.05, 49))
        assert_mentions(advice.after_collapse("adapter", 1e-4, noisy), "did not rise")


@pytest.mark.parametrize("rate, text", [(3e-4, "3e-4"), (2.5e-5, "2.5e-5"), (0.1, "1e-1"), (0.0, "0"), (1.0, "1")])
def test_rates_are_written_as_users_write_them(rate, text):
    assert advice.format_rate(rate) == text
