"""Sweeps and streams: many runs, and what they tell together."""
