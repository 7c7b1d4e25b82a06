"""GLUE and XNLI tasks read their files as published."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import pytest

from adapter_bert import tasks
from adapter_bert.evaluation import metrics as scoring
from adapter_bert.tasks import glue
from adapter_bert.tasks.processors import ColaProcessor, MnliProcessor, MrpcProcessor, XnliProcessor
from adapter_bert.tasks.task import read_rows
from tests.helpers import SHARED, as_tuples, assert_mentions, message_of, write_file

GLUE_DATA = os.path.join(SHARED, "data", "glue_data")
Layout = Tuple[str, List[Tuple[str, Optional[str], Optional[str]]]]

# Another order of the classes would break every model trained before.
BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")

# The columns of texts and labels in the published headers.
TEXTS = {"sentence", "sentence1", "sentence2", "question", "question1", "question2"}
TEXTS |= {"#1 String", "#2 String", "Premise", "Hypothesis"}
LABELS = {"label", "Label", "gold_label", "Quality", "score", "is_duplicate"}


def table(*rows: str) -> str:
    """Return tab-separated rows; cells are separated by `|` here."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def layout(header: str, *labels: str, has_header: bool = True) -> Layout:
    """Return the content of a file with one row per label, or one without a label; and its (text_a, text_b, label)."""
    rows, expected = [header] if has_header else [], []
    names = header.lstrip("\ufeff").split("|")
    for number, label in enumerate(labels or [None]):
        # Quotes are text, and spaces at the end are kept.
        cells = {name: label if name in LABELS else f'"{name} {number} ' for name in names}
        text_a, *text_b = [cell for name, cell in cells.items() if name in TEXTS]
        rows.append("|".join(cells.values()))
        expected.append((text_a, text_b[0] if text_b else None, label))
    return table(*rows), expected


def splits(labelled: str, test: str, labels: Tuple[str, ...], has_header: bool = True) -> Dict[str, Layout]:
    train = layout(labelled, *labels, has_header=has_header)
    return {"train.tsv": train, "dev.tsv": train, "test.tsv": layout(test)}


def mnli(genre: str) -> Dict[str, Layout]:
    header = "index|promptID|pairID|genre|s1_binary_parse|s2_binary_parse|s1_parse|s2_parse|sentence1|sentence2"
    return {
        "train.tsv": layout(header + "|label1|gold_label", *THREE_WAY),
        f"dev_{genre}.tsv": layout(header + "|label1|label2|label3|label4|label5|gold_label", *THREE_WAY),
        f"test_{genre}.tsv": layout(header),
    }


MRPC = "#1 ID|#2 ID|#1 String|#2 String"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
QUESTION = "index|question|sentence"
PAIR = "index|sentence1|sentence2"
DIAGNOSTICS = "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain|Premise|Hypothesis|Label"

# Task -> file -> its content in the published layout, and the texts and labels in it.
LAYOUTS: Dict[str, Dict[str, Layout]] = {
    "CoLA": splits("source|label|mark|sentence", "index|sentence", BINARY, has_header=False),
    "SST-2": splits("sentence|label", "index|sentence", BINARY),
    "MRPC": splits(f"\ufeffQuality|{MRPC}", f"\ufeffindex|{MRPC}", BINARY),
    "STS-B": splits(f"{STSB}|score", STSB, ("5.000", "3.8", "0.000")),
    "QQP": splits("id|qid1|qid2|question1|question2|is_duplicate", "id|question1|question2", BINARY),
    "MNLI": mnli("matched"),
    "MNLI-mm": mnli("mismatched"),
    "QNLI": splits(f"{QUESTION}|label", QUESTION, TWO_WAY),
    "RTE": splits(f"{PAIR}|label", PAIR, TWO_WAY),
    "WNLI": splits(f"{PAIR}|label", PAIR, BINARY),
    "AX": {"diagnostic-full.tsv": layout(DIAGNOSTICS, *THREE_WAY), "diagnostic.tsv": layout(PAIR)},
}


def read(task_name: str, folder, split: str = "train") -> list:
    return as_tuples(tasks.read_examples(tasks.get(task_name), str(folder), split))


def test_the_layouts_above_cover_every_task_and_file():
    files = {task.name: [split.file for split in (task.train, task.dev, task.test) if split] for task in glue.TASKS}
    assert files == {name: list(layouts) for name, layouts in LAYOUTS.items()}


@pytest.mark.parametrize("task_name", LAYOUTS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_task_reads_the_texts_and_labels_of_its_published_files(tmp_path, task_name, split):
    task = tasks.get(task_name)
    if (task_name, split) == ("AX", "train"):
        assert_mentions(message_of(read, task_name, tmp_path), "AX", "train")
        return
    file, header = task.split(split).file, task.split(split).header
    content, rows = LAYOUTS[task_name][file]
    write_file(tmp_path, file, content)
    expected: List[Tuple[str, str, Optional[str], Any]] = []
    for number, (text_a, text_b, label) in enumerate(rows, start=int(header)):
        # Labels of test splits are unknown: they get the first label, or 0.0, as in the original scripts.
        value: Any = float(label or 0) if task.is_regression else label or task.labels[0]
        expected.append((f"{split}-{number}", text_a, text_b, value))
    assert read(task_name, tmp_path, split) == expected != []


@pytest.mark.parametrize(
    "processor, task_name", [(ColaProcessor, "CoLA"), (MrpcProcessor, "MRPC"), (MnliProcessor, "MNLI")]
)
def test_a_processor_returns_the_examples_of_its_task(tmp_path, processor, task_name):
    for file, (content, _) in LAYOUTS[task_name].items():
        write_file(tmp_path, file, content)
    for split in ("train", "dev", "test"):
        examples = as_tuples(getattr(processor(), f"get_{split}_examples")(str(tmp_path)))
        expected = read(task_name, tmp_path, split)
        if task_name == "MNLI":  # its rows have an id
            prefix = "dev_matched" if split == "dev" else split
            expected = [(f'{prefix}-"index {number} ', *rest) for number, (_, *rest) in enumerate(expected)]
        assert examples == expected != []
    assert processor().get_labels() == list(tasks.get(task_name).labels)


def test_a_notebook_can_create_examples_from_rows_as_in_the_original():
    rows = [["tst", "1", "", "a b"], ["tst", "0", "*", "c"]]
    assert as_tuples(ColaProcessor()._create_examples(rows, "train")) == [
        ("train-0", "a b", None, "1"),
        ("train-1", "c", None, "0"),
    ]
    header = ["index", "sentence"]
    assert as_tuples(ColaProcessor()._create_examples([header, ["0", "a"]], "test")) == [("test-1", "a", None, "0")]
    pair = ["1", "7", "8", "one", "two"]
    assert as_tuples(MrpcProcessor()._create_examples([pair, pair], "mine")) == [("mine-1", "one", "two", "1")]
    assert MrpcProcessor()._create_examples([pair], "dev") == []


def test_a_subclass_may_override_a_step_of_a_processor(tmp_path):
    class Mine(ColaProcessor):
        def _create_examples(self, lines, set_type):
            return [(set_type, len(lines)), *super()._create_examples(lines, set_type)]

    write_file(tmp_path, "dev.tsv", table("tst|1||a", "tst|0||b"))
    first, *rest = Mine().get_dev_examples(str(tmp_path))
    assert (first, len(rest)) == (("dev", 2), 2)


@pytest.mark.parametrize(
    "task_name, labels, metrics, submission, test_rows",
    [
        ("CoLA", BINARY, ("matthews", "accuracy"), "CoLA", 1063),
        ("SST-2", BINARY, ("accuracy",), "SST-2", 1821),
        ("MRPC", BINARY, ("f1", "accuracy"), "MRPC", 1725),
        ("STS-B", (), ("spearman", "pearson"), "STS-B", 1379),
        ("QQP", BINARY, ("f1", "accuracy"), "QQP", 390965),
        ("MNLI", THREE_WAY, ("accuracy",), "MNLI-m", 9796),
        ("MNLI-mm", THREE_WAY, ("accuracy",), "MNLI-mm", 9847),
        ("QNLI", TWO_WAY, ("accuracy",), "QNLI", 5463),
        ("RTE", TWO_WAY, ("accuracy",), "RTE", 3000),
        ("WNLI", BINARY, ("accuracy",), "WNLI", 146),
        ("AX", THREE_WAY, ("matthews", "accuracy"), "AX", 1104),
    ],
)
def test_classes_metrics_and_submissions_are_the_published_ones(task_name, labels, metrics, submission, test_rows):
    task = tasks.get(task_name)
    assert (task.labels, task.metrics, task.primary_metric) == (labels, metrics, metrics[0])
    assert set(metrics) <= set(scoring.METRICS)
    assert (task.submission, task.test_rows) == (submission, test_rows)
    assert task.is_regression == (task_name == "STS-B")
    assert task.label_range == ((0.0, 5.0) if task.is_regression else None)


def test_xnli_reads_the_rows_of_its_language_and_the_spelling_of_its_training_files(tmp_path):
    for language, text in (("zh", "从概念上看"), ("de", "Begrifflich")):
        rows = ["premise|hypo|label", f"{text}|b|contradictory", f"{text}|c|neutral"]
        write_file(tmp_path, f"multinli/multinli.train.{language}.tsv", table(*rows))
        texts = [("train-1", text, "b", "contradiction"), ("train-2", text, "c", "neutral")]
        assert read(f"XNLI-{language}", tmp_path) == texts
    header = "language|gold_label|s1_binary_parse|s2_binary_parse|s1_parse|s2_parse|sentence1|sentence2|promptID"
    rows = [
        "de|neutral|||||er sagte|Er rief|1",
        "zh|contradiction|||||他说|他打|1",
        "de|entailment|||||er sagte|Er sprach|1",
    ]
    processor = XnliProcessor()
    assert processor.get_labels() == list(THREE_WAY)
    for split in ("dev", "test"):
        write_file(tmp_path, f"xnli.{split}.tsv", table(header, *rows))
        chinese = [(f"{split}-2", "他说", "他打", "contradiction")]
        german = [
            (f"{split}-1", "er sagte", "Er rief", "neutral"),
            (f"{split}-3", "er sagte", "Er sprach", "entailment"),
        ]
        for language, expected in (("zh", chinese), ("de", german)):
            assert read(f"XNLI-{language}", tmp_path, split) == expected
        assert_mentions(message_of(read, "XNLI-sw", tmp_path, split), f"xnli.{split}.tsv", "no examples", "XNLI-sw")
    assert as_tuples(processor.get_test_examples(str(tmp_path))) == chinese
    processor.language = "de"
    assert as_tuples(processor.get_test_examples(str(tmp_path))) == german
    processor.language = "klingon"
    assert_mentions(message_of(processor.get_dev_examples, str(tmp_path)), "'XNLI-klingon'")


# Task -> rows of train, dev and test.
REAL = {
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67349, 872, 1821),
    "MRPC": (3668, 408, 1725),
    "STS-B": (5749, 1500, 1379),
    "WNLI": (635, 71, 146),
}


@pytest.mark.skipif(not os.path.isdir(GLUE_DATA), reason=f"real GLUE files are missing: there is no {GLUE_DATA}")
@pytest.mark.parametrize("task_name", REAL)
def test_the_real_files_contain_the_published_numbers_of_examples(task_name):
    task, folder = tasks.get(task_name), os.path.join(GLUE_DATA, task_name)
    found = {split: read(task_name, folder, split) for split in ("train", "dev", "test")}
    assert tuple(len(rows) for rows in found.values()) == REAL[task_name]
    assert len(found["test"]) == task.test_rows
    for rows in found.values():
        assert len({guid for guid, _, _, _ in rows}) == len(rows)
        assert all(text_a.strip() and (text_b is None or text_b.strip()) for _, text_a, text_b, _ in rows)
    for split in ("train", "dev"):
        labels = {label for _, _, _, label in found[split]}
        assert (min(labels), max(labels)) == ((0.0, 5.0) if task.is_regression else ("0", "1"))
    # The index in a submission is the position in the test file, and has to equal the file's own index.
    header, *rows = [row for _, row in read_rows(os.path.join(folder, task.split("test").file))]
    assert header[0] == "index"
    assert [row[0] for row in rows] == [str(index) for index in range(len(rows))]
