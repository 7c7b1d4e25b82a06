"""Convert Hugging Face BERT folders to Google's layout (`bert_config.json`, `vocab.txt`, `bert_model.ckpt`), and back.

Works without PyTorch; `tensors` pairs the names of tensors and reads their files.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

import modeling
from adapter_bert.common import errors, files, json_files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.bases import CHECKPOINT_NAME, CONFIG_NAME, SIZES, VOCAB_NAME
from adapter_bert.weights.exchange import outputs, tensors

HF_CONFIG, HF_WEIGHTS, HF_TOKENIZER = "config.json", "model.safetensors", "tokenizer_config.json"
HF_FAST_TOKENIZER = "tokenizer.json"
GOOGLE_FILES = (CONFIG_NAME, VOCAB_NAME, f"{CHECKPOINT_NAME}.index", f"{CHECKPOINT_NAME}.data-00000-of-00001")
HF_FILES = (HF_CONFIG, HF_WEIGHTS, HF_TOKENIZER, VOCAB_NAME)

# Theirs -> ours. Hugging Face's "gelu" is the exact one, Google's "gelu" the tanh approximation. If two of their names
# correspond to one of ours, exports use the first.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
}
# Defaults of Hugging Face.
_RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
# The only supported values. All but the first are also Hugging Face's defaults.
_FIXED = {"model_type": "bert", "position_embedding_type": "absolute", "layer_norm_eps": 1e-12, "is_decoder": False}
_BODY = ("bert.", "embeddings.", "encoder.", "pooler.")
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_POOLER_SEED = 20190613
_ADVICE = "Download it again."


class Conversion(NamedTuple):
    """Report of a conversion to Google's layout."""

    sources: List[str]  # the files with weights
    skipped: List[str]  # names of tensors that do not belong to BERT
    pooler_is_random: bool


def unsupported(path: str, key: str, found: Any, expected: str) -> errors.UserError:
    """Return an error about a value in a JSON file."""
    return errors.UserError(f"{path} has {key} = {json_files.describe(found)}; expected {expected}.")


def check_values(path: str, values: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]], reason: str = "") -> None:
    """Raise a `UserError` for the first value in the file `path` that is not allowed."""
    for key, options in allowed.items():
        if values.get(key) not in options:
            raise unsupported(path, key, values.get(key), " or ".join(map(json.dumps, options)) + reason)


def translate_activation(path: str, key: str, name: object, names: Mapping[str, str]) -> str:
    """Return the other name of the activation in the file `path`; raise a `UserError` if `names` lacks it."""
    if str(name).lower() not in names:
        raise errors.unknown(f"{key} in {path}:", name, names)
    return names[str(name).lower()]


def our_to_their(activations: Mapping[str, str]) -> Dict[str, str]:
    """Return the name that exports use for each of our activations."""
    return {ours: theirs for theirs, ours in reversed(list(activations.items()))}


def google_config(hf_config: Mapping[str, Any], path: str) -> modeling.BertConfig:
    """Translate the `config.json` at `path`; raise a `UserError` if it is not a BERT that this project supports."""
    values = {**_FIXED, "model_type": None, "hidden_act": "gelu", **dict.fromkeys(SIZES), **_RATES, **hf_config}
    check_values(path, values, {key: [value] for key, value in _FIXED.items()})
    activation = translate_activation(path, "hidden_act", values["hidden_act"], ACTIVATIONS)
    config = modeling.BertConfig(hidden_act=activation, **{key: values[key] for key in (*SIZES, *_RATES)})
    config.check(path)
    return config


def hf_config(config: modeling.BertConfig, path: str) -> Dict[str, Any]:
    """Translate the `bert_config.json` at `path`; raise a `UserError` if Hugging Face lacks its activation."""
    activation = translate_activation(path, "hidden_act", config.hidden_act, our_to_their(ACTIVATIONS))
    values = {key: getattr(config, key) for key in (*SIZES, *_RATES)}
    return {**_FIXED, **values, "hidden_act": activation, "architectures": ["BertModel"], "torch_dtype": "float32"}


def convert(hf_dir: str, output_dir: str, overwrite: bool = False) -> Conversion:
    """Convert a local folder with `config.json`, safetensors weights and `vocab.txt` or `tokenizer.json`.

    The folder `output_dir` appears, or replaces an earlier conversion, once it is complete.
    """
    if not os.path.isdir(hf_dir):
        raise errors.UserError(f"There is no local folder {hf_dir}; expected a downloaded Hugging Face model.")
    output = outputs.OutputFolder(output_dir, GOOGLE_FILES, overwrite, hf_dir)
    config_path = os.path.join(hf_dir, HF_CONFIG)
    config = google_config(json_files.read_object(config_path, _ADVICE), config_path)
    sources, vocabulary = _weight_files(hf_dir), _read_vocabulary(hf_dir)
    if len(vocabulary) != config.vocab_size:
        raise errors.UserError(
            f"The vocabulary in {hf_dir} has {len(vocabulary)} entries, but vocab_size in its {HF_CONFIG} is "
            f"{config.vocab_size}."
        )
    rows, stored = tensors.make_rows(parameters.bert_shapes(config)), tensors.list_stored(sources)
    # Weights of masked language models have no pooler, whose two tensors are the last rows.
    has_pooler = any(name.startswith("pooler.") for name in stored)
    values, skipped = tensors.load(rows if has_pooler else rows[:-2], stored, hf_dir, HF_CONFIG, _may_skip)
    if not has_pooler:
        values.update(_draw_pooler(rows[-2:], config.initializer_range))
    with output.replaced() as staging:
        files.write_json(os.path.join(staging, CONFIG_NAME), config.to_dict())
        files.write_text(os.path.join(staging, VOCAB_NAME), "\n".join(vocabulary) + "\n")
        checkpoints.write(values, os.path.join(staging, CHECKPOINT_NAME))
    return Conversion(sources, skipped, not has_pooler)


def _weight_files(hf_dir: str) -> List[str]:
    """Return the safetensors files of a folder: a single one, or the shards in its index."""
    single = os.path.join(hf_dir, HF_WEIGHTS)
    index = f"{single}.index.json"
    if os.path.isfile(single):
        return [single]
    if not os.path.isfile(index):
        expected, pickles = f"{HF_WEIGHTS} or {os.path.basename(index)}", ("*.bin", "*.pt", "*.pth")
        raise tensors.missing_weights(hf_dir, expected, pickles, "save the model with safe_serialization=True first")
    content = json_files.read_object(index, _ADVICE)
    json_files.check_types(content, {"weight_map": Mapping[str, str]}, index)
    shards = sorted(set(content["weight_map"].values()))
    missing = sorted(set(shards) - set(os.listdir(hf_dir)))
    if missing or not shards:
        raise errors.UserError(
            f"{index} lists the files {errors.first_names(shards)}; missing from its folder: "
            f"{errors.first_names(missing)}."
        )
    return [os.path.join(hf_dir, name) for name in shards]


def _read_vocabulary(hf_dir: str) -> List[str]:
    """Read the WordPieces in the order of their ids, from `vocab.txt` or else from `tokenizer.json`."""
    path = os.path.join(hf_dir, VOCAB_NAME)
    if os.path.isfile(path):
        return _read_lines(path)
    path = os.path.join(hf_dir, HF_FAST_TOKENIZER)
    if not os.path.isfile(path):
        raise errors.UserError(f"There is no {VOCAB_NAME} or {HF_FAST_TOKENIZER} in {hf_dir}.")
    tokenizer = json_files.read_object(path, _ADVICE)
    json_files.check_types(tokenizer, {"model": Mapping[str, Any], "added_tokens": Sequence[Mapping[str, Any]]}, path)
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    json_files.check_types(model, {"vocab": Mapping[str, int]}, f"{path}: model")
    for token in added:
        json_files.check_types(token, {"content": str, "id": int}, f"{path}: added_tokens")
    check_values(path, model, {"type": ["WordPiece"], "continuing_subword_prefix": ["##"]})
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))) or "\n" in "".join(tokens):
        raise errors.UserError(
            f"The {len(tokens)} WordPieces in {path} cannot be written to a {VOCAB_NAME}: ids are missing or repeated, "
            "or a WordPiece contains a line break."
        )
    return tokens


def _read_lines(path: str) -> List[str]:
    r"""Read a `vocab.txt` as our tokenizer does: only `\n` ends a line."""
    content = files.read_bytes(path, f"Cannot read {path}")
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise errors.UserError(f"{path} is not UTF-8 text: {error}.") from None
    return [line.strip() or line for line in (lines if lines[-1] else lines[:-1])]


def _may_skip(name: str) -> bool:
    """Return whether a tensor belongs to a head or is a buffer, and not, for example, part of an additional layer."""
    return not name.startswith(_BODY) or tensors.canonical_name(name) in _BUFFERS


def _draw_pooler(rows: Sequence[tensors.TensorRow], stddev: float) -> Dict[str, np.ndarray]:
    """Draw the kernel from a normal truncated at two standard deviations, with a fixed seed; the bias is 0."""
    random, (kernel, bias) = np.random.RandomState(_POOLER_SEED), rows
    value = random.standard_normal(kernel.shape)
    while np.any(np.abs(value) > 2):
        value = np.where(np.abs(value) > 2, random.standard_normal(kernel.shape), value)
    return {kernel.google: (stddev * value).astype(np.float32), bias.google: np.zeros(bias.shape, np.float32)}


def export_base(base: bases.Base, hf_dir: str, do_lower_case: bool, overwrite: bool = False) -> None:
    """Write a base as a folder of `HF_FILES` for Hugging Face's `BertModel`: the inverse of `convert`.

    `do_lower_case` says whether the tokenizer lower-cases, which Google's layout does not record.
    """
    if base.spm_model_file:
        raise errors.UserError(
            f"{base.folder} uses SentencePiece ({os.path.basename(base.tokenizer_file)}); expected a {VOCAB_NAME}: "
            "Hugging Face's BERT supports only WordPiece."
        )
    output = outputs.OutputFolder(hf_dir, HF_FILES, overwrite, base.folder)
    config = base.config
    described = hf_config(config, base.config_file)
    vocabulary = _read_lines(base.tokenizer_file)
    # Hugging Face's tokenizer also splits lines at a carriage return.
    broken = [number for number, piece in enumerate(vocabulary, 1) if "\r" in piece]
    if broken:
        raise errors.UserError(f"{base.tokenizer_file}, line {broken[0]}: the WordPiece contains a line break.")
    if len(vocabulary) > config.vocab_size:
        raise errors.UserError(
            f"{base.tokenizer_file} has {len(vocabulary)} entries, but vocab_size in its {CONFIG_NAME} is "
            f"{config.vocab_size}."
        )
    values, converted = base.tensors(), {}
    for row in tensors.make_rows(base.shapes):
        value = values.pop(row.google).astype(np.float32, copy=False)
        tensors.check_finite(row.google, value, base.checkpoint)
        converted[row.hf] = row.to_hf(value)
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "model_max_length": config.max_position_embeddings,
    }
    with output.replaced() as staging:
        files.write_json(os.path.join(staging, HF_CONFIG), described)
        files.write_json(os.path.join(staging, HF_TOKENIZER), tokenizer)
        files.write_text(os.path.join(staging, VOCAB_NAME), "\n".join(vocabulary) + "\n")
        tensors.write(os.path.join(staging, HF_WEIGHTS), converted)
