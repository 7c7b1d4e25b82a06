"""The settings of a baseline run: every row of the paper's Table 5 is a flag. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Tuple

from adapter_bert.baselines import presets
from adapter_bert.common import errors
from adapter_bert.settings.classifier import TaskSettings
from adapter_bert.settings.flags import MODEL, NOT_NEGATIVE, POSITIVE, TRAINING, FlagGroup, Limits, setting

ACTIVATIONS = ("relu", "relu6", "leaky_relu", "swish", "sigmoid", "tanh")
NORMS = ("none", "batch", "layer")
_RATE = Limits(0.0, 0.95)
_LEARNING_RATE = Limits(1e-8, 100.0)


@dataclasses.dataclass(frozen=True)
class NetworkSettings(FlagGroup):
    """A network on text embeddings and its training: the 21 rows of Table 5, in their order."""

    hub_module: Optional[str] = setting(
        None,
        "Text embeddings: a TF-Hub module (a folder or a URL, in the layout of TF1 or TF2), or the name of a package "
        "to download, see docs/baselines.md.",
        MODEL,
    )
    fine_tune_module: bool = setting(False, "Train the embeddings too.", MODEL)
    lowercase_text: bool = setting(True, "Convert texts to lower case.", MODEL)
    remove_non_alphanumeric: bool = setting(False, "Remove characters that are neither letters nor digits.", MODEL)
    use_convolution: bool = setting(
        False, "Convolve the embeddings of the words. Otherwise use the embedding of the whole text.", MODEL
    )
    conv_activation: str = setting("relu", "Activation of the convolution.", MODEL, Limits(choices=ACTIVATIONS))
    conv_batch_norm: bool = setting(False, "Batch normalization after the convolution.", MODEL)
    conv_max_ngram: int = setting(3, "Convolve n-grams of 1 to this many words.", MODEL, Limits(1, 10))
    conv_dropout: float = setting(0.2, "Dropout rate after the convolution.", TRAINING, _RATE)
    conv_filters: int = setting(100, "Filters of the convolution for each length of n-grams.", MODEL, POSITIVE)
    conv_embedding_dropout: float = setting(0.2, "Dropout rate of the embeddings of words.", TRAINING, _RATE)
    hidden_layers: int = setting(1, "Number of hidden layers.", MODEL, NOT_NEGATIVE)
    hidden_size: int = setting(128, "Units in each hidden layer.", MODEL, POSITIVE)
    hidden_activation: str = setting("relu", "Activation of the hidden layers.", MODEL, Limits(choices=ACTIVATIONS))
    hidden_norm: str = setting("none", "Normalization of the hidden layers.", MODEL, Limits(choices=NORMS))
    hidden_dropout: float = setting(0.2, "Dropout rate after each hidden layer.", TRAINING, _RATE)
    deep_learning_rate: float = setting(
        0.05, "Learning rate (Adagrad) of the deep tower: convolution and hidden layers.", TRAINING, _LEARNING_RATE
    )
    deep_l2: float = setting(0.0, "Weight of the L2 regularization of the deep tower.", TRAINING, NOT_NEGATIVE)
    wide_learning_rate: float = setting(
        0.05, "Learning rate (FTRL) of the wide tower, a linear model of the words.", TRAINING, _LEARNING_RATE
    )
    wide_l2: float = setting(0.0, "Weight of the L2 regularization of the wide tower.", TRAINING, NOT_NEGATIVE)
    num_train_samples: Optional[int] = setting(
        None, "Examples to train on, with repetitions, instead of --num_train_epochs.", TRAINING, POSITIVE
    )


# The fields of Table 5, in the order of its rows.
ROWS = tuple(field.name for field in dataclasses.fields(NetworkSettings))
# Shared flags that mean nothing here, and what to use instead.
_WITHOUT_EFFECT = {
    "learning_rate": "--deep_learning_rate and --wide_learning_rate",
    "warmup_proportion": "",
    "adam_bias_correction": "",
    "gradient_accumulation_steps": "a lower --train_batch_size",
    "gradient_checkpointing": "",
    "use_xla": "",
    "save_full_checkpoint": "",
    "precision": "",
    "use_tpu": "",
    "distribution_strategy": "",
    "pad_to_max_seq_length": "",
}


@dataclasses.dataclass(frozen=True)
class BaselineSettings(NetworkSettings, TaskSettings):
    """Settings of `run_baseline.py`."""

    preset: Optional[str] = setting(
        None, "Settings that the paper selected for a task (its Table 7), by name of the task; other flags override."
    )

    # A baseline starts from a module, not from a checkpoint or a pack.
    init_checkpoint = None
    adapter_pack = None

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        if not self.hub_module:
            raise errors.UserError("Set --hub_module to a TF-Hub text module, or --preset.")
        for name, instead in _WITHOUT_EFFECT.items():
            default = self.__dataclass_fields__[name].default
            if getattr(self, name) != default:
                hint = f"; use {instead}" if instead else ""
                raise errors.UserError(f"--{name} has no effect on networks without BERT{hint}.")

    @property
    def network(self) -> NetworkSettings:
        """The settings of the network alone."""
        return NetworkSettings(**{name: getattr(self, name) for name in ROWS})

    def needed_paths(self) -> Dict[str, str]:
        """As in the base class. A module is checked when it is opened."""
        return super().needed_paths()


def with_preset(settings: BaselineSettings, given: Mapping[str, Any]) -> BaselineSettings:
    """Return the settings with the values of their preset, except for the flags that are `given`."""
    if not settings.preset:
        return settings
    values = presets.get(settings.preset)
    return dataclasses.replace(settings, **{name: value for name, value in values.items() if name not in given})


def architecture(settings: NetworkSettings) -> Tuple[Any, ...]:
    """Return the values that determine the variables of a network."""
    fields = [field for field in dataclasses.fields(NetworkSettings) if field.metadata["scope"] == MODEL]
    return tuple(getattr(settings, field.name) for field in fields)
