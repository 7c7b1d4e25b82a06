"""The search space: every row of the paper's Table 5."""

from __future__ import annotations

import dataclasses

import pytest
from absl import flags

from adapter_bert.baselines import presets, space
from adapter_bert.baselines.settings import ROWS, BaselineSettings, NetworkSettings
from adapter_bert.settings import flags as settings_lib
from tests.helpers import assert_mentions, message_of, write_file

# Table 5 of the paper, row by row. The names of the modules (row 1) are those of Table 6.
ACTIVATIONS = {"relu", "relu6", "leaky_relu", "swish", "sigmoid", "tanh"}
RATES = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5}
WEIGHTS = {0.0, 0.0001, 0.001, 0.01}
BOTH = {True, False}
TABLE_5 = {
    "fine_tune_module": BOTH,
    "lowercase_text": BOTH,
    "remove_non_alphanumeric": BOTH,
    "use_convolution": BOTH,
    "conv_activation": ACTIVATIONS,
    "conv_batch_norm": BOTH,
    "conv_max_ngram": {2, 3},
    "conv_dropout": (0.0, 0.4),
    "conv_filters": (50, 200),
    "conv_embedding_dropout": (0.0, 0.4),
    "hidden_layers": {0, 1, 2, 3, 5},
    "hidden_size": {64, 128, 256},
    "hidden_activation": ACTIVATIONS,
    "hidden_norm": {"none", "batch", "layer"},
    "hidden_dropout": {0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5},
    "deep_learning_rate": RATES,
    "deep_l2": WEIGHTS,
    "wide_learning_rate": RATES,
    "wide_l2": WEIGHTS,
    "num_train_samples": {100_000, 200_000, 500_000, 1_000_000, 2_000_000},
}


class Recorder:
    """Records what a trial is asked to choose from, and chooses the last value."""

    def __init__(self):
        self.asked = {}

    def suggest_categorical(self, name, values):
        self.asked[name] = set(values)
        return values[-1]

    def suggest_int(self, name, low, high):
        self.asked[name] = (low, high)
        return high

    suggest_float = suggest_int


def test_every_row_is_sampled_from_the_values_of_the_paper():
    recorder = Recorder()
    chosen = space.sample(recorder, space.read(None, {}))
    assert len(ROWS) == 21 and tuple(chosen) == ROWS
    assert recorder.asked.pop("hub_module") == set(presets.STAND_INS.values())
    assert recorder.asked == TABLE_5


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_flag_of_the_settings(name):
    values = flags.FlagValues()
    settings_lib.define_flags(BaselineSettings, values)
    allowed = space.TABLE[name]
    for value in allowed:
        values.unparse_flags()
        values(["program", f"--{name}={value}"])
        settings = settings_lib.from_flags(BaselineSettings, values)
        assert getattr(settings, name) == value
        dataclasses.replace(settings.network, hub_module=settings.hub_module or "m").validate()


def test_a_file_and_flags_change_the_space(tmp_path):
    path = write_file(tmp_path, "space.toml", "conv_filters = {low = 4, high = 8}\nhidden_layers = [1]\n")
    found = space.read(path, {"fine_tune_module": False})
    assert found["conv_filters"] == space.Range(4, 8)
    assert found["hidden_layers"] == (1,)
    assert found["fine_tune_module"] == (False,)
    assert found["conv_dropout"] == space.TABLE["conv_dropout"]
    assert space.from_description(space.describe(found)) == {name: found[name] for name in found}
    assert "hidden_layers" not in space.names(found)


@pytest.mark.parametrize(
    "text, facts",
    [
        ("conv_filters = {low = 9, high = 8}", ["conv_filters", "9", "8", "empty"]),
        ("hidden_size = []", ["hidden_size", "no values"]),
        ("hidden_sizes = [8]", ["hidden_sizes", "hidden_size"]),
        ("hidden_norm = ['batch', 'group']", ["hidden_norm", "group"]),
        ("hidden_size = [true]", ["hidden_size", "int"]),
        ("conv_activation = {low = 1, high = 2}", ["conv_activation", "list"]),
        ("conv_dropout = [1.5]", ["conv_dropout", "1.5"]),
        ("hidden_size = [", ["TOML"]),
    ],
)
def test_wrong_spaces_are_reported(tmp_path, text, facts):
    path = write_file(tmp_path, "space.toml", text)
    assert_mentions(message_of(space.read, path, {}), *facts)


def test_the_presets_are_rows_of_the_table():
    names = presets.names()
    assert len(names) == 17
    for name in names:
        values = presets.get(name)
        assert tuple(values) == ROWS
        NetworkSettings(**values).validate()
        for row, value in values.items():
            allowed = space.TABLE[row]
            if isinstance(allowed, space.Range):
                assert allowed.low <= value <= allowed.high, (name, row)
            else:
                assert value in allowed, (name, row)


def test_an_unknown_preset_lists_the_known_ones():
    assert_mentions(message_of(presets.get, "sms"), "sms_spam_collection")
