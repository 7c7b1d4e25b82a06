"""Load tasks into one graph and compute batches that may mix them. `Predictor` and `TaskPredictor` are built on it."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from adapter_bert.common import errors, parallel
from adapter_bert.evaluation.answers import AnswerRules, PredictedAnswer, find_answer
from adapter_bert.pipeline import spans
from adapter_bert.pipeline.features import Encoder
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.serving import task_graph
from adapter_bert.serving.task_graph import POOLED, SPAN, Family, TaskGraph
from adapter_bert.tasks.squad import Paragraph, Question
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import packs

Text = Union[str, Tuple[str, str]]
Pair = Tuple[str, Optional[str]]

# A task with examples for this many batches in a call gets batches of its own, which gather nothing. With fewer, the
# padding of examples of more different lengths would cost more.
_OWN_BATCHES = 2


class Prediction(NamedTuple):
    """The prediction for one text or pair of texts."""

    label: Optional[str] = None  # the most probable class; None for regression
    probabilities: Mapping[str, float] = {}  # by label, in the order of the classes; empty for regression
    number: Optional[float] = None  # the predicted number; None for classification


@dataclasses.dataclass(eq=False)
class LoadedTask:
    """A version of a task in the graph. It never changes; a new version of the task is another object."""

    name: str
    config: Optional[packs.PackConfig]  # None for plain BERT
    encoder: Encoder
    family: Family
    slot: int
    names: Tuple[str, ...]  # of its variables in the table
    fingerprint: str = ""  # of the weights of its pack
    version: int = 0  # larger for versions that were added later
    uses: int = 0  # number of calls that use it
    is_removed: bool = False  # whether it is erased after the last of these calls

    @property
    def pack_config(self) -> packs.PackConfig:
        """The configuration of its pack; raise a `UserError` for plain BERT."""
        if self.config is None:
            raise errors.UserError("Plain BERT has no head: name a task.")
        return self.config

    def check_predicts(self) -> None:
        """Raise a `UserError` if the task does not predict a class or a number."""
        if self.pack_config.head == "span":
            raise errors.UserError(
                f"The task {self.name} answers questions: use answer in Python, or run_squad.py --do_predict=true for "
                "a file."
            )

    def windows(self) -> WindowConfig:
        """Return the lengths of windows for question answering, as in training."""
        training = self.pack_config.training
        names = {"doc_stride", "max_query_length"}.intersection(training)
        config = WindowConfig(self.encoder.max_seq_length, **{name: training[name] for name in names})
        config.check()
        return config


class Row(NamedTuple):
    """One sequence for the network."""

    task: LoadedTask
    family: Family  # of the task, unless only the pooled output is needed
    features: Mapping[str, Sequence[int]]  # `input_ids` and `segment_ids`, without padding

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.features["input_ids"])


class Prepared(NamedTuple):
    """An example in the form that the network computes."""

    rows: List[Row]
    finish: Callable[[Sequence[np.ndarray]], Union[Prediction, PredictedAnswer]]  # from the outputs of the rows


def plan_batches(lengths: Sequence[int], batch_size: int, threads: int, total: Optional[int] = None) -> List[List[int]]:
    """Return the indices of sequences in batches of similar length, which need little padding.

    Small inputs are divided among the threads. The longest sequences come first, so that no thread starts on them last.
    `total` is the number of sequences in all plans that run together.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    size = max(1, min(batch_size, -(-(total or len(order)) // threads)))
    return [order[start : start + size] for start in range(0, len(order), size)]


def plan_rows(rows: Sequence[Row], batch_size: int, threads: int) -> List[List[int]]:
    """Return the indices of rows in batches of one family; a task with many rows gets batches of its own."""
    counts = collections.Counter(row.task for row in rows)
    groups: Dict[Any, List[int]] = collections.defaultdict(list)
    for index, row in enumerate(rows):
        owner = row.task if counts[row.task] >= _OWN_BATCHES * batch_size else None
        groups[row.family, owner].append(index)
    if len(groups) == 1:
        return plan_batches([row.length for row in rows], batch_size, threads)
    batches = [
        [group[index] for index in batch]
        for group in groups.values()
        for batch in plan_batches([rows[index].length for index in group], batch_size, threads, len(rows))
    ]
    return sorted(batches, key=lambda batch: -len(batch) * rows[batch[0]].length)


class Engine:
    """A graph with tasks, the threads that compute its batches, and the life of tasks in it."""

    def __init__(self, graph: TaskGraph, threads: int) -> None:
        """Use a graph; `threads` is the number of batches of a call to compute in parallel, 0 for one per core."""
        self._graph = graph
        self._threads = threads or parallel.num_cores()
        # Run batches in parallel, each in one thread: operations on a few sentences are too small to be split.
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        self._counting = threading.Lock()  # held while `uses` or `is_removed` change
        self._is_open = True

    def close(self) -> None:
        """Free the model. Calling this again has no effect."""
        self._is_open = False
        self._pool.shutdown()
        self._graph.close()

    def check_open(self) -> None:
        """Raise a `UserError` if the engine is closed."""
        if not self._is_open:
            raise errors.UserError("This predictor is closed. Create a new one.")

    # ------------------------------------------------------------------------------------------- tasks

    def load(
        self,
        name: str,
        config: Optional[packs.PackConfig],
        tensors: task_graph.Tensors,
        family: Family,
        encoder: Encoder,
    ) -> LoadedTask:
        """Put a task with these variables of the table into the graph."""
        self.check_open()
        slot = self._graph.write(task_graph.padded(tensors, family))
        return LoadedTask(name, config, encoder, family, slot, tuple(tensors))

    def warm_up(self, task: LoadedTask, is_mixed: bool) -> None:
        """Build and run the graph of a task's family: the first run optimizes it, which is slow."""
        features = {"input_ids": [0, 0, 0], "segment_ids": [0, 0, 0]}
        self._run([Row(task, task.family, features)] * 2, is_mixed)

    def acquire(self, task: LoadedTask) -> LoadedTask:
        """Keep a task in the graph until `release`; raise a `UserError` if it has been erased."""
        with self._counting:
            if task.is_removed and not task.uses:
                raise errors.UserError(f"This version of the task {task.name} was removed and released.")
            task.uses += 1
        return task

    def release(self, tasks: Iterable[LoadedTask]) -> None:
        """Undo `acquire`."""
        unused = []
        with self._counting:
            for task in tasks:
                task.uses -= 1
                if task.is_removed and not task.uses:
                    unused.append(task)
        self._erase(unused)

    def remove(self, task: LoadedTask) -> None:
        """Erase a task as soon as no call uses it."""
        with self._counting:
            task.is_removed = True
            unused = [] if task.uses else [task]
        self._erase(unused)

    def _erase(self, tasks: Sequence[LoadedTask]) -> None:
        for task in tasks:
            self._graph.erase(task.slot, task.names)

    # --------------------------------------------------------------------------------------- computing

    def compute(self, rows: Sequence[Row], batch_size: int) -> List[np.ndarray]:
        """Return the network's output for each row; of spans, without padding."""
        self.check_open()
        errors.check_int("batch_size", batch_size)
        batches = plan_rows(rows, batch_size, self._threads)
        found: List[Any] = [None] * len(rows)
        compute = self._pool.map if len(batches) > 1 else map  # avoids a thread switch for a single sentence
        try:
            results = compute(lambda batch: self.compute_batch([rows[index] for index in batch]), batches)
            for batch, outputs in zip(batches, results):
                for index, output in zip(batch, outputs):
                    found[index] = output
        except RuntimeError:  # from a session, or threads, that another thread has closed
            self.check_open()
            raise
        return found

    def compute_batch(self, rows: Sequence[Row]) -> List[np.ndarray]:
        """Return the network's output for each row of one batch, all of one family, in this thread."""
        outputs = self._run(rows)
        return [output[..., : row.length] if row.family.kind == SPAN else output for row, output in zip(rows, outputs)]

    def _run(self, rows: Sequence[Row], is_mixed: Optional[bool] = None) -> np.ndarray:
        slots = np.array([row.task.slot for row in rows], np.int32)
        family = rows[0].family
        if is_mixed is None:
            is_mixed = bool((slots != slots[0]).any())
        return self._graph.function(family, is_mixed)(slots, *_padded([row.features for row in rows]))

    def predict(self, examples: Sequence[Tuple[LoadedTask, Pair]], batch_size: int) -> List[Prediction]:
        """Return the predictions for texts or pairs of texts of classification and regression tasks."""
        for task, _ in examples:
            task.check_predicts()
        outputs = self.compute([_row(task, pair) for task, pair in examples], batch_size)
        return [_decode(task, output) for (task, _), output in zip(examples, outputs)]

    def pooled(self, examples: Sequence[Tuple[LoadedTask, Pair]], batch_size: int) -> np.ndarray:
        """Return the pooled output of the network for each text, float [texts, D]."""
        return np.array(self.compute([_row(task, pair, POOLED) for task, pair in examples], batch_size))

    def answer(
        self,
        task: LoadedTask,
        questions: Sequence[Tuple[str, str]],
        rules: Optional[AnswerRules],
        batch_size: int,
    ) -> List[PredictedAnswer]:
        """Return the answers to pairs of a question and a paragraph."""
        prepared = [prepare_question(task, question, context, rules) for question, context in questions]
        outputs = iter(self.compute([row for each in prepared for row in each.rows], batch_size))
        return [each.finish([next(outputs) for _ in each.rows]) for each in prepared]  # type: ignore[misc]


def prepare_text(task: LoadedTask, pair: Pair) -> Prepared:
    """Prepare a text, or a pair of texts, for a classification or regression task."""
    task.check_predicts()
    return Prepared([_row(task, pair)], lambda outputs: _decode(task, outputs[0]))


def prepare_question(task: LoadedTask, question: str, context: str, rules: Optional[AnswerRules] = None) -> Prepared:
    """Prepare a question about a paragraph."""
    config = task.pack_config
    if config.head != "span":
        raise errors.UserError(f"The task {task.name} is for {config.head}, not question answering: use predict.")
    answer_rules = rules or AnswerRules(version_2=bool(config.training.get("version_2_with_negative")))
    lengths, tokenizer = task.windows(), task.encoder.tokenizer
    paragraph = Paragraph(context, (Question("", question, (), False),))
    (windows,) = spans.all_windows([paragraph], tokenizer, lengths)

    def finish(outputs: Sequence[np.ndarray]) -> PredictedAnswer:
        starts, ends = ([each[end] for each in outputs] for end in (0, 1))
        return find_answer(context, windows, starts, ends, answer_rules)

    found = spans.paragraph_features(paragraph, 0, tokenizer, lengths)
    return Prepared([Row(task, task.family, features) for features in found], finish)


def _row(task: LoadedTask, pair: Pair, kind: Optional[str] = None) -> Row:
    family = task.family._replace(kind=kind, units=0) if kind else task.family
    return Row(task, family, task.encoder.encode(InputExample("", *pair)))


def _padded(encoded: Sequence[Mapping[str, Sequence[int]]]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, mask and segments of a batch, padded to its longest sequence."""
    lengths = [len(features["input_ids"]) for features in encoded]
    arrays = np.zeros([3, len(encoded), max(lengths)], np.int32)
    for row, features in enumerate(encoded):
        arrays[:, row, : lengths[row]] = features["input_ids"], [1] * lengths[row], features["segment_ids"]
    return tuple(arrays)


def _decode(task: LoadedTask, logits: np.ndarray) -> Prediction:
    labels = task.pack_config.labels
    if not labels:
        return Prediction(number=float(logits[0]))
    powers = np.exp(logits[: len(labels)] - logits[: len(labels)].max())
    row = (powers / powers.sum()).tolist()
    return Prediction(labels[row.index(max(row))], dict(zip(labels, row)))


def as_pairs(texts: Sequence[Text]) -> List[Pair]:
    """Return texts as (text, second text or None); raise a `UserError` if they are not texts."""
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise errors.UserError(
            f"predict expects a list of texts, found {type(texts).__name__}. Put a single text in [ ]."
        )
    pairs: List[Pair] = []
    for index, item in enumerate(texts):
        pair = (item, None) if isinstance(item, str) else item
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not (pair[1] is None or isinstance(pair[1], str)):
            raise errors.UserError(f"predict expects strings or pairs of strings, but item {index} is {item!r:.80}.")
        pairs.append((pair[0], pair[1]))
    return pairs


def as_questions(questions: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """Return pairs of a question and a paragraph; raise a `UserError` if they are not such pairs."""
    if isinstance(questions, (str, bytes)) or not hasattr(questions, "__iter__"):
        raise errors.UserError(
            f"answer expects a list of pairs of a question and a paragraph, found {type(questions).__name__}."
        )
    pairs: List[Tuple[str, str]] = []
    for index, item in enumerate(questions):
        is_pair = isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(text, str) for text in item)
        if not is_pair:
            raise errors.UserError(
                f"answer expects pairs of a question and a paragraph, but item {index} is {item!r:.80}."
            )
        pairs.append((item[0], item[1]))
    return pairs
