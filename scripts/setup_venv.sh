#!/usr/bin/env bash
# Create a virtual environment and install a requirements file into it, unless it is up to date. Print the path of the
# environment's interpreter; everything else goes to stderr.
#
#   scripts/setup_venv.sh [folder] [requirements file]        default: .venv requirements.txt
#
# PYTHON selects the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
requirements=${2:-requirements.txt}
python=${PYTHON:-python3}

version=$("$python" --version 2>&1) || { echo "setup_venv.sh: error: interpreter '$python' not found." >&2; exit 1; }
wanted=$(cat pyproject.toml "$requirements" | cksum)
stamp="$venv/.installed-$(basename "$requirements" .txt)"
if [ "$("$venv/bin/python" --version 2>&1 || true)" != "$version" ]; then
  echo "Creating $venv with $version" >&2
  "$python" -m venv --clear "$venv"
fi
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  echo "Installing $requirements into $venv (several hundred MB the first time)" >&2
  # Prefer an older wheel to a newer source package, which would need a compiler. Old versions of pip find fewer wheels.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --prefer-binary -r "$requirements" >&2
  echo "$wanted" > "$stamp"
fi
echo "$venv/bin/python"
