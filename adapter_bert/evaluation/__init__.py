"""Metrics, answer decoding, scores and results."""
