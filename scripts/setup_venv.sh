#!/usr/bin/env bash
# Create a virtual environment and install a requirements file into it, unless it is up to date. Print the path of the
# environment's interpreter; everything else goes to stderr.
#
#   scripts/setup_venv.sh [folder] [requirements file]        default: .venv requirements.txt
#
# PYTHON selects the interpreter (default: python3), ADAPTER_BERT_TENSORFLOW the package: tensorflow, or tensorflow-cpu
# (default: the one that is installed; otherwise tensorflow-cpu if there is no GPU).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
requirements=${2:-requirements.txt}
python=${PYTHON:-python3}

installed() { compgen -G "$venv/lib/python*/site-packages/$1-[0-9]*.dist-info" >/dev/null; }
has_gpu() { [ -e /proc/driver/nvidia/version ] || nvidia-smi >/dev/null 2>&1; }
has_cpu_package() {  # tensorflow-cpu exists for Linux on x86-64, since Python 3.8
  [ "$(uname -sm)" = "Linux x86_64" ] && "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 8))'
}
choose_tensorflow() {  # the two packages contain the same files, so one must not replace the other
  if installed tensorflow; then
    echo tensorflow
  elif installed tensorflow_cpu || { ! has_gpu && has_cpu_package; }; then
    echo tensorflow-cpu
  else
    echo tensorflow
  fi
}

version=$("$python" --version 2>&1) || { echo "setup_venv.sh: error: interpreter '$python' not found." >&2; exit 1; }
wanted=$(cat pyproject.toml setup.py "$requirements" | cksum)
stamp="$venv/.installed-$(basename "$requirements" .txt)"
if [ "$("$venv/bin/python" --version 2>&1 || true)" != "$version" ]; then
  echo "Creating $venv with $version" >&2
  "$python" -m venv --clear "$venv"
fi
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  export ADAPTER_BERT_TENSORFLOW=${ADAPTER_BERT_TENSORFLOW:-$(choose_tensorflow)}
  size="2.0 to 2.5 GB on disk"
  [ "$ADAPTER_BERT_TENSORFLOW" = tensorflow ] || size="1.5 to 1.9 GB on disk, no GPU"
  echo "Installing $requirements into $venv with $ADAPTER_BERT_TENSORFLOW ($size); the first time takes minutes." >&2
  # Prefer an older wheel to a newer source package, which would need a compiler. Old versions of pip find fewer wheels.
  pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
  "${pip[@]}" --quiet --upgrade pip >&2
  # Without --quiet: a line for each package, and on a terminal a bar for each download.
  "${pip[@]}" --prefer-binary -r "$requirements" >&2
  if [ "$requirements" = requirements-dev.txt ]; then
    # Only its messages, for a test of the server: what it depends on would replace TensorFlow.
    "${pip[@]}" --quiet --no-deps tensorflow-serving-api==2.15.1 >&2 || echo "No tensorflow-serving-api: a test is skipped." >&2
  fi
  echo "$wanted" > "$stamp"
fi
echo "$venv/bin/python"
