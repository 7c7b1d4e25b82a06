"""A user's own files are read as their owner means them, and what cannot be used is said in one sentence."""

from __future__ import annotations

import collections
import csv
import dataclasses
import gzip
import io
import json
import os
import re
import shlex
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sklearn.utils.class_weight import compute_class_weight

from adapter_bert.common.errors import UserError
from adapter_bert.tasks import custom
from adapter_bert.tasks.custom.dataset import CustomData
from adapter_bert.tasks.custom.labels import parse_list, parse_map
from adapter_bert.tasks.custom.tables import TableFormat, read_table
from adapter_bert.tasks.task import InputExample
from tests.helpers import ROOT, SHARED

TEXT_DATA = os.path.join(SHARED, "data", "text")


def write(folder, name: str, content) -> str:
    """Writes a file below a folder, byte by byte as given; returns its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def cells(path: str, *columns: str, **options) -> list:
    """The cells of the columns, row by row."""
    table = read_table(path, columns, TableFormat(**options))
    positions = [table.find(column) for column in columns]
    return [tuple(table.text(row, position) for position in positions) for row in table.rows]


def lines(path: str, *columns: str, **options) -> list:
    return [row.number for row in read_table(path, columns, TableFormat(**options)).rows]


def message_of(function, *args, **kwargs) -> str:
    """The one sentence that a call fails with."""
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and "\r" not in message
    return message


@pytest.fixture
def logged(monkeypatch):
    """What is logged, by level."""
    found = collections.defaultdict(list)
    for level in ("info", "warning"):
        monkeypatch.setattr(tf.logging, level, lambda text, *args, level=level: found[level].append(text % args))
    return found


# ---------------------------------------------------------------------------------------------- encodings

SENTENCE = "Ça coûte 3 €, naïvely"
ROWS = f'text,label\nplain,x\n"{SENTENCE}",y\n'


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "utf-16-le BOM", "utf-16-be BOM", "utf-32-be BOM"]
)
def test_the_encoding_is_found_out(tmp_path, logged, encoding):
    name, _, mark = encoding.partition(" ")
    path = write(tmp_path, "a.csv", (("\ufeff" if mark else "") + ROWS).encode(name))
    assert cells(path, "text", "label") == [("plain", "x"), (SENTENCE, "y")]
    assert len(logged["warning"]) == (0 if encoding.startswith("utf-8") else 1)


def test_a_file_that_is_not_utf8_is_read_as_windows_1252_with_one_warning(tmp_path, logged):
    path = write(tmp_path, "a.csv", b"text,label\rplain,x\r\x93caf\xe9\x94,y\r\x93,z\r")
    assert cells(path, "text") == [("plain",), ("“café”",), ("“",)]
    assert logged["warning"] == [
        f"{path}, line 3: byte 0x93 is not UTF-8; read as windows-1252 (cp1252); --encoding chooses another."
    ]


def test_bytes_that_windows_1252_does_not_have_are_read_as_latin_1(tmp_path, logged):
    path = write(tmp_path, "a.csv", b"text,label\r\nplain,x\r\ncaf\xe9 \x9d,y\r\n")
    assert cells(path, "text")[1] == ("café \x9d",)
    assert "line 3: byte 0xe9 is not UTF-8; read as latin-1" in logged["warning"][0]


def test_a_given_encoding_is_taken_without_a_warning(tmp_path, logged):
    path = write(tmp_path, "a.csv", ROWS.replace("€", "e").encode("mac-roman"))
    assert cells(path, "text", encoding="mac-roman")[1] == (SENTENCE.replace("€", "e"),)
    assert not logged["warning"]


def test_a_byte_order_mark_is_no_part_of_the_first_column_whatever_the_encoding(tmp_path):
    path = write(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\ncaf\xe9,x\n")
    assert cells(path, "text", encoding="latin-1") == [("café",)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_given_encoding_that_does_not_fit_names_line_byte_and_a_better_one(tmp_path, end):
    path = write(tmp_path, "a.csv", end.join([b"text,label", b"plain,x", b"caf\xe9,y", b""]))
    message = message_of(read_table, path, ["text"], TableFormat(encoding="utf-8"))
    assert message == f"{path}, line 3: byte 0xe9 is not utf-8; this encoding decodes the file: --encoding=cp1252."
    utf8 = write(tmp_path, "b.csv", end.join([b"text,label", "é,x".encode(), b""]))
    assert "line 2: byte 0xc3 is not ascii; this encoding decodes the file: --encoding=utf-8." in message_of(
        read_table, utf8, ["text"], TableFormat(encoding="ascii")
    )


def test_a_damaged_file_with_a_utf8_mark_is_not_guessed_at(tmp_path):
    path = write(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\ncaf\xe9,x\n")
    assert "line 2: byte 0xe9 is not utf-8" in message_of(read_table, path, ["text"])


@pytest.mark.parametrize("encoding", ["utf-9", "hex"])
def test_an_unknown_encoding_is_named(tmp_path, encoding):
    path = write(tmp_path, "a.csv", ROWS)
    assert f"Unknown --encoding '{encoding}'" in message_of(read_table, path, ["text"], TableFormat(encoding=encoding))


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content, kind, remedy",
    [
        (zipped(), "an Excel workbook (.xlsx) or another ZIP archive", "save the sheet as CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100), "an old Excel workbook", "save the sheet as CSV"),
        (gzip.compress(ROWS.encode()), "compressed with gzip", "decompress"),
        (b"%PDF-1.4 and so on", "a PDF document", "CSV"),
    ],
    ids=["xlsx", "xls", "gzip", "pdf"],  # not the bytes: an archive holds the time, and names of tests must not change
)
def test_a_file_that_is_no_text_is_recognised(tmp_path, content, kind, remedy):
    message = message_of(read_table, write(tmp_path, "a.csv", content), ["text"])
    assert f"is no text: it seems to be {kind}" in message and remedy in message


def test_nul_bytes_are_no_text(tmp_path):
    path = write(tmp_path, "a.csv", b"text,label\nsome thing,\0\n")
    assert f"{path}, line 2: a NUL byte" in message_of(read_table, path, ["text"])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_suggested_and_then_read(tmp_path, encoding):
    path = write(tmp_path, "a.csv", "text,label\nfine,x\n".encode(encoding))
    assert f"give --encoding={encoding}." in message_of(read_table, path, ["text"])
    assert cells(path, "text", encoding=encoding) == [("fine",)]


# ------------------------------------------------------------------------------------------- CSV and TSV


def test_csv_gives_what_was_written_whatever_the_cells_hold(tmp_path):
    written = [("a, b; c\td", "x"), ('he said "no"', "y"), ("two\nlines\r\nor\rfour", "z"), (" blanks ", "")] * 30
    for delimiter in ",;":
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, delimiter=delimiter)
        writer.writerows([("text", "label")] + written)
        path = write(tmp_path, "a.csv", buffer.getvalue())
        assert cells(path, "text", "label") == written


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_every_line_end_is_known_and_rows_have_the_line_they_start_in(tmp_path, end, final):
    text = end.join(["text,label", f'"one{end}two",x', "", "three,y"]) + (end if final else "")
    path = write(tmp_path, "a.csv", text)
    assert cells(path, "text", "label") == [(f"one{end}two", "x"), ("three", "y")]
    assert lines(path, "text") == [2, 5]


def test_other_unicode_line_breaks_end_no_line(tmp_path):
    for name in ("a.csv", "a.tsv"):
        separator = "," if name == "a.csv" else "\t"
        path = write(tmp_path, name, f"text{separator}label\na\u2028b\x0bc\x85d{separator}x\n")
        assert cells(path, "text") == [("a\u2028b\x0bc\x85d",)]


def test_quotes_are_text_in_tsv_unless_told_otherwise(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"one\tx\n"two"\ty\n')
    assert cells(path, "text") == [('"one',), ('"two"',)]
    path = write(tmp_path, "b.tsv", 'text\tlabel\n"a\tb\nc"\tx\n')
    assert cells(path, "text", quoting=True) == [("a\tb\nc",)]


def test_quotes_are_text_in_csv_when_told_so(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one,x\ntwo",y\n')
    assert cells(path, "text", "label", quoting=False) == [('"one', "x"), ('two"', "y")]


def test_a_carriage_return_inside_a_line_of_a_tsv_file_is_text(tmp_path):
    path = write(tmp_path, "a.tsv", "text\tlabel\none\rtwo\tx\r\n")
    assert cells(path, "text", "label") == [("one\rtwo", "x")]


@pytest.mark.parametrize(
    "header", ["text;label", '"text";"label"', 'a;"b,c,d,e";text;label', "text;label;price, net, gross, vat"]
)
def test_a_semicolon_is_found_to_separate(tmp_path, header):
    width = next(csv.reader([header], delimiter=";"))
    row = ";".join({"text": "1,5 litres, or 2,0", "label": "x"}.get(name, "0") for name in width)
    path = write(tmp_path, "a.csv", f"{header}\n{row}\n{row}\n")
    assert cells(path, "text", "label") == [("1,5 litres, or 2,0", "x")] * 2


def test_semicolons_in_the_texts_of_a_comma_separated_file_separate_nothing(tmp_path):
    path = write(tmp_path, "a.csv", "good; very; good,x\nbad,y\n")
    assert cells(path, "1", "2") == [("good; very; good", "x"), ("bad", "y")]


def test_a_csv_file_with_tabs_between_its_cells_is_read_as_tsv(tmp_path):
    path = write(tmp_path, "newsCorpora.csv", '1\t"Fed, again\tb\n2\tOil, gas, coal\tb\n')
    assert cells(path, "2", "3") == [('"Fed, again', "b"), ("Oil, gas, coal", "b")]


def test_a_cell_may_be_larger_than_the_csv_module_s_limit(tmp_path):
    limit = csv.field_size_limit()
    path = write(tmp_path, "a.csv", "text,label\n{},x\n".format("a" * (limit + 5)))
    assert len(cells(path, "text")[0][0]) == limit + 5
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_quote_that_never_closes_is_reported_with_the_line_it_opens_in(tmp_path, end):
    rows = ["text,label", f'"fine{end}really",x', 'good,"y', "more,z", "and more,z", ""]
    path = write(tmp_path, "a.csv", end.join(rows))
    message = message_of(read_table, path, ["text"])
    assert message.startswith(f"{path}, line 4: a quoted cell opens here and never ends.")
    assert "--quoting=false" in message


def test_a_quote_that_closes_inside_a_cell_is_reported_with_both_lines(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"never closed,x\nfine,y\n"quoted",z\n')
    message = message_of(read_table, path, ["text"])
    assert f"{path}, line 2: a quoted cell opens here, and behind the quote that closes it in line 4" in message
    assert "stands 'quoted" in message


# ----------------------------------------------------------------------------------------------- columns


def test_columns_are_chosen_by_name_with_blanks_around_them_ignored(tmp_path):
    path = write(tmp_path, "a.csv", "id, text ,label\n1,one,x\n")
    assert cells(path, "label", " text") == [("x", "one")]


def test_a_column_s_name_may_run_over_lines_in_the_file(tmp_path):
    path = write(tmp_path, "a.csv", '"text\r\n(English)",label\none,x\n')
    assert cells(path, "text (English)", "label") == [("one", "x")]
    assert lines(path, "text (English)", "label") == [3]


def test_columns_given_as_numbers_mean_that_there_is_no_header(tmp_path):
    path = write(tmp_path, "a.tsv", "x\tone\ny\ttwo\n")
    assert cells(path, "2", "1") == [("one", "x"), ("two", "y")]
    assert lines(path, "2") == [1, 2]


def test_a_header_can_be_insisted_on(tmp_path):
    path = write(tmp_path, "a.tsv", "label\ttext\ny\ttwo\n")
    assert cells(path, "2", "1", header=True) == [("two", "y")]
    path = write(tmp_path, "b.tsv", "2\t1\ny\ttwo\n")
    assert cells(path, "2", "1", header=True) == [("y", "two")]


def test_an_unknown_column_is_named_beside_those_that_exist(tmp_path):
    path = write(tmp_path, "a.csv", "id,tweet,label\n1,one,x\n")
    table = read_table(path, ["tweets", "label"])
    assert message_of(table.find, "tweets", "--text_column") == (
        f"{path} (comma-separated, header in line 1): Unknown --text_column 'tweets'. Did you mean 'tweet'? Available: "
        "id, tweet, label. If the file has no header, give the columns' numbers, counted from 1."
    )


def test_a_number_beyond_the_columns_is_refused(tmp_path):
    path = write(tmp_path, "a.csv", "one,x\ntwo,y\n")
    table = read_table(path, ["3", "2"])
    message = message_of(table.find, "3", "--text_column")
    assert "Unknown --text_column '3'." in message and "Available: 1, 2." in message and "--header=true" in message
    assert "Unknown column 'text'" in message_of(read_table(path, ["text"], TableFormat(header=False)).find, "text")


def test_a_name_that_two_columns_have_is_refused_only_where_it_is_used(tmp_path):
    path = write(tmp_path, "a.csv", "text,label,label\none,x,y\n")
    table = read_table(path, ["text", "label"])
    assert table.find("text") == 0
    assert "2 columns are named 'label', numbers 2 and 3; --label_column" in message_of(
        table.find, "label", "--label_column"
    )
    assert table.find("3") == 2


def test_a_row_without_the_cell_that_is_used_is_reported(tmp_path):
    path = write(tmp_path, "a.csv", "id,text,label\n1,one,x\n2,two\n")
    assert message_of(cells, path, "text", "label") == (
        f"{path}, line 3: found 2 cells (comma-separated, header in line 1), expected 3: the cell of column 'label' is "
        "missing."
    )
    assert cells(path, "text") == [("one",), ("two",)]


def test_empty_cells_beyond_the_header_are_fine_and_others_are_not(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\none,x,,\n")
    assert cells(path, "text", "label") == [("one", "x")]
    path = write(tmp_path, "b.csv", "text,label\none,x\nwell, well,y\n")
    message = message_of(read_table, path, ["text"])
    assert f"{path}, line 3: found 3 cells (comma-separated, header in line 1), expected 2" in message
    assert "a comma inside a cell" in message


@pytest.mark.parametrize(
    "content, said",
    [("", "is empty"), ("\n \n", "is empty"), ('""\n', "no row"), ("text,label\n", "no row"), ("[]", "no row")],
)
def test_a_file_without_a_row_is_refused(tmp_path, content, said):
    path = write(tmp_path, "a.json" if content == "[]" else "a.csv", content)
    assert said in message_of(read_table, path, ["text"])


def test_a_missing_file_is_named_beside_what_is_there(tmp_path):
    write(tmp_path, "train.csv", ROWS)
    path = str(tmp_path / "trian.csv")
    assert message_of(read_table, path) == f"The data file {path} does not exist; the folder holds: train.csv."
    assert message_of(read_table, str(tmp_path / "no" / "a.csv")) == f"The data folder {tmp_path}/no does not exist."


# -------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "without_extension"])
def test_json_lines_are_read(tmp_path, name):
    path = write(
        tmp_path, name, '{"text": "a, \\u00e9\\n", "label": 1}\r\n\r\n{"label": true, "text": "b", "x": [1]}\r\n'
    )
    assert cells(path, "text", "label") == [("a, é\n", "1"), ("b", "true")]
    assert lines(path, "text") == [1, 3]


def test_a_json_array_of_objects_is_read(tmp_path):
    path = write(tmp_path, "a.json", json.dumps([{"text": "a", "label": 0.5}, {"text": None, "label": "x"}], indent=1))
    assert cells(path, "text", "label") == [("a", "0.5"), ("", "x")]


@pytest.mark.parametrize(
    "second, said",
    [
        ("{'text': 1}", "line 2: expected one JSON object per line, found \"{'text': 1}\""),
        ('["a"]', 'line 2: expected a JSON object {…}, found ["a"].'),
        ('{"text": "b", "labels": 1}', "line 2: no key 'label'; the object's keys: text, labels."),
        (
            '{"text": ["b"], "label": 1}',
            "line 2: expected a text, a number, true, false or null under 'text', found [\"b",
        ),
    ],
)
def test_a_bad_line_of_json_is_reported(tmp_path, second, said):
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": 0}\n' + second + "\n")
    assert said in message_of(cells, path, "text", "label")


def test_a_json_array_that_is_cut_off_is_reported(tmp_path):
    assert "is no JSON array" in message_of(read_table, write(tmp_path, "a.json", '[{"text": "a"},'))


def test_a_key_that_no_object_has_is_unknown(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": 0}\n')
    assert "Unknown column 'txt'. Did you mean 'text'?" in message_of(cells, path, "txt")


# ----------------------------------------------------------------------------------- folders and archives

POSTS = {
    "train/b.two/10": b"second class",
    "train/a.one/2": b"caf\xe9",
    "train/a.one/10": b"first",
    "train/a.one/.hidden": b"\0",
    "train/README": b"no example",
    "test/a.one/1": b"a test",
}


def write_archive(folder, name: str, files: dict) -> str:
    path = str(folder / name)
    mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2"}.get(name.split(".")[-1], "w")
    with tarfile.open(path, mode) as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(params=["folder", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2"])
def posts(request, tmp_path) -> str:
    """A path of the training part of the posts."""
    if request.param == "folder":
        for name, content in POSTS.items():
            write(tmp_path, name, content)
        return str(tmp_path / "train")
    return write_archive(tmp_path, request.param, POSTS) + "//train"


def test_files_in_folders_are_rows_with_the_folder_as_label_in_the_order_of_their_names(posts, logged):
    assert cells(posts, "text", "label") == [("first", "a.one"), ("café", "a.one"), ("second class", "b.two")]
    assert logged["warning"][0] == f"{posts}: left out 1 outside the label folders, e.g. README."
    assert f"{posts}: 1 of 3 files are not UTF-8, the first: a.one/2, line 1: byte 0xe9" in logged["warning"][1]
    assert len(logged["warning"]) == 2


def test_a_whole_archive_can_be_read_and_leaves_nothing_behind(tmp_path):
    path = write_archive(
        tmp_path, "a.tar.gz", {"README": b"", "train/x/1": b"a", "./test/x/1": b"b", "test/y/.z": b"c"}
    )
    assert cells(path, "text", "label") == [("b", "x"), ("a", "x")]
    assert os.listdir(str(tmp_path)) == ["a.tar.gz"]


def test_a_folder_that_an_archive_does_not_have_is_named(tmp_path):
    path = write_archive(tmp_path, "a.tar", POSTS)
    message = message_of(read_table, path + "//trian")
    assert f"Unknown folder of {path} 'trian'. Did you mean 'train'? Available: test, train." == message


def test_folders_without_label_folders_and_damaged_archives_are_refused(tmp_path):
    path = write_archive(tmp_path, "a.tar", {"a.one/1": b"x"})
    assert "has no folder with files in it" in message_of(read_table, path + "//a.one")
    damaged = write(tmp_path, "b.tar.gz", gzip.compress(b"x" * 5000)[:-12])
    assert f"{damaged} is no tar archive, or a damaged one" in message_of(read_table, damaged)


def test_a_file_of_a_folder_that_is_no_text_is_named(tmp_path):
    path = write_archive(tmp_path, "a.tar", {"x/1": b"fine", "y/2": b"%PDF-1.4"})
    assert f"{path}, file y/2 is no text" in message_of(read_table, path)


# ---------------------------------------------------------------------------------------- tasks and splits


def table_of(*rows, header: str = "text,label") -> str:
    return "\n".join([header] + [",".join(row) for row in rows]) + "\n"


def many(count: int, labels=("no", "yes"), start: int = 0) -> list:
    return [(f"text {index}", labels[index % len(labels)]) for index in range(start, start + count)]


def read(data: CustomData, *wanted: str, stored=None):
    return custom.read("Mine", data, wanted, stored)


def plain(examples) -> list:
    return [(example.guid, example.text_a, example.text_b, example.label) for example in examples]


def test_a_task_is_learnt_from_its_files(tmp_path, logged):
    train = write(tmp_path, "train.csv", table_of(("good", " yes"), ("bad", "no "), ("fine", "yes")))
    dev = write(tmp_path, "dev.csv", table_of(("so so", "no")))
    test = write(tmp_path, "test.csv", "id,text\n1,unknown\n2,\n")
    task, examples = read(CustomData(train, dev, test), "train", "dev", "test")
    assert (task.name, task.labels, task.metrics) == ("Mine", ("no", "yes"), ("accuracy", "macro_f1", "matthews"))
    assert {split: plain(rows) for split, rows in examples.items()} == {
        "train": [("train-2", "good", None, "yes"), ("train-3", "bad", None, "no"), ("train-4", "fine", None, "yes")],
        "dev": [("dev-2", "so so", None, "no")],
        "test": [("test-2", "unknown", None, "no"), ("test-3", "", None, "no")],
    }
    assert logged["info"] == ["Mine: 3 train rows: yes 2, no 1", "Mine: 1 dev rows: no 1", "Mine: 2 test rows"]
    assert logged["warning"] == [f"{test}, line 3: no text; 1 of 2 test rows are like this, and are kept."]


def test_pairs_are_read_and_left_out_only_where_both_texts_are_empty(tmp_path, logged):
    rows = [("a", "b", "0"), ("", "b", "1"), ("", " ", "1"), ("a", "", "0")]
    path = write(tmp_path, "a.csv", table_of(*rows, header="one,two,label"))
    data = CustomData(path, text_column="one", text_pair_column="two", dev_fraction=0)
    _, examples = read(data, "train")
    assert plain(examples["train"]) == [
        ("train-2", "a", "b", "0"),
        ("train-3", "", "b", "1"),
        ("train-5", "a", "", "0"),
    ]
    assert logged["warning"] == [f"{path}, line 4: no text; 1 of 4 rows are left out for that, this is the first."]


@pytest.mark.parametrize(
    "found, order",
    [
        (("10", "9", "-1"), ("-1", "9", "10")),
        (("10", "9", "b"), ("10", "9", "b")),
        (("0.5", "10", "9"), ("0.5", "10", "9")),
    ],
)
def test_labels_are_in_the_order_of_numbers_if_all_are_integers_else_of_texts(tmp_path, found, order):
    path = write(tmp_path, "a.csv", table_of(*many(12, found)))
    assert read(CustomData(path), "train")[0].labels == order


def test_the_dev_rows_are_the_same_and_never_trained_on_whatever_is_wanted(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(200, ("a", "a", "a", "b")), ("rare", "c")))
    data = CustomData(path)
    both = read(data, "train", "dev")[1]
    train, dev = plain(both["train"]), plain(both["dev"])
    assert plain(read(data, "train")[1]["train"]) == train
    assert plain(read(data, "dev")[1]["dev"]) == dev
    assert plain(read(data, "dev", stored=("a", "b", "c"))[1]["dev"]) == dev
    numbers = [[int(row[0].split("-")[1]) for row in rows] for rows in (train, dev)]
    assert numbers[0] == sorted(numbers[0]) and numbers[1] == sorted(numbers[1])
    assert sorted(numbers[0] + numbers[1]) == list(range(2, 203))
    assert collections.Counter(row[3] for row in dev) == {"a": 15, "b": 5}
    assert plain(read(CustomData(path, split_seed=2), "dev")[1]["dev"]) != dev


def test_rows_with_the_same_text_are_on_the_same_side(tmp_path):
    """A tweet and its retweets: what is scored must not have been trained on."""
    texts = [(f"text {index // 3}", "ab"[index // 3 % 2]) for index in range(300)]
    path = write(tmp_path, "a.csv", table_of(*texts))
    splits = read(CustomData(path), "train", "dev")[1]
    trained, scored = ({example.text_a for example in splits[name]} for name in ("train", "dev"))
    assert len(trained) == 90 and len(scored) == 10
    assert not trained & scored
    assert len(splits["train"]) + len(splits["dev"]) == 300


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("rows", [4, 7, 60])
def test_every_label_stays_in_the_training_part_and_a_small_file_gives_a_dev_row_of_each(tmp_path, rows, fraction):
    path = write(tmp_path, "a.csv", table_of(*many(rows), ("rare", "c"), ("rare", "c")))
    _, examples = read(CustomData(path, dev_fraction=fraction), "train", "dev")
    assert {example.label for example in examples["train"]} == {"no", "yes", "c"}
    assert len(examples["dev"]) >= 1
    assert len(examples["train"]) + len(examples["dev"]) == rows + 2
    assert not {example.guid[6:] for example in examples["train"]} & {example.guid[4:] for example in examples["dev"]}


def test_nothing_is_split_off_where_a_dev_file_is_given_or_the_fraction_is_0(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(40)))
    assert len(read(CustomData(path, dev_fraction=0), "train")[1]["train"]) == 40
    _, examples = read(CustomData(path, dev_file=path), "train", "dev")
    assert len(examples["train"]) == len(examples["dev"]) == 40
    assert "Evaluation needs --dev_file, or a --dev_fraction above 0" in message_of(
        read, CustomData(path, dev_fraction=0), "dev"
    )


def test_a_file_too_small_to_split_is_trained_on_whole_and_cannot_be_evaluated(tmp_path):
    path = write(tmp_path, "a.csv", table_of(("one", "a"), ("two", "b")))
    assert len(read(CustomData(path), "train")[1]["train"]) == 2
    assert "too few rows per label" in message_of(read, CustomData(path), "train", "dev")


def test_missing_files_are_asked_for(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    assert "--train_file" in message_of(read, CustomData(dev_file=path), "train")
    assert "--test_file" in message_of(read, CustomData(path), "test")
    assert "--dev_file" in message_of(read, CustomData(), "dev")
    with pytest.raises(ValueError, match="Splits are"):
        read(CustomData(path), "eval")


# ------------------------------------------------------------------------------------------ stored labels


def test_stored_labels_stand_in_for_the_training_file(tmp_path):
    test = write(tmp_path, "test.csv", "text\none\n")
    data = CustomData(train_file=str(tmp_path / "gone.csv"), test_file=test)
    assert read(data, "test", stored=["y", "x"])[0].labels == ("y", "x")
    assert read(CustomData(test_file=test, labels=("b", "a")), "test")[0].labels == ("b", "a")


def test_without_any_source_of_labels_they_are_asked_for(tmp_path):
    test = write(tmp_path, "test.csv", "text\none\n")
    message = message_of(read, CustomData(test_file=test), "test")
    assert "--labels" in message and "--output_dir" in message and "--init_checkpoint" in message


def test_the_training_file_is_read_for_its_labels_if_nothing_is_stored(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    test = write(tmp_path, "test.csv", "text\none\n")
    task, examples = read(CustomData(path, test_file=test), "test")
    assert task.labels == ("no", "yes") and list(examples) == ["test"]


def test_labels_that_differ_from_the_stored_ones_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    message = message_of(read, CustomData(path), "train", stored=("maybe", "no"))
    assert "had the labels maybe, no; now they are no, yes." in message and "--output_dir" in message
    assert "had the labels no, yes; now they are (numbers)" in message_of(
        read, CustomData(dev_file=path, task_type="regression"), "dev", stored=("no", "yes")
    )
    assert "now they are yes, no" in message_of(
        read, CustomData(dev_file=path, labels=("yes", "no")), "dev", stored=("no", "yes")
    )


def test_the_stored_order_of_the_same_labels_is_kept(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    assert read(CustomData(path), "dev", stored=("yes", "no"))[0].labels == ("yes", "no")


# ------------------------------------------------------------------------------------------- bad content


def test_rows_without_a_label_are_left_out_with_one_warning(tmp_path, logged):
    path = write(tmp_path, "a.csv", table_of(("one", "x"), ("two", " "), ("three", "y"), ("four", "")))
    assert len(read(CustomData(path, dev_fraction=0), "train")[1]["train"]) == 2
    assert logged["warning"] == [f"{path}, line 3: no label; 2 of 4 rows are left out for that, this is the first."]


@pytest.mark.parametrize("column, flag", [("note", "--text_column"), ("gold", "--label_column")])
def test_a_column_that_is_empty_in_all_rows_is_refused(tmp_path, column, flag):
    path = write(tmp_path, "a.csv", "text,label,note,gold\none,x, ,\ntwo,y,,\n")
    data = CustomData(path, **{flag[2:]: column})
    assert message_of(read, data, "train") == (
        f"{path}: the column '{column}' ({flag}) is empty in all 2 rows; columns with content: text, label."
    )


def test_no_row_with_both_text_and_label_is_refused(tmp_path):
    path = write(tmp_path, "a.csv", table_of(("one", ""), ("", "y")))
    assert "none of the 2 rows has both a text and a label" in message_of(read, CustomData(path), "train")


def test_a_dev_label_that_training_does_not_have_is_refused(tmp_path):
    train = write(tmp_path, "train.csv", table_of(*many(10)))
    dev = write(tmp_path, "dev.csv", table_of(("a", "yes"), ("b", "Yes"), ("c", "maybe")))
    message = message_of(read, CustomData(train, dev), "train", "dev")
    assert f"{dev}, line 3: the label 'Yes' is not among those of the training (no, yes); 2 of 3 rows" in message
    assert "--labels" in message and "--label_map" in message
    _, examples = read(CustomData(train, dev, label_map={"Yes": "yes"}, labels=("yes", "no")), "dev")
    assert [example.label for example in examples["dev"]] == ["yes", "yes"]


def test_a_label_column_of_unique_values_is_refused_with_better_columns(tmp_path):
    rows = [(str(index), f"text {index}", "ab"[index % 2]) for index in range(20)]
    path = write(tmp_path, "a.csv", table_of(*rows, header="id,text,kind"))
    message = message_of(read, CustomData(path, label_column="id"), "train")
    assert "'id' has 20 different values in 20 rows" in message
    assert "--task_type=regression" in message and "Columns that look like labels: kind." in message
    message = message_of(read, CustomData(path, label_column="text", text_column="id"), "train")
    assert "--task_type=regression" not in message and "kind" in message


def test_many_fractional_numbers_are_no_classes(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(200, [str(index / 100) for index in range(30)])))
    assert "30 different values in 200 rows. If they are numbers" in message_of(read, CustomData(path), "train")


@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "a", "b"), ("a", "b", "c"), ("1", "2", "3", "4", "5", "5")])
def test_tiny_honest_files_are_accepted(tmp_path, labels):
    path = write(tmp_path, "a.csv", table_of(*[(f"text {index}", label) for index, label in enumerate(labels)]))
    assert read(CustomData(path), "train")[0].labels == tuple(sorted(set(labels)))


def test_a_single_label_is_refused(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10, ("yes",))))
    assert "has the label 'yes' in all 10 rows" in message_of(read, CustomData(path), "train")


def test_a_header_that_would_become_a_row_is_asked_about(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(20)))
    numbers = {"text_column": "1", "label_column": "2"}
    message = message_of(read, CustomData(path, **numbers), "train")
    assert f"{path}, line 1: 'label' stands in the label column in this line only" in message
    assert read(CustomData(path, header=True, **numbers), "train")[0].labels == ("no", "yes")
    assert read(CustomData(path, header=False, **numbers), "train")[0].labels == ("label", "no", "yes")


# --------------------------------------------------------------------------------- labels and label_map


def test_only_chosen_labels_are_kept_in_the_given_order_after_mapping(tmp_path, logged):
    rows = [("1", "Y"), ("2", "Yes"), ("3", "N"), ("4", "N/A"), ("5", "No")]
    path = write(tmp_path, "a.csv", table_of(*rows))
    data = CustomData(path, labels=("Yes", "No"), label_map={"Y": "Yes", "N": "No"}, dev_fraction=0)
    task, examples = read(data, "train")
    assert task.labels == ("Yes", "No")
    assert [example.label for example in examples["train"]] == ["Yes", "Yes", "No", "No"]
    assert logged["info"][0] == "1 rows with other labels than --labels are left out: N/A 1."


def test_a_chosen_label_that_never_occurs_is_refused(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    assert message_of(read, CustomData(path, labels=("Yes", "no")), "train") == (
        f"--labels names 'Yes', which no row of {path} has; found: no 5, yes 5."
    )


def test_a_spelling_that_never_occurs_is_warned_of(tmp_path, logged):
    path = write(tmp_path, "a.csv", table_of(*many(10)))
    read(CustomData(path, label_map={"Y": "yes"}), "train")
    assert logged["warning"] == [f"{path}: no row has these labels of --label_map: Y."]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"task_type": "ranking"}, "Unknown --task_type 'ranking'"),
        ({"dev_fraction": 1.0}, "--dev_fraction must be 0 or more and less than 1, found 1.0"),
        ({"dev_fraction": -0.1}, "--dev_fraction"),
        ({"dev_fraction": float("nan")}, "--dev_fraction"),
        ({"split_seed": -1}, "--split_seed"),
        ({"labels": ("a",)}, "--labels needs two labels"),
        ({"labels": ("a", "b", "a")}, "--labels names 'a' twice"),
        ({"labels": ("a", "b"), "task_type": "regression"}, "--labels names classes"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    assert said in message_of(CustomData, **settings)


# --------------------------------------------------------------------------------------------- regression


def test_numbers_are_read_for_a_regression(tmp_path):
    path = write(tmp_path, "a.csv", table_of(*[(f"t{index}", str(index / 4)) for index in range(40)]))
    data = CustomData(path, task_type="regression")
    task, examples = read(data, "train", "dev")
    assert (task.labels, task.metrics, task.is_regression) == ((), ("spearman", "pearson"), True)
    assert len(examples["train"]) == 36 and len(examples["dev"]) == 4
    assert sorted(row.label for rows in examples.values() for row in rows) == [index / 4 for index in range(40)]
    assert plain(read(data, "dev")[1]["dev"]) == plain(examples["dev"])
    test = write(tmp_path, "test.csv", "text\none\n")
    task, examples = read(CustomData(test_file=test, task_type="regression"), "test")
    assert examples["test"][0].label == 0.0 and task.labels == ()


@pytest.mark.parametrize("value", ["high", "nan", "inf", "1,5"])
def test_a_label_that_is_no_finite_number_is_reported(tmp_path, value):
    path = write(tmp_path, "a.csv", f'text,label\none,1.5\ntwo,"{value}"\nthree,2\n')
    message = message_of(read, CustomData(path, task_type="regression", dev_fraction=0), "train")
    assert f"{path}, line 3: expected a finite number as label" in message and f"'{value}'" in message


# ------------------------------------------------------------------------------------------ class weights


def examples_of(*labels: str) -> list:
    return [InputExample(str(index), "x", None, label) for index, label in enumerate(labels)]


def test_balanced_weights_are_the_inverse_frequencies():
    labels = ["a"] * 6 + ["b"] * 3 + ["c"]
    weights = custom.balanced_class_weights(examples_of(*labels), ("c", "a", "b"))
    assert weights == pytest.approx((10 / 3, 10 / 18, 10 / 9))
    expected = compute_class_weight(class_weight="balanced", classes=np.array(["c", "a", "b"]), y=labels)
    assert weights == pytest.approx(tuple(expected))
    assert "'d' has none" in message_of(custom.balanced_class_weights, examples_of("a", "b"), ("a", "b", "d"))


def test_class_weights_are_read_from_the_flag():
    examples = examples_of("a", "a", "a", "b")
    assert custom.class_weights(None, examples, ("a", "b")) is None
    assert custom.class_weights("none", examples, ("a", "b")) is None
    assert custom.class_weights("balanced", examples, ("a", "b")) == pytest.approx((2 / 3, 2))
    assert custom.class_weights("b=2.5", examples, ("a", "b")) == (1.0, 2.5)
    assert "Unknown label in --class_weights 'c'" in message_of(custom.class_weights, "c=1", examples, ("a", "b"))
    for bad in ("b=0", "b=-1", "b=much", "b=nan"):
        assert "expected a positive number for 'b'" in message_of(custom.class_weights, bad, examples, ("a", "b"))
    assert "no classes" in message_of(custom.class_weights, "balanced", examples, ())


# -------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    "text, items", [("Yes,No", ("Yes", "No")), (" a , b ", ("a", "b")), ('["a, b", 1, true]', ("a, b", "1", "true"))]
)
def test_lists_are_parsed(text, items):
    assert parse_list(text) == items


@pytest.mark.parametrize("text", ["", "a,,b", '["a"', '[["a"]]', "[]"])
def test_bad_lists_are_refused(text):
    assert "--labels" in message_of(parse_list, text)


@pytest.mark.parametrize(
    "text, found",
    [
        ("Y=Yes,N=No", {"Y": "Yes", "N": "No"}),
        (" a = b=c ", {"a": "b=c"}),
        ('{"a, =": "b", "c": 1}', {"a, =": "b", "c": "1"}),
    ],
)
def test_maps_are_parsed(text, found):
    assert parse_map(text) == found


@pytest.mark.parametrize("text", ["", "a", "a=", "=b", "a=b,a=c", '{"a"', '{"a": []}', "{}"])
def test_bad_maps_are_refused(text):
    assert "--label_map" in message_of(parse_map, text)


# ---------------------------------------------------------------------------------------------- real data

Q1 = (
    "q1_from_reading_the_tweet_which_of_the_options_below_is_most_likely_to_be_true_about_the_stance_or_outlook_of_the_"
    "tweeter_towards_the_target"
)
Q2 = "q2_which_of_the_options_below_is_true_about_the_opinion_in_the_tweet"
NEWS = "news_aggregator_subset_nlp100"
POLITICS = "Political-media-DFE.csv"
# name: settings, labels, training rows in all (with those split off), dev rows of a dev file.
REAL = {
    "spam": ({"train_file": "SMSSpamCollection", "text_column": "2", "label_column": "1"}, 2, 5574, None),
    "airline": ({"train_file": "Tweets.csv", "label_column": "airline_sentiment"}, 3, 14640, None),
    "corporate": ({"train_file": "Corporate-messaging-DFE.csv", "label_column": "category"}, 4, 3118, None),
    "emotion": (
        {"train_file": "text_emotion.csv", "text_column": "content", "label_column": "sentiment"}, 13, 40000, None,
    ),
    "warming": (
        {
            "train_file": "1377884570_tweet_global_warming.csv", "text_column": "tweet", "label_column": "existence",
            "label_map": {"Y": "Yes", "N": "No"}, "labels": ("Yes", "No"),
        },
        2, 4225, None,
    ),
    "audience": ({"train_file": POLITICS, "label_column": "audience"}, 2, 5000, None),
    "bias": ({"train_file": POLITICS, "label_column": "bias"}, 2, 5000, None),
    "message": ({"train_file": POLITICS, "label_column": "message"}, 9, 5000, None),
    "plutchik": (
        {"train_file": "primary-plutchik-wheel-DFE.csv", "text_column": "sentence", "label_column": "emotion"},
        18, 2524, None,
    ),
    "stance": (
        {
            "train_file": "progressive-tweet-sentiment.csv", "text_column": "tweet", "text_pair_column": "target",
            "label_column": Q1,
        },
        4, 1159, None,
    ),
    "opinion": (
        {
            "train_file": "progressive-tweet-sentiment.csv", "text_column": "tweet", "text_pair_column": "target",
            "label_column": Q2,
        },
        3, 1159, None,
    ),
    "economy": (
        {
            "train_file": "us-economic-newspaper.trimmed.csv", "label_column": "positivity", "task_type": "regression",
        },
        0, 5015 - 2116, None,
    ),
    "news": (
        {
            "train_file": f"{NEWS}/train.txt", "dev_file": f"{NEWS}/valid.txt", "test_file": f"{NEWS}/test.txt",
            "text_column": "2", "label_column": "5",
        },
        4, 8878, 1109,
    ),
    "20news": (
        {
            "train_file": "20news-bydate.tar.gz//20news-bydate-train",
            "dev_file": "20news-bydate.tar.gz//20news-bydate-test",
        },
        20, 11314, 7532,
    ),
}  # fmt: skip


def real_data(name: str) -> CustomData:
    settings = dict(REAL[name][0])
    for key in ("train_file", "dev_file", "test_file"):
        if key in settings:
            settings[key] = os.path.join(TEXT_DATA, settings[key])
    path = settings["train_file"].split("//")[0]
    if not os.path.exists(path):
        pytest.skip(f"a real file is missing: {path}")
    return CustomData(**settings)


@pytest.mark.parametrize("name", list(REAL))
def test_real_files_give_their_published_numbers_of_rows(name):
    data = real_data(name)
    _, labels, rows, dev_rows = REAL[name]
    task, examples = read(data, "train", "dev")
    assert len(task.labels) == labels
    total = len(examples["train"]) + (0 if dev_rows else len(examples["dev"]))
    assert total == rows
    share = len(examples["dev"]) / rows
    assert len(examples["dev"]) == dev_rows if dev_rows else share == pytest.approx(0.1, abs=0.02)
    assert all(example.text_a.strip() for split in examples.values() for example in split)


def test_the_test_split_of_the_real_news_has_all_its_rows():
    assert len(read(real_data("news"), "test")[1]["test"]) == 1109


def test_cells_of_a_real_file_are_those_of_the_csv_module():
    data = real_data("message")
    with open(data.train_file, encoding="latin-1", newline="") as file:
        expected = [(row["text"], row["message"]) for row in csv.DictReader(file)]
    assert cells(data.train_file, "text", "message") == expected


# ------------------------------------------------------------------------------------------- documentation


def documentation() -> str:
    with open(os.path.join(ROOT, "docs", "custom_data.md"), encoding="utf-8") as file:
        return file.read()


def test_the_documentation_describes_every_setting():
    for field in dataclasses.fields(CustomData):
        assert f"| `--{field.name}` |" in documentation()


def test_the_documented_commands_are_those_that_are_tested_here():
    """Each block is one command, and its flags give the settings above."""
    found = []
    for block in re.findall(r"```bash\n(.*?)\n```", documentation(), re.DOTALL):
        assert all(line.endswith(" \\") for line in block.split("\n")[:-1])
        python, script, *words = shlex.split(block.replace("\\\n", ""))
        assert (python, script) == ("python", "run_classifier.py")
        given = dict(word[2:].split("=", 1) for word in words)
        settings = {field.name: given[field.name] for field in dataclasses.fields(CustomData) if field.name in given}
        for name, parse in (("labels", parse_list), ("label_map", parse_map)):
            if name in settings:
                settings[name] = parse(settings[name])
        found.append(CustomData(**settings))
    expected = []
    for settings, *_ in REAL.values():
        files = {key: "$DATA/" + value for key, value in settings.items() if key.endswith("_file")}
        expected.append(CustomData(**dict(settings, **files)))
    assert len(found) == len(expected)
    assert all(data in found for data in expected)
