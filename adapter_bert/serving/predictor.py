"""Predict with a trained task that stays loaded between calls.

    with Predictor.from_run("runs/sst2") as predictor:
        predictor.predict(["a fine film", "dull"])   # [Prediction(label='1', probabilities={'0': …, '1': …}), …]

For full speed, call `adapter_bert.common.system.configure_tensorflow()` before TensorFlow is imported. Training uses
`estimator.predict` instead, which builds a new graph for every call: fine for a file, too slow for one sentence.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fnmatch
import os
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors, files, parallel
from adapter_bert.devices import estimators
from adapter_bert.devices import precision as device_precision
from adapter_bert.devices.device import Device
from adapter_bert.model import fused_ops
from adapter_bert.model.precision import FLOAT32
from adapter_bert.pipeline.features import Encoder
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, checkpoints, loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import known_bases
from adapter_bert.weights.loading import WeightRequest
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder

Text = Union[str, Tuple[str, str]]
Path = Union[str, "os.PathLike[str]"]


class Prediction(NamedTuple):
    """The prediction for one text or pair of texts."""

    label: Optional[str] = None  # the most probable class; None for regression
    probabilities: Mapping[str, float] = {}  # by label, in the order of the classes; empty for regression
    number: Optional[float] = None  # the predicted number; None for classification


class Predictor:
    """A base with a pack, for classification and regression.

    Several threads may call `predict` at the same time. `close`, or the end of a `with` block, frees the memory.

    Attributes:
      config: the configuration of the pack: task, labels, scores and so on.
      max_seq_length: maximum number of tokens; longer texts are truncated.
    """

    def __init__(
        self,
        init_checkpoint: str,
        adapter_pack: str,
        vocab_file: Optional[str] = None,
        spm_model_file: Optional[str] = None,
        bert_config_file: Optional[str] = None,
        max_seq_length: Optional[int] = None,
        threads: int = 0,
        precision: str = FLOAT32,
    ) -> None:
        """Load and check all files, build the graph and run it once.

        Args:
          init_checkpoint: the base that the pack was trained on.
          adapter_pack: the pack, or the output folder of its run.
          vocab_file: WordPiece vocabulary. By default, the tokenizer's file is searched for beside the checkpoint.
          spm_model_file: SentencePiece model, instead of `vocab_file`.
          bert_config_file: configuration of the base, to check that it equals the pack's.
          max_seq_length: by default as in training.
          threads: number of threads for one call; 0 for one per core.
          precision: `float32`, or `bfloat16` on CPUs that support it; it need not be that of the training.

        Raises:
          errors.UserError: a file is missing or damaged, or the files do not belong together.
        """
        errors.check_int("threads", threads, 0)
        device_precision.check(precision, Device())
        with files.user_errors():
            path = packs.find(adapter_pack)
            weights, self.config = _resolve_weights(init_checkpoint, path, bert_config_file)
            self.max_seq_length = self.config.max_seq_length if max_seq_length is None else max_seq_length
            errors.check_int("max_seq_length", self.max_seq_length, 3)
            modeling.check_sequence_length(self.max_seq_length, self.config.bert_config.max_position_embeddings)
            if not vocab_file and not spm_model_file:
                is_wordpiece = self.config.tokenizer["type"] == "wordpiece"
                found = _find_tokenizer_file(weights.files[0].path, bases.VOCAB_NAME if is_wordpiece else "*.model")
                vocab_file, spm_model_file = (found, None) if is_wordpiece else (None, found)
            tokenizer = tokenization.create_tokenizer(
                vocab_file, spm_model_file, self.config.tokenizer["do_lower_case"]
            )
        described = bases.describe_tokenizer(tokenizer)
        if described != self.config.tokenizer:
            raise errors.UserError(
                f"The pack {path} was trained with another tokenizer: expected {self.config.tokenizer}, but "
                f"{vocab_file or spm_model_file} is {described}."
            )
        self._encoder = Encoder((), self.max_seq_length, tokenizer)
        self._threads = threads or parallel.num_cores()
        # Run batches in parallel, each in one thread: operations on a few sentences are too small to be split.
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        self._session, self._run = _build(weights, self.config, precision)
        self._is_open = True
        self.predict(["."])  # warm up: the first run optimizes the graph, which is slow

    @classmethod
    def from_run(cls, output_dir: str, **changes: Any) -> Predictor:
        """Load the model of a finished run from its output folder, whose `settings.json` names the base.

        `changes` are arguments of `Predictor`, e.g. `init_checkpoint` if the base was moved.
        """
        if "init_checkpoint" not in changes:
            with files.user_errors():
                changes["init_checkpoint"] = RunFolder(output_dir).read_settings().get("init_checkpoint")
        if not changes["init_checkpoint"]:
            raise errors.UserError(
                f"{output_dir} has no {SETTINGS_FILE} that names the base. Expected the output folder of a run; "
                "otherwise set init_checkpoint to the base."
            )
        return cls(adapter_pack=output_dir, **changes)

    @classmethod
    def from_bank(cls, bank: str, task: str, **changes: Any) -> Predictor:
        """Load a task from a bank, by the name of its pack; `changes` are arguments of `Predictor`."""
        with files.user_errors():
            opened = Bank.open(bank)
            path = opened.path(task)
        return cls(adapter_pack=path, **{**opened.base.flags(), **changes})

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def close(self) -> None:
        """Free the model. Calling this again has no effect."""
        self._is_open = False
        self._pool.shutdown()
        self._session.close()

    def predict(self, texts: Sequence[Text], batch_size: int = 32) -> List[Prediction]:
        """Return the predictions for strings or pairs of strings (tuples or lists), in the same order.

        A thread computes up to `batch_size` texts at a time, which affects results only through rounding. Raise a
        `UserError` if an item is not a text, or the predictor is closed.
        """
        self._check_open()
        errors.check_int("batch_size", batch_size)
        encoded = [self._encoder.encode(InputExample("", *pair)) for pair in _as_pairs(texts)]
        batches = _batches([len(features["input_ids"]) for features in encoded], batch_size, self._threads)
        compute = self._pool.map if len(batches) > 1 else map  # avoids a thread switch for a single sentence
        values = np.empty([len(encoded), len(self.config.labels) or 1], np.float32)
        try:
            results = compute(lambda batch: self._run(*_padded([encoded[index] for index in batch])), batches)
            for batch, rows in zip(batches, results):
                values[batch] = rows
        except RuntimeError:  # from a session that another thread has closed
            self._check_open()
            raise
        labels = self.config.labels
        if not labels:
            return [Prediction(number=row[0]) for row in values.tolist()]
        return [Prediction(labels[row.index(max(row))], dict(zip(labels, row))) for row in values.tolist()]

    def _check_open(self) -> None:
        if not self._is_open:
            raise errors.UserError("This predictor is closed. Create a new one.")


def load(
    run: Optional[Path] = None,
    adapter_pack: Optional[Path] = None,
    bank: Optional[Path] = None,
    task: Optional[str] = None,
    bert_dir: Optional[Path] = None,
    **changes: Any,
) -> Predictor:
    """Load a trained task from one of three places.

    Args:
      run: the output folder of a training run.
      adapter_pack: a pack; its base is `bert_dir` or the argument `init_checkpoint` of `Predictor`.
      bank: a bank; `task` is the name of a pack in it.
      task: see `bank`.
      bert_dir: folder of the base, e.g. if it was moved since training.
      **changes: other arguments of `Predictor`.

    Raises:
      errors.UserError: the arguments or the files do not belong together.
    """
    given = [name for name, value in (("run", run), ("adapter_pack", adapter_pack), ("bank", bank)) if value]
    if len(given) != 1:
        raise errors.UserError(f"Expected one of run, adapter_pack and bank; found {errors.first_names(given)}.")
    if bool(bank) != bool(task):
        raise errors.UserError(f"bank and task belong together; found bank={bank} and task={task}.")
    has_base = bool(bert_dir or changes.get("init_checkpoint"))
    if bank and has_base:
        raise errors.UserError(f"The bank {bank} has its own base: omit bert_dir and init_checkpoint.")
    if adapter_pack and not has_base:
        raise errors.UserError(f"adapter_pack={adapter_pack} needs its base: give bert_dir or init_checkpoint.")
    if bert_dir:
        with files.user_errors():
            changes = {**bases.Base.find(known_bases.provide(os.fspath(bert_dir))).flags(), **changes}
    if bank:
        return Predictor.from_bank(os.fspath(bank), task or "", **changes)
    if run:
        return Predictor.from_run(os.fspath(run), **changes)
    return Predictor(adapter_pack=os.fspath(adapter_pack or ""), **changes)


def _as_pairs(texts: Sequence[Text]) -> List[Tuple[str, Optional[str]]]:
    """Return the texts as (text, second text or None)."""
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise errors.UserError(
            f"predict expects a list of texts, found {type(texts).__name__}. Put a single text in [ ]."
        )
    pairs: List[Tuple[str, Optional[str]]] = []
    for index, item in enumerate(texts):
        pair = (item, None) if isinstance(item, str) else item
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not (pair[1] is None or isinstance(pair[1], str)):
            raise errors.UserError(f"predict expects strings or pairs of strings, but item {index} is {item!r:.80}.")
        pairs.append((pair[0], pair[1]))
    return pairs


def _batches(lengths: Sequence[int], batch_size: int, threads: int) -> List[List[int]]:
    """Return the indices of sequences in batches of similar length, which need little padding.

    Small inputs are divided among the threads. The longest sequences come first, so that no thread starts on them last.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    size = max(1, min(batch_size, -(-len(order) // threads)))
    return [order[start : start + size] for start in range(0, len(order), size)]


def _padded(encoded: Sequence[Mapping[str, Any]]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, mask and segments of a batch, padded to its longest sequence."""
    lengths = [len(features["input_ids"]) for features in encoded]
    arrays = np.zeros([3, len(encoded), max(lengths)], np.int32)
    for row, features in enumerate(encoded):
        arrays[:, row, : lengths[row]] = features["input_ids"], [1] * lengths[row], features["segment_ids"]
    return tuple(arrays)


def _resolve_weights(
    init_checkpoint: str, path: str, bert_config_file: Optional[str]
) -> Tuple[loading.Weights, packs.PackConfig]:
    """Return the weights, checked against their fingerprints, and the configuration of the pack."""
    config = packs.read_config(path)
    if config.head == "span":
        raise errors.UserError(
            f"The pack {path} (task {config.task}) is for question answering, but this predictor supports only "
            "classification and regression. Use run_squad.py --do_predict=true."
        )
    spec = config.spec
    if bert_config_file:
        spec = dataclasses.replace(spec, config=modeling.BertConfig.from_json_file(bert_config_file))
    weights = loading.resolve(spec, WeightRequest(init_checkpoint, path), loading.EVALUATE)
    assert weights is not None  # the request names the files
    return weights, config


def _find_tokenizer_file(checkpoint: str, pattern: str) -> str:
    """Return the only file in the folder of a checkpoint that matches the pattern."""
    folder = checkpoints.folder_of(checkpoint)
    names = sorted(tf.gfile.ListDirectory(folder))
    found = fnmatch.filter(names, pattern)
    if len(found) != 1:
        raise errors.UserError(
            f"Expected one {pattern} beside the base {checkpoint}; found {errors.first_names(names)}. Set "
            "vocab_file or spm_model_file."
        )
    return os.path.join(folder, found[0])


def _build(
    weights: loading.Weights, config: packs.PackConfig, precision: str
) -> Tuple[tf.Session, Callable[..., np.ndarray]]:
    """Return a session with the weights, and a function from (ids, mask, segments) to probabilities or numbers."""
    head = config.make_head()
    with tf.Graph().as_default() as graph:
        names = ("input_ids", "input_mask", "segment_ids")
        ids, mask, segments = (tf.placeholder(tf.int32, [None, None], name) for name in names)
        # The head needs labels for the loss, which is never computed here.
        labels = {name: tf.zeros(tf.shape(ids)[:1], kind) for name, kind in head.label_types.items()}
        # TensorFlow 1.15 would create reference variables, which the session's executor does not support.
        spec = dataclasses.replace(config.spec, precision=precision)
        assigner = WeightAssigner(weights.assignments, spec.reduced_names(trains=False), precision)
        resources = tf.variable_scope(tf.get_variable_scope(), use_resource=True)
        with resources, assigner.creating_variables(), fused_ops.compiling(False):
            model = modeling.BertModel(
                config.bert_config,
                False,
                ids,
                mask,
                segments,
                scope="bert",
                adapter_fn=config.adapter_config,
                precision=precision,
            )
            output = head.build(model, labels, is_training=False)
        graph.finalize()
        session = tf.Session(graph=graph, config=estimators.serving_config())
        assigner.load(session)
        fetched = output.logits if output.probabilities is None else output.probabilities
        return session, session.make_callable(fetched, [ids, mask, segments])
