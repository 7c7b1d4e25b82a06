"""Tables in CSV, TSV, JSON, folders and archives are read as meant; errors name file, line and remedy."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import socket
import tarfile
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.tasks.custom.formats import read_table
from tests.helpers import assert_mentions, message_of, write_file

pytestmark = pytest.mark.smoke


def cells(path: str, *columns: str, **options) -> list:
    """Return the cells of the columns, row by row."""
    table = read_table(path, columns, **options)
    indices = [table.find(column) for column in columns]
    return [tuple(table.text(row, index) for index in indices) for row in table.rows]


def lines(path: str, *columns: str, **options) -> list:
    return [row.number for row in read_table(path, columns, **options).rows]


def error_of(folder, content, *facts, name: str = "a.csv", columns=("text", "label"), **options) -> None:
    """Check that reading these columns fails with a message that starts with the path and mentions the facts."""
    path = write_file(folder, name, content)
    message = message_of(cells, path, *columns, **options)
    assert message.startswith(path) and "\r" not in message
    assert_mentions(message, *facts)


# ---------------------------------------------------------------------------------------------- encodings

SENTENCE = "Ça coûte 3 €, naïvely"
ROWS = f'text,label\nplain,x\n"{SENTENCE}",y\n'


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "utf-16-le BOM", "utf-16-be BOM", "utf-32-be BOM"]
)
def test_the_encoding_is_detected(tmp_path, log, encoding):
    name, _, mark = encoding.partition(" ")
    path = write_file(tmp_path, "a.csv", (("\ufeff" if mark else "") + ROWS).encode(name))
    assert cells(path, "text", "label") == [("plain", "x"), (SENTENCE, "y")]
    assert len(log) == (0 if encoding.startswith("utf-8") else 1)


@pytest.mark.parametrize(
    "content, encoding, expected, warned",
    [
        (b"text\rplain\r\x93caf\xe9\x94\r\x93\r", None, ["plain", "“café”", "“"], ["line 3", "0x93", "cp1252"]),
        # Windows-1252 does not have this byte.
        (b"text\r\nplain\r\ncaf\xe9 \x9d\r\n", None, ["plain", "café \x9d"], ["line 3", "0xe9", "latin-1"]),
        # A given encoding is used without a warning, even after UTF-8's byte order mark.
        (b"text\ncaf\x8e\n", "mac-roman", ["café"], []),
        (b"\xef\xbb\xbftext\ncaf\xe9\n", "latin-1", ["café"], []),
    ],
)
def test_encodings_other_than_utf8_are_read_as_given_or_with_one_warning(
    tmp_path, log, content, encoding, expected, warned
):
    path = write_file(tmp_path, "a.csv", content)
    assert cells(path, "text", encoding=encoding) == [(text,) for text in expected]
    assert len(log) == bool(warned)
    for warning in log:
        assert_mentions(warning, path, "--encoding", *warned)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_wrong_encoding_is_reported_with_line_byte_and_a_better_one(tmp_path, end):
    latin = end.join([b"text,label", b"plain,x", b"caf\xe9,y", b""])
    error_of(tmp_path, latin, "line 3", "0xe9", "not utf-8", "--encoding=cp1252", encoding="utf-8")
    utf8 = end.join([b"text,label", "é,x".encode(), b""])
    error_of(tmp_path, utf8, "line 2", "0xc3", "not ascii", "--encoding=utf-8", encoding="ascii")
    error_of(tmp_path, b"\xef\xbb\xbf" + latin, "line 3", "0xe9", "not utf-8")


@pytest.mark.parametrize("encoding", ["utf-9", "hex"])
def test_an_unknown_encoding_is_reported(tmp_path, encoding):
    path = write_file(tmp_path, "a.csv", ROWS)
    assert_mentions(message_of(cells, path, "text", encoding=encoding), f"--encoding '{encoding}'", "cp1252")


@pytest.mark.parametrize(
    "content, kind, remedy",
    [
        (b"PK\x03\x04" + bytes(100), "Excel workbook (.xlsx) or another ZIP archive", "CSV"),
        (b"\x1f\x8b\x08" + bytes(100), "gzip", "gunzip"),
        (b"%PDF-1.4 and so on", "PDF", "CSV"),
        (b"text,label\nsome thing,\0\n", "line 2: found a NUL byte", "CSV"),
        ("text,label\nfine,x\n".encode("utf-16-le"), "UTF-16", "--encoding=utf-16-le"),
        ("text,label\nfine,x\n".encode("utf-16-be"), "UTF-16", "--encoding=utf-16-be"),
    ],
)
def test_a_file_that_is_not_text_is_recognized(tmp_path, content, kind, remedy):
    error_of(tmp_path, content, kind, remedy)
    if kind == "UTF-16":
        assert cells(str(tmp_path / "a.csv"), "text", encoding=remedy.split("=")[1]) == [("fine",)]


# ------------------------------------------------------------------------------------------- CSV and TSV


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.text('ab,;\t"\n\r ', min_size=1), st.text("xy ")), min_size=1),
    delimiter=st.sampled_from(",;"),
)
def test_csv_is_read_as_it_was_written(tmp_path_factory, rows, delimiter):
    rows = [*rows, ("a", "x")]  # a blank column is an error
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter).writerows([("text", "label"), *rows])
    path = write_file(tmp_path_factory.mktemp("csv"), "a.csv", buffer.getvalue())
    assert cells(path, "text", "label") == rows


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_rows_have_the_line_in_which_they_start_whatever_the_line_end(tmp_path, end, final):
    text = end.join(["text,label", f'"one{end}two",x', "", "three,y"]) + (end if final else "")
    path = write_file(tmp_path, "a.csv", text)
    assert cells(path, "text", "label") == [(f"one{end}two", "x"), ("three", "y")]
    assert lines(path, "text") == [2, 5]


@pytest.mark.parametrize(
    "name, content, options, expected",
    [
        # Other Unicode line breaks do not end a line.
        ("a.tsv", "text\tlabel\na\u2028b\x0bc\x85d\tx\n", {}, [("a\u2028b\x0bc\x85d", "x")]),
        # Quotes are text in TSV and enclose cells in CSV, unless --quoting says otherwise.
        ("a.tsv", 'text\tlabel\n"one\tx\n"two"\ty\n', {}, [('"one', "x"), ('"two"', "y")]),
        ("a.tsv", 'text\tlabel\n"a\tb\nc"\tx\n', {"quoting": True}, [("a\tb\nc", "x")]),
        ("a.csv", 'text,label\n"one,x\ntwo",y\n', {"quoting": False}, [('"one', "x"), ('two"', "y")]),
        # A lone carriage return in a TSV file with other line ends is text.
        ("a.tsv", "text\tlabel\none\rtwo\tx\r\n", {}, [("one\rtwo", "x")]),
        # Column names are compared without surrounding or repeated white space.
        ("a.csv", "id, text ,label\n1,one,x\n", {}, [("one", "x")]),
        # Empty cells after the last column are ignored.
        ("a.csv", "text,label\none,x,,\n", {}, [("one", "x")]),
        # The delimiter is the one that gives the columns.
        ("a.csv", "text;label\na, b;x\n", {}, [("a, b", "x")]),
        ("a.csv", 'a;"b,c,d,e";text;label\n0;0;a, b;x\n', {}, [("a, b", "x")]),
        ("a.csv", "text;label;price, net, gross, vat\na, b;x;0\n", {}, [("a, b", "x")]),
    ],
)
def test_a_table_is_read_as_intended(tmp_path, name, content, options, expected):
    assert cells(write_file(tmp_path, name, content), "text", "label", **options) == expected


def test_a_cell_may_exceed_the_default_limit_of_the_csv_module(tmp_path):
    limit = csv.field_size_limit()
    path = write_file(tmp_path, "a.csv", "text,label\n{},x\n".format("a" * (limit + 1)))
    assert len(cells(path, "text")[0][0]) == limit + 1
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_quote_that_does_not_close_is_reported_with_the_line_in_which_the_cell_starts(tmp_path, end):
    rows = ["text,label", f'"fine{end}really",x', 'good,"y', "more,z", "and more,z", ""]
    error_of(tmp_path, end.join(rows), "line 4", "never ends", "--quoting=false")
    rows = ["text,label", '"never closed,x', "fine,y", '"quoted",z', ""]
    error_of(tmp_path, end.join(rows), "line 2", "closing quote in line 4", "'quoted", "--quoting=false")


@pytest.mark.parametrize(
    "content, columns, header, expected",
    [
        # A name may span several lines in the file.
        ('"text\r\n(English)"\tlabel\none\tx\n', ["text (English)", "label"], None, {3: ("one", "x")}),
        # Numbers as columns mean that there is no header, unless it is given.
        ("x\tone\ny\ttwo\n", ["2", "1"], None, {1: ("one", "x"), 2: ("two", "y")}),
        ("label\ttext\ny\ttwo\n", ["2", "1"], True, {2: ("two", "y")}),
        ("2\t1\ny\ttwo\n", ["2", "1"], True, {2: ("y", "two")}),
        # Without names, the delimiter is the one that gives rows of equal length.
        ("good; very; good,x\nbad,y\n", ["1", "2"], None, {1: ("good; very; good", "x"), 2: ("bad", "y")}),
        # The News Aggregator corpus is tab-separated in spite of its name.
        ('"Fed, up\tb\nOil\tb\n', ["1", "2"], None, {1: ('"Fed, up', "b"), 2: ("Oil", "b")}),
    ],
)
def test_columns_are_given_by_name_or_number(tmp_path, content, columns, header, expected):
    path = write_file(tmp_path, "a.csv", content)
    options = {"header": header, "quoting": True if "English" in content else None}
    assert dict(zip(lines(path, *columns, **options), cells(path, *columns, **options))) == expected


def test_a_repeated_name_is_an_error_only_where_it_is_used(tmp_path):
    path = write_file(tmp_path, "a.csv", "text,label,label\none,x,y\n")
    table = read_table(path, ["text", "label"])
    assert (table.find("text"), table.find("3")) == (0, 2)
    for number in ("0", "4", "9" * 5000):
        assert_mentions(message_of(table.find, number), "text, label, label")
    message = message_of(table.find, "label", "--label_column")
    assert_mentions(message, path, "--label_column", "2 columns", "'label'", "2 and 3", "--header=true")


@pytest.mark.parametrize(
    "columns, content, facts",
    [
        (["tweets"], "id,tweet,label\n1,one,x\n", ["'tweets'", "'tweet'?", "id, tweet, label", "numbers"]),
        (["3", "2"], "one,x\ntwo,y\n", ["'3'", "Available: 1, 2.", "--header=true"]),
        (["text", "label"], "id,text,label\n1,one,x\n2,two\n", ["line 3", "expected 3", "found 2", "'label'"]),
        (["text"], "text,label\none,x\nwell, well,y\n", ["line 3", "expected 2", "found 3", "comma", "double quotes"]),
        (["text"], 'text\tlabel\n"a\tb\tx\n', ["line 2", "expected 2", "found 3", "tab", "--quoting=true"]),
        (["text", "label"], 'text\tlabel\n"one\ntwo"\tx\n', ["line 2", "'label'", "--quoting=true"]),
        (["text"], "\n \n", ["no rows"]),
        (["text"], "text,label\n", ["no rows"]),
    ],
)
def test_a_column_or_row_that_is_missing_is_reported(tmp_path, columns, content, facts):
    error_of(tmp_path, content, *facts, columns=columns)
    error_of(tmp_path, "one,x\n", "'text'", columns=["text"], header=False)


# -------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "without_extension"])
def test_json_lines_and_arrays_are_read(tmp_path, name):
    first, second = '{"text": "a, \\u00e9\\n", "label": 1}', '{"label": true, "text": "b", "x": [1]}'
    path = write_file(tmp_path, name, f"{first}\r\n\r\n{second}\r\n")
    assert cells(path, "text", "label") == [("a, é\n", "1"), ("b", "true")]
    assert lines(path, "text") == [1, 3]
    content = json.dumps([{"text": "a", "label": 0.5}, {"text": None, "label": "x"}], indent=1)
    assert cells(write_file(tmp_path, "array.json", content), "text", "label") == [("a", "0.5"), ("", "x")]


@pytest.mark.parametrize(
    "name, content, facts",
    [
        ("a.jsonl", "{'text': 1}", ["line 2", "\"{'text': 1}\""]),
        ("a.jsonl", '["a"]', ["line 2", "object", '["a"]']),
        ("a.jsonl", '{"text": "b", "labels": 1}', ["line 2", "'label'", "text, labels", "null"]),
        ("a.jsonl", '{"text": ["b"], "label": 1}', ["line 2", "'text'", '["b']),
        ("a.json", '[{"text": "a"},', ["JSON array", "column"]),
        ("a.json", '[{"txt": "a", "label": 0}]', ["'text'", "'txt'?"]),
        ("a.jsonl", '{"text": ' + "[" * 9 + '"b"' + "]" * 9 + ', "label": 1}', ["line 2", "'text'", '[[[[[[[[["b"']),
        ("a.jsonl", '{"other": ' + "[" * 100_000 + "]" * 100_000 + "}", ["line 2", '{"other": [[[']),
        ("a.jsonl", '{"text": "b", "label": ' + "9" * 400 + "}", ["line 2", "400 digits"]),
        ("a.jsonl", '{"text": "b", "label": ' + "9" * 5000 + "}", ["line 2", "5000 digits"]),
        ("a.jsonl", "x" * 100_000, ["line 2", "xxx"]),
        ("a.json", "[" * 100_000, ["JSON array"]),
    ],
)
def test_bad_json_is_reported(tmp_path, name, content, facts):
    first_line = '{"text": "a", "label": 0}\n' if name == "a.jsonl" else ""
    error_of(tmp_path, first_line + content, *facts, name=name)


def test_json_rows_with_different_keys_take_memory_for_the_needed_columns_only(tmp_path):
    rows = [f'{{"text": "a", "k{number}": 0, "label": "x"}}\n' for number in range(20_000)]
    path = write_file(tmp_path, "a.jsonl", "".join(rows))
    tracemalloc.start()
    table = read_table(path, ["text", "label"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6  # All cells would take 20,000 x 20,002 x 8 bytes = 3.2 GB.
    assert max(len(row.cells) for row in table.rows) < 60
    assert cells(path, "text", "label") == [("a", "x")] * 20_000
    assert_mentions(message_of(table.find, "labels"), "'label'?", "text, k0", "other keys", "19952")
    path = write_file(tmp_path, "missing.jsonl", "".join(rows[:100]) + '{"k99": 1, "text": "b"}')
    assert_mentions(message_of(cells, path, "text", "label"), "line 101", "no key 'label'", "text, …")


def test_needed_keys_are_kept_wherever_they_appear(tmp_path):
    others = {f"k{number}": number for number in range(200)}
    path = write_file(tmp_path, "a.jsonl", json.dumps({**others, "text": "a", " label": "x", "k0": "y"}))
    assert cells(path, "text", "label") == [("a", "x")]
    spaces = "".join('{"%s label": 1, "text": "a"}\n' % (" " * number) for number in range(1000))
    path = write_file(tmp_path, "spaces.jsonl", spaces)
    assert max(len(row.cells) for row in read_table(path, ["text", "label"]).rows) <= 100
    assert_mentions(message_of(cells, path, "text", "label"), "ambiguous")


@pytest.mark.parametrize(
    "name, content, column, facts",
    [
        ("a.csv", ",".join(f"k{number}" for number in range(100_000)) + "\n" + ",x\n" * 10_000, "k0", ["empty", "k1"]),
        ("a.csv", ",".join(f"k{number}" for number in range(100_000)) + "\n1\n", "label", ["k1", "99950 more"]),
        ("a.csv", "a" * 10**6 + ",b\n1,x\n", "label", ["aaa", ", b."]),
        ("a.jsonl", json.dumps({f"k{number}": 0 for number in range(10_000)}), "label", ["k1", "9950 other keys"]),
        ("a.jsonl", json.dumps({"k" * 10**6: 0, "text": None}), "text", ["empty", "kkk"]),
    ],
    ids=lambda value: str(value)[:10],
)
def test_messages_about_many_or_long_column_names_are_short(tmp_path, name, content, column, facts):
    path = write_file(tmp_path, name, content)
    message = message_of(cells, path, column)
    assert_mentions(message, path, *facts)
    assert len(message) < 6000


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
    mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(name.split(".")[-1], "w")
    with tarfile.open(path, mode) as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["folder", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz"])
def test_files_in_folders_are_rows_sorted_by_name_with_the_folder_as_label(tmp_path, kind, log):
    if kind == "folder":
        path = str(tmp_path / "train")
        for name, content in POSTS.items():
            write_file(tmp_path, name, content)
    else:
        path = write_archive(tmp_path, kind, POSTS) + "//train"
    assert cells(path, "text", "label") == [("first", "a.one"), ("café", "a.one"), ("second class", "b.two")]
    outside, encoding = log
    assert_mentions(outside, path, "1 files", "README")
    assert_mentions(encoding, path, "1 of 3", "a.one/2, line 1", "0xe9", "--encoding")


def test_a_whole_archive_is_read_without_extracting_it(tmp_path):
    files = {"README": b"", "train/x/1": b"a", "./test/x/1": b"b", "test/y/.z": b"c"}
    path = write_archive(tmp_path, "a.tar.gz", files)
    assert cells(path, "text", "label") == [("b", "x"), ("a", "x")]
    assert os.listdir(str(tmp_path)) == ["a.tar.gz"]


@pytest.mark.parametrize(
    "files, folder, facts",
    [
        (POSTS, "//trian", ["'trian'", "'train'?", "test, train"]),
        ({"a.one/1": b"x"}, "//a.one", ["one folder per label", "1"]),
        ({"x/1": b"fine", "y/2": b"%PDF-1.4"}, "", ["file y/2", "PDF"]),
    ],
)
def test_an_unusable_archive_is_reported(tmp_path, files, folder, facts):
    path = write_archive(tmp_path, "a.tar", files)
    assert_mentions(message_of(read_table, path + folder), path, *facts)
    damaged = write_file(tmp_path, "b.tar.gz", gzip.compress(b"x" * 5000)[:-12])
    assert_mentions(message_of(read_table, damaged), damaged, "damaged")


def test_symbolic_links_in_an_archive_are_skipped_with_a_warning(tmp_path, log):
    path = write_archive(tmp_path, "a.tar", {"x/1": b"one", "y/2": b"two"})
    with tarfile.open(path, "a") as archive:
        for name in ("y/link", "y/.hidden", "loose"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "2"
            archive.addfile(link)
    assert cells(path, "text", "label") == [("one", "x"), ("two", "y")]
    assert_mentions([line for line in log if "special" in line][0], path, "skipped 1", "y/link")


def test_pipes_and_sockets_in_a_folder_are_skipped_with_a_warning(tmp_path, log):
    write_file(tmp_path, "data/x/1", "one")
    pipe = str(tmp_path / "data" / "x" / "pipe")
    os.mkfifo(pipe)
    # If the pipe were read, this would end the hang.
    watchdog = threading.Timer(60, lambda: os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)))
    watchdog.start()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "data" / "x" / "socket"))
        assert cells(str(tmp_path / "data"), "text", "label") == [("one", "x")]
    watchdog.cancel()
    assert_mentions(log[0], "skipped 2", "x/pipe")


def test_links_in_a_folder_are_followed_except_in_a_loop(tmp_path):
    write_file(tmp_path, "data/x/1", "one")
    write_file(tmp_path, "other/2", "two")
    (tmp_path / "data" / "y").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "x" / "3").symlink_to(tmp_path / "other" / "2")
    path = str(tmp_path / "data")
    assert cells(path, "text", "label") == [("one", "x"), ("two", "x"), ("two", "y")]
    for target in (tmp_path, tmp_path / "data", tmp_path / "data" / "x"):
        link = tmp_path / "data" / "x" / "loop"
        link.symlink_to(target)
        assert_mentions(message_of(read_table, path), str(link), "link")
        link.unlink()


def test_folders_that_link_to_each_other_are_an_error(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        write_file(tmp_path, f"data/{name}/1", "one")
        for link in ("x", "y"):
            (tmp_path / "data" / name / link).symlink_to(tmp_path / "data" / other)
    assert_mentions(message_of(read_table, str(tmp_path / "data")), str(tmp_path / "data"), "link")


def test_a_pipe_is_not_read_as_a_table(tmp_path, deadline):
    os.mkfifo(tmp_path / "rows.csv")
    assert_mentions(message_of(read_table, str(tmp_path / "rows.csv")), tmp_path / "rows.csv", "FIFO")


def test_a_file_name_that_is_not_utf8_is_reported(tmp_path):
    write_file(tmp_path, "x/1", "one")
    with open(os.path.join(os.fsencode(str(tmp_path)), b"x", b"caf\xe9"), "w"):
        pass
    assert_mentions(message_of(read_table, str(tmp_path)), str(tmp_path), "caf\\xe9", "UTF-8")
    assert_mentions(message_of(read_table, str(tmp_path / "x" / "2")), "does not exist", "UTF-8")
