"""Tables are written so that the reader of custom data reads the same cells."""

from __future__ import annotations

import pytest

from adapter_bert.tasks.custom import table_writer
from adapter_bert.tasks.custom.formats import read_table
from adapter_bert.tasks.custom.table import MISSING
from tests.helpers import assert_mentions, message_of

COLUMNS = ["text", "n"]
TEXTS = ["plain", "a, b; c", 'a "quoted" word', '"', "é € 😀", " spaces ", "CR \r and LF \n inside", "tab \t inside"]


@pytest.mark.parametrize("name, texts", [("a.csv", TEXTS), ("a.tsv", TEXTS[:-2]), ("a.jsonl", TEXTS)])
def test_cells_survive_writing_and_reading(tmp_path, name, texts):
    path = str(tmp_path / name)
    table_writer.write_table(path, COLUMNS, [[text, 0.5] for text in texts])
    table = read_table(path, ["text"])
    assert list(table.columns) == COLUMNS
    assert [row.cells[0] for row in table.rows] == texts
    assert {str(row.cells[1]) for row in table.rows} == {"0.5"}


def test_tabs_and_line_breaks_are_escaped_in_tsv():
    lines = table_writer.format_lines("tsv", COLUMNS, [["a\tb\nc\rd", 1]])
    assert list(lines) == ["text\tn\n", "a\\tb\\nc\\rd\t1\n"]


def test_json_values_keep_their_type_and_missing_keys_stay_missing():
    row = [["a", {"b": None}], True, MISSING, float("nan"), "\ud800"]
    assert list(table_writer.format_lines("jsonl", "abcde", [row])) == [
        '{"a": ["a", {"b": null}], "b": true, "d": null, "e": "\ud800"}\n'
    ]
    assert list(table_writer.format_lines("csv", "ab", [row[1:3]])) == ["a,b\n", "true,\n"]


def test_names_become_unique():
    assert table_writer.unique_names(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_2", "a_2_2", "a_3"]


def test_a_file_is_complete_or_absent_and_replaced_only_on_request(tmp_path):
    path = tmp_path / "a.csv"

    def fail():
        yield "a\n"
        raise RuntimeError()

    with pytest.raises(RuntimeError):
        table_writer.write(str(path), fail())
    assert not list(tmp_path.iterdir())
    path.write_text("mine")
    assert_mentions(message_of(table_writer.write, str(path), ["a\n"], replace=False), path)
    assert path.read_text() == "mine"
    table_writer.write(str(path), ["\ud800\n"])
    assert path.read_text() == "\\ud800\n"


def test_other_endings_are_reported():
    assert_mentions(message_of(table_writer.format_of, "a.xlsx"), "--output=a.xlsx", ".csv", ".jsonl")
