"""The GLUE tasks in the layout of the benchmark's original download. The primary metric is that of the paper's Table 1.

All splits are tab-separated; quotes are text, and trailing spaces (as in SST-2) are kept. Irregularities:
  * CoLA has a header in test only.
  * MRPC may have a byte order mark before its header.
  * MNLI has the label of one annotator in train and of five in dev; the gold label is the last column.
  * QQP: in the first download, some questions contain a line feed that breaks the row into two short ones. These are
    skipped with a warning. The later `QQP-clean.zip` does not have them.
  * AX, the diagnostics, has no training data. It is predicted with a model of MNLI and has the same classes in the same
    order. GLUE's file has no labels; `diagnostic-full.tsv`, which is published separately, has.
"""

from __future__ import annotations

from adapter_bert.tasks.registry import register
from adapter_bert.tasks.task import Split, Task

BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")

COLA = Task(
    name="CoLA",
    labels=BINARY,
    metrics=("matthews", "accuracy"),
    train=Split("train.tsv", text_a=3, label=1, header=False),
    dev=Split("dev.tsv", text_a=3, label=1, header=False),
    test=Split("test.tsv", text_a=1),
    submission="CoLA",
    test_rows=1063,
)

SST2 = Task(
    name="SST-2",
    labels=BINARY,
    train=Split("train.tsv", text_a=0, label=1),
    dev=Split("dev.tsv", text_a=0, label=1),
    test=Split("test.tsv", text_a=1),
    submission="SST-2",
    test_rows=1821,
)

MRPC = Task(
    name="MRPC",
    labels=BINARY,
    metrics=("f1", "accuracy"),
    train=Split("train.tsv", text_a=3, text_b=4, label=0),
    dev=Split("dev.tsv", text_a=3, text_b=4, label=0),
    test=Split("test.tsv", text_a=3, text_b=4),
    submission="MRPC",
    test_rows=1725,
)

STSB = Task(
    name="STS-B",
    labels=(),
    label_range=(0.0, 5.0),
    metrics=("spearman", "pearson"),
    train=Split("train.tsv", text_a=7, text_b=8, label=-1),
    dev=Split("dev.tsv", text_a=7, text_b=8, label=-1),
    test=Split("test.tsv", text_a=7, text_b=8),
    submission="STS-B",
    test_rows=1379,
)

QQP = Task(
    name="QQP",
    labels=BINARY,
    metrics=("f1", "accuracy"),
    train=Split("train.tsv", text_a=3, text_b=4, label=5, skip_short_rows=True),
    dev=Split("dev.tsv", text_a=3, text_b=4, label=5, skip_short_rows=True),
    test=Split("test.tsv", text_a=1, text_b=2),
    submission="QQP",
    test_rows=390965,
)

MNLI = Task(
    name="MNLI",
    aliases=("MNLI-m", "MNLI-matched"),
    labels=THREE_WAY,
    train=Split("train.tsv", text_a=8, text_b=9, label=-1),
    dev=Split("dev_matched.tsv", text_a=8, text_b=9, label=-1),
    test=Split("test_matched.tsv", text_a=8, text_b=9),
    submission="MNLI-m",
    test_rows=9796,
)

MNLI_MISMATCHED = Task(
    name="MNLI-mm",
    aliases=("MNLI-mismatched",),
    labels=THREE_WAY,
    train=Split("train.tsv", text_a=8, text_b=9, label=-1),
    dev=Split("dev_mismatched.tsv", text_a=8, text_b=9, label=-1),
    test=Split("test_mismatched.tsv", text_a=8, text_b=9),
    submission="MNLI-mm",
    test_rows=9847,
)

QNLI = Task(
    name="QNLI",
    labels=TWO_WAY,
    train=Split("train.tsv", text_a=1, text_b=2, label=3),
    dev=Split("dev.tsv", text_a=1, text_b=2, label=3),
    test=Split("test.tsv", text_a=1, text_b=2),
    submission="QNLI",
    test_rows=5463,
)

RTE = Task(
    name="RTE",
    labels=TWO_WAY,
    train=Split("train.tsv", text_a=1, text_b=2, label=3),
    dev=Split("dev.tsv", text_a=1, text_b=2, label=3),
    test=Split("test.tsv", text_a=1, text_b=2),
    submission="RTE",
    test_rows=3000,
)

WNLI = Task(
    name="WNLI",
    labels=BINARY,
    train=Split("train.tsv", text_a=1, text_b=2, label=3),
    dev=Split("dev.tsv", text_a=1, text_b=2, label=3),
    test=Split("test.tsv", text_a=1, text_b=2),
    submission="WNLI",
    test_rows=146,
)

AX = Task(
    name="AX",
    aliases=("diagnostic",),
    labels=THREE_WAY,
    metrics=("matthews", "accuracy"),
    dev=Split("diagnostic-full.tsv", text_a=5, text_b=6, label=7),
    test=Split("diagnostic.tsv", text_a=1, text_b=2),
    submission="AX",
    test_rows=1104,
)

# The content of a submission to GLUE's server.
TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, MNLI_MISMATCHED, QNLI, RTE, WNLI, AX)

for _task in TASKS:
    register(_task)
