"""The dependencies, which depend on the machine; `pyproject.toml` has everything else.

Without a GPU, `ADAPTER_BERT_TENSORFLOW=tensorflow-cpu pip install -e .` takes less space; `scripts/setup_venv.sh` sets
the variable.
"""

from __future__ import annotations

import os

from setuptools import setup

TENSORFLOW = os.environ.get("ADAPTER_BERT_TENSORFLOW") or "tensorflow"

setup(
    install_requires=[
        # The newest TensorFlow with an Estimator for each Python version. There is no tensorflow-cpu 1.15.5.
        "tensorflow==1.15.5; python_version < '3.8'",
        "protobuf<3.21; python_version < '3.8'",
        f"{TENSORFLOW}==2.13.1; python_version == '3.8'",
        f"{TENSORFLOW}==2.15.1; python_version >= '3.9' and python_version < '3.12'",
        f"{TENSORFLOW}>=2.16; python_version >= '3.12'",
        # Not part of the latest TensorFlow; see adapter_bert/devices/compat.py for the Estimator.
        "tensorflow-estimator==2.15.0; python_version >= '3.12'",
        "tensorboard; python_version >= '3.12'",
        "absl-py",
        "matplotlib",
        "numpy",
        "scikit-learn",
        "scipy",
        "sentencepiece>=0.2",
        # 0.4 is the last version with wheels for Python 3.7.
        "safetensors<0.5; python_version < '3.8'",
        "safetensors; python_version >= '3.8'",
        "tabulate",
        "tomli; python_version < '3.11'",
        "tqdm>=4.57",
    ]
)
