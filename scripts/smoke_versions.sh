#!/usr/bin/env bash
# Trains, kills, resumes, evaluates and predicts with a tiny model on TensorFlow 1.15, 2.15 and the newest one, writes and
# loads packs, reads and scores data, checks gradients and batches, each in an environment of its own; prints one line
# for each. Interpreters that are not there are skipped, with a line that says so; exit code 1 if one that is there fails.
set -uo pipefail
cd "$(dirname "$0")/.."

interpreter() {  # the path of a Python X.Y that runs, if there is one
  local candidate
  for candidate in "python$1" $(ls -d "$(pyenv root 2>/dev/null)"/versions/"$1".*/bin/python 2>/dev/null); do
    "$candidate" -c 'import venv' 2>/dev/null && command -v "$candidate" && return
  done
}

tests=(tests/runs/test_{smoke,pack_runs,squad_runs,start}.py tests/weights/test_packs.py tests/tasks/test_custom_{formats,dataset,docs}.py
  tests/evaluation/test_metrics.py tests/pipeline/test_{spans,batches,tfrecords}.py tests/common/test_parallel.py
  tests/test_token_{offsets,ids}.py tests/model/test_{fused_ops,batch_splitting,accumulation}.py
  tests/serving/test_predictor.py)
failures=0
for version in 3.7 3.11 3.13; do
  python=$(interpreter "$version")
  if [ -z "$python" ]; then
    echo "Python $version: skipped, no such interpreter here"
    continue
  fi
  log=$(mktemp)
  started=$SECONDS
  if venv_python=$(PYTHON="$python" scripts/setup_venv.sh ".venv-smoke-$version" requirements-smoke.txt 2>"$log") &&
    "$venv_python" -m pytest -q -p no:cacheprovider "${tests[@]}" >>"$log" 2>&1; then
    outcome="train, kill, resume, eval, predict, packs: ok"
  else
    outcome="FAILED, the end of its log follows"
    failures=$((failures + 1))
  fi
  tensorflow=$(".venv-smoke-$version/bin/python" -c 'import tensorflow as tf; print(tf.__version__)' 2>/dev/null)
  echo "TensorFlow ${tensorflow:-?} on Python $version: $outcome ($((SECONDS - started)) s)"
  [ "${outcome#FAILED}" = "$outcome" ] || tail -n 40 "$log"
  rm -f "$log"
done
[ "$failures" = 0 ]
