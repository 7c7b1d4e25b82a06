"""Advice about the learning rate: before training, and after training has learned nothing."""

from __future__ import annotations

import math
import statistics
from typing import Optional, Sequence, Tuple

from adapter_bert.model.tuning_modes import LEARNING_RATES

# Points of the loss curve whose mean is compared with its first point. Shorter curves say nothing.
_WINDOW, _MIN_POINTS = 5, 10
# Least rise of the loss that counts, as a fraction and in standard deviations of that mean.
_MIN_RISE, _MIN_DEVIATIONS = 0.02, 3


def describe_unusual_rate(mode: str, rate: float) -> Optional[str]:
    """Return a warning if a learning rate is outside the usual range of a tuning mode, otherwise None."""
    usual = LEARNING_RATES[mode]
    if usual.low <= rate <= usual.high:
        return None
    low, first, high = map(format_rate, usual)
    found = f"--learning_rate={format_rate(rate)} is {'low' if rate < usual.low else 'high'} for --tuning_mode={mode}"
    return f"{found}, which usually learns with {low} to {high}: try {first}."


def after_collapse(mode: str, rate: float, losses: Sequence[Optional[float]]) -> str:
    """Return what to change after training has ended with the same prediction for every example.

    A rate that is too high makes the loss rise before it settles at that of a constant prediction; one that is too low
    only lets it approach that value. Where the curve does not decide, the usual rates of the mode do.

    Args:
      mode: tuning mode.
      rate: peak learning rate.
      losses: mean training losses of equal parts of the steps; None if unknown, e.g. on a TPU.
    """
    first, highest = LEARNING_RATES[mode].first, LEARNING_RATES[mode].high
    start, peak, end = _summarize([loss for loss in losses if loss is not None])
    shape = ""
    if peak is not None:
        shape = f"The training loss rose from {start:.3f} to {peak:.3f}. "
    elif end is not None:
        shape = f"The training loss did not rise ({start:.3f} at the start, {end:.3f} at the end). "
    given = f"--learning_rate={format_rate(rate)}"
    if rate > first or peak is not None:
        lower = format_rate(first if rate > first else rate / 3)
        return f"{shape}{given} may be too high for --tuning_mode={mode}: try {lower}."
    if rate < first:
        return f"{shape}{given} is low for --tuning_mode={mode}: try {format_rate(first)}, or more epochs."
    higher = format_rate(min(3 * rate, highest))
    return f"{shape}{given} is usual for --tuning_mode={mode}: try more epochs, {higher} or another --seed."


def _summarize(curve: Sequence[float]) -> Tuple[Optional[float], Optional[float], Optional[float]]:
    """Return the loss at the start, at its peak if it rose by more than noise, and at the end."""
    if len(curve) < _MIN_POINTS:
        return None, None, None
    means = [statistics.mean(curve[at : at + _WINDOW]) for at in range(len(curve) - _WINDOW + 1)]
    noise = statistics.pstdev(curve[len(curve) // 2 :]) / math.sqrt(_WINDOW)
    start, peak = curve[0], max(means)
    rose = peak - start > max(_MIN_RISE * start, _MIN_DEVIATIONS * noise)
    return start, peak if rose else None, means[-1]


def format_rate(rate: float) -> str:
    """Return a learning rate as users write it, e.g. `3e-4`."""
    return f"{rate:.2g}" if rate == 0 or rate >= 1 else f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")
