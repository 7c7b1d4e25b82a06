"""Base folders: a pre-trained BERT with its vocabulary, in the layout of Google's downloads."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors
from adapter_bert.weights import checkpoints, fingerprints, packs
from adapter_bert.weights.exchange import huggingface


@dataclasses.dataclass(frozen=True)
class Base:
    """A folder with `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt` (or a SentencePiece model, `*.model`).

    Attributes:
      folder: where it lies.
      tokenizer_file: path of the vocabulary or the SentencePiece model.
    """

    folder: str
    tokenizer_file: str

    @classmethod
    def find(cls, folder: str) -> Base:
        """Looks for the three parts.

        Raises:
          errors.UserError: one is missing.
        """
        if not tf.gfile.IsDirectory(folder):
            raise errors.UserError(
                f"There is no folder {folder}; expected the folder of a BERT as Google's downloads have it."
            )
        names = sorted(tf.gfile.ListDirectory(folder))
        tokenizers = [name for name in names if name == huggingface.VOCAB_NAME or name.endswith(".model")]
        for wanted in (huggingface.CONFIG_NAME, huggingface.CHECKPOINT_NAME + ".index"):
            if wanted not in names or not tokenizers:
                raise errors.UserError(
                    f"{folder} is no base: expected {huggingface.CONFIG_NAME}, {huggingface.CHECKPOINT_NAME}.* and "
                    f"{huggingface.VOCAB_NAME}; found {huggingface.some(names)}. A Hugging Face folder is turned into "
                    "a base by scripts/convert_hf_checkpoint.py."
                )
        chosen = huggingface.VOCAB_NAME if huggingface.VOCAB_NAME in tokenizers else tokenizers[0]
        return cls(folder, os.path.join(folder, chosen))

    @property
    def config_file(self) -> str:
        """Path of the architecture."""
        return os.path.join(self.folder, huggingface.CONFIG_NAME)

    @property
    def checkpoint(self) -> str:
        """Prefix of the weights."""
        return os.path.join(self.folder, huggingface.CHECKPOINT_NAME)

    @property
    def uses_sentencepiece(self) -> bool:
        """Whether text is split by a SentencePiece model."""
        return os.path.basename(self.tokenizer_file) != huggingface.VOCAB_NAME

    def flags(self) -> Dict[str, str]:
        """The base as the flags of the entry points."""
        tokenizer = "spm_model_file" if self.uses_sentencepiece else "vocab_file"
        return {
            "bert_config_file": self.config_file,
            "init_checkpoint": self.checkpoint,
            tokenizer: self.tokenizer_file,
        }

    def config(self) -> modeling.BertConfig:
        """The architecture."""
        return modeling.BertConfig.from_json_file(self.config_file)

    def vocabulary(self, do_lower_case: bool = True) -> List[str]:
        """The pieces in the order of their ids."""
        files: Tuple[Any, ...] = (None, self.tokenizer_file) if self.uses_sentencepiece else (self.tokenizer_file, None)
        vocab = tokenization.create_tokenizer(*files, do_lower_case).vocab
        return sorted(vocab, key=vocab.__getitem__)

    def describe_tokenizer(self, do_lower_case: bool = True) -> Dict[str, Any]:
        """The base's tokenizer as packs have it."""
        kind = "sentencepiece" if self.uses_sentencepiece else "wordpiece"
        return packs.describe_tokenizer(kind, do_lower_case, self.vocabulary(do_lower_case))

    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of every variable of BERT itself."""
        return {row.google: row.shape for row in huggingface.tensor_table(self.config().to_dict())}

    def tensors(self) -> Dict[str, np.ndarray]:
        """All weights of BERT itself.

        Raises:
          errors.UserError: the checkpoint is damaged or does not fit the config.
        """
        return dict(self._each_tensor())

    def digests(self) -> Dict[str, str]:
        """Name -> hash of every variable of BERT itself: what packs are checked against."""
        return {name: fingerprints.of_tensor(tensor) for name, tensor in self._each_tensor()}

    def _each_tensor(self) -> Iterator[Tuple[str, np.ndarray]]:
        misfit = modeling.describe_mismatch(self.shapes(), checkpoints.read_shapes(self.checkpoint))
        if misfit:
            raise errors.UserError(f"The checkpoint {self.checkpoint} does not fit {self.config_file}: {misfit}")
        return checkpoints.each_tensor(self.checkpoint, list(self.shapes()))
