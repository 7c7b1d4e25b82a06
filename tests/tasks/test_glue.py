"""GLUE and XNLI tasks read their files as published."""

from __future__ import annotations

import os
from typing import Dict, List, Tuple

import pytest

from adapter_bert import tasks
from adapter_bert.evaluation import metrics as scoring
from adapter_bert.tasks import glue
from adapter_bert.tasks.processors import ColaProcessor, MnliProcessor, MrpcProcessor, XnliProcessor
from adapter_bert.tasks.task import read_rows
from tests.helpers import SHARED, as_tuples, assert_mentions, message_of, write_file

GLUE_DATA = os.path.join(SHARED, "data", "glue_data")


def table(*rows: str) -> str:
    """Return tab-separated rows; cells are separated by `|` here."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def read(task_name: str, folder, split: str = "train") -> list:
    return as_tuples(tasks.read_examples(tasks.get(task_name), str(folder), split))


MNLI = "index|promptID|pairID|genre|s1_binary_parse|s2_binary_parse|s1_parse|s2_parse|sentence1|sentence2"
MNLI_ROW = "{}|31193|31193n|government|( p|( q|(ROOT p|(ROOT q|"
FIVE_LABELS = "label1|label2|label3|label4|label5"
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
STSB_ROW = "{}|main-captions|MSRvid|2012test|0001|none|none|"
MNLI_TRAIN = (
    table(
        MNLI + "|label1|gold_label",
        MNLI_ROW.format(0) + "Cream skimming.|Skim it.|entailment|neutral",
        MNLI_ROW.format(1) + 'They said "no".|Yes|contradiction|contradiction',
        MNLI_ROW.format(2) + "One of us.|We are many.|entailment|entailment",
    ),
    [
        ("Cream skimming.", "Skim it.", "neutral"),
        ('They said "no".', "Yes", "contradiction"),
        ("One of us.", "We are many.", "entailment"),
    ],
)
Layout = Tuple[str, List[tuple]]


def splits(labelled: Layout, test: Layout) -> Dict[str, Layout]:
    return {"train.tsv": labelled, "dev.tsv": labelled, "test.tsv": test}


# Task -> file -> its published layout, and the (text_a, text_b, label) to read. Labels of test splits are unknown: they
# get the first label, or 0.0, as in the original scripts.
LAYOUTS: Dict[str, Dict[str, Layout]] = {
    "CoLA": splits(
        (
            table("gj04|1||Our friends won't buy this analysis.", "gj04|0|*|They drank the pub."),
            [("Our friends won't buy this analysis.", None, "1"), ("They drank the pub.", None, "0")],
        ),
        (table("index|sentence", "0|Bill whistled past the house."), [("Bill whistled past the house.", None, "0")]),
    ),
    "SST-2": splits(
        (
            table("sentence|label", "hide new secretions from the parental units |0", "a gem |1"),
            [("hide new secretions from the parental units ", None, "0"), ("a gem ", None, "1")],
        ),
        (table("index|sentence", "0|uneasy mishmash ."), [("uneasy mishmash .", None, "0")]),
    ),
    "MRPC": splits(
        (
            "\ufeff"
            + table(
                "Quality|#1 ID|#2 ID|#1 String|#2 String",
                '1|702876|702977|He called " the witness " a liar .|" The witness lied .',
                '0|2108705|2108831|"Yucaipa owned it .|Yucaipa bought it .',
            ),
            [
                ('He called " the witness " a liar .', '" The witness lied .', "1"),
                ('"Yucaipa owned it .', "Yucaipa bought it .", "0"),
            ],
        ),
        (
            "\ufeff"
            + table(
                "index|#1 ID|#2 ID|#1 String|#2 String",
                "0|1089874|1089925|PCCW 's chief will report to So .|\" He will report .",
            ),
            [("PCCW 's chief will report to So .", '" He will report .', "0")],
        ),
    ),
    "STS-B": splits(
        (
            table(
                STSB + "|score",
                STSB_ROW.format(0) + "A plane is taking off.|An air plane is taking off.|5.000",
                STSB_ROW.format(1) + 'A "large" flute.|A flute.|3.8',
                STSB_ROW.format(2) + "A man is smoking.|A man is skating.|0.000",
            ),
            [
                ("A plane is taking off.", "An air plane is taking off.", 5.0),
                ('A "large" flute.', "A flute.", 3.8),
                ("A man is smoking.", "A man is skating.", 0.0),
            ],
        ),
        (
            table(STSB, STSB_ROW.format(0) + "A girl styles her hair.|A girl brushes her hair."),
            [("A girl styles her hair.", "A girl brushes her hair.", 0.0)],
        ),
    ),
    "QQP": splits(
        (
            table(
                "id|qid1|qid2|question1|question2|is_duplicate",
                '133273|213221|213222|How is "Naruto" so good?|Why is Naruto good?|1',
                "402555|536040|536041|How do I stop time?||0",
            ),
            [('How is "Naruto" so good?', "Why is Naruto good?", "1"), ("How do I stop time?", "", "0")],
        ),
        (
            table("id|question1|question2", "0|Would the idea work?|Would it?"),
            [("Would the idea work?", "Would it?", "0")],
        ),
    ),
    "MNLI": {
        "train.tsv": MNLI_TRAIN,
        "dev_matched.tsv": (
            table(
                f"{MNLI}|{FIVE_LABELS}|gold_label",
                MNLI_ROW.format(0)
                + "The new rights.|Everyone.|neutral|neutral|entailment|neutral|neutral|contradiction",
            ),
            [("The new rights.", "Everyone.", "contradiction")],
        ),
        "test_matched.tsv": (
            table(MNLI, MNLI_ROW.format(0) + "Hierbas, ans seco.|An aperitif."),
            [("Hierbas, ans seco.", "An aperitif.", "contradiction")],
        ),
    },
    "MNLI-mm": {
        "train.tsv": MNLI_TRAIN,
        "dev_mismatched.tsv": (
            table(
                f"{MNLI}|{FIVE_LABELS}|gold_label",
                MNLI_ROW.format(0) + "Your gift.|Thanks.|neutral|neutral|entailment|neutral|neutral|entailment",
            ),
            [("Your gift.", "Thanks.", "entailment")],
        ),
        "test_mismatched.tsv": (
            table(MNLI, MNLI_ROW.format(0) + "What have you decided?|Why?"),
            [("What have you decided?", "Why?", "contradiction")],
        ),
    },
    "QNLI": splits(
        (
            table(
                "index|question|sentence|label",
                '0|Who wrote "Zenyatta?|The album was called "Zenyatta" .|not_entailment',
                '1|When did it end?|"In 1802.|entailment',
            ),
            [
                ('Who wrote "Zenyatta?', 'The album was called "Zenyatta" .', "not_entailment"),
                ("When did it end?", '"In 1802.', "entailment"),
            ],
        ),
        (
            table("index|question|sentence", "0|What organ?|It is the heart."),
            [("What organ?", "It is the heart.", "entailment")],
        ),
    ),
    "RTE": splits(
        (
            table(
                "index|sentence1|sentence2|label",
                "0|No weapons were found.|Weapons were found.|not_entailment",
                "1|A place of sorrow.|A place.|entailment",
            ),
            [
                ("No weapons were found.", "Weapons were found.", "not_entailment"),
                ("A place of sorrow.", "A place.", "entailment"),
            ],
        ),
        (
            table("index|sentence1|sentence2", "0|Mangla was summoned.|He came."),
            [("Mangla was summoned.", "He came.", "entailment")],
        ),
    ),
    "WNLI": splits(
        (
            table(
                "index|sentence1|sentence2|label",
                "0|I stuck a pin through a carrot. It had a hole.|The carrot had a hole.|1",
                '1|Steve follows "Fred".|Steve is followed.|0',
            ),
            [
                ("I stuck a pin through a carrot. It had a hole.", "The carrot had a hole.", "1"),
                ('Steve follows "Fred".', "Steve is followed.", "0"),
            ],
        ),
        (table("index|sentence1|sentence2", "0|Horses ran away.|They ran."), [("Horses ran away.", "They ran.", "0")]),
    ),
    "AX": {
        "diagnostic-full.tsv": (
            table(
                "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain|Premise|Hypothesis|Label",
                '||Negation||Artificial|The cat sat.|The cat did not "sit".|contradiction',
                "Lexical entailment||||News|It rains cats.|It rains.|entailment",
                "|||World knowledge|News|It rains.|It pours.|neutral",
            ),
            [
                ("The cat sat.", 'The cat did not "sit".', "contradiction"),
                ("It rains cats.", "It rains.", "entailment"),
                ("It rains.", "It pours.", "neutral"),
            ],
        ),
        "diagnostic.tsv": (
            table("index|sentence1|sentence2", "0|The cat sat.|The cat did not sit."),
            [("The cat sat.", "The cat did not sit.", "contradiction")],
        ),
    },
}


def test_the_layouts_above_cover_every_task_file_and_label():
    assert [task.name for task in glue.TASKS] == list(LAYOUTS)
    for task in glue.TASKS:
        files = [split.file for split in (task.train, task.dev, task.test) if split]
        assert files == list(LAYOUTS[task.name])
        labels = {label for _, rows in LAYOUTS[task.name].values() for _, _, label in rows}
        assert labels == (set(task.labels) or {0.0, 3.8, 5.0})


@pytest.mark.parametrize("task_name", LAYOUTS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_task_reads_the_texts_and_labels_of_its_published_files(tmp_path, task_name, split):
    task = tasks.get(task_name)
    if (task_name, split) == ("AX", "train"):
        assert_mentions(message_of(read, task_name, tmp_path), "AX", "train")
        return
    file, header = task.split(split).file, task.split(split).header
    content, expected = LAYOUTS[task_name][file]
    write_file(tmp_path, file, content)
    rows = enumerate(expected, start=int(header))
    assert read(task_name, tmp_path, split) == [(f"{split}-{number}", *example) for number, example in rows]


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


@pytest.mark.parametrize("score", ["5.001", "-0.1", "nan", "high", ""])
def test_an_impossible_score_of_sts_b_is_reported_with_its_line(tmp_path, score):
    rows = [STSB_ROW.format(0) + "a|b|1.5", STSB_ROW.format(1) + f"a|b|{score}"]
    path = write_file(tmp_path, "train.tsv", table(STSB + "|score", *rows))
    assert_mentions(message_of(read, "STS-B", tmp_path), f"{path}, line 3", "from 0 to 5", f"'{score}'")


@pytest.mark.parametrize(
    "task_name, rows, found, expected",
    [
        ("MNLI", [MNLI + "|label1|gold_label", MNLI_ROW.format(0) + "a|b"], 10, 11),
        ("STS-B", [STSB + "|score", STSB_ROW.format(0) + "a|7"], 9, 10),
    ],
)
def test_a_row_that_ends_before_its_label_is_reported(tmp_path, task_name, rows, found, expected):
    """Its last column is a text, which must not be read as the label."""
    path = write_file(tmp_path, "train.tsv", table(*rows))
    assert_mentions(message_of(read, task_name, tmp_path), f"{path}, line 2", f"found {found}", f"least {expected}")


# ----------------------------------------------------------------------------------------------------- XNLI


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


def test_xnli_accepts_the_spelling_of_its_training_files(xnli_dir):
    assert read("XNLI", xnli_dir) == [
        ("train-1", "从概念上看", "b", "contradiction"),
        ("train-2", "从概念上看", "c", "neutral"),
    ]
    assert read("XNLI-de", xnli_dir)[0][1:] == ("Begrifflich", "b", "contradiction")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_xnli_keeps_only_the_rows_of_its_language(xnli_dir, split):
    assert read("XNLI", xnli_dir, split) == [(f"{split}-2", "他说", "他打", "contradiction")]
    assert read("XNLI-de", xnli_dir, split) == [
        (f"{split}-1", "und er sagte", "Er rief", "neutral"),
        (f"{split}-3", "und er sagte", "Er sprach", "entailment"),
    ]
    assert_mentions(message_of(read, "XNLI-sw", xnli_dir, split), f"xnli.{split}.tsv", "no examples", "XNLI-sw")


def test_the_xnli_processor_reads_chinese_by_default(xnli_dir):
    processor, folder = XnliProcessor(), str(xnli_dir)
    assert processor.language == "zh"
    assert as_tuples(processor.get_train_examples(folder)) == read("XNLI", xnli_dir)
    processor.language = "de"
    assert as_tuples(processor.get_train_examples(folder)) == read("XNLI-de", xnli_dir)
    assert as_tuples(processor.get_dev_examples(folder)) == read("XNLI-de", xnli_dir, "dev")
    assert processor.get_labels() == list(THREE_WAY)
    processor.language = "klingon"
    assert_mentions(message_of(processor.get_dev_examples, folder), "'XNLI-klingon'")


# ------------------------------------------------------------------------------------------------- real data

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
