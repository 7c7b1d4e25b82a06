"""Predict with many tasks on one base, which is in memory once.

    with TaskPredictor.from_bank("bank") as predictor:
        predictor.predict([("sst2", "a fine film"), ("cola", "The cat sat mat.")])   # one batch: [Prediction(…), …]
        predictor.answer("squad", [("Who sat?", "The cat sat on the mat.")])         # [PredictedAnswer(…)]
        predictor.add("reviews", "runs/reviews")                                     # at any time, from any thread
        predictor.add("sst2", "better.safetensors", replace=True)
        predictor.remove("cola")

For servers, which must report an unknown task before they queue a request:

    task = predictor.acquire("sst2")       # this version stays in the graph until it is released
    predictor.predict([(task, "a fine film")])
    predictor.release([task])

A call uses the versions of its tasks at its start. Adding a version writes it to a free slot (see `task_graph`), then
changes the name to mean that slot; the old slot is erased after the last call that uses it. So nothing waits, and no
call sees parts of two versions. Predictions equal those of `Predictor` for the same pack.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

import tokenization
from adapter_bert.common import errors, files
from adapter_bert.devices import precision as device_precision
from adapter_bert.devices.device import Device
from adapter_bert.evaluation.answers import AnswerRules, PredictedAnswer
from adapter_bert.model import precision as model_precision
from adapter_bert.pipeline.features import Encoder
from adapter_bert.serving import stacking
from adapter_bert.serving.engine import Engine, LoadedTask, Prediction, Row, Text, as_pairs, as_questions
from adapter_bert.serving.task_graph import POOLED, SPAN, Family, TaskGraph, table_names
from adapter_bert.weights import bases, checkpoints, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.loading import Assignment

Path = Union[str, "os.PathLike[str]"]
# The name of a task, or what `acquire` returns.
Task = Union[str, LoadedTask]


class TaskPredictor:
    """A base with many packs. Any number of threads may use it, also while tasks are added and removed.

    Attributes:
      base: the base.
    """

    def __init__(self, base: bases.Base, threads: int = 0, precision: str = model_precision.FLOAT32) -> None:
        """Load a base without tasks.

        Args:
          base: the base, e.g. `bases.Base.find("bert")`.
          threads: number of threads for one call; 0 for one per core.
          precision: `float32`, or `bfloat16` on CPUs that support it.

        Raises:
          errors.UserError: a file of the base is missing or damaged.
        """
        errors.check_int("threads", threads, 0)
        device_precision.check(precision, Device())
        self.base = base
        self._tasks: Dict[str, LoadedTask] = {}
        self._lock = threading.Lock()  # held while `_tasks` changes or is read together with the counts of its values
        self._versions = 0
        self._warm: Set[Family] = set()
        self._warming = threading.Lock()
        self._tokenizers: Dict[bool, bases.Tokenizer] = {}
        with files.user_errors():
            base.check_vocabulary()
            names = table_names(base.config)
            frozen = [name for name in base.digests if name not in names]  # reads and checks all variables
            norms = [name for name in base.digests if name in names]
            self._norms = checkpoints.read_tensors(base.checkpoint, norms)
        reduced: List[str] = []
        if precision != model_precision.FLOAT32:
            reduced = model_precision.stored_names([*frozen, *names], set(frozen), trains=False)
        graph = TaskGraph(base.config, [Assignment(base.checkpoint, tuple(frozen))], names, reduced, precision)
        self._engine = Engine(graph, threads)
        encoder = Encoder((), base.config.max_position_embeddings, self._tokenizer(base.do_lower_case))
        self._plain = self._engine.load("", None, self._norms, Family(POOLED), encoder)
        self._engine.warm_up(self._plain, is_mixed=False)

    @classmethod
    def from_bank(cls, bank: str, tasks: Optional[Sequence[str]] = None, **options: Any) -> TaskPredictor:
        """Load packs of a bank, by default all; `options` are arguments of `TaskPredictor`."""
        with files.user_errors():
            opened = Bank.open(bank)
            paths = {name: opened.path(name) for name in (opened.names() if tasks is None else tasks)}
        predictor = cls(opened.base, **options)
        try:
            for name, path in paths.items():
                predictor.add(name, path)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def __enter__(self) -> TaskPredictor:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def close(self) -> None:
        """Free the model. Calling this again has no effect."""
        self._engine.close()

    # ------------------------------------------------------------------------------------------- tasks

    def names(self) -> List[str]:
        """Return the sorted names of the tasks."""
        with self._lock:
            return sorted(self._tasks)

    def config(self, name: str) -> packs.PackConfig:
        """Return the configuration of a task's pack: labels, scores and so on."""
        with self._lock:
            config = self._find(name).config
        assert config is not None  # only plain BERT has none
        return config

    def add(self, name: str, pack: Union[Path, packs.Pack], replace: bool = False) -> None:
        """Add a task, or with `replace` a new version of one; calls that have started finish with the old version.

        Args:
          name: the name of the task, which need not be the one in the pack.
          pack: a pack, its file, or the output folder of its run.
          replace: whether there may be a task of this name.

        Raises:
          errors.UserError: the pack is damaged, belongs to another base or cannot share a base; or the name is taken.
        """
        self._check_absent(name, replace)
        with files.user_errors():
            if isinstance(pack, packs.Pack):
                loaded, where = pack, f"The pack for the task {name}"
                packs.check(loaded, where)
            else:
                path = packs.find(os.fspath(pack))
                loaded, where = packs.read(path), f"The pack {path}"
        task = self._load(name, loaded, where)
        try:
            with self._lock:
                if not replace:
                    self._check_absent(name, replace)
                old = self._tasks.get(name)
                self._versions += 1
                task.version = self._versions
                self._tasks[name] = task
        except errors.UserError:  # another thread has added the same name
            self._engine.remove(task)
            raise
        if old:
            self._engine.remove(old)

    def remove(self, name: str) -> None:
        """Remove a task; calls that have started finish with it. Its memory is then free."""
        with self._lock:
            task = self._find(name)
            del self._tasks[name]
        self._engine.remove(task)

    def acquire(self, name: str) -> LoadedTask:
        """Return the current version of a task, which stays usable until `release`; its `config` has the labels."""
        with self._lock:
            return self._engine.acquire(self._find(name))

    def release(self, tasks: Iterable[LoadedTask]) -> None:
        """Undo `acquire`."""
        self._engine.release(tasks)

    def _find(self, name: str) -> LoadedTask:
        if name not in self._tasks:
            raise errors.unknown("task", name, sorted(self._tasks))
        return self._tasks[name]

    def _check_absent(self, name: str, replace: bool) -> None:
        if name in self._tasks and not replace:
            raise errors.UserError(f"There is already a task '{name}': use another name, or replace=True.")

    def _load(self, name: str, pack: packs.Pack, where: str) -> LoadedTask:
        """Check a pack and put it into the graph."""
        config, base = pack.config, self.base
        stacking.check(config, where)
        packs.check_architecture(pack, where, base.config.to_dict(), base.folder)
        packs.check_base(pack, where, base.digests, base.folder)
        tokenizer = self._tokenizer(config.tokenizer["do_lower_case"])
        described = bases.describe_tokenizer(tokenizer)
        if described != config.tokenizer:
            raise errors.UserError(
                f"{where} was trained with another tokenizer: expected {config.tokenizer}, but {base.tokenizer_file} "
                f"is {described}."
            )
        family, encoder = stacking.family_of(config), Encoder((), config.max_seq_length, tokenizer)
        task = self._engine.load(name, config, {**self._norms, **pack.tensors}, family, encoder)
        task.fingerprint = pack.fingerprint
        if family.kind == SPAN:
            try:
                task.windows()
            except errors.UserError as error:
                self._engine.remove(task)
                raise errors.UserError(f"{where}: {error}") from None
        with self._warming:
            graph = family._replace(size=0, units=0)  # tasks of different sizes share it
            if graph not in self._warm:
                for is_mixed in (False, True):
                    self._engine.warm_up(task, is_mixed)
                self._warm.add(graph)
        return task

    def _tokenizer(self, do_lower_case: bool) -> bases.Tokenizer:
        if do_lower_case not in self._tokenizers:
            base = self.base
            self._tokenizers[do_lower_case] = tokenization.create_tokenizer(
                base.vocab_file, base.spm_model_file, do_lower_case
            )
        return self._tokenizers[do_lower_case]

    # --------------------------------------------------------------------------------------- computing

    def predict(self, examples: Sequence[Tuple[Task, Text]], batch_size: int = 32) -> List[Prediction]:
        """Return the predictions for pairs of a task and a text, or a pair of texts, in the same order.

        A thread computes up to `batch_size` texts of any tasks at a time, which affects results only through rounding.
        Raise a `UserError` if a task is unknown or answers questions, or an item is not a text.
        """
        with self._resolved(examples) as (tasks, texts):
            return self._engine.predict(list(zip(tasks, as_pairs(texts))), batch_size)

    def answer(
        self,
        task: Task,
        questions: Sequence[Tuple[str, str]],
        rules: Optional[AnswerRules] = None,
        batch_size: int = 8,
    ) -> List[PredictedAnswer]:
        """Return the answers to pairs of a question and a paragraph; see `Predictor.answer`."""
        with self._resolved([(task, "")]) as (tasks, _):
            return self._engine.answer(tasks[0], as_questions(questions), rules, batch_size)

    def pooled(self, examples: Sequence[Tuple[Optional[Task], Text]], batch_size: int = 32) -> np.ndarray:
        """Return the pooled output for pairs of a task and a text, float [texts, D]; None is plain BERT."""
        with self._resolved(examples) as (tasks, texts):
            return self._engine.pooled(list(zip(tasks, as_pairs(texts))), batch_size)

    def compute_batch(self, rows: Sequence[Row]) -> List[np.ndarray]:
        """Return the network's outputs for one batch, in this thread, for callers with a queue of their own.

        Args:
          rows: of `engine.prepare_text` or `engine.prepare_question`, for acquired tasks, all of one family.
        """
        self._engine.check_open()
        return self._engine.compute_batch(rows)

    @contextlib.contextmanager
    def _resolved(self, examples: Sequence[Tuple[Any, Text]]) -> Iterator[Tuple[List[LoadedTask], List[Text]]]:
        """Return the versions of the tasks, which stay in the graph during this context, and the texts."""
        self._engine.check_open()
        examples = _as_examples(examples)
        acquired: Dict[Optional[Task], LoadedTask] = {}
        try:
            for task, _ in examples:
                if task not in acquired:
                    version = self._plain if task is None else task
                    acquired[task] = self.acquire(task) if isinstance(task, str) else self._engine.acquire(version)
            yield [acquired[task] for task, _ in examples], [text for _, text in examples]
        finally:
            self.release(acquired.values())


def _as_examples(examples: Sequence[Tuple[Any, Text]]) -> List[Tuple[Any, Text]]:
    if isinstance(examples, (str, bytes)) or not hasattr(examples, "__iter__"):
        raise errors.UserError(f"Expected a list of pairs of a task and a text, found {type(examples).__name__}.")
    found = list(examples)
    for index, item in enumerate(found):
        is_pair = isinstance(item, (tuple, list)) and len(item) == 2
        if not is_pair or not (item[0] is None or isinstance(item[0], (str, LoadedTask))):
            raise errors.UserError(f"Expected pairs of a task and a text, but item {index} is {item!r:.80}.")
    return found
