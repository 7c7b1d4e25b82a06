"""Groups of settings: `RunSettings` applies to any model; BERT and its adapters have their own groups.

`Settings` combines them all, with flat attributes such as `settings.learning_rate`. The settings of an entry point
derive from it. Imports no TensorFlow, see `flags`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from adapter_bert.common import errors, paths
from adapter_bert.devices import cluster
from adapter_bert.model import adapter_config, tuning_modes
from adapter_bert.model.adapter_config import AdapterConfig
from adapter_bert.settings import base_files
from adapter_bert.settings.device_settings import DeviceSettings
from adapter_bert.settings.flags import MODEL, NOT_NEGATIVE, POSITIVE, TRAINING, FlagGroup, Limits, setting

# Flag -> field of an AdapterConfig.
ADAPTER_SETTINGS = {"adapter_" + field.name: field.name for field in dataclasses.fields(AdapterConfig)}
# [CLS], one token and [SEP].
SEQUENCE_LENGTH = Limits(3)


@dataclasses.dataclass(frozen=True)
class BertSettings(FlagGroup):
    """The pre-trained BERT: architecture, tokenizer and weights.

    `bert_dir` sets the paths of its parts that are not set themselves. Runs record and compare only those.
    """

    bert_dir: Optional[str] = setting(
        None,
        "Folder of the pre-trained BERT, instead of the flags for its parts: bert_config.json, vocab.txt (or *.model) "
        f"and bert_model.ckpt.*; or the name of a base to download: {', '.join(base_files.KNOWN)}.",
    )
    bert_hub_module_handle: Optional[str] = setting(
        None,
        "TF-Hub module of a BERT, instead of --bert_dir: a folder or URL, in the layout of TF1 or TF2. Provides "
        "weights, vocabulary and --do_lower_case.",
    )
    bert_config_file: Optional[str] = setting(None, "Architecture of the pre-trained BERT (JSON).", MODEL, kind="file")
    vocab_file: Optional[str] = setting(None, "WordPiece vocabulary of the pre-trained BERT.", MODEL, kind="file")
    spm_model_file: Optional[str] = setting(None, "SentencePiece model, instead of --vocab_file.", MODEL, kind="file")
    do_lower_case: bool = setting(True, "Lower-case the input: true for uncased models, false for cased ones.", MODEL)
    init_checkpoint: Optional[str] = setting(
        None,
        "Initial weights: a checkpoint of BERT or of Google's adapter-bert, or the output folder of a run. Not needed "
        "to continue or evaluate a run, which records it.",
        TRAINING,
        kind="path",
    )

    def __post_init__(self) -> None:
        """Find the parts of `bert_dir`."""
        if not self.bert_dir:
            return
        has_tokenizer = self.vocab_file or self.spm_model_file
        for name, path in base_files.find(self.bert_dir).flags().items():
            if not getattr(self, name) and not (has_tokenizer and name in ("vocab_file", "spm_model_file")):
                object.__setattr__(self, name, path)

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        if self.bert_dir and self.bert_hub_module_handle:
            raise errors.UserError(
                f"--bert_dir={self.bert_dir} and --bert_hub_module_handle={self.bert_hub_module_handle} both name the "
                "BERT: set one of them."
            )

    def check_paths(self) -> None:
        """As in the base class. A BERT must be named."""
        super().check_paths()
        module = self.bert_hub_module_handle or ""
        if module and not paths.is_remote(module) and not os.path.isdir(module):
            raise errors.UserError(f"--bert_hub_module_handle={module} is neither a folder nor a URL.")
        if not self.bert_config_file and not module:
            raise errors.UserError(
                "No BERT: set --bert_dir to its folder, or to the name of a base to download "
                f"({', '.join(base_files.KNOWN)}); or set --bert_config_file, --vocab_file and --init_checkpoint."
            )

    def without_downloads(self, needed: Dict[str, str]) -> Dict[str, str]:
        """Return the needed paths except those of a known base, which may have to be downloaded first."""
        if not self.bert_dir or not base_files.is_known(self.bert_dir):
            return needed
        known = base_files.find(self.bert_dir).flags()
        return {name: kind for name, kind in needed.items() if getattr(self, name) != known.get(name)}

    @property
    def tokenizer_key(self) -> str:
        """A key that identifies the tokenizer: equal keys imply equal token ids."""
        values = self.comparable_values((MODEL,))
        return repr([values[name] for name in ("vocab_file", "spm_model_file", "do_lower_case")])


@dataclasses.dataclass(frozen=True)
class AdapterSettings(FlagGroup):
    """What to train: adapters, or other parts of the model."""

    tuning_mode: str = setting(
        "adapter",
        "What to train: adapter (adapters, LayerNorms, head), full (everything, no adapters), top_layers (the top "
        "--tune_top_layers encoder layers, pooler, head), layer_norm (LayerNorms, head) or head.",
        MODEL,
        Limits(choices=tuning_modes.MODES),
    )
    tune_top_layers: Optional[int] = setting(
        None, "Encoder layers to train with --tuning_mode=top_layers; if all, embeddings are trained too.", MODEL
    )
    adapter_size: int = setting(AdapterConfig.size, "Units in the bottleneck of an adapter.", MODEL)
    adapter_init_scale: float = setting(
        AdapterConfig.init_scale, "Standard deviation of initial adapter weights; Google's code: 1e-3.", TRAINING
    )
    adapter_activation: str = setting(
        "gelu", f"Activation of the adapters: {', '.join(adapter_config.ACTIVATION_NAMES)}.", MODEL
    )
    adapter_layers: str = setting(
        "all", "Encoder layers with adapters, counted from 0 at the bottom: all, or e.g. 0-5 or 9,10,11.", MODEL
    )
    adapter_placement: str = setting("both", "Sub-layers with adapters: attention, feedforward or both.", MODEL)
    adapter_norm: str = setting("none", "Normalization of an adapter's input: none, layer or batch.", MODEL)
    adapter_depth: int = setting(1, "Number of hidden layers in an adapter.", MODEL)
    adapter_connection: str = setting(
        "serial",
        "What an adapter reads and changes: serial (a sub-layer's output), parallel (reads its input, adds to its "
        "output) or multiply (reads its input, scales its output).",
        MODEL,
    )
    adapter_freeze_below: bool = setting(
        False,
        "Also freeze the LayerNorms below the lowest layer with adapters, so that --cache_frozen_layers can skip these "
        "layers; needs --adapter_layers.",
        MODEL,
    )
    cache_frozen_layers: bool = setting(
        False,
        "Compute the layers below the first trained one once per text, without dropout, and read their output back in "
        "training and evaluation. It is stored next to the features. Faster, but changes training.",
        TRAINING,
    )
    frozen_cache_limit_mb: int = setting(
        20000,
        "Largest size of what --cache_frozen_layers stores for a run, in MB (millions of bytes). A run that needs more "
        "computes these layers in every step, with the same result.",
        None,
        NOT_NEGATIVE,
    )
    adapter_pack: Optional[str] = setting(
        None, "Trained task to load on --init_checkpoint: a pack, or the output folder of a run.", TRAINING, kind="path"
    )

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        tuning_modes.check_mode(self.tuning_mode, self.tune_top_layers)
        adapter_config.check_activation(self.adapter_activation)
        self.adapter  # noqa: B018  (the constructor checks the values)

    @property
    def adapter(self) -> Optional[AdapterConfig]:
        """The adapters of the model; None in every tuning mode except `adapter`."""
        if self.tuning_mode != "adapter":
            return None
        values = {field: getattr(self, name) for name, field in ADAPTER_SETTINGS.items()}
        return AdapterConfig(**dict(values, layers=parse_layers(self.adapter_layers)))

    def comparable_values(self, scopes: Sequence[str]) -> Dict[str, Any]:
        """As in the base class. Without adapters, their settings are None and settings of variants are the defaults."""
        values = super().comparable_values(scopes)
        for name in values.keys() & ADAPTER_SETTINGS.keys():
            field = ADAPTER_SETTINGS[name]
            value = getattr(self.adapter, field, adapter_config.VARIANT_DEFAULTS.get(field))
            values[name] = list(value) if isinstance(value, tuple) else value
        return values


def parse_layers(text: str) -> Optional[Tuple[int, ...]]:
    """Parse a list of layers: `all` (returns None), or comma-separated numbers and ranges, e.g. `0-2,5`."""
    if text.strip().lower() == "all":
        return None
    layers: List[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(first) <= int(last))):
            raise errors.UserError(f"--adapter_layers must be 'all', or e.g. 0-5 or 9,10,11; found '{text}'.")
        layers.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(layers)


@dataclasses.dataclass(frozen=True)
class DataSettings(FlagGroup):
    """The task and its features."""

    task_name: Optional[str] = setting(None, "Name of the task; case does not matter.", TRAINING)
    max_seq_length: int = setting(
        128, "Maximum tokens in a sequence, with special tokens; longer ones are cut.", TRAINING, SEQUENCE_LENGTH
    )
    pad_to_max_seq_length: bool = setting(
        False,
        "Pad every sequence to --max_seq_length and shuffle without regard to length, as the original does; slower. "
        "Otherwise sequences of similar length share a batch. Always true on a TPU.",
        TRAINING,
        legacy=True,
    )
    feature_cache_dir: Optional[str] = setting(
        None, "Folder for tokenized features, shared by runs. Default: 'features' next to the output folder or in it."
    )


@dataclasses.dataclass(frozen=True)
class TrainingSettings(FlagGroup):
    """Optimizer, batches, checkpoints and evaluation during training."""

    train_batch_size: int = setting(32, "Examples per training step.", TRAINING, POSITIVE)
    eval_batch_size: int = setting(8, "Examples per evaluation batch; scores do not depend on it.", None, POSITIVE)
    predict_batch_size: int = setting(8, "Examples per prediction batch; results do not depend on it.", None, POSITIVE)
    learning_rate: float = setting(
        5e-5, "Peak learning rate. Adapters need more than full fine-tuning: 3e-4 to 3e-3.", TRAINING, NOT_NEGATIVE
    )
    num_train_epochs: float = setting(3.0, "Passes over the training set.", TRAINING, NOT_NEGATIVE)
    warmup_proportion: float = setting(
        0.1, "Fraction of the steps in which the learning rate rises linearly from 0.", TRAINING, Limits(0, 1)
    )
    adam_bias_correction: bool = setting(
        False,
        "Correct the bias of Adam's moments in the first steps, as in the paper on Adam; BERT does not. Training on "
        "small data sets may fail less often.",
        TRAINING,
    )
    gradient_accumulation_steps: int = setting(
        1, "Parts of a training batch, computed one after another to save memory.", TRAINING, POSITIVE
    )
    gradient_checkpointing: bool = setting(
        False, "Save memory by recomputing activations in the backward pass: steps take about 1.5 times as long."
    )
    use_xla: Optional[bool] = setting(
        None,
        "Compile element-wise operations of training steps with XLA. Default: where faster, for large batches of one "
        "length. Changes dropout masks. No effect on a GPU or with TensorFlow 1.",
        TRAINING,
    )
    seed: Optional[int] = setting(
        None, "Random seed of a run. Default: drawn, logged and recorded.", TRAINING, Limits(0, 2**31 - 1)
    )
    eval_every_steps: Optional[int] = setting(
        None,
        "Steps between evaluations during training, with --do_train and --do_eval; 0 for none. Default: one epoch. The "
        "best weights are kept, evaluated and used for predictions.",
        TRAINING,
        NOT_NEGATIVE,
    )
    early_stopping_patience: Optional[int] = setting(
        None, "Stop after this many evaluations without a new best score. Default: never.", TRAINING, POSITIVE
    )
    save_checkpoints_steps: int = setting(1000, "Steps between checkpoints; the last five are kept.", None, POSITIVE)
    save_full_checkpoint: bool = setting(
        False, "Save all variables in each checkpoint, not only trained ones, for tools that expect it.", TRAINING
    )


@dataclasses.dataclass(frozen=True)
class RunSettings(DeviceSettings, TrainingSettings, DataSettings):
    """Settings of a run with any model."""

    output_dir: Optional[str] = setting(None, "Folder for checkpoints and results; created if it does not exist.")
    do_train: bool = setting(False, "Train the model.")
    do_eval: bool = setting(False, "Evaluate on the dev set.")
    do_predict: bool = setting(False, "Write predictions.")
    allow_untrained_head: bool = setting(
        False, "Evaluate or predict with a head that was never trained, for a comparison with random predictions."
    )

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        if not (self.do_train or self.do_eval or self.do_predict):
            raise errors.UserError("Nothing to do: set at least one of --do_train, --do_eval and --do_predict.")
        for name in ("early_stopping_patience", "eval_every_steps"):
            if getattr(self, name) and self.do_train and not self.evaluates_in_training:
                raise errors.UserError(
                    f"--{name} needs evaluations during training: add --do_eval=true, and leave out --eval_every_steps "
                    f"or set it above 0 (it is {self.eval_every_steps})."
                )
        if self.workers:
            cluster.check_batch_size(self.train_batch_size, self.gradient_accumulation_steps, self.workers)
        self._check_batches()

    def _check_batches(self) -> None:
        parts, size = self.gradient_accumulation_steps, self.train_batch_size
        if size % parts:
            raise errors.UserError(f"--gradient_accumulation_steps={parts} must divide --train_batch_size={size}.")
        if not self.use_tpu:
            return
        if parts > 1:
            raise errors.UserError(
                "--gradient_accumulation_steps cannot be combined with --use_tpu=true: TPU cores already split a batch."
            )
        for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
            size, cores = getattr(self, name), self.num_tpu_cores
            if size % cores:
                raise errors.UserError(f"--{name} must be a multiple of --num_tpu_cores={cores}, found {size}.")

    @property
    def feature_folders(self) -> Tuple[str, ...]:
        """Folders for features, in order of preference."""
        if self.feature_cache_dir:
            return (self.feature_cache_dir,)
        inside = os.path.join(self.output_dir or "", "features")
        above = os.path.dirname((self.output_dir or "").rstrip("/"))
        # A bucket has no parent folder.
        return (inside,) if above.endswith((":", ":/")) else (os.path.join(above, "features"), inside)

    @property
    def evaluates_in_training(self) -> bool:
        """Whether the dev set is evaluated during training."""
        return self.do_train and self.do_eval and self.eval_every_steps != 0

    @property
    def pads_all(self) -> bool:
        """Whether every batch is padded to `max_seq_length`."""
        return self.pad_to_max_seq_length or self.device.needs_static_shapes

    def comparable_values(self, scopes: Sequence[str]) -> Dict[str, Any]:
        """As in the base class. Padding counts as enabled if the device requires it."""
        values = super().comparable_values(scopes)
        if "pad_to_max_seq_length" in values:
            values["pad_to_max_seq_length"] = self.pads_all
        return values


@dataclasses.dataclass(frozen=True)
class Settings(RunSettings, AdapterSettings, BertSettings):
    """Settings shared by all entry points for BERT."""

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        if self.cache_frozen_layers:
            for name, why in (
                ("use_tpu", "a TPU cannot read the stored values"),
                ("save_full_checkpoint", "the network in memory lacks the layers that the checkpoint should contain"),
            ):
                if getattr(self, name):
                    raise errors.UserError(f"--cache_frozen_layers=true cannot be combined with --{name}=true: {why}.")
        if self.distribution_strategy and self.adapter and self.adapter.norm == "batch":
            raise errors.UserError(
                f"--adapter_norm=batch cannot be combined with --distribution_strategy={self.distribution_strategy}: "
                "its statistics are those of whole batches, and each worker has only its share."
            )
        if self.adapter_pack and not (self.init_checkpoint or self.bert_hub_module_handle):
            raise errors.UserError(
                f"--adapter_pack={self.adapter_pack} needs the BERT that it was trained on: add --bert_dir or "
                "--init_checkpoint."
            )
        for name in ("output_dir", "init_checkpoint"):
            path = getattr(self, name) or ""
            if re.search(r"[][*?]", path):
                raise errors.UserError(f"--{name}={path}: TensorFlow reads [ ] * ? as a pattern; use another folder.")

    def needed_paths(self) -> Dict[str, str]:
        """As in the base class."""
        needed = {"bert_config_file": "file", "vocab_file": "file", "spm_model_file": "file"}
        if not paths.is_folder(self.output_dir or ""):  # an existing run can be evaluated without them
            needed.update(init_checkpoint="checkpoint", adapter_pack="file or folder")
        return self.without_downloads(needed)
