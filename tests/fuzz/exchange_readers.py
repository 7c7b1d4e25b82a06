"""Readers of folders of other libraries: Hugging Face and AdapterHub."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from typing import Any, Callable, Sequence

from adapter_bert.common import errors, json_files
from adapter_bert.model import parameters
from adapter_bert.weights.exchange import ImportedTask, adapterhub, huggingface, tensors
from scripts import convert_hf_checkpoint
from tests.fuzz.readers import Reader, Workshop, content, file_reader, reader
from tests.fuzz.weight_readers import join, split


def _convert(folder: str) -> None:
    """Convert a Hugging Face folder, except for the last step, writing."""
    path = os.path.join(folder, huggingface.HF_CONFIG)
    config = huggingface.google_config(json_files.read_object(path), path)
    convert_hf_checkpoint.tokenizer_settings(folder)
    sources, vocabulary = huggingface._weight_files(folder), huggingface._read_vocabulary(folder)
    if len(vocabulary) != config.vocab_size:
        raise errors.UserError("The vocabulary has another size.")
    rows = tensors.make_rows(parameters.bert_shapes(config))
    tensors.load(rows, tensors.list_stored(sources), folder, path, huggingface._may_skip)


def _hugging_face_reader(workshop: Workshop, name: str, seeds: Sequence[bytes] = (), is_json: bool = False) -> Reader:
    """Return a reader of one file of a Hugging Face folder."""
    folder = workshop.copy(workshop.hugging_face)
    path = os.path.join(folder, name)
    return file_reader(path, lambda path: _convert(folder), seeds or [content(path)], is_json)


@reader("Hugging Face config.json")
def _config(workshop: Workshop) -> Reader:
    return _hugging_face_reader(workshop, huggingface.HF_CONFIG, is_json=True)


@reader("Hugging Face tokenizer_config.json")
def _tokenizer_config(workshop: Workshop) -> Reader:
    return _hugging_face_reader(workshop, huggingface.HF_TOKENIZER, is_json=True)


@reader("Hugging Face vocab.txt")
def _vocabulary(workshop: Workshop) -> Reader:
    return _hugging_face_reader(workshop, "vocab.txt")


@reader("Hugging Face tokenizer.json")
def _tokenizer(workshop: Workshop) -> Reader:
    vocabulary = {token: number for number, token in enumerate(workshop.base.tokenizer.vocab)}
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": vocabulary}
    added = [{"id": 0, "content": "[PAD]", "special": True}]
    seed = json.dumps({"added_tokens": added, "normalizer": {"lowercase": True}, "model": model}).encode()
    folder = workshop.copy(workshop.hugging_face)
    os.remove(os.path.join(folder, "vocab.txt"))
    path = os.path.join(folder, huggingface.HF_FAST_TOKENIZER)
    return file_reader(path, lambda path: _convert(folder), [seed], is_json=True)


@reader("Hugging Face safetensors")
def _weights(workshop: Workshop) -> Reader:
    return _hugging_face_reader(workshop, huggingface.HF_WEIGHTS)


@reader("Hugging Face safetensors, header")
def _header(workshop: Workshop) -> Reader:
    header, numbers = split(content(workshop.hugging_face, huggingface.HF_WEIGHTS))
    made = _hugging_face_reader(workshop, huggingface.HF_WEIGHTS, [json.dumps(header).encode()], is_json=True)
    return made.after(lambda data: join(data, numbers))


@reader("Hugging Face index")
def _index(workshop: Workshop) -> Reader:
    names = split(content(workshop.hugging_face, huggingface.HF_WEIGHTS))[0]
    names.pop("__metadata__", None)
    seed = json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "part.safetensors")}).encode()
    folder = workshop.copy(workshop.hugging_face)
    weights = os.path.join(folder, huggingface.HF_WEIGHTS)
    os.rename(weights, os.path.join(folder, "part.safetensors"))
    return file_reader(f"{weights}.index.json", lambda path: _convert(folder), [seed], is_json=True)


class _Trap:
    """An object whose pickle raises an error when it is loaded."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemError('a pickle was loaded')",)


@reader("Hugging Face pickle")
def _pickle(workshop: Workshop) -> Reader:
    """Pickles are rejected, whether they are called .bin or .safetensors."""
    seeds = [pickle.dumps(_Trap()), pickle.dumps({"weights": [1.0, 2.0]})]
    only_pickle = workshop.copy(workshop.hugging_face)
    os.remove(os.path.join(only_pickle, huggingface.HF_WEIGHTS))
    paths = {
        os.path.join(only_pickle, "pytorch_model.bin"): only_pickle,
        os.path.join(workshop.copy(workshop.hugging_face), huggingface.HF_WEIGHTS): None,
    }
    made = [file_reader(path, lambda path: _convert(os.path.dirname(path)), seeds) for path in paths]
    return Reader(lambda data: [_must_reject(each.read, data) for each in made], seeds)


def _must_reject(read: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(errors.UserError):
        read(data)
        raise AssertionError("a pickle was accepted")


def _adapter_hub_reader(workshop: Workshop, name: str, seeds: Sequence[bytes] = (), is_json: bool = False) -> Reader:
    folder, base = workshop.copy(workshop.adapter_hub), workshop.base
    path, task = os.path.join(folder, name), ImportedTask("CoLA", None, 16, "2024-05-06T07:08:09Z")
    return file_reader(path, lambda path: adapterhub.read(folder, base, task), seeds or [content(path)], is_json)


@reader("AdapterHub adapter_config.json")
def _adapter_config(workshop: Workshop) -> Reader:
    return _adapter_hub_reader(workshop, "adapter_config.json", is_json=True)


@reader("AdapterHub head_config.json")
def _head_config(workshop: Workshop) -> Reader:
    return _adapter_hub_reader(workshop, "head_config.json", is_json=True)


@reader("AdapterHub safetensors")
def _adapter_weights(workshop: Workshop) -> Reader:
    return _adapter_hub_reader(workshop, "adapter.safetensors")


@reader("AdapterHub safetensors, header")
def _adapter_header(workshop: Workshop) -> Reader:
    header, numbers = split(content(workshop.adapter_hub, "model_head.safetensors"))
    made = _adapter_hub_reader(workshop, "model_head.safetensors", [json.dumps(header).encode()], is_json=True)
    return made.after(lambda data: join(data, numbers))
