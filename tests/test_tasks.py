"""Every task reads its files as they were published, and says in one sentence what is wrong with others."""

from __future__ import annotations

import dataclasses
import os

import pytest
from conftest import SHARED

import tasks
from errors import UserError
from tasks import processors, registry
from tasks.table import Split, Task, read_lines

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


def test_cola_has_no_header_in_train_and_dev_and_one_in_test(tmp_path):
    rows = table(
        ["gj04", "1", "", "Our friends won't buy this analysis."],
        ["gj04", "0", "*", "They drank the pub."],
    )
    write(tmp_path, "train.tsv", rows)
    write(tmp_path, "dev.tsv", rows[: rows.index("\n") + 1])
    write(tmp_path, "test.tsv", table(["index", "sentence"], ["0", "Bill whistled past the house."]))
    assert read("CoLA", tmp_path, "train") == [
        ("train-0", "Our friends won't buy this analysis.", None, "1"),
        ("train-1", "They drank the pub.", None, "0"),
    ]
    assert read("CoLA", tmp_path, "dev") == [("dev-0", "Our friends won't buy this analysis.", None, "1")]
    # No label is known: the first one stands in for it, as in the original scripts.
    assert read("CoLA", tmp_path, "test") == [("test-1", "Bill whistled past the house.", None, "0")]
    assert tasks.get("CoLA").labels == ("0", "1")
    assert tasks.get("CoLA").metrics[0] == "matthews"


def test_sst2_keeps_its_spaces(tmp_path):
    rows = table(["sentence", "label"], ["hide new secretions from the parental units ", "0"], ["a gem ", "1"])
    write(tmp_path, "train.tsv", rows)
    write(tmp_path, "dev.tsv", rows)
    write(tmp_path, "test.tsv", table(["index", "sentence"], ["0", "uneasy mishmash ."]))
    expected = [("hide new secretions from the parental units ", None, "0"), ("a gem ", None, "1")]
    assert read("SST-2", tmp_path, "train") == [("train-1",) + expected[0], ("train-2",) + expected[1]]
    assert read("SST-2", tmp_path, "dev") == [("dev-1",) + expected[0], ("dev-2",) + expected[1]]
    assert read("SST-2", tmp_path, "test") == [("test-1", "uneasy mishmash .", None, "0")]


def test_mrpc_has_a_byte_order_mark_and_quotes_are_text(tmp_path):
    rows = "\ufeff" + table(
        ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        ["1", "702876", "702977", 'He called " the witness " a liar .', '" The witness lied .'],
        ["0", "2108705", "2108831", '"Yucaipa owned it .', "Yucaipa bought it ."],
    )
    write(tmp_path, "train.tsv", rows)
    write(tmp_path, "dev.tsv", rows)
    write(
        tmp_path,
        "test.tsv",
        "\ufeff" + table(["index", "#1 ID", "#2 ID", "#1 String", "#2 String"], list("0123") + ["b"]),
    )
    assert read("MRPC", tmp_path, "train") == [
        ("train-1", 'He called " the witness " a liar .', '" The witness lied .', "1"),
        ("train-2", '"Yucaipa owned it .', "Yucaipa bought it .", "0"),
    ]
    assert [row[1:] for row in read("MRPC", tmp_path, "dev")] == [row[1:] for row in read("MRPC", tmp_path, "train")]
    assert read("MRPC", tmp_path, "test") == [("test-1", "3", "b", "0")]
    assert tasks.get("MRPC").metrics == ("f1", "accuracy")


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


def mnli_row(index: int, a: str, b: str, *labels) -> list:
    return [str(index), "31193", "31193n", "government", "( p", "( q", "(ROOT p", "(ROOT q", a, b] + list(labels)


def test_mnli_has_its_label_in_the_last_of_12_or_16_columns(tmp_path):
    train = [MNLI_FRONT + ["label1", "gold_label"], mnli_row(0, "Cream skimming.", "Skim it.", "entailment", "neutral")]
    assert {len(row) for row in train} == {12}
    write(tmp_path, "train.tsv", table(*train))
    annotators = [f"label{number}" for number in range(1, 6)]
    header = MNLI_FRONT + annotators + ["gold_label"]
    five = ["neutral", "neutral", "entailment", "neutral", "neutral"]
    dev = [header, mnli_row(0, "The new rights.", "Everyone.", *(five + ["contradiction"]))]
    assert {len(row) for row in dev} == {16}
    write(tmp_path, "dev_matched.tsv", table(*dev))
    write(tmp_path, "dev_mismatched.tsv", table(header, mnli_row(0, "Your gift.", "Thanks.", *(five + ["entailment"]))))
    write(tmp_path, "test_matched.tsv", table(MNLI_FRONT, mnli_row(0, "Matched.", "M.")))
    write(tmp_path, "test_mismatched.tsv", table(MNLI_FRONT, mnli_row(0, "Mismatched.", "MM.")))

    assert read("MNLI", tmp_path, "train") == [("train-1", "Cream skimming.", "Skim it.", "neutral")]
    assert read("MNLI", tmp_path, "dev") == [("dev-1", "The new rights.", "Everyone.", "contradiction")]
    assert read("MNLI", tmp_path, "test") == [("test-1", "Matched.", "M.", "contradiction")]
    assert read("MNLI-mm", tmp_path, "train") == read("MNLI", tmp_path, "train")
    assert read("MNLI-mm", tmp_path, "dev") == [("dev-1", "Your gift.", "Thanks.", "entailment")]
    assert read("MNLI-mm", tmp_path, "test") == [("test-1", "Mismatched.", "MM.", "contradiction")]
    assert tasks.get("MNLI").labels == ("contradiction", "entailment", "neutral")


def test_an_mnli_row_that_ends_before_its_label_is_refused(tmp_path):
    """Its last column would be a text otherwise, or worse, a label of somebody else's row."""
    write(tmp_path, "train.tsv", table(MNLI_FRONT + ["label1", "gold_label"], mnli_row(0, "a", "b")))
    assert "train.tsv, line 2: found 10 tab-separated columns, expected at least 11" in message_of("MNLI", tmp_path)


def test_rte_has_the_label_behind_its_pair(tmp_path):
    rows = table(
        ["index", "sentence1", "sentence2", "label"],
        ["0", "No weapons were found.", "Weapons were found.", "not_entailment"],
        ["1", "A place of sorrow.", "A place.", "entailment"],
    )
    write(tmp_path, "train.tsv", rows)
    write(tmp_path, "dev.tsv", rows)
    write(tmp_path, "test.tsv", table(["index", "sentence1", "sentence2"], ["0", "a", "b"]))
    expected = [
        ("No weapons were found.", "Weapons were found.", "not_entailment"),
        ("A place of sorrow.", "A place.", "entailment"),
    ]
    assert [row[1:] for row in read("RTE", tmp_path, "train")] == expected
    assert [row[1:] for row in read("RTE", tmp_path, "dev")] == expected
    assert read("RTE", tmp_path, "test") == [("test-1", "a", "b", "entailment")]


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
    split = task.train
    width = split.columns_needed()
    rows = [["header"] * width] if split.header else []
    for index in range(3):
        row = [f"{index}-{column}" for column in range(width)]
        row[split.label] = task.labels[index % len(task.labels)]
        rows.append(row)
    write(tmp_path, split.file, table(*rows))
    found = read(name, tmp_path, "train")
    assert len({guid for guid, _, _, _ in found}) == 3
    assert [label for _, _, _, label in found] == [task.labels[index % len(task.labels)] for index in range(3)]
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
    assert read_lines(str(tmp_path / "marked")) == ["one", "\ufefftwo"]


def test_read_lines_of_an_empty_file_are_none(tmp_path):
    write(tmp_path, "empty", b"")
    assert read_lines(str(tmp_path / "empty")) == []


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
        read_lines("train.tsv")


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
        f"{tmp_path}/train.tsv, line 2: byte 0xe9 is not UTF-8; convert the file to UTF-8."
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
    assert {"CoLA", "SST-2", "MRPC", "MNLI", "MNLI-mm", "RTE", "XNLI", "XNLI-de"} <= set(tasks.names())


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


@pytest.mark.skipif(not os.path.isdir(GLUE_DATA), reason=f"real GLUE files are missing: there is no folder {GLUE_DATA}")
@pytest.mark.parametrize(
    "task_name, train, dev, test",
    [("CoLA", 8551, 1043, 1063), ("SST-2", 67349, 872, 1821), ("MRPC", 3668, 408, 1725)],
)
def test_the_real_files_give_the_published_numbers_of_examples(task_name, train, dev, test):
    folder = os.path.join(GLUE_DATA, task_name)
    found = {split: read(task_name, folder, split) for split in ("train", "dev", "test")}
    assert {split: len(rows) for split, rows in found.items()} == {"train": train, "dev": dev, "test": test}
    for rows in found.values():
        assert len({guid for guid, _, _, _ in rows}) == len(rows)
        assert all(text_a.strip() and (text_b is None or text_b.strip()) for _, text_a, text_b, _ in rows)
    assert {label for _, _, _, label in found["train"]} == {"0", "1"}
