"""Packs and checkpoints of runs: what a training writes, even if it is killed, and how packs are loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
import run_classifier
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training import classification
from adapter_bert.weights import checkpoints, loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.run_folder import RunFolder
from adapter_layers import AdapterConfig
from tests.helpers import TINY, VOCABULARY, assert_mentions, read_results, tiny_config, write_bert, write_file
from tests.kill import ForkServer
from tests.runs.helpers import error_of, pack_of, read_json, run

pytestmark = pytest.mark.smoke

ADAPTERS = AdapterConfig(size=4)
SPEC = ModelSpec(tiny_config(), ClassificationHead(2), ADAPTERS)


def new_run(tmp_path) -> str:
    """The folder of a run that has come to no checkpoint yet."""
    prefix = write_bert(str(tmp_path / "base"), tiny_config())
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"init_checkpoint": prefix}))
    return str(folder)


@contextlib.contextmanager
def opened_saver(folder: str):
    """Yields a function of a step, which saves a tiny run's checkpoint with all numbers equal to that step."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        trained = SPEC.trained_shapes
        variables = [tf.get_variable(name, shape) for name, shape in trained.items()]
        for name, shape in checkpoints.slot_shapes(trained).items():
            tf.get_variable(name, shape)
        saver = checkpoints.TrainedSaver(variables, lambda session: None)
        step = tf.placeholder(tf.int64, [])
        values = [tf.fill(v.shape, tf.cast(step, v.dtype.base_dtype)) for v in tf.global_variables()]
        fill = tf.group(*[variable.assign(value) for variable, value in zip(tf.global_variables(), values)])
        session.run(tf.global_variables_initializer())

        def save(number: int) -> None:
            session.run(fill, {step: number})
            saver.save(session, os.path.join(folder, "model.ckpt"), global_step=number)

        yield save


def found_step(folder: str):
    """The step that a training would go on from, all of whose numbers belong together; None where there is none."""
    if RunFolder(folder).latest_checkpoint() is None:
        return None
    source = loading.resolve(SPEC, loading.WeightRequest(), loading.TRAIN, RunFolder(folder))
    slots = checkpoints.read_tensors(checkpoints.optimizer_prefix(source.path), ["output_bias/adam_m"])
    weights = checkpoints.read_tensors(source.path, ["output_bias", "global_step"])
    assert {source.step} == set(slots["output_bias/adam_m"]) == set(weights["output_bias"])
    return source.step


def save_forever(tell, folder: str, start: int) -> None:
    """Save checkpoints until killed, from the step after `start`. The first save is slow, and is not killed."""
    with opened_saver(folder) as save:
        for step in range(start + 1, 10**6):
            save(step)
            tell()


class TestOutput:
    def test_the_pack_describes_itself(self, trained):
        pack = packs.read(pack_of(trained))
        config = pack.config
        assert (config.task, config.labels, config.head) == ("CoLA", ["0", "1"], "classification")
        best = read_results(trained["output_dir"])["global_step"]
        assert (config.seed, config.step, config.max_seq_length, config.tuning_mode) == (1, best, 16, "adapter")
        adapter = {"size": 4, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"}
        assert config.adapter == adapter
        assert config.tokenizer["entries"] == len(VOCABULARY) and config.tokenizer["do_lower_case"] is True
        results = read_json(trained["output_dir"], "results.json")
        assert config.metrics == results["metrics"] and config.loss == results["loss"]
        assert config.primary_metric == "matthews"
        assert pack.fingerprint == results["fingerprints"]["pack"]
        assert config.versions["tensorflow"] == tf.version.VERSION

    def test_the_pack_contains_no_path(self, trained, tiny_bert):
        with open(pack_of(trained), "rb") as file:
            data = file.read()
        for path in (tiny_bert, trained["output_dir"], trained["data_dir"]):
            assert os.path.dirname(path).encode() not in data

    def test_without_evaluation_the_pack_contains_the_last_weights(self, unscored):
        pack = packs.read(pack_of(unscored))
        assert pack.config.step == 16 and not pack.config.metrics
        last = checkpoints.read_tensors(os.path.join(unscored["output_dir"], "model.ckpt-16"), list(pack.tensors))
        for name, value in pack.tensors.items():
            np.testing.assert_array_equal(value, last[name], name)

    def test_the_newest_five_checkpoints_are_kept_and_the_slots_of_the_newest(self, unscored):
        names = [name for name in os.listdir(unscored["output_dir"]) if ".ckpt-" in name]
        assert {name.split(".")[1] for name in names} == {f"ckpt-{step}" for step in (8, 10, 12, 14, 16)}
        slots = [name for name in names if name.startswith("optimizer")]
        assert sorted(slots) == ["optimizer.ckpt-16.data-00000-of-00001", "optimizer.ckpt-16.index"]
        state = tf.train.get_checkpoint_state(unscored["output_dir"])
        assert [path.split("-")[-1] for path in state.all_model_checkpoint_paths] == ["8", "10", "12", "14", "16"]

    @pytest.mark.long
    @pytest.mark.parametrize("is_full", [False, True])
    def test_the_output_folder_may_be_relative(self, given, tmp_path, monkeypatch, is_full):
        monkeypatch.chdir(tmp_path)
        changes = {"output_dir": "runs/mine", "save_checkpoints_steps": 2, "save_full_checkpoint": is_full}
        run(given, do_train=True, do_eval=True, **changes)
        names = {name.split(".")[1] for name in os.listdir("runs/mine") if name.startswith("model.ckpt")}
        assert len(names) == checkpoints.KEPT
        assert tf.train.latest_checkpoint("runs/mine").endswith("model.ckpt-16")
        first = read_results("runs/mine")
        run(given, do_train=True, do_eval=True, **changes)
        run(given, do_eval=True, **dict(changes, output_dir=str(tmp_path / "runs" / "mine")))
        assert read_results("runs/mine") == first

    def test_neither_graph_nor_base_is_written(self, trained, unscored):
        for folder in (trained["output_dir"], unscored["output_dir"]):
            names = os.listdir(folder)
            assert not [name for name in names if name.endswith((".meta", ".pbtxt"))]
            written = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
            # 786 numbers are trained: five checkpoints, two slots each of one, a pack; and texts, indices, summaries.
            assert 786 * 4 < written < 786 * 4 * (5 + 2 + 1) + 40000

    def test_full_checkpoints_contain_everything_and_the_frozen_base_bit_for_bit(self, given, trained, tiny_bert):
        run(given, do_train=True, do_eval=True, save_full_checkpoint=True)
        full = tf.train.load_checkpoint(os.path.join(given["output_dir"], "model.ckpt-16"))
        slots = checkpoints.slot_shapes(SPEC.trained_shapes)
        assert set(full.get_variable_to_shape_map()) == set(SPEC.shapes) | set(slots) | {"global_step"}
        base = tf.train.load_checkpoint(os.path.join(tiny_bert, "bert_model.ckpt"))
        names = base.get_variable_to_shape_map()
        moved = {name for name in names if not np.array_equal(base.get_tensor(name), full.get_tensor(name))}
        assert moved == {name for name in names if "LayerNorm" in name}
        assert os.path.exists(os.path.join(given["output_dir"], "model.ckpt-16.meta"))
        assert packs.read(pack_of(given)).fingerprint == packs.read(pack_of(trained)).fingerprint
        message = error_of(given, do_train=True, do_eval=True)
        assert_mentions(message, "--save_full_checkpoint was True, is False")


class TestInterrupted:
    @pytest.fixture
    def saving(self, tmp_path):
        """A function that saves, and one that finds what a training would go on with."""
        folder = new_run(tmp_path)
        with opened_saver(folder) as save:
            yield save, lambda: found_step(folder)

    def test_a_save_that_stops_at_any_point_leaves_the_old_state_or_the_new(self, saving, monkeypatch):
        """Every call that changes the disk fails in turn, before or after it has done its work."""
        save, found = saving
        calls = [(tf.gfile, "Remove"), (os, "replace"), (tf.train.Saver, "save")]

        class Killed(BaseException):
            pass

        countdown = []  # Steps until the kill, the last one first; empty if nothing fails

        def take_step():
            if countdown and countdown.pop() == "last":
                raise Killed

        for owner, name in calls:
            original = getattr(owner, name)

            def call(*args, _original=original, **kwargs):
                take_step()
                result = _original(*args, **kwargs)
                take_step()
                return result

            monkeypatch.setattr(owner, name, call)

        kills, outcomes = 0, set()
        assert found() is None
        for step in range(1, 7):
            save(step)
            assert found() == step
        for patience in range(40):
            before, step = found(), step + 1
            countdown[:] = ["last"] + ["other"] * patience
            try:
                save(step)
                countdown.clear()
                break
            except Killed:
                kills += 1
            assert found() in (before, step)
            outcomes.add("new" if found() == step else "old")
        assert kills >= 10 and outcomes == {"old", "new"}
        save(step + 1)
        assert found() == step + 1

    @pytest.mark.long
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
    def test_a_save_that_is_killed_leaves_the_old_state_or_the_new(self, tmp_path):
        """By SIGKILL, at ten random moments, from within TensorFlow's own writing too."""
        folder, generator = new_run(tmp_path), random.Random(4)
        with ForkServer(__name__) as server:
            for _ in range(10):
                before = found_step(folder) or 0
                server.kill("save_forever", folder, before, seconds=generator.uniform(0.0, 0.05))
                assert found_step(folder) > before, "a state that was there is gone"

    def test_temporary_files_of_a_killed_run_are_removed(self, finished):
        folder = finished["output_dir"]
        before = set(os.listdir(folder))
        left = ["model.ckpt-17.data-00000-of-00001", "optimizer.ckpt-17.index", ".0123abcd.partial/.adapter_bert.lock"]
        kept = {"x.12345678.partial", "notes.partial", "my-model.ckpt-17.index", "model.ckpt-5000.index"}
        os.mkdir(os.path.join(folder, ".0123abcd.partial"))
        for name in [*left, *kept]:
            open(os.path.join(folder, name), "w").close()
        run(finished, do_train=True, do_eval=True)
        after = {name for name in os.listdir(folder) if "tfevents" not in name}
        assert after == {name for name in before if "tfevents" not in name} | kept

    @pytest.mark.parametrize(
        "pattern, facts",
        [("optimizer.ckpt-", ["model.ckpt-16", "optimizer.ckpt-16.*", "missing"]), ("ckpt", ["--do_train"])],
        ids=["without the optimizer", "without checkpoints"],
    )
    def test_a_pack_is_all_that_an_evaluation_needs_but_cannot_be_continued(self, finished, trained, pattern, facts):
        for name in os.listdir(finished["output_dir"]):
            if pattern in name or (pattern == "ckpt" and name == "checkpoint"):
                os.remove(os.path.join(finished["output_dir"], name))
        assert_mentions(error_of(finished, do_train=True, do_eval=True), finished["output_dir"], *facts)
        run(finished, do_eval=True)
        assert read_results(finished["output_dir"]) == read_results(trained["output_dir"])
        assert packs.read(pack_of(finished)).config == packs.read(pack_of(trained)).config


class TestBase:
    @pytest.fixture
    def on_copy(self, finished, tiny_bert, tmp_path):
        """The flags of a run that has recorded a copy of the base, `tmp_path`/base."""
        prefix = os.path.join(shutil.copytree(tiny_bert, str(tmp_path / "base")), "bert_model.ckpt")
        settings = read_json(finished["output_dir"], "settings.json")
        with open(os.path.join(finished["output_dir"], "settings.json"), "w") as file:
            json.dump(dict(settings, init_checkpoint=prefix), file)
        return dict(finished, init_checkpoint=prefix)

    def test_an_evaluation_finds_the_recorded_base(self, on_copy, trained):
        run(on_copy, init_checkpoint=None, do_eval=True)
        assert read_results(on_copy["output_dir"]) == read_results(trained["output_dir"])

    def test_a_missing_base_is_an_error(self, on_copy, tmp_path):
        shutil.move(str(tmp_path / "base"), str(tmp_path / "elsewhere"))
        message = error_of(on_copy, do_eval=True, init_checkpoint=None)
        assert_mentions(message, on_copy["output_dir"], on_copy["init_checkpoint"], "--init_checkpoint")
        moved = str(tmp_path / "elsewhere" / "bert_model.ckpt")
        run(on_copy, do_eval=True, init_checkpoint=moved)
        run(on_copy, do_train=True, do_eval=True, init_checkpoint=moved)
        run(on_copy, do_train=True, do_eval=True, init_checkpoint=None)  # records the new path

    @pytest.mark.parametrize("phase", ["do_train", "do_eval"])
    @pytest.mark.parametrize("is_named, is_new", [(False, False), (True, False), (True, True)])
    def test_another_base_in_its_place_is_an_error(self, on_copy, tmp_path, phase, is_named, is_new):
        write_bert(str(tmp_path / "base"), tiny_config(), seed=8)
        if is_named:
            on_copy["init_checkpoint"] = os.path.join(on_copy["output_dir"], "model.ckpt-8")
        if is_new:
            on_copy["output_dir"] = str(tmp_path / "new")
        assert_mentions(error_of(dict(on_copy, do_eval=True), **{phase: True}), "another base")


class TestLoading:
    @pytest.mark.long
    def test_predictions_are_those_of_the_running_model_bit_for_bit(self, given, tmp_path, monkeypatch):
        """Seen by the hook in the training's session, and after train -> pack -> load -> predict."""
        seen = []
        score = classification.score_rows

        def watch(names, head, rows):
            seen.append(np.array([row["logits"] for row in rows]))
            return score(names, head, rows)

        monkeypatch.setattr(classification, "score_rows", watch)
        run(given, do_train=True, do_eval=True, eval_every_steps=16)
        pack = shutil.copy(pack_of(given), str(tmp_path / "mine.safetensors"))
        run(given, do_eval=True, adapter_pack=pack, output_dir=str(tmp_path / "new"))
        assert len(seen) == 3 and seen[0].dtype == np.float32 and np.ptp(seen[0]) > 0
        assert seen[0].tobytes() == seen[1].tobytes() == seen[2].tobytes()

    @pytest.mark.parametrize("flag", ["adapter_pack", "init_checkpoint"])
    def test_a_pack_or_the_folder_of_a_run_gives_its_scores_in_a_new_folder(self, given, trained, flag):
        run(given, do_eval=True, **{flag: pack_of(trained) if flag == "adapter_pack" else trained["output_dir"]})
        assert read_results(given["output_dir"]) == read_results(trained["output_dir"])

    def test_a_pack_alone_in_a_folder_can_be_evaluated(self, given, trained):
        os.makedirs(given["output_dir"])
        shutil.copy(pack_of(trained), given["output_dir"])
        message = error_of(given, do_eval=True, adapter_activation="relu")
        assert_mentions(message, "--adapter_activation was gelu, is relu")
        run(given, do_eval=True)
        assert read_results(given["output_dir"]) == read_results(trained["output_dir"])

    def test_a_run_in_the_folder_eval_of_another_is_ignored(self, finished, trained, other_seed):
        shutil.rmtree(os.path.join(finished["output_dir"], "eval"))
        shutil.copytree(other_seed["output_dir"], os.path.join(finished["output_dir"], "eval"))
        run(finished, do_eval=True)
        assert read_results(finished["output_dir"]) == read_results(trained["output_dir"])

    def test_two_packs_in_one_session_do_not_touch_each_other(self, trained, other_seed, tiny_bert):
        with tf.Graph().as_default(), tf.Session() as session:
            ids = tf.constant([[2, 5, 8, 16, 3]])
            base = os.path.join(tiny_bert, "bert_model.ckpt")
            values = WeightAssigner([loading.Assignment(base, tuple(SPEC.base_names))])
            with values.creating_variables():
                model = modeling.BertModel(tiny_config(), False, ids, scope="bert", adapter_fn=ADAPTERS)
                logits = ClassificationHead(2).build(model, {"label_ids": tf.zeros([1], tf.int32)}, False).logits
            values.load(session)

            def switch_to(path):
                pack = packs.read(path)
                WeightAssigner([loading.Assignment(path, tuple(pack.tensors), pack.tensors)]).load(session)
                return session.run(logits).tobytes()

            first, second, again = (switch_to(pack_of(which)) for which in (trained, other_seed, trained))
        assert first == again != second

    def test_training_can_start_from_a_pack_and_does_not_need_it_later(self, given, trained, tmp_path):
        path = shutil.copy(pack_of(trained), str(tmp_path / "start.safetensors"))
        training = {"do_train": True, "do_eval": True, "adapter_pack": path, "learning_rate": 0.0}
        run(given, **training)
        start, end, first = packs.read(path), packs.read(pack_of(given)), read_results(given["output_dir"])
        assert start.fingerprint == end.fingerprint, "nothing has changed at a rate of 0"
        assert start.config.base == end.config.base, "LayerNorms are not part of the frozen base"
        os.remove(path)
        run(given, do_eval=True, init_checkpoint=None)
        run(given, **training)
        assert read_results(given["output_dir"]) == first

    @pytest.mark.long
    def test_a_fully_tuned_pack_replaces_the_base_and_can_be_the_base_of_adapters(self, given, tmp_path):
        full = dict(given, output_dir=str(tmp_path / "full"), tuning_mode="full", learning_rate=1e-3)
        run(full, do_train=True, do_eval=True)
        assert packs.read(pack_of(full)).config.base is None
        run(full, do_eval=True, adapter_pack=pack_of(full), output_dir=str(tmp_path / "new"))
        assert read_results(str(tmp_path / "new")) == read_results(full["output_dir"])
        run(given, do_train=True, do_eval=True, adapter_pack=pack_of(full))
        first = read_results(given["output_dir"])
        run(given, do_eval=True, init_checkpoint=None)
        assert read_results(given["output_dir"]) == first
        message = error_of(given, do_eval=True, adapter_pack=pack_of(given), output_dir=str(tmp_path / "newer"))
        assert_mentions(message, "another base")

    def test_notebooks_can_load_a_pack(self, trained, tiny_bert):
        base = os.path.join(tiny_bert, "bert_model.ckpt")
        model_fn = run_classifier.model_fn_builder(
            tiny_config(), 2, base, 1e-3, 10, 1, False, False, AdapterConfig(size=4), adapter_pack=pack_of(trained)
        )
        ids = np.zeros([1, 8], np.int32)
        with tf.Graph().as_default():
            features = {name: tf.constant(ids) for name in ("input_ids", "input_mask", "segment_ids")}
            features["label_ids"] = tf.constant([0])
            spec = model_fn(features, None, "infer", {}).as_estimator_spec()
            with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(spec.scaffold)) as session:
                names = {optimization.variable_name(v): v for v in tf.trainable_variables()}
                found = session.run({name: names[name] for name in packs.read(pack_of(trained)).tensors})
        for name, value in packs.read(pack_of(trained)).tensors.items():
            np.testing.assert_array_equal(found[name], value, name)


class TestErrors:
    @pytest.fixture(scope="class")
    def folder(self, trained, tmp_path_factory):
        """A folder with the pack and files that do not match it."""
        folder = tmp_path_factory.mktemp("files")
        write_bert(str(folder / "other"), tiny_config(), seed=99)
        write_file(folder, "heads.json", json.dumps(dict(TINY, num_attention_heads=4)))
        write_file(folder, "vocab.txt", "\n".join(VOCABULARY[:-2] + VOCABULARY[:-3:-1]) + "\n")
        pack = packs.read(shutil.copy(pack_of(trained), str(folder / "pack.safetensors")))
        write_file(folder, "cut.safetensors", (folder / "pack.safetensors").read_bytes()[:-100])
        for name, labels in (("order", ["1", "0"]), ("task", ["no", "yes"])):
            config = dataclasses.replace(pack.config, labels=labels)
            packs.write(str(folder / f"{name}.safetensors"), packs.Pack(config, pack.tensors))
        return folder

    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"adapter_pack": None, "init_checkpoint": "pack.safetensors"}, ("--init_checkpoint", "--adapter_pack")),
            ({"init_checkpoint": "other/bert_model.ckpt"}, ("another base", "(task CoLA)")),
            ({"do_train": True, "init_checkpoint": "other/bert_model.ckpt"}, ("another base", "(task CoLA)")),
            ({"adapter_size": 8}, ("--adapter_size was 4, is 8", "pack.safetensors")),
            ({"do_train": True, "adapter_size": 8}, ("[16, 4]", "[16, 8]")),
            ({"tuning_mode": "layer_norm"}, ("--tuning_mode was adapter, is layer_norm",)),
            ({"adapter_activation": "relu"}, ("--adapter_activation was gelu, is relu",)),
            ({"do_train": True, "adapter_activation": "relu"}, ("'gelu'", "'relu'")),
            ({"adapter_layers": "1"}, ("--adapter_layers was None, is [1]",)),
            ({"bert_config_file": "heads.json"}, ("num_attention_heads", "2", "4")),
            ({"vocab_file": "vocab.txt"}, ("tokenizer", "pack.safetensors")),
            ({"adapter_pack": "cut.safetensors"}, ("cut.safetensors", "damaged")),
            ({"adapter_pack": "/missing"}, ("/missing",)),
            ({"adapter_pack": "order.safetensors"}, ("labels was ['1', '0'], is ['0', '1']",)),
            ({"adapter_pack": "task.safetensors"}, ("labels was ['no', 'yes'], is ['0', '1']",)),
        ],
    )
    def test_a_pack_that_does_not_match_is_an_error(self, given, folder, monkeypatch, changes, facts):
        monkeypatch.chdir(folder)
        assert_mentions(error_of(dict(given, do_eval=True, adapter_pack="pack.safetensors"), **changes), *facts)

    def test_another_pack_in_the_place_of_the_runs_own(self, finished):
        pack = packs.read(pack_of(finished))
        config = dataclasses.replace(pack.config, adapter=dict(pack.config.adapter, activation="relu"))
        packs.write(pack_of(finished), packs.Pack(config, pack.tensors))
        assert_mentions(error_of(finished, do_eval=True), "'gelu'", "'relu'")

    def test_other_weights_for_the_output_folder_of_a_run(self, trained, other_seed):
        pack, folder = pack_of(other_seed), trained["output_dir"]
        for checkpoint in (trained["init_checkpoint"], folder):
            message = error_of(trained, do_eval=True, init_checkpoint=checkpoint, adapter_pack=pack)
            assert_mentions(message, folder, pack, "--output_dir")
        optimizer = os.path.join(folder, "optimizer.ckpt-16")
        assert_mentions(error_of(trained, do_eval=True, init_checkpoint=optimizer), optimizer, "optimizer")
