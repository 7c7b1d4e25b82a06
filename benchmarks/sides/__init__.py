"""Sides: programs that take a job as JSON (see `benchmarks.suites`) and print a JSON line with the result."""
