"""GLUE tasks in the layout of the benchmark's original download."""

from __future__ import annotations

import dataclasses

from tasks.registry import register
from tasks.table import Split, Task

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

COLA = register(
    Task(
        name="CoLA",
        train=Split("train.tsv", text_a=3, label=1, header=False),
        dev=Split("dev.tsv", text_a=3, label=1, header=False),
        test=Split("test.tsv", text_a=1),
        labels=BINARY,
        metrics=("matthews", "accuracy"),
    )
)

SST2 = register(
    Task(
        name="SST-2",
        train=Split("train.tsv", text_a=0, label=1),
        dev=Split("dev.tsv", text_a=0, label=1),
        test=Split("test.tsv", text_a=1),
        labels=BINARY,
    )
)

MRPC = register(
    Task(
        name="MRPC",
        train=Split("train.tsv", text_a=3, text_b=4, label=0),
        dev=Split("dev.tsv", text_a=3, text_b=4, label=0),
        test=Split("test.tsv", text_a=3, text_b=4),
        labels=BINARY,
        metrics=("f1", "accuracy"),
    )
)

# The label is the last column: train has one annotator's label in front of it, dev has five.
MNLI = register(
    Task(
        name="MNLI",
        aliases=("MNLI-m", "MNLI-matched"),
        train=Split("train.tsv", text_a=8, text_b=9, label=-1),
        dev=Split("dev_matched.tsv", text_a=8, text_b=9, label=-1),
        test=Split("test_matched.tsv", text_a=8, text_b=9),
        labels=("contradiction", "entailment", "neutral"),
    )
)

MNLI_MISMATCHED = register(
    dataclasses.replace(
        MNLI,
        name="MNLI-mm",
        aliases=("MNLI-mismatched",),
        dev=dataclasses.replace(MNLI.dev, file="dev_mismatched.tsv"),
        test=dataclasses.replace(MNLI.test, file="test_mismatched.tsv"),
    )
)

RTE = register(
    Task(
        name="RTE",
        train=Split("train.tsv", text_a=1, text_b=2, label=3),
        dev=Split("dev.tsv", text_a=1, text_b=2, label=3),
        test=Split("test.tsv", text_a=1, text_b=2),
        labels=ENTAILMENT,
    )
)
