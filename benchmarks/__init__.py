"""Speed, memory and disk space of this project next to other libraries. docs/benchmarks.md explains the protocol."""
