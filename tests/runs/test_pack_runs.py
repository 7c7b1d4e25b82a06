"""Packs and checkpoints of runs: what a training writes, even if it is killed, and how packs are loaded."""

from __future__ import annotations

import contextlib
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
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training import classification
from adapter_bert.weights import checkpoints, loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.run_folder import RunFolder
from adapter_layers import AdapterConfig
from tests.helpers import TINY, VOCABULARY, assert_mentions, base_flags, read_results, tiny_config, write_bert
from tests.kill import ForkServer
from tests.runs.helpers import error_of, pack_of, run

pytestmark = pytest.mark.smoke

ADAPTERS = AdapterConfig(size=4)


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path):
    """Settings of a run of 16 steps, to be changed by a test."""
    values = base_flags(tiny_bert, cola_dir, str(tmp_path / "out"))
    return dict(values, num_train_epochs=2.0, learning_rate=3e-3, save_checkpoints_steps=5)


@pytest.fixture(scope="module")
def trained(tiny_bert, cola_dir, tmp_path_factory):
    """Settings of a run that is trained, scored and predicted. Read only."""
    values = base_flags(tiny_bert, cola_dir, str(tmp_path_factory.mktemp("trained") / "out"))
    values.update(num_train_epochs=2.0, learning_rate=3e-3)
    run(values, do_train=True, do_eval=True, do_predict=True)
    return values


def read_text(folder, name) -> str:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


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
        saver = checkpoints.RunSaver(variables, lambda session: None)
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
        config = packs.read(pack_of(trained)).config
        assert (config.task, config.labels, config.head) == ("CoLA", ["0", "1"], "classification")
        best = read_results(trained["output_dir"])["global_step"]
        assert (config.seed, config.step, config.max_seq_length, config.tuning_mode) == (1, best, 16, "adapter")
        assert config.adapter == {
            "size": 4,
            "activation": "gelu",
            "init_scale": 0.01,
            "layers": None,
            "placement": "both",
        }
        assert config.tokenizer["entries"] == len(VOCABULARY) and config.tokenizer["do_lower_case"] is True
        results = json.loads(read_text(trained["output_dir"], "results.json"))
        assert config.metrics == results["metrics"] and config.loss == results["loss"]
        assert config.primary_metric == "matthews"
        assert packs.read(pack_of(trained)).fingerprint == results["fingerprints"]["pack"]
        assert config.versions["tensorflow"] == tf.version.VERSION

    def test_the_pack_contains_no_path(self, trained, tiny_bert):
        with open(pack_of(trained), "rb") as file:
            data = file.read()
        for path in (tiny_bert, trained["output_dir"], trained["data_dir"]):
            assert os.path.dirname(path).encode() not in data

    def test_without_evaluation_the_pack_contains_the_last_weights(self, given):
        run(given, do_train=True)
        pack = packs.read(pack_of(given))
        assert pack.config.step == 16 and not pack.config.metrics
        last = checkpoints.read_tensors(os.path.join(given["output_dir"], "model.ckpt-16"), list(pack.tensors))
        for name, value in pack.tensors.items():
            np.testing.assert_array_equal(value, last[name], name)

    @pytest.mark.long
    def test_scores_of_a_later_evaluation_are_added_to_the_pack(self, given):
        run(given, do_train=True, do_eval=True, eval_every_steps=0)
        config = packs.read(pack_of(given)).config
        assert config.metrics["matthews"] == read_results(given["output_dir"])["eval_matthews"]
        run(given, do_train=True, do_eval=True, eval_every_steps=0)
        assert packs.read(pack_of(given)).config == config, "the same command again has nothing left to do"

    @pytest.mark.long
    def test_a_regression_writes_a_pack(self, given, tmp_path):
        texts = [f"the {noun} {verb} big" for noun in ("cat", "dog", "cats", "dogs") for verb in ("is", "are", "was")]
        rows = "".join(f"{text}\t{index / 4}\n" for index, text in enumerate(texts))
        (tmp_path / "scores.tsv").write_text("text\tlabel\n" + rows)
        own = {"task_name": "own", "data_dir": None, "train_file": str(tmp_path / "scores.tsv")}
        run(given, do_train=True, do_eval=True, dev_fraction=0.5, train_batch_size=2, task_type="regression", **own)
        config = packs.read(pack_of(given)).config
        assert (config.head, config.labels, config.task) == ("regression", [], "own")

    def test_the_newest_five_checkpoints_are_kept_and_the_slots_of_one(self, given):
        run(given, do_train=True, save_checkpoints_steps=2)
        names = {name.split(".")[1] for name in os.listdir(given["output_dir"]) if ".ckpt-" in name}
        assert names == {f"ckpt-{step}" for step in (8, 10, 12, 14, 16)}
        slots = [name for name in os.listdir(given["output_dir"]) if name.startswith("optimizer")]
        assert sorted(slots) == ["optimizer.ckpt-16.data-00000-of-00001", "optimizer.ckpt-16.index"]
        state = tf.train.get_checkpoint_state(given["output_dir"])
        assert [path.split("-")[-1] for path in state.all_model_checkpoint_paths] == ["8", "10", "12", "14", "16"]

    @pytest.mark.long
    @pytest.mark.parametrize("kind", [False, True])
    def test_the_output_folder_may_be_relative(self, given, tmp_path, monkeypatch, kind):
        monkeypatch.chdir(tmp_path)
        wish = {"output_dir": "runs/mine", "save_checkpoints_steps": 2, "save_full_checkpoint": kind}
        run(given, do_train=True, do_eval=True, **wish)
        names = sorted({name.split(".")[1] for name in os.listdir("runs/mine") if name.startswith("model.ckpt")})
        assert len(names) == checkpoints.KEPT
        assert tf.train.latest_checkpoint("runs/mine").endswith("model.ckpt-16")
        first = read_results("runs/mine")
        run(given, do_train=True, do_eval=True, **wish)
        run(given, do_eval=True, **dict(wish, output_dir=str(tmp_path / "runs" / "mine")))
        assert read_results("runs/mine") == first

    def test_neither_graph_nor_base_is_written(self, given, tiny_bert):
        run(given, do_train=True, do_eval=True, save_checkpoints_steps=2)
        names = os.listdir(given["output_dir"])
        assert not [name for name in names if name.endswith((".meta", ".pbtxt"))]
        written = sum(os.path.getsize(os.path.join(given["output_dir"], name)) for name in names)
        # 786 numbers are trained: five checkpoints, two slots each of one, a pack; and texts, indices and summaries.
        assert written < 786 * 4 * (5 + 2 + 1) + 40000

    @pytest.mark.long
    def test_full_checkpoints_contain_everything(self, given, tmp_path):
        run(given, do_train=True, save_full_checkpoint=True)
        names = {name for name, _ in tf.train.list_variables(given["output_dir"])}
        shapes = parameters.model_shapes(tiny_config(), ClassificationHead(2), ADAPTERS)
        slots = checkpoints.slot_shapes({n: shapes[n] for n in optimization.trainable_names(list(shapes), "adapter")})
        assert names == set(shapes) | set(slots) | {"global_step"}
        first = packs.read(pack_of(given)).fingerprint
        assert os.path.exists(os.path.join(given["output_dir"], "model.ckpt-16.meta"))
        run(given, do_train=True, output_dir=str(tmp_path / "small"))
        assert packs.read(str(tmp_path / "small" / packs.FILE_NAME)).fingerprint == first
        assert "--save_full_checkpoint was True, is False" in error_of(given, do_train=True)


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
        calls = [
            (tf.gfile, "Remove"),
            (tf.train, "update_checkpoint_state"),
            (tf.train.Saver, "save"),
        ]

        class Killed(BaseException):
            pass

        class Countdown:
            left = None

            def step(self):
                if self.left is not None:
                    self.left -= 1
                    if self.left < 0:
                        raise Killed

        countdown = Countdown()
        for owner, name in calls:
            original = getattr(owner, name)

            def call(*args, _original=original, **kwargs):
                countdown.step()
                result = _original(*args, **kwargs)
                countdown.step()
                return result

            monkeypatch.setattr(owner, name, call)

        step, kills, outcomes = 0, 0, set()
        assert found() is None
        for _ in range(6):
            step += 1
            save(step)
            assert found() == step
        for patience in range(40):
            before, step = found(), step + 1
            countdown.left = patience
            try:
                save(step)
                countdown.left = None
                break
            except Killed:
                kills += 1
            countdown.left = None
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

    def test_temporary_files_of_a_killed_run_are_removed(self, given):
        run(given, do_train=True)
        left = ["adapter_pack.safetensors.0123abcd.partial", "model.ckpt-17.data-00000-of-00001",
                "model.ckpt-17.data-00000-of-00001.tempstate123", "optimizer.ckpt-17.index"]  # fmt: skip
        for name in left + ["notes.partial", "my-model.ckpt-17.index"]:
            open(os.path.join(given["output_dir"], name), "w").close()
        run(given, do_train=True)
        names = os.listdir(given["output_dir"])
        assert not set(left) & set(names)
        assert {"notes.partial", "my-model.ckpt-17.index", "model.ckpt-16.index", packs.FILE_NAME} <= set(names)

    @pytest.mark.long
    def test_a_checkpoint_without_its_optimizer_cannot_be_continued(self, given):
        run(given, do_train=True, do_eval=True)
        os.remove(os.path.join(given["output_dir"], "optimizer.ckpt-16.index"))
        assert_mentions(error_of(given, do_train=True, do_eval=True), "model.ckpt-16", "optimizer.ckpt-16.*", "missing")
        run(given, do_eval=True)  # the pack is all that an evaluation needs

    @pytest.mark.long
    def test_a_pack_without_checkpoints_can_be_used_but_not_continued(self, given):
        run(given, do_train=True, do_eval=True)
        first, results = packs.read(pack_of(given)), read_results(given["output_dir"])
        for name in os.listdir(given["output_dir"]):
            if ".ckpt" in name or name == "checkpoint":
                os.remove(os.path.join(given["output_dir"], name))
        assert_mentions(error_of(given, do_train=True, do_eval=True), given["output_dir"], "--do_train")
        run(given, do_eval=True)
        assert read_results(given["output_dir"]) == results and packs.read(pack_of(given)).config == first.config


class TestBase:
    def test_an_evaluation_finds_the_recorded_base(self, trained, tmp_path):
        first = read_results(trained["output_dir"])
        folder = shutil.copytree(trained["output_dir"], str(tmp_path / "moved"))
        run(trained, output_dir=folder, init_checkpoint=None, do_eval=True)
        assert read_results(folder) == first

    @pytest.mark.long
    def test_a_missing_base_is_an_error(self, given, tmp_path):
        prefix = write_bert(str(tmp_path / "base"), tiny_config())
        run(given, do_train=True, init_checkpoint=prefix)
        shutil.move(str(tmp_path / "base"), str(tmp_path / "elsewhere"))
        message = error_of(given, do_eval=True, init_checkpoint=None)
        assert_mentions(message, given["output_dir"], prefix, "--init_checkpoint")
        moved = str(tmp_path / "elsewhere" / "bert_model.ckpt")
        run(given, do_eval=True, init_checkpoint=moved)
        run(given, do_train=True, init_checkpoint=moved)
        run(given, do_train=True, init_checkpoint=None)  # records the new path

    @pytest.mark.long
    def test_another_base_in_its_place_is_an_error(self, given, tmp_path):
        prefix = write_bert(str(tmp_path / "base"), tiny_config())
        run(given, do_train=True, init_checkpoint=prefix)
        write_bert(str(tmp_path / "base"), tiny_config(), seed=8)
        named = os.path.join(given["output_dir"], "model.ckpt-5")
        for wish in (
            {"do_train": True, "init_checkpoint": prefix},
            {"do_eval": True, "init_checkpoint": prefix},
            {"do_eval": True, "init_checkpoint": named},
            {"do_eval": True, "init_checkpoint": named, "output_dir": str(tmp_path / "new")},
            {"do_train": True, "init_checkpoint": named, "output_dir": str(tmp_path / "new")},
        ):
            assert "belongs to another base" in error_of(given, **wish), wish


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

    def test_two_packs_in_one_session_do_not_touch_each_other(self, given, trained, tiny_bert):
        run(given, do_train=True, seed=2)
        with tf.Graph().as_default(), tf.Session() as session:
            ids = tf.constant([[2, 5, 8, 16, 3]])
            model = modeling.BertModel(tiny_config(), False, ids, scope="bert", adapter_fn=ADAPTERS)
            logits = ClassificationHead(2).build(model, {"label_ids": tf.zeros([1], tf.int32)}, False).logits
            base = os.path.join(tiny_bert, "bert_model.ckpt")
            values = WeightAssigner([loading.Assignment(base, tuple(SPEC.base_names))])
            values.replace_initializers()
            values.load(session)

            def switch_to(path):
                pack = packs.read(path)
                WeightAssigner([loading.Assignment(path, tuple(pack.tensors), pack.tensors)]).load(session)
                return session.run(logits).tobytes()

            first, second, again = (switch_to(pack_of(which)) for which in (trained, given, trained))
        assert first == again != second

    def test_a_training_can_start_from_a_pack(self, given, trained):
        run(given, do_train=True, adapter_pack=pack_of(trained), learning_rate=0.0)
        start, end = packs.read(pack_of(trained)), packs.read(pack_of(given))
        assert start.fingerprint == end.fingerprint, "nothing has changed at a rate of 0"
        assert start.config.base == end.config.base, "LayerNorms are not part of the frozen base"
        run(given, do_eval=True, init_checkpoint=None)

    def test_the_folder_of_a_run_means_its_pack_on_its_base(self, trained, tmp_path):
        run(trained, do_eval=True, init_checkpoint=trained["output_dir"], output_dir=str(tmp_path / "new"))
        assert read_results(str(tmp_path / "new")) == read_results(trained["output_dir"])

    @pytest.mark.long
    def test_a_fully_tuned_pack_replaces_the_whole_base(self, given, tmp_path):
        mode = {"tuning_mode": "full", "learning_rate": 1e-3}
        run(given, do_train=True, do_eval=True, **mode)
        assert packs.read(pack_of(given)).config.base is None
        run(given, do_eval=True, adapter_pack=pack_of(given), output_dir=str(tmp_path / "new"), **mode)
        assert read_results(str(tmp_path / "new")) == read_results(given["output_dir"])

    @pytest.mark.long
    def test_adapters_may_be_trained_on_a_fully_tuned_pack_and_need_it_as_their_base(self, given, tmp_path):
        full = dict(given, output_dir=str(tmp_path / "full"))
        run(full, do_train=True, tuning_mode="full")
        run(given, do_train=True, do_eval=True, adapter_pack=pack_of(full))
        first = read_results(given["output_dir"])
        run(given, do_eval=True, init_checkpoint=None)
        assert read_results(given["output_dir"]) == first
        message = error_of(given, do_eval=True, adapter_pack=pack_of(given), output_dir=str(tmp_path / "new"))
        assert "belongs to another base" in message

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

    @pytest.mark.long
    def test_a_run_does_not_need_the_pack_it_started_from(self, given, trained, tmp_path):
        start = shutil.copy(pack_of(trained), str(tmp_path / "start.safetensors"))
        wish = {"do_train": True, "do_eval": True, "adapter_pack": start}
        run(given, **wish)
        first = read_results(given["output_dir"])
        os.remove(start)
        run(given, do_eval=True, init_checkpoint=None)
        run(given, **wish)
        assert read_results(given["output_dir"]) == first

    def test_a_pack_alone_in_a_folder_can_be_evaluated(self, given, trained):
        os.makedirs(given["output_dir"])
        shutil.copy(pack_of(trained), given["output_dir"])
        assert "--adapter_activation was gelu, is relu" in error_of(given, do_eval=True, adapter_activation="relu")
        run(given, do_eval=True)
        assert read_results(given["output_dir"]) == read_results(trained["output_dir"])

    def test_a_run_in_the_folder_eval_of_another_is_ignored(self, given, trained, tmp_path):
        folder = shutil.copytree(trained["output_dir"], str(tmp_path / "outer"))
        run(given, do_train=True, seed=5, output_dir=os.path.join(folder, "eval"), save_full_checkpoint=True)
        run(trained, do_eval=True, output_dir=folder)
        assert read_results(folder) == read_results(trained["output_dir"])


class TestErrors:
    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"init_checkpoint": None}, ("--adapter_pack", "--init_checkpoint")),
            ({"adapter_pack": None, "init_checkpoint": "PACK"}, ("--init_checkpoint", "--adapter_pack")),
            ({"init_checkpoint": "OTHER"}, ("another base", "(task CoLA)")),
            ({"do_train": True, "init_checkpoint": "OTHER"}, ("another base", "(task CoLA)")),
            ({"adapter_size": 8}, ("--adapter_size was 4, is 8", "PACK")),
            ({"do_train": True, "adapter_size": 8}, ("[16, 4]", "[16, 8]")),
            ({"tuning_mode": "layer_norm"}, ("--tuning_mode was adapter, is layer_norm",)),
            ({"adapter_activation": "relu"}, ("--adapter_activation was gelu, is relu",)),
            ({"do_train": True, "adapter_activation": "relu"}, ("'gelu'", "'relu'")),
            ({"adapter_layers": "1"}, ("--adapter_layers was None, is [1]",)),
            ({"bert_config_file": "HEADS"}, ("num_attention_heads", "2", "4")),
            ({"vocab_file": "VOCABULARY"}, ("tokenizer", "PACK")),
            ({"adapter_pack": "CUT"}, ("CUT", "damaged")),
            ({"adapter_pack": "/missing"}, ("/missing",)),
            ({"output_dir": "lr[1]"}, ("--output_dir=lr[1]",)),
            ({"output_dir": "a*"}, ("--output_dir=a*",)),
            ({"output_dir": "b?"}, ("--output_dir=b?",)),
        ],
    )
    def test_a_pack_that_does_not_fit(self, given, trained, tmp_path, changes, facts):
        (tmp_path / "heads.json").write_text(json.dumps(dict(TINY, num_attention_heads=4)))
        (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY[:-2] + VOCABULARY[:-3:-1]) + "\n")
        with open(pack_of(trained), "rb") as file:
            (tmp_path / "cut.safetensors").write_bytes(file.read()[:-100])
        paths = {
            "PACK": pack_of(trained),
            "OTHER": write_bert(str(tmp_path / "other"), tiny_config(), seed=99),
            "HEADS": str(tmp_path / "heads.json"),
            "VOCABULARY": str(tmp_path / "vocab.txt"),
            "CUT": str(tmp_path / "cut.safetensors"),
        }
        flags = dict(given, do_eval=True, adapter_pack=pack_of(trained))
        flags.update({name: paths.get(value, value) for name, value in changes.items()})
        assert_mentions(error_of(flags), *[paths.get(fact, fact) for fact in facts])

    def test_a_pack_of_another_task(self, given, trained, tmp_path):
        custom = {"task_name": "custom", "data_dir": None, "labels": "no,yes", "do_eval": True}
        (tmp_path / "dev.csv").write_text("text,label\nthe cat,no\nthe dog,yes\n")
        message = error_of(given, adapter_pack=pack_of(trained), dev_file=str(tmp_path / "dev.csv"), **custom)
        assert_mentions(message, "labels")

    @pytest.mark.long
    def test_another_pack_in_the_place_of_the_runs_own(self, given, trained):
        run(given, do_train=True, do_eval=True, adapter_activation="relu")
        shutil.copy(pack_of(trained), given["output_dir"])
        assert_mentions(error_of(given, do_eval=True, adapter_activation="relu"), "'gelu'", "'relu'")

    def test_labels_in_another_order(self, given, tmp_path):
        rows = "".join(f"the cat {'is' if index % 2 else 'are'} big,{'ab'[index % 2]}\n" for index in range(16))
        (tmp_path / "data.csv").write_text("text,label\n" + rows)
        custom = {"task_name": "custom", "data_dir": None, "dev_file": str(tmp_path / "data.csv")}
        custom["train_file"] = custom["dev_file"]
        run(given, do_train=True, labels="a,b", **custom)
        custom["output_dir"] = given["output_dir"] + "-2"
        message = error_of(given, do_eval=True, labels="b,a", adapter_pack=pack_of(given), **custom)
        assert_mentions(message, "a, b", "b, a")

    def test_other_weights_for_the_output_folder_of_a_run(self, given, trained):
        run(given, do_train=True)
        pack, folder = pack_of(trained), given["output_dir"]
        for checkpoint in (given["init_checkpoint"], folder):
            message = error_of(given, do_eval=True, init_checkpoint=checkpoint, adapter_pack=pack)
            assert_mentions(message, folder, pack, "--output_dir")
        optimizer = os.path.join(folder, "optimizer.ckpt-16")
        assert_mentions(error_of(given, do_eval=True, init_checkpoint=optimizer), optimizer, "optimizer")
