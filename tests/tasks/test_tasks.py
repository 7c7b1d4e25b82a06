"""Every task reads its files as they were published, and says in one sentence what is wrong with others."""

from __future__ import annotations

import dataclasses
import os

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert import tasks
from adapter_bert.common.errors import UserError
from adapter_bert.evaluation.metrics import METRICS
from adapter_bert.tasks import glue, processors, registry
from adapter_bert.tasks.task import Split, Task, read_lines, read_rows
from tests.helpers import SHARED

GLUE_DATA = os.path.join(SHARED, "data", "glue_data")


def write(folder, name: str, content) -> str:
    """Writes a file below a folder, byte by byte as given; returns the folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(folder)


def table(*rows) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def read(task_name: str, folder, split: str) -> list:
    """The examples as (guid, text_a, text_b, label)."""
    examples = tasks.read_examples(tasks.get(task_name), str(folder), split)
    return [(example.guid, example.text_a, example.text_b, example.label) for example in examples]


def message_of(task_name: str, folder, split: str = "train") -> str:
    """The one sentence that reading fails with."""
    with pytest.raises(UserError) as caught:
        read(task_name, folder, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------ published layouts

MNLI_FRONT = [
    "index",
    "promptID",
    "pairID",
    "genre",
    "s1_binary_parse",
    "s2_binary_parse",
    "s1_parse",
    "s2_parse",
    "sentence1",
    "sentence2",
]
ANNOTATORS = [f"label{number}" for number in range(1, 6)]


def mnli_row(index: int, a: str, b: str, *labels) -> list:
    return [str(index), "31193", "31193n", "government", "( p", "( q", "(ROOT p", "(ROOT q", a, b] + list(labels)


STSB_HEADER = [
    "index",
    "genre",
    "filename",
    "year",
    "old_index",
    "source1",
    "source2",
    "sentence1",
    "sentence2",
    "score",
]


def stsb_row(index: int, a: str, b: str, *score) -> list:
    return [str(index), "main-captions", "MSRvid", "2012test", "0001", "none", "none", a, b] + list(score)


def same_for(names: str, content: str, expected: list) -> dict:
    return dict.fromkeys(names.split(), (content, expected))


FIVE = ["neutral", "neutral", "entailment", "neutral", "neutral"]
MNLI_TRAIN = (
    table(
        MNLI_FRONT + ["label1", "gold_label"],
        mnli_row(0, "Cream skimming.", "Skim it.", "entailment", "neutral"),
        mnli_row(1, 'They said "no".', "Yes", "contradiction", "contradiction"),
        mnli_row(2, "One of us.", "We are many.", "entailment", "entailment"),
    ),
    [
        ("Cream skimming.", "Skim it.", "neutral"),
        ('They said "no".', "Yes", "contradiction"),
        ("One of us.", "We are many.", "entailment"),
    ],
)

# Task -> file -> what it holds as published, and the (text_a, text_b, label) to be read. No label is known in a test
# split: the first one, or the number 0, stands in for it, as in the original scripts.
LAYOUTS = {
    "CoLA": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                ["gj04", "1", "", "Our friends won't buy this analysis."],
                ["gj04", "0", "*", "They drank the pub."],
            ),
            [("Our friends won't buy this analysis.", None, "1"), ("They drank the pub.", None, "0")],
        ),
        "test.tsv": (
            table(["index", "sentence"], ["0", "Bill whistled past the house."]),
            [("Bill whistled past the house.", None, "0")],
        ),
    },
    "SST-2": {
        **same_for(
            "train.tsv dev.tsv",
            table(["sentence", "label"], ["hide new secretions from the parental units ", "0"], ["a gem ", "1"]),
            [("hide new secretions from the parental units ", None, "0"), ("a gem ", None, "1")],
        ),
        "test.tsv": (
            table(["index", "sentence"], ["0", "uneasy mishmash ."]),
            [("uneasy mishmash .", None, "0")],
        ),
    },
    "MRPC": {
        **same_for(
            "train.tsv dev.tsv",
            "\ufeff"
            + table(
                ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
                ["1", "702876", "702977", 'He called " the witness " a liar .', '" The witness lied .'],
                ["0", "2108705", "2108831", '"Yucaipa owned it .', "Yucaipa bought it ."],
            ),
            [
                ('He called " the witness " a liar .', '" The witness lied .', "1"),
                ('"Yucaipa owned it .', "Yucaipa bought it .", "0"),
            ],
        ),
        "test.tsv": (
            "\ufeff"
            + table(
                ["index", "#1 ID", "#2 ID", "#1 String", "#2 String"],
                ["0", "1089874", "1089925", "PCCW 's chief will report to So .", '" He will report .'],
            ),
            [("PCCW 's chief will report to So .", '" He will report .', "0")],
        ),
    },
    "STS-B": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                STSB_HEADER,
                stsb_row(0, "A plane is taking off.", "An air plane is taking off.", "5.000"),
                stsb_row(1, 'A "large" flute.', "A flute.", "3.8"),
                stsb_row(2, "A man is smoking.", "A man is skating.", "0.000"),
            ),
            [
                ("A plane is taking off.", "An air plane is taking off.", 5.0),
                ('A "large" flute.', "A flute.", 3.8),
                ("A man is smoking.", "A man is skating.", 0.0),
            ],
        ),
        "test.tsv": (
            table(STSB_HEADER[:-1], stsb_row(0, "A girl styles her hair.", "A girl brushes her hair.")),
            [("A girl styles her hair.", "A girl brushes her hair.", 0.0)],
        ),
    },
    "QQP": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
                ["133273", "213221", "213222", 'How is "Naruto" so good?', "Why is Naruto good?", "1"],
                ["402555", "536040", "536041", "How do I stop time?", "", "0"],
            ),
            [('How is "Naruto" so good?', "Why is Naruto good?", "1"), ("How do I stop time?", "", "0")],
        ),
        "test.tsv": (
            table(["id", "question1", "question2"], ["0", "Would the idea work?", "Would it?"]),
            [("Would the idea work?", "Would it?", "0")],
        ),
    },
    "MNLI": {
        "train.tsv": MNLI_TRAIN,
        "dev_matched.tsv": (
            table(
                MNLI_FRONT + ANNOTATORS + ["gold_label"],
                mnli_row(0, "The new rights.", "Everyone.", *(FIVE + ["contradiction"])),
            ),
            [("The new rights.", "Everyone.", "contradiction")],
        ),
        "test_matched.tsv": (
            table(MNLI_FRONT, mnli_row(0, "Hierbas, ans seco.", "An aperitif.")),
            [("Hierbas, ans seco.", "An aperitif.", "contradiction")],
        ),
    },
    "MNLI-mm": {
        "train.tsv": MNLI_TRAIN,
        "dev_mismatched.tsv": (
            table(
                MNLI_FRONT + ANNOTATORS + ["gold_label"],
                mnli_row(0, "Your gift.", "Thanks.", *(FIVE + ["entailment"])),
            ),
            [("Your gift.", "Thanks.", "entailment")],
        ),
        "test_mismatched.tsv": (
            table(MNLI_FRONT, mnli_row(0, "What have you decided?", "Why?")),
            [("What have you decided?", "Why?", "contradiction")],
        ),
    },
    "QNLI": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                ["index", "question", "sentence", "label"],
                ["0", 'Who wrote "Zenyatta?', 'The album was called "Zenyatta" .', "not_entailment"],
                ["1", "When did it end?", '"In 1802.', "entailment"],
            ),
            [
                ('Who wrote "Zenyatta?', 'The album was called "Zenyatta" .', "not_entailment"),
                ("When did it end?", '"In 1802.', "entailment"),
            ],
        ),
        "test.tsv": (
            table(["index", "question", "sentence"], ["0", "What organ?", "It is the heart."]),
            [("What organ?", "It is the heart.", "entailment")],
        ),
    },
    "RTE": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                ["index", "sentence1", "sentence2", "label"],
                ["0", "No weapons were found.", "Weapons were found.", "not_entailment"],
                ["1", "A place of sorrow.", "A place.", "entailment"],
            ),
            [
                ("No weapons were found.", "Weapons were found.", "not_entailment"),
                ("A place of sorrow.", "A place.", "entailment"),
            ],
        ),
        "test.tsv": (
            table(["index", "sentence1", "sentence2"], ["0", "Mangla was summoned.", "He came."]),
            [("Mangla was summoned.", "He came.", "entailment")],
        ),
    },
    "WNLI": {
        **same_for(
            "train.tsv dev.tsv",
            table(
                ["index", "sentence1", "sentence2", "label"],
                ["0", "I stuck a pin through a carrot. It had a hole.", "The carrot had a hole.", "1"],
                ["1", 'Steve follows "Fred".', "Steve is followed.", "0"],
            ),
            [
                ("I stuck a pin through a carrot. It had a hole.", "The carrot had a hole.", "1"),
                ('Steve follows "Fred".', "Steve is followed.", "0"),
            ],
        ),
        "test.tsv": (
            table(["index", "sentence1", "sentence2"], ["0", "Horses ran away.", "They ran."]),
            [("Horses ran away.", "They ran.", "0")],
        ),
    },
    "AX": {
        "diagnostic-full.tsv": (
            table(
                [
                    "Lexical Semantics",
                    "Predicate-Argument Structure",
                    "Logic",
                    "Knowledge",
                    "Domain",
                    "Premise",
                    "Hypothesis",
                    "Label",
                ],
                ["", "", "Negation", "", "Artificial", "The cat sat.", 'The cat did not "sit".', "contradiction"],
                ["Lexical entailment", "", "", "", "News", "It rains cats.", "It rains.", "entailment"],
                ["", "", "", "World knowledge", "News", "It rains.", "It pours.", "neutral"],
            ),
            [
                ("The cat sat.", 'The cat did not "sit".', "contradiction"),
                ("It rains cats.", "It rains.", "entailment"),
                ("It rains.", "It pours.", "neutral"),
            ],
        ),
        "diagnostic.tsv": (
            table(["index", "sentence1", "sentence2"], ["0", "The cat sat.", "The cat did not sit."]),
            [("The cat sat.", "The cat did not sit.", "contradiction")],
        ),
    },
}


def test_every_glue_task_has_its_published_layout_below():
    assert [task.name for task in glue.TASKS] == list(LAYOUTS)
    assert len(glue.TASKS) == 11
    for task in glue.TASKS:
        splits = [split for split in (task.train, task.dev, task.test) if split]
        assert [split.file for split in splits] == list(LAYOUTS[task.name])


@pytest.mark.parametrize("task_name", LAYOUTS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_glue_task_reads_the_texts_and_labels_of_its_published_files(tmp_path, task_name, split):
    task = tasks.get(task_name)
    if (task_name, split) == ("AX", "train"):
        assert message_of(task_name, tmp_path, split) == "AX has no train split."
        return
    for name, (content, _) in LAYOUTS[task_name].items():
        write(tmp_path, name, content)
    _, expected = LAYOUTS[task_name][task.split(split).file]
    first = 1 if task.split(split).header else 0
    assert read(task_name, tmp_path, split) == [
        (f"{split}-{number}",) + example for number, example in enumerate(expected, start=first)
    ]


@pytest.mark.parametrize("task_name", LAYOUTS)
def test_a_glue_task_has_every_label_in_the_layouts_above(task_name):
    """So that none of its words is spelt differently here."""
    found = {label for _, rows in LAYOUTS[task_name].values() for _, _, label in rows}
    assert found == (set(tasks.get(task_name).labels) or {0.0, 3.8, 5.0})


@pytest.mark.parametrize(
    "task_name, metrics",
    [
        ("CoLA", ("matthews", "accuracy")),
        ("SST-2", ("accuracy",)),
        ("MRPC", ("f1", "accuracy")),
        ("STS-B", ("spearman", "pearson")),
        ("QQP", ("f1", "accuracy")),
        ("MNLI", ("accuracy",)),
        ("MNLI-mm", ("accuracy",)),
        ("QNLI", ("accuracy",)),
        ("RTE", ("accuracy",)),
        ("WNLI", ("accuracy",)),
        ("AX", ("matthews", "accuracy")),
    ],
)
def test_the_primary_metric_is_the_paper_s(task_name, metrics):
    task = tasks.get(task_name)
    assert task.metrics == metrics
    assert task.primary_metric == metrics[0]
    assert set(metrics) <= set(METRICS)


@pytest.mark.parametrize(
    "task_name, submission, rows",
    [
        ("CoLA", "CoLA", 1063),
        ("SST-2", "SST-2", 1821),
        ("MRPC", "MRPC", 1725),
        ("STS-B", "STS-B", 1379),
        ("QQP", "QQP", 390965),
        ("MNLI", "MNLI-m", 9796),
        ("MNLI-mm", "MNLI-mm", 9847),
        ("QNLI", "QNLI", 5463),
        ("RTE", "RTE", 3000),
        ("WNLI", "WNLI", 146),
        ("AX", "AX", 1104),
    ],
)
def test_the_server_s_file_and_the_published_number_of_test_rows_are_known(task_name, submission, rows):
    task = tasks.get(task_name)
    assert (task.submission, task.test_rows) == (submission, rows)


def test_the_classes_of_glue_are_in_the_order_of_the_original_scripts():
    """A model's outputs are numbered by them, so another order would spoil every model trained before."""
    for name in ("CoLA", "SST-2", "MRPC", "QQP", "WNLI"):
        assert tasks.get(name).labels == ("0", "1")
    for name in ("QNLI", "RTE"):
        assert tasks.get(name).labels == ("entailment", "not_entailment")
    for name in ("MNLI", "MNLI-mm"):
        assert tasks.get(name).labels == ("contradiction", "entailment", "neutral")


def test_the_diagnostics_are_answered_by_an_mnli_model_with_its_classes():
    assert tasks.get("AX").labels == tasks.get("MNLI").labels


def test_sts_b_predicts_a_number_from_0_to_5():
    task = tasks.get("STS-B")
    assert task.is_regression
    assert task.label_range == (0.0, 5.0)


@pytest.mark.parametrize("score", ["5.001", "-0.1", "nan", "high", ""])
def test_a_score_of_sts_b_that_cannot_be_is_refused_with_its_line(tmp_path, score):
    write(tmp_path, "train.tsv", table(STSB_HEADER, stsb_row(0, "a", "b", "1.5"), stsb_row(1, "a", "b", score)))
    message = message_of("STS-B", tmp_path)
    assert message.startswith(f"{tmp_path}/train.tsv, line 3: STS-B expects a ")
    assert message.endswith(f"number as label, found '{score}'.") or f"from 0 to 5 as label, found '{score}'" in message


def test_an_mnli_row_that_ends_before_its_label_is_refused(tmp_path):
    """Its last column would be a text otherwise, or worse, a label of somebody else's row."""
    write(tmp_path, "train.tsv", table(MNLI_FRONT + ["label1", "gold_label"], mnli_row(0, "a", "b")))
    assert "train.tsv, line 2: found 10 tab-separated columns, expected at least 11" in message_of("MNLI", tmp_path)


def test_an_sts_b_row_that_ends_before_its_score_is_refused(tmp_path):
    write(tmp_path, "train.tsv", table(STSB_HEADER, stsb_row(0, "a", "7")))
    assert "train.tsv, line 2: found 9 tab-separated columns, expected at least 10" in message_of("STS-B", tmp_path)


def test_qqp_rows_that_a_line_feed_in_a_question_breaks_are_left_out_and_counted(tmp_path, monkeypatch):
    """The first published QQP has a few; `QQP-clean.zip`, which replaced it, has none."""
    warnings = []
    monkeypatch.setattr(tf.logging, "warning", lambda message, *values: warnings.append(message % values))
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    rows = [["1", "11", "12", "Who?", "Where?", "0"], ["2", "13", "14", '"Was he real?'], ['"', "Was he?", "0"]]
    write(tmp_path, "train.tsv", table(header, *rows))
    assert [example.text_a for example in tasks.read_examples(tasks.get("QQP"), str(tmp_path), "train")] == ["Who?"]
    assert len(warnings) == 1
    assert "train.tsv: 2 of 3 rows have too few columns and are left out; the first is line 3." in warnings[0]


XNLI_HEADER = [
    "language",
    "gold_label",
    "s1_binary_parse",
    "s2_binary_parse",
    "s1_parse",
    "s2_parse",
    "sentence1",
    "sentence2",
    "promptID",
]


def xnli_row(language: str, label: str, a: str, b: str) -> list:
    return [language, label, "", "", "", "", a, b, "1"]


@pytest.fixture
def xnli_dir(tmp_path):
    for language, text in (("zh", "从概念上看"), ("de", "Begrifflich")):
        rows = [["premise", "hypo", "label"], [text, "b", "contradictory"], [text, "c", "neutral"]]
        write(tmp_path, f"multinli/multinli.train.{language}.tsv", table(*rows))
    rows = [
        XNLI_HEADER,
        xnli_row("de", "neutral", "und er sagte", "Er rief"),
        xnli_row("zh", "contradiction", "他说", "他打"),
        xnli_row("de", "entailment", "und er sagte", "Er sprach"),
    ]
    write(tmp_path, "xnli.dev.tsv", table(*rows))
    write(tmp_path, "xnli.test.tsv", table(*rows))
    return tmp_path


def test_xnli_training_files_spell_contradiction_their_own_way(xnli_dir):
    assert read("XNLI", xnli_dir, "train") == [
        ("train-1", "从概念上看", "b", "contradiction"),
        ("train-2", "从概念上看", "c", "neutral"),
    ]
    assert read("XNLI-de", xnli_dir, "train")[0][1:] == ("Begrifflich", "b", "contradiction")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_xnli_keeps_the_rows_of_its_language_only(xnli_dir, split):
    assert read("XNLI", xnli_dir, split) == [(f"{split}-2", "他说", "他打", "contradiction")]
    assert read("XNLI-de", xnli_dir, split) == [
        (f"{split}-1", "und er sagte", "Er rief", "neutral"),
        (f"{split}-3", "und er sagte", "Er sprach", "entailment"),
    ]


def test_xnli_without_a_row_of_the_language_says_so(xnli_dir):
    assert "xnli.dev.tsv holds no example of XNLI-sw" in message_of("XNLI-sw", xnli_dir, "dev")


@pytest.mark.parametrize("name", tasks.names())
def test_guids_are_unique_and_labels_are_the_task_s_own(name, tmp_path):
    """Whatever the task, three rows with three labels in turn come back as three examples."""
    task = tasks.get(name)
    split_name = "train" if task.train else "dev"
    split = task.split(split_name)
    labels = task.labels or ("0.5", "4.25", "5")
    expected = [labels[index % len(labels)] for index in range(3)]
    width = split.columns_needed()
    rows = [["header"] * width] if split.header else []
    for index, label in enumerate(expected):
        row = [f"{index}-{column}" for column in range(width)]
        row[split.label] = label
        if split.only:
            row[split.only[0]] = split.only[1]
        rows.append(row)
    write(tmp_path, split.file, table(*rows))
    found = read(name, tmp_path, split_name)
    assert len({guid for guid, _, _, _ in found}) == 3
    assert [label for _, _, _, label in found] == (
        [float(word) for word in expected] if task.is_regression else expected
    )
    assert [text for _, text, _, _ in found] == [f"{index}-{split.text_a}" for index in range(3)]


# ----------------------------------------------------------------------------- bytes of a text file

COLA_LINE = b"gj04\t1\t\tA sentence."


@pytest.mark.parametrize(
    "content",
    [
        COLA_LINE + b"\n" + COLA_LINE + b"\n",
        COLA_LINE + b"\n" + COLA_LINE,
        COLA_LINE + b"\r\n" + COLA_LINE + b"\r\n",
        COLA_LINE + b"\r\n" + COLA_LINE,
        b"\xef\xbb\xbf" + COLA_LINE + b"\n" + COLA_LINE,
    ],
    ids=["unix", "no final newline", "windows", "windows, no final newline", "byte order mark"],
)
def test_line_ends_and_byte_order_marks_are_not_part_of_the_text(tmp_path, content):
    write(tmp_path, "train.tsv", content)
    assert read("CoLA", tmp_path, "train") == [
        ("train-0", "A sentence.", None, "1"),
        ("train-1", "A sentence.", None, "1"),
    ]


def test_a_label_in_the_last_column_survives_windows_line_ends(tmp_path):
    write(tmp_path, "train.tsv", "sentence\tlabel\r\ngood\t1\r\nbad\t0\r\n")
    assert [row[1:] for row in read("SST-2", tmp_path, "train")] == [("good", None, "1"), ("bad", None, "0")]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u001c", "\r"])
def test_unicode_line_separators_inside_a_text_do_not_split_it(tmp_path, separator):
    text = f"one{separator}two"
    write(tmp_path, "train.tsv", table(["x", "1", "", text], ["x", "0", "", "three"]))
    assert [row[1] for row in read("CoLA", tmp_path, "train")] == [text, "three"]


def test_blank_lines_are_skipped_and_line_numbers_go_on_counting(tmp_path):
    write(tmp_path, "train.tsv", "x\t1\t\ta\n\n   \nx\t0\t\tb\n\n")
    assert [row[:2] for row in read("CoLA", tmp_path, "train")] == [("train-0", "a"), ("train-3", "b")]


def test_a_byte_order_mark_is_dropped_at_the_start_and_nowhere_else(tmp_path):
    write(tmp_path, "marked", "\ufeffone\r\n\ufefftwo")
    assert list(read_lines(str(tmp_path / "marked"))) == ["one", "\ufefftwo"]


def test_read_lines_of_an_empty_file_are_none(tmp_path):
    write(tmp_path, "empty", b"")
    assert list(read_lines(str(tmp_path / "empty"))) == []


# ------------------------------------------------------------------------------------------ errors


def test_a_missing_folder_is_named(tmp_path):
    folder = tmp_path / "nowhere"
    assert message_of("CoLA", folder) == f"The data folder {folder} does not exist."


def test_a_missing_file_is_named_beside_what_is_there(tmp_path):
    write(tmp_path, "dev.tsv", "")
    write(tmp_path, "test.tsv", "")
    assert message_of("CoLA", tmp_path) == (
        f"The data file {tmp_path}/train.tsv does not exist; the folder holds: dev.tsv, test.tsv."
    )


def test_a_missing_file_in_an_empty_folder_says_that_nothing_is_there(tmp_path):
    assert message_of("CoLA", tmp_path).endswith("train.tsv does not exist; the folder holds: nothing.")


def test_a_folder_in_the_place_of_a_file_cannot_be_read(tmp_path):
    (tmp_path / "train.tsv").mkdir()
    assert message_of("CoLA", tmp_path).startswith(f"The data file {tmp_path}/train.tsv cannot be read; ")


def test_a_file_in_the_working_folder_is_missed_by_its_name_alone(tmp_path, monkeypatch):
    write(tmp_path, "other.tsv", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="data file train.tsv does not exist; the folder holds: other.tsv"):
        list(read_lines("train.tsv"))


def test_too_few_columns_are_reported_with_file_line_and_beginning(tmp_path):
    write(tmp_path, "train.tsv", "x\t1\t\tfine\n\nthe tab\tis missing\n")
    assert message_of("CoLA", tmp_path) == (
        f"{tmp_path}/train.tsv, line 3: found 2 tab-separated columns, expected at least 4: 'the tab\\tis missing'."
    )


def test_a_file_without_tabs_has_one_column(tmp_path):
    write(tmp_path, "train.tsv", "sentence,label\ngood,1\n")
    assert "line 2: found 1 tab-separated column, expected at least 2: 'good,1'" in message_of("SST-2", tmp_path)


def test_an_unknown_label_is_reported_with_file_and_line_and_the_labels(tmp_path):
    write(tmp_path, "train.tsv", "x\t1\t\tfine\nx\tgood\t\tnot fine\n")
    assert message_of("CoLA", tmp_path) == (
        f"{tmp_path}/train.tsv, line 2: unknown label 'good'; CoLA has the labels 0, 1."
    )


def test_a_spelling_of_one_task_is_no_label_of_another(tmp_path):
    rows = [MNLI_FRONT + ["label1", "gold_label"], mnli_row(0, "a", "b", "neutral", "contradictory")]
    write(tmp_path, "train.tsv", table(*rows))
    assert "unknown label 'contradictory'; MNLI has the labels" in message_of("MNLI", tmp_path)


@pytest.mark.parametrize("content", ["", "sentence\tlabel\n", "\n\n"])
def test_a_split_without_an_example_is_an_error(tmp_path, content):
    write(tmp_path, "train.tsv", content)
    assert message_of("SST-2", tmp_path) == f"{tmp_path}/train.tsv holds no example of SST-2."


def test_a_byte_that_is_not_utf8_is_reported_with_its_line(tmp_path):
    write(tmp_path, "train.tsv", b"x\t1\t\tfine\nx\t1\t\tcaf\xe9 au lait\n")
    assert message_of("CoLA", tmp_path) == (
        f"{tmp_path}/train.tsv, line 2: byte 0xe9 is not UTF-8; if the file is cp1252, convert it: "
        "iconv -f cp1252 -t utf-8."
    )


def test_a_byte_that_is_not_utf8_is_found_behind_a_byte_order_mark_too(tmp_path):
    write(tmp_path, "train.tsv", b"\xef\xbb\xbfx\t1\t\tab\n\xe9\t1\t\tfine\n")
    assert "train.tsv, line 2: byte 0xe9 is not UTF-8" in message_of("CoLA", tmp_path)


# ---------------------------------------------------------------------------------------- registry


@pytest.mark.parametrize(
    "name, found",
    [
        ("cola", "CoLA"),
        ("COLA", "CoLA"),
        ("sst2", "SST-2"),
        ("SST_2", "SST-2"),
        ("mrpc", "MRPC"),
        ("mnli", "MNLI"),
        ("MNLI-m", "MNLI"),
        ("mnli_matched", "MNLI"),
        ("mnlimm", "MNLI-mm"),
        ("MNLI-mismatched", "MNLI-mm"),
        ("rte", "RTE"),
        ("stsb", "STS-B"),
        ("STS_B", "STS-B"),
        ("qqp", "QQP"),
        ("Qnli", "QNLI"),
        ("wnli", "WNLI"),
        ("ax", "AX"),
        ("diagnostic", "AX"),
        ("xnli", "XNLI"),
        ("XNLI-zh", "XNLI"),
        ("xnli_DE", "XNLI-de"),
    ],
)
def test_names_are_found_in_any_case_with_or_without_hyphens(name, found):
    assert tasks.get(name).name == found


@pytest.mark.parametrize(
    "typed, meant", [("CoLa2", "CoLA"), ("MRCP", "MRPC"), ("sst", "SST-2"), ("XNLI-dee", "XNLI-de")]
)
def test_an_unknown_task_suggests_the_nearest_and_lists_all(typed, meant):
    with pytest.raises(UserError) as caught:
        tasks.get(typed)
    message = str(caught.value)
    assert message.startswith(f"Unknown task '{typed}'. Did you mean '{meant}'? Available: ")
    assert ", ".join(tasks.names()) in message


def test_a_name_like_none_is_not_guessed_at():
    with pytest.raises(UserError) as caught:
        tasks.get("zzzzzzzzzz")
    assert "Did you mean" not in str(caught.value)


def test_every_name_is_listed_once():
    assert len(set(tasks.names())) == len(tasks.names())
    assert {"XNLI", "XNLI-de"} | {task.name for task in glue.TASKS} <= set(tasks.names())


@pytest.fixture
def fresh_registry(monkeypatch):
    """A registry that this test may write to."""
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))


def a_task(name: str, *aliases: str) -> Task:
    split = Split("a.tsv", text_a=0, label=1)
    return Task(name, train=split, dev=split, test=split, labels=("0", "1"), aliases=aliases)


def test_a_registered_task_is_found_and_listed(fresh_registry):
    task = registry.register(a_task("Mine", "my-own"))
    assert tasks.get("mine") is tasks.get("MYOWN") is task
    assert tasks.names()[-1] == "Mine"


@pytest.mark.parametrize("name, aliases", [("cola", ()), ("CO-LA", ()), ("New", ("sst2",)), ("New", ("MNLI_matched",))])
def test_a_taken_name_is_refused_and_nothing_is_registered(fresh_registry, name, aliases):
    before = dict(registry._TASKS)
    with pytest.raises(ValueError, match="is taken by"):
        registry.register(a_task(name, *aliases))
    assert before == registry._TASKS


def test_a_task_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tasks.get("CoLA").labels = ("1", "0")


# -------------------------------------------------------------------------------------- processors


def plain(examples) -> list:
    return [(example.guid, example.text_a, example.text_b, example.label) for example in examples]


@pytest.mark.parametrize(
    "processor, task_name",
    [(processors.ColaProcessor, "CoLA"), (processors.MrpcProcessor, "MRPC"), (processors.MnliProcessor, "MNLI")],
)
def test_a_processor_gives_what_its_task_gives(processor, task_name, tmp_path):
    task = tasks.get(task_name)
    for name in ("train", "dev", "test"):
        split = task.split(name)
        width = split.columns_needed()
        rows = [["header"] * width] if split.header else []
        for index in range(2):
            row = [f"{name} {index} {column}" for column in range(width)]
            if split.label is not None:
                row[split.label] = task.labels[index]
            rows.append(row)
        write(tmp_path, split.file, table(*rows))
    reader = processor()
    assert plain(reader.get_train_examples(str(tmp_path))) == read(task_name, tmp_path, "train")
    assert plain(reader.get_dev_examples(str(tmp_path))) == read(task_name, tmp_path, "dev")
    assert plain(reader.get_test_examples(str(tmp_path))) == read(task_name, tmp_path, "test")
    assert reader.get_labels() == list(task.labels)
    assert len(reader.get_train_examples(str(tmp_path))) == 2


def test_the_xnli_processor_reads_chinese_until_told_otherwise(xnli_dir):
    reader = processors.XnliProcessor()
    assert reader.language == "zh"
    assert plain(reader.get_train_examples(str(xnli_dir))) == read("XNLI", xnli_dir, "train")
    reader.language = "de"
    assert plain(reader.get_train_examples(str(xnli_dir))) == read("XNLI-de", xnli_dir, "train")
    assert plain(reader.get_dev_examples(str(xnli_dir))) == read("XNLI-de", xnli_dir, "dev")
    assert reader.get_labels() == ["contradiction", "entailment", "neutral"]


def test_an_unknown_language_is_refused(xnli_dir):
    reader = processors.XnliProcessor()
    reader.language = "klingon"
    with pytest.raises(UserError, match="Unknown task 'XNLI-klingon'"):
        reader.get_dev_examples(str(xnli_dir))


def test_a_notebook_s_own_processor_reads_tables_with_the_base_class(tmp_path):
    write(tmp_path, "mine.tsv", 'a\t"b\n\nc\td"\n')

    class Mine(processors.DataProcessor):
        def get_train_examples(self, data_dir):
            return self._read_tsv(os.path.join(data_dir, "mine.tsv"))

    assert Mine().get_train_examples(str(tmp_path)) == [["a", '"b'], ["c", 'd"']]
    for method in (Mine().get_dev_examples, Mine().get_test_examples):
        with pytest.raises(NotImplementedError):
            method(str(tmp_path))
    with pytest.raises(ValueError, match="Quoting is not supported"):
        processors.DataProcessor._read_tsv(str(tmp_path / "mine.tsv"), quotechar='"')


# --------------------------------------------------------------------------------------- real data

needs_real_files = pytest.mark.skipif(
    not os.path.isdir(GLUE_DATA), reason=f"real GLUE files are missing: there is no folder {GLUE_DATA}"
)
# Task -> rows of train, dev and test.
REAL = {
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67349, 872, 1821),
    "MRPC": (3668, 408, 1725),
    "STS-B": (5749, 1500, 1379),
    "WNLI": (635, 71, 146),
}


@needs_real_files
@pytest.mark.parametrize("task_name", REAL)
def test_the_real_files_give_the_published_numbers_of_examples(task_name):
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


@needs_real_files
@pytest.mark.parametrize("task_name", REAL)
def test_the_real_test_files_count_their_examples_from_0(task_name):
    """A submission's index is the place in the file: it has to be the index that the file itself gives."""
    split = tasks.get(task_name).test
    rows = [row for _, row in read_rows(os.path.join(GLUE_DATA, task_name, split.file))]
    assert rows[0][0] == "index"
    assert [row[0] for row in rows[1:]] == [str(index) for index in range(len(rows) - 1)]
