"""Settings: what is valid, what tells two runs apart, and what follows from them."""

from __future__ import annotations

import dataclasses
import math

import pytest

import adapter_layers
from adapter_bert.devices.device import Device
from adapter_bert.model import adapter_config
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.flags import MODEL, TRAINING, setting
from adapter_bert.settings.groups import RunSettings, Settings, parse_layers
from adapter_bert.settings.squad import SquadSettings
from adapter_layers import AdapterConfig
from tests.helpers import VOCABULARY, assert_mentions, message_of

TPU = {"use_tpu": True, "tpu_name": "grpc://10.0.0.2:8470"}


@pytest.mark.parametrize("phase", ["do_train", "do_eval", "do_predict"])
def test_defaults_are_valid_if_there_is_something_to_do(phase):
    Settings(**{phase: True}).validate()
    Settings(**{phase: True}, **TPU).validate()
    assert_mentions(message_of(Settings().validate), "--" + phase)


COUNTS = (
    "train_batch_size eval_batch_size predict_batch_size save_checkpoints_steps iterations_per_loop num_tpu_cores "
    "gradient_accumulation_steps"
)
SQUAD_COUNTS = ("doc_stride", "max_query_length", "n_best_size", "max_answer_length")
SQUAD = {"do_train": True, "train_file": "train.json", "output_dir": "out"}


@pytest.mark.parametrize(
    "name, valid, invalid, expected",
    [(name, 1, 0, "1 or more") for name in (*COUNTS.split(), *SQUAD_COUNTS)]
    + [
        ("max_seq_length", 3, 2, "3 or more"),
        ("learning_rate", 0.0, -1e-9, "0 or more"),
        ("learning_rate", 1.0, math.nan, "0 or more"),
        ("num_train_epochs", 0.5, math.inf, "finite"),
        ("warmup_proportion", 1.0, 1.5, "from 0 to 1"),
        ("seed", 0, -1, "from 0 to 2147483647"),
        ("seed", 2**31 - 1, 2**31, "from 0 to 2147483647"),
        ("eval_every_steps", 0, -1, "0 or more"),
        ("early_stopping_patience", None, 0, "1 or more"),
        ("tuning_mode", "full", "ful", "Did you mean 'full'? Available: adapter, full"),
        ("adapter_layers", "1-3", "3-1", "0-5"),
        ("adapter_layers", "all", "x", "0-5"),
        ("null_score_diff_threshold", math.inf, math.nan, "--null_score_diff_threshold"),
    ],
)
def test_a_value_outside_its_limits_is_an_error(name, valid, invalid, expected):
    make = Settings
    if name in SQUAD_COUNTS or name == "null_score_diff_threshold":
        make = SquadSettings
    given = SQUAD if make is SquadSettings else {"do_train": True}
    make(**dict(given, **{name: valid})).validate()
    assert_mentions(message_of(make(**dict(given, **{name: invalid})).validate), f"--{name}", invalid, expected)


@pytest.mark.parametrize(
    "changes, facts",
    [
        ({"adapter_activation": "rely"}, ["activation", "rely", "Did you mean 'relu'?"]),
        ({"adapter_size": 0}, ["adapter size", 0]),
        ({"adapter_placement": "below"}, ["placement", "below", "attention, feedforward"]),
        ({"adapter_norm": "bach"}, ["norm", "bach", "Did you mean 'batch'?"]),
        ({"adapter_depth": 0}, ["depth", 0]),
        ({"adapter_connection": "series"}, ["connection", "series", "serial, parallel, multiply"]),
        ({"adapter_freeze_below": True}, ["freeze_below", "above layer 0", "found all"]),
        ({"adapter_freeze_below": True, "adapter_layers": "0,3"}, ["freeze_below", "found [0, 3]"]),
        ({"tuning_mode": "top_layers"}, ["top_layers", "at least 1"]),
        ({"tune_top_layers": 2}, ["top_layers", "adapter", 2]),
        ({"train_batch_size": 8, "gradient_accumulation_steps": 3}, ["--gradient_accumulation_steps=3", "=8"]),
        ({"adapter_pack": "x.safetensors"}, ["--adapter_pack=x.safetensors", "--init_checkpoint"]),
        ({"output_dir": "runs/[1]"}, ["--output_dir=runs/[1]", "pattern"]),
        ({"output_dir": "b?"}, ["--output_dir=b?", "pattern"]),
        ({"init_checkpoint": "bert*"}, ["--init_checkpoint=bert*", "pattern"]),
        ({"early_stopping_patience": 2}, ["--early_stopping_patience", "--do_eval=true"]),
        ({"eval_every_steps": 5}, ["--eval_every_steps", "--do_eval=true"]),
        ({"early_stopping_patience": 2, "eval_every_steps": 0, "do_eval": True}, ["--early_stopping_patience", 0]),
        ({"use_tpu": True}, ["--tpu_name=None", "--master=None"]),
        (dict(TPU, master="x"), ["--tpu_name=grpc://10.0.0.2:8470", "--master=x"]),
        (dict(TPU, gradient_accumulation_steps=2), ["--gradient_accumulation_steps", "--use_tpu"]),
        (dict(TPU, cache_frozen_layers=True), ["--cache_frozen_layers=true", "--use_tpu=true"]),
        ({"cache_frozen_layers": True, "save_full_checkpoint": True}, ["--save_full_checkpoint=true", "lacks"]),
        ({"frozen_cache_limit_mb": -1}, ["--frozen_cache_limit_mb", -1]),
        (dict(TPU, eval_batch_size=9), ["--eval_batch_size", 9, "--num_tpu_cores=8"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_values_that_contradict_each_other_are_an_error(changes, facts):
    assert_mentions(message_of(Settings(**dict({"do_train": True}, **changes)).validate), *facts)


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
        ({"doc_stride": 400}, ["--doc_stride=400", "--max_seq_length=384"]),
    ],
)
def test_files_and_windows_of_squad_are_checked(changes, facts):
    assert_mentions(message_of(SquadSettings(**dict(SQUAD, **changes)).validate), *facts)


def test_adapter_settings_do_not_matter_without_adapters():
    Settings(do_train=True, tuning_mode="full", adapter_size=0, adapter_layers="none").validate()


def test_known_activations_are_those_of_the_graph():
    assert tuple(sorted(adapter_layers.ACTIVATIONS)) == adapter_config.ACTIVATION_NAMES


@pytest.mark.parametrize(
    "text, layers", [("all", None), ("0-2", (0, 1, 2)), ("9,10, 11", (9, 10, 11)), ("0-1,5", (0, 1, 5))]
)
def test_layers_are_numbers_and_ranges(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize(
    "make, name, phase",
    [
        (ClassifierSettings, "train_file", "do_train"),
        (ClassifierSettings, "dev_file", "do_eval"),
        (ClassifierSettings, "test_file", "do_predict"),
        (SquadSettings, "train_file", "do_train"),
        (SquadSettings, "predict_file", "do_eval"),
        (SquadSettings, "predict_file", "do_predict"),
    ],
)
def test_only_files_that_are_read_must_exist(make, name, phase):
    bert = {"bert_config_file": "gs://bucket/bert_config.json"}
    make(**{name: "no.file"}, **bert).check_paths()
    make(**{name: "gs://bucket/no.file", phase: True}, **bert).check_paths()  # only TensorFlow can check this
    assert_mentions(message_of(make(**{name: "no.file", phase: True}).check_paths), f"--{name}=no.file")


def test_a_finished_run_needs_no_initial_weights(tmp_path):
    config = "gs://bucket/bert_config.json"
    ClassifierSettings(bert_config_file=config, init_checkpoint="no.ckpt", output_dir=str(tmp_path)).check_paths()
    message = message_of(ClassifierSettings(init_checkpoint="no.ckpt", output_dir="no").check_paths)
    assert_mentions(message, "--init_checkpoint=no.ckpt")


@pytest.mark.parametrize(
    "one, other",
    [
        ({"adapter_layers": "0-2", "adapter_activation": "GELU"}, {"adapter_layers": "2,1,0"}),
        ({"tuning_mode": "head", "adapter_size": 8}, {"tuning_mode": "head", "adapter_size": 16}),
        ({"init_checkpoint": "bert/../bert/model.ckpt"}, {"init_checkpoint": "bert/model.ckpt"}),
        (TPU, {"pad_to_max_seq_length": True}),
        ({"eval_batch_size": 1, "gradient_checkpointing": True, "output_dir": "a"}, {"output_dir": "b"}),
    ],
)
def test_settings_of_the_same_run_compare_equal(one, other):
    scopes = (MODEL, TRAINING)
    assert Settings(**one).comparable_values(scopes) == Settings(**other).comparable_values(scopes)


def test_flags_select_variants_of_the_adapter():
    variant = {"norm": "layer", "depth": 2, "connection": "multiply", "freeze_below": True}
    settings = Settings(**{f"adapter_{name}": value for name, value in variant.items()}, adapter_layers="1-2")
    expected = AdapterConfig(**variant, layers=(1, 2))
    assert settings.adapter == expected and Settings().adapter == AdapterConfig()
    changed = settings.comparable_values((MODEL,))
    for name in (f"adapter_{name}" for name in variant):
        assert changed[name] == getattr(settings, name) != Settings().comparable_values((MODEL,))[name]


def test_only_settings_of_the_model_matter_to_an_evaluation():
    values = Settings(adapter_size=8, learning_rate=1.0).comparable_values((MODEL,))
    assert values["adapter_size"] == 8 and values["adapter_layers"] is None
    assert not {"learning_rate", "pad_to_max_seq_length", "output_dir"} & values.keys()


def test_files_are_compared_by_content(tmp_path):
    same, copy, other = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    for path, words in ((same, VOCABULARY), (copy, VOCABULARY), (other, VOCABULARY[::-1])):
        path.write_text("\n".join(words) + "\n")
    key = Settings(vocab_file=str(same)).tokenizer_key
    assert Settings(vocab_file=str(copy), learning_rate=1.0).tokenizer_key == key
    assert Settings(vocab_file=str(other)).tokenizer_key != key
    assert Settings(vocab_file=str(same), do_lower_case=False).tokenizer_key != key


def test_values_recorded_in_a_pack_contain_no_paths():
    values = Settings(init_checkpoint="bert.ckpt", learning_rate=1e-3, seed=4).training_values()
    assert (values["learning_rate"], values["seed"]) == (1e-3, 4)
    assert not {"init_checkpoint", "adapter_pack", "output_dir"} & values.keys()


@pytest.mark.parametrize(
    "output_dir, folders",
    [
        ("runs/cola", ("runs/features", "runs/cola/features")),
        ("runs/cola/", ("runs/features", "runs/cola/features")),
        ("cola", ("features", "cola/features")),
        ("gs://bucket/runs/cola", ("gs://bucket/runs/features", "gs://bucket/runs/cola/features")),
        ("gs://bucket", ("gs://bucket/features",)),
    ],
)
def test_features_are_next_to_the_output_folder_or_in_it(output_dir, folders):
    assert Settings(output_dir=output_dir).feature_folders == folders
    assert Settings(output_dir=output_dir, feature_cache_dir="/x").feature_folders == ("/x",)


def test_batches_are_padded_by_flag_or_for_a_tpu():
    assert not Settings().pads_all
    assert Settings(pad_to_max_seq_length=True).pads_all
    assert Settings(**TPU).pads_all


def test_the_device_has_the_values_of_its_flags():
    assert Settings().device == Device()
    settings = Settings(**TPU, tpu_zone="z", gcp_project="p", num_tpu_cores=32, iterations_per_loop=7)
    assert settings.device == Device(True, TPU["tpu_name"], "z", "p", None, 32, 7)


def test_a_model_without_bert_reuses_data_training_and_device_settings():
    @dataclasses.dataclass(frozen=True)
    class NetworkSettings(RunSettings):
        units: int = setting(100, "Hidden units.", MODEL)

    settings = NetworkSettings(do_train=True, units=50)
    settings.validate()
    names = {field.name for field in dataclasses.fields(settings)}
    assert {"units", "learning_rate", "task_name", "use_tpu"} <= names
    assert not {"bert_config_file", "adapter_size"} & names
    assert settings.comparable_values((MODEL,)) == {"units": 50}
