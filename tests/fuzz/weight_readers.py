"""Readers of packs, banks, bases and run folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
from types import SimpleNamespace
from typing import Any, Dict, Sequence, Tuple

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.evaluation import glue_submission
from adapter_bert.pipeline import batches, feature_store, records
from adapter_bert.tasks import glue
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, checkpoints, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.run_folder import RunFolder
from scripts import bank as bank_script
from tests.fuzz.readers import Reader, Workshop, call_all, content, file_reader, reader

RUN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "c32a6ab", "runs", "cola")
ZEROS = b"0" * 64


def sign(data: bytes) -> bytes:
    """Replace the first 64 zeros with the checksum, as `packs.serialise` does."""
    return data.replace(ZEROS, hashlib.sha256(data).hexdigest().encode(), 1)


def unsigned(pack: packs.Pack) -> bytes:
    """Return the file of a pack with zeros for the checksum."""
    data = packs.serialise(pack)
    metadata = json.loads(split(data)[0]["__metadata__"][packs.METADATA_KEY])
    return data.replace(metadata[packs.CHECKSUM].encode(), ZEROS, 1)


def split(data: bytes) -> Tuple[Dict[str, Any], bytes]:
    """Return the header and the numbers of a safetensors file."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size].decode("utf-8")), data[8 + size :]


def join(header: bytes, numbers: bytes) -> bytes:
    """Invert `split`, for any bytes."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + numbers


# ------------------------------------------------------------------------------------------ packs and banks


def _pack_reader(workshop: Workshop, seeds: Sequence[bytes], is_json: bool = False) -> Reader:
    """Return a reader of a pack in a bank, with all commands that read packs."""
    bank = Bank.open(workshop.copy(_bank_folder(workshop)))

    def read(path: str) -> None:
        call_all(
            lambda: packs.read(path),
            lambda: packs.read_config(path),
            lambda: bank_script.list_packs(bank, SimpleNamespace()),
            lambda: list(bank.verify()),
            lambda: bank_script.show(bank, SimpleNamespace(name="x", json=False)),
            lambda: bank_script.show(bank, SimpleNamespace(name="x", json=True)),
        )

    return file_reader(os.path.join(bank.folder, "packs", "x.safetensors"), read, seeds, is_json)


def _bank_folder(workshop: Workshop) -> str:
    folder = workshop.path("bank")
    if not os.path.isdir(folder):
        Bank.create(folder, workshop.base).add(workshop.pack, "cola")
    return folder


@reader("pack")
def _pack(workshop: Workshop) -> Reader:
    return _pack_reader(workshop, [packs.serialise(workshop.pack)])


@reader("pack, valid checksum")
def _signed_pack(workshop: Workshop) -> Reader:
    return _pack_reader(workshop, [unsigned(workshop.pack)]).after(sign)


@reader("pack, header")
def _pack_header(workshop: Workshop) -> Reader:
    header, numbers = split(unsigned(workshop.pack))
    made = _pack_reader(workshop, [json.dumps(header).encode()], is_json=True)
    return made.after(lambda data: sign(join(data, numbers)))


@reader("pack, metadata")
def _pack_metadata(workshop: Workshop) -> Reader:
    header, numbers = split(unsigned(workshop.pack))
    seed = header["__metadata__"][packs.METADATA_KEY].encode()

    def prepare(data: bytes) -> bytes:
        metadata = {packs.METADATA_KEY: data.decode("utf-8", "surrogateescape")}
        return sign(join(json.dumps(dict(header, __metadata__=metadata)).encode(), numbers))

    return _pack_reader(workshop, [seed], is_json=True).after(prepare)


@reader("bank.json")
def _bank(workshop: Workshop) -> Reader:
    folder = workshop.copy(_bank_folder(workshop))

    def read(path: str) -> None:
        bank = Bank.open(folder)
        bank_script.list_packs(bank, SimpleNamespace())
        for _, problem in bank.verify():
            if problem:
                raise errors.UserError(problem)

    path = os.path.join(folder, "bank.json")
    return file_reader(path, read, [content(path)], is_json=True)


@reader("bert_config.json")
def _bert_config(workshop: Workshop) -> Reader:
    folder = workshop.copy(workshop.base.folder)

    def read(path: str) -> None:
        modeling.BertConfig.from_json_file(path)
        base = bases.Base.find(folder)
        base.check_vocabulary()
        base.tensors()

    path = os.path.join(folder, "bert_config.json")
    return file_reader(path, read, [content(path)], is_json=True)


# ------------------------------------------------------------------------------------------------------ runs


@reader("settings.json")
def _settings(workshop: Workshop) -> Reader:
    settings, folder = workshop.settings, RunFolder(os.path.dirname(workshop.path("run", "x")))
    packs.write(folder.pack_path, workshop.pack)
    values = dict(settings.comparable_values(("model", "training")), seed=1, facts={"labels": ["0", "1"]})

    def read(path: str) -> None:
        call_all(
            lambda: folder.labels(settings),
            lambda: folder.check_same_run(settings, {"labels": ["0", "1"], "train_data": "sha256:0"}),
            lambda: folder.check_same_run(settings, {}).training_settings(),
        )

    return file_reader(folder.file("settings.json"), read, [json.dumps(values).encode()], is_json=True)


@reader("results.json")
def _results(workshop: Workshop) -> Reader:
    path = workshop.path("results", "results.json")
    folder = RunFolder(os.path.dirname(path))

    def read(path: str) -> None:
        results = folder.read_results()
        results.as_text()
        run, chosen = glue_submission.choose_run(glue.COLA, [folder.path])
        glue_submission.TaskFile(glue.COLA, run, chosen, "").table_row()
        with contextlib.suppress(errors.UserError):  # the scores are those of another pack
            bank_script._with_results(workshop.pack, path)
        packs.serialise(packs.with_scores(workshop.pack, results))

    return file_reader(path, read, [content(RUN, "results.json")], is_json=True)


@reader("training.json")
def _history(workshop: Workshop) -> Reader:
    path = workshop.path("history", "training.json")

    def read(path: str) -> None:
        history = RunFolder(os.path.dirname(path)).history()
        history.forget_after(8)
        history.at(8)
        history.summary()
        history.write()

    return file_reader(path, read, [content(RUN, "training.json")], is_json=True)


@reader("checkpoint state")
def _state(workshop: Workshop) -> Reader:
    path = workshop.path("state", "checkpoint")
    folder = os.path.dirname(path)
    for name in os.listdir(RUN):
        if name.startswith("model.ckpt"):
            shutil.copy(os.path.join(RUN, name), folder)
    return file_reader(path, lambda path: checkpoints.find_latest(folder), [content(RUN, "checkpoint")])


@reader("feature records")
def _records(workshop: Workshop) -> Reader:
    """Damaged records. Crafted ones with valid checksums are not covered: a feature cache is trusted."""
    store = feature_store.FeatureStore([workshop.path("features")], workshop.base.tokenizer, "fuzz")
    examples = [InputExample(f"train-{number}", "the cat is big", None, str(number % 2)) for number in range(5)]
    (path,) = store.example_files("train", examples, ["0", "1"], 16)
    # One graph for all inputs: starting the whole pipeline takes 0.1 s, because TensorFlow optimizes it each time.
    with tf.Graph().as_default() as graph:
        serialized = tf.placeholder(tf.string, [None])
        features = records.parser(batches.bucket_widths(16), records.CLASS_LABEL)(serialized)
        session = tf.Session(graph=graph)

    def read(path: str) -> None:
        with feature_store.damage_errors([path]):
            session.run(features, {serialized: list(tf.python_io.tf_record_iterator(path))})

    return file_reader(path, read, [content(path)])
