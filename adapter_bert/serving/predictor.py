"""A trained task that is loaded once and answers many calls: graph, weights and session stay warm between them.

    with Predictor.from_run("runs/sst2") as predictor:
        predictor.predict(["a fine film", "dull"])   # [Prediction(label='1', probabilities={'0': …, '1': …}), …]

For full speed, call `adapter_bert.common.system.configure_tensorflow()` before anything imports TensorFlow.

`estimator.predict`, which the training side uses, builds the graph anew for every call: right for a file of examples,
seconds too long for one sentence.
"""

from __future__ import annotations

import concurrent.futures
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors, files, parallel
from adapter_bert.common.text import first_names
from adapter_bert.devices import estimators
from adapter_bert.model import fused_ops
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline.features import Encoder
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, checkpoints, loading, packs
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.loading import WeightRequest
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder

Text = Union[str, Tuple[str, str]]


class Prediction(NamedTuple):
    """What a model says of one text, or pair of texts.

    Attributes:
      label: the most probable class; None in a regression.
      probabilities: label -> probability, in the order of the classes; empty in a regression.
      number: the predicted number; None in a classification.
    """

    label: Optional[str] = None
    probabilities: Mapping[str, float] = {}
    number: Optional[float] = None


class Predictor:
    """A base with a pack on it, ready to answer. For classification and regression.

    `predict` may be called by several threads at a time. `close`, or the end of a `with` block, frees the memory
    for other use by the process.

    Attributes:
      config: what the pack says of itself: task, labels, scores.
      max_seq_length: tokens of a sequence; longer texts are cut.
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
    ) -> None:
        """Reads and checks all parts, builds the graph and runs it once.

        Args:
          init_checkpoint: the base that the pack was trained on.
          adapter_pack: the pack, or the output folder of the training.
          vocab_file: WordPiece vocabulary of the base; by default the `vocab.txt` (or else the SentencePiece model)
            beside its checkpoint.
          spm_model_file: SentencePiece model, in place of `vocab_file`.
          bert_config_file: architecture of the base, to be compared with the pack's, which is used.
          max_seq_length: as in training if not given.
          threads: that a call may use; 0 for one a core.

        Raises:
          errors.UserError: something is missing, damaged, or does not belong together.
        """
        errors.check_int("threads", threads, 0)
        path = packs.find(adapter_pack)
        with files.user_errors():
            source, head = _choose(init_checkpoint, path, bert_config_file)
            self.config = source.pack.config
            self.max_seq_length = self.config.max_seq_length if max_seq_length is None else max_seq_length
            _check_length(self.max_seq_length, self.config)
            tokenizer = _load_tokenizer(source.pack, path, vocab_file, spm_model_file, source.files[0].path)
        self._encoder = Encoder((), self.max_seq_length, tokenizer)
        self._is_regression = self.config.head == "regression"
        self._threads = threads or parallel.num_cores()
        # Batches side by side, each in one thread: an operation on a few sentences is sooner done than divided.
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        self._session, self._run = _build(source, head)
        self._is_open = True
        self.predict(["."])  # the first run optimises the graph, which takes longer than many later ones

    @classmethod
    def from_run(cls, output_dir: str, **changes: Any) -> Predictor:
        """The model of a finished training, from its output folder.

        Args:
          output_dir: with the run's pack and `settings.json`, which names the base.
          **changes: arguments of `Predictor`, e.g. `vocab_file` where it does not lie beside the base's checkpoint, or
            `init_checkpoint` where the base was moved.
        """
        if "init_checkpoint" not in changes:
            with files.user_errors():
                changes["init_checkpoint"] = RunFolder(output_dir).read_settings().get("init_checkpoint")
        if not changes["init_checkpoint"]:
            raise errors.UserError(
                f"{output_dir} holds no {SETTINGS_FILE} that names the base of a run: give init_checkpoint, the "
                "base, as well."
            )
        return cls(adapter_pack=output_dir, **changes)

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model. A second call does nothing."""
        self._is_open = False
        self._pool.shutdown()
        self._session.close()

    def predict(self, texts: Sequence[Text], batch_size: int = 32) -> List[Prediction]:
        """Predicts texts, or pairs of texts, in the order given.

        Args:
          texts: each a string, or a pair of strings (tuple or list).
          batch_size: how many, at most, a thread computes at a time; does not change the results, but for rounding.

        Raises:
          errors.UserError: something in the list is no text; or the predictor is closed.
        """
        self._check_open()
        errors.check_int("batch_size", batch_size)
        encoded = [self._encode(text_a, text_b) for text_a, text_b in _as_pairs(texts)]
        batches = _batches([len(ids) for ids, _ in encoded], batch_size, self._threads)
        compute = self._pool.map if len(batches) > 1 else map  # one sentence does not wait for another thread to wake
        values = np.empty([len(encoded), 1 if self._is_regression else len(self.config.labels)], np.float32)
        try:
            results = compute(lambda batch: self._run(*_padded([encoded[index] for index in batch])), batches)
            for batch, rows in zip(batches, results):
                values[batch] = rows
        except RuntimeError:  # of a session that another thread has closed meanwhile
            self._check_open()
            raise
        return [self._prediction(row) for row in values.tolist()]

    def _check_open(self) -> None:
        if not self._is_open:
            raise errors.UserError("This predictor is closed: make another one.")

    def _encode(self, text_a: str, text_b: Optional[str]) -> Tuple[List[int], List[int]]:
        """Ids and segments of a text, without padding, as the training side makes them."""
        made = self._encoder.encode(InputExample("", text_a, text_b))
        return made.input_ids, made.segment_ids

    def _prediction(self, row: List[float]) -> Prediction:
        if self._is_regression:
            return Prediction(number=row[0])
        labels = self.config.labels
        return Prediction(labels[row.index(max(row))], dict(zip(labels, row)))


def _as_pairs(texts: Sequence[Text]) -> List[Tuple[str, Optional[str]]]:
    """The texts as (text, second text or None)."""
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise errors.UserError(f"predict takes a list of texts, found {type(texts).__name__}; put it in [ ].")
    pairs: List[Tuple[str, Optional[str]]] = []
    for index, item in enumerate(texts):
        pair = (item, None) if isinstance(item, str) else item
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not (pair[1] is None or isinstance(pair[1], str)):
            raise errors.UserError(f"predict takes strings and pairs of strings; number {index} is {item!r:.80}.")
        pairs.append((pair[0], pair[1]))
    return pairs


def _batches(lengths: Sequence[int], batch_size: int, threads: int) -> List[List[int]]:
    """Indices of sequences, in batches of nearly one length: hardly any padding, which costs as much as text.

    A few sequences are divided among the threads. The longest come first, so that no thread begins with them when the
    others have done.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    size = max(1, min(batch_size, -(-len(order) // threads)))
    return [order[start : start + size] for start in range(0, len(order), size)]


def _padded(encoded: Sequence[Tuple[List[int], List[int]]]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and segments of a batch, padded to its longest sequence."""
    lengths = [len(ids) for ids, _ in encoded]
    arrays = np.zeros([3, len(encoded), max(lengths)], np.int32)
    for row, (ids, segments) in enumerate(encoded):
        arrays[:, row, : lengths[row]] = ids, [1] * lengths[row], segments
    return tuple(arrays)


def _choose(init_checkpoint: str, pack: str, bert_config_file: Optional[str]) -> Tuple[loading.Weights, Any]:
    """Where the weights come from, all of them read and compared with their fingerprints; and the head."""
    described = packs.read_config(pack)
    if described.head == "span":
        raise errors.UserError(
            f"The pack {pack} (task {described.task}) answers questions on paragraphs; this predictor is for "
            "classification and regression. Use run_squad.py --do_predict=true."
        )
    config, head = described.bert_config, described.make_head()
    if bert_config_file:
        config = modeling.BertConfig.from_json_file(bert_config_file)
    spec = ModelSpec(config, head, described.adapter_config, described.tuning_mode, described.tune_top_layers)
    return loading.resolve(spec, WeightRequest(init_checkpoint, pack), loading.EVALUATE), head


def _check_length(max_seq_length: int, config: packs.PackConfig) -> None:
    errors.check_int("max_seq_length", max_seq_length, 3)
    modeling.check_sequence_length(max_seq_length, config.bert_config)


def _load_tokenizer(
    pack: packs.Pack, path: str, vocab_file: Optional[str], spm_model_file: Optional[str], checkpoint: str
) -> Any:
    """The tokenizer that the pack was trained with, from the files named, or beside the base's checkpoint."""
    if not vocab_file and not spm_model_file:
        vocab_file, spm_model_file = _tokenizer_beside(checkpoint, pack.config.tokenizer["type"])
    do_lower_case = pack.config.tokenizer["do_lower_case"]
    tokenizer = tokenization.create_tokenizer(vocab_file, spm_model_file, do_lower_case)
    found = bases.describe_tokenizer(tokenizer)
    if found != pack.config.tokenizer:
        raise errors.UserError(
            f"The pack {path} was trained with another tokenizer: {pack.config.tokenizer}; "
            f"{vocab_file or spm_model_file} is {found}."
        )
    return tokenizer


def _tokenizer_beside(checkpoint: str, kind: str) -> Tuple[Optional[str], Optional[str]]:
    """The vocabulary file, or the SentencePiece model, in the folder of a checkpoint."""
    folder = checkpoints.folder_of(checkpoint)
    names = sorted(tf.gfile.ListDirectory(folder))
    if kind == "wordpiece":
        found = [name for name in names if name == bases.VOCAB_NAME]
    else:
        found = [name for name in names if name.endswith(".model")]
    if len(found) != 1:
        wanted = f"a {bases.VOCAB_NAME}" if kind == "wordpiece" else "one SentencePiece model (*.model)"
        raise errors.UserError(
            f"Expected {wanted} beside the base {checkpoint}; found {first_names(names)}. Give vocab_file or "
            "spm_model_file."
        )
    path = os.path.join(folder, found[0])
    return (path, None) if kind == "wordpiece" else (None, path)


def _build(source: loading.Weights, head: Any) -> Tuple[tf.Session, Callable[..., np.ndarray]]:
    """A session with the weights, and the function of (ids, mask, segments) -> probabilities, or numbers."""
    config = source.pack.config
    with tf.Graph().as_default() as graph:
        inputs = [tf.placeholder(tf.int32, [None, None], name) for name in ("input_ids", "input_mask", "segment_ids")]
        # The loss that the labels are for is not part of what runs.
        labels: Dict[str, tf.Tensor] = {
            name: tf.zeros(tf.shape(inputs[0])[:1], kind) for name, kind in head.label_types.items()
        }
        # TensorFlow 1.15 would make variables of the older kind, which the session's executor does not know.
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True), fused_ops.compiling(False):
            model = modeling.BertModel(
                config.bert_config, False, *inputs, scope="bert", adapter_fn=config.adapter_config
            )
            output = head.build(model, labels, is_training=False)
        values = WeightAssigner(source.assignments)
        values.replace_initializers()
        graph.finalize()
        session = tf.Session(graph=graph, config=estimators.serving_config())
        values.load(session)
        wanted = output.logits if output.probabilities is None else output.probabilities
        return session, session.make_callable(wanted, inputs)
