"""The GLUE tasks in the layout of the benchmark's original download. The primary metric is that of the paper's Table 1.

All splits are tab-separated; quotes are text, and trailing spaces (as in SST-2) are kept. Irregularities:
  * CoLA has a header in test only.
  * MRPC may have a byte order mark before its header.
  * MNLI has the label of one annotator in train and of five in dev; the gold label is the last column.
  * QQP: in the first download, some questions contain a line feed that breaks the row into two short ones. These are
    skipped with a warning. The later `QQP-clean.zip` does not have them.
  * AX, the diagnostics, has no training data. It is predicted with an MNLI model and has the same classes in the same
    order. GLUE's file has no labels; `diagnostic-full.tsv`, which is published separately, does.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

from adapter_bert.tasks.task import Split, Task, register

BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")

_F1 = ("f1", "accuracy")
_MATTHEWS = ("matthews", "accuracy")
_SPEARMAN = ("spearman", "pearson")

_Columns = Dict[str, Any]
_SENTENCE: _Columns = {"text_a": 1}
_PAIR: _Columns = {"text_a": 1, "text_b": 2}
_MRPC_PAIR: _Columns = {"text_a": 3, "text_b": 4}
_STSB_PAIR: _Columns = {"text_a": 7, "text_b": 8}
_MNLI_PAIR: _Columns = {"text_a": 8, "text_b": 9}
_COLA: _Columns = {"text_a": 3, "label": 1, "header": False}
_QQP: _Columns = {"text_a": 3, "text_b": 4, "label": 5, "skip_short_rows": True}
_MNLI: _Columns = {**_MNLI_PAIR, "label": -1}
_MNLI_NAMES: Dict[str, Any] = {"aliases": ("MNLI-m", "MNLI-matched"), "submission": "MNLI-m"}


def _task(name: str, labels: Tuple[str, ...], labelled: _Columns, test: _Columns, genre: str = "", **more: Any) -> Task:
    """Return a task whose train and dev files have the same columns. `genre` is part of MNLI's file names."""
    return Task(
        name,
        labels,
        train=Split("train.tsv", **labelled),
        dev=Split(f"dev{genre}.tsv", **labelled),
        test=Split(f"test{genre}.tsv", **test),
        **{"submission": name, **more},
    )


COLA = _task("CoLA", BINARY, _COLA, _SENTENCE, metrics=_MATTHEWS, test_rows=1063)
SST2 = _task("SST-2", BINARY, {"text_a": 0, "label": 1}, _SENTENCE, test_rows=1821)
MRPC = _task("MRPC", BINARY, {**_MRPC_PAIR, "label": 0}, _MRPC_PAIR, metrics=_F1, test_rows=1725)
STSB = _task(
    "STS-B", (), {**_STSB_PAIR, "label": -1}, _STSB_PAIR, metrics=_SPEARMAN, label_range=(0.0, 5.0), test_rows=1379
)
QQP = _task("QQP", BINARY, _QQP, _PAIR, metrics=_F1, test_rows=390965)
MNLI = _task("MNLI", THREE_WAY, _MNLI, _MNLI_PAIR, "_matched", test_rows=9796, **_MNLI_NAMES)
MNLI_MISMATCHED = _task(
    "MNLI-mm", THREE_WAY, _MNLI, _MNLI_PAIR, "_mismatched", aliases=("MNLI-mismatched",), test_rows=9847
)
QNLI = _task("QNLI", TWO_WAY, {**_PAIR, "label": 3}, _PAIR, test_rows=5463)
RTE = _task("RTE", TWO_WAY, {**_PAIR, "label": 3}, _PAIR, test_rows=3000)
WNLI = _task("WNLI", BINARY, {**_PAIR, "label": 3}, _PAIR, test_rows=146)
AX = Task(
    "AX",
    THREE_WAY,
    metrics=_MATTHEWS,
    dev=Split("diagnostic-full.tsv", text_a=5, text_b=6, label=7),
    test=Split("diagnostic.tsv", **_PAIR),
    aliases=("diagnostic",),
    submission="AX",
    test_rows=1104,
)

# The content of a submission to GLUE's server.
TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, MNLI_MISMATCHED, QNLI, RTE, WNLI, AX)

for _each in TASKS:
    register(_each)
