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


def table(*rows: str) -> str:
    """Return tab-separated rows; cells are separated by `|` here."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def layout(columns: str, *rows: str, header: bool = True) -> Layout:
    """Return the content of a file, and the (text_a, text_b, label) in it; None for a column that it does not have.

    The first row names all columns. `columns` names those with text_a, text_b and label.
    """
    names, *cells = [row.lstrip("\ufeff").split("|") for row in rows]
    named = [dict(zip(names, row)) for row in cells]
    a, b, label = columns.split("|")
    return table(*rows[0 if header else 1 :]), [(row[a], row.get(b), row.get(label)) for row in named]


def splits(columns: str, labelled: List[str], test: List[str], header: bool = True) -> Dict[str, Layout]:
    train = layout(columns, *labelled, header=header)
    return {"train.tsv": train, "dev.tsv": train, "test.tsv": layout(columns, *test)}


def numbered_pairs(names: str, first: str, second: str) -> Dict[str, Layout]:
    rows = [f'0|Who wrote "Zenyatta?|"In 1802.|{second}', f"1|A place of sorrow.|A place.|{first}"]
    return splits(f"{names}|label", [f"index|{names}|label", *rows], [f"index|{names}", "0|Horses ran away.|They ran."])


def mnli(genre: str, dev: str, test: str) -> Dict[str, Layout]:
    columns = "sentence1|sentence2|gold_label"
    rows = ["Cream skimming.|Skim it.|entailment|neutral", 'They said "no".|Yes|contradiction|contradiction']
    rows = [MNLI_ROW + row for row in (*rows, "One of us.|We are many.|entailment|entailment")]
    five_labels = "|label1|label2|label3|label4|label5|gold_label"
    return {
        "train.tsv": layout(columns, MNLI + "|label1|gold_label", *rows),
        f"dev_{genre}.tsv": layout(columns, MNLI + five_labels, MNLI_ROW + dev),
        f"test_{genre}.tsv": layout(columns, MNLI, MNLI_ROW + test),
    }


MNLI = "index|promptID|pairID|genre|s1_binary_parse|s2_binary_parse|s1_parse|s2_parse|sentence1|sentence2"
MNLI_ROW = "0|31193|31193n|government|( p|( q|(ROOT p|(ROOT q|"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
STSB_ROW = "0|main-captions|MSRvid|2012test|0001|none|none|"

# Task -> file -> its published layout, and the texts and labels in it.
LAYOUTS: Dict[str, Dict[str, Layout]] = {
    "CoLA": splits(
        "sentence||label",
        ["source|label|mark|sentence", "gj04|1||Our friends won't buy this analysis.", "gj04|0|*|They drank the pub."],
        ["index|sentence", "0|Bill whistled past the house."],
        header=False,
    ),
    "SST-2": splits(
        "sentence||label",
        ["sentence|label", "hide new secretions from the parental units |0", "a gem |1"],
        ["index|sentence", "0|uneasy mishmash ."],
    ),
    "MRPC": splits(
        "#1 String|#2 String|Quality",
        [
            "\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String",
            '1|702876|702977|He called " the witness " a liar .|" The witness lied .',
            '0|2108705|2108831|"Yucaipa owned it .|Yucaipa bought it .',
        ],
        ["\ufeffindex|#1 ID|#2 ID|#1 String|#2 String", "0|1089874|1089925|PCCW 's chief reports .|\" He reports ."],
    ),
    "STS-B": splits(
        "sentence1|sentence2|score",
        [
            STSB + "|score",
            STSB_ROW + "A plane is taking off.|An air plane is taking off.|5.000",
            STSB_ROW + 'A "large" flute.|A flute.|3.8',
            STSB_ROW + "A man is smoking.|A man is skating.|0.000",
        ],
        [STSB, STSB_ROW + "A girl styles her hair.|A girl brushes her hair."],
    ),
    "QQP": splits(
        "question1|question2|is_duplicate",
        [
            "id|qid1|qid2|question1|question2|is_duplicate",
            '133273|213221|213222|How is "Naruto" so good?|Why is Naruto good?|1',
            "402555|536040|536041|How do I stop time?||0",
        ],
        ["id|question1|question2", "0|Would the idea work?|Would it?"],
    ),
    "MNLI": mnli(
        "matched",
        "The new rights.|Everyone.|neutral|neutral|entailment|neutral|neutral|contradiction",
        "Hierbas, ans seco.|An aperitif.",
    ),
    "MNLI-mm": mnli(
        "mismatched",
        "Your gift.|Thanks.|neutral|neutral|entailment|neutral|neutral|entailment",
        "What have you decided?|Why?",
    ),
    "QNLI": numbered_pairs("question|sentence", "entailment", "not_entailment"),
    "RTE": numbered_pairs("sentence1|sentence2", "entailment", "not_entailment"),
    "WNLI": numbered_pairs("sentence1|sentence2", "0", "1"),
    "AX": {
        "diagnostic-full.tsv": layout(
            "Premise|Hypothesis|Label",
            "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain|Premise|Hypothesis|Label",
            '||Negation||Artificial|The cat sat.|The cat did not "sit".|contradiction',
            "Lexical entailment||||News|It rains cats.|It rains.|entailment",
            "|||World knowledge|News|It rains.|It pours.|neutral",
        ),
        "diagnostic.tsv": layout(
            "sentence1|sentence2|label", "index|sentence1|sentence2", "0|The cat sat.|The cat did not sit."
        ),
    },
}


def read(task_name: str, folder, split: str = "train") -> list:
    return as_tuples(tasks.read_examples(tasks.get(task_name), str(folder), split))


def test_the_layouts_above_cover_every_task_file_and_label():
    assert [task.name for task in glue.TASKS] == list(LAYOUTS)
    for task in glue.TASKS:
        files = [split.file for split in (task.train, task.dev, task.test) if split]
        assert files == list(LAYOUTS[task.name])
        labels = {label for _, rows in LAYOUTS[task.name].values() for _, _, label in rows if label}
        assert labels == (set(task.labels) or {"0.000", "3.8", "5.000"})


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
        examples = getattr(processor(), f"get_{split}_examples")(str(tmp_path))
        assert as_tuples(examples) == read(task_name, tmp_path, split) != []
    assert processor().get_labels() == list(tasks.get(task_name).labels)


# Another order of the classes would break every model trained before.
BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")


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


@pytest.fixture
def xnli_dir(tmp_path):
    for language, text in (("zh", "从概念上看"), ("de", "Begrifflich")):
        rows = ["premise|hypo|label", f"{text}|b|contradictory", f"{text}|c|neutral"]
        write_file(tmp_path, f"multinli/multinli.train.{language}.tsv", table(*rows))
    rows = [
        "language|gold_label|s1_binary_parse|s2_binary_parse|s1_parse|s2_parse|sentence1|sentence2|promptID",
        "de|neutral|||||und er sagte|Er rief|1",
        "zh|contradiction|||||他说|他打|1",
        "de|entailment|||||und er sagte|Er sprach|1",
    ]
    for split in ("dev", "test"):
        write_file(tmp_path, f"xnli.{split}.tsv", table(*rows))
    return tmp_path


def test_xnli_reads_the_rows_of_its_language_and_the_spelling_of_its_training_files(xnli_dir):
    assert read("XNLI", xnli_dir) == [
        ("train-1", "从概念上看", "b", "contradiction"),
        ("train-2", "从概念上看", "c", "neutral"),
    ]
    assert read("XNLI-de", xnli_dir)[0][1:] == ("Begrifflich", "b", "contradiction")
    for split in ("dev", "test"):
        assert read("XNLI", xnli_dir, split) == [(f"{split}-2", "他说", "他打", "contradiction")]
        assert read("XNLI-de", xnli_dir, split) == [
            (f"{split}-1", "und er sagte", "Er rief", "neutral"),
            (f"{split}-3", "und er sagte", "Er sprach", "entailment"),
        ]
        assert_mentions(message_of(read, "XNLI-sw", xnli_dir, split), f"xnli.{split}.tsv", "no examples", "XNLI-sw")


def test_the_xnli_processor_reads_chinese_by_default(xnli_dir):
    processor, folder = XnliProcessor(), str(xnli_dir)
    assert as_tuples(processor.get_train_examples(folder)) == read("XNLI", xnli_dir)
    processor.language = "de"
    assert as_tuples(processor.get_dev_examples(folder)) == read("XNLI-de", xnli_dir, "dev")
    assert processor.get_labels() == list(THREE_WAY)
    processor.language = "klingon"
    assert_mentions(message_of(processor.get_dev_examples, folder), "'XNLI-klingon'")


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
