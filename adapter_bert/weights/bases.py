"""A base: a pre-trained BERT with its vocabulary."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

import modeling
import tokenization
from adapter_bert.common import errors
from adapter_bert.common.cached_property import cached_property
from adapter_bert.model import parameters
from adapter_bert.settings import base_files
from adapter_bert.settings.base_files import CHECKPOINT_NAME, CONFIG_NAME, VOCAB_NAME  # noqa: F401  (used with `Base`)
from adapter_bert.settings.groups import Settings
from adapter_bert.weights import checkpoints, fingerprints

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


def _repeated_tokens(vocab_file: str) -> Dict[str, List[int]]:
    """Return the tokens that a vocabulary contains more than once, with their line numbers from 1."""
    lines: Dict[str, List[int]] = {}
    for number, token in enumerate(tokenization.read_vocab_tokens(vocab_file), start=1):
        lines.setdefault(token, []).append(number)
    return {token: numbers for token, numbers in lines.items() if len(numbers) > 1}


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
        return cls(*base_files.find(folder))

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
    def _files(self) -> base_files.BaseFiles:
        return base_files.BaseFiles(self.config_file, self.checkpoint, self.vocab_file, self.spm_model_file)

    @property
    def tokenizer_file(self) -> str:
        """Path of the vocabulary or the SentencePiece model."""
        return self.vocab_file or self.spm_model_file or ""

    def flags(self) -> Dict[str, str]:
        """Return the flags that pass this base to an entry point."""
        return self._files.flags()

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
        if entries == expected:
            return
        found = f"The vocabulary {self.tokenizer_file} has {entries} entries"
        expects = f"{self.config_file} has vocab_size {expected}"
        repeated = _repeated_tokens(self.vocab_file) if self.vocab_file else {}
        if repeated:
            places = [f"{token!r} in lines {', '.join(map(str, lines))}" for token, lines in repeated.items()]
            raise errors.UserError(
                f"{found}, because some are repeated ({errors.first_names(places)}), but {expects}. Use the file that "
                "belongs to the checkpoint, or rename repeated entries to [unused…]."
            )
        raise errors.UserError(
            f"{found}, but {expects}: they belong to different models. (If the embedding table was padded on purpose, "
            "append lines [unused…] to the vocabulary.)"
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
