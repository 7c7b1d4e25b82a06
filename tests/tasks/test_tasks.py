"""Reading the files of a task, the registry, streamed splits, fingerprints and the original data processors."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert import tasks
from adapter_bert.tasks import encodings, processors
from adapter_bert.tasks import task as registry
from adapter_bert.tasks.custom.formats import read_table
from adapter_bert.tasks.task import InputExample, Split, Task, read_lines
from tests.helpers import as_tuples, assert_mentions, message_of, write_cola, write_file
from tests.tasks.test_glue import read

# The cells of an STS-B row before its label.
STSB_CELLS = "\t".join("012345678")

# ------------------------------------------------------------------------------------------ bytes and lines


@pytest.mark.parametrize(
    "task_name, content, expected",
    [
        ("CoLA", "\ufeffx\t1\t\ta\r\nx\t0\t\tb\r", [("train-0", "a", "1"), ("train-1", "b", "0")]),
        ("SST-2", "sentence\tlabel\r\ngood\t1\r\nbad\t0\r\n", [("train-1", "good", "1"), ("train-2", "bad", "0")]),
        # Blank lines are skipped but counted.
        ("CoLA", "x\t1\t\ta\n\n   \nx\t0\t\tb\n\n", [("train-0", "a", "1"), ("train-3", "b", "0")]),
        *(
            ("CoLA", f"x\t1\t\ta{separator}b\nx\t0\t\tc\n", [("train-0", f"a{separator}b", "1"), ("train-1", "c", "0")])
            for separator in "\u2028\u2029\u0085\u000b\u000c\u001c\r"
        ),
    ],
)
def test_only_line_feeds_end_a_row_and_are_not_part_of_the_text(tmp_path, task_name, content, expected):
    write_file(tmp_path, "train.tsv", content)
    assert [(guid, text, label) for guid, text, _, label in read(task_name, tmp_path)] == expected


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("a\n\r\ufeffé中😀\x85\u2028"), max_size=20),
    mark=st.sampled_from(["", "\ufeff"]),
    size=st.sampled_from([1, 2, 3, 4, 5, 7, 11, 1000]),
)
def test_lines_do_not_depend_on_the_block_size(tmp_path_factory, text, mark, size):
    path = write_file(tmp_path_factory.mktemp("lines"), "lines", mark + text)
    expected = (text if mark else text[1:] if text.startswith("\ufeff") else text).split("\n")
    expected = expected if expected[-1] else expected[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "BLOCK_SIZE", size)
        assert list(read_lines(path)) == [line[:-1] if line.endswith("\r") else line for line in expected]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_not_utf8_is_reported_with_its_line(tmp_path, monkeypatch, size, mark):
    monkeypatch.setattr(encodings, "BLOCK_SIZE", size)
    path = write_file(tmp_path, "train.tsv", mark + b"x\t1\t\tone\nx\t1\t\ttwo\ncaf\xe9 au lait\n")
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{path}, line 3", "0xe9", "iconv -f cp1252 -t utf-8")


@pytest.mark.parametrize(
    "task_name, content, facts",
    [
        ("CoLA", "x\t1\t\tfine\n\nthe tab\tis missing\n", ["line 3", "least 4", "found 2", r"'the tab\tis missing'"]),
        ("SST-2", "sentence,label\ngood,1\n", ["line 2", "least 2", "found 1", "'good,1'"]),
        # A spelling of XNLI only.
        ("MNLI", "header\n" + "\t".join("0123456789") + "\tcontradictory\n", ["line 2", "'contradictory'", "MNLI"]),
        *(("SST-2", empty, ["no examples", "SST-2"]) for empty in ("sentence\tlabel\n", "\n\n")),
        # A row that ends before its label: its last column is a text, which must not be read as the label.
        ("STS-B", f"header\n{STSB_CELLS}\n", ["line 2", "found 9", "least 10"]),
        *(
            ("STS-B", f"header\n\n{STSB_CELLS}\t{score}\n", ["line 3", "from 0 to 5", f"'{score}'"])
            for score in ("5.001", "-0.1", "nan", "high", "")
        ),
    ],
)
def test_a_bad_row_is_reported_with_file_and_line(tmp_path, task_name, content, facts):
    path = write_file(tmp_path, "train.tsv", content)
    message = message_of(read, task_name, tmp_path)
    assert message.startswith(path)
    assert_mentions(message, *facts)


def test_a_missing_file_is_reported_with_the_content_of_its_folder(tmp_path, monkeypatch):
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv does not exist", "nothing")
    write_file(tmp_path, "dev.tsv", "")
    write_file(tmp_path, "test.tsv", "")
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv does not exist", "dev.tsv, test.tsv")
    monkeypatch.chdir(tmp_path)
    assert_mentions(message_of(lambda: list(read_lines("train.tsv"))), "dev.tsv, test.tsv")
    assert_mentions(message_of(read_table, f"{tmp_path}/a.csv"), "a.csv does not exist", "dev.tsv, test.tsv")
    (tmp_path / "train.tsv").mkdir()
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv cannot be read")


def test_a_streamed_split_is_checked_at_once_and_can_be_read_repeatedly(tmp_path):
    task, folder = tasks.get("CoLA"), write_cola(str(tmp_path))
    split = tasks.StreamedSplit(task, folder, "train")
    in_memory = list(tasks.read_examples(task, folder, "train"))
    assert len(split) == len(in_memory) == 64
    assert as_tuples(split) == as_tuples(split) == as_tuples(in_memory)
    assert tasks.fingerprint(split) == split.fingerprint == tasks.fingerprint(in_memory)
    with open(os.path.join(folder, "dev.tsv"), "a") as file:
        file.write("x\tmaybe\t\tthe cat\n")
    assert_mentions(message_of(tasks.StreamedSplit, task, folder, "dev"), "dev.tsv, line 25", "'maybe'")


def test_fingerprints_are_those_that_earlier_runs_stored():
    """A run that is continued compares them: the bytes that are hashed must never change."""
    examples = [InputExample(str(i), f"text {i} 'é", f"b{i}" if i % 2 else None, "0") for i in range(1000)]
    examples.append(InputExample("x", "half a pair \ud800", None, 2.5))
    assert tasks.fingerprint(examples) == tasks.fingerprint(iter(examples)) == "sha256:1cc9063caf4472e4"


def test_short_rows_of_qqp_are_skipped_with_one_warning(tmp_path, log):
    """In the first published QQP, a line feed in a question breaks a few rows; `QQP-clean.zip` has none of them."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = '1\t11\t12\tWho?\tWhere?\t0\n2\t13\t14\t"Was he real?\n"\tWas he?\t0\n'
    path = write_file(tmp_path, "train.tsv", header + rows)
    split = tasks.StreamedSplit(tasks.get("QQP"), str(tmp_path), "train")
    assert [example.text_a for example in split] == [example.text_a for example in split] == ["Who?"]
    [warning] = [line for line in log if "skipped" in line]
    assert_mentions(warning, path, "2 of 3", "line 3")


# ----------------------------------------------------------------------------------------------- registry


def test_look_ups_ignore_case_hyphens_and_underscores():
    spellings = {
        "CoLA": "cola COLA",
        "SST-2": "sst2 SST_2",
        "MNLI": "mnli MNLI-m mnli_matched",
        "MNLI-mm": "mnlimm MNLI-mismatched",
        "STS-B": "stsb STS_B",
        "AX": "ax diagnostic",
        "XNLI": "xnli XNLI-zh",
        "XNLI-de": "xnli_DE",
    }
    for found, names in spellings.items():
        assert {tasks.get(name).name for name in names.split()} == {found}
    assert len(set(tasks.names())) == len(tasks.names()) == 11 + 15 + 17


@pytest.mark.parametrize(
    "typed, meant", [("CoLa2", "CoLA"), ("MRCP", "MRPC"), ("sst", "SST-2"), ("XNLI-dee", "XNLI-de"), ("zzzzzz", None)]
)
def test_an_unknown_task_is_reported_with_the_nearest_and_all_names(typed, meant):
    message = message_of(tasks.get, typed)
    assert_mentions(message, f"'{typed}'", ", ".join(tasks.names()))
    assert (f"'{meant}'" in message) == ("Did you mean" in message) == bool(meant)


def test_a_task_is_registered_unless_one_of_its_names_is_taken(monkeypatch):
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    split = Split("a.tsv", text_a=0, label=1)
    task = tasks.register(Task("Mine", labels=("0", "1"), train=split, aliases=("my-own",)))
    assert tasks.get("mine") is tasks.get("MYOWN") is task
    assert tasks.names()[-1] == "Mine"
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.labels = ("1", "0")
    before = dict(registry._TASKS)
    for name, alias in [("cola", "x"), ("CO-LA", "x"), ("New", "sst2"), ("New", "MNLI_matched")]:
        with pytest.raises(ValueError, match="is taken by"):
            tasks.register(dataclasses.replace(task, name=name, aliases=(alias,)))
    assert before == registry._TASKS


def test_a_notebook_can_subclass_the_base_processor(tmp_path):
    path = write_file(tmp_path, "mine.tsv", 'a\t"b\n\nc\td"\n')

    class Mine(processors.DataProcessor):
        def get_train_examples(self, data_dir):
            return self._read_tsv(os.path.join(data_dir, "mine.tsv"))

    assert Mine().get_train_examples(str(tmp_path)) == [["a", '"b'], ["c", 'd"']]
    for method in (Mine().get_dev_examples, Mine().get_test_examples):
        with pytest.raises(NotImplementedError):
            method(str(tmp_path))
    assert processors.DataProcessor._read_tsv(path, quotechar='"') == [["a", "b\n\nc\td"]]
    assert processors.DataProcessor._read_tsv(path, quotechar="'") == [["a", '"b'], ["c", 'd"']]
    broken = write_file(tmp_path, "broken.tsv", "a\n" + "b" * 200000 + "\n")
    assert_mentions(message_of(processors.DataProcessor._read_tsv, broken, quotechar='"'), f"{broken}, line 2")
