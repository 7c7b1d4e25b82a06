"""A checkpoint gives a model what fits, and is refused in one sentence where it does not; then, how runs are scored."""

from __future__ import annotations

import os
import random
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common.errors import UserError
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.weights.checkpoints import find_prefix
from adapter_bert.weights.loading import OwnRun, choose_source
from adapter_layers import AdapterConfig
from tests.helpers import message_of, tiny_config, write_bert

CONFIG = tiny_config(num_hidden_layers=1)
ADAPTERS = AdapterConfig(size=4)
HEAD = ["output_weights", "output_bias"]
STEP = 1234567
INDEX, DATA = ".index", ".data-00000-of-00001"


def shapes_of(adapter_fn=ADAPTERS, labels: int = 2, config: modeling.BertConfig = CONFIG):
    return parameters.model_shapes(config, ClassificationHead(labels), adapter_fn)


ADAPTED, PLAIN = shapes_of(), shapes_of(None)
BASE_NAMES = [name for name in PLAIN if name not in HEAD]
ADAPTER_NAMES = [name for name in ADAPTED if name not in PLAIN]


def add_head(labels: int = 2) -> None:
    tf.get_variable("output_weights", [labels, CONFIG.hidden_size])
    tf.get_variable("output_bias", [labels])


def add_what_training_adds(mode: str, labels: int = 2) -> None:
    """A head, the optimizer's slots and the step counter: what a run, or Google's adapter-bert, leaves behind."""
    add_head(labels)
    variables = {variable.name[:-2]: variable for variable in tf.trainable_variables()}
    for name in optimization.trainable_names(list(variables), mode):
        for slot in ("adam_m", "adam_v"):
            tf.get_variable(f"{name}/{slot}", variables[name].shape.as_list(), trainable=False)
    step = tf.constant_initializer(STEP)
    tf.get_variable("global_step", [], tf.int64, initializer=step, trainable=False)


def write_trained(folder, adapter_fn=ADAPTERS, labels: int = 2, config: modeling.BertConfig = CONFIG) -> str:
    mode = "adapter" if adapter_fn else "full"
    return write_bert(str(folder), config, adapter_fn, extra=lambda: add_what_training_adds(mode, labels))


def write_state(folder, content='model_checkpoint_path: "bert_model.ckpt"\n') -> str:
    """Writes the file in which a run notes its newest checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint").write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    """A plain BERT as Google publishes it. Read only."""
    return write_bert(str(tmp_path_factory.mktemp("bert")), CONFIG)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> str:
    """What an adapter run leaves behind. Read only."""
    return write_trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def fully_tuned(tmp_path_factory) -> str:
    """What a run without adapters leaves behind. Read only."""
    return write_trained(tmp_path_factory.mktemp("fully_tuned"), adapter_fn=None)


@pytest.fixture
def copy(trained, tmp_path) -> str:
    """A copy of `trained` to damage."""
    for ending in (INDEX, DATA):
        shutil.copy(trained + ending, str(tmp_path / ("model.ckpt" + ending)))
    return str(tmp_path / "model.ckpt")


@pytest.fixture
def logged(monkeypatch) -> list:
    """The warnings of a test."""
    found = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *args: found.append(text % args))
    return found


# ------------------------------------------------------------------------------------- what it gives


def test_a_plain_bert_gives_the_base_and_leaves_adapters_and_head_fresh(bert):
    source = choose_source(ADAPTED, bert, for_training=True)
    assert source.path == bert
    assert sorted(source.names) == sorted(BASE_NAMES)
    assert sorted(source.fresh) == sorted(ADAPTER_NAMES + HEAD)
    assert source.step == 0


def test_a_plain_bert_for_a_model_without_adapters_leaves_the_head_fresh(bert):
    source = choose_source(PLAIN, bert, for_training=True)
    assert sorted(source.names) == sorted(BASE_NAMES)
    assert sorted(source.fresh) == sorted(HEAD)


def test_the_heads_of_pre_training_are_not_taken_for_the_task_s(tmp_path):
    """Google's downloads hold `cls/…/output_bias` of the masked words and of the next sentence."""

    def pretraining_heads():
        tf.get_variable("cls/predictions/output_bias", [CONFIG.vocab_size])
        tf.get_variable("cls/seq_relationship/output_weights", [2, CONFIG.hidden_size])
        tf.get_variable("cls/seq_relationship/output_bias", [2])

    prefix = write_bert(str(tmp_path), CONFIG, extra=pretraining_heads)
    assert sorted(choose_source(PLAIN, prefix, for_training=True).fresh) == sorted(HEAD)


@pytest.mark.parametrize("for_training", [True, False])
def test_a_trained_checkpoint_gives_everything_and_its_step(trained, for_training, logged):
    source = choose_source(ADAPTED, trained, for_training)
    assert sorted(source.names) == sorted(ADAPTED)
    assert source.fresh == ()
    assert source.step == STEP
    assert logged == []


def test_a_fully_tuned_checkpoint_gives_everything_to_a_model_without_adapters(fully_tuned):
    source = choose_source(PLAIN, fully_tuned, for_training=False)
    assert sorted(source.names) == sorted(PLAIN)
    assert source.step == STEP


def test_adapters_can_start_fresh_on_a_fully_tuned_checkpoint(fully_tuned):
    source = choose_source(ADAPTED, fully_tuned, for_training=True)
    assert sorted(source.fresh) == sorted(ADAPTER_NAMES)


def test_the_names_of_a_source_load_their_values(trained):
    source = choose_source(ADAPTED, trained, for_training=True)
    reader = tf.train.load_checkpoint(trained)
    with tf.Graph().as_default(), tf.Session() as session:
        model = modeling.BertModel(CONFIG, False, tf.zeros([1, 4], tf.int32), scope="bert", adapter_fn=ADAPTERS)
        ClassificationHead(2).build(model, {"label_ids": tf.zeros([1], tf.int32)}, False)
        tf.train.init_from_checkpoint(source.path, {name: name for name in source.names})
        session.run(tf.global_variables_initializer())
        values = session.run({variable.name[:-2]: variable for variable in tf.trainable_variables()})
    assert set(values) == set(source.names)
    for name, value in values.items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))


# --------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("for_training", [True, False])
def test_adapters_of_another_size_are_refused_with_both_shapes(trained, for_training):
    message = message_of(choose_source, shapes_of(AdapterConfig(size=6)), trained, for_training)
    assert "other adapters than this model" in message
    assert "is [16, 4] where the model has [16, 6]" in message
    assert "--adapter_size" in message


@pytest.mark.parametrize("for_training", [True, False])
def test_adapters_that_the_model_lacks_are_refused(trained, for_training):
    message = message_of(choose_source, PLAIN, trained, for_training)
    assert "holds adapters that this model does not have (8 variables, e.g. bert/encoder/layer_0/" in message
    assert "--tuning_mode" in message


def test_adapters_in_other_places_are_refused(trained):
    message = message_of(choose_source, shapes_of(AdapterConfig(size=4, placement="attention")), trained, True)
    assert "(4 variables, e.g. bert/encoder/layer_0/output/adapters/" in message
    assert "--adapter_placement" in message


def test_adapters_in_fewer_places_than_the_model_has_are_refused(tmp_path):
    prefix = write_trained(tmp_path, AdapterConfig(size=4, placement="feedforward"))
    message = message_of(choose_source, ADAPTED, prefix, True)
    assert "4 of 8 variables match; 4 missing (bert/encoder/layer_0/attention/output/adapters/weights1" in message


def test_a_run_without_adapters_is_not_evaluated_with_fresh_ones(fully_tuned):
    message = message_of(choose_source, ADAPTED, fully_tuned, False)
    assert "was trained without adapters, and the model has some" in message
    assert "--tuning_mode" in message


def test_a_head_of_another_task_gives_way_to_a_fresh_one_in_training(trained, logged):
    source = choose_source(shapes_of(labels=3), trained, for_training=True)
    assert sorted(source.fresh) == sorted(HEAD)
    assert sorted(source.names) == sorted(BASE_NAMES + ADAPTER_NAMES)
    assert len(logged) == 1
    assert "belongs to another task" in logged[0]
    assert "output_weights is [2, 16] where the model has [3, 16]" in logged[0]


def test_a_head_of_another_task_is_refused_in_evaluation(trained):
    message = message_of(choose_source, shapes_of(labels=3), trained, False)
    assert "has a head of another task" in message
    assert "output_weights is [2, 16] where the model has [3, 16]" in message


def test_half_a_head_counts_as_one_of_another_task(tmp_path):
    prefix = write_bert(str(tmp_path), CONFIG, extra=lambda: tf.get_variable("output_weights", [2, 16]))
    assert sorted(choose_source(PLAIN, prefix, for_training=True).fresh) == sorted(HEAD)
    assert "1 missing (output_bias)" in message_of(choose_source, PLAIN, prefix, False)


def test_evaluating_a_plain_bert_warns_that_its_head_is_untrained(bert, logged):
    assert sorted(choose_source(PLAIN, bert, for_training=False).fresh) == sorted(HEAD)
    assert len(logged) == 1
    assert "holds no head" in logged[0]


def test_a_foreign_checkpoint_is_told_by_how_many_names_match(tmp_path):
    prefix = str(tmp_path / "foreign.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("roberta/embeddings/word_embeddings", [5, 3])
        tf.get_variable("bert/pooler/dense/bias", [16])
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)
    message = message_of(choose_source, ADAPTED, prefix, True)
    assert f"The checkpoint {prefix} does not fit this model: 1 of 23 variables match; 22 missing (" in message
    assert "bert/embeddings/word_embeddings, " in message
    assert message.count("bert/") == 3  # named, and no more


def test_a_bert_of_another_size_is_refused_with_both_shapes(tmp_path):
    prefix = write_bert(str(tmp_path), tiny_config(num_hidden_layers=1, vocab_size=99))
    message = message_of(choose_source, ADAPTED, prefix, True)
    assert "22 of 23 variables match; 1 of another shape" in message
    assert f"bert/embeddings/word_embeddings is [99, 16] where the model has [{CONFIG.vocab_size}, 16]" in message


def test_a_bert_with_too_few_layers_is_refused(bert):
    message = message_of(choose_source, shapes_of(config=tiny_config(num_hidden_layers=2)), bert, True)
    assert "23 of 39 variables match; 16 missing (bert/encoder/layer_1/" in message


# ------------------------------------------------------------------------------------------ finding it


@pytest.mark.parametrize("ending", ["", INDEX, DATA, ".meta"])
def test_a_checkpoint_is_found_by_its_prefix_or_any_of_its_files(bert, ending):
    assert find_prefix(bert + ending) == bert
    assert choose_source(PLAIN, bert + ending, for_training=True).path == bert


def test_a_missing_checkpoint_is_named_with_what_was_expected(tmp_path):
    path = str(tmp_path / "bert_model.ckpt")
    assert message_of(find_prefix, path) == (
        f"There is no checkpoint {path}: expected {path}.index and its data files."
    )
    assert f"expected {path}.index" in message_of(find_prefix, path + INDEX)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_with_a_download_asks_for_the_checkpoint_itself(bert, slash):
    folder = os.path.dirname(bert)
    message = message_of(find_prefix, folder + slash)
    assert "holds no run's checkpoint: name the checkpoint itself" in message
    assert f"{folder}/bert_model.ckpt" in message


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_of_a_run_means_its_newest_checkpoint(tmp_path, slash):
    prefix = write_trained(tmp_path / "run")
    folder = write_state(tmp_path / "run")
    assert os.path.normpath(find_prefix(folder + slash)) == prefix


def test_a_file_that_is_no_checkpoint_is_refused_by_name(bert):
    vocabulary = os.path.join(os.path.dirname(bert), "vocab.txt")
    assert f"There is no checkpoint {vocabulary}" in message_of(find_prefix, vocabulary)


# -------------------------------------------------------------------------------------- damaged files


def cut(path: str, length: int) -> None:
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(content[:length])


@pytest.mark.parametrize("length", [0, 1, 100, 8000])
def test_a_truncated_data_file_is_damage(copy, length):
    cut(copy + DATA, length)
    assert f"The checkpoint {copy} is damaged and cannot be read: " in message_of(choose_source, ADAPTED, copy, True)


def test_a_data_file_that_lacks_its_last_byte_is_damage(tmp_path):
    prefix = write_bert(str(tmp_path), CONFIG)
    cut(prefix + DATA, -1)
    assert f"The checkpoint {prefix} is damaged" in message_of(choose_source, ADAPTED, prefix, True)


@pytest.mark.parametrize("length", [0, 1, 47, 48, 1000, -1])
def test_a_truncated_index_is_damage(copy, length):
    cut(copy + INDEX, length)
    assert f"The checkpoint {copy} is damaged and cannot be read: " in message_of(choose_source, ADAPTED, copy, True)


@pytest.mark.parametrize("garbage", [b"<html>404</html>" * 200, bytes(bytearray(range(256))) * 10, b"\0" * 4096])
def test_garbage_in_place_of_an_index_is_damage(copy, garbage):
    with open(copy + INDEX, "wb") as file:
        file.write(garbage)
    assert "is damaged and cannot be read" in message_of(choose_source, ADAPTED, copy, True)


def test_a_data_file_that_is_gone_is_damage(copy):
    os.remove(copy + DATA)
    message = message_of(choose_source, ADAPTED, copy, True)
    assert "is damaged and cannot be read" in message
    assert DATA in message


def flip(path: str, positions, seed: int, check) -> dict:
    """Changes one byte at a time, in each of these places, and counts what `check` returns."""
    generator = random.Random(seed)
    with open(path, "rb") as file:
        content = file.read()
    results = {}
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= generator.randrange(1, 256)
        with open(path, "wb") as file:
            file.write(bytes(damaged))
        result = check()
        results[result] = results.get(result, 0) + 1
    return results


def loads_unchanged_or_is_refused(prefix: str, original: str):
    """A check for `flip`: anything but a refusal in one sentence or the very tensors of the original fails."""
    reader = tf.train.load_checkpoint(original)
    expected = {name: reader.get_tensor(name) for name in ADAPTED}

    def check() -> str:
        try:
            source = choose_source(ADAPTED, prefix, for_training=False)
        except UserError as error:
            assert "\n" not in str(error)
            return "damaged" if "is damaged" in str(error) else "refused"
        assert (sorted(source.names), source.step) == (sorted(ADAPTED), STEP)
        found = tf.train.load_checkpoint(prefix)
        for name in source.names:
            np.testing.assert_array_equal(found.get_tensor(name), expected[name])
        return "unchanged"

    return check


FOOTER = 48  # bytes at the end of an index that say where its blocks lie


def test_no_changed_byte_in_an_index_goes_unnoticed(copy, trained):
    places = random.Random(1).sample(range(os.path.getsize(copy + INDEX) - FOOTER), 150)
    results = flip(copy + INDEX, places, 2, loads_unchanged_or_is_refused(copy, trained))
    assert sum(results.values()) == 150
    assert results["damaged"] > 100


def test_no_changed_byte_in_the_footer_of_an_index_goes_unnoticed(copy, trained):
    size = os.path.getsize(copy + INDEX)
    check = loads_unchanged_or_is_refused(copy, trained)
    results = flip(copy + INDEX, list(range(size - FOOTER, size)) * 3, 3, check)
    assert sum(results.values()) == 3 * FOOTER
    # The footer has padding that nobody reads.
    assert set(results) == {"damaged", "unchanged"}


def bytes_of(prefix: str, tensors: dict) -> list:
    """Where in the data file these tensors' bytes lie."""
    with open(prefix + DATA, "rb") as file:
        content = file.read()
    places = []
    for value in tensors.values():
        start = content.index(value.tobytes())
        places.extend(range(start, start + value.nbytes))
    return places


def test_no_changed_byte_in_a_data_file_goes_unnoticed(copy, trained):
    step_bytes = bytes_of(copy, {"global_step": np.int64(STEP)})
    places = sorted(set(range(os.path.getsize(copy + DATA))) - set(step_bytes))
    places = random.Random(4).sample(places, 150)
    results = flip(copy + DATA, places, 5, loads_unchanged_or_is_refused(copy, trained))
    assert sum(results.values()) == 150
    # The optimizer's slots are not read; the rest is.
    assert set(results) == {"damaged", "unchanged"}
    assert results["damaged"] > 75


def test_every_changed_byte_of_a_weight_is_noticed(copy):
    weight = tf.train.load_checkpoint(copy).get_tensor("output_weights")
    places = bytes_of(copy, {"output_weights": weight})[::2]

    def check() -> str:
        assert "is damaged" in message_of(choose_source, ADAPTED, copy, False)
        return "damaged"

    assert flip(copy + DATA, places, 6, check) == {"damaged": 64}


def test_a_changed_byte_of_the_step_is_noticed(copy):
    places = bytes_of(copy, {"global_step": np.int64(STEP)})

    def check() -> str:
        assert "is damaged" in message_of(choose_source, ADAPTED, copy, False)
        return "damaged"

    assert flip(copy + DATA, places, 7, check) == {"damaged": 8}


# ------------------------------------------------------------------------------ a run's own folder


def find_own(shapes, folder: str, to_continue: bool = False):
    """What is found of a run with checkpoints of the original kind."""
    mode = "adapter" if shapes is not PLAIN else "full"
    trained = optimization.trainable_names(list(shapes), mode)
    return OwnRun(folder, shapes, trained, whole=True).find(to_continue)


def test_a_folder_without_a_run_has_no_latest_checkpoint(tmp_path, bert):
    assert find_own(ADAPTED, str(tmp_path)) is None
    assert find_own(ADAPTED, str(tmp_path / "not yet made")) is None
    assert find_own(ADAPTED, os.path.dirname(bert)) is None


def test_a_run_continues_from_its_newest_checkpoint(tmp_path):
    prefix = write_trained(tmp_path / "run")
    source = find_own(ADAPTED, write_state(tmp_path / "run"))
    assert (source.path, source.names, source.fresh, source.step) == (prefix, tuple(ADAPTED), (), STEP)


def test_of_several_checkpoints_the_one_noted_last_counts(tmp_path):
    prefix = write_trained(tmp_path / "run")
    for ending in (INDEX, DATA):
        shutil.copy(prefix + ending, str(tmp_path / "run" / ("model.ckpt-20" + ending)))
    state = "".join(
        f'{key}: "{name}"\n'
        for key, name in (
            ("model_checkpoint_path", "model.ckpt-20"),
            ("all_model_checkpoint_paths", "bert_model.ckpt"),
            ("all_model_checkpoint_paths", "model.ckpt-20"),
        )
    )
    source = find_own(ADAPTED, write_state(tmp_path / "run", state))
    assert source.path == str(tmp_path / "run" / "model.ckpt-20")


def test_a_run_of_another_model_is_refused(tmp_path):
    write_trained(tmp_path / "run")
    folder = write_state(tmp_path / "run")
    message = message_of(find_own, shapes_of(labels=3), folder)
    assert f"The output folder {folder} holds a run of another model (" in message
    assert "output_weights is [2, 16] where the model has [3, 16]" in message
    assert "--output_dir" in message
    assert "is [16, 4] where" in message_of(find_own, shapes_of(AdapterConfig(size=5)), folder)


def test_a_run_with_adapters_is_not_continued_without_them(tmp_path):
    write_trained(tmp_path / "run")
    folder = write_state(tmp_path / "run")
    assert "adapters that this model does not have" in message_of(find_own, PLAIN, folder)


def test_a_damaged_checkpoint_of_a_run_is_refused(tmp_path):
    prefix = write_trained(tmp_path / "run")
    weight = tf.train.load_checkpoint(prefix).get_tensor("output_weights")
    place = bytes_of(prefix, {"output_weights": weight})[0]
    with open(prefix + DATA, "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes(bytearray([byte[0] ^ 1])))
    assert "is damaged and cannot be read" in message_of(find_own, ADAPTED, write_state(tmp_path / "run"))


def test_a_damaged_optimizer_state_of_a_run_is_refused(tmp_path):
    """A run that continues reads it: this must not be found out when the work has started."""
    prefix = write_trained(tmp_path / "run")
    reader = tf.train.load_checkpoint(prefix)
    (last,) = bytes_of(prefix, {"slot": reader.get_tensor("output_weights/adam_v")})[-1:]
    assert last == os.path.getsize(prefix + DATA) - 1
    cut(prefix + DATA, -1)
    assert "is damaged and cannot be read" in message_of(find_own, ADAPTED, write_state(tmp_path / "run"), True)
    # As a starting point for another run it still serves: only the weights are taken.
    assert choose_source(ADAPTED, prefix, for_training=True).fresh == ()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b"half a li"])
def test_a_damaged_note_of_the_newest_checkpoint_is_named(tmp_path, content):
    """Taken for no note at all, the run would silently start again from its first step."""
    folder = write_state(tmp_path / "run", content)
    message = message_of(find_own, ADAPTED, folder)
    assert f"{folder}/checkpoint" in message
    assert "damaged" in message


def test_a_run_whose_newest_checkpoint_is_gone_does_not_silently_start_again(tmp_path):
    folder = write_state(tmp_path / "run", 'model_checkpoint_path: "model.ckpt-500"\n')
    assert "model.ckpt-500" in message_of(find_own, ADAPTED, folder)
