"""SQuAD files are read as intended; errors name the place in the file."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.tasks import squad
from adapter_bert.tasks.squad import GoldAnswer
from tests.helpers import SHARED, assert_mentions, message_of, write_file

CONTEXT = "The cat sees the dog. The dog sees the cat, not the 🐈 cat."


def qa(name: str, *answers: tuple, **more) -> dict:
    """Return a question; answers are (text, answer_start)."""
    texts = [{"text": text, "answer_start": start} for text, start in answers]
    return dict({"id": name, "question": f"Who is {name}?", "answers": texts}, **more)


def paragraph(*questions: dict, context: str = CONTEXT) -> dict:
    return {"context": context, "qas": list(questions)}


def content(*paragraphs: dict) -> dict:
    return {"version": "1.1", "data": [{"title": "Animals", "paragraphs": list(paragraphs)}]}


def write(folder, value, name: str = "squad.json") -> str:
    """Write bytes, or any other value as JSON; return the path."""
    return write_file(folder, name, value if isinstance(value, bytes) else json.dumps(value))


def parse(*questions: dict, context: str = CONTEXT) -> squad.Dataset:
    return squad.parse(content(paragraph(*questions, context=context)), "squad.json")


def error_of(value) -> str:
    """Return the message for the content of a file, without its path."""
    message = message_of(squad.parse, value, "squad.json")
    assert message.startswith("squad.json")
    return message[len("squad.json") :]


V1 = [qa("a", ("cat", 4)), qa("b", ("dog", 17), ("The dog", 22))]
V2 = [qa("a", ("cat", 4), is_impossible=False), qa("b", is_impossible=True, plausible_answers=[{"text": 1}])]
TEST = [{"id": "a", "question": "Who?"}, {"id": "b", "question": "", "answers": []}]


# ------------------------------------------------------------------------------------------------- reading


def test_a_file_is_read_with_all_its_articles_in_order(tmp_path):
    articles = [
        {"paragraphs": [paragraph(*V1), paragraph()]},
        {"title": 1, "paragraphs": [paragraph(qa("0", ("cat", 4)))]},
    ]
    dataset = squad.read(write(tmp_path, {"data": articles}))
    assert [(p.context, [q.id for q in p.questions]) for p in dataset.paragraphs] == [
        (CONTEXT, ["a", "b"]),
        (CONTEXT, []),
        (CONTEXT, ["0"]),
    ]
    assert [q.text for q in dataset.questions()] == ["Who is a?", "Who is b?", "Who is 0?"]
    assert dataset.golds() == {"a": ["cat"], "b": ["dog", "The dog"], "0": ["cat"]}
    marked = b"\xef\xbb\xbf" + json.dumps({"data": articles}, ensure_ascii=False).encode("utf-8")
    assert squad.read(write(tmp_path, marked)) == dataset


@pytest.mark.parametrize(
    "questions, impossible",
    [
        (V1, ""),
        (V2, "b"),  # whose plausible answers do not count
        # Without the key, a question without answers is unanswerable if others have some.
        ([*V1, qa("c"), {"id": "d", "question": ""}, qa("e", is_impossible=False)], "cd"),
        ([qa("a"), qa("b", is_impossible=True)], "ab"),
        (TEST, ""),
        ([dict(question, is_impossible=False) for question in TEST], ""),
    ],
)
def test_questions_are_unanswerable_if_the_file_says_so_or_only_others_have_answers(questions, impossible):
    dataset = parse(*questions)
    assert [question.id for question in dataset.questions() if question.is_impossible] == list(impossible)
    assert dataset.has_answers == any(question.get("answers") or impossible for question in questions)
    assert dataset.says_impossible == any("is_impossible" in question for question in questions)


@pytest.mark.parametrize(
    "text, given, start",
    [
        ("cat", 21, 4),  # 17 from the first, 18 from the second
        ("cat", 10**30, 54),
        ("cat", 4.0, 4),
        ("🐈 cat", 54, 52),  # offsets count code points
        ("Cat", 4, None),
        (" ", 3, None),
    ],
)
def test_the_start_of_an_answer_is_the_given_or_the_nearest_one(text, given, start):
    answer = next(parse(qa("a", (text, given))).questions()).answers[0]
    assert answer == GoldAnswer(text, start, moved=start is not None and start != given)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(context=st.text("ab", max_size=12), text=st.text("ab", min_size=1, max_size=3), offset=st.integers(-3, 15))
def test_the_nearest_start_equals_a_search_over_all_starts(context, text, offset):
    starts = [start for start in range(len(context)) if context.startswith(text, start)]
    expected = min(starts, key=lambda start: (abs(start - offset), start), default=None)
    assert next(parse(qa("a", (text, offset)), context=context).questions()).answers[0].start == expected


def test_the_first_answer_in_the_context_is_found():
    question = next(parse(qa("a", ("bird", 4), ("dog", 0), ("cat", 4))).questions())
    assert question.found == GoldAnswer("dog", 17, moved=True)
    assert [answer.text for answer in question.answers] == ["bird", "dog", "cat"]


def test_lone_surrogates_are_replaced_so_that_predictions_can_be_written():
    dataset = parse(qa("\udc01", ("b\udc00c", 2), question="\ud800?"), context="a b\udc00c 😀")
    question = next(dataset.questions())
    assert (question.id, question.text, question.found) == ("\ufffd", "\ufffd?", GoldAnswer("b\ufffdc", 2))
    assert dataset.paragraphs[0].context == "a b\ufffdc 😀"
    repr(dataset).encode("utf-8")


# ------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    "value, facts",
    [
        (gzip.compress(b"{}"), ["0x8b", "uncompressed"]),
        (b'{"data": [\n  {]}', ["line 2 column 4"]),
        (b"[" * 100_000, ["JSON"]),
        ({"version": "1.1", "articles": []}, ["'data'", "found: version, articles"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "file",
)
def test_a_file_that_is_not_a_dataset_is_reported_with_the_expected_layout(tmp_path, value, facts):
    path = write(tmp_path, value)
    assert_mentions(message_of(squad.read, path), path, "SQuAD", '"paragraphs"', *facts)


def changed(place: str, value: object = None, delete: bool = False) -> dict:
    """Return a valid file of version 2.0 with one value changed or deleted."""
    top = content(paragraph(), paragraph(*copy.deepcopy(V2)))
    node, keys = top, [int(key) if key.isdigit() else key for key in re.findall(r"\w+", place)]
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    if delete:
        del node[keys[-1]]
    return top


def values(value: object, place: str = "") -> dict:
    """Return all values in a JSON value, by place."""
    found = {place: value} if place else {}
    if isinstance(value, dict):
        for key, child in value.items():
            found.update(values(child, f"{place}.{key}" if place else key))
    if isinstance(value, list):
        for number, child in enumerate(value):
            found.update(values(child, f"{place}[{number}]"))
    return found


VALUES = values(content(paragraph(), paragraph(*V2)))
USED = {place: value for place, value in VALUES.items() if not re.search("version|title|plausible", place)}
JUNK = [None, True, 0, 2.5, float("nan"), 1e400, "x" * 70, "\ud800", "a\nb", [], {"text": 1}]
KINDS = {dict: "an object", list: "a list", str: "a string", int: "an integer", bool: "true or false"}


def test_a_value_of_the_wrong_type_is_reported_with_its_place():
    assert {type(value) for value in USED.values()} == set(KINDS)
    for place, value in USED.items():
        for junk in [junk for junk in JUNK if type(junk) is not type(value)]:
            message = error_of(changed(place, junk))
            assert message.startswith(f", {place}: expected {KINDS[type(value)]}")
            assert_mentions(message.split("found")[1], json.dumps(junk)[:60])


def test_a_missing_key_is_reported_with_its_place_and_the_existing_keys():
    found = []
    for place, value in [item for item in USED.items() if isinstance(item[1], dict)]:
        for key in [key for key in value if f"{place}.{key}" in USED and key not in ("answers", "is_impossible")]:
            message = error_of(changed(f"{place}.{key}", delete=True))
            assert message.startswith(f", {place}:")
            assert_mentions(message, f"'{key}'", "found: " + ", ".join(name for name in value if name != key) + ".")
            found.append(key)
    assert set(found) == {"paragraphs", "context", "qas", "id", "question", "text", "answer_start"}


@pytest.mark.parametrize(
    "value, facts",
    [
        (changed("data[0].paragraphs[1].qas[0].is_impossible", True), ["[1].qas[0]:", "is_impossible", '"cat"']),
        (
            content(paragraph(qa("a"), qa("b")), paragraph(qa("b"))),
            ["id b", "data[0].paragraphs[0].qas[1]", "data[0].paragraphs[1].qas[0]"],
        ),
        # Messages have one line, whatever the names.
        (content(paragraph(qa("a\nb"), qa("a\nb"))), [r"id 'a\nb'"]),
        ({"a\nb": []}, [r"found: 'a\nb'"]),
        (content(), ["no questions"]),
    ],
)
def test_inconsistent_content_is_reported(value, facts):
    assert_mentions(error_of(value), *facts)


# --------------------------------------------------------------------------------------- versions, training


@pytest.mark.parametrize(
    "questions, matching, facts",
    [
        ([*V2, qa("c", is_impossible=True)], [True], ["2 of 3", "first b.", "add --version_2_with_negative=true."]),
        ([*V1, qa("c")], [True], ["1 of 3", "first c.", "--version_2_with_negative=true, or add answers"]),
        (V1, [False], ["is_impossible", "1.1", "remove --version_2_with_negative"]),
        (V2[:1], [True, False], []),
        (TEST, [True, False], []),
    ],
)
def test_the_version_has_to_match_the_flag(questions, matching, facts):
    dataset = parse(*questions)
    for flag in (True, False):
        if flag in matching:
            squad.check_version(dataset, flag)
        else:
            assert_mentions(message_of(squad.check_version, dataset, flag), "squad.json", *facts)


def test_one_warning_lists_excluded_questions_and_moved_answers(log):
    for questions in (V1, V2):
        assert squad.for_training(parse(*questions)) == parse(*questions)
    assert not log
    pages = [
        paragraph(qa("far", ("bird", 4)), qa("good", ("bird", 4), ("cat", 4)), qa("moved", ("dog", 16), ("cat", 4))),
        paragraph(qa("blank", ("", 0)), qa("none", is_impossible=False), qa("no", is_impossible=True)),
        paragraph(qa("empty", ("cat", 4)), qa("empty-no", is_impossible=True), context=" \n\u3000"),
        paragraph(qa("far-2", ("Cat", 4))),
    ]
    dataset = squad.parse(content(*pages), "squad.json")
    training = squad.for_training(dataset)
    assert [question.id for question in training.questions()] == ["good", "moved", "no"]
    assert len(training.paragraphs) == 2
    assert dataset.num_questions == 9 and training.path == "squad.json" and training.says_impossible
    [warning] = log
    assert_mentions(warning, "squad.json", "3 of 9", "1 (none)", "3 (far, blank, far-2)", "2 (empty, empty-no)")
    assert_mentions(warning, "1 (moved)")
    assert dataset.counts() == {
        "paragraphs": 4,
        "empty_contexts": 1,
        "questions": 9,
        "unanswerable": 2,
        "answers": 8,
        "answers_not_found": 5,
        "answers_moved": 1,
    }


@pytest.mark.parametrize(
    "pages, facts",
    [
        ([paragraph(*TEST)], ["none of the 2 questions"]),
        ([paragraph(qa("a", ("bird", 4))), paragraph(qa("b"), context="")], ["none of the 2", "1 (a)", "1 (b)"]),
    ],
)
def test_a_file_without_anything_to_train_on_is_reported(pages, facts):
    dataset = squad.parse(content(*pages), "squad.json")
    assert_mentions(message_of(squad.for_training, dataset), "squad.json", *facts)


def test_the_fingerprint_depends_on_everything_but_ids():
    a, b = V2
    same = parse(a, b).fingerprint
    assert same == "sha256:eecb047d9ad73203"
    assert parse(dict(a, id="x"), dict(b, id="y", plausible_answers=[])).fingerprint == same
    others = [
        parse(a, b, context=CONTEXT + " "),
        parse(b, a),
        parse(a),
        parse(dict(a, question="Who?"), b),
        parse(dict(a, answers=[{"text": "dog", "answer_start": 17}]), b),
        parse(dict(a, answers=[{"text": "cat", "answer_start": 39}]), b),
        parse(a, dict(b, is_impossible=False)),
        squad.parse(content(paragraph(a), paragraph(b)), "squad.json"),
    ]
    assert len({same, *(other.fingerprint for other in others)}) == len(others) + 1


@pytest.mark.parametrize(
    "name, is_version_2, paragraphs, questions, unanswerable, answers",
    [
        ("dev-v1.1.rebuilt.json", False, 2067, 10570, 0, 34726),
        ("dev-v2.0.rebuilt.json", True, 1204, 11873, 5945, 20302),
    ],
)
def test_the_published_files_are_read_completely(name, is_version_2, paragraphs, questions, unanswerable, answers, log):
    path = os.path.join(SHARED, "data", "squad", name)
    if not os.path.exists(path):
        pytest.skip(f"REAL DATA NOT TESTED: there is no {path}")
    dataset = squad.read(path)
    counts = [paragraphs, 0, questions, unanswerable, answers, 0, 0]
    assert list(dataset.counts().values()) == counts
    assert dataset.says_impossible == is_version_2
    squad.check_version(dataset, is_version_2)
    assert squad.for_training(dataset) == dataset
    assert not log
