"""Reading the files of a task, the registry, streamed splits, fingerprints and the original data processors."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert import tasks
from adapter_bert.tasks import encodings, processors, registry
from adapter_bert.tasks.task import InputExample, Split, Task, read_lines
from tests.helpers import as_tuples, assert_mentions, message_of, write_cola, write_file


def read(task_name: str, folder, split: str = "train") -> list:
    return as_tuples(tasks.read_examples(tasks.get(task_name), str(folder), split))


# ------------------------------------------------------------------------------------------ bytes and lines

LINE = b"gj04\t1\t\tA sentence."


@pytest.mark.parametrize(
    "content",
    [
        LINE + b"\n" + LINE + b"\n",
        LINE + b"\n" + LINE,
        LINE + b"\r\n" + LINE + b"\r\n",
        LINE + b"\r\n" + LINE,
        b"\xef\xbb\xbf" + LINE + b"\n" + LINE,
    ],
    ids=["unix", "no final newline", "windows", "windows, no final newline", "byte order mark"],
)
def test_line_ends_and_byte_order_marks_are_not_part_of_the_text(tmp_path, content):
    write_file(tmp_path, "train.tsv", content)
    assert read("CoLA", tmp_path) == [(f"train-{index}", "A sentence.", None, "1") for index in range(2)]


@pytest.mark.parametrize(
    "task_name, content, expected",
    [
        ("SST-2", "sentence\tlabel\r\ngood\t1\r\nbad\t0\r\n", [("train-1", "good", "1"), ("train-2", "bad", "0")]),
        # Blank lines are skipped but counted.
        ("CoLA", "x\t1\t\ta\n\n   \nx\t0\t\tb\n\n", [("train-0", "a", "1"), ("train-3", "b", "0")]),
        *(
            ("CoLA", f"x\t1\t\ta{separator}b\nx\t0\t\tc\n", [("train-0", f"a{separator}b", "1"), ("train-1", "c", "0")])
            for separator in "\u2028\u2029\u0085\u000b\u000c\u001c\r"
        ),
    ],
)
def test_only_line_feeds_end_a_row(tmp_path, task_name, content, expected):
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


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "task_name, content, facts",
    [
        ("CoLA", "x\t1\t\tfine\n\nthe tab\tis missing\n", ["line 3", "least 4", "found 2", r"'the tab\tis missing'"]),
        ("SST-2", "sentence,label\ngood,1\n", ["line 2", "least 2", "found 1", "'good,1'"]),
        ("CoLA", "x\t1\t\tfine\nx\tgood\t\tnot fine\n", ["line 2", "'good'", "CoLA", "0, 1"]),
        # A spelling of XNLI only.
        ("MNLI", "header\n" + "\t".join("0123456789") + "\tcontradictory\n", ["line 2", "'contradictory'", "MNLI"]),
        ("SST-2", "", ["no examples", "SST-2"]),
        ("SST-2", "sentence\tlabel\n", ["no examples", "SST-2"]),
        ("SST-2", "\n\n", ["no examples", "SST-2"]),
    ],
)
def test_a_bad_row_is_reported_with_file_and_line(tmp_path, task_name, content, facts):
    path = write_file(tmp_path, "train.tsv", content)
    message = message_of(read, task_name, tmp_path)
    assert message.startswith(path)
    assert_mentions(message, *facts)


def test_a_missing_file_is_reported_with_what_is_in_its_folder(tmp_path, monkeypatch):
    missing = tmp_path / "nowhere"
    assert_mentions(message_of(read, "CoLA", missing), missing, "folder", "does not exist")
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv does not exist", "nothing")
    write_file(tmp_path, "dev.tsv", "")
    write_file(tmp_path, "test.tsv", "")
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv does not exist", "dev.tsv, test.tsv")
    monkeypatch.chdir(tmp_path)
    assert_mentions(message_of(lambda: list(read_lines("train.tsv"))), "dev.tsv, test.tsv")
    (tmp_path / "train.tsv").mkdir()
    assert_mentions(message_of(read, "CoLA", tmp_path), f"{tmp_path}/train.tsv cannot be read")


# ------------------------------------------------------------------------------------------------- splits


def test_a_streamed_split_can_be_read_repeatedly(tmp_path):
    task, folder = tasks.get("CoLA"), write_cola(str(tmp_path))
    split = tasks.StreamedSplit(task, folder, "train")
    in_memory = list(tasks.read_examples(task, folder, "train"))
    assert len(split) == len(in_memory) == 64
    assert as_tuples(split) == as_tuples(split) == as_tuples(in_memory)
    assert tasks.fingerprint(split) == split.fingerprint == tasks.fingerprint(in_memory)


def test_fingerprints_are_those_that_earlier_runs_stored():
    """A run that is continued compares them: the bytes that are hashed must never change."""
    examples = [InputExample(str(i), f"text {i} 'é", f"b{i}" if i % 2 else None, "0") for i in range(1000)]
    examples.append(InputExample("x", "half a pair \ud800", None, 2.5))
    assert tasks.fingerprint(examples) == tasks.fingerprint(iter(examples)) == "sha256:1cc9063caf4472e4"


def test_a_streamed_split_checks_its_file_at_once(tmp_path):
    task, folder = tasks.get("CoLA"), write_cola(str(tmp_path))
    with open(os.path.join(folder, "dev.tsv"), "a") as file:
        file.write("x\tmaybe\t\tthe cat\n")
    assert_mentions(message_of(tasks.StreamedSplit, task, folder, "dev"), "dev.tsv, line 25", "'maybe'")
    os.remove(os.path.join(folder, "dev.tsv"))
    assert_mentions(message_of(tasks.StreamedSplit, task, folder, "dev"), "dev.tsv does not exist")


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


@pytest.mark.parametrize(
    "found, names",
    [
        ("CoLA", "cola COLA"),
        ("SST-2", "sst2 SST_2"),
        ("MRPC", "mrpc"),
        ("MNLI", "mnli MNLI-m mnli_matched"),
        ("MNLI-mm", "mnlimm MNLI-mismatched"),
        ("RTE", "rte"),
        ("STS-B", "stsb STS_B"),
        ("QQP", "qqp"),
        ("QNLI", "Qnli"),
        ("WNLI", "wnli"),
        ("AX", "ax diagnostic"),
        ("XNLI", "xnli XNLI-zh"),
        ("XNLI-de", "xnli_DE"),
    ],
)
def test_look_ups_ignore_case_hyphens_and_underscores(found, names):
    assert {tasks.get(name).name for name in names.split()} == {found}
    assert tasks.names().count(found) == 1


@pytest.mark.parametrize(
    "typed, meant", [("CoLa2", "CoLA"), ("MRCP", "MRPC"), ("sst", "SST-2"), ("XNLI-dee", "XNLI-de"), ("zzzzzz", None)]
)
def test_an_unknown_task_is_reported_with_the_nearest_and_all_names(typed, meant):
    message = message_of(tasks.get, typed)
    assert_mentions(message, f"'{typed}'", ", ".join(tasks.names()))
    assert (f"'{meant}'" in message) == ("Did you mean" in message) == bool(meant)


@pytest.fixture
def fresh_registry(monkeypatch):
    """A registry that a test may modify."""
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))


def make_task(name: str, *aliases: str) -> Task:
    return Task(name, labels=("0", "1"), train=Split("a.tsv", text_a=0, label=1), aliases=aliases)


def test_a_registered_task_is_found_and_listed(fresh_registry):
    task = registry.register(make_task("Mine", "my-own"))
    assert tasks.get("mine") is tasks.get("MYOWN") is task
    assert tasks.names()[-1] == "Mine"


@pytest.mark.parametrize("name, aliases", [("cola", ()), ("CO-LA", ()), ("New", ("sst2",)), ("New", ("MNLI_matched",))])
def test_a_taken_name_raises_an_error_and_registers_nothing(fresh_registry, name, aliases):
    before = dict(registry._TASKS)
    with pytest.raises(ValueError, match="is taken by"):
        registry.register(make_task(name, *aliases))
    assert before == registry._TASKS


def test_a_task_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tasks.get("CoLA").labels = ("1", "0")


# --------------------------------------------------------------------------------------------- processors


def test_a_notebook_can_subclass_the_base_processor(tmp_path):
    path = write_file(tmp_path, "mine.tsv", 'a\t"b\n\nc\td"\n')

    class Mine(processors.DataProcessor):
        def get_train_examples(self, data_dir):
            return self._read_tsv(os.path.join(data_dir, "mine.tsv"))

    assert Mine().get_train_examples(str(tmp_path)) == [["a", '"b'], ["c", 'd"']]
    for method in (Mine().get_dev_examples, Mine().get_test_examples):
        with pytest.raises(NotImplementedError):
            method(str(tmp_path))
    with pytest.raises(ValueError, match="Quoting is not supported"):
        processors.DataProcessor._read_tsv(path, quotechar='"')
