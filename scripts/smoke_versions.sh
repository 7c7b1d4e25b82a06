#!/usr/bin/env bash
# Run the tests marked `smoke` on TensorFlow 1.15, 2.15 and the latest release, each in its own environment, and print one
# line for each: train, kill, resume, evaluate, predict; packs, data, metrics, gradients and batches. Missing interpreters
# are skipped with a message. Exit with code 1 if a version fails.
#
#   scripts/smoke_versions.sh [versions of Python]        default: 3.7 3.11 3.13
set -uo pipefail
cd "$(dirname "$0")/.."

interpreter() {  # print the path of a working Python X.Y, if there is one
  local candidate
  for candidate in "python$1" $(ls -d "$(pyenv root 2>/dev/null)"/versions/"$1".*/bin/python 2>/dev/null); do
    "$candidate" -c 'import venv' 2>/dev/null && command -v "$candidate" && return
  done
}

failures=0
[ $# -gt 0 ] || set -- 3.7 3.11 3.13
for version in "$@"; do
  python=$(interpreter "$version")
  if [ -z "$python" ]; then
    echo "Python $version: skipped, no such interpreter"
    continue
  fi
  log=$(mktemp)
  started=$SECONDS
  if venv_python=$(PYTHON="$python" scripts/setup_venv.sh ".venv-smoke-$version" requirements-smoke.txt 2>"$log") &&
    "$venv_python" -m pytest -q -p no:cacheprovider -m "smoke and not long and not slow" >>"$log" 2>&1; then
    outcome="ok"
  else
    outcome="FAILED, end of its log:"
    failures=$((failures + 1))
  fi
  tensorflow=$(".venv-smoke-$version/bin/python" -c 'import tensorflow as tf; print(tf.__version__)' 2>/dev/null)
  echo "TensorFlow ${tensorflow:-?} on Python $version: $outcome ($((SECONDS - started)) s)"
  [ "${outcome#FAILED}" = "$outcome" ] || tail -n 40 "$log"
  rm -f "$log"
done
[ "$failures" = 0 ]
