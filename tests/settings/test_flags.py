"""Flags: names, defaults, spellings and positional arguments."""

from __future__ import annotations

import dataclasses

import pytest
from absl import flags

from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import define_flags, from_flags, reject_positional_args
from adapter_bert.settings.squad import SquadSettings
from tests.helpers import assert_mentions, message_of

ORIGINAL_FLAGS = {
    "bert_config_file": None, "vocab_file": None, "output_dir": None, "init_checkpoint": None, "do_lower_case": True,
    "do_train": False, "do_predict": False, "train_batch_size": 32, "predict_batch_size": 8, "learning_rate": 5e-5,
    "num_train_epochs": 3.0, "warmup_proportion": 0.1, "save_checkpoints_steps": 1000, "iterations_per_loop": 1000,
    "use_tpu": False, "tpu_name": None, "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8,
}  # fmt: skip
ORIGINAL_CLASSIFIER_FLAGS = {
    "data_dir": None, "task_name": None, "max_seq_length": 128, "do_eval": False, "eval_batch_size": 8,
}  # fmt: skip
ORIGINAL_SQUAD_FLAGS = {
    "train_file": None, "predict_file": None, "max_seq_length": 384, "doc_stride": 128, "max_query_length": 64,
    "n_best_size": 20, "max_answer_length": 30, "verbose_logging": False, "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
}  # fmt: skip


def parse(settings_class, *arguments: str):
    """Return the settings of a command line."""
    values = flags.FlagValues()
    define_flags(settings_class, values)
    assert values(["script.py", *arguments]) == ["script.py"]
    return from_flags(settings_class, values)


@pytest.mark.parametrize(
    "settings_class, special",
    [(ClassifierSettings, ORIGINAL_CLASSIFIER_FLAGS), (SquadSettings, ORIGINAL_SQUAD_FLAGS)],
    ids=["classifier", "squad"],
)
def test_flags_of_the_original_keep_their_names_and_defaults(settings_class, special):
    expected = dict(ORIGINAL_FLAGS, **special)
    found = dataclasses.asdict(parse(settings_class))
    assert {name: found.get(name, "missing") for name in expected} == expected
    assert ("data_dir" in found) == (settings_class is ClassifierSettings)


def test_values_are_read_in_the_spellings_of_old_scripts():
    arguments = ["--task_name=CoLA", "--do_train=true", "--nodo_lower_case", "--learning_rate=3e-4", "--use_tpu=False"]
    settings = parse(ClassifierSettings, *arguments)
    assert (settings.task_name, settings.do_train, settings.do_lower_case) == ("CoLA", True, False)
    assert (settings.learning_rate, settings.use_tpu) == (3e-4, False)


@pytest.mark.parametrize(
    "argument, value",
    [("--gradient_checkpointing", True), ("--recompute=true", True), ("--recompute", True), ("--norecompute", False)],
)
def test_recompute_is_an_alias_of_gradient_checkpointing(argument, value):
    assert parse(SquadSettings, argument).gradient_checkpointing is value


def test_the_only_valid_argument_is_true():
    reject_positional_args(["script.py"])
    reject_positional_args(["script.py", "true", "True"])
    for arguments in (["false"], ["true", "extra"]):
        assert_mentions(message_of(reject_positional_args, ["script.py", *arguments]), arguments[-1], "--name=value")
