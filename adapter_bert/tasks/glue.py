"""The GLUE tasks in the layout of the benchmark's original download.

Every split is a table with tabs; quotes are text, and blanks at the end of a text (SST-2 has them) stay. Quirks:
  * CoLA has no header in train and dev, but one in test.
  * MRPC may have a byte order mark in front of its header.
  * MNLI has one annotator's label in train and five in dev; the label that counts is the last column.
  * QQP of the first download has questions with a line feed in them, each of which breaks its row into two short
    ones: they are left out, with a warning. The later `QQP-clean.zip` is whole.
  * AX, the diagnostics, has nothing to train on: a model of MNLI is applied to it, so its classes are MNLI's, in the
    same order. GLUE's own file has no labels; those are in `diagnostic-full.tsv`, which is published beside it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Tuple

from adapter_bert.tasks.registry import register
from adapter_bert.tasks.task import Split, Task

NUMBER = ()
BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")


def _columns(text_a: int, text_b: Optional[int] = None, label: Optional[int] = None, header: bool = True) -> Split:
    """A layout without a file yet."""
    return Split("", text_a, text_b, label, header)


def _task(
    name: str,
    test_rows: int,
    labels: Tuple[str, ...],
    metrics: Tuple[str, ...],
    labelled: Split,
    unlabelled: Split,
    part: str = "",
    **others: Any,
) -> Task:
    """A task with `labelled` as layout of train and dev, and `unlabelled` of test.

    Args:
      name: its name.
      test_rows: the published number of rows of test.
      labels: its label words.
      metrics: its metrics, the primary one first.
      labelled: the layout of train.tsv and dev.tsv.
      unlabelled: the layout of test.tsv.
      part: stands behind `dev` and `test` in the names of the files.
      **others: further attributes of the task.

    Returns:
      The task.
    """
    return Task(
        name,
        labels,
        metrics,
        train=dataclasses.replace(labelled, file="train.tsv"),
        dev=dataclasses.replace(labelled, file=f"dev{part}.tsv"),
        test=dataclasses.replace(unlabelled, file=f"test{part}.tsv"),
        test_rows=test_rows,
        submission=others.pop("submission", name),
        **others,
    )


_QUESTIONS = dataclasses.replace(_columns(3, 4, label=5), skip_short_rows=True)

# The primary metric is that of the paper's Table 1.
# fmt: off
#             name   test rows  labels   metrics                    columns of train and dev             columns of test
COLA = _task("CoLA",    1063, BINARY,    ("matthews", "accuracy"),  _columns(3, label=1, header=False),  _columns(1))
SST2 = _task("SST-2",   1821, BINARY,    ("accuracy",),             _columns(0, label=1),                _columns(1))
MRPC = _task("MRPC",    1725, BINARY,    ("f1", "accuracy"),        _columns(3, 4, label=0),             _columns(3, 4))
STSB = _task("STS-B",   1379, NUMBER,    ("spearman", "pearson"),   _columns(7, 8, label=-1),            _columns(7, 8),
             label_range=(0.0, 5.0))
QQP  = _task("QQP",   390965, BINARY,    ("f1", "accuracy"),        _QUESTIONS,                          _columns(1, 2))
MNLI = _task("MNLI",    9796, THREE_WAY, ("accuracy",),             _columns(8, 9, label=-1),            _columns(8, 9),
             part="_matched", submission="MNLI-m", aliases=("MNLI-m", "MNLI-matched"))
MNLI_MISMATCHED = \
       _task("MNLI-mm", 9847, THREE_WAY, ("accuracy",),             _columns(8, 9, label=-1),            _columns(8, 9),
             part="_mismatched", aliases=("MNLI-mismatched",))
QNLI = _task("QNLI",    5463, TWO_WAY,   ("accuracy",),             _columns(1, 2, label=3),             _columns(1, 2))
RTE  = _task("RTE",     3000, TWO_WAY,   ("accuracy",),             _columns(1, 2, label=3),             _columns(1, 2))
WNLI = _task("WNLI",     146, BINARY,    ("accuracy",),             _columns(1, 2, label=3),             _columns(1, 2))
# fmt: on

AX = Task(
    name="AX",
    labels=THREE_WAY,
    metrics=("matthews", "accuracy"),
    dev=Split("diagnostic-full.tsv", text_a=5, text_b=6, label=7),
    test=Split("diagnostic.tsv", text_a=1, text_b=2),
    aliases=("diagnostic",),
    submission="AX",
    test_rows=1104,
)

# What a submission to GLUE's server consists of.
TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, MNLI_MISMATCHED, QNLI, RTE, WNLI, AX)

for _each in TASKS:
    register(_each)
