"""A tiny BERT and tiny tasks in the published layouts, created on the spot: no test needs a download."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
from typing import Any, Iterator, List, Optional, Union

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.weights import bases, fingerprints, packs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARED = os.path.join(os.path.dirname(ROOT), "shared")

WORDS = [
    "the", "a", "cat", "dog", "cats", "dogs", "he", "she", "it", "they", "is", "are", "was", "were", "see", "sees",
    "run", "runs", "big", "small", "not", "and", ",", ".", "?", "!", "##s", "##ing",
]  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS
TINY = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    # Wide enough that the first token's state depends on the others, as in a trained BERT.
    "initializer_range": 0.3,
}


def tiny_config(**changes) -> modeling.BertConfig:
    return modeling.BertConfig(**dict(TINY, **changes))


def write_bert(folder: str, config: modeling.BertConfig, adapter_fn=None, seed: int = 7, extra=None) -> str:
    """Write a randomly initialized BERT in the layout of Google's downloads; return the checkpoint's prefix.

    `extra` is called in the same graph and may add variables, e.g. a head.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "bert_config.json"), "w") as file:
        file.write(config.to_json_string())
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(VOCABULARY) + "\n")
    prefix = os.path.join(folder, "bert_model.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(seed)
        modeling.BertModel(config, False, tf.zeros([1, 4], tf.int32), scope="bert", adapter_fn=adapter_fn)
        if extra:
            extra()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)
    return prefix


def make_pack(
    for_base: Optional[bases.Base] = None, seed: Optional[int] = 1, mode: str = "adapter", **changes: Any
) -> packs.Pack:
    """Make a pack with random weights; `changes` are fields of its configuration.

    Without a base, it belongs to one that does not exist, with the architecture of `tiny_config`.
    """
    tokenizer = {"type": "wordpiece", "do_lower_case": True, "entries": len(VOCABULARY), "vocabulary": "sha256:0"}
    values = {
        "task": "CoLA",
        "architecture": for_base.config.to_dict() if for_base else tiny_config().to_dict(),
        "tuning_mode": mode,
        "head": "classification",
        "labels": ["0", "1"] if changes.get("head", "classification") == "classification" else [],
        "tokenizer": for_base.tokenizer_description if for_base else tokenizer,
        "max_seq_length": 16,
        "base": None,
        "created": "2024-05-06T07:08:09Z",
        "adapter": None,
        "tune_top_layers": 1 if mode == "top_layers" else None,
        "metrics": {"matthews": 0.5, "accuracy": 0.75},
        "loss": 0.25,
        "collapsed": False,
        "seed": seed,
        "step": 12,
        "training": {"learning_rate": 3e-4, "train_batch_size": 32},
        "versions": {"tensorflow": "1.15.0"},
    }
    if mode == "adapter":
        values["adapter"] = {"size": 4, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"}
    config = packs.PackConfig(**dict(values, **changes))
    frozen = config.frozen_names()
    if frozen and "base" not in changes:
        fingerprint = fingerprints.combine(for_base.digests, frozen) if for_base else "sha256:0123456789abcdef"
        config = dataclasses.replace(config, base=fingerprint)
    generator = np.random.RandomState(seed or 0)
    shapes = config.trained_shapes()
    return packs.Pack(config, {name: generator.randn(*shape).astype(np.float32) for name, shape in shapes.items()})


def cola_rows(count: int, start: int = 0) -> List[str]:
    """Return sentences whose label even a tiny frozen network can learn: `is` is good, `are` is not."""
    rows = []
    for index in range(start, start + count):
        noun = ["cat", "dog", "cats", "dogs"][index % 4]
        verb = ["is", "are"][(index // 4) % 2]
        good = verb == "is"
        adjective = ["big", "small", "not big", "not small", "big and small"][(index // 8) % 5]
        rows.append("{}\t{}\t{}\tthe {} {} {} .".format("tst", int(good), "" if good else "*", noun, verb, adjective))
    return rows


def write_cola(folder: str, train: int = 64, dev: int = 24, test: int = 10) -> str:
    os.makedirs(folder, exist_ok=True)
    for name, rows in (("train", cola_rows(train)), ("dev", cola_rows(dev, 3))):
        with open(os.path.join(folder, name + ".tsv"), "w") as file:
            file.write("\n".join(rows) + "\n")
    with open(os.path.join(folder, "test.tsv"), "w") as file:
        sentences = [row.split("\t")[3] for row in cola_rows(test, 5)]
        file.write("index\tsentence\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(sentences)))
    return folder


def squad_paragraphs(count: int, start: int = 0, version_2: bool = False) -> List[dict]:
    """Return paragraphs with a question each, whose answer even a tiny frozen network can find: an animal's size.

    Some are longer than a window of 32 tokens. In version 2, every third has no answer.
    """
    paragraphs = []
    for index in range(start, start + count):
        noun = ["cat", "dog", "cats", "dogs"][index % 4]
        size = ["Big", "small"][(index // 3) % 2]
        is_impossible = version_2 and index % 3 == 0
        before = "they see it , and " * (index % 5)
        context = f"{before}The {noun} {'runs' if is_impossible else 'is ' + size}. She sees a {noun} , and they run ."
        question = {"id": f"q{index}", "question": f"is the {noun} big ?", "answers": []}
        if version_2:
            question["is_impossible"] = is_impossible
        if not is_impossible:
            question["answers"] = [{"text": size, "answer_start": context.index(size)}]
        paragraphs.append({"context": context, "qas": [question]})
    return paragraphs


def write_squad(path: str, count: int = 64, start: int = 0, version_2: bool = False) -> str:
    """Write a file in SQuAD's format; return its path."""
    paragraphs = squad_paragraphs(count, start, version_2)
    content = {"version": "v2.0" if version_2 else "1.1", "data": [{"title": "Animals", "paragraphs": paragraphs}]}
    with open(path, "w") as file:
        json.dump(content, file)
    return path


def base_flags(tiny_bert: str, cola_dir: str, output_dir: str) -> dict:
    """Return the flags that all commands of these tests share."""
    return {
        "task_name": "CoLA",
        "data_dir": cola_dir,
        "vocab_file": os.path.join(tiny_bert, "vocab.txt"),
        "bert_config_file": os.path.join(tiny_bert, "bert_config.json"),
        "init_checkpoint": os.path.join(tiny_bert, "bert_model.ckpt"),
        "output_dir": output_dir,
        "max_seq_length": 16,
        "train_batch_size": 8,
        "adapter_size": 4,
        "seed": 1,
    }


def command_line(flags: dict, script: str = "run_classifier.py") -> List[str]:
    return [sys.executable, os.path.join(ROOT, script)] + [f"--{name}={value}" for name, value in flags.items()]


def run_command(flags: dict, script: str = "run_classifier.py") -> subprocess.CompletedProcess:
    """Run a script in a separate process."""
    return subprocess.run(command_line(flags, script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_batches(input_fn, batch_size: int, steps: Optional[int] = None) -> list:
    """Return what an estimator gets: batches as dictionaries of arrays, until the end or for some steps."""
    found = []
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(input_fn({"batch_size": batch_size}))
        following = iterator.get_next()
        session.run(iterator.initializer)
        while steps is None or len(found) < steps:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                break
    return found


DAMAGES = ("cut inside a record", "cut between records", "changed byte", "emptied")


def damage(path: str, how: str) -> None:
    """Damage a TFRecord file in one of the ways of `DAMAGES`."""
    with open(path, "rb") as file:
        data = file.read()
    # A record has 16 bytes around it: its length and two checksums.
    last = len(list(tf.python_io.tf_record_iterator(path))[-1]) + 16
    changed = {
        "cut inside a record": data[:-3],
        "cut between records": data[:-last],
        "changed byte": data[:40] + bytes([data[40] ^ 1]) + data[41:],
        "emptied": b"",
    }
    with open(path, "wb") as file:
        file.write(changed[how])


@contextlib.contextmanager
def recorded_log() -> Iterator[List[str]]:
    """Record lines logged from INFO on, whatever level others (e.g. transformers) have left behind."""
    lines: List[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def assert_mentions(message: str, *facts: object) -> None:
    """Check that an error message or a log line contains these facts: flags, paths, names, numbers."""
    missing = [fact for fact in facts if str(fact) not in message]
    assert facts and not missing, f"{missing} not in: {message}"


def write_file(folder, name: str, content: Union[str, bytes]) -> str:
    """Write a file below a folder (a `pathlib.Path`), text as UTF-8; return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def as_tuples(examples) -> List[tuple]:
    """Return input examples as (guid, text_a, text_b, label)."""
    return [(example.guid, example.text_a, example.text_b, example.label) for example in examples]


def message_of(function, *args, **kwargs) -> str:
    """Return the message of the `UserError` that a call raises."""
    with pytest.raises(errors.UserError) as caught:
        function(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def read_results(output_dir: str) -> dict:
    """Return the content of eval_results.txt."""
    with open(os.path.join(output_dir, "eval_results.txt")) as file:
        return {key: json.loads(value) for key, value in (line.strip().split(" = ") for line in file)}
