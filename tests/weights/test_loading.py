"""`resolve` decides which file provides which variable, and explains in one sentence why a file does not fit."""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
from typing import Callable, Dict, Iterable

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common.errors import UserError
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.weights import checkpoints, fingerprints, loading
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.loading import EVALUATE, TRAIN, USE_TRAINED, WeightRequest, resolve
from adapter_bert.weights.run_folder import RunFolder
from adapter_layers import AdapterConfig
from tests.helpers import assert_mentions, message_of, tiny_config, write_bert

CONFIG = tiny_config(num_hidden_layers=1)
ADAPTERS = AdapterConfig(size=4)
HEAD = ["output_weights", "output_bias"]
STEP = 1234567
INDEX, DATA = ".index", ".data-00000-of-00001"


def spec_of(adapter=ADAPTERS, labels: int = 2, config: modeling.BertConfig = CONFIG) -> ModelSpec:
    return ModelSpec(config, ClassificationHead(labels), adapter, "adapter" if adapter else "full")


ADAPTED, PLAIN = spec_of(), spec_of(None)
TWO_LAYERS = spec_of(config=tiny_config(num_hidden_layers=2))
BASE_NAMES = PLAIN.base_names
ADAPTER_NAMES = [name for name in ADAPTED.shapes if name not in PLAIN.shapes]


def resolve_file(spec: ModelSpec, path: str, purpose: str = TRAIN) -> loading.Weights:
    return resolve(spec, WeightRequest(path), purpose)


def add_variables_of_training(mode: str, labels: int = 2) -> None:
    """Add a head, optimizer slots and the step counter, as a run or Google's adapter-bert saves them."""
    tf.get_variable("output_weights", [labels, CONFIG.hidden_size])
    tf.get_variable("output_bias", [labels])
    variables = {variable.name[:-2]: variable for variable in tf.trainable_variables()}
    for name in optimization.trainable_names(list(variables), mode):
        for slot in checkpoints.SLOTS:
            tf.get_variable(f"{name}/{slot}", variables[name].shape.as_list(), trainable=False)
    tf.get_variable("global_step", [], tf.int64, initializer=tf.constant_initializer(STEP), trainable=False)


def write_trained(folder, adapter=ADAPTERS, labels: int = 2, config: modeling.BertConfig = CONFIG) -> str:
    mode = "adapter" if adapter else "full"
    return write_bert(str(folder), config, adapter, extra=lambda: add_variables_of_training(mode, labels))


def write_state(folder, content: bytes = b'model_checkpoint_path: "model.ckpt-10"\n') -> str:
    """Write the file that names the newest checkpoint of a run."""
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint").write_bytes(content)
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    """A plain BERT as Google publishes it: with the heads of pre-training, which no task uses. Read only."""

    def add_heads() -> None:
        tf.get_variable("cls/predictions/output_bias", [CONFIG.vocab_size])
        tf.get_variable("cls/seq_relationship/output_weights", [2, CONFIG.hidden_size])
        tf.get_variable("cls/seq_relationship/output_bias", [2])

    return write_bert(str(tmp_path_factory.mktemp("bert")), CONFIG, extra=add_heads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> str:
    """A whole checkpoint of an adapter run. Read only."""
    return write_trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def fully_tuned(tmp_path_factory) -> str:
    """A whole checkpoint of a run without adapters. Read only."""
    return write_trained(tmp_path_factory.mktemp("fully_tuned"), None)


@pytest.fixture
def copy(trained, tmp_path) -> str:
    """A copy of `trained` to damage."""
    (tmp_path / "run").mkdir()
    for ending in (INDEX, DATA):
        shutil.copy(trained + ending, str(tmp_path / "run" / ("model.ckpt-10" + ending)))
    return str(tmp_path / "run" / "model.ckpt-10")


@pytest.fixture
def run(copy, tmp_path) -> str:
    """The folder of a run whose newest checkpoint is `copy`."""
    return write_state(tmp_path / "run")


@pytest.fixture
def warnings(monkeypatch) -> list:
    found = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *args: found.append(text % args))
    return found


# ------------------------------------------------------------------------------------- named files


@pytest.mark.parametrize(
    "spec, file, purpose, fresh, warning",
    [
        (ADAPTED, "bert", TRAIN, ADAPTER_NAMES + HEAD, []),
        (PLAIN, "bert", TRAIN, HEAD, []),
        (PLAIN, "bert", EVALUATE, HEAD, ["no head"]),
        (ADAPTED, "trained", TRAIN, [], []),
        (ADAPTED, "trained", EVALUATE, [], []),
        (spec_of(labels=3), "trained", TRAIN, HEAD, ["[2, 16]", "[3, 16]"]),
        (PLAIN, "fully_tuned", EVALUATE, [], []),
        (ADAPTED, "fully_tuned", TRAIN, ADAPTER_NAMES, []),
    ],
)
def test_a_checkpoint_provides_what_belongs_to_the_model_and_the_rest_is_random(
    spec, file, purpose, fresh, warning, request, warnings
):
    prefix = request.getfixturevalue(file)
    weights = resolve_file(spec, prefix, purpose)
    assert (weights.path, sorted(weights.fresh)) == (prefix, sorted(fresh))
    assert sorted(weights.names) == sorted(set(spec.shapes) - set(fresh))
    assert weights.step == (0 if file == "bert" else STEP)
    assert len(warnings) == (1 if warning else 0)
    for text in warnings:
        assert_mentions(text, prefix, *warning)


def test_resolved_weights_are_loaded(trained):
    weights = resolve_file(ADAPTED, trained)
    reader = tf.train.load_checkpoint(trained)
    with tf.Graph().as_default(), tf.Session() as session:
        assigner = WeightAssigner(weights.assignments)
        with assigner.creating_variables():
            model = modeling.BertModel(CONFIG, False, tf.zeros([1, 4], tf.int32), scope="bert", adapter_fn=ADAPTERS)
            ClassificationHead(2).build(model, {"label_ids": tf.zeros([1], tf.int32)}, False)
        assigner.load(session)
        values = session.run({variable.name[:-2]: variable for variable in tf.trainable_variables()})
    assert set(values) == set(weights.names) == set(ADAPTED.shapes)
    for name, value in values.items():
        np.testing.assert_array_equal(value, reader.get_tensor(name))


def test_the_base_is_read_once(bert, monkeypatch):
    read = []
    each_tensor = checkpoints.each_tensor
    monkeypatch.setattr(checkpoints, "each_tensor", lambda path, names: read.extend(names) or each_tensor(path, names))
    first = resolve_file(PLAIN, bert)
    assert sorted(read) == sorted(BASE_NAMES)
    again = resolve(PLAIN, WeightRequest(bert), TRAIN, base=first.files[0])
    assert sorted(read) == sorted(BASE_NAMES)
    assert again.digests == first.digests
    expected = fingerprints.of_tensor(tf.train.load_checkpoint(bert).get_tensor("bert/pooler/dense/bias"))
    assert first.digests["bert/pooler/dense/bias"] == expected


@pytest.mark.parametrize(
    "spec, file, purposes, facts",
    [
        (spec_of(AdapterConfig(size=6)), "trained", [TRAIN, EVALUATE], ["[16, 4]", "[16, 6]", "--adapter_size"]),
        (PLAIN, "trained", [TRAIN, EVALUATE], ["8 variables", "layer_0", "--tuning_mode", "--adapter_placement"]),
        (ADAPTED, "fully_tuned", [EVALUATE], ["without adapters", "--tuning_mode"]),
        (spec_of(labels=3), "trained", [EVALUATE], ["output_weights", "[2, 16]", "[3, 16]"]),
        (TWO_LAYERS, "bert", [TRAIN, EVALUATE], ["23 of 39", "16 missing", "layer_1"]),
    ],
    ids=["adapters of another size", "no adapters", "no adapters in training", "other classes", "more layers"],
)
def test_a_checkpoint_of_another_model_is_an_error(spec, file, purposes, facts, request):
    prefix = request.getfixturevalue(file)
    for purpose in purposes:
        assert_mentions(message_of(resolve_file, spec, prefix, purpose), prefix, *facts)


def test_half_a_head_counts_as_the_head_of_another_task(tmp_path):
    prefix = write_bert(str(tmp_path), CONFIG, extra=lambda: tf.get_variable("output_weights", [2, 16]))
    assert sorted(resolve_file(PLAIN, prefix).fresh) == sorted(HEAD)
    assert_mentions(message_of(resolve_file, PLAIN, prefix, EVALUATE), "1 missing", "output_bias")


# ---------------------------------------------------------------------------------- finding a checkpoint


@pytest.mark.parametrize("ending", ["", INDEX, DATA, ".meta"])
def test_a_checkpoint_is_found_by_its_prefix_or_any_of_its_files(bert, ending):
    assert resolve_file(PLAIN, bert + ending).path == bert


def test_a_path_that_is_not_a_checkpoint_is_an_error(bert, tmp_path):
    folder, missing = os.path.dirname(bert), str(tmp_path / "bert_model.ckpt")
    for path, facts in (
        (missing, (missing, missing + INDEX)),
        (folder + "/", (folder, f"{folder}/bert_model.ckpt")),
        (os.path.join(folder, "vocab.txt"), (os.path.join(folder, "vocab.txt"),)),
    ):
        assert_mentions(message_of(checkpoints.find_prefix, path), *facts)


# ---------------------------------------------------------------------------------------- damaged files


def rewrite(path: str, change: Callable[[bytes], bytes]) -> None:
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(change(content))


@pytest.mark.parametrize(
    "ending, change",
    [(DATA, lambda content, n=n: content[:n]) for n in (0, 1, 8000)]
    + [(INDEX, lambda content, n=n: content[:n]) for n in (0, 1, 47, 48, 1000, -1)]
    + [(INDEX, lambda content, new=new: new) for new in (b"<html>404</html>" * 200, bytes(range(256)), b"\0" * 4096)],
)
def test_a_truncated_or_foreign_file_is_an_error(copy, ending, change):
    rewrite(copy + ending, change)
    assert_mentions(message_of(resolve_file, ADAPTED, copy), copy, "damaged")


def test_a_missing_data_file_is_an_error(copy):
    os.remove(copy + DATA)
    assert_mentions(message_of(resolve_file, ADAPTED, copy), copy, "damaged", DATA)


def positions_of(prefix: str, value: np.ndarray) -> range:
    """Return the positions of the bytes of a value in the data file."""
    with open(prefix + DATA, "rb") as file:
        start = file.read().index(value.tobytes())
    return range(start, start + value.nbytes)


def flip(path: str, position: int, mask: int = 1) -> None:
    rewrite(path, lambda content: content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :])


def count_outcomes(prefix: str, ending: str, positions: Iterable[int]) -> Dict[str, int]:
    """Change one byte at a time and count what happens: an error, or exactly the original weights."""
    expected = checkpoints.read_tensors(prefix, list(ADAPTED.shapes))
    counts: Dict[str, int] = collections.Counter()
    for position in positions:
        mask = 1 + position % 255
        flip(prefix + ending, position, mask)
        try:
            weights = resolve_file(ADAPTED, prefix, EVALUATE)
        except UserError as error:
            counts["damaged" if "damaged" in str(error) else "mismatch"] += 1
        else:
            assert (sorted(weights.names), weights.step) == (sorted(expected), STEP)
            found = checkpoints.read_tensors(prefix, list(expected))
            assert all(np.array_equal(found[name], value) for name, value in expected.items())
            counts["unchanged"] += 1
        flip(prefix + ending, position, mask)
    return counts


FOOTER = 48  # bytes at the end of an index, some of which nobody reads


def test_every_changed_byte_that_matters_is_detected(copy):
    index_size, data_size = (os.path.getsize(copy + ending) for ending in (INDEX, DATA))
    step = positions_of(copy, np.int64(STEP))
    head = positions_of(copy, tf.train.load_checkpoint(copy).get_tensor("output_weights"))
    counts = count_outcomes(copy, INDEX, random.Random(1).sample(range(index_size - FOOTER), 100))
    assert sum(counts.values()) == 100 and counts["damaged"] > 66
    assert set(count_outcomes(copy, INDEX, range(index_size - FOOTER, index_size))) == {"damaged", "unchanged"}
    counts = count_outcomes(copy, DATA, random.Random(4).sample(sorted(set(range(data_size)) - set(step)), 100))
    assert set(counts) == {"damaged", "unchanged"} and counts["damaged"] > 50, "optimizer slots are not read"
    for positions in (head[::2], step):
        assert count_outcomes(copy, DATA, positions) == {"damaged": len(positions)}


# ------------------------------------------------------------------------------ the run in the output folder


def resolve_run(spec: ModelSpec, folder: str, purpose: str = USE_TRAINED) -> loading.Weights:
    """Resolve the weights of a run whose checkpoints contain all variables."""
    return resolve(spec, WeightRequest(whole_checkpoints=True), purpose, RunFolder(folder))


def test_a_folder_without_a_run_provides_nothing(tmp_path, bert):
    for folder in (str(tmp_path), str(tmp_path / "missing"), os.path.dirname(bert)):
        assert_mentions(message_of(resolve_run, ADAPTED, folder, EVALUATE), folder, "--init_checkpoint")
        assert_mentions(message_of(resolve_run, ADAPTED, folder, TRAIN), "--tuning_mode=adapter", "--init_checkpoint")
        assert resolve_run(PLAIN, folder, TRAIN) is None, "full training may start from random weights"


def test_a_run_continues_from_the_newest_checkpoint_in_its_state_file(tmp_path, run, copy):
    newest = str(tmp_path / "run" / "model.ckpt-5")
    for ending in (INDEX, DATA):
        shutil.copy(copy + ending, newest + ending)
    lines = ['model_checkpoint_path: "model.ckpt-5"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in ("model.ckpt-10", "model.ckpt-5")]
    write_state(tmp_path / "run", "\n".join(lines).encode())
    for purpose in (TRAIN, USE_TRAINED):
        weights = resolve_run(ADAPTED, run, purpose)
        assert (weights.path, weights.names, weights.fresh, weights.step) == (newest, tuple(ADAPTED.shapes), (), STEP)
    for path in (run, run + "/"):
        assert os.path.normpath(checkpoints.find_prefix(path)) == newest


def test_a_run_of_another_model_is_an_error(run):
    for spec, facts in (
        (spec_of(labels=3), (run, "output_weights", "[2, 16]", "[3, 16]", "--output_dir")),
        (spec_of(AdapterConfig(size=5)), ("[16, 4]", "[16, 5]")),
        (PLAIN, ("8 variables", "--tuning_mode")),
    ):
        assert_mentions(message_of(resolve_run, spec, run), *facts)


def test_damaged_weights_or_optimizer_states_of_a_run_are_found_before_it_continues(run, copy):
    reader = tf.train.load_checkpoint(copy)
    position = positions_of(copy, reader.get_tensor("output_weights"))[0]
    flip(copy + DATA, position)
    assert "damaged" in message_of(resolve_run, ADAPTED, run)
    flip(copy + DATA, position)
    assert positions_of(copy, reader.get_tensor("output_weights/adam_v"))[-1] == os.path.getsize(copy + DATA) - 1
    rewrite(copy + DATA, lambda content: content[:-1])
    assert "damaged" in message_of(resolve_run, ADAPTED, run, TRAIN)
    assert resolve_file(ADAPTED, copy).fresh == (), "another run can still start from its weights"


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00\x01", b"half a li", b'model_checkpoint_path: "model.ckpt-500"\n']
)
def test_a_damaged_state_file_does_not_restart_the_run_silently(tmp_path, content):
    folder = write_state(tmp_path / "run", content)
    facts = ["500"] if b"500" in content else []
    assert_mentions(message_of(resolve_run, ADAPTED, folder), f"{folder}/checkpoint", *facts)


@pytest.mark.parametrize("name", ["", "model.ckpt-10"], ids=["folder", "checkpoint"])
def test_a_run_that_names_itself_as_its_base_is_an_error(tmp_path, name):
    prefix = str(tmp_path / "model.ckpt-10")
    checkpoints.write({"output_weights": np.zeros([2, 16], np.float32)}, prefix)
    write_state(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps({"init_checkpoint": str(tmp_path / name)}))
    assert_mentions(message_of(resolve_file, ADAPTED, prefix), prefix, "its own base", "settings.json")
