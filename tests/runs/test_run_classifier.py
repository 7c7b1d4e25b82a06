"""`run_classifier.py` in this process: modes, errors, and the names that notebooks import."""

from __future__ import annotations

import inspect
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
import optimization
import run_classifier
import tokenization
from adapter_bert.devices import estimators
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.weights import packs
from adapter_layers import AdapterConfig
from tests.helpers import (
    TINY,
    VOCABULARY,
    assert_mentions,
    read_results,
    tiny_config,
    write_bert,
    write_cola,
    write_file,
)
from tests.runs.helpers import error_of, pack_of, read_json, read_text, run


def add_head() -> None:
    """Add a classifier's head to the graph."""
    tf.get_variable("output_weights", [2, TINY["hidden_size"]])
    tf.get_variable("output_bias", [2])


class TestRun:
    @pytest.mark.long
    def test_the_same_seed_gives_the_same_weights_and_another_seed_different_ones(self, given, trained, other_seed):
        run(given, do_train=True, do_eval=True)
        first, same, other = (packs.read(pack_of(flags)) for flags in (trained, given, other_seed))
        assert first.fingerprint == same.fingerprint != other.fingerprint

    def test_the_same_command_continues_in_other_spellings_and_with_the_seed_that_was_drawn(self, given):
        short = {"do_train": True, "num_train_epochs": 0.2, "seed": None}
        run(given, adapter_layers="0-1", adapter_activation="GELU", **short)
        seed = read_json(given["output_dir"], "settings.json")["seed"]
        assert isinstance(seed, int)
        run(given, adapter_layers="0,1", adapter_activation="gelu", task_name="cola", **short)
        assert read_json(given["output_dir"], "training.json")["steps"] == 1
        short["seed"] = seed + 1
        assert_mentions(error_of(given, **short), "--adapter_layers was [0, 1], is None", f"--seed was {seed}")

    @pytest.mark.long
    @pytest.mark.parametrize(
        "mode", [{"tuning_mode": "full"}, {"tuning_mode": "top_layers", "tune_top_layers": 1},
                 {"tuning_mode": "layer_norm"}, {"tuning_mode": "head"}]
    )  # fmt: skip
    def test_every_other_mode_trains_plain_bert(self, given, mode):
        run(given, do_train=True, do_eval=True, num_train_epochs=1.0, **mode)
        shapes = parameters.model_shapes(tiny_config(), ClassificationHead(2), None)
        expected = set(optimization.trainable_names(list(shapes), mode["tuning_mode"], mode.get("tune_top_layers")))
        saved, slots = (
            {variable for variable, _ in tf.train.list_variables(os.path.join(given["output_dir"], name))}
            for name in ("model.ckpt-8", "optimizer.ckpt-8")
        )
        assert saved == expected | {"global_step"}
        assert slots == {name + slot for name in expected for slot in ("/adam_m", "/adam_v")}
        assert set(packs.read(pack_of(given)).tensors) == expected
        first = read_results(given["output_dir"])
        run(given, do_eval=True, **mode)
        assert read_results(given["output_dir"]) == first

    def test_the_folder_of_its_bert_evaluates_and_continues_a_run_that_was_started_with_three_flags(self, finished):
        parts = dict.fromkeys(("vocab_file", "bert_config_file", "init_checkpoint"))
        by_folder = dict(finished, **parts, bert_dir=os.path.dirname(finished["init_checkpoint"]))
        settings = read_text(finished["output_dir"], "settings.json")
        first = read_results(finished["output_dir"])
        run(by_folder, do_eval=True)
        assert read_results(finished["output_dir"]) == first
        run(by_folder, do_train=True, do_eval=True)
        assert read_text(finished["output_dir"], "settings.json") == settings

    def test_a_named_checkpoint_of_the_run_is_evaluated(self, finished, trained_run):
        entry = trained_run.results.training["evaluations"][0]
        results = run(finished, do_eval=True, init_checkpoint=os.path.join(finished["output_dir"], "model.ckpt-8"))
        assert (entry["step"], entry["loss"]) == (8, results.loss) and results.step == 8

    def test_an_untrained_head_is_evaluated_only_on_request(self, given):
        prefix = write_bert(given["output_dir"], tiny_config())
        for phases in ({"do_eval": True}, {"do_predict": True}, {"do_eval": True, "do_predict": True}):
            message = error_of(given, init_checkpoint=prefix, **phases)
            assert_mentions(message, prefix, "--do_train=true", "--allow_untrained_head=true")
        run(given, do_eval=True, init_checkpoint=prefix, allow_untrained_head=True)
        assert read_results(given["output_dir"])["global_step"] == 0

    def test_evaluation_and_prediction_agree_and_a_header_can_be_requested(self, finished, tmp_path):
        """Evaluating is predicting plus counting: the dev sentences as a test file give the same accuracy."""
        data = write_cola(str(tmp_path / "data"))
        rows = [line.split("\t") for line in read_text(data, "dev.tsv").splitlines()]
        with open(os.path.join(data, "test.tsv"), "w") as file:
            file.write("index\tsentence\n" + "".join(f"{i}\t{row[3]}\n" for i, row in enumerate(rows)))
        phases = {"do_eval": True, "do_predict": True, "predict_header": True}
        results = run(finished, data_dir=data, eval_batch_size=7, predict_batch_size=5, **phases)
        header, *lines = read_text(finished["output_dir"], "test_results.tsv").splitlines()
        assert header == "0\t1"
        classes = np.loadtxt(lines, delimiter="\t").argmax(axis=1)
        assert results.metrics["accuracy"] == pytest.approx(np.mean(classes == [int(row[1]) for row in rows]))

    @pytest.mark.long
    def test_gradient_checkpointing_gives_the_same_weights(self, given, trained):
        run(given, do_train=True, gradient_checkpointing=True)
        one, same = (tf.train.load_checkpoint(os.path.join(f["output_dir"], "model.ckpt-16")) for f in (trained, given))
        names = one.get_variable_to_shape_map()
        assert names and names == same.get_variable_to_shape_map()
        for name in names:
            np.testing.assert_allclose(same.get_tensor(name), one.get_tensor(name), atol=1e-5, err_msg=name)

    @pytest.mark.long
    def test_a_batch_can_be_computed_in_parts(self, given):
        run(given, do_train=True, do_eval=True, num_train_epochs=1.0, gradient_accumulation_steps=4)
        assert read_results(given["output_dir"])["global_step"] == 8
        assert_mentions(error_of(given, do_train=True), "--gradient_accumulation_steps was 4, is 1")

    @pytest.mark.long
    def test_training_replaces_the_head_of_another_task(self, given, trained, tmp_path):
        folder = tmp_path / "mnli"
        folder.mkdir()
        header = "\t".join(f"c{i}" for i in range(12))
        row = "\t".join(["x"] * 8 + ["the cat is big", "the cat is small", "neutral", "{}"])
        lines = [header] + [row.format(label) for label in ["neutral", "entailment", "contradiction"] * 8]
        for name in ("train.tsv", "dev_matched.tsv"):
            (folder / name).write_text("\n".join(lines) + "\n")
        checkpoint = tf.train.latest_checkpoint(trained["output_dir"])
        changes = {"task_name": "mnli", "data_dir": str(folder), "init_checkpoint": checkpoint}
        assert_mentions(error_of(given, do_eval=True, **changes), "labels was ['0', '1'], is ['contradiction',")
        assert run(given, do_train=True, do_eval=True, **changes).metrics["accuracy"] <= 1.0

    def test_checkpoints_of_googles_adapter_bert_can_be_evaluated(self, given, tmp_path):
        """Full variables, Adam slots for what trained, a step: names and shapes as published."""

        def add_all():
            add_head()
            tf.get_variable("output_weights/adam_m", [2, TINY["hidden_size"]], trainable=False)
            tf.get_variable("global_step", initializer=np.int64(4008), trainable=False)

        prefix = write_bert(str(tmp_path / "google"), tiny_config(), AdapterConfig(size=4), extra=add_all)
        run(given, init_checkpoint=prefix, do_eval=True)
        assert read_results(given["output_dir"])["global_step"] == 4008


class TestErrors:
    """Tests of settings alone are in tests/settings."""

    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"do_train": False}, ["--do_train"]),
            ({"tuning_mode": "top_layers", "tune_top_layers": 3}, [3, "the model has 2"]),
            ({"adapter_layers": "2"}, ["the network has 2 layers"]),
            ({"max_seq_length": 64}, [64, 32]),
            ({"train_batch_size": 1000}, [1000, "less than one step"]),
            ({"output_dir": "nothere://bucket/run"}, ["nothere"]),
            ({"data_dir": "/nowhere/at/all"}, ["/nowhere/at/all"]),
            ({"data_dir": "bad", "do_eval": True}, ["dev.tsv, line 2", "'2'"]),
            ({"data_dir": "bad", "do_predict": True}, ["test.tsv", "does not exist", "train.tsv"]),
            ({"init_checkpoint": "/nowhere/bert_model.ckpt"}, ["/nowhere/bert_model.ckpt"]),
            ({"bert_config_file": "/nowhere/bert_config.json"}, ["/nowhere/bert_config.json"]),
            ({"vocab_file": "/nowhere/vocab.txt"}, ["/nowhere/vocab.txt"]),
            ({"vocab_file": None}, ["vocab_file"]),
            ({"vocab_file": "short.txt"}, ["short.txt", len(VOCABULARY) - 1, len(VOCABULARY)]),
            ({"do_lower_case": False}, ["do_lower_case"]),
            ({"init_checkpoint": "cased_L-12_H-768_A-12/bert_model.ckpt"}, ["cased_L-12", "--do_lower_case"]),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
    )
    def test_errors_come_before_anything_is_written(self, given, tiny_bert, tmp_path, monkeypatch, changes, facts):
        monkeypatch.chdir(tmp_path)
        shutil.copytree(tiny_bert, "cased_L-12_H-768_A-12")
        os.remove(os.path.join(write_cola("bad"), "test.tsv"))
        write_file(tmp_path, "bad/dev.tsv", "a\t1\t\tthe cat .\na\t2\t\tthe cat .\n")
        write_file(tmp_path, "short.txt", "\n".join(VOCABULARY[:-1]) + "\n")
        assert_mentions(error_of(dict(given, do_train=True), **changes), *facts)

    def test_an_output_folder_with_a_run_of_other_settings(self, trained):
        message = error_of(trained, do_train=True, do_eval=True, learning_rate=5e-4, num_train_epochs=3.0)
        assert_mentions(message, "--learning_rate was 0.01, is 0.0005", "--num_train_epochs was 2.0, is 3.0")
        assert_mentions(error_of(trained, do_eval=True, adapter_size=8), "--adapter_size was 4, is 8")

    def test_a_checkpoint_without_optimizer_slots_cannot_be_continued(self, given):
        """A folder of somebody's, with a note of its newest checkpoint but without what training needs."""
        prefix = write_bert(given["output_dir"], tiny_config(), AdapterConfig(size=4), extra=add_head)
        with open(os.path.join(given["output_dir"], "checkpoint"), "w") as file:
            file.write(f'model_checkpoint_path: "{os.path.basename(prefix)}"\n')
        assert_mentions(error_of(given, do_train=True), "optimizer.ckpt-", "missing", "--output_dir")


class TestNotebookNames:
    """What DESIGN.md fixes, called with the original arguments alone."""

    @pytest.mark.parametrize(
        "function, names",
        [
            (run_classifier.create_model, "bert_config is_training input_ids input_mask segment_ids labels num_labels "
             "use_one_hot_embeddings"),
            (run_classifier.model_fn_builder, "bert_config num_labels init_checkpoint learning_rate num_train_steps "
             "num_warmup_steps use_tpu use_one_hot_embeddings"),
            (run_classifier.convert_single_example, "ex_index example label_list max_seq_length tokenizer"),
            (run_classifier.convert_examples_to_features, "examples label_list max_seq_length tokenizer"),
            (run_classifier.file_based_convert_examples_to_features,
             "examples label_list max_seq_length tokenizer output_file"),
            (run_classifier.file_based_input_fn_builder, "input_file seq_length is_training drop_remainder"),
            (run_classifier.input_fn_builder, "features seq_length is_training drop_remainder"),
            (run_classifier.InputExample.__init__, "self guid text_a text_b label"),
            (run_classifier.InputFeatures.__init__,
             "self input_ids input_mask segment_ids label_id is_real_example"),
            (modeling.BertModel.__init__,
             "self config is_training input_ids input_mask token_type_ids use_one_hot_embeddings scope"),
            (modeling.get_assignment_map_from_checkpoint, "tvars init_checkpoint"),
            (optimization.create_optimizer, "loss init_lr num_train_steps num_warmup_steps use_tpu"),
            (tokenization.validate_case_matches_checkpoint, "do_lower_case init_checkpoint"),
        ],
    )  # fmt: skip
    def test_signatures_start_with_the_original_arguments(self, function, names):
        parameters = list(inspect.signature(function).parameters.values())
        original = names.split()
        assert [parameter.name for parameter in parameters[: len(original)]] == original
        assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters[len(original) :])

    @pytest.mark.parametrize("name", ["ColaProcessor", "MrpcProcessor", "MnliProcessor", "XnliProcessor"])
    def test_processors_are_importable_and_know_their_labels(self, name):
        processor = getattr(run_classifier, name)()
        assert isinstance(processor, run_classifier.DataProcessor)
        assert len(processor.get_labels()) in (2, 3)

    def test_a_notebook_trains_evaluates_and_predicts_with_its_own_estimator(self, tiny_bert, cola_dir, tmp_path):
        """The cells of BERT's own notebook, word for word but for TPU addresses."""
        bert_config = modeling.BertConfig.from_json_file(os.path.join(tiny_bert, "bert_config.json"))
        tokenizer = tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"), do_lower_case=True)
        processor = run_classifier.ColaProcessor()
        label_list = processor.get_labels()
        examples = processor.get_train_examples(cola_dir)
        model_fn = run_classifier.model_fn_builder(
            bert_config=bert_config, num_labels=len(label_list),
            init_checkpoint=os.path.join(tiny_bert, "bert_model.ckpt"), learning_rate=3e-3, num_train_steps=20,
            num_warmup_steps=2, use_tpu=False, use_one_hot_embeddings=False,
        )  # fmt: skip
        estimator = estimators.TPUEstimator(
            use_tpu=False, model_fn=model_fn, config=estimators.RunConfig(model_dir=str(tmp_path)),
            train_batch_size=8, eval_batch_size=8, predict_batch_size=8,
        )  # fmt: skip
        features = run_classifier.convert_examples_to_features(examples, label_list, 16, tokenizer)
        estimator.train(run_classifier.input_fn_builder(features, 16, True, True), max_steps=20)
        names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
        shapes = dict(tf.train.list_variables(str(tmp_path)))
        assert shapes["bert/encoder/layer_0/output/adapters/weights1"] == [TINY["hidden_size"], 64]
        assert "bert/encoder/layer_0/attention/output/dense/kernel/adam_m" not in names
        eval_input_fn = run_classifier.input_fn_builder(features, 16, False, False)
        result = estimator.evaluate(eval_input_fn)
        rows = list(estimator.predict(eval_input_fn))
        labels = np.array([label_list.index(example.label) for example in examples])
        accuracy = np.mean(np.array([row["probabilities"].argmax() for row in rows]) == labels)
        assert result["eval_accuracy"] == pytest.approx(accuracy)
        assert {"eval_loss", "loss", "global_step"} <= set(result)


def test_a_score_below_that_of_the_majority_class_is_reported(finished, cola_dir, tmp_path, log):
    """The run has learned its task; with all labels exchanged, it is worse than a constant."""
    text = read_text(cola_dir, "dev.tsv").replace("\t1\t", "\t-\t").replace("\t0\t", "\t1\t").replace("\t-\t", "\t0\t")
    write_file(tmp_path, "exchanged/dev.tsv", text)
    results = run(finished, data_dir=str(tmp_path / "exchanged"), do_eval=True)
    assert results.primary < results.majority["matthews"] == 0.0
    [warning] = [line for line in log if "constant prediction" in line]
    assert_mentions(warning, "matthews", f"{results.primary:.4f}", "0.0000")


def test_another_task_evaluated_in_the_folder_keeps_the_results_of_its_own(finished, tmp_path):
    before = read_text(finished["output_dir"], "results.json")
    write_file(tmp_path, "sst/dev.tsv", "sentence\tlabel\nthe cat is big\t1\nthe dog are big\t0\n")
    write_file(tmp_path, "sst/test.tsv", "index\tsentence\n0\tthe cat is big\n")
    run(finished, task_name="SST-2", data_dir=str(tmp_path / "sst"), do_eval=True, do_predict=True)
    folder = finished["output_dir"]
    assert read_text(folder, "results.json") == before
    assert read_json(folder, "results_SST-2.json")["task"] == "SST-2"
    assert "eval_accuracy" in read_text(folder, "eval_results_SST-2.txt")
    lines = [len(read_text(folder, name).splitlines()) for name in ("test_results.tsv", "test_results_SST-2.tsv")]
    assert lines == [10, 1]
