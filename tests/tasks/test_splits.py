"""A split that is read again and again is the same as one in memory, and says so when it no longer is."""

from __future__ import annotations

import hashlib
import os

import pytest

from adapter_bert import tasks
from adapter_bert.tasks import encodings
from adapter_bert.tasks.task import InputExample, read_lines
from tests.helpers import message_of, write_cola

HARD = "\ufeffone\r\ntwo\n\nthr\u00e9\u00e9 \u4e2d\U0001f600\r\n\r\n\x85 \u2028 x\r y\nlast"


@pytest.fixture
def cola(tmp_path):
    return write_cola(str(tmp_path / "cola"))


def parts(examples):
    return [(example.guid, example.text_a, example.text_b, example.label) for example in examples]


def test_a_split_can_be_gone_through_again_and_again(cola):
    task = tasks.get("CoLA")
    split = tasks.StreamedSplit(task, cola, "train")
    in_memory = list(tasks.read_examples(task, cola, "train"))
    assert len(split) == len(in_memory) == 64
    assert parts(split) == parts(split) == parts(in_memory)
    assert tasks.fingerprint(split) == split.fingerprint == tasks.fingerprint(in_memory)


def test_fingerprints_are_those_that_earlier_runs_have_noted():
    """Who continues a run compares them: the bytes that are hashed must never change."""
    examples = [InputExample(str(i), f"text {i} 'é", f"b{i}" if i % 2 else None, "0") for i in range(1000)]
    examples.append(InputExample("x", "half a pair \ud800", None, 2.5))
    lines = "".join(repr((e.text_a, e.text_b, e.label)) + "\n" for e in examples)
    expected = hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    assert tasks.fingerprint(examples) == tasks.fingerprint(iter(examples)) == "sha256:" + expected


def test_whatever_is_wrong_with_the_file_is_told_when_the_split_is_made(cola):
    with open(os.path.join(cola, "dev.tsv"), "a") as file:
        file.write("x\tmaybe\t\tthe cat\n")
    message = message_of(tasks.StreamedSplit, tasks.get("CoLA"), cola, "dev")
    assert "dev.tsv, line 25: unknown label 'maybe'" in message
    os.remove(os.path.join(cola, "dev.tsv"))
    assert "does not exist" in message_of(tasks.StreamedSplit, tasks.get("CoLA"), cola, "dev")


def test_a_file_that_is_changed_meanwhile_is_not_taken_for_the_one_that_was_read(cola):
    split = tasks.StreamedSplit(tasks.get("CoLA"), cola, "train")
    path = os.path.join(cola, "train.tsv")
    with open(path) as file:
        content = file.read()
    with open(path, "w") as file:
        file.write(content.replace("big", "BIG"))
    os.utime(path, (1, 1))  # the same length, and within what a clock can tell
    assert f"{path} was changed" in message_of(list, split)


def test_rows_that_are_left_out_are_told_once(tmp_path, log):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    (tmp_path / "train.tsv").write_text(header + "\n1\t2\t3\ta\tb\t0\n1\t2\t3\ta\n1\t2\t3\tc\td\t1\n")
    split = tasks.StreamedSplit(tasks.get("QQP"), str(tmp_path), "train")
    assert len(list(split)) == len(list(split)) == len(split) == 2
    assert [line for line in log if "left out" in line] == [
        f"{tmp_path}/train.tsv: 1 of 3 rows have too few columns and are left out; the first is line 3."
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 11, 1000])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", "\r"])
def test_lines_do_not_depend_on_the_blocks_that_are_read(tmp_path, monkeypatch, size, end):
    monkeypatch.setattr(encodings, "BLOCK_SIZE", size)
    path = tmp_path / "lines"
    path.write_bytes((HARD + end).encode("utf-8"))
    expected = (HARD + end)[1:].split("\n")
    expected = expected if expected[-1] else expected[:-1]
    assert list(read_lines(str(path))) == [line[:-1] if line.endswith("\r") else line for line in expected]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_byte_that_is_no_utf8_is_told_with_its_line_wherever_blocks_end(tmp_path, monkeypatch, size):
    monkeypatch.setattr(encodings, "BLOCK_SIZE", size)
    path = tmp_path / "train.tsv"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo\ncaf\xe9 au lait\n")
    message = message_of(lambda: list(read_lines(str(path))))
    assert message.startswith(f"{path}, line 3: byte 0xe9 is not UTF-8; if the file is cp1252")
