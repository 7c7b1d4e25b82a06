"""`run_classifier.py` in this process: modes, errors, and the names that notebooks import."""

from __future__ import annotations

import inspect
import json
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
from tests.helpers import TINY, VOCABULARY, base_flags, read_results, tiny_config, write_bert, write_cola
from tests.runs.helpers import error_of, run


@pytest.fixture
def given(tiny_bert, cola_dir, tmp_path):
    """Settings of a short run, to be changed by a test."""
    return dict(base_flags(tiny_bert, cola_dir, str(tmp_path / "out")), num_train_epochs=1.0, learning_rate=1e-3)


class TestRun:
    @pytest.mark.long
    def test_the_same_seed_gives_the_same_result_and_another_seed_another(self, given, tmp_path):
        losses = []
        for name, seed in (("a", 3), ("b", 3), ("c", 4)):
            run(given, output_dir=str(tmp_path / name), seed=seed, do_train=True, do_eval=True)
            losses.append(read_results(str(tmp_path / name))["eval_loss"])
        assert losses[0] == losses[1] != losses[2]

    @pytest.mark.long
    def test_a_seed_is_drawn_and_recorded_if_none_is_given(self, given):
        run(given, seed=None, do_train=True)
        with open(os.path.join(given["output_dir"], "settings.json")) as file:
            seed = json.load(file)["seed"]
        assert isinstance(seed, int)
        run(given, seed=None, do_train=True, do_eval=True)  # the same command continues the same run
        assert "--seed was" in error_of(given, seed=seed + 1, do_train=True)

    @pytest.mark.long
    @pytest.mark.parametrize(
        "mode", [{"tuning_mode": "full"}, {"tuning_mode": "top_layers", "tune_top_layers": 1},
                 {"tuning_mode": "layer_norm"}, {"tuning_mode": "head"}]
    )  # fmt: skip
    def test_every_other_mode_trains_plain_bert(self, given, mode):
        run(given, do_train=True, do_eval=True, **mode)
        shapes = parameters.model_shapes(tiny_config(), ClassificationHead(2), None)
        expected = set(optimization.trainable_names(list(shapes), mode["tuning_mode"], mode.get("tune_top_layers")))
        saved, slots = (
            {variable for variable, _ in tf.train.list_variables(os.path.join(given["output_dir"], name))}
            for name in ("model.ckpt-8", "optimizer.ckpt-8")
        )
        assert saved == expected | {"global_step"}
        assert slots == {name + slot for name in expected for slot in ("/adam_m", "/adam_v")}
        pack = packs.read(os.path.join(given["output_dir"], packs.FILE_NAME))
        assert set(pack.tensors) == expected
        first = read_results(given["output_dir"])
        run(given, do_eval=True, **mode)
        assert read_results(given["output_dir"]) == first

    def test_other_spellings_of_the_same_settings_continue_the_run(self, given):
        run(given, do_train=True, adapter_layers="0-1", adapter_activation="GELU")
        run(given, do_train=True, adapter_layers="0,1", adapter_activation="gelu", task_name="cola")
        assert "--adapter_layers was [0, 1], is None" in error_of(given, do_train=True)

    @pytest.mark.long
    def test_a_named_checkpoint_of_the_run_is_evaluated(self, given):
        run(given, do_train=True, do_eval=True, save_checkpoints_steps=4)
        last = read_results(given["output_dir"])
        run(given, do_eval=True, init_checkpoint=os.path.join(given["output_dir"], "model.ckpt-4"))
        middle = read_results(given["output_dir"])
        assert (middle["global_step"], last["global_step"]) == (4, 8)
        assert middle["eval_loss"] != last["eval_loss"]

    def test_a_plain_bert_in_the_output_folder_is_evaluated_with_an_untrained_head(self, given):
        prefix = write_bert(given["output_dir"], tiny_config())
        run(given, do_eval=True, init_checkpoint=prefix)
        assert read_results(given["output_dir"])["global_step"] == 0

    @pytest.mark.long
    def test_predictions_have_a_header_only_if_requested(self, given):
        run(given, do_train=True, do_predict=True)
        path = os.path.join(given["output_dir"], "test_results.tsv")
        with open(path) as file:
            plain = file.read().split("\n")
        run(given, do_predict=True, predict_header=True)
        with open(path) as file:
            assert file.read().split("\n") == ["0\t1"] + plain

    @pytest.mark.long
    def test_evaluation_and_prediction_agree(self, given, tmp_path):
        """Evaluating is predicting plus counting: the dev sentences as a test file give the same accuracy."""
        run(given, do_train=True, do_eval=True, eval_batch_size=7)
        data = write_cola(str(tmp_path / "data"))
        with open(os.path.join(data, "dev.tsv")) as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        with open(os.path.join(data, "test.tsv"), "w") as file:
            file.write("index\tsentence\n" + "".join(f"{i}\t{row[3]}\n" for i, row in enumerate(rows)))
        run(given, data_dir=data, do_predict=True, predict_batch_size=5)
        classes = np.loadtxt(os.path.join(given["output_dir"], "test_results.tsv"), delimiter="\t").argmax(axis=1)
        accuracy = np.mean(classes == [int(row[1]) for row in rows])
        assert read_results(given["output_dir"])["eval_accuracy"] == pytest.approx(accuracy)

    @pytest.mark.long
    def test_gradient_checkpointing_gives_the_same_weights(self, given, tmp_path):
        other = str(tmp_path / "other")
        run(given, do_train=True)
        run(given, do_train=True, gradient_checkpointing=True, output_dir=other)
        one, same = (
            packs.read(os.path.join(folder, packs.FILE_NAME)).tensors for folder in (given["output_dir"], other)
        )
        assert set(one) == set(same)
        for name in one:
            np.testing.assert_allclose(same[name], one[name], atol=1e-5, err_msg=name)

    @pytest.mark.long
    def test_a_batch_can_be_computed_in_parts(self, given):
        run(given, do_train=True, do_eval=True, gradient_accumulation_steps=4)
        assert read_results(given["output_dir"])["global_step"] == 8
        assert "--gradient_accumulation_steps was 4, is 1" in error_of(given, do_train=True)

    @pytest.mark.long
    def test_training_replaces_the_head_of_another_task(self, given, tmp_path):
        run(given, do_train=True)
        rte = tmp_path / "mnli"
        rte.mkdir()
        header = "\t".join(f"c{i}" for i in range(12))
        row = "\t".join(["x"] * 8 + ["the cat is big", "the cat is small", "neutral", "{}"])
        labels = ["neutral", "entailment", "contradiction"] * 8
        (rte / "train.tsv").write_text("\n".join([header] + [row.format(label) for label in labels]) + "\n")
        (rte / "dev_matched.tsv").write_text("\n".join([header] + [row.format(label) for label in labels]) + "\n")
        checkpoint = tf.train.latest_checkpoint(given["output_dir"])
        changes = {"task_name": "mnli", "data_dir": str(rte), "init_checkpoint": checkpoint,
                   "output_dir": str(tmp_path / "second")}  # fmt: skip
        assert "labels was ['0', '1'], is ['contradiction'," in error_of(given, do_eval=True, **changes)
        run(given, do_train=True, do_eval=True, **changes)
        assert read_results(changes["output_dir"])["eval_accuracy"] <= 1.0

    def test_checkpoints_of_googles_adapter_bert_can_be_evaluated(self, given, tmp_path):
        """Full variables, Adam slots for what trained, a step: names and shapes as published."""

        def add_head():
            head = tf.get_variable("output_weights", [2, TINY["hidden_size"]])
            tf.get_variable("output_bias", [2])
            tf.get_variable("output_weights/adam_m", initializer=tf.zeros_like(head), trainable=False)
            tf.get_variable("global_step", initializer=np.int64(4008), trainable=False)

        prefix = write_bert(str(tmp_path / "google"), tiny_config(), AdapterConfig(size=4), extra=add_head)
        run(given, init_checkpoint=prefix, do_eval=True)
        assert read_results(given["output_dir"])["global_step"] == 4008


class TestErrors:
    def test_nothing_to_do(self, given):
        assert "--do_train" in error_of(given)

    @pytest.mark.parametrize(
        "changes, words",
        [
            ({"tuning_mode": "adaptor"}, "Did you mean 'adapter'? Available: adapter, full"),
            ({"adapter_activation": "gelu_erff"}, "Did you mean 'gelu_erf'? Available: gelu"),
            ({"task_name": "mrcp"}, "Did you mean 'MRPC'? Available: CoLA"),
            ({"tuning_mode": "top_layers"}, "needs a number of layers"),
            ({"tuning_mode": "top_layers", "tune_top_layers": 3}, "the model has 2"),
            ({"tune_top_layers": 1}, "requires the tuning mode 'top_layers'"),
            ({"adapter_layers": "2"}, "the network has 2 layers"),
            ({"adapter_layers": "x"}, "--adapter_layers must be"),
            ({"adapter_size": 0}, "adapter size"),
            ({"max_seq_length": 64}, "Cannot use sequence length 64"),
            ({"max_seq_length": 2}, "--max_seq_length must be 3 or more"),
            ({"warmup_proportion": 1.5}, "from 0 to 1"),
            ({"train_batch_size": 0}, "--train_batch_size"),
            ({"train_batch_size": 1000}, "less than one step"),
            ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps must be 1 or more"),
            ({"gradient_accumulation_steps": 3}, "must divide --train_batch_size=8"),
            (
                {"use_tpu": True, "tpu_name": "grpc://10.0.0.2:8470", "gradient_accumulation_steps": 2},
                "cannot be combined with --use_tpu=true",
            ),
            ({"use_tpu": True}, "--tpu_name"),
            ({"use_tpu": True, "tpu_name": "grpc://10.0.0.2:8470", "master": "x"}, "--tpu_name"),
            (
                {"use_tpu": True, "tpu_name": "grpc://10.0.0.2:8470", "eval_batch_size": 9},
                "--eval_batch_size must be a",
            ),
            ({"seed": -1}, "--seed must be from 0"),
            ({"num_train_epochs": float("inf")}, "--num_train_epochs"),
            ({"adapter_layers": "1-0"}, "found '1-0'"),
            ({"output_dir": "nothere://bucket/run"}, "nothere"),
            ({"data_dir": "/nowhere/at/all"}, "The data folder /nowhere/at/all does not exist"),
            ({"init_checkpoint": "/nowhere/bert_model.ckpt"}, "There is no checkpoint /nowhere/bert_model.ckpt"),
            ({"bert_config_file": "/nowhere/bert_config.json"}, "/nowhere/bert_config.json"),
            ({"vocab_file": "/nowhere/vocab.txt"}, "/nowhere/vocab.txt"),
            ({"vocab_file": None}, "vocab_file"),
            ({"do_lower_case": False}, "do_lower_case"),
        ],
    )
    def test_invalid_values_are_errors(self, given, changes, words):
        assert words in error_of(given, do_train=True, **changes)

    @pytest.mark.parametrize(
        "file, text, words",
        [
            ("train.tsv", "a\t1\t\tthe cat .\nb\t1\n", "train.tsv, line 2: expected at least 4"),
            ("train.tsv", "a\t1\t\tthe cat .\nb\tyes\t\tthe dog .\n", "train.tsv, line 2: unknown label 'yes'"),
            ("train.tsv", "", "no examples"),
            ("dev.tsv", "a\t2\t\tthe cat .\n", "dev.tsv, line 1: unknown label '2'"),
            ("test.tsv", "index\tsentence\n", "no examples"),
        ],
    )
    def test_errors_name_file_and_line_of_bad_rows(self, given, tmp_path, file, text, words):
        data = write_cola(str(tmp_path / "data"))
        with open(os.path.join(data, file), "w") as writer:
            writer.write(text)
        assert words in error_of(given, data_dir=data, do_train=True, do_eval=True, do_predict=True)

    def test_the_error_for_a_missing_file_lists_the_folder(self, given, tmp_path):
        data = write_cola(str(tmp_path / "data"))
        os.remove(os.path.join(data, "dev.tsv"))
        text = error_of(given, data_dir=data, do_eval=True)
        assert "dev.tsv does not exist" in text and "train.tsv" in text

    def test_vocabulary_and_config_that_disagree_in_size(self, given, tmp_path):
        short = tmp_path / "vocab.txt"
        short.write_text("\n".join(VOCABULARY[:-1]) + "\n")
        text = error_of(given, vocab_file=str(short), do_train=True)
        assert str(len(VOCABULARY) - 1) in text and str(len(VOCABULARY)) in text

    def test_a_cased_release_with_lower_casing(self, given, tiny_bert, tmp_path):
        cased = str(tmp_path / "cased_L-12_H-768_A-12")
        shutil.copytree(tiny_bert, cased)
        text = error_of(given, init_checkpoint=os.path.join(cased, "bert_model.ckpt"), do_train=True)
        assert "--do_lower_case" in text

    def test_an_output_folder_with_a_run_of_other_settings(self, given):
        run(given, do_train=True)
        text = error_of(given, do_train=True, learning_rate=5e-4, num_train_epochs=2.0)
        assert "--learning_rate was 0.001, is 0.0005" in text and "--num_train_epochs was 1.0, is 2.0" in text
        assert "--adapter_size was 4, is 8" in error_of(given, do_eval=True, adapter_size=8)
        run(given, do_eval=True, learning_rate=5e-4)  # what only training looks at does not matter to evaluation

    def test_a_checkpoint_without_optimizer_slots_cannot_be_continued(self, given, tiny_bert, tmp_path):
        """A folder of somebody's, with a note of its newest checkpoint but without what training needs."""

        def add_head():
            tf.get_variable("output_weights", [2, TINY["hidden_size"]])
            tf.get_variable("output_bias", [2])

        prefix = write_bert(given["output_dir"], tiny_config(), AdapterConfig(size=4), extra=add_head)
        with open(os.path.join(given["output_dir"], "checkpoint"), "w") as file:
            file.write(f'model_checkpoint_path: "{os.path.basename(prefix)}"\n')
        text = error_of(given, do_train=True)
        assert "optimizer.ckpt-" in text and "missing" in text and "another --output_dir" in text


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
