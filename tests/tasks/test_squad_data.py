"""SQuAD's files are read as they are meant, and what cannot be used is said in one sentence."""

from __future__ import annotations

import collections
import copy
import gzip
import json
import os
import random
import re
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError
from adapter_bert.tasks import encodings, squad
from adapter_bert.tasks.squad import reader
from adapter_bert.tasks.squad.dataset import GoldAnswer
from scripts import split_squad
from tests.helpers import ROOT, SHARED, message_of

CONTEXT = "The cat sees the dog. The dog sees the cat, not the 🐈 cat."
SQUAD = os.path.join(SHARED, "data", "squad")


def qa(name: str, *answers: tuple, **more) -> dict:
    """A question; answers as (text, answer_start)."""
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return dict({"id": name, "question": f"Who is {name}?", "answers": answers}, **more)


def paragraph(*questions: dict, context: str = CONTEXT) -> dict:
    return {"context": context, "qas": list(questions)}


def content(*paragraphs: dict, **more) -> dict:
    return dict({"version": "1.1", "data": [{"title": "Animals", "paragraphs": list(paragraphs)}]}, **more)


def write(folder, value, name: str = "squad.json") -> str:
    """Writes bytes, a text, or anything else as JSON; returns the path."""
    value = value if isinstance(value, (bytes, str)) else json.dumps(value)
    path = folder / name
    path.write_bytes(value if isinstance(value, bytes) else value.encode("utf-8"))
    return str(path)


def read(folder, *questions: dict, context: str = CONTEXT) -> squad.Dataset:
    return squad.read(write(folder, content(paragraph(*questions, context=context))))


def refusal(folder, value, name: str = "squad.json") -> str:
    """What a file is refused with, without its path."""
    path = write(folder, value, name)
    message = message_of(squad.read, path)
    assert message.startswith(path)
    return message[len(path) :]


def ids(dataset: squad.Dataset) -> list:
    return [question.id for question in dataset.questions()]


@pytest.fixture
def warnings(monkeypatch) -> list:
    found = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *args: found.append(text % args))
    return found


V1 = [qa("a", ("cat", 4)), qa("b", ("dog", 17), ("The dog", 22))]
V2 = [qa("a", ("cat", 4), is_impossible=False), qa("b", is_impossible=True, plausible_answers=[{"text": 1}])]
TEST = [{"id": "a", "question": "Who?"}, {"id": "b", "question": "", "answers": []}]


# ------------------------------------------------------------------------------------------------- reading


def test_a_file_of_version_1_is_read(tmp_path):
    dataset = read(tmp_path, *V1)
    assert [(p.context, [q.id for q in p.questions]) for p in dataset.paragraphs] == [(CONTEXT, ["a", "b"])]
    assert [q.text for q in dataset.questions()] == ["Who is a?", "Who is b?"]
    assert next(dataset.questions()).found == GoldAnswer("cat", 4)
    assert dataset.golds() == {"a": ["cat"], "b": ["dog", "The dog"]}
    assert dataset.num_questions == 2
    assert dataset.has_answers and not dataset.has_negatives and not dataset.says_impossible


def test_a_file_of_version_2_has_unanswerable_questions_whose_plausible_answers_do_not_count(tmp_path):
    dataset = read(tmp_path, *V2)
    assert [q.is_impossible for q in dataset.questions()] == [False, True]
    assert dataset.golds() == {"a": ["cat"], "b": []}
    assert dataset.has_answers and dataset.has_negatives and dataset.says_impossible


def test_paragraphs_of_all_articles_keep_their_order(tmp_path):
    articles = [{"paragraphs": [paragraph(qa("c")), paragraph()]}, {"title": 1, "paragraphs": [paragraph(qa("a"))]}]
    dataset = squad.read(write(tmp_path, {"data": articles}))
    assert ids(dataset) == ["c", "a"]
    assert len(dataset.paragraphs) == 3


def test_without_the_key_a_question_without_answers_is_unanswerable_where_others_have_some(tmp_path):
    dataset = read(tmp_path, *V1, qa("c"), {"id": "d", "question": ""}, qa("e", is_impossible=False))
    assert [q.is_impossible for q in dataset.questions()] == [False, False, True, True, False]
    only_negatives = read(tmp_path, qa("a"), qa("b", is_impossible=True))
    assert [q.is_impossible for q in only_negatives.questions()] == [True, True]


@pytest.mark.parametrize("questions", [TEST, [dict(question, is_impossible=False) for question in TEST]])
def test_a_test_file_has_no_answers_and_nothing_in_it_is_called_unanswerable(tmp_path, questions):
    dataset = read(tmp_path, *questions)
    assert not dataset.has_answers and not dataset.has_negatives
    assert dataset.golds() == {"a": [], "b": []}
    assert [q.found for q in dataset.questions()] == [None, None]


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(content(paragraph(*V1)), ensure_ascii=False).encode("utf-8"))
    assert squad.read(path).num_questions == 2


# --------------------------------------------------------------------------------------------- where answers stand


@pytest.mark.parametrize(
    "text, told, start",
    [
        ("cat", 4, 4),
        ("cat", 0, 4),
        ("cat", -7, 4),
        ("cat", 5, 4),
        ("cat", 21, 4),  # 17 from the first, 18 from the second
        ("cat", 22, 39),
        ("cat", 40, 39),
        ("cat", 10**30, 54),
        ("cat", 4.0, 4),
        ("🐈 cat", 52, 52),  # code points: UTF-16 and UTF-8 would count on
        ("🐈 cat", 54, 52),
        ("cat.", -4, 54),  # never from the end, as a slice would
        ("bird", 4, None),
        ("Cat", 4, None),
        ("", 4, None),
        (" ", 3, None),
    ],
)
def test_an_answer_stands_where_the_file_says_or_else_at_the_nearest_place(tmp_path, text, told, start):
    answer = next(read(tmp_path, qa("a", (text, told))).questions()).answers[0]
    assert answer == GoldAnswer(text, start, moved=start is not None and start != told)
    if start is not None:
        assert CONTEXT[start : start + len(text)] == text


def test_the_nearest_place_is_that_of_a_search_over_all_places():
    choice = random.Random(1)
    for _ in range(3000):
        context = "".join(choice.choices("ab", k=choice.randint(0, 12)))
        text = "".join(choice.choices("ab", k=choice.randint(1, 3)))
        told = choice.randint(-3, 15)
        places = [i for i in range(len(context)) if context.startswith(text, i)]
        expected = min(places, key=lambda place: (abs(place - told), place), default=None)
        assert reader._nearest(context, text, told) == expected, (context, text, told)


def test_the_first_answer_that_stands_in_the_context_is_found(tmp_path):
    question = next(read(tmp_path, qa("a", ("bird", 4), ("dog", 0), ("cat", 4))).questions())
    assert question.found == GoldAnswer("dog", 17, moved=True)
    assert [answer.text for answer in question.answers] == ["bird", "dog", "cat"]


def test_lone_surrogates_become_one_replacement_character_each_so_that_files_can_be_written(tmp_path, warnings):
    dataset = read(tmp_path, qa("a", ("b\udc00c", 2), question="\ud800?"), context="a b\udc00c 😀")
    question = next(dataset.questions())
    assert (question.text, question.found) == ("\ufffd?", GoldAnswer("b\ufffdc", 2))
    assert dataset.paragraphs[0].context == "a b\ufffdc 😀"
    repr(dataset).encode("utf-8")
    assert squad.fingerprint(dataset).startswith("sha256:")
    assert len(warnings) == 1 and "3 texts hold lone surrogates" in warnings[0]


# ------------------------------------------------------------------------------------------ files that are none


def test_a_missing_file_is_told_with_what_is_there(tmp_path):
    write(tmp_path, "", "dev-v1.1.json")
    assert message_of(squad.read, str(tmp_path / "dev.json")).endswith(
        "dev.json does not exist; the folder holds: dev-v1.1.json."
    )
    assert "does not exist" in message_of(squad.read, str(tmp_path / "no" / "dev.json"))
    assert message_of(squad.read, "nosuch://bucket/dev.json")


def test_a_folder_is_told_with_what_is_in_it(tmp_path):
    write(tmp_path, "", "dev-v1.1.json")
    assert message_of(squad.read, str(tmp_path)) == (
        f"{tmp_path} is a folder, expected a SQuAD file; it holds: dev-v1.1.json."
    )


TABLES = "Tables of texts and labels (CSV, TSV, JSON lines) are read by run_classifier.py."
VALID = json.dumps(content(paragraph(*V1)), indent=1)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("a.json", b'{"data":\n "caf\xe9"}', ", line 2: byte 0xe9 is not UTF-8; if the file is cp1252"),
        ("a.json", VALID.encode("utf-16"), " is UTF-16, expected UTF-8; convert it: iconv -f utf-16 -t utf-8."),
        ("a.json.gz", gzip.compress(b"{}"), " is compressed with gzip"),
        ("a.zip", b"PK\x03\x04", " is a ZIP archive; unzip it."),
        ("a.json", "", " is empty; a SQuAD file is expected"),
        ("a.json", "\n \n", " is empty; a SQuAD file is expected"),
        ("a.json", '{"data": [\n  {]}', ", line 2, column 4: not JSON (Expecting property name"),
        ("a.json", VALID[:-10], "It seems to be cut off"),
        ("a.json", VALID[: VALID.index("Who is b") + 5], "It seems to be cut off"),
        ("a.json", "[" * 100_000, "not JSON ("),
        ("a.json", "<!DOCTYPE html>", "It seems to be a web page"),
        ("a.csv", "text,label\nthe cat,1\n", ", line 1, column 1: not JSON (Expecting value); a SQuAD file is"),
        ("a.csv", "text,label\nthe cat,1\n", TABLES),
        ("a.txt", "the cat\t1\n", TABLES),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n', ", line 2, column 1: not JSON (Extra"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n', TABLES),
        ("a.json", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n', TABLES),
        ("a.json", '{"context": "a", "question": "b"}\n{}\n', "Its rows have one question each"),
        ("a.json", VALID + "}", "not JSON (Extra data)"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "content",
)
def test_what_is_no_json_is_told_with_its_place_and_what_it_may_be(tmp_path, name, value, message):
    assert message in refusal(tmp_path, value, name)


@pytest.mark.parametrize(
    "value, found, hint",
    [
        ([], "found a list of 0.", ""),
        ([{"title": "", "paragraphs": []}], "found a list of 1.", 'It is a list of articles: put it under "data".'),
        ([{"label": 0, "sentence": ""}], "found a list of 1.", TABLES),
        ([{"context": "", "question": ""}], "found a list of 1.", "Its rows have one question each"),
        ('"data"', "found the text 'data'.", ""),
        (5, "found the number 5.", ""),
        (None, "found null.", ""),
        (True, "found true.", ""),
        ({}, "no key 'data', found: nothing; a SQuAD file is expected", ""),
        ({"version": "1.1", "articles": []}, "no key 'data', found: version, articles; a SQuAD file", ""),
        ({"text": "a", "label": "b"}, "no key 'data', found: text, label;", TABLES),
        ({"56be": "cat", "56bf": ""}, "no key 'data', found: 56be, 56bf;", "It looks like predictions"),
        ({"56be": -1.5, "56bf": 2}, "no key 'data'", "It looks like predictions"),
        ({"56be": [{"text": "cat"}]}, "no key 'data'", "It looks like predictions"),
        ({str(i): str(i) for i in range(99)}, "found: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 89 more;", "like predictions"),
    ],
)
def test_json_that_is_no_dataset_is_told_with_what_it_may_be(tmp_path, value, found, hint):
    message = refusal(tmp_path, value)
    assert found in message and hint in message


# ------------------------------------------------------------------------------------------ damaged datasets


def changed(place: str, value: object = None, delete: bool = False) -> dict:
    """A sound file of version 2.0 with one value changed or deleted."""
    top = content(paragraph(), paragraph(*copy.deepcopy(V2)))
    node, keys = top, [int(key) if key.isdigit() else key for key in re.findall(r"\w+", place)]
    for key in keys[:-1]:
        node = node[key]
    if delete:
        del node[keys[-1]]
    else:
        node[keys[-1]] = value
    return top


QA = "data[0].paragraphs[1].qas[0]"


@pytest.mark.parametrize(
    "place, key, found",
    [
        ("data[0]", "paragraphs", "title"),
        ("data[0].paragraphs[1]", "context", "qas"),
        ("data[0].paragraphs[1]", "qas", "context"),
        (QA, "id", "question, answers, is_impossible"),
        (QA, "question", "id, answers, is_impossible"),
        (f"{QA}.answers[0]", "text", "answer_start"),
        (f"{QA}.answers[0]", "answer_start", "text"),
    ],
)
def test_a_missing_key_is_told_with_its_place_and_the_keys_that_are_there(tmp_path, place, key, found):
    message = refusal(tmp_path, changed(f"{place}.{key}", delete=True))
    assert message.startswith(f", {place}: no key '{key}', found: {found}; a SQuAD file is expected: {{")


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("data", {"title": ""}, "expected a list […], found an object with the keys: title."),
        ("data[0]", "Animals", "expected an object {…}, found the text 'Animals'."),
        ("data[0].paragraphs", None, "expected a list […], found null."),
        ("data[0].paragraphs[1]", [], "expected an object {…}, found a list of 0."),
        ("data[0].paragraphs[1].context", ["The", "cat"], "expected a text in quotes, found a list of 2."),
        ("data[0].paragraphs[1].qas", "x" * 50, f"expected a list […], found the text '{'x' * 40}'…."),
        (QA, 5, "expected an object {…}, found the number 5."),
        (f"{QA}.id", 5, "expected a text in quotes, found the number 5."),
        (f"{QA}.id", None, "expected a text in quotes, found null."),
        (f"{QA}.question", False, "expected a text in quotes, found false."),
        (f"{QA}.answers", {"text": ["cat"], "answer_start": [4]}, "found an object with the keys: text, answer_start."),
        (f"{QA}.answers", None, "expected a list […], found null."),
        (f"{QA}.answers[0]", "cat", "expected an object {…}, found the text 'cat'."),
        (f"{QA}.answers[0].text", 1990, "expected a text in quotes, found the number 1990."),
        (f"{QA}.answers[0].answer_start", "4", "expected a whole number, found the text '4'."),
        (f"{QA}.answers[0].answer_start", 4.5, "expected a whole number, found the number 4.5."),
        (f"{QA}.answers[0].answer_start", True, "expected a whole number, found true."),
        (f"{QA}.answers[0].answer_start", float("nan"), "expected a whole number, found the number nan."),
        (f"{QA}.answers[0].answer_start", float("inf"), "expected a whole number, found the number inf."),
        (f"{QA}.is_impossible", "false", "expected true or false, found the text 'false'."),
        (f"{QA}.is_impossible", 0, "expected true or false, found the number 0."),
    ],
)
def test_a_value_of_another_type_is_told_with_its_place(tmp_path, place, value, message):
    told = refusal(tmp_path, changed(place, value))
    assert told.startswith(f", {place}: expected ") and told.endswith(message)


def test_a_question_that_is_impossible_and_has_answers_is_refused(tmp_path):
    assert refusal(tmp_path, changed(f"{QA}.is_impossible", True)).startswith(
        f", {QA}: is_impossible is true, but there are answers, the first: the text 'cat'."
    )


def test_ids_that_occur_twice_are_told_with_both_places(tmp_path):
    pages = [paragraph(qa("a"), qa("b")), paragraph(qa("c"), qa("b")), paragraph(qa("b"), qa("a"))]
    assert refusal(tmp_path, content(*pages)) == (
        ": the question id b stands in data[0].paragraphs[0].qas[1] and again in data[0].paragraphs[1].qas[1]; "
        "3 of the ids in this file repeat an earlier one. Give each question its own."
    )


def test_an_id_that_no_file_can_take_is_refused(tmp_path):
    assert r"the id '\ud800' holds a lone surrogate" in refusal(tmp_path, changed(f"{QA}.id", "\ud800"))


def test_a_message_stays_one_line_whatever_the_names(tmp_path):
    assert r"the question id 'a\nb' stands" in refusal(tmp_path, content(paragraph(qa("a\nb"), qa("a\nb"))))
    assert r"found: 'a\nb'" in refusal(tmp_path, {"a\nb": []})


@pytest.mark.parametrize("value", [content(), {"data": []}, content(paragraph(), paragraph())])
def test_a_file_without_questions_is_refused(tmp_path, value):
    assert refusal(tmp_path, value) == " holds no question."


def nodes(value: object, above: tuple = ()) -> list:
    """The places of all values in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [above] * bool(above) + [place for key in keys for place in nodes(value[key], above + (key,))]


def corrupted(choice: random.Random) -> object:
    top = copy.deepcopy(FUZZED)
    others = [
        None,
        True,
        False,
        0,
        -1,
        3,
        2.5,
        1e400,
        "",
        " ",
        "x",
        "\ud800",
        "a\nb",
        [],
        [[]],
        {},
        {"text": 1},
        [None],
    ]
    for _ in range(choice.choice([1, 1, 1, 2, 3, 6])):
        places = nodes(top)
        if not places:
            return choice.choice(others)
        place = choice.choice(places)
        node = top
        for key in place[:-1]:
            node = node[key]
        action = choice.choice(["delete", "replace", "copy"])
        if action == "delete":
            del node[place[-1]]
        elif action == "replace":
            node[place[-1]] = copy.deepcopy(choice.choice(others))
        else:
            other = top
            for key in choice.choice(places):
                other = other[key]
            node[place[-1]] = copy.deepcopy(other)
    return top


FUZZED = content(paragraph(*V1), paragraph(*[dict(question, id=question["id"] * 2) for question in V2]), paragraph())


def uses(dataset: squad.Dataset) -> list:
    """Does with a dataset what a run does; returns the refusals."""
    assert len(set(ids(dataset))) == dataset.num_questions
    assert squad.fingerprint(dataset)
    json.dumps([squad.describe(dataset), dataset.golds()], ensure_ascii=False).encode("utf-8")
    refusals = []
    for use, *args in ((squad.check_version, True), (squad.check_version, False), (squad.for_training,)):
        try:
            use(dataset, *args)
        except UserError as error:
            refusals.append(error)
    return refusals


def test_any_damage_is_either_read_or_refused_in_one_sentence(monkeypatch, warnings):
    choice = random.Random(1)
    outcomes = collections.Counter()
    for _ in range(5000):
        text = json.dumps(corrupted(choice), ensure_ascii=choice.random() < 0.8)
        # Not by way of the disk, which would take most of the time.
        monkeypatch.setattr(encodings, "read_bytes", lambda path: text.encode("utf-8", "surrogatepass"))  # noqa: B023
        try:
            refusals = uses(squad.read("squad.json"))
            outcomes["read"] += 1
        except UserError as error:
            refusals = [error]
            outcomes["refused"] += 1
        assert all(str(error).startswith("squad.json") and "\n" not in str(error) for error in refusals), refusals
    assert min(outcomes.values()) > 500 and len(outcomes) == 2, outcomes


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    data = json.dumps(content(paragraph(*V1)), ensure_ascii=False).encode("utf-8")
    for end in range(len(data)):
        assert refusal(tmp_path, data[:end])


# ------------------------------------------------------------------------------------------------- versions


def test_unanswerable_questions_need_the_flag(tmp_path):
    dataset = read(tmp_path, *V2, qa("c", is_impossible=True))
    squad.check_version(dataset, True)
    assert message_of(squad.check_version, dataset, False) == (
        f"{dataset.path}: 2 of 3 questions have no answer, the first: b; this is SQuAD 2.0: add "
        "--version_2_with_negative=true."
    )
    unsaid = read(tmp_path, *V1, qa("c"))
    squad.check_version(unsaid, True)
    assert "1 of 3 questions have no answer, the first: c" in message_of(squad.check_version, unsaid, False)


def test_the_flag_needs_a_file_of_version_2(tmp_path):
    dataset = read(tmp_path, *V1)
    squad.check_version(dataset, False)
    assert message_of(squad.check_version, dataset, True) == (
        f"{dataset.path}: every question has an answer and none has the key is_impossible; this is SQuAD 1.1: leave "
        "--version_2_with_negative out."
    )
    part_of_version_2 = read(tmp_path, *V2[:1])
    squad.check_version(part_of_version_2, True)
    squad.check_version(part_of_version_2, False)


def test_a_file_without_answers_is_of_either_version(tmp_path):
    for flag in (True, False):
        squad.check_version(read(tmp_path, *TEST), flag)


# ------------------------------------------------------------------------------------------------- training


def test_a_sound_file_is_trained_on_as_it_is_without_a_warning(tmp_path, warnings):
    for questions in (V1, V2):
        dataset = read(tmp_path, *questions)
        assert squad.for_training(dataset) == dataset
    assert not warnings


def test_one_warning_tells_what_is_left_out_of_training_and_which_answers_were_moved(tmp_path, warnings):
    pages = [
        paragraph(qa("far", ("bird", 4)), qa("good", ("bird", 4), ("cat", 4)), qa("moved", ("dog", 16), ("cat", 4))),
        paragraph(qa("blank", ("", 0)), qa("none", is_impossible=False), qa("no", is_impossible=True)),
        paragraph(qa("empty", ("cat", 4)), qa("empty-no", is_impossible=True), context=" \n\u3000"),
        paragraph(qa("far-2", ("Cat", 4))),
    ]
    path = write(tmp_path, content(*pages))
    dataset = squad.read(path)
    assert not warnings
    trained = squad.for_training(dataset)
    assert ids(trained) == ["good", "moved", "no"]
    assert len(trained.paragraphs) == 2
    assert dataset.num_questions == 9 and trained.path == path and trained.says_impossible
    assert warnings == [
        f"{path}: training on 3 of 9 questions. "
        "Left out, as they have no answer and are not said to be impossible: 1 (none). "
        "Left out, as none of their answers stands in the context: 3 (far, blank, far-2). "
        "Left out, as their context is empty: 2 (empty, empty-no). "
        "Answers are elsewhere than answer_start says, so the nearest place is taken: 1 (moved)."
    ]
    assert squad.describe(dataset) == {
        "paragraphs": 4,
        "empty_contexts": 1,
        "questions": 9,
        "unanswerable": 2,
        "answers": 8,
        "answers_not_found": 5,
        "answers_moved": 1,
    }


def test_a_file_without_answers_cannot_be_trained_on(tmp_path):
    dataset = read(tmp_path, *TEST)
    assert message_of(squad.for_training, dataset) == (
        f"{dataset.path} has no answers to train on: none of its 2 questions has any."
    )


def test_a_file_of_which_nothing_is_left_to_train_on_is_refused(tmp_path):
    dataset = squad.read(write(tmp_path, content(paragraph(qa("a", ("bird", 4))), paragraph(qa("b"), context=""))))
    assert message_of(squad.for_training, dataset) == (
        f"{dataset.path}: none of 2 questions can be trained on. Left out, as none of their answers stands in the "
        "context: 1 (a). Left out, as their context is empty: 1 (b)."
    )


# ------------------------------------------------------------------------------------------------ fingerprint


def test_the_fingerprint_is_of_what_is_learnt_and_not_of_names(tmp_path):
    same = squad.fingerprint(read(tmp_path, *V2))
    assert re.fullmatch("sha256:[0-9a-f]{16}", same)
    renamed = [dict(question, id=question["id"] + "2", plausible_answers=[]) for question in V2]
    assert squad.fingerprint(read(tmp_path, *renamed)) == same
    a, b = V2
    others = [
        read(tmp_path, *V2, context=CONTEXT + " "),
        read(tmp_path, b, a),
        read(tmp_path, a),
        read(tmp_path, dict(a, question="Who?"), b),
        read(tmp_path, dict(a, answers=[{"text": "dog", "answer_start": 17}]), b),
        read(tmp_path, dict(a, answers=[{"text": "cat", "answer_start": 39}]), b),
        read(tmp_path, a, dict(b, is_impossible=False)),
        squad.read(write(tmp_path, content(paragraph(a), paragraph(b)))),
    ]
    assert len({same, *map(squad.fingerprint, others)}) == len(others) + 1


# ------------------------------------------------------------------------------------------------- real files


def real(name: str) -> str:
    path = os.path.join(SQUAD, name)
    if not os.path.exists(path):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {path}")
    return path


@pytest.mark.parametrize(
    "name, flag, articles, expected",
    [
        ("dev-v1.1.rebuilt.json", False, 48, {"paragraphs": 2067, "questions": 10570, "answers": 34726}),
        (
            "dev-v2.0.rebuilt.json",
            True,
            35,
            {"paragraphs": 1204, "questions": 11873, "answers": 20302, "unanswerable": 5945},
        ),
    ],
)
def test_the_published_files_are_read_whole(name, flag, articles, expected, warnings):
    path = real(name)
    dataset = squad.read(path)
    nothing = dict.fromkeys(["empty_contexts", "unanswerable", "answers_not_found", "answers_moved"], 0)
    assert squad.describe(dataset) == dict(nothing, **expected)
    assert len(split_squad.titles(squad.load(path))) == articles
    assert dataset.says_impossible == dataset.has_negatives == flag
    squad.check_version(dataset, flag)
    assert "--version_2_with_negative" in message_of(squad.check_version, dataset, not flag)
    assert squad.for_training(dataset) == dataset
    assert not warnings
    for page in dataset.paragraphs:
        for question in page.questions:
            assert all(page.context.startswith(answer.text, answer.start) for answer in question.answers)


# -------------------------------------------------------------------------------------------------- splitting


def articles(count: int) -> dict:
    pages = [{"title": f"T{i}", "paragraphs": [paragraph(qa(str(i), ("cat", 4)))], "more": i} for i in range(count)]
    return {"version": "v2.0", "data": pages, "licence": "CC é"}


def split(folder, source: str, *options: str, out: str = "") -> list:
    """Runs the script; returns the contents of the two files."""
    paths = [str(folder / f"{part}{out}.json") for part in ("train", "dev")]
    split_squad.main([source, f"--train_out={paths[0]}", f"--dev_out={paths[1]}", *options])
    return [json.loads((folder / f"{part}{out}.json").read_text()) for part in ("train", "dev")]


def title_list(part: dict) -> list:
    return [article["title"] for article in part["data"]]


def test_a_split_is_whole_disjoint_and_in_order_and_keeps_all_else(tmp_path, capsys):
    whole = articles(10)
    train, dev = split(tmp_path, write(tmp_path, whole), "--dev_articles=3")
    assert (len(train["data"]), len(dev["data"])) == (7, 3)
    by_title = {article["title"]: article for article in train["data"] + dev["data"]}
    assert [by_title[article["title"]] for article in whole["data"]] == whole["data"]
    for part in (train, dev):
        assert dict(part, data=[]) == dict(whole, data=[])
        assert title_list(part) == sorted(title_list(part))
    told = capsys.readouterr().err
    assert "train.json: 7 articles, 7 questions" in told and "dev.json: 3 articles, 3 questions" in told
    assert ", ".join(title_list(dev)) in told


def test_a_split_depends_on_the_seed_alone(tmp_path):
    source = write(tmp_path, articles(20))
    first, again, other = (
        split(tmp_path, source, f"--seed={seed}", out=str(run)) for run, seed in enumerate([1, 1, 2])
    )
    assert first == again != other
    assert [len(part["data"]) for part in first] == [16, 4]
    larger = split(tmp_path, source, "--dev_fraction=0.5", out="larger")
    assert set(title_list(first[1])) < set(title_list(larger[1]))
    # Of all Pythons: it must not change, or results could not be compared.
    assert title_list(first[1]) == PINNED


PINNED = ["T5", "T11", "T17", "T19"]


def test_articles_of_one_title_stay_together_and_those_without_are_articles_of_their_own(tmp_path):
    whole = articles(6)
    for number in (0, 3, 5):
        whole["data"][number]["title"] = "Same"
    del whole["data"][1]["title"]
    whole["data"][2]["title"] = None
    for seed in range(8):
        train, dev = split(tmp_path, write(tmp_path, whole), "--dev_articles=1", f"--seed={seed}", "--overwrite")
        assert len(dev["data"]) in (1, 3) and len(train["data"] + dev["data"]) == 6
        assert sum(article.get("title") == "Same" for article in dev["data"]) in (0, 3)


@pytest.mark.parametrize(
    "count, options, message",
    [
        (1, [], "The file has 1 article"),
        (5, ["--dev_articles=5"], "the file has 5 articles, so 1 to 4 are possible"),
        (5, ["--dev_articles=0"], "so 1 to 4 are possible"),
        (5, ["--dev_fraction=1"], "--dev_fraction=1: expected a number between 0 and 1"),
        (5, ["--dev_fraction=nan"], "--dev_fraction=nan: expected a number between 0 and 1"),
        (5, ["--dev_out=sub"], "sub is a folder"),
        (5, ["--dev_out=train.json"], "three different files"),
        (5, ["--dev_out=./squad.json", "--overwrite"], "three different files"),
        (5, ["--dev_out=old.json"], "old.json already exists"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused_and_nothing_is_written(tmp_path, monkeypatch, count, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(tmp_path, "old", "old.json")
    source = write(tmp_path, articles(count))
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        split_squad.main(["squad.json", "--train_out=train.json", "--dev_out=dev.json", *options])
    assert message in str(stopped.value)
    assert {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before
    assert os.path.exists(source)


def test_a_part_without_questions_is_refused(tmp_path):
    whole = articles(2)
    for article in whole["data"]:
        article["paragraphs"] = article["paragraphs"][: article["more"]]
    with pytest.raises(SystemExit, match="holds no question"):
        split(tmp_path, write(tmp_path, whole))


def test_lone_surrogates_survive_a_split(tmp_path):
    whole = articles(2)
    for article in whole["data"]:
        article["paragraphs"][0]["context"] = "\ud800"
    train, _ = split(tmp_path, write(tmp_path, whole))
    assert train["data"][0]["paragraphs"][0]["context"] == "\ud800"


@pytest.mark.parametrize("name", ["dev-v1.1.rebuilt.json", "dev-v2.0.rebuilt.json"])
def test_a_published_file_is_split_into_two(tmp_path, name):
    source = real(name)
    parts = split(tmp_path, source)
    whole, train, dev = (
        squad.read(path) for path in (source, str(tmp_path / "train.json"), str(tmp_path / "dev.json"))
    )
    assert sorted(ids(train) + ids(dev)) == sorted(ids(whole))
    assert {**train.golds(), **dev.golds()} == whole.golds()
    assert set(title_list(parts[0])).isdisjoint(title_list(parts[1]))
    assert {page.context for page in train.paragraphs}.isdisjoint(page.context for page in dev.paragraphs)


def test_the_script_runs_from_the_command_line_in_any_folder(tmp_path):
    source = write(tmp_path, articles(5))
    command = [sys.executable, os.path.join(ROOT, "scripts", "split_squad.py"), source, "--dev_articles=1"]
    command += ["--train_out=new/train.json", "--dev_out=dev.json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "new/train.json: 4 articles, 4 questions" in done.stdout
    assert squad.read(str(tmp_path / "new" / "train.json")).num_questions == 4
    assert sorted(os.listdir(str(tmp_path))) == ["dev.json", "new", "squad.json"]
