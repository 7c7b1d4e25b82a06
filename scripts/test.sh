#!/usr/bin/env bash
# Sets up .venv and runs the linter and the tests. Arguments go to pytest, e.g. scripts/test.sh -k tasks, -m long or -m slow.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/setup_venv.sh .venv requirements-dev.txt)
"$python" -m ruff check .
# By class and module, so that what their tests share is made once.
"$python" -m pytest --numprocesses=2 --dist=loadscope "$@"
