"""The names that other code imports from `run_squad`."""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import run_squad
import tokenization
from adapter_bert.devices import estimators
from tests.helpers import assert_mentions, message_of, tiny_config, write_squad
from tests.runs.helpers import read_json
from tests.runs.test_squad_runs import HEAD

pytestmark = pytest.mark.smoke


@pytest.mark.long
def test_notebooks_train_and_answer_with_the_functions_of_the_original(tiny_bert, tmp_path):
    """The steps of the original's `main`, with its arguments."""
    config, tokenizer = tiny_config(), tokenization.FullTokenizer(os.path.join(tiny_bert, "vocab.txt"))
    prefix = os.path.join(tiny_bert, "bert_model.ckpt")
    path = write_squad(str(tmp_path / "squad.json"), 8)
    model_fn = run_squad.model_fn_builder(config, prefix, 1e-3, 4, 1, False, False)
    estimator = estimators.TPUEstimator(
        use_tpu=False, model_fn=model_fn, config=estimators.RunConfig(model_dir=str(tmp_path / "notebook")),
        train_batch_size=2, predict_batch_size=2,
    )  # fmt: skip
    features, results = [], []
    for is_training in (True, False):
        examples = run_squad.read_squad_examples(input_file=path, is_training=is_training)
        writer = run_squad.FeatureWriter(filename=str(tmp_path / f"{is_training}.tf_record"), is_training=is_training)

        def output_fn(feature, writer=writer):
            features.append(feature)
            writer.process_feature(feature)

        run_squad.convert_examples_to_features(examples, tokenizer, 32, 8, 8, is_training, output_fn)
        writer.close()
        input_fn = run_squad.input_fn_builder(writer.filename, 32, is_training, drop_remainder=is_training)
        if is_training:
            estimator.train(input_fn, max_steps=4)
            features.clear()
            continue
        for row in estimator.predict(input_fn, yield_single_examples=True):
            logits = ([float(x) for x in row[name].flat] for name in ("start_logits", "end_logits"))
            results.append(run_squad.RawResult(int(row["unique_ids"]), *logits))
    assert [result.unique_id for result in results] == [feature.unique_id for feature in features]
    outputs = [str(tmp_path / name) for name in ("predictions.json", "nbest_predictions.json", "null_odds.json")]
    run_squad.write_predictions(examples, features, results, 20, 30, True, *outputs)
    assert sorted(read_json(outputs[0])) == sorted(f"q{number}" for number in range(8))
    assert not os.path.exists(outputs[2])  # --version_2_with_negative is not set
    names = estimator.get_variable_names()
    assert "bert/encoder/layer_0/output/adapters/weights1" in names and set(names) >= HEAD
    with tf.Graph().as_default():
        ids = tf.ones([2, 12], tf.int32)
        start, end = run_squad.create_model(config, False, ids, ids, ids, False)
        assert start.shape.as_list() == end.shape.as_list() == [2, 12]


@pytest.mark.parametrize(
    "function, names",
    [
        (run_squad.SquadExample, "qas_id question_text doc_tokens orig_answer_text start_position end_position "
         "is_impossible"),
        (run_squad.InputFeatures, "unique_id example_index doc_span_index tokens token_to_orig_map "
         "token_is_max_context input_ids input_mask segment_ids start_position end_position is_impossible"),
        (run_squad.read_squad_examples, "input_file is_training"),
        (run_squad.convert_examples_to_features, "examples tokenizer max_seq_length doc_stride max_query_length "
         "is_training output_fn"),
        (run_squad.input_fn_builder, "input_file seq_length is_training drop_remainder"),
        (run_squad.FeatureWriter, "filename is_training"),
        (run_squad.RawResult, "unique_id start_logits end_logits"),
        (run_squad.write_predictions, "all_examples all_features all_results n_best_size max_answer_length "
         "do_lower_case output_prediction_file output_nbest_file output_null_log_odds_file"),
        (run_squad.get_final_text, "pred_text orig_text do_lower_case"),
        (run_squad.validate_flags_or_throw, "bert_config"),
        (run_squad._get_best_indexes, "logits n_best_size"),
        (run_squad._compute_softmax, "scores"),
        (run_squad._improve_answer_span, "doc_tokens input_start input_end tokenizer orig_answer_text"),
        (run_squad._check_is_max_context, "doc_spans cur_span_index position"),
    ],
)  # fmt: skip
def test_names_of_the_original_have_its_arguments(function, names):
    assert list(inspect.signature(function).parameters) == names.split()


def test_best_indexes_and_probabilities():
    assert run_squad._get_best_indexes([1.0, 3.0, 2.0, 3.0], 3) == [1, 3, 2]
    assert run_squad._compute_softmax([]) == []
    assert run_squad._compute_softmax([0.0, np.log(3.0)]) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    "changes, fact",
    [
        ({"do_train": False}, "--do_train"),
        ({"train_file": None}, "--train_file"),
        ({"max_seq_length": 33}, "33"),
        ({"max_seq_length": 20, "max_query_length": 17}, "--max_seq_length"),
        ({"init_checkpoint": "cased_L-12_H-768_A-12/bert_model.ckpt"}, "--do_lower_case"),
    ],
)
def test_flags_are_validated_like_those_of_the_original(changes, fact):
    valid = {"do_train": True, "train_file": "train.json", "max_seq_length": 32, "doc_stride": 4, "max_query_length": 8}
    with flagsaver.flagsaver(**valid):
        run_squad.validate_flags_or_throw(tiny_config())
        with flagsaver.flagsaver(**changes):
            assert_mentions(message_of(run_squad.validate_flags_or_throw, tiny_config()), fact)
