#!/usr/bin/env bash
# Set up .venv and run the linter, the type checker and the tests. Arguments go to pytest, e.g. -k tasks, -m long, -m slow.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/setup_venv.sh .venv requirements-dev.txt)
"$python" -m ruff check .
"$python" -m ruff format --check --quiet .
"$python" -m mypy
# Distribute by class and module, so that shared fixtures are created once.
"$python" -m pytest --numprocesses=2 --dist=loadscope "$@"
