"""Experiments on many runs or trained networks: streams of tasks, sweeps and ablations."""
