"""Convert Hugging Face BERT folders to Google's layout (`bert_config.json`, `vocab.txt`, `bert_model.ckpt`), and back.

Works without PyTorch. `tensor_names` pairs the names of tensors and activations, `tensor_files` reads and writes them.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors, files
from adapter_bert.common.text import first_names
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.bases import CHECKPOINT_NAME, CONFIG_NAME, SIZES, VOCAB_NAME
from adapter_bert.weights.exchange import tensor_files, tensor_names
from adapter_bert.weights.exchange.tensor_files import StoredTensor
from adapter_bert.weights.exchange.tensor_names import ACTIVATIONS, TensorRow

HF_CONFIG, HF_WEIGHTS, HF_TOKENIZER = "config.json", "model.safetensors", "tokenizer_config.json"
HF_FAST_TOKENIZER = "tokenizer.json"
GOOGLE_FILES = (CONFIG_NAME, VOCAB_NAME, f"{CHECKPOINT_NAME}*")
HF_FILES = (HF_CONFIG, HF_WEIGHTS, HF_TOKENIZER, VOCAB_NAME)

# Defaults of Hugging Face.
_RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
# (key, default of Hugging Face, the only supported value)
_FIXED = (
    ("model_type", None, "bert"),
    ("position_embedding_type", "absolute", "absolute"),
    ("layer_norm_eps", 1e-12, 1e-12),
    ("is_decoder", False, False),
)
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_POOLER_SEED = 20190613


class Conversion(NamedTuple):
    """Report of a conversion."""

    sources: List[str]
    output_dir: str
    config: modeling.BertConfig
    tensors: int
    parameters: int
    skipped: Sequence[str] = ()
    pooler_is_random: bool = False


# ------------------------------------------------------------------------------------------- configurations


def google_config(hf_config: Mapping[str, Any], source: str) -> modeling.BertConfig:
    """Translate the content of a `config.json`; `source` is its path, for messages.

    Raises:
      errors.UserError: the model is not a BERT, or one that this project's network does not support.
    """
    for key, default, supported in _FIXED:
        found = hf_config.get(key, default)
        if found != supported:
            raise errors.UserError(
                f"{source} has {key} = {json.dumps(found)}; only {json.dumps(supported)} is supported."
            )
    activation, known = hf_config.get("hidden_act", "gelu"), dict(ACTIVATIONS)
    if activation not in known:
        raise errors.unknown(f"hidden_act in {source}:", activation, known)
    values = {key: hf_config.get(key, _RATES.get(key)) for key in (*SIZES, *_RATES)}
    config = modeling.BertConfig(hidden_act=known[activation], **values)
    config.check(source)
    return config


def hf_config(config: modeling.BertConfig, source: str) -> Dict[str, Any]:
    """Return the content of a `config.json`; `source` is the path of the `bert_config.json`, for messages.

    Raises:
      errors.UserError: Hugging Face does not have the activation.
    """
    names = tensor_names.our_to_their_activations()
    activation = str(config.hidden_act).lower()
    if activation not in names:
        raise errors.unknown(f"hidden_act in {source}:", activation, names)
    values = {key: supported for key, _, supported in _FIXED}
    values.update((key, getattr(config, key)) for key in (*SIZES, *_RATES))
    return dict(values, hidden_act=names[activation], architectures=["BertModel"], torch_dtype="float32")


# ------------------------------------------------------------------------------------ Hugging Face -> Google


def convert(hf_dir: str, output_dir: str, overwrite: bool = False) -> Conversion:
    """Convert a folder. The files appear in `output_dir` once all are complete.

    Args:
      hf_dir: a local folder with `config.json`, safetensors weights and `vocab.txt` or `tokenizer.json`.
      output_dir: created if necessary.
      overwrite: replace the files of an earlier conversion.

    Raises:
      errors.UserError: the folder cannot be converted, or the result cannot be written.
    """
    if not os.path.isdir(hf_dir):
        raise errors.UserError(f"There is no folder {hf_dir}; expected a downloaded Hugging Face model.")
    tensor_files.check_output(output_dir, GOOGLE_FILES, overwrite)
    config_path = os.path.join(hf_dir, HF_CONFIG)
    config = google_config(files.read_json_object(config_path, "Download it again."), config_path)
    sources, vocabulary = weight_files(hf_dir), read_vocabulary(hf_dir)
    if len(vocabulary) != config.vocab_size:
        raise errors.UserError(
            f"The vocabulary in {hf_dir} has {len(vocabulary)} entries, but vocab_size in its {HF_CONFIG} is "
            f"{config.vocab_size}."
        )
    table, stored = tensor_names.bert_rows(config), tensor_files.list_tensors(sources)
    # Weights of masked language models have no pooler.
    has_pooler = any(tensor_names.canonical_name(tensor.name).startswith("pooler.") for tensor in stored)
    required = table if has_pooler else table[:-2]
    found, others = tensor_files.match_tensors(required, stored, hf_dir, HF_CONFIG)
    _check_unused(others, hf_dir)
    tensors = {row.google: row.to_google(tensor_files.load_tensor(found[row.hf])) for row in required}
    if not has_pooler:
        tensors.update(_draw_pooler(table[-2:], config.initializer_range))
    with tensor_files.replaced_files(output_dir, GOOGLE_FILES, f"{CHECKPOINT_NAME}.index") as staging:
        tensor_files.write_json(os.path.join(staging, CONFIG_NAME), config.to_dict())
        files.write_text(os.path.join(staging, VOCAB_NAME), "\n".join(vocabulary) + "\n")
        checkpoints.write(tensors, os.path.join(staging, CHECKPOINT_NAME))
    parameters = sum(value.size for value in tensors.values())
    skipped = [tensor.name for tensor in others]
    return Conversion(sources, os.path.realpath(output_dir), config, len(tensors), parameters, skipped, not has_pooler)


def weight_files(hf_dir: str) -> List[str]:
    """Return the safetensors files of a folder: a single one, or the shards in its index."""
    single = os.path.join(hf_dir, HF_WEIGHTS)
    index = f"{single}.index.json"
    names = sorted(os.listdir(hf_dir))
    if os.path.isfile(single):
        return [single]
    if os.path.isfile(index):
        shards = sorted(set(files.read_json_object(index, "Download it again.").get("weight_map", {}).values()))
        missing = [name for name in shards if name not in names]
        if missing or not shards:
            raise errors.UserError(
                f"{index} lists the files {first_names(shards)}; missing from its folder: {first_names(missing)}."
            )
        return [os.path.join(hf_dir, name) for name in shards]
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickles:
        raise errors.UserError(
            f"{hf_dir} contains its weights only as a pickle ({first_names(pickles)}). Pickles are not loaded because "
            "they can run code; save the model with safe_serialization=True first."
        )
    raise errors.UserError(
        f"There is no {HF_WEIGHTS} or {os.path.basename(index)} in {hf_dir}; found {first_names(names)}."
    )


def read_vocabulary(hf_dir: str) -> List[str]:
    """Read the WordPieces in the order of their ids, from `vocab.txt` or else from `tokenizer.json`."""
    path = os.path.join(hf_dir, VOCAB_NAME)
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                return [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise errors.UserError(f"{path} is not UTF-8 text: {error}.") from None
    path = os.path.join(hf_dir, HF_FAST_TOKENIZER)
    if not os.path.isfile(path):
        raise errors.UserError(f"There is no {VOCAB_NAME} or {HF_FAST_TOKENIZER} in {hf_dir}.")
    tokenizer = files.read_json_object(path, "Download it again.")
    try:
        model = tokenizer["model"]
        ids = {**model["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
        tokens = sorted(ids, key=ids.__getitem__)
        kind = (model["type"], model["continuing_subword_prefix"])
    except (KeyError, TypeError) as error:
        raise errors.UserError(f"{path} does not contain a WordPiece vocabulary: {error!r}.") from None
    if kind != ("WordPiece", "##"):
        raise errors.UserError(f"{path} contains {kind[0]} with '{kind[1]}'; expected WordPiece with '##'.")
    if [ids[token] for token in tokens] != list(range(len(tokens))) or "\n" in "".join(tokens):
        raise errors.UserError(
            f"The {len(tokens)} WordPieces in {path} cannot be written to a {VOCAB_NAME}: ids are missing or repeated, "
            "or a WordPiece contains a line break."
        )
    return tokens


def _check_unused(tensors: Sequence[StoredTensor], hf_dir: str) -> None:
    """Accept heads and buffers; reject other tensors of the body, e.g. of further layers."""
    body = ("bert.", "embeddings.", "encoder.", "pooler.")
    names = [tensor.name for tensor in tensors if tensor_names.canonical_name(tensor.name) not in _BUFFERS]
    unknown = [name for name in names if name.startswith(body)]
    if unknown:
        raise errors.UserError(
            f"The weights in {hf_dir} contain tensors that a BERT with its {HF_CONFIG} does not have: "
            f"{first_names(unknown)}."
        )


def _draw_pooler(rows: Sequence[TensorRow], stddev: float) -> Dict[str, np.ndarray]:
    """Draw the kernel from a normal truncated at two standard deviations, with a fixed seed; the bias is 0."""
    random, (kernel, bias) = np.random.RandomState(_POOLER_SEED), rows
    value = random.standard_normal(kernel.shape)
    while np.any(np.abs(value) > 2):
        value = np.where(np.abs(value) > 2, random.standard_normal(kernel.shape), value)
    return {kernel.google: (stddev * value).astype(np.float32), bias.google: np.zeros(bias.shape, np.float32)}


# ------------------------------------------------------------------------------------ Google -> Hugging Face


def export_base(base: bases.Base, hf_dir: str, do_lower_case: bool, overwrite: bool = False) -> Conversion:
    """Write a base as a Hugging Face folder: the inverse of `convert`.

    Args:
      base: the base in Google's layout.
      hf_dir: receives `config.json`, `model.safetensors` (names of `BertModel`), `vocab.txt`, `tokenizer_config.json`.
      do_lower_case: whether the tokenizer lower-cases, which Google's layout does not record.
      overwrite: replace an earlier export.

    Raises:
      errors.UserError: Hugging Face's BERT does not support the base, or the folder cannot be written.
    """
    if base.spm_model_file:
        raise errors.UserError(
            f"{base.folder} uses SentencePiece ({os.path.basename(base.tokenizer_file)}); expected a {VOCAB_NAME}: "
            "Hugging Face's BERT supports only WordPiece."
        )
    tensor_files.check_export(hf_dir, HF_FILES, overwrite)
    config = base.config
    described = hf_config(config, base.config_file)
    vocabulary = _read_google_vocabulary(base.tokenizer_file, config.vocab_size)
    values, tensors = base.tensors(), {}
    for row in tensor_names.bert_rows(config):
        value = values.pop(row.google).astype(np.float32, copy=False)
        tensor_files.check_finite(row.google, value, base.checkpoint)
        tensors[row.hf] = row.to_hf(value)
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "model_max_length": config.max_position_embeddings,
    }
    with tensor_files.replaced_folder(hf_dir) as staging:
        tensor_files.write_json(os.path.join(staging, HF_CONFIG), described)
        tensor_files.write_json(os.path.join(staging, HF_TOKENIZER), tokenizer)
        files.write_text(os.path.join(staging, VOCAB_NAME), "\n".join(vocabulary) + "\n")
        tensor_files.write_tensors(os.path.join(staging, HF_WEIGHTS), tensors)
    parameters = sum(value.size for value in tensors.values())
    return Conversion([base.checkpoint], os.path.realpath(hf_dir), config, len(tensors), parameters)


def _read_google_vocabulary(path: str, vocab_size: int) -> List[str]:
    """Read a `vocab.txt` as our tokenizer does, if Hugging Face's reads it in the same way."""
    with tf.gfile.GFile(path, "rb") as reader:
        lines = reader.read().decode("utf-8-sig").split("\n")
    pieces = [line.strip() or line for line in (lines if lines[-1] else lines[:-1])]
    broken = [number for number, piece in enumerate(pieces, 1) if "\r" in piece]
    if broken:
        # Hugging Face's tokenizer also splits lines at a carriage return.
        raise errors.UserError(f"{path}, line {broken[0]}: the WordPiece contains a line break.")
    if len(pieces) > vocab_size:
        raise errors.UserError(
            f"{path} has {len(pieces)} entries, but vocab_size in its {CONFIG_NAME} is {vocab_size}."
        )
    return pieces
