"""Custom data becomes a task with examples; what cannot be used is reported with file, line and flag."""

from __future__ import annotations

import collections
import io
import tarfile

import pytest

from adapter_bert.tasks import custom
from adapter_bert.tasks.custom import CustomData
from adapter_bert.tasks.task import InputExample
from tests.helpers import as_tuples, assert_mentions, message_of, write_file

pytestmark = pytest.mark.smoke


def table(*rows, header: str = "text,label") -> str:
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


def make_rows(count: int, labels=("no", "yes")) -> list:
    return [(f"text {index}", labels[index % len(labels)]) for index in range(count)]


@pytest.fixture
def yes_no(tmp_path) -> str:
    """A file with ten rows, half of them `yes`."""
    return write_file(tmp_path, "yes_no.csv", table(*make_rows(10)))


def read(data: CustomData, *wanted: str, stored=None):
    return custom.read("Mine", data, wanted, stored)


def test_a_task_is_read_from_its_files(tmp_path, log):
    train = write_file(tmp_path, "train.csv", table(("good", " yes"), ("bad", "no "), ("fine", "yes")))
    dev = write_file(tmp_path, "dev.csv", table(("so so", "no")))
    test = write_file(tmp_path, "test.csv", "id,text\n1,unknown\n2,\n")
    task, examples = read(CustomData(train, dev, test), "train", "dev", "test")
    assert (task.name, task.labels, task.metrics) == ("Mine", ("no", "yes"), ("accuracy", "macro_f1", "matthews"))
    assert {split: as_tuples(rows) for split, rows in examples.items()} == {
        "train": [("train-2", "good", None, "yes"), ("train-3", "bad", None, "no"), ("train-4", "fine", None, "yes")],
        "dev": [("dev-2", "so so", None, "no")],
        "test": [("test-2", "unknown", None, "no"), ("test-3", "", None, "no")],
    }
    warning, *summaries = log
    assert_mentions(warning, f"{test}, line 3", "no text", "1 of 2")
    assert summaries == ["Mine: 3 train rows: yes 2, no 1", "Mine: 1 dev rows: no 1", "Mine: 2 test rows"]


def test_rows_without_a_label_or_any_text_are_skipped_with_one_warning_each(tmp_path, log):
    rows = [("a", "b", "0"), ("", "b", "1"), ("", " ", "1"), ("a", "", "0"), ("a", "b", " "), ("c", "", "")]
    path = write_file(tmp_path, "a.csv", table(*rows, header="one,two,label"))
    data = CustomData(path, text_column="one", text_pair_column="two", dev_fraction=0)
    expected = [("train-2", "a", "b", "0"), ("train-3", "", "b", "1"), ("train-5", "a", "", "0")]
    assert as_tuples(read(data, "train")[1]["train"]) == expected
    unlabelled, blank, _ = log
    assert_mentions(unlabelled, f"{path}, line 6", "label", "2 of 6")
    assert_mentions(blank, f"{path}, line 4", "text", "1 of 6")


@pytest.mark.parametrize(
    "found, order",
    [
        (("10", "9", "-1"), ("-1", "9", "10")),
        (("10", "9", "b"), ("10", "9", "b")),
        (("0.5", "10", "9"), ("0.5", "10", "9")),
    ],
)
def test_labels_are_sorted_numerically_if_all_are_integers(tmp_path, found, order):
    for rows in (3, 4, 12):  # tiny files have nearly as many labels as rows
        path = write_file(tmp_path, "a.csv", table(*make_rows(rows, found)))
        assert read(CustomData(path), "train")[0].labels == order


def test_labels_of_thousands_of_digits_are_not_converted_to_numbers(tmp_path):
    labels = ("2" * 5000, "1" * 5000)
    path = write_file(tmp_path, "a.csv", table(*make_rows(10, labels)))
    assert read(CustomData(path), "train")[0].labels == labels[::-1]


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_label_with_a_lone_surrogate_is_reported_with_its_line(tmp_path, yes_no, split):
    rows = ['{"text": "\\ud800 is fine in a text", "label": "yes"}', '{"text": "b", "label": "no\\ud800"}']
    files = {"train_file": yes_no, f"{split}_file": write_file(tmp_path, "a.jsonl", "\n".join(rows))}
    message = message_of(read, CustomData(**files), split)
    assert_mentions(message, f"{files[split + '_file']}, line 2", "label", "'\\ud800'", "'no\\ud800'")


def test_a_folder_name_that_is_not_utf8_is_no_label(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarfile.open(path, "w") as archive:
        for name in ("x/1", "caf\udce9/2"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"text"))
    assert_mentions(message_of(read, CustomData(path), "train"), path, "label", "'caf\\udce9'")


# ---------------------------------------------------------------------------------------------- dev split


def test_the_dev_rows_are_the_same_and_never_trained_on_whichever_splits_are_requested(tmp_path):
    path = write_file(tmp_path, "a.csv", table(*make_rows(200, ("a", "a", "a", "b")), ("rare", "c")))
    data = CustomData(path)
    both = read(data, "train", "dev")[1]
    train, dev = as_tuples(both["train"]), as_tuples(both["dev"])
    assert as_tuples(read(data, "train")[1]["train"]) == train
    assert as_tuples(read(data, "dev")[1]["dev"]) == dev
    assert as_tuples(read(data, "dev", stored=("a", "b", "c"))[1]["dev"]) == dev
    numbers = [[int(row[0].split("-")[1]) for row in rows] for rows in (train, dev)]
    assert numbers[0] == sorted(numbers[0]) and numbers[1] == sorted(numbers[1])
    assert sorted(numbers[0] + numbers[1]) == list(range(2, 203))
    assert collections.Counter(row[3] for row in dev) == {"a": 15, "b": 5}


def test_rows_with_the_same_text_are_in_the_same_split(tmp_path):
    """A tweet and its retweets: what is scored must not have been trained on."""
    texts = [(f"text {index // 3}", "ab"[index // 3 % 2]) for index in range(300)]
    path = write_file(tmp_path, "a.csv", table(*texts))
    splits = read(CustomData(path), "train", "dev")[1]
    trained, scored = ({example.text_a for example in splits[name]} for name in ("train", "dev"))
    assert len(trained) == 90 and len(scored) == 10 and not trained & scored
    assert len(splits["train"]) + len(splits["dev"]) == 300


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("count", [4, 7, 60])
def test_every_label_remains_in_the_training_split(tmp_path, count, fraction):
    path = write_file(tmp_path, "a.csv", table(*make_rows(count), ("rare", "c"), ("rare", "c")))
    _, examples = read(CustomData(path, dev_fraction=fraction), "train", "dev")
    assert {example.label for example in examples["train"]} == {"no", "yes", "c"}
    assert len(examples["dev"]) >= 1
    assert len(examples["train"]) + len(examples["dev"]) == count + 2
    assert not {example.guid[6:] for example in examples["train"]} & {example.guid[4:] for example in examples["dev"]}


def test_nothing_is_held_out_with_a_dev_file_or_a_fraction_of_0_or_too_few_rows(tmp_path, yes_no):
    assert len(read(CustomData(yes_no, dev_fraction=0), "train")[1]["train"]) == 10
    _, examples = read(CustomData(yes_no, dev_file=yes_no), "train", "dev")
    assert len(examples["train"]) == len(examples["dev"]) == 10
    path = write_file(tmp_path, "a.csv", table(("one", "a"), ("two", "b")))
    assert len(read(CustomData(path), "train")[1]["train"]) == 2
    assert_mentions(message_of(read, CustomData(path), "train", "dev"), path, "too few rows", "--dev_file")


def test_labels_come_from_the_earlier_training_or_flags_or_the_training_file(tmp_path, yes_no):
    test = write_file(tmp_path, "test.csv", "text\none\n")
    missing = CustomData(train_file=str(tmp_path / "gone.csv"), test_file=test)
    assert read(missing, "test", stored=["y", "x"])[0].labels == ("y", "x")
    assert read(CustomData(test_file=test, labels=("b", "a")), "test")[0].labels == ("b", "a")
    task, examples = read(CustomData(yes_no, test_file=test), "test")
    assert task.labels == ("no", "yes") and list(examples) == ["test"]
    message = message_of(read, CustomData(test_file=test), "test")
    assert_mentions(message, "--labels", "--output_dir", "--init_checkpoint")


@pytest.mark.parametrize(
    "settings, stored, facts",
    [
        ({}, ("maybe", "no"), ["had the labels maybe, no;", "are no, yes."]),
        ({"task_type": "regression"}, ("no", "yes"), ["had the labels no, yes;", "are (numbers)"]),
        ({"labels": ("yes", "no")}, ("no", "yes"), ["had the labels no, yes;", "are yes, no."]),
    ],
)
def test_labels_that_differ_from_the_stored_ones_are_reported(yes_no, settings, stored, facts):
    data = CustomData(yes_no, dev_file=yes_no, **settings)
    wanted = "dev" if settings else "train"
    assert_mentions(message_of(read, data, wanted, stored=stored), "--output_dir", *facts)
    assert read(CustomData(yes_no), "dev", stored=("yes", "no"))[0].labels == ("yes", "no")


# --------------------------------------------------------------------------------------------- bad content

BY_NUMBER = {"text_column": "1", "label_column": "2"}
IDS = table(*[(str(index), f"text {index}", "ab"[index % 2]) for index in range(20)], header="id,text,kind")
FRACTIONS = table(*make_rows(200, [str(index / 100) for index in range(30)]))


@pytest.mark.parametrize(
    "content, settings, facts",
    [
        ("text,label,gold\none,x, \n", {"label_column": "gold"}, ["'gold' (--label_column)", "1 rows", "text, label"]),
        (table(("one", ""), ("", "y")), {}, ["none of the 2 rows"]),
        (IDS, {"label_column": "id"}, ["'id'", "20 different values in 20 rows", "regression", "labels: kind."]),
        (FRACTIONS, {}, ["30 different values in 200 rows", "--task_type=regression"]),
        (table(*make_rows(10, ("yes",))), {}, ["'yes' in all 10 rows"]),
        (table(*make_rows(20)), BY_NUMBER, ["line 1", "'label'", "--header=true"]),
        (table(("a", "1")), dict(BY_NUMBER, task_type="regression"), ["line 1", "'label'"]),
        (table(*make_rows(10)), {"labels": ("Yes", "no")}, ["--labels", "'Yes'", "no 5, yes 5"]),
    ],
)
def test_an_unusable_training_file_is_reported(tmp_path, content, settings, facts):
    path = write_file(tmp_path, "a.csv", content)
    assert_mentions(message_of(read, CustomData(path, **settings), "train"), path, *facts)


def test_a_hint_applies_only_where_it_can_help(tmp_path):
    """Numbers are not suggested for texts, and the header flag settles whether the first row is a header."""
    path = write_file(tmp_path, "a.csv", IDS)
    message = message_of(read, CustomData(path, label_column="text", text_column="id"), "train")
    assert_mentions(message, "'text'", "20 different values", "labels: kind.")
    assert "regression" not in message
    path = write_file(tmp_path, "a.csv", table(*make_rows(20)))
    assert read(CustomData(path, header=True, **BY_NUMBER), "train")[0].labels == ("no", "yes")
    assert read(CustomData(path, header=False, **BY_NUMBER), "train")[0].labels == ("label", "no", "yes")


def test_a_dev_label_that_the_training_file_lacks_is_reported(tmp_path, yes_no):
    dev = write_file(tmp_path, "dev.csv", table(("a", "yes"), ("b", "Yes"), ("c", "maybe")))
    message = message_of(read, CustomData(yes_no, dev), "train", "dev")
    assert_mentions(message, f"{dev}, line 3", "'Yes'", "no, yes", "2 of 3", "--labels", "--label_map")
    _, examples = read(CustomData(yes_no, dev, label_map={"Yes": "yes"}, labels=("yes", "no")), "dev")
    assert [example.label for example in examples["dev"]] == ["yes", "yes"]
    other = write_file(tmp_path, "other.csv", table(("c", "x")))
    assert_mentions(message_of(read, CustomData(yes_no, other, labels=("a", "b")), "dev"), other, "a, b")


def test_only_listed_labels_are_kept_in_their_order_after_mapping(tmp_path, log):
    path = write_file(tmp_path, "a.csv", table(("1", "Y"), ("2", "Yes"), ("3", "N"), ("4", "N/A"), ("5", "No")))
    data = CustomData(path, labels=("Yes", "No"), label_map={"Y": "Yes", "N": "No", "yep": "Yes"}, dev_fraction=0)
    task, examples = read(data, "train")
    assert task.labels == ("Yes", "No")
    assert [example.label for example in examples["train"]] == ["Yes", "Yes", "No", "No"]
    unused, excluded, _ = log
    assert_mentions(unused, path, "--label_map", ": yep.")
    assert_mentions(excluded, "1 rows", "--labels", "N/A 1")


@pytest.mark.parametrize(
    "wanted, settings, facts",
    [
        *(("train", {"dev_fraction": bad}, ["--dev_fraction", bad]) for bad in (1.0, -0.1, float("nan"))),
        ("train", {"split_seed": -1}, ["--split_seed", "-1"]),
        ("train", {"labels": ("a",)}, ["--labels", "two"]),
        ("train", {"labels": ("a", "b", "a")}, ["--labels", "'a' twice"]),
        ("train", {"labels": ("a", "b\ud800")}, ["--labels", "'\\ud800'", "'b"]),
        ("train", {"label_map": {"a": "\udcff"}}, ["--label_map", "'\\udcff'"]),
        ("train", {"labels": ("a", "b"), "task_type": "regression"}, ["--labels", "--task_type=regression"]),
        ("train", {"dev_file": "x"}, ["--train_file"]),
        ("test", {"train_file": "x"}, ["--test_file"]),
        ("dev", {"train_file": "x", "dev_fraction": 0}, ["--dev_file", "--dev_fraction"]),
    ],
)
def test_an_impossible_or_missing_setting_is_reported(wanted, settings, facts):
    assert_mentions(message_of(lambda: read(CustomData(**settings), wanted)), *facts)


def test_numbers_are_read_for_a_regression_task(tmp_path):
    path = write_file(tmp_path, "a.csv", table(*[(f"t{index}", str(index / 4)) for index in range(40)]))
    data = CustomData(path, task_type="regression")
    task, examples = read(data, "train", "dev")
    assert (task.labels, task.metrics, task.is_regression) == ((), ("spearman", "pearson"), True)
    assert len(examples["train"]) == 36 and len(examples["dev"]) == 4
    assert sorted(row.label for rows in examples.values() for row in rows) == [index / 4 for index in range(40)]
    assert as_tuples(read(data, "dev")[1]["dev"]) == as_tuples(examples["dev"])
    test = write_file(tmp_path, "test.csv", "text\none\n")
    task, examples = read(CustomData(test_file=test, task_type="regression"), "test")
    assert examples["test"][0].label == 0.0 and task.labels == ()


@pytest.mark.parametrize("value", ["high", "nan", "inf", "1,5"])
def test_a_label_that_is_not_a_finite_number_is_reported(tmp_path, value):
    path = write_file(tmp_path, "a.csv", f'text,label\none,1.5\ntwo,"{value}"\nthree,2\n')
    message = message_of(read, CustomData(path, task_type="regression", dev_fraction=0), "train")
    assert_mentions(message, f"{path}, line 3", "number", f"'{value}'")


# ------------------------------------------------------------------------------------------- label flags


def examples_of(labels: str) -> list:
    return [InputExample(str(index), "x", None, label) for index, label in enumerate(labels)]


@pytest.mark.parametrize(
    "choice, found, labels, weights",
    [
        (None, "aaab", "ab", None),
        ("none", "aaab", "ab", None),
        ("balanced", "aaaaaabbbc", "cab", (10 / (3 * 1), 10 / (3 * 6), 10 / (3 * 3))),
        ("b=2.5", "aaab", "ab", (1.0, 2.5)),
    ],
)
def test_class_weights_are_in_the_order_of_the_labels(choice, found, labels, weights):
    assert custom.class_weights(choice, examples_of(found), tuple(labels)) == weights


@pytest.mark.parametrize(
    "choice, labels, facts",
    [
        ("c=1", "ab", ["'c'", "a, b"]),
        *((f"b={bad}", "ab", ["positive number", "'b'", f"'{bad}'"]) for bad in ("-1", "much", "nan")),
        ("balanced", "abd", ["balanced", "'d'"]),
    ],
)
def test_impossible_class_weights_are_reported(choice, labels, facts):
    message = message_of(custom.class_weights, choice, examples_of("aaab"), tuple(labels))
    assert_mentions(message, "--class_weights", *facts)


LISTS = {"Yes,No": ("Yes", "No"), " a , b ": ("a", "b"), '["a, b", 1, true]': ("a, b", "1", "true")}
MAPS = {"Y=y,N=n": {"Y": "y", "N": "n"}, " a = b=c ": {"a": "b=c"}, '{"a, =": "b", "c": 1}': {"a, =": "b", "c": "1"}}


@pytest.mark.parametrize(
    "parse, flag, parsed, bad",
    [
        (custom.parse_list, "--labels", LISTS, ["", "a,,b", '["a"', '[["a"]]', "[]", "[" * 100_000]),
        (custom.parse_map, "--label_map", MAPS, ["", "a", "a=", "=b", "a=b,a=c", '{"a"', '{"a": []}', "{}"]),
    ],
)
def test_lists_and_maps_are_parsed_or_reported(parse, flag, parsed, bad):
    assert {text: parse(text) for text in parsed} == parsed
    for text in bad:
        assert_mentions(message_of(parse, text), flag, f"'{text}'")
