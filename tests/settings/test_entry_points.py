"""Settings of the classifier and of SQuAD: their data, and which of their files must exist."""

from __future__ import annotations

import pytest

import adapter_layers
from adapter_bert.model import adapter_config
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.squad import SquadSettings
from tests.helpers import assert_mentions, message_of


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({}, ["--data_dir", "--train_file", "CoLA"]),
        ({"data_dir": "x", "task_name": "mrcp"}, ["mrcp", "Did you mean 'MRPC'?", "--train_file"]),
        ({"data_dir": "x", "task_name": "CoLA", "primary_metric": "f2"}, ["--primary_metric", "Did you mean 'f1'?"]),
        ({"train_file": "x.csv", "task_type": "ranking"}, ["--task_type", "ranking", "regression"]),
        ({"train_file": "x.csv", "dev_fraction": 1.0}, ["--dev_fraction", "1.0"]),
        ({"train_file": "x.csv", "labels": "a"}, ["--labels"]),
    ],
)
def test_data_of_a_classifier_is_checked(changes, facts):
    assert_mentions(message_of(ClassifierSettings(do_train=True, **changes).validate), *facts)


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"train_file": None}, ["--do_train", "--train_file"]),
        ({"do_eval": True}, ["--do_eval", "--predict_file"]),
        ({"do_predict": True}, ["--do_predict", "--predict_file"]),
        ({"doc_stride": 0}, ["--doc_stride", "1 or more"]),
        ({"max_query_length": 0}, ["--max_query_length", "1 or more"]),
        ({"n_best_size": 0}, ["--n_best_size", "1 or more"]),
        ({"max_answer_length": 0}, ["--max_answer_length", "1 or more"]),
        ({"doc_stride": 400}, ["--doc_stride=400", "--max_seq_length=384"]),
        ({"null_score_diff_threshold": float("nan")}, ["--null_score_diff_threshold", "nan"]),
        ({"do_predict": True, "predict_file": "out/predictions.json"}, ["out/predictions.json", "--output_dir"]),
    ],
)
def test_settings_of_squad_are_checked(changes, facts):
    given = {"do_train": True, "train_file": "train.json", "output_dir": "out"}
    SquadSettings(**given, null_score_diff_threshold=float("inf")).validate()
    assert_mentions(message_of(SquadSettings(**dict(given, **changes)).validate), *facts)


def test_only_tensorflow_can_check_paths_of_other_file_systems():
    ClassifierSettings(vocab_file="gs://bucket/vocab.txt").check_paths()


def test_a_finished_run_needs_no_initial_weights(tmp_path):
    moved = {"init_checkpoint": "no.ckpt", "output_dir": str(tmp_path)}
    ClassifierSettings(**moved).check_paths()
    assert_mentions(
        message_of(ClassifierSettings(**dict(moved, output_dir="no")).check_paths), "--init_checkpoint=no.ckpt"
    )


@pytest.mark.parametrize(
    "settings_class, name, phase",
    [
        (ClassifierSettings, "train_file", "do_train"),
        (ClassifierSettings, "dev_file", "do_eval"),
        (ClassifierSettings, "test_file", "do_predict"),
        (SquadSettings, "train_file", "do_train"),
        (SquadSettings, "predict_file", "do_eval"),
        (SquadSettings, "predict_file", "do_predict"),
    ],
)
def test_only_files_that_are_read_must_exist(settings_class, name, phase):
    settings_class(**{name: "no.file"}).check_paths()
    assert_mentions(message_of(settings_class(**{name: "no.file", phase: True}).check_paths), f"--{name}=no.file")


def test_known_activations_are_those_of_the_graph():
    assert tuple(sorted(adapter_layers.ACTIVATIONS)) == adapter_config.ACTIVATION_NAMES
