"""Experiments that consist of many runs: streams of tasks."""
