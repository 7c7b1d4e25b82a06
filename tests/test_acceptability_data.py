"""The acceptability task: its grammar says what it means to, and its files have CoLA's layout."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys

import pytest

from errors import UserError
from scripts import make_acceptability_data as data

SIZES = {"train": 801, "dev": 202, "test": 199}


@pytest.fixture(scope="module")
def splits():
    return data.make_splits(SIZES, seed=1)


@pytest.fixture(scope="module")
def sentences():
    """For each sentence of the whole grammar, in lower case: its places, as {(phenomenon, frame, label)}."""
    found = collections.defaultdict(set)
    for phenomenon, constructions in data.grammar().items():
        frames = [frame for frames in constructions for frame in frames]
        for index, frame in enumerate(frames):
            for pair in frame:
                for sentence, label in zip(pair, (1, 0)):
                    found[sentence.lower()].add((phenomenon, index, label))
    return found


@pytest.fixture
def small_grammar(monkeypatch):
    """Sixty frames for each phenomenon, so that sizes near the limit are quick to try."""
    pools = {
        name: [[[(f"Good {name} {pool} {i}.", f"Bad {name} {pool} {i}.")] for i in range(30)] for pool in range(2)]
        for name in data.PHENOMENA
    }
    monkeypatch.setattr(data, "grammar", lambda: pools)


def small_run(output_dir, *flags):
    data.main(["--output_dir", str(output_dir), "--train_size=40", "--dev_size=20", "--test_size=20", *flags])


def words_of(sentence):
    return sorted(sentence.rstrip(".?").lower().split())


# --- The grammar


def test_no_sentence_of_the_grammar_has_both_labels(sentences):
    both = [text for text, places in sentences.items() if len({label for _, _, label in places}) > 1]
    assert len(sentences) > 100000
    assert both == []


def test_no_sentence_of_the_grammar_is_in_two_frames(sentences):
    assert [text for text, places in sentences.items() if len({place[:2] for place in places}) > 1] == []


@pytest.mark.parametrize(
    "phenomenon, good, bad",
    [
        ("agr", "The young teacher laughs loudly.", "The young teacher laugh loudly."),
        ("agr", "Every old nurse is tired.", "Every old nurse are tired."),
        ("agr", "One of the tall nurses works hard.", "One of the tall nurses work hard."),
        ("agr", "The picture of the houses was sold.", "The picture of the houses were sold."),
        ("agr", "The pilots near the nurse live in London.", "The pilots near the nurse lives in London."),
        ("agr", "The nurse who met the pilots is tired.", "The nurse who met the pilots are tired."),
        ("agr", "The nurse that the pilots like is tired.", "The nurse that the pilots likes is tired."),
        ("agr", "The nurse that the pilots like is tired.", "The nurse that the pilots like are tired."),
        ("agr", "The pilot and the nurse were late.", "The pilot and the nurse was late."),
        ("agr", "Has the pilot behind the nurses left?", "Have the pilot behind the nurses left?"),
        ("refl", "The girl hurt herself again.", "The girl hurt himself again."),
        ("refl", "The women hurt themselves again.", "The women hurt herself again."),
        ("refl", "We never blamed ourselves after lunch.", "We never blamed themselves after lunch."),
        ("refl", "Mary's uncle hurt himself again.", "Mary's uncle hurt herself again."),
        ("refl", "The king near the girls hurt himself.", "The king near the girls hurt themselves."),
        ("refl", "The nun that the boy thanked hurt herself.", "The nun that the boy thanked hurt himself."),
        ("refl", "Mary said that the princesses hurt themselves.", "Mary said that the princesses hurt herself."),
        ("refl", "The old king praised himself.", "Himself praised the old king."),
        ("order", "The nurse opened the door again.", "The nurse opened door the again."),
        ("order", "The tall nurse opened the door.", "The nurse tall opened the door."),
        ("order", "The nurse opened the very old door.", "The nurse opened the old very door."),
        ("order", "The nurse quickly opened the door.", "The nurse opened quickly the door."),
        ("order", "The nurse will have opened the door.", "The nurse have will opened the door."),
        ("order", "Why has the nurse opened the door?", "Why the nurse has opened the door?"),
        ("order", "The pilot knows what the nurse will open.", "The pilot knows what will the nurse open."),
        ("order", "The nurse picked it up again.", "The nurse picked up it again."),
        ("args", "The nurse sneezed again.", "The nurse sneezed the lamp again."),
        ("args", "The nurse damaged the lamp again.", "The nurse damaged again."),
        ("args", "The nurse put the lamp behind the door.", "The nurse put the lamp."),
        ("args", "The nurse explained the plan to the pilot.", "The nurse explained the pilot the plan."),
        ("args", "The nurse hoped that the lamp was new.", "The nurse hoped the lamp."),
        ("args", "The nurse decided to buy the lamp.", "The nurse decided buying the lamp."),
        ("args", "The nurse enjoyed carrying the lamp.", "The nurse enjoyed to carry the lamp."),
        ("args", "The nurse talked about the plan again.", "The nurse talked the plan again."),
        ("args", "The nurse discussed the plan again.", "The nurse discussed about the plan again."),
    ],
)
def test_a_known_minimal_pair_is_in_one_frame_with_the_right_labels(sentences, phenomenon, good, bad):
    (good_place,), (bad_place,) = sentences[good.lower()], sentences[bad.lower()]
    assert (good_place[0], good_place[2], bad_place[2]) == (phenomenon, 1, 0)
    assert good_place[1] == bad_place[1]


@pytest.mark.parametrize(
    "text",
    [
        "The sketch of the castle cost too much.",  # good as a past tense
        "The nun who helped the king hurt himself.",  # a good noun phrase: she helped, he hurt himself
        "The nurse discussed yesterday.",  # good if yesterday is the topic
        "The nurse painted the door large.",  # good if that is how she painted it
        "You blamed yourselves again.",  # good, though not what goes with the singular
        "The teacher near the teacher is tired.",
    ],
)
def test_a_doubtful_sentence_is_not_in_the_grammar(sentences, text):
    assert text.lower() not in sentences


def test_a_wrong_order_has_exactly_the_words_of_the_right_one():
    pairs = [pair for frames in data.grammar()["order"] for frame in frames[::20] for pair in frame]
    assert [pair for pair in pairs if words_of(pair[0]) != words_of(pair[1]) or pair[0] == pair[1]] == []


def test_a_wrong_agreement_differs_in_one_verb_only():
    for frames in data.grammar()["agr"]:
        for good, bad in (pair for frame in frames[::20] for pair in frame):
            changed = [(a, b) for a, b in zip(good.split(), bad.split()) if a != b]
            assert len(good.split()) == len(bad.split()) and len(changed) == 1, (good, bad)


def test_every_reflexive_is_good_in_some_sentences_and_bad_in_others(sentences):
    labels = collections.defaultdict(set)
    for text, places in sentences.items():
        for word in text.rstrip(".").split():
            if word.endswith(("self", "selves")):
                labels[word].update(label for _, _, label in places)
    assert dict(labels) == {
        word: {0, 1} for word in ("myself", "yourself", "himself", "herself", "ourselves", "themselves")
    }


def test_sentences_are_tidy(sentences, splits):
    assert not [text for text in sentences if "  " in text or "\t" in text or set(text) & set("{}[]()")]
    for example in (example for examples in splits.values() for example in examples):
        assert example.sentence[0].isupper() and example.sentence[-1] in ".?"


# --- The splits


def test_the_splits_have_the_sizes_asked_for(splits):
    assert {split: len(examples) for split, examples in splits.items()} == SIZES


def test_no_sentence_occurs_twice_in_or_across_splits(splits):
    texts = [example.sentence.lower() for examples in splits.values() for example in examples]
    assert len(set(texts)) == len(texts) == sum(SIZES.values())


def test_each_frame_gives_one_pair_at_most_to_all_splits_together(splits, sentences):
    used = collections.defaultdict(list)
    for split, examples in splits.items():
        for example in examples:
            ((phenomenon, frame, label),) = sentences[example.sentence.lower()]
            assert (phenomenon, label) == (example.source, example.label)
            used[phenomenon, frame].append((label, split, example.sentence))
    pairs = {
        pair
        for constructions in data.grammar().values()
        for frames in constructions
        for frame in frames
        for pair in frame
    }
    for occurrences in used.values():
        labels, in_splits, texts = zip(*sorted(occurrences, reverse=True))
        assert labels in ((1,), (1, 0)) and len(set(in_splits)) == 1
        assert len(texts) == 1 or texts in pairs


def test_about_sixty_per_cent_of_each_phenomenon_is_acceptable(splits):
    for examples in splits.values():
        for phenomenon in data.PHENOMENA:
            labels = [example.label for example in examples if example.source == phenomenon]
            assert len(labels) == pytest.approx(len(examples) / 4, abs=1)
            assert sum(labels) / len(labels) == pytest.approx(0.6, abs=0.02)


def test_the_smallest_split_holds_both_labels_of_each_phenomenon(small_grammar):
    splits = data.make_splits({"train": 8, "dev": 9, "test": 11}, seed=1)
    for examples in splits.values():
        seen = {(example.source, example.label) for example in examples}
        assert seen == {(phenomenon, label) for phenomenon in data.PHENOMENA for label in (0, 1)}


def test_all_constructions_are_in_train_and_most_in_the_smaller_splits(splits):
    construction = {}
    for phenomenon, constructions in data.grammar().items():
        for index, frames in enumerate(constructions):
            construction.update({pair[0]: (phenomenon, index) for frame in frames for pair in frame})
    seen = {
        split: {construction[example.sentence] for example in examples if example.label}
        for split, examples in splits.items()
    }
    assert seen["train"] == set(construction.values())
    assert min(len(seen["dev"]), len(seen["test"])) > 0.7 * len(seen["train"])


def test_a_construction_that_runs_out_is_still_spread_evenly():
    small, large = [[("small", str(i))] for i in range(20)], [[("large", str(i))] for i in range(200)]
    drawn = [frame[0] for frame in data.draw_frames([small, large], 120, random.Random(1))]
    assert len(set(drawn)) == 120
    assert sum(kind == "small" for kind, _ in drawn) == 20
    assert 5 <= sum(kind == "small" for kind, _ in drawn[60:]) <= 15


def test_the_seed_decides_the_splits(splits):
    assert data.make_splits(SIZES, seed=1) == splits
    other = data.make_splits(SIZES, seed=2)
    same = {e.sentence for e in splits["train"]} & {e.sentence for e in other["train"]}
    assert len(same) < 0.5 * SIZES["train"]


def test_sizes_up_to_the_stated_limit_work_and_larger_ones_do_not(small_grammar):
    # 60 frames, three kept back for rounding: 57 good sentences are 95 in all, for each of four phenomena.
    assert len(data.make_splits({"train": 364, "dev": 8, "test": 8}, seed=1)["train"]) == 364
    with pytest.raises(UserError, match="381 together; the grammar has only enough for 380"):
        data.make_splits({"train": 365, "dev": 8, "test": 8}, seed=1)


# --- The files


def test_train_and_dev_have_the_four_columns_of_cola(tmp_path):
    small_run(tmp_path)
    for split, size in (("train", 40), ("dev", 20)):
        lines = (tmp_path / f"{split}.tsv").read_bytes().decode("utf-8").split("\n")
        assert lines.pop() == "" and len(lines) == size
        for source, label, annotation, sentence in (line.split("\t") for line in lines):
            assert source in data.PHENOMENA
            assert (label, annotation) in (("1", ""), ("0", "*"))
            assert sentence == sentence.strip() != ""


def test_the_test_file_has_a_header_an_index_and_no_labels(tmp_path):
    small_run(tmp_path)
    header, *lines = (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "index\tsentence"
    rows = [line.split("\t") for line in lines]
    assert [row[0] for row in rows] == [str(index) for index in range(20)]
    assert all(len(row) == 2 and " " in row[1] for row in rows)


def test_the_files_are_there_alone_and_the_table_counts_them(tmp_path, capsys):
    small_run(tmp_path / "new" / "folder")
    assert sorted(os.listdir(str(tmp_path / "new" / "folder"))) == ["dev.tsv", "test.tsv", "train.tsv"]
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert table == [
        ["split", "agr", "refl", "order", "args", "all", "acceptable"],
        ["train", "10", "10", "10", "10", "40", "60.0%"],
        ["dev", "5", "5", "5", "5", "20", "60.0%"],
        ["test", "5", "5", "5", "5", "20", "60.0%"],
    ]


def test_a_second_equal_run_touches_nothing_and_says_so(tmp_path, capsys):
    small_run(tmp_path)
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.iterdir()}
    capsys.readouterr()
    small_run(tmp_path)
    assert capsys.readouterr().out.count("already there, unchanged") == 3
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.iterdir()} == before


def test_other_files_are_kept_unless_overwriting_is_asked_for(tmp_path):
    (tmp_path / "dev.tsv").write_text("mine\n")
    with pytest.raises(SystemExit, match="dev.tsv; give another --output_dir, or --overwrite"):
        small_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["dev.tsv"]
    assert (tmp_path / "dev.tsv").read_text() == "mine\n"
    small_run(tmp_path, "--overwrite")
    assert len((tmp_path / "dev.tsv").read_text().splitlines()) == 20


def test_an_output_dir_that_is_a_file_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="Cannot write the data: .*give another --output_dir"):
        small_run(tmp_path / "file")


@pytest.mark.parametrize("size, message", [("7", "it has to be at least 8"), ("9999999", "only enough for")])
def test_an_impossible_size_ends_the_program_with_one_line(tmp_path, size, message):
    done = subprocess.run(
        [sys.executable, data.__file__, "--output_dir", str(tmp_path / "out"), "--dev_size", size],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "make_acceptability_data.py: error: " in done.stderr and message in done.stderr
    assert not (tmp_path / "out").exists()
