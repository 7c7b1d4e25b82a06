"""A base: a pre-trained BERT with its vocabulary, in a folder with the layout of Google's downloads."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Iterator, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors, text
from adapter_bert.model import parameters
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

Tokenizer = Union[tokenization.FullTokenizer, tokenization.SentencePieceTokenizer]


def bert_shapes(config: modeling.BertConfig) -> Dict[str, Tuple[int, ...]]:
    """Return name -> shape of every variable of BERT itself, in the order of the network."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: Dict[str, Tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (config.vocab_size, hidden),
        "bert/embeddings/position_embeddings": (config.max_position_embeddings, hidden),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
    }

    def add_layer_norm(scope: str) -> None:
        shapes[f"{scope}/LayerNorm/gamma"] = shapes[f"{scope}/LayerNorm/beta"] = (hidden,)

    def add_dense(scope: str, inputs: int = hidden, outputs: int = hidden) -> None:
        shapes[f"{scope}/kernel"], shapes[f"{scope}/bias"] = (inputs, outputs), (outputs,)

    add_layer_norm("bert/embeddings")
    for layer in (f"bert/encoder/layer_{number}" for number in range(config.num_hidden_layers)):
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            add_dense(f"{layer}/attention/{part}")
        add_layer_norm(f"{layer}/attention/output")
        add_dense(f"{layer}/intermediate/dense", hidden, inner)
        add_dense(f"{layer}/output/dense", inner, hidden)
        add_layer_norm(f"{layer}/output")
    add_dense("bert/pooler/dense")
    return shapes


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


@dataclasses.dataclass(frozen=True)
class Base:
    """A folder with `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt` (or a SentencePiece model, `*.model`).

    Attributes:
      folder: its path.
      tokenizer_file: path of the vocabulary or the SentencePiece model.
    """

    folder: str
    tokenizer_file: str

    @classmethod
    def find(cls, folder: str) -> Base:
        """Find the parts of a base in a folder.

        Raises:
          errors.UserError: a part is missing.
        """
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(f"There is no folder {folder}; expected a BERT in the layout of Google's downloads.")
        names = sorted(tf.gfile.ListDirectory(folder))
        tokenizers = [name for name in names if name == VOCAB_NAME or name.endswith(SENTENCEPIECE_ENDING)]
        if not tokenizers or not {CONFIG_NAME, CHECKPOINT_NAME + ".index"} <= set(names):
            raise errors.UserError(
                f"{folder} is not a base: expected {CONFIG_NAME}, {CHECKPOINT_NAME}.* and {VOCAB_NAME}; found "
                f"{text.first_names(names)}. Convert a Hugging Face folder with scripts/convert_hf_checkpoint.py."
            )
        chosen = VOCAB_NAME if VOCAB_NAME in tokenizers else tokenizers[0]
        return cls(folder, os.path.join(folder, chosen))

    @property
    def config_file(self) -> str:
        """Path of `bert_config.json`."""
        return os.path.join(self.folder, CONFIG_NAME)

    @property
    def checkpoint(self) -> str:
        """Prefix of the checkpoint."""
        return os.path.join(self.folder, CHECKPOINT_NAME)

    @property
    def uses_sentencepiece(self) -> bool:
        """Whether the tokenizer is a SentencePiece model."""
        return os.path.basename(self.tokenizer_file) != VOCAB_NAME

    def flags(self) -> Dict[str, str]:
        """Return the flags that pass this base to an entry point."""
        tokenizer = "spm_model_file" if self.uses_sentencepiece else "vocab_file"
        return {
            "bert_config_file": self.config_file,
            "init_checkpoint": self.checkpoint,
            tokenizer: self.tokenizer_file,
        }

    def config(self) -> modeling.BertConfig:
        """Read the architecture."""
        return modeling.BertConfig.from_json_file(self.config_file)

    def tokenizer(self, do_lower_case: bool = True) -> Tokenizer:
        """Load the tokenizer; the files of a base do not record whether it lower-cases."""
        if self.uses_sentencepiece:
            return tokenization.create_tokenizer(None, self.tokenizer_file, do_lower_case)
        return tokenization.create_tokenizer(self.tokenizer_file, None, do_lower_case)

    def describe_tokenizer(self, do_lower_case: bool = True) -> Dict[str, Any]:
        """Describe the tokenizer as packs record it."""
        return describe_tokenizer(self.tokenizer(do_lower_case))

    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Return name -> shape of every variable of BERT itself."""
        return bert_shapes(self.config())

    def tensors(self) -> Dict[str, np.ndarray]:
        """Read all weights of BERT itself.

        Raises:
          errors.UserError: the checkpoint is damaged or does not match the config.
        """
        return dict(self._each_tensor())

    def digests(self) -> Dict[str, str]:
        """Return name -> hash of every variable of BERT itself, with one variable in memory at a time."""
        return {name: fingerprints.of_tensor(tensor) for name, tensor in self._each_tensor()}

    def _each_tensor(self) -> Iterator[Tuple[str, np.ndarray]]:
        shapes = self.shapes()
        mismatch = parameters.describe_mismatch(shapes, checkpoints.read_shapes(self.checkpoint))
        if mismatch:
            raise errors.UserError(f"The checkpoint {self.checkpoint} does not match {self.config_file}: {mismatch}")
        return checkpoints.each_tensor(self.checkpoint, list(shapes))
