"""Export trained tasks for use without this project; see docs/export.md.

OUTPUT/NAME/VERSION/    a SavedModel, model.onnx or model.tflite, in the layout that TF-Serving and Triton read
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, Optional

import tensorflow.compat.v2 as tf

from adapter_bert.common import errors, files, native_output, paths
from adapter_bert.devices import compat
from adapter_bert.serving import export_convert, export_saved_model, export_text, export_warmup
from adapter_bert.serving.export_source import ExportSource
from adapter_bert.weights import bases, packs

SAVED_MODEL, ONNX, TFLITE = "savedmodel", "onnx", "tflite"
FORMATS = (SAVED_MODEL, ONNX, TFLITE)
TEXT_INPUTS, ID_INPUTS = "text", "ids"
INPUTS = (TEXT_INPUTS, ID_INPUTS)
DESCRIPTION_FILE = "export.json"

# Earlier versions have not been tried; the tests run with 2.15.
_OLDEST_TENSORFLOW = (2, 13)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# TF-Serving's versions are 64-bit integers.
_MAX_VERSION = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """How to export."""

    kind: str = SAVED_MODEL  # one of `FORMATS`
    inputs: str = TEXT_INPUTS  # one of `INPUTS`; ONNX and TFLite always read ids
    pairs: bool = False  # whether the default signature takes pairs of texts
    int8: bool = False  # whether to quantize the weights of ONNX or TFLite
    name: Optional[str] = None  # of the model; by default that of the task or the bank
    version: Optional[int] = None  # by default the next one

    def check(self) -> None:
        """Raise a `UserError` for options that do not belong together, or that this environment lacks."""
        if compat.tensorflow_version() < _OLDEST_TENSORFLOW:
            needed = ".".join(map(str, _OLDEST_TENSORFLOW))
            raise errors.UserError(f"Export needs TensorFlow {needed} or later, found {tf.version.VERSION}.")
        if self.kind not in FORMATS:
            raise errors.unknown("--format", self.kind, FORMATS)
        if self.inputs not in INPUTS:
            raise errors.unknown("--inputs", self.inputs, INPUTS)
        if self.version is not None:
            errors.check_int("--version", self.version, 1, _MAX_VERSION)
        if self.int8 and self.kind == SAVED_MODEL:
            raise errors.UserError("--int8 is for --format=onnx and --format=tflite; a SavedModel is float32.")
        if self.pairs and not self.reads_texts:
            raise errors.UserError("--pairs is for a SavedModel that reads texts: ids contain both texts anyway.")
        if self.reads_texts:
            export_text.load_tensorflow_text()
        if self.kind == ONNX:
            export_convert.check_libraries(self.int8)

    @property
    def reads_texts(self) -> bool:
        """Whether the model tokenizes texts itself."""
        return self.kind == SAVED_MODEL and self.inputs == TEXT_INPUTS


def export(source: ExportSource, output: str, options: ExportOptions) -> str:
    """Write a model below the folder `output`; return the folder of its version, which appears when it is complete.

    Raises:
      errors.UserError: the version exists, or the format does not support the tasks.
    """
    options.check()
    name = options.name or source.name
    if not _NAME.fullmatch(name):
        raise errors.UserError(
            f"A model cannot be called {name!r}: expected at most 100 of the letters a-z and A-Z, digits, '-', '_' and "
            "'.', starting with a letter or digit. Choose one with --name."
        )
    if options.kind != SAVED_MODEL and source.is_bank:
        raise errors.UserError(f"--format={options.kind} exports one task: add --task=NAME, or use a SavedModel.")
    parent = os.path.join(output, name)
    final = os.path.join(parent, str(_version(parent, options.version)))
    with files.user_errors(), files.staging_folder(final) as staging:
        with native_output.hidden():  # reports of converters; errors are shown
            _write(staging, name, source, options)
        _describe(staging, source, options, name)
        try:
            files.rename_folder_noreplace(staging, final)
        except FileExistsError:
            raise _exists(final) from None
    return final


def _exists(path: str) -> errors.UserError:
    return errors.UserError(f"{path} already exists: choose another --version, --name or --output.")


def _version(parent: str, wanted: Optional[int]) -> int:
    """Return the number of the version to write."""
    with files.user_errors():
        if paths.is_taken(parent) and not paths.is_folder(parent):
            raise errors.UserError(f"{parent} is not a folder: choose another --output or --name.")
        names = [name.rstrip("/") for name in paths.names_in(parent)]
    if wanted is not None:
        if str(wanted) in names:
            raise _exists(os.path.join(parent, str(wanted)))
        return wanted
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


def _write(folder: str, name: str, source: ExportSource, options: ExportOptions) -> None:
    if options.kind == SAVED_MODEL:
        export_saved_model.write(folder, name, source, options.reads_texts, options.pairs)
    elif options.kind == ONNX:
        export_convert.write_onnx(folder, source, options.int8)
    else:
        export_convert.write_tflite(folder, source, options.int8)


def _describe(folder: str, source: ExportSource, options: ExportOptions, name: str) -> None:
    """Write a description of the model and, for clients that compute ids, the tokenizer's file."""
    extra = os.path.join(folder, export_warmup.FOLDER) if options.kind == SAVED_MODEL else folder
    files.write_json(os.path.join(extra, DESCRIPTION_FILE), _description(source, options, name))
    tokenizer_file = bases.VOCAB_NAME if source.tokenizer_file.endswith(".txt") else "spm.model"
    tf.io.gfile.copy(source.tokenizer_file, os.path.join(extra, tokenizer_file))


def _description(source: ExportSource, options: ExportOptions, name: str) -> Dict[str, Any]:
    tasks = [
        {
            "name": task.name,
            "head": task.config.head,
            "labels": task.classes,
            "max_seq_length": task.max_seq_length,
            "tuning_mode": task.config.tuning_mode,
            "metrics": dict(task.config.metrics),
            "pack": packs.Pack(task.config, task.tensors).fingerprint,
        }
        for task in source.tasks
    ]
    return {
        "name": name,
        "format": options.kind,
        "inputs": TEXT_INPUTS if options.reads_texts else ID_INPUTS,
        "int8": options.int8,
        "created": packs.now(),
        "tasks": tasks,
        "tokenizer": bases.describe_tokenizer(source.tokenizer),
        "versions": compat.versions(),
    }
