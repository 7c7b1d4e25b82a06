"""A base: a pre-trained BERT with its vocabulary."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors
from adapter_bert.common.cached_property import cached_property
from adapter_bert.model import parameters
from adapter_bert.settings.groups import Settings
from adapter_bert.weights import checkpoints, fingerprints

CONFIG_NAME, VOCAB_NAME, CHECKPOINT_NAME = "bert_config.json", "vocab.txt", "bert_model.ckpt"
SENTENCEPIECE_ENDING = ".model"
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
# Networks that agree in these keys compute the same outputs from the same weights. Dropout affects only training.
ARCHITECTURE = (*SIZES, "hidden_act")
# The description of a tokenizer without its case, which the files of a base do not record.
VOCABULARY = ("type", "entries", "vocabulary")
# Types of the values in the description of a tokenizer.
TOKENIZER = {"type": str, "do_lower_case": bool, "entries": int, "vocabulary": str}

Tokenizer = Union[tokenization.FullTokenizer, tokenization.SentencePieceTokenizer]


def describe_tokenizer(tokenizer: Tokenizer) -> Dict[str, Any]:
    """Describe a tokenizer as packs record it: type, case, size and hash of the vocabulary."""
    if isinstance(tokenizer, tokenization.FullTokenizer):
        kind, do_lower_case = "wordpiece", tokenizer.basic_tokenizer.do_lower_case
    else:
        kind, do_lower_case = "sentencepiece", tokenizer.do_lower_case
    pieces = sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)
    return {
        "type": kind,
        "do_lower_case": do_lower_case,
        "entries": len(pieces),
        "vocabulary": fingerprints.of_text("\n".join(pieces)),
    }


def describe_difference(keys: Sequence[str], found: Mapping[str, Any], expected: Mapping[str, Any]) -> Optional[str]:
    """Describe the first of these keys whose values differ, ignoring case; return None if they agree."""
    for key in keys:
        values = [str(part.get(key)).lower() for part in (found, expected)]
        if values[0] != values[1]:
            return f"{key} is {values[0]}, not {values[1]}"
    return None


@dataclasses.dataclass(frozen=True)
class Base:
    """A pre-trained BERT: config, tokenizer and checkpoint, each read and hashed at most once."""

    config_file: str  # path of `bert_config.json`
    checkpoint: str  # its prefix. In a run it is `--init_checkpoint`, which `weights.loading` resolves
    vocab_file: Optional[str] = None  # path of the WordPiece vocabulary
    spm_model_file: Optional[str] = None  # path of the SentencePiece model, if there is no vocabulary
    do_lower_case: bool = True  # the files of a base do not record it

    @classmethod
    def find(cls, folder: str) -> Base:
        """Find a base in a folder: `bert_config.json`, `bert_model.ckpt.*`, and `vocab.txt` or `*.model`."""
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(f"There is no folder {folder}; expected a BERT in the layout of Google's downloads.")
        names = sorted(tf.gfile.ListDirectory(folder))
        models = [os.path.join(folder, name) for name in names if name.endswith(SENTENCEPIECE_ENDING)]
        parts = {CONFIG_NAME, CHECKPOINT_NAME + ".index"}
        if not parts <= set(names) or not (VOCAB_NAME in names or models):
            raise errors.UserError(
                f"{folder} is not a base: expected {CONFIG_NAME}, {CHECKPOINT_NAME}.* and {VOCAB_NAME}; found "
                f"{errors.first_names(names)}. Convert a Hugging Face folder with scripts/convert_hf_checkpoint.py."
            )
        config_file, checkpoint = os.path.join(folder, CONFIG_NAME), os.path.join(folder, CHECKPOINT_NAME)
        if VOCAB_NAME in names:
            return cls(config_file, checkpoint, vocab_file=os.path.join(folder, VOCAB_NAME))
        return cls(config_file, checkpoint, spm_model_file=models[0])

    @classmethod
    def load(cls, settings: Settings) -> Base:
        """Read the config and the tokenizer of a run, and check that they match each other and the settings."""
        base = cls(
            settings.bert_config_file or "",
            settings.init_checkpoint or "",
            settings.vocab_file,
            settings.spm_model_file,
            settings.do_lower_case,
        )
        base.check_vocabulary()
        if settings.vocab_file:
            tokenization.check_case_matches_vocabulary(settings.do_lower_case, base.tokenizer.vocab)
        modeling.check_sequence_length(settings.max_seq_length, base.config.max_position_embeddings)
        return base

    @property
    def folder(self) -> str:
        """The folder of the config."""
        return os.path.dirname(self.config_file)

    @property
    def tokenizer_file(self) -> str:
        """Path of the vocabulary or the SentencePiece model."""
        return self.vocab_file or self.spm_model_file or ""

    def flags(self) -> Dict[str, str]:
        """Return the flags that pass this base to an entry point."""
        tokenizer = "vocab_file" if self.vocab_file else "spm_model_file"
        return {
            "bert_config_file": self.config_file,
            "init_checkpoint": self.checkpoint,
            tokenizer: self.tokenizer_file,
        }

    @cached_property
    def config(self) -> modeling.BertConfig:
        """The architecture."""
        return modeling.BertConfig.from_json_file(self.config_file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return tokenization.create_tokenizer(self.vocab_file, self.spm_model_file, self.do_lower_case)

    @cached_property
    def tokenizer_description(self) -> Dict[str, Any]:
        """The tokenizer as packs record it, see `describe_tokenizer`."""
        return describe_tokenizer(self.tokenizer)

    def check_vocabulary(self) -> None:
        """Raise a `UserError` if config and tokenizer belong to different models."""
        entries, expected = len(self.tokenizer.vocab), self.config.vocab_size
        if entries != expected:
            raise errors.UserError(
                f"The vocabulary {self.tokenizer_file} has {entries} entries, but {self.config_file} has vocab_size "
                f"{expected}: they belong to different models. (If the embedding table was padded on purpose, append "
                "lines [unused…] to the vocabulary.)"
            )

    @cached_property
    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of every variable of BERT itself."""
        return dict(parameters.bert_shapes(self.config))

    def tensors(self) -> Dict[str, np.ndarray]:
        """Read all weights of BERT itself; raise a `UserError` if the checkpoint does not match the config."""
        return dict(self._each_tensor())

    @cached_property
    def digests(self) -> Dict[str, str]:
        """Name -> hash of every variable of BERT itself, computed with one variable in memory at a time."""
        return {name: fingerprints.of_tensor(tensor) for name, tensor in self._each_tensor()}

    def _each_tensor(self) -> Iterator[Tuple[str, np.ndarray]]:
        mismatch = parameters.describe_mismatch(self.shapes, checkpoints.read_shapes(self.checkpoint))
        if mismatch:
            raise errors.UserError(f"The checkpoint {self.checkpoint} does not match {self.config_file}: {mismatch}")
        return checkpoints.each_tensor(self.checkpoint, list(self.shapes))
