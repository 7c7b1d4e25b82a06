#!/usr/bin/env bash
# Makes a virtual environment and installs a requirements file into it, once: it is made again only when the
# requirements change. Prints the environment's interpreter; everything else goes to stderr.
#
#   scripts/setup_venv.sh [folder] [requirements file]        default: .venv requirements.txt
#
# PYTHON names the interpreter to use (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
requirements=${2:-requirements.txt}
python=${PYTHON:-python3}

version=$("$python" --version 2>&1) || { echo "setup_venv.sh: error: there is no interpreter '$python'." >&2; exit 1; }
wanted=$(cat pyproject.toml requirements*.txt "$requirements" | cksum)
stamp="$venv/.installed-$(basename "$requirements" .txt)"
if [ "$("$venv/bin/python" --version 2>&1 || true)" != "$version" ]; then
  echo "Making $venv with $version" >&2
  "$python" -m venv --clear "$venv"
fi
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "Installing $requirements into $venv (some hundred MB the first time)" >&2
  # Rather an older wheel than a newer source package, which would want compilers. Old pips (Python 3.7) find fewer.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --prefer-binary -r "$requirements" >&2
  echo "$wanted" > "$stamp"
fi
echo "$venv/bin/python"
