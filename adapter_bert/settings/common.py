"""The settings of a run: one frozen dataclass is the source of flags, defaults, help texts and checks.

A field is a flag. Its scope says when another value means another run: `model` (also for evaluating what an output
folder holds), `training` (for continuing a training), or None.

Imports no TensorFlow: flags are checked before that takes its seconds.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import re
import sys
from typing import Any, Dict, Optional, Sequence, Tuple, Type, TypeVar

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.model import tuning_modes
from adapter_bert.model.adapter_config import (
    ACTIVATION_NAMES,
    PAPER_INIT_SCALE,
    PAPER_SIZE,
    AdapterConfig,
    check_activation,
)

MODEL = "model"
TRAINING = "training"
# Flag -> field of an AdapterConfig.
ADAPTER_SETTINGS = {"adapter_" + field.name: field.name for field in dataclasses.fields(AdapterConfig)}


def setting(
    default: Any, help_text: str, scope: Optional[str] = None, kind: str = "value", unknown: Optional[Any] = None
) -> Any:
    """A field that is also a flag.

    Args:
      default: of the flag.
      help_text: what `--help` says; the default is added by absl.
      scope: when another value means another run, see the module's text.
      kind: `value`; `path`, compared as an absolute path; or `file`, compared by its contents.
      unknown: what a run had that was begun before there was this setting; the default if None.
    """
    metadata = {"help": help_text, "scope": scope, "kind": kind, "unknown": default if unknown is None else unknown}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every entry point takes: the flags of the original scripts, then ours."""

    bert_config_file: Optional[str] = setting(
        None, "JSON file with the architecture of the pre-trained BERT.", MODEL, "file"
    )
    task_name: Optional[str] = setting(None, "Name of the task, in any case.", TRAINING)
    vocab_file: Optional[str] = setting(None, "WordPiece vocabulary of the pre-trained BERT.", MODEL, "file")
    output_dir: Optional[str] = setting(None, "Folder for checkpoints and results; made if it does not exist.")
    init_checkpoint: Optional[str] = setting(
        None,
        "The base, where the weights come from: a BERT checkpoint, one of Google's adapter-bert, or the folder of an "
        "earlier run. A run that goes on, or is evaluated, takes the base that it noted if none is given.",
        TRAINING,
        "path",
    )
    do_lower_case: bool = setting(True, "Lower-case the input: true for uncased models, false for cased ones.", MODEL)
    max_seq_length: int = setting(
        128, "The most tokens of a sequence, its special tokens included: longer ones are cut.", TRAINING
    )
    do_train: bool = setting(False, "Train.")
    do_eval: bool = setting(False, "Score the dev split.")
    do_predict: bool = setting(False, "Write predictions.")
    train_batch_size: int = setting(32, "Examples in a training step.", TRAINING)
    eval_batch_size: int = setting(8, "Examples in a batch of evaluation; does not change scores.")
    predict_batch_size: int = setting(8, "Examples in a batch of prediction; does not change predictions.")
    learning_rate: float = setting(
        5e-5, "Peak learning rate of Adam. Adapters want more than full fine-tuning: 3e-4 to 3e-3.", TRAINING
    )
    num_train_epochs: float = setting(3.0, "Passes over the training split.", TRAINING)
    warmup_proportion: float = setting(
        0.1, "Share of the steps, 0 to 1, over which the learning rate rises linearly from 0.", TRAINING
    )
    save_checkpoints_steps: int = setting(1000, "Steps between two checkpoints; the newest five are kept.")
    iterations_per_loop: int = setting(1000, "Steps in one call of the TPU.")
    use_tpu: bool = setting(False, "Run on a TPU (TensorFlow up to 2.15), or on CPU or GPU.")
    tpu_name: Optional[str] = setting(None, "Name or grpc:// address of the Cloud TPU; needed with --use_tpu.")
    tpu_zone: Optional[str] = setting(None, "Zone of the Cloud TPU; found out if not given.")
    gcp_project: Optional[str] = setting(None, "Project of the Cloud TPU; found out if not given.")
    master: Optional[str] = setting(None, "TensorFlow master's address.")
    num_tpu_cores: int = setting(8, "TPU cores in all; with --use_tpu only.")
    # Ours.
    spm_model_file: Optional[str] = setting(
        None, "SentencePiece model, in place of --vocab_file, for BERTs trained on one.", MODEL, "file"
    )
    tuning_mode: str = setting(
        "adapter",
        "What trains: adapter (adapters, LayerNorms, head), full (everything, no adapters), top_layers "
        "(--tune_top_layers, pooler, head), layer_norm (LayerNorms, head) or head.",
        MODEL,
    )
    tune_top_layers: Optional[int] = setting(
        None,
        "With --tuning_mode=top_layers: encoder layers to train, from the top; all of them means everything.",
        MODEL,
    )
    adapter_size: int = setting(PAPER_SIZE, "Units of an adapter's bottleneck.", MODEL)
    adapter_init_scale: float = setting(
        PAPER_INIT_SCALE,
        "Standard deviation of the adapters' initial weights, truncated at two; Google's released code has 1e-3.",
        TRAINING,
    )
    adapter_activation: str = setting(
        "gelu", "Non-linearity of the adapters: {}.".format(", ".join(ACTIVATION_NAMES)), MODEL
    )
    adapter_layers: str = setting(
        "all",
        "Encoder layers with adapters, counted from 0 at the bottom: all, or e.g. 0-5 or 9,10,11.",
        MODEL,
    )
    adapter_placement: str = setting("both", "Sub-layers with adapters: attention, feedforward or both.", MODEL)
    seed: Optional[int] = setting(
        None,
        "Seed of data order, dropout, fresh adapters and head. Drawn, logged and kept with the run if not given.",
        TRAINING,
    )

    adapter_pack: Optional[str] = setting(
        None,
        "What a task has trained, on top of --init_checkpoint: a pack (*.safetensors), or the output folder of a run. "
        "To be evaluated, or to train on from.",
        TRAINING,
        "path",
    )
    save_full_checkpoint: bool = setting(
        False,
        "Write checkpoints of the original kind, the frozen base and Adam's slots in each, for old tools. Otherwise "
        "they hold what is trained, and the newest one the slots.",
        TRAINING,
    )
    eval_every_steps: Optional[int] = setting(
        None,
        "With --do_train and --do_eval: steps between two evaluations of the dev split; 0 for none. Once an epoch if "
        "not given. The best weights are kept, and are what --do_eval and --do_predict use.",
        TRAINING,
    )
    early_stopping_patience: Optional[int] = setting(
        None, "Stop after so many evaluations in a row without a new best score; never if not given.", TRAINING
    )
    feature_cache_dir: Optional[str] = setting(
        None,
        "Folder for tokenised features, which runs share; by default 'features' beside the output folder, or in it "
        "where that is not possible. May be deleted while no run is using it.",
    )
    pad_to_max_seq_length: bool = setting(
        False,
        "Pad every sequence to --max_seq_length and batch in plain shuffled order, as the original does. It costs the "
        "time of the padding: otherwise sequences of like length share a batch that is as wide as the longest of them. "
        "Always so on a TPU.",
        TRAINING,
        unknown=True,
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Parts in which a batch of --train_batch_size is worked out, one after the other: the gradient of the whole "
        "batch in the memory of a part. Must divide --train_batch_size.",
        TRAINING,
    )
    recompute: bool = setting(
        False,
        "Keep only the inputs of BERT's layers for the gradient and work the rest out again: less memory, about half "
        "as much time again. Does not change the result.",
    )
    use_xla: Optional[bool] = setting(
        None,
        "Let XLA compile the parts of a training step that are no matrix products: true, once for every width of a "
        "batch; false, never. If not given, where that pays: large batches of one width. It drops other values. "
        "Without effect on a GPU and on TensorFlow 1.",
        TRAINING,
    )

    @property
    def feature_folders(self) -> Tuple[str, ...]:
        """Where features may be kept, the folder to try first coming first."""
        if self.feature_cache_dir:
            return (self.feature_cache_dir,)
        inside = os.path.join(self.output_dir, "features")
        above = os.path.dirname(self.output_dir.rstrip("/"))
        # Nothing lies above a bucket.
        return (inside,) if above.endswith((":", ":/")) else (os.path.join(above, "features"), inside)

    @property
    def evaluates_in_training(self) -> bool:
        """Whether the dev split is scored along the training."""
        return self.do_train and self.do_eval and self.eval_every_steps != 0

    @property
    def pads_all(self) -> bool:
        """Whether all batches have the width `max_seq_length`."""
        return self.pad_to_max_seq_length or self.use_tpu

    @property
    def tokenizer_key(self) -> str:
        """Tells tokenizers apart: equal for settings that give equal ids."""
        values = self.identity((MODEL,))
        return repr([values[name] for name in ("vocab_file", "spm_model_file", "do_lower_case")])

    @property
    def adapter(self) -> Optional[AdapterConfig]:
        """The adapters that the model carries; None in every mode but `adapter`."""
        if self.tuning_mode != "adapter":
            return None
        return AdapterConfig(
            size=self.adapter_size,
            activation=self.adapter_activation,
            init_scale=self.adapter_init_scale,
            layers=parse_layers(self.adapter_layers),
            placement=self.adapter_placement,
        )

    def check(self) -> None:
        """Raises `errors.UserError` for what is wrong by itself, without looking at a file."""
        if not (self.do_train or self.do_eval or self.do_predict):
            raise errors.UserError("Nothing to do: give at least one of --do_train, --do_eval, --do_predict.")
        tuning_modes.check_mode(self.tuning_mode, self.tune_top_layers)
        check_activation(self.adapter_activation)
        self.adapter  # noqa: B018  (its constructor checks the values)
        for name in (
            "train_batch_size",
            "eval_batch_size",
            "predict_batch_size",
            "save_checkpoints_steps",
            "iterations_per_loop",
            "num_tpu_cores",
            "gradient_accumulation_steps",
        ):
            self._check_range(name, 1)
        self._check_range("max_seq_length", 3)
        self._check_range("learning_rate", 0)
        self._check_range("num_train_epochs", 0)
        self._check_range("warmup_proportion", 0, 1)
        for name, least, most in (
            ("seed", 0, 2**31 - 1),
            ("eval_every_steps", 0, float("inf")),
            ("early_stopping_patience", 1, float("inf")),
        ):
            if getattr(self, name) is not None:
                self._check_range(name, least, most)
        for name in ("early_stopping_patience", "eval_every_steps"):
            if getattr(self, name) and self.do_train and not self.evaluates_in_training:
                raise errors.UserError(
                    f"--{name} needs scores along the training: add --do_eval=true, and leave --eval_every_steps out "
                    f"or above 0 (it is {self.eval_every_steps})."
                )
        for name in ("output_dir", "init_checkpoint"):
            if re.search(r"[][*?]", getattr(self, name) or ""):
                raise errors.UserError(
                    f"--{name}={getattr(self, name)}: TensorFlow takes [ ] * ? in the path of a checkpoint for a "
                    "pattern; use another folder."
                )
        if self.train_batch_size % self.gradient_accumulation_steps:
            raise errors.UserError(
                f"--gradient_accumulation_steps={self.gradient_accumulation_steps} must divide --train_batch_size="
                f"{self.train_batch_size}: its parts have one size."
            )
        if self.adapter_pack and not self.init_checkpoint:
            raise errors.UserError(
                f"--adapter_pack={self.adapter_pack} needs the base that it belongs to: give --init_checkpoint."
            )
        if self.use_tpu:
            self._check_tpu()

    def needed_paths(self) -> Dict[str, str]:
        """Flag -> what must be there under its path: `file`, `folder`, `file or folder` or `checkpoint`."""
        needed = {"bert_config_file": "file", "vocab_file": "file", "spm_model_file": "file"}
        if not os.path.isdir(self.output_dir or ""):  # a run that goes on may do without
            needed.update(init_checkpoint="checkpoint", adapter_pack="file or folder")
        return needed

    def check_paths(self) -> None:
        """Raises `errors.UserError` for a local path with nothing there. What it holds is checked by its reader."""
        for name, kind in self.needed_paths().items():
            path = getattr(self, name)
            if path and "://" not in path and not _is_there(path, kind):
                raise errors.UserError(f"--{name}={path}: there is no such {kind}; paths are taken from {os.getcwd()}.")

    def _check_tpu(self) -> None:
        if bool(self.tpu_name) == bool(self.master):
            raise errors.UserError(
                "--use_tpu=true needs --tpu_name, the TPU's name or grpc:// address, or else --master; found "
                f"--tpu_name={self.tpu_name} and --master={self.master}."
            )
        if self.gradient_accumulation_steps > 1:
            raise errors.UserError(
                "--gradient_accumulation_steps does not go with --use_tpu=true: cores share the batch already."
            )
        for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
            if getattr(self, name) % self.num_tpu_cores:
                raise errors.UserError(
                    f"On a TPU, --{name} must be a multiple of --num_tpu_cores={self.num_tpu_cores}, found "
                    f"{getattr(self, name)}."
                )

    def _check_range(self, name: str, least: float, most: float = float("inf")) -> None:
        value = getattr(self, name)
        if not least <= value <= most or value == float("inf"):
            limits = f"{least} or more" if most == float("inf") else f"from {least} to {most}"
            raise errors.UserError(f"--{name} must be {limits}, found {value}.")

    def identity(self, scopes: Tuple[str, ...]) -> Dict[str, Any]:
        """The values by which two runs are told apart, as JSON can hold them: of two spellings, one.

        Adapter settings are None in modes that build no adapters.
        """
        values = {
            field.name: _identity_value(getattr(self, field.name), field.metadata["kind"])
            for field in dataclasses.fields(self)
            if field.metadata["scope"] in scopes
        }
        for name, field in ADAPTER_SETTINGS.items():
            if name in values:
                value = getattr(self.adapter, field, None)
                values[name] = list(value) if isinstance(value, tuple) else value
        if "pad_to_max_seq_length" in values:
            values["pad_to_max_seq_length"] = self.pads_all
        return values

    def training_values(self) -> Dict[str, Any]:
        """The settings of a training that mean something elsewhere too: no paths."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["scope"] == TRAINING and field.metadata["kind"] == "value"
        }


def _is_there(path: str, kind: str) -> bool:
    if kind == "file":
        return os.path.isfile(path)
    if kind == "folder":
        return os.path.isdir(path)
    return os.path.exists(path) or (kind == "checkpoint" and bool(glob.glob(glob.escape(path) + ".*")))


def _identity_value(value: Any, kind: str) -> Any:
    if value is None or kind == "value":
        return value
    if kind == "file":
        with tf.gfile.GFile(value, "rb") as reader:
            return "sha256:" + hashlib.sha256(reader.read()).hexdigest()[:16]
    return value if "://" in value else os.path.realpath(value)


def parse_layers(text: str) -> Optional[Tuple[int, ...]]:
    """Reads a list of layers: `all` (None), numbers and ranges with commas between them, e.g. `0-2,5`."""
    if text.strip().lower() == "all":
        return None
    layers = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(first) <= int(last))):
            raise errors.UserError(
                f"--adapter_layers takes 'all' or numbers and ranges such as 0-5 or 9,10,11; found '{text}'."
            )
        layers.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(layers)


_DEFINE = {
    "str": flags.DEFINE_string,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "bool": flags.DEFINE_bool,
}

SettingsClass = TypeVar("SettingsClass", bound=Settings)


def define_flags(settings_class: Type[Settings], values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every field."""
    for field in dataclasses.fields(settings_class):
        kind = field.type.replace("Optional[", "").rstrip("]")
        _DEFINE[kind](field.name, field.default, field.metadata["help"], flag_values=values)


def reject_positional_args(argv: Sequence[str]) -> None:
    """Refuses words of a command line that belong to no flag."""
    # `--do_train true` is read as a flag and a word of its own; the original scripts let that pass.
    surplus = [word for word in argv[1:] if word.lower() != "true"]
    if surplus:
        alone = " (a flag without a value means true)" if surplus[0].lower() == "false" else ""
        raise errors.UserError(f"Unexpected argument '{surplus[0]}': flags are given as --name=value{alone}.")


def from_flags(settings_class: Type[SettingsClass], values: flags.FlagValues) -> SettingsClass:
    """The settings that parsed flags give."""
    return settings_class(**{field.name: values[field.name].value for field in dataclasses.fields(settings_class)})


def check_command_line(settings_class: Type[Settings], values: flags.FlagValues, required: Sequence[str]) -> None:
    """Tells what is wrong with this program's command line, and ends there; so does `--help`.

    For the top of an entry point, in front of what imports TensorFlow: a mistake is told at once and not after the
    seconds of that import. `app.run` parses the same flags again.

    Args:
      settings_class: of the entry point.
      values: in which its flags are defined.
      required: flags that must be given.
    """
    flags.mark_flags_as_required(list(required), values)
    app.define_help_flags()
    _check_values(app.parse_flags_with_usage(sys.argv), settings_class, values)


@errors.exits_on_user_error
def _check_values(argv: Sequence[str], settings_class: Type[Settings], values: flags.FlagValues) -> None:
    reject_positional_args(argv)
    settings = from_flags(settings_class, values)
    settings.check()
    settings.check_paths()
