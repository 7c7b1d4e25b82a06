"""Hugging Face BERT folders <-> `bert_config.json`, `vocab.txt` and `bert_model.ckpt` in Google's layout.

The correspondence of the two worlds is data: `tensor_table` pairs the two names of each tensor, `ACTIVATIONS`
those of the activations, so both can be read in either direction. Weights come from safetensors files only:
a pickle can run code, and PyTorch is not needed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.common.text import first_names
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.bases import CHECKPOINT_NAME, CONFIG_NAME, SIZES, VOCAB_NAME

HF_CONFIG, HF_WEIGHTS, HF_TOKENIZER = "config.json", "model.safetensors", "tokenizer_config.json"

# Hugging Face's "gelu" is the exact one; Google's "gelu" is the tanh approximation. Where two of their names
# mean one of ours, the first is the one to use backwards.
ACTIVATIONS = (
    ("gelu", "gelu_erf"),
    ("gelu_new", "gelu"),
    ("gelu_pytorch_tanh", "gelu"),
    ("relu", "relu"),
    ("swish", "swish"),
    ("silu", "swish"),
    ("tanh", "tanh"),
)
# With what Hugging Face assumes where config.json is silent.
_RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
# (key, what Hugging Face assumes where config.json is silent, the one value that the network here has)
_FIXED = (
    ("model_type", None, "bert"),
    ("position_embedding_type", "absolute", "absolute"),
    ("layer_norm_eps", 1e-12, 1e-12),
    ("is_decoder", False, False),
)
_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
FLOAT_TYPES = ("F32", "F16", "BF16")
_POOLER_SEED = 20190613


class TensorRow(NamedTuple):
    """One tensor of BERT in both worlds."""

    hf: str  # without the prefix `bert.`
    google: str
    shape: Tuple[int, ...]  # as Google stores it
    transposed: bool = False  # whether Hugging Face stores it the other way round


class StoredTensor(NamedTuple):
    """Where a tensor lies on disk and what its file's header says of it."""

    path: str
    name: str
    dtype: str
    shape: Tuple[int, ...]


class Conversion(NamedTuple):
    """What a conversion did."""

    sources: List[str]
    output_dir: str
    config: Dict[str, Any]
    tensors: int
    parameters: int
    skipped: List[str]
    pooler_is_random: bool


def tensor_table(config: Mapping[str, Any]) -> List[TensorRow]:
    """Return every tensor of a BERT of this configuration, in the order of the network; the pooler's two come last.

    Args:
      config: the content of a `bert_config.json`.
    """
    rows = []
    for google, shape in bases.bert_shapes(modeling.BertConfig.from_dict(config)).items():
        name = google[len("bert/") :].replace("/layer_", "/layer/").replace("/", ".")
        scope, _, kind = name.rpartition(".")
        if scope == "embeddings":
            hf = f"{name}.weight"
        else:
            hf = f"{scope}.{'weight' if kind in ('kernel', 'gamma') else 'bias'}"
        rows.append(TensorRow(hf, google, shape, transposed=kind == "kernel"))
    return rows


def canonical_name(name: str) -> str:
    """A stored name as `tensor_table` spells it: without `bert.`, LayerNorms with `weight` and `bias`."""
    name = name[len("bert.") :] if name.startswith("bert.") else name
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            return name[: -len(old)] + new
    return name


def google_config(hf_config: Mapping[str, Any], source: str) -> Dict[str, Any]:
    """The `bert_config.json`, with exactly Google's keys, that says the same as a Hugging Face `config.json`.

    Args:
      hf_config: the content of `config.json`.
      source: its path, for messages.

    Raises:
      UserError: the model is no BERT, or one that this project's network cannot express.
    """

    def refuse_unless(right: bool, key: str, found: object, expected: str) -> None:
        if not right:
            raise errors.UserError(f"{source} has {key} = {json.dumps(found)}; expected {expected}.")

    for key, default, ours in _FIXED:
        found = hf_config.get(key, default)
        refuse_unless(found == ours, key, found, f"{json.dumps(ours)}: the network here has no other")
    activation = hf_config.get("hidden_act", "gelu")
    if activation not in [theirs for theirs, _ in ACTIVATIONS]:
        raise errors.unknown(f"hidden_act in {source}:", activation, dict(ACTIVATIONS))
    config = {"hidden_act": dict(ACTIVATIONS)[activation]}
    for key in SIZES:
        found = config[key] = hf_config.get(key)
        refuse_unless(type(found) is int and found > 0, key, found, "a whole number above 0")
    for key, default in _RATES.items():
        found = config[key] = hf_config.get(key, default)
        refuse_unless(type(found) in (int, float) and 0 <= found < 1, key, found, "a number in [0, 1)")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    refuse_unless(hidden % heads == 0, "hidden_size", hidden, f"a multiple of num_attention_heads, {heads}")
    return config


def hf_config(config: Mapping[str, Any], source: str) -> Dict[str, Any]:
    """The `config.json` that says the same as a `bert_config.json`: the inverse of `google_config`.

    Args:
      config: the content of `bert_config.json`; keys that other tools added are left out.
      source: its path, for messages.

    Raises:
      UserError: the activation has no name at Hugging Face.
    """
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS)}
    activation = str(config["hidden_act"]).lower()
    if activation not in names:
        raise errors.unknown(f"hidden_act in {source}:", activation, names)
    values = {key: ours for key, _, ours in _FIXED}
    values.update((key, config[key]) for key in (*SIZES, *_RATES))
    return dict(values, hidden_act=names[activation], architectures=["BertModel"], torch_dtype="float32")


def weight_files(hf_dir: str) -> List[str]:
    """The safetensors files of a folder: the single one, or the shards that its index names."""
    single = os.path.join(hf_dir, HF_WEIGHTS)
    index = f"{single}.index.json"
    names = sorted(os.listdir(hf_dir))
    if os.path.isfile(single):
        return [single]
    if os.path.isfile(index):
        files = read_json(index).get("weight_map")
        if not files or not isinstance(files, dict):
            raise errors.UserError(f"{index} has no weight_map from tensor names to file names.")
        shards = sorted({str(name) for name in files.values()})
        missing = [name for name in shards if name not in names]
        if missing:
            raise errors.UserError(f"{index} names files that are not in its folder: {first_names(missing)}.")
        return [os.path.join(hf_dir, name) for name in shards]
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickles:
        raise errors.UserError(
            f"{hf_dir} holds its weights only as a pickle ({first_names(pickles)}): pickles from outside are not "
            "loaded, because they can run code; save the model with safe_serialization=True first."
        )
    raise errors.UserError(
        f"There is no model.safetensors or {os.path.basename(index)} in {hf_dir}; it holds {first_names(names)}."
    )


def stored_tensors(paths: Sequence[str]) -> List[StoredTensor]:
    """What the headers of safetensors files list; no weights are read."""
    stored = []
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="np") as reader:
                for name in sorted(reader.keys()):
                    header = reader.get_slice(name)
                    stored.append(StoredTensor(path, name, header.get_dtype(), tuple(header.get_shape())))
        except (safetensors.SafetensorError, OSError) as error:
            raise errors.UserError(
                f"{path} ({os.path.getsize(path)} bytes) is damaged or incomplete ({error}); fetch it again "
                "(a git clone without git-lfs leaves only a pointer of some 130 bytes)."
            ) from error
    return stored


def match_tensors(
    table: Sequence[TensorRow], stored: Sequence[StoredTensor]
) -> Tuple[Dict[str, StoredTensor], List[str]]:
    """Finds each row of the table among the stored tensors and checks its shape and type.

    Args:
      table: what the configuration asks for; its pooler alone may be missing.
      stored: what the files hold.

    Returns:
      The stored tensors by `TensorRow.hf`, and the stored names that are not used.

    Raises:
      UserError: a tensor is missing, there twice, of another shape or type, or part of another network.
    """
    shapes = {row.hf: row.shape[::-1] if row.transposed else row.shape for row in table}
    found: Dict[str, StoredTensor] = {}
    skipped, foreign, wrong = [], [], []
    for tensor in stored:
        name = canonical_name(tensor.name)
        if name in found:
            raise errors.UserError(f"The weights hold one tensor twice: {found[name].name}, {tensor.name}.")
        if name in shapes:
            found[name] = tensor
            if tensor.shape != shapes[name] or tensor.dtype not in FLOAT_TYPES:
                wrong.append(
                    f"{tensor.name} (found {tensor.dtype} {list(tensor.shape)}, expected "
                    f"{'/'.join(FLOAT_TYPES)} {list(shapes[name])})"
                )
        elif name in _BUFFERS or not tensor.name.startswith(("bert.", "embeddings.", "encoder.", "pooler.")):
            skipped.append(tensor.name)
        else:
            foreign.append(tensor.name)
    missing = [name for name in shapes if name not in found]
    if missing == [row.hf for row in table[-2:]]:
        missing = []  # the whole pooler, as in masked-LM exports
    for names, problem in ((missing, "are missing from the weights"), (wrong, "have another shape or type")):
        if names:
            raise errors.UserError(
                f"{len(names)} of the {len(table)} tensors that config.json asks for {problem}: {first_names(names)}."
            )
    if foreign:
        raise errors.UserError(
            f"The weights hold tensors that a BERT of this config.json does not have: {first_names(foreign)}."
        )
    return found, skipped


def load_tensor(stored: StoredTensor) -> np.ndarray:
    """Reads one tensor as float32 and refuses NaN and infinity."""
    if stored.dtype == "BF16":
        # NumPy has no such type, so safetensors cannot hand it out. It is the upper half of a float32.
        with open(stored.path, "rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(header_size).decode("utf-8"))[stored.name]["data_offsets"]
            file.seek(8 + header_size + begin)
            halves = np.frombuffer(file.read(end - begin), "<u2")
        value = (halves.astype("<u4") << 16).view("<f4").reshape(stored.shape)
    else:
        with safetensors.safe_open(stored.path, framework="np") as reader:
            value = reader.get_tensor(stored.name).astype(np.float32, copy=False)
    bad = value.size - np.count_nonzero(np.isfinite(value))
    if bad:
        raise errors.UserError(f"{stored.path}: {bad} of {value.size} values in {stored.name} are NaN, Inf.")
    return value


def load_tensors(table: Sequence[TensorRow], found: Mapping[str, StoredTensor], stddev: float) -> Dict[str, np.ndarray]:
    """Loads the weights by Google's names. What is not in `found` is drawn at random, always the same.

    Args:
      table: the tensors to load.
      found: where they are, as `match_tensors` says.
      stddev: of the normal, truncated at two standard deviations, that a kernel is drawn from; a bias is 0.
    """
    tensors = {}
    random = np.random.RandomState(_POOLER_SEED)
    for row in table:
        if row.hf in found:
            value = load_tensor(found[row.hf])
            tensors[row.google] = value.T if row.transposed else value
            continue
        value = random.standard_normal(row.shape) if row.transposed else np.zeros(row.shape)
        while np.any(np.abs(value) > 2):
            value = np.where(np.abs(value) > 2, random.standard_normal(row.shape), value)
        tensors[row.google] = (stddev * value).astype(np.float32)
    return tensors


def read_vocabulary(hf_dir: str) -> List[str]:
    """The WordPieces in the order of their ids, from `vocab.txt` or else from `tokenizer.json`."""
    path = os.path.join(hf_dir, VOCAB_NAME)
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                return [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise errors.UserError(f"{path} is not UTF-8 text: {error}.") from error
    path = os.path.join(hf_dir, "tokenizer.json")
    tokenizer = read_json(path, "vocab.txt or tokenizer.json")
    try:
        model = tokenizer["model"]
        ids = {**model["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
        tokens = sorted(ids, key=ids.__getitem__)
        kind = (model["type"], model["continuing_subword_prefix"])
    except (KeyError, TypeError) as error:
        raise errors.UserError(f"{path} holds no WordPiece vocabulary: {error!r}.") from error
    if kind != ("WordPiece", "##"):
        raise errors.UserError(f"{path} holds {kind[0]} with '{kind[1]}'; expected WordPiece with '##'.")
    if [ids[token] for token in tokens] != list(range(len(tokens))) or "\n" in "".join(tokens):
        raise errors.UserError(
            f"The {len(tokens)} WordPieces of {path} cannot be the lines of a vocab.txt: "
            "their ids have gaps or repeat, or one of them holds a line break."
        )
    return tokens


def convert(hf_dir: str, output_dir: str, overwrite: bool = False) -> Conversion:
    """Converts a folder; the results appear in `output_dir` when all of them are complete, or not at all.

    Args:
      hf_dir: a local folder with `config.json`, safetensors weights and `vocab.txt` or `tokenizer.json`.
      output_dir: made if needed.
      overwrite: whether results of an earlier conversion may be replaced.

    Raises:
      UserError: the folder cannot be converted, or the result cannot be written.
    """
    output_dir = os.path.realpath(output_dir)
    if not os.path.isdir(hf_dir):
        raise errors.UserError(f"There is no folder {hf_dir}; expected a Hugging Face model, downloaded.")
    if _results_in(output_dir) and not overwrite:
        raise errors.UserError(
            f"{output_dir} already holds {first_names(_results_in(output_dir))}; choose another folder or pass "
            "--overwrite."
        )
    config_path = os.path.join(hf_dir, HF_CONFIG)
    config = google_config(read_json(config_path), config_path)
    sources, table, vocabulary = weight_files(hf_dir), tensor_table(config), read_vocabulary(hf_dir)
    if len(vocabulary) != config["vocab_size"]:
        raise errors.UserError(
            f"The vocabulary in {hf_dir} has {len(vocabulary)} entries, but vocab_size in "
            f"its config.json is {config['vocab_size']}."
        )
    found, skipped = match_tensors(table, stored_tensors(sources))
    tensors = load_tensors(table, found, config["initializer_range"])
    try:
        _write_all(config, vocabulary, tensors, output_dir)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(f"Cannot write to {output_dir}: {error}.") from error
    parameters = sum(value.size for value in tensors.values())
    return Conversion(sources, output_dir, config, len(tensors), parameters, skipped, len(found) < len(table))


def _write_all(
    config: Mapping[str, Any], vocabulary: Sequence[str], tensors: Mapping[str, np.ndarray], output_dir: str
) -> None:
    # Beside the final names, on their file system: what is complete only needs renaming.
    staging = os.path.join(output_dir, f".converting-{os.getpid()}")
    texts = {CONFIG_NAME: json.dumps(config, indent=2, sort_keys=True), VOCAB_NAME: "\n".join(vocabulary)}
    try:
        os.makedirs(staging)
        for name, text in texts.items():
            write_text(os.path.join(staging, name), text + "\n")
        checkpoints.write(tensors, os.path.join(staging, CHECKPOINT_NAME))
        # No checkpoint loads without its index: the old one goes first and the new one comes last, so that a
        # mixture of both is never taken for a checkpoint.
        for name in sorted(_results_in(output_dir), key=lambda name: not name.endswith(".index")):
            os.remove(os.path.join(output_dir, name))
        for name in sorted(os.listdir(staging), key=lambda name: name.endswith(".index")):
            os.replace(os.path.join(staging, name), os.path.join(output_dir, name))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def export_base(base: bases.Base, hf_dir: str, do_lower_case: bool, overwrite: bool = False) -> Conversion:
    """Writes a base as a Hugging Face folder, complete or not at all: the inverse of `convert`.

    Args:
      base: the folder in Google's layout.
      hf_dir: gets `config.json`, `model.safetensors` (names as in `BertModel`), `vocab.txt` and
        `tokenizer_config.json`.
      do_lower_case: whether the tokenizer lower-cases, which Google's layout does not say.
      overwrite: whether an earlier export may be replaced.

    Raises:
      UserError: Hugging Face's BERT cannot express the base, or the folder cannot be written.
    """
    if base.uses_sentencepiece:
        raise errors.UserError(
            f"{base.folder} splits text by SentencePiece ({os.path.basename(base.tokenizer_file)}); expected a "
            f"{VOCAB_NAME}: Hugging Face's BERT has WordPiece only."
        )
    ours = base.config().to_dict()
    config, table = hf_config(ours, base.config_file), tensor_table(ours)
    vocabulary = _vocabulary_for_hf(base.tokenizer_file, config["vocab_size"])
    values, tensors = base.tensors(), {}
    for row in table:
        value = values.pop(row.google).astype(np.float32, copy=False)
        if not np.all(np.isfinite(value)):
            raise errors.UserError(f"The checkpoint {base.checkpoint} has NaN or infinite values in {row.google}.")
        tensors[row.hf] = np.ascontiguousarray(value.T if row.transposed else value)
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "model_max_length": config["max_position_embeddings"],
    }
    texts = {
        HF_CONFIG: json.dumps(config, indent=2, sort_keys=True),
        HF_TOKENIZER: json.dumps(tokenizer, indent=2, sort_keys=True),
        VOCAB_NAME: "\n".join(vocabulary),
    }
    with folder_at_once(hf_dir, (*texts, HF_WEIGHTS), overwrite) as staging:
        for name, text in texts.items():
            write_text(os.path.join(staging, name), text + "\n")
        write_tensors(os.path.join(staging, HF_WEIGHTS), tensors)
    parameters = sum(value.size for value in tensors.values())
    return Conversion([base.checkpoint], os.path.realpath(hf_dir), config, len(tensors), parameters, [], False)


def _vocabulary_for_hf(path: str, vocab_size: int) -> List[str]:
    """The lines of a `vocab.txt` as our tokenizer reads them, if Hugging Face's reads the same."""
    with tf.gfile.GFile(path, "rb") as reader:
        lines = reader.read().decode("utf-8-sig").split("\n")
    pieces = [line.strip() or line for line in (lines if lines[-1] else lines[:-1])]
    # Theirs ends a line at a lone carriage return too.
    broken = [number for number, piece in enumerate(pieces, 1) if "\r" in piece]
    if broken:
        raise errors.UserError(f"{path}, line {broken[0]}: a piece holds a line break, which no {VOCAB_NAME} can have.")
    if len(pieces) > vocab_size:
        raise errors.UserError(
            f"{path} has {len(pieces)} entries, but vocab_size in its {CONFIG_NAME} is {vocab_size}."
        )
    return pieces


@contextlib.contextmanager
def folder_at_once(folder: str, names: Sequence[str], overwrite: bool) -> Iterator[str]:
    """Yields a new folder beside `folder`, which takes its name if all goes well, and vanishes if not.

    A folder cannot be exchanged for another in one step: killed between the two, the older one lies beside it,
    complete, as `<folder>.<8 characters>.old`.

    Args:
      folder: the local folder to be written; its parents are made.
      names: the files that an older folder may hold to be replaced. With others in it, it is somebody's, and stays.
      overwrite: whether an older folder may be replaced; an empty one always may.

    Raises:
      UserError: there is an older folder, or the file system refuses.
    """
    if "://" in folder:
        raise errors.UserError(f"{folder} is no local folder: write to one, then copy it.")
    folder = os.path.realpath(folder)
    older = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    foreign = [name for name in older if name not in names]
    if foreign:
        raise errors.UserError(f"{folder} already holds other files: {first_names(foreign)}; choose another folder.")
    if older and not overwrite:
        raise errors.UserError(
            f"{folder} already holds {first_names(older)}; choose another folder or ask to overwrite it."
        )
    staging, aside = (f"{folder}.{uuid.uuid4().hex[:8]}.{ending}" for ending in ("partial", "old"))
    try:
        os.makedirs(staging)
        yield staging
        if older:
            os.rename(folder, aside)
        os.rename(staging, folder)
    except (OSError, safetensors.SafetensorError) as error:
        raise errors.UserError(f"Cannot write to {folder}: {error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if os.path.isdir(aside) and not os.path.isdir(folder):
            os.rename(aside, folder)
        shutil.rmtree(aside, ignore_errors=True)


def write_tensors(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file for PyTorch's side. Not by `save_file`, whose files nobody else may read."""
    # Without this entry transformers takes the file for one of another framework.
    data = safetensors.numpy.save(dict(tensors), {"format": "pt"})
    with open(path, "wb") as file:
        file.write(data)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file with the line ends of the text as they are."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _results_in(folder: str) -> List[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if name in (CONFIG_NAME, VOCAB_NAME) or name.startswith(CHECKPOINT_NAME)]


def read_json(path: str, wanted: str = "") -> Dict[str, Any]:
    """The object in a JSON file; `wanted` is what to call it where it is missing."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError as error:
        folder, name = os.path.split(path)
        raise errors.UserError(f"There is no {wanted or name} in {folder}.") from error
    except (OSError, ValueError) as error:
        raise errors.UserError(f"Cannot read {path} as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise errors.UserError(f"{path} holds a JSON {type(value).__name__}; expected an object.")
    return value
