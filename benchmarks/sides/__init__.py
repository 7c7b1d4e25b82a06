"""One program for each side of a comparison. All take the same job as a JSON argument and print a JSON line.

    python -m benchmarks.sides.ours '{"kind": "step", "config": {...}, "batch": 8, "length": 64, ...}'

See `benchmarks.plan` for what a job holds.
"""
