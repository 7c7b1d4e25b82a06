"""How fast, how large: this project beside others. `benchmarks/run.sh` is the command, docs/benchmarks.md its text."""
